//! What strace wrote: `strace -f -ttt -T -o FILE`, with or without `-y`, `-X` and `-x`.
//!
//! Strace tells of threads only, and a child may act before its parent's call returned. So a child whose parent is not sure
//! waits until that is known.
//!
//! Needs     times on every line. Anybody may have written the file: what cannot be read is counted.
//! Costs     memory for calls that have not returned, bounded.

mod constants;
mod live;
mod parse;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

pub(super) use live::Live;

use super::calls::{Call, Does, Known, TABLE, known};
use super::counts::Cause;
use super::event::{Caught, Event, What};
use super::host::Host;
use super::tracker::Tracker;
use parse::{Ended, Says};
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Read};

/// Longest line that is read: a call with hundreds of texts.
const LINE_LEN_MAX: u64 = 1 << 20;
/// Bytes of calls that have not returned.
const BEGUN_MAX: usize = 64 << 20;
/// Events of children whose parents are not known.
const HELD_MAX: usize = 1 << 14;
/// Threads of which is known that they were there.
const THREADS_MAX: usize = 1 << 20;

/// The options that make strace write what is read here, exactly; then comes what to trace. Of lists, strace prints as many
/// parts as of texts bytes.
pub fn options() -> Vec<String> {
    let names: Vec<String> = TABLE.iter().map(|call| format!("?{}", call.name)).collect();
    let mut options: Vec<String> =
        ["-f", "-q", "-s32", "-xx", "-Xraw", "--timestamps=unix,ns", "--syscall-times=ns"].map(String::from).into();
    options.extend(["-e".into(), format!("trace={}", names.join(",")), "-e".into(), "signal=none".into()]);
    options
}

/// A call that has not returned.
struct Begun {
    name: Vec<u8>,
    arguments: Vec<u8>,
    at_ns: u64,
    /// The child that it made, if one was seen already.
    child: Option<u32>,
}

/// Reads lines.
#[derive(Default)]
pub struct Reader {
    first_ns: Option<u64>,
    last_ns: u64,
    /// What is added to the clock since it went back.
    shift_ns: u64,
    threads: HashSet<u32>,
    begun: HashMap<u32, Begun>,
    begun_len: usize,
    /// Events of threads whose parent is not known.
    held: HashMap<u32, Vec<Event>>,
    held_count: usize,
    superseded: HashMap<u32, u32>,
}

/// Gives everything that `lines` has to a tracker, a line after the other; `each` is called after every line.
pub fn read<H: Host>(
    mut lines: impl BufRead,
    tracker: &mut Tracker<H>,
    mut each: impl FnMut(&mut Tracker<H>) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader = Reader::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut lines).take(LINE_LEN_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let whole = line.pop_if(|byte| *byte == b'\n').is_some();
        if whole || line.ends_with(b">") || line.ends_with(b"+++") {
            reader.line(&line, tracker);
        } else if line.len() as u64 + 1 < LINE_LEN_MAX {
            tracker.count(Cause::TruncatedEnd, 1);
        } else {
            tracker.count(Cause::UnreadableLine, 1);
            skip_line(&mut lines)?;
        }
        each(tracker)?;
    }
    reader.finish(tracker);
    each(tracker)
}

fn skip_line(lines: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = lines.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let len = end.map_or(buffer.len(), |end| end + 1);
        lines.consume(len);
        if end.is_some() || len == 0 {
            return Ok(());
        }
    }
}

impl Reader {
    /// These threads were there before, and are nobody's children.
    pub fn knows(&mut self, threads: &[u32]) {
        self.threads.extend(threads);
    }

    /// Takes a line without its end.
    pub fn line<H: Host>(&mut self, line: &[u8], tracker: &mut Tracker<H>) {
        if line.trim_ascii().is_empty() {
            return;
        }
        if self.parsed(line, tracker).is_none() {
            tracker.count(Cause::UnreadableLine, 1);
        }
    }

    fn parsed<H: Host>(&mut self, line: &[u8], tracker: &mut Tracker<H>) -> Option<()> {
        let line = parse::line(line)?;
        if line.says == Says::Nothing {
            return Some(());
        }
        let (thread, at_ns) = (line.thread, self.clock(line.at_ns, tracker));
        self.meet(thread, tracker);
        match line.says {
            Says::Call(name, rest) => self.call(thread, at_ns, name, rest, None, tracker),
            Says::Begun(name, arguments) => {
                let before = self.end_begun(thread);
                let len = self.begun_len + name.len() + arguments.len();
                let fits = len <= BEGUN_MAX && self.begun.len() < THREADS_MAX;
                if before.is_some() || !fits {
                    tracker.count(Cause::UnreadableLine, 1);
                }
                if fits {
                    self.begun_len = len;
                    let (name, arguments) = (name.to_vec(), arguments.to_vec());
                    self.begun.insert(thread, Begun { name, arguments, at_ns, child: None });
                }
                Some(())
            }
            Says::Resumed(name, rest) => {
                let begun = self.end_begun(thread)?;
                if begun.name != name {
                    return None;
                }
                let mut whole = begun.arguments;
                whole.extend_from_slice(rest);
                // What it made is told from, though it may never return.
                let took = Some((at_ns.saturating_sub(begun.at_ns), begun.child));
                self.call(thread, begun.at_ns, name, &whole, took, tracker)
            }
            Says::Exited => {
                self.end_begun(thread);
                self.pass(Event { at_ns, thread, process: None, what: What::Exit }, tracker);
                self.threads.remove(&thread);
                Some(())
            }
            Says::Superseded(by) => {
                if let Some(begun) = self.begun.remove(&by) {
                    self.end_begun(thread);
                    self.begun.insert(thread, begun);
                }
                if self.superseded.len() < THREADS_MAX {
                    self.superseded.insert(thread, by);
                }
                Some(())
            }
            Says::Nothing => Some(()),
        }
    }

    fn end_begun(&mut self, thread: u32) -> Option<Begun> {
        let begun = self.begun.remove(&thread)?;
        self.begun_len -= begun.name.len() + begun.arguments.len();
        Some(begun)
    }

    /// Time since the first line. A clock that goes back is one that stands still.
    fn clock<H: Host>(&mut self, at_ns: u64, tracker: &mut Tracker<H>) -> u64 {
        let first = *self.first_ns.get_or_insert(at_ns);
        let mut at = at_ns.wrapping_sub(first).wrapping_add(self.shift_ns);
        // Half of all numbers: before the first line.
        if at < self.last_ns || at > u64::MAX / 2 {
            tracker.count(Cause::ClockStep, 1);
            self.shift_ns = self.shift_ns.wrapping_add(self.last_ns.wrapping_sub(at));
            at = self.last_ns;
        }
        self.last_ns = at;
        at
    }

    /// A thread does something. If nobody saw it before, it is the child of the one that is making one; if several are, it
    /// waits.
    fn meet<H: Host>(&mut self, thread: u32, tracker: &mut Tracker<H>) {
        if self.threads.contains(&thread) || self.threads.len() >= THREADS_MAX {
            return;
        }
        let first = self.threads.is_empty();
        self.threads.insert(thread);
        if first {
            return;
        }
        let mut parents = self.begun.iter().filter(|(_, begun)| begun.child.is_none() && is_fork(&begun.name));
        match (parents.next().map(|(parent, _)| *parent), parents.next()) {
            (None, _) => {}
            (Some(parent), None) => self.born(parent, thread, tracker),
            (Some(_), Some(_)) => drop(self.held.insert(thread, Vec::new())),
        }
    }

    /// `child` is that of `parent`, whose call has not returned.
    fn born<H: Host>(&mut self, parent: u32, child: u32, tracker: &mut Tracker<H>) {
        let Some(begun) = self.begun.get_mut(&parent) else { return };
        begun.child = Some(child);
        let parts: Vec<&[u8]> = begun.arguments.split(|byte| *byte == b',').collect();
        let parts: Vec<&[u8]> = parts.into_iter().map(<[u8]>::trim_ascii).collect();
        let (at_ns, what) = (begun.at_ns, What::Fork { child, flags: fork_flags(&begun.name, &parts) });
        self.pass(Event { at_ns, thread: parent, process: None, what }, tracker);
        self.release(child, tracker);
    }

    /// Nothing keeps the events of a thread any more.
    fn release<H: Host>(&mut self, thread: u32, tracker: &mut Tracker<H>) {
        for event in self.held.remove(&thread).into_iter().flatten() {
            self.held_count -= 1;
            self.pass(event, tracker);
        }
    }

    fn pass<H: Host>(&mut self, event: Event, tracker: &mut Tracker<H>) {
        let Some(held) = self.held.get_mut(&event.thread) else {
            if let What::Fork { child, .. } = event.what {
                self.threads.insert(child);
            }
            return tracker.event(event);
        };
        held.push(event);
        self.held_count += 1;
        if self.held_count > HELD_MAX {
            self.release_all(tracker);
        }
    }

    /// Who waits for a parent gets one that may be the wrong one, or none.
    fn release_all<H: Host>(&mut self, tracker: &mut Tracker<H>) {
        let mut waiting: Vec<u32> = self.held.keys().copied().collect();
        waiting.sort_unstable();
        for child in waiting {
            let mut parents: Vec<u32> = self
                .begun
                .iter()
                .filter(|(parent, begun)| {
                    begun.child.is_none() && is_fork(&begun.name) && !self.held.contains_key(parent)
                })
                .map(|(parent, _)| *parent)
                .collect();
            parents.sort_unstable();
            match parents.first() {
                Some(parent) => self.born(*parent, child, tracker),
                None => self.release(child, tracker),
            }
        }
    }

    /// A call from its arguments on. `took` is how long it took by the times of its lines, with the child that was seen.
    fn call<H: Host>(
        &mut self,
        thread: u32,
        at_ns: u64,
        name: &[u8],
        rest: &[u8],
        took: Option<(u64, Option<u32>)>,
        tracker: &mut Tracker<H>,
    ) -> Option<()> {
        let call = match known(str::from_utf8(name).ok()?) {
            Known::Call(call) => call,
            Known::Elsewhere => {
                tracker.count(Cause::OtherCall, 1);
                return Some(());
            }
            Known::No => {
                tracker.count(Cause::UnknownCall, 1);
                return Some(());
            }
        };
        if call.does == Does::Exit {
            return Some(());
        }
        let (arguments, Ended { result, latency_ns }) = parse::arguments(rest)?;
        let Some(result) = result else {
            tracker.count(Cause::Unfinished, 1);
            return Some(());
        };
        match call.does {
            Does::Fork if result > 0 => {
                let child = u32::try_from(result).ok()?;
                let seen = took.and_then(|(_, child)| child);
                if seen.is_none() {
                    let what = What::Fork { child, flags: fork_flags(name, &arguments) };
                    self.pass(Event { at_ns, thread, process: None, what }, tracker);
                    self.release(child, tracker);
                }
                return Some(());
            }
            Does::Exec if result == 0 => {
                let old = self.superseded.remove(&thread).unwrap_or(thread);
                self.threads.remove(&old);
                self.threads.insert(thread);
                self.pass(Event { at_ns, thread, process: None, what: What::Exec { old } }, tracker);
                return Some(());
            }
            Does::Fork | Does::Exec => return Some(()),
            _ => {}
        }
        let latency_ns = latency_ns.or(took.map(|(took, _)| took)).unwrap_or(0);
        let hints = hints(&arguments);
        let caught = caught(call, &arguments, result, latency_ns, hints);
        self.pass(Event { at_ns, thread, process: None, what: What::Call(caught) }, tracker);
        Some(())
    }

    /// The file is at its end.
    pub fn finish<H: Host>(mut self, tracker: &mut Tracker<H>) {
        self.release_all(tracker);
        for begun in self.begun.values() {
            let call = str::from_utf8(&begun.name).map(known);
            if let Ok(Known::Call(Call { does, .. })) = call
                && !matches!(does, Does::Fork | Does::Exec | Does::Exit)
            {
                tracker.count(Cause::Unfinished, 1);
            }
        }
    }
}

fn is_fork(name: &[u8]) -> bool {
    [&b"clone"[..], b"clone3", b"fork", b"vfork"].contains(&name)
}

/// `CLONE_…` of a call that makes a thread or a process.
fn fork_flags(name: &[u8], arguments: &[&[u8]]) -> u64 {
    match name {
        b"clone" => {
            let named = arguments.iter().map(|argument| parse::unnamed(argument));
            let flags = named.into_iter().find(|(name, _)| *name == Some(b"flags"));
            flags.and_then(|(_, value)| parse::number(value)).unwrap_or(0)
        }
        // Unfinished, it was split at commas too.
        b"clone3" => arguments.first().map_or(0, |first| {
            let whole = parse::field(first, b"flags");
            whole.or_else(|| parse::number(first.strip_prefix(b"{flags=")?)).unwrap_or(0)
        }),
        // CLONE_VFORK and CLONE_VM.
        b"vfork" => 0x4100,
        _ => 0,
    }
}

fn hints(arguments: &[&[u8]]) -> Vec<(u32, Vec<u8>)> {
    arguments.iter().filter_map(|argument| parse::annotation(argument)).collect()
}

fn caught(
    call: &'static Call,
    arguments: &[&[u8]],
    result: i64,
    latency_ns: u64,
    hints: Vec<(u32, Vec<u8>)>,
) -> Caught {
    let mut args = [0; 6];
    for ((to, index), argument) in args.iter_mut().zip(0..).zip(arguments) {
        *to = parse::argument(call, index, argument);
    }
    let at = |index: Option<u8>| arguments.get(usize::from(index?)).copied();
    let text = |index| at(index).and_then(parse::text);
    let mut extra = [None; 2];
    for (slot, memory) in call.memory.iter().enumerate() {
        let Some((index, what)) = memory else { continue };
        let Some(argument) = at(Some(*index)) else { continue };
        match parse::memory(argument, *what) {
            [first, None] => extra[slot] = first,
            both => extra = both,
        }
    }
    Caught { call, latency_ns, args, path: text(call.path), path2: text(call.path2), extra, result, end: None, hints }
}
