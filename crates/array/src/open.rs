//! Making arrays, and opening them: who belongs together, who is missing, who is stale.

use crate::array::{Array, Options, Seat, lacking};
use crate::format::{Id, Listed, SUPERBLOCKS, Standing, Superblock, groups_at, groups_of};
use crate::journal::JOURNAL_MIN;
use crate::member::{Member, all};
use crate::replay::replay;
use crate::rivals::{Rivals, counting};
use crate::shape::{Level, Shape};
use crate::status::{ArrayStatus, MemberState, MemberStatus};
use ashlar_block::{Durability, Error, IoContext, Kind, Result, ResultExt};
use ashlar_env::Env;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use std::collections::BTreeSet;
use std::sync::Arc;

const CONTEXT: IoContext = IoContext::foreground("array");
/// Requests of making an array that are outstanding on one member.
const CREATION_QUEUE: usize = 8;
/// Checksum blocks between two reports of progress.
const PROGRESS_GROUPS: u64 = 1024;

/// A device and how people call it.
#[derive(Clone)]
pub struct Device {
    /// As in a stack file, or a path.
    pub name: String,
    /// The device.
    pub device: ashlar_block::Device,
}

/// How to make an array.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    /// How members are used.
    pub level: Level,
    /// Stripe unit, with its checksum blocks: 256 blocks are 252 of data.
    pub unit: Blocks,
    /// Journal on each member.
    pub journal: Blocks,
    /// Overwrite what is there.
    pub force: bool,
}

impl Creation {
    /// With the paper's stripe unit of 1 MiB, and a journal of 16 MiB.
    pub fn new(level: Level) -> Creation {
        Creation { level, unit: Blocks(256), journal: Blocks(4096), force: false }
    }
}

/// The newest superblock of a device.
async fn superblock(device: &Device) -> Result<Option<Superblock>> {
    if device.device.geometry().capacity < SUPERBLOCKS {
        return Ok(None);
    }
    let mut newest: Option<Superblock> = None;
    let mut failed = None;
    for at in 0..SUPERBLOCKS.0 {
        match device.device.read(CONTEXT, Lba(at), Blocks(1)).await {
            Ok(block) => {
                let found = Superblock::decode(&block).within(|| device.name.clone())?;
                let newer =
                    |found: &Superblock| newest.as_ref().is_none_or(|newest| newest.generation < found.generation);
                newest = found.filter(newer).or(newest);
            }
            Err(error) => failed = Some(error),
        }
    }
    match (newest, failed) {
        (None, Some(error)) => Err(error.within(device.name.clone())),
        (newest, _) => Ok(newest),
    }
}

fn random_id(env: &Env) -> Id {
    Id::from(env.random()) << 64 | Id::from(env.random())
}

/// The first hexadecimal digits of an identity.
pub(crate) fn short(id: Id) -> String {
    format!("{:08x}", (id >> 96) as u32)
}

impl Array {
    /// Makes an array: what the devices hold is lost. Checksum blocks are made zeros, by discarding where that makes zeros.
    /// `progress` is told groups done and groups in all.
    pub async fn create(env: &Env, devices: &[Device], creation: Creation, progress: impl Fn(u64, u64)) -> Result<()> {
        if creation.journal < JOURNAL_MIN {
            return Err(Error::misuse(format!("a journal has at least {}", JOURNAL_MIN.to_bytes())));
        }
        for device in devices.iter().filter(|_| !creation.force) {
            let what = match superblock(device).await? {
                Some(superblock) => format!("is member {} of array {}", superblock.slot, short(superblock.array)),
                None if holds_something(device).await? => "begins with something that is not zeros".into(),
                None => continue,
            };
            return Err(Error::misuse(format!("{} {what}; --force overwrites it", device.name)));
        }
        let room = |device: &Device| groups_of(device.device.geometry().capacity, creation.journal);
        let groups: Vec<u64> = devices.iter().map(room).collect();
        let shape = Shape::new(creation.level, creation.unit, &groups)?;
        let all_groups = (0..devices.len()).map(|slot| shape.groups_of(slot)).sum();
        let mut done = 0;
        for (slot, device) in devices.iter().enumerate() {
            let groups = shape.groups_of(slot);
            wipe(device, groups, creation.journal, |here| progress(done + here, all_groups)).await?;
            done += groups;
        }
        let members =
            groups.iter().map(|groups| Listed { id: random_id(env), groups: *groups, standing: Standing::Active });
        let superblock = Superblock {
            array: random_id(env),
            level: creation.level,
            unit: creation.unit,
            journal: creation.journal,
            slot: 0,
            generation: 1,
            sequence_end: 1,
            salt: env.random(),
            members: members.collect(),
        };
        for (slot, device) in devices.iter().enumerate() {
            let block = Superblock { slot, ..superblock.clone() }.encode();
            let written = device.device.write(CONTEXT, Lba(1), vec![block], Durability::Forced).await;
            written.within(|| device.name.clone())?;
        }
        Ok(())
    }

    /// Opens an array on its members, in any order. `absent` of them are known to be gone; a member that is missing otherwise
    /// is an error, so that nobody loses redundancy by a slip. Members that are absent count as failed from now on.
    pub async fn open(env: &Env, devices: Vec<Device>, mut absent: usize, options: Options) -> Result<Array> {
        let mut found = Vec::new();
        for device in devices {
            match superblock(&device).await {
                Ok(Some(superblock)) => found.push((device, superblock)),
                Ok(None) => {
                    let message = format!(
                        "{} bears no array: make one with `ashlar array create`, or put it in the place of a member with \
                         `ashlar array replace`",
                        device.name
                    );
                    return Err(Error::misuse(message));
                }
                Err(error) if error.kind() == Kind::Unsupported => return Err(error),
                // It cannot even be read: as good as gone.
                Err(_) => absent += 1,
            }
        }
        let newest = found.iter().map(|(_, superblock)| superblock).max_by_key(|superblock| superblock.generation);
        let newest = newest.cloned().ok_or_else(|| Error::new(Kind::Failed, "none of the members can be read"))?;
        one_array(&found, &newest)?;
        let mut newest = counting_of(&found, newest.generation)?;
        let groups: Vec<u64> = newest.members.iter().map(|member| member.groups).collect();
        let shape = Shape::new(newest.level, newest.unit, &groups)
            .map_err(|error| Error::corrupt(format!("the superblocks make no array: {error}")))?;
        let mut seats: Vec<Seat> = newest.members.iter().map(Seat::of).collect();
        for (device, superblock) in &found {
            let seat = &mut seats[superblock.slot];
            if seat.listed.standing == Standing::Failed || superblock.members[superblock.slot].id != seat.listed.id {
                continue;
            }
            let room = groups_of(device.device.geometry().capacity, newest.journal);
            if room < shape.groups_of(superblock.slot) {
                let message = format!(
                    "{} has become smaller: it has room for {room} groups, and member {} had {}; give it back its size, or \
                     replace it",
                    device.name, superblock.slot, seat.listed.groups
                );
                return Err(Error::misuse(message));
            }
            seat.member = Some(Arc::new(Member::new(device.device.clone(), device.name.clone(), options.queue)));
        }
        let missing: Vec<usize> = (0..seats.len())
            .filter(|slot| seats[*slot].listed.standing != Standing::Failed && seats[*slot].member.is_none())
            .collect();
        // A fresh member that has nothing yet is no loss: the power may have failed while it took the place of another.
        let lost =
            missing.iter().filter(|slot| seats[**slot].listed.standing != Standing::Rebuilding { groups: 0 }).count();
        if lost > absent {
            let message = format!(
                "array {}: members {missing:?} of {} are not among the devices; name them all, or, if they are gone, say so \
                 (--degraded, or leave their layers in the stack file): they must then be rebuilt",
                short(newest.array),
                seats.len()
            );
            return Err(Error::misuse(message));
        }
        missing.into_iter().for_each(|slot| seats[slot].listed.standing = Standing::Failed);
        if let Some(zone) = lacking(&shape, &seats) {
            let zone = &shape.zones[zone];
            let gone: Vec<usize> =
                zone.members.iter().copied().filter(|slot| seats[*slot].listed.standing != Standing::Active).collect();
            let message = format!(
                "array {}: {} needs {} of its members {:?}, and {gone:?} are missing, failed or not yet rebuilt; bring some \
                 of them back",
                short(newest.array),
                newest.level,
                zone.data,
                zone.members
            );
            return Err(Error::new(Kind::Failed, message));
        }
        replay(&newest, &seats, &options).await?;
        newest.salt = env.random();
        let array = Array::assemble(env.clone(), options, &newest, shape, seats);
        {
            let _changing = array.changing.lock().await;
            array.write_superblocks().await?;
        }
        Ok(array)
    }
}

/// Whether the devices belong together.
fn one_array(found: &[(Device, Superblock)], newest: &Superblock) -> Result<()> {
    if let Some((other, superblock)) = found.iter().find(|(_, superblock)| superblock.array != newest.array) {
        let of = |id: Id| {
            let names = found.iter().filter(|(_, superblock)| superblock.array == id).map(|(device, _)| &*device.name);
            names.collect::<Vec<_>>().join(", ")
        };
        let message = format!(
            "members of two arrays: {} of array {}, and {} of array {}; {} does not belong here",
            of(newest.array),
            short(newest.array),
            of(superblock.array),
            short(superblock.array),
            other.name
        );
        return Err(Error::misuse(message));
    }
    let mut slots = BTreeSet::new();
    for (device, superblock) in found {
        let mine = superblock.members[superblock.slot];
        let same_shape = superblock.members.len() == newest.members.len();
        if !same_shape || superblock.slot >= newest.members.len() {
            return Err(Error::corrupt(format!(
                "{} lists another number of members than the newest superblock",
                device.name
            )));
        }
        let current = newest.members[superblock.slot].id == mine.id;
        if current && !slots.insert(superblock.slot) {
            let message =
                format!("{} is a copy: there are two of member {}; leave one away", device.name, superblock.slot);
            return Err(Error::misuse(message));
        }
    }
    Ok(())
}

/// The superblock that counts, with the number of the newest of all, so that whatever is written from now on is newer.
fn counting_of(found: &[(Device, Superblock)], newest: u64) -> Result<Superblock> {
    let superblocks: Vec<&Superblock> = found.iter().map(|(_, superblock)| superblock).collect();
    match counting(&superblocks) {
        Ok(place) => {
            let mut counts = superblocks[place].clone();
            // Generations take turns on two blocks: the next one must not overwrite the one that counts.
            counts.generation = newest + (newest - counts.generation) % 2;
            Ok(counts)
        }
        Err(Rivals { one, other }) => {
            let device =
                found.iter().find(|(_, superblock)| superblock.slot == one).map_or("?", |(device, _)| &device.name);
            Err(Error::misuse(format!(
                "{device} (member {one}) and member {other} each say that the other failed: both went on alone, and hold \
                 different data. Name only those that are to be kept, and replace the other"
            )))
        }
    }
}

async fn holds_something(device: &Device) -> Result<bool> {
    let count = device.device.geometry().capacity.0.min(SUPERBLOCKS.0);
    let head = device.device.read(CONTEXT, Lba(0), Blocks(count)).await.within(|| device.name.clone())?;
    Ok(head.iter().any(|byte| *byte != 0))
}

/// Makes zeros of superblocks and checksum blocks. `progress` is told groups done.
pub(crate) async fn wipe(device: &Device, groups: u64, journal: Blocks, progress: impl Fn(u64)) -> Result<()> {
    let within = || device.name.clone();
    let capability = device.device.capability();
    let end = groups_at(journal) + Blocks(groups * 64);
    let zero = async |at: Lba, count: usize| {
        let pieces = vec![crate::row::zeros(); count];
        device.device.write(CONTEXT, at, pieces, Durability::Cached).await
    };
    zero(Lba(0), SUPERBLOCKS.0 as usize).await.within(within)?;
    if capability.discard && capability.discard_zeroes {
        device.device.discard(CONTEXT, Lba(0), Blocks(end.0)).await.within(within)?;
    } else {
        let tables: Vec<Lba> = (0..groups).map(|group| groups_at(journal) + Blocks(group * 64 + 63)).collect();
        for (index, chunk) in tables.chunks(PROGRESS_GROUPS as usize).enumerate() {
            let outcomes = all(CREATION_QUEUE, chunk.iter().copied().map(|at| zero(at, 1))).await;
            outcomes.into_iter().collect::<Result<()>>().within(within)?;
            progress(index as u64 * PROGRESS_GROUPS + chunk.len() as u64);
        }
    }
    progress(groups);
    device.device.flush(CONTEXT).await.within(within)
}

/// What devices say about their arrays; nothing is changed.
pub async fn inspect(devices: &[Device]) -> Result<Vec<ArrayStatus>> {
    let mut found = Vec::new();
    for device in devices {
        match superblock(device).await? {
            Some(superblock) => found.push((device, superblock)),
            None => return Err(Error::misuse(format!("{} bears no array", device.name))),
        }
    }
    let arrays: BTreeSet<Id> = found.iter().map(|(_, superblock)| superblock.array).collect();
    let mut answers = Vec::new();
    for array in arrays {
        let mine: Vec<_> = found.iter().filter(|(_, superblock)| superblock.array == array).collect();
        let superblocks: Vec<&Superblock> = mine.iter().map(|(_, superblock)| superblock).collect();
        let of_one = superblocks.iter().all(|superblock| superblock.members.len() == superblocks[0].members.len());
        let place = if of_one { counting(&superblocks).ok() } else { None };
        let newest = place.map(|place| superblocks[place]);
        // Rivals are told when the array is opened.
        let newest = newest.or_else(|| superblocks.iter().copied().max_by_key(|superblock| superblock.generation));
        let Some(newest) = newest else { continue };
        let members = newest.members.iter().enumerate().map(|(slot, listed)| {
            let here =
                mine.iter().find(|(_, superblock)| superblock.slot == slot && superblock.members[slot].id == listed.id);
            let state = match (listed.standing, here) {
                (Standing::Failed, _) => MemberState::Failed,
                (_, None) => MemberState::Missing,
                (Standing::Active, _) => MemberState::Active,
                (Standing::Rebuilding { .. }, _) => MemberState::Rebuilding,
            };
            MemberStatus::new(slot, here.map(|(device, _)| device.name.clone()), state, listed)
        });
        let groups: Vec<u64> = newest.members.iter().map(|member| member.groups).collect();
        let capacity = Shape::new(newest.level, newest.unit, &groups).map_or(Blocks(0), |shape| shape.capacity());
        answers.push(ArrayStatus {
            array: format!("{array:032x}"),
            level: newest.level,
            unit: newest.unit.to_bytes().0,
            capacity: capacity.to_bytes().0,
            generation: newest.generation,
            members: members.collect(),
        });
    }
    Ok(answers)
}

const _: () = assert!(BLOCK_LEN == 4096, "the format is made of blocks of 4 KiB");
