//! What the catalog says about segments and volumes.

use super::reader::{Reader, put_short};
use ashlar_block::{Error, Result};
use ashlar_index::{Key, NodePtr};
use bytes::{BufMut, Bytes, BytesMut};

/// Bound on the live bytes of a segment. References that share extents add up to more than its size, but not to this.
const LIVE_MAX: u64 = 1 << 56;

/// What the catalog says about a segment that holds live bytes, under the key `S` and its slot (big-endian, 4 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// The segment.
    pub uid: u64,
    /// Live bytes of volumes; nodes of the catalog itself are not counted.
    pub live: u64,
}

impl SlotRecord {
    /// First byte of the keys.
    pub const PREFIX: u8 = b'S';
    /// Key of a slot's record.
    pub fn key(slot: u32) -> Key {
        let mut key = Key::from_slice(&[Self::PREFIX]);
        key.extend_from_slice(&slot.to_be_bytes());
        key
    }
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(16);
        bytes.put_u64_le(self.uid);
        bytes.put_u64_le(self.live);
        bytes.freeze()
    }
    /// Reads the stored form.
    pub fn decode(bytes: &Bytes) -> Result<SlotRecord> {
        let mut reader = Reader { rest: bytes.clone() };
        let record = SlotRecord { uid: reader.u64()?, live: reader.u64()? };
        if record.live > LIVE_MAX {
            return Err(Error::corrupt(format!("segment {:#x} counts {} live bytes", record.uid, record.live)));
        }
        Ok(record)
    }
}

/// What a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// It takes changes.
    Live {
        /// The snapshot that it was cloned from: its number, and when it was taken.
        origin: Option<(u64, u64)>,
    },
    /// A volume as it was.
    Snapshot {
        /// The volume.
        of: u64,
        /// The checkpoint that took it.
        taken: u64,
        /// Seconds since 1970.
        time: u64,
    },
}

/// What the catalog says about a volume, under the key `V` and its number (big-endian, 8 bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Its name, unique in the pool.
    pub name: String,
    /// Root of its tree.
    pub root: Option<NodePtr>,
    /// Bytes of the tree's nodes as they are stored, about.
    pub nodes: u64,
    /// What it is.
    pub kind: VolumeKind,
}

impl VolumeRecord {
    /// First byte of the keys.
    pub const PREFIX: u8 = b'V';
    /// Key of a volume's record.
    pub fn key(id: u64) -> Key {
        let mut key = Key::from_slice(&[Self::PREFIX]);
        key.extend_from_slice(&id.to_be_bytes());
        key
    }
    /// The number in a key.
    pub fn id(key: &[u8]) -> Option<u64> {
        key.strip_prefix(&[Self::PREFIX])?.try_into().ok().map(u64::from_be_bytes)
    }
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u8(u8::from(self.root.is_some()));
        bytes.put_slice(&self.root.unwrap_or_default().encode());
        let (code, numbers) = match self.kind {
            VolumeKind::Live { origin: None } => (0, [0; 3]),
            VolumeKind::Live { origin: Some((snapshot, taken)) } => (1, [snapshot, taken, 0]),
            VolumeKind::Snapshot { of, taken, time } => (2, [of, taken, time]),
        };
        bytes.put_u8(code);
        numbers.iter().for_each(|number| bytes.put_u64_le(*number));
        put_short(&mut bytes, self.name.as_bytes());
        bytes.put_u64_le(self.nodes);
        bytes.freeze()
    }
    /// Reads the stored form.
    pub fn decode(bytes: &Bytes) -> Result<VolumeRecord> {
        let mut reader = Reader { rest: bytes.clone() };
        let has_root = reader.u8()? != 0;
        let root = NodePtr::decode(&reader.array::<32>()?)?;
        let code = reader.u8()?;
        let (a, b, c) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let kind = match code {
            0 => VolumeKind::Live { origin: None },
            1 => VolumeKind::Live { origin: Some((a, b)) },
            2 => VolumeKind::Snapshot { of: a, taken: b, time: c },
            _ => return Err(Error::corrupt(format!("a volume of unknown kind {code}"))),
        };
        let name =
            String::from_utf8(reader.short()?.to_vec()).map_err(|_| Error::corrupt("a volume's name is no text"))?;
        // Pools made before this was recorded count from zero.
        let nodes = if reader.rest.is_empty() { 0 } else { reader.u64()? };
        Ok(VolumeRecord { name, root: has_root.then_some(root), nodes, kind })
    }
}
