//! `ashlar remove`: whole trees, without a request of the kernel for each name.

use crate::arguments::Remove;
use crate::client;
use crate::config;
use crate::engine::Opened;
use crate::output::{Failure, Output};
use crate::request::{Done, Place, Request};
use ashlar_env::real::Real;
use ashlar_env::{Env, say};
use ashlar_fuse::{Dentries, Mount};
use ashlar_lab::mounts;
use ashlar_vfs::ROOT;
use ashlar_vfs::clear::{Kept, Progress, REMOVED, Taken};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How often who waits is told how far it is.
const TICK: Duration = Duration::from_millis(100);

/// `ashlar remove`.
pub fn run(pool: Option<&Path>, arguments: &Remove, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    let places = arguments.paths.iter().map(|path| place(path)).collect::<Result<_, _>>()?;
    client::ask(&config::pool_directory(pool)?, Request::Remove { places, wait: !arguments.no_wait }, output)
}

/// A path as the server knows it. Links in the directories above are followed, and the last component is not.
fn place(path: &Path) -> Result<Place, Failure> {
    let refuse = |why: String| Failure::new(format!("{}: {why}", path.display()));
    let name = match path.file_name() {
        Some(name) if !path.as_os_str().as_bytes().ends_with(b"/.") => name,
        _ => return Err(refuse("name a file or a directory; `.`, `..` and `/` cannot be removed".into())),
    };
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = std::fs::canonicalize(above).map_err(|error| refuse(error.to_string()))?;
    let whole = above.join(name);
    let all = mounts::mounts().map_err(|error| refuse(error.to_string()))?;
    if let Some(mount) = all.iter().find(|mount| mount.point.starts_with(&whole)) {
        return Err(refuse(format!("something is mounted at {}; unmount it first", mount.point.display())));
    }
    let failed = |error: rustix::io::Errno| refuse(error.to_string());
    let directory = rustix::fs::open(&above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = directory.map_err(failed)?;
    rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    let stat = rustix::fs::fstat(&directory).map_err(failed)?;
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    Ok(Place { path: whole.to_string_lossy().into_owned(), device, parent: stat.st_ino, name: name.as_bytes().into() })
}

/// What was taken away from a mounted file system, and is removed behind the scenes.
pub struct Clearing {
    env: Env,
    files: Opened,
    dentries: Arc<Dentries>,
    /// Names that were taken away, which the kernel is still to forget.
    expired: parking_lot::Mutex<Vec<Expired>>,
    /// One at a time: who comes later finds less to do.
    turn: tokio::sync::Mutex<()>,
    progress: Progress,
}

/// A name that the kernel asks for when it is used again.
struct Expired {
    parent: u64,
    name: Vec<u8>,
    /// The directory that was there.
    tree: u64,
}

impl Clearing {
    pub fn new(env: Env, files: Opened, mount: &Mount) -> Arc<Clearing> {
        let (dentries, turn) = (Arc::new(mount.dentries()), tokio::sync::Mutex::new(()));
        Arc::new(Clearing {
            env,
            files,
            dentries,
            expired: parking_lot::Mutex::default(),
            turn,
            progress: Progress::default(),
        })
    }

    /// Takes a tree away; from a thread that need not serve the mount.
    pub fn take_away(self: &Arc<Clearing>, real: &Real, place: &Place) -> Result<Taken, Failure> {
        let (clearing, parent, name) = (self.clone(), place.parent, place.name.clone());
        let taken = real.block_on(async move { clearing.files.take_away(parent, &name, &clearing.progress).await });
        let (taken, made) = taken?;
        let deaf = |error| Failure::new(format!("it is gone, but the kernel does not hear of it: {error}"));
        if made {
            self.dentries.expire(ROOT, REMOVED).map_err(deaf)?;
        }
        match taken {
            Taken::Removed => self.dentries.forget(parent, &place.name).map_err(deaf)?,
            // What the kernel knows below takes longer to forget.
            Taken::Waits(tree) => {
                self.dentries.expire(parent, &place.name).map_err(deaf)?;
                self.expired.lock().push(Expired { parent, name: place.name.clone(), tree });
            }
        }
        Ok(taken)
    }

    /// Has the kernel forget what was taken away and what it knows below, which keeps files that nobody has open.
    async fn forget(&self) {
        let expired = std::mem::take(&mut *self.expired.lock());
        for Expired { parent, name, tree } in expired {
            // From the inside, since nobody can use a directory while the kernel forgets what is below a name there.
            let mut next = Some(0);
            while let Some(cookie) = next
                && let Ok((names, after)) = self.files.list(tree, cookie).await
            {
                next = after;
                self.forget_all(tree, names.into_iter().map(|(name, _)| name.into_vec()).collect()).await;
            }
            // Who made something else of this name asked for it before, and the kernel has forgotten what was there.
            if !self.files.is_there(parent, &name).await {
                self.forget_all(parent, vec![name]).await;
            }
        }
    }

    /// Not from a worker, which must serve those whom this waits for. If nobody takes notices, nobody uses the mount.
    async fn forget_all(&self, parent: u64, names: Vec<Vec<u8>>) {
        let dentries = self.dentries.clone();
        let forget = move || names.iter().try_for_each(|name| dentries.forget(parent, name));
        let _ = self.env.unblock(forget).await;
    }

    /// Names removed so far, while some are.
    pub fn removed(&self) -> Option<u64> {
        self.turn.try_lock().is_err().then(|| self.progress.removed())
    }

    /// Clears what was taken away until now, behind the scenes.
    pub fn go_on(self: &Arc<Clearing>) {
        let clearing = self.clone();
        drop(self.env.spawn_aside(async move {
            if let Err(failure) = clearing.clear().await {
                say::error(format_args!("ashlar: {failure}"));
            }
        }));
    }

    /// The same, while the caller waits. `progress` is told names removed, and names in all.
    pub fn wait(self: &Arc<Clearing>, real: &Real, progress: impl Fn(u64, u64)) -> Result<u64, Failure> {
        let clearing = self.clone();
        let all = real.block_on(async move { clearing.files.count_waiting(&clearing.progress).await })?;
        let (before, (done, cleared)) = (self.progress.removed(), mpsc::channel());
        let clearing = self.clone();
        drop(self.env.spawn_aside(async move {
            let _ = done.send(clearing.clear().await);
        }));
        loop {
            let removed = self.progress.removed() - before;
            match cleared.recv_timeout(TICK) {
                Ok(cleared) => return cleared.map(|()| self.progress.removed() - before),
                Err(RecvTimeoutError::Timeout) => progress(removed, all.max(removed)),
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::new("the server stops")),
            }
        }
    }

    async fn clear(&self) -> Result<(), Failure> {
        let _turn = self.turn.lock().await;
        self.forget().await;
        let (Kept { names, why }, gone) = self.files.clear_waiting(&self.progress).await?;
        if gone {
            self.forget_all(ROOT, vec![REMOVED.to_vec()]).await;
        }
        let room = String::from_utf8_lossy(REMOVED);
        match why {
            _ if self.progress.is_stopped() => {
                Err(Failure::new("the pool goes down; what is left is removed when it is up again"))
            }
            Some(error) => Err(Failure::new(format!(
                "{names} names could not be removed and stay in {room}, in the root of the file system; the first: {}",
                Failure::from(error)
            ))),
            None => Ok(()),
        }
    }

    /// Ends clearing, and waits until it has. The next one who mounts the file system goes on.
    pub async fn stop(&self) {
        self.interrupt();
        drop(self.turn.lock().await);
    }

    /// Has clearing end soon.
    pub fn interrupt(&self) {
        self.progress.stop();
    }
}
