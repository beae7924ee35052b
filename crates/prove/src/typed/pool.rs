//! One case on the pool: damage, open, read, change, check, close, open, read.

use super::disk::{Damage, Disk};
use super::fault::{Fault, Image, damage};
use super::matrix::{Outcome, Type, Verdict, Without};
use super::model::{Change, FS, Model, VOLUME, perform};
use super::read::{Seen, check, read_all};
use super::scene::{CAPACITY, Scene, bytes, settings};
use crate::files::tested::Tested;
use crate::seeded::Dice;
use ashlar_block::Device;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Holds, InMemory, Part, Pool, Region, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Lba};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Longer than the pool takes to look through a small cache.
const IDLE: Duration = Duration::from_secs(12);

/// What a region is called.
pub(super) fn type_of(region: &Region) -> Type {
    use ashlar_pool::format::Stream;
    match region.part {
        Part::Superblock { newest: true, .. } => Type::Superblock,
        Part::Superblock { newest: false, .. } => Type::SuperblockOld,
        Part::Lead { replayed: true, .. } => Type::LogLead,
        Part::Records { replayed: true, .. } => Type::LogRecords,
        Part::Lead { stream: Stream::Nodes, .. } | Part::Records { stream: Stream::Nodes, .. } => Type::NodeBatch,
        Part::Lead { .. } | Part::Records { .. } => Type::DataBatch,
        Part::Parity { needed: true } => Type::Parity,
        Part::Parity { needed: false } => Type::ParityOld,
        Part::Node { catalog: true, .. } => Type::Catalog,
        Part::Node { holds: Holds::Nodes, .. } => Type::Interior,
        Part::Node { holds: Holds::Map, .. } => Type::LeafMap,
        Part::Node { holds: Holds::Dictionary, .. } => Type::LeafNames,
        Part::Node { .. } => Type::LeafBoth,
        Part::Extent { references, frozen: false, .. } if references > 1 => Type::DataShared,
        Part::Extent { frozen: true, .. } => Type::DataSnapshot,
        Part::Extent { form: ashlar_pool::map::Form::Raw, .. } => Type::DataRaw,
        Part::Extent { .. } => Type::DataCompressed,
        Part::Dead => Type::Dead,
        Part::Free => Type::Free,
    }
}

/// Bytes of the device by type.
pub(super) fn stretches(scene: &Scene) -> BTreeMap<Type, Vec<Range<u64>>> {
    let mut found: BTreeMap<Type, Vec<Range<u64>>> = BTreeMap::new();
    for region in &scene.regions {
        let stretch = region.at..region.at + region.len;
        let of = type_of(region);
        if of == Type::Superblock {
            found.entry(Type::SuperblockAll).or_default().push(stretch.clone());
        }
        found.entry(of).or_default().push(stretch);
    }
    found
}

/// What a case does.
#[derive(Clone, Debug)]
pub(super) enum Harm {
    Disk(BTreeMap<u64, Damage>),
    Memory(InMemory, Fault, u64),
}

/// What a case does to the scene; `None`: there is no place for it.
pub(super) fn harm(scene: &Scene, of: Type, fault: Fault, mut dice: Dice) -> Option<Harm> {
    if let Some(what) = of.in_memory() {
        return Fault::MEMORY.contains(&fault).then(|| Harm::Memory(what, fault, dice.below(u64::MAX)));
    }
    if !Fault::DISK.contains(&fault) {
        return None;
    }
    let mut stretches = stretches(scene);
    let stretches = stretches.remove(&of)?;
    let image = Image { contents: &scene.contents, previous: &scene.previous };
    damage(&image, fault, &stretches, of == Type::SuperblockAll, &mut dice).map(Harm::Disk)
}

/// Runs a case.
pub(super) fn run<T: Tested>(scene: &Scene, of: Type, harm: &Harm, seed: u64, without: Option<Without>) -> Verdict {
    let nothing = BTreeMap::new();
    let damaged = if let Harm::Disk(damage) = harm { damage } else { &nothing };
    let disk = Arc::new(Disk::with(CAPACITY, scene.contents.clone(), damaged));
    let memory = if let Harm::Memory(what, fault, dice) = harm { Some((*what, *fault, *dice)) } else { None };
    let trial = Trial { disk: disk.clone(), model: scene.model.clone(), dice: Dice::new(seed), without };
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    let ran = match memory {
        None => sim.run(async move { trial.on_disk::<T>(&env).await }),
        Some((what, fault, dice)) => sim.run(async move { trial.in_memory::<T>(&env, what, fault, dice).await }),
    };
    let report = match ran {
        Ok(report) => report,
        Err(_) => return Verdict::new(Outcome::Crash, vec!["all tasks wait for ever".into()]),
    };
    report.verdict(of, disk.noticed())
}

/// What a trial came to.
#[derive(Default)]
struct Report {
    /// The pool or its file system could not be opened.
    refused: Option<String>,
    seen: Seen,
    /// What was seen after the pool was opened again.
    at_last: Option<Seen>,
    /// Where a bit was flipped.
    place: Option<String>,
    nothing_there: bool,
    /// How often parity was used.
    recovered: u64,
}

impl Report {
    fn verdict(self, of: Type, noticed: bool) -> Verdict {
        let Report { refused, seen, at_last, place, nothing_there, recovered } = self;
        let last_is_well = at_last.as_ref().is_some_and(Seen::is_well);
        let first_is_well = seen.is_well();
        let mut all = seen;
        all.add(at_last.unwrap_or_default());
        let mut said: Vec<String> = place.into_iter().collect();
        let outcome = if nothing_there {
            Outcome::NotTried
        } else if !all.wrong.is_empty() {
            said.extend(all.wrong);
            Outcome::Wrong
        } else if let Some(refused) = refused {
            said.push(refused);
            Outcome::Refused
        } else if last_is_well && first_is_well {
            // A copy was used instead, or parity; or the damaged bytes were dropped.
            let repaired =
                recovered + all.mended > 0 || (matches!(of, Type::Superblock | Type::SuperblockAll) && noticed);
            if repaired { Outcome::Repaired } else { Outcome::Masked }
        } else if last_is_well {
            said.extend(all.errors.into_iter().chain(all.named));
            Outcome::Repaired
        } else if all.named.is_empty() {
            said.extend(all.errors);
            Outcome::Unnamed
        } else {
            said.extend(all.named.into_iter().chain(all.errors));
            Outcome::Named
        };
        Verdict::new(outcome, said)
    }
}

struct Trial {
    disk: Arc<Disk>,
    model: Model,
    dice: Dice,
    without: Option<Without>,
}

/// An open pool.
struct Open<T> {
    pool: Pool,
    files: Arc<T>,
    volume: Volume,
}

impl Trial {
    async fn open<T: Tested>(&self, env: &Env) -> Result<Open<T>, String> {
        let device: Device = self.disk.clone();
        let pool = Pool::open(env, vec![device], settings(self.without)).await;
        let pool = pool.map_err(|error| format!("open: {error}"))?;
        let missing = |name: &str| format!("there is no volume {name}");
        let volume = pool.volume(VOLUME).ok_or_else(|| missing(VOLUME))?;
        let fs = pool.volume(FS).ok_or_else(|| missing(FS))?;
        let files = T::start(fs, T::usual()).await.map_err(|error| format!("open {FS}: {error}"))?;
        Ok(Open { pool, files, volume })
    }

    async fn on_disk<T: Tested>(mut self, env: &Env) -> Report {
        let mut report = Report::default();
        match self.open::<T>(env).await {
            Err(refused) => report.refused = Some(refused),
            Ok(open) => {
                report.seen = read_all(&open.pool, Some(&open.files), &self.model).await;
                report.seen.add(check(&open.pool, Some(&open.files)).await);
                self.change(&open, true, &mut report.seen).await;
                report.seen.add(check(&open.pool, Some(&open.files)).await);
                report.recovered = open.pool.costs().recovered;
                close(open, &mut report.seen).await;
                self.look_again::<T>(env, &mut report).await;
                // A check had looked at all that is needed.
                let last = report.at_last.as_mut().filter(|last| last.mended > 0 && self.without.is_none());
                if let Some(last) = last {
                    last.wrong(format!("{} batches were put right that were looked at before", last.mended));
                }
            }
        }
        report
    }

    async fn look_again<T: Tested>(&self, env: &Env, report: &mut Report) {
        match self.open::<T>(env).await {
            Err(refused) => report.refused = Some(format!("again, {refused}")),
            Ok(open) => {
                let mut seen = read_all(&open.pool, Some(&open.files), &self.model).await;
                seen.add(check(&open.pool, Some(&open.files)).await);
                close(open, &mut seen).await;
                report.at_last = Some(seen);
            }
        }
    }

    async fn in_memory<T: Tested>(mut self, env: &Env, what: InMemory, fault: Fault, dice: u64) -> Report {
        let mut report = Report::default();
        let open = match self.open::<T>(env).await {
            Ok(open) => open,
            Err(refused) => return Report { refused: Some(refused), ..report },
        };
        // Caches are full, and what was committed last is only in memory.
        report.seen = read_all(&open.pool, Some(&open.files), &self.model).await;
        if !matches!(what, InMemory::CachedNode | InMemory::CachedPointer) {
            self.change_unsynced(&open, &mut report.seen).await;
        }
        report.place = open.pool.flip_in_memory(what, dice);
        report.nothing_there = report.place.is_none();
        match fault {
            Fault::FlipCrash => {
                let synced = open.files.syncfs().await;
                if synced.is_ok() {
                    self.model.settle();
                } else {
                    report.seen.error("sync refused".into());
                }
                drop(open);
            }
            _ => {
                if fault == Fault::FlipIdle {
                    env.sleep(IDLE).await;
                }
                if fault == Fault::FlipWrite {
                    self.change(&open, false, &mut report.seen).await;
                } else {
                    report.seen.add(read_all(&open.pool, Some(&open.files), &self.model).await);
                }
                close(open, &mut report.seen).await;
            }
        }
        self.look_again::<T>(env, &mut report).await;
        report
    }

    async fn make<T: Tested>(&mut self, open: &Open<T>, changes: &[Change], seen: &mut Seen) {
        for change in changes {
            let done = perform(&*open.files, change).await;
            self.model.change(change, done.is_ok());
            if let Err(error) = done {
                seen.error(format!("{change:.60?}: {error}"));
            }
        }
    }

    async fn write_volume<T: Tested>(&mut self, open: &Open<T>, at: u64, seen: &mut Seen) {
        let mut txn = Txn::new();
        let data = bytes(&mut self.dice, 2 * BLOCK_LEN, false);
        open.volume.write(&mut txn, Lba(at), &data);
        let key = [&b"key"[..], &at.to_be_bytes()].concat();
        let value = bytes(&mut self.dice, 50, false);
        open.volume.put(&mut txn, &key, value.clone());
        let committed = open.volume.commit(txn).await;
        let pieces: Vec<Bytes> = (0..2).map(|part| data.slice(part * BLOCK_LEN..(part + 1) * BLOCK_LEN)).collect();
        self.model.write(at, &pieces, committed.is_ok());
        self.model.put(&key, value, committed.is_ok());
        if let Err(error) = committed {
            seen.error(format!("commit: {error}"));
        }
    }

    /// A few changes that nobody syncs.
    async fn change_unsynced<T: Tested>(&mut self, open: &Open<T>, seen: &mut Seen) {
        let data = bytes(&mut self.dice, 6000, false);
        let path = "/unsynced".to_string();
        let changes = [
            Change::Create(path.clone()),
            Change::Write(path, 0, data.clone()),
            Change::Write("/raw6".into(), 8192, data.slice(..4096)),
        ];
        self.make(open, &changes, seen).await;
        self.write_volume(open, 300, seen).await;
    }

    /// Changes a bit of everything, and makes it durable.
    async fn change<T: Tested>(&mut self, open: &Open<T>, clean: bool, seen: &mut Seen) {
        let mut changes = vec![Change::Mkdir("/new".into()), Change::Create("/new/file".into())];
        let path = |name: &str| name.to_string();
        changes.push(Change::Write(path("/new/file"), 0, bytes(&mut self.dice, 20_000, true)));
        for (name, at) in [("/small3", 50), ("/raw0", 4096), ("/shared3", 100), ("/moved", 0), ("/large", 1 << 20)] {
            changes.push(Change::Write(path(name), at, bytes(&mut self.dice, 5000, false)));
        }
        changes.push(Change::Cut(path("/raw5"), 10_000));
        changes.push(Change::Remove(path("/small6")));
        changes.push(Change::Move(path("/small7"), path("/new/moved")));
        for number in 0..20 {
            changes.push(Change::Remove(format!("/many/a name of some length {}", number * 50 + 7)));
            changes.push(Change::Create(format!("/many/new {number}")));
        }
        self.make(open, &changes, seen).await;
        for at in [30, 96, 400] {
            self.write_volume(open, at, seen).await;
        }
        match open.files.syncfs().await {
            Ok(()) => self.model.settle(),
            Err(error) => seen.error(format!("sync: {error}")),
        }
        if let Err(error) = open.pool.checkpoint().await {
            seen.error(format!("checkpoint: {error}"));
        }
        if clean && let Err(error) = open.pool.clean().await {
            seen.error(format!("clean: {error}"));
        }
    }
}

async fn close<T: Tested>(open: Open<T>, seen: &mut Seen) {
    if let Err(error) = open.files.close().await {
        seen.error(format!("close files: {error}"));
    }
    if let Err(error) = open.pool.close().await {
        seen.error(format!("close: {error}"));
    }
}
