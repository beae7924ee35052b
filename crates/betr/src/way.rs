//! The way from a number to an inode, for those who kept no more than the number: file handles, as NFS has them.
//!
//! ```text
//! 0, directory (8), position (8)        a name, in the directory with this number
//! 1, zone (8)                           a file that is the root of a zone, and may have several names
//! ```
//! A way holds the number of the directory and not its place, so what moves with a directory keeps its ways. It costs one message
//! for each name that is given, and one for each inode that goes.

use crate::inode::{Inode, Own, Placed, Spot, State};
use crate::keys::{self, NUMBER_MAX, damaged};
use crate::record::{Entry, Record};
use crate::{Betr, Rule};
use ashlar_inodes::let_go;
use ashlar_pool::Txn;
use ashlar_vfs::{Errno, Ino, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::HashSet;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Name { directory: Ino, position: u64 },
    Zone(u64),
}

impl Way {
    /// The way to an inode with this record at this spot; `None` if it has no name, or is the root directory.
    pub(crate) fn to(spot: &Spot, record: &Record) -> Option<Way> {
        match spot {
            Spot::Root(zone, _) if !record.is_directory() => Some(Way::Zone(*zone)),
            Spot::Named(above) | Spot::Root(_, Some(above)) => {
                Some(Way::Name { directory: above.directory.ino, position: above.position })
            }
            _ => None,
        }
    }

    pub(crate) fn encode(self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(17);
        match self {
            Way::Name { directory, position } => {
                bytes.put_u8(0);
                bytes.put_u64_le(directory);
                bytes.put_u64_le(position);
            }
            Way::Zone(zone) => {
                bytes.put_u8(1);
                bytes.put_u64_le(zone);
            }
        }
        bytes.freeze()
    }

    pub(crate) fn decode(mut value: &[u8]) -> ashlar_block::Result<Way> {
        let mut read = || {
            let kind = value.try_get_u8().ok()?;
            let number = value.try_get_u64_le().ok().filter(|number| *number <= NUMBER_MAX)?;
            let way = match kind {
                0 => Way::Name { directory: number, position: value.try_get_u64_le().ok()? },
                1 => Way::Zone(number),
                _ => return None,
            };
            value.is_empty().then_some(way)
        };
        read().ok_or_else(|| damaged("the way to an inode is cut short or impossible"))
    }
}

/// A sum over ways with their numbers, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaySum(u128);

impl WaySum {
    pub(crate) fn add(&mut self, ino: Ino, way: &[u8]) {
        let hash = xxhash_rust::xxh3::xxh3_128(&[&ino.to_le_bytes(), way].concat());
        self.0 = self.0.wrapping_add(hash);
    }
}

impl Betr {
    /// Notes the way to an inode at this spot.
    pub(crate) fn put_way(&self, txn: &mut Txn, spot: &Spot, record: &Record) {
        if self.ways
            && self.keeps(Rule::NoteWays)
            && let Some(way) = Way::to(spot, record)
        {
            self.volume.put(txn, &keys::numbered(keys::WAY, record.ino), way.encode());
        }
    }

    /// Forgets the way to an inode.
    pub(crate) fn delete_way(&self, txn: &mut Txn, ino: Ino) {
        if self.ways {
            self.volume.delete(txn, &keys::numbered(keys::WAY, ino));
        }
    }

    pub(crate) async fn way_to(&self, ino: Ino) -> Result<Option<Way>> {
        let value = self.volume.get(&keys::numbered(keys::WAY, ino)).await?;
        Ok(value.map(|value| Way::decode(&value)).transpose()?)
    }

    /// The inode with this number, in memory or not. The caller holds the shape, and lets go of it.
    pub(crate) async fn by_number(&self, ino: Ino) -> Result<Arc<Inode>> {
        let mut held = Vec::new();
        let found = self.climb(ino, &mut held).await;
        // From below: each holds the one above.
        for inode in held.into_iter().rev() {
            let_go(self, inode).await;
        }
        found
    }

    /// Goes up from an inode to the first directory that is in memory, and brings all below it into memory; what is in `held` may
    /// be in use no more.
    async fn climb(&self, ino: Ino, held: &mut Vec<Arc<Inode>>) -> Result<Arc<Inode>> {
        let (mut wanted, mut seen) = (vec![ino], HashSet::new());
        while let Some(&ino) = wanted.last() {
            let before = self.table.evictions();
            let inode = match self.table.get(ino) {
                Some(inode) => inode,
                None => match self.way_to(ino).await?.ok_or(Errno::Stale)? {
                    Way::Zone(zone) => match self.zone_root(zone).await? {
                        Some(record) if record.ino == ino => {
                            let state = State::new(record, Own::at(Spot::Root(zone, None)), self.pool().newest());
                            let Some(inode) = self.table.admit(before, state) else { continue };
                            inode
                        }
                        _ => return Err(Errno::Stale.into()),
                    },
                    Way::Name { directory, position } => {
                        let Some(directory) = self.table.get(directory) else {
                            if !seen.insert(directory) {
                                return Err(damaged(format!("the way to inode {ino} has no beginning")).into());
                            }
                            wanted.push(directory);
                            continue;
                        };
                        held.push(directory.clone());
                        let key = keys::of(keys::META, &directory.place().child(position));
                        let entry = self.volume.get(&key).await?.map(|value| Entry::decode(&value)).transpose()?;
                        let Some(entry) = entry.filter(|entry| entry.stored.ino() == ino) else {
                            // It may have got another name meanwhile: then it was in memory.
                            if self.table.get(ino).is_some() || self.table.evictions() != before {
                                continue;
                            }
                            return Err(Errno::Stale.into());
                        };
                        let Some(inode) = self.admit_entry(&directory, position, entry, before).await? else {
                            continue;
                        };
                        inode
                    }
                },
            };
            wanted.pop();
            if wanted.is_empty() {
                return Ok(inode);
            }
            held.push(inode);
        }
        Err(Errno::Stale.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ways_are_read_back(number in 0..=NUMBER_MAX, position in any::<u64>(), cut in 0..16usize) {
            for way in [Way::Name { directory: number, position }, Way::Zone(number)] {
                let bytes = way.encode();
                prop_assert_eq!(Way::decode(&bytes).expect("valid"), way);
                prop_assert!(Way::decode(&bytes[..cut.min(bytes.len() - 1)]).is_err());
            }
        }

        #[test]
        fn noise_is_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(way) = Way::decode(&bytes) {
                prop_assert_eq!(&way.encode()[..], &bytes[..]);
            }
        }
    }
}
