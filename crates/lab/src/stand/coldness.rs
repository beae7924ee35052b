//! What of a file system is in memory: looked for, not assumed.
//!
//! Names by `openat2` with `RESOLVE_CACHED`, which fails with `EAGAIN` where the file system would have to be asked, and so
//! warms nothing. Pages by `cachestat` of a file of our own, since opening one of the sample would warm its name.

use ashlar_env::host::cached_pages;
use rustix::fs::{Advice, Dir, FileType, Mode, OFlags, ResolveFlags, fadvise, openat2};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Names that are looked at, and directories that are searched for them.
const SAMPLE: usize = 256;
/// A file beside the directory for work.
const PROBE: &str = "../probe";
const PROBE_LEN: usize = 64 << 10;

/// What was left in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Coldness {
    /// Whether the file system was mounted anew.
    pub remounted: bool,
    /// Names below the directory for work that were looked at.
    pub names: u64,
    /// Those that memory has.
    pub names_cached: u64,
    /// Pages in memory of a file that was written before.
    pub pages_cached: u64,
    /// Why this could not be found out, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl Coldness {
    /// Nothing was found in memory.
    pub fn is_cold(&self) -> bool {
        self.names_cached == 0 && self.pages_cached == 0 && self.unknown.is_none()
    }
}

impl fmt::Display for Coldness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coldness { names, names_cached, pages_cached, .. } = self;
        match &self.unknown {
            Some(why) => write!(f, "whether it is cold is not known: {why}"),
            None if self.is_cold() => write!(f, "cold: none of {names} names, and no page of a probe, in memory"),
            None => {
                write!(f, "not cold: {names_cached} of {names} names and {pages_cached} pages of a probe are in memory")
            }
        }
    }
}

/// Writes the file whose pages are counted.
pub fn probe(work: &Path) -> io::Result<()> {
    let path = work.join(PROBE);
    if path.exists() { Ok(()) } else { std::fs::write(path, vec![0x5a; PROBE_LEN]) }
}

/// Some names below a directory, breadth first.
pub fn sample(work: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut next) = (vec![PathBuf::new()], 0);
    while let Some(directory) = found.get(next).cloned() {
        next += 1;
        if found.len() >= SAMPLE || next > SAMPLE {
            break;
        }
        // Files are no directories; what vanishes was not there.
        let Ok(entries) = std::fs::read_dir(work.join(&directory)) else { continue };
        found.extend(entries.flatten().take(SAMPLE / 8).map(|entry| directory.join(entry.file_name())));
    }
    found.remove(0);
    Ok(found)
}

/// Looks for what is in memory.
pub fn look(work: &Path, sample: &[PathBuf], remounted: bool) -> io::Result<Coldness> {
    let mut coldness = Coldness { remounted, ..Coldness::default() };
    let root = File::open(work)?;
    for name in sample {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat2(&root, name, flags, Mode::empty(), ResolveFlags::CACHED) {
            Ok(_) => coldness.names_cached += 1,
            Err(Errno::AGAIN) => {}
            Err(error) => {
                coldness.unknown.get_or_insert(format!("openat2 with RESOLVE_CACHED: {error}"));
            }
        }
        coldness.names += 1;
    }
    match File::open(work.join(PROBE)).and_then(|file| cached_pages(&file, 0, 0)) {
        Ok(pages) => coldness.pages_cached = pages.cached,
        Err(error) => coldness.unknown = Some(format!("cachestat: {error}")),
    }
    Ok(coldness)
}

/// Has the pages of all files below a directory forgotten, or (`all`) all that the system has in memory.
pub fn forget(work: &Path, all: bool) -> io::Result<()> {
    if all {
        return std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| {
            io::Error::new(error.kind(), format!("/proc/sys/vm/drop_caches: {error}; root can empty caches"))
        });
    }
    let forget_file = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        fadvise(&file, 0, None, Advice::DontNeed)
    };
    forget_file(&work.join(PROBE))?;
    let mut waiting = vec![work.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in Dir::read_from(File::open(&directory)?)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            let path = directory.join(&*name);
            match entry.file_type() {
                _ if name == "." || name == ".." => {}
                FileType::Directory => waiting.push(path),
                FileType::RegularFile => forget_file(&path)?,
                _ => {}
            }
        }
    }
    Ok(())
}
