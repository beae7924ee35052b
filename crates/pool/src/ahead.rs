//! Extents that somebody is about to read, fetched side by side in the order in which they lie.
//!
//! An extent never changes where it is, so what was fetched stays right for as long as anything refers to it; checksums are compared
//! when it is read, as with what comes from the medium. It is kept until others need the room, those first that were read: of a
//! compressed extent somebody else may read the other half.

use crate::map::Run;
use crate::store::{Span, TOGETHER_MAX, blocks_of, place, together};
use crate::underway::Reading;
use crate::{Pool, Shared, Volume};
use ashlar_block::Result;
use ashlar_index::Key;
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

/// Share of the pool's memory for extents that were fetched, and for index nodes that are brought in at once.
pub(crate) const MEMORY_SHARE: u64 = 16;

/// No more than this in bytes: who stops reading has waited for it in vain.
const BYTES_MAX: u64 = 64 << 20;
/// So many bytes, before they were compressed, tell how small extents are that are read ahead: those read last count most.
const RATIO_BYTES: u64 = 16 << 20;

/// Where something begins: segment and byte.
type Address = (u64, u32);

/// What was fetched. As much again may be on its way.
pub(crate) struct Ahead {
    kept: Mutex<Kept>,
    /// Whether there ever was anything: else nobody need look.
    used: AtomicBool,
    bytes_max: usize,
    ratio: Mutex<Ratio>,
}

/// How small extents are.
struct Ratio {
    /// Bytes before they were compressed.
    whole: u64,
    stored: u64,
}

impl Ratio {
    fn learn(&mut self, whole: u64, stored: u64) {
        (self.whole, self.stored) = (self.whole + whole, self.stored + stored);
        while self.whole > RATIO_BYTES {
            (self.whole, self.stored) = (self.whole / 2, self.stored / 2);
        }
    }
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
    turn: Turn,
    bytes: Bytes,
}

/// Whether it was not read yet, and its age.
type Turn = (bool, u64);

impl Kept {
    fn remove(&mut self, address: Address) {
        if let Some(piece) = self.pieces.remove(&address) {
            self.order.remove(&piece.turn);
            self.bytes -= piece.bytes.len();
        }
    }
    /// Adds a piece; those whose turn it is go for it.
    fn insert(&mut self, address: Address, bytes: Bytes, bytes_max: usize) {
        self.remove(address);
        self.born += 1;
        let turn = (true, self.born);
        self.bytes += bytes.len();
        self.order.insert(turn, address);
        self.pieces.insert(address, Piece { turn, bytes });
        while self.bytes > bytes_max
            && let Some((_, first)) = self.order.first_key_value()
        {
            self.remove(*first);
        }
    }
    /// The bytes of this place, if a piece has all of them; from now on it counts as read.
    fn read(&mut self, place: &Span) -> Option<Bytes> {
        let here = (place.uid, 0)..=(place.uid, place.range.start);
        let (address, piece) = self.pieces.range_mut(here).next_back()?;
        let (from, to) = ((place.range.start - address.1) as usize, (place.range.end - address.1) as usize);
        if to > piece.bytes.len() {
            return None;
        }
        self.order.remove(&piece.turn);
        piece.turn.0 = false;
        self.order.insert(piece.turn, *address);
        Some(piece.bytes.slice(from..to))
    }
    fn has(&self, place: &Span) -> bool {
        self.pieces.contains_key(&(place.uid, place.range.start))
    }
}

impl Ahead {
    pub(crate) fn new(memory: u64) -> Ahead {
        // Until something was read, nothing is known to be smaller than it looks.
        let ratio = Mutex::new(Ratio { whole: RATIO_BYTES / 8, stored: RATIO_BYTES / 8 });
        let bytes_max = (memory / MEMORY_SHARE).min(BYTES_MAX) as usize;
        Ahead { kept: Mutex::default(), used: AtomicBool::new(false), bytes_max, ratio }
    }
    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.lock().bytes as u64
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

type BoxFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Volume {
    /// Bytes of memory for blocks that are read ahead and nobody has read yet, if they cost what [`Volume::ahead_cost`] says: three
    /// quarters of what is set aside, since some will cost more.
    pub fn ahead_memory(&self) -> u64 {
        self.pool.0.ahead.bytes_max as u64 / 4 * 3
    }

    /// What so many blocks are expected to take of it: they are kept as they are stored, and so it depends on those that were read
    /// ahead lately.
    pub fn ahead_cost(&self, blocks: Blocks) -> u64 {
        let ratio = self.pool.0.ahead.ratio.lock();
        (u128::from(blocks.to_bytes().0) * u128::from(ratio.stored) / u128::from(ratio.whole.max(1))) as u64
    }

    /// Looks up what will soon be read, in this order, as far as memory goes that is set aside for it: 1/16 of the pool's for blocks
    /// (see [`Volume::ahead_memory`]), and as much of what index nodes have. The future that is returned, which the caller spawns, fetches it; reads wait for what is
    /// on its way.
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
                    let before = places.len();
                    places.extend(settled.filter_map(|(_, run)| place(run)));
                    let stored = places[before..].iter().map(|place| place.range.len() as u64).sum();
                    self.pool.0.ahead.ratio.lock().learn(count.to_bytes().0, stored);
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
        let readings = self.pool.begin_ahead(places);
        let volume = self.clone();
        async move {
            let _pin = pin;
            let (pool, view) = (&volume.pool, volume.tree.view());
            let nodes = view.read_ahead(pool, &keys, pool.0.config.memory.0 / MEMORY_SHARE);
            let extents = together(readings.into_iter().map(|reading| pool.0.fetch_ahead(reading)));
            let all: [BoxFuture<'_>; 2] = [Box::pin(nodes), Box::pin(async { drop(extents.await) })];
            together(all.into_iter()).await;
        }
    }
}

impl Pool {
    /// Notes that these extents are being read, as many of them as there is room for, those together that lie together.
    fn begin_ahead(&self, mut places: Vec<Span>) -> Vec<Reading> {
        let ahead = &self.0.ahead;
        {
            let (kept, mut room) = (ahead.kept.lock(), ahead.bytes_max.saturating_sub(self.0.underway.bytes()));
            places.retain(|place| {
                let rest = room.checked_sub(place.range.len());
                let wanted = rest.is_some() && !kept.has(place) && !self.0.underway.has(place);
                room = rest.filter(|_| wanted).unwrap_or(room);
                wanted
            });
        }
        ahead.used.store(!places.is_empty() || ahead.used.load(Ordering::Relaxed), Ordering::Relaxed);
        let layout = &self.0.layout;
        places.sort_unstable_by_key(|place| layout.position(place.uid, place.range.start));
        places.dedup_by_key(|place| (place.uid, place.range.start));
        let groups =
            places.chunk_by(|one, next| layout.is_near(one, next)).flat_map(|group| group.chunks(TOGETHER_MAX));
        groups.map(|group| Reading::begin(self, group.to_vec())).collect()
    }
}

impl Shared {
    /// Reads extents that lie together, and keeps them. What cannot be read is told to whom asks for it.
    async fn fetch_ahead(&self, reading: Reading) {
        let [first, ..] = reading.places() else { return };
        let end = |place: &&Span| self.layout.position(place.uid, place.range.end);
        let last = reading.places().iter().max_by_key(end).unwrap_or(first);
        let Ok(whole) = self.fetch_between(first, last).await else { return };
        let mut kept = self.ahead.kept.lock();
        for Span { uid, range } in reading.places() {
            let from = self.layout.distance(first, *uid, range.start) as usize;
            let part = whole.slice(from..from + range.len());
            // Each goes by itself, and the others should not stay in memory with it.
            let own = if reading.places().len() > 1 { Bytes::copy_from_slice(&part) } else { part };
            kept.insert((*uid, range.start), own, self.ahead.bytes_max);
        }
    }

    /// The bytes of this run, verified, if they were fetched; waits for those that are on their way.
    async fn fetched(&self, run: &Run) -> Option<Bytes> {
        let place = place(run)?;
        self.underway.wait_for(&place).await;
        let stored = self.ahead.kept.lock().read(&place)?;
        // What memory has changed meanwhile is read again: the medium has it right.
        self.verify(run, &stored).is_ok().then_some(stored)
    }

    /// As [`Shared::read_runs`], but takes what was fetched ahead.
    pub(crate) async fn read_runs_ahead(&self, runs: &[&Run]) -> Vec<Result<Bytes>> {
        if !self.ahead.used.load(Ordering::Relaxed) {
            return self.read_runs(runs).await;
        }
        let mut results = Vec::with_capacity(runs.len());
        for run in runs {
            results.push(self.fetched(run).await.map(|stored| blocks_of(run, stored)));
        }
        let missing = runs.iter().zip(&results).filter(|(_, result)| result.is_none());
        let missing: Vec<&Run> = missing.map(|(run, _)| *run).collect();
        let mut read = if missing.is_empty() { Vec::new() } else { self.read_runs(&missing).await }.into_iter();
        let result = |result: Option<Result<Bytes>>| result.or_else(|| read.next()).expect("one for each");
        results.into_iter().map(result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Creation, Pool, Txn};
    use ashlar_block::Device;
    use ashlar_devices::Memory;
    use ashlar_env::sim::{Schedule, Sim};
    use std::sync::Arc;

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
                piece.bytes = piece.bytes.iter().map(|byte| byte ^ 4).collect();
                changed += 1;
            }
            assert!(changed > 0);
            assert_eq!(volume.read(Lba(0), Blocks(40)).await.expect("read").concat(), data);
        };
        sim.run(test).expect("no deadlock");
    }
}
