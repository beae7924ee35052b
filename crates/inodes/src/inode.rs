//! Inodes in memory.

use crate::{BLOCK, Contents, Record, blocks_of};
use ashlar_env::Instant;
use ashlar_pool::{Seq, Txn, Volume};
use ashlar_vfs::{Attr, FileKind, Ino, ROOT, Result, Time};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OnceCell, OwnedRwLockWriteGuard, RwLock};

const SHARDS: usize = 64;
/// Records written in one transaction.
const RECORDS_PER_COMMIT: usize = 512;

/// How many blocks of a file are stored, as somebody has counted.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// So many.
    pub blocks: u64,
    /// Keys that were looked at for that.
    pub keys: usize,
    /// [`State::version`] when the counting began.
    pub version: u64,
}

/// What is known of an inode.
#[derive(Debug)]
pub struct State<C, O = ()> {
    /// Attributes.
    pub record: Record<C>,
    /// What the engine notes besides.
    pub own: O,
    /// References that the door holds.
    pub lookups: u64,
    /// Open handles that the door counts.
    pub handles: u64,
    /// The record in memory is newer than the one in the dictionary: times.
    pub dirty: bool,
    /// The newest commit that concerns this inode.
    pub seq: Seq,
    /// Stored blocks of a sparse file, when somebody last counted them; and until when that will do, although it has changed since.
    counted: Option<(Counted, Instant)>,
    /// Goes up with every change of what is stored.
    pub version: u64,
    /// Everything of it is gone.
    pub reaped: bool,
}

impl<C: Contents, O> State<C, O> {
    /// What the dictionary has, which no commit behind `seq` concerns; nobody uses it.
    pub fn new(record: Record<C>, own: O, seq: Seq) -> State<C, O> {
        State { record, own, lookups: 0, handles: 0, dirty: false, seq, counted: None, version: 0, reaped: false }
    }

    /// The same with a reference, and perhaps a handle: of a new inode.
    pub fn used(self, open: bool) -> State<C, O> {
        State { lookups: 1, handles: u64::from(open), ..self }
    }

    /// Whether the door knows of it.
    pub fn is_used(&self) -> bool {
        self.lookups > 0 || self.handles > 0
    }

    /// A commit concerned this inode.
    pub fn follow(&mut self, seq: Seq) {
        self.seq = self.seq.max(seq);
    }

    /// What is stored has changed.
    pub fn stored_changed(&mut self) {
        self.version += 1;
    }

    /// This record was committed.
    pub fn adopt(&mut self, record: Record<C>, seq: Seq) {
        (self.record, self.dirty) = (record, false);
        self.follow(seq);
    }

    /// Contents were committed with which no more than times of the record changed; it is written back later.
    pub fn adopt_times(&mut self, record: Record<C>, seq: Seq) {
        self.dirty |= self.record != record;
        self.record = record;
        self.stored_changed();
        self.follow(seq);
    }

    /// Contents are read: the access time changes in memory.
    pub fn access(&mut self, now: Time) {
        self.dirty |= self.record.access(now);
    }

    /// The record, if it is newer in memory than in the dictionary, and still somebody's.
    pub fn unwritten(&self) -> Option<Record<C>> {
        (self.dirty && !self.reaped).then(|| self.record.clone())
    }

    /// Stored blocks were counted, which will do until then whatever changes.
    pub fn note_count(&mut self, counted: Counted, until: Instant) {
        if self.counted.is_none_or(|(last, _)| last.version <= counted.version) {
            self.counted = Some((counted, until));
        }
    }

    /// Attributes as they are known. What a sparse file takes may be estimated by its size: files are written much more often
    /// than that is wanted.
    pub fn attr(&self) -> Attr {
        self.attr_at(None)
    }

    /// The same; what a sparse file takes may be as it was counted last, if that will do now.
    pub(crate) fn attr_at(&self, now: Option<Instant>) -> Attr {
        let most = blocks_of(self.record.size);
        let (blocks, estimated) = match (self.record.kind, self.counted) {
            (FileKind::File, _) if !self.record.sparse => (most, None),
            (FileKind::File, Some((last, _))) if last.version == self.version => (last.blocks, None),
            // Who finds a file without blocks takes it for one hole.
            (FileKind::File, Some((last, until))) if now.is_some_and(|now| now < until) => {
                (last.blocks.max(1).min(most), now.map(|now| until.since(now)))
            }
            (FileKind::File, _) => (most, Some(Duration::ZERO)),
            _ => (0, None),
        };
        Attr { estimated, ..self.record.attr(blocks * BLOCK) }
    }
}

/// What holds the state of an inode: a mutex, or one that is filled when the inode is first asked for.
pub trait Cell: Send + Sync + 'static {
    /// What an engine notes about contents.
    type Contents: Contents;
    /// What it notes besides.
    type Own: Send + 'static;

    /// One with this state.
    fn with(state: State<Self::Contents, Self::Own>) -> Self;
    /// The state, if it is there.
    fn get(&self) -> Option<&Mutex<State<Self::Contents, Self::Own>>>;
}

/// The state in a cell.
pub type StateOf<K> = State<<K as Cell>::Contents, <K as Cell>::Own>;
/// The record of an inode with this cell.
pub type RecordOf<K> = Record<<K as Cell>::Contents>;

impl<C: Contents, O: Send + 'static> Cell for Mutex<State<C, O>> {
    type Contents = C;
    type Own = O;
    fn with(state: State<C, O>) -> Self {
        Mutex::new(state)
    }
    fn get(&self) -> Option<&Mutex<State<C, O>>> {
        Some(self)
    }
}

impl<C: Contents, O: Send + 'static> Cell for OnceCell<Mutex<State<C, O>>> {
    type Contents = C;
    type Own = O;
    fn with(state: State<C, O>) -> Self {
        OnceCell::new_with(Some(Mutex::new(state)))
    }
    fn get(&self) -> Option<&Mutex<State<C, O>>> {
        OnceCell::get(self)
    }
}

/// An inode.
pub struct Inode<K> {
    /// Its number.
    pub ino: Ino,
    /// Its state.
    pub cell: K,
    /// Shared: reading contents. Exclusive: everything that changes the record or a directory. The engine says whether contents may
    /// change under the shared lock.
    pub lock: Arc<RwLock<()>>,
    /// Asked for since the clock hand last came by.
    recent: AtomicBool,
}

impl<K: Cell> Inode<K> {
    /// An inode that is not in a table yet.
    pub fn new(ino: Ino, cell: K) -> Arc<Inode<K>> {
        Arc::new(Inode { ino, cell, lock: Arc::default(), recent: AtomicBool::new(true) })
    }
    /// Somebody asks for it: the clock hand passes it once.
    pub fn mark(&self) {
        self.recent.store(true, Ordering::Relaxed);
    }
    /// The state, which is there once an inode is handed out.
    pub fn state(&self) -> MutexGuard<'_, StateOf<K>> {
        self.cell.get().expect("an inode is handed out when it is loaded").lock()
    }
    /// The record as it is in memory.
    pub fn record(&self) -> RecordOf<K> {
        self.state().record.clone()
    }
    /// See [`State::attr`].
    pub fn attr(&self) -> Attr {
        self.state().attr()
    }
}

/// Locks inodes for writing, in order of their numbers; the same inode may be named twice.
pub async fn lock_all<K>(inodes: &[&Arc<Inode<K>>]) -> Vec<OwnedRwLockWriteGuard<()>> {
    let mut order = inodes.to_vec();
    order.sort_by_key(|inode| inode.ino);
    order.dedup_by_key(|inode| inode.ino);
    let mut guards = Vec::with_capacity(order.len());
    for inode in order {
        guards.push(inode.lock.clone().write_owned().await);
    }
    guards
}

/// Some inodes by number.
pub type Shard<K> = HashMap<Ino, Arc<Inode<K>>>;

/// All inodes in memory. How they come in and when they leave is the engine's business.
pub struct Table<K> {
    shards: [Mutex<Shard<K>>; SHARDS],
    /// Where the clock hand is: see [`Table::surplus`].
    hand: AtomicUsize,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table { shards: std::array::from_fn(|_| Mutex::default()), hand: AtomicUsize::new(0) }
    }
}

impl<K: Cell> Table<K> {
    /// The inodes among which this one is, if it is in memory.
    pub fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard<K>> {
        self.shards[ino as usize % SHARDS].lock()
    }
    /// Adds a new inode.
    pub fn insert(&self, state: StateOf<K>) -> Arc<Inode<K>> {
        let inode = Inode::new(state.record.ino, K::with(state));
        self.shard(inode.ino).insert(inode.ino, inode.clone());
        inode
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// With more than `most` inodes: about as many as it takes to be an eighth below, by second chance.
    pub fn surplus(&self, most: usize) -> Vec<Ino> {
        let held = self.len();
        let wanted = if held > most { held - most / 8 * 7 } else { 0 };
        let mut chosen = Vec::new();
        for _ in 0..2 * SHARDS {
            if chosen.len() >= wanted {
                break;
            }
            let shard = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let idle = |inode: &&Arc<Inode<K>>| !inode.recent.swap(false, Ordering::Relaxed) && inode.ino != ROOT;
            chosen.extend(self.shards[shard].lock().values().filter(idle).map(|inode| inode.ino));
        }
        chosen
    }

    /// Every inode that is newer in memory than in the dictionary.
    fn dirty(&self) -> Vec<Arc<Inode<K>>> {
        let is_dirty = |inode: &&Arc<Inode<K>>| inode.cell.get().is_some_and(|state| state.lock().dirty);
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().values().filter(is_dirty).cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Writes all records that are newer in memory, many in a transaction, as `put` does. Who let go of an inode meanwhile found it in
    /// use, so each goes to `remove_unused` in the end.
    pub async fn write_back(
        &self,
        volume: &Volume,
        put: impl Fn(&mut Txn, &Arc<Inode<K>>, &RecordOf<K>) + Send + Sync,
        remove_unused: impl Fn(Arc<Inode<K>>) + Send + Sync,
    ) -> Result<()> {
        let mut dirty = self.dirty();
        while !dirty.is_empty() {
            let lot = dirty.split_off(dirty.len().saturating_sub(RECORDS_PER_COMMIT));
            let locks = lock_all(&lot.iter().collect::<Vec<_>>()).await;
            let mut txn = Txn::new();
            for inode in &lot {
                let record = inode.state().unwritten();
                record.iter().for_each(|record| put(&mut txn, inode, record));
            }
            let seq = volume.commit(txn).await?;
            for inode in &lot {
                let mut state = inode.state();
                state.dirty = false;
                state.follow(seq);
            }
            drop(locks);
            lot.into_iter().for_each(&remove_unused);
        }
        Ok(())
    }
}
