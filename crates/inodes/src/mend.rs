//! Mending a file system after keys were lost with a node of the index: what engines have in common.

use crate::{BLOCK, PAGE};
use ashlar_pool::Volume;
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{Errno, FileKind, FileSystem, Ino, NewNode, ROOT, Result};

/// Where what no name leads to is brought, with a number behind it if a file has this name.
const HOME: &str = "lost+found";
/// Audits after each of which something more may follow from what was mended; each finds only so much.
pub const ROUNDS_MAX: usize = 256;
/// Repairs, and again strays, that are noted in one audit. What is left is found by the next.
pub const FIXES_MAX: usize = 1 << 16;
/// Changes in one transaction.
pub const FIXES_PER_COMMIT: usize = 1024;
const _: () = assert!(PAGE >= FIXES_PER_COMMIT);

/// Keys that cannot be read: from the first on, and below the second, if there is one.
pub type Lost = (Vec<u8>, Option<Vec<u8>>);

/// What was done, as sentences for people.
#[derive(Default)]
pub struct Told {
    sentences: Vec<String>,
    /// Sums, links and names.
    pub mended: usize,
    /// Files and directories.
    pub brought: u64,
}

impl Told {
    /// Adds a sentence.
    pub fn say(&mut self, what: impl Into<String>) {
        self.sentences.push(what.into());
    }
    /// All of it.
    pub fn finish(self) -> Vec<String> {
        let Told { mut sentences, mended, brought } = self;
        if mended > 0 {
            sentences.push(format!("mended {mended} sums, links and names that did not fit together"));
        }
        if brought > 0 {
            sentences.push(format!("brought {brought} files and directories that had lost their names to /{HOME}"));
        }
        sentences
    }
}

/// Forgets keys that cannot be read, so that everything else can be. What can be read of them stays, also what was written since they
/// were lost. Gives those of which something was forgotten in the dictionary.
///
/// # Errors
/// Those of the pool.
pub async fn forget_lost(volume: &Volume, lost: &[Lost], told: &mut Told) -> Result<Vec<Lost>> {
    let (mut blocks, mut keys) = (0, Vec::new());
    for range in lost {
        let forgotten = volume.forget_unreadable(&range.0, range.1.as_deref()).await?;
        blocks += usize::from(forgotten.blocks);
        keys.extend(forgotten.dictionary.then(|| range.clone()));
    }
    if !keys.is_empty() {
        told.say(format!("forgot names and small files that could not be read, in {}", places(keys.len())));
    }
    if blocks > 0 {
        told.say(format!("forgot blocks that could not be found, in {}: they are zeros", places(blocks)));
    }
    if blocks + keys.len() > 0 {
        // With the range deletes above them in the index, nodes that cannot be read are not looked for any more.
        volume.pool().checkpoint().await?;
    }
    Ok(keys)
}

fn places(count: usize) -> String {
    if count == 1 { "one place of the index".into() } else { format!("{count} places of the index") }
}

/// Bytes up to the end of the last block that is stored in a range; 0 if none is. Where the block map cannot be read, up to there.
///
/// # Errors
/// Those of the pool.
pub async fn stored_end(volume: &Volume, base: Lba, blocks: Blocks) -> Result<u64> {
    let (mut at, mut end) = (base, base);
    let behind = base + blocks;
    loop {
        let stored = match volume.seek(at, behind, false).await {
            Err(error) if error.is_damage() => None,
            stored => stored?,
        };
        let Some(stored) = stored else { return Ok((end - base).0 * BLOCK) };
        at = match volume.seek(stored, behind, true).await {
            Err(error) if error.is_damage() => return Ok((end.max(stored) - base).0 * BLOCK),
            hole => hole?.unwrap_or(behind),
        };
        end = at;
    }
}

/// The first range of so many blocks, from one block on and below another, in which something is stored: its number. `None` also
/// where the block map cannot be read: the check of the pool tells of that, and what cannot be read cannot be brought back.
///
/// # Errors
/// Those of the pool.
pub async fn next_range(volume: &Volume, from: Lba, end: Lba, blocks: u64) -> Result<Option<u64>> {
    match volume.seek(from, end, false).await {
        Err(error) if error.is_damage() => Ok(None),
        stored => Ok(stored?.map(|stored| stored.0 / blocks)),
    }
}

/// The directory for what no name leads to, which only root may enter. It counts a reference.
///
/// # Errors
/// Those of the file system.
pub async fn lost_and_found(files: &impl FileSystem) -> Result<Ino> {
    for index in 1u64.. {
        let name = if index == 1 { HOME.into() } else { format!("{HOME}-{index}") };
        let found = match files.lookup(ROOT, name.as_bytes()).await {
            Err(error) if error.errno == Errno::NotFound => {
                files.mkdir(ROOT, name.as_bytes(), found_node(FileKind::Directory)).await?
            }
            found => found?,
        };
        if found.kind == FileKind::Directory {
            return Ok(found.ino);
        }
    }
    Err(Errno::NoSpace.into())
}

/// What something becomes whose attributes are lost: root's alone.
pub fn found_node(kind: FileKind) -> NewNode {
    let permissions = if kind == FileKind::Directory { 0o700 } else { 0o600 };
    NewNode { kind, permissions, uid: 0, gid: 0, device: 0, umask: 0, open: false }
}

/// Names for an inode in [`lost_and_found`], of which the first is taken that is free.
pub fn found_names(ino: Ino) -> impl Iterator<Item = String> {
    (1u64..).map(move |index| if index == 1 { format!("#{ino}") } else { format!("#{ino}.{index}") })
}
