//! Opening: the last checkpoint, and what the log and the onodes of the regions that were being written say since.
//!
//! Only regions that the log names are read. A copy that is newer than its region's bitmaps counts if its onode and data are
//! whole, the log does not end it, and no newer copy of the object counts.

use crate::disk::{Disk, UPKEEP};
use crate::format::{Batch, Entry, Extent, Head, MapEntry, Onode, Place, Record, Superblock};
use crate::layout::{Kind, Shape};
use crate::rules::Rule;
use crate::space::{Region, charge, mark};
use ashlar_block::{Kind as ErrorKind, Result};
use ashlar_objects::Name;
use ashlar_units::{Blocks, Lba};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Regions whose onodes were read.
    pub regions: Vec<u32>,
    /// Batches of the log.
    pub batches: u64,
    /// Copies that were found to count since the checkpoint.
    pub copies: u64,
    /// Copies that were not finished when the power failed.
    pub unfinished: u64,
    /// What is damaged, in words.
    pub damage: Vec<String>,
}

/// What the log says since the checkpoint.
#[derive(Default)]
pub struct Log {
    /// Where it ends.
    pub seq: u64,
    records: Vec<Record>,
    batches: u64,
    damage: Vec<String>,
}

/// What recovery hands to the store.
#[derive(Default)]
pub struct Redo {
    /// Objects that ended, in order: hash, name, and the number that ended all older copies.
    pub ended: Vec<(u128, Name, u64)>,
    /// Copies that count.
    pub copies: Vec<(u128, Name, Entry)>,
    /// Pages of the lookup table's extensible part.
    pub pages: Vec<Lba>,
    /// Copies that the bitmaps do not have any more.
    pub retired: BTreeSet<(Place, u64)>,
    /// Regions that changed since the checkpoint and whose bitmaps of then are lost.
    pub headless: Vec<u32>,
    /// The highest number seen.
    pub number: u64,
}

/// Reads the log from where the superblock says.
pub async fn read_log(disk: &Disk, superblock: &Superblock) -> Result<Log> {
    let mut log = Log { seq: superblock.log_start, ..Log::default() };
    let end = superblock.log_start + disk.layout.log_blocks;
    while log.seq < end {
        match read_batch(disk, log.seq, end).await? {
            Some((batch, blocks)) => {
                log.records.extend(batch.records);
                log.batches += 1;
                log.seq += blocks;
            }
            None => break,
        }
    }
    // Batches are written one at a time: one behind a gap shows that the gap is damage.
    for seq in log.seq + 1..end.min(log.seq + 64) {
        if let Some((batch, blocks)) = read_batch(disk, seq, end).await? {
            log.damage.push(format!("the log is damaged at block {}: deletions may be undone", log.seq));
            log.records.extend(batch.records);
            log.batches += 1;
            log.seq = seq + blocks;
            while let Some((batch, blocks)) = read_batch(disk, log.seq, end).await? {
                log.records.extend(batch.records);
                log.seq += blocks;
            }
            break;
        }
    }
    Ok(log)
}

async fn read_batch(disk: &Disk, seq: u64, end: u64) -> Result<Option<(Batch, u64)>> {
    let first = match disk.device.read(UPKEEP, disk.layout.log(seq), Blocks(1)).await {
        Ok(first) => first,
        Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(blocks) = Batch::blocks(disk.store, seq, &first).filter(|blocks| seq + blocks <= end) else {
        return Ok(None);
    };
    let mut image = first.to_vec();
    for block in seq + 1..seq + blocks {
        image.extend_from_slice(&disk.device.read(UPKEEP, disk.layout.log(block), Blocks(1)).await?);
    }
    Ok(Batch::decode(disk.key, disk.store, seq, &image).ok().map(|batch| (batch, blocks)))
}

/// Brings regions to where the log and the onodes say that they are.
pub async fn recover(
    disk: &Disk,
    regions: &mut [Region],
    log: Log,
    without: Option<Rule>,
) -> Result<(Redo, Recovered)> {
    let keeps = |rule| without != Some(rule);
    let mut redo = Redo::default();
    let mut report = Recovered { batches: log.batches, damage: log.damage, ..Recovered::default() };
    // The last kind that each region took, the copies that are retired, the compositions that count.
    let mut opened: BTreeMap<u32, (Kind, u64)> = BTreeMap::new();
    let mut retired: BTreeSet<(Place, u64)> = BTreeSet::new();
    let mut committed: BTreeSet<u64> = BTreeSet::new();
    let mut ended: BTreeMap<u128, u64> = BTreeMap::new();
    for record in log.records {
        match record {
            Record::Open { region, kind, birth } => {
                redo.number = redo.number.max(birth);
                opened.insert(region, (kind, birth));
            }
            Record::Retire { place, generation } => {
                retired.insert((place, generation));
            }
            Record::Delete { id, name, at, last } => {
                redo.number = redo.number.max(at);
                retired.extend(last);
                ended.insert(id, at);
                redo.ended.push((id, name, at));
            }
            Record::Commit { generation } => {
                committed.insert(generation);
            }
            Record::Page { at } => redo.pages.push(at),
        }
    }
    let mut by_region: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
    for (place, generation) in &retired {
        by_region.entry(place.region).or_default().push((place.slot, *generation));
    }

    // Copies of each object that count so far, newest last; and where all of them lie.
    let mut found: BTreeMap<u128, Vec<Onode>> = BTreeMap::new();
    for (number, (kind, birth)) in &opened {
        let Some(region) = regions.get_mut(*number as usize) else { continue };
        report.regions.push(*number);
        let shape = &disk.layout.shape_of(*number);
        let known = base_of(disk, *number, *kind, *birth, &region.entry).await;
        // Which blocks of nodes are taken nothing but a head says: without it all are, and no more go there.
        let is_lost = known.is_none() && *kind == Kind::Table;
        if known.is_none() {
            redo.headless.push(*number);
        }
        let (mut head, base) =
            known.unwrap_or_else(|| (empty_head(disk, *number, *kind, *birth), region.entry.generation));
        if is_lost {
            let all = Extent { block: 0, count: head.blocks.len() as u32 };
            mark(&mut head.blocks, &all, true);
        }
        region.entry =
            MapEntry { kind: *kind, birth: *birth, corrupt: region.entry.corrupt || is_lost, ..region.entry };
        if *kind == Kind::Table || *kind == Kind::Free {
            install(region, head, shape, Vec::new());
            continue;
        }
        let scan = Scan { disk, number: *number, kind: *kind, birth: *birth, base, head: &head, retired: &retired };
        for (onode, is_new) in scan.onodes(&mut report).await? {
            redo.number = redo.number.max(onode.generation);
            let is_retired = retired.contains(&(onode.place, onode.generation))
                || ended.get(&onode.id).is_some_and(|at| onode.generation < *at);
            let uncommitted = onode.provisional && is_new && !committed.contains(&onode.generation);
            if is_retired || uncommitted {
                continue;
            }
            if is_new && keeps(Rule::VerifyTail) && !scan.is_whole(&onode).await? {
                report.unfinished += 1;
                continue;
            }
            report.copies += u64::from(is_new);
            found.entry(onode.id).or_default().push(onode);
        }
        install(region, head, shape, Vec::new());
    }

    // The newest copy of each object counts.
    let mut live: BTreeMap<u32, Vec<Onode>> = BTreeMap::new();
    for (id, mut copies) in found {
        // A copy that was moved has a larger number than a change that came before it was moved and was written after.
        copies.sort_by_key(|onode| (onode.version, onode.generation));
        if !keeps(Rule::NewestWins) {
            copies.reverse();
        }
        let Some(newest) = copies.pop() else { continue };
        let entry = Entry { place: newest.place, generation: newest.generation, version: newest.version };
        redo.copies.push((id, newest.name.clone(), entry));
        live.entry(newest.place.region).or_default().push(newest);
    }
    redo.copies.sort_by_key(|(.., entry)| entry.generation);
    for number in opened.keys() {
        let Some(region) = regions.get_mut(*number as usize) else { continue };
        if matches!(region.entry.kind, Kind::Large | Kind::Small) {
            let shape = &disk.layout.shape_of(*number);
            let (slots, blocks) = shape.bits(region.entry.kind);
            let head = Head {
                slots: crate::bits::Bits::new(slots),
                blocks: crate::bits::Bits::new(blocks),
                ..empty_head(disk, *number, region.entry.kind, region.entry.birth)
            };
            install(region, head, shape, live.remove(number).unwrap_or_default());
        }
    }

    // Regions that only lost copies.
    for (number, copies) in by_region {
        let Some(region) = regions.get_mut(number as usize).filter(|_| !opened.contains_key(&number)) else {
            continue;
        };
        if !retire_in(disk, number, region, &copies).await? {
            redo.headless.push(number);
        }
    }
    let lost_head =
        |number: &u32| format!("region {number}: its bitmaps are lost; what it held is found by its onodes");
    report.damage.extend(redo.headless.iter().map(lost_head));
    redo.retired = retired;
    Ok((redo, report))
}

fn empty_head(disk: &Disk, region: u32, kind: Kind, birth: u64) -> Head {
    let (slots, blocks) = disk.layout.shape_of(region).bits(kind);
    let (slots, blocks) = (crate::bits::Bits::new(slots), crate::bits::Bits::new(blocks));
    Head { store: disk.store, region, kind, birth, generation: 0, commit: 0, slots, blocks }
}

/// The head that a region had at the checkpoint, and up to which number its bitmaps know copies; an empty one if it
/// took its kind since. `None` if it is damaged: whether an older copy counts is then for the lookup table to say, when it
/// knows all newer ones.
async fn base_of(disk: &Disk, number: u32, kind: Kind, birth: u64, entry: &MapEntry) -> Option<(Head, u64)> {
    if (entry.kind, entry.birth) != (kind, birth) {
        return Some((empty_head(disk, number, kind, birth), 0));
    }
    let head = disk.head(number, entry.head).await.ok()?;
    let generation = head.generation;
    (generation == entry.generation && head.birth == birth).then_some((head, generation))
}

/// Sets what a region holds.
pub fn install(region: &mut Region, mut head: Head, shape: &Shape, live: Vec<Onode>) {
    let (mut bytes, mut count) = (0, head.slots.count());
    for onode in &live {
        count += u64::from(!head.slots.set(onode.place.slot, true));
        onode.extents.iter().for_each(|extent| mark(&mut head.blocks, extent, true));
        bytes += charge(head.kind, onode.crcs.len() as u32, shape.large);
    }
    region.entry.live = count as u32;
    region.entry.hidden = live.iter().filter(|onode| onode.name.is_reserved()).count() as u32;
    region.entry.free_slots = (head.slots.len() - count) as u32;
    region.entry.free_blocks = (head.blocks.len() - head.blocks.count()) as u32;
    if head.kind != Kind::Table {
        region.entry.bytes = bytes;
    }
    region.state = Some(Box::new(crate::space::State::new(head.slots, head.blocks)));
    region.changed = true;
}

/// Takes retired copies out of the bitmaps of a region that was not written; false if these are lost, wholly or in part.
async fn retire_in(disk: &Disk, number: u32, region: &mut Region, copies: &[(u32, u64)]) -> Result<bool> {
    let entry = region.entry;
    if entry.kind == Kind::Free {
        return Ok(true);
    }
    let Some((mut head, _)) = base_of(disk, number, entry.kind, entry.birth, &entry).await else {
        return Ok(false);
    };
    let mut all_known = true;
    for (slot, generation) in copies {
        if !head.slots.set(*slot, false) {
            continue;
        }
        match disk.onode(UPKEEP, entry.kind, entry.birth, Place { region: number, slot: *slot }).await {
            Ok(onode) if onode.generation == *generation => {
                onode.extents.iter().for_each(|extent| mark(&mut head.blocks, extent, false));
                let charged = charge(entry.kind, onode.crcs.len() as u32, disk.layout.shape.large);
                region.entry.bytes = region.entry.bytes.saturating_sub(charged);
                let hidden = u32::from(onode.name.is_reserved());
                region.entry.hidden = region.entry.hidden.saturating_sub(hidden);
            }
            // It was reused since, in part perhaps: which blocks were its own only all the others tell.
            Ok(_) => all_known = false,
            Err(error) if error.kind() == ErrorKind::Corrupt => all_known = false,
            Err(error) => return Err(error),
        }
    }
    let (bytes, hidden) = (region.entry.bytes, region.entry.hidden);
    install(region, head, &disk.layout.shape_of(number), Vec::new());
    (region.entry.bytes, region.entry.hidden) = (bytes, hidden);
    Ok(all_known)
}

/// Reading the onodes of a region.
pub struct Scan<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    pub(crate) birth: u64,
    /// Copies up to this number count if the bitmaps have them.
    pub(crate) base: u64,
    pub(crate) head: &'a Head,
    /// Copies that do not count any more: their slots may have been written again.
    pub(crate) retired: &'a BTreeSet<(Place, u64)>,
}

/// Onodes that are read at once in a small region: 1 MiB.
const SCAN_BLOCKS: u64 = 256;

impl Scan<'_> {
    /// All onodes that may count, and whether each is newer than the bitmaps.
    pub async fn onodes(&self, report: &mut Recovered) -> Result<Vec<(Onode, bool)>> {
        let (slots, _) = self.disk.layout.shape_of(self.number).bits(self.kind);
        self.onodes_in(0..slots, report).await
    }

    /// Those in these slots.
    pub async fn onodes_in(&self, slots: Range<u64>, report: &mut Recovered) -> Result<Vec<(Onode, bool)>> {
        let step = if self.kind == Kind::Small { SCAN_BLOCKS } else { 1 };
        let mut onodes = Vec::new();
        for first in slots.clone().step_by(step as usize) {
            let count = step.min(slots.end - first);
            let at = self.disk.layout.onode(self.number, self.kind, first as u32);
            let images = match self.disk.read(UPKEEP, at, Blocks(count)).await {
                Ok(image) => image.chunks(4096).map(|image| Ok(image.to_vec())).collect::<Vec<_>>(),
                Err(_) => self.one_by_one(at, count).await,
            };
            for (slot, image) in (first as u32..).zip(images) {
                let place = Place { region: self.number, slot };
                let decoded =
                    image.and_then(|image| Onode::decode(self.disk.key, self.disk.store, place, self.birth, &image));
                let reused = self.retired.range((place, 0)..=(place, u64::MAX)).next().is_some();
                let known = self.head.slots.get(slot);
                match decoded {
                    Ok(onode) if onode.generation > self.base => onodes.push((onode, true)),
                    Ok(onode) if known => onodes.push((onode, false)),
                    Ok(_) => {}
                    // Of a slot that the bitmaps do not have, nothing was ever promised. One that they have may have been
                    // retired and written again when the power failed.
                    Err(_) if !known || reused => {}
                    Err(error) => report.damage.push(format!("slot {slot} of region {}: {error}", self.number)),
                }
            }
        }
        Ok(onodes)
    }

    async fn one_by_one(&self, at: Lba, count: u64) -> Vec<Result<Vec<u8>>> {
        let mut images = Vec::new();
        for block in 0..count {
            let image = self.disk.read(UPKEEP, Lba(at.0 + block), Blocks(1)).await;
            images.push(image.map(|image| image.to_vec()));
        }
        images
    }

    /// Whether the contents of a copy are those that its onode says.
    pub async fn is_whole(&self, onode: &Onode) -> Result<bool> {
        let mut next = onode.crcs.iter();
        for (at, count) in self.places(onode) {
            let read = self.disk.read(UPKEEP, at, Blocks(count)).await;
            let data = match read {
                Ok(data) => data,
                Err(error) if error.is_damage() => return Ok(false),
                Err(error) => return Err(error),
            };
            if data.chunks(4096).any(|block| next.next() != Some(&crate::format::crc(block))) {
                return Ok(false);
            }
        }
        Ok(next.next().is_none())
    }

    /// Where the payload of a copy lies.
    pub fn places(&self, onode: &Onode) -> Vec<(Lba, u64)> {
        let blocks = onode.crcs.len() as u64;
        if blocks == 0 {
            return Vec::new();
        }
        let layout = &self.disk.layout;
        if self.kind == Kind::Large {
            let at = layout.onode(self.number, self.kind, onode.place.slot);
            return if blocks <= layout.shape.large { vec![(Lba(at.0 - blocks), blocks)] } else { Vec::new() };
        }
        let room = layout.shape_of(self.number).bits(self.kind).1;
        let inside = |extent: &&crate::format::Extent| u64::from(extent.block) + u64::from(extent.count) <= room;
        let extents = onode.extents.iter().filter(inside);
        extents.map(|extent| (layout.data(self.number, self.kind, extent.block), u64::from(extent.count))).collect()
    }
}
