//! Everything that one can do with a pool, whatever it answers.

use super::{new_node, noise};
use crate::files::tested::{BetrSetting, FilesSetting, Tested};
use ashlar_betr::Betr;
use ashlar_block::Device;
use ashlar_env::Env;
use ashlar_files::{Files, Lost};
use ashlar_pool::{Config, Pool, Txn, Volume, VolumeKind};
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{
    Attr, FallocateMode, FileKind, Ino, ROOT, RenameMode, Result as Answer, SeekWhat, SetAttr, WriteMode,
};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

/// Stretches of a volume that are read.
const STRETCHES_MAX: usize = 60;
/// Inodes of a file system that are used.
const INODES_MAX: usize = 60;

/// Notes what failed.
#[derive(Default)]
struct Failed(Vec<String>);

impl Failed {
    fn note<T, E: Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.0.push(format!("{what}: {error}"))).ok()
    }
}

/// An engine, with what a check asks it that found damage.
pub trait Used: Tested {
    /// The names of an inode, and of what lies where its number says.
    fn whose(&self, ino: Ino) -> impl Future<Output = Answer<()>> + Send;
    /// How it is made and opened here.
    fn setting() -> Self::Setting;
}

impl Used for Files {
    fn setting() -> FilesSetting {
        Files::usual()
    }
    async fn whose(&self, ino: Ino) -> Answer<()> {
        self.path_of(ino).await?;
        self.file_at(Lba(1 << 63)).await.map(drop)
    }
}

impl Used for Betr {
    /// Small zones, so that there are many.
    fn setting() -> BetrSetting {
        BetrSetting::of_seed(0)
    }
    async fn whose(&self, ino: Ino) -> Answer<()> {
        self.path_of_range(ino).await.map(drop)
    }
}

/// Uses the pool on `device`, once it was mended if that is wanted, and tells what failed.
pub async fn use_all<T: Used>(env: &Env, device: Device, config: Config, mend: bool) -> Vec<String> {
    let mut failed = Failed::default();
    if mend {
        mend_all(env, device.clone(), config, &mut failed).await;
    }
    let pool = Pool::open(env, vec![device.clone()], config).await;
    if let Some(pool) = failed.note("open", pool) {
        read_all::<T>(&pool, &mut failed).await;
        change_all::<T>(&pool, &mut failed).await;
        failed.note("close", pool.close().await);
        // What was written on top of it is read again.
        if let Some(pool) = failed.note("open again", Pool::open(env, vec![device], config).await) {
            read_all::<T>(&pool, &mut failed).await;
            failed.note("close again", pool.close().await);
        }
    }
    failed.0
}

/// Mends the pool on `device` as `ashlar check --repair` does.
async fn mend_all(env: &Env, device: Device, config: Config, failed: &mut Failed) {
    let pool = Pool::open(env, vec![device], Config { cut_log: true, ..config }).await;
    let Some(pool) = failed.note("open to mend", pool) else { return };
    if let Some(checked) = failed.note("check", pool.check(|_, _| {}).await) {
        failed.note("mend", pool.mend(&checked).await);
        for info in pool.volumes() {
            let is_live = matches!(info.kind, VolumeKind::Live { .. });
            let Some(volume) = pool.volume(&info.name).filter(|_| is_live) else { continue };
            let of_it = checked.damaged.iter().filter(|damage| damage.volume == info.name);
            let lost: Vec<Lost> = of_it.filter_map(|damage| damage.lost.clone()).collect();
            failed.note("mend files", mend_files(&volume, &lost).await);
        }
        failed.note("check what was mended", pool.check(|_, _| {}).await);
    }
    failed.note("close what was mended", pool.close().await);
}

/// Mends what is on a volume after keys were lost, by whichever engine made it.
async fn mend_files(volume: &Volume, lost: &[Lost]) -> Answer<()> {
    if Betr::made(volume).await? {
        Betr::repair(volume, lost).await?;
    } else if Files::made(volume).await? {
        Files::repair(volume, lost).await?;
    }
    Ok(())
}

async fn read_all<T: Used>(pool: &Pool, failed: &mut Failed) {
    assert!(pool.status().free <= pool.status().capacity);
    for info in pool.volumes() {
        let Some(volume) = pool.volume(&info.name).filter(|_| info.name != "room") else { continue };
        read_volume(&volume, failed).await;
        if info.name.starts_with('v') {
            continue;
        }
        if let Some(files) = failed.note("open read-only", T::view(volume).await) {
            read_files(&files, failed).await;
        }
    }
    let checked = failed.note("check", pool.check(|_, _| {}).await);
    if let Some(checked) = checked {
        let damage = checked.damaged.into_iter().filter(|damage| damage.volume != "room");
        failed.0.extend(damage.map(|damage| format!("damage: {damage:?}")));
        failed.0.extend(checked.miscounted.iter().map(|wrong| format!("miscounted: {wrong:?}")));
    }
}

async fn read_volume(volume: &Volume, failed: &mut Failed) {
    let end = Lba(u64::MAX - 31);
    let mut at = Lba(0);
    for _ in 0..STRETCHES_MAX {
        let Some(Some(found)) = failed.note("seek data", volume.seek(at, end, false).await) else { break };
        let hole = failed.note("seek hole", volume.seek(found, end, true).await).flatten();
        let count = Blocks(hole.map_or(1, |hole| (hole - found).0).clamp(1, 70).min((end - found).0));
        failed.note("read", volume.read(found, count).await);
        failed.note("count", volume.stored_blocks(found, count).await);
        at = found + count;
    }
    let mut low = vec![3u8];
    loop {
        let Some(page) = failed.note("page", volume.page(&low, None, 7).await) else { break };
        match page.next {
            Some(next) => low = next.to_vec(),
            None => break,
        }
    }
}

/// Inodes that can be reached from the root.
async fn walk<T: Used>(files: &Arc<T>, failed: &mut Failed) -> Vec<(Ino, Ino, Vec<u8>, FileKind)> {
    let (mut found, mut seen, mut pending) = (Vec::new(), BTreeSet::new(), vec![ROOT]);
    while let Some(directory) = pending.pop() {
        if !seen.insert(directory) || found.len() > INODES_MAX {
            continue;
        }
        let mut entries = Vec::new();
        let mut sink = |entry: ashlar_vfs::DirEntry<'_>| {
            entries.push((entry.ino, entry.name.to_vec(), entry.kind));
            entries.len() < INODES_MAX
        };
        failed.note("list", files.readdir(directory, 2, directory % 2 == 0, &mut sink).await);
        for (_, name, kind) in entries {
            // As the kernel does, which uses no number that was not looked up.
            let Some(Attr { ino, .. }) = failed.note("look up", files.lookup(directory, &name).await) else { continue };
            if kind == FileKind::Directory {
                pending.push(ino);
            }
            found.push((ino, directory, name, kind));
        }
    }
    found
}

async fn read_files<T: Used>(files: &Arc<T>, failed: &mut Failed) {
    for (ino, _, _, kind) in walk(files, failed).await {
        let Some(Attr { size, .. }) = failed.note("getattr", files.getattr(ino).await) else { continue };
        failed.note("list attributes", files.listxattr(ino).await);
        match kind {
            FileKind::File => {
                for at in [0, size / 2, size.saturating_sub(9000)] {
                    failed.note("read file", files.read(ino, at, 20_000).await);
                    if at < size {
                        failed.note("seek hole", files.seek(ino, at, SeekWhat::Hole).await);
                        // There may be none behind a hole at the end.
                        let _ = files.seek(ino, at, SeekWhat::Data).await;
                    }
                }
            }
            FileKind::Symlink => _ = failed.note("read link", files.readlink(ino).await),
            _ => {}
        }
        failed.note("whose", files.whose(ino).await);
        files.forget(ino, 1).await;
    }
    let wrong = failed.note("audit", files.audit().await);
    failed.0.extend(wrong.unwrap_or_default());
}

async fn change_all<T: Used>(pool: &Pool, failed: &mut Failed) {
    for info in pool.volumes() {
        let Some(volume) = pool.volume(&info.name).filter(|_| matches!(info.kind, VolumeKind::Live { .. })) else {
            continue;
        };
        if info.name == "v" {
            change_volume(&volume, failed).await;
        } else if info.name != "room"
            && let Some(files) = failed.note("open", T::start(volume, T::setting()).await)
        {
            change_files(&files, failed).await;
            failed.note("close files", files.close().await);
        }
    }
    failed.note("checkpoint", pool.checkpoint().await);
    failed.note("clean", pool.clean().await);
    failed.note("snapshot", pool.create_snapshot("v", "new").await);
    failed.note("destroy clone", pool.destroy_volume("clone").await);
    for name in ["main@s0", "main@s1", "v@s0", "v@s1"] {
        failed.note("destroy snapshot", pool.destroy_snapshot(name).await);
    }
    failed.note("rename", pool.rename_volume("main", "other").await);
    failed.note("destroy", pool.destroy_volume("other").await);
    failed.note("clean", pool.clean().await);
}

async fn change_volume(volume: &Volume, failed: &mut Failed) {
    let mut txn = Txn::new();
    for at in [0, 41, 82, 123, 1010, 2010] {
        volume.write(&mut txn, Lba(at), &noise(at, 20_000));
    }
    volume.delete_range(&mut txn, b"k", b"k\0\0\0\0\0\0\0\x09");
    volume.discard(&mut txn, Lba(400), Blocks(300));
    let committed = failed.note("commit", volume.commit(txn).await);
    if let Some(seq) = committed {
        failed.note("sync", volume.pool().sync(seq).await);
    }
    let mut txn = Txn::new();
    failed.note("share", volume.share(&mut txn, Lba(0), volume, Lba(5000), Blocks(300)).await);
    failed.note("commit", volume.commit(txn).await);
}

async fn change_files<T: Used>(files: &Arc<T>, failed: &mut Failed) {
    for (number, (ino, directory, name, kind)) in walk(files, failed).await.into_iter().enumerate() {
        let new = format!("new{number}").into_bytes();
        match kind {
            FileKind::Directory => {
                failed.note("make", files.create(ino, b"new", new_node(FileKind::File)).await);
                // The directory above, or one that was moved: some must be refused.
                let _ = files.rename((directory, &name), (ino, b"loop"), RenameMode::Replace).await;
                failed.note("move", files.rename((directory, &name), (ROOT, &new), RenameMode::NoReplace).await);
            }
            FileKind::File => {
                let size = files.getattr(ino).await.map_or(0, |attr| attr.size);
                failed.note("write", files.write(ino, size / 2, noise(7, 6000), WriteMode::default()).await);
                failed.note("punch", files.fallocate(ino, 0, 5000, FallocateMode::Punch).await);
                let resize = SetAttr { size: Some(size / 3 * 2), ..SetAttr::default() };
                failed.note("cut", files.setattr(ino, resize).await);
                failed.note("append", files.write(ino, size + 9, noise(7, 6000), WriteMode::default()).await);
                // It may have been moved with its directory.
                let _ = match number % 2 {
                    0 => files.unlink(directory, &name).await,
                    _ => {
                        let whiteout = RenameMode::Whiteout { uid: 0, gid: 0 };
                        files.rename((directory, &name), (ROOT, &new), whiteout).await
                    }
                };
            }
            _ => failed.note("remove", files.unlink(directory, &name).await).unwrap_or(()),
        }
        files.forget(ino, 1).await;
    }
    failed.note("sync files", files.syncfs().await);
}
