//! Commits: the short critical section, the writing of sealed batches, and group sync.

use crate::format::{Stream, VolumeKind};
use crate::map::{CHUNK_BLOCKS, Form, Lost, Map, Run, chunk_key, decode, encode};
use crate::space::Claim;
use crate::store::{Held, Holding};
use crate::stream::Sealed;
use crate::{Pool, Rule, Seq, Shared, VolumeState};
use ashlar_block::{Durability, Error, IoContext, Kind, Result};
use ashlar_env::Instant;
use ashlar_index::{Key, Message, Tree};
use ashlar_units::BLOCK_LEN;
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const WRITE: IoContext = IoContext::foreground("pool-write");
const SYNC: IoContext = IoContext::foreground("pool-sync");

/// Unwritten batches may take this share of the memory budget before writers wait.
pub(crate) const IN_FLIGHT_SHARE: usize = 8;
/// They wait before that if the devices have to write for so long, but for so many bytes never.
const IN_FLIGHT: (Duration, usize) = (Duration::from_millis(50), 4 << 20);
/// The same while somebody syncs, or did within [`AGAIN`], if flushes are slow: who syncs waits for all of it, and then for a flush of
/// what was written meanwhile.
const IN_FLIGHT_SYNCING: (Duration, usize) = (Duration::from_millis(5), 1 << 20);
/// Who syncs will do so again within this time.
const AGAIN: Duration = Duration::from_secs(1);
/// Data of a transaction up to this size are little.
const LITTLE: usize = 64 << 10;
/// Memtables that take this share of the memory budget are pushed into the tree; with half more, commits wait for that. As much
/// again may be on its way there. A larger share costs nodes in memory, a smaller one more writing: see docs/index.md.
pub(crate) const MEMTABLES_SHARE: usize = 8;
/// Operations of one transaction, in bytes; it must fit a batch's body.
pub const OPERATIONS_BYTES_MAX: usize = 512 << 10;

/// Bytes that an extent takes in a batch's body beside its key, at most.
const ITEM_LEN: usize = 32;

/// Rounds in which space is searched for a transaction, at most; two of them in vain.
const TRIES_MAX: u32 = 20;

/// A write waits this long for each segment that is missing to the low mark.
const PACE_STEP: std::time::Duration = std::time::Duration::from_micros(500);

/// Where the first data of a transaction belong: tree, key, block behind the key. `None`: it has none, and is the first of its round.
pub(crate) type Position = Option<(u64, Key, u8)>;

/// One extent to write: its bytes as stored, with checksums made before the lock is taken.
#[derive(Clone, Debug)]
pub struct TxnData {
    tree: u64,
    key: Key,
    run: Run,
    stored: Bytes,
}

#[derive(Clone, Debug)]
enum Change {
    Put(u64, Key, Bytes),
    Delete(u64, Key),
    DeleteRange(u64, Key, Key),
    /// A patch of a dictionary value; see [`crate::patches`].
    Overlay(u64, Key, Bytes),
    /// Holes, or further references to extents.
    Patch(u64, Key, Vec<Run>),
    /// What still refers to the first run refers to the second instead.
    Relocate(u64, Key, Run, Run),
    Write(TxnData),
}

/// Changes that happen together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// Kept from the moment when references are read until they are committed: extents must not move meanwhile.
    pub(crate) still: Option<Arc<tokio::sync::OwnedRwLockReadGuard<()>>>,
    changes: Vec<Change>,
    deletes_only: bool,
    /// May change a volume that is being destroyed.
    pub(crate) closing: bool,
    /// Nodes that its relocations need, whatever the cache keeps.
    pub(crate) held: Arc<Held>,
    room: Option<Arc<Room>>,
}

impl Txn {
    /// An empty transaction.
    pub fn new() -> Txn {
        Txn::default()
    }
    /// Lets the transaction use the reserve: for deletions, which must work on a full pool.
    pub fn deleting(mut self) -> Txn {
        self.deletes_only = true;
        self
    }
    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
    /// Where its first data belong.
    fn position(&self) -> Position {
        self.writes().next().map(|data| (data.tree, data.key.clone(), data.run.start))
    }
    /// Bytes of its data, as they are stored.
    fn data_len(&self) -> usize {
        self.writes().map(|data| data.stored.len()).sum()
    }
    fn writes(&self) -> impl Iterator<Item = &TxnData> {
        self.changes.iter().filter_map(|change| match change {
            Change::Write(data) => Some(data),
            _ => None,
        })
    }
    pub(crate) fn put(&mut self, tree: u64, key: Key, value: Bytes) {
        self.changes.push(Change::Put(tree, key, value));
    }
    pub(crate) fn delete(&mut self, tree: u64, key: Key) {
        self.changes.push(Change::Delete(tree, key));
    }
    pub(crate) fn delete_range(&mut self, tree: u64, low: Key, high: Key) {
        self.changes.push(Change::DeleteRange(tree, low, high));
    }
    pub(crate) fn overlay(&mut self, tree: u64, key: Key, patch: Bytes) {
        self.changes.push(Change::Overlay(tree, key, patch));
    }
    /// Adds the changes of another, behind these. Either may be of deletions; the whole is only if both are.
    pub fn append(&mut self, mut other: Txn) {
        self.still = self.still.take().or(other.still);
        self.room = self.room.take().or(other.room);
        self.changes.append(&mut other.changes);
        self.deletes_only &= other.deletes_only;
    }
    /// Bytes of operations, of which a transaction takes [`OPERATIONS_BYTES_MAX`].
    pub fn operations_len(&self) -> usize {
        self.changes.iter().map(Change::operation_len).sum()
    }
    pub(crate) fn patch(&mut self, tree: u64, key: Key, runs: Vec<Run>) {
        self.changes.push(Change::Patch(tree, key, runs));
    }
    /// Makes what still refers to `from` when the transaction is applied refer to `to`, a copy.
    pub(crate) fn relocate(&mut self, tree: u64, key: Key, from: Run, to: Run) {
        self.changes.push(Change::Relocate(tree, key, from, to));
    }

    /// Stores `data` from `block` on; the last block may be short, the rest of it is zeros. `pack` compresses.
    pub(crate) fn write(&mut self, tree: u64, block: u64, data: &Bytes, pack: impl Fn(&[u8]) -> Option<(Form, Bytes)>) {
        let mut at = block;
        let mut rest = data.clone();
        while !rest.is_empty() {
            let room = (CHUNK_BLOCKS - at % CHUNK_BLOCKS) as usize * BLOCK_LEN;
            let part = rest.split_to(room.min(rest.len()));
            let count = part.len().div_ceil(BLOCK_LEN) as u8;
            let start = (at % CHUNK_BLOCKS) as u8;
            let packed = pack(&part);
            self.changes.push(Change::Write(extent(tree, chunk_key(at), start, count, part, packed)));
            at += u64::from(count);
        }
    }
}

/// The tree of a volume that takes changes; with `closing` also while it is being destroyed.
pub(crate) fn changeable(volumes: &BTreeMap<u64, VolumeState>, id: u64, closing: bool) -> Result<&Arc<Tree<Map>>> {
    match volumes.get(&id) {
        Some(VolumeState { kind: VolumeKind::Snapshot { .. }, name, .. }) => {
            Err(Error::new(Kind::Unsupported, format!("{name} is a snapshot: it does not change; clone it")))
        }
        Some(volume) if !volume.closing || closing => Ok(&volume.tree),
        _ => Err(Error::misuse(format!("there is no volume {id}"))),
    }
}

/// Prepares one extent: compressed if that saves at least an eighth, else as it is.
fn extent(tree: u64, key: Key, start: u8, count: u8, data: Bytes, packed: Option<(Form, Bytes)>) -> TxnData {
    let mut run = Run { total: count, form: Form::Raw, ..Run::hole(start, count) };
    let stored = match packed {
        Some((form, packed)) => {
            run.form = form;
            run.crcs = smallvec![crate::format::crc(&packed)];
            packed
        }
        None => {
            run.crcs = data.chunks(BLOCK_LEN).map(crate::format::crc).collect();
            data
        }
    };
    run.stored = stored.len() as u32;
    TxnData { tree, key, run, stored }
}

impl Change {
    fn tree(&self) -> u64 {
        let (Change::Put(id, ..)
        | Change::Delete(id, ..)
        | Change::DeleteRange(id, ..)
        | Change::Overlay(id, ..)
        | Change::Patch(id, ..)
        | Change::Relocate(id, ..)
        | Change::Write(TxnData { tree: id, .. })) = self;
        *id
    }
    fn operation_len(&self) -> usize {
        32 + match self {
            Change::Put(_, key, value) | Change::Overlay(_, key, value) => key.len() + value.len(),
            Change::Patch(_, key, runs) => key.len() + runs.iter().map(Run::encoded_len).sum::<usize>(),
            // At worst every block of it has become a run of its own.
            Change::Relocate(_, key, _, to) => key.len() + (to.count as usize).div_ceil(2) * (to.encoded_len() + 4),
            Change::Delete(_, key) => key.len(),
            Change::DeleteRange(_, low, high) => low.len() + high.len(),
            // The operation, and the item in the batch where the extent lies.
            Change::Write(data) => 2 * data.key.len() + 64 + 4 * data.run.crcs.len(),
        }
    }
}

/// A transaction that is visible, and what its caller owes for it. Who notes in memory what it changed does so before
/// [`Applied::settle`]: others go on while that waits, and would see one without the other.
#[must_use = "what is not settled holds nobody back, and memory fills"]
pub struct Applied<'a> {
    pool: &'a Pool,
    /// Its number.
    pub seq: Seq,
    deletes_only: bool,
}

impl Applied<'_> {
    /// Waits for a checkpoint if memory or free segments ask for one.
    pub async fn settle(self) -> Result<Seq> {
        let (pool, shared) = (self.pool, &self.pool.0);
        if self.deletes_only {
            shared.deleted.store(true, Ordering::Release);
        }
        if shared.note_pending() {
            pool.checkpoint_in_time().await?;
        } else if shared.memtables_full() {
            shared.due.notify_one();
            if shared.memtables_overfull() {
                pool.checkpoint().await?;
            }
        }
        Ok(self.seq)
    }
}

/// Room in memory that was promised to a transaction's data, until it is applied or dropped.
struct Room {
    pool: Pool,
    bytes: usize,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "room for {} bytes", self.bytes)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let shared = &self.pool.0;
        shared.promised.fetch_sub(self.bytes, Ordering::Relaxed);
        // Who has the turn may wait for promises alone. Who takes it later sees that this one is gone.
        if !shared.turns.is_free() {
            shared.outstanding(Stream::Log).done.notify_waiters();
        }
    }
}

impl Pool {
    /// Waits, in turn (see `turns`), until what is not yet written leaves room for this transaction's data, and keeps that for it. Whoever
    /// commits data under a lock asks before taking the lock: else all others who want that wait for the device, too.
    pub async fn make_room(&self, txn: &mut Txn) -> Result<()> {
        let shared = &self.0;
        let bytes = txn.data_len();
        let is_full = || shared.is_full(shared.promised.load(Ordering::Relaxed), bytes);
        if is_full() || (bytes > LITTLE && !shared.turns.is_free()) {
            let _turn = if bytes > LITTLE { Some(shared.turns.take(txn.position()).await) } else { None };
            while is_full() {
                shared.wait_for_writes(is_full).await?;
            }
        }
        shared.promised.fetch_add(bytes, Ordering::Relaxed);
        txn.room = Some(Arc::new(Room { pool: self.clone(), bytes }));
        Ok(())
    }

    /// Applies a transaction: visible when this returns, durable after [`Pool::sync`].
    pub async fn commit(&self, txn: Txn) -> Result<Seq> {
        self.apply(txn).await?.settle().await
    }

    /// The same in two steps: nothing is waited for between the moment when it becomes visible and the return.
    pub async fn apply(&self, txn: Txn) -> Result<Applied<'_>> {
        let shared = &self.0;
        shared.admit()?;
        let is_full = || shared.is_full(0, txn.data_len());
        while txn.room.is_none() && is_full() {
            shared.wait_for_writes(is_full).await?;
        }
        self.pace(&txn).await;
        let (mut tries, mut in_vain) = (0, 0);
        let (seq, sealed) = loop {
            let rounds = shared.space_rounds.load(Ordering::Acquire);
            match shared.apply(&txn) {
                // Others may take what a round gains.
                Err(error) if error.kind() == Kind::NoSpace && in_vain < 2 && tries < TRIES_MAX => {
                    if !self.provision().await {
                        tries += 1;
                        in_vain += u32::from(!self.make_space(rounds, txn.deletes_only).await?);
                    }
                }
                other => break other?,
            }
        };
        shared.start_writes(sealed);
        // With it goes what it kept still: a checkpoint may have to wait for a round of cleaning that moves that.
        Ok(Applied { pool: self, seq, deletes_only: txn.deletes_only })
    }

    /// The fewer segments are free, the longer ordinary writes wait for the cleaner, so that they slow down and never
    /// meet a wall.
    async fn pace(&self, txn: &Txn) {
        let shortage = if txn.deletes_only { 0 } else { self.0.space.shortage() };
        if shortage > 0 {
            self.0.due.notify_one();
            self.0.env.sleep(PACE_STEP * shortage).await;
        }
    }

    /// Lets others have their turn, and waits for a checkpoint if one is due: whoever commits much while nobody waits for it leaves the
    /// worker and the memtables to others.
    pub async fn calm(&self) {
        self.0.env.yield_now().await;
        if self.0.memtables_full() {
            // A failure poisons the pool, and whoever commits next learns it.
            let _ = self.checkpoint().await;
        }
    }

    /// Returns when everything up to `seq` is durable: one batch and one flush per device for all who wait.
    pub async fn sync(&self, seq: Seq) -> Result<()> {
        let shared = &self.0;
        if shared.durable.load(Ordering::Acquire) >= seq.0 {
            return Ok(());
        }
        let _leader = shared.syncing.lock().await;
        if shared.durable.load(Ordering::Acquire) >= seq.0 {
            return Ok(());
        }
        shared.admit()?;
        shared.synced.store(shared.env.now().0, Ordering::Relaxed);
        let (sealed, newest, ticket) = {
            let mut log = shared.log.lock();
            let mut sealed = Vec::new();
            if log.stream.has_open_batch() {
                log.stream.seal(&mut sealed);
                shared.expect(Stream::Log, &sealed);
            }
            (sealed, log.stream.chain.seq - 1, log.stream.last_ticket())
        };
        for batch in sealed {
            shared.write(Stream::Log, batch).await?;
        }
        shared.written(Stream::Log, ticket).await?;
        if shared.keeps(Rule::FlushOnSync) {
            shared.flush_devices().await?;
        }
        shared.durable.fetch_max(newest, Ordering::AcqRel);
        shared.log.lock().stream.chain.durable = newest;
        Ok(())
    }

    /// Says on the medium what is durable, when the log is quiet: with an empty batch. Batches of which nothing says so are
    /// taken for a torn tail when they are damaged, and cut.
    pub(crate) async fn announce(&self) -> Result<()> {
        let shared = &self.0;
        let mut sealed = Vec::new();
        {
            let mut log = shared.log.lock();
            let room = |log: &mut crate::Log, sealed: &mut Vec<Sealed>| {
                log.stream.make_room(0, 0, &shared.space, &shared.layout, Claim::Ordinary, sealed)
            };
            // A full pool goes without.
            if log.stream.is_unannounced() && room(&mut log, &mut sealed).is_ok() {
                log.stream.seal(&mut sealed);
            }
            shared.expect(Stream::Log, &sealed);
        }
        for batch in sealed {
            shared.write(Stream::Log, batch).await?;
        }
        Ok(())
    }

    /// Makes every commit so far durable.
    pub async fn sync_all(&self) -> Result<()> {
        self.sync(self.newest()).await
    }

    /// The newest commit. What was read before this call was committed by then.
    pub fn newest(&self) -> Seq {
        let log = self.0.log.lock();
        // The open batch, if there is one, has the chain's next number.
        Seq(log.stream.chain.seq - u64::from(!log.stream.has_open_batch()))
    }
}

impl Shared {
    /// The critical section: places extents, logs operations, applies them to memtables.
    pub(crate) fn apply(self: &Arc<Self>, txn: &Txn) -> Result<(Seq, Vec<Sealed>)> {
        let claim = if txn.deletes_only { Claim::Reserve } else { Claim::Ordinary };
        let operations_len = txn.operations_len();
        if operations_len > OPERATIONS_BYTES_MAX {
            return Err(Error::misuse(format!("a transaction of {operations_len} bytes of operations is too large")));
        }
        let volumes = self.volumes.read();
        let tree = |id: u64| changeable(&volumes, id, txn.closing);
        txn.changes.iter().try_for_each(|change| tree(change.tree()).map(|_| ()))?;
        let mut log = self.log.lock();
        let birth = log.birth;
        let mut relocated = self.resolve_relocations(&volumes, txn)?.into_iter();
        let mut sealed = Vec::new();
        let placed = self.place(&mut log, txn, operations_len, claim, birth, &mut sealed);
        let placed = match placed {
            Ok(placed) => placed,
            Err(error) => {
                // Batches sealed on the way hold nothing of this transaction that anybody refers to.
                self.expect(Stream::Log, &sealed);
                drop(log);
                self.start_writes(sealed);
                return Err(error);
            }
        };
        let mut placed = placed.into_iter();
        let patch = |log: &mut crate::Log, id: u64, key: &Key, runs: &[Run], lost: &mut Lost| -> Result<()> {
            if runs.is_empty() {
                return Ok(());
            }
            let runs: Vec<Run> = runs.iter().map(|run| Run { birth, ..run.clone() }).collect();
            let value = encode(&runs);
            log.stream.body().patch(id, key, &value);
            tree(id)?.apply(key.clone(), Message::Patch(value), lost);
            runs.iter().filter(|run| run.form != Form::Hole).for_each(|run| log.count(run));
            Ok(())
        };
        for change in self.in_order(&txn.changes) {
            let mut lost = Lost::default();
            match change {
                Change::Put(id, key, value) => {
                    log.stream.body().put(*id, key, value);
                    tree(*id)?.apply(key.clone(), Message::Put(value.clone()), &mut lost);
                }
                Change::Delete(id, key) => {
                    log.stream.body().delete(*id, key);
                    tree(*id)?.apply(key.clone(), Message::Delete, &mut lost);
                }
                Change::DeleteRange(id, low, high) => {
                    log.stream.body().delete_range(*id, low, high);
                    tree(*id)?.delete_range(low, high, &mut lost);
                }
                Change::Overlay(id, key, value) => {
                    log.stream.body().patch(*id, key, value);
                    tree(*id)?.apply(key.clone(), Message::Patch(value.clone()), &mut lost);
                }
                Change::Patch(id, key, runs) => patch(&mut log, *id, key, runs, &mut lost)?,
                Change::Relocate(id, key, ..) => {
                    let runs = relocated.next().expect("each relocation was resolved");
                    patch(&mut log, *id, key, &runs, &mut lost)?;
                }
                Change::Write(data) => {
                    let runs = placed.next().expect("each extent was placed");
                    patch(&mut log, data.tree, &data.key, &runs, &mut lost)?;
                }
            }
            log.lose(change.tree(), lost);
        }
        let seq = Seq(log.stream.chain.seq);
        self.expect(Stream::Log, &sealed);
        Ok((seq, sealed))
    }

    /// Changes in the order in which they take effect, which is theirs.
    fn in_order<'a>(&self, changes: &'a [Change]) -> impl Iterator<Item = &'a Change> {
        let broken = !self.keeps(Rule::RangesInOrder);
        let late = move |change: &&Change| broken && matches!(change, Change::DeleteRange(..));
        changes.iter().filter(move |change| !late(change)).chain(changes.iter().filter(late))
    }

    /// What relocations come to, as things stand: for each, the runs that now refer to the copy.
    fn resolve_relocations(self: &Arc<Self>, volumes: &BTreeMap<u64, VolumeState>, txn: &Txn) -> Result<Vec<Vec<Run>>> {
        let mut resolved = Vec::new();
        for change in &txn.changes {
            let Change::Relocate(id, key, from, to) = change else { continue };
            let Some(volume) = volumes.get(id) else { continue };
            let value = volume.tree.get_cached(&Holding(&Pool(self.clone()), &txn.held), key);
            let value =
                value.ok_or_else(|| Error::new(Kind::Retry, "a node on the way to a moved extent is not cached"))?;
            let same = |run: &&Run| {
                let origin = |run: &Run| i16::from(run.start) - i16::from(run.skip);
                run.form == from.form && (run.uid, run.offset) == (from.uid, from.offset) && origin(run) == origin(from)
            };
            let runs = decode(&value.unwrap_or_default())?;
            resolved.push(runs.iter().filter(same).filter_map(|run| to.part(run.start, run.end())).collect());
        }
        Ok(resolved)
    }

    /// Finds places for a transaction's extents, and room for its operations in one batch.
    fn place(
        &self,
        log: &mut crate::Log,
        txn: &Txn,
        operations_len: usize,
        claim: Claim,
        birth: u64,
        sealed: &mut Vec<Sealed>,
    ) -> Result<Vec<SmallVec<[Run; 1]>>> {
        let mut placed = Vec::new();
        // Else a deletion would open a segment from the reserve, and writes would fill it.
        if claim == Claim::Ordinary && self.space.is_overdrawn() {
            return Err(self.space.full());
        }
        // What a segment has left is filled: an extent that is stored block by block continues in the next segment.
        let mut more_operations = 0;
        for data in txn.writes() {
            let mut parts = SmallVec::new();
            let (mut run, mut stored) = (data.run.clone(), data.stored.clone());
            let body = data.key.len() + ITEM_LEN;
            loop {
                let fits = log.stream.blocks_that_fit(stored.len() as u64, body, &self.layout);
                let rest = if stored.len() == run.count as usize * BLOCK_LEN { run.divide(fits) } else { None };
                let piece = stored.split_to(run.stored as usize);
                let len = piece.len() as u64;
                log.stream.make_room(len, body, &self.space, &self.layout, claim, sealed)?;
                let (segment, offset) = log.stream.append(data.tree, &data.key, None, piece.clone());
                self.begin_flight(Stream::Log, segment.uid, offset, piece);
                log.bytes += len;
                parts.push(Run { uid: segment.uid, offset, birth, ..run });
                let Some(rest) = rest else { break };
                more_operations += rest.encoded_len();
                run = rest;
            }
            placed.push(parts);
        }
        let operations_len = operations_len + more_operations;
        log.stream.make_room(0, operations_len, &self.space, &self.layout, claim, sealed)?;
        log.bytes += operations_len as u64;
        Ok(placed)
    }

    /// Notes batches that must be written before a sync of their stream is done. Call it under the stream's lock.
    pub(crate) fn expect(&self, stream: Stream, sealed: &[Sealed]) {
        let mut tickets = self.outstanding(stream).tickets.lock();
        tickets.extend(sealed.iter().map(|batch| batch.ticket));
    }

    /// Writes batches in the background.
    pub(crate) fn start_writes(self: &Arc<Self>, sealed: Vec<Sealed>) {
        self.start_stream_writes(Stream::Log, sealed);
    }

    pub(crate) fn start_stream_writes(self: &Arc<Self>, stream: Stream, sealed: Vec<Sealed>) {
        for batch in sealed {
            let shared = self.clone();
            // A failure poisons the pool; whoever waits for the batch learns it from there.
            self.env.spawn_aside(async move { drop(shared.write(stream, batch).await) });
        }
    }

    pub(crate) async fn write(&self, stream: Stream, mut batch: Sealed) -> Result<()> {
        if !batch.holds {
            return Err(self.poisoned(Error::corrupt(
                "records of the log changed in memory before they were written: the memory of this machine is bad",
            )));
        }
        let image = batch.image();
        let len: usize = image.iter().map(Bytes::len).sum();
        self.outstanding(stream).written.fetch_add(len as u64, Ordering::Relaxed);
        let (place, address) = self.layout.locate(batch.uid, batch.block);
        let result = {
            let _writing = place.gate.write(&self.env, address.0, len as u64).await;
            place.device.write(WRITE, address, image, Durability::Cached).await
        };
        place.dirty.store(true, Ordering::Release);
        if let Err(error) = result {
            return Err(self.poisoned(error));
        }
        let mut freed = 0;
        {
            let mut in_flight = self.in_flight.write();
            for offset in &batch.keys {
                freed += in_flight.remove(&(batch.uid, *offset)).map_or(0, |stored| stored.len());
            }
        }
        let outstanding = self.outstanding(stream);
        outstanding.bytes.fetch_sub(freed, Ordering::Relaxed);
        outstanding.tickets.lock().remove(&batch.ticket);
        outstanding.done.notify_waiters();
        Ok(())
    }

    /// Waits until every batch of the stream up to `ticket` is on its device.
    pub(crate) async fn written(&self, stream: Stream, ticket: u64) -> Result<()> {
        let outstanding = self.outstanding(stream);
        loop {
            let mut done = std::pin::pin!(outstanding.done.notified());
            done.as_mut().enable();
            self.admit()?;
            if outstanding.tickets.lock().first().is_none_or(|first| *first > ticket) {
                return Ok(());
            }
            done.await;
        }
    }

    /// Whether data that are not yet on the device, and `promised` bytes more, leave no room for `len` others. Operations without data
    /// are bounded by memtables; little data finds room where a stream has filled its own, for somebody waits for it.
    fn is_full(&self, promised: usize, len: usize) -> bool {
        let bytes = self.outstanding(Stream::Log).bytes.load(Ordering::Relaxed) + promised;
        let most = self.config.memory.0 as usize / IN_FLIGHT_SHARE;
        let times = if len <= LITTLE { 2 } else { 1 };
        let too_long = || {
            let since = self.env.now().since(Instant(self.synced.load(Ordering::Relaxed)));
            let hurried = since < AGAIN && self.layout.places().any(|place| place.gate.flushes_slowly());
            let (time, least) = if hurried { IN_FLIGHT_SYNCING } else { IN_FLIGHT };
            let worth: u64 = self.layout.places().filter_map(|place| place.gate.worth(time)).sum();
            worth > 0 && bytes as u64 > times * worth.max(least as u64)
        };
        len > 0 && (bytes > most || (bytes > IN_FLIGHT_SYNCING.1 && too_long()))
    }

    /// Waits while it is full until some unwritten batch of the log is written or promised room given back; seals the open batch if
    /// that is all there is.
    async fn wait_for_writes(self: &Arc<Self>, is_full: impl Fn() -> bool) -> Result<()> {
        let outstanding = self.outstanding(Stream::Log);
        let mut done = std::pin::pin!(outstanding.done.notified());
        done.as_mut().enable();
        self.admit()?;
        let mut sealed = Vec::new();
        if outstanding.tickets.lock().is_empty() {
            let mut log = self.log.lock();
            if log.stream.has_open_batch() {
                log.stream.seal(&mut sealed);
                self.expect(Stream::Log, &sealed);
            }
        }
        if !sealed.is_empty() {
            for batch in sealed {
                self.write(Stream::Log, batch).await?;
            }
        } else if is_full() {
            done.await;
        }
        Ok(())
    }

    pub(crate) async fn flush_devices(&self) -> Result<()> {
        for place in self.layout.places() {
            if place.dirty.swap(false, Ordering::AcqRel) {
                let _flushing = place.gate.flush(&self.env);
                place.device.flush(SYNC).await.map_err(|error| self.poisoned(error))?;
            }
        }
        Ok(())
    }

    fn memtable_bytes(&self) -> usize {
        self.volumes.read().values().map(|volume| volume.tree.memory().0).sum()
    }
    /// Tells the space how large the next checkpoint may become; whether it must be now.
    pub(crate) fn note_pending(&self) -> bool {
        let (mut pending, mut nodes) = (self.loading.load(Ordering::Acquire), 0);
        for volume in self.volumes.read().values() {
            pending += volume.tree.memory().0 as u64;
            let is_live = matches!(volume.kind, VolumeKind::Live { .. });
            nodes = if is_live { volume.nodes.saturating_add(nodes) } else { nodes };
        }
        self.space.note_pending(nodes, pending)
    }
    fn memtables_full(&self) -> bool {
        let full = self.config.memory.0 as usize / MEMTABLES_SHARE;
        self.memtable_bytes() > full || self.log.lock().bytes > self.config.log_bytes.0
    }
    fn memtables_overfull(&self) -> bool {
        self.memtable_bytes() > self.config.memory.0 as usize / MEMTABLES_SHARE * 3 / 2
    }
}
