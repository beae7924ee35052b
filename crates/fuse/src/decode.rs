//! From bytes to typed requests.
//!
//! A request is a header, for most opcodes one fixed structure, and behind it names or data. The classic device delivers
//! them in one run of bytes, io_uring in three places; [`Message`] hides the difference. Nothing that comes in can
//! make the decoder panic or allocate: it checks every length and gives slices of the input.

use crate::abi::*;
use ashlar_vfs::NAME_LEN_MAX;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Longest name of an extended attribute, in bytes.
pub const XATTR_NAME_LEN_MAX: usize = 255;

/// A request that cannot be served as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRequest {
    /// What to answer.
    pub errno: i32,
    /// What is wrong with it.
    pub what: &'static str,
}

const fn bad(what: &'static str) -> BadRequest {
    BadRequest { errno: libc::EINVAL, what }
}

/// A request as a transport delivers it.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    /// The header.
    pub header: InHeader,
    /// The fixed structure, where it comes apart from the rest.
    fixed: Option<&'a [u8]>,
    /// Everything behind the header, or behind the fixed structure.
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    /// A request in one run of bytes.
    pub fn whole(bytes: &'a [u8]) -> Result<Message<'a>, BadRequest> {
        let (header, rest) =
            InHeader::read_from_prefix(bytes).map_err(|_| bad("a request is shorter than its header"))?;
        let rest = (header.len as usize)
            .checked_sub(size_of::<InHeader>())
            .and_then(|len| rest.get(..len))
            .ok_or(bad("a request's length does not match what arrived"))?;
        Ok(Message { header, fixed: None, rest })
    }

    /// A request whose header, fixed structure and payload lie apart.
    pub fn split(header: InHeader, fixed: &'a [u8], payload: &'a [u8]) -> Message<'a> {
        Message { header, fixed: Some(fixed), rest: payload }
    }

    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, BadRequest> {
        const SHORT: BadRequest = bad("a request is shorter than its structure");
        if let Some(fixed) = self.fixed {
            return T::read_from_prefix(fixed).map(|(value, _)| value).map_err(|_| SHORT);
        }
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| SHORT)?;
        self.rest = rest;
        Ok(value)
    }

    fn text(&mut self) -> Result<&'a [u8], BadRequest> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(bad("a name does not end"))?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest.get(1..).unwrap_or_default();
        Ok(text)
    }

    fn name(&mut self) -> Result<&'a [u8], BadRequest> {
        let name = self.text()?;
        if name.len() > NAME_LEN_MAX {
            return Err(BadRequest { errno: libc::ENAMETOOLONG, what: "a name is longer than 255 bytes" });
        }
        if name.is_empty() || name.contains(&b'/') {
            return Err(bad("a name is empty or contains a slash"));
        }
        Ok(name)
    }

    fn new_name(&mut self) -> Result<&'a [u8], BadRequest> {
        match self.name()? {
            b"." | b".." => Err(bad("`.` and `..` cannot be made, moved or removed")),
            name => Ok(name),
        }
    }

    fn xattr_name(&mut self) -> Result<&'a [u8], BadRequest> {
        let name = self.text()?;
        if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
            return Err(BadRequest { errno: libc::ERANGE, what: "an attribute's name is empty or too long" });
        }
        Ok(name)
    }

    /// Decodes the request.
    pub fn decode(mut self) -> Result<Request<'a>, BadRequest> {
        let header = self.header;
        let opcode = Opcode::from_number(header.opcode)
            .ok_or(BadRequest { errno: libc::ENOSYS, what: "an opcode of a newer protocol" })?;
        let operation = match opcode {
            Opcode::Lookup => Operation::Lookup { name: self.name()? },
            Opcode::Forget => Operation::Forget { count: self.take::<ForgetIn>()?.nlookup },
            Opcode::BatchForget => {
                let count = self.take::<BatchForgetIn>()?.count as usize;
                let len = count.checked_mul(size_of::<ForgetOne>());
                let items = len.and_then(|len| self.rest.get(..len)).ok_or(bad("a batch is shorter than its count"))?;
                Operation::BatchForget { items: Forgets(items) }
            }
            Opcode::GetAttr => Operation::GetAttr(self.take()?),
            Opcode::SetAttr => Operation::SetAttr(self.take()?),
            Opcode::ReadLink => Operation::ReadLink,
            Opcode::Symlink => Operation::Symlink { name: self.new_name()?, target: self.text()? },
            Opcode::MkNod => Operation::MkNod { arg: self.take()?, name: self.new_name()? },
            Opcode::MkDir => Operation::MkDir { arg: self.take()?, name: self.new_name()? },
            Opcode::Unlink => Operation::Unlink { name: self.new_name()? },
            Opcode::RmDir => Operation::RmDir { name: self.new_name()? },
            Opcode::Rename => {
                let to = self.take::<RenameIn>()?.newdir;
                Operation::Rename { to, flags: 0, name: self.new_name()?, new_name: self.new_name()? }
            }
            Opcode::Rename2 => {
                let Rename2In { newdir: to, flags, .. } = self.take()?;
                Operation::Rename { to, flags, name: self.new_name()?, new_name: self.new_name()? }
            }
            Opcode::Link => Operation::Link { ino: self.take::<LinkIn>()?.oldnodeid, name: self.new_name()? },
            Opcode::Open => Operation::Open,
            Opcode::Create => Operation::Create { arg: self.take()?, name: self.new_name()? },
            Opcode::TmpFile => Operation::TmpFile(self.take()?),
            Opcode::Release => Operation::Release,
            Opcode::Read => Operation::Read(self.take()?),
            Opcode::Write => {
                let arg: WriteIn = self.take()?;
                let data = self.rest.get(..arg.size as usize).ok_or(bad("a write is shorter than its size"))?;
                Operation::Write { arg, data }
            }
            Opcode::StatFs => Operation::StatFs,
            Opcode::Fsync => Operation::Fsync { arg: self.take()?, directory: false },
            Opcode::FsyncDir => Operation::Fsync { arg: self.take()?, directory: true },
            Opcode::SyncFs => Operation::SyncFs,
            Opcode::SetXattr => {
                let arg: SetXattrIn = self.take()?;
                let name = self.xattr_name()?;
                let value = self.rest.get(..arg.size as usize).ok_or(bad("a value is shorter than its size"))?;
                Operation::SetXattr { arg, name, value }
            }
            Opcode::GetXattr => Operation::GetXattr { size: self.take::<GetXattrIn>()?.size, name: self.xattr_name()? },
            Opcode::ListXattr => Operation::ListXattr { size: self.take::<GetXattrIn>()?.size },
            Opcode::RemoveXattr => Operation::RemoveXattr { name: self.xattr_name()? },
            Opcode::ReadDir => Operation::ReadDir { arg: self.take()?, plus: false },
            Opcode::ReadDirPlus => Operation::ReadDir { arg: self.take()?, plus: true },
            Opcode::Fallocate => Operation::Fallocate(self.take()?),
            Opcode::Lseek => Operation::Lseek(self.take()?),
            Opcode::CopyFileRange => Operation::CopyFileRange { arg: self.take()?, wide: false },
            Opcode::CopyFileRange64 => Operation::CopyFileRange { arg: self.take()?, wide: true },
            Opcode::Statx => Operation::Statx,
            Opcode::Init => {
                // Longer structures of newer kernels are fine, shorter ones of older kernels mean zeros.
                let mut arg = InitIn::default();
                let from = self.rest;
                let len = from.len().min(size_of::<InitIn>());
                if len < 16 {
                    return Err(bad("an INIT is shorter than its structure"));
                }
                if let (Some(to), Some(from)) = (arg.as_mut_bytes().get_mut(..len), from.get(..len)) {
                    to.copy_from_slice(from);
                }
                Operation::Init(arg)
            }
            Opcode::Interrupt => Operation::Interrupt,
            Opcode::NotifyReply => {
                let without = size_of::<InHeader>() + size_of::<RetrieveIn>();
                Operation::NotifyReply { bytes: header.len.saturating_sub(without as u32) }
            }
            Opcode::Destroy => Operation::Destroy,
            Opcode::Flush
            | Opcode::OpenDir
            | Opcode::ReleaseDir
            | Opcode::GetLk
            | Opcode::SetLk
            | Opcode::SetLkW
            | Opcode::Access
            | Opcode::Bmap
            | Opcode::Ioctl
            | Opcode::Poll
            | Opcode::SetupMapping
            | Opcode::RemoveMapping => Operation::Declined,
        };
        Ok(Request { header, opcode, operation })
    }
}

/// A request, checked.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The header.
    pub header: InHeader,
    /// Which opcode it bore.
    pub opcode: Opcode,
    /// What it asks for.
    pub operation: Operation<'a>,
}

/// What a request asks for. `nodeid` of the header is the inode, or the directory where there is a name.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the fields are the kernel's")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        items: Forgets<'a>,
    },
    GetAttr(GetAttrIn),
    Statx,
    SetAttr(SetAttrIn),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        arg: MkNodIn,
        name: &'a [u8],
    },
    MkDir {
        arg: MkDirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        to: u64,
        flags: u32,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        ino: u64,
        name: &'a [u8],
    },
    Open,
    Create {
        arg: CreateIn,
        name: &'a [u8],
    },
    TmpFile(CreateIn),
    Release,
    Read(ReadIn),
    Write {
        arg: WriteIn,
        data: &'a [u8],
    },
    StatFs,
    Fsync {
        arg: FsyncIn,
        directory: bool,
    },
    SyncFs,
    SetXattr {
        arg: SetXattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    GetXattr {
        size: u32,
        name: &'a [u8],
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    ReadDir {
        arg: ReadIn,
        plus: bool,
    },
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange {
        arg: CopyFileRangeIn,
        wide: bool,
    },
    Init(InitIn),
    Interrupt,
    NotifyReply {
        bytes: u32,
    },
    Destroy,
    /// Known, and never served: locks, ioctls, polls and what the kernel does better itself.
    Declined,
}

/// Inodes and counts of a BATCH_FORGET.
#[derive(Clone, Copy)]
pub struct Forgets<'a>(&'a [u8]);

impl<'a> Forgets<'a> {
    /// Pairs of an inode and a count.
    pub fn iter(self) -> impl Iterator<Item = ForgetOne> + Send + 'a {
        self.0.chunks_exact(size_of::<ForgetOne>()).filter_map(|chunk| ForgetOne::read_from_bytes(chunk).ok())
    }
}
