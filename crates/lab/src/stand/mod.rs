//! A mounted file system to measure on, which can be made cold.
//!
//! ```text
//! a directory            DIR/ashlar-stand/work
//! an image               its copy, on a loop device with direct I/O                      needs root
//! an image on a device   its copy, served by `ashlar device serve`, on a loop device     needs root
//! our engines            a pool, served by `ashlar up`; its device can be emulated too
//! ```
//!
//! Invariants
//!  1. What is given stays as it is: work happens in a directory `ashlar-stand` of its own, and an image is copied unless it
//!     is to be changed ([`StandOptions::in_place`]).
//!  2. Whatever is mounted, attached or started lies in one *home*, a directory that is locked while its process lives. What
//!     a process that was killed left is put away by the next one with the same scratch directory.
//!  3. Servers are processes of their own, outside of a memory limit: within, one that serves the pages which the kernel
//!     wants to write before it gives memory would wait for itself.

mod coldness;
mod counters;
mod ground;
mod home;
mod limit;
mod pages;
mod place;

pub use coldness::Coldness;
pub use counters::DeviceUse;
pub use pages::{PageCounter, PageUse};
pub use place::{Place, StandOptions};

use crate::mounts::mount_of;
use ashlar_units::Bytes;
use ground::Ground;
use home::Home;
use limit::Limit;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is ours in a file system.
pub const OWN: &str = "ashlar-stand";

/// See the module. Dropping it puts it away too, but tells nobody what failed.
#[derive(Debug)]
pub struct Stand {
    ground: Ground,
    limit: Option<Limit>,
    file_system: String,
    path: PathBuf,
    drop_caches: bool,
    away: bool,
}

impl Stand {
    /// Prepares what `options` say, mounted and with an empty directory for work.
    pub fn open(options: &StandOptions) -> io::Result<Stand> {
        let home = match &options.place {
            Place::Path(path) if path.is_dir() => None,
            _ => Some(Home::new(&options.scratch, &options.program)?),
        };
        let mut ground = Ground::prepare(options, home)?;
        let mounted = ground.mount().and_then(|()| ground.begin());
        let mut stand = Stand {
            path: ground.root().join(OWN).join("work"),
            ground,
            limit: None,
            file_system: String::new(),
            drop_caches: options.drop_caches,
            away: false,
        };
        // From here on a failure puts it away.
        mounted?;
        stand.file_system = mount_of(&stand.path)?.file_system;
        Ok(stand)
    }

    /// The directory for work. Nothing else in it changes while the stand is there.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its file system is mounted.
    pub fn root(&self) -> &Path {
        self.ground.root()
    }

    /// Unmounts it, writes what is on its image into the file `to`, without what was in the directory for work, and puts
    /// everything away. Holes stay holes.
    pub fn keep(mut self, to: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(self.ground.root().join(OWN))?;
        let kept = self.ground.unmount().and_then(|()| self.ground.keep(to));
        kept.and(self.away())
    }

    /// As `/proc/self/mountinfo` calls it, as in `ext4`.
    pub fn file_system(&self) -> &str {
        &self.file_system
    }

    /// Free bytes.
    pub fn free(&self) -> io::Result<Bytes> {
        let space = rustix::fs::statvfs(&self.path)?;
        Ok(Bytes(space.f_bavail.saturating_mul(space.f_frsize)))
    }

    /// Bytes on its devices begin as they were, with an empty directory for work: another copy of the image, another pool. A
    /// directory is only emptied.
    pub fn renew(&mut self) -> io::Result<()> {
        self.outside(|ground| {
            ground.end()?;
            ground.unmount()?;
            ground.renew()?;
            ground.mount()?;
            ground.begin()
        })
    }

    /// Has everything written and forgotten: data, names and inodes, by mounting anew. A directory cannot be mounted anew;
    /// there the data of files in it are forgotten, and the rest only with [`StandOptions::drop_caches`]. What is left in
    /// memory then is looked for and not assumed.
    pub fn cold(&mut self) -> io::Result<Coldness> {
        coldness::probe(&self.path)?;
        rustix::fs::syncfs(&std::fs::File::open(&self.path)?)?;
        let sample = coldness::sample(&self.path)?;
        let whole = self.outside(|ground| {
            if !ground.is_own() {
                return Ok(false);
            }
            ground.unmount()?;
            ground.mount()?;
            Ok(true)
        })?;
        if !whole {
            coldness::forget(&self.path, self.drop_caches)?;
        }
        coldness::look(&self.path, &sample, whole)
    }

    /// Lets this process have so much memory from here on, page cache included, until the stand is put away.
    pub fn limit(&mut self, memory: Bytes) -> io::Result<()> {
        let limit = Limit::new(memory)?;
        limit.enter()?;
        self.limit = Some(limit);
        Ok(())
    }

    /// With a limit on memory: how much of that the process itself has, beside the page cache.
    pub fn own_memory(&self) -> Option<Bytes> {
        self.limit.as_ref()?.own().ok()
    }

    /// Processor time that servers of the stand took so far; zero if the kernel alone serves it.
    pub fn server_cpu(&self) -> Duration {
        self.ground.server_cpu()
    }

    /// What the device below the file system has done; `None` where the kernel does not tell. That of a directory may have
    /// worked for others.
    pub fn device_use(&self) -> Option<DeviceUse> {
        DeviceUse::of(&mount_of(&self.path).ok()?.source)
    }

    /// Counts from now on what of the file system comes into the page cache; needs BPF. That of a directory may be used by
    /// others too. The count is of this mount: it ends with [`Stand::cold`] and [`Stand::renew`].
    pub fn page_counter(&self) -> io::Result<PageCounter> {
        let (major, minor) = mount_of(&self.path)?.device;
        PageCounter::start(major, minor)
    }

    /// Unmounts, detaches and stops everything, and removes what was made for it.
    pub fn put_away(mut self) -> io::Result<()> {
        self.away()
    }

    fn away(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.away, true) {
            return Ok(());
        }
        // Each is tried, whatever became of the others.
        let left = self.limit.take().map_or(Ok(()), Limit::put_away);
        let ended = self.ground.end();
        let unmounted = self.ground.unmount();
        let removed = self.ground.put_away();
        left.and(ended).and(unmounted).and(removed)
    }

    /// Does something outside of the limit on memory, lest servers that it starts are within.
    fn outside<T>(&mut self, work: impl FnOnce(&mut Ground) -> io::Result<T>) -> io::Result<T> {
        self.limit.as_ref().map_or(Ok(()), Limit::leave)?;
        let done = work(&mut self.ground);
        self.limit.as_ref().map_or(Ok(()), Limit::enter)?;
        done
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.away();
    }
}

#[cfg(test)]
mod tests;
