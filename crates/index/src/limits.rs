//! How large nodes become, and what decides it.

/// How large nodes become.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of entries in a leaf, before compression.
    pub leaf_bytes: usize,
    /// Bytes of pending messages in an interior node.
    pub buffer_bytes: usize,
    /// Children of an interior node.
    pub fanout: usize,
    /// Runs that a buffer may have; none: a buffer is written anew with its node.
    pub runs: usize,
}

impl Limits {
    /// For media on which a block elsewhere takes long, and for memory, where what counts is how many nodes a lookup meets. Leaves of
    /// 64 KiB: a cold lookup costs one read that an SSD serves in about twice the time of 4 KiB and a disk in the same. Buffers
    /// of 256 KiB for up to 64 children give each child 4 KiB of messages per flush, some 40 messages.
    pub const WIDE: Limits = Limits { leaf_bytes: 64 << 10, buffer_bytes: 256 << 10, fanout: 64, runs: 0 };
    /// For media on which bytes count and places do not: what arrives in a buffer becomes a run, and nothing else is written anew. Each
    /// child gets 16 KiB at a flush, and a lookup reads the runs whose filters have its key.
    pub const NARROW: Limits = Limits { leaf_bytes: 32 << 10, buffer_bytes: 256 << 10, fanout: 16, runs: 12 };
}
