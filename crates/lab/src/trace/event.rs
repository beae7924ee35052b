//! What a tracer saw, before anybody knows which file a descriptor means.

use super::calls::Call;

/// A call that returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caught {
    /// Which.
    pub call: &'static Call,
    /// Until it returned.
    pub latency_ns: u64,
    /// As given. Descriptors are in the low 32 bits.
    pub args: [u64; 6],
    /// The texts of its paths; `None` where there are none, or could not be read.
    pub path: Option<Vec<u8>>,
    /// The other path.
    pub path2: Option<Vec<u8>>,
    /// What its arguments pointed to: flags and mode, sum of lengths, two offsets *before* the call, or two descriptors.
    pub extra: [Option<u64>; 2],
    /// What it returned, `-errno` where it failed.
    pub result: i64,
    /// Of a file that was opened for appending: its bytes soon afterwards, if the tracer asked.
    pub end: Option<u64>,
    /// Paths of descriptors, where the tracer knew them; that of `AT_FDCWD` is the current directory.
    pub hints: Vec<(u32, Vec<u8>)>,
}

/// Something that a thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the trace began.
    pub at_ns: u64,
    /// Which thread, as the system calls it.
    pub thread: u32,
    /// Its process, if the tracer knows.
    pub process: Option<u32>,
    /// What.
    pub what: What,
}

/// What a thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A call returned.
    Call(Caught),
    /// It made another thread or process.
    Fork {
        /// Which.
        child: u32,
        /// As `clone` has them.
        flags: u64,
    },
    /// Its process runs another program from now on; it may have had another number.
    Exec {
        /// The number it had.
        old: u32,
    },
    /// It is no more.
    Exit,
}
