//! Anatomy: what each byte of a pool's devices is. For explorations that damage one kind after another.
//!
//! It is what the pool itself would do to find its way: superblocks by their ring, trees from their roots, segments batch
//! by batch. What a segment in use holds and nobody refers to is dead.

use crate::assemble::newest_superblock;
use crate::format::{RING_SLOTS, SEGMENTS_AT, SUPERBLOCK_BLOCKS, Stream, VolumeKind, decode_body, superblock_slots};
use crate::map::{Form, MAP_PREFIX};
use crate::scan::Scanner;
use crate::space::State;
use crate::{CATALOG, Pool};
use ashlar_block::Result;
use ashlar_index::{Node, NodePtr, NodeStore};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use std::collections::BTreeMap;

/// Behind the last chunk of a volume.
const BLOCKS_END: Blocks = Blocks(u64::MAX - 31);
const BLOCK: u64 = BLOCK_LEN as u64;

/// What an index node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// Other nodes, and messages for them.
    Nodes,
    /// Records of segments and volumes.
    Catalog,
    /// Chunks of the block map.
    Map,
    /// Keys of a dictionary: names, inodes, attributes.
    Dictionary,
    /// Chunks and keys.
    Both,
}

/// What a stretch of a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A copy of the superblock of this generation.
    Superblock {
        /// Which checkpoint wrote it.
        generation: u64,
        /// Whether it is the newest.
        newest: bool,
    },
    /// The first block of a batch: its header, and its body if that is short.
    Lead {
        /// What the batch was written for.
        stream: Stream,
        /// Whether recovery reads it.
        replayed: bool,
    },
    /// The body of a batch: what its payload is, and the operations of the log.
    Records {
        /// What the batch was written for.
        stream: Stream,
        /// Whether recovery reads it.
        replayed: bool,
    },
    /// Parity of index nodes, and the lead of the batch once more.
    Parity {
        /// Whether anybody refers to one of those nodes.
        needed: bool,
    },
    /// An index node.
    Node {
        /// Whether it belongs to the catalog.
        catalog: bool,
        /// What it holds.
        holds: Holds,
    },
    /// Data.
    Extent {
        /// How it is stored.
        form: Form,
        /// References to it, from volumes and snapshots.
        references: u32,
        /// Whether snapshots alone refer to it.
        frozen: bool,
    },
    /// Written, and nothing refers to it.
    Dead,
    /// Never written, or free again.
    Free,
}

/// A stretch of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Region {
    /// Which device of the pool.
    pub device: usize,
    /// First byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// What it is.
    pub part: Part,
}

/// What is referred to, by birth address.
type Referred = BTreeMap<(u64, u32), (u64, Part)>;

impl Pool {
    /// What each byte of the devices is, in order. What is not yet written is not there; the pool should be at rest.
    pub async fn anatomy(&self) -> Result<Vec<Region>> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        let mut regions = Vec::new();
        let mut replay_from = u64::MAX;
        for (device, place) in shared.layout.places().enumerate() {
            let Some(newest) = newest_superblock(&place.device).await? else { continue };
            replay_from = newest.log.seq;
            for generation in newest.generation.saturating_sub(RING_SLOTS - 1)..=newest.generation {
                for slot in superblock_slots(place.record.capacity, generation) {
                    let part = Part::Superblock { generation, newest: generation == newest.generation };
                    let len = Blocks(SUPERBLOCK_BLOCKS).to_bytes().0;
                    regions.push(Region { device, at: slot.to_bytes().0, len, part });
                }
            }
            let unused = Lba(2 * RING_SLOTS).to_bytes().0;
            regions.push(Region { device, at: unused, len: SEGMENTS_AT.to_bytes().0 - unused, part: Part::Free });
        }
        let mut referred = Referred::new();
        self.refer_nodes(&mut referred).await?;
        self.refer_extents(&mut referred).await?;
        for (slot, state) in shared.space.slots().iter().enumerate() {
            let uid = if state.state == State::Free { slot as u64 } else { state.uid };
            self.segment(uid, state.state == State::Free, replay_from, &referred, &mut regions).await?;
        }
        regions.sort_unstable();
        Ok(regions)
    }

    async fn refer_nodes(&self, referred: &mut Referred) -> Result<()> {
        let shared = &self.0;
        let mut roots = vec![(CATALOG, shared.catalog.root())];
        roots.extend(shared.volumes.read().iter().map(|(id, volume)| (*id, volume.tree.root())));
        for (tree, root) in roots {
            let mut pending: Vec<NodePtr> = root.into_iter().collect();
            while let Some(ptr) = pending.pop() {
                let node = self.load(ptr).await?;
                let part = Part::Node { catalog: tree == CATALOG, holds: holds(&node, tree) };
                if referred.insert((ptr.uid, ptr.offset), (u64::from(ptr.len), part)).is_none() {
                    pending.extend(node.pointers());
                }
            }
        }
        Ok(())
    }

    async fn refer_extents(&self, referred: &mut Referred) -> Result<()> {
        for info in self.volumes() {
            let Some(volume) = self.volume(&info.name) else { continue };
            let snapshot = matches!(info.kind, VolumeKind::Snapshot { .. });
            for (_, run) in volume.runs(Lba(0), BLOCKS_END).await? {
                let new = (u64::from(run.stored), Part::Extent { form: run.form, references: 0, frozen: true });
                let known = referred.entry((run.uid, run.offset)).or_insert(new);
                if let (_, Part::Extent { references, frozen, .. }) = known {
                    *references += 1;
                    *frozen &= snapshot;
                }
            }
        }
        Ok(())
    }

    /// The regions of one segment.
    async fn segment(
        &self,
        uid: u64,
        free: bool,
        replay_from: u64,
        referred: &Referred,
        regions: &mut Vec<Region>,
    ) -> Result<()> {
        let shared = &self.0;
        let (place, start) = shared.layout.locate(uid, 0);
        let device = shared.layout.places().position(|other| std::ptr::eq(other, place)).unwrap_or(0);
        let base = start.to_bytes().0;
        let mut push = |from: u64, to: u64, part: Part| {
            if from < to {
                regions.push(Region { device, at: base + from, len: to - from, part });
            }
        };
        let mut scanner = Scanner::new(shared);
        let mut at = 0u32;
        while let Some(lead) = if free { None } else { scanner.lead(uid, at).await? } {
            let replayed = lead.stream == Stream::Log && lead.seq >= replay_from;
            let payload = (u64::from(at) + 1) * BLOCK;
            let tail = payload + u64::from(lead.payload_blocks) * BLOCK;
            push(payload - BLOCK, payload, Part::Lead { stream: lead.stream, replayed });
            let (mut next, mut needed) = (payload, false);
            if let Some(body) = scanner.body(&lead).await? {
                for item in decode_body(&lead, &body)?.0 {
                    push(next, u64::from(item.offset), Part::Dead);
                    next = u64::from(item.offset) + u64::from(item.len);
                    let known = referred.get(&(uid, item.offset));
                    needed |= known.is_some();
                    let (len, part) = known.copied().unwrap_or((u64::from(item.len), Part::Dead));
                    push(u64::from(item.offset), u64::from(item.offset) + len.min(u64::from(item.len)), part);
                }
            }
            push(next, tail, Part::Dead);
            at += lead.blocks();
            let parity = tail + u64::from(lead.tail_blocks()) * BLOCK;
            push(tail, parity, Part::Records { stream: lead.stream, replayed });
            push(parity, u64::from(at) * BLOCK, Part::Parity { needed });
        }
        push(u64::from(at) * BLOCK, shared.layout.segment_bytes(), Part::Free);
        Ok(())
    }
}

fn holds(node: &Node, tree: u64) -> Holds {
    if node.level() > 0 || node.is_run() {
        return Holds::Nodes;
    }
    if tree == CATALOG {
        return Holds::Catalog;
    }
    let maps = node.messages().filter(|(key, _)| key.first() == Some(&MAP_PREFIX)).count();
    match maps {
        0 => Holds::Dictionary,
        _ if maps == node.messages().count() => Holds::Map,
        _ => Holds::Both,
    }
}
