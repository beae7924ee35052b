//! The engines that a file system can be of.

use crate::output::Failure;
use ashlar_betr::{Betr, Zones};
use ashlar_env::real::Real;
use ashlar_files::{Files, WriteBehind};
use ashlar_fuse::{Mount, Options};
use ashlar_inodes::Room;
use ashlar_pool::{Pool, Volume};
use ashlar_units::{Blocks, Bytes, Lba};
use ashlar_vfs::clear::{self, Kept, Progress, Taken};
use ashlar_vfs::{Engine, FileSystem, Ino, Name};
use std::path::Path;
use std::sync::Arc;

/// A file system that is open.
#[derive(Clone)]
pub enum Opened {
    Files(Arc<WriteBehind<Files>>),
    Betr(Arc<WriteBehind<Betr>>),
}

/// The same for each engine.
macro_rules! each {
    ($opened:expr, $files:ident => $what:expr) => {
        match $opened {
            Opened::Files($files) => $what,
            Opened::Betr($files) => $what,
        }
    };
}

/// How a file system of this engine divides into zones, if it does. `inline`: files up to this size are kept in the index, if
/// not 16 KiB.
pub fn zones(engine: Engine, inline: Option<Bytes>) -> Result<Zones, Failure> {
    if engine == Engine::Files && inline.is_some() {
        let text = "the engine files keeps no files in its index: leave --inline away, or take betr";
        return Err(Failure::new(text));
    }
    let usual = Zones::default();
    let zones = Zones { inline: inline.unwrap_or(usual.inline), ..usual };
    zones.check()?;
    Ok(zones)
}

/// Makes a file system, or nothing; `inline` as for [`zones`]. An empty volume of this name was left by a crash in the middle of
/// that, and becomes one.
pub async fn make(pool: &Pool, name: &str, engine: Engine, inline: Option<Bytes>) -> Result<Volume, Failure> {
    let zones = zones(engine, inline)?;
    let volume = match unfinished(pool, name).await? {
        Some(volume) => volume,
        None => pool.create_volume(name).await?,
    };
    // Its root is of who runs this.
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let made = match engine {
        Engine::Files => Files::format(&volume, uid, gid).await.map_err(Failure::from),
        Engine::Betr => Betr::format(&volume, uid, gid, zones).await.map_err(Failure::from),
    };
    if let Err(failure) = made {
        // If this fails as well, what is left is as after a crash.
        let _ = pool.destroy_volume(name).await;
        return Err(failure);
    }
    Ok(volume)
}

/// A volume that was to become a file system of this name when the program ended: an empty one.
pub async fn unfinished(pool: &Pool, name: &str) -> Result<Option<Volume>, Failure> {
    match pool.volume(name) {
        Some(volume) if !name.contains('@') && volume.is_empty().await? => Ok(Some(volume)),
        _ => Ok(None),
    }
}

/// Which engine made what is on a volume.
pub async fn of(volume: &Volume) -> Result<Engine, Failure> {
    Ok(if Betr::made(volume).await? { Engine::Betr } else { Engine::Files })
}

/// Refuses a file system of which nothing can be read.
pub async fn expect_readable(volume: &Volume, name: &str) -> Result<(), Failure> {
    match Betr::made(volume).await {
        Err(error) => Err(Failure::new(format!("{name} cannot be read: {error}; {}", unreadable(name)))),
        Ok(_) => Ok(()),
    }
}

/// What to do where the root of the index of a file system is damaged.
pub fn unreadable(name: &str) -> String {
    format!(
        "without the root of its index all of it is out of reach, and no repair brings it back: a snapshot from before may have it \
         (`ashlar snapshot list`), or a backup; `ashlar fs destroy {name}` gives up what is left"
    )
}

/// Refuses a file system of another engine than the one that is wanted.
pub async fn expect(volume: &Volume, name: &str, wanted: Option<Engine>) -> Result<(), Failure> {
    let Some(wanted) = wanted else { return Ok(()) };
    match of(volume).await? {
        found if found == wanted => Ok(()),
        found => Err(Failure::new(format!(
            "{name} is of the engine {found}, not {wanted}: leave --engine away, or name another file system with --fs"
        ))),
    }
}

impl Opened {
    /// Opens what is on a volume. `no_access_times`: reading changes none; `inodes`: where inodes have their memory.
    pub async fn open(volume: Volume, read_only: bool, no_access_times: bool, inodes: Room) -> Result<Opened, Failure> {
        let env = volume.pool().env().clone();
        if Betr::made(&volume).await? {
            let options = ashlar_betr::Options { read_only, no_access_times, inodes, ..Default::default() };
            return Ok(Opened::Betr(Arc::new(WriteBehind::new(env, Betr::open(volume, options).await?))));
        }
        let options = ashlar_files::Options { read_only, no_access_times, inodes, ..Default::default() };
        Ok(Opened::Files(Arc::new(WriteBehind::new(env, Files::open(volume, options).await?))))
    }

    /// Why it takes no changes although it was to.
    pub fn damage(&self) -> Option<&ashlar_block::Error> {
        each!(self, files => files.engine().damage())
    }

    pub fn mount(&self, real: &Real, at: &Path, options: Options) -> Result<Mount, Failure> {
        let mounted = each!(self, files => Mount::new(real, files.clone(), at, options));
        mounted.map_err(|error| Failure::new(error.to_string()))
    }

    /// Takes a tree away, which waits to be cleared then: [`clear::take_away`].
    pub async fn take_away(&self, parent: Ino, name: &Name, progress: &Progress) -> ashlar_vfs::Result<(Taken, bool)> {
        each!(self, files => clear::take_away(&**files, parent, name, progress).await)
    }

    /// Clears what waits: [`clear::clear_waiting`].
    pub async fn clear_waiting(&self, progress: &Progress) -> ashlar_vfs::Result<(Kept, bool)> {
        each!(self, files => clear::clear_waiting(&**files, progress).await)
    }

    /// Counts the names that wait: [`clear::count_waiting`].
    pub async fn count_waiting(&self, progress: &Progress) -> ashlar_vfs::Result<u64> {
        each!(self, files => clear::count_waiting(&**files, progress).await)
    }

    /// Whether anything has this name: [`clear::is_there`].
    pub async fn is_there(&self, parent: Ino, name: &Name) -> bool {
        each!(self, files => clear::is_there(&**files, parent, name).await)
    }

    /// Some names in a directory, and where to go on: [`clear::list`].
    pub async fn list(&self, directory: Ino, cookie: u64) -> ashlar_vfs::Result<clear::Page> {
        each!(self, files => clear::list(&**files, directory, cookie).await)
    }

    /// Writes what it holds in memory.
    pub async fn sync(&self) -> ashlar_vfs::Result<()> {
        each!(self, files => files.syncfs().await)
    }

    /// Writes everything and stops.
    pub async fn close(&self) -> ashlar_vfs::Result<()> {
        each!(self, files => {
            files.settle().await;
            files.engine().close().await
        })
    }

    /// Of the write-optimized engine: its zones, and how they change.
    pub fn zones(&self) -> Option<(Zones, ashlar_betr::Counters)> {
        match self {
            Opened::Files(_) => None,
            Opened::Betr(files) => Some((files.engine().zones(), files.engine().counters())),
        }
    }
}

/// A file system on a volume that nobody changes meanwhile, to be looked at.
pub enum Viewed {
    Files(Arc<Files>),
    Betr(Arc<Betr>),
}

impl Viewed {
    pub async fn open(volume: Volume) -> Result<Viewed, Failure> {
        if Betr::made(&volume).await? {
            let options = ashlar_betr::Options { read_only: true, ..Default::default() };
            return Ok(Viewed::Betr(Betr::open(volume, options).await?));
        }
        let options = ashlar_files::Options { read_only: true, ..Default::default() };
        Ok(Viewed::Files(Files::open(volume, options).await?))
    }

    /// What is wrong, as sentences.
    pub async fn audit(&self) -> Result<Vec<String>, Failure> {
        Ok(match self {
            Viewed::Files(files) => files.audit().await?.wrong,
            Viewed::Betr(betr) => betr.audit().await?.wrong,
        })
    }

    /// Which file a block belongs to, by a number for [`Viewed::path_of`], and the byte offset in it.
    pub async fn file_at(&self, block: Lba) -> Option<(u64, u64)> {
        match self {
            Viewed::Files(files) => files.file_at(block).await.ok().flatten(),
            Viewed::Betr(betr) => Some(betr.range_at(block)),
        }
    }

    /// Paths of files that reach into these blocks, up to `most`, with the byte offset and the bytes that they have there; and how
    /// many more there are.
    pub async fn files_in(&self, first: Lba, count: Blocks, most: usize) -> (Vec<(String, u64, u64)>, u64) {
        match self {
            Viewed::Files(files) => {
                let (found, more) = files.files_in(first, count, most).await.unwrap_or_default();
                let mut named = Vec::with_capacity(found.len());
                for (ino, offset, len) in found {
                    named.push((self.path_of(ino).await, offset, len));
                }
                (named, more)
            }
            Viewed::Betr(betr) => betr.files_in(first, count, most).await.unwrap_or_default(),
        }
    }

    /// The path of a file, or its number if none leads there.
    pub async fn path_of(&self, file: u64) -> String {
        let path = match self {
            Viewed::Files(files) => files.path_of(file).await.ok().flatten(),
            Viewed::Betr(betr) => betr.path_of_range(file).await.ok().flatten().map(|(_, path)| path),
        };
        path.unwrap_or_else(|| format!("inode {file}"))
    }

    /// The directory from which on names are lost with keys from this one on, if the engine knows.
    pub async fn directory_at(&self, key: &[u8]) -> Option<String> {
        match self {
            Viewed::Files(_) => None,
            Viewed::Betr(betr) => betr.path_at(key).await.ok().flatten(),
        }
    }
}

/// Mends what follows from the rest on a volume that nobody has open, after keys were lost there. Sentences of what was done.
pub async fn repair(volume: &Volume, lost: &[ashlar_files::Lost]) -> Result<Vec<String>, Failure> {
    let made = Betr::made(volume).await;
    if let Err(error) = &made
        && !lost.is_empty()
    {
        return Ok(vec![format!("nothing could be mended, for nothing tells what it is: {error}")]);
    }
    if made.unwrap_or_default() {
        return Ok(Betr::repair(volume, lost).await?);
    }
    match Files::made(volume).await.unwrap_or_default() {
        true => Ok(Files::repair(volume, lost).await?),
        // No file system, or one of which nothing can be known.
        false => Ok(Vec::new()),
    }
}

/// What `ashlar explain betr` says.
pub const ABOUT_BETR: &str = "\
betr: a write-optimized file system (experimental; the second engine of `ashlar fs create --engine`).

Names, attributes and small files lie in the pool's dictionary in the order of their paths, so that listing, finding and reading
a tree is one scan after the other. Files that outgrow 16 KiB lie in blocks, written once; those of a tree that somebody goes
through are read ahead. Overwriting less than a block is
one message and reads nothing (through a mount: with `ashlar up --write-through`); removing a file costs the same whatever its
size. Directories and files beyond 512 KiB become zones: renaming a zone is a pointer, renaming anything else moves at most so
much.

After BetrFS 0.2 (Yuan et al., FAST '16). docs/betr.md has the design, what departs from the paper, and what is not built.
`ashlar prove betr` tries to break it; `ashlar prove betr --rules` lists the rules of order that it depends on.
";
