//! What our own FUSE server was asked, as a trace.
//!
//! Departs  these are not the calls of programs but what of them reached the server: the kernel reads ahead and writes back in
//!          its own time and for nobody (thread 0), answers from its caches, and keeps opening and closing to itself. Latencies
//!          are of the server's own work. A file is opened here when it is used first, and closed when many others were used
//!          since; neither takes time.

use super::counts::Cause;
use super::flags::{CREATE, READ_WRITE};
use super::live::{Drained, Source, Started};
use super::tracker::Tracker;
use super::{Op, Record};
use ashlar_fuse::{Heard, Logged, What};
use ashlar_units::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

/// Files that are open at once, as far as the trace tells.
const OPEN_MAX: usize = 256;
/// A request is told when it is done. For so long others are waited for that came before it.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Requests that are held meanwhile.
const HELD_MAX: usize = 1 << 16;

struct Open {
    /// Its number in the trace.
    file: u64,
    path: String,
    used: u64,
}

/// The files that the trace has open.
#[derive(Default)]
struct Files {
    open: HashMap<u64, Open>,
    /// By when they were used last.
    order: BTreeMap<u64, u64>,
    uses: u64,
    count: u64,
}

/// Requests, as they come.
pub(super) struct Door<F> {
    heard: F,
    mount: String,
    stop: bool,
    over: bool,
    /// What waits for earlier ones, by when it came.
    held: BTreeMap<(u64, u64), Logged>,
    count: u64,
    /// The clock of the mount at the first request.
    began_ns: Option<u64>,
    /// The time of the newest record.
    settled_ns: u64,
    threads: HashMap<u32, u64>,
    files: Files,
}

impl<F: FnMut(bool) -> io::Result<Heard>> Door<F> {
    pub(super) fn new(mount: &Path, heard: F) -> Door<F> {
        let mount = mount.to_string_lossy().trim_end_matches('/').to_string();
        let (threads, files) = (HashMap::new(), Files::default());
        let (held, began_ns) = (BTreeMap::new(), None);
        Door { heard, mount, stop: false, over: false, held, count: 0, began_ns, settled_ns: 0, threads, files }
    }

    fn path(&self, path: Option<String>) -> String {
        path.map_or(String::new(), |path| format!("{}{}", self.mount, if path == "/" { "" } else { &path }))
    }

    fn request(&mut self, logged: Logged, tracker: &mut Tracker<Started>) {
        if logged.path.is_none() || logged.path2.is_none() && logged.what == What::Copy {
            return tracker.count(Cause::MissingDescriptor, 1);
        }
        let began_ns = *self.began_ns.get_or_insert(logged.at_ns);
        let at_ns = logged.at_ns.saturating_sub(began_ns);
        tracker.count(Cause::ClockStep, u64::from(at_ns < self.settled_ns));
        self.settled_ns = self.settled_ns.max(at_ns);
        let next = self.threads.len() as u64 + 1;
        let thread = if logged.thread == 0 { 0 } else { *self.threads.entry(logged.thread).or_insert(next) };
        let path2 =
            if logged.what == What::Symlink { logged.path2.unwrap_or_default() } else { self.path(logged.path2) };
        let record = Record {
            at_ns: self.settled_ns,
            latency_ns: logged.took_ns,
            process: thread,
            thread,
            path2,
            offset: logged.offset,
            len: logged.len,
            done: logged.done,
            error: logged.error.unsigned_abs().into(),
            flags: logged.flags.into(),
            mode: logged.mode.into(),
            ..Record::new(op(logged.what), self.path(logged.path))
        };
        let file = match logged.what {
            What::Create if logged.error == 0 => self.files.opened(logged.ino, &record, tracker),
            What::Read | What::Write | What::Fallocate | What::Fsync | What::Fdatasync | What::Readdir | What::Copy => {
                self.files.used(logged.ino, &record, tracker)
            }
            _ => 0,
        };
        let flags = if logged.what == What::Create { record.flags | CREATE } else { record.flags };
        let error = match logged.what {
            What::Lookup if logged.ino == 0 && record.error == 0 => NOT_FOUND,
            _ => record.error,
        };
        tracker.emit(Record { file, flags, error, ..record });
    }
}

/// `ENOENT`.
const NOT_FOUND: u64 = 2;

fn op(what: What) -> Op {
    match what {
        What::Lookup | What::Stat => Op::Stat,
        What::Truncate => Op::Truncate,
        What::Chmod => Op::Chmod,
        What::Chown => Op::Chown,
        What::Utimes => Op::Utimes,
        What::Readlink => Op::Readlink,
        What::Symlink => Op::Symlink,
        What::Mknod => Op::Mknod,
        What::Mkdir => Op::Mkdir,
        What::Create => Op::Open,
        What::Unlink => Op::Unlink,
        What::Rmdir => Op::Rmdir,
        What::Rename => Op::Rename,
        What::Link => Op::Link,
        What::Read => Op::Read,
        What::Write => Op::Write,
        What::Fallocate => Op::Fallocate,
        What::Fsync => Op::Fsync,
        What::Fdatasync => Op::Fdatasync,
        What::Sync => Op::Sync,
        What::Statfs => Op::Statfs,
        What::Getxattr => Op::Getxattr,
        What::Setxattr => Op::Setxattr,
        What::Readdir => Op::Getdents,
        What::Copy => Op::Copy,
    }
}

impl Files {
    /// The number of a file that a call made.
    fn opened(&mut self, ino: u64, call: &Record, tracker: &mut Tracker<Started>) -> u64 {
        self.close(ino, call, tracker);
        self.count += 1;
        self.uses += 1;
        self.order.insert(self.uses, ino);
        self.open.insert(ino, Open { file: self.count, path: call.path.clone(), used: self.uses });
        if self.open.len() > OPEN_MAX
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.close(*oldest, call, tracker);
        }
        self.count
    }

    /// The number of a file that a call uses; it is opened before.
    fn used(&mut self, ino: u64, call: &Record, tracker: &mut Tracker<Started>) -> u64 {
        self.uses += 1;
        if let Some(open) = self.open.get_mut(&ino) {
            self.order.remove(&open.used);
            open.used = self.uses;
            self.order.insert(self.uses, ino);
            return open.file;
        }
        let is_directory = call.op == Op::Getdents;
        let flags = if is_directory { 0 } else { READ_WRITE };
        let file = self.opened(ino, call, tracker);
        let Record { at_ns, process, thread, ref path, .. } = *call;
        tracker.emit(Record { at_ns, process, thread, file, flags, ..Record::new(Op::Open, path.clone()) });
        file
    }

    fn close(&mut self, ino: u64, call: &Record, tracker: &mut Tracker<Started>) {
        let Some(Open { file, path, used }) = self.open.remove(&ino) else { return };
        self.order.remove(&used);
        let Record { at_ns, process, thread, .. } = *call;
        tracker.emit(Record { at_ns, process, thread, file, ..Record::new(Op::Close, path) });
    }
}

impl<F: FnMut(bool) -> io::Result<Heard>> Source for Door<F> {
    fn drain(&mut self, tracker: &mut Tracker<Started>) -> io::Result<Drained> {
        if self.over {
            return Ok(Drained { busy: false, settled_ns: None, waiting: Bytes(0) });
        }
        let heard = (self.heard)(self.stop)?;
        self.over = heard.over;
        tracker.count(Cause::Lost, heard.lost);
        let busy = !heard.requests.is_empty();
        for logged in heard.requests {
            self.count += 1;
            self.held.insert((logged.at_ns, self.count), logged);
        }
        let newest = self.held.last_key_value().map_or(0, |((at_ns, _), _)| *at_ns);
        while let Some((&(at_ns, _), _)) = self.held.first_key_value()
            && (at_ns.saturating_add(PATIENCE_NS) <= newest || self.over || self.held.len() > HELD_MAX)
            && let Some((_, logged)) = self.held.pop_first()
        {
            self.request(logged, tracker);
        }
        Ok(Drained { busy, settled_ns: Some(self.settled_ns), waiting: Bytes(0) })
    }
    fn is_over(&mut self) -> io::Result<bool> {
        Ok(self.over)
    }
    fn stop(&mut self, _: Duration) -> io::Result<()> {
        self.stop = true;
        Ok(())
    }
    fn finish(&mut self, _: &mut Tracker<Started>) -> io::Result<Option<ExitStatus>> {
        Ok(None)
    }
}
