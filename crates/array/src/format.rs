//! What lies on a member.
//!
//! | blocks | what |
//! | --- | --- |
//! | 0, 1 | [`Superblock`], of even and of odd generations |
//! | 2 .. 2+J | journal: a ring of [parts](PartHead) |
//! | 2+J .. | groups of 64 blocks: 63 of data or parity, and the [`Table`] of their records |
//!
//! Numbers are little-endian. Decoders take any bytes.

#[cfg(test)]
mod golden;

use crate::shape::{DATA_MAX, GROUP, Level, MEMBERS_MAX};
use ashlar_block::{Error, Kind, Result};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::{Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Of the format. 1: the first.
pub const VERSION: u16 = 1;
/// Superblocks of a member.
pub const SUPERBLOCKS: Blocks = Blocks(2);

const SUPERBLOCK_MAGIC: [u8; 8] = *b"ASHLARAY";
const TABLE_MAGIC: [u8; 4] = *b"ASHK";
const PART_MAGIC: [u8; 4] = *b"ASHJ";

/// CRC-64/NVME.
pub fn checksum(data: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, data)
}

/// The checksum of a block whose own checksum is zero.
fn sealed<T: IntoBytes + Immutable>(stored: &T) -> u64 {
    checksum(stored.as_bytes())
}

/// Identity of an array or of a member; chance made it.
pub type Id = u128;

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Has everything.
    Active,
    /// Missed a write, or is gone. What it holds is never used again.
    Failed,
    /// Has the groups before this one; the rest is being made.
    Rebuilding {
        /// Groups that it has.
        groups: u64,
    },
}

/// A member as every superblock lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its identity.
    pub id: Id,
    /// Groups for which it has room.
    pub groups: u64,
    /// How it stands.
    pub standing: Standing,
}

/// What a member says about its array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the array.
    pub array: Id,
    /// How members are used.
    pub level: Level,
    /// Stripe unit, with its checksum blocks.
    pub unit: Blocks,
    /// Blocks of journal on each member.
    pub journal: Blocks,
    /// Which of the members this is.
    pub slot: usize,
    /// Grows with each change; the newest is right.
    pub generation: u64,
    /// No write has had this number yet, nor a greater one.
    pub sequence_end: u64,
    /// What the checksums of the journal's parts begin with. New whenever the array is opened, so that parts of earlier times
    /// are none, and that nobody can write data that look like one.
    pub salt: u64,
    /// All members, by slot.
    pub members: Vec<Listed>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredMember {
    id: [u8; 16],
    groups: U64,
    rebuilt: U64,
    standing: u8,
    reserved: [u8; 7],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredSuperblock {
    magic: [u8; 8],
    checksum: U64,
    version: U16,
    level: u8,
    slot: u8,
    members_count: U32,
    /// Features without which the array must not be opened; none so far.
    features: U64,
    array: [u8; 16],
    generation: U64,
    sequence_end: U64,
    salt: U64,
    unit: U64,
    journal: U64,
    members: [StoredMember; MEMBERS_MAX],
    reserved: [u8; BLOCK_LEN - 88 - MEMBERS_MAX * 40],
}
const _: () = assert!(size_of::<StoredSuperblock>() == BLOCK_LEN, "a superblock fills its block");

impl Superblock {
    /// The block.
    pub fn encode(&self) -> Bytes {
        let mut stored = StoredSuperblock::new_zeroed();
        stored.magic = SUPERBLOCK_MAGIC;
        stored.version = VERSION.into();
        stored.level = self.level as u8;
        stored.slot = self.slot as u8;
        stored.members_count = (self.members.len() as u32).into();
        stored.array = self.array.to_le_bytes();
        stored.generation = self.generation.into();
        stored.sequence_end = self.sequence_end.into();
        stored.salt = self.salt.into();
        stored.unit = self.unit.0.into();
        stored.journal = self.journal.0.into();
        for (stored, member) in stored.members.iter_mut().zip(&self.members) {
            stored.id = member.id.to_le_bytes();
            stored.groups = member.groups.into();
            (stored.standing, stored.rebuilt) = match member.standing {
                Standing::Active => (0, 0.into()),
                Standing::Failed => (1, 0.into()),
                Standing::Rebuilding { groups } => (2, groups.into()),
            };
        }
        stored.checksum = sealed(&stored).into();
        Bytes::copy_from_slice(stored.as_bytes())
    }

    /// Reads a block; nothing if it is no superblock or a damaged one, an error if it is one of another version.
    pub fn decode(block: &[u8]) -> Result<Option<Superblock>> {
        let Ok(mut stored) = StoredSuperblock::read_from_bytes(block) else { return Ok(None) };
        let checksum = std::mem::replace(&mut stored.checksum, 0.into());
        if stored.magic != SUPERBLOCK_MAGIC || checksum != sealed(&stored) {
            return Ok(None);
        }
        if stored.version != VERSION || stored.features != 0 {
            let message = format!(
                "the array is of version {} with features {:#x}; this program knows version {VERSION} without any: take a \
                 newer one",
                stored.version, stored.features
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        let count = stored.members_count.get() as usize;
        let level = Level::ALL.get(usize::from(stored.level)).copied();
        let (Some(level), Some(members)) = (level, stored.members.get(..count)) else { return Ok(None) };
        let members: Option<Vec<Listed>> = members.iter().map(listed).collect();
        let Some(members) = members else { return Ok(None) };
        let slot = usize::from(stored.slot);
        let (unit, journal) = (Blocks(stored.unit.get()), Blocks(stored.journal.get()));
        // So large that no sum overflows, and larger than any device.
        let sane = |blocks: u64| blocks < 1 << 48;
        let sizes = members.iter().all(|member| sane(member.groups)) && sane(unit.0) && sane(journal.0);
        if slot >= members.len() || !sizes || unit == Blocks(0) {
            return Ok(None);
        }
        Ok(Some(Superblock {
            array: Id::from_le_bytes(stored.array),
            level,
            unit,
            journal,
            slot,
            generation: stored.generation.get(),
            sequence_end: stored.sequence_end.get(),
            salt: stored.salt.get(),
            members,
        }))
    }
}

fn listed(stored: &StoredMember) -> Option<Listed> {
    let standing = match stored.standing {
        0 => Standing::Active,
        1 => Standing::Failed,
        2 => Standing::Rebuilding { groups: stored.rebuilt.get() },
        _ => return None,
    };
    Some(Listed { id: Id::from_le_bytes(stored.id), groups: stored.groups.get(), standing })
}

/// The first block of the groups on a member.
pub fn groups_at(journal: Blocks) -> Lba {
    Lba(0) + SUPERBLOCKS + journal
}
/// Groups for which a device has room.
pub fn groups_of(capacity: Blocks, journal: Blocks) -> u64 {
    capacity.0.saturating_sub(groups_at(journal).0) / (GROUP + 1)
}

/// What is in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Content {
    /// Never written: zeros, whatever the medium holds.
    #[default]
    Fresh,
    /// What was written, or parity.
    Stored,
    /// Lost for good: too many members failed at one place. Counts as zeros in parity; reading it is an error.
    Lost,
}

/// The mark of a block in the records of its row's parity.
pub type Mark = u32;
const MARK_FRESH: Mark = 0;
const MARK_LOST: Mark = Mark::MAX;

/// Whether a number of a write can be told from every [`Mark`] with a meaning of its own.
pub fn is_sequence(number: u64) -> bool {
    !matches!(number as Mark, MARK_FRESH | MARK_LOST)
}

/// What is known about a block: 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// What is in it.
    pub content: Content,
    /// Of the 4 KiB.
    pub checksum: u64,
    /// Number of the write that wrote it.
    pub generation: u64,
    /// For parity: the marks of the row's data blocks, by role.
    pub row: [Mark; DATA_MAX],
}

impl Record {
    /// What parity notes about this block.
    pub fn mark(&self) -> Mark {
        match self.content {
            Content::Fresh => MARK_FRESH,
            Content::Stored => self.generation as Mark,
            Content::Lost => MARK_LOST,
        }
    }
    /// For the record of parity: what the data block of a role must be.
    pub fn expected(&self, role: usize) -> (Content, u64) {
        let mark = self.row.get(role).copied().unwrap_or_default();
        match mark {
            MARK_FRESH => (Content::Fresh, 0),
            MARK_LOST => (Content::Lost, self.generation),
            // The newest number that ends so and is not above that of the parity, which saw all of the row.
            _ => {
                (Content::Stored, self.generation.wrapping_sub(u64::from((self.generation as Mark).wrapping_sub(mark))))
            }
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredRecord {
    checksum: U64,
    /// Six bytes of generation.
    generation: [u8; 6],
    content: u8,
    slot: u8,
    /// The row.
    location: U64,
    row: [U32; DATA_MAX],
}
const _: () = assert!(size_of::<StoredRecord>() == 64, "a record has 64 bytes");

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredTable {
    records: [StoredRecord; GROUP as usize],
    magic: [u8; 4],
    version: U16,
    slot: u8,
    reserved: u8,
    array: [u8; 16],
    group: U64,
    reserved2: [u8; 24],
    checksum: U64,
}
const _: () = assert!(size_of::<StoredTable>() == BLOCK_LEN, "63 records and what names them fill a block");

/// Whose table it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The array.
    pub array: Id,
    /// The member.
    pub slot: usize,
    /// The group.
    pub group: u64,
}

/// A checksum block: the records of a group on one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    owner: Owner,
    records: Box<[Record; GROUP as usize]>,
}

impl Table {
    /// That of a group in which nothing was written.
    pub fn fresh(owner: Owner) -> Table {
        Table { owner, records: Box::new([Record::default(); GROUP as usize]) }
    }
    /// The record of a row of this group.
    pub fn record(&self, row: u64) -> &Record {
        &self.records[(row % GROUP) as usize]
    }
    /// Changes it.
    pub fn set(&mut self, row: u64, record: Record) {
        self.records[(row % GROUP) as usize] = record;
    }

    /// The block.
    pub fn encode(&self) -> Bytes {
        let mut stored = StoredTable::new_zeroed();
        let Owner { array, slot, group } = self.owner;
        for ((stored, record), index) in stored.records.iter_mut().zip(&*self.records).zip(0..) {
            if record.content == Content::Fresh {
                continue;
            }
            stored.checksum = record.checksum.into();
            stored.generation.copy_from_slice(&record.generation.to_le_bytes()[..6]);
            stored.content = record.content as u8;
            stored.slot = slot as u8;
            stored.location = (group * GROUP + index).into();
            stored.row = record.row.map(U32::new);
        }
        stored.magic = TABLE_MAGIC;
        stored.version = VERSION.into();
        stored.slot = slot as u8;
        stored.array = array.to_le_bytes();
        stored.group = group.into();
        stored.checksum = sealed(&stored).into();
        let mut block = BytesMut::with_capacity(BLOCK_LEN);
        block.extend_from_slice(stored.as_bytes());
        block.freeze()
    }

    /// Reads a block that must be this owner's; an error says what is wrong.
    pub fn decode(block: &[u8], owner: Owner) -> Result<Table, &'static str> {
        let Ok(mut stored) = StoredTable::read_from_bytes(block) else { return Err("the checksum block is cut") };
        if block.iter().all(|byte| *byte == 0) {
            return Ok(Table::fresh(owner));
        }
        let checksum = std::mem::replace(&mut stored.checksum, 0.into());
        if stored.magic != TABLE_MAGIC || stored.version != VERSION || checksum != sealed(&stored) {
            return Err("the checksum block is damaged");
        }
        if Id::from_le_bytes(stored.array) != owner.array {
            return Err("the checksum block is of another array");
        }
        if usize::from(stored.slot) != owner.slot || stored.group != owner.group {
            return Err("the checksum block belongs elsewhere");
        }
        let mut table = Table::fresh(owner);
        for ((stored, record), index) in stored.records.iter().zip(table.records.iter_mut()).zip(0..) {
            record.content = match stored.content {
                0 => continue,
                1 => Content::Stored,
                2 => Content::Lost,
                _ => return Err("the checksum block has a record of no kind"),
            };
            let location = (usize::from(stored.slot), stored.location.get());
            if location != (owner.slot, owner.group.saturating_mul(GROUP).saturating_add(index)) {
                return Err("the checksum block has a record of another place");
            }
            record.checksum = stored.checksum.get();
            let mut generation = [0; 8];
            generation[..6].copy_from_slice(&stored.generation);
            record.generation = u64::from_le_bytes(generation);
            record.row = stored.row.map(U32::get);
        }
        Ok(table)
    }
}

/// Most blocks of a part of a journal entry.
pub const PART_BLOCKS_MAX: usize = 480;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct StoredPart {
    magic: [u8; 4],
    version: U16,
    slot: u8,
    reserved: u8,
    checksum: U64,
    sequence: U64,
    released: U64,
    participants: U32,
    count: U32,
    /// Of the blocks that follow.
    payload: U64,
    reserved2: [u8; 208],
    targets: [U64; PART_BLOCKS_MAX],
}
const _: () = assert!(size_of::<StoredPart>() == BLOCK_LEN, "the head of a part is a block");

/// The head of a part of a journal entry: what one member has to write. The blocks themselves follow, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartHead {
    /// Number of the entry.
    pub sequence: u64,
    /// Entries up to this one are durable in their places.
    pub released: u64,
    /// Members that have a part of the entry, as bits.
    pub participants: u32,
    /// Of the payload.
    pub payload: u64,
    /// Where on the member the blocks belong, ascending.
    pub targets: Vec<Lba>,
}

impl PartHead {
    /// The block.
    pub fn encode(&self, array: Id, salt: u64, slot: usize) -> Bytes {
        let mut stored = StoredPart::new_zeroed();
        stored.magic = PART_MAGIC;
        stored.version = VERSION.into();
        stored.slot = slot as u8;
        stored.sequence = self.sequence.into();
        stored.released = self.released.into();
        stored.participants = self.participants.into();
        stored.count = (self.targets.len() as u32).into();
        stored.payload = self.payload.into();
        stored.targets.iter_mut().zip(&self.targets).for_each(|(to, from)| *to = from.0.into());
        stored.checksum = (sealed(&stored) ^ salted(array, salt)).into();
        Bytes::copy_from_slice(stored.as_bytes())
    }

    /// Reads a block; nothing if it is no head of this member's, or of an earlier time.
    pub fn decode(block: &[u8], array: Id, salt: u64, slot: usize) -> Option<PartHead> {
        let mut stored = StoredPart::read_from_bytes(block).ok()?;
        let checksum = std::mem::replace(&mut stored.checksum, 0.into());
        if stored.magic != PART_MAGIC || stored.version != VERSION || usize::from(stored.slot) != slot {
            return None;
        }
        if checksum != sealed(&stored) ^ salted(array, salt) {
            return None;
        }
        let targets = stored.targets.get(..stored.count.get() as usize)?;
        Some(PartHead {
            sequence: stored.sequence.get(),
            released: stored.released.get(),
            participants: stored.participants.get(),
            payload: stored.payload.get(),
            targets: targets.iter().map(|target| Lba(target.get())).collect(),
        })
    }
}

fn salted(array: Id, salt: u64) -> u64 {
    checksum(&[&array.to_le_bytes()[..], &salt.to_le_bytes()].concat())
}
