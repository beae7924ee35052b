//! `ashlar check`: what the pool finds, said in terms of files; and the audit of every file system.

use crate::engine::{self, Viewed};
use crate::output::Failure;
use crate::request::{CheckReport, Damage};
use ashlar_objects_pool::is_bucket;
use ashlar_pool::{Checked, Damaged, Pool, Volume, VolumeKind};
use ashlar_units::Lba;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot that lives only while a file system is audited, so that nothing changes meanwhile.
const AUDITED: &str = ".check";

/// After so many keys that were compared somebody is told.
const TOLD_EACH: u64 = 1 << 14;

/// Files that are named of those that lost blocks with one node of the block map; the rest is counted.
const FILES_NAMED_MAX: usize = 1000;

/// Verifies everything; with `repair` mends what can be mended first, in file systems `in_use` only data. `progress` is told bytes done and bytes in all,
/// and then how many keys were compared, of none in all.
pub async fn check(
    pool: &Pool,
    repair: bool,
    in_use: &[String],
    progress: impl Fn(u64, u64) + Send + Sync + 'static,
) -> Result<CheckReport, Failure> {
    let verified = |done: ashlar_units::Bytes, all: ashlar_units::Bytes| progress(done.0, all.0);
    forget_audited(pool).await?;
    let mut checked = pool.check(&verified).await?;
    let mut repaired = Vec::new();
    if repair {
        repaired.extend(pool.cut().map(|damage| format!("cut the log; what was committed later is lost: {damage}")));
        let mut locator = Locator::new(pool);
        for damage in pool.mend(&checked).await?.forgotten {
            repaired.extend(locator.locate(damage).await.iter().map(zeroed));
        }
        if !checked.miscounted.is_empty() {
            repaired.push(format!("counted the live bytes of {} segments anew", checked.miscounted.len()));
        }
        let mut unmapped = Vec::new();
        for damage in checked.damaged.iter().filter(|damage| damage.unmapped().is_some()) {
            unmapped.push((damage, locator.locate_blocks(damage).await));
        }
        repaired.extend(repair_files(pool, &checked.damaged, in_use).await?);
        let left = pool.check(&verified).await?;
        let is_left = |damage: &ashlar_pool::Damage| {
            left.damaged.iter().any(|left| (&left.volume, &left.lost) == (&damage.volume, &damage.lost))
        };
        let done = unmapped.iter().filter(|(damage, _)| !is_left(damage));
        repaired.extend(done.flat_map(|(_, files)| files.iter().map(zeroed)));
        checked = Checked {
            recovered: checked.recovered + left.recovered,
            mended_batches: checked.mended_batches + left.mended_batches,
            ..left
        };
    }
    let mut report = CheckReport {
        nodes: checked.nodes,
        extents: checked.extents,
        bytes: checked.bytes.0,
        damaged: Vec::new(),
        recovered: checked.recovered,
        mended_batches: checked.mended_batches,
        unprotected: checked.unprotected,
        inconsistent: Vec::new(),
        uncounted: checked.uncounted,
        empty: Vec::new(),
        repaired,
    };
    for (slot, counted, found) in checked.miscounted {
        report.inconsistent.push(format!("segment slot {slot} counts {counted} live bytes and has {found}"));
    }
    let keys = checked.damaged.iter().filter(|damage| damage.lost.is_some());
    let torn: HashSet<String> = keys.map(|damage| damage.volume.clone()).collect();
    let mut locator = Locator::new(pool);
    for damage in checked.damaged {
        report.damaged.extend(locator.locate(damage).await);
    }
    audit(pool, &torn, &mut report, Arc::new(progress)).await?;
    Ok(report)
}

fn zeroed(Damage { volume, file, offset, len, error }: &Damage) -> String {
    match file {
        Some(file) => format!("{volume}:{file} is zeros from byte {offset} on for {len} bytes, which are lost"),
        None if *len > 0 => format!("{volume} is zeros from byte {offset} on for {len} bytes, which are lost"),
        None => format!("{volume} is zeros where blocks could not be found: {error}"),
    }
}

/// Compares names and inodes of every file system. Of those that are `torn`, which lack keys, only what can be read.
async fn audit(
    pool: &Pool,
    torn: &HashSet<String>,
    report: &mut CheckReport,
    progress: Arc<dyn Fn(u64, u64) + Send + Sync>,
) -> Result<(), Failure> {
    let compared = Arc::new(AtomicU64::new(0));
    for info in pool.volumes() {
        if !is_bucket(&info.name) && is_empty(pool, &info.name).await {
            report.empty.push(info.name);
            continue;
        }
        let snapshot = match info.kind {
            VolumeKind::Live { .. } => match pool.create_snapshot(&info.name, AUDITED).await {
                Err(_) if pool.volume(&info.name).is_none() => continue, // destroyed meanwhile
                made => made?,
            },
            VolumeKind::Snapshot { .. } => match pool.volume(&info.name) {
                Some(snapshot) => snapshot,
                None => continue, // destroyed meanwhile
            },
        };
        progress(compared.load(Ordering::Relaxed), 0);
        let (compared, progress) = (compared.clone(), progress.clone());
        let snapshot = snapshot.telling(move |keys| {
            let before = compared.fetch_add(keys as u64, Ordering::Relaxed);
            let now = before + keys as u64;
            if now / TOLD_EACH > before / TOLD_EACH {
                progress(now, 0);
            }
        });
        let wrong = match is_bucket(&info.name) {
            true => ashlar_objects_pool::audit(&snapshot).await.map(|audit| audit.wrong).map_err(Failure::from),
            false => audit_files(snapshot).await,
        };
        forget_audited(pool).await?;
        let wrong = match wrong {
            Err(_) if torn.contains(&info.name) => continue, // what is damaged is told already
            Err(failure) => vec![format!("names and inodes cannot be compared: {failure}")],
            Ok(wrong) => wrong,
        };
        report.inconsistent.extend(wrong.into_iter().map(|sentence| format!("{}: {sentence}", info.name)));
    }
    Ok(())
}

async fn audit_files(volume: Volume) -> Result<Vec<String>, Failure> {
    Viewed::open(volume).await?.audit().await
}

/// Whether a volume or snapshot surely holds nothing.
async fn is_empty(pool: &Pool, name: &str) -> bool {
    match pool.volume(name) {
        Some(volume) => volume.is_empty().await.unwrap_or(false),
        None => false,
    }
}

/// Mends what follows from the rest in every file system that is not in use, after keys were lost. Sentences of what was done.
async fn repair_files(pool: &Pool, damaged: &[ashlar_pool::Damage], in_use: &[String]) -> Result<Vec<String>, Failure> {
    let mut told = Vec::new();
    for info in pool.volumes().into_iter().filter(|info| matches!(info.kind, VolumeKind::Live { .. })) {
        let Some(volume) = pool.volume(&info.name).filter(|_| !is_bucket(&info.name)) else { continue };
        let of_it = damaged.iter().filter(|damage| damage.volume == info.name);
        let lost: Vec<_> = of_it.filter_map(|damage| damage.lost.clone()).collect();
        if in_use.contains(&info.name) {
            if !lost.is_empty() {
                told.push(format!(
                    "{} is in use: its names are mended by `ashlar check --repair` after `ashlar down`",
                    info.name
                ));
            }
            continue;
        }
        if lost.is_empty() && is_empty(pool, &info.name).await {
            // One with snapshots stays.
            if pool.destroy_volume(&info.name).await.is_ok() {
                told.push(format!("took away {}, since making this file system was cut off", info.name));
            }
            continue;
        }
        let done = engine::repair(&volume, &lost).await?;
        told.extend(done.into_iter().map(|sentence| format!("{}: {sentence}", info.name)));
    }
    Ok(told)
}

/// Also what a check that was cut off left.
async fn forget_audited(pool: &Pool) -> Result<(), Failure> {
    for info in pool.volumes() {
        if info.name.ends_with(&format!("@{AUDITED}")) {
            pool.destroy_snapshot(&info.name).await?;
        }
    }
    Ok(())
}

/// Finds the files that damage lies in.
struct Locator<'a> {
    pool: &'a Pool,
    volumes: HashMap<String, Option<Arc<Viewed>>>,
    paths: HashMap<(String, u64), String>,
}

impl Locator<'_> {
    fn new(pool: &Pool) -> Locator<'_> {
        Locator { pool, volumes: HashMap::new(), paths: HashMap::new() }
    }

    /// Which files damage belongs to, and where in them.
    async fn locate(&mut self, damage: ashlar_pool::Damage) -> Vec<Damage> {
        let ashlar_pool::Damage { volume, what, error, .. } = &damage;
        let (volume, error) = (volume.clone(), error.clone());
        let mut found = Damage { volume, file: None, offset: 0, len: 0, error };
        match *what {
            Damaged::Blocks(first, count) if damage.lost.is_none() => {
                (found.offset, found.len) = (first.to_bytes().0, count.to_bytes().0);
                vec![self.locate_block(found, first).await]
            }
            Damaged::Nothing => {
                found.error += "; nothing is lost with it any more: what it held was forgotten, or written anew";
                vec![found]
            }
            _ => {
                let mut all = self.locate_blocks(&damage).await;
                if let Some(key) = damage.first_key() {
                    match self.open(&found.volume).await {
                        Some(files) => {
                            let directory = files.directory_at(key).await;
                            found.file = directory.map(|path| format!("{path}: names and small files from there on"));
                        }
                        None if self.is_out_of_reach(&found.volume).await => {
                            found.error = format!("{}; {}", found.error, engine::unreadable(&found.volume));
                        }
                        None => {}
                    }
                    all.push(found);
                }
                all
            }
        }
    }

    /// Where a block of a file lies.
    async fn locate_block(&mut self, mut found: Damage, first: Lba) -> Damage {
        if is_bucket(&found.volume) {
            if let Some(volume) = self.pool.volume(&found.volume)
                && let Ok(Some((name, offset))) = ashlar_objects_pool::object_at(&volume, first).await
            {
                (found.file, found.offset) = (Some(name.to_string()), offset);
            }
            return found;
        }
        if let Some(files) = self.open(&found.volume).await
            && let Some((file, offset)) = files.file_at(first).await
        {
            found.offset = offset;
            let known = (found.volume.clone(), file);
            if !self.paths.contains_key(&known) {
                self.paths.insert(known.clone(), files.path_of(file).await);
            }
            found.file = self.paths.get(&known).cloned();
        }
        found
    }

    /// Files with blocks that the map has lost, or the volume, if none is known.
    async fn locate_blocks(&mut self, damage: &ashlar_pool::Damage) -> Vec<Damage> {
        let Some((first, count)) = damage.unmapped() else { return Vec::new() };
        let (volume, error) = (&damage.volume, &damage.error);
        let of = |file, offset, len| Damage { volume: volume.clone(), file, offset, len, error: error.clone() };
        let (files, more) = match self.open(volume).await {
            Some(files) => files.files_in(first, count, FILES_NAMED_MAX).await,
            None => Default::default(),
        };
        let mut found: Vec<Damage> = files.into_iter().map(|(file, offset, len)| of(Some(file), offset, len)).collect();
        if more > 0 {
            let error = format!("{error}; {more} more files have blocks there");
            found.push(Damage { error, ..of(None, 0, 0) });
        }
        if found.is_empty() && damage.first_key().is_none() {
            found.push(of(None, 0, 0));
        }
        found
    }

    /// Whether this is a volume of which nothing tells what it is.
    async fn is_out_of_reach(&self, name: &str) -> bool {
        match self.pool.volume(name) {
            Some(volume) if !is_bucket(name) => engine::of(&volume).await.is_err(),
            _ => false,
        }
    }

    async fn open(&mut self, name: &str) -> Option<Arc<Viewed>> {
        if is_bucket(name) {
            return None;
        }
        if !self.volumes.contains_key(name) {
            let files = match self.pool.volume(name) {
                Some(volume) => Viewed::open(volume).await.ok().map(Arc::new),
                None => None,
            };
            self.volumes.insert(name.into(), files);
        }
        self.volumes.get(name).cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;
    use ashlar_block::Device;
    use ashlar_env::sim::{Schedule, Sim};
    use ashlar_pool::{Config, Creation, Txn};
    use ashlar_units::{Blocks, Bytes, Lba};
    use ashlar_vfs::Engine;

    /// Runs a test on a small pool with a file system.
    fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Pool) -> F + Send + 'static) {
        let sim = Sim::new(1, Schedule::Fifo);
        let env = sim.env();
        sim.run(async move {
            let device: Device = Arc::new(ashlar_devices::Memory::new(Bytes::mib(64).to_blocks_down()));
            let creation = Creation { segment: Some(Blocks(256)), force: false };
            Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("made");
            let config = Config { memory: Bytes::mib(16), ..Config::default() };
            let pool = Pool::open(&env, vec![device], config).await.expect("opened");
            engine::make(&pool, "main", Engine::Files, None).await.expect("made");
            test(pool).await;
        })
        .expect("no deadlock");
    }

    fn names(pool: &Pool) -> Vec<String> {
        pool.volumes().into_iter().map(|info| info.name).collect()
    }

    #[test]
    fn a_file_system_that_was_never_made_is_named_and_the_others_are_checked() {
        run(|pool| async move {
            // As a crash leaves it between the two steps.
            for name in ["more", "most"] {
                pool.create_volume(name).await.expect("made");
            }
            let other = pool.create_volume("other").await.expect("made");
            let mut txn = Txn::new();
            other.put(&mut txn, b"key", &b"value"[..]);
            other.commit(txn).await.expect("committed");
            let report = check(&pool, false, &[], |_, _| ()).await.expect("checked");
            assert_eq!(report.empty, ["more", "most"]);
            assert!(matches!(&report.inconsistent[..], [one] if one.starts_with("other: ")), "{report}");
            engine::make(&pool, "more", Engine::Betr, None).await.expect("it is made now");
            pool.destroy_volume("other").await.expect("destroyed");
            let report = check(&pool, true, &[], |_, _| ()).await.expect("checked");
            assert!(
                report.empty.is_empty() && report.inconsistent.is_empty() && report.repaired.len() == 1,
                "{report}"
            );
            assert_eq!(names(&pool), ["main", "more"]);
        });
    }

    #[test]
    fn a_file_system_that_finds_no_room_leaves_nothing() {
        run(|pool| async move {
            let main = pool.volume("main").expect("made");
            let piece = ashlar_units::BLOCK.0 as usize * 16;
            for index in 0.. {
                let mut txn = Txn::new();
                let data = ashlar_fuzz::incompressible(index, piece);
                main.write(&mut txn, Lba(index * 16), &data.into());
                let written = match main.commit(txn).await {
                    Ok(seq) => pool.sync(seq).await,
                    Err(error) => Err(error),
                };
                if written.is_err() {
                    break;
                }
            }
            for engine in [Engine::Files, Engine::Betr] {
                engine::make(&pool, "more", engine, None).await.map(drop).expect_err("the pool is full");
            }
            assert_eq!(names(&pool), ["main"]);
            check(&pool, false, &[], |_, _| ()).await.expect("checked");
        });
    }
}
