//! Contents of the next files, for those who go through a tree: see [`ashlar_inodes::Ahead`].

use crate::Betr;
use crate::inode::{Above, Inode, Placed};
use crate::keys::{self, Place};
use crate::record::{Entry, Record, Stored};
use ashlar_inodes::{AHEAD_FILE_MAX, Listed, Listing, blocks_of};
use ashlar_pool::{Volume, Wanted};
use ashlar_units::Blocks;
use ashlar_vfs::{FileKind, Ino, Result};
use std::sync::Arc;

/// Of contents in the dictionary so many bytes count as one: index nodes have memory of their own, and more of it.
const NODES_ROOM: u64 = 2;
/// Names that are read at once.
const PAGE: usize = 128;

struct Listings<'a>(&'a Betr);

impl Listing for Listings<'_> {
    /// With its number.
    type Directory = (Ino, Place);

    async fn entries(&self, (_, place): &(Ino, Place), from: u64) -> Result<Vec<(u64, Listed<(Ino, Place)>)>> {
        let (low, high) = keys::entries(place, from);
        let mut entries = Vec::new();
        for (key, value) in self.0.volume.first(&low, &high, PAGE).await? {
            let position = keys::last_number(&key)?;
            entries.push((position, listed(&self.0.volume, place, position, Entry::decode(&value)?.stored)));
        }
        Ok(entries)
    }

    async fn above(&self, (ino, _): &(Ino, Place)) -> Option<((Ino, Place), u64)> {
        // Only if it is in memory: else nobody knows where it stands. Nobody finds it used meanwhile.
        let above = self.0.table.all.shard(*ino).get(ino)?.state().own.above().cloned()?;
        Some(stands(&above))
    }
}

/// The directory that has this name, and the position behind it.
fn stands(above: &Above) -> ((Ino, Place), u64) {
    ((above.directory.ino, above.directory.place()), above.position.saturating_add(1))
}

fn listed(volume: &Volume, directory: &Place, position: u64, stored: Stored) -> Listed<(Ino, Place)> {
    match stored {
        Stored::Zone { zone, ino, kind: FileKind::Directory } => Listed::Directory((ino, Place::root_of(zone))),
        Stored::Record(record) if record.is_directory() => Listed::Directory((record.ino, directory.child(position))),
        Stored::Record(record) if is_worth_it(&record) => {
            let (cost, contents) = match record.contents.range {
                0 => {
                    let (low, high) = keys::contents(&directory.child(position), record.ino);
                    (record.size / NODES_ROOM, Wanted::Keys(low, high))
                }
                _ => {
                    let blocks = Blocks(blocks_of(record.size));
                    (volume.ahead_cost(blocks), Wanted::Blocks(record.contents.base(), blocks))
                }
            };
            Listed::File(record.ino, cost, contents)
        }
        _ => Listed::Other,
    }
}

fn is_worth_it(record: &Record) -> bool {
    let contents = record.contents.range != 0 || record.contents.overlaid;
    record.kind == FileKind::File && contents && (1..=AHEAD_FILE_MAX).contains(&record.size)
}

impl Betr {
    /// A file is read from its beginning. The caller holds the shape.
    pub(crate) async fn read_ahead(&self, inode: &Arc<Inode>) {
        if !is_worth_it(&inode.record()) {
            return;
        }
        // Its directory must not be found used by this while others let go of it.
        let above = inode.state().own.above().cloned();
        let Some((directory, behind)) = above.map(|above| stands(&above)) else { return };
        let ino = directory.0;
        let wanted = self.ahead.read(&Listings(self), inode.ino, ino, || (directory, behind)).await;
        if !wanted.is_empty() {
            drop(self.env.spawn(self.volume.read_ahead(wanted).await));
        }
    }
}
