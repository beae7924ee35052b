//! Sorting more than memory holds: sorted runs in a file without a name, merged at the end.

use crate::codec::{Damage, Take};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// `O_TMPFILE`: a file without a name, gone with its descriptor.
const TMPFILE: i32 = 0o20_200_000;
/// Bytes of a run that are read at once.
const AHEAD: usize = 64 << 10;

/// Something that is sorted.
pub trait Item: Sized {
    /// What it is sorted by; items with equal keys come in any order that is the same each time.
    type Key: Ord + Clone;
    /// Its place.
    fn key(&self) -> Self::Key;
    /// Appends it.
    fn put(&self, to: &mut Vec<u8>);
    /// Reads what [`put`](Item::put) wrote.
    fn take(from: &mut Take) -> Result<Self, Damage>;
    /// About how many bytes it has in memory beside its own.
    fn weight(&self) -> usize;
}

/// A file without a name in a directory, to read and write; gone with its descriptor.
pub(crate) fn nameless(directory: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(TMPFILE).open(directory);
    opened.map_err(|error| io::Error::other(format!("{}: {error}", directory.display())))
}

fn weight<T: Item>(item: &T) -> usize {
    item.weight() + size_of::<T>()
}

/// Takes items in any order and gives them back sorted.
pub struct Sorter<T: Item> {
    items: Vec<T>,
    weight: usize,
    memory: usize,
    directory: PathBuf,
    file: Option<BufWriter<File>>,
    written: u64,
    runs: Vec<(u64, u64)>,
}

impl<T: Item> Sorter<T> {
    /// Holds `memory` bytes; what is more goes to a file without a name in `directory`.
    pub fn new(memory: usize, directory: &Path) -> Sorter<T> {
        let (items, runs) = (Vec::new(), Vec::new());
        Sorter { items, weight: 0, memory, directory: directory.into(), file: None, written: 0, runs }
    }

    /// Adds an item.
    pub fn push(&mut self, item: T) -> io::Result<()> {
        self.weight += weight(&item);
        self.items.push(item);
        // While a vector grows, it is there twice.
        if self.weight + self.items.capacity() * size_of::<T>() > self.memory { self.spill_named() } else { Ok(()) }
    }

    /// The file has no name, so errors name the directory.
    fn spill_named(&mut self) -> io::Result<()> {
        self.spill().map_err(|error| {
            let directory = self.directory.display();
            io::Error::new(error.kind(), format!("{directory}: a file for what is sorted there: {error}"))
        })
    }

    /// Gives away, sorted, what comes before `below`: nothing that is added later does. Once memory did not hold all, everything
    /// stays until the end. Returns whether it gave.
    pub fn settle(&mut self, below: &T::Key, mut each: impl FnMut(T) -> io::Result<()>) -> io::Result<bool> {
        if !self.runs.is_empty() {
            return Ok(false);
        }
        self.items.sort_by_cached_key(T::key);
        let count = self.items.partition_point(|item| item.key() < *below);
        self.weight -= self.items[..count].iter().map(weight).sum::<usize>();
        self.items.drain(..count).try_for_each(&mut each)?;
        Ok(true)
    }

    /// How many items memory holds.
    pub fn held(&self) -> usize {
        self.items.len()
    }

    fn spill(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(BufWriter::with_capacity(1 << 20, nameless(&self.directory)?)),
        };
        self.items.sort_by_cached_key(T::key);
        let from = self.written;
        let mut bytes = Vec::new();
        for item in self.items.drain(..) {
            bytes.clear();
            item.put(&mut bytes);
            file.write_all(&(bytes.len() as u32).to_le_bytes())?;
            file.write_all(&bytes)?;
            self.written += 4 + bytes.len() as u64;
        }
        file.flush()?;
        self.runs.push((from, self.written));
        self.weight = 0;
        Ok(())
    }

    /// Everything, sorted.
    pub fn finish(mut self) -> io::Result<Sorted<T>> {
        if self.runs.is_empty() {
            self.items.sort_by_cached_key(T::key);
            return Ok(Sorted::Memory(self.items.into_iter()));
        }
        self.spill_named()?;
        let file = self.file.take().ok_or_else(|| io::Error::other("no run"))?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let mut runs: Vec<Run> =
            self.runs.iter().map(|(from, to)| Run { at: *from, to: *to, ahead: Vec::new(), used: 0 }).collect();
        let (mut heads, mut heap) = (Vec::new(), BinaryHeap::new());
        for (index, run) in runs.iter_mut().enumerate() {
            let head: Option<T> = run.next(&file)?;
            heap.extend(head.as_ref().map(|item| Reverse((item.key(), index))));
            heads.push(head);
        }
        Ok(Sorted::Runs { file, runs, heads, heap })
    }
}

/// Sorted items.
pub enum Sorted<T: Item> {
    /// All fitted into memory.
    Memory(std::vec::IntoIter<T>),
    /// They lie in runs.
    Runs {
        /// The file.
        file: File,
        /// Where each goes on.
        runs: Vec<Run>,
        /// The next of each.
        heads: Vec<Option<T>>,
        /// The least of those.
        heap: BinaryHeap<Reverse<(T::Key, usize)>>,
    },
}

/// What is left of a run.
pub struct Run {
    at: u64,
    to: u64,
    ahead: Vec<u8>,
    used: usize,
}

impl Run {
    fn bytes(&mut self, file: &File, len: usize) -> io::Result<&[u8]> {
        if self.ahead.len() - self.used < len {
            self.ahead.drain(..self.used);
            self.used = 0;
            let have = self.ahead.len();
            let more = (self.to - self.at).min(len.max(AHEAD) as u64) as usize;
            self.ahead.resize(have + more, 0);
            file.read_exact_at(&mut self.ahead[have..], self.at)?;
            self.at += more as u64;
        }
        self.used += len;
        self.ahead.get(self.used - len..self.used).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }

    fn next<T: Item>(&mut self, file: &File) -> io::Result<Option<T>> {
        if self.at == self.to && self.used == self.ahead.len() {
            return Ok(None);
        }
        let mut len = [0; 4];
        len.copy_from_slice(self.bytes(file, 4)?);
        let mut take = Take(self.bytes(file, u32::from_le_bytes(len) as usize)?);
        T::take(&mut take).map(Some).map_err(io::Error::other)
    }
}

impl<T: Item> Iterator for Sorted<T> {
    type Item = io::Result<T>;

    fn next(&mut self) -> Option<io::Result<T>> {
        match self {
            Sorted::Memory(items) => items.next().map(Ok),
            Sorted::Runs { file, runs, heads, heap } => {
                let Reverse((_, index)) = heap.pop()?;
                let (run, head) = (runs.get_mut(index)?, heads.get_mut(index)?);
                let item = match run.next::<T>(file) {
                    Ok(next) => std::mem::replace(head, next),
                    Err(error) => return Some(Err(error)),
                };
                heap.extend(head.as_ref().map(|next| Reverse((next.key(), index))));
                item.map(Ok)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{put_bytes, put_u64};

    #[derive(Clone, Debug, PartialEq)]
    struct Text(u64, Vec<u8>);

    impl Item for Text {
        type Key = u64;
        fn key(&self) -> u64 {
            self.0
        }
        fn put(&self, to: &mut Vec<u8>) {
            put_u64(to, self.0);
            put_bytes(to, &self.1);
        }
        fn take(from: &mut Take) -> Result<Text, Damage> {
            Ok(Text(from.u64()?, from.bytes(1 << 20)?.to_vec()))
        }
        fn weight(&self) -> usize {
            self.1.capacity()
        }
    }

    #[test]
    fn runs_merge_as_if_all_had_been_in_memory() {
        for memory in [0, 3000, 50_000, usize::MAX / 4] {
            let number = |index: u64| ashlar_survey::sample::mix(index, 1) % 5000;
            let items: Vec<Text> = (0..3000).map(|i| Text(number(i), vec![i as u8; (i % 90) as usize])).collect();
            let mut sorter = Sorter::new(memory, &std::env::temp_dir());
            items.iter().for_each(|item| sorter.push(item.clone()).expect("space"));
            let sorted: Vec<Text> = sorter.finish().expect("space").map(|item| item.expect("ours")).collect();
            let mut expected = items;
            expected.sort_by_key(|text| text.0);
            assert_eq!(
                sorted.iter().map(Item::key).collect::<Vec<_>>(),
                expected.iter().map(Item::key).collect::<Vec<_>>()
            );
            let all = |texts: &[Text]| {
                texts.iter().map(|text| (text.0, text.1.clone())).collect::<std::collections::BTreeSet<_>>()
            };
            assert_eq!(all(&sorted), all(&expected), "memory {memory}");
        }
    }
}
