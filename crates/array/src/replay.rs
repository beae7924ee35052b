//! After a crash: entries of the journal that all members in use have are done again.

use crate::array::{Options, Seat};
use crate::format::{PartHead, Superblock, groups_at};
use crate::member::{Member, runs};
use crate::rules::Rule;
use ashlar_block::{Durability, IoContext, Result};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use std::collections::BTreeMap;

const CONTEXT: IoContext = IoContext::foreground("array replay");
/// Blocks of the journal that are read at once.
const CHUNK: u64 = 256;

/// Parts of an entry, by slot: where they lie, and their heads.
type Parts = BTreeMap<usize, (Lba, PartHead)>;

/// Replays the journal and makes it durable; gives the number of entries replayed.
pub(crate) async fn replay(superblock: &Superblock, seats: &[Seat], options: &Options) -> Result<u64> {
    let mut released = 0;
    let mut entries: BTreeMap<u64, Parts> = BTreeMap::new();
    let members = || seats.iter().enumerate().filter_map(|(slot, seat)| Some((slot, seat.member.as_ref()?)));
    for (slot, member) in members() {
        for (at, head) in heads(superblock, slot, member).await {
            released = released.max(head.released);
            if !head.targets.is_empty() {
                entries.entry(head.sequence).or_default().insert(slot, (at, head));
            }
        }
    }
    let in_use = members().fold(0u32, |bits, (slot, _)| bits | 1 << slot);
    let mut replayed = 0;
    for (_, parts) in entries.range(released + 1..) {
        let mut payloads = BTreeMap::new();
        for (slot, (at, head)) in parts {
            if let Some(member) = &seats[*slot].member
                && let Some(payload) = payload(superblock, &seats[*slot], member, *at, head).await
            {
                payloads.insert(*slot, payload);
            }
        }
        let needed = parts.values().fold(0, |bits, (_, head)| bits | head.participants) & in_use;
        let have = payloads.keys().fold(0, |bits, slot| bits | 1u32 << slot);
        // Nothing was written in place before all parts were durable: what is not whole never began.
        if needed & !have != 0 && options.without != Some(Rule::WholeEntries) {
            continue;
        }
        for (slot, payload) in payloads {
            let (Some(member), Some((_, head))) = (&seats[slot].member, parts.get(&slot)) else { continue };
            let blocks = (0..head.targets.len()).map(|index| payload.slice(index * BLOCK_LEN..(index + 1) * BLOCK_LEN));
            for (at, pieces) in runs(head.targets.iter().copied().zip(blocks)) {
                member.device().write(CONTEXT, at, pieces, Durability::Cached).await?;
            }
        }
        replayed += 1;
    }
    if options.without != Some(Rule::ReplayBeforeSuperblock) {
        for (_, member) in members() {
            member.device().flush(CONTEXT).await?;
        }
    }
    Ok(replayed)
}

/// The heads of parts on a member, as far as its journal can be read.
async fn heads(superblock: &Superblock, slot: usize, member: &Member) -> Vec<(Lba, PartHead)> {
    let mut heads = Vec::new();
    let (mut at, end) = (Lba(2), groups_at(superblock.journal));
    while at < end {
        let count = (end.0 - at.0).min(CHUNK);
        let chunk = match member.device().read(CONTEXT, at, Blocks(count)).await {
            Ok(chunk) => chunk,
            Err(_) => {
                // Bad sectors: whatever can be read around them.
                let mut chunk = Vec::with_capacity(count as usize * BLOCK_LEN);
                for block in (at.0..).take(count as usize).map(Lba) {
                    let read = member.device().read(CONTEXT, block, Blocks(1)).await;
                    chunk.extend_from_slice(&read.unwrap_or_else(|_| crate::row::zeros()));
                }
                chunk.into()
            }
        };
        for (block, at) in chunk.chunks(BLOCK_LEN).zip(at.0..) {
            let head = PartHead::decode(block, superblock.array, superblock.salt, slot);
            heads.extend(head.map(|head| (Lba(at), head)));
        }
        at += Blocks(count);
    }
    heads
}

/// What a part's member is to write, if it is whole.
async fn payload(superblock: &Superblock, seat: &Seat, member: &Member, at: Lba, head: &PartHead) -> Option<Bytes> {
    let count = head.targets.len() as u64;
    let groups = groups_at(superblock.journal).0..groups_at(superblock.journal).0 + seat.listed.groups * 64;
    let fits = at.0 + 1 + count <= groups.start && head.targets.iter().all(|target| groups.contains(&target.0));
    if !fits {
        return None;
    }
    let payload = member.device().read(CONTEXT, at + Blocks(1), Blocks(count)).await.ok()?;
    (crate::format::checksum(&payload) == head.payload).then_some(payload)
}
