//! The array: who is in it, who may touch which group, and how a write is carried out.

use crate::format::{Id, Listed, Owner, Standing, Superblock, groups_at};
use crate::journal::Journal;
use crate::member::{Class, Member};
use crate::rules::Rule;
use crate::shape::{GROUP, Shape};
use ashlar_block::{
    Capability, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Result, ResultExt, Run, blocks_of,
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
    /// Groups that are durable on a member that is being rebuilt. It may have more, which no superblock says.
    pub counted: u64,
    pub member: Option<Arc<Member>>,
}

impl Seat {
    /// As a superblock lists it; nobody is there yet.
    pub fn of(listed: &Listed) -> Seat {
        let counted = if let Standing::Rebuilding { groups } = listed.standing { groups } else { 0 };
        Seat { listed: *listed, counted, member: None }
    }
    /// What superblocks say of it.
    pub fn durably(&self) -> Listed {
        match self.listed.standing {
            Standing::Rebuilding { .. } => {
                Listed { standing: Standing::Rebuilding { groups: self.counted }, ..self.listed }
            }
            _ => self.listed,
        }
    }
}

/// Who is in the array.
pub(crate) struct Roll {
    pub generation: u64,
    pub sequence_end: u64,
    pub seats: Vec<Seat>,
}

/// Members as one operation sees them, which holds the locks of the groups that it asks about.
#[derive(Clone)]
pub(crate) struct Crew(pub Vec<Seat>);

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
    pub(crate) journal: Mutex<Journal>,
    /// The journal has more room.
    pub(crate) moved: Notify,
    pub(crate) sequence: AtomicU64,
    pub(crate) broken: AtomicBool,
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
    /// The group of a block or checksum block of a member.
    pub(crate) fn group_at(&self, at: Lba) -> u64 {
        (at.0 - groups_at(self.journal_blocks).0) / (GROUP + 1)
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
}

/// The blocks of a run, with their places.
fn blocks((at, pieces): Run) -> impl Iterator<Item = (Lba, Bytes)> {
    let whole = pieces.into_iter().flat_map(|piece| {
        (0..piece.len() / BLOCK_LEN).map(move |index| piece.slice(index * BLOCK_LEN..(index + 1) * BLOCK_LEN))
    });
    (at.0..).map(Lba).zip(whole)
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
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        let crew = self.crew();
        let can: Vec<Capability> =
            (0..crew.len()).filter_map(|slot| crew.member(slot)).map(|member| member.device().capability()).collect();
        let medium = can.first().and_then(|first| first.medium);
        // Giving up blocks would change parity: nothing is gained by it.
        Capability {
            discard: false,
            discard_zeroes: false,
            persistent: can.iter().all(|can| can.persistent),
            medium: medium.filter(|_| can.iter().all(|can| can.medium == medium)),
            thin: false,
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
        self.write_blocks(context, blocks((at, pieces)).collect(), durability).await.within(|| self.title())
    }
    /// This is the paper's batch: blocks of one row share its parity, those of a group its checksum blocks, and each member gets
    /// its part in ascending order, with [`Options::queue`] requests outstanding, whatever the caller says. A power cut can
    /// leave a part of it, as with any write; blocks are whole.
    async fn write_strand(&self, context: IoContext, runs: Vec<Run>, _: usize, durability: Durability) -> Result<()> {
        let _busy = Busy::new(&self.foreground);
        runs.iter().try_for_each(|(at, pieces)| self.check_range("write", *at, blocks_of(pieces)))?;
        let blocks = runs.into_iter().flat_map(blocks).collect();
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
    async fn provision(&self, _: IoContext, _: Lba, _: Blocks) -> Result<()> {
        Ok(())
    }
    async fn extent(&self, _: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.check_range("query", at, count)?;
        Ok(Extent { hole: false, count })
    }
}
