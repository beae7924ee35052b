//! `ashlar check`: what the pool finds, said in terms of files; and the audit of every file system.

use crate::engine::{self, Viewed};
use crate::output::Failure;
use crate::request::{CheckReport, Damage};
use ashlar_objects_pool::is_bucket;
use ashlar_pool::{Damaged, Pool, Volume, VolumeKind};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A snapshot that lives only while a file system is audited, so that nothing changes meanwhile.
const AUDITED: &str = ".check";

/// Verifies everything; with `repair` mends what can be mended first, in file systems `in_use` only data. `progress` is told bytes done and bytes in all.
pub async fn check(
    pool: &Pool,
    repair: bool,
    in_use: &[String],
    progress: impl Fn(u64, u64) + Send + Sync,
) -> Result<CheckReport, Failure> {
    let progress = |done: ashlar_units::Bytes, all: ashlar_units::Bytes| progress(done.0, all.0);
    forget_audited(pool).await?;
    let mut checked = pool.check(progress).await?;
    let mut repaired = Vec::new();
    if repair {
        repaired.extend(pool.cut().map(|damage| format!("cut the log; what was committed later is lost: {damage}")));
        let mut locator = Locator::new(pool);
        for damage in pool.mend(&checked).await?.forgotten {
            let Damage { volume, file, offset, len, .. } = locator.locate(damage).await;
            let of = file.map_or(volume.clone(), |file| format!("{volume}:{file}"));
            repaired.push(format!("{of} is zeros from byte {offset} on for {len} bytes, which are lost"));
        }
        if !checked.miscounted.is_empty() {
            repaired.push(format!("counted the live bytes of {} segments anew", checked.miscounted.len()));
        }
        repaired.extend(repair_files(pool, &checked.damaged, in_use).await?);
        checked = pool.check(progress).await?;
    }
    let mut report = CheckReport {
        nodes: checked.nodes,
        extents: checked.extents,
        bytes: checked.bytes.0,
        damaged: Vec::new(),
        inconsistent: Vec::new(),
        repaired,
    };
    for (slot, counted, found) in checked.miscounted {
        report.inconsistent.push(format!("segment slot {slot} counts {counted} live bytes and has {found}"));
    }
    let keys = checked.damaged.iter().filter(|damage| matches!(damage.what, Damaged::Keys(..)));
    let torn: HashSet<String> = keys.map(|damage| damage.volume.clone()).collect();
    let mut locator = Locator::new(pool);
    for damage in checked.damaged {
        report.damaged.push(locator.locate(damage).await);
    }
    audit(pool, &torn, &mut report.inconsistent).await?;
    Ok(report)
}

/// Compares names and inodes of every file system. Of those that are `torn`, which lack keys, only what can be read.
async fn audit(pool: &Pool, torn: &HashSet<String>, inconsistent: &mut Vec<String>) -> Result<(), Failure> {
    for info in pool.volumes() {
        let snapshot = match info.kind {
            VolumeKind::Live { .. } => pool.create_snapshot(&info.name, AUDITED).await?,
            VolumeKind::Snapshot { .. } => match pool.volume(&info.name) {
                Some(snapshot) => snapshot,
                None => continue, // destroyed meanwhile
            },
        };
        let wrong = match is_bucket(&info.name) {
            true => ashlar_objects_pool::audit(&snapshot).await.map(|audit| audit.wrong).map_err(Failure::from),
            false => audit_files(snapshot).await,
        };
        forget_audited(pool).await?;
        let wrong = match wrong {
            Err(_) if torn.contains(&info.name) => continue, // what is damaged is told already
            wrong => wrong?,
        };
        inconsistent.extend(wrong.into_iter().map(|sentence| format!("{}: {sentence}", info.name)));
    }
    Ok(())
}

async fn audit_files(volume: Volume) -> Result<Vec<String>, Failure> {
    Viewed::open(volume).await?.audit().await
}

/// Mends what follows from the rest in every file system that is not in use, after keys were lost. Sentences of what was done.
async fn repair_files(pool: &Pool, damaged: &[ashlar_pool::Damage], in_use: &[String]) -> Result<Vec<String>, Failure> {
    let mut told = Vec::new();
    for info in pool.volumes().into_iter().filter(|info| matches!(info.kind, VolumeKind::Live { .. })) {
        let Some(volume) = pool.volume(&info.name).filter(|_| !is_bucket(&info.name)) else { continue };
        let keys = |damage: &ashlar_pool::Damage| match &damage.what {
            Damaged::Keys(low, high) if damage.volume == info.name => Some((low.clone(), high.clone())),
            _ => None,
        };
        let lost: Vec<_> = damaged.iter().filter_map(keys).collect();
        if in_use.contains(&info.name) {
            if !lost.is_empty() {
                told.push(format!(
                    "{} is in use: its names are mended by `ashlar check --repair` after `ashlar down`",
                    info.name
                ));
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

    /// Which file damage belongs to, and where in it.
    async fn locate(&mut self, damage: ashlar_pool::Damage) -> Damage {
        let ashlar_pool::Damage { volume, what, error, .. } = damage;
        let mut found = Damage { volume, file: None, offset: 0, len: 0, error };
        let (first, count) = match what {
            Damaged::Blocks(first, count) => (first, count),
            Damaged::Keys(low, _) => {
                if let Some(files) = self.open(&found.volume).await {
                    let directory = files.directory_at(&low).await;
                    found.file = directory.map(|path| format!("{path}: names and small files from there on"));
                }
                return found;
            }
        };
        (found.offset, found.len) = (first.to_bytes().0, count.to_bytes().0);
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
