//! `ashlar array`: arrays on devices that nobody uses, and those of a pool, by the same requests.

pub mod arguments;

use crate::client;
use crate::config;
use crate::device_files::{DeviceFiles, device_file};
use crate::output::{Failure, Output};
use crate::request::{Answer, Done, Request};
use crate::signals::on_signal;
use arguments::{ArrayCommand, At, Create, Work};
use ashlar_array::{Array, ArrayStatus, Creation, NamedDevice, Options, Pace, Progress, Rebuilt, Scrubbed, inspect};
use ashlar_block::Result;
use ashlar_devices::{FileDevice, OpenOptions};
use ashlar_env::Env;
use ashlar_env::real::Real;
use ashlar_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of a group on a member.
const GROUP_BYTES: u64 = 64 * 4096;

/// What is asked of an array.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub enum ArrayRequest {
    Status,
    Look { rate: Option<u64>, repair: bool },
    Replace { member: usize, path: PathBuf, force: bool, rate: Option<u64> },
    Rebuild { rate: Option<u64> },
}

/// Arrays, by the names of their layers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Arrays(pub Vec<ArrayStatus>);

impl fmt::Display for Arrays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "no arrays");
        }
        self.0.iter().try_for_each(|array| write!(f, "{array}"))
    }
}

/// What a check or a scrub came to.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Looked {
    /// What could be repaired was.
    pub repaired: bool,
    #[serde(flatten)]
    pub found: Scrubbed,
}

impl Looked {
    /// Whether something is wrong now.
    fn is_wrong(&self) -> bool {
        self.found.lost > 0 || self.found.gone > 0 || !self.repaired && self.found.wrong > 0
    }
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scrubbed { groups, wrong, gone, lost, blocks, stopped } = &self.found;
        let were = if self.repaired { "were" } else { "are" };
        writeln!(
            f,
            "verified {} of each member: {wrong} blocks {were} wrong, {gone} of them beyond repair",
            Bytes(groups * GROUP_BYTES)
        )?;
        name_lost(f, *lost, blocks)?;
        if !self.repaired && wrong > gone {
            writeln!(f, "`ashlar array scrub` repairs what can be repaired")?;
        }
        if *stopped { writeln!(f, "stopped before the end") } else { Ok(()) }
    }
}

/// What a rebuild came to.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Refilled(pub Rebuilt);

impl fmt::Display for Refilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.members[..] {
            [] => writeln!(f, "nothing was rebuilt to its end")?,
            members => writeln!(f, "rebuilt: members {members:?}")?,
        }
        name_lost(f, self.0.lost, &self.0.blocks)?;
        if self.0.stopped { writeln!(f, "stopped; `ashlar array rebuild` goes on from there") } else { Ok(()) }
    }
}

fn name_lost(f: &mut fmt::Formatter<'_>, lost: u64, blocks: &[u64]) -> fmt::Result {
    if lost == 0 {
        return Ok(());
    }
    let named: Vec<String> = blocks.iter().take(12).map(ToString::to_string).collect();
    let more = if lost > named.len() as u64 { ", ..." } else { "" };
    writeln!(f, "lost: {lost} blocks of 4 KiB of the array: {}{more}; write them anew from a copy", named.join(", "))
}

/// Does what is asked of one array. `progress` is told bytes done and bytes in all.
pub async fn perform(
    env: &Env,
    array: &Array,
    request: ArrayRequest,
    stop: &AtomicBool,
    progress: impl Fn(u64, u64),
) -> Result<Answer> {
    let pace = |rate: Option<u64>| Pace { rate: rate.map(Bytes) };
    let told = |at: Progress| progress(at.done * GROUP_BYTES, at.total * GROUP_BYTES);
    Ok(match request {
        ArrayRequest::Status => Answer::Arrays(Arrays(vec![array.status()])),
        ArrayRequest::Look { rate, repair: true } => {
            Answer::Looked(Looked { repaired: true, found: array.scrub(pace(rate), stop, told).await? })
        }
        ArrayRequest::Look { rate, repair: false } => {
            Answer::Looked(Looked { repaired: false, found: array.check(pace(rate), stop, told).await? })
        }
        ArrayRequest::Replace { member, path, force, rate } => {
            replace(env, array, member, (path.display().to_string(), &path), force).await?;
            Answer::Refilled(Refilled(array.rebuild(pace(rate), stop, told).await?))
        }
        ArrayRequest::Rebuild { rate } => Answer::Refilled(Refilled(array.rebuild(pace(rate), stop, told).await?)),
    })
}

/// Puts a file or device, with its name, in the place of a member.
pub async fn replace(
    env: &Env,
    array: &Array,
    member: usize,
    (name, path): (String, &Path),
    force: bool,
) -> Result<()> {
    array.replace(member, NamedDevice { name, ..open_file(path, env)? }, force).await
}

fn open_file(path: &Path, env: &Env) -> Result<NamedDevice> {
    let device = FileDevice::open(path, &OpenOptions::default(), env.clone())?;
    Ok(NamedDevice { name: path.display().to_string(), device: Arc::new(device) })
}

/// `ashlar array`.
pub fn run(pool: Option<&Path>, command: ArrayCommand, output: &Output) -> Result<ExitCode, Failure> {
    let bytes = |rate: Option<Bytes>| rate.map(|rate| rate.0);
    let (at, request) = match command {
        ArrayCommand::Create(create) => return make(&create, output),
        ArrayCommand::Status { at } => (at, ArrayRequest::Status),
        ArrayCommand::Check { work: Work { at, rate } } => {
            (at, ArrayRequest::Look { rate: bytes(rate), repair: false })
        }
        ArrayCommand::Scrub { work: Work { at, rate } } => (at, ArrayRequest::Look { rate: bytes(rate), repair: true }),
        ArrayCommand::Replace { member, with, force, work: Work { at, rate } } => {
            let path = if output.wants_schema() { PathBuf::new() } else { device_file(&with)? };
            (at, ArrayRequest::Replace { member, path, force, rate: bytes(rate) })
        }
        ArrayCommand::Rebuild { work: Work { at, rate } } => (at, ArrayRequest::Rebuild { rate: bytes(rate) }),
    };
    if at.devices.is_empty() {
        let directory = config::pool_directory(pool)?;
        return client::ask(&directory, Request::Array { array: at.array, request }, output);
    }
    if let Some(code) = schema(&request, output) {
        return Ok(code);
    }
    let answer = on_devices(at, request, output)?;
    Ok(print(&answer, output))
}

/// Prints the schema of the answer, if that is what was asked for.
pub fn schema(request: &ArrayRequest, output: &Output) -> Option<ExitCode> {
    match request {
        ArrayRequest::Status => output.schema::<Arrays>(),
        ArrayRequest::Look { .. } => output.schema::<Looked>(),
        ArrayRequest::Replace { .. } | ArrayRequest::Rebuild { .. } => output.schema::<Refilled>(),
    }
}

/// Prints an answer about arrays; the exit code says whether something is lost, or was found.
pub fn print(answer: &Answer, output: &Output) -> ExitCode {
    let found = match answer {
        Answer::Arrays(arrays) => {
            output.print(arrays);
            false
        }
        Answer::Looked(looked) => {
            output.print(looked);
            looked.is_wrong()
        }
        Answer::Refilled(refilled) => {
            output.print(refilled);
            refilled.0.lost > 0
        }
        _ => false,
    };
    ExitCode::from(u8::from(found))
}

fn bar(output: &Output) -> ProgressBar {
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Does it on devices that no pool uses.
fn on_devices(at: At, request: ArrayRequest, output: &Output) -> Result<Answer, Failure> {
    let failed = |error: std::io::Error| Failure::new(error.to_string());
    let real = Real::start(2).map_err(failed)?;
    let env = real.env();
    let devices: Vec<NamedDevice> = at.devices.iter().map(|path| open_file(path, &env)).collect::<Result<_>>()?;
    if request == ArrayRequest::Status {
        let found = real.block_on(async move { inspect(&devices).await })?;
        return Ok(Answer::Arrays(Arrays(found)));
    }
    let stop = on_signal()?;
    let bar = bar(output);
    let shown = bar.clone();
    let progress = move |done, all| {
        shown.set_length(all);
        shown.set_position(done);
    };
    let absent = if at.degraded { usize::MAX / 2 } else { 0 };
    let answer = real.block_on(async move {
        let array = Array::open(&env, devices, absent, Options::default()).await?;
        perform(&env, &array, request, &stop, progress).await
    });
    bar.finish_and_clear();
    Ok(answer?)
}

/// `ashlar array create`.
fn make(create: &Create, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    for (what, size) in [("--unit", create.unit), ("--journal", create.journal)] {
        if size.0 == 0 || !size.0.is_multiple_of(4096) {
            return Err(Failure::new(format!("{what} {size} is no multiple of 4KiB")));
        }
    }
    let mut files = DeviceFiles::default();
    let paths = files.paths(&create.devices)?;
    let real = Real::start(1).map_err(|error| Failure::new(error.to_string()))?;
    let creation = Creation {
        level: create.level,
        unit: create.unit.to_blocks_down(),
        journal: create.journal.to_blocks_down(),
        force: create.force,
    };
    let capacity = make_on(&real, &paths, creation, output)?;
    files.keep();
    output.print(&Done {
        done: format!(
            "made a {} of {} on {} members; a stack file names it: layer.NAME.raid.of = [...]",
            create.level,
            Bytes(capacity),
            paths.len()
        ),
    });
    Ok(ExitCode::SUCCESS)
}

/// Makes an array on files or devices, and shows how far it is; gives what it offers, in bytes.
pub fn make_on(real: &Real, paths: &[PathBuf], creation: Creation, output: &Output) -> Result<u64, Failure> {
    let env = real.env();
    let devices: Vec<NamedDevice> = paths.iter().map(|path| open_file(path, &env)).collect::<Result<_>>()?;
    let bar = bar(output);
    let shown = bar.clone();
    let progress = move |done, all| {
        shown.set_length(all * GROUP_BYTES);
        shown.set_position(done * GROUP_BYTES);
    };
    let made = real.block_on(async move {
        Array::create(&env, &devices, creation, progress).await?;
        inspect(&devices).await
    });
    bar.finish_and_clear();
    Ok(made?.first().map_or(0, |array| array.capacity))
}
