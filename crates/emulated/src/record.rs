//! What a trace keeps of a request.

use ashlar_models::{Completion, Kind, Request, Split};
use serde::{Deserialize, Serialize};

/// What a request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make durable what was written.
    Flush,
    /// Give up contents.
    Discard,
}

/// A request that is done: a line of a trace, as JSON. Times are nanoseconds; those of the model begin with the device.
/// To replay a trace, `at_ns`, `op`, `offset` and `len` suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// When it arrived.
    pub at_ns: u64,
    /// What it asked for.
    pub op: Operation,
    /// First byte.
    #[serde(default)]
    pub offset: u64,
    /// Bytes.
    #[serde(default)]
    pub len: u64,
    /// A write that had to be durable at once.
    #[serde(default)]
    pub fua: bool,
    /// Requests under way when it arrived, itself included.
    #[serde(default)]
    pub depth: u32,
    /// From its arrival until the model said that it is done: the sum of the five parts below. Without a model until it
    /// was done, and the parts are zeros.
    #[serde(default)]
    pub response_ns: u64,
    /// Part of it: waiting for others, for work of the device, or for a flush.
    #[serde(default)]
    pub queue_ns: u64,
    /// Part of it: command processing, spinning up.
    #[serde(default)]
    pub overhead_ns: u64,
    /// Part of it: moving the arm and settling.
    #[serde(default)]
    pub seek_ns: u64,
    /// Part of it: waiting for the medium to come round.
    #[serde(default)]
    pub rotation_ns: u64,
    /// Part of it: moving data.
    #[serde(default)]
    pub transfer_ns: u64,
    /// How much later it really was done: the error of real time. None in a simulation, unless the contents were late.
    #[serde(default)]
    pub late_ns: u64,
}

impl Record {
    pub(crate) fn new(completion: &Completion, depth: usize, now_ns: u64) -> Record {
        let Request { kind, offset, len, fua } = completion.request;
        let Split { queue_ns, overhead_ns, seek_ns, rotation_ns, transfer_ns } = completion.split;
        Record {
            at_ns: completion.submitted_ns,
            op: match kind {
                Kind::Read => Operation::Read,
                Kind::Write => Operation::Write,
                Kind::Flush => Operation::Flush,
                Kind::Discard => Operation::Discard,
            },
            offset,
            len,
            fua,
            depth: depth as u32,
            response_ns: completion.response_ns(),
            queue_ns,
            overhead_ns,
            seek_ns,
            rotation_ns,
            transfer_ns,
            late_ns: now_ns.saturating_sub(completion.done_ns),
        }
    }

    /// The request, to be given to a model.
    pub fn request(&self) -> Request {
        let kind = match self.op {
            Operation::Read => Kind::Read,
            Operation::Write => Kind::Write,
            Operation::Flush => Kind::Flush,
            Operation::Discard => Kind::Discard,
        };
        Request { kind, offset: self.offset, len: self.len, fua: self.fua }
    }
}
