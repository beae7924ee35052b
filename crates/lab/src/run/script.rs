//! What is to be done, by whom, and after what.

use super::root::below;
use crate::trace::after::{After, Asked};
use crate::trace::lanes::Lanes;
use crate::trace::{Op, Record};
use ashlar_units::Bytes;
use std::collections::{BTreeMap, HashMap};

/// Calls of a trace that are held in memory, about 100 bytes each.
const CALLS_MAX: usize = 20_000_000;
/// Threads at once.
const LANES_MAX: usize = 1024;
/// Nothing of a file lies behind this.
const FILE_END_MAX: u64 = 1 << 43;
/// Bytes of a call that is no write; the kernel moves no more at once.
const CALL_MAX: u64 = 0x7fff_f000;

/// How much a trace may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that it writes, all together.
    pub bytes: Bytes,
}

/// Why a trace cannot be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ScriptError {
    /// It is too long.
    #[error("it has more than {CALLS_MAX} calls; run it in parts")]
    Long,
    /// It has too many threads.
    #[error("more than {LANES_MAX} threads call at the same time; take a workload with fewer")]
    Threads,
    /// It writes too much.
    #[error("it writes {0}, more than {1}; --max-bytes allows more")]
    Bytes(Bytes, Bytes),
}

/// Records that are not run, by reason.
pub type Dropped = BTreeMap<&'static str, u64>;

/// A call, as it is run.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub op: Op,
    pub path: u32,
    pub path2: u32,
    /// Number of the open file, from 1 on; zero for none.
    pub file: u32,
    pub flags: u32,
    pub mode: u32,
    pub offset: u64,
    pub len: u64,
    pub at_ns: u64,
    /// `errno` in the trace.
    pub error: u16,
    /// Which lane it is in.
    pub lane: u32,
    /// Process and thread of the trace.
    pub caller: u32,
    waits: (u32, u32),
}

/// A trace that can be run.
#[derive(Default)]
pub struct Script {
    pub(super) calls: Vec<Call>,
    paths: Vec<String>,
    /// Process and thread of callers, as the trace has them.
    pub(super) callers: Vec<(u64, u64)>,
    /// Indices of calls, for each lane.
    pub(super) lanes: Vec<Vec<u32>>,
    /// Lane and position that are waited for.
    waits: Vec<(u32, u32)>,
    /// Open files.
    pub(super) files: u32,
    /// Numbers of open files in the trace.
    pub(super) file_numbers: Vec<u64>,
    /// Records that are left out.
    pub dropped: Dropped,
    /// Bytes that are written.
    pub written: u64,
    /// Whether it makes or needs symbolic links.
    pub links: bool,
    /// The longest read.
    pub(super) read_max: u64,
}

#[derive(Default)]
struct Names {
    numbers: HashMap<String, u32>,
    paths: Vec<String>,
}

impl Names {
    fn number(&mut self, path: &str) -> u32 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let number = self.paths.len() as u32;
        self.numbers.insert(path.into(), number);
        self.paths.push(path.into());
        number
    }
}

/// A script in the making.
pub struct ScriptBuilder {
    script: Script,
    limits: Limits,
    names: Names,
    callers: HashMap<(u64, u64), u32>,
    lanes: Lanes<u32>,
    files: HashMap<u64, u32>,
}

/// Why a record cannot be run.
fn refusal(record: &Record, path: Option<&str>, path2: Option<&str>) -> Option<&'static str> {
    if path.is_none() || path2.is_none() {
        return Some("paths that are empty, too long, or not plain");
    }
    let end = record.offset.checked_add(record.len);
    if end.is_none_or(|end| end > FILE_END_MAX) && !matches!(record.op, Op::Fadvise | Op::Getdents) {
        return Some("offsets or lengths beyond 8 TiB");
    }
    let moves = matches!(record.op, Op::Read | Op::Write | Op::Copy | Op::Mmap);
    (moves && record.len > CALL_MAX).then_some("more than 2 GiB in a call")
}

impl ScriptBuilder {
    /// Takes the next record. One that cannot be run is dropped and counted.
    pub fn add(&mut self, record: &Record) -> Result<(), ScriptError> {
        let script = &mut self.script;
        let second = matches!(record.op, Op::Rename | Op::Link | Op::Copy);
        let needs_no_path = record.file != 0 || matches!(record.op, Op::Sync | Op::Statfs);
        let path = below(&record.path).or((record.path.is_empty() && needs_no_path).then_some("."));
        let path2 = if second { below(&record.path2) } else { Some(".") };
        if let Some(why) = refusal(record, path, path2) {
            *script.dropped.entry(why).or_default() += 1;
            return Ok(());
        }
        if script.calls.len() == CALLS_MAX {
            return Err(ScriptError::Long);
        }
        let caller = number(&mut self.callers, (record.process, record.thread));
        if caller as usize == script.callers.len() {
            script.callers.push((record.process, record.thread));
        }
        self.lanes.see(caller);
        let file = if record.file == 0 { 0 } else { number(&mut self.files, record.file) + 1 };
        if file as usize > script.file_numbers.len() {
            script.file_numbers.push(record.file);
        }
        if matches!(record.op, Op::Write | Op::Fallocate | Op::Copy) && record.error == 0 {
            script.written = script.written.saturating_add(record.len);
        }
        script.links |= matches!(record.op, Op::Symlink | Op::Readlink);
        if record.op == Op::Read {
            script.read_max = script.read_max.max(record.len);
        }
        let path2 = if record.op == Op::Symlink { &record.path2 } else { path2.unwrap_or(".") };
        script.calls.push(Call {
            op: record.op,
            path: self.names.number(path.unwrap_or(".")),
            path2: self.names.number(path2),
            file,
            flags: record.flags as u32,
            mode: record.mode as u32,
            offset: record.offset,
            len: record.len,
            at_ns: record.at_ns,
            error: record.error.min(u64::from(u16::MAX)) as u16,
            lane: 0,
            caller,
            waits: (0, 0),
        });
        Ok(())
    }

    /// The script of all records.
    pub fn finish(self) -> Result<Script, ScriptError> {
        let ScriptBuilder { mut script, limits, names, files, lanes, .. } = self;
        if script.written > limits.bytes.0 {
            return Err(ScriptError::Bytes(Bytes(script.written), limits.bytes));
        }
        (script.paths, script.files) = (names.paths, files.len() as u32);
        script.deal(lanes)?;
        script.depend();
        Ok(script)
    }
}

/// The number of a key, which is the next one if it is new.
fn number<K: std::hash::Hash + Eq>(numbers: &mut HashMap<K, u32>, key: K) -> u32 {
    let next = numbers.len() as u32;
    *numbers.entry(key).or_insert(next)
}

impl Script {
    /// A script without records yet.
    pub fn builder(limits: Limits) -> ScriptBuilder {
        let (callers, files) = (HashMap::new(), HashMap::new());
        let (script, names, lanes) = (Script::default(), Names::default(), Lanes::default());
        ScriptBuilder { script, limits, names, callers, lanes, files }
    }

    /// Deals threads of the trace to lanes.
    fn deal(&mut self, mut lanes: Lanes<u32>) -> Result<(), ScriptError> {
        for (index, call) in self.calls.iter_mut().enumerate() {
            call.lane = lanes.deal(call.caller);
            let lane = call.lane as usize;
            if lane >= LANES_MAX {
                return Err(ScriptError::Threads);
            }
            if lane == self.lanes.len() {
                self.lanes.push(Vec::new());
            }
            self.lanes[lane].push(index as u32);
        }
        Ok(())
    }

    /// Finds what each call waits for.
    fn depend(&mut self) {
        let mut after = After::default();
        let Script { calls, paths, waits, file_numbers, .. } = self;
        let asked = |call: &Call| Asked {
            op: call.op,
            path: &paths[call.path as usize],
            path2: &paths[call.path2 as usize],
            file: call.file.checked_sub(1).map_or(0, |file| file_numbers[file as usize]),
            flags: call.flags.into(),
        };
        calls.iter().for_each(|call| after.see(asked(call)));
        for call in calls.iter_mut() {
            let from = waits.len() as u32;
            waits.extend(after.next(call.lane, asked(call)));
            call.waits = (from, waits.len() as u32);
        }
    }

    /// Calls, and threads that do them.
    pub fn size(&self) -> (usize, usize) {
        (self.calls.len(), self.lanes.len())
    }

    /// What a call waits for: lanes, and how many of their calls must be done.
    pub(super) fn waits(&self, call: &Call) -> &[(u32, u32)] {
        &self.waits[call.waits.0 as usize..call.waits.1 as usize]
    }

    /// The path of a call.
    pub(super) fn path(&self, number: u32) -> &str {
        &self.paths[number as usize]
    }
}
