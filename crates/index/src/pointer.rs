//! Pointers to nodes.

use crate::Key;
use ashlar_block::{Error, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where a node was born, and how to know it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NodePtr {
    /// Segment in which it was born.
    pub uid: u64,
    /// Byte offset in that segment.
    pub offset: u32,
    /// Bytes on the medium.
    pub len: u32,
    /// Bytes of the body in memory: how full the node is.
    pub raw_len: u32,
    /// CRC32C of the bytes on the medium.
    pub crc: u32,
    /// Checkpoint in which it was born.
    pub birth: u64,
}

/// Where a node stands under its parent, and what must be true of it there.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The node.
    pub ptr: NodePtr,
    /// First key of its range.
    pub low: Key,
    /// Where its range ends.
    pub high: Option<Key>,
    /// Its height above the leaves; `None`: it is a root, and nobody says.
    pub(crate) level: Option<u8>,
    /// Whether it is a part of its parent's buffer.
    pub(crate) is_run: bool,
}

impl Seat {
    /// A root's.
    pub fn root(ptr: NodePtr) -> Seat {
        Seat { ptr, low: Key::new(), high: None, level: None, is_run: false }
    }
}

/// A pointer as it is stored.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredPtr {
    uid: U64,
    birth: U64,
    offset: U32,
    len: U32,
    raw_len: U32,
    crc: U32,
}

/// Bytes of a stored pointer.
pub const POINTER_LEN: usize = size_of::<StoredPtr>();
const _: () = assert!(POINTER_LEN == 32, "superblocks and nodes lay pointers out in 32 bytes");

impl NodePtr {
    /// The stored form.
    pub fn encode(&self) -> [u8; POINTER_LEN] {
        let stored = StoredPtr {
            uid: self.uid.into(),
            birth: self.birth.into(),
            offset: self.offset.into(),
            len: self.len.into(),
            raw_len: self.raw_len.into(),
            crc: self.crc.into(),
        };
        zerocopy::transmute!(stored)
    }
    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<NodePtr> {
        let stored = StoredPtr::read_from_bytes(bytes).map_err(|_| Error::corrupt("a node pointer is cut short"))?;
        Ok(NodePtr {
            uid: stored.uid.get(),
            birth: stored.birth.get(),
            offset: stored.offset.get(),
            len: stored.len.get(),
            raw_len: stored.raw_len.get(),
            crc: stored.crc.get(),
        })
    }
}
