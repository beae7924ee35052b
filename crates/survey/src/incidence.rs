//! Which content was seen where: the raw material of every ratio.
//!
//! An *incidence* is one value (the digest of a chunk) in one cluster of the sample. They are kept in a list that is sorted
//! and merged when it becomes long; when what is left exceeds the memory, it goes to a file without a name, as a sorted
//! run, and runs are merged when they are read. So the answer is exact at any size, and memory is bounded.

use crate::sort::sort_by_key;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// A value in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Incidence {
    /// Digest of the chunk.
    pub value: u64,
    /// Where it was seen.
    pub cluster: u32,
    /// Bytes of the chunk.
    pub len: u32,
    /// How often it was seen there, up to what fits.
    pub count: u32,
}

/// Bytes of an incidence in a run.
const RECORD: usize = 20;
/// Bytes of an incidence in memory.
pub const ENTRY_BYTES: usize = size_of::<Incidence>();
/// A list is sorted before it grows only from this length on: until then, sorting it costs more than its memory.
const GROWS_TO: usize = 1 << 20;
/// Runs that are merged at once, at most: each has a file and a buffer.
const RUNS_MAX: usize = 64;

/// All incidences of one chunking.
pub struct Incidences {
    list: Vec<Incidence>,
    /// The first so many are sorted and merged.
    sorted: usize,
    entries_max: usize,
    directory: PathBuf,
    runs: Vec<File>,
    spilled: u64,
}

impl Incidences {
    /// None yet; at most `memory` bytes of them stay in memory, and the rest goes to files in `directory`.
    pub fn new(memory: u64, directory: &Path) -> Incidences {
        let entries_max = (memory as usize / ENTRY_BYTES).max(1 << 12);
        let directory = directory.to_path_buf();
        Incidences { list: Vec::new(), sorted: 0, entries_max, directory, runs: Vec::new(), spilled: 0 }
    }

    /// So many more will come, roughly. Who knows spares the list its growing, which writes all of it to fresh memory each time.
    pub fn expect(&mut self, more: u64) {
        let most = GROWS_TO.min(self.entries_max).saturating_sub(self.list.len());
        self.list.reserve_exact((more as usize).min(most));
    }

    /// Adds one.
    pub fn push(&mut self, value: u64, cluster: u32, len: u32) -> io::Result<()> {
        self.add(Incidence { value, cluster, len, count: 1 })
    }

    /// Adds one that may stand for several.
    pub fn add(&mut self, incidence: Incidence) -> io::Result<()> {
        let grows = self.list.len() == self.list.capacity();
        if grows && self.list.len() >= GROWS_TO.max(self.sorted * 2) {
            self.merge();
        }
        if self.list.len() >= self.entries_max {
            self.merge();
            // Merging again and again what hardly shrinks would take for ever.
            if self.list.len() > self.entries_max / 2 {
                self.spill()?;
            }
        }
        if self.list.len() == self.list.capacity() {
            let more = self.list.len().max(1 << 10).min(self.entries_max.saturating_sub(self.list.len()).max(1));
            self.list.reserve_exact(more);
        }
        self.list.push(incidence);
        Ok(())
    }

    /// Bytes that went to files.
    pub fn spilled(&self) -> u64 {
        self.spilled
    }
    /// Nothing was added.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.runs.is_empty()
    }

    fn merge(&mut self) {
        if self.sorted == self.list.len() {
            return;
        }
        sort_by_key(&mut self.list, |incidence| (incidence.value, incidence.cluster));
        self.list.dedup_by(|next, kept| {
            let same = (next.value, next.cluster) == (kept.value, kept.cluster);
            if same {
                kept.count = kept.count.saturating_add(next.count);
            }
            same
        });
        self.sorted = self.list.len();
    }

    fn spill(&mut self) -> io::Result<()> {
        self.merge();
        if self.runs.len() + 1 >= RUNS_MAX {
            self.join_runs()?;
        }
        let mut file = BufWriter::with_capacity(1 << 18, nameless(&self.directory)?);
        for incidence in self.list.drain(..) {
            file.write_all(&encode(&incidence))?;
            self.spilled += RECORD as u64;
        }
        self.sorted = 0;
        self.runs.push(file.into_inner().map_err(io::IntoInnerError::into_error)?);
        Ok(())
    }

    /// Makes one run of all.
    fn join_runs(&mut self) -> io::Result<()> {
        let mut joined = BufWriter::with_capacity(1 << 18, nameless(&self.directory)?);
        let mut runs = std::mem::take(&mut self.runs);
        merge_runs(&mut runs, &[], |incidence| joined.write_all(&encode(incidence)))?;
        self.runs.push(joined.into_inner().map_err(io::IntoInnerError::into_error)?);
        Ok(())
    }

    /// Calls `each` with all incidences, by value and cluster, each pair once.
    pub fn for_each(&mut self, mut each: impl FnMut(&Incidence)) -> io::Result<()> {
        self.merge();
        merge_runs(&mut self.runs, &self.list, |incidence| {
            each(incidence);
            Ok(())
        })
    }

    /// All incidences, for [`Incidences::read_from`].
    pub fn write_to(&mut self, to: &mut impl Write) -> io::Result<()> {
        let mut count = 0u64;
        self.for_each(|_| count += 1)?;
        to.write_all(&count.to_le_bytes())?;
        merge_runs(&mut self.runs, &self.list, |incidence| to.write_all(&encode(incidence)))
    }

    /// Adds what was written.
    pub fn read_from(&mut self, from: &mut impl Read) -> io::Result<()> {
        let mut count = [0; 8];
        from.read_exact(&mut count)?;
        for _ in 0..u64::from_le_bytes(count) {
            let mut record = [0; RECORD];
            from.read_exact(&mut record)?;
            self.add(decode(&record))?;
        }
        Ok(())
    }
}

/// A file that goes when it is closed.
fn nameless(directory: &Path) -> io::Result<File> {
    let name = directory.join(format!(".ashlar-survey-{}-{:p}", std::process::id(), &raw const *directory));
    let mut number = 0u32;
    loop {
        let path = name.with_extension(number.to_string());
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
}

fn encode(incidence: &Incidence) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&incidence.value.to_le_bytes());
    record[8..12].copy_from_slice(&incidence.cluster.to_le_bytes());
    record[12..16].copy_from_slice(&incidence.len.to_le_bytes());
    record[16..].copy_from_slice(&incidence.count.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD]) -> Incidence {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = *record;
    Incidence {
        value: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        cluster: u32::from_le_bytes([i, j, k, l]),
        len: u32::from_le_bytes([m, n, o, p]),
        count: u32::from_le_bytes([q, r, s, t]),
    }
}

/// Gives what sorted runs and a sorted list hold, in order, equal pairs as one.
fn merge_runs(
    runs: &mut [File],
    list: &[Incidence],
    mut each: impl FnMut(&Incidence) -> io::Result<()>,
) -> io::Result<()> {
    if runs.is_empty() {
        return list.iter().try_for_each(each);
    }
    let mut readers = Vec::new();
    for run in runs {
        run.rewind()?;
        readers.push(BufReader::with_capacity(1 << 16, run));
    }
    let mut list = list.iter();
    let mut heads = Vec::new();
    for reader in &mut readers {
        heads.push(next(reader)?);
    }
    heads.push(list.next().copied());
    let key = |incidence: &Incidence| (incidence.value, incidence.cluster);
    let mut last: Option<Incidence> = None;
    loop {
        let least = heads.iter().enumerate().filter_map(|(index, head)| head.map(|head| (key(&head), index))).min();
        let Some((_, index)) = least else { break };
        let following = match readers.get_mut(index) {
            Some(reader) => next(reader)?,
            None => list.next().copied(),
        };
        let Some(head) = std::mem::replace(&mut heads[index], following) else { break };
        match &mut last {
            Some(last) if key(last) == key(&head) => last.count = last.count.saturating_add(head.count),
            _ => {
                if let Some(done) = last.replace(head) {
                    each(&done)?;
                }
            }
        }
    }
    last.iter().try_for_each(each)
}

fn next(reader: &mut impl Read) -> io::Result<Option<Incidence>> {
    let mut record = [0; RECORD];
    match reader.read_exact(&mut record) {
        Ok(()) => Ok(Some(decode(&record))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_models::Chance;
    use std::collections::BTreeMap;

    #[test]
    fn what_is_spilled_counts_like_what_is_not() {
        let directory = std::env::temp_dir();
        let mut chance = Chance::new(7);
        let (mut small, mut large) = (Incidences::new(0, &directory), Incidences::new(1 << 30, &directory));
        let mut model: BTreeMap<(u64, u32), u32> = BTreeMap::new();
        for _ in 0..1_200_000 {
            let (value, cluster) = (chance.below(60_000), chance.below(4) as u32);
            small.push(value, cluster, 4096).expect("space");
            large.push(value, cluster, 4096).expect("memory");
            *model.entry((value, cluster)).or_default() += 1;
        }
        assert!(small.spilled() > 0 && large.spilled() == 0);
        let all = |incidences: &mut Incidences| {
            let mut all = Vec::new();
            incidences
                .for_each(|found| all.push(((found.value, found.cluster), found.count)))
                .expect("files are there");
            all
        };
        let expected: Vec<_> = model.into_iter().collect();
        assert!(all(&mut small) == expected, "spilled");
        assert!(all(&mut large) == expected, "in memory");
        let mut bytes = Vec::new();
        small.write_to(&mut bytes).expect("memory");
        let mut again = Incidences::new(1 << 30, &directory);
        again.read_from(&mut bytes.as_slice()).expect("whole");
        assert!(all(&mut again) == expected, "read back");
    }
}
