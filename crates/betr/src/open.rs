//! Making and opening a file system, and what it does by itself while it is open.

use crate::inode::{Own, Spot, State, Table};
use crate::keys::{self, Place};
use crate::record::{Entry, Record};
use crate::seen::Seen;
use crate::{Betr, INODE_MEMORY, Options, Zones};
use ashlar_block::Kind;
use ashlar_env::Env;
use ashlar_inodes::{NUMBER_LOT, Numbers, WRITE_BACK_INTERVAL, number_value, read_number};
use ashlar_pool::{Txn, Volume};
use ashlar_units::Bytes as Size;
use ashlar_vfs::{ROOT, Result, Time};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Sums over zones are signed.
const ZONE_MAX: Size = Size(1 << 62);
/// Largest file in the dictionary.
const INLINE_MAX: Size = Size(128 << 10);

/// What holds for the life of a file system.
struct Format {
    ways: bool,
    hash_seed: u64,
    zones: Zones,
}

impl Format {
    fn encode(&self) -> Bytes {
        let mut format = BytesMut::new();
        format.put_u8(if self.ways { keys::VERSION } else { keys::WITHOUT_WAYS });
        let Zones { smallest, largest, inline } = self.zones;
        [self.hash_seed, smallest.0, largest.0, inline.0].iter().for_each(|number| format.put_u64_le(*number));
        format.freeze()
    }

    fn decode(mut format: Bytes) -> Result<Format> {
        let short = |_| keys::damaged("the format record is cut short");
        let ways = match format.try_get_u8().map_err(short)? {
            keys::VERSION => true,
            keys::WITHOUT_WAYS => false,
            version => {
                let known = [keys::WITHOUT_WAYS, keys::VERSION];
                let message = format!("the file system has format {version}; this engine knows {known:?}");
                return Err(ashlar_block::Error::new(Kind::Unsupported, message).into());
            }
        };
        let mut next = || format.try_get_u64_le().map_err(short);
        let hash_seed = next()?;
        let zones = Zones { smallest: Size(next()?), largest: Size(next()?), inline: Size(next()?) };
        Ok(Format { ways, hash_seed, zones })
    }
}

/// The format, from either copy; an error if neither is there and one cannot be read.
pub(crate) async fn read_format(volume: &Volume) -> ashlar_block::Result<Option<Bytes>> {
    match volume.get(keys::FORMAT).await {
        Ok(Some(format)) => Ok(Some(format)),
        first => match volume.get(keys::FORMAT_COPY).await {
            Ok(Some(copy)) => Ok(Some(copy)),
            Ok(None) => first,
            second => first.and(second),
        },
    }
}

/// The number below which all may be in use.
pub(crate) async fn read_counter(volume: &Volume) -> ashlar_block::Result<u64> {
    let next = volume.get(keys::NEXT_NUMBER).await?.ok_or_else(|| keys::damaged("the counter is gone"))?;
    let next = read_number(&next)?;
    let valid = next <= keys::NUMBER_MAX + NUMBER_LOT;
    if valid { Ok(next) } else { Err(keys::damaged("the counter is out of range")) }
}

/// Attributes of the root directory.
pub(crate) async fn read_root(volume: &Volume) -> ashlar_block::Result<Record> {
    let value = volume.get(&keys::of(keys::META, &Place::root_of(keys::ROOT_ZONE))).await?;
    Entry::decode(&value.ok_or_else(|| keys::damaged("the root is gone"))?)?.record()
}

impl Zones {
    /// Refuses sizes that no file system can have.
    pub fn check(&self) -> ashlar_block::Result<()> {
        if self.largest.max(self.smallest) > ZONE_MAX {
            let message = format!("zones of {} and {} are larger than any file system", self.smallest, self.largest);
            return Err(ashlar_block::Error::misuse(message));
        }
        if self.inline > self.largest || self.inline > INLINE_MAX {
            let message = format!(
                "files of {} in the dictionary do not fit into zones of {}, or are more than {INLINE_MAX}",
                self.inline, self.largest
            );
            return Err(ashlar_block::Error::misuse(message));
        }
        Ok(())
    }
}

impl Betr {
    /// Whether this engine made what is on a volume.
    pub async fn made(volume: &Volume) -> Result<bool> {
        let format = read_format(volume).await?;
        Ok(format.is_some_and(|format| matches!(format.first(), Some(&(keys::VERSION | keys::WITHOUT_WAYS)))))
    }

    /// Makes an empty file system on an empty volume, whose root belongs to this user and group.
    ///
    /// # Errors
    /// `Invalid` where a file that is kept in the dictionary would not fit into a zone, or zones are larger than sums can be.
    pub async fn format(volume: &Volume, uid: u32, gid: u32, zones: Zones) -> Result<()> {
        zones.check()?;
        let env = volume.pool().env();
        let root = Record::root(Time::from(env.wall()), uid, gid);
        let format = Format { ways: true, hash_seed: env.random(), zones }.encode();
        let mut txn = Txn::new();
        volume.put(&mut txn, keys::FORMAT, format.clone());
        volume.put(&mut txn, keys::FORMAT_COPY, format);
        volume.put(&mut txn, keys::NEXT_NUMBER, number_value(ROOT + 1));
        volume.put(&mut txn, &keys::of(keys::META, &Place::root_of(keys::ROOT_ZONE)), Entry::nameless(root).encode());
        let seq = volume.commit(txn).await?;
        volume.pool().sync(seq).await?;
        Ok(())
    }

    /// Opens a file system, and finishes what a crash interrupted, as far as it can be read. If what is needed for changes cannot
    /// be read, nothing can be changed: see [`Betr::damage`].
    pub async fn open(volume: Volume, options: Options) -> Result<Arc<Betr>> {
        let format = read_format(&volume).await?.ok_or_else(|| {
            ashlar_block::Error::misuse("the volume holds no file system; make one with `ashlar fs create`")
        })?;
        let Format { ways, hash_seed, zones } = Format::decode(format)?;
        let (counter, root) = (read_counter(&volume).await, read_root(&volume).await);
        let damage = counter.as_ref().err().or(root.as_ref().err()).filter(|error| error.is_damage()).cloned();
        let options = Options { read_only: options.read_only || damage.is_some(), ..options };
        let next = match counter {
            Err(error) if error.is_damage() => keys::NUMBER_MAX, // nobody takes one
            counter => counter?,
        };
        let root = match root {
            Err(error) if error.is_damage() => Record::root(Time::from(volume.pool().env().wall()), 0, 0),
            root => root?,
        };
        let mut betr = Betr {
            env: volume.pool().env().clone(),
            zones,
            ways,
            hash_seed,
            table: Table::default(),
            inodes: options.inodes.join(INODE_MEMORY),
            shape: tokio::sync::RwLock::default(),
            numbers: Numbers::new(keys::NEXT_NUMBER, next, keys::NUMBER_MAX),
            orphans: Mutex::default(),
            grown: Mutex::default(),
            shrunk: Mutex::default(),
            ahead: ashlar_inodes::Ahead::new(volume.ahead_memory()),
            fresh: ashlar_inodes::Fresh::default(),
            seen: Seen::new(volume.pool(), &options),
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            damage,
            options,
            volume,
        };
        let own = Own::at(Spot::Root(keys::ROOT_ZONE, None));
        betr.table.all.insert(State::new(root, own, betr.pool().newest()));
        if !betr.options.read_only
            && let Err(error) = betr.forget_unfinished().await
        {
            // What was being built is nobody's, but a new name could meet it.
            let cause = error.cause.as_deref().filter(|cause| cause.is_damage()).cloned();
            (betr.damage, betr.options.read_only) = (Some(cause.ok_or(error)?), true);
        }
        let betr = Arc::new(betr);
        if !betr.options.read_only {
            match betr.reap_orphans().await {
                // What cannot be read keeps its space, and is looked at again next time.
                Err(error) if error.cause.as_deref().is_some_and(ashlar_block::Error::is_damage) => {}
                other => other?,
            }
            let weak = Arc::downgrade(&betr);
            drop(betr.env.spawn(write_back_on(betr.env.clone(), weak)));
        }
        Ok(betr)
    }
}

/// Writes back times every few seconds, and merges zones that have become small.
async fn write_back_on(env: Env, betr: std::sync::Weak<Betr>) {
    loop {
        env.sleep(WRITE_BACK_INTERVAL).await;
        let Some(betr) = betr.upgrade() else { return };
        if betr.closed.load(Ordering::Acquire) || betr.write_back().await.is_err() {
            return; // the pool is poisoned: every caller learns it
        }
        // What cannot be merged stays a zone.
        drop(betr.merge_small().await);
    }
}
