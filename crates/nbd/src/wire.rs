//! Messages of the transmission phase, as bytes: requests, and simple and structured replies.
//!
//! All numbers are big endian. A request is 28 bytes, and the data of a write follow it; a simple reply is 16 bytes, a
//! chunk of a structured one 20, and their data follow.

use ashlar_block::Kind;
use bytes::Bytes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Largest read or write, in bytes: what the protocol suggests if nothing else is agreed.
pub const PAYLOAD_LEN_MAX: u32 = 32 << 20;

const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    BlockStatus,
    /// A number that we do not know.
    Other(u16),
}

const COMMANDS: [(Command, u16); 7] = [
    (Command::Read, 0),
    (Command::Write, 1),
    (Command::Disconnect, 2),
    (Command::Flush, 3),
    (Command::Trim, 4),
    (Command::WriteZeroes, 6),
    (Command::BlockStatus, 7),
];

impl Command {
    fn from_number(number: u16) -> Command {
        COMMANDS.iter().find(|(_, known)| *known == number).map_or(Command::Other(number), |(command, _)| *command)
    }
    fn number(self) -> u16 {
        match self {
            Command::Other(number) => number,
            known => COMMANDS.iter().find(|(command, _)| *command == known).map_or(u16::MAX, |(_, number)| *number),
        }
    }
    /// The flags that it may carry.
    pub fn flags_allowed(self) -> u16 {
        match self {
            Command::Read => flag::DF,
            Command::Write | Command::Trim => flag::FUA,
            Command::WriteZeroes => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            Command::BlockStatus => flag::REQ_ONE,
            // FUA means nothing there, and the protocol lets clients set it wherever it was offered.
            Command::Flush | Command::Disconnect | Command::Other(_) => flag::FUA,
        }
    }
}

/// Flags of requests.
pub mod flag {
    /// Durable when answered.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES: keep the space allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ: answer in one piece.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES: fail if it is not faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Error numbers of replies, those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub enum Errno {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    Unsupported = 95,
}

impl From<Kind> for Errno {
    fn from(kind: Kind) -> Errno {
        match kind {
            Kind::NoSpace => Errno::NoSpace,
            Kind::Unsupported => Errno::Unsupported,
            Kind::Misuse => Errno::Invalid,
            Kind::Retry | Kind::Corrupt | Kind::Failed | Kind::Poisoned => Errno::Io,
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRequest {
    magic: U32,
    flags: U16,
    command: U16,
    cookie: U64,
    offset: U64,
    len: U32,
}

/// A request without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// See [`flag`].
    pub flags: u16,
    /// What it asks for.
    pub command: Command,
    /// What the client knows the request by.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

impl Request {
    /// Length on the wire.
    pub const LEN: usize = size_of::<RawRequest>();

    /// Reads a request; nothing if it does not begin as one, after which nobody knows where the next begins.
    pub fn decode(bytes: &[u8; Request::LEN]) -> Option<Request> {
        let raw = RawRequest::read_from_bytes(bytes).ok().filter(|raw| raw.magic.get() == REQUEST_MAGIC)?;
        Some(Request {
            flags: raw.flags.get(),
            command: Command::from_number(raw.command.get()),
            cookie: raw.cookie.get(),
            offset: raw.offset.get(),
            len: raw.len.get(),
        })
    }

    /// The request as bytes.
    pub fn encode(&self) -> [u8; Request::LEN] {
        zerocopy::transmute!(RawRequest {
            magic: REQUEST_MAGIC.into(),
            flags: self.flags.into(),
            command: self.command.number().into(),
            cookie: self.cookie.into(),
            offset: self.offset.into(),
            len: self.len.into(),
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSimple {
    magic: U32,
    error: U32,
    cookie: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawChunk {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    len: U32,
}

/// Kinds of chunks.
mod chunk {
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15 | 1;
    /// The last chunk of its reply.
    pub const DONE: u16 = 1;
}

/// BLOCK_STATUS: the range takes no space.
pub const STATE_HOLE: u32 = 1 << 0;
/// BLOCK_STATUS: the range reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

/// A message that goes back: a head, and pieces of data (and further heads) behind it.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Begins it.
    pub head: smallvec::SmallVec<[u8; 32]>,
    /// Follows it.
    pub pieces: smallvec::SmallVec<[Bytes; 1]>,
}

/// A part of what a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Bytes.
    Data(Bytes),
    /// So many zeros.
    Hole(u32),
}

impl Reply {
    /// A simple reply; data may follow only a success of READ.
    pub fn simple(cookie: u64, error: Option<Errno>, data: Option<Bytes>) -> Reply {
        let error = error.map_or(0, |errno| errno as u32);
        let raw = RawSimple { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() };
        Reply { head: raw.as_bytes().into(), pieces: data.into_iter().collect() }
    }

    /// A structured reply with an error and its story.
    pub fn error(cookie: u64, errno: Errno, story: &str) -> Reply {
        // A cut in the middle of a character would not be text.
        let end = (0..=story.len().min(1024)).rev().find(|end| story.is_char_boundary(*end)).unwrap_or(0);
        let story = story.get(..end).unwrap_or_default().as_bytes();
        let mut reply = Reply::default();
        reply.chunk(cookie, chunk::DONE, chunk::ERROR, 6 + story.len());
        reply.head.extend_from_slice(&(errno as u32).to_be_bytes());
        reply.head.extend_from_slice(&(story.len() as u16).to_be_bytes());
        reply.head.extend_from_slice(story);
        reply
    }

    /// A structured reply to READ, in the order of offsets.
    pub fn found(cookie: u64, mut offset: u64, parts: Vec<Found>) -> Reply {
        let last = parts.len().saturating_sub(1);
        let mut reply = Reply::default();
        for (index, part) in parts.into_iter().enumerate() {
            let done = if index == last { chunk::DONE } else { 0 };
            let mut next = Reply::default();
            match part {
                Found::Data(data) => {
                    next.chunk(cookie, done, chunk::OFFSET_DATA, 8 + data.len());
                    next.head.extend_from_slice(&offset.to_be_bytes());
                    offset += data.len() as u64;
                    next.pieces.push(data);
                }
                Found::Hole(len) => {
                    next.chunk(cookie, done, chunk::OFFSET_HOLE, 12);
                    next.head.extend_from_slice(&offset.to_be_bytes());
                    next.head.extend_from_slice(&len.to_be_bytes());
                    offset += u64::from(len);
                }
            }
            if index == 0 {
                reply = next;
            } else {
                reply.pieces.push(Bytes::copy_from_slice(&next.head));
                reply.pieces.append(&mut next.pieces);
            }
        }
        reply
    }

    /// A structured reply to BLOCK_STATUS: extents as (length, state), in the context that the number names.
    pub fn block_status(cookie: u64, context: u32, extents: &[(u32, u32)]) -> Reply {
        let mut reply = Reply::default();
        reply.chunk(cookie, chunk::DONE, chunk::BLOCK_STATUS, 4 + 8 * extents.len());
        reply.head.extend_from_slice(&context.to_be_bytes());
        for (len, state) in extents {
            reply.head.extend_from_slice(&len.to_be_bytes());
            reply.head.extend_from_slice(&state.to_be_bytes());
        }
        reply
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no reply is empty")]
    pub fn len(&self) -> usize {
        self.head.len() + self.pieces.iter().map(Bytes::len).sum::<usize>()
    }

    fn chunk(&mut self, cookie: u64, flags: u16, kind: u16, len: usize) {
        let raw = RawChunk {
            magic: CHUNK_MAGIC.into(),
            flags: flags.into(),
            kind: kind.into(),
            cookie: cookie.into(),
            len: (len as u32).into(),
        };
        self.head.extend_from_slice(raw.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_survive_the_wire(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
            let command = Command::from_number(command);
            let request = Request { flags, command, cookie, offset, len };
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }

        #[test]
        fn noise_is_a_request_only_with_the_magic_number(noise: [u8; Request::LEN]) {
            let decoded = Request::decode(&noise);
            prop_assert_eq!(decoded.is_some(), noise.starts_with(&REQUEST_MAGIC.to_be_bytes()));
            // What was understood is what was said.
            prop_assert!(decoded.is_none_or(|request| request.encode() == noise));
        }

        #[test]
        fn stories_are_cut_at_characters(story in "\\PC{0,2000}") {
            let reply = Reply::error(7, Errno::Io, &story);
            let text = reply.head.get(26..).unwrap_or_default();
            prop_assert!(text.len() <= 1024 && story.starts_with(std::str::from_utf8(text).expect("text")));
            prop_assert!(text.len() > 1020 || text.len() == story.len());
        }
    }

    #[test]
    fn messages_have_their_bytes() {
        let request = Request { flags: flag::FUA, command: Command::Write, cookie: 0x0102, offset: 0x1000, len: 0x200 };
        assert_eq!(request.encode(), *b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x10\0\0\0\x02\0");
        let reply = Reply::simple(3, Some(Errno::NoSpace), None);
        assert_eq!(reply.head[..], *b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x03");
        let reply = Reply::found(3, 0x4000, vec![Found::Hole(9), Found::Data(Bytes::from_static(b"data"))]);
        assert_eq!(
            reply.head[..],
            *b"\x66\x8e\x33\xef\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\x40\0\0\0\0\x09"
        );
        assert_eq!(
            reply.pieces.concat(),
            *b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\x40\x09data"
        );
    }
}
