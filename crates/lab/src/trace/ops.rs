//! What each call means: the record that comes of it, and what it changes in the tables.

use super::calls::{AT_FDCWD, Call, Does};
use super::counts::Cause;
use super::event::Caught;
use super::files::{Held, Mapping, Opened};
use super::flags::{APPEND, CLOSE_ON_EXEC, CREATE, CUT, EXCLUSIVE, NAMELESS, WRITE};
use super::host::Host;
use super::path::{LEN_MAX, is_virtual, join};
use super::tracker::{Thread, Tracker};
use super::{Op, Record};
use std::rc::Rc;

/// What `creat` says.
const CREAT: u64 = CREATE | WRITE | CUT;
/// The file was not there before.
const FRESH: u64 = CREATE | EXCLUSIVE;
/// `AT_REMOVEDIR` and `AT_EMPTY_PATH`.
const REMOVE_DIRECTORY: u64 = 0x200;
const EMPTY_PATH: u64 = 0x1000;
/// `MAP_ANONYMOUS`, and what `MAP_SHARED` and `MAP_SHARED_VALIDATE` have in common.
const ANONYMOUS: u64 = 0x20;
const SHARED: u64 = 1;
/// `CLOSE_RANGE_UNSHARE` and `CLOSE_RANGE_CLOEXEC`.
const RANGE_UNSHARE: u64 = 2;
const RANGE_CLOEXEC: u64 = 4;
/// `CLONE_FILES`.
const FILES: u64 = 0x400;
/// `RWF_APPEND`.
const WRITE_APPEND: u64 = 0x10;
/// Errors by which the kernel says to itself to begin again, `ERESTARTSYS` to `ERESTART_RESTARTBLOCK`.
const RESTART: std::ops::RangeInclusive<i64> = -516..=-512;
const BAD_DESCRIPTOR: i64 = -9;
/// What the kernel says of paths that it cannot read.
const FAULT: i64 = -14;

/// Commands of `fcntl` and `ioctl`.
mod command {
    pub const DUPLICATE: u64 = 0;
    pub const SET_DESCRIPTOR: u64 = 2;
    pub const SET_FLAGS: u64 = 4;
    pub const DUPLICATE_CLOEXEC: u64 = 1030;
    pub const CLOSE_ON_EXEC: u64 = 0x5451;
    pub const NO_CLOSE_ON_EXEC: u64 = 0x5450;
    /// `FICLONE`, `FICLONERANGE`, `FIDEDUPERANGE`.
    pub const REFLINKS: [u64; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];
}

/// An argument, if the call has it.
fn arg(caught: &Caught, at: Option<u8>) -> Option<u64> {
    caught.args.get(usize::from(at?)).copied()
}

fn fd(caught: &Caught, at: Option<u8>) -> u32 {
    arg(caught, at).unwrap_or(AT_FDCWD.into()) as u32
}

/// Which of the call's paths.
#[derive(Clone, Copy)]
struct Where {
    dir: Option<u8>,
    path: Option<u8>,
}

impl<H: Host> Tracker<H> {
    /// A call returned.
    pub(super) fn call(&mut self, thread: &Thread, at_ns: u64, caught: Caught) {
        let (call, result) = (caught.call, caught.result);
        if RESTART.contains(&result) {
            return self.count(Cause::Restarted, 1);
        }
        for (fd, target) in &caught.hints {
            self.hint(thread, *fd, target);
        }
        let record = Record {
            at_ns,
            latency_ns: caught.latency_ns,
            process: thread.process_number,
            thread: thread.number,
            error: result.min(0).unsigned_abs(),
            flags: arg(&caught, call.flags).unwrap_or(0) | call.implied,
            mode: arg(&caught, call.mode).unwrap_or(0),
            offset: arg(&caught, call.offset).unwrap_or(0),
            len: arg(&caught, call.len).unwrap_or(0),
            ..Record::new(Op::Open, "")
        };
        let done = match call.does {
            Does::Only(op) => self.only(thread, &caught, Record { op, ..record }),
            Does::Open | Does::Creat => self.open(thread, &caught, record),
            Does::Close => self.close(thread, &caught, &record),
            Does::Transfer(op) => self.transfer(thread, &caught, Record { op, ..record }),
            Does::Copy => self.copy(thread, &caught, record),
            Does::Map => self.map(thread, &caught, Record { op: Op::Mmap, ..record }),
            Does::Sync => self.msync(thread, &caught, Record { op: Op::Msync, ..record }),
            Does::Ioctl => self.ioctl(thread, &caught),
            Does::Beyond => Err(Cause::NotRepresented),
            _ => {
                // What failed changed nothing.
                if result >= 0 {
                    self.silent(thread, &caught, &record);
                }
                Ok(())
            }
        };
        if let Err(cause) = done {
            self.count(cause, 1);
        }
    }

    /// A call that changes tables, and of which there is no record.
    fn silent(&mut self, thread: &Thread, caught: &Caught, record: &Record) {
        match caught.call.does {
            Does::CloseRange => self.close_range(thread, caught, record),
            Does::Dup | Does::DupTo => self.dup(thread, caught, record),
            Does::Fcntl => self.fcntl(thread, caught, record),
            Does::Seek => self.seek(thread, caught),
            Does::Unmap => thread.mappings.borrow_mut().remove(caught.args[0], record.len),
            Does::Chdir | Does::Fchdir | Does::Chroot => self.change(thread, caught),
            Does::Unshare => self.unshare(thread, Some(thread.number), record.flags),
            Does::Other => self.put(thread, caught.result as u32, Held::Outside(Cause::NoFile), false, Some(record)),
            Does::Nameless => {
                self.put(thread, caught.result as u32, Held::Outside(Cause::MissingDescriptor), false, Some(record));
            }
            Does::Pair => {
                for fd in caught.extra.into_iter().flatten() {
                    self.put(thread, fd as u32, Held::Outside(Cause::NoFile), false, Some(record));
                }
            }
            _ => {}
        }
    }

    /// The open file of a descriptor that a call names.
    fn file(&mut self, thread: &Thread, fd: u32, result: i64) -> Result<Rc<Opened>, Cause> {
        match self.held(thread, fd) {
            Some(Held::File(file)) => Ok(file),
            Some(Held::Outside(cause)) => Err(cause),
            None if result == BAD_DESCRIPTOR => Err(Cause::NoFile),
            None => Err(Cause::MissingDescriptor),
        }
    }

    /// The path that a call names, and the number of the open file if it names it by that alone.
    fn path(&mut self, thread: &Thread, caught: &Caught, at: Where, flags: u64) -> Result<(String, u64), Cause> {
        let named = self.any_path(thread, caught, at, flags)?;
        if is_virtual(&named.0) { Err(Cause::Virtual) } else { Ok(named) }
    }

    /// As [`path`](Self::path), wherever it is.
    fn any_path(&mut self, thread: &Thread, caught: &Caught, at: Where, flags: u64) -> Result<(String, u64), Cause> {
        let text = if at.path == caught.call.path { &caught.path } else { &caught.path2 };
        let directory = fd(caught, at.dir);
        let null = text.is_none() && arg(caught, at.path) == Some(0);
        let itself = null || flags & EMPTY_PATH != 0 && text.as_deref() == Some(b"");
        if at.dir.is_some() && itself && directory != AT_FDCWD {
            let file = self.file(thread, directory, caught.result)?;
            return Ok((file.path.to_string(), file.id));
        }
        let unreadable = if caught.result == FAULT { Cause::NoFile } else { Cause::UnreadablePath };
        let text = match text {
            Some(text) if !text.is_empty() || itself => String::from_utf8_lossy(text),
            None if itself && at.dir.is_some() => "".into(),
            _ => return Err(unreadable),
        };
        let places = thread.places.borrow().clone();
        let path = if text.starts_with('/') {
            // There is nothing above a root directory.
            let inside = join("/", &text);
            if &*places.root == "/" { inside } else { join(&places.root, &inside[1..]) }
        } else if directory == AT_FDCWD {
            join(&places.directory.ok_or(Cause::MissingDescriptor)?, &text)
        } else {
            join(&self.file(thread, directory, caught.result)?.path, &text)
        };
        if path.len() > LEN_MAX { Err(Cause::UnreadablePath) } else { Ok((path, 0)) }
    }

    /// A call that changes no table.
    fn only(&mut self, thread: &Thread, caught: &Caught, mut record: Record) -> Result<(), Cause> {
        let Call { path, path2, dir, dir2, .. } = *caught.call;
        if path.is_some() {
            (record.path, record.file) = self.path(thread, caught, Where { dir, path }, record.flags)?;
        } else if caught.call.fd.is_some() {
            let file = self.file(thread, fd(caught, caught.call.fd), caught.result)?;
            (record.path, record.file) = (file.path.to_string(), file.id);
        }
        if record.op == Op::Symlink {
            let target = caught.path2.as_deref().map(String::from_utf8_lossy);
            let target = target.filter(|target| target.len() <= LEN_MAX);
            record.path2 = target.ok_or(Cause::UnreadablePath)?.into_owned();
        } else if path2.is_some() {
            record.path2 = self.path(thread, caught, Where { dir: dir2, path: path2 }, 0)?.0;
        }
        match record.op {
            Op::Getdents | Op::Readlink | Op::Getxattr => record.done = caught.result.max(0) as u64,
            Op::Unlink if record.flags & REMOVE_DIRECTORY != 0 => record.op = Op::Rmdir,
            Op::Rename if caught.result >= 0 => self.sizes.rename(&record.path, &record.path2),
            Op::Truncate if caught.result >= 0 => self.sizes.set(&record.path, record.len),
            Op::Fallocate if caught.result >= 0 && record.flags & 1 == 0 => {
                self.sizes.reach(&record.path, record.offset.saturating_add(record.len));
            }
            _ => {}
        }
        if record.op == Op::Unlink && caught.result >= 0 {
            self.sizes.forget(&record.path);
        }
        self.emit(record);
        Ok(())
    }

    fn open(&mut self, thread: &Thread, caught: &Caught, mut record: Record) -> Result<(), Cause> {
        let Call { dir, path, does, .. } = *caught.call;
        if does == Does::Creat {
            record.flags = CREAT;
        } else if let [Some(flags), mode] = caught.extra {
            (record.flags, record.mode) = (flags, mode.unwrap_or(0));
        }
        // A mode counts only where a file may be made.
        if record.flags & (CREATE | NAMELESS) == 0 {
            record.mode = 0;
        }
        let path = self.path(thread, caught, Where { dir, path }, 0);
        if caught.result < 0 {
            record.path = path?.0;
            self.emit(record);
            return Ok(());
        }
        let (held, close_on_exec) = match &path {
            Ok((path, _)) => {
                if record.flags & CUT != 0 || record.flags & FRESH == FRESH {
                    self.sizes.set(path, 0);
                } else if record.flags & APPEND != 0 {
                    self.ask_size(path, caught.end);
                }
                (self.opened(path, 0, record.flags), record.flags & CLOSE_ON_EXEC != 0)
            }
            Err(Cause::Virtual) => (Held::Outside(Cause::Virtual), record.flags & CLOSE_ON_EXEC != 0),
            Err(_) => (Held::Outside(Cause::MissingDescriptor), record.flags & CLOSE_ON_EXEC != 0),
        };
        let file = if let Held::File(file) = &held { file.id } else { 0 };
        let before = Record { latency_ns: 0, flags: 0, mode: 0, ..record.clone() };
        self.put(thread, caught.result as u32, held, close_on_exec, Some(&before));
        record.path = path?.0;
        record.file = file;
        self.emit(record);
        Ok(())
    }

    fn close(&mut self, thread: &Thread, caught: &Caught, record: &Record) -> Result<(), Cause> {
        let fd = fd(caught, caught.call.fd);
        if caught.result == BAD_DESCRIPTOR {
            return Err(Cause::NoFile);
        }
        // Asked first, since a descriptor that came unseen, over a socket say, is gone by now.
        let held = thread.files.borrow_mut().remove(fd);
        match held {
            Some(Held::Outside(cause)) => Err(cause),
            Some(held) => {
                self.gone(held, record);
                Ok(())
            }
            None => Err(Cause::MissingDescriptor),
        }
    }

    fn close_range(&mut self, thread: &Thread, caught: &Caught, record: &Record) {
        let (first, last) = (caught.args[0] as u32, caught.args[1] as u32);
        if record.flags & RANGE_UNSHARE != 0 {
            self.unshare(thread, Some(thread.number), FILES);
        }
        if record.flags & RANGE_CLOEXEC != 0 {
            return thread.files.borrow_mut().set_range_close_on_exec(first, last);
        }
        let closing = Record { flags: 0, ..record.clone() };
        let gone = thread.files.borrow_mut().remove_range(first, last);
        for held in gone {
            self.gone(held, &closing);
        }
    }

    fn dup(&mut self, thread: &Thread, caught: &Caught, record: &Record) {
        let from = fd(caught, caught.call.fd);
        let Ok(to) = u32::try_from(caught.result) else { return };
        // dup2 to itself does nothing.
        if from != to || caught.call.does == Does::Dup {
            self.duplicate(thread, from, to, record.flags & CLOSE_ON_EXEC != 0, record);
        }
    }

    fn duplicate(&mut self, thread: &Thread, from: u32, to: u32, close_on_exec: bool, record: &Record) {
        let held = self.held(thread, from).unwrap_or(Held::Outside(Cause::MissingDescriptor));
        let closing = Record { flags: 0, ..record.clone() };
        self.put(thread, to, held, close_on_exec, Some(&closing));
    }

    fn fcntl(&mut self, thread: &Thread, caught: &Caught, record: &Record) {
        let (descriptor, value) = (fd(caught, caught.call.fd), caught.args[2]);
        let Ok(result) = u32::try_from(caught.result) else { return };
        match caught.args[1] & 0xffff_ffff {
            command::DUPLICATE => self.duplicate(thread, descriptor, result, false, record),
            command::DUPLICATE_CLOEXEC => self.duplicate(thread, descriptor, result, true, record),
            command::SET_DESCRIPTOR => thread.files.borrow_mut().set_close_on_exec(descriptor, value & 1 != 0),
            command::SET_FLAGS => {
                if let Some(Held::File(file)) = self.held(thread, descriptor) {
                    file.append.set(value & APPEND != 0);
                }
            }
            _ => {}
        }
    }

    fn ioctl(&mut self, thread: &Thread, caught: &Caught) -> Result<(), Cause> {
        let descriptor = fd(caught, caught.call.fd);
        let mut table = thread.files.borrow_mut();
        match caught.args[1] & 0xffff_ffff {
            _ if caught.result < 0 => {}
            command::CLOSE_ON_EXEC => table.set_close_on_exec(descriptor, true),
            command::NO_CLOSE_ON_EXEC => table.set_close_on_exec(descriptor, false),
            request if command::REFLINKS.contains(&request) => return Err(Cause::NotRepresented),
            _ => {}
        }
        Ok(())
    }

    fn seek(&mut self, thread: &Thread, caught: &Caught) {
        let Ok(position) = u64::try_from(caught.result) else { return };
        if let Some(Held::File(file)) = self.held(thread, fd(caught, caught.call.fd)) {
            file.position.set(position);
            // SEEK_END with nothing added tells how long the file is.
            if caught.args[2] as u32 == 2 && caught.args[1] == 0 {
                self.sizes.set(&file.path, position);
            }
        }
    }

    /// Where a write begins that appends.
    fn end(&mut self, file: &Opened) -> u64 {
        self.sizes.get(&file.path).unwrap_or_else(|| {
            self.count(Cause::GuessedOffset, 1);
            self.sizes.set(&file.path, file.position.get());
            file.position.get()
        })
    }

    fn transfer(&mut self, thread: &Thread, caught: &Caught, mut record: Record) -> Result<(), Cause> {
        let file = self.file(thread, fd(caught, caught.call.fd), caught.result)?;
        record.done = caught.result.max(0) as u64;
        // Of lists of buffers, the sum; those that were not looked at count as far as they were used.
        record.len = caught.call.len.map_or_else(|| caught.extra[0].unwrap_or(0).max(record.done), |_| record.len);
        let given = caught.call.offset.is_some() && record.offset as i64 != -1;
        if record.op == Op::Write && (file.append.get() || record.flags & WRITE_APPEND != 0) {
            record.offset = self.end(&file);
        } else if !given {
            record.offset = file.position.get();
        }
        let end = record.offset.saturating_add(record.done);
        if !given && caught.result >= 0 {
            file.position.set(end);
        }
        if record.op == Op::Write {
            self.sizes.reach(&file.path, end);
        }
        (record.path, record.file) = (file.path.to_string(), file.id);
        self.emit(record);
        Ok(())
    }

    /// Copies in the kernel. Where only one side is a file, it was read or written.
    fn copy(&mut self, thread: &Thread, caught: &Caught, mut record: Record) -> Result<(), Cause> {
        let from = self.file(thread, fd(caught, caught.call.fd), caught.result);
        let to = self.file(thread, fd(caught, caught.call.fd2), caught.result);
        let missing = [&from, &to].into_iter().find(|side| matches!(side, Err(Cause::MissingDescriptor)));
        if missing.is_some() {
            return Err(Cause::MissingDescriptor);
        }
        (record.done, record.flags) = (caught.result.max(0) as u64, 0);
        let from_at = from.as_ref().map_or(0, |file| self.side(caught, 0, file, record.done));
        let to_at = to.as_ref().map_or(0, |file| self.side(caught, 1, file, record.done));
        let (op, file, offset) = match (from, to) {
            (Ok(from), Ok(to)) => {
                record.path2 = from.path.to_string();
                (Op::Copy, to, to_at)
            }
            (Ok(from), Err(_)) => (Op::Read, from, from_at),
            (Err(_), Ok(to)) => (Op::Write, to, to_at),
            (Err(cause), Err(_)) => return Err(cause),
        };
        if op != Op::Read {
            self.sizes.reach(&file.path, offset.saturating_add(record.done));
        }
        self.emit(Record { op, path: file.path.to_string(), file: file.id, offset, ..record });
        Ok(())
    }

    /// Where one side of a copy begins; its position moves if that is what counted.
    fn side(&mut self, caught: &Caught, index: usize, file: &Opened, done: u64) -> u64 {
        let pointer = caught.call.memory[index].and_then(|(at, _)| arg(caught, Some(at)));
        if let Some(offset) = caught.extra[index] {
            return offset;
        }
        if pointer.is_some_and(|pointer| pointer != 0) {
            self.count(Cause::GuessedOffset, 1);
        }
        let offset = file.position.get();
        file.position.set(offset.saturating_add(done));
        offset
    }

    fn map(&mut self, thread: &Thread, caught: &Caught, mut record: Record) -> Result<(), Cause> {
        let descriptor = fd(caught, caught.call.fd);
        if record.flags & ANONYMOUS != 0 || descriptor == u32::MAX {
            return Err(Cause::OtherCall);
        }
        let file = self.file(thread, descriptor, caught.result)?;
        if caught.result >= 0 && record.flags & SHARED != 0 {
            let mapping = Mapping { len: record.len, file: file.id, path: file.path.clone(), offset: record.offset };
            thread.mappings.borrow_mut().put(caught.result as u64, mapping);
        }
        (record.path, record.file) = (file.path.to_string(), file.id);
        self.emit(record);
        Ok(())
    }

    fn msync(&mut self, thread: &Thread, caught: &Caught, mut record: Record) -> Result<(), Cause> {
        let mappings = thread.mappings.borrow();
        let (mapping, within) = mappings.at(caught.args[0]).ok_or(Cause::OtherCall)?;
        (record.path, record.file) = (mapping.path.to_string(), mapping.file);
        record.offset = mapping.offset.saturating_add(within);
        drop(mappings);
        self.emit(record);
        Ok(())
    }

    fn change(&mut self, thread: &Thread, caught: &Caught) {
        let call = caught.call;
        let path = match call.does {
            Does::Fchdir => self.file(thread, fd(caught, call.fd), caught.result).map(|file| file.path.clone()),
            _ => self.any_path(thread, caught, Where { dir: None, path: call.path }, 0).map(|(path, _)| path.into()),
        };
        let mut places = thread.places.borrow_mut();
        match (call.does, path) {
            (Does::Chroot, Ok(path)) => places.root = path,
            (Does::Chroot, Err(_)) => {}
            (_, path) => places.directory = path.ok(),
        }
    }
}
