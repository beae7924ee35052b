//! Threads that call.

use crate::trace::flags::{CREATE, CUT, DIRECTORY, READ, WRITE};
use crate::trace::{Op, Record};
use ashlar_models::Chance;
use ashlar_survey::sample::mix;
use std::collections::VecDeque;

/// `ENOENT`.
const ABSENT: u64 = 2;
/// Bytes of directory entries that are asked for, as the C library does.
const ENTRIES: u64 = 32 << 10;

/// A file that a thread has open.
#[derive(Clone, Debug)]
pub struct Opened {
    file: u64,
    path: String,
}

/// A thread as its program sees it: each method is a call.
pub struct Caller {
    /// Chance of this thread.
    pub chance: Chance,
    thread: u64,
    threads: u64,
    opened: u64,
    first: u64,
    queue: VecDeque<Record>,
}

/// A thread of a workload: its records.
pub struct Thread {
    caller: Caller,
    step: Box<dyn FnMut(&mut Caller) -> bool + Send>,
    ended: bool,
}

impl Thread {
    /// Thread `thread` of `threads` in stage `stage` of a workload. `step` makes some calls, few of them, and says whether
    /// there are more.
    pub fn new(
        (stage, thread, threads): (u64, u64, u64),
        seed: u64,
        step: impl FnMut(&mut Caller) -> bool + Send + 'static,
    ) -> Thread {
        let chance = Chance::new(mix(mix(seed, stage), thread));
        // Numbers of open files differ between threads and stages.
        let first = (stage << 40) + 1;
        Thread {
            caller: Caller { chance, thread, threads, opened: 0, first, queue: VecDeque::new() },
            step: Box::new(step),
            ended: false,
        }
    }
}

impl Iterator for Thread {
    type Item = Record;
    fn next(&mut self) -> Option<Record> {
        while self.caller.queue.is_empty() && !self.ended {
            self.ended = !(self.step)(&mut self.caller);
        }
        self.caller.queue.pop_front()
    }
}

impl Caller {
    fn put(&mut self, record: Record) {
        self.queue.push_back(Record { process: 1, thread: self.thread + 1, ..record });
    }

    fn on(&mut self, op: Op, file: &Opened, offset: u64, len: u64) {
        let done = if matches!(op, Op::Read | Op::Write) { len } else { 0 };
        self.put(Record { file: file.file, offset, len, done, ..Record::new(op, &*file.path) });
    }

    fn about(&mut self, op: Op, path: &str, mode: u64) {
        self.put(Record { mode, ..Record::new(op, path) });
    }

    /// Opens a file. Its mode is that of new files.
    pub fn open(&mut self, path: &str, flags: u64) -> Opened {
        let file = self.first + self.opened * self.threads + self.thread;
        self.opened += 1;
        let mode = if flags & CREATE == 0 { 0 } else { 0o644 };
        self.put(Record { file, flags, mode, ..Record::new(Op::Open, path) });
        Opened { file, path: path.into() }
    }
    /// Closes it.
    pub fn close(&mut self, file: Opened) {
        self.on(Op::Close, &file, 0, 0);
    }
    /// Reads so much of it from an offset on.
    pub fn read(&mut self, file: &Opened, offset: u64, len: u64) {
        self.on(Op::Read, file, offset, len);
    }
    /// Writes so much of it from an offset on.
    pub fn write(&mut self, file: &Opened, offset: u64, len: u64) {
        self.on(Op::Write, file, offset, len);
    }
    /// Makes it durable.
    pub fn fsync(&mut self, file: &Opened) {
        self.on(Op::Fsync, file, 0, 0);
    }
    /// Asks for attributes of an open file.
    pub fn fstat(&mut self, file: &Opened) {
        self.on(Op::Stat, file, 0, 0);
    }
    /// Asks for attributes.
    pub fn stat(&mut self, path: &str) {
        self.about(Op::Stat, path, 0);
    }
    /// Asks for attributes of what is not there.
    pub fn stat_absent(&mut self, path: &str) {
        self.put(Record { error: ABSENT, ..Record::new(Op::Stat, path) });
    }
    /// Sets the mode.
    pub fn chmod(&mut self, path: &str, mode: u64) {
        self.about(Op::Chmod, path, mode);
    }
    /// Removes a name.
    pub fn unlink(&mut self, path: &str) {
        self.about(Op::Unlink, path, 0);
    }
    /// Makes a directory.
    pub fn mkdir(&mut self, path: &str) {
        self.about(Op::Mkdir, path, 0o755);
    }
    /// Removes one.
    pub fn rmdir(&mut self, path: &str) {
        self.about(Op::Rmdir, path, 0);
    }
    /// Gives another name.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.put(Record { path2: to.into(), ..Record::new(Op::Rename, from) });
    }

    /// Reads all of an open file of `size` bytes in calls of `unit`.
    pub fn read_all(&mut self, file: &Opened, size: u64, unit: u64) {
        (0..size).step_by(unit.max(1) as usize).for_each(|at| self.read(file, at, unit.min(size - at)));
    }
    /// Writes `len` bytes from `from` on in calls of `unit`.
    pub fn write_all(&mut self, file: &Opened, from: u64, len: u64, unit: u64) {
        (0..len).step_by(unit.max(1) as usize).for_each(|at| self.write(file, from + at, unit.min(len - at)));
    }
    /// Opens, reads all, and closes.
    pub fn read_file(&mut self, path: &str, size: u64, unit: u64) {
        let file = self.open(path, READ);
        self.read_all(&file, size, unit);
        self.close(file);
    }
    /// Makes a file, writes it, and closes it.
    pub fn write_file(&mut self, path: &str, size: u64, unit: u64) {
        let file = self.open(path, WRITE | CREATE | CUT);
        self.write_all(&file, 0, size, unit);
        self.close(file);
    }
    /// Makes a directory's entries durable.
    pub fn fsync_directory(&mut self, path: &str) {
        let directory = self.open(path, READ | DIRECTORY);
        self.fsync(&directory);
        self.close(directory);
    }
    /// Lists a directory of about `bytes` of entries.
    pub fn list(&mut self, path: &str, bytes: u64) {
        let directory = self.open(path, READ | DIRECTORY);
        for at in (0..bytes.max(1)).step_by(ENTRIES as usize) {
            self.on(Op::Getdents, &directory, 0, ENTRIES.min(bytes - at).max(ENTRIES));
        }
        // The last one tells that there is no more.
        self.on(Op::Getdents, &directory, 0, ENTRIES);
        self.close(directory);
    }
}

/// Threads of a stage that has only one.
pub fn alone(stage: u64, seed: u64, step: impl FnMut(&mut Caller) -> bool + Send + 'static) -> super::Stage {
    vec![Thread::new((stage, 0, 1), seed, step)]
}
