//! Programs in the kernel that see what other programs do: `bpf(2)` and `perf_event_open(2)`, without a compiler or a library.
//!
//! Needs root (`CAP_BPF` and `CAP_PERFMON`), Linux 5.8 or newer.

pub mod assembler;
mod ring;
mod tracepoint;

pub use ring::{Records, Ring};
pub use tracepoint::Tracepoint;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const MAP_NEXT: libc::c_int = 4;
const PROGRAM_LOAD: libc::c_int = 5;
const INFO: libc::c_int = 15;
const RAW_TRACEPOINT: libc::c_int = 17;
/// Kind of program.
const PROGRAM_RAW_TRACEPOINT: u32 = 17;
/// `PERF_EVENT_IOC_SET_BPF` and `PERF_EVENT_IOC_ENABLE`.
const SET_PROGRAM: libc::Ioctl = 0x4004_2408_u32 as libc::Ioctl;
const ENABLE: libc::Ioctl = 0x2400;
/// What the verifier has to say, at most.
const LOG_LEN: usize = 64 << 10;

/// `union bpf_attr`, the part that is used: a number at every multiple of four bytes.
#[repr(C, align(8))]
struct Attributes([u32; 32]);

impl Attributes {
    fn new() -> Attributes {
        Attributes([0; 32])
    }
    fn word(mut self, offset: usize, value: u32) -> Attributes {
        self.0[offset / 4] = value;
        self
    }
    fn double(self, offset: usize, value: u64) -> Attributes {
        self.word(offset, value as u32).word(offset + 4, (value >> 32) as u32)
    }

    /// Has the kernel do something.
    ///
    /// # Safety
    /// Addresses among the attributes are of memory that is as long as the command needs, and lives during the call.
    unsafe fn call(mut self, command: libc::c_int) -> io::Result<libc::c_int> {
        let len = size_of::<Attributes>();
        // SAFETY: the pointer is to `len` bytes that live during the call; what they point to is the caller's promise.
        let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut self, len) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as libc::c_int) }
    }
}

/// # Safety
/// `fd` is a descriptor that nobody else owns.
unsafe fn own(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// What a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any keys.
    Hash = 1,
    /// Keys of 4 bytes from zero on.
    Array = 2,
    /// The same, with other values for each processor.
    ArrayOfProcessor = 6,
    /// A ring; its length is the number of entries.
    Ring = 27,
}

/// Values by keys, which programs in the kernel and we have together.
pub struct Map {
    fd: OwnedFd,
    key_len: usize,
    value_len: usize,
    entries: u32,
}

impl Map {
    /// Makes one, for keys and values of so many bytes.
    pub fn new(kind: Kind, key_len: usize, value_len: usize, entries: u32) -> io::Result<Map> {
        let attributes = Attributes::new().word(0, kind as u32).word(4, key_len as u32);
        let attributes = attributes.word(8, value_len as u32).word(12, entries);
        // SAFETY: there are no addresses among the attributes, and the descriptor is new.
        let fd = unsafe { own(attributes.call(MAP_CREATE)?) };
        Ok(Map { fd, key_len, value_len, entries })
    }

    fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    fn named(&self, key: &[u8]) -> Attributes {
        assert_eq!(key.len(), self.key_len, "a key has the length that was said");
        Attributes::new().word(0, self.descriptor() as u32).double(8, key.as_ptr() as u64)
    }

    /// Sets a value.
    ///
    /// # Panics
    /// If key or value have another length than was said.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.value_len, "a value has the length that was said");
        let attributes = self.named(key).double(16, value.as_ptr() as u64);
        // SAFETY: key and value have the lengths with which the map was made, and live during the call.
        unsafe { attributes.call(MAP_UPDATE) }.map(drop)
    }

    /// A value.
    ///
    /// # Panics
    /// If the key has another length than was said.
    pub fn get(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.value_len];
        let attributes = self.named(key).double(16, value.as_mut_ptr() as u64);
        // SAFETY: key and value have the lengths with which the map was made, and live during the call.
        unsafe { attributes.call(MAP_LOOKUP) }.map(|_| value)
    }

    /// Forgets a value.
    ///
    /// # Panics
    /// If the key has another length than was said.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        // SAFETY: the key has the length with which the map was made, and lives during the call.
        unsafe { self.named(key).call(MAP_DELETE) }.map(drop)
    }

    /// All keys; if others come and go meanwhile, about all.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        while keys.len() < self.entries as usize {
            let mut next = vec![0; self.key_len];
            let before = keys.last().map_or(0, |key| key.as_ptr() as u64);
            let attributes = Attributes::new().word(0, self.descriptor() as u32).double(8, before);
            let attributes = attributes.double(16, next.as_mut_ptr() as u64);
            // SAFETY: both keys (the first may be absent) have the length with which the map was made, and live during the call.
            if unsafe { attributes.call(MAP_NEXT) }.is_err() {
                break;
            }
            keys.push(next);
        }
        keys
    }
}

/// A program in the kernel, and what has it run, as long as this lives.
pub struct Attached {
    program: OwnedFd,
    _event: OwnedFd,
}

impl Attached {
    /// Runs a program whenever a tracepoint is passed; it is given the tracepoint's arguments, as numbers.
    pub fn raw(code: &[u64], tracepoint: &str) -> io::Result<Attached> {
        let program = load(code, PROGRAM_RAW_TRACEPOINT)?;
        let name = CString::new(tracepoint).map_err(io::Error::other)?;
        let attributes = Attributes::new().double(0, name.as_ptr() as u64).word(8, program.as_raw_fd() as u32);
        // SAFETY: the name ends with a zero and lives during the call; the descriptor is new.
        let event = unsafe { own(attributes.call(RAW_TRACEPOINT)?) };
        Ok(Attached { program, _event: event })
    }

    /// The same for a tracepoint by its number in tracefs; the program is given its record, as its `format` has it.
    pub fn numbered(code: &[u64], tracepoint: u64) -> io::Result<Attached> {
        const PROGRAM_TRACEPOINT: u32 = 5;
        const TYPE_TRACEPOINT: u32 = 2;
        /// Bytes of `struct perf_event_attr`, first version.
        const SIZE: u32 = 64;
        const CLOSE_ON_EXEC: libc::c_ulong = 8;
        let program = load(code, PROGRAM_TRACEPOINT)?;
        let attributes = Attributes::new().word(0, TYPE_TRACEPOINT).word(4, SIZE).double(8, tracepoint);
        // SAFETY: the attributes have at least the bytes that they claim, and live during the call. Minus one and zero are
        // every process and the first processor: a program runs on all.
        let event =
            unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, -1, 0, -1, CLOSE_ON_EXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new.
        let event = unsafe { own(event as libc::c_int) };
        for (request, argument) in [(SET_PROGRAM, program.as_raw_fd()), (ENABLE, 0)] {
            // SAFETY: neither request has memory arguments.
            if unsafe { libc::ioctl(event.as_raw_fd(), request, argument) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Attached { program, _event: event })
    }

    /// How often the program should have run and did not, since it was running on that processor already.
    pub fn missed(&self) -> io::Result<u64> {
        /// Where `recursion_misses` is in `struct bpf_prog_info`, in doubles, and how many of these there are.
        const MISSES: usize = 26;
        let mut info = [0u64; MISSES + 1];
        let attributes = Attributes::new().word(0, self.program.as_raw_fd() as u32).word(4, size_of_val(&info) as u32);
        let attributes = attributes.double(8, info.as_mut_ptr() as u64);
        // SAFETY: the address is of as many bytes as the attributes say.
        unsafe { attributes.call(INFO) }.map(|_| info[MISSES])
    }
}

/// Whether the kernel takes programs and rings of ours; the error says why not.
pub fn check() -> io::Result<()> {
    use assembler::{Assembler, Do, Register::R0};
    let mut program = Assembler::default();
    program.number(Do::Set, R0, 0);
    program.exit();
    load(&program.finish(), PROGRAM_RAW_TRACEPOINT)?;
    Map::new(Kind::Ring, 0, 0, 1 << 16).map(drop)
}

/// Gives a program to the kernel, which proves that it ends and touches nothing that it may not.
fn load(code: &[u64], kind: u32) -> io::Result<OwnedFd> {
    let attributes = || {
        let attributes = Attributes::new().word(0, kind).word(4, code.len() as u32);
        attributes.double(8, code.as_ptr() as u64).double(16, c"GPL".as_ptr() as u64)
    };
    // SAFETY: the addresses are of `code`, with its length, and of a text that ends with a zero.
    let error = match unsafe { attributes().call(PROGRAM_LOAD) } {
        // SAFETY: the descriptor is new.
        Ok(fd) => return Ok(unsafe { own(fd) }),
        Err(error) => error,
    };
    if error.raw_os_error() == Some(libc::EPERM) {
        return Err(error);
    }
    let mut log = vec![0u8; LOG_LEN];
    let verbose = attributes().word(24, 1).word(28, LOG_LEN as u32).double(32, log.as_mut_ptr() as u64);
    // SAFETY: as above; the log has the length that is said.
    if let Ok(fd) = unsafe { verbose.call(PROGRAM_LOAD) } {
        // SAFETY: the descriptor is new.
        return Ok(unsafe { own(fd) });
    }
    let log = String::from_utf8_lossy(&log);
    let last: Vec<&str> = log.trim_end_matches(['\0', '\n']).lines().rev().take(5).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(io::Error::new(error.kind(), format!("{error}: {}", last.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::assembler::{Assembler, Do, Function, Register::*, When, Width};
    use super::*;

    /// Whether the kernel lets us; if not, says why.
    fn refused<T>(made: io::Result<T>) -> Option<T> {
        match made {
            Ok(made) => Some(made),
            Err(error) => {
                let expected = [Some(libc::EPERM), Some(libc::ENOSYS), Some(libc::EACCES)];
                assert!(expected.contains(&error.raw_os_error()), "{error}");
                eprintln!("skipped: no programs in this kernel: {error}");
                None
            }
        }
    }

    #[test]
    fn maps_keep_values() {
        let Some(map) = refused(Map::new(Kind::Hash, 4, 8, 10)) else { return };
        map.set(&[1; 4], &[7; 8]).expect("room");
        map.set(&[2; 4], &[8; 8]).expect("room");
        assert_eq!(map.get(&[1; 4]).expect("it is there"), [7; 8]);
        let mut keys = map.keys();
        keys.sort();
        assert_eq!(keys, [[1; 4], [2; 4]]);
        map.remove(&[1; 4]).expect("it is there");
        assert_eq!(map.get(&[1; 4]).expect_err("it is gone").raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_program_sees_calls_of_this_process_and_tells_of_them() {
        let Some(events) = refused(Map::new(Kind::Ring, 0, 0, 1 << 16)) else { return };
        let mut program = Assembler::default();
        let end = program.label();
        program.load(Width::Double, R6, R1, 8);
        program.call(Function::CurrentThread);
        program.store(Width::Double, R10, -16, R0);
        program.store(Width::Double, R10, -8, R6);
        program.number(Do::Right, R0, 32);
        program.jump_if(R0, When::NotEqual, std::process::id() as i32, end);
        program.jump_if(R6, When::NotEqual, libc::SYS_getppid as i32, end);
        program.map(R1, &events);
        program.register(Do::Set, R2, R10);
        program.number(Do::Add, R2, -16);
        program.number(Do::Set, R3, 16);
        program.number(Do::Set, R4, 1);
        program.call(Function::RingOutput);
        program.place(end);
        program.number(Do::Set, R0, 0);
        program.exit();
        let Some(attached) = refused(Attached::raw(&program.finish(), "sys_enter")) else { return };
        let mut ring = Ring::new(&events).expect("it is a ring");
        for _ in 0..5 {
            let _ = std::os::unix::process::parent_id();
        }
        let mut seen = Vec::new();
        ring.drain(|event| seen.push(event.to_vec()));
        assert_eq!(seen.len(), 5);
        assert!(seen.iter().all(|event| event[8..] == (libc::SYS_getppid as u64).to_le_bytes()));
        assert_eq!(attached.missed().expect("it is told"), 0);
        // The ring is as long as it is: what does not fit is refused.
        for _ in 0..10_000 {
            let _ = std::os::unix::process::parent_id();
        }
        let fitted = ring.drain(|_| {});
        assert_eq!(fitted, (1 << 16) / 24, "records of 16 bytes and heads of 8");
        drop(attached);
        let _ = std::os::unix::process::parent_id();
        assert_eq!(ring.drain(|_| {}), 0, "nobody looks any more");
    }

    #[test]
    fn a_program_that_touches_what_it_may_not_is_refused() {
        let Some(_) = refused(Map::new(Kind::Array, 4, 8, 1)) else { return };
        let mut program = Assembler::default();
        program.load(Width::Double, R0, R10, 8);
        program.exit();
        let error = Attached::raw(&program.finish(), "sys_enter").err().expect("beyond the stack").to_string();
        assert!(error.contains("invalid") || error.contains("Operation not permitted"), "{error}");
    }
}
