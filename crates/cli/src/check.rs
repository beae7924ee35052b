//! `ashlar check`: what the pool finds, said in terms of files; and the audit of every file system.

use crate::engine;
use crate::output::Failure;
use crate::request::{CheckReport, Damage};
use ashlar_files::Files;
use ashlar_objects_pool::is_bucket;
use ashlar_pool::{Damaged, Pool, VolumeKind};
use std::collections::HashMap;
use std::sync::Arc;

/// A snapshot that lives only while a file system is audited, so that nothing changes meanwhile.
const AUDITED: &str = ".check";

pub fn read_only() -> ashlar_files::Options {
    ashlar_files::Options { read_only: true, ..ashlar_files::Options::default() }
}

/// Verifies everything; with `repair` mends what can be mended first. `progress` is told bytes done and bytes in all.
pub async fn check(
    pool: &Pool,
    repair: bool,
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
    let whole = !checked.damaged.iter().any(|damage| matches!(damage.what, Damaged::Keys(..)));
    let mut locator = Locator::new(pool);
    for damage in checked.damaged {
        report.damaged.push(locator.locate(damage).await);
    }
    if whole {
        audit(pool, &mut report.inconsistent).await?;
    }
    Ok(report)
}

/// Compares names and inodes of every file system.
async fn audit(pool: &Pool, inconsistent: &mut Vec<String>) -> Result<(), Failure> {
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
            false => engine::audit(snapshot).await,
        };
        forget_audited(pool).await?;
        inconsistent.extend(wrong?.into_iter().map(|sentence| format!("{}: {sentence}", info.name)));
    }
    Ok(())
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
    volumes: HashMap<String, Option<Arc<Files>>>,
    paths: HashMap<(String, u64), String>,
}

impl Locator<'_> {
    fn new(pool: &Pool) -> Locator<'_> {
        Locator { pool, volumes: HashMap::new(), paths: HashMap::new() }
    }

    /// Which file damage belongs to, and where in it.
    async fn locate(&mut self, damage: ashlar_pool::Damage) -> Damage {
        let ashlar_pool::Damage { volume, what, error, .. } = damage;
        let Damaged::Blocks(first, count) = what else {
            return Damage { volume, file: None, offset: 0, len: 0, error };
        };
        let (offset, len) = (first.to_bytes().0, count.to_bytes().0);
        let mut found = Damage { volume, file: None, offset, len, error };
        if is_bucket(&found.volume) {
            if let Some(volume) = self.pool.volume(&found.volume)
                && let Ok(Some((name, offset))) = ashlar_objects_pool::object_at(&volume, first).await
            {
                (found.file, found.offset) = (Some(name.to_string()), offset);
            }
            return found;
        }
        if let Some(files) = self.open(&found.volume).await
            && let Ok(Some((ino, offset))) = files.file_at(first).await
        {
            found.offset = offset;
            let known = (found.volume.clone(), ino);
            if !self.paths.contains_key(&known) {
                let path = files.path_of(ino).await.ok().flatten();
                self.paths.insert(known.clone(), path.unwrap_or_else(|| format!("inode {ino}")));
            }
            found.file = self.paths.get(&known).cloned();
        }
        found
    }

    async fn open(&mut self, name: &str) -> Option<Arc<Files>> {
        if !self.volumes.contains_key(name) {
            let files = match self.pool.volume(name) {
                Some(volume) => Files::open(volume, read_only()).await.ok(),
                None => None,
            };
            self.volumes.insert(name.into(), files);
        }
        self.volumes.get(name).cloned().flatten()
    }
}
