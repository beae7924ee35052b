//! Parity of index nodes: what a bad sector takes is computed from what lies beside it.
//!
//! A sector that cannot be read costs a block of data when it holds data; in a node with children, or in the catalog, it would cost
//! everything below. So a batch of nodes has an eighth more: P blocks, each the exclusive or of every P-th of the others. A burst of
//! up to P blocks, or whatever else takes no more than one block of each group, is computed again, and written back to where it was,
//! which is also how a disk learns to put a spare sector there. Behind the parity the lead stands once more, so that a burst may begin
//! with it. (Interleaved parity checks, IPC in Schroeder et al., "Understanding latent sector errors and how to protect against them",
//! FAST '10, where 90 to 98 % of bursts are of a single sector: table 1.)
//!
//! Who reads nodes does not read parity, and faults of the medium would gather there until it is needed. So a check looks at it, too.
//!
//! Invariants
//!  1. What is computed counts only if a checksum says that it is right: that in the pointer to the node, or that of all nodes of a batch
//!     in its lead.
//!  2. Only blocks of the node that was asked for, or of a batch that a check looks at, are written back, to a segment that has not
//!     emptied since readers of this epoch began.

use crate::Shared;
use crate::format::{INLINE_BODY_LEN, LEAD_LEN, Lead, crc};
use crate::space::cover;
use ashlar_block::{Durability, IoContext};
use ashlar_env::ring::AlignedBuf;
use ashlar_index::NodePtr;
use ashlar_units::BLOCK_LEN;
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::Ordering;

const MEND: IoContext = IoContext::foreground("pool-parity");
/// A batch has a block of parity for so many others.
const SHARE: u32 = 8;
/// Unless there are fewer others, at least so many: what hits the edge of two blocks hits both.
const LEAST: u32 = 2;
/// Blocks that are looked through at once for a lead.
const WINDOW: u32 = 64;
/// Bytes that are compared with a checksum before giving up: some tenths of a second of work.
const TRIED_MAX: usize = 1 << 30;

/// Blocks of parity for so many others.
pub(crate) fn parity_blocks(blocks: u32) -> u32 {
    blocks.div_ceil(SHARE).max(LEAST).min(blocks)
}

/// The parity of blocks, in `count` blocks.
pub(crate) fn parity<'a>(blocks: impl Iterator<Item = &'a [u8]>, count: u32) -> Bytes {
    let len = count as usize * BLOCK_LEN;
    let mut buffer = AlignedBuf::any(len);
    let sums = buffer.as_mut();
    sums.fill(0);
    for (index, block) in blocks.enumerate() {
        let at = index % count as usize * BLOCK_LEN;
        add(&mut sums[at..at + BLOCK_LEN], block);
    }
    buffer.freeze(len)
}

fn add(sum: &mut [u8], block: &[u8]) {
    sum.iter_mut().zip(block).for_each(|(sum, byte)| *sum ^= byte);
}

/// What the medium has of a batch. `None`: it cannot be read.
struct Remains<'a> {
    blocks: &'a [Option<Bytes>],
    parity: &'a [Option<Bytes>],
}

impl Remains<'_> {
    /// What a block was, by all others of its group.
    fn computed(&self, index: usize) -> Option<Vec<u8>> {
        let group = index % self.parity.len();
        let mut sum = self.parity[group].as_ref()?.to_vec();
        for other in (group..self.blocks.len()).step_by(self.parity.len()).filter(|other| *other != index) {
            add(&mut sum, self.blocks[other].as_ref()?);
        }
        Some(sum)
    }

    /// Blocks in the range `node` that must be others so that all of them together are right: which, and what they were.
    fn mend(&self, node: Range<usize>, is_right: impl Fn(&[u8]) -> bool) -> Option<Vec<(usize, Bytes)>> {
        let mut whole = Vec::with_capacity(node.len() * BLOCK_LEN);
        let mut mended = Vec::new();
        for index in node.clone() {
            match &self.blocks[index] {
                Some(block) => whole.extend_from_slice(block),
                None => {
                    let block = self.computed(index)?;
                    whole.extend_from_slice(&block);
                    mended.push((index, block.into()));
                }
            }
        }
        if is_right(&whole) {
            return Some(mended);
        }
        // Which blocks are wrong, no device says: some in groups that do not add up, and those of a burst lie together.
        let suspect = |index: usize| {
            let block = self.blocks[index].as_ref()?;
            let computed = self.computed(index).filter(|computed| computed != block)?;
            Some((index, Bytes::from(computed)))
        };
        let suspects: Vec<(usize, Bytes)> = node.clone().filter_map(suspect).collect();
        let mut tried = 0;
        for count in 1..=suspects.len().min(self.parity.len()) {
            let bursts = suspects.windows(count).filter(|burst| burst[count - 1].0 - burst[0].0 < self.parity.len());
            for burst in bursts {
                tried += whole.len();
                if tried > TRIED_MAX {
                    return None;
                }
                let mut patched = whole.clone();
                for (index, block) in burst {
                    let at = (index - node.start) * BLOCK_LEN;
                    patched[at..at + BLOCK_LEN].copy_from_slice(block);
                }
                if is_right(&patched) {
                    mended.extend_from_slice(burst);
                    return Some(mended);
                }
            }
        }
        None
    }
}

/// What came of looking at parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parity {
    pub(crate) bytes: u64,
    /// Batches of which something was written anew.
    pub(crate) mended: u64,
    /// Batches of which more is damaged than can be computed. Nodes that are needed were right when they were read.
    pub(crate) lost: u64,
}

/// Whether a block is this lead, with its body if that is there, too.
fn is_lead(lead: &Lead, block: &[u8]) -> bool {
    let body = LEAD_LEN..LEAD_LEN + lead.body_len as usize;
    Lead::decode(block).as_ref() == Some(lead)
        && (lead.body_len as usize > INLINE_BODY_LEN || block.get(body).is_some_and(|body| crc(body) == lead.body_crc))
}

impl Shared {
    /// The image of a node that cannot be read or is not what it was, from the parity of its batch. The medium gets it back.
    pub(crate) async fn recover(&self, ptr: &NodePtr) -> Option<Bytes> {
        if ptr.len == 0 || !self.layout.holds(ptr.uid, ptr.offset, ptr.len) {
            return None;
        }
        // While this is held, a segment that has not emptied is not used again.
        let _pin = self.pin();
        if !self.space.is_live(ptr.uid) {
            return None;
        }
        let (first, count, skip) = cover(ptr.offset, ptr.len);
        let node = first..first + count.0 as u32;
        let lead = self.batch_of(ptr.uid, &node).await?;
        let (parity, payload) = (lead.parity.filter(|blocks| *blocks > 0)?, lead.payload());
        let mut blocks = self.each_block(lead.uid, payload.start, lead.payload_blocks).await;
        let sums = self.each_block(lead.uid, lead.parity_at(), parity).await;
        let within = (node.start - payload.start) as usize..(node.end - payload.start) as usize;
        let image = skip..skip + ptr.len as usize;
        let remains = Remains { blocks: &blocks, parity: &sums };
        let mended = remains.mend(within.clone(), |whole| crc(&whole[image.clone()]) == ptr.crc)?;
        for (index, block) in mended {
            self.write_back(ptr.uid, payload.start + index as u32, &block).await;
            blocks[index] = Some(block);
        }
        self.counted.recovered.fetch_add(1, Ordering::Relaxed);
        let whole: Vec<u8> = blocks[within].iter().flatten().flat_map(|block| block.iter().copied()).collect();
        Some(Bytes::from(whole).slice(image))
    }

    /// Looks at the batches in which nodes of a segment lie that a checkpoint needs, `offsets` in ascending order: whether parity and both
    /// leads are what they were. What is not is written anew.
    pub(crate) async fn verify_parity(&self, uid: u64, offsets: &[u32]) -> Parity {
        let mut verified = Parity::default();
        // While this is held, a segment that has not emptied is not used again.
        let _pin = self.pin();
        if !self.space.is_live(uid) {
            return verified;
        }
        let (mut end, mut unknown) = (0, false);
        for offset in offsets {
            let block = offset / BLOCK_LEN as u32;
            if block < end {
                continue;
            }
            let Some(lead) = self.batch_of(uid, &(block..block + 1)).await else {
                // Both leads are lost, and it is not known where it ends.
                verified.lost += u64::from(!unknown);
                unknown = true;
                continue;
            };
            (end, unknown) = (lead.at + lead.blocks(), false);
            verified.bytes += u64::from(lead.blocks()) * BLOCK_LEN as u64;
            match self.verify_batch(&lead).await {
                Some(0) => {}
                Some(_) => verified.mended += 1,
                None => verified.lost += 1,
            }
        }
        verified
    }

    /// How many blocks of a batch were not what they were, and are again; `None`: what they were is not known any more.
    async fn verify_batch(&self, lead: &Lead) -> Option<usize> {
        let (Some(count), Some(copy_at)) = (lead.parity.filter(|blocks| *blocks > 0), lead.copy_at()) else {
            return Some(0);
        };
        let payload = lead.payload();
        let mut blocks = self.each_block(lead.uid, payload.start, lead.payload_blocks).await;
        let sums = self.each_block(lead.uid, lead.parity_at(), count).await;
        let is_right = |whole: &[u8]| crc(whole) == lead.payload_crc;
        let remains = Remains { blocks: &blocks, parity: &sums };
        let mut anew = Vec::new();
        for (index, block) in remains.mend(0..blocks.len(), is_right)? {
            blocks[index] = Some(block.clone());
            anew.push((payload.start + index as u32, block));
        }
        let right = parity(blocks.iter().flatten().map(|block| &block[..]), count);
        for (index, sum) in sums.iter().enumerate() {
            let block = right.slice(index * BLOCK_LEN..(index + 1) * BLOCK_LEN);
            if sum.as_ref() != Some(&block) {
                anew.push((lead.parity_at() + index as u32, block));
            }
        }
        let leads = [lead.at, copy_at].map(async |at| {
            let block = self.each_block(lead.uid, at, 1).await.pop().flatten()?;
            is_lead(lead, &block).then_some(block)
        });
        let [first, last] = leads;
        match (first.await, last.await) {
            (Some(first), None) => anew.push((copy_at, first)),
            (None, Some(last)) => anew.push((lead.at, last)),
            (Some(_), Some(_)) => {}
            (None, None) => return None,
        }
        for (at, block) in &anew {
            self.write_back(lead.uid, *at, block).await;
        }
        Some(anew.len())
    }

    /// What is computed is as good if the device does not take it: whoever reads it next computes it again.
    async fn write_back(&self, uid: u64, block: u32, image: &[u8]) {
        if self.admit().is_err() {
            return;
        }
        let mut buffer = AlignedBuf::any(BLOCK_LEN);
        buffer.as_mut().copy_from_slice(image);
        let (place, address) = self.layout.locate(uid, block);
        let _writing = place.gate.write(&self.env, address.0, BLOCK_LEN as u64).await;
        let image = vec![buffer.freeze(BLOCK_LEN)];
        if place.device.write(MEND, address, image, Durability::Cached).await.is_ok() {
            place.dirty.store(true, Ordering::Release);
        }
    }

    /// The lead of the batch that blocks of a segment belong to: before them, or the one that stands at the end of it.
    async fn batch_of(&self, uid: u64, blocks: &Range<u32>) -> Option<Lead> {
        let holds = |lead: &Lead| lead.payload().contains(&blocks.start) && lead.payload().contains(&(blocks.end - 1));
        let mut end = blocks.start;
        while end > 0 {
            let from = end.saturating_sub(WINDOW);
            let window = self.each_block(uid, from, end - from).await;
            let leads = (from..end).zip(&window).rev();
            match leads.filter_map(|(at, block)| self.lead_of(uid, at, block.as_ref()?)).next() {
                Some(lead) if holds(&lead) => return Some(lead),
                Some(_) => break,
                None => end = from,
            }
        }
        let (mut at, end) = (blocks.end, self.layout.segment.0 as u32);
        while at < end {
            let count = WINDOW.min(end - at);
            for (at, block) in (at..at + count).zip(self.each_block(uid, at, count).await) {
                let Some(block) = block else { continue };
                match self.copied_lead(uid, at, &block) {
                    Some(lead) if holds(&lead) => return Some(lead),
                    None if self.lead_of(uid, at, &block).is_none() => {}
                    _ => return None,
                }
            }
            at += count;
        }
        None
    }

    /// Blocks of a segment, each by itself where not all of them can be read.
    async fn each_block(&self, uid: u64, at: u32, count: u32) -> Vec<Option<Bytes>> {
        let fetch =
            async |at: u32, count: u32| self.fetch(uid, at * BLOCK_LEN as u32, count * BLOCK_LEN as u32).await.ok();
        if let Some(whole) = fetch(at, count).await {
            return (0..count as usize)
                .map(|index| Some(whole.slice(index * BLOCK_LEN..(index + 1) * BLOCK_LEN)))
                .collect();
        }
        let mut blocks = Vec::with_capacity(count as usize);
        for block in at..at + count {
            blocks.push(fetch(block, 1).await);
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_fuzz::{config, incompressible};
    use proptest::prelude::*;

    /// So many blocks, and their parity.
    fn batch(seed: u64, count: usize) -> [Vec<Option<Bytes>>; 2] {
        let image = Bytes::from(incompressible(seed, count * BLOCK_LEN));
        let sums = parity(image.chunks(BLOCK_LEN), parity_blocks(count as u32));
        let blocks = |bytes: Bytes| {
            (0..bytes.len() / BLOCK_LEN).map(|at| Some(bytes.slice(at * BLOCK_LEN..(at + 1) * BLOCK_LEN))).collect()
        };
        [blocks(image), blocks(sums)]
    }

    fn concat(blocks: &[Option<Bytes>]) -> Vec<u8> {
        blocks.iter().flatten().flat_map(|block| block.iter().copied()).collect()
    }

    /// What mending a node gives, of a batch of which it was `original`.
    fn mended([blocks, parity]: &[Vec<Option<Bytes>>; 2], node: Range<usize>, original: &[u8]) -> Option<Vec<u8>> {
        let mended = Remains { blocks, parity }.mend(node.clone(), |found| crc(found) == crc(original))?;
        let mut blocks = blocks[node.clone()].to_vec();
        mended.into_iter().for_each(|(index, block)| blocks[index - node.start] = Some(block));
        Some(concat(&blocks))
    }

    #[test]
    fn parity_is_an_eighth_and_at_least_two_blocks() {
        assert_eq!([1, 2, 3, 16, 17, 256].map(parity_blocks), [1, 2, 2, 2, 3, 32]);
    }

    proptest! {
        #![proptest_config(config(200))]
        /// A burst of as many blocks as there is parity, wherever it lies: on the node, on others beside it, on parity itself; told by
        /// the device, or not.
        #[test]
        fn a_burst_takes_nothing(
            seed in any::<u64>(),
            count in 1usize..120,
            [low, high, at, len] in any::<[prop::sample::Index; 4]>(),
            told in any::<bool>(),
        ) {
            let mut batch = batch(seed, count);
            let low = low.index(count);
            let node = low..low + 1 + high.index(count - low);
            let original = concat(&batch[0][node.clone()]);
            let all = count + batch[1].len();
            let len = 1 + len.index(batch[1].len());
            let start = at.index(all - len + 1);
            for index in start..start + len {
                let block = match index.checked_sub(count) {
                    None => &mut batch[0][index],
                    Some(index) => &mut batch[1][index],
                };
                let garbage = Bytes::from(incompressible(seed ^ index as u64 ^ 1, BLOCK_LEN));
                *block = (!told).then_some(garbage);
            }
            // Where a burst takes blocks and parity of one group, nothing can be computed.
            let groups: Vec<usize> = (start..start + len)
                .map(|index| index.checked_sub(count).unwrap_or(index % batch[1].len()))
                .collect();
            let twice = groups.iter().any(|group| groups.iter().filter(|other| *other == group).count() > 1);
            match mended(&batch, node, &original) {
                Some(found) => prop_assert!(found == original),
                None => prop_assert!(twice),
            }
        }

        /// Whatever is damaged, and however much: what comes out is right, or nothing.
        #[test]
        fn nothing_wrong_comes_out(
            seed in any::<u64>(),
            count in 1usize..60,
            [low, high] in any::<[prop::sample::Index; 2]>(),
            hits in prop::collection::vec((any::<prop::sample::Index>(), any::<Option<u16>>()), 0..12),
        ) {
            let mut batch = batch(seed, count);
            let low = low.index(count);
            let node = low..low + 1 + high.index(count - low);
            let original = concat(&batch[0][node.clone()]);
            for (at, flip) in &hits {
                let index = at.index(count);
                let mut block = batch[0][index].take();
                if let (Some(bytes), Some(flip)) = (&mut block, flip) {
                    let mut changed = bytes.to_vec();
                    changed[*flip as usize % BLOCK_LEN] ^= 1;
                    batch[0][index] = Some(changed.into());
                }
            }
            if let Some(found) = mended(&batch, node, &original) {
                prop_assert!(found == original);
            }
        }
    }
}
