//! The superblock: which store this is, and the checkpoint that counts.

use super::{CHECK_LEN, VERSION, VERSION_MIN, cut, magic, seal, take, unseal};
use crate::layout::{Config, Layout};
use ashlar_block::{Error, Kind, Result};
use ashlar_index::NodePtr;
use ashlar_units::{Blocks, Bytes as Size};
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};

const MAGIC: u32 = u32::from_le_bytes(*b"ASRS");
/// Key of its own checksum, which is read before the store's key is known.
const KEY: u64 = 0x6173_686c_6172_0001;

/// Bytes of a pointer to a node.
const POINTER_LEN: usize = 32;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format.
    pub version: u16,
    /// Identity of the store.
    pub store: u64,
    /// Key of checksums.
    pub key: u64,
    /// Key of the hash of names.
    pub hash_key: [u8; 32],
    /// How it was made.
    pub config: Config,
    /// Size of the device.
    pub capacity: Blocks,
    /// Counts superblocks.
    pub commit: u64,
    /// Counts openings; the high bits of versions.
    pub epoch: u64,
    /// Which slot of the map counts.
    pub map_slot: u8,
    /// The checkpoint that wrote it.
    pub map_commit: u64,
    /// The first block of the log that counts.
    pub log_start: u64,
    /// Every copy up to this number is in the bitmaps if it counts.
    pub generation: u64,
    /// Root of the index of names.
    pub names: Option<NodePtr>,
}

impl Superblock {
    /// One block.
    pub fn encode(&self) -> Bytes {
        let mut image = BytesMut::with_capacity(512);
        image.put_bytes(0, CHECK_LEN);
        image.put_u32_le(MAGIC);
        image.put_u16_le(self.version);
        image.put_u16_le(0);
        let config = &self.config;
        let sizes =
            [config.region.0, config.large_block.0, config.object_mean.0, config.log.0, config.blocks_per_onode];
        let counters = [self.commit, self.epoch, self.log_start, self.generation, self.map_commit];
        for word in [self.store, self.key, self.capacity.0].into_iter().chain(counters) {
            image.put_u64_le(word);
        }
        sizes.iter().for_each(|size| image.put_u64_le(*size));
        image.put_slice(&self.hash_key);
        image.put_u8(self.map_slot);
        image.put_u8(u8::from(self.names.is_some()));
        if let Some(root) = &self.names {
            image.put_slice(&root.encode());
        }
        seal(KEY, image)
    }

    /// Reads one.
    ///
    /// # Errors
    /// Damage; another format, or one of a later version; sizes that fit no device.
    pub fn decode(image: &[u8]) -> Result<Superblock> {
        const WHAT: &str = "the superblock of a region store";
        let mut rest = unseal(KEY, image, WHAT)?;
        magic(&mut rest, MAGIC, WHAT)?;
        let version = rest.try_get_u16_le().map_err(|_| cut(WHAT))?;
        if !(VERSION_MIN..=VERSION).contains(&version) {
            let message = format!(
                "format version {version} is not known here ({VERSION_MIN} to {VERSION} are): use a newer ashlar"
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        let (block, root) = Superblock::fields(version, rest).map_err(|_| cut(WHAT))?;
        let names = root.map(NodePtr::decode).transpose()?;
        Layout::of_version(version, block.capacity, &block.config)?;
        Ok(Superblock { names, ..block })
    }

    fn fields(version: u16, mut rest: &[u8]) -> Result<(Superblock, Option<&[u8]>), TryGetError> {
        rest.try_get_u16_le()?;
        let mut words = [0; 13];
        for word in &mut words {
            *word = rest.try_get_u64_le()?;
        }
        let [
            store,
            key,
            capacity,
            commit,
            epoch,
            log_start,
            generation,
            map_commit,
            region,
            large,
            mean,
            log,
            blocks_per_onode,
        ] = words;
        let mut hash_key = [0; 32];
        hash_key.copy_from_slice(take(&mut rest, 32)?);
        let config = Config {
            region: Size(region),
            large_block: Size(large),
            object_mean: Size(mean),
            log: Size(log),
            blocks_per_onode,
            force: false,
        };
        let map_slot = rest.try_get_u8()?;
        let root = if rest.try_get_u8()? == 1 { Some(take(&mut rest, POINTER_LEN)?) } else { None };
        let capacity = Blocks(capacity);
        let block = Superblock {
            version,
            store,
            key,
            hash_key,
            config,
            capacity,
            commit,
            epoch,
            map_slot,
            map_commit,
            log_start,
            generation,
            names: None,
        };
        Ok((block, root))
    }
}
