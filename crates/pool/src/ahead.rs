//! Extents that somebody is about to read, fetched side by side in the order in which they lie.
//!
//! An extent never changes where it is, so what was fetched stays right for as long as anything refers to it; checksums are compared
//! when it is read, as with what comes from the medium. It is kept until others need the room, those first that were read: of a
//! compressed extent somebody else may read the other half.

use crate::Shared;
use crate::map::Run;
use crate::store::{GAP_MAX, blocks_of, place, together};
use crate::volume::Volume;
use ashlar_block::Result;
use ashlar_index::{Key, NodePtr};
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

/// Share of the pool's memory for what was fetched and not read yet.
pub(crate) const MEMORY_SHARE: u64 = 16;
/// Share of it that keys may bring in at once.
const KEYS_SHARE: u64 = 16;
/// Longest read: what lies together is fetched together.
const FETCH_BYTES_MAX: u32 = 1 << 20;

/// Where something begins: segment and byte.
type Address = (u64, u32);

/// What was fetched, and what is on its way.
pub(crate) struct Ahead {
    kept: Mutex<Kept>,
    /// How many there are, for those who need not look.
    count: AtomicUsize,
    bytes_max: usize,
}

#[derive(Default)]
struct Kept {
    pieces: BTreeMap<Address, Piece>,
    /// What was read before what was not, and then the oldest first: the order in which they go.
    order: BTreeMap<Turn, Address>,
    born: u64,
    bytes: usize,
}

struct Piece {
    len: u32,
    turn: Turn,
    state: State,
}

/// Whether it was not read yet, and its age.
type Turn = (bool, u64);

enum State {
    /// Whoever fetches it holds this for writing.
    Coming(Arc<RwLock<()>>),
    Here(Bytes),
}

impl Kept {
    fn remove(&mut self, address: Address) -> Option<Piece> {
        let piece = self.pieces.remove(&address)?;
        self.order.remove(&piece.turn);
        self.bytes -= piece.len as usize;
        Some(piece)
    }
    fn insert(&mut self, address: Address, len: u32, state: State) {
        self.born += 1;
        let turn = (true, self.born);
        self.order.insert(turn, address);
        self.pieces.insert(address, Piece { len, turn, state });
        self.bytes += len as usize;
    }
    fn note_read(&mut self, address: Address) {
        let Some(piece) = self.pieces.get_mut(&address) else { return };
        self.order.remove(&piece.turn);
        piece.turn.0 = false;
        self.order.insert(piece.turn, address);
    }
    /// The piece that has all of this range.
    fn around(&self, uid: u64, range: &Range<u32>) -> Option<(Address, &Piece)> {
        let (address, piece) = self.pieces.range(..=(uid, range.start)).next_back()?;
        (address.0 == uid && range.end <= address.1.saturating_add(piece.len)).then_some((*address, piece))
    }
}

impl Ahead {
    pub(crate) fn new(memory: u64) -> Ahead {
        Ahead { kept: Mutex::default(), count: AtomicUsize::new(0), bytes_max: (memory / MEMORY_SHARE) as usize }
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.lock().bytes as u64
    }

    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// The bytes of this range, unverified, if they were fetched; waits for those that are on their way.
    async fn take(&self, uid: u64, range: &Range<u32>) -> Option<Bytes> {
        let coming = {
            let kept = self.kept.lock();
            match &kept.around(uid, range)?.1.state {
                State::Coming(lock) => Some(lock.clone()),
                State::Here(_) => None,
            }
        };
        if let Some(lock) = coming {
            drop(lock.read().await);
        }
        let mut kept = self.kept.lock();
        let (address, piece) = kept.around(uid, range)?;
        let State::Here(bytes) = &piece.state else { return None };
        let found = bytes.slice((range.start - address.1) as usize..(range.end - address.1) as usize);
        kept.note_read(address);
        Some(found)
    }

    fn note(&self, kept: &Kept) {
        self.count.store(kept.pieces.len(), Ordering::Relaxed);
    }

    /// Notes that these are being fetched, as many of them as there is room for.
    fn expect(&self, wanted: &mut Vec<(u64, Range<u32>)>, lock: &Arc<RwLock<()>>) {
        let (mut kept, mut bytes) = (self.kept.lock(), 0);
        wanted.retain(|(uid, range)| {
            let len = range.end - range.start;
            let fits = bytes + len as usize <= self.bytes_max;
            if !fits || kept.around(*uid, range).is_some() || kept.pieces.contains_key(&(*uid, range.start)) {
                return false;
            }
            bytes += len as usize;
            kept.insert((*uid, range.start), len, State::Coming(lock.clone()));
            true
        });
        while kept.bytes > self.bytes_max {
            let Some(first) = kept.order.first_key_value().map(|(_, address)| *address) else { break };
            kept.remove(first);
        }
        self.note(&kept);
    }

    /// What was expected is here, or cannot be read: then whoever asks for it reads it, and learns why.
    fn arrive(&self, address: Address, fetched: Option<Bytes>) {
        let mut kept = self.kept.lock();
        match (kept.pieces.get_mut(&address), fetched) {
            (Some(piece), Some(bytes)) if piece.len as usize == bytes.len() => piece.state = State::Here(bytes),
            _ => drop(kept.remove(address)),
        }
        self.note(&kept);
    }
}

/// Index nodes that are on their way because somebody will want them, so that nobody reads them twice.
#[derive(Default)]
pub(crate) struct NodesAhead {
    nodes: Mutex<HashMap<Address, Arc<RwLock<()>>>>,
    /// How many there are, for those who need not look.
    count: AtomicUsize,
}

/// Some nodes that one task reads. When it is gone, however that comes, nobody waits for them any longer.
pub(crate) struct Fetch<'a> {
    ahead: &'a NodesAhead,
    pub(crate) nodes: Vec<NodePtr>,
    _held: Option<OwnedRwLockWriteGuard<()>>,
}

impl NodesAhead {
    /// Leaves only those that nobody is reading.
    pub(crate) fn retain_others(&self, nodes: &mut Vec<NodePtr>) {
        let known = self.nodes.lock();
        nodes.retain(|ptr| !known.contains_key(&(ptr.uid, ptr.offset)));
    }
    /// Notes that these are being read.
    pub(crate) fn begin(&self, nodes: &[NodePtr]) -> Fetch<'_> {
        let lock = Arc::new(RwLock::new(()));
        let _held = lock.clone().try_write_owned().ok();
        let mut known = self.nodes.lock();
        known.extend(nodes.iter().map(|ptr| ((ptr.uid, ptr.offset), lock.clone())));
        self.count.store(known.len(), Ordering::Relaxed);
        Fetch { ahead: self, nodes: nodes.to_vec(), _held }
    }
    /// Waits for a node that is on its way; false if it is not.
    pub(crate) async fn wait_for(&self, ptr: &NodePtr) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let lock = self.nodes.lock().get(&(ptr.uid, ptr.offset)).cloned();
        let Some(lock) = lock else { return false };
        drop(lock.read().await);
        true
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let mut known = self.ahead.nodes.lock();
        self.nodes.iter().for_each(|ptr| drop(known.remove(&(ptr.uid, ptr.offset))));
        self.ahead.count.store(known.len(), Ordering::Relaxed);
    }
}

/// What will be read soon.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    /// Blocks.
    Blocks(Lba, Blocks),
    /// Keys of the dictionary from the first on and below the second.
    Keys(Vec<u8>, Vec<u8>),
}

impl Volume {
    /// Looks up what will soon be read, in this order, as far as memory goes that is set aside for it: 1/16 of the pool's for blocks,
    /// and as much of what index nodes have. The future that is returned, which the caller spawns, fetches it; reads
    /// of blocks wait for those that are on their way.
    pub async fn read_ahead(&self, wanted: Vec<Wanted>) -> impl Future<Output = ()> + Send + 'static {
        let pin = self.pool.0.pin();
        let (mut places, mut keys) = (Vec::new(), Vec::new());
        for wanted in wanted {
            match wanted {
                Wanted::Blocks(at, count) => {
                    // What cannot be looked up is told to whom reads it.
                    let runs = self.runs_pinned(at, count).await.unwrap_or_default();
                    let in_flight = self.pool.0.in_flight.read();
                    let settled = runs.iter().filter(|(_, run)| !in_flight.contains_key(&(run.uid, run.offset)));
                    places.extend(settled.filter_map(|(_, run)| Some((run.uid, place(run)?))));
                }
                Wanted::Keys(low, high) => keys.push((Key::from_vec(low), Key::from_vec(high))),
            }
        }
        keys.sort_unstable();
        keys.dedup_by(|next, last| {
            let meet = next.0 <= last.1;
            if meet {
                last.1 = std::mem::take(&mut last.1).max(std::mem::take(&mut next.1));
            }
            meet
        });
        let lock = Arc::new(RwLock::new(()));
        let held = lock.clone().try_write_owned();
        self.pool.0.ahead.expect(&mut places, &lock);
        let volume = self.clone();
        async move {
            let _pinned = (pin, held);
            let (pool, view) = (&volume.pool, volume.tree.view());
            let nodes = view.read_ahead(pool, &keys, pool.0.config.memory.0 / KEYS_SHARE);
            let (nodes, extents): (BoxFuture<'_>, BoxFuture<'_>) =
                (Box::pin(nodes), Box::pin(pool.0.fetch_all(places)));
            together([nodes, extents].into_iter()).await;
        }
    }
}

type BoxFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Shared {
    /// As [`Shared::read_runs`], but takes what was fetched ahead.
    pub(crate) async fn read_runs_ahead(&self, runs: &[&Run]) -> Vec<Result<Bytes>> {
        if self.ahead.is_empty() {
            return self.read_runs(runs).await;
        }
        let mut results = Vec::with_capacity(runs.len());
        for run in runs {
            let stored = match place(run) {
                Some(place) => self.ahead.take(run.uid, &place).await,
                None => None,
            };
            // What memory has changed meanwhile is read again: the medium has it right.
            let sound = stored.filter(|stored| self.verify(run, stored).is_ok());
            results.push(sound.map(|stored| blocks_of(run, stored)));
        }
        let missing: Vec<&Run> =
            runs.iter().zip(&results).filter(|(_, result)| result.is_none()).map(|(run, _)| *run).collect();
        let mut read = if missing.is_empty() { Vec::new() } else { self.read_runs(&missing).await }.into_iter();
        let result = |result: Option<Result<Bytes>>| result.or_else(|| read.next()).expect("one for each");
        results.into_iter().map(result).collect()
    }

    async fn fetch_all(&self, mut wanted: Vec<(u64, Range<u32>)>) {
        wanted.sort_unstable_by_key(|(uid, range)| (*uid, range.start));
        let mut groups: Vec<(u64, Range<u32>, Vec<Range<u32>>)> = Vec::new();
        for (uid, range) in wanted {
            match groups.last_mut() {
                Some((last, whole, parts))
                    if *last == uid
                        && range.start.checked_sub(whole.end).is_some_and(|gap| gap <= GAP_MAX)
                        && range.end - whole.start <= FETCH_BYTES_MAX =>
                {
                    whole.end = range.end;
                    parts.push(range);
                }
                _ => groups.push((uid, range.clone(), vec![range])),
            }
        }
        together(groups.into_iter().map(async |(uid, whole, parts)| {
            let fetched = self.fetch(uid, whole.start, whole.end - whole.start).await.ok();
            for part in &parts {
                let bytes = fetched.as_ref().map(|bytes| {
                    let slice = bytes.slice((part.start - whole.start) as usize..(part.end - whole.start) as usize);
                    // Each goes by itself, and the others should not stay in memory with it.
                    if parts.len() > 1 { Bytes::copy_from_slice(&slice) } else { slice }
                });
                self.ahead.arrive((uid, part.start), bytes);
            }
        }))
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Creation, Pool, Txn};
    use ashlar_block::Device;
    use ashlar_devices::Memory;
    use ashlar_env::sim::{Schedule, Sim};

    #[test]
    fn what_changes_in_memory_is_read_again() {
        let sim = Sim::new(3, Schedule::Fifo);
        let env = sim.env();
        let test = async move {
            let device: Device = Arc::new(Memory::new(Blocks(64 * 256)));
            let creation = Creation { segment: Some(Blocks(256)), force: false };
            Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("created");
            let pool = Pool::open(&env, vec![device], Config::default()).await.expect("opened");
            let volume = pool.create_volume("v").await.expect("a volume");
            let data = Bytes::from_iter((0..40 << 12).map(|at: u32| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8));
            let mut txn = Txn::new();
            volume.write(&mut txn, Lba(0), &data);
            volume.commit(txn).await.expect("committed");
            pool.checkpoint().await.expect("a checkpoint");
            env.spawn(volume.read_ahead(vec![Wanted::Blocks(Lba(0), Blocks(40))]).await).await;
            let mut changed = 0;
            for piece in pool.0.ahead.kept.lock().pieces.values_mut() {
                if let State::Here(bytes) = &mut piece.state {
                    *bytes = bytes.iter().map(|byte| byte ^ 4).collect();
                    changed += 1;
                }
            }
            assert!(changed > 0);
            assert_eq!(volume.read(Lba(0), Blocks(40)).await.expect("read").concat(), data);
        };
        sim.run(test).expect("no deadlock");
    }
}
