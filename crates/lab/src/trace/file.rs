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

/// A file of records that gets its name when it is whole.
pub struct TraceFile {
    sorter: Sorter<Record>,
    writer: Writer<Record, Partial>,
}

impl TraceFile {
    /// Makes the file, which is Parquet if `to` ends in `.parquet`; sorts in `memory` bytes, and in a file without a name
    /// beside.
    pub fn create(to: &Path, memory: usize) -> io::Result<TraceFile> {
        let directory = match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let writer = Writer::to(&CALLS, to, Partial::create(to)?)?;
        Ok(TraceFile { sorter: Sorter::new(memory, directory), writer })
    }

    /// Adds a record.
    pub fn put(&mut self, record: Record) -> io::Result<()> {
        self.sorter.push(record)
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
            records.iter().for_each(|record| file.put(record.clone()).expect("room"));
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
        drop(TraceFile::create(&path, 0).expect("room"));
        let error = TraceFile::create(&home.join("no/where"), 0).err().expect("there is no such directory");
        assert!(error.to_string().contains("no/where"), "{error}");
        assert_eq!(std::fs::read_dir(&home).expect("it is there").count(), 0);
        std::fs::remove_dir_all(&home).expect("it is ours");
    }
}
