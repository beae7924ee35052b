//! A trace that is being written: records come as they end, and stand in the file as they began.

use super::{CALLS, Op, Record};
use crate::codec::{Damage, Take, put_bytes, put_u64};
use crate::partial::Partial;
use crate::sorter::{Item, Sorter};
use ashlar_columns::Writer;
use std::io;
use std::path::Path;

/// Longest text of a record that is sorted: a path may be joined of two.
const TEXT_LEN_MAX: usize = 1 << 16;

impl Item for Record {
    type Key = u64;

    fn key(&self) -> u64 {
        self.at_ns
    }

    fn put(&self, to: &mut Vec<u8>) {
        to.push(self.op as u8);
        for number in self.numbers() {
            put_u64(to, number);
        }
        put_bytes(to, self.path.as_bytes());
        put_bytes(to, self.path2.as_bytes());
    }

    fn take(from: &mut Take) -> Result<Record, Damage> {
        let op = from.u8()?;
        let op = Op::ALL.get(usize::from(op)).copied().ok_or(Damage("there is no such operation"))?;
        let mut record = Record::new(op, "");
        let [at, latency, process, thread, file, offset, len, done, error, flags, mode] = &mut [0; 11];
        for number in [&mut *at, latency, process, thread, file, offset, len, done, error, flags, mode] {
            *number = from.u64()?;
        }
        (record.at_ns, record.latency_ns, record.process, record.thread) = (*at, *latency, *process, *thread);
        (record.file, record.offset, record.len, record.done) = (*file, *offset, *len, *done);
        (record.error, record.flags, record.mode) = (*error, *flags, *mode);
        for text in [&mut record.path, &mut record.path2] {
            *text = String::from_utf8(from.bytes(TEXT_LEN_MAX)?.to_vec()).map_err(|_| Damage("a path is no text"))?;
        }
        Ok(record)
    }

    fn weight(&self) -> usize {
        self.path.capacity() + self.path2.capacity()
    }
}

impl Record {
    fn numbers(&self) -> [u64; 11] {
        let Record { at_ns, latency_ns, process, thread, file, offset, len, done, error, flags, mode, .. } = *self;
        [at_ns, latency_ns, process, thread, file, offset, len, done, error, flags, mode]
    }
}

/// Writes a trace whose records come in their order. The file gets its name when it is whole; returns how many there are.
pub fn write(to: &Path, records: impl IntoIterator<Item = Record>) -> io::Result<u64> {
    let mut writer = Writer::to(&CALLS, to, Partial::create(to)?)?;
    records.into_iter().try_for_each(|record| writer.put(record))?;
    finish(writer)
}

fn finish(writer: Writer<Record, Partial>) -> io::Result<u64> {
    let count = writer.count();
    writer.finish_into()?.finish().map(|()| count)
}

/// Records that are held before those are written that nothing can come before any more.
const HELD: usize = 1 << 14;

/// A file of records that gets its name when it is whole.
pub struct TraceFile {
    sorter: Sorter<Record>,
    writer: Writer<Record, Partial>,
    settled_ns: u64,
}

/// The directory that a file is or will be in.
pub fn home(of: &Path) -> &Path {
    match of.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

impl TraceFile {
    /// Makes the file, which is Parquet if `to` ends in `.parquet`; sorts in `memory` bytes, and in a file without a name
    /// beside.
    pub fn create(to: &Path, memory: usize) -> io::Result<TraceFile> {
        let writer = Writer::to(&CALLS, to, Partial::create(to)?)?;
        Ok(TraceFile { sorter: Sorter::new(memory, home(to)), writer, settled_ns: 0 })
    }

    /// Adds a record. Returns whether its time was moved, since later ones were written already.
    pub fn put(&mut self, mut record: Record) -> io::Result<bool> {
        let moved = record.at_ns < self.settled_ns;
        record.at_ns = record.at_ns.max(self.settled_ns);
        self.sorter.push(record).map(|()| moved)
    }

    /// No record begins before `at_ns` that is added from now on.
    pub fn settle(&mut self, at_ns: u64) -> io::Result<()> {
        if self.sorter.held() < HELD || at_ns <= self.settled_ns {
            return Ok(());
        }
        if self.sorter.settle(&at_ns, |record| self.writer.put(record))? {
            self.settled_ns = at_ns;
        }
        Ok(())
    }

    /// Writes everything by the time at which it began, makes it durable and gives it its name. Returns the number of
    /// records.
    pub fn finish(self) -> io::Result<u64> {
        let mut writer = self.writer;
        for record in self.sorter.finish()? {
            writer.put(record?)?;
        }
        finish(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stand_in_the_order_of_their_beginnings() {
        let home = std::env::temp_dir().join(format!("ashlar-trace-file-{}", std::process::id()));
        std::fs::create_dir_all(&home).expect("room");
        let path = home.join("a.parquet");
        let records = super::super::record::samples();
        for memory in [0, 1 << 20] {
            let mut file = TraceFile::create(&path, memory).expect("room");
            for record in &records {
                assert!(!file.put(record.clone()).expect("room"));
            }
            assert!(!path.exists());
            assert_eq!(file.finish().expect("room"), 30);
            let mut back = Vec::new();
            let read = ashlar_columns::read(&CALLS, &path, |record| {
                back.push(record);
                Ok(())
            });
            assert_eq!(read, Ok(()));
            let mut expected = records.clone();
            expected.sort_by_key(|record| record.at_ns);
            assert_eq!(back, expected, "memory {memory}");
            std::fs::remove_file(&path).expect("it is ours");
        }
        // What nothing can come before is written at once; what comes before it nevertheless is moved.
        let late = |at_ns| Record { at_ns, ..Record::new(Op::Sync, "") };
        for memory in [0, 1 << 30] {
            let mut file = TraceFile::create(&path, memory).expect("room");
            for at_ns in (0..HELD as u64).rev() {
                assert!(!file.put(late(at_ns)).expect("room"));
            }
            file.settle(5000).expect("room");
            assert_eq!(file.sorter.held(), if memory == 0 { 0 } else { HELD - 5000 });
            let moved = file.put(late(4999)).expect("room");
            assert_eq!(moved, memory > 0, "what lies in runs is sorted at the end");
            assert_eq!(file.finish().expect("room"), HELD as u64 + 1);
            let (mut last, mut twice) = (0, Vec::new());
            let read = ashlar_columns::read(&CALLS, &path, |record| {
                assert!(record.at_ns >= last);
                twice.extend((record.at_ns == last && last > 0).then_some(last));
                last = record.at_ns;
                Ok(())
            });
            assert_eq!((read, twice), (Ok(()), vec![if moved { 5000 } else { 4999 }]));
            std::fs::remove_file(&path).expect("it is ours");
        }
        drop(TraceFile::create(&path, 0).expect("room"));
        let error = TraceFile::create(&home.join("no/where"), 0).err().expect("there is no such directory");
        assert!(error.to_string().contains("no/where"), "{error}");
        assert_eq!(std::fs::read_dir(&home).expect("it is there").count(), 0);
        std::fs::remove_dir_all(&home).expect("it is ours");
    }
}
