//! Messages of the handshake, as bytes: what a client may ask before it gets a device, and the answers.
//!
//! An option is 16 bytes (magic, number, length) and its data; a reply is 20 bytes (magic, option, kind, length) and its
//! data. Numbers are big endian.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word that a server says, as text `NBDMAGIC`.
pub const SERVER_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Begins every option, and is the second word that a server says, as text `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Handshake flag of both sides: fixed newstyle.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag of both sides: no padding behind the answer to EXPORT_NAME.
pub const NO_ZEROES: u16 = 1 << 1;
/// Longest data of an option, in bytes.
pub const OPTION_LEN_MAX: u32 = 64 << 10;
/// Longest name of an export, in bytes.
pub const NAME_LEN_MAX: usize = 4096;
/// The one metadata context that there is.
pub const BASE_ALLOCATION: &str = "base:allocation";

macro_rules! options {
    ($($(#[$about:meta])* $name:ident = $number:literal;)*) => {
        /// Number of an option.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$about])* $name,)*
            /// One that we do not know.
            Other(u32),
        }
        impl Kind {
            fn from_number(number: u32) -> Kind {
                match number {
                    $($number => Kind::$name,)*
                    other => Kind::Other(other),
                }
            }
            /// Its number.
            pub fn number(self) -> u32 {
                match self {
                    $(Kind::$name => $number,)*
                    Kind::Other(number) => number,
                }
            }
        }
    };
}
options! {
    /// Begin with this export, the old way: errors close the connection.
    ExportName = 1;
    /// End.
    Abort = 2;
    /// Which exports are there?
    List = 3;
    /// Encrypt from here on.
    StartTls = 5;
    /// Describe an export.
    Info = 6;
    /// Describe an export and begin with it.
    Go = 7;
    /// Structured replies from here on.
    StructuredReply = 8;
    /// Which metadata contexts are there?
    ListMetaContext = 9;
    /// Use these metadata contexts.
    SetMetaContext = 10;
}

/// Kinds of replies to options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub enum ReplyKind {
    Ack = 1,
    Server = 2,
    Info = 3,
    MetaContext = 4,
    ErrUnsupported = 1 << 31 | 1,
    ErrPolicy = 1 << 31 | 2,
    ErrInvalid = 1 << 31 | 3,
    ErrTlsRequired = 1 << 31 | 5,
    ErrUnknown = 1 << 31 | 6,
    ErrTooBig = 1 << 31 | 9,
}

/// Kinds of information about an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Its name.
    pub const NAME: u16 = 1;
    /// A line for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, best and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do: flags of the transmission phase.
pub mod transmission {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawOption {
    magic: U64,
    kind: U32,
    len: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReply {
    magic: U64,
    option: U32,
    kind: U32,
    len: U32,
}

/// Begins an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked.
    pub kind: Kind,
    /// Bytes of data behind it.
    pub len: u32,
}

impl Header {
    /// Length on the wire.
    pub const LEN: usize = size_of::<RawOption>();

    /// Reads the header of an option; nothing if it is none.
    pub fn decode(bytes: &[u8; Header::LEN]) -> Option<Header> {
        let raw = RawOption::read_from_bytes(bytes).ok().filter(|raw| raw.magic.get() == OPTION_MAGIC)?;
        Some(Header { kind: Kind::from_number(raw.kind.get()), len: raw.len.get() })
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; Header::LEN] {
        zerocopy::transmute!(RawOption {
            magic: OPTION_MAGIC.into(),
            kind: self.kind.number().into(),
            len: self.len.into()
        })
    }
}

/// A reply to an option, as bytes.
pub fn reply(option: Kind, kind: ReplyKind, data: &[u8]) -> Vec<u8> {
    let raw = RawReply {
        magic: REPLY_MAGIC.into(),
        option: option.number().into(),
        kind: (kind as u32).into(),
        len: (data.len() as u32).into(),
    };
    [raw.as_bytes(), data].concat()
}

/// Data of INFO and GO: an export and what the client wants to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the export.
    pub name: String,
    /// Kinds of information; see [`info`].
    pub wanted: Vec<u16>,
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contexts {
    /// Name of the export.
    pub name: String,
    /// Names of contexts, or patterns.
    pub queries: Vec<String>,
}

/// Takes numbers and texts from the front of a message.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| format!("{len} bytes wanted where {} are left", self.0.len()))?;
        self.0 = rest;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(*self.bytes(N)?.first_chunk().ok_or("too few bytes")?)
    }
    fn text(&mut self) -> Result<String, String> {
        let len = u32::from_be_bytes(self.array()?) as usize;
        if len > NAME_LEN_MAX {
            return Err(format!("a name of {len} bytes; at most {NAME_LEN_MAX} are allowed"));
        }
        let bytes = self.bytes(len)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| "a name is not UTF-8".into())
    }
    fn end(self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("{} bytes too many", self.0.len())) }
    }
}

impl Choice {
    /// Reads the data of INFO or GO.
    pub fn decode(data: &[u8]) -> Result<Choice, String> {
        let mut cursor = Cursor(data);
        let name = cursor.text()?;
        let count = u16::from_be_bytes(cursor.array()?);
        let wanted = (0..count).map(|_| cursor.array().map(u16::from_be_bytes)).collect::<Result<_, _>>()?;
        cursor.end()?;
        Ok(Choice { name, wanted })
    }
    /// The data as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut data = text(&self.name);
        data.extend((self.wanted.len() as u16).to_be_bytes());
        data.extend(self.wanted.iter().flat_map(|kind| kind.to_be_bytes()));
        data
    }
}

impl Contexts {
    /// Reads the data of LIST_META_CONTEXT or SET_META_CONTEXT.
    pub fn decode(data: &[u8]) -> Result<Contexts, String> {
        let mut cursor = Cursor(data);
        let name = cursor.text()?;
        let count = u32::from_be_bytes(cursor.array()?);
        // Each takes four bytes at least, so the count cannot make this long.
        let queries = (0..count).map(|_| cursor.text()).collect::<Result<_, _>>()?;
        cursor.end()?;
        Ok(Contexts { name, queries })
    }
    /// The data as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut data = text(&self.name);
        data.extend((self.queries.len() as u32).to_be_bytes());
        data.extend(self.queries.iter().flat_map(|query| text(query)));
        data
    }
}

/// A text with its length before it.
pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn options_survive_the_wire(
            kind: u32, len: u32, name in ".{0,300}", wanted: Vec<u16>, queries in prop::collection::vec(".{0,40}", 0..9),
        ) {
            let header = Header { kind: Kind::from_number(kind % 12), len };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
            let choice = Choice { name: name.clone(), wanted };
            prop_assert_eq!(Choice::decode(&choice.encode()), Ok(choice));
            let contexts = Contexts { name, queries };
            prop_assert_eq!(Contexts::decode(&contexts.encode()), Ok(contexts));
        }

        #[test]
        fn noise_is_refused_or_understood(noise: Vec<u8>, cut in 0usize..100) {
            if let Ok(choice) = Choice::decode(&noise) {
                prop_assert_eq!(choice.encode(), noise.clone());
            }
            if let Ok(contexts) = Contexts::decode(&noise) {
                prop_assert_eq!(contexts.encode(), noise);
            }
            // A message that lacks its end is refused.
            let whole = Contexts { name: "disk".into(), queries: vec!["base:allocation".into(); 3] }.encode();
            if let Some(part) = whole.get(..cut).filter(|part| part.len() < whole.len()) {
                prop_assert!(Contexts::decode(part).is_err());
            }
        }
    }
}
