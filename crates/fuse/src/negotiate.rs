//! INIT: what both sides can do.

use crate::abi::*;
use crate::options::Options;
use crate::reply::Timeouts;

/// Requests that the kernel may have under way on its own account (reading ahead, writing back, direct I/O). Requests that a program
/// waits for go behind these; but two windows of what is read ahead should find room.
const BACKGROUND_MAX: u16 = 128;
/// From here on the kernel holds back reading ahead.
const CONGESTION: u16 = 128;

/// What the machine's kernel allows.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bytes of a page of memory: 4 KiB, and 16 or 64 KiB on some ARM machines.
    pub page: usize,
    /// Pages of a request's data: `fs.fuse.max_pages_limit`.
    pub pages_max: usize,
    /// Requests may come over io_uring.
    pub over_ring: bool,
}

/// What was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Minor protocol version of the kernel.
    pub minor: u32,
    /// Flags that both sides have, both halves in one number.
    pub flags: u64,
    /// Largest write request, bytes.
    pub max_write: usize,
    /// Largest data of any request or answer, bytes.
    pub max_data: usize,
    /// What is said of every open file; see [`opened`].
    pub opened: u32,
    /// For how long the kernel may rely on names and attributes.
    pub timeouts: Timeouts,
    /// The engine has all data, so it knows the holes. While the page cache may hold writes of which the engine knows
    /// nothing, what it takes for a hole may be data: the kernel does not write back before it asks.
    pub holes: bool,
}

impl Agreement {
    /// Whether requests come over io_uring.
    pub fn uring(&self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }
}

/// Answers INIT.
///
/// Unless files are served past the page cache, opens and closes are not asked for: the kernel keeps an inode's references while a file is open, and that keeps
/// unlinked files alive. Without OPEN requests `O_TRUNC` comes as a SETATTR.
pub fn negotiate(offer: &InitIn, options: &Options, limits: Limits) -> (InitOut, Agreement) {
    let offered = u64::from(offer.flags)
        | if offer.flags & init::INIT_EXT as u32 != 0 { u64::from(offer.flags2) << 32 } else { 0 };
    let mut wanted = init::ASYNC_READ
        | init::EXPORT_SUPPORT
        | init::BIG_WRITES
        | init::DO_READDIRPLUS
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::ABORT_ERROR
        | init::MAX_PAGES
        | init::POSIX_ACL
        | init::DONT_MASK
        | init::CACHE_SYMLINKS
        | init::NO_OPENDIR_SUPPORT
        | init::EXPLICIT_INVAL_DATA
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP
        | init::ALLOW_IDMAP;
    if limits.over_ring {
        wanted |= init::OVER_IO_URING;
    }
    if !options.direct {
        wanted |= init::NO_OPEN_SUPPORT;
    }
    if options.writeback && !options.direct {
        wanted |= init::WRITEBACK_CACHE;
    }
    let flags = offered & wanted;
    let pages_wanted = (options.max_data.0 as usize).div_ceil(limits.page).clamp(1, usize::from(u16::MAX));
    let pages =
        if flags & init::MAX_PAGES != 0 { pages_wanted.min(limits.pages_max.max(1)) } else { pages_wanted.min(32) };
    let max_data = pages * limits.page;
    let collects = flags & init::WRITEBACK_CACHE != 0;
    let write_back_max = (options.max_write_back.0 as usize).max(limits.page);
    let max_write = if collects { max_data.min(write_back_max) } else { max_data };
    let out = InitOut {
        major: MAJOR,
        minor: MINOR.min(offer.minor),
        max_readahead: u32::MAX,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTION,
        max_write: max_write as u32,
        time_gran: 1,
        max_pages: pages as u16,
        ..InitOut::default()
    };
    let agreement = Agreement {
        minor: out.minor,
        flags,
        max_write,
        max_data,
        opened: if options.direct { opened::DIRECT_IO | opened::PARALLEL_DIRECT_WRITES | opened::NOFLUSH } else { 0 },
        timeouts: Timeouts { entry: options.timeout, attr: options.timeout },
        holes: options.read_only || flags & init::WRITEBACK_CACHE == 0,
    };
    (out, agreement)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Limits = Limits { page: 4096, pages_max: 256, over_ring: true };

    fn offer(flags: u64) -> InitIn {
        InitIn { major: 7, minor: 45, flags: flags as u32, flags2: (flags >> 32) as u32, ..InitIn::default() }
    }

    #[test]
    fn only_what_is_offered_is_agreed() {
        let options = Options::default();
        for bit in 0..64 {
            let (out, agreement) = negotiate(&offer(1 << bit | init::INIT_EXT), &options, USUAL);
            assert_eq!(agreement.flags & !(1 << bit | init::INIT_EXT), 0);
            assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, agreement.flags);
        }
    }

    #[test]
    fn locks_splices_truncating_opens_and_choosing_readdirplus_are_declined() {
        let (_, agreement) = negotiate(&offer(u64::MAX), &Options::default(), USUAL);
        for bit in [1u64 << 1, 1 << 3, 1 << 10, 1 << 7, 1 << 8, 1 << 9, 1 << 12, 1 << 14] {
            assert_eq!(agreement.flags & bit, 0, "{bit:#x}");
        }
    }

    #[test]
    fn holes_are_known_only_where_the_page_cache_holds_no_writes() {
        let holes = |read_only, writeback, offered| {
            let options = Options { read_only, writeback, ..Options::default() };
            negotiate(&offer(offered), &options, USUAL).1.holes
        };
        assert!(!holes(false, true, u64::MAX));
        assert!(holes(true, true, u64::MAX) && holes(false, false, u64::MAX) && holes(false, true, 0));
    }

    #[test]
    fn files_past_the_page_cache_are_opened_one_by_one() {
        let (_, plain) = negotiate(&offer(u64::MAX), &Options::default(), USUAL);
        let (_, direct) = negotiate(&offer(u64::MAX), &Options { direct: true, ..Options::default() }, USUAL);
        let without_open = init::NO_OPEN_SUPPORT | init::WRITEBACK_CACHE;
        assert_eq!((plain.flags & without_open, plain.opened), (without_open, 0));
        assert_eq!(direct.flags & without_open, 0);
        assert_eq!(direct.opened & opened::DIRECT_IO, opened::DIRECT_IO);
    }

    #[test]
    fn what_the_page_cache_collects_comes_in_smaller_pieces() {
        let largest = |writeback| {
            let (out, agreement) = negotiate(&offer(u64::MAX), &Options { writeback, ..Options::default() }, USUAL);
            assert_eq!((out.max_pages, out.max_write as usize), (256, agreement.max_write));
            (agreement.max_data, agreement.max_write)
        };
        assert_eq!((largest(true), largest(false)), ((1 << 20, 256 << 10), (1 << 20, 1 << 20)));
    }

    #[test]
    fn the_kernels_page_limit_holds() {
        let limits = Limits { pages_max: 32, over_ring: false, ..USUAL };
        let (out, agreement) = negotiate(&offer(u64::MAX), &Options::default(), limits);
        assert_eq!((out.max_pages, agreement.max_data, agreement.max_write), (32, 32 * 4096, 32 * 4096));
        let (out, _) = negotiate(&offer(0), &Options::default(), USUAL);
        assert_eq!(out.max_write, 32 * 4096);
    }

    /// The kernel wants room for as many of its pages in each entry of a ring.
    #[test]
    fn lengths_are_counted_in_the_kernels_pages() {
        for (page, pages) in [(4 << 10, 256), (16 << 10, 64), (64 << 10, 16)] {
            let (out, agreement) = negotiate(&offer(u64::MAX), &Options::default(), Limits { page, ..USUAL });
            assert_eq!((out.max_pages, agreement.max_data), (pages, 1 << 20));
        }
    }
}
