//! Contents of the next files, for those who go through a tree: see [`ashlar_inodes::Ahead`].

use crate::Files;
use crate::inode::{Inode, Seen};
use crate::keys::{self, Entry, Record, base_of, blocks_in_range, decode_record};
use ashlar_inodes::{AHEAD_FILE_MAX, Listed, Listing};
use ashlar_pool::Wanted;
use ashlar_units::Blocks;
use ashlar_vfs::{FileKind, Ino, Result};
use std::sync::Arc;

/// Names that are read at once.
const PAGE: usize = 64;

/// A directory is its number.
impl Listing for Files {
    type Directory = Ino;

    async fn entries(&self, directory: &Ino, from: u64) -> Result<Vec<(u64, Listed<Ino>)>> {
        let (low, high) = (keys::entry(*directory, from), keys::entry(directory + 1, 0));
        let mut entries = Vec::new();
        for (key, value) in self.volume.first(&low, &high, PAGE).await? {
            let cookie = keys::number_in(&key, 9).ok_or_else(|| keys::damaged("an entry's key is cut short"))?;
            let Entry { ino, kind, .. } = Entry::decode(&value)?;
            let listed = match kind {
                _ if ino == 0 => Listed::Other, // a removed one
                FileKind::Directory => Listed::Directory(ino),
                FileKind::File => self.listed(ino).await?,
                _ => Listed::Other,
            };
            entries.push((cookie, listed));
        }
        Ok(entries)
    }

    async fn above(&self, directory: &Ino) -> Option<(Ino, u64)> {
        // Only if it is in memory: else nobody knows where it stands. Nobody finds it used meanwhile.
        let shard = self.table.shard(*directory);
        stands(shard.get(directory).filter(|inode| inode.cell.initialized())?)
    }
}

/// The directory where it was seen, and the position behind its own.
fn stands(inode: &Inode) -> Seen {
    inode.state().own.map(|(directory, position)| (directory, position.saturating_add(1)))
}

fn is_worth_it(record: &Record) -> bool {
    record.kind == FileKind::File && (1..=AHEAD_FILE_MAX).contains(&record.size)
}

impl Files {
    async fn listed(&self, ino: Ino) -> Result<Listed<Ino>> {
        // As the dictionary has it: nobody's inode in memory for that.
        let record = self.volume.get(&keys::inode(ino)).await?.map(|value| decode_record(ino, &value)).transpose()?;
        Ok(match record.filter(is_worth_it) {
            Some(record) => {
                let blocks = Blocks(blocks_in_range(&record));
                Listed::File(ino, self.volume.ahead_cost(blocks), Wanted::Blocks(base_of(&record), blocks))
            }
            None => Listed::Other,
        })
    }

    /// A file is read from its beginning.
    pub(crate) async fn read_ahead(&self, inode: &Arc<Inode>) {
        let Some(here) = stands(inode).filter(|_| is_worth_it(&inode.record())) else { return };
        let wanted = self.ahead.read(self, inode.ino, here.0, || here).await;
        if !wanted.is_empty() {
            drop(self.env.spawn(self.volume.read_ahead(wanted).await));
        }
    }
}
