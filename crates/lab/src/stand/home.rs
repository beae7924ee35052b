//! The directory with all that a stand makes: `lock`, `disk.img` or `pool`, `dev/disk`, `mnt`, logs.

use crate::age::image::run;
use crate::mounts::mounts;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PREFIX: &str = "ashlar-stand-";
/// How often something that is still in use is tried again, and between two tries.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Home {
    pub path: PathBuf,
    /// The program `ashlar`.
    pub program: PathBuf,
    _lock: File,
}

impl Home {
    /// Makes one in `scratch`, and puts away those that dead processes left there.
    pub fn new(scratch: &Path, program: &Path) -> io::Result<Home> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let scratch = std::fs::canonicalize(scratch)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", scratch.display())))?;
        for entry in std::fs::read_dir(&scratch)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) && entry.path().is_dir() {
                put_away_of_dead(&entry.path(), program);
            }
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = scratch.join(format!("{PREFIX}{}-{count}", std::process::id()));
        std::fs::create_dir(&path)?;
        let lock = File::create(path.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Home { path, program: program.into(), _lock: lock })
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Removes it, unless something is still mounted in it, whose files would be removed too.
    pub fn remove(&self) -> io::Result<()> {
        if mounts()?.iter().any(|mount| mount.point.starts_with(&self.path)) {
            let path = self.path.display();
            let text = format!("{path}: something is still mounted in it; the next run tries to put it away");
            return Err(io::Error::other(text));
        }
        std::fs::remove_dir_all(&self.path)
    }

    /// Runs `ashlar` to its end.
    pub fn ashlar(&self, arguments: impl FnOnce(&mut Command) -> &mut Command) -> io::Result<String> {
        run("ashlar", arguments(&mut Command::new(&self.program)))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What was put away is not there any more.
        let _ = self.remove();
    }
}

fn is_mounted(point: &Path) -> bool {
    mounts().is_ok_and(|mounts| mounts.iter().any(|mount| mount.point == point))
}

/// Removes the home of a process that does not live any more. What does not work is left for the next time.
fn put_away_of_dead(path: &Path, program: &Path) {
    // One without a lock is just being made, or was never finished; it has no mounts then.
    let Ok(lock) = File::open(path.join("lock")) else { return };
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let pool = path.join("pool");
    if pool.is_dir() {
        let _ = run("ashlar", Command::new(program).arg("down").arg("--pool").arg(&pool));
    }
    // The server of a device ends when its mount is gone.
    for point in [path.join("mnt"), path.join("dev")] {
        if is_mounted(&point) && unmount(&point).is_err() {
            return;
        }
    }
    let _ = std::fs::remove_dir_all(path);
}

/// Unmounts; what is in use for a moment is waited for.
pub fn unmount(point: &Path) -> io::Result<()> {
    again(|| run("umount", Command::new("umount").arg(point)).map(drop))
}

/// Tries until it works, for some seconds.
pub fn again<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..TRIES {
        if let Ok(done) = work() {
            return Ok(done);
        }
        std::thread::sleep(PAUSE);
    }
    work()
}
