//! Reading ahead across files, for those who go through a tree.
//!
//! The kernel reads ahead within a file. Who reads many files of a hundred kilobytes one after the other waits for a disk's head at
//! each of them; but whoever listed a directory and then reads its files will read the next ones too, in the order of the listing
//! (`grep -r`, `tar`, `cp -r`, `rsync`). So contents of the next files are fetched, sorted by where they lie: two of them at first, twice as
//! many each time that one is read that was foreseen, and fewer again after one that was not. Directories are entered where
//! they stand in the listing, as those programs do.
//!
//! Nothing depends on what is foreseen: names that changed meanwhile cost a read in vain.

use ashlar_pool::Wanted;
use ashlar_vfs::{Ino, Result};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;

/// Longest file of which contents are fetched ahead, in bytes: in longer ones the kernel's read-ahead is what counts.
pub const AHEAD_FILE_MAX: u64 = 1 << 20;
/// Files that are fetched and not yet read.
const FILES_MAX: usize = 4096;
/// Names and directories that are looked at for one step.
const NAMES_MAX: usize = 4096;
/// Directories on the way that are remembered; of deeper trees the outermost ones are found again by going up.
const WAY_MAX: usize = 256;
/// Directories of which is known that somebody listed them.
const LISTED_MAX: usize = 32;

/// What stands in a listing.
pub enum Listed<D> {
    /// A directory.
    Directory(D),
    /// A file that is worth fetching: its number, the bytes of memory that its contents will take, about, and where they lie.
    File(Ino, u64, Wanted),
    /// Anything else.
    Other,
}

/// How an engine lists directories.
pub trait Listing: Sync {
    /// A directory.
    type Directory: Send;
    /// Some entries from a cookie on, each with its own, in order; none at the end.
    fn entries(
        &self,
        directory: &Self::Directory,
        from: u64,
    ) -> impl Future<Output = Result<Vec<(u64, Listed<Self::Directory>)>>> + Send;
    /// The directory above, and the cookie behind the one where this directory stands there. `None`: the root, or it is not known.
    fn above(&self, directory: &Self::Directory) -> impl Future<Output = Option<(Self::Directory, u64)>> + Send;
}

/// What is foreseen. One for a file system: several walks at a time disturb each other.
pub struct Ahead<D> {
    /// Bytes of memory for files that are fetched and not yet read, about.
    bytes_max: u64,
    seen: Mutex<Seen>,
    /// Directories to look into, from the outermost to the innermost, each from a cookie on. Held while somebody looks.
    way: tokio::sync::Mutex<Vec<(D, u64)>>,
}

#[derive(Default)]
struct Seen {
    listed: VecDeque<Ino>,
    /// Files that were fetched and not read, with their bytes.
    expected: BTreeMap<Ino, u64>,
    bytes: u64,
    /// How many there should be.
    depth: usize,
}

impl<D: Send> Ahead<D> {
    /// Nothing is foreseen. What is will take no more than about `bytes_max` bytes of memory at a time: the more, the shorter are the
    /// ways of a disk's head.
    pub fn new(bytes_max: u64) -> Ahead<D> {
        Ahead { bytes_max, seen: Mutex::default(), way: tokio::sync::Mutex::new(Vec::new()) }
    }

    /// Somebody begins to list a directory.
    pub fn listed(&self, directory: Ino) {
        let mut seen = self.seen.lock();
        if seen.listed.back() != Some(&directory) {
            seen.listed.retain(|known| *known != directory);
            seen.listed.push_back(directory);
            if seen.listed.len() > LISTED_MAX {
                seen.listed.pop_front();
            }
        }
    }

    /// A file is read from its beginning: which contents to fetch. `directory` is the number of the one that it lies in, and `here`
    /// gives it, with the cookie behind the file's.
    pub async fn read(
        &self,
        listing: &impl Listing<Directory = D>,
        ino: Ino,
        directory: Ino,
        here: impl FnOnce() -> (D, u64),
    ) -> Vec<Wanted> {
        let mut found = Vec::new();
        let Ok(mut next) = self.way.try_lock() else { return found };
        let (wanted, mut room) = {
            let mut seen = self.seen.lock();
            if let Some(bytes) = seen.expected.remove(&ino) {
                seen.bytes -= bytes;
                seen.depth = (seen.depth * 2).min(FILES_MAX);
            } else if seen.listed.contains(&directory) {
                seen.depth = (seen.depth / 2).max(2);
                *next = vec![here()];
            } else {
                return found;
            }
            // Those that nobody read are forgotten when they are in the way of others.
            if seen.expected.len() > 2 * FILES_MAX || seen.bytes > 2 * self.bytes_max {
                (seen.expected, seen.bytes) = Default::default();
            }
            // Half at a time: of many together the disk has short ways, and it still has some when more are asked for.
            if seen.expected.len() > seen.depth / 2 || seen.bytes > self.bytes_max / 2 {
                return found;
            }
            (seen.depth - seen.expected.len(), self.bytes_max - seen.bytes)
        };
        let mut names = 0;
        let mut expected = Vec::new();
        while let [outer @ .., (directory, from)] = &mut next[..]
            && found.len() < wanted
            && room > 0
            && names < NAMES_MAX
        {
            // What cannot be listed is told to whom lists it.
            let entries = listing.entries(directory, *from).await.unwrap_or_default();
            if entries.is_empty() {
                let above = if outer.is_empty() { listing.above(directory).await } else { None };
                // Also what only goes up ends: where directories stood may have changed, or be forged, and be a circle.
                names += 1;
                next.pop();
                next.extend(above);
                continue;
            }
            for (cookie, entry) in entries {
                names += 1;
                *from = cookie.saturating_add(1);
                match entry {
                    Listed::Directory(below) => {
                        if next.len() == WAY_MAX {
                            next.remove(0);
                        }
                        next.push((below, 0));
                        break;
                    }
                    Listed::File(ino, bytes, wants) if found.len() < wanted && room > 0 => {
                        room = room.saturating_sub(bytes);
                        found.push(wants);
                        expected.push((ino, bytes));
                    }
                    // To be looked at again.
                    Listed::File(..) => {
                        *from = cookie;
                        break;
                    }
                    Listed::Other => {}
                }
            }
        }
        let mut seen = self.seen.lock();
        for (ino, bytes) in expected {
            let before = seen.expected.insert(ino, bytes).unwrap_or(0);
            seen.bytes = seen.bytes + bytes - before;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::sim::{Schedule, Sim};
    use ashlar_units::{Blocks, Lba};
    use std::collections::BTreeSet;

    /// Directories of three files each, and three more directories in those of the upper levels. A file's number is 1,000,000 and that of
    /// its directory, twice shifted, and its own.
    struct Tree {
        levels: u32,
    }

    fn file(directory: Ino, index: u64) -> Ino {
        1_000_000 + (directory << 4) + index
    }

    fn contents(ino: Ino) -> Wanted {
        Wanted::Blocks(Lba(ino), Blocks(5))
    }

    /// A directory's number is its level and what leads to it.
    fn below(directory: Ino, index: u64) -> Ino {
        directory * 4 + index + 1
    }

    impl Tree {
        fn is_inner(&self, directory: Ino) -> bool {
            let level =
                std::iter::successors(Some(directory), |directory| (*directory > 1).then_some((directory - 1) / 4))
                    .count();
            level < self.levels as usize
        }
        fn list(&self, directory: Ino) -> Vec<(u64, Listed<Ino>)> {
            let mut all = Vec::new();
            for index in 0..3 {
                let cookie = index * 100;
                let ino = file(directory, index);
                all.push((cookie + 1, Listed::File(ino, 20_000, contents(ino))));
                all.push((cookie + 2, Listed::Other));
                if self.is_inner(directory) {
                    all.push((cookie + 3, Listed::Directory(below(directory, index))));
                }
            }
            all
        }
    }

    impl Listing for Tree {
        type Directory = Ino;
        async fn entries(&self, directory: &Ino, from: u64) -> Result<Vec<(u64, Listed<Ino>)>> {
            Ok(self.list(*directory).into_iter().filter(|(cookie, _)| *cookie >= from).take(4).collect())
        }
        async fn above(&self, directory: &Ino) -> Option<(Ino, u64)> {
            (*directory > 1).then(|| ((directory - 1) / 4, (directory - 1) % 4 * 100 + 4))
        }
    }

    /// Files in the order in which `grep -r` reads them, with directory and cookie.
    fn walk(tree: &Tree, directory: Ino, ahead: Option<&Ahead<Ino>>, all: &mut Vec<(Ino, Ino, u64)>) {
        ahead.inspect(|ahead| ahead.listed(directory));
        for (cookie, entry) in tree.list(directory) {
            match entry {
                Listed::Directory(below) => walk(tree, below, ahead, all),
                Listed::File(ino, ..) => all.push((ino, directory, cookie)),
                Listed::Other => {}
            }
        }
    }

    fn simulate<F: Future<Output = ()> + Send + 'static>(test: F) {
        Sim::new(0, Schedule::Fifo).run(test).expect("no deadlock");
    }

    #[test]
    fn a_walk_is_foreseen_but_for_its_beginning_and_each_file_once() {
        simulate(async {
            let (tree, ahead) = (Tree { levels: 5 }, Ahead::new(1 << 20));
            let mut all = Vec::new();
            walk(&tree, 1, None, &mut all);
            let (mut fetched, mut missed) = (BTreeSet::new(), 0);
            for (ino, directory, cookie) in &all {
                ahead.listed(*directory);
                missed += usize::from(!fetched.contains(&contents(*ino)));
                for wanted in ahead.read(&tree, *ino, *directory, || (*directory, cookie + 1)).await {
                    assert!(fetched.insert(wanted), "inode {ino}: fetched before");
                }
            }
            assert_eq!((all.len(), missed), (3 * (1 + 3 + 9 + 27 + 81), 1));
            // From the middle on, it goes up again.
            let ahead = Ahead::new(1 << 20);
            let (ino, directory, cookie) = all[200];
            ahead.listed(directory);
            let found = ahead.read(&tree, ino, directory, || (directory, cookie + 1)).await;
            assert_eq!(found, [201, 202].map(|next: usize| contents(all[next].0)));
        });
    }

    /// Every directory holds only itself, and stands in itself, or there is nothing in it.
    struct Circle {
        is_empty: bool,
    }

    impl Listing for Circle {
        type Directory = Ino;
        async fn entries(&self, directory: &Ino, _: u64) -> Result<Vec<(u64, Listed<Ino>)>> {
            Ok(if self.is_empty { Vec::new() } else { vec![(1, Listed::Directory(*directory))] })
        }
        async fn above(&self, directory: &Ino) -> Option<(Ino, u64)> {
            Some((*directory, 0))
        }
    }

    #[test]
    fn directories_that_stand_in_themselves_are_left() {
        simulate(async {
            for is_empty in [true, false] {
                let ahead = Ahead::new(1 << 20);
                for _ in 0..10 {
                    ahead.listed(7);
                    assert!(ahead.read(&Circle { is_empty }, 8, 7, || (7, 1)).await.is_empty());
                    assert!(ahead.way.lock().await.len() <= WAY_MAX);
                }
            }
        });
    }

    #[test]
    fn files_that_are_read_by_name_or_out_of_order_cost_little() {
        simulate(async {
            let (tree, ahead) = (Tree { levels: 5 }, Ahead::new(1 << 20));
            let mut all = Vec::new();
            walk(&tree, 1, None, &mut all);
            for (ino, directory, cookie) in &all {
                assert!(
                    ahead.read(&tree, *ino, *directory, || (*directory, cookie + 1)).await.is_empty(),
                    "nobody listed it"
                );
            }
            ahead.listed(1);
            let mut fetched = 0;
            for (ino, directory, cookie) in all.iter().rev().filter(|(_, directory, _)| *directory == 1) {
                fetched += ahead.read(&tree, *ino, *directory, || (*directory, cookie + 1)).await.len();
            }
            assert!(fetched <= 4, "{fetched} for three that were read backwards");
        });
    }
}
