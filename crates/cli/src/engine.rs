//! The engines that a file system can be of.

use crate::output::Failure;
use ashlar_betr::{Betr, Zones};
use ashlar_env::real::Real;
use ashlar_files::{Files, WriteBehind};
use ashlar_fuse::{Mount, Options};
use ashlar_pool::{Pool, Volume};
use ashlar_units::Bytes;
use ashlar_vfs::FileSystem;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// Which engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Inodes and contents by number.
    #[default]
    Files,
    /// Everything in the order of paths, for trees of many small files. Experimental; see docs/betr.md.
    Betr,
}

/// A file system that is open.
#[derive(Clone)]
pub enum Opened {
    Files(Arc<WriteBehind<Files>>),
    Betr(Arc<WriteBehind<Betr>>),
}

/// Makes a file system.
pub async fn make(pool: &Pool, name: &str, engine: Engine) -> Result<Volume, Failure> {
    let volume = pool.create_volume(name).await?;
    match engine {
        Engine::Files => Files::format(&volume, 0, 0).await?,
        Engine::Betr => Betr::format(&volume, 0, 0, Zones::default()).await?,
    }
    Ok(volume)
}

impl Opened {
    /// Opens what is on a volume. `inodes`: the memory for inodes.
    pub async fn open(volume: Volume, read_only: bool, inodes: Bytes) -> Result<Opened, Failure> {
        let env = volume.pool().env().clone();
        let most = |each: Bytes| (inodes.0 / each.0) as usize;
        if Betr::made(&volume).await? {
            let inodes_max = most(ashlar_betr::INODE_MEMORY);
            let options = ashlar_betr::Options { read_only, inodes_max, ..Default::default() };
            return Ok(Opened::Betr(Arc::new(WriteBehind::new(env, Betr::open(volume, options).await?))));
        }
        let inodes_max = most(ashlar_files::INODE_MEMORY);
        let options = ashlar_files::Options { read_only, inodes_max, ..Default::default() };
        Ok(Opened::Files(Arc::new(WriteBehind::new(env, Files::open(volume, options).await?))))
    }

    /// Why it takes no changes although it was to.
    pub fn damage(&self) -> Option<&ashlar_block::Error> {
        match self {
            Opened::Files(files) => files.engine().damage(),
            Opened::Betr(_) => None,
        }
    }

    pub fn mount(&self, real: &Real, at: &Path, options: Options) -> Result<Mount, Failure> {
        let mounted = match self {
            Opened::Files(files) => Mount::new(real, files.clone(), at, options),
            Opened::Betr(files) => Mount::new(real, files.clone(), at, options),
        };
        mounted.map_err(|error| Failure::new(error.to_string()))
    }

    /// Writes what it holds in memory.
    pub async fn sync(&self) -> ashlar_vfs::Result<()> {
        match self {
            Opened::Files(files) => files.syncfs().await,
            Opened::Betr(files) => files.syncfs().await,
        }
    }

    /// Writes everything and stops.
    pub async fn close(&self) -> ashlar_vfs::Result<()> {
        match self {
            Opened::Files(files) => {
                files.settle().await;
                files.engine().close().await
            }
            Opened::Betr(files) => {
                files.settle().await;
                files.engine().close().await
            }
        }
    }

    /// Of the write-optimized engine: how its zones change.
    pub fn zones(&self) -> Option<ashlar_betr::Counters> {
        match self {
            Opened::Files(_) => None,
            Opened::Betr(files) => Some(files.engine().counters()),
        }
    }
}

/// What is wrong with what is on a volume that does not change meanwhile, as sentences.
pub async fn audit(volume: Volume) -> Result<Vec<String>, Failure> {
    if Betr::made(&volume).await? {
        let options = ashlar_betr::Options { read_only: true, ..Default::default() };
        return Ok(Betr::open(volume, options).await?.audit().await?.wrong);
    }
    Ok(Files::open(volume, crate::check::read_only()).await?.audit().await?.wrong)
}

/// What `ashlar explain betr` says.
pub const ABOUT_BETR: &str = "\
betr: a write-optimized file system (experimental; the second engine of `ashlar fs create --engine`).

Names, attributes and small files lie in the pool's dictionary in the order of their paths, so that listing, finding and reading
a tree is one scan after the other. Files that outgrow 16 KiB lie in blocks, written once. Overwriting less than a block is
one message and reads nothing; removing a file costs the same whatever its size. Directories and files beyond 512 KiB become
zones: renaming a zone is a pointer, renaming anything else moves at most so much.

After BetrFS 0.2 (Yuan et al., FAST '16). docs/betr.md has the design, what departs from the paper, and what is not built.
`ashlar prove betr` tries to break it; `ashlar prove betr --rules` lists the rules of order that it depends on.
";
