//! Superblocks on devices, and which devices are a pool.
//!
//! A device that became larger while it belongs to a pool has *parts*: the first begins at its first block, each other behind the one
//! before it, and each looks like a device of its own. Where a part ends, its superblock says.

use crate::format::{
    DeviceRecord, RING_SLOTS, SEGMENTS_MAX, SUPERBLOCK_BLOCKS, SUPERBLOCKS, Superblock, segments_on, superblock_slots,
};
use crate::space::RESERVE_MIN;
use ashlar_block::{Device, Durability, Error, IoContext, Kind, Result, ResultExt};
use ashlar_devices::Part;
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const OPEN: IoContext = IoContext::foreground("pool-open");
/// A ring of superblocks.
const RING: Blocks = Blocks(RING_SLOTS * SUPERBLOCK_BLOCKS);
/// A pool needs its reserve and as much again.
const SEGMENTS_MIN: u64 = 2 * RESERVE_MIN as u64;

/// What a pool has of a device: all of it, or one of its parts.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) device: Device,
    /// The device, and where on it this begins.
    pub(crate) whole: Device,
    pub(crate) from: Lba,
    /// The number of the device, if this is not its first part.
    pub(crate) part_of: Option<u32>,
}

impl Member {
    /// A device, which may become larger.
    pub(crate) fn whole(device: Device) -> Member {
        Member { whole: device.clone(), device, from: Lba(0), part_of: None }
    }
    /// So many blocks behind what a pool has of its device of this number already.
    pub(crate) fn part(part_of: u32, whole: Device, from: Lba, count: Blocks) -> Member {
        Member { device: Arc::new(Part::new(whole.clone(), from, count)), whole, from, part_of: Some(part_of) }
    }
}

/// What a device, or a part of one, has at least.
pub(crate) fn least_device(segment: Blocks) -> Blocks {
    Blocks(SUPERBLOCKS.0 + SEGMENTS_MIN * segment.0)
}

/// A device that is too small or too large for segments of this size is an error.
pub(crate) fn require_room(device: &Device, segment: Blocks) -> Result<()> {
    let capacity = device.geometry().capacity;
    if segments_on(capacity, segment) > SEGMENTS_MAX {
        let message = format!(
            "{}: segments of {} are too small for {}: a device has at most {SEGMENTS_MAX} of them; make them larger, or split the device",
            device.name(),
            segment.to_bytes(),
            capacity.to_bytes()
        );
        return Err(Error::misuse(message));
    }
    if segments_on(capacity, segment) >= SEGMENTS_MIN {
        return Ok(());
    }
    let message = format!(
        "{}: {} is too small: a pool with segments of {} needs at least {} on each device",
        device.name(),
        capacity.to_bytes(),
        segment.to_bytes(),
        least_device(segment).to_bytes()
    );
    Err(Error::misuse(message))
}

/// Writes a superblock over whatever a device held.
pub(crate) async fn write_first_superblock(device: &Device, superblock: &Superblock) -> Result<()> {
    let capacity = superblock.devices[superblock.device as usize].capacity;
    let blank = Bytes::from(vec![0; RING.to_bytes().0 as usize]);
    for at in superblock_slots(capacity, 0) {
        device.write(OPEN, at, vec![blank.clone()], Durability::Cached).await?;
    }
    device.flush(OPEN).await?;
    for at in superblock_slots(capacity, superblock.generation) {
        device.write(OPEN, at, vec![superblock.encode()], Durability::Cached).await?;
    }
    device.flush(OPEN).await
}

/// The slots of a ring. A bad sector takes its slot with it, not the ring: there is a copy in the other one.
async fn read_ring(device: &Device, at: Lba) -> Vec<Result<Bytes>> {
    let slot = Blocks(SUPERBLOCK_BLOCKS);
    if let Ok(ring) = device.read(OPEN, at, RING).await {
        let len = slot.to_bytes().0 as usize;
        return (0..RING_SLOTS as usize).map(|index| Ok(ring.slice(index * len..(index + 1) * len))).collect();
    }
    let mut slots = Vec::new();
    for index in 0..RING_SLOTS {
        slots.push(device.read(OPEN, at + Blocks(index * slot.0), slot).await);
    }
    slots
}

/// What was found where superblocks may be.
#[derive(Default)]
struct Search {
    newest: Option<Superblock>,
    /// There was one that is damaged, or what is there could not be read.
    traces: bool,
    unreadable: Option<Error>,
}

impl Search {
    /// Looks into a ring, if the device has room for it there.
    async fn look(&mut self, device: &Device, at: Option<u64>) -> Result<()> {
        let room = Lba(device.geometry().capacity.0);
        let Some(at) = at.map(Lba).filter(|at| *at + RING <= room) else { return Ok(()) };
        for slot in read_ring(device, at).await {
            let slot = match slot {
                Ok(slot) => slot,
                Err(error) => {
                    self.unreadable = Some(error);
                    continue;
                }
            };
            self.traces |= Superblock::is_trace(&slot);
            let found = Superblock::decode(&slot).within(|| device.name())?;
            if let Some(found) = found
                && self.newest.as_ref().is_none_or(|newest| found.generation > newest.generation)
            {
                self.newest = Some(found);
            }
        }
        Ok(())
    }

    /// Looks for the second ring of a device on which the first one tells nothing. It is where the device ends; or that is the end of
    /// a later part, which knows how large all are.
    async fn look_behind(&mut self, device: &Device) -> Result<()> {
        let capacity = device.geometry().capacity;
        self.look(device, back_of(capacity)).await?;
        let Some(last) = self.newest.take_if(|found| found.record().capacity != capacity) else { return Ok(()) };
        for (index, record) in (0..).zip(&last.devices) {
            let mut first = Search::default();
            first.look(device, back_of(record.capacity)).await?;
            if let Some(found) = first.newest
                && (found.pool, found.device) == (last.pool, index)
            {
                self.newest = Some(found);
                break;
            }
        }
        Ok(())
    }
}

/// Where the second ring is of a device, or a part of one, that is so large.
fn back_of(capacity: Blocks) -> Option<u64> {
    capacity.0.checked_sub(RING.0)
}

/// The newest superblock of what begins with a device: of all of it, or of its first part, if it became larger since.
pub(crate) async fn newest_superblock(device: &Device) -> Result<Option<Superblock>> {
    let mut search = Search::default();
    search.look(device, Some(0)).await?;
    match &search.newest {
        Some(front) => {
            let back = back_of(front.record().capacity);
            search.look(device, back).await?;
        }
        None => search.look_behind(device).await?,
    }
    if let (None, Some(error)) = (&search.newest, search.unreadable) {
        return Err(error.within(format!("{}: no superblock is readable", device.name())));
    }
    if search.newest.is_none() && search.traces {
        let message = format!(
            "{}: holds a pool of which no superblock is readable: the device is damaged; restore its contents, or make a \
             new pool with --force (its data is lost)",
            device.name()
        );
        return Err(Error::corrupt(message));
    }
    Ok(search.newest)
}

/// Refuses a device that is smaller than the pool knows it.
fn refuse_short(device: &Device, record: &DeviceRecord) -> Result<()> {
    let capacity = device.geometry().capacity;
    if capacity >= record.capacity {
        return Ok(());
    }
    let message = format!(
        "{}: is cut short: it had {} ({}) and now has {} ({}); restore its full size or its contents",
        device.name(),
        record.capacity.to_bytes(),
        record.capacity,
        capacity.to_bytes(),
        capacity
    );
    Err(Error::corrupt(message))
}

/// What to do about a device without a superblock, beside so many devices of a pool.
fn refuse_blank(device: &Device, pool: Option<&Superblock>, found: usize) -> Error {
    let name = device.name();
    Error::misuse(match pool {
        None => {
            let size = device.geometry().capacity.to_bytes();
            format!("{name}: holds no pool (its size is {size}); make one with `ashlar pool create`, or check the path")
        }
        Some(pool) if found == pool.devices.len() => {
            format!("{name}: is no part of the pool, whose {found} devices are all there; take it off the list")
        }
        Some(pool) => format!(
            "{name}: holds nothing of the pool of which {found} of {} devices are there: it was overwritten, or is another \
             device; name the pool's own, or restore its contents (a new pool would destroy what is on the others)",
            pool.devices.len()
        ),
    })
}

/// A superblock, and what it is on.
struct Found {
    superblock: Superblock,
    member: Member,
}

/// The newest superblock of a device, or of what may be a part of one: `None` if it is none.
async fn superblock_of(member: &Member) -> Result<Option<Superblock>> {
    let Some(superblock) = newest_superblock(&member.device).await? else { return Ok(None) };
    if superblock.part_of != member.part_of {
        let message = "is a copy of a part of a device that was enlarged; name the device itself";
        let error = Error::corrupt(format!("{}: {message}", member.device.name()));
        return if member.part_of.is_some() { Ok(None) } else { Err(error) };
    }
    refuse_short(&member.device, superblock.record())?;
    Ok(Some(superblock))
}

/// What a device has of a pool, from its first block on; and why what lies behind is no part of it, if that is worth knowing.
async fn parts_of(device: &Device) -> Result<(Vec<Found>, Option<Error>)> {
    let member = Member::whole(device.clone());
    let Some(superblock) = superblock_of(&member).await? else { return Ok((Vec::new(), None)) };
    let (pool, number) = (superblock.pool, superblock.device);
    let mut behind = Lba(0) + superblock.record().capacity;
    let mut found = vec![Found { superblock, member }];
    let part = |from: Lba, count| Member::part(number, device.clone(), from, count);
    loop {
        let rest = Blocks(device.geometry().capacity.0 - behind.0);
        // What was there before the device became larger may be something else.
        let superblock = match superblock_of(&part(behind, rest)).await {
            Ok(Some(superblock)) if superblock.pool == pool => superblock,
            Ok(_) => return Ok((found, None)),
            Err(error) => return Ok((found, Some(error))),
        };
        let count = superblock.record().capacity;
        found.push(Found { superblock, member: part(behind, count) });
        behind += count;
    }
}

/// Finds the newest superblock of all devices, and puts what they have of the pool in its order.
pub(crate) async fn assemble(devices: Vec<Device>) -> Result<(Superblock, Vec<Member>)> {
    let (mut all, mut pools, mut blank, mut behind) = (Vec::new(), BTreeSet::new(), Vec::new(), Vec::new());
    for device in devices {
        let (parts, error) = parts_of(&device).await?;
        behind.extend(error);
        let Some(first) = parts.first() else {
            blank.push(device);
            continue;
        };
        pools.insert(first.superblock.pool);
        if pools.len() > 1 {
            let name = device.name();
            let message =
                format!("{name}: belongs to another pool than the devices before it; check the list of devices");
            return Err(Error::misuse(message));
        }
        all.extend(parts);
    }
    // Of two with one generation, that with more devices was written when the pool grew. A part may be left over from growing that
    // was cut off, and a device that was named is not.
    let newest = all.iter().max_by_key(|found| {
        let superblock = &found.superblock;
        (superblock.generation, superblock.devices.len(), found.member.part_of.is_none())
    });
    let newest = newest.map(|found| found.superblock.clone());
    if let Some(device) = blank.first() {
        return Err(refuse_blank(device, newest.as_ref(), all.len()));
    }
    let newest = newest.ok_or_else(|| Error::misuse("name at least one device"))?;
    let id = |superblock: &Superblock, index: u32| superblock.devices.get(index as usize).map(|record| record.id);
    all.retain(|found| {
        let index = found.superblock.device;
        found.member.part_of.is_none() || id(&newest, index) == id(&found.superblock, index)
    });
    let mut found: BTreeMap<u32, Found> = BTreeMap::new();
    for one in all {
        let name = one.member.device.name();
        if let Some(other) = found.insert(one.superblock.device, one) {
            let other = other.member.device.name();
            return Err(Error::misuse(format!("{name} and {other} are the same device of the pool; name each once")));
        }
    }
    let mut ordered = Vec::new();
    for (index, record) in (0..).zip(&newest.devices) {
        let Some(Found { superblock, member }) = found.remove(&index) else {
            let (number, count) = (index + 1, newest.devices.len());
            let mut message = format!(
                "device {number} of {count} is missing (identity {:016x}): name all devices of the pool; if one was enlarged once, \
                 it must be as large as then",
                record.id
            );
            behind.iter().for_each(|error| message += &format!("; {error}"));
            return Err(Error::new(Kind::Failed, message));
        };
        // A crash between the writes of one superblock leaves a device one generation behind, not more.
        if superblock.generation + 1 < newest.generation {
            let is_behind = |later: &Found| later.member.part_of == Some(index);
            let help = match found.values().any(is_behind) {
                false => "name the device itself",
                true => {
                    "it was enlarged later, and what lies behind was left: give the device the size of the copy, or restore all of it"
                }
            };
            let message = format!(
                "{}: is out of date: it stands at checkpoint {} and the others at {}; it seems to be an old copy: {help}",
                member.device.name(),
                superblock.generation,
                newest.generation
            );
            return Err(Error::corrupt(message));
        }
        if id(&superblock, index) != Some(record.id) {
            let name = member.device.name();
            let message = format!("{name}: is not the device that the pool had in its place; name that one");
            return Err(Error::corrupt(message));
        }
        refuse_short(&member.device, record)?;
        ordered.push(member);
    }
    match found.values().next() {
        Some(Found { member, .. }) => Err(Error::misuse(format!(
            "{}: is no part of the pool, which has {} devices; take it off the list",
            member.device.name(),
            ordered.len()
        ))),
        None => Ok((newest, ordered)),
    }
}
