//! The ring through which programs in the kernel speak (`Documentation/bpf/ringbuf.rst`).

use super::Map;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// It is being written.
const BUSY: u32 = 1 << 31;
/// It was not wanted.
const DISCARDED: u32 = 1 << 30;
const HEAD_LEN: u64 = 8;

/// The reader's end of a ring. A ring has one.
pub struct Ring {
    /// How far was read; we alone write it.
    read: Mapping,
    /// How far was written, a page; then the data, twice one after the other.
    written: Mapping,
    page: usize,
    len: u64,
}

struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(map: &Map, offset: usize, len: usize, protection: libc::c_int) -> io::Result<Mapping> {
        let (fd, offset) = (map.descriptor(), offset as libc::off_t);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, offset) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Mapping { address, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing of it is borrowed any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mappings are reached through this alone, and their memory does not depend on the thread.
unsafe impl Send for Ring {}

impl Ring {
    /// The reader's end of a map of [`Kind::Ring`](super::Kind::Ring).
    pub fn new(map: &Map) -> io::Result<Ring> {
        // SAFETY: the call has no memory arguments.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let len = map.entries as usize;
        if map.key_len != 0 || !len.is_power_of_two() || map.fd.as_raw_fd() < 0 {
            return Err(io::Error::other("it is no ring"));
        }
        let read = Mapping::new(map, 0, page, libc::PROT_READ | libc::PROT_WRITE)?;
        let written = Mapping::new(map, page, page + 2 * len, libc::PROT_READ)?;
        Ok(Ring { read, written, page, len: len as u64 })
    }

    /// Gives every record that is there to `each`, in their order. Returns how many.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        // SAFETY: both are the first eight bytes of mappings that live as long as `self`; both sides use them atomically.
        let (read, written) = unsafe {
            (
                AtomicU64::from_ptr(self.read.address.as_ptr().cast()),
                AtomicU64::from_ptr(self.written.address.as_ptr().cast()),
            )
        };
        let mut at = read.load(Ordering::Relaxed);
        let mut count = 0;
        while at < written.load(Ordering::Acquire) {
            let offset = self.page + (at & (self.len - 1)) as usize;
            // SAFETY: records begin at multiples of eight bytes below `len`, which the mapping has twice.
            let head = unsafe { self.written.address.add(offset) };
            // SAFETY: the first four bytes of a head are used atomically by both sides.
            let flags = unsafe { AtomicU32::from_ptr(head.as_ptr().cast()) }.load(Ordering::Acquire);
            if flags & BUSY != 0 {
                break;
            }
            let len = flags & !DISCARDED;
            if flags & DISCARDED == 0 && u64::from(len) <= self.len {
                // SAFETY: the record is whole, within the mapping that has the data twice, and the kernel writes nothing
                // there until `read` moves on.
                each(unsafe { std::slice::from_raw_parts(head.add(HEAD_LEN as usize).as_ptr(), len as usize) });
                count += 1;
            }
            at += (u64::from(len) + HEAD_LEN).next_multiple_of(8);
            read.store(at, Ordering::Release);
        }
        count
    }
}
