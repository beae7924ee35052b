//! What the kernel tells about files and file systems, and how politely a thread asks: calls that no safe crate wraps.

use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, AsRawFd};

/// Extents that one call returns.
const BATCH: usize = 128;
/// Ranges that one call returns: many, since each call begins with a list of the metadata of all block groups.
const RANGES: usize = 4096;
/// `FS_IOC_FIEMAP`: `_IOWR('f', 11, struct fiemap)`, of which 32 bytes are the header.
const FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
/// `FS_IOC_GETFSMAP`: `_IOWR('X', 59, struct fsmap_head)`, 192 bytes with the two keys.
const GETFSMAP: libc::Ioctl = 0xc0c0_583b_u32 as libc::Ioctl;
/// `FS_IOC_GETVERSION`: `_IOR('v', 1, long)`, which yields an `int`.
const GETVERSION: libc::Ioctl = 0x8008_7601_u32 as libc::Ioctl;
const EXTENT_LAST: u32 = 1;
const SPECIAL_OWNER: u32 = 0x10;
const MAP_LAST: u32 = 0x20;
/// `FMR_OWN_FREE` of ext4 and xfs: `FMR_OWNER(0, 1)`.
const OWNER_FREE: u64 = 1;

/// Whether a process has ended and still has its entry: threads of it that wait in the kernel may be left, and keep what it
/// has open.
pub fn has_ended(process: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| is_ended(&stat))
}

fn is_ended(stat: &str) -> bool {
    // The name before the state may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['Z', 'X']))
}

/// A range of a file that lies in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the device. (On btrfs, in its own space of addresses.)
    pub physical: u64,
    /// Bytes.
    pub len: u64,
    /// As `FIEMAP_EXTENT_…` has them.
    pub flags: u32,
}

impl Extent {
    /// Its place is not known: not yet allocated, or beside metadata in an inode.
    pub fn is_placeless(&self) -> bool {
        self.flags & (0x2 | 0x4) != 0 || self.is_inline()
    }
    /// It lies beside metadata, and takes no block.
    pub fn is_inline(&self) -> bool {
        self.flags & 0x200 != 0
    }
    /// Compressed or encrypted: it takes less room than its length says, and how much is not told.
    pub fn is_encoded(&self) -> bool {
        self.flags & 0x8 != 0
    }
    /// Allocated, but never written: zeros are read.
    pub fn is_unwritten(&self) -> bool {
        self.flags & 0x800 != 0
    }
    /// Other files have it too, or this one at another place.
    pub fn is_shared(&self) -> bool {
        self.flags & 0x2000 != 0
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct RawExtents {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawRange {
    device: u32,
    flags: u32,
    physical: u64,
    owner: u64,
    offset: u64,
    length: u64,
    reserved: [u64; 3],
}

#[repr(C)]
struct RawRanges {
    iflags: u32,
    oflags: u32,
    count: u32,
    entries: u32,
    reserved: [u64; 6],
    low: RawRange,
    high: RawRange,
    ranges: [RawRange; RANGES],
}

const _: () = assert!(size_of::<RawExtents>() == 32 + 56 * BATCH && size_of::<RawRanges>() == 192 + 64 * RANGES);

/// The extents of a file, in its order; at most `max`. An error of kind `Unsupported` where the file system cannot tell.
pub fn extents(file: impl AsFd, max: usize) -> io::Result<Vec<Extent>> {
    extents_in(file, 0..u64::MAX, max)
}

/// As [`extents`], but only those that have bytes in `range`.
pub fn extents_in(file: impl AsFd, range: Range<u64>, max: usize) -> io::Result<Vec<Extent>> {
    let mut found: Vec<Extent> = Vec::new();
    let mut start = range.start;
    while found.len() < max && start < range.end {
        let mut request = RawExtents {
            start,
            length: range.end - start,
            flags: 0,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [RawExtent::default(); BATCH],
        };
        // SAFETY: the pointer is to a writable structure of the layout that the request names, with room for `count` extents.
        let done = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FIEMAP, &raw mut request) };
        if done < 0 {
            return Err(unsupported(io::Error::last_os_error()));
        }
        let mapped = &request.extents[..(request.mapped as usize).min(BATCH)];
        for raw in mapped {
            found.push(Extent { logical: raw.logical, physical: raw.physical, len: raw.length, flags: raw.flags });
        }
        match mapped.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 && last.logical.saturating_add(last.length) > start => {
                start = last.logical.saturating_add(last.length);
            }
            _ => break,
        }
    }
    found.truncate(max);
    Ok(found)
}

/// Calls `each` with offset and length of every range of the file system that holds `file`, and whether it is free, until
/// that says to stop: a large file system has very many. Needs root. An error of kind `Unsupported` where the file system
/// cannot tell.
pub fn space_ranges(file: impl AsFd, mut each: impl FnMut(u64, u64, bool) -> ControlFlow<()>) -> io::Result<()> {
    let all = RawRange {
        device: u32::MAX,
        flags: u32::MAX,
        physical: u64::MAX,
        owner: u64::MAX,
        offset: u64::MAX,
        ..RawRange::default()
    };
    let mut request = Box::new(RawRanges {
        iflags: 0,
        oflags: 0,
        count: RANGES as u32,
        entries: 0,
        reserved: [0; 6],
        low: RawRange::default(),
        high: all,
        ranges: [RawRange::default(); RANGES],
    });
    loop {
        // SAFETY: the pointer is to a writable structure of the layout that the request names, with room for `count` ranges.
        let done = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), GETFSMAP, &raw mut *request) };
        if done < 0 {
            return Err(unsupported(io::Error::last_os_error()));
        }
        let ranges = &request.ranges[..(request.entries as usize).min(RANGES)];
        for range in ranges {
            let free = range.flags & SPECIAL_OWNER != 0 && range.owner == OWNER_FREE;
            if each(range.physical, range.length, free).is_break() {
                return Ok(());
            }
        }
        match ranges.last() {
            // The kernel goes on after what the low key names.
            Some(last) if last.flags & MAP_LAST == 0 => request.low = RawRange { reserved: [0; 3], ..*last },
            _ => return Ok(()),
        }
        (request.entries, request.oflags) = (0, 0);
    }
}

/// The generation of a file's inode: another file with the same number has another one. An error of kind `Unsupported`
/// where the file system has none.
pub fn generation(file: impl AsFd) -> io::Result<u32> {
    // The kernel writes four bytes, though the request's name says eight.
    let mut version: libc::c_long = 0;
    // SAFETY: the pointer is to a writable long, the most that the request may write.
    let done = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), GETVERSION, &raw mut version) };
    if done < 0 { Err(unsupported(io::Error::last_os_error())) } else { Ok(version as u32) }
}

/// Has what is dirty of a file written, and does not wait for it. A file system that chooses places late chooses them now.
pub fn start_writeback(file: impl AsFd) -> io::Result<()> {
    // SAFETY: the call has no memory arguments; zero and zero are the whole file.
    let done = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Pages of a file in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPages {
    /// All of them.
    pub cached: u64,
    /// Those that differ from what is stored.
    pub dirty: u64,
    /// Those that are being written.
    pub writeback: u64,
}

#[repr(C)]
#[derive(Default)]
struct RawCacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The pages of `len` bytes from `offset` on (zero: to the end) that are in the page cache. An error of kind `Unsupported` on
/// a kernel before 6.5.
pub fn cached_pages(file: impl AsFd, offset: u64, len: u64) -> io::Result<CachedPages> {
    /// `cachestat`, the same on all architectures.
    const CACHESTAT: libc::c_long = 451;
    let range = [offset, len];
    let mut stat = RawCacheStat::default();
    // SAFETY: the pointers are to two readable numbers and to a writable structure of the layout that the call has.
    let done = unsafe { libc::syscall(CACHESTAT, file.as_fd().as_raw_fd(), range.as_ptr(), &raw mut stat, 0) };
    if done < 0 {
        let error = io::Error::last_os_error();
        let missing = error.raw_os_error() == Some(libc::ENOSYS);
        return Err(if missing { io::Error::new(io::ErrorKind::Unsupported, error) } else { unsupported(error) });
    }
    Ok(CachedPages { cached: stat.cached, dirty: stat.dirty, writeback: stat.writeback })
}

/// How often the kernel took the processor from this thread for another one. Zero where it does not count.
pub fn preemptions() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to writable memory of the structure's size.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: it was zero before the call, and zero is a valid value of each of its numbers.
    if done < 0 { 0 } else { unsafe { usage.assume_init() }.ru_nivcsw as u64 }
}

/// A file in memory, to be read.
#[derive(Debug)]
pub struct Map {
    at: *const u8,
    len: usize,
}

/// Maps `len` bytes of a file, shared and readable, from `offset` on, which is a multiple of a page.
pub fn map_file(file: impl AsFd, offset: u64, len: usize) -> io::Result<Map> {
    let (fd, offset) = (file.as_fd().as_raw_fd(), offset as libc::off_t);
    // SAFETY: the kernel chooses the place, so nothing of ours is replaced.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, offset) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Map { at: at.cast(), len }) }
}

impl Map {
    /// Makes the first `len` bytes be there, as if each page were touched; less if the file ends before.
    pub fn populate(&self, len: usize) -> io::Result<()> {
        /// `MADV_POPULATE_READ`, Linux 5.14. Touching would kill the process where somebody cuts the file.
        const POPULATE_READ: libc::c_int = 22;
        // SAFETY: the place is within the mapping, which lives as long as `self`; contents stay as they are.
        let done = unsafe { libc::madvise(self.at.cast_mut().cast(), len.min(self.len), POPULATE_READ) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EFAULT) => Ok(()),
            Some(libc::EINVAL) => Err(io::Error::new(io::ErrorKind::Unsupported, "mappings need Linux 5.14")),
            _ => Err(error),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: place and length are those of the mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.cast_mut().cast(), self.len) };
    }
}

fn unsupported(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => io::Error::new(io::ErrorKind::Unsupported, error),
        _ => error,
    }
}

/// From now on the requests of this thread wait for those of all others.
pub fn be_idle() -> io::Result<()> {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_IDLE: libc::c_int = 3 << 13;
    // SAFETY: the call has no memory arguments; zero is the calling thread.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// From now on a thread of this process runs only when no other thread wants to, or as usual again (`SCHED_IDLE`,
/// `SCHED_OTHER`). Threads and processes that it starts do the same.
pub fn run_when_idle(thread: u32, idle: bool) -> io::Result<()> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    // SAFETY: all bytes zero is a value of this type: neither policy has a priority.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the parameters live during the call.
    let done = unsafe { libc::sched_setscheduler(thread as libc::pid_t, policy, &raw const parameters) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;

    #[test]
    fn who_has_ended_is_told_by_the_state_behind_the_name() {
        assert!(is_ended("12 (ashlar) Z 1 12 12 0 -1"));
        assert!(is_ended("12 (a) S (b) X 1 12 12 0 -1"));
        assert!(!is_ended("12 (a) Z (b) S 1 12 12 0 -1"));
        assert!(!has_ended(std::process::id().cast_signed()));
    }

    #[test]
    fn extents_cover_a_file_where_the_file_system_tells() {
        let path = std::env::temp_dir().join(format!("ashlar-extents-{}", std::process::id()));
        // Only what can be read can be mapped.
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let mut file = open.expect("a file");
        file.write_all(&vec![7; 1 << 20]).expect("space");
        file.sync_all().expect("a disk");
        match extents(&file, 1000) {
            Ok(found) => assert_eq!(found.iter().map(|extent| extent.len).sum::<u64>(), 1 << 20, "{found:?}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
        match cached_pages(&file, 0, 0) {
            Ok(pages) => assert_eq!((pages.cached, pages.dirty), (256, pages.dirty.min(256)), "{pages:?}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
        let map = map_file(&file, 0, 1 << 20).expect("a regular file");
        map.populate(1 << 20).expect("pages");
        drop(map);
        start_writeback(&file).expect("a regular file");
        match (generation(&file), generation(&file)) {
            (Ok(one), Ok(other)) => assert_eq!(one, other),
            (Err(error), _) | (_, Err(error)) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
        let mut free = 0;
        let mut calls = 0;
        let told = space_ranges(&file, |_, len, is_free| {
            free += if is_free { len } else { 0 };
            calls += 1;
            if free > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match told {
            Ok(()) => assert!(free > 0 && calls > 0),
            Err(error) => {
                let expected = [io::ErrorKind::Unsupported, io::ErrorKind::PermissionDenied];
                assert!(expected.contains(&error.kind()), "{error}");
            }
        }
        be_idle().expect("every thread may be idle");
        run_when_idle(0, true).expect("zero is the calling thread");
        std::fs::remove_file(&path).expect("it is ours");
    }
}
