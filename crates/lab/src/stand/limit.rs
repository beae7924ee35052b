//! A bound on the memory of this process, page cache included, by a control group.

use super::home::again;
use crate::mounts::mounts;
use ashlar_units::Bytes;
use std::io;
use std::path::{Path, PathBuf};

/// What a process needs beside what it has already.
const ROOM: u64 = 16 << 20;

/// A control group for this process.
#[derive(Debug)]
pub struct Limit {
    group: PathBuf,
    /// Where the process was before.
    former: PathBuf,
}

/// The first group that this process is in by `/proc/self/cgroup` with the memory controller: its directory, and the file with
/// the bound. Version 1 first, since a controller is in one of both.
fn own_group() -> io::Result<(PathBuf, &'static str)> {
    let groups = std::fs::read_to_string("/proc/self/cgroup")?;
    let path_of = |wanted: &str| {
        let mut lines = groups.lines().map(|line| line.splitn(3, ':'));
        let mut line = lines.find_map(|mut line| {
            let (_, names) = (line.next()?, line.next()?);
            names.split(',').any(|name| name == wanted).then_some(line)
        })?;
        line.next().map(str::to_string)
    };
    let all = mounts()?;
    let first = all.iter().find(|mount| mount.file_system == "cgroup" && mount.point.ends_with("memory"));
    let second = all.iter().find(|mount| mount.file_system == "cgroup2");
    let (mount, path, file) = match (first, second) {
        (Some(mount), _) => (mount, path_of("memory"), "memory.limit_in_bytes"),
        (None, Some(mount)) => (mount, path_of(""), "memory.max"),
        (None, None) => return Err(io::Error::other("no control groups are mounted")),
    };
    let path = path.ok_or_else(|| io::Error::other("this process is in no control group for memory"))?;
    let own = mount.point.join(path.trim_start_matches('/'));
    // In a container the path may be of the host; then the mount's own root is ours.
    Ok((if own.is_dir() { own } else { mount.point.clone() }, file))
}

fn hint(path: &Path, error: &io::Error) -> io::Error {
    let text = format!(
        "{}: {error}; a limit on memory needs root and a control group with the memory controller",
        path.display()
    );
    io::Error::new(error.kind(), text)
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text).map_err(|error| hint(path, &error))
}

impl Limit {
    /// A group that is bounded by `memory`; nobody is in it yet.
    pub fn new(memory: Bytes) -> io::Result<Limit> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
        let least = Bytes((resident.unwrap_or(0) << 10) + ROOM);
        if memory.0 < least.0 {
            return Err(io::Error::other(format!(
                "a limit of {memory} is too low: this process alone needs {least}; give more"
            )));
        }
        let (former, file) = own_group()?;
        // In version 2, groups with processes have no groups with controllers below them: so it stands beside.
        let above = if file == "memory.max" { former.parent().unwrap_or(&former) } else { &former };
        let group = above.join(format!("ashlar-{}", std::process::id()));
        std::fs::create_dir(&group).map_err(|error| hint(&group, &error))?;
        let limit = Limit { group, former };
        if let Err(error) = put(&limit.group.join(file), &memory.0.to_string()) {
            let _ = std::fs::remove_dir(&limit.group);
            return Err(error);
        }
        Ok(limit)
    }

    /// Takes this process in.
    pub fn enter(&self) -> io::Result<()> {
        put(&self.group.join("cgroup.procs"), &std::process::id().to_string())
    }

    /// Memory of processes in the group, beside the page cache and what the kernel has for them.
    pub fn own(&self) -> io::Result<Bytes> {
        let path = self.group.join("memory.stat");
        let text = std::fs::read_to_string(&path).map_err(|error| hint(&path, &error))?;
        let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        // Version 1, version 2.
        let unknown = || io::Error::other(format!("{}: it tells neither rss nor anon", path.display()));
        of("rss").or_else(|| of("anon")).map(Bytes).ok_or_else(unknown)
    }

    /// Puts this process where it was. What is cached stays charged to the group.
    pub fn leave(&self) -> io::Result<()> {
        put(&self.former.join("cgroup.procs"), &std::process::id().to_string())
    }

    /// Leaves, and removes the group.
    pub fn put_away(self) -> io::Result<()> {
        self.leave()?;
        // Programs that were started within may take a moment to end.
        again(|| std::fs::remove_dir(&self.group)).map_err(|error| hint(&self.group, &error))
    }
}
