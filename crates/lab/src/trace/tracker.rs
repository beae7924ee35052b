//! Makes records of what a tracer saw: keeps every process's descriptors and directories, and every open file's position.
//!
//! Costs: memory for the descriptors of all processes, bounded; what a call does is a look into two tables.

use super::calls::{AT_FDCWD, Call, Does};
use super::counts::{Cause, Counts};
use super::event::{Event, What};
use super::files::{Held, Mappings, Opened, Room, Table};
use super::host::{Host, Seen, State};
use super::path::{LEN_MAX, is_below, is_virtual, join};
use super::sizes::Sizes;
use super::{Op, Record};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Threads that are held.
const THREADS_MAX: usize = 1 << 16;

/// Where a process is.
#[derive(Clone)]
pub(super) struct Places {
    /// The current directory, if it is known.
    pub directory: Option<Rc<str>>,
    /// The root directory.
    pub root: Rc<str>,
}

/// A thread. What it shares with others, as `clone` has it, is the same for them.
#[derive(Clone)]
pub(super) struct Thread {
    /// As the system calls its process.
    pub process: u32,
    /// The number of its process in the trace.
    pub process_number: u64,
    /// Its number in the trace.
    pub number: u64,
    pub files: Rc<RefCell<Table>>,
    pub places: Rc<RefCell<Places>>,
    pub mappings: Rc<RefCell<Mappings>>,
}

/// Flags of `clone` and `unshare`.
mod share {
    pub const MEMORY: u64 = 0x100;
    pub const PLACES: u64 = 0x200;
    pub const FILES: u64 = 0x400;
    pub const THREAD: u64 = 0x1_0000;
}

/// Makes records of events. Events come in the order in which calls return.
pub struct Tracker<H> {
    pub(super) host: H,
    only: Option<String>,
    threads: HashMap<u32, Thread>,
    processes_count: u64,
    threads_count: u64,
    files_count: u64,
    room: Room,
    pub(super) sizes: Sizes,
    records: Vec<Record>,
    counts: Counts,
}

impl<H: Host> Tracker<H> {
    /// With `only`, an absolute path, only calls on what is below it become records.
    pub fn new(host: H, only: Option<&str>) -> Tracker<H> {
        Tracker {
            host,
            only: only.map(|directory| join("/", directory)),
            threads: HashMap::new(),
            processes_count: 0,
            threads_count: 0,
            files_count: 0,
            room: Room::new(),
            sizes: Sizes::default(),
            records: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The records since the last time. They stand in the order of their ends.
    pub fn take(&mut self) -> std::vec::Drain<'_, Record> {
        self.records.drain(..)
    }

    /// What became of all calls so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts what is in no record.
    pub fn count(&mut self, cause: Cause, times: u64) {
        self.counts.count(cause, times);
    }

    /// Takes over a process with its threads, as it is now.
    pub fn adopt(&mut self, process: u32, threads: &[u32]) {
        let Some(state) = self.host.process(process) else { return };
        self.adopt_as(process, threads, state);
    }

    /// A call had not returned when the trace ended, or its thread.
    pub fn unfinished(&mut self, thread: u32, call: &Call, arguments: Option<[u64; 6]>) {
        let held = match (arguments, call.fd, self.threads.get(&thread).cloned()) {
            (Some(arguments), Some(fd), Some(thread)) => self.held(&thread, arguments[usize::from(fd)] as u32),
            _ => None,
        };
        let cause = match (held, call.does) {
            (Some(Held::Outside(cause)), _) => cause,
            (_, Does::Other | Does::Pair) => Cause::NoFile,
            _ => Cause::Unfinished,
        };
        self.count(cause, 1);
    }

    fn adopt_as(&mut self, process: u32, threads: &[u32], state: State) {
        let text = |bytes: &[u8]| join("/", &String::from_utf8_lossy(bytes));
        let root: Rc<str> = text(&state.root).into();
        let directory = state.directory.filter(|path| path.starts_with(b"/")).map(|path| text(&path).into());
        self.processes_count += 1;
        let fresh = Thread {
            process,
            process_number: self.processes_count,
            number: 0,
            files: Rc::new(RefCell::new(Table::new(self.room.clone()))),
            places: Rc::new(RefCell::new(Places { directory, root })),
            mappings: Rc::default(),
        };
        for (fd, seen) in state.descriptors {
            self.put_seen(&fresh, fd, &seen);
        }
        threads.iter().for_each(|thread| self.add(*thread, fresh.clone()));
    }

    fn add(&mut self, id: u32, mut thread: Thread) {
        if self.threads.len() >= THREADS_MAX && !self.threads.contains_key(&id) {
            return self.count(Cause::TooMany, 1);
        }
        self.threads_count += 1;
        thread.number = self.threads_count;
        self.threads.insert(id, thread);
    }

    /// What a descriptor that was opened before the trace began means.
    fn put_seen(&mut self, thread: &Thread, fd: u32, seen: &Seen) {
        let held = match seen.target.first() {
            Some(b'/') if !seen.target.starts_with(b"/memfd:") => {
                let path = join("/", &String::from_utf8_lossy(&seen.target));
                if is_virtual(&path) {
                    Held::Outside(Cause::Virtual)
                } else {
                    if seen.flags & super::flags::APPEND != 0 {
                        self.ask_size(&path, None);
                    }
                    self.opened(&path, seen.position, seen.flags)
                }
            }
            _ => Held::Outside(Cause::NoFile),
        };
        self.put(thread, fd, held, seen.flags & super::flags::CLOSE_ON_EXEC != 0, None);
    }

    /// Where writes will go that append, if it was asked or somebody knows: a guess, since some may have been done by then.
    pub(super) fn ask_size(&mut self, path: &str, asked: Option<u64>) {
        if self.sizes.get(path).is_none()
            && let Some(bytes) = asked.or_else(|| self.host.size(path))
        {
            self.sizes.set(path, bytes);
            self.count(Cause::GuessedOffset, 1);
        }
    }

    /// A file that is open from now on.
    pub(super) fn opened(&mut self, path: &str, position: u64, flags: u64) -> Held {
        self.files_count += 1;
        let append = Cell::new(flags & super::flags::APPEND != 0);
        Held::File(Rc::new(Opened { id: self.files_count, path: path.into(), position: Cell::new(position), append }))
    }

    /// Puts a descriptor into a table. What it meant before is closed, if somebody is there to say when.
    pub(super) fn put(&mut self, thread: &Thread, fd: u32, held: Held, close_on_exec: bool, closed: Option<&Record>) {
        let put = thread.files.borrow_mut().put(fd, held, close_on_exec);
        match put {
            Ok(before) => {
                if let (Some(held), Some(record)) = (before, closed) {
                    self.gone(held, record);
                }
            }
            Err(cause) => self.count(cause, 1),
        }
    }

    /// A descriptor is no more. If it was the last of an open file, that is a record like `closing`.
    pub(super) fn gone(&mut self, held: Held, closing: &Record) -> bool {
        let Held::File(file) = held else { return false };
        let Some(file) = Rc::into_inner(file) else { return false };
        let mut record = Record { path: file.path.to_string(), file: file.id, ..closing.clone() };
        record.op = Op::Close;
        self.emit(record);
        true
    }

    /// What a descriptor means.
    pub(super) fn held(&mut self, thread: &Thread, fd: u32) -> Option<Held> {
        if let Some(held) = thread.files.borrow().get(fd) {
            return Some(held.clone());
        }
        let seen = self.host.descriptor(thread.process, fd)?;
        self.put_seen(thread, fd, &seen);
        thread.files.borrow().get(fd).cloned()
    }

    /// A tracer knew what a descriptor means, or which the current directory is.
    pub(super) fn hint(&mut self, thread: &Thread, fd: u32, target: &[u8]) {
        if target.len() > LEN_MAX / 3 {
            // Bytes that are no text grow to three.
        } else if fd == AT_FDCWD {
            let path = join("/", &String::from_utf8_lossy(target));
            thread.places.borrow_mut().directory = Some(path.into());
        } else if thread.files.borrow().get(fd).is_none() {
            self.put_seen(thread, fd, &Seen { target: target.to_vec(), ..Seen::default() });
        }
    }

    /// Keeps a record, if it was asked for.
    pub(super) fn emit(&mut self, record: Record) {
        if let Some(only) = &self.only {
            let below = |path: &str| is_below(path, only);
            // What a symbolic link points to is only a text.
            let wanted = below(&record.path) || record.op != Op::Symlink && below(&record.path2);
            if !wanted {
                return self.count(Cause::Elsewhere, 1);
            }
        }
        self.counts.records += 1;
        *self.counts.by_op.entry(record.op).or_default() += 1;
        self.records.push(record);
    }

    /// Takes an event.
    pub fn event(&mut self, event: Event) {
        let Some(thread) = self.thread(event.thread, event.process) else {
            return self.count(Cause::TooMany, 1);
        };
        match event.what {
            What::Call(caught) => self.call(&thread, event.at_ns, caught),
            What::Fork { child, flags } => self.fork(&thread, child, flags),
            What::Exec { old } => {
                drop(thread);
                self.exec(event.thread, old, event.at_ns);
            }
            What::Exit => {
                drop(thread);
                self.exit(event.thread, event.at_ns);
            }
        }
    }

    /// A thread, by the number that the system gave it.
    fn thread(&mut self, id: u32, process: Option<u32>) -> Option<Thread> {
        if !self.threads.contains_key(&id) {
            let process = process.unwrap_or(id);
            match self.threads.values().find(|thread| thread.process == process).cloned() {
                Some(sibling) => self.add(id, sibling),
                None => {
                    let state = self.host.process(process).unwrap_or_default();
                    self.adopt_as(process, &[id], state);
                }
            }
        }
        self.threads.get(&id).cloned()
    }

    fn fork(&mut self, parent: &Thread, child: u32, flags: u64) {
        // Its number was another's, of whose end nobody heard.
        self.threads.remove(&child);
        let shares = |flag| flags & flag != 0;
        let mut thread = parent.clone();
        if !shares(share::THREAD) {
            self.processes_count += 1;
            (thread.process, thread.process_number) = (child, self.processes_count);
        }
        if !shares(share::FILES) {
            thread.files = self.copy_of(&parent.files);
        }
        if !shares(share::PLACES) {
            thread.places = Rc::new(RefCell::new(parent.places.borrow().clone()));
        }
        if !shares(share::MEMORY) {
            thread.mappings = Rc::new(RefCell::new(parent.mappings.borrow().clone()));
        }
        self.add(child, thread);
    }

    fn copy_of(&mut self, table: &Rc<RefCell<Table>>) -> Rc<RefCell<Table>> {
        let copy = table.borrow().copy().unwrap_or_else(|cause| {
            self.count(cause, 1);
            Table::new(self.room.clone())
        });
        Rc::new(RefCell::new(copy))
    }

    /// A thread has something for itself from now on.
    pub(super) fn unshare(&mut self, thread: &Thread, number: Option<u64>, flags: u64) {
        let files = (flags & share::FILES != 0).then(|| self.copy_of(&thread.files));
        let Some(own) = self.threads.values_mut().find(|own| Some(own.number) == number) else { return };
        if let Some(files) = files {
            own.files = files;
        }
        if flags & share::PLACES != 0 {
            own.places = Rc::new(RefCell::new(thread.places.borrow().clone()));
        }
    }

    fn exec(&mut self, id: u32, old: u32, at_ns: u64) {
        if old != id
            && let Some(caller) = self.threads.remove(&old)
        {
            self.threads.insert(id, caller);
        }
        let Some(process) = self.threads.get(&id).map(|thread| thread.process) else { return };
        let others = self.threads.iter().filter(|(other, thread)| **other != id && thread.process == process);
        let others: Vec<u32> = others.map(|(other, _)| *other).collect();
        others.iter().for_each(|other| drop(self.threads.remove(other)));
        let Some(mut thread) = self.threads.remove(&id) else { return };
        if Rc::strong_count(&thread.files) > 1 {
            thread.files = self.copy_of(&thread.files);
        }
        thread.mappings = Rc::default();
        let closing = self.closing(&thread, at_ns);
        let gone = thread.files.borrow_mut().exec();
        self.threads.insert(id, thread);
        for held in gone {
            self.gone(held, &closing);
        }
    }

    fn exit(&mut self, id: u32, at_ns: u64) {
        let Some(thread) = self.threads.remove(&id) else { return };
        let closing = self.closing(&thread, at_ns);
        // Nobody else has the table.
        let Some(table) = Rc::into_inner(thread.files) else { return };
        for held in table.into_inner().remove_range(0, u32::MAX) {
            self.gone(held, &closing);
        }
    }

    /// What a file's end looks like when no call asks for it.
    fn closing(&self, thread: &Thread, at_ns: u64) -> Record {
        let (process, thread) = (thread.process_number, thread.number);
        Record { at_ns, process, thread, ..Record::new(Op::Close, "") }
    }
}
