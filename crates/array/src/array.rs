//! The array: who is in it, who may touch which group, and how a write is carried out.

use crate::format::{Id, Listed, Standing, Superblock, groups_at, is_sequence};
use crate::format::{Owner, PartHead};
use crate::journal::{Journal, Reserved, Wait};
use crate::member::{Class, Member, all};
use crate::rules::Rule;
use crate::shape::{GROUP, Shape};
use ashlar_block::{
    Capability, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Result, ResultExt, blocks_of,
};
use ashlar_env::Env;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// Locks for groups; a group's number modulo this is its lock.
const LOCKS: u64 = 512;
/// Numbers of writes that a superblock sets aside at once.
pub(crate) const SEQUENCES: u64 = 1 << 20;

/// What a read compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// The block with its record, and the record's generation with what the row's parity saw: three blocks for a lone one. A
    /// member that lost a write together with its record is found.
    #[default]
    Row,
    /// The block with its record: two blocks for a lone one, as in the paper. A write that is lost together with its record is
    /// found by the next write to it, by a scrub and by a rebuild, and not by reads.
    Own,
}

/// How parity follows a write of some of a row's data blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ParityRule {
    /// As engages the fewest members, which is the paper's: by subtraction (the old blocks and the old parity are read), but
    /// for whole rows.
    #[default]
    FewestMembers,
    /// As takes the fewest reads and writes: by addition (the row's other blocks are read) where more than half of a row is
    /// written.
    FewestRequests,
}

/// Whether writes go through the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Journaling {
    /// They do.
    #[default]
    Members,
    /// They do not: a power cut in a write can lose blocks of its rows, which are then found to be damaged. For comparisons
    /// with arrays that have a write hole, and for what is made anew after a crash.
    Off,
}

/// How an array is run. None of this is on the members.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Requests outstanding on one member, at most.
    pub queue: usize,
    /// What reads compare.
    pub verify: Verify,
    /// How parity follows.
    pub parity: ParityRule,
    /// Whether writes go through the journal.
    pub journal: Journaling,
    /// A rule to break.
    pub without: Option<Rule>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queue: 8,
            verify: Verify::default(),
            parity: ParityRule::default(),
            journal: Journaling::default(),
            without: None,
        }
    }
}

/// A slot of the array.
#[derive(Clone)]
pub(crate) struct Seat {
    pub listed: Listed,
    pub member: Option<Arc<Member>>,
}

/// Who is in the array.
pub(crate) struct Roll {
    pub generation: u64,
    pub sequence_end: u64,
    pub seats: Vec<Seat>,
}

/// Members as one operation sees them, which holds the locks of the groups that it asks about.
#[derive(Clone)]
pub(crate) struct Crew(Vec<Seat>);

impl Crew {
    /// The member, if it has this group.
    pub fn has(&self, slot: usize, group: u64) -> Option<&Arc<Member>> {
        let seat = self.0.get(slot)?;
        let rebuilt = match seat.listed.standing {
            Standing::Active => u64::MAX,
            Standing::Failed => 0,
            Standing::Rebuilding { groups } => groups,
        };
        seat.member.as_ref().filter(|_| group < rebuilt)
    }
    /// The member, whatever it has.
    pub fn member(&self, slot: usize) -> Option<&Arc<Member>> {
        self.0.get(slot)?.member.as_ref()
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Blocks to write, by slot and place on the member.
pub(crate) type Work = BTreeMap<usize, BTreeMap<Lba, (Class, Bytes)>>;

/// An array. See the crate.
pub struct Array {
    pub(crate) env: Env,
    pub(crate) options: Options,
    pub(crate) id: Id,
    pub(crate) shape: Shape,
    pub(crate) unit: Blocks,
    pub(crate) journal_blocks: Blocks,
    pub(crate) salt: u64,
    pub(crate) roll: RwLock<Roll>,
    /// Held by whoever changes the roll and writes superblocks.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Held by who rebuilds.
    pub(crate) rebuilding: tokio::sync::Mutex<()>,
    locks: Vec<tokio::sync::RwLock<()>>,
    journal: Mutex<Journal>,
    /// The journal has more room.
    moved: Notify,
    sequence: AtomicU64,
    broken: AtomicBool,
    /// Operations of users under way.
    pub(crate) foreground: AtomicU64,
    pub(crate) stopped: AtomicBool,
}

/// Locks on groups.
#[derive(Default)]
pub(crate) struct Guards<'a> {
    _shared: Vec<tokio::sync::RwLockReadGuard<'a, ()>>,
    _alone: Vec<tokio::sync::RwLockWriteGuard<'a, ()>>,
}

impl Array {
    pub(crate) fn assemble(
        env: Env,
        options: Options,
        superblock: &Superblock,
        shape: Shape,
        seats: Vec<Seat>,
    ) -> Array {
        let journal = Journal::new(seats.len(), Lba(2), superblock.journal, options.without);
        Array {
            env,
            options,
            id: superblock.array,
            shape,
            unit: superblock.unit,
            journal_blocks: superblock.journal,
            salt: superblock.salt,
            sequence: AtomicU64::new(superblock.sequence_end),
            roll: RwLock::new(Roll {
                generation: superblock.generation,
                sequence_end: superblock.sequence_end + SEQUENCES,
                seats,
            }),
            changing: tokio::sync::Mutex::new(()),
            rebuilding: tokio::sync::Mutex::new(()),
            locks: (0..LOCKS).map(|_| tokio::sync::RwLock::new(())).collect(),
            journal: Mutex::new(journal),
            moved: Notify::new(),
            broken: AtomicBool::new(false),
            foreground: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Where things are.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn crew(&self) -> Crew {
        Crew(self.roll.read().seats.clone())
    }
    pub(crate) fn owner(&self, slot: usize, group: u64) -> Owner {
        Owner { array: self.id, slot, group }
    }
    pub(crate) fn block_at(&self, row: u64) -> Lba {
        groups_at(self.journal_blocks) + Blocks(row / GROUP * (GROUP + 1) + row % GROUP)
    }
    pub(crate) fn table_at(&self, group: u64) -> Lba {
        groups_at(self.journal_blocks) + Blocks(group * (GROUP + 1) + GROUP)
    }
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.options.without != Some(rule)
    }

    fn locks_of(&self, groups: &BTreeSet<u64>) -> BTreeSet<usize> {
        let groups = groups.iter().filter(|_| self.keeps(Rule::GroupsAlone));
        groups.map(|group| (group % LOCKS) as usize).collect()
    }
    /// Nobody writes these groups as long as the guards live.
    pub(crate) async fn share(&self, groups: &BTreeSet<u64>) -> Guards<'_> {
        let mut guards = Guards::default();
        // In ascending order, so that nobody waits in a circle.
        for lock in self.locks_of(groups) {
            guards._shared.push(self.locks[lock].read().await);
        }
        guards
    }
    /// Nobody else touches these groups as long as the guards live.
    pub(crate) async fn own(&self, groups: &BTreeSet<u64>) -> Guards<'_> {
        let mut guards = Guards::default();
        for lock in self.locks_of(groups) {
            guards._alone.push(self.locks[lock].write().await);
        }
        guards
    }

    /// Whether it takes writes: not after more members failed than it can do without.
    pub fn admits(&self) -> bool {
        !self.broken.load(Ordering::Acquire)
    }
    pub(crate) fn admit_write(&self) -> Result<()> {
        if !self.admits() {
            let message = "more members failed than the array can do without, in the middle of a write; close it, bring the \
                           members back, and open it again";
            return Err(Error::new(Kind::Poisoned, message));
        }
        Ok(())
    }

    /// A number for a write, greater than any before.
    pub(crate) async fn number(&self) -> Result<u64> {
        loop {
            let number = self.sequence.fetch_add(1, Ordering::AcqRel);
            if number >= self.roll.read().sequence_end {
                let _changing = self.changing.lock().await;
                if number >= self.roll.read().sequence_end {
                    self.roll.write().sequence_end = number + SEQUENCES;
                    self.write_superblocks().await?;
                }
            }
            if is_sequence(number) {
                return Ok(number);
            }
        }
    }

    /// Writes blocks so that a power cut leaves all of them or none.
    pub(crate) async fn commit(
        &self,
        context: IoContext,
        crew: &Crew,
        work: Work,
        durability: Durability,
    ) -> Result<()> {
        if work.is_empty() {
            return Ok(());
        }
        let journaled = self.options.journal == Journaling::Members;
        let entry = if journaled { Some(self.log(context, crew, &work).await?) } else { None };
        let in_place = if journaled { Durability::Cached } else { durability };
        let write = async |(slot, blocks): (&usize, &BTreeMap<Lba, (Class, Bytes)>)| match crew.member(*slot) {
            Some(member) => (*slot, member.write(context, blocks, in_place).await),
            None => (*slot, Ok(())),
        };
        let outcomes = all(usize::MAX, work.iter().map(write)).await;
        self.excuse(outcomes).await?;
        if let Some(entry) = entry {
            self.journal.lock().placed(entry);
            self.moved.notify_waiters();
        }
        Ok(())
    }

    /// Writes an entry to the journal; returns its number when it is durable.
    async fn log(&self, context: IoContext, crew: &Crew, work: &Work) -> Result<u64> {
        let needs: Vec<(usize, usize)> = work.iter().map(|(slot, blocks)| (*slot, blocks.len())).collect();
        let reserved = self.reserve(context, &needs).await?;
        let participants = reserved.parts.iter().fold(0, |bits, (slot, _)| bits | 1 << slot);
        let write = async |(slot, at): &(usize, Lba)| {
            let (Some(member), Some(blocks)) = (crew.member(*slot), work.get(slot)) else { return (*slot, Ok(())) };
            let mut payload = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
            blocks.values().for_each(|(_, data)| payload.update(data));
            let head = PartHead {
                sequence: reserved.sequence,
                released: reserved.released,
                participants,
                payload: payload.finalize(),
                targets: blocks.keys().copied().collect(),
            };
            let head = head.encode(self.id, self.salt, *slot);
            let pieces = std::iter::once(head).chain(blocks.values().map(|(_, data)| data.clone())).collect();
            if let Err(error) = member.write_journal(context, *at, pieces).await {
                return (*slot, Err(error));
            }
            self.journal.lock().noted(*slot, reserved.released);
            let flushed = match self.keeps(Rule::JournalBeforePlace) {
                true => self.flush_member(context, *slot, member).await,
                false => Ok(()),
            };
            (*slot, flushed)
        };
        let outcomes = all(usize::MAX, reserved.parts.iter().map(write)).await;
        self.excuse(outcomes).await?;
        Ok(reserved.sequence)
    }

    async fn reserve(&self, context: IoContext, needs: &[(usize, usize)]) -> Result<Reserved> {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            let wait = match self.journal.lock().reserve(needs) {
                Ok(reserved) => return Ok(reserved),
                Err(wait) => wait,
            };
            self.admit_write()?;
            match wait {
                Wait::Placed => moved.await,
                Wait::Flush => self.flush_all(context).await?,
                Wait::Mark(slot, at, released) => self.mark(context, slot, at, released).await?,
            }
        }
    }

    /// Says durably on a member that entries are released.
    async fn mark(&self, context: IoContext, slot: usize, at: Lba, released: u64) -> Result<()> {
        // One at a time, so that the older of the two marks is the one that is overwritten.
        let _changing = self.changing.lock().await;
        let Some(member) = self.crew().member(slot).cloned() else { return Ok(()) };
        let head = PartHead { sequence: released, released, participants: 0, payload: 0, targets: Vec::new() };
        let write = async {
            member.write_journal(context, at, vec![head.encode(self.id, self.salt, slot)]).await?;
            self.flush_member(context, slot, &member).await
        };
        match write.await {
            Ok(()) => self.journal.lock().marked(slot, released),
            Err(error) => self.fail(slot, &error).await?,
        }
        Ok(())
    }

    /// Makes durable what a member was given, and notes what that settles.
    pub(crate) async fn flush_member(&self, context: IoContext, slot: usize, member: &Member) -> Result<()> {
        let covered = member.flush(context, || self.journal.lock().flush_begins(slot)).await?;
        if let Some(covered) = covered {
            self.journal.lock().flush_ended(slot, covered);
            self.moved.notify_waiters();
        }
        Ok(())
    }

    /// Flushes all members.
    pub(crate) async fn flush_all(&self, context: IoContext) -> Result<()> {
        let crew = self.crew();
        let flush = async |slot: usize| match crew.member(slot) {
            Some(member) => (slot, self.flush_member(context, slot, member).await),
            None => (slot, Ok(())),
        };
        let outcomes = all(usize::MAX, (0..crew.len()).map(flush)).await;
        self.excuse(outcomes).await
    }

    /// Members that failed are listed, as long as the others are enough.
    async fn excuse(&self, outcomes: Vec<(usize, Result<()>)>) -> Result<()> {
        for (slot, outcome) in outcomes {
            if let Err(error) = outcome {
                let _changing = self.changing.lock().await;
                self.fail(slot, &error).await?;
            }
        }
        Ok(())
    }

    /// Lists a member as failed; an error if the others are too few. The caller holds `changing`.
    pub(crate) async fn fail(&self, slot: usize, error: &Error) -> Result<()> {
        {
            let mut roll = self.roll.write();
            let Some(seat) = roll.seats.get(slot) else { return Ok(()) };
            let Some(member) = seat.member.clone() else { return Ok(()) };
            let standing = std::mem::replace(&mut roll.seats[slot].listed.standing, Standing::Failed);
            if let Some(zone) = lacking(&self.shape, &roll.seats) {
                roll.seats[slot].listed.standing = standing;
                drop(roll);
                self.broken.store(true, Ordering::Release);
                self.moved.notify_waiters();
                let message = format!(
                    "member {slot} ({}) failed, and rows {}.. cannot do without it: {error}",
                    member.name(),
                    self.shape.zones[zone].row
                );
                return Err(Error::new(Kind::Failed, message));
            }
            roll.seats[slot].member = None;
        }
        self.journal.lock().forget(slot);
        self.moved.notify_waiters();
        if self.keeps(Rule::FailureBeforeAnswer) { self.write_superblocks().await } else { Ok(()) }
    }

    /// Writes the roll to all members. The caller holds `changing`.
    pub(crate) async fn write_superblocks(&self) -> Result<()> {
        let context = IoContext::foreground("array superblock");
        loop {
            let (superblock, crew) = {
                let mut roll = self.roll.write();
                roll.generation += 1;
                (self.superblock(&roll), Crew(roll.seats.clone()))
            };
            let write = async |slot: usize| {
                let Some(member) = crew.member(slot) else { return (slot, Ok(())) };
                let block = Superblock { slot, ..superblock.clone() }.encode();
                let at = Lba(superblock.generation % 2);
                let written = member.device().write(context, at, vec![block], Durability::Forced).await;
                (slot, written)
            };
            let outcomes = all(usize::MAX, (0..crew.len()).map(write)).await;
            let failed = outcomes.into_iter().find_map(|(slot, outcome)| outcome.err().map(|error| (slot, error)));
            let Some((slot, error)) = failed else { return Ok(()) };
            let mut roll = self.roll.write();
            let standing = std::mem::replace(&mut roll.seats[slot].listed.standing, Standing::Failed);
            if lacking(&self.shape, &roll.seats).is_some() {
                roll.seats[slot].listed.standing = standing;
                self.broken.store(true, Ordering::Release);
                return Err(error.within(format!("superblock of member {slot}")));
            }
            roll.seats[slot].member = None;
            drop(roll);
            self.journal.lock().forget(slot);
        }
    }

    fn superblock(&self, roll: &Roll) -> Superblock {
        Superblock {
            array: self.id,
            level: self.shape.level,
            unit: self.unit,
            journal: self.journal_blocks,
            slot: 0,
            generation: roll.generation,
            sequence_end: roll.sequence_end,
            salt: self.salt,
            members: roll.seats.iter().map(|seat| seat.listed).collect(),
        }
    }

    pub(crate) fn part_blocks_max(&self) -> usize {
        self.journal.lock().part_blocks_max()
    }
    /// A new member takes a place in the journal.
    pub(crate) fn welcome(&self, slot: usize) {
        self.journal.lock().welcome(slot);
    }
}

/// The first zone that has fewer members than it needs.
pub(crate) fn lacking(shape: &Shape, seats: &[Seat]) -> Option<usize> {
    let active = |slot: &&usize| seats.get(**slot).is_some_and(|seat| seat.listed.standing == Standing::Active);
    shape.zones.iter().position(|zone| zone.members.iter().filter(active).count() < zone.data)
}

/// Notes that a user's operation is under way.
struct Busy<'a>(&'a AtomicU64);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicU64) -> Busy<'a> {
        count.fetch_add(1, Ordering::AcqRel);
        Busy(count)
    }
}
impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Array {
    /// Name for errors: level and members.
    pub(crate) fn title(&self) -> String {
        format!("{} {:08x}", self.shape.level, (self.id >> 96) as u32)
    }

    fn check_range(&self, what: &str, at: Lba, count: Blocks) -> Result<()> {
        let capacity = self.shape.capacity();
        if at.0.checked_add(count.0).is_none_or(|end| end > capacity.0) {
            let message = format!("{what} of {count} at {at} passes the end of the array ({capacity})");
            return Err(Error::misuse(message).within(self.title()));
        }
        Ok(())
    }

    /// Writes blocks anywhere, all before any later flush: blocks of one row share its parity, and each member gets its part in
    /// ascending order, with no more than [`Options::queue`] requests outstanding. Of two blocks for one place the last
    /// counts. This is the paper's batch. A power cut can leave a part of it, as with any write; blocks are whole.
    pub async fn strand(&self, context: IoContext, blocks: Vec<(Lba, Bytes)>, durability: Durability) -> Result<()> {
        let _busy = Busy::new(&self.foreground);
        let mut sorted = BTreeMap::new();
        for (at, block) in blocks {
            if block.len() != BLOCK_LEN {
                return Err(Error::misuse(format!(
                    "a strand consists of blocks of 4KiB, not of {} bytes",
                    block.len()
                )));
            }
            self.check_range("write", at, Blocks(1))?;
            sorted.insert(at, block);
        }
        self.write_blocks(context, sorted, durability).await.within(|| self.title())
    }
}

impl Layer for Array {
    fn name(&self) -> String {
        self.title()
    }
    fn geometry(&self) -> Geometry {
        let crew = self.crew();
        let units =
            (0..crew.len()).filter_map(|slot| crew.member(slot)).map(|member| member.device().geometry().atomic);
        Geometry { capacity: self.shape.capacity(), atomic: units.min().unwrap_or(ashlar_units::BLOCK) }
    }
    fn capability(&self) -> Capability {
        let crew = self.crew();
        let mut members = (0..crew.len()).filter_map(|slot| crew.member(slot));
        // Giving up blocks would change parity: nothing is gained by it.
        Capability {
            discard: false,
            discard_zeroes: false,
            persistent: members.all(|member| member.device().capability().persistent),
        }
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let _busy = Busy::new(&self.foreground);
        self.check_range("read", at, count)?;
        self.read_blocks(context, at, count).await.within(|| self.title())
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let _busy = Busy::new(&self.foreground);
        self.check_range("write", at, blocks_of(&pieces))?;
        let whole = pieces.iter().flat_map(|piece| {
            (0..piece.len() / BLOCK_LEN).map(move |index| piece.slice(index * BLOCK_LEN..(index + 1) * BLOCK_LEN))
        });
        let blocks = (at.0..).map(Lba).zip(whole).collect();
        self.write_blocks(context, blocks, durability).await.within(|| self.title())
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        self.admit_write().within(|| self.title())?;
        self.flush_all(context).await.within(|| self.title())
    }
    async fn discard(&self, _: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.check_range("discard", at, count)?;
        Err(Error::new(Kind::Unsupported, "an array keeps what it was given: discards are not supported")
            .within(self.title()))
    }
    async fn extent(&self, _: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.check_range("query", at, count)?;
        Ok(Extent { hole: false, count })
    }
}
