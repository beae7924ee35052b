//! Layers by name, and stacks of them.
//!
//! A stack is a table of named layers and a list of those that are the pool's devices:
//!
//! ```toml
//! devices = ["main"]
//!
//! [layer.main.checked]
//! of = "both"
//!
//! [layer.both.joined]
//! of = ["left", "right"]
//!
//! [layer.left.file]
//! path = "left.img"
//!
//! [layer.right.file]
//! path = "right.img"
//! ```
//! A new layer is one variant of [`Spec`] with a documented struct, and one arm in [`Stack::build`]: help, schema and the
//! list of layers follow from that.

#[cfg(test)]
mod fuzz;

use ashlar_array::{Array, Level, NamedDevice, Options, ParityRule, Verify};
use ashlar_block::{Checked, Device, Error, Kind, Result, ResultExt};
use ashlar_devices::{FileDevice, Joined, Memory, OpenOptions, Sparse};
use ashlar_emulated::Emulated;
use ashlar_env::{BoxFuture, Env};
use ashlar_faults::{Fault, Faulty};
use ashlar_models::ModelFile;
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file or block device of the host, past the page cache where the host allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Where it is; a relative path begins at the directory of the pool.
    pub path: PathBuf,
    /// Use the page cache even where direct I/O works.
    #[serde(default, skip_serializing_if = "is_default")]
    pub buffered: bool,
}

/// Memory: fast, and gone with the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySpec {
    /// How much, as in "2GiB".
    pub size: String,
}

/// Several devices one behind another, as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinedSpec {
    /// Names of the layers below, in order.
    pub of: Vec<String>,
}

/// Counts what passes, refuses what breaks the contract of devices, and stops after a failed flush.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckedSpec {
    /// Name of the layer below.
    pub of: String,
}

/// Blocks full of zeros take no room below: they become holes. For images of which nobody reads the contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SparseSpec {
    /// Name of the layer below, whose discarded blocks are zeros.
    pub of: String,
}

/// A device that takes as long as a model of a disk or of flash says; the contents are in the layer below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmulatedSpec {
    /// Name of the layer below.
    pub of: String,
    /// The model: a name that `ashlar device models` lists, or a file that ends in .toml; a relative path begins at the
    /// directory of the pool.
    pub model: String,
    /// Decides what differs from one specimen of the model to the next.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seed: u64,
    /// File for what a restart must not change: wear, and what flash has where. Written at the end; a relative path begins at
    /// the directory of the pool. Without it every start begins with a new specimen.
    #[serde(default, skip_serializing_if = "is_default")]
    pub state: Option<PathBuf>,
}

/// The layer below with faults: bad sectors, wrong data, lost writes, delays, power cuts; see docs/faults.md.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultySpec {
    /// Name of the layer below.
    pub of: String,
    /// The faults as text, as in ["lse at 0..4KiB", "delay 5ms on read"].
    pub faults: Vec<Fault>,
    /// Decides what the faults leave to chance.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seed: u64,
}

/// A volume on a disk with a staging device (flash): small updates are collected and then placed next to their neighbours;
/// see docs/proximal.md.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProximalSpec {
    /// Name of the layer that holds the data: a disk, or an array of disks.
    pub data: String,
    /// Name of the layer for staging and pointers: flash, about 1.5 % of the data.
    pub staging: String,
    /// How large the volume is, as in "2TiB"; it is thin.
    pub size: String,
    /// Most data that are staged, as in "10GiB"; by default half of the staging device.
    #[serde(default, skip_serializing_if = "is_default")]
    pub staged: Option<String>,
    /// Make the store if the devices are empty.
    #[serde(default, skip_serializing_if = "is_default")]
    pub make: bool,
}

/// An array that `ashlar array create` made: RAID-0, 1, 4, 5 or 6 with checksums and repair; see docs/array.md.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RaidSpec {
    /// Names of the layers below, in any order: all members. One that cannot be opened counts as gone, and must then be
    /// rebuilt.
    pub of: Vec<String>,
    /// The level that it must have, as in "raid6". It is on the members; this only guards against a mistake.
    #[serde(default, skip_serializing_if = "is_default")]
    pub level: Option<Level>,
    /// Requests outstanding on one member, at most. Default: 8.
    #[serde(default = "queue_default", skip_serializing_if = "is_queue_default")]
    pub queue: usize,
    /// What reads compare: "row" (block, record, and the parity's record; the default) or "own" (block and record).
    #[serde(default, skip_serializing_if = "is_default")]
    pub verify: Verify,
    /// How parity follows a write of a part of a row: as engages the "fewest-members" (the default) or as takes the
    /// "fewest-requests".
    #[serde(default, skip_serializing_if = "is_default")]
    pub parity: ParityRule,
}

impl RaidSpec {
    /// The array on these layers, with defaults.
    pub fn of(of: Vec<String>) -> RaidSpec {
        let Options { queue, verify, parity, .. } = Options::default();
        RaidSpec { of, level: None, queue, verify, parity }
    }
}

fn queue_default() -> usize {
    Options::default().queue
}
fn is_queue_default(queue: &usize) -> bool {
    *queue == queue_default()
}

/// A layer and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Spec {
    /// See [`FileSpec`].
    File(FileSpec),
    /// See [`MemorySpec`].
    Memory(MemorySpec),
    /// See [`JoinedSpec`].
    Joined(JoinedSpec),
    /// See [`CheckedSpec`].
    Checked(CheckedSpec),
    /// See [`EmulatedSpec`].
    Emulated(EmulatedSpec),
    /// See [`FaultySpec`].
    Faulty(FaultySpec),
    /// See [`ProximalSpec`].
    Proximal(ProximalSpec),
    /// See [`RaidSpec`].
    Raid(RaidSpec),
    /// See [`SparseSpec`].
    Sparse(SparseSpec),
}

impl Spec {
    /// Names of the layers below.
    fn below(&self) -> Vec<&String> {
        match self {
            Spec::File(_) | Spec::Memory(_) => Vec::new(),
            Spec::Joined(JoinedSpec { of }) | Spec::Raid(RaidSpec { of, .. }) => of.iter().collect(),
            Spec::Proximal(ProximalSpec { data, staging, .. }) => vec![data, staging],
            Spec::Checked(CheckedSpec { of })
            | Spec::Sparse(SparseSpec { of })
            | Spec::Emulated(EmulatedSpec { of, .. })
            | Spec::Faulty(FaultySpec { of, .. }) => vec![of],
        }
    }
}

/// Most layers one on top of another: building them takes a frame of the thread's stack for each.
const HEIGHT_MAX: usize = 64;

/// Layers by name, and which of them are the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// Names of the layers that the pool stands on.
    pub devices: Vec<String>,
    /// Every layer by its name.
    pub layer: BTreeMap<String, Spec>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A parameter of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Parameter {
    /// Its name in the stack file.
    pub name: String,
    /// What kind of value it takes.
    pub kind: String,
    /// Whether it must be given.
    pub required: bool,
    /// What it means.
    pub what: String,
}

/// A layer as help shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LayerInfo {
    /// Its name in the stack file.
    pub name: String,
    /// What it is.
    pub what: String,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
}

fn info<T: JsonSchema>(name: &str) -> LayerInfo {
    let schema = schemars::schema_for!(T).to_value();
    let text = |value: &serde_json::Value, key: &str| value.get(key).and_then(|v| v.as_str()).unwrap_or("").to_string();
    let required: Vec<&str> =
        schema.get("required").and_then(|v| v.as_array()).into_iter().flatten().filter_map(|v| v.as_str()).collect();
    let properties = schema.get("properties").and_then(|v| v.as_object());
    let parameter = |(key, value): (&String, &serde_json::Value)| Parameter {
        name: key.clone(),
        kind: text(value, "type"),
        required: required.contains(&key.as_str()),
        what: text(value, "description"),
    };
    let parameters = properties.into_iter().flatten().map(parameter).collect();
    LayerInfo { name: name.into(), what: text(&schema, "description"), parameters }
}

/// Every layer that there is, in order of names.
pub fn layers() -> Vec<LayerInfo> {
    vec![
        info::<CheckedSpec>("checked"),
        info::<EmulatedSpec>("emulated"),
        info::<FaultySpec>("faulty"),
        info::<FileSpec>("file"),
        info::<JoinedSpec>("joined"),
        info::<MemorySpec>("memory"),
        info::<ProximalSpec>("proximal"),
        info::<RaidSpec>("raid"),
        info::<SparseSpec>("sparse"),
    ]
}

impl Stack {
    /// A stack of plain files, one device each.
    pub fn of_files(paths: &[PathBuf]) -> Stack {
        let mut stack = Stack::default();
        for (index, path) in paths.iter().enumerate() {
            let name = format!("device-{index}");
            stack.layer.insert(name.clone(), Spec::File(FileSpec { path: path.clone(), buffered: false }));
            stack.devices.push(name);
        }
        stack
    }

    /// Whether the devices, or layers below them, include this one.
    pub fn names(&self, wanted: &str) -> bool {
        let mut open: Vec<&str> = self.devices.iter().map(String::as_str).collect();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(name) = open.pop() {
            if name == wanted {
                return true;
            }
            let below = self.layer.get(name).filter(|_| seen.insert(name)).map(Spec::below);
            open.extend(below.into_iter().flatten().map(String::as_str));
        }
        false
    }

    /// Whether all that it stands on is memory, which is empty each time.
    pub fn forgets(&self) -> bool {
        self.layer.values().all(|spec| matches!(spec, Spec::Memory(_)) || !spec.below().is_empty())
    }

    /// Reads a stack file.
    pub fn parse(text: &str) -> Result<Stack> {
        toml::from_str(text).map_err(|error| Error::misuse(error.to_string()))
    }

    /// Builds the devices. Relative paths begin at `base`.
    pub async fn build(&self, base: &Path, env: &Env) -> Result<Built> {
        if self.devices.is_empty() {
            return Err(Error::misuse("the stack names no devices: write devices = [\"NAME\"]"));
        }
        let mut site = Site { stack: self, base, env, above: Vec::new(), used: Vec::new(), arrays: Vec::new() };
        let mut devices = Vec::with_capacity(self.devices.len());
        for name in &self.devices {
            devices.push(site.build(name).await?);
        }
        match self.layer.keys().find(|name| !site.used.contains(name)) {
            Some(unused) => {
                Err(Error::misuse(format!("layer {unused:?} is not used by any device; remove it or name it")))
            }
            None => Ok(Built { devices, arrays: site.arrays }),
        }
    }
}

/// What a stack became.
pub struct Built {
    /// The devices that it names, in order.
    pub devices: Vec<Device>,
    /// Its arrays, by the names of their layers.
    pub arrays: Vec<(String, Arc<Array>)>,
}

/// A device with the latencies of a model. By itself, since models are large, and those who build high stacks call themselves.
#[inline(never)]
fn emulated(child: Device, spec: &EmulatedSpec, base: &Path, env: &Env) -> Result<Device> {
    let model = ModelFile::find(&spec.model, base).map_err(|error| Error::misuse(error.to_string()))?;
    let device = Emulated::new(child, &model, spec.seed, env.clone())?;
    Ok(Arc::new(match &spec.state {
        Some(state) => device.kept_in(&base.join(state), &model, spec.seed)?,
        None => device,
    }))
}

/// A stack that is being built.
struct Site<'a> {
    stack: &'a Stack,
    base: &'a Path,
    env: &'a Env,
    /// Layers above the one at hand.
    above: Vec<&'a String>,
    used: Vec<&'a String>,
    arrays: Vec<(String, Arc<Array>)>,
}

impl<'a> Site<'a> {
    fn build<'b>(&'b mut self, name: &'a String) -> BoxFuture<'b, Result<Device>>
    where
        'a: 'b,
    {
        Box::pin(async move {
            let layers = &self.stack.layer;
            let known = || layers.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let spec = layers.get(name);
            let spec =
                spec.ok_or_else(|| Error::misuse(format!("there is no layer {name:?}; there are: {}", known())))?;
            if self.above.contains(&name) {
                return Err(Error::misuse(format!("layer {name:?} stands on itself")));
            }
            if self.above.len() == HEIGHT_MAX {
                let message =
                    format!("layer {name:?} lies below {HEIGHT_MAX} others, and a stack is no higher; flatten it");
                return Err(Error::misuse(message));
            }
            if self.used.contains(&name) {
                return Err(Error::misuse(format!(
                    "layer {name:?} is used twice: two writers would destroy each other's data"
                )));
            }
            self.used.push(name);
            self.above.push(name);
            let device = self.build_spec(name, spec).await;
            self.above.pop();
            device
        })
    }

    async fn build_spec(&mut self, name: &'a String, spec: &'a Spec) -> Result<Device> {
        let (base, env) = (self.base, self.env);
        let within = || format!("layer {name}");
        Ok(match spec {
            Spec::File(spec) => {
                let options = OpenOptions { buffered: spec.buffered, ..OpenOptions::default() };
                Arc::new(FileDevice::open(&base.join(&spec.path), &options, env.clone()).within(within)?)
            }
            Spec::Memory(spec) => Arc::new(Memory::new(size(&spec.size).within(within)?.to_blocks_down())),
            Spec::Joined(spec) if spec.of.is_empty() => {
                return Err(Error::misuse("joins nothing: name at least one layer").within(within()));
            }
            Spec::Joined(spec) => {
                let mut children = Vec::with_capacity(spec.of.len());
                for child in &spec.of {
                    children.push(self.build(child).await?);
                }
                Arc::new(Joined::new(children))
            }
            Spec::Checked(spec) => {
                let child = self.build(&spec.of).await?;
                Arc::new(Checked::new(child, env.clone()))
            }
            Spec::Sparse(spec) => {
                let child = self.build(&spec.of).await?;
                Arc::new(Sparse::new(child).within(within)?)
            }
            Spec::Emulated(spec) => {
                let child = self.build(&spec.of).await?;
                emulated(child, spec, base, env).within(within)?
            }
            Spec::Proximal(spec) => self.build_proximal(spec).await.within(within)?,
            Spec::Faulty(spec) => {
                let child = self.build(&spec.of).await?;
                Arc::new(Faulty::with_faults(child, spec.seed, &spec.faults, env.clone()).within(within)?)
            }
            Spec::Raid(spec) => {
                let array = Arc::new(self.build_raid(spec).await.within(within)?);
                self.arrays.push((name.clone(), array.clone()));
                array
            }
        })
    }

    /// Boxed, and by itself, as is the next: each layer of a high stack takes the room of those that it calls on its thread's stack.
    #[inline(never)]
    fn build_proximal<'b>(&'b mut self, spec: &'a ProximalSpec) -> BoxFuture<'b, Result<Device>>
    where
        'a: 'b,
    {
        Box::pin(async move {
            let data = self.build(&spec.data).await?;
            let staging = self.build(&spec.staging).await?;
            let staged = spec.staged.as_deref().map(size).transpose()?;
            let config =
                ashlar_proximal::Config { staged_max: staged.map(Bytes::to_blocks_down), ..Default::default() };
            let length = size(&spec.size)?.to_blocks_down();
            let make = spec.make.then(ashlar_proximal::Creation::default);
            let volume = ashlar_proximal::open_volume(self.env, (data, staging), length, config, make).await?;
            Ok(Arc::new(volume) as Device)
        })
    }

    #[inline(never)]
    fn build_raid<'b>(&'b mut self, spec: &'a RaidSpec) -> BoxFuture<'b, Result<Array>>
    where
        'a: 'b,
    {
        Box::pin(async move {
            let (mut members, mut absent) = (Vec::with_capacity(spec.of.len()), 0);
            for child in &spec.of {
                match self.build(child).await {
                    Ok(device) => members.push(NamedDevice { name: child.clone(), device }),
                    // It is gone or cannot be read. (In use by somebody else, or described wrongly, is another matter.)
                    Err(error) if error.kind() == Kind::Failed => absent += 1,
                    Err(error) => return Err(error),
                }
            }
            let options = Options { queue: spec.queue, verify: spec.verify, parity: spec.parity, ..Options::default() };
            let array = Array::open(self.env, members, absent, options).await?;
            match spec.level.filter(|level| *level != array.shape().level) {
                Some(level) => {
                    let message =
                        format!("the members are of a {} and not of a {level}; correct the stack", array.shape().level);
                    Err(Error::misuse(message))
                }
                None => Ok(array),
            }
        })
    }
}

/// A size of a stack file.
fn size(text: &str) -> Result<Bytes> {
    text.parse().map_err(|error| Error::misuse(format!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::sim::{Schedule, Sim};

    fn build(text: &str) -> Result<usize> {
        let sim = Sim::new(0, Schedule::Fifo);
        let (stack, env) = (Stack::parse(text)?, sim.env());
        let built = sim.run(async move { stack.build(Path::new("/"), &env).await }).expect("no deadlock");
        built.map(|built| built.devices.len())
    }

    #[test]
    fn stacks_are_built_of_named_layers() {
        let text = r#"
            devices = ["top", "s", "p"]
            layer.top.checked = { of = "slow" }
            layer.slow.emulated = { of = "bad", model = "wd-re3" }
            layer.bad.faulty = { of = "both", seed = 7, faults = ["lse at 0..4KiB", "flip p 1e-6 on read"] }
            layer.both.joined = { of = ["a", "b"] }
            layer.a.memory = { size = "1MiB" }
            layer.b.memory = { size = "2MiB" }
            layer.s.sparse = { of = "c" }
            layer.c.memory = { size = "4MiB" }
            layer.p.proximal = { data = "d", staging = "f", size = "8MiB", make = true }
            layer.d.memory = { size = "16MiB" }
            layer.f.memory = { size = "64MiB" }
        "#;
        assert_eq!(build(text).expect("a good stack"), 3);
    }

    #[test]
    fn a_stack_on_memory_alone_forgets() {
        let forgets = |text: &str| Stack::parse(text).expect("a good stack").forgets();
        let memory = "devices = [\"a\"]\nlayer.a.checked.of = \"b\"\nlayer.b.memory.size = \"1MiB\"\n";
        assert!(forgets(memory));
        let both = memory.replace("[\"a\"]", "[\"a\", \"c\"]") + "layer.c.file.path = \"c.img\"";
        assert!(!forgets(&both));
    }

    #[test]
    fn errors_teach() {
        let cases = [
            ("devices = []\nlayer = {}", "names no devices"),
            ("devices = [\"x\"]\nlayer.a.memory.size = \"1MiB\"", "there are: a"),
            ("devices = [\"a\"]\nlayer.a.checked.of = \"a\"", "stands on itself"),
            ("devices = [\"a\", \"a\"]\nlayer.a.memory.size = \"1MiB\"", "used twice"),
            ("devices = [\"a\"]\nlayer.a.memory.size = \"1MiB\"\nlayer.b.memory.size = \"1MiB\"", "\"b\" is not used"),
            ("devices = [\"a\"]\nlayer.a.memory.size = \"much\"", "is not a size"),
            ("devices = [\"a\"]\nlayer.a.memory.sise = \"1MiB\"", "unknown field"),
            (
                "devices = [\"a\"]\nlayer.a.emulated = { of = \"b\", model = \"floppy\" }\nlayer.b.memory.size = \"1MiB\"",
                "there are: cheetah-15k5, wd-re3",
            ),
            (
                "devices = [\"a\"]\nlayer.a.emulated = { of = \"b\", model = \"wd-re3\" }\nlayer.b.memory.size = \"2TB\"",
                "make it smaller",
            ),
            ("devices = [\"a\"]\nlayer.a.flash = {}", "unknown variant"),
            (
                "devices = [\"a\"]\nlayer.a.raid.of = [\"b\"]\nlayer.b.memory.size = \"9MiB\"",
                "make one with `ashlar array create`",
            ),
            (
                "devices = [\"a\"]\nlayer.a.proximal = { data = \"d\", staging = \"f\", size = \"8MiB\" }\n\
                 layer.d.memory.size = \"16MiB\"\nlayer.f.memory.size = \"64MiB\"",
                "say make = true",
            ),
            ("devices = [\"a\"]\nlayer.a.raid.of = []", "none of the members can be read"),
            (
                "devices = [\"a\"]\nlayer.a.faulty = { of = \"b\", faults = [\"lse\"] }\nlayer.b.memory.size = \"1MiB\"",
                "write lse at RANGE | lse rate R",
            ),
            (
                "devices = [\"a\"]\nlayer.a.faulty = { of = \"b\", faults = [\"stuck at 2MiB..\"] }\nlayer.b.memory.size = \"1MiB\"",
                "past the end of the device",
            ),
        ];
        for (text, expected) in cases {
            let error = build(text).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn towers_are_refused() {
        let tower = |height: usize| {
            let checked: String = (1..height).map(|at| format!("layer.l{at}.checked.of = \"l{}\"\n", at - 1)).collect();
            format!("devices = [\"l{}\"]\nlayer.l0.memory.size = \"1MiB\"\n{checked}", height - 1)
        };
        assert_eq!(build(&tower(HEIGHT_MAX)).expect("as high as can be"), 1);
        for height in [HEIGHT_MAX + 1, 20_000] {
            let error = build(&tower(height)).expect_err("too high").to_string();
            assert!(error.contains("flatten it"), "{error}");
        }
    }

    #[test]
    fn every_variant_is_listed_with_its_help() {
        let schema = schemars::schema_for!(Spec).to_value().to_string();
        for layer in layers() {
            assert!(schema.contains(&format!("\"{}\"", layer.name)), "{}", layer.name);
            assert!(!layer.what.is_empty() && layer.parameters.iter().all(|parameter| !parameter.what.is_empty()));
        }
        assert_eq!(schemars::schema_for!(Spec).to_value()["oneOf"].as_array().map(Vec::len), Some(layers().len()));
    }
}
