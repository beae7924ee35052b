//! A reply under construction.

use crate::abi::*;
use ashlar_vfs::{Attr, DirEntry, Time};
use bytes::Bytes;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

const HEADER_LEN: usize = size_of::<OutHeader>();

/// Largest entry of a READDIRPLUS.
pub const DIRENT_PLUS_LEN_MAX: usize = size_of::<EntryOut>() + size_of::<Dirent>() + 256;
/// Largest entry of a READDIR.
pub const DIRENT_LEN_MAX: usize = size_of::<Dirent>() + 256;

/// For how long the kernel may rely on what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Names, present ones and absent ones.
    pub entry: Duration,
    /// Attributes.
    pub attr: Duration,
}

impl Timeouts {
    /// The kernel must not rely on anything.
    pub const AT_ONCE: Timeouts = Timeouts { entry: Duration::ZERO, attr: Duration::ZERO };
}

/// The answer to one request.
#[derive(Default)]
pub struct Reply {
    /// Header and small structures.
    head: Vec<u8>,
    /// Data behind them, as the engine gave it.
    pieces: Vec<Bytes>,
    error: i32,
    silent: bool,
}

impl Reply {
    /// Begins a new reply: success without a body.
    pub fn reset(&mut self) {
        self.head.clear();
        self.head.resize(HEADER_LEN, 0);
        self.pieces.clear();
        self.error = 0;
        self.silent = false;
    }

    /// An error number instead of a body.
    pub fn fail(&mut self, errno: i32) {
        self.reset();
        self.error = errno;
    }

    /// This request takes no answer.
    pub fn silence(&mut self) {
        self.silent = true;
    }

    /// Appends a structure.
    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.head.extend_from_slice(value.as_bytes());
    }

    /// Appends bytes.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// Appends data without copying it. Structures cannot follow.
    pub fn put_pieces(&mut self, pieces: Vec<Bytes>) {
        self.pieces = pieces;
    }

    /// Appends an inode with the time for which its name holds.
    pub fn put_entry(&mut self, attr: &Attr, timeouts: &Timeouts) {
        self.put(&entry_out(attr, timeouts));
    }

    /// Appends "there is no such name" with the time for which that holds.
    pub fn put_absent(&mut self, timeouts: &Timeouts) {
        self.put(&EntryOut {
            entry_valid: timeouts.entry.as_secs(),
            entry_valid_nsec: timeouts.entry.subsec_nanos(),
            ..EntryOut::default()
        });
    }

    /// Appends attributes.
    pub fn put_attr(&mut self, attr: &Attr, timeouts: &Timeouts) {
        let valid = attr_valid(attr, timeouts);
        self.put(&AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            dummy: 0,
            attr: fuse_attr(attr),
        });
    }

    /// Appends attributes as `statx(2)` knows them.
    pub fn put_statx(&mut self, attr: &Attr, timeouts: &Timeouts) {
        let plain = fuse_attr(attr);
        let time = |time: Time| SxTime { tv_sec: time.seconds, tv_nsec: time.nanos, reserved: 0 };
        self.put(&StatxOut {
            attr_valid: timeouts.attr.as_secs(),
            attr_valid_nsec: timeouts.attr.subsec_nanos(),
            flags: 0,
            spare: [0; 2],
            stat: FuseStatx {
                mask: STATX_MASK,
                blksize: plain.blksize,
                nlink: plain.nlink,
                uid: plain.uid,
                gid: plain.gid,
                mode: plain.mode as u16,
                ino: plain.ino,
                size: plain.size,
                blocks: plain.blocks,
                atime: time(attr.accessed),
                btime: time(attr.born),
                ctime: time(attr.changed),
                mtime: time(attr.modified),
                rdev_major: attr.device >> 20,
                rdev_minor: attr.device & 0xf_ffff,
                ..FuseStatx::default()
            },
        });
    }

    /// Appends a directory entry.
    pub fn put_dirent(&mut self, entry: &DirEntry<'_>, plus: Option<&Timeouts>) {
        if let Some(timeouts) = plus {
            // Without attributes (`.` and `..`) the kernel wants zeros.
            let out = entry.attr.as_ref().map(|attr| entry_out(attr, timeouts));
            self.put(&out.unwrap_or_default());
        }
        let namelen = entry.name.len();
        self.put(&Dirent {
            ino: entry.ino,
            off: entry.cookie,
            namelen: namelen as u32,
            kind: u32::from(entry.kind.dirent_type()),
        });
        self.head.extend_from_slice(entry.name);
        let padding = namelen.next_multiple_of(8) - namelen;
        self.head.extend_from_slice([0; 8].get(..padding).unwrap_or_default());
    }

    /// The body so far, without pieces.
    pub fn body(&self) -> &[u8] {
        &self.head[HEADER_LEN..]
    }

    /// Length of the body so far, without pieces.
    pub fn body_len(&self) -> usize {
        self.head.len() - HEADER_LEN
    }

    /// Writes the header. Gives header with body, and the pieces behind it; nothing if the request takes no answer.
    pub fn finish(&mut self, unique: u64) -> Option<(&[u8], &[Bytes])> {
        if self.silent {
            return None;
        }
        let len = self.head.len() + self.pieces.iter().map(Bytes::len).sum::<usize>();
        let header = OutHeader { len: len as u32, error: -self.error, unique };
        self.head[..HEADER_LEN].copy_from_slice(header.as_bytes());
        Some((&self.head, &self.pieces))
    }

    /// Bytes of data behind the header and structures.
    pub fn data_len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// The error number, 0 for success.
    pub fn error(&self) -> i32 {
        self.error
    }
}

/// For how long the kernel may answer for us.
fn attr_valid(attr: &Attr, timeouts: &Timeouts) -> Duration {
    attr.estimated.unwrap_or(timeouts.attr)
}

fn entry_out(attr: &Attr, timeouts: &Timeouts) -> EntryOut {
    let valid = attr_valid(attr, timeouts);
    EntryOut {
        nodeid: attr.ino,
        generation: attr.generation,
        entry_valid: timeouts.entry.as_secs(),
        attr_valid: valid.as_secs(),
        entry_valid_nsec: timeouts.entry.subsec_nanos(),
        attr_valid_nsec: valid.subsec_nanos(),
        attr: fuse_attr(attr),
    }
}

fn fuse_attr(attr: &Attr) -> FuseAttr {
    FuseAttr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: attr.accessed.seconds as u64,
        mtime: attr.modified.seconds as u64,
        ctime: attr.changed.seconds as u64,
        atimensec: attr.accessed.nanos,
        mtimensec: attr.modified.nanos,
        ctimensec: attr.changed.nanos,
        mode: attr.kind.mode_bits() | attr.permissions & 0o7777,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.device),
        blksize: 4096,
        flags: 0,
    }
}

/// A device number as the protocol carries it, from `major << 20 | minor`.
pub fn encode_device(device: u32) -> u32 {
    let (major, minor) = (device >> 20, device & 0xf_ffff);
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The reverse of [`encode_device`].
pub fn decode_device(device: u32) -> u32 {
    let (major, minor) = ((device & 0xf_ff00) >> 8, device & 0xff | (device >> 12) & 0xf_ff00);
    major << 20 | minor
}
