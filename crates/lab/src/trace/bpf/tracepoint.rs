//! The tracepoint of new tasks, as this kernel has it: its fields are elsewhere in other versions.

use ashlar_env::bpf::Tracepoint;
use std::io;

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
    /// Asks the kernel.
    pub fn find() -> io::Result<Fork> {
        let point = Tracepoint::find("task/task_newtask")?;
        let (Some(child), Some(flags)) = (point.field("pid", 4), point.field("clone_flags", 8)) else {
            return Err(io::Error::other("the tracepoint task_newtask has an unknown format"));
        };
        Ok(Fork { number: point.number, child, flags })
    }
}
