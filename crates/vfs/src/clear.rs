//! Removing whole trees, without a request from the door for each name.
//!
//! A tree is first [taken away](take_away): one rename, atomic like every other, into a directory in the root that only its owner may
//! enter. There it waits to be [cleared](clear_waiting), name by name. Until that is done it is an ordinary directory, which survives power
//! cuts, is in snapshots and is checked like all others; whoever mounts the file system goes on.

use crate::{Errno, Error, FileKind, FileSystem, Ino, Name, NewNode, ROOT, RenameMode, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The directory in the root where trees wait.
pub const REMOVED: &Name = b".ashlar-removed";

/// Names of a directory that are held at once.
const PAGE: usize = 1024;

/// Names that are removed before others have their turn.
const CALM: u64 = 8;

/// How often is tried again what others can prevent, by making or removing names at the same moment.
const TRIES: u32 = 100;

/// What became of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was no directory, and is removed.
    Removed,
    /// It is in [`REMOVED`] now, with this number.
    Waits(Ino),
}

/// What went wrong while a tree was cleared.
#[derive(Debug, Default)]
pub struct Kept {
    /// Names that could not be removed, but for the directories above them.
    pub names: u64,
    /// Why the first could not.
    pub why: Option<Error>,
}

impl Kept {
    fn add(&mut self, error: Error) {
        self.names += 1;
        self.why.get_or_insert(error);
    }
}

/// How far clearing is, and whether it shall go on.
#[derive(Debug, Default)]
pub struct Progress {
    removed: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Names removed so far.
    pub fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }
    /// Ends clearing behind the name that is being removed.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
    /// Whether it was told to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// A reference to an inode by this name: what the door gets, and gives back.
async fn lookup_optional<F: FileSystem>(fs: &F, parent: Ino, name: &Name) -> Result<Option<(Ino, FileKind)>> {
    match fs.lookup(parent, name).await {
        Ok(attr) => Ok(Some((attr.ino, attr.kind))),
        Err(error) if error.errno == Errno::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether anything has this name.
pub async fn is_there<F: FileSystem>(fs: &F, parent: Ino, name: &Name) -> bool {
    let Ok(Some((ino, _))) = lookup_optional(fs, parent, name).await else { return false };
    fs.forget(ino, 1).await;
    true
}

/// The directory where trees wait, with a reference for the caller to give back; made if it is missing. Whether it was made.
async fn waiting_room<F: FileSystem>(fs: &F) -> Result<(Ino, bool)> {
    for _ in 0..TRIES {
        match lookup_optional(fs, ROOT, REMOVED).await? {
            Some((ino, FileKind::Directory)) => return Ok((ino, false)),
            Some((ino, _)) => {
                fs.forget(ino, 1).await;
                return Err(Errno::NotDirectory.into());
            }
            None => {}
        }
        let owner =
            NewNode { kind: FileKind::Directory, permissions: 0o700, uid: 0, gid: 0, device: 0, umask: 0, open: false };
        match fs.mkdir(ROOT, REMOVED, owner).await {
            Ok(attr) => return Ok((attr.ino, true)),
            Err(error) if error.errno == Errno::Exists => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::Exists.into())
}

/// Takes away what `name` in `parent` is, with all that is below; `parent` is referenced by the caller. Says what became of it, and
/// whether [`REMOVED`] is new. Where there is no room to move a tree, it is cleared where it is.
///
/// # Errors
/// Those of `lookup`, `unlink`, `mkdir` and `rename`, after which nothing changed; of a tree that is cleared where it is, the first.
pub async fn take_away<F: FileSystem>(fs: &F, parent: Ino, name: &Name, progress: &Progress) -> Result<(Taken, bool)> {
    let here = async || remove_here(fs, parent, name, progress).await.map(|()| (Taken::Removed, false));
    let (mut made, mut suffix) = (false, 0);
    for _ in 0..TRIES {
        let attr = fs.lookup(parent, name).await?;
        fs.forget(attr.ino, 1).await;
        if attr.kind != FileKind::Directory {
            return Ok((fs.unlink(parent, name).await.map(|()| Taken::Removed)?, made));
        }
        if (parent, name) == (ROOT, REMOVED) {
            return Ok((Taken::Waits(attr.ino), made));
        }
        let (room, new) = match waiting_room(fs).await {
            Err(error) if error.errno == Errno::NoSpace => return here().await,
            room => room?,
        };
        made |= new;
        let there = if suffix == 0 { attr.ino.to_string() } else { format!("{}-{suffix}", attr.ino) };
        let moved = match room == parent {
            true => Ok(()),
            false => fs.rename((parent, name), (room, there.as_bytes()), RenameMode::NoReplace).await,
        };
        fs.forget(room, 1).await;
        match moved {
            Ok(()) => return Ok((Taken::Waits(attr.ino), made)),
            Err(error) if error.errno == Errno::NoSpace => return here().await,
            // A directory was made there by hand; or who cleared the last one removed the directory before this one came.
            Err(error) if error.errno == Errno::Exists => suffix += 1,
            Err(error) if matches!(error.errno, Errno::NotFound | Errno::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::Exists.into())
}

/// Removes a file, or a tree where it is, as `rm -r` does: others see parts of it meanwhile.
///
/// # Errors
/// The first of `lookup`, `unlink` and `rmdir`; what could be removed is.
pub async fn remove_here<F: FileSystem>(fs: &F, parent: Ino, name: &Name, progress: &Progress) -> Result<()> {
    let attr = fs.lookup(parent, name).await?;
    let kept = match attr.kind {
        FileKind::Directory => clear_below(fs, attr.ino, progress).await,
        _ => Kept::default(),
    };
    fs.forget(attr.ino, 1).await;
    match (kept.why, attr.kind) {
        (Some(error), _) => Err(error),
        (None, FileKind::Directory) => fs.rmdir(parent, name).await,
        (None, _) => fs.unlink(parent, name).await,
    }
}

/// A directory that is being cleared.
struct Level {
    ino: Ino,
    /// In the directory above. That of the topmost is empty.
    name: Box<Name>,
    page: VecDeque<(Box<Name>, FileKind)>,
    /// Where the next page begins; `None` behind the last.
    cookie: Option<u64>,
    /// Names below that stay.
    kept: u64,
    /// How often it was not empty though everything was removed.
    refilled: u32,
}

impl Level {
    fn new(ino: Ino, name: &Name) -> Level {
        Level { ino, name: name.into(), page: VecDeque::new(), cookie: Some(0), kept: 0, refilled: 0 }
    }

    /// The next name, if one is left.
    async fn next<F: FileSystem>(&mut self, fs: &F) -> Result<Option<(Box<Name>, FileKind)>> {
        while self.page.is_empty()
            && let Some(cookie) = self.cookie.take()
        {
            fs.calm().await;
            let (page, next) = list(fs, self.ino, cookie).await?;
            (self.page, self.cookie) = (page.into(), next);
        }
        Ok(self.page.pop_front())
    }
}

/// Names with their kinds, and the cookie of the next ones, if there may be some.
pub type Page = (Vec<(Box<Name>, FileKind)>, Option<u64>);

/// At most 1,024 names in a directory from behind a cookie on; 0 is the beginning.
///
/// # Errors
/// Those of `readdir`.
pub async fn list<F: FileSystem>(fs: &F, directory: Ino, cookie: u64) -> Result<Page> {
    let (mut page, mut last) = (Vec::new(), None);
    let mut take = |entry: crate::DirEntry<'_>| {
        let fits = page.len() < PAGE;
        if fits {
            last = Some(entry.cookie);
        }
        if fits && !matches!(entry.name, b"." | b"..") {
            page.push((entry.name.into(), entry.kind));
        }
        fits
    };
    fs.readdir(directory, cookie, false, &mut take).await?;
    Ok((page, last))
}

/// Removes everything below a directory, to which the caller has a reference; it stays itself. Names that cannot be removed are passed
/// over. What others make there meanwhile is removed too, within reason.
///
/// Memory    some 1,024 names for each directory on the way to the deepest.
pub async fn clear_below<F: FileSystem>(fs: &F, directory: Ino, progress: &Progress) -> Kept {
    let (mut kept, mut calm) = (Kept::default(), progress.removed());
    let mut levels = vec![Level::new(directory, b"")];
    while let Some(level) = levels.last_mut()
        && !progress.is_stopped()
    {
        if progress.removed() - calm >= CALM {
            calm = progress.removed();
            fs.calm().await;
        }
        let next = level.next(fs).await;
        let here = level.ino;
        match next {
            Ok(Some((name, FileKind::Directory))) => match lookup_optional(fs, here, &name).await {
                // Anything may have this name by now.
                Ok(Some((ino, _))) => levels.push(Level::new(ino, &name)),
                Ok(None) => {}
                Err(error) => {
                    level.kept += 1;
                    kept.add(error);
                }
            },
            Ok(Some((name, _))) => match fs.unlink(here, &name).await {
                Ok(()) => drop(progress.removed.fetch_add(1, Ordering::Relaxed)),
                Err(error) if matches!(error.errno, Errno::NotFound | Errno::IsDirectory) => {}
                Err(error) => {
                    level.kept += 1;
                    kept.add(error);
                }
            },
            Ok(None) => {
                let done = levels.pop().expect("it is the last");
                let Some(above) = levels.last_mut() else { break };
                if done.kept == 0 {
                    match fs.rmdir(above.ino, &done.name).await {
                        Ok(()) => drop(progress.removed.fetch_add(1, Ordering::Relaxed)),
                        Err(error) if matches!(error.errno, Errno::NotFound | Errno::NotDirectory) => {}
                        Err(error) if error.errno == Errno::NotEmpty && done.refilled < TRIES => {
                            levels.push(Level { cookie: Some(0), refilled: done.refilled + 1, ..done });
                            continue;
                        }
                        Err(error) => {
                            above.kept += 1;
                            kept.add(error);
                        }
                    }
                }
                above.kept += done.kept;
                fs.forget(done.ino, 1).await;
            }
            Err(error) => {
                level.kept += 1;
                (level.cookie, level.page) = (None, VecDeque::new());
                kept.add(error);
            }
        }
    }
    for level in levels.drain(..).skip(1) {
        fs.forget(level.ino, 1).await;
    }
    kept
}

/// Clears all trees that wait, and removes the directory in which they do; whether it is gone.
///
/// # Errors
/// Those of looking for that directory.
pub async fn clear_waiting<F: FileSystem>(fs: &F, progress: &Progress) -> Result<(Kept, bool)> {
    let Some((room, kind)) = lookup_optional(fs, ROOT, REMOVED).await? else { return Ok((Kept::default(), false)) };
    let kept = match kind {
        FileKind::Directory => clear_below(fs, room, progress).await,
        _ => Kept::default(),
    };
    fs.forget(room, 1).await;
    // Another tree may have come meanwhile: then it is not empty, and whoever took it away clears it.
    let gone = kept.names == 0 && !progress.is_stopped() && fs.rmdir(ROOT, REMOVED).await.is_ok();
    Ok((kept, gone))
}

/// Counts the names below what waits, to tell how long clearing will take.
///
/// # Errors
/// Those of `lookup` and `readdir`.
pub async fn count_waiting<F: FileSystem>(fs: &F, progress: &Progress) -> Result<u64> {
    let Some((room, _)) = lookup_optional(fs, ROOT, REMOVED).await? else { return Ok(0) };
    let (mut levels, mut names) = (vec![Level::new(room, b"")], 0);
    let counted = loop {
        let Some(level) = levels.last_mut().filter(|_| !progress.is_stopped()) else { break Ok(names) };
        match level.next(fs).await {
            Ok(Some((name, kind))) => {
                names += 1;
                let here = level.ino;
                if kind == FileKind::Directory {
                    match lookup_optional(fs, here, &name).await {
                        Ok(Some((ino, _))) => levels.push(Level::new(ino, &name)),
                        Ok(None) => {}
                        Err(error) => break Err(error),
                    }
                }
            }
            Ok(None) => {
                let done = levels.pop().expect("it is the last");
                fs.forget(done.ino, 1).await;
            }
            Err(error) => break Err(error),
        }
    };
    for level in levels.drain(..) {
        fs.forget(level.ino, 1).await;
    }
    counted
}
