//! A history for another time: cut, or lived again and again.
//!
//! Each pass makes the files of the history anew, under other names, in the same directories. What the pass before left goes as
//! it came: whenever a new file would take more than the bytes that the first pass ended with, the oldest files left over are
//! deleted. So the file system stays as full as the history says, and all of it turns over once in a pass.

use crate::frames::FrameError;
use crate::history::{Act, HistoryReader, Record};
use ashlar_survey::sample::mix;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::Read;

/// A nanosecond's share of a year of 365 days.
const YEAR_NS: f64 = 365.0 * 86_400e9;

/// Records in their order.
pub trait Source {
    /// The next one; `None` at the end.
    fn record(&mut self) -> Result<Option<Record>, FrameError>;
}

impl<R: Read> Source for HistoryReader<R> {
    fn record(&mut self) -> Result<Option<Record>, FrameError> {
        HistoryReader::record(self)
    }
}

#[derive(Clone, Copy)]
struct File {
    size: u64,
    parent: u64,
    /// How many files had been made when it was.
    order: u64,
}

/// See the module.
pub struct Years<R: Read, F> {
    open: F,
    reader: HistoryReader<R>,
    pass: u64,
    /// Of a pass.
    span_ns: i64,
    end_ns: i64,
    directories: HashSet<u64>,
    /// Directories that are there.
    there: HashSet<u64>,
    files: HashMap<u64, File>,
    bytes: u64,
    /// Bytes at the end of the first pass.
    most: u64,
    made: u64,
    /// Files made before this number are left over from passes before.
    fresh_from: u64,
    by_order: BTreeMap<u64, u64>,
    ready: VecDeque<Record>,
}

impl<R: Read, F: FnMut() -> Result<HistoryReader<R>, FrameError>> Years<R, F> {
    /// The history that `open` opens, as long as `years`; it lasts for `span_ns` by itself.
    pub fn new(mut open: F, span_ns: i64, years: f64) -> Result<Years<R, F>, FrameError> {
        let reader = open()?;
        Ok(Years {
            open,
            reader,
            pass: 0,
            // A second between passes; a history without time is lived once.
            span_ns: span_ns.saturating_add(1_000_000_000),
            end_ns: (years * YEAR_NS) as i64,
            directories: HashSet::new(),
            there: HashSet::new(),
            files: HashMap::new(),
            bytes: 0,
            most: u64::MAX,
            made: 0,
            fresh_from: 0,
            by_order: BTreeMap::new(),
            ready: VecDeque::new(),
        })
    }

    /// The number of this pass's file.
    fn number(&self, id: u64) -> u64 {
        if self.pass == 0 || self.directories.contains(&id) { id } else { mix(id, !self.pass).max(1) }
    }

    fn remove(&mut self, id: u64) {
        if let Some(file) = self.files.remove(&id) {
            self.bytes -= file.size;
            self.by_order.remove(&file.order);
        }
    }

    fn delete(&mut self, at_ns: i64, id: u64) {
        self.remove(id);
        self.ready.push_back(Record { at_ns, id, act: Act::Delete });
    }

    /// Deletes what is left over, oldest first, until `bytes` more fit.
    fn make_room(&mut self, at_ns: i64, bytes: u64) {
        while self.bytes.saturating_add(bytes) > self.most
            && let Some((_, id)) = self.by_order.range(..self.fresh_from).next()
        {
            self.delete(at_ns, *id);
        }
    }

    /// Adds a record of this pass, with what must go before it.
    fn add(&mut self, record: &Record) {
        let at_ns = record.at_ns.saturating_add(self.span_ns.saturating_mul(self.pass as i64));
        if matches!(record.act, Act::MakeDirectory { .. }) {
            self.directories.insert(record.id);
            if !self.there.insert(record.id) {
                return;
            }
        }
        let id = self.number(record.id);
        match record.act {
            Act::MakeDirectory { .. } => {}
            Act::Create { parent, size, .. } => {
                self.make_room(at_ns, size);
                self.remove(id);
                self.files.insert(id, File { size, parent, order: self.made });
                self.by_order.insert(self.made, id);
                self.made += 1;
                self.bytes = self.bytes.saturating_add(size);
            }
            Act::Modify { size, .. } => {
                let old = self.files.get(&id).map_or(0, |file| file.size);
                self.make_room(at_ns, size.saturating_sub(old));
                if let Some(file) = self.files.get_mut(&id) {
                    file.size = size;
                    self.bytes = self.bytes.saturating_sub(old).saturating_add(size);
                }
            }
            Act::Move { parent, .. } => {
                if let Some(file) = self.files.get_mut(&id) {
                    file.parent = parent;
                }
            }
            Act::Delete if self.there.remove(&id) => {
                let within = self.files.iter().filter(|(_, file)| file.parent == id && file.order < self.fresh_from);
                let mut within: Vec<(u64, u64)> = within.map(|(id, file)| (file.order, *id)).collect();
                within.sort_unstable();
                within.into_iter().for_each(|(_, id)| self.delete(at_ns, id));
            }
            Act::Delete => self.remove(id),
        }
        self.ready.push_back(Record { at_ns, id, act: record.act });
    }
}

impl<R: Read, F: FnMut() -> Result<HistoryReader<R>, FrameError>> Source for Years<R, F> {
    fn record(&mut self) -> Result<Option<Record>, FrameError> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Ok((record.at_ns <= self.end_ns).then_some(record));
            }
            match self.reader.record()? {
                Some(record) => self.add(&record),
                None => {
                    if self.pass == 0 {
                        self.most = self.bytes;
                    }
                    self.pass += 1;
                    let begins_ns = self.span_ns.saturating_mul(self.pass as i64);
                    if begins_ns > self.end_ns || self.made == 0 {
                        return Ok(None);
                    }
                    self.fresh_from = self.made;
                    self.reader = (self.open)()?;
                }
            }
        }
    }
}
