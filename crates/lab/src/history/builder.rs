//! Puts records that were found in any order into one that can be carried out.

use super::format::{Header, HistoryWriter};
use super::record::{Act, ROOT, Record};
use super::stats::{Closing, Stats};
use crate::partial::Partial;
use crate::sorter::Sorter;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What had to be put right, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Tidied {
    /// Directories that were made earlier than said, because something was made in them.
    pub directories_early: u64,
    /// Directories that were deleted later than said, because something was still in them.
    pub directories_late: u64,
    /// Directories that were never deleted for that reason.
    pub directories_kept: u64,
    /// Records about what was not there, or was there already.
    pub dropped: u64,
}

/// Takes records in any order. Directories are kept in memory, and what is alive at one time.
pub struct Builder {
    sorter: Sorter<Record>,
    directories: HashMap<u64, (u64, u8)>,
    first_ns: i64,
}

struct Ordered<'a> {
    directories: &'a HashMap<u64, (u64, u8)>,
    /// What is alive: its directory, and for a directory how many are in it.
    live: HashMap<u64, (u64, Option<u64>)>,
    /// Directories to be deleted when they are empty.
    doomed: HashSet<u64>,
    tidied: Tidied,
    stats: Stats,
}

impl Builder {
    /// Holds about `memory` bytes of records; more go to a file without a name in `directory`.
    pub fn new(memory: usize, directory: &Path) -> Builder {
        Builder { sorter: Sorter::new(memory, directory), directories: HashMap::new(), first_ns: i64::MAX }
    }

    /// Adds a record. Records of one time stay in the order in which they were added.
    pub fn push(&mut self, record: Record) -> io::Result<()> {
        if let Act::MakeDirectory { parent, name_len } = record.act {
            self.directories.insert(record.id, (parent, name_len));
        }
        self.first_ns = self.first_ns.min(record.at_ns);
        self.sorter.push(record)
    }

    /// Writes the history into the file `to`, which appears when it is whole. `interrupted` ends it.
    pub fn finish(self, to: &Path, header: &Header, interrupted: &AtomicBool) -> io::Result<(Closing, Tidied)> {
        let mut writer = HistoryWriter::new(Partial::buffered(to)?, header)?;
        let (closing, tidied) = self.ordered(interrupted, |record| writer.put(&record))?;
        Partial::finish_buffered(writer.finish(&closing)?)?;
        Ok((closing, tidied))
    }

    /// Gives the records in order to `each`.
    pub fn ordered(
        self,
        interrupted: &AtomicBool,
        mut each: impl FnMut(Record) -> io::Result<()>,
    ) -> io::Result<(Closing, Tidied)> {
        let directories = self.directories;
        let live = HashMap::from([(ROOT, (ROOT, Some(0)))]);
        let (doomed, stats) = (HashSet::new(), Stats::default());
        let mut ordered = Ordered { directories: &directories, live, doomed, tidied: Tidied::default(), stats };
        for record in self.sorter.finish()? {
            if interrupted.load(Ordering::Acquire) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
            }
            let record = record?;
            let at_ns = record.at_ns.checked_sub(self.first_ns).unwrap_or(i64::MAX);
            ordered.record(Record { at_ns, ..record }, &mut each)?;
        }
        ordered.tidied.directories_kept = ordered.doomed.len() as u64;
        Ok((ordered.stats.finish(), ordered.tidied))
    }
}

type Each<'a> = &'a mut dyn FnMut(Record) -> io::Result<()>;

impl Ordered<'_> {
    fn record(&mut self, record: Record, each: Each) -> io::Result<()> {
        let known = self.live.get(&record.id).copied();
        match (record.act, known) {
            (Act::MakeDirectory { .. } | Act::Create { .. }, Some(_))
            | (Act::Modify { .. } | Act::Move { .. } | Act::Delete, None)
            | (Act::Modify { .. }, Some((_, Some(_)))) => {
                // A directory that somebody needed early is no fault.
                let early = matches!(record.act, Act::MakeDirectory { .. });
                self.tidied.dropped += u64::from(!early);
                self.doomed.remove(&record.id);
                Ok(())
            }
            (Act::MakeDirectory { parent, name_len }, None) => {
                let parent = self.parent(parent, record.at_ns, 0, each)?;
                if self.live.contains_key(&record.id) {
                    // It was made on the way to itself.
                    return Ok(());
                }
                self.enter(record.id, parent, Some(0));
                self.emit(Record { act: Act::MakeDirectory { parent, name_len }, ..record }, each)
            }
            (Act::Create { parent, name_len, size, how }, None) => {
                let parent = self.parent(parent, record.at_ns, 0, each)?;
                if self.live.contains_key(&record.id) {
                    self.tidied.dropped += 1;
                    return Ok(());
                }
                self.enter(record.id, parent, None);
                self.emit(Record { act: Act::Create { parent, name_len, size, how }, ..record }, each)
            }
            (Act::Modify { .. }, Some((_, None))) => self.emit(record, each),
            (Act::Move { parent, name_len }, Some((from, entries))) => {
                let parent = self.parent(parent, record.at_ns, 0, each)?;
                if self.is_within(parent, record.id) {
                    self.tidied.dropped += 1;
                    return Ok(());
                }
                self.live.insert(record.id, (parent, entries));
                self.count(parent, 1);
                self.emit(Record { act: Act::Move { parent, name_len }, ..record }, each)?;
                self.leave(from, record.at_ns, each)
            }
            (Act::Delete, Some((_, Some(1..)))) => {
                self.doomed.insert(record.id);
                Ok(())
            }
            (Act::Delete, Some((parent, _))) => {
                self.live.remove(&record.id);
                self.emit(record, each)?;
                self.leave(parent, record.at_ns, each)
            }
        }
    }

    fn emit(&mut self, record: Record, each: Each) -> io::Result<()> {
        self.stats.add(&record);
        each(record)
    }

    fn enter(&mut self, id: u64, parent: u64, entries: Option<u64>) {
        self.live.insert(id, (parent, entries));
        self.count(parent, 1);
    }

    fn count(&mut self, directory: u64, change: i64) -> u64 {
        match self.live.get_mut(&directory) {
            Some((_, Some(entries))) => {
                *entries = entries.saturating_add_signed(change);
                *entries
            }
            _ => 0,
        }
    }

    /// Something left a directory, which may now be deleted.
    fn leave(&mut self, directory: u64, at_ns: i64, each: Each) -> io::Result<()> {
        let mut directory = directory;
        while self.count(directory, -1) == 0 && self.doomed.remove(&directory) {
            let Some((parent, _)) = self.live.remove(&directory) else { break };
            self.tidied.directories_late += 1;
            self.emit(Record { at_ns, id: directory, act: Act::Delete }, each)?;
            directory = parent;
        }
        Ok(())
    }

    /// The directory itself if it is alive, or made now; the root if nobody knows it.
    fn parent(&mut self, id: u64, at_ns: i64, depth: u32, each: Each) -> io::Result<u64> {
        match self.live.get(&id) {
            Some((_, Some(_))) => return Ok(id),
            Some((_, None)) => return Ok(ROOT),
            None => {}
        }
        // A ring of directories has no end.
        let Some((above, name_len)) = self.directories.get(&id).copied().filter(|_| depth < 1000) else {
            return Ok(ROOT);
        };
        let parent = self.parent(above, at_ns, depth + 1, each)?;
        // In a ring, it was made on the way.
        if self.live.contains_key(&id) {
            return Ok(id);
        }
        self.tidied.directories_early += 1;
        self.enter(id, parent, Some(0));
        self.emit(Record { at_ns, id, act: Act::MakeDirectory { parent, name_len } }, each)?;
        Ok(id)
    }

    /// Whether `inner` is `outer` or in it.
    fn is_within(&self, inner: u64, outer: u64) -> bool {
        let mut at = inner;
        while at != ROOT {
            if at == outer {
                return true;
            }
            let Some((parent, _)) = self.live.get(&at) else { break };
            at = *parent;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::record::Writing;
    use proptest::prelude::*;

    fn record(at_ns: i64, id: u64, act: Act) -> Record {
        Record { at_ns, id, act }
    }

    fn create(parent: u64, size: u64) -> Act {
        Act::Create { parent, name_len: 8, size, how: Writing::default() }
    }

    fn directory(parent: u64) -> Act {
        Act::MakeDirectory { parent, name_len: 3 }
    }

    fn ordered(records: &[Record]) -> (Vec<Record>, Closing, Tidied) {
        let mut builder = Builder::new(0, &std::env::temp_dir());
        records.iter().for_each(|record| builder.push(*record).expect("space"));
        let mut all = Vec::new();
        let done = builder.ordered(&AtomicBool::new(false), |record| {
            all.push(record);
            Ok(())
        });
        let (closing, tidied) = done.expect("no interruption");
        (all, closing, tidied)
    }

    #[test]
    fn directories_come_first_and_go_last() {
        let given = [
            record(100, 1, directory(ROOT)),
            record(150, 2, directory(1)),
            record(120, 9, create(2, 5000)),
            record(130, 1, Act::Delete),
            record(131, 2, Act::Delete),
            record(160, 9, Act::Delete),
        ];
        let (all, closing, tidied) = ordered(&given);
        let expected = [
            record(0, 1, directory(ROOT)),
            record(20, 2, directory(1)),
            record(20, 9, create(2, 5000)),
            record(60, 9, Act::Delete),
            record(60, 2, Act::Delete),
            record(60, 1, Act::Delete),
        ];
        // The record at 150 says again that directory 2 is there, and so takes back its deletion.
        assert_eq!(all[..4], expected[..4]);
        assert_eq!((closing.created, closing.peak_bytes, closing.live_bytes), (1, 8192, 0));
        assert_eq!((tidied.directories_early, tidied.dropped), (1, 0));
        let (all, _, tidied) = ordered(&[&given[..1], &given[2..]].concat());
        assert_eq!(all.len(), 4, "{all:?}: nobody knows directory 2, so the file is in the root");
        assert_eq!(tidied.dropped, 1);
        let earlier = [&[record(101, 2, directory(1))], &given[..1], &given[2..]].concat();
        let (all, _, tidied) = ordered(&earlier);
        assert_eq!((all.len(), &all[3..], tidied.directories_late), (6, &expected[3..], 2));
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let act = (0..5u8, 0..12u64, 0..20_000u64, 0..20_000u64).prop_map(|(kind, parent, size, keep)| match kind {
            0 => directory(parent),
            1 => create(parent, size),
            2 => Act::Modify { keep, size, how: Writing::default() },
            3 => Act::Move { parent, name_len: 4 },
            _ => Act::Delete,
        });
        (-1000..1000i64, 1..12u64, act).prop_map(|(at_ns, id, act)| Record { at_ns, id, act })
    }

    proptest! {
        /// Whatever is put in, what comes out can be carried out: a second pass changes nothing.
        #[test]
        fn what_is_ordered_can_be_carried_out(records in prop::collection::vec(any_record(), 0..60)) {
            let (once, closing, _) = ordered(&records);
            let mut live: HashMap<u64, (u64, bool)> = HashMap::from([(ROOT, (ROOT, true))]);
            let mut last = 0;
            for record in &once {
                prop_assert!(record.at_ns >= last);
                last = record.at_ns;
                let is_directory = |id: u64| live.get(&id).is_some_and(|found| found.1);
                match record.act {
                    Act::MakeDirectory { parent, .. } | Act::Create { parent, .. } => {
                        prop_assert!(is_directory(parent) && !live.contains_key(&record.id));
                        live.insert(record.id, (parent, matches!(record.act, Act::MakeDirectory { .. })));
                    }
                    Act::Modify { .. } => prop_assert!(live.get(&record.id).is_some_and(|found| !found.1)),
                    Act::Move { parent, .. } => {
                        prop_assert!(is_directory(parent) && live.contains_key(&record.id));
                        let mut at = parent;
                        while at != ROOT {
                            prop_assert_ne!(at, record.id);
                            at = live[&at].0;
                        }
                        live.get_mut(&record.id).expect("alive").0 = parent;
                    }
                    Act::Delete => {
                        prop_assert!(live.remove(&record.id).is_some());
                        prop_assert!(live.values().all(|(parent, _)| *parent != record.id));
                    }
                }
            }
            prop_assert_eq!(closing.records as usize, once.len());
            prop_assert_eq!(closing.live_files + closing.live_directories + 1, live.len() as u64);
        }
    }
}
