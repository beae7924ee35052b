//! The tracepoint of new tasks, as this kernel has it: its fields are elsewhere in other versions.

use crate::trace::live::fresh_directory;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the record of `task_newtask` has what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The tracepoint's number.
    pub number: u64,
    /// Offset of the child's number.
    pub child: i16,
    /// Offset of the flags of `clone`.
    pub flags: i16,
}

impl Fork {
    /// Asks tracefs, which is mounted for that, if nobody did, and unmounted again.
    pub fn find() -> io::Result<Fork> {
        for home in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
            if let Ok(fork) = Fork::read(Path::new(home)) {
                return Ok(fork);
            }
        }
        let mounted = Mounted(fresh_directory("tracefs")?);
        let done = Command::new("mount").args(["-t", "tracefs", "none"]).arg(&mounted.0).output()?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr).trim().to_string();
            return Err(io::Error::other(format!("tracefs cannot be mounted: {said}")));
        }
        Fork::read(&mounted.0)
    }

    fn read(home: &Path) -> io::Result<Fork> {
        let home = home.join("events/task/task_newtask");
        let number = std::fs::read_to_string(home.join("id"))?;
        let format = std::fs::read_to_string(home.join("format"))?;
        parse(&number, &format).ok_or_else(|| io::Error::other("the tracepoint task_newtask has an unknown format"))
    }
}

fn parse(number: &str, format: &str) -> Option<Fork> {
    let offset = |field: &str, size: &str| {
        let line = format.lines().find(|line| line.contains(&format!(" {field};")) && line.contains(size))?;
        line.split_once("offset:")?.1.split_once(';')?.0.parse().ok()
    };
    Some(Fork {
        number: number.trim().parse().ok()?,
        child: offset("pid", "size:4;")?,
        flags: offset("clone_flags", "size:8;")?,
    })
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read() {
        let format = "name: task_newtask\nID: 205\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:0;\n\
            \tfield:u64 clone_flags;\toffset:32;\tsize:8;\tsigned:0;\n";
        assert_eq!(parse("205\n", format), Some(Fork { number: 205, child: 8, flags: 32 }));
        assert_eq!(parse("205", "field:pid_t pid;"), None);
    }
}
