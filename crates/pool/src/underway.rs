//! What is being read because somebody will want it: whoever does meanwhile waits, and nobody reads it twice.

use crate::Pool;
use crate::store::Span;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

/// Places that are being read.
#[derive(Default)]
pub(crate) struct Underway {
    /// By segment and byte.
    places: Mutex<BTreeMap<(u64, u32), Known>>,
    /// How many there are, for those who need not look.
    count: AtomicUsize,
}

/// Where a place ends, and what its reader holds for writing.
type Known = (u32, Arc<RwLock<()>>);

/// Some places that one task reads. When it is gone, however that comes, nobody waits for them any longer.
pub(crate) struct Reading {
    pool: Pool,
    places: Vec<Span>,
    lock: Arc<RwLock<()>>,
    _held: Option<OwnedRwLockWriteGuard<()>>,
}

impl Underway {
    /// The lock of who reads all of this place.
    fn around(&self, place: &Span) -> Option<Arc<RwLock<()>>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let places = self.places.lock();
        let (begin, (end, lock)) = places.range(..=(place.uid, place.range.start)).next_back()?;
        (begin.0 == place.uid && place.range.end <= *end).then(|| lock.clone())
    }
    /// Bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        self.places.lock().iter().map(|((_, begin), (end, _))| (end - begin) as usize).sum()
    }
    /// Whether somebody is reading it.
    pub(crate) fn has(&self, place: &Span) -> bool {
        self.around(place).is_some()
    }
    /// Waits until it was read; false if nobody is reading it.
    pub(crate) async fn wait_for(&self, place: &Span) -> bool {
        let Some(lock) = self.around(place) else { return false };
        drop(lock.read().await);
        true
    }
}

impl Reading {
    /// Notes that these are being read.
    pub(crate) fn begin(pool: &Pool, places: Vec<Span>) -> Reading {
        let lock = Arc::new(RwLock::new(()));
        let _held = lock.clone().try_write_owned().ok();
        let underway = &pool.0.underway;
        let mut known = underway.places.lock();
        known.extend(places.iter().map(|Span { uid, range }| ((*uid, range.start), (range.end, lock.clone()))));
        underway.count.store(known.len(), Ordering::Relaxed);
        drop(known);
        Reading { pool: pool.clone(), places, lock, _held }
    }
    /// What is being read.
    pub(crate) fn places(&self) -> &[Span] {
        &self.places
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let underway = &self.pool.0.underway;
        let mut known = underway.places.lock();
        for Span { uid, range } in &self.places {
            // Another one may have begun at the same place since.
            let address = (*uid, range.start);
            if known.get(&address).is_some_and(|(_, lock)| Arc::ptr_eq(lock, &self.lock)) {
                known.remove(&address);
            }
        }
        underway.count.store(known.len(), Ordering::Relaxed);
    }
}
