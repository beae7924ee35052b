//! One system call.

use ashlar_columns::{Column, Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was asked, whichever of several calls asked it: `open` is also `openat`, `openat2` and `creat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Opened, perhaps created or cut: `flags` says.
    Open,
    /// The last descriptor of an open file was closed, by a call or with its process.
    Close,
    /// `len` bytes were asked for from `offset` on, `done` came.
    Read,
    /// `len` bytes were given from `offset` on, `done` were taken.
    Write,
    /// Data and metadata of a file, or entries of a directory, were made durable.
    Fsync,
    /// Data of a file were made durable.
    Fdatasync,
    /// A file system, or all, were made durable.
    Sync,
    /// Cut or grown to `len` bytes.
    Truncate,
    /// Space for `len` bytes from `offset` on; `flags` is the mode of `fallocate`.
    Fallocate,
    /// Attributes were asked for.
    Stat,
    /// Asked whether access is allowed.
    Access,
    /// `mode` was set.
    Chmod,
    /// An owner was set.
    Chown,
    /// Times were set.
    Utimes,
    /// Where a symbolic link points to was asked.
    Readlink,
    /// Entries of a directory were read; `done` is bytes of them.
    Getdents,
    /// A directory was made.
    Mkdir,
    /// A directory was removed.
    Rmdir,
    /// A name was removed.
    Unlink,
    /// `path` became `path2`; `flags` as `renameat2` has them.
    Rename,
    /// `path` got the name `path2` too.
    Link,
    /// `path` was made, which points to `path2`.
    Symlink,
    /// A device node, socket or pipe was made.
    Mknod,
    /// Extended attributes were read.
    Getxattr,
    /// An extended attribute was set or removed.
    Setxattr,
    /// `len` bytes from `offset` on were mapped into memory; `mode` is the protection (`PROT_…`).
    Mmap,
    /// A mapping was written back.
    Msync,
    /// Advice on `len` bytes from `offset` on; `flags` is which.
    Fadvise,
    /// Free space was asked for.
    Statfs,
    /// `len` bytes were copied in the kernel into this file at `offset`, out of `path2`; where from there is not told.
    Copy,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 30] = [
        Op::Open,
        Op::Close,
        Op::Read,
        Op::Write,
        Op::Fsync,
        Op::Fdatasync,
        Op::Sync,
        Op::Truncate,
        Op::Fallocate,
        Op::Stat,
        Op::Access,
        Op::Chmod,
        Op::Chown,
        Op::Utimes,
        Op::Readlink,
        Op::Getdents,
        Op::Mkdir,
        Op::Rmdir,
        Op::Unlink,
        Op::Rename,
        Op::Link,
        Op::Symlink,
        Op::Mknod,
        Op::Getxattr,
        Op::Setxattr,
        Op::Mmap,
        Op::Msync,
        Op::Fadvise,
        Op::Statfs,
        Op::Copy,
    ];

    /// As in files.
    pub fn name(self) -> &'static str {
        match self {
            Op::Open => "open",
            Op::Close => "close",
            Op::Read => "read",
            Op::Write => "write",
            Op::Fsync => "fsync",
            Op::Fdatasync => "fdatasync",
            Op::Sync => "sync",
            Op::Truncate => "truncate",
            Op::Fallocate => "fallocate",
            Op::Stat => "stat",
            Op::Access => "access",
            Op::Chmod => "chmod",
            Op::Chown => "chown",
            Op::Utimes => "utimes",
            Op::Readlink => "readlink",
            Op::Getdents => "getdents",
            Op::Mkdir => "mkdir",
            Op::Rmdir => "rmdir",
            Op::Unlink => "unlink",
            Op::Rename => "rename",
            Op::Link => "link",
            Op::Symlink => "symlink",
            Op::Mknod => "mknod",
            Op::Getxattr => "getxattr",
            Op::Setxattr => "setxattr",
            Op::Mmap => "mmap",
            Op::Msync => "msync",
            Op::Fadvise => "fadvise",
            Op::Statfs => "statfs",
            Op::Copy => "copy",
        }
    }
}

/// One system call. What does not apply is zero or empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// When it was called, nanoseconds since the trace began. Records stand in this order.
    pub at_ns: u64,
    /// Until it returned, nanoseconds. Zero in a workload that nobody ran yet.
    #[serde(default)]
    pub latency_ns: u64,
    /// Which process called, a number of the trace.
    #[serde(default)]
    pub process: u64,
    /// Which thread, a number of the trace. Calls of one thread follow each other.
    #[serde(default)]
    pub thread: u64,
    /// What was asked.
    pub op: Op,
    /// Absolute path without `.`, `..` and doubled slashes; symbolic links are not followed. Of a call on an open file: the
    /// path by which it was opened. Empty where it is not known.
    #[serde(default)]
    pub path: String,
    /// The other path.
    #[serde(default)]
    pub path2: String,
    /// Number of the open file (open file description), from 1 on and never used again in a trace.
    #[serde(default)]
    pub file: u64,
    /// First byte, also where the call had none and the position of the file counted.
    #[serde(default)]
    pub offset: u64,
    /// Bytes asked for.
    #[serde(default)]
    pub len: u64,
    /// Bytes done.
    #[serde(default)]
    pub done: u64,
    /// `errno` of a call that failed, zero of one that did not.
    #[serde(default)]
    pub error: u64,
    /// Flags, as the call has them.
    #[serde(default)]
    pub flags: u64,
    /// Mode, of calls that create or set one.
    #[serde(default)]
    pub mode: u64,
}

impl Record {
    /// A call at time zero, with nothing but its path.
    pub fn new(op: Op, path: impl Into<String>) -> Record {
        Record {
            at_ns: 0,
            latency_ns: 0,
            process: 0,
            thread: 0,
            op,
            path: path.into(),
            path2: String::new(),
            file: 0,
            offset: 0,
            len: 0,
            done: 0,
            error: 0,
            flags: 0,
            mode: 0,
        }
    }
}

/// Traces of system calls.
pub const CALLS: Table<Record> = Table {
    name: "calls",
    needed: &["at_ns", "op"],
    example: r#"{"at_ns": 0, "op": "read", "path": "/srv/a", "file": 1, "offset": 0, "len": 4096, "done": 4096}"#,
    columns: &[
        ("at_ns", Column::Distinct(|record| record.at_ns)),
        ("latency_ns", Column::Distinct(|record| record.latency_ns)),
        ("process", Column::Number(|record| record.process)),
        ("thread", Column::Number(|record| record.thread)),
        ("op", Column::Text(|record| record.op.name())),
        ("path", Column::Text(|record| &record.path)),
        ("path2", Column::Text(|record| &record.path2)),
        ("file", Column::Number(|record| record.file)),
        ("offset", Column::Number(|record| record.offset)),
        ("len", Column::Number(|record| record.len)),
        ("done", Column::Number(|record| record.done)),
        ("error", Column::Number(|record| record.error)),
        ("flags", Column::Number(|record| record.flags)),
        ("mode", Column::Number(|record| record.mode)),
    ],
};

/// A record of each operation, no two of them alike.
#[cfg(test)]
pub(super) fn samples() -> Vec<Record> {
    let sample = |(n, op): (u64, Op)| Record {
        at_ns: (n * 7) % 30,
        latency_ns: n + 1,
        process: n + 2,
        thread: n + 3,
        path2: format!("/b{n}"),
        file: n + 4,
        offset: u64::MAX - n,
        len: n + 5,
        done: n + 6,
        error: n % 3,
        flags: n + 7,
        mode: n + 8,
        ..Record::new(op, format!("/a/\u{e4}\n{n}"))
    };
    (0..).zip(Op::ALL).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_columns::{Writer, read};

    #[test]
    fn records_come_back_from_both_kinds_of_files() {
        let records = samples();
        for extension in ["parquet", "jsonl"] {
            let path = std::env::temp_dir().join(format!("ashlar-calls-{}.{extension}", std::process::id()));
            let mut file = Writer::create(&CALLS, &path).expect("a place for files");
            records.iter().for_each(|record| file.put(record.clone()).expect("space"));
            assert_eq!(file.finish().expect("space"), records.len() as u64);
            let mut back = Vec::new();
            let done = read(&CALLS, &path, |record| {
                back.push(record);
                Ok(())
            });
            assert_eq!(done, Ok(()));
            assert_eq!(back, records, "{extension}");
            std::fs::remove_file(&path).expect("it is ours");
        }
    }

    #[test]
    fn names_are_those_of_json() {
        for op in Op::ALL {
            assert_eq!(serde_json::to_value(op).expect("a name"), op.name());
        }
    }
}
