//! Betr: POSIX files in the order of their paths, in the dictionary of a volume.
//!
//! Invariants
//!  1. Every change of names is one transaction: a crash leaves all of it or nothing.
//!  2. A zone is a file, or a directory and what lies below it but for zones in it. What moves with a directory that is no
//!     zone's root is bounded: sums over it are kept in the same transactions, and beyond [`Zones::largest`] it becomes a zone.
//!  3. What is built in several transactions is noted before, and nothing names it until the last one.
//!  4. Contents are what lies in the file's block range, under the pieces that lie in the dictionary. Behind the end of the file
//!     both are zeros.
//!  5. Contents of a file without names stay where they were; before what lies around them moves, they are brought away.
//!
//! Layout    the module `keys`.
//! Costs     creating or removing a name: one transaction of some small messages, one more for each directory up to the
//!           zone's root. Overwriting less than a block: one message, nothing is read. Removing a file: one message for the
//!           name, one range delete for contents in the dictionary, one for those in blocks.
//! Departs   BetrFS 0.2 (Yuan et al., FAST '16) keeps all contents in its data tree and avoids writing them twice by binding
//!           log entries late; here the log is where contents stay, and only small files and small changes are in the
//!           dictionary. Its keys hold names; ours hold the positions of names, so that they are short and are cookies.

mod ahead;
mod audit;
mod data;
mod fs;
#[cfg(test)]
mod golden;
mod inode;
mod keys;
mod locate;
mod namespace;
mod open;
mod record;
mod rename;
mod repair;
mod salvage;
mod seen;
mod shift;
mod way;
mod zones;

pub use audit::Audit;

use crate::inode::{Inode, Placed, Spot, Table};
use crate::keys::Place;
use crate::record::{Entry, Record, Stored};
use ashlar_env::Env;
use ashlar_inodes::{InodeStore, Numbers, blocks_of, visit, xattr_keys};
use ashlar_pool::{Pool, Txn, Volume};
use ashlar_units::{Blocks, Bytes as Size};
use ashlar_vfs::{FileSystem, Ino, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory of an inode with its name and its share of the table.
pub const INODE_MEMORY: Size = Size(768);

/// How a file system divides into zones; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones {
    /// A zone below this size is merged with the one above (`C0` of the paper).
    pub smallest: Size,
    /// What is not a zone's root and beyond this size becomes one (`C1` of the paper).
    pub largest: Size,
    /// Files up to this size are kept in the dictionary: more make filling dear, and scans of trees cheap, a little since others are
    /// read ahead and more once the tree has aged.
    pub inline: Size,
}

impl Default for Zones {
    fn default() -> Zones {
        Zones { smallest: Size(512 << 10), largest: Size(512 << 10), inline: Size(16 << 10) }
    }
}

ashlar_env::rules! {
    NoteBeforeBuilding = "note-before-building":
        "what is built in several transactions is noted before",
    NoteOrphans = "note-orphans":
        "a used file that loses its last name is noted in the same transaction",
    EvacuateBeforeMoving = "evacuate-before-moving":
        "contents of files without names are brought away before what lies around them moves",
    NoteNames = "note-names":
        "a name in a directory that was just made is noted before it is given",
    LockWhatMoves = "lock-what-moves":
        "inodes and directories of a name are locked while it moves",
    ForgetChanged = "forget-changed":
        "what is known of blocks that were read is forgotten when they change in another way",
    NoteWays = "note-ways":
        "the way to an inode is stored in the transaction that gives or moves its name",
}

/// How an open file system behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Change nothing; for snapshots.
    pub read_only: bool,
    /// Reading changes no access times.
    pub no_access_times: bool,
    /// Bits of the name hash that count; fewer than 55 provoke collisions, for tests.
    pub hash_bits: u32,
    /// Memory for inodes, which others may share. With more of them the door is asked to give some back; each takes [`INODE_MEMORY`].
    pub inodes: ashlar_inodes::Room,
    /// Bytes of one transaction of a move, at most; less makes moves take several, for tests.
    pub part_len_max: usize,
    /// A rule to break.
    pub without: Option<Rule>,
}

impl Default for Options {
    fn default() -> Options {
        let part_len_max = ashlar_pool::OPERATIONS_BYTES_MAX / 2;
        Options {
            read_only: false,
            no_access_times: false,
            hash_bits: 55,
            inodes: ashlar_inodes::Room::new(Size(INODE_MEMORY.0 << 20)),
            part_len_max,
            without: None,
        }
    }
}

/// An open file system.
pub struct Betr {
    volume: Volume,
    env: Env,
    options: Options,
    zones: Zones,
    /// Inodes are found by number; those of older file systems only while they are in memory.
    ways: bool,
    hash_seed: u64,
    table: Table,
    /// Where the table has its memory.
    inodes: ashlar_inodes::Share,
    /// Where everything is: held for writing while places change, for reading by all others.
    shape: tokio::sync::RwLock<()>,
    /// Of inodes, zones and ranges.
    numbers: Numbers,
    /// Inodes without names that somebody uses, with where their contents are.
    orphans: Mutex<BTreeMap<Ino, Place>>,
    /// Directories and files that may have outgrown their zone.
    grown: Mutex<BTreeSet<Ino>>,
    /// Roots of zones that may have become too small for one.
    shrunk: Mutex<BTreeSet<Ino>>,
    /// Of those who go through the tree.
    ahead: ashlar_inodes::Ahead<(Ino, Place)>,
    /// Directories that were made a short while ago.
    fresh: ashlar_inodes::Fresh,
    /// Blocks that were read a short while ago.
    seen: seen::Seen,
    splits: AtomicU64,
    merges: AtomicU64,
    closed: AtomicBool,
    /// See [`Betr::damage`].
    damage: Option<ashlar_block::Error>,
}

/// How zones have changed since the file system was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Directories and files that became zones.
    pub splits: u64,
    /// Zones that were merged with the one above.
    pub merges: u64,
    /// Files without names that are in use.
    pub orphans: u64,
}

impl Betr {
    /// Writes everything, durably, and stops.
    pub async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        if self.options.read_only { Ok(()) } else { self.syncfs().await }
    }

    /// Why it takes no changes although it was to: what is needed for them is damaged. It can be read.
    pub fn damage(&self) -> Option<&ashlar_block::Error> {
        self.damage.as_ref()
    }

    /// The pool below.
    pub fn pool(&self) -> &Pool {
        self.volume.pool()
    }
    /// The volume below.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
    /// How the file system divides into zones.
    pub fn zones(&self) -> Zones {
        self.zones
    }
    /// How zones have changed.
    pub fn counters(&self) -> Counters {
        Counters {
            splits: self.splits.load(Ordering::Relaxed),
            merges: self.merges.load(Ordering::Relaxed),
            orphans: self.orphans.lock().len() as u64,
        }
    }
    /// Inodes in memory.
    pub fn inodes_in_memory(&self) -> usize {
        self.table.all.len()
    }

    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.options.without != Some(rule)
    }

    /// A number that no inode, zone or range has had.
    pub(crate) async fn new_number(&self) -> Result<u64> {
        self.numbers.take(&self.volume).await
    }

    /// Attributes of the root of a zone.
    pub(crate) async fn zone_root(&self, zone: u64) -> Result<Option<Record>> {
        let value = self.volume.get(&keys::of(keys::META, &Place::root_of(zone))).await?;
        Ok(value.map(|value| Entry::decode(&value)?.record()).transpose()?)
    }

    /// Stores an inode's record where it belongs. The caller holds the shape.
    pub(crate) fn put_record(&self, txn: &mut Txn, inode: &Arc<Inode>, record: &Record) {
        let spot = inode.state().own.spot.clone();
        let (key, entry) = match spot {
            Spot::Named(above) => {
                let key = keys::of(keys::META, &above.directory.place().child(above.position));
                (key, Entry { name: above.name, stored: Stored::Record(record.clone()) })
            }
            Spot::Root(zone, _) => (keys::of(keys::META, &Place::root_of(zone)), Entry::nameless(record.clone())),
            Spot::Orphan(place) => return self.note_orphan(txn, &place, record),
        };
        self.volume.put(txn, &key, entry.encode());
    }

    /// Notes a file without names in `txn`.
    pub(crate) fn note_orphan(&self, txn: &mut Txn, place: &Place, record: &Record) {
        if self.keeps(Rule::NoteOrphans) {
            let mut value = BytesMut::new();
            value.put_u16_le(place.bytes().len() as u16);
            value.put_slice(place.bytes());
            value.put_slice(&Entry::nameless(record.clone()).encode());
            self.volume.put(txn, &keys::numbered(keys::ORPHAN, record.ino), value.freeze());
        }
    }

    /// Writes all records that are newer in memory.
    pub(crate) async fn write_back(&self) -> Result<()> {
        let _shape = self.shape.read().await;
        let put = |txn: &mut Txn, inode: &Arc<Inode>, record: &Record| self.put_record(txn, inode, record);
        self.table.all.write_back(&self.volume, put, |inode| self.remove_unused(inode)).await
    }

    /// Everything of a file without names that was [noted](Betr::note_orphan) goes, in `txn`.
    fn forget_orphan(&self, txn: &mut Txn, place: &Place, record: &Record) {
        self.volume.delete(txn, &keys::numbered(keys::ORPHAN, record.ino));
        self.forget_file(txn, place, record);
    }

    /// Everything of a file without names goes, in `txn`.
    fn forget_file(&self, txn: &mut Txn, place: &Place, record: &Record) {
        if record.has_xattrs {
            let (low, high) = xattr_keys(record.ino);
            self.volume.delete_range(txn, &low, &high);
        }
        if record.contents.overlaid {
            let (low, high) = keys::contents(place, record.ino);
            self.volume.delete_range(txn, &low, &high);
        }
        if record.contents.range != 0 {
            self.volume.discard(txn, record.contents.base(), Blocks(blocks_of(record.size)));
        }
    }

    /// Inodes that lost their last name before a crash.
    async fn reap_orphans(&self) -> Result<()> {
        for (_, value) in self.all_under(keys::ORPHAN).await? {
            let (place, record) = decode_orphan(value)?;
            let mut txn = Txn::new().deleting();
            self.forget_orphan(&mut txn, &place, &record);
            self.volume.commit(txn).await?;
        }
        Ok(())
    }

    /// All entries whose keys begin with this byte: of kinds of which there are few.
    pub(crate) async fn all_under(&self, prefix: u8) -> Result<Vec<(Bytes, Bytes)>> {
        let mut all = Vec::new();
        let note = |key: &[u8], value: &Bytes| {
            all.push((Bytes::copy_from_slice(key), value.clone()));
            Ok(ControlFlow::Continue(()))
        };
        visit(&self.volume, &[prefix], &[prefix + 1], note).await?;
        Ok(all)
    }
}

/// Place and attributes of a file without names, as they are noted.
pub(crate) fn decode_orphan(mut value: Bytes) -> Result<(Place, Record)> {
    let short = || keys::damaged("a note of a file without names is cut short");
    let len = usize::from(value.try_get_u16_le().map_err(|_| short())?);
    if len > value.len() {
        return Err(short().into());
    }
    let place = Place::decode(&value.split_to(len))?;
    Ok((place, Entry::decode(&value)?.record()?))
}
