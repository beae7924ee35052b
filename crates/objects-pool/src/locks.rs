//! Locks of objects, by stripes of their names.

use crate::format::STRIPES;
use ashlar_objects::Name;
use std::collections::BTreeSet;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A lock for each stripe.
pub(crate) struct Locks(Vec<RwLock<()>>);

/// The stripe of a name; part of the format, since counts are by stripe.
pub(crate) fn stripe(name: &Name) -> u16 {
    // FNV-1a, 64 bits.
    let hash = name
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    ((hash >> 32 ^ hash) % u64::from(STRIPES)) as u16
}

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks((0..STRIPES).map(|_| RwLock::default()).collect())
    }
    pub(crate) async fn read(&self, name: &Name) -> RwLockReadGuard<'_, ()> {
        self.0[usize::from(stripe(name))].read().await
    }
    pub(crate) async fn write(&self, name: &Name) -> RwLockWriteGuard<'_, ()> {
        self.0[usize::from(stripe(name))].write().await
    }
    /// Locks several; each stripe once, in ascending order, so that nobody waits in a circle.
    pub(crate) async fn write_all(&self, names: impl Iterator<Item = &Name>) -> Vec<RwLockWriteGuard<'_, ()>> {
        let stripes: BTreeSet<u16> = names.map(stripe).collect();
        let mut guards = Vec::with_capacity(stripes.len());
        for stripe in stripes {
            guards.push(self.0[usize::from(stripe)].write().await);
        }
        guards
    }
}
