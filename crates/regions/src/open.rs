//! Making a store, and opening one.

use crate::Regions;
use crate::check::{Checked, Search};
use crate::checkpoint::{newest_superblock, write_superblock};
use crate::disk::{Disk, UPKEEP};
use crate::format::{MapEntry, Page, Superblock, VERSION, decode_map, encode_map};
use crate::layout::{Config, Kind, Layout};
use crate::names::Names;
use crate::recover::{Recovered, Redo, read_log, recover};
use crate::rules::Rule;
use crate::shared::{Guard, Memory, NUMBER_BITS, Queue, Shared, Writer};
use crate::space::Space;
use crate::table::{Grown, Table};
use ashlar_block::{Device, Durability, Error, Kind as ErrorKind, Result};
use ashlar_env::Env;
use ashlar_objects::Store;
use ashlar_units::{BLOCK_LEN, Blocks};
use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Locks of names: changes of two names rarely share one.
const LOCKS: usize = 256;

/// Makes an empty store on a device.
///
/// # Errors
/// The device holds a store already and `config.force` is not set; sizes that do not fit; those of the device.
pub async fn format(env: &Env, device: &Device, config: Config) -> Result<()> {
    format_version(env, device, config, VERSION).await
}

/// The same, as an older version did.
pub(crate) async fn format_version(env: &Env, device: &Device, config: Config, version: u16) -> Result<()> {
    let _guard = Guard::of(env, device).await?;
    let capacity = device.geometry().capacity;
    let layout = Layout::of_version(version, capacity, &config)?;
    if !config.force && newest_superblock(device).await.is_ok() {
        let message = "it holds a region store: its objects would be gone. Make it anew with force";
        return Err(Error::misuse(format!("{}: {message}", device.name())));
    }
    let hash_key = std::array::from_fn(|_| env.random() as u8);
    let superblock = Superblock {
        version,
        store: env.random(),
        key: env.random(),
        hash_key,
        config: Config { force: false, ..config },
        capacity,
        commit: 1,
        epoch: 0,
        map_slot: 0,
        map_commit: 1,
        log_start: 0,
        generation: 0,
        names: None,
    };
    // Nothing of an earlier store may be found.
    let zeros = Bytes::from(vec![0; 256 * BLOCK_LEN]);
    let mut at = 0;
    while at < layout.page(0).0 {
        let count = (layout.page(0).0 - at).min(256);
        let piece = zeros.slice(..count as usize * BLOCK_LEN);
        device.write(UPKEEP, ashlar_units::Lba(at), vec![piece], Durability::Cached).await?;
        at += count;
    }
    // Pages are empty, which is not the same as gone.
    for first in (0..layout.pages).step_by(256) {
        let pages = (first..layout.pages.min(first + 256)).map(|page| layout.page(page));
        let images = pages.map(|at| Page::default().encode(superblock.key, superblock.store, at)).collect();
        device.write(UPKEEP, layout.page(first), images, Durability::Cached).await?;
    }
    for at in Layout::superblocks(capacity, 0) {
        device.write(UPKEEP, at, vec![zeros.slice(..BLOCK_LEN)], Durability::Cached).await?;
    }
    let map = encode_map(superblock.key, 1, superblock.store, &vec![MapEntry::FREE; layout.parts() as usize]);
    for at in layout.map(0) {
        device.write(UPKEEP, at, vec![map.clone()], Durability::Cached).await?;
    }
    device.flush(UPKEEP).await?;
    write_superblock(device, &superblock).await
}

/// Opens the store on a device, as doors use it: objects of any size, striped over large blocks.
///
/// # Errors
/// As [`Regions::open`].
pub async fn open(env: &Env, device: Device, memory: Memory) -> Result<Store> {
    let regions = Regions::open(env, device, memory).await?;
    striped(env, regions).await
}

/// An open store, as doors use it.
///
/// # Errors
/// Those of the device.
pub async fn striped(env: &Env, regions: Regions) -> Result<Store> {
    let regions: Store = Arc::new(regions);
    let failed = |error: ashlar_objects::Error| match error {
        ashlar_objects::Error::Storage(error) => error,
        other => Error::new(ErrorKind::Failed, other.to_string()),
    };
    Ok(Arc::new(ashlar_objects::Striped::open(env, regions).await.map_err(failed)?))
}

impl Regions {
    /// Opens the store on a device. After a crash, the regions that were being written are read.
    ///
    /// # Errors
    /// There is none; it is open already; it is of a later version; its superblocks or its map are gone; those of the device.
    pub async fn open(env: &Env, device: Device, memory: Memory) -> Result<Regions> {
        Ok(Regions::open_with_report(env, device, memory).await?.0)
    }

    /// As [`open`](Regions::open), with what was recovered.
    ///
    /// # Errors
    /// As [`open`](Regions::open).
    pub async fn open_with_report(env: &Env, device: Device, memory: Memory) -> Result<(Regions, Recovered)> {
        let guard = Guard::of(env, &device).await?;
        let mut superblock = newest_superblock(&device).await?;
        let layout = Layout::of_version(superblock.version, superblock.capacity, &superblock.config)?;
        let disk = Disk { env: env.clone(), device, layout, key: superblock.key, store: superblock.store };
        let mut space = Space::new(layout, read_map(&disk, &superblock).await?);
        let log = read_log(&disk, &superblock).await?;
        let seq = log.seq;
        superblock.commit += 1;
        superblock.epoch += 1;
        if memory.without != Some(Rule::EpochBeforeChange) {
            write_superblock(&disk.device, &superblock).await?;
        } else {
            superblock.commit -= 1;
            superblock.epoch -= 1;
        }
        let (redo, mut report) = recover(&disk, &mut space.regions, log, memory.without).await?;
        let number = (superblock.epoch << NUMBER_BITS).max(superblock.generation).max(redo.number);
        let share = memory.bytes.0 / 4;
        let shared = Arc::new(Shared {
            env: env.clone(),
            config: superblock.config,
            memory,
            hash_key: superblock.hash_key,
            epoch: superblock.epoch,
            commit: AtomicU64::new(superblock.commit),
            map_slot: AtomicU8::new(superblock.map_slot),
            frozen: AtomicU64::new(superblock.generation),
            space: Mutex::new(space),
            table: Table::new(share),
            names: Names::open(superblock.names, superblock.commit, share / 2),
            onodes: Cache::with(
                (share / 2 / 512) as usize,
                share / 2,
                crate::read::OnodeWeight,
                Default::default(),
                Default::default(),
            ),
            queue: Mutex::new(Queue { number, ..Queue::default() }),
            writer: tokio::sync::Mutex::new(Writer { seq, start: superblock.log_start, ..Writer::default() }),
            gate: tokio::sync::RwLock::default(),
            locks: (0..LOCKS).map(|_| tokio::sync::Mutex::default()).collect(),
            checkpointing: tokio::sync::Mutex::default(),
            cleaning: tokio::sync::Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            wants_checkpoint: AtomicBool::new(false),
            log_used: AtomicU64::new(seq - superblock.log_start),
            objects: AtomicU64::new(0),
            failed: Mutex::new(None),
            counts: crate::shared::Counts::default(),
            _guard: guard,
            disk,
        });
        let headless = redo.headless.clone();
        shared.redo(redo, &report.regions).await?;
        for number in headless {
            let mut writer = shared.writer.lock().await;
            let mut checked = Checked::default();
            let was_condemned = shared.space.lock().regions[number as usize].entry.corrupt;
            shared.check_region(&mut writer, number, Search::Not, true, &mut checked).await?;
            if was_condemned {
                shared.condemn(number); // what it holds is known again, and its place is as bad as before
            }
            report.damage.extend(checked.damaged.iter().map(|name| format!("{name}: its contents are damaged")));
        }
        let objects = {
            let space = shared.space.lock();
            let holds = |kind: Kind| matches!(kind, Kind::Large | Kind::Small);
            let regions = space.regions.iter().filter(|region| holds(region.entry.kind));
            regions.map(|region| u64::from(region.entry.live.saturating_sub(region.entry.hidden))).sum()
        };
        shared.objects.store(objects, Ordering::Relaxed);
        let room = shared.measure();
        shared.queue.lock().room = room;
        let regions = Regions(shared);
        if report.batches > 0 {
            let failed = |error: ashlar_objects::Error| Error::new(ErrorKind::Failed, error.to_string());
            regions.checkpoint().await.map_err(failed)?;
        }
        if regions.0.counts.names_rebuilt.load(Ordering::Relaxed) > 0 {
            report
                .damage
                .push("the index of names was damaged; it was made anew from the onodes of all regions".into());
        }
        Ok((regions, report))
    }
}

async fn read_map(disk: &Disk, superblock: &Superblock) -> Result<Vec<MapEntry>> {
    let mut why = None;
    for at in disk.layout.map(superblock.map_slot) {
        let image = disk.device.read(UPKEEP, at, Blocks(disk.layout.map_blocks)).await;
        let (commit, regions) = (superblock.map_commit, disk.layout.parts());
        match image.and_then(|image| decode_map(disk.key, commit, disk.store, regions, &image)) {
            Ok(entries) => return Ok(entries),
            Err(error) => why = Some(error),
        }
    }
    Err(why.unwrap_or_else(|| Error::corrupt("there is no map of regions")))
}

impl Shared {
    /// Tells the table and the index of names what happened since the checkpoint.
    async fn redo(&self, redo: Redo, opened: &[u32]) -> Result<()> {
        let tables: Vec<u32> = {
            let space = self.space.lock();
            let is_table = |number: &u32| space.regions[*number as usize].entry.kind == Kind::Table;
            (0..space.regions.len() as u32).filter(is_table).collect()
        };
        for region in tables {
            match self.load(region).await {
                Err(error) if error.is_damage() => {}
                other => other?,
            }
        }
        for at in &redo.pages {
            let block =
                self.disk.layout.region_of(*at).and_then(|region| {
                    self.disk.layout.block_of(region, Kind::Table, *at).map(|block| (region, block))
                });
            if let Some((region, block)) = block {
                self.space.lock().claim_table(region, block);
            }
        }
        let opened: BTreeSet<u32> = opened.iter().copied().collect();
        let mut writer = self.writer.lock().await;
        let counts: BTreeSet<u128> = redo.copies.iter().map(|(id, ..)| *id).collect();
        for (id, name, _) in redo.ended.iter().filter(|(id, ..)| !counts.contains(id)) {
            self.table.remove(&self.disk, *id).await?;
            self.names.remove(name);
        }
        for (id, name, entry) in redo.copies {
            self.names.add(&name);
            let before = self.table.get(&self.disk, id).await?;
            match before {
                Some(before) if before == entry => {}
                // Bitmaps of opened regions are right already.
                Some(before)
                    if opened.contains(&before.place.region)
                        || redo.retired.contains(&(before.place, before.generation)) =>
                {
                    if let Grown::Full = self.table.set(&self.disk, id, entry, None).await? {
                        return Err(Error::corrupt("a bucket of the lookup table has lost an entry"));
                    }
                }
                _ => self.publish_copy(&mut writer, id, entry, name.is_reserved()).await?,
            }
        }
        Ok(())
    }
}
