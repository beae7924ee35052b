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
const HEAD_LEN: usize = 8;

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

    /// Gives all records that are there to `take`, as [`Records`] reads them, and whether these are all that were told of
    /// until now: one that is being written holds up those behind it. Afterwards the ring has room for others.
    pub fn take<T>(&mut self, take: impl FnOnce(&[u8], bool) -> T) -> T {
        // SAFETY: both are the first eight bytes of mappings that live as long as `self`; both sides use them atomically.
        let (read, written) = unsafe {
            (
                AtomicU64::from_ptr(self.read.address.as_ptr().cast()),
                AtomicU64::from_ptr(self.written.address.as_ptr().cast()),
            )
        };
        let from = read.load(Ordering::Relaxed);
        let written = written.load(Ordering::Acquire);
        let place = |at: u64| self.page + (at & (self.len - 1)) as usize;
        let mut to = from;
        while to < written {
            // SAFETY: records begin at multiples of eight bytes below `len`, which the mapping has twice.
            let head = unsafe { self.written.address.add(place(to)) };
            // SAFETY: the first four bytes of a head are used atomically by both sides.
            let flags = unsafe { AtomicU32::from_ptr(head.as_ptr().cast()) }.load(Ordering::Acquire);
            let next = to + record_len(flags) as u64;
            if flags & BUSY != 0 || next > written {
                break;
            }
            to = next;
        }
        // SAFETY: these records are whole, and at most `len` bytes from a place below `len`, within the mapping that has the
        // data twice; the kernel writes nothing there until `read` moves on.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.written.address.add(place(from)).as_ptr(), (to - from) as usize) };
        let taken = take(bytes, to == written);
        read.store(to, Ordering::Release);
        taken
    }

    /// Gives every record that is there to `each`, in their order. Returns how many.
    pub fn drain(&mut self, each: impl FnMut(&[u8])) -> usize {
        self.take(|bytes, _| Records::new(bytes).map(each).count())
    }
}

/// Bytes of a record with its head.
fn record_len(flags: u32) -> usize {
    ((flags & !(BUSY | DISCARDED)) as usize + HEAD_LEN).next_multiple_of(8)
}

/// Records with their heads, one after the other, as a ring has them.
pub struct Records<'a> {
    bytes: &'a [u8],
    used: usize,
}

impl<'a> Records<'a> {
    /// Reads from `bytes` what is whole.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { bytes, used: 0 }
    }

    /// Bytes of what was read.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Appends a record.
    pub fn put(record: &[u8], to: &mut Vec<u8>) {
        to.extend((record.len() as u64).to_ne_bytes());
        to.extend(record);
        to.resize(to.len().next_multiple_of(8), 0);
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let rest = self.bytes.get(self.used..)?;
            let flags = u32::from_ne_bytes(*rest.first_chunk()?);
            let record = rest.get(..record_len(flags))?;
            self.used += record.len();
            if flags & DISCARDED == 0 {
                return record.get(HEAD_LEN..HEAD_LEN + (flags & !BUSY) as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_far_as_they_are_whole() {
        let records: [&[u8]; 4] = [b"", b"a", b"12345678", b"123456789"];
        let mut bytes = Vec::new();
        records.iter().for_each(|record| Records::put(record, &mut bytes));
        let ends = [8, 24, 40, 64];
        assert_eq!(bytes.len(), 64);
        for cut in 0..=bytes.len() {
            let mut read = Records::new(&bytes[..cut]);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(read.by_ref().collect::<Vec<_>>(), records[..whole], "{cut}");
            assert_eq!(read.used(), if whole == 0 { 0 } else { ends[whole - 1] });
        }
        let discarded = (DISCARDED | 1).to_ne_bytes();
        bytes[8..12].copy_from_slice(&discarded);
        assert_eq!(Records::new(&bytes).collect::<Vec<_>>(), [records[0], records[2], records[3]]);
    }
}
