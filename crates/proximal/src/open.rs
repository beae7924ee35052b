//! Making and opening a store. Opening reads the pool's superblock and log, and the map of what is staged.

use crate::engine::{Counts, Engine, Inner, PAGE, list_extents, staged_at};
use crate::format::{Label, SUPER_KEY, Super, epoch_of};
use crate::snapshots::{EXTENTS, full_name};
use crate::space::Space;
use crate::table::{Home, Table};
use crate::{Config, Creation};
use ashlar_block::{Device, Durability, Error, IoContext, Kind, Result, ResultExt};
use ashlar_env::Env;
use ashlar_pool::{Compression, Pool, Txn, Volume, VolumeKind};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const OPEN: IoContext = IoContext::foreground("proximal-open");
/// The pool's volume with the map of free blocks.
const SPACE: &str = "space";
/// Fewest blocks that staging must take to be of use.
const STAGED_MIN: u64 = 64;
/// Blocks whose map is read at once when a store is opened.
const STEP: u64 = 1 << 15;

/// How the staging pool is opened.
fn pool_config(config: &Config) -> ashlar_pool::Config {
    let memory = Size((config.memory.0 / 2).max(2 << 20));
    ashlar_pool::Config { memory, log_bytes: config.log_bytes, compression: Compression::Off, ..Default::default() }
}

/// Most blocks that may be staged: half of what is left beside the pointers, since the pool cleans well when it is half empty.
fn staged_max(pool: &Pool, capacity: Blocks, config: &Config) -> Result<u64> {
    let pointers = capacity.0.saturating_mul(crate::format::POINTER_LEN as u64 + 1);
    let fits = pool.status().capacity.saturating_sub(pointers.saturating_mul(3) / 2) / 2 / BLOCK_LEN as u64;
    let most = config.staged_max.map_or(fits, |most| most.0.min(fits));
    if most < STAGED_MIN {
        let needed = Size(pointers.saturating_mul(3) / 2 + 2 * STAGED_MIN * BLOCK_LEN as u64);
        let message = format!(
            "the staging device is too small: beside the pointers of {} it takes {most} blocks; make it larger by {needed} \
             or more (a hundredth of the data device is usual, and half of that for pointers)",
            capacity.to_bytes()
        );
        return Err(Error::new(Kind::NoSpace, message));
    }
    Ok(most)
}

impl Engine {
    /// Makes an empty store on a data device and a staging device. What they held is lost.
    pub async fn create(env: &Env, data: &Device, staging: &Device, creation: Creation) -> Result<()> {
        creation.shape.check()?;
        let capacity = data.geometry().capacity;
        if capacity.0 < creation.shape.range.0 * 2 {
            let least = Blocks(creation.shape.range.0 * 2).to_bytes();
            return Err(Error::misuse(format!("{} is too small: a store needs {least}", data.name())));
        }
        let head = data.read(OPEN, Lba(0), Blocks(1)).await?;
        if !creation.force && head.iter().any(|byte| *byte != 0) {
            let what = match Label::decode(&head) {
                Some(_) => "belongs to a proximal store already; open that, or overwrite it",
                None => {
                    "its first block is not empty, so no store is made on it; wipe that if nobody needs its data, or overwrite it"
                }
            };
            return Err(Error::misuse(format!("{}: {what} with --force (its data are lost)", data.name())));
        }
        let pool = ashlar_pool::Creation { segment: creation.segment, force: creation.force };
        Pool::create(env, std::slice::from_ref(staging), pool).await?;
        let config = Config::default();
        let pool = Pool::open(env, vec![staging.clone()], pool_config(&config)).await?;
        staged_max(&pool, capacity, &config)?;
        pool.create_volume(EXTENTS).await?;
        let space = pool.create_volume(SPACE).await?;
        let store = env.random();
        let mut txn = Txn::new();
        let record = Super { store, capacity, shape: creation.shape, epoch: 1, dead: 0 };
        space.put(&mut txn, SUPER_KEY, record.encode());
        pool.commit(txn).await?;
        pool.close().await?;
        // The label comes last: without it the devices do not belong together.
        data.write(OPEN, Lba(0), vec![Label { store }.encode()], Durability::Forced).await?;
        data.flush(OPEN).await
    }

    /// Opens a store. There is nothing to repair after a crash.
    pub async fn open(env: &Env, data: Device, staging: Device, config: Config) -> Result<Engine> {
        let pool = Pool::open(env, vec![staging.clone()], pool_config(&config)).await.within(|| "staging".into())?;
        let none =
            |what: &str| Error::misuse(format!("{}: holds a pool, but no proximal store ({what})", staging.name()));
        let extents = pool.volume(EXTENTS).ok_or_else(|| none("no volume of extents"))?;
        let space_volume = pool.volume(SPACE).ok_or_else(|| none("no map of free blocks"))?;
        let record = space_volume.get(SUPER_KEY).await?.ok_or_else(|| none("no record"))?;
        let record = Super::decode(&record)?;
        let capacity = data.geometry().capacity;
        let label = Label::decode(&data.read(OPEN, Lba(0), Blocks(1)).await?);
        if label.is_none_or(|label| label.store != record.store) {
            let message = format!("{}: is not the data device of the store on {}", data.name(), staging.name());
            return Err(Error::misuse(message));
        }
        if capacity < record.capacity {
            let message = format!("{} has {capacity}, and the store uses {}", data.name(), record.capacity);
            return Err(Error::misuse(message));
        }
        let snapshots = list_snapshots(&space_volume).await?;
        let lengths = list_extents(&extents).await?;
        let area_bytes = record.shape.area_blocks().div_ceil(64) * 16;
        let areas_max = (config.memory.0 / 4 / area_bytes).max(4) as usize;
        let mut table = Table::default();
        for (extent, length) in &lengths {
            staged_of(&extents, *extent, *length, &record, &mut table).await?;
        }
        let inner = Inner {
            env: env.clone(),
            persistent: data.capability().persistent && staging.capability().persistent,
            staged_max: staged_max(&pool, record.capacity, &config)?,
            config,
            data,
            extents,
            space_volume,
            table: Mutex::new(table),
            space: Mutex::new(Space::new(record.shape, record.capacity, areas_max)),
            record: Mutex::new(record),
            lengths: Mutex::new(lengths),
            snapshots: Mutex::new(snapshots),
            dropped: Mutex::default(),
            order: tokio::sync::RwLock::default(),
            destaging: tokio::sync::Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            busy: AtomicBool::new(false),
            moves: Inner::new_counters(),
            counts: Counts::default(),
            pool,
        };
        let engine = Engine(Arc::new(inner));
        engine.finish_snapshots().await?;
        Ok(engine)
    }

    /// A crash may have come between the two steps of making or destroying a snapshot: none of these was acknowledged as made,
    /// and those that were being destroyed are gone.
    async fn finish_snapshots(&self) -> Result<()> {
        let inner = &*self.0;
        let is_snapshot = |kind: &VolumeKind| matches!(kind, VolumeKind::Snapshot { .. });
        let there: Vec<String> =
            inner.pool.volumes().into_iter().filter(|info| is_snapshot(&info.kind)).map(|info| info.name).collect();
        let recorded = inner.snapshots.lock().clone();
        for name in &there {
            if !recorded.values().any(|known| full_name(known) == *name) {
                inner.pool.destroy_snapshot(name).await?;
            }
        }
        for (epoch, name) in recorded {
            if !there.contains(&full_name(&name)) {
                self.free_dead(epoch).await?;
                self.forget_snapshot(epoch).await?;
            }
        }
        Ok(())
    }
}

async fn list_snapshots(space: &Volume) -> Result<BTreeMap<u32, String>> {
    let (mut low, high) = (b"n".to_vec(), b"o".to_vec());
    let mut found = BTreeMap::new();
    loop {
        let page = space.page(&low, Some(&high), PAGE).await?;
        for (key, value) in &page.entries {
            let name = String::from_utf8(value.to_vec());
            found.insert(epoch_of(key)?, name.map_err(|_| Error::corrupt("the name of a snapshot is no text"))?);
        }
        match page.next {
            Some(next) => low = next.to_vec(),
            None => return Ok(found),
        }
    }
}

/// Notes which blocks of an extent are staged.
async fn staged_of(extents: &Volume, extent: u32, length: Blocks, record: &Super, table: &mut Table) -> Result<()> {
    let end = staged_at(extent, 0) + length;
    let mut next = staged_at(extent, 0);
    while let Some(first) = extents.seek(next, end, false).await? {
        next = end.min(first + Blocks(STEP));
        for (at, run) in extents.runs(first, next - first).await? {
            let offset = (at - staged_at(extent, 0)).0;
            for offset in offset..offset + u64::from(run.count) {
                let key = crate::table::GroupKey { extent, group: offset / record.shape.group.0 };
                table.insert(key, offset, Home::Staged);
            }
        }
    }
    Ok(())
}
