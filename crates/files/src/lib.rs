//! Files: POSIX on one volume.
//!
//! Invariants
//!  1. Every change of names is one transaction: a crash leaves all of it or nothing.
//!  2. Bytes behind the end of a file are zeros in the block map, so that extending a file shows zeros.
//!  3. A block range belongs to one file: inode `n` owns 256 blocks at `n << 8`; a file that outgrows them owns a slot of
//!     2^32 blocks in the upper half of the space. Moving from one to the other is a remap: no data is copied.
//!  4. A directory entry's place is its name's hash, and its cookie is its place: cookies outlive every other change.
//!
//! Layout    the module `keys`.
//! Costs     creating or removing a name is one transaction of three or four small messages and no reading of what is not
//!           in memory but one lookup of the name; a directory of ten million entries is read like one of ten.
//! Departs   DFS (Josephson et al., FAST '10, §4.2) gives every file 2^32 contiguous bytes or the whole volume, finds
//!           directories by scanning and changes metadata in its own journal; here metadata are messages of the volume's
//!           dictionary, in the same transactions as the data.

mod ahead;
mod audit;
mod behind;
mod data;
mod fs;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod golden;
mod inode;
mod keys;
mod namespace;
mod places;
mod repair;
mod slots;

pub use ashlar_inodes::Lost;
pub use audit::Audit;
pub use behind::WriteBehind;
pub use places::Piece;

use crate::inode::Table;
use crate::keys::{Record, base_of, blocks_in_range, decode_record, encode_record};
use ashlar_block::Kind;
use ashlar_env::Env;
use ashlar_inodes::{
    InodeStore, NUMBER_LOT, Numbers, WRITE_BACK_INTERVAL, number_value, read_number, visit, xattr_keys,
};
use ashlar_pool::{Pool, Txn, Volume};
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{FileKind, FileSystem, Ino, ROOT, Result, Time};
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory of an inode, with its share of the table.
pub const INODE_MEMORY: ashlar_units::Bytes = ashlar_units::Bytes(544);
/// Directories in each other that a path is followed through; Linux takes paths of 4096 bytes.
const DEPTH_MAX: usize = 4096;

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
}

impl Default for Options {
    fn default() -> Options {
        let inodes = ashlar_inodes::Room::new(ashlar_units::Bytes(INODE_MEMORY.0 << 20));
        Options { read_only: false, no_access_times: false, hash_bits: 55, inodes }
    }
}

/// An open file system.
pub struct Files {
    volume: Volume,
    env: Env,
    options: Options,
    hash_seed: u64,
    table: Table,
    /// Where the table has its memory.
    inodes: ashlar_inodes::Share,
    /// Of those who go through a tree.
    ahead: ashlar_inodes::Ahead<Ino>,
    /// Directories that were made a short while ago.
    fresh: ashlar_inodes::Fresh,
    numbers: Numbers,
    slots: tokio::sync::Mutex<slots::Slots>,
    /// Renames of directories between directories, one at a time: they could make a loop together.
    moving: tokio::sync::Mutex<()>,
    closed: AtomicBool,
    /// See [`Files::damage`].
    damage: Option<ashlar_block::Error>,
}

impl Files {
    /// Makes an empty file system on an empty volume, whose root belongs to this user and group.
    pub async fn format(volume: &Volume, uid: u32, gid: u32) -> Result<()> {
        let env = volume.pool().env();
        let root = Record::root(Time::from(env.wall()), uid, gid);
        let mut txn = Txn::new();
        let mut format = vec![keys::VERSION];
        format.extend_from_slice(&env.random().to_le_bytes());
        volume.put(&mut txn, keys::FORMAT, format.clone());
        volume.put(&mut txn, keys::FORMAT_COPY, format);
        volume.put(&mut txn, keys::NEXT_INO, number_value(ROOT + 1));
        volume.put(&mut txn, &keys::inode(ROOT), encode_record(&root));
        let seq = volume.commit(txn).await?;
        volume.pool().sync(seq).await?;
        Ok(())
    }

    /// Opens a file system, and finishes what a crash interrupted, as far as it can be read. If what is needed for changes cannot
    /// be read, nothing can be changed: see [`Files::damage`].
    pub async fn open(volume: Volume, options: Options) -> Result<Arc<Files>> {
        let format = Files::read_format(&volume).await?.ok_or_else(|| {
            ashlar_block::Error::misuse("the volume holds no file system; make one with `ashlar fs create`")
        })?;
        let (version, seed) = format.split_first().ok_or_else(|| keys::damaged("the format record is empty"))?;
        if *version != keys::VERSION {
            let message = format!("the file system has format {version}; this build knows {}", keys::VERSION);
            return Err(ashlar_block::Error::new(Kind::Unsupported, message).into());
        }
        let hash_seed = read_number(seed)?;
        let counter = |value: Option<Bytes>, zero: u64| value.map_or(Ok(zero), |value| read_number(&value));
        let counters = [volume.get(keys::NEXT_INO).await, volume.get(keys::NEXT_SLOT).await];
        let damage = counters.iter().filter_map(|read| read.as_ref().err()).find(|error| error.is_damage()).cloned();
        let options = Options { read_only: options.read_only || damage.is_some(), ..options };
        let [next_ino, next_slot] = if damage.is_some() { [Ok(None), Ok(None)] } else { counters };
        let (next_ino, next_slot) = (counter(next_ino?, ROOT + 1)?, counter(next_slot?, 0)?);
        let next_slot = keys::slot_number(Some(next_slot)).filter(|_| next_ino <= keys::INO_MAX + NUMBER_LOT);
        let next_slot = next_slot.ok_or_else(|| keys::damaged("a counter is out of range"))?;
        let files = Arc::new(Files {
            env: volume.pool().env().clone(),
            inodes: options.inodes.join(INODE_MEMORY),
            hash_seed,
            table: Table::default(),
            ahead: ashlar_inodes::Ahead::new(volume.ahead_memory()),
            fresh: ashlar_inodes::Fresh::default(),
            numbers: Numbers::new(keys::NEXT_INO, next_ino, keys::INO_MAX),
            slots: tokio::sync::Mutex::new(slots::Slots::new(next_slot)),
            moving: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
            damage,
            options,
            volume,
        });
        if !files.options.read_only {
            // What cannot be read keeps its space, and is looked at again next time.
            for done in [files.forget_unfinished_slots().await, files.reap_orphans().await] {
                match done {
                    Err(error) if error.cause.as_deref().is_some_and(ashlar_block::Error::is_damage) => {}
                    other => other?,
                }
            }
            let weak = Arc::downgrade(&files);
            drop(files.env.spawn(write_back_on(files.env.clone(), weak)));
        }
        Ok(files)
    }

    /// The format, from either copy; an error if neither is there and one cannot be read.
    async fn read_format(volume: &Volume) -> ashlar_block::Result<Option<Bytes>> {
        match volume.get(keys::FORMAT).await {
            Ok(Some(format)) => Ok(Some(format)),
            first => match volume.get(keys::FORMAT_COPY).await {
                Ok(Some(copy)) => Ok(Some(copy)),
                Ok(None) => first,
                second => first.and(second),
            },
        }
    }

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

    /// Inodes in memory.
    pub fn inodes_in_memory(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn put_record(&self, txn: &mut Txn, record: &Record) {
        self.volume.put(txn, &keys::inode(record.ino), encode_record(record));
    }

    /// Writes all records that are newer in memory.
    async fn write_back(&self) -> Result<()> {
        let put = |txn: &mut Txn, _: &_, record: &Record| {
            if record.links > 0 {
                self.put_record(txn, record);
            }
        };
        self.table.write_back(&self.volume, put, |inode| self.remove_unused(inode)).await
    }

    /// Forgets what has no names: its record, attributes and data.
    async fn reap_record(&self, record: &Record) -> Result<()> {
        let mut txn = Txn::new().deleting();
        self.volume.delete(&mut txn, &keys::orphan(record.ino));
        self.volume.delete(&mut txn, &keys::inode(record.ino));
        if record.has_xattrs {
            let (low, high) = xattr_keys(record.ino);
            self.volume.delete_range(&mut txn, &low, &high);
        }
        if record.kind == FileKind::File {
            self.discard_data(&mut txn, record);
        }
        let freed = record.contents.slot();
        if let Some(slot) = freed {
            self.volume.put(&mut txn, &keys::free_slot(slot), Bytes::new());
        }
        self.volume.commit(txn).await?;
        if let Some(slot) = freed {
            self.slots.lock().await.give_back(slot);
        }
        Ok(())
    }

    /// Gives up all data of a file.
    pub(crate) fn discard_data(&self, txn: &mut Txn, record: &Record) {
        let blocks = blocks_in_range(record);
        if blocks > 0 {
            self.volume.discard(txn, base_of(record), Blocks(blocks));
        }
    }

    /// Inodes that lost their last name before a crash.
    async fn reap_orphans(&self) -> Result<()> {
        for ino in self.numbers_under(keys::ORPHAN, keys::ino_in).await? {
            match self.volume.get(&keys::inode(ino)).await? {
                Some(value) => self.reap_record(&decode_record(ino, &value)?).await?,
                None => {
                    let mut txn = Txn::new().deleting();
                    self.volume.delete(&mut txn, &keys::orphan(ino));
                    self.volume.commit(txn).await?;
                }
            }
        }
        Ok(())
    }

    /// What `decode` finds in all keys that begin with this byte.
    pub(crate) async fn numbers_under<T: Send>(
        &self,
        prefix: u8,
        decode: impl Fn(&[u8]) -> ashlar_block::Result<T> + Send + Sync,
    ) -> Result<Vec<T>> {
        let mut numbers = Vec::new();
        let note = |key: &[u8], _: &Bytes| {
            numbers.push(decode(key)?);
            Ok(ControlFlow::Continue(()))
        };
        visit(&self.volume, &[prefix], &[prefix + 1], note).await?;
        Ok(numbers)
    }

    /// What a block of the volume belongs to: an inode, and the byte offset in it. For reports of damage.
    pub async fn file_at(&self, block: Lba) -> Result<Option<(Ino, u64)>> {
        let (owner, within) = keys::owner_of(block);
        let offset = Blocks(within).to_bytes().0;
        let slot = match owner {
            keys::Owner::Inode(ino) => return Ok(Some((ino, offset))),
            keys::Owner::Slot(slot) => slot,
        };
        let mut found = None;
        let look = |key: &[u8], value: &Bytes| {
            let ino = keys::ino_in(key)?;
            if decode_record(ino, value)?.contents.slot() != Some(slot) {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some((ino, offset));
            Ok(ControlFlow::Break(()))
        };
        visit(&self.volume, &[keys::INODE], &[keys::INODE + 1], look).await?;
        Ok(found)
    }

    /// Files that reach into these blocks, up to `most`, with the byte offset and the bytes that they have there; and how many more
    /// there are. What lies behind damage in the dictionary is not among them.
    pub async fn files_in(&self, first: Lba, count: Blocks, most: usize) -> Result<(Vec<(Ino, u64, u64)>, u64)> {
        let (mut found, mut more) = (Vec::new(), 0);
        let end = first.0.saturating_add(count.0);
        let look = |key: &[u8], value: &Bytes| {
            let ino = keys::ino_in(key)?;
            let record = decode_record(ino, value)?;
            if record.kind == FileKind::File {
                let base = keys::base_of(&record).0;
                let size = record.size.min(record.contents.blocks_max().saturating_mul(ashlar_inodes::BLOCK));
                let from = first.0.saturating_sub(base).saturating_mul(ashlar_inodes::BLOCK);
                let to = end.saturating_sub(base).saturating_mul(ashlar_inodes::BLOCK).min(size);
                if from < to && found.len() < most {
                    found.push((ino, from, to - from));
                } else if from < to {
                    more += 1;
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        match visit(&self.volume, &[keys::INODE], &[keys::INODE + 1], look).await {
            Err(error) if found.is_empty() => Err(error),
            _ => Ok((found, more)),
        }
    }

    /// A path that leads to an inode; `None` if it has no name. It reads all entries if the inode is no directory.
    pub async fn path_of(&self, ino: Ino) -> Result<Option<String>> {
        let (mut at, mut path) = (ino, String::new());
        for _ in 0..DEPTH_MAX {
            if at == ROOT {
                return Ok(Some(path));
            }
            let Some(value) = self.volume.get(&keys::inode(at)).await? else { return Ok(None) };
            let record = decode_record(at, &value)?;
            // A directory knows where it lies.
            let (low, high) = match record.kind {
                FileKind::Directory => (keys::entry(record.parent, 0), keys::entry(record.parent.saturating_add(1), 0)),
                _ => (vec![keys::ENTRY], vec![keys::ENTRY + 1]),
            };
            let mut found = None;
            let look = |key: &[u8], value: &Bytes| {
                let entry = keys::Entry::decode(value)?;
                if entry.ino != at {
                    return Ok(ControlFlow::Continue(()));
                }
                found = Some((keys::ino_in(key)?, entry.name));
                Ok(ControlFlow::Break(()))
            };
            visit(&self.volume, &low, &high, look).await?;
            let Some((directory, name)) = found else { return Ok(None) };
            path = format!("/{}{path}", String::from_utf8_lossy(&name));
            at = directory;
        }
        Ok(None) // damaged directories that lie in each other
    }
}

/// Writes back times every few seconds.
async fn write_back_on(env: Env, files: std::sync::Weak<Files>) {
    loop {
        env.sleep(WRITE_BACK_INTERVAL).await;
        let Some(files) = files.upgrade() else { return };
        if files.closed.load(Ordering::Acquire) || files.write_back().await.is_err() {
            return; // the pool is poisoned: every caller learns it
        }
    }
}
