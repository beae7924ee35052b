//! What keeps buckets: one entry for each engine.

use super::ground::Ground;
use crate::output::Failure;
use ashlar_block::{Checked, Device};
use ashlar_devices::{FileDevice, OpenOptions};
use ashlar_env::BoxFuture;
use ashlar_objects::{Memory, Store};
use ashlar_objects_pool::{Objects, Options, volume_of};
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of a bucket in memory.
const MEMORY: u64 = 8 << 30;

/// A bucket, as the list of buckets has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of its engine.
    pub engine: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Its own device, for engines that take one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
    /// Its staging device, for engines that take one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<PathBuf>,
}

/// What an engine does for a command.
type Doing<'a, T> = BoxFuture<'a, Result<T, Failure>>;

/// An engine. Buckets' names are valid when they come here; devices are there exactly if the engine takes them.
pub trait EngineKind: Sync {
    /// As in `--engine`.
    fn name(&self) -> &'static str;
    /// A line for people.
    fn about(&self) -> &'static str;
    /// Whether a bucket has a device of its own.
    fn takes_device(&self) -> bool;
    /// Whether it has one for staging, too.
    fn takes_staging(&self) -> bool {
        false
    }
    /// Whether buckets outlive the process.
    fn is_lasting(&self) -> bool {
        true
    }
    /// Makes an empty store for a bucket; with `force` also on a device that holds another.
    fn create<'a>(&'a self, ground: &'a Ground, bucket: &'a str, spec: &'a Spec, force: bool) -> Doing<'a, ()>;
    /// Opens the store of a bucket.
    fn open<'a>(&'a self, ground: &'a Ground, bucket: &'a str, spec: &'a Spec) -> Doing<'a, Store>;
    /// Destroys the store of a bucket. What is left where it has devices of its own is an empty one.
    fn destroy<'a>(&'a self, ground: &'a Ground, bucket: &'a str, spec: &'a Spec) -> Doing<'a, ()> {
        self.create(ground, bucket, spec, true)
    }
}

/// All engines.
pub static ENGINES: &[&dyn EngineKind] = &[&OnPool, &Regions, &Proximal, &InMemory];

/// The engine of this name.
pub fn engine(name: &str) -> Result<&'static dyn EngineKind, Failure> {
    let found = ENGINES.iter().find(|engine| engine.name() == name).copied();
    let help = "; `ashlar bucket create --help` lists them";
    found.ok_or_else(|| Failure::new(format!("{name:?} is no engine of this program{help}")))
}

/// Names of all engines, with what they are.
pub fn values() -> PossibleValuesParser {
    let value = |engine: &&dyn EngineKind| {
        let device = match (engine.takes_device(), engine.takes_staging()) {
            (true, true) => "; takes --device and --staging",
            (true, false) => "; takes --device",
            _ => "",
        };
        PossibleValue::new(engine.name()).help(format!("{}{device}", engine.about()))
    };
    PossibleValuesParser::new(ENGINES.iter().map(value).collect::<Vec<_>>())
}

/// Opens a bucket.
pub async fn open_bucket(ground: &Ground, bucket: &str, spec: &Spec) -> Result<Store, Failure> {
    engine(&spec.engine)?.open(ground, bucket, spec).await
}

struct OnPool;

impl EngineKind for OnPool {
    fn name(&self) -> &'static str {
        "pool"
    }
    fn about(&self) -> &'static str {
        "objects on a volume of the pool: compressed, checksummed, sharing its space with file systems"
    }
    fn takes_device(&self) -> bool {
        false
    }
    fn create<'a>(&'a self, ground: &'a Ground, bucket: &'a str, _: &'a Spec, _: bool) -> Doing<'a, ()> {
        Box::pin(async move {
            let pool = ground.pool().await?;
            let name = volume_of(bucket);
            // One that is not on the list was left by a crash between the two.
            if pool.volume(&name).is_some() {
                pool.destroy_volume(&name).await?;
            }
            let volume = pool.create_volume(&name).await?;
            Ok(Objects::format(&volume).await?)
        })
    }
    fn open<'a>(&'a self, ground: &'a Ground, bucket: &'a str, _: &'a Spec) -> Doing<'a, Store> {
        Box::pin(async move {
            let volume = ground.pool().await?.volume(&volume_of(bucket));
            let volume = volume.ok_or_else(|| Failure::new(format!("the volume of bucket {bucket} is gone")))?;
            let objects = Objects::open(volume, format!("bucket {bucket}"), Options::default()).await?;
            Ok(Arc::new(objects) as Store)
        })
    }
    fn destroy<'a>(&'a self, ground: &'a Ground, bucket: &'a str, _: &'a Spec) -> Doing<'a, ()> {
        Box::pin(async move {
            let pool = ground.pool().await?;
            match pool.volume(&volume_of(bucket)) {
                Some(_) => Ok(pool.destroy_volume(&volume_of(bucket)).await?),
                None => Ok(()),
            }
        })
    }
}

struct Regions;

/// The device of a bucket, which is there: engines that take one are only given buckets with one.
fn device(ground: &Ground, spec: &Spec) -> Result<Device, Failure> {
    open_device(ground, spec.device.as_ref())
}

fn open_device(ground: &Ground, path: Option<&PathBuf>) -> Result<Device, Failure> {
    let path = path.ok_or_else(|| Failure::new("the list of buckets names no device for it"))?;
    let device = FileDevice::open(path, &OpenOptions::default(), ground.env.clone())?;
    Ok(Arc::new(Checked::new(Arc::new(device), ground.env.clone())))
}

impl EngineKind for Regions {
    fn name(&self) -> &'static str {
        "regions"
    }
    fn about(&self) -> &'static str {
        "objects in self-contained regions, for disks: unfragmented for years, repaired a region at a time"
    }
    fn takes_device(&self) -> bool {
        true
    }
    fn create<'a>(&'a self, ground: &'a Ground, _: &'a str, spec: &'a Spec, force: bool) -> Doing<'a, ()> {
        Box::pin(async move {
            let (device, config) = (device(ground, spec)?, ashlar_regions::Config { force, ..Default::default() });
            Ok(ashlar_regions::format(&ground.env, &device, config).await?)
        })
    }
    fn open<'a>(&'a self, ground: &'a Ground, _: &'a str, spec: &'a Spec) -> Doing<'a, Store> {
        Box::pin(async move {
            let opened = device(ground, spec)?;
            let memory = ashlar_regions::Memory::default();
            let regions = ashlar_regions::Regions::open(&ground.env, opened, memory).await?;
            regions.keep_tidy(ashlar_regions::Tidy::default());
            spec.device.iter().for_each(|path| ground.opened(path, &regions));
            Ok(ashlar_regions::striped(&ground.env, regions).await?)
        })
    }
}

struct Proximal;

impl Proximal {
    fn devices(ground: &Ground, spec: &Spec) -> Result<(Device, Device), Failure> {
        Ok((device(ground, spec)?, open_device(ground, spec.staging.as_ref())?))
    }
}

impl EngineKind for Proximal {
    fn name(&self) -> &'static str {
        "proximal"
    }
    fn about(&self) -> &'static str {
        "objects on a disk with flash beside it: small changes wait there, and move next to their neighbours together"
    }
    fn takes_device(&self) -> bool {
        true
    }
    fn takes_staging(&self) -> bool {
        true
    }
    fn create<'a>(&'a self, ground: &'a Ground, _: &'a str, spec: &'a Spec, force: bool) -> Doing<'a, ()> {
        Box::pin(async move {
            let (data, staging) = Proximal::devices(ground, spec)?;
            let creation = ashlar_proximal::Creation { force, ..Default::default() };
            Ok(ashlar_objects_proximal::format(&ground.env, &data, &staging, creation).await?)
        })
    }
    fn open<'a>(&'a self, ground: &'a Ground, bucket: &'a str, spec: &'a Spec) -> Doing<'a, Store> {
        Box::pin(async move {
            let (devices, config) = (Proximal::devices(ground, spec)?, ashlar_proximal::Config::default());
            let name = format!("bucket {bucket}");
            let open = ashlar_objects_proximal::open(&ground.env, devices, config, name, Options::default());
            Ok(Arc::new(open.await?) as Store)
        })
    }
}

struct InMemory;

impl EngineKind for InMemory {
    fn name(&self) -> &'static str {
        "memory"
    }
    fn about(&self) -> &'static str {
        "objects in the memory of the server, up to 8 GiB in a bucket; gone when it ends"
    }
    fn takes_device(&self) -> bool {
        false
    }
    fn is_lasting(&self) -> bool {
        false
    }
    fn create<'a>(&'a self, _: &'a Ground, _: &'a str, _: &'a Spec, _: bool) -> Doing<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    fn open<'a>(&'a self, ground: &'a Ground, _: &'a str, _: &'a Spec) -> Doing<'a, Store> {
        Box::pin(async move { Ok(Arc::new(Memory::new(ground.env.clone(), MEMORY)) as Store) })
    }
}
