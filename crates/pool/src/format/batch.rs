//! Batches: a lead, what it is about, and what was said.

use super::reader::{Reader, put_short};
use super::{OpenSegment, StoredOpen, VERSION, crc};
use ashlar_block::{Error, Result};
use ashlar_units::BLOCK_LEN;
use bytes::{BufMut, Bytes, BytesMut};
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a batch is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// New data and messages, in commit order.
    Log,
    /// Index nodes.
    Nodes,
    /// Data that the cleaner moved.
    Cold,
}

impl Stream {
    /// All streams.
    pub const ALL: [Stream; 3] = [Stream::Log, Stream::Nodes, Stream::Cold];
    /// Its number on the medium.
    pub fn code(self) -> u8 {
        self as u8
    }
    fn from_code(code: u8) -> Option<Stream> {
        Stream::ALL.get(code as usize).copied()
    }
}

/// Head of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// What it is written for.
    pub stream: Stream,
    /// Identity of the pool.
    pub pool: u64,
    /// Segment.
    pub uid: u64,
    /// First block in the segment.
    pub at: u32,
    /// Blocks of payload.
    pub payload_blocks: u32,
    /// Bytes of body.
    pub body_len: u32,
    /// Extents and nodes listed in the body.
    pub items: u32,
    /// Operations in the body.
    pub operations: u32,
    /// Number of the batch in the log; 0 in other streams.
    pub seq: u64,
    /// Checksum of the log's previous batch.
    pub chain: u32,
    /// Batches up to this number were durable when this one was written.
    pub durable: u64,
    /// Segment that follows this one in the log.
    pub next: OpenSegment,
    /// Checksum of the body.
    pub body_crc: u32,
    /// Checksum of the payload.
    pub payload_crc: u32,
    /// Blocks of parity of the payload, behind the tail; behind these the lead stands once more. `None`: neither.
    pub parity: Option<u32>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredLead {
    magic: [u8; 4],
    crc: U32,
    version: U16,
    stream: u8,
    reserved: u8,
    at: U32,
    pool: U64,
    uid: U64,
    payload_blocks: U32,
    body_len: U32,
    items: U32,
    operations: U32,
    seq: U64,
    durable: U64,
    next: StoredOpen,
    chain: U32,
    body_crc: U32,
    payload_crc: U32,
    parity_blocks: U32,
}

const LEAD_MAGIC: [u8; 4] = *b"ASHB";
/// Of batches with parity.
const VERSION_OF_PARITY: u16 = 2;
/// Bytes of a lead's header; an inline body follows.
pub const LEAD_LEN: usize = size_of::<StoredLead>();
/// Largest payload that a reader accepts, in blocks: 4 GiB, far above what is written.
const BATCH_BLOCKS_MAX: u32 = 1 << 20;
/// Largest body that a reader accepts.
const BATCH_BODY_LEN_MAX: u32 = 64 << 20;
/// Bytes of body that fit into the lead block.
pub const INLINE_BODY_LEN: usize = BLOCK_LEN - LEAD_LEN;

impl Lead {
    /// Blocks of tail.
    pub fn tail_blocks(&self) -> u32 {
        if self.body_len as usize <= INLINE_BODY_LEN { 0 } else { self.body_len.div_ceil(BLOCK_LEN as u32) }
    }
    /// Blocks of the whole batch.
    pub fn blocks(&self) -> u32 {
        1 + self.payload_blocks + self.tail_blocks() + self.parity.map_or(0, |blocks| blocks + 1)
    }
    /// Blocks of the segment that the payload takes.
    pub fn payload(&self) -> Range<u32> {
        self.at + 1..self.at + 1 + self.payload_blocks
    }
    /// Where parity of the payload begins, if there is some.
    pub fn parity_at(&self) -> u32 {
        self.payload().end + self.tail_blocks()
    }
    /// Where the lead stands once more.
    pub fn copy_at(&self) -> Option<u32> {
        self.parity.map(|_| self.at + self.blocks() - 1)
    }
    /// The lead block, with the body if it fits.
    pub fn encode(&self, body: &[u8]) -> BytesMut {
        let mut stored = StoredLead {
            magic: LEAD_MAGIC,
            crc: 0.into(),
            version: if self.parity.is_some() { VERSION_OF_PARITY } else { VERSION }.into(),
            stream: self.stream.code(),
            reserved: 0,
            at: self.at.into(),
            pool: self.pool.into(),
            uid: self.uid.into(),
            payload_blocks: self.payload_blocks.into(),
            body_len: self.body_len.into(),
            items: self.items.into(),
            operations: self.operations.into(),
            seq: self.seq.into(),
            durable: self.durable.into(),
            next: self.next.store(),
            chain: self.chain.into(),
            body_crc: self.body_crc.into(),
            payload_crc: self.payload_crc.into(),
            parity_blocks: self.parity.unwrap_or(0).into(),
        };
        stored.crc = crc(stored.as_bytes()).into();
        let mut block = BytesMut::zeroed(BLOCK_LEN);
        block[..LEAD_LEN].copy_from_slice(stored.as_bytes());
        if body.len() <= INLINE_BODY_LEN {
            block[LEAD_LEN..LEAD_LEN + body.len()].copy_from_slice(body);
        }
        block
    }
    /// Reads a lead block. `None`: this is no lead.
    pub fn decode(block: &[u8]) -> Option<Lead> {
        let (mut stored, _) = StoredLead::read_from_prefix(block).ok()?;
        let version = stored.version.get();
        if stored.magic != LEAD_MAGIC || !(VERSION..=VERSION_OF_PARITY).contains(&version) {
            return None;
        }
        let own = std::mem::replace(&mut stored.crc, 0.into()).get();
        if crc(stored.as_bytes()) != own {
            return None;
        }
        if stored.payload_blocks.get() > BATCH_BLOCKS_MAX || stored.body_len.get() > BATCH_BODY_LEN_MAX {
            return None;
        }
        let lead = Lead {
            stream: Stream::from_code(stored.stream)?,
            pool: stored.pool.get(),
            uid: stored.uid.get(),
            at: stored.at.get(),
            payload_blocks: stored.payload_blocks.get(),
            body_len: stored.body_len.get(),
            items: stored.items.get(),
            operations: stored.operations.get(),
            seq: stored.seq.get(),
            chain: stored.chain.get(),
            durable: stored.durable.get(),
            next: stored.next.load(),
            body_crc: stored.body_crc.get(),
            payload_crc: stored.payload_crc.get(),
            parity: (version == VERSION_OF_PARITY).then(|| stored.parity_blocks.get()),
        };
        lead.parity.is_none_or(|parity| parity <= lead.payload_blocks).then_some(lead)
    }
}

/// Something in a batch's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Tree that referred to it when it was written.
    pub tree: u64,
    /// Key of the chunk, or a key in the node's range.
    pub key: Bytes,
    /// Height of a node; `None` for data.
    pub level: Option<u8>,
    /// Byte offset in the segment.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// An operation in the log. Operations of one transaction never straddle batches, and a batch is replayed whole or not at
/// all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The key has this value.
    Put(u64, Bytes, Bytes),
    /// The key has no value.
    Delete(u64, Bytes),
    /// The key's value is overlaid.
    Patch(u64, Bytes, Bytes),
    /// No key in the range has a value.
    DeleteRange(u64, Bytes, Bytes),
}

/// Writes bodies.
pub struct BodyWriter {
    /// Items, encoded.
    items: BytesMut,
    items_count: u32,
    /// Operations, encoded.
    operations: BytesMut,
    operations_count: u32,
    /// Checksum of the operations as they came in: what bad memory changes until the batch is sealed is found then.
    operations_crc: crc_fast::Digest,
}

impl Default for BodyWriter {
    fn default() -> BodyWriter {
        BodyWriter {
            items: BytesMut::new(),
            items_count: 0,
            operations: BytesMut::new(),
            operations_count: 0,
            operations_crc: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi),
        }
    }
}

impl BodyWriter {
    /// An empty one with room for as much as `last` has: batches resemble those before them, and what grows is copied.
    pub(crate) fn like(last: &BodyWriter) -> BodyWriter {
        BodyWriter {
            items: BytesMut::with_capacity(last.items.len()),
            operations: BytesMut::with_capacity(last.operations.len()),
            ..BodyWriter::default()
        }
    }
    /// Adds an item.
    pub fn item(&mut self, tree: u64, key: &[u8], level: Option<u8>, offset: u32, len: u32) {
        self.items.put_u64_le(tree);
        self.items.put_u8(level.map_or(u8::MAX, |level| level));
        self.items.put_u32_le(offset);
        self.items.put_u32_le(len);
        put_short(&mut self.items, key);
        self.items_count += 1;
    }
    /// Whether the operations are those that came in.
    pub(crate) fn holds(&self) -> bool {
        self.operations_crc.finalize() as u32 == crc(&self.operations)
    }
    fn operation(&mut self, code: u8, tree: u64, key: &[u8], value: &[u8]) {
        let from = self.operations.len();
        self.operations.put_u8(code);
        self.operations.put_u64_le(tree);
        put_short(&mut self.operations, key);
        self.operations.put_u32_le(value.len() as u32);
        self.operations.put_slice(value);
        self.operations_crc.update(&self.operations[from..]);
        self.operations_count += 1;
    }
    /// Adds an operation.
    pub fn put(&mut self, tree: u64, key: &[u8], value: &[u8]) {
        self.operation(0, tree, key, value);
    }
    /// Adds an operation.
    pub fn delete(&mut self, tree: u64, key: &[u8]) {
        self.operation(1, tree, key, &[]);
    }
    /// Adds an operation.
    pub fn patch(&mut self, tree: u64, key: &[u8], value: &[u8]) {
        self.operation(2, tree, key, value);
    }
    /// Adds an operation.
    pub fn delete_range(&mut self, tree: u64, low: &[u8], high: &[u8]) {
        self.operation(3, tree, low, high);
    }
    /// Flips a bit of the operations, for explorations; tells which byte.
    pub(crate) fn flip_in_operations(&mut self, bit: u64) -> Option<usize> {
        let at = (bit / 8) as usize % self.operations.len().max(1);
        *self.operations.get_mut(at)? ^= 1 << (bit % 8);
        Some(at)
    }
    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.items.len() + self.operations.len()
    }
    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Items, operations, and the bytes.
    pub fn finish(self) -> (u32, u32, Bytes) {
        let mut bytes = self.items;
        bytes.unsplit(self.operations);
        (self.items_count, self.operations_count, bytes.freeze())
    }
}

/// Reads a body that the lead's checksum covers.
pub fn decode_body(lead: &Lead, body: &Bytes) -> Result<(Vec<Item>, Vec<Operation>)> {
    let mut reader = Reader { rest: body.clone() };
    let (mut items, mut operations) = (Vec::new(), Vec::new());
    for _ in 0..lead.items {
        let tree = reader.u64()?;
        let level = reader.u8()?;
        let (offset, len) = (reader.u32()?, reader.u32()?);
        let key = reader.short()?;
        items.push(Item { tree, key, level: (level != u8::MAX).then_some(level), offset, len });
    }
    for _ in 0..lead.operations {
        let code = reader.u8()?;
        let tree = reader.u64()?;
        let key = reader.short()?;
        let len = reader.u32()? as usize;
        let value = reader.take(len)?;
        operations.push(match code {
            0 => Operation::Put(tree, key, value),
            1 => Operation::Delete(tree, key),
            2 => Operation::Patch(tree, key, value),
            3 => Operation::DeleteRange(tree, key, value),
            other => return Err(Error::corrupt(format!("the log holds an operation of unknown kind {other}"))),
        });
    }
    Ok((items, operations))
}
