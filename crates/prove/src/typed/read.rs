//! Reads everything and compares it with the model.

use super::model::{FS, Model, Node, SNAPSHOT, States, VOLUME, find};
use crate::files::tested::Tested;
use ashlar_pool::{Damaged, Pool, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use ashlar_vfs::{Errno, FileKind, FileSystem, Ino, ROOT};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

/// Blocks of a volume that are read at once.
const STRETCH: u64 = 8;
/// A name that is no name of the model, and stays in no list.
const SAID_MAX: usize = 12;

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// What was read and is not what was written.
    pub(super) wrong: Vec<String>,
    /// What was refused.
    pub(super) errors: Vec<String>,
    /// What a check said is damaged, by volume and blocks or keys.
    pub(super) named: Vec<String>,
    /// How often a check put right what nobody had missed yet.
    pub(super) mended: u64,
}

impl Seen {
    fn note<T>(&mut self, what: impl Display, result: Result<T, impl Display>) -> Option<T> {
        result.map_err(|error| self.error(format!("{what}: {error}"))).ok()
    }
    pub(super) fn error(&mut self, what: String) {
        if self.errors.len() < SAID_MAX {
            self.errors.push(what);
        }
    }
    pub(super) fn wrong(&mut self, what: String) {
        if self.wrong.len() < SAID_MAX {
            self.wrong.push(what);
        }
    }
    pub(super) fn add(&mut self, other: Seen) {
        other.wrong.into_iter().for_each(|what| self.wrong(what));
        other.errors.into_iter().for_each(|what| self.error(what));
        self.named.extend(other.named);
        self.mended += other.mended;
    }
    pub(super) fn is_well(&self) -> bool {
        self.wrong.is_empty() && self.errors.is_empty() && self.named.is_empty()
    }
}

/// Reads all file systems, volumes and snapshots; `files` is the open one.
pub(super) async fn read_all<T: Tested>(pool: &Pool, files: Option<&Arc<T>>, model: &Model) -> Seen {
    let mut seen = Seen::default();
    let names: BTreeSet<String> = pool.volumes().into_iter().map(|info| info.name).collect();
    let snapshots = [FS, VOLUME].map(|name| format!("{name}@{SNAPSHOT}"));
    let expected: BTreeSet<String> = [FS.into(), VOLUME.into()].into_iter().chain(snapshots).collect();
    if names != expected {
        seen.wrong(format!("the pool has the volumes {names:?} and not {expected:?}"));
    }
    for (name, nodes) in &model.files {
        match (files, pool.volume(name)) {
            (Some(files), _) if *name == FS => read_files(&**files, name, nodes, &mut seen).await,
            (_, Some(volume)) => {
                let opened = T::view(volume).await;
                if let Some(files) = seen.note(format!("open {name}"), opened) {
                    read_files(&*files, name, nodes, &mut seen).await;
                }
            }
            _ => {}
        }
    }
    for (name, blocks) in &model.blocks {
        if let Some(volume) = pool.volume(name) {
            read_blocks(&volume, name, blocks, &mut seen).await;
        }
    }
    for (name, keys) in &model.keys {
        if let Some(volume) = pool.volume(name) {
            read_keys(&volume, name, keys, &mut seen).await;
        }
    }
    seen
}

/// Everything that a check says.
pub(super) async fn check<T: Tested>(pool: &Pool, files: Option<&Arc<T>>) -> Seen {
    let mut seen = Seen::default();
    if let Some(checked) = seen.note("check", pool.check(|_, _| {}).await) {
        for damage in checked.damaged {
            let what = match damage.what {
                Damaged::Blocks(at, count) => format!("{} blocks {at} +{count}", damage.volume),
                Damaged::Keys(low, high) => format!("{} keys {low:02x?}..{high:02x?}", damage.volume),
                Damaged::Nothing => format!("{} nothing", damage.volume),
            };
            seen.named.push(format!("{what}: {}", damage.error));
        }
        seen.mended = checked.mended_batches;
        for (slot, counted, found) in checked.miscounted {
            seen.wrong(format!("segment slot {slot} counts {counted} live bytes and has {found}"));
        }
    }
    if let Some(files) = files
        && let Some(audit) = seen.note("audit", files.audit().await)
    {
        audit.into_iter().for_each(|what| seen.wrong(what));
    }
    seen
}

/// Lists a tree: paths, or why a directory cannot be listed.
async fn list(files: &impl FileSystem, seen: &mut Seen) -> (BTreeSet<String>, Vec<String>) {
    let (mut paths, mut unlisted) = (BTreeSet::new(), Vec::new());
    let mut pending: Vec<(Ino, String)> = vec![(ROOT, String::new())];
    while let Some((directory, path)) = pending.pop() {
        let mut entries = Vec::new();
        let mut sink = |entry: ashlar_vfs::DirEntry<'_>| {
            entries.push((String::from_utf8_lossy(entry.name).into_owned(), entry.kind));
            true
        };
        let listed = files.readdir(directory, 2, false, &mut sink).await;
        if seen.note(format!("list {path}/"), listed).is_none() {
            unlisted.push(format!("{path}/"));
        }
        for (name, kind) in entries {
            let path = format!("{path}/{name}");
            if kind == FileKind::Directory && path.len() < 1000 {
                let found = files.lookup(directory, name.as_bytes()).await;
                pending.extend(seen.note(format!("look up {path}"), found).map(|attr| (attr.ino, path.clone())));
            }
            paths.insert(path);
        }
        if directory != ROOT {
            files.forget(directory, 1).await;
        }
    }
    (paths, unlisted)
}

async fn read_files(
    files: &impl FileSystem,
    fs: &str,
    nodes: &BTreeMap<String, States<Option<Node>>>,
    seen: &mut Seen,
) {
    let (listed, unlisted) = list(files, seen).await;
    for path in &listed {
        if !nodes.contains_key(path) {
            seen.wrong(format!("{fs}:{path} is listed and was never made"));
        }
    }
    for (path, states) in nodes {
        let may_be_absent = states.allowed.contains(&None);
        let may_exist = states.allowed.iter().any(Option::is_some);
        let known = !unlisted.iter().any(|directory| path.starts_with(directory));
        if known && !listed.contains(path) && !may_be_absent {
            seen.wrong(format!("{fs}:{path} is not listed"));
        }
        if listed.contains(path) && !may_exist {
            seen.wrong(format!("{fs}:{path} is listed and was removed"));
        }
        match read_node(files, path).await {
            Ok(node) if states.allowed.contains(&Some(node.clone())) => {}
            Ok(node) => seen.wrong(format!("{fs}:{path} is {}", describe(&node, states))),
            Err(error) if error.errno == Errno::NotFound && may_be_absent => {}
            Err(error) if error.errno == Errno::Io => seen.error(format!("{fs}:{path}: {error}")),
            Err(error) => seen.wrong(format!("{fs}:{path}: {error}")),
        }
    }
}

fn describe(node: &Node, states: &States<Option<Node>>) -> String {
    let short = |node: &Node| match node {
        Node::File(data) => format!("a file of {} bytes", data.len()),
        Node::Directory => "a directory".into(),
        Node::Symlink(target) => format!("a link to {:?}", String::from_utf8_lossy(target)),
    };
    let mut text = short(node);
    if let (Node::File(data), Some(Some(Node::File(expected)))) = (node, states.allowed.last()) {
        let differs = data.iter().zip(expected).position(|(a, b)| a != b);
        text += &format!(", wrong from byte {} on", differs.unwrap_or(data.len().min(expected.len())));
    }
    let allowed: Vec<String> =
        states.allowed.iter().map(|state| state.as_ref().map_or("nothing".into(), short)).collect();
    format!("{text}, and should be {}", allowed.join(" or "))
}

async fn read_node(files: &impl FileSystem, path: &str) -> ashlar_vfs::Result<Node> {
    let ino = find(files, path).await?;
    let attr = files.getattr(ino).await?;
    let node = match attr.kind {
        FileKind::Directory => Node::Directory,
        FileKind::Symlink => Node::Symlink(files.readlink(ino).await?),
        _ => Node::File(files.read(ino, 0, attr.size.min(8 << 20) as usize).await?.concat().into()),
    };
    files.forget(ino, 1).await;
    Ok(node)
}

async fn read_blocks(volume: &Volume, name: &str, blocks: &BTreeMap<u64, States<Bytes>>, seen: &mut Seen) {
    let stretches: BTreeSet<u64> = blocks.keys().map(|number| number / STRETCH).collect();
    for stretch in stretches {
        let first = stretch * STRETCH;
        let whole = volume.read(Lba(first), Blocks(STRETCH)).await.map(|pieces| pieces.concat());
        for at in 0..STRETCH {
            let number = first + at;
            let data = match &whole {
                Ok(whole) => Ok(whole[at as usize * BLOCK_LEN..][..BLOCK_LEN].to_vec()),
                // One by one, so that what is whole is compared.
                Err(_) => volume.read(Lba(number), Blocks(1)).await.map(|pieces| pieces.concat()),
            };
            let Some(data) = seen.note(format!("{name} block {number}"), data) else { continue };
            let right = match blocks.get(&number) {
                Some(states) => states.allowed.iter().any(|allowed| allowed[..] == data[..]),
                None => data.iter().all(|byte| *byte == 0),
            };
            if !right {
                seen.wrong(format!("{name} block {number} is not what was written"));
            }
        }
    }
}

async fn read_keys(volume: &Volume, name: &str, keys: &BTreeMap<Vec<u8>, States<Option<Bytes>>>, seen: &mut Seen) {
    for (key, states) in keys {
        if let Some(value) = seen.note(format!("{name} key {key:02x?}"), volume.get(key).await)
            && !states.allowed.contains(&value)
        {
            seen.wrong(format!("{name} key {key:02x?} is not what was put"));
        }
    }
    let mut low = vec![3u8];
    loop {
        let page = volume.page(&low, None, 64).await;
        let Some(page) = seen.note(format!("{name} keys from {low:02x?}"), page) else { return };
        for (key, _) in &page.entries {
            if !keys.contains_key(key.as_slice()) {
                seen.wrong(format!("{name} has a key {key:02x?} that was never put"));
            }
        }
        match page.next {
            Some(next) => low = next.to_vec(),
            None => return,
        }
    }
}
