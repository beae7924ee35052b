//! Memory for inodes, which file systems that are served together share.

use ashlar_units::Bytes as Size;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What each file system but the first takes besides inodes: tables, counters, queues. Measured with eighty mounts: 0.35 MB with
/// small pages, 0.57 with huge ones.
const SHARER: u64 = 512 << 10;

/// Memory for the inodes of several file systems, at most half of it for what they have besides. A clone is the same room.
#[derive(Clone, Debug)]
pub struct Room(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes: u64,
    /// What all of them had when they last counted.
    used: AtomicU64,
    sharers: AtomicU64,
}

impl Shared {
    /// What is there for inodes, if so many share it.
    fn for_inodes(&self, sharers: u64) -> u64 {
        self.bytes - (sharers.saturating_sub(1) * SHARER).min(self.bytes / 2)
    }
}

/// One file system's part in a room. Dropping it leaves the room.
#[derive(Debug)]
pub struct Share {
    room: Room,
    /// Bytes of an inode.
    each: u64,
    /// What it had when it last counted, in bytes.
    counted: AtomicU64,
}

impl Room {
    /// A room of this size.
    pub fn new(memory: Size) -> Room {
        Room(Arc::new(Shared { bytes: memory.0, used: AtomicU64::new(0), sharers: AtomicU64::new(0) }))
    }

    /// For a file system whose inodes take so much memory each.
    pub fn join(&self, each: Size) -> Share {
        self.0.sharers.fetch_add(1, Ordering::Relaxed);
        Share { room: self.clone(), each: each.0.max(1), counted: AtomicU64::new(0) }
    }
}

impl Share {
    /// How many of the `held` inodes may stay: all, unless everybody's together take more than the room has. Then who has more than an
    /// equal part gives back what is too much, down to that part.
    pub fn most(&self, held: usize) -> usize {
        let Shared { used, sharers, .. } = &*self.room.0;
        let sharers = sharers.load(Ordering::Relaxed);
        let room = self.room.0.for_inodes(sharers);
        let own = held as u64 * self.each;
        let change = own.wrapping_sub(self.counted.swap(own, Ordering::Relaxed));
        let used = used.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        let excess = used.saturating_sub(room);
        let most = own.saturating_sub(excess).max((room / sharers).min(own));
        (most / self.each) as usize
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Shared { used, sharers, .. } = &*self.room.0;
        used.fetch_sub(*self.counted.get_mut(), Ordering::Relaxed);
        sharers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_is_alone_has_all_of_it() {
        let room = Room::new(Size(1000));
        let share = room.join(Size(10));
        assert_eq!([99, 100, 101, 5000].map(|held| share.most(held)), [99, 100, 100, 100]);
    }

    #[test]
    fn who_has_more_than_an_equal_part_gives_back() {
        let room = Room::new(Size(2000));
        let (idle, busy) = (room.join(Size(10)), room.join(Size(20)));
        assert_eq!(idle.most(60), 60);
        assert_eq!(busy.most(20), 20, "exactly all of it");
        assert_eq!(busy.most(30), 25, "an equal part is everybody's");
        assert_eq!(idle.most(60), 50, "although nobody asks anything of it");
        drop(idle);
        assert_eq!([busy.most(60), busy.most(600)], [60, 100], "alone it has the other half too");
    }

    proptest! {
        /// Once each has given back what it was asked for, all have room.
        #[test]
        fn together_they_end_within_the_room(
            wants in prop::collection::vec((1..400u64, 0..4000usize), 1..9),
        ) {
            let room = Room::new(Size(100_000));
            let shares: Vec<Share> = wants.iter().map(|(each, _)| room.join(Size(*each))).collect();
            let mut held: Vec<usize> = wants.iter().map(|(_, held)| *held).collect();
            for _ in 0..2 {
                for (share, held) in shares.iter().zip(&mut held) {
                    *held = share.most(*held);
                }
            }
            for (share, held) in shares.iter().zip(&held) {
                prop_assert_eq!(share.most(*held), *held);
            }
            let inodes = room.0.for_inodes(wants.len() as u64);
            prop_assert!(inodes >= 50_000 && room.0.used.load(Ordering::Relaxed) <= inodes);
            let equal = inodes / wants.len() as u64;
            for ((each, wanted), held) in wants.iter().zip(&held) {
                prop_assert!(*held as u64 >= (equal / each).min(*wanted as u64), "nobody gets less than an equal part");
            }
            drop(shares);
            prop_assert_eq!(room.0.used.load(Ordering::Relaxed), 0);
        }
    }
}
