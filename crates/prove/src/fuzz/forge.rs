//! Images of pools, and changes to them behind every checksum: of nodes, of batches of the log, of superblocks.
//!
//! A node that changes gets a new place in the *room*, the extents of a volume that is there for that, since its
//! segments are counted as live; and so do all nodes above it, whose pointers change, up to the superblock.

use ashlar_block::{Device, Durability, IoContext};
use ashlar_devices::Memory;
use ashlar_fuzz::Edit;
use ashlar_index::{Node, NodePtr};
use ashlar_pool::format::{
    INLINE_BODY_LEN, LEAD_LEN, Lead, RING_SLOTS, SEGMENTS_AT, Superblock, VolumeRecord, crc, superblock_slots,
};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use proptest::sample::Index;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const FORGE: IoContext = IoContext::background("forge");
/// The slot in a segment's number.
const SLOT_MASK: u64 = (1 << 22) - 1;
/// Where checksums lie in superblocks and leads.
const SUPERBLOCK_CRC: Range<usize> = 12..16;
const LEAD_CRC: Range<usize> = 4..8;
/// Bytes of a superblock that hold fields.
const SUPERBLOCK_FIELDS: usize = 240;
/// A node's header; where it has its compression and its lengths.
const HEADER_LEN: usize = 64;
const COMPRESSION: usize = 7;
const RAW_LEN: Range<usize> = 24..28;
const STORED_LEN: Range<usize> = 28..32;
/// Bytes in front of an entry's key.
const ENTRY_HEADER_LEN: usize = 7;

/// A device's contents.
#[derive(Clone)]
pub struct Image {
    capacity: Blocks,
    segment: Blocks,
    /// Blocks that are not zeros.
    blocks: BTreeMap<u64, Bytes>,
    /// Where forged nodes go: bytes of the device with the segment and the offset there.
    room: Vec<Room>,
    /// All nodes that the superblock reaches.
    nodes: Vec<Reached>,
    /// The batches behind the superblock, in order.
    log: Vec<Lead>,
}

/// A stretch of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub uid: u64,
    pub offset: u32,
    pub len: u32,
}

#[derive(Clone, Copy)]
struct Reached {
    ptr: NodePtr,
    /// The node that points at it; `None`: the superblock.
    parent: Option<usize>,
}

/// How a node changes.
#[derive(Clone, Debug)]
pub enum NodeChange {
    /// Its bytes, anywhere.
    Bytes(Vec<Edit>),
    /// One of its entries, keeping its length.
    Entry(Index, Vec<Edit>),
    /// It is another node.
    Become(Index),
    /// It is what lies in a place of the room, whatever its checksum.
    Stray(Index),
}

fn word(bytes: &[u8], at: Range<usize>) -> usize {
    u32::from_le_bytes(bytes[at].try_into().expect("four bytes")) as usize
}

fn set_word(bytes: &mut [u8], at: Range<usize>, value: u32) {
    bytes[at].copy_from_slice(&value.to_le_bytes());
}

impl Image {
    /// What a device holds.
    pub async fn of(device: &Device, room: Vec<Room>) -> Image {
        let capacity = device.geometry().capacity;
        let all = device.read(FORGE, Lba(0), capacity).await.expect("memory");
        let numbered = (0u64..).zip((0..all.len()).step_by(BLOCK_LEN).map(|at| all.slice(at..at + BLOCK_LEN)));
        let blocks = numbered.filter(|(_, block)| block.iter().any(|byte| *byte != 0)).collect();
        let (nodes, log, segment) = (Vec::new(), Vec::new(), Blocks(1));
        let mut image = Image { capacity, segment, blocks, room, nodes, log };
        image.segment = image.superblock().segment;
        image.reach();
        image.follow();
        image
    }

    /// Nodes and batches that can be changed.
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.log.len())
    }

    /// A device that holds the image.
    pub async fn device(&self) -> Device {
        let device: Device = Arc::new(Memory::new(self.capacity));
        for (at, block) in &self.blocks {
            device.write(FORGE, Lba(*at), vec![block.clone()], Durability::Cached).await.expect("memory");
        }
        device
    }

    fn block(&self, at: u64) -> Bytes {
        self.blocks.get(&at).cloned().unwrap_or_else(|| Bytes::from_static(&[0; BLOCK_LEN]))
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let (first, skip) = (at / BLOCK_LEN as u64, (at % BLOCK_LEN as u64) as usize);
        let blocks = (skip + len).div_ceil(BLOCK_LEN) as u64;
        let bytes: Vec<u8> = (first..first + blocks).flat_map(|at| self.block(at)).collect();
        bytes[skip..skip + len].to_vec()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let (first, skip) = (at / BLOCK_LEN as u64, (at % BLOCK_LEN as u64) as usize);
        let blocks = (skip + bytes.len()).div_ceil(BLOCK_LEN);
        let mut whole = self.read(first * BLOCK_LEN as u64, blocks * BLOCK_LEN);
        whole[skip..skip + bytes.len()].copy_from_slice(bytes);
        let pieces = Bytes::from(whole);
        for index in 0..blocks {
            self.blocks.insert(first + index as u64, pieces.slice(index * BLOCK_LEN..(index + 1) * BLOCK_LEN));
        }
    }

    /// Byte of the device where a place of a segment is.
    fn byte_of(&self, uid: u64, offset: u64) -> u64 {
        (SEGMENTS_AT.0 + (uid & SLOT_MASK) * self.segment.0) * BLOCK_LEN as u64 + offset
    }

    fn superblock(&self) -> Superblock {
        let slots = (0..RING_SLOTS).flat_map(|slot| superblock_slots(self.capacity, slot));
        let read = slots.map(|at| Superblock::decode(&self.read(at.to_bytes().0, 2 * BLOCK_LEN)));
        let found = read.filter_map(|slot| slot.expect("not forged yet"));
        found.max_by_key(|superblock| superblock.generation).expect("a superblock")
    }

    /// Puts a superblock into every slot.
    fn put_superblock(&mut self, bytes: &[u8]) {
        let capacity = self.capacity;
        for at in (0..RING_SLOTS).flat_map(|slot| superblock_slots(capacity, slot)) {
            self.write(at.to_bytes().0, bytes);
        }
    }

    /// Finds the nodes.
    fn reach(&mut self) {
        let root = self.superblock().catalog.expect("a catalog");
        let mut pending = vec![Reached { ptr: root, parent: None }];
        while let Some(reached) = pending.pop() {
            let index = self.nodes.len();
            self.nodes.push(reached);
            let node = Node::decode(&self.node(reached.ptr)).expect("not forged yet");
            let child = |ptr| Reached { ptr, parent: Some(index) };
            pending.extend(node.pointers().map(child));
            for (key, message) in node.messages().filter(|_| node.tree() == 0) {
                if let (Some(_), ashlar_index::Message::Put(value)) = (VolumeRecord::id(key), message) {
                    pending.extend(VolumeRecord::decode(&value).expect("not forged yet").root.map(child));
                }
            }
        }
    }

    fn node(&self, ptr: NodePtr) -> Vec<u8> {
        self.read(self.byte_of(ptr.uid, u64::from(ptr.offset)), ptr.len as usize)
    }

    /// A node's image with its body as it is.
    fn plain_node(&self, ptr: NodePtr) -> Vec<u8> {
        let image = self.node(ptr);
        let stored = &image[HEADER_LEN..HEADER_LEN + word(&image, STORED_LEN)];
        let body = match image[COMPRESSION] {
            0 => stored.to_vec(),
            _ => lz4_flex::block::decompress(stored, word(&image, RAW_LEN)).expect("not forged yet"),
        };
        let mut plain = [&image[..HEADER_LEN], &body].concat();
        plain[COMPRESSION] = 0;
        set_word(&mut plain, STORED_LEN, body.len() as u32);
        plain
    }

    /// Changes a node, and the pointers to it.
    pub fn forge_node(&mut self, at: Index, change: &NodeChange) {
        let mut index = at.index(self.nodes.len());
        let before = self.nodes[index].ptr;
        let mut room = self.room.clone();
        let mut plain = self.plain_node(before);
        let mut after = match change {
            NodeChange::Become(other) => self.nodes[other.index(self.nodes.len())].ptr,
            NodeChange::Stray(place) => {
                let Room { uid, offset, .. } = self.room[place.index(self.room.len())];
                NodePtr { uid, offset, ..before }
            }
            NodeChange::Bytes(edits) => {
                edits.iter().for_each(|edit| edit.apply(&mut plain));
                self.put_node(&mut room, before, plain)
            }
            NodeChange::Entry(entry, edits) => {
                let range = entry_of(&plain, *entry);
                edits.iter().for_each(|edit| edit.apply_in_place(&mut plain[range.clone()]));
                self.put_node(&mut room, before, plain)
            }
        };
        let mut before = before;
        while let Some(parent) = self.nodes[index].parent {
            let ptr = self.nodes[parent].ptr;
            let mut plain = self.plain_node(ptr);
            let old = before.encode();
            let found = plain.windows(old.len()).position(|window| window == old).expect("the parent points at it");
            plain[found..found + old.len()].copy_from_slice(&after.encode());
            (before, after, index) = (ptr, self.put_node(&mut room, ptr, plain), parent);
        }
        let superblock = Superblock { catalog: Some(after), ..self.superblock() };
        self.put_superblock(&superblock.encode());
    }

    /// Writes a node with a body that is not compressed to the room that is left.
    fn put_node(&mut self, room: &mut Vec<Room>, old: NodePtr, mut plain: Vec<u8>) -> NodePtr {
        let raw_len = plain.len().saturating_sub(HEADER_LEN) as u32;
        if plain.len() >= HEADER_LEN {
            set_word(&mut plain, RAW_LEN, raw_len);
            set_word(&mut plain, STORED_LEN, raw_len);
        }
        let place = room.iter().position(|place| place.len as usize >= plain.len()).expect("room enough");
        let Room { uid, offset, .. } = room.remove(place);
        self.write(self.byte_of(uid, u64::from(offset)), &plain);
        NodePtr { uid, offset, len: plain.len() as u32, raw_len, crc: crc(&plain), birth: old.birth }
    }

    /// Finds the batches behind the superblock.
    fn follow(&mut self) {
        let log = self.superblock().log;
        let (mut uid, mut at, mut next, mut seq) = (log.at.uid, log.at.used, log.next.uid, log.seq);
        let lead = |uid, at| {
            let block = self.read(self.byte_of(uid, u64::from(at) * BLOCK_LEN as u64), BLOCK_LEN);
            Lead::decode(&block).filter(|lead| (lead.uid, lead.at) == (uid, at))
        };
        let mut found = Vec::new();
        while let Some(lead) =
            [(uid, at), (next, 0)].iter().find_map(|(uid, at)| lead(*uid, *at).filter(|l| l.seq == seq))
        {
            (uid, at, next, seq) = (lead.uid, lead.at + lead.blocks(), lead.next.uid, seq + 1);
            found.push(lead);
        }
        self.log = found;
    }

    fn lead_at(&self, lead: &Lead) -> u64 {
        self.byte_of(lead.uid, u64::from(lead.at) * BLOCK_LEN as u64)
    }

    /// Byte where a batch's body lies, and the space for it.
    fn body_at(&self, lead: &Lead) -> (u64, usize) {
        match lead.tail_blocks() {
            0 => (self.lead_at(lead) + LEAD_LEN as u64, INLINE_BODY_LEN),
            tail => {
                let behind = u64::from(1 + lead.payload_blocks) * BLOCK_LEN as u64;
                (self.lead_at(lead) + behind, tail as usize * BLOCK_LEN)
            }
        }
    }

    /// Changes the body of a batch, and the chain behind it.
    pub fn forge_body(&mut self, at: Index, edits: &[Edit], in_place: bool, counts: Option<[u32; 2]>) {
        let first = at.index(self.log.len());
        let mut lead = self.log[first];
        let (place, space) = self.body_at(&lead);
        let mut body = self.read(place, lead.body_len as usize);
        edits.iter().for_each(|edit| if in_place { edit.apply_in_place(&mut body) } else { edit.apply(&mut body) });
        // It keeps to its blocks, and does not move from the tail into the lead.
        let least = if lead.tail_blocks() == 0 { 0 } else { space + 1 - BLOCK_LEN };
        let len = body.len().clamp(least, space);
        body.resize(len, 0);
        self.write(place, &body);
        (lead.body_len, lead.body_crc) = (body.len() as u32, crc(&body));
        if let Some([items, operations]) = counts {
            (lead.items, lead.operations) = (items, operations);
        }
        self.log[first] = lead;
        for index in first..self.log.len() {
            if index > first {
                self.log[index].chain = after(&self.log[index - 1]);
            }
            let lead = self.log[index];
            let inline = if lead.tail_blocks() == 0 {
                self.read(self.body_at(&lead).0, lead.body_len as usize)
            } else {
                Vec::new()
            };
            self.write(self.lead_at(&lead), &lead.encode(&inline));
        }
    }

    /// Changes the head of a batch.
    pub fn forge_lead(&mut self, at: Index, edits: &[Edit]) {
        let lead = self.log[at.index(self.log.len())];
        let mut bytes = self.read(self.lead_at(&lead), LEAD_LEN);
        edits.iter().for_each(|edit| edit.apply_in_place(&mut bytes));
        let bytes = with_checksum(bytes, LEAD_CRC);
        self.write(self.lead_at(&lead), &bytes);
    }

    /// Changes the superblock.
    pub fn forge_superblock(&mut self, edits: &[Edit]) {
        let mut bytes = self.superblock().encode().to_vec();
        edits.iter().for_each(|edit| edit.apply_in_place(&mut bytes[..SUPERBLOCK_FIELDS]));
        let bytes = with_checksum(bytes, SUPERBLOCK_CRC);
        self.put_superblock(&bytes);
    }

    /// Changes a block, and no checksum.
    pub fn damage(&mut self, at: Index, edits: &[Edit]) {
        let at = *self.blocks.keys().nth(at.index(self.blocks.len())).expect("within");
        let mut bytes = self.block(at).to_vec();
        edits.iter().for_each(|edit| edit.apply_in_place(&mut bytes));
        self.blocks.insert(at, bytes.into());
    }
}

/// The link of the chain behind a batch.
fn after(lead: &Lead) -> u32 {
    crc(&[&lead.seq.to_le_bytes()[..], &lead.chain.to_le_bytes(), &lead.body_crc.to_le_bytes()].concat())
}

fn with_checksum(mut bytes: Vec<u8>, at: Range<usize>) -> Vec<u8> {
    bytes[at.clone()].fill(0);
    let sum = crc(&bytes);
    set_word(&mut bytes, at, sum);
    bytes
}

/// Where an entry lies in a node whose body is not compressed: its key and value.
fn entry_of(plain: &[u8], entry: Index) -> Range<usize> {
    let node = Node::decode(plain).expect("not forged yet");
    let lens: Vec<usize> = node.messages().map(|(key, message)| ENTRY_HEADER_LEN + key.len() + message.len()).collect();
    if lens.is_empty() {
        return HEADER_LEN..plain.len();
    }
    let chosen = entry.index(lens.len());
    let end = plain.len() - lens[chosen + 1..].iter().sum::<usize>();
    end - lens[chosen] + ENTRY_HEADER_LEN..end
}
