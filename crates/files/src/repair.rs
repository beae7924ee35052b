//! Mending what follows from the rest, after keys were lost with a node of the index.
//!
//! Names and attributes lie apart, so an inode that lost its name has all its attributes, and of one that lost these there are the
//! names and the blocks. What neither leads to is found by the blocks that it has.

use crate::audit::Fix;
use crate::keys::{self, Contents, Entry, Record, SLOT_BLOCKS, SMALL_BLOCKS, decode_record};
use crate::{Files, Options};
use ashlar_inodes::{
    COLLISIONS_MAX, FIXES_PER_COMMIT, InodeStore, Lost, NUMBER_LOT, ROUNDS_MAX, Told, forget_lost, found_node,
    lost_and_found, next_range, number_value, stored_end, visit,
};
use ashlar_pool::{Txn, Volume};
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{FileKind, Ino, ROOT, Result, Time};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Stray slots that are brought back in one pass over all inodes.
const SLOTS_PER_PASS: usize = 1 << 16;

impl Files {
    /// Whether this engine made what is on a volume.
    pub async fn made(volume: &Volume) -> Result<bool> {
        Ok(Files::read_format(volume).await?.is_some_and(|format| format.first() == Some(&keys::VERSION)))
    }

    /// Forgets `lost` keys, and mends what follows from the rest: the copy of the format, counters, attributes of the root
    /// directory, of directories and of small files (owner and mode are lost, and a file ends with its last block), links, names
    /// of what is gone. What no name leads to any more is brought to `lost+found`. Nobody may have the file system open.
    /// Gives sentences for people.
    ///
    /// # Errors
    /// Where both copies of the format are lost, nothing can be mended.
    pub async fn repair(volume: &Volume, lost: &[Lost]) -> Result<Vec<String>> {
        let mut told = Told::default();
        forget_lost(volume, lost, &mut told).await?;
        let format = Files::read_format(volume).await.ok().flatten();
        let format = format.ok_or_else(|| keys::damaged("both copies of the format are lost"))?;
        for key in [keys::FORMAT, keys::FORMAT_COPY] {
            if !matches!(volume.get(key).await, Ok(Some(_))) {
                let mut txn = Txn::new();
                volume.put(&mut txn, key, format.clone());
                volume.commit(txn).await?;
                told.say("wrote the other copy of the format anew");
            }
        }
        if !lost.is_empty() || !matches!(volume.get(keys::NEXT_INO).await, Ok(Some(_))) {
            Files::mend_counters(volume, &mut told).await?;
        }
        if !matches!(volume.get(&keys::inode(ROOT)).await, Ok(Some(_))) {
            let root = Record::root(Time::from(volume.pool().env().wall()), 0, 0);
            let mut txn = Txn::new();
            volume.put(&mut txn, &keys::inode(ROOT), keys::encode_record(&root));
            volume.commit(txn).await?;
            told.say("made the root directory anew, owned by root");
        }
        Files::mend_findings(volume, &mut told).await?;
        if !lost.is_empty() {
            // Blocks of nobody come from attributes that are lost.
            let files = Files::open(volume.clone(), Options::default()).await?;
            told.brought += files.bring_small().await? + files.bring_slots().await?;
            files.close().await?;
            drop(files);
            Files::mend_findings(volume, &mut told).await?;
        }
        volume.pool().sync_all().await?;
        Ok(told.finish())
    }

    /// Counters are above all that is in use.
    async fn mend_counters(volume: &Volume, told: &mut Told) -> Result<()> {
        let (mut most, mut slots) = (ROOT, 0);
        let inode = |key: &[u8], value: &Bytes| {
            let ino = keys::ino_in(key)?;
            most = most.max(ino);
            slots = decode_record(ino, value)?.contents.slot().map_or(slots, |slot| slots.max(slot + 1));
            Ok(ControlFlow::Continue(()))
        };
        visit(volume, &[keys::INODE], &[keys::INODE + 1], inode).await?;
        let entry = |key: &[u8], value: &Bytes| {
            most = most.max(Entry::decode(value)?.ino).max(keys::ino_in(key)?);
            Ok(ControlFlow::Continue(()))
        };
        visit(volume, &[keys::ENTRY], &[keys::ENTRY + 1], entry).await?;
        for prefix in [keys::FREE_SLOT, keys::BUILDING_SLOT] {
            let slot = |key: &[u8], _: &Bytes| {
                slots = slots.max(keys::slot_in(key)? + 1);
                Ok(ControlFlow::Continue(()))
            };
            visit(volume, &[prefix], &[prefix + 1], slot).await?;
        }
        let mut at = Lba(0);
        while let Some(ino) = next_range(volume, at, keys::slot_base(0), SMALL_BLOCKS).await? {
            most = most.max(ino);
            at = Lba((ino + 1) * SMALL_BLOCKS);
        }
        let mut from = 0;
        while let Some(slot) = next_slot(volume, from).await? {
            (slots, from) = (slots.max(slot + 1), slot + 1);
        }
        let slots = u64::from(slots);
        let next = (most + 1).next_multiple_of(NUMBER_LOT);
        // Nothing is stored of slots before the first is taken.
        for (key, what, least, to) in
            [(keys::NEXT_INO, "inodes", most + 1, next), (keys::NEXT_SLOT, "slots", slots, slots)]
        {
            let stored = volume.get(key).await.ok().flatten();
            let stored = stored.and_then(|value| ashlar_inodes::read_number(&value).ok()).unwrap_or(0);
            if stored < least {
                let mut txn = Txn::new();
                volume.put(&mut txn, key, number_value(to));
                volume.commit(txn).await?;
                told.say(format!("{what} go on from {to}"));
            }
        }
        Ok(())
    }

    /// Audits, and does what the audit finds to be done, until there is nothing more.
    async fn mend_findings(volume: &Volume, told: &mut Told) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let viewed = Files::open(volume.clone(), Options { read_only: true, ..Options::default() }).await?;
            let findings = viewed.findings(viewed.inodes_per_pass()).await?.1;
            if findings.fixes.is_empty() && findings.nameless.is_empty() {
                break;
            }
            if findings.fixes.is_empty() {
                let files = Files::open(volume.clone(), Options::default()).await?;
                let home = lost_and_found(&*files).await?;
                for ino in findings.nameless {
                    if let Some(value) = volume.get(&keys::inode(ino)).await? {
                        files.bring_home(home, decode_record(ino, &value)?).await?;
                        told.brought += 1;
                    }
                }
                files.close().await?;
                continue;
            }
            told.mended += findings.fixes.len();
            for fixes in findings.fixes.chunks(FIXES_PER_COMMIT) {
                let mut txn = Txn::new().deleting();
                for fix in fixes {
                    viewed.mend(&mut txn, fix).await?;
                }
                volume.commit(txn).await?;
            }
        }
        Ok(())
    }

    async fn mend(&self, txn: &mut Txn, fix: &Fix) -> Result<()> {
        match fix {
            Fix::Inode { ino, kind, directory, position, entry } => {
                let record = match kind {
                    FileKind::Directory => Some(self.found_directory(*ino, *directory)),
                    FileKind::File => self.found_small(*ino).await?,
                    _ => None,
                };
                match record {
                    Some(record) => self.put_record(txn, &record),
                    None => self.remove_entry(txn, *directory, *position, entry),
                }
            }
            Fix::Chain { directory, position } => self.close_chain(txn, *directory, *position).await?,
            Fix::Directory(ino) => self.put_record(txn, &self.found_directory(*ino, ROOT)),
            Fix::Links(..) | Fix::Parent(..) => {
                let (Fix::Links(ino, number) | Fix::Parent(ino, number)) = fix else { return Ok(()) };
                if let Some(value) = self.volume.get(&keys::inode(*ino)).await? {
                    let record = decode_record(*ino, &value)?;
                    let record = match fix {
                        Fix::Links(..) => Record { links: *number as u32, ..record },
                        _ => Record { parent: *number, ..record },
                    };
                    self.put_record(txn, &record);
                }
            }
            Fix::NoOrphan(ino) => self.volume.delete(txn, &keys::orphan(*ino)),
        }
        Ok(())
    }

    /// Lets lookups come to an entry again: removed ones stand for those that are gone before it.
    async fn close_chain(&self, txn: &mut Txn, directory: Ino, position: u64) -> Result<()> {
        for before in position - position % COLLISIONS_MAX..position {
            let key = keys::entry(directory, before);
            let entry = match self.volume.get(&key).await? {
                Some(value) => Entry { more: true, ..Entry::decode(&value)? },
                None => Entry { ino: 0, kind: FileKind::File, more: true, name: Bytes::new() },
            };
            self.volume.put(txn, &key, entry.encode());
        }
        Ok(())
    }

    fn found_directory(&self, ino: Ino, parent: Ino) -> Record {
        let now = self.now();
        Record { ino, parent, permissions: 0o700, ..Record::root(now, 0, 0) }
    }

    /// A file of which there are blocks in its small range.
    async fn found_small(&self, ino: Ino) -> Result<Option<Record>> {
        let size = stored_end(&self.volume, Lba(ino * SMALL_BLOCKS), Blocks(SMALL_BLOCKS)).await?;
        Ok((size > 0).then(|| self.found_file(ino, Contents::Small, size)))
    }

    fn found_file(&self, ino: Ino, contents: Contents, size: u64) -> Record {
        let now = self.now();
        let record = Record::root(now, 0, 0).child(ino, &found_node(FileKind::File), &[], now);
        Record { contents, size, sparse: true, ..record }
    }

    /// Brings back files of which only blocks are left, in the ranges of their inodes. How many.
    async fn bring_small(&self) -> Result<u64> {
        let (mut found, mut at) = (Vec::new(), Lba(0));
        while let Some(ino) = next_range(&self.volume, at, keys::slot_base(0), SMALL_BLOCKS).await? {
            if self.volume.get(&keys::inode(ino)).await?.is_none() {
                found.push(ino);
            }
            at = Lba((ino + 1) * SMALL_BLOCKS);
        }
        let home = if found.is_empty() { ROOT } else { lost_and_found(self).await? };
        let mut brought = 0;
        for ino in found {
            if let Some(record) = self.found_small(ino).await? {
                self.bring_home(home, record).await?;
                brought += 1;
            }
        }
        Ok(brought)
    }

    /// The same of slots.
    async fn bring_slots(&self) -> Result<u64> {
        let (mut brought, mut next) = (0, Some(0));
        while let Some(from) = next.take() {
            let (mut slots, mut at) = (BTreeSet::new(), from);
            while let Some(slot) = next_slot(&self.volume, at).await? {
                if slots.len() == SLOTS_PER_PASS {
                    next = Some(slot);
                    break;
                }
                slots.insert(slot);
                at = slot + 1;
            }
            let used = |key: &[u8], value: &Bytes| {
                if let Some(slot) = decode_record(keys::ino_in(key)?, value)?.contents.slot() {
                    slots.remove(&slot);
                }
                Ok(ControlFlow::Continue(()))
            };
            visit(&self.volume, &[keys::INODE], &[keys::INODE + 1], used).await?;
            for slot in slots {
                let size = stored_end(&self.volume, keys::slot_base(slot), Blocks(SLOT_BLOCKS)).await?;
                let ino = self.numbers.take(&self.volume).await?;
                let home = lost_and_found(self).await?;
                self.bring_home(home, self.found_file(ino, Contents::Slot(slot), size)).await?;
                brought += 1;
            }
        }
        Ok(brought)
    }
}

/// The first slot from this one on in which something is stored.
async fn next_slot(volume: &Volume, from: u32) -> Result<Option<u32>> {
    if from >= keys::SLOTS_MAX {
        return Ok(None);
    }
    let found = next_range(volume, keys::slot_base(from), keys::slot_base(keys::SLOTS_MAX), SLOT_BLOCKS).await?;
    Ok(found.map(|range| (range as u32) & keys::SLOTS_MAX))
}

#[cfg(test)]
mod tests;
