//! Zones: sums, moving, splitting, merging.
//!
//! A move copies everything below a place to another, in as many transactions as it takes, and exchanges the name in the
//! last. Until then nothing leads to the copies; a note of them makes the next opening forget them after a crash. For a directory the
//! shape is held for writing, so that nothing changes meanwhile; for a file its lock.

use crate::inode::{Above, GROWN_UNKNOWN, Inode, Placed, Spot};
use crate::keys::{self, Place, Range, damaged};
use crate::record::{Record, weight_of};
use crate::seen::keep_epoch;
use crate::{Betr, Rule};
use ashlar_inodes::visit;
use ashlar_pool::{Applied, Txn, patches};
use ashlar_vfs::{Ino, Result};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How much of [`crate::Zones::largest`] may be added before sums are looked at, and the rest is the bound that is then applied: so
/// that nothing that is no zone's root is ever larger.
const SLACK: u64 = 8;

/// What a move in the making builds.
pub(crate) struct Built {
    pub(crate) place: Place,
    /// The file whose contents are built there: others at this place are somebody else's. `None`: all that lies below it.
    pub(crate) file: Option<Ino>,
}

impl Built {
    /// As it is noted: the number of the file, little-endian, or nothing.
    fn encode(&self) -> Bytes {
        self.file.map_or(Bytes::new(), |ino| Bytes::copy_from_slice(&ino.to_le_bytes()))
    }

    fn decode(key: &[u8], value: &[u8]) -> ashlar_block::Result<Built> {
        let file = match value {
            [] => None,
            _ => Some(u64::from_le_bytes(value.try_into().map_err(|_| damaged("a note of a move is cut short"))?)),
        };
        Ok(Built { place: Place::decode(&key[1..])?, file })
    }
}

/// What else a move changes, in the transaction in which it happens.
#[derive(Default)]
pub(crate) struct Around {
    /// Before the old name goes, and the new one comes.
    pub(crate) before: Txn,
    /// After that.
    pub(crate) after: Txn,
}

/// A move in the making: transactions of copies.
pub(crate) struct Move<'a> {
    betr: &'a Betr,
    parts: Vec<Txn>,
}

impl Move<'_> {
    pub(crate) fn new(betr: &Betr) -> Move<'_> {
        Move { betr, parts: Vec::new() }
    }

    fn put(&mut self, key: &[u8], value: Bytes) {
        let full = |part: &Txn| part.operations_len() >= self.betr.options.part_len_max;
        if self.parts.last().is_none_or(full) {
            self.parts.push(Txn::new());
        }
        if let Some(part) = self.parts.last_mut() {
            self.betr.volume.put(part, key, value);
        }
    }

    /// Copies the keys of a range, with what `name` makes of each.
    pub(crate) async fn copy(&mut self, range: &Range, name: impl Fn(&[u8]) -> Vec<u8>) -> Result<()> {
        let (mut low, high) = range.clone();
        loop {
            let page = self.betr.volume.page(&low, Some(&high), ashlar_inodes::PAGE).await?;
            for (key, value) in page.entries {
                // A copy: a slice would keep the whole index node in memory, as part of the memtable.
                self.put(&name(&key), Bytes::copy_from_slice(&value));
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None => return Ok(()),
            }
        }
    }

    /// Copies what lies below a place to another, and deletes it in `last`. Sums of the place itself stay.
    pub(crate) async fn copy_below(&mut self, from: &Place, to: &Place, last: &mut Txn) -> Result<()> {
        for range in [keys::META, keys::DATA, keys::SUMS].map(|prefix| keys::below(prefix, from)) {
            let moved = |key: &[u8]| [&key[..1], &Place::moved(&key[1..], from, to)].concat();
            self.copy(&range, moved).await?;
            self.betr.volume.delete_range(last, &range.0, &range.1);
        }
        Ok(())
    }

    /// Commits the copies: a single part as part of the last transaction, several before it, after a note of what is built.
    /// Whether there is a note.
    pub(crate) async fn build(mut self, last: &mut Txn, target: &Built) -> Result<bool> {
        let betr = self.betr;
        if self.parts.len() == 1
            && let Some(part) = self.parts.pop()
        {
            let mut whole = part;
            whole.append(std::mem::take(last));
            *last = whole;
            return Ok(false);
        }
        if self.parts.is_empty() {
            return Ok(false);
        }
        let note = keys::of(keys::BUILDING, &target.place);
        if betr.keeps(Rule::NoteBeforeBuilding) {
            let mut txn = Txn::new();
            betr.volume.put(&mut txn, &note, target.encode());
            betr.volume.commit(txn).await?;
        }
        for part in self.parts {
            if let Err(error) = betr.volume.commit(part).await {
                drop(betr.forget_built(target).await);
                return Err(error.into());
            }
        }
        betr.volume.delete(last, &note);
        Ok(true)
    }
}

impl Betr {
    /// Adds to the sums of a directory and those above it in its zone, in `txn`, and notes how much they have grown.
    pub(crate) fn count(&self, txn: &mut Txn, directory: &Arc<Inode>, delta: [i64; 2]) {
        if delta == [0, 0] {
            return;
        }
        for at in directory.up_to_zone() {
            let key = keys::of(keys::SUMS, &at.place());
            self.volume.overlay(txn, &key, patches::sums(delta));
            let mut state = at.state();
            state.own.grown = state.own.grown.saturating_add(delta.iter().map(|number| (*number).max(0) as u64).sum());
            if delta.iter().any(|number| *number < 0) && state.own.is_root_of_zone() {
                drop(state);
                self.shrunk.lock().insert(at.ino);
            }
        }
    }

    /// Counts what a changed record of an inode weighs more or less, for the directories above it.
    pub(crate) fn count_change(&self, txn: &mut Txn, inode: &Arc<Inode>, record: &Record) {
        let inline = self.zones.inline.0;
        let (before, spot) = {
            let state = inode.state();
            (weight_of(&state.record, inline), state.own.spot.clone())
        };
        if let Spot::Named(above) = spot {
            let after = weight_of(record, inline);
            self.count(txn, &above.directory, [after[0] - before[0], after[1] - before[1]]);
        }
    }

    /// Contents and metadata below a directory in its zone.
    pub(crate) async fn sums(&self, place: &Place) -> Result<[i64; 2]> {
        let value = self.volume.get(&keys::of(keys::SUMS, place)).await?;
        Ok(value.map_or(Ok([0, 0]), |value| patches::read_sums(&value))?)
    }

    /// Whether something of this weight must be a zone.
    fn is_large(&self, weight: [i64; 2]) -> bool {
        let bound = self.zones.largest.0 - self.zones.largest.0 / SLACK;
        weight.iter().any(|number| *number > bound as i64)
    }

    /// Notes what may have outgrown its zone after a change of this inode. The caller holds the shape.
    pub(crate) async fn look_at_sums(&self, inode: &Arc<Inode>) -> Result<()> {
        let all = inode.up_to_zone();
        for at in &all[..all.len() - 1] {
            let (directory, grown, weight) = {
                let mut state = at.state();
                let due = state.own.grown >= self.zones.largest.0 / SLACK && state.own.grown != GROWN_UNKNOWN;
                state.own.grown = if due { 0 } else { state.own.grown };
                (state.record.is_directory(), due, weight_of(&state.record, self.zones.inline.0))
            };
            let large = match directory {
                true => grown && self.is_large(self.sums(&at.place()).await?),
                false => self.is_large(weight),
            };
            if large {
                self.grown.lock().insert(at.ino);
            }
        }
        Ok(())
    }

    /// Makes zones of what has outgrown its own. The caller holds nothing.
    pub(crate) async fn maintain(&self) -> Result<()> {
        while !self.grown.lock().is_empty() {
            let _shape = self.shape.write().await;
            let Some(ino) = self.grown.lock().pop_last() else { return Ok(()) };
            let Some(inode) = self.table.get(ino) else { continue };
            // From below: what is a zone no longer counts above.
            let mut all = inode.up_to_zone();
            all.pop();
            for at in all {
                let record = at.record();
                let weight = match record.is_directory() {
                    true => self.sums(&at.place()).await?,
                    false => weight_of(&record, self.zones.inline.0),
                };
                if self.is_large(weight) {
                    self.split(&at).await?;
                }
            }
        }
        Ok(())
    }

    /// Makes an inode that has one name the root of a zone. The caller holds the shape for writing, or for a file its lock.
    pub(crate) async fn split(&self, inode: &Arc<Inode>) -> Result<()> {
        let Some(above) = inode.state().own.above().cloned() else { return Ok(()) };
        let zone = self.new_number().await?;
        self.relocate(inode, Spot::Root(zone, Some(above)), inode.record(), Around::default()).await?.settle().await?;
        self.splits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Merges zones that have become small with those above. The caller holds nothing.
    pub(crate) async fn merge_small(&self) -> Result<()> {
        let candidates = std::mem::take(&mut *self.shrunk.lock());
        for ino in candidates {
            let _shape = self.shape.write().await;
            let Some(inode) = self.table.get(ino) else { continue };
            self.merge(&inode).await?;
        }
        Ok(())
    }

    /// Merges a zone with the one above, if it is small and nothing above becomes large by it.
    async fn merge(&self, inode: &Arc<Inode>) -> Result<()> {
        let (above, record) = {
            let state = inode.state();
            let Spot::Root(_, Some(above)) = &state.own.spot else { return Ok(()) };
            (above.clone(), state.record.clone())
        };
        if record.links == 0 || (!record.is_directory() && record.links > 1) {
            return Ok(());
        }
        let own = weight_of(&record, self.zones.inline.0);
        let sums = self.sums(&inode.place()).await?;
        let moved = [own[0] + sums[0], own[1] + sums[1]];
        let large = self.is_large(if record.is_directory() { sums } else { own });
        if moved.iter().any(|number| *number >= self.zones.smallest.0 as i64) || large {
            return Ok(());
        }
        let above_it = above.directory.up_to_zone();
        for at in &above_it[..above_it.len() - 1] {
            let sums = self.sums(&at.place()).await?;
            if self.is_large([sums[0] + moved[0], sums[1] + moved[1]]) {
                return Ok(());
            }
        }
        let to = above.directory.place().child(above.position);
        if to.depth() + self.depth_below(&inode.place()).await? > keys::DEPTH_MAX {
            return Ok(());
        }
        self.relocate(inode, Spot::Named(above), record, Around::default()).await?.settle().await?;
        self.merges.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Names on the longest way down from a place in its zone.
    pub(crate) async fn depth_below(&self, place: &Place) -> Result<usize> {
        let (low, high) = keys::below(keys::META, place);
        let mut longest = place.depth();
        let note = |key: &[u8], _: &Bytes| {
            longest = longest.max(Place::decode(&key[1..])?.depth());
            Ok(std::ops::ControlFlow::Continue(()))
        };
        visit(&self.volume, &low, &high, note).await?;
        Ok(longest - place.depth())
    }

    /// Moves an inode and what lies below it in its zone to another spot, and stores `record` there, in the last transaction; `around` is
    /// in that, too. The caller holds the shape for writing, or for a file its lock and that of the directory above the new spot. What has
    /// the new name must be gone before. An error says that nothing moved; else the caller settles, when what it knows of the rest of the
    /// transaction is in memory too.
    pub(crate) async fn relocate(
        &self,
        inode: &Arc<Inode>,
        to: Spot,
        record: Record,
        Around { before: mut last, after }: Around,
    ) -> Result<Applied<'_>> {
        let inline = self.zones.inline.0;
        let (from, from_spot) = (inode.place(), inode.state().own.spot.clone());
        let target = match &to {
            Spot::Named(above) => above.directory.place().child(above.position),
            Spot::Root(zone, _) => Place::root_of(*zone),
            Spot::Orphan(place) => place.clone(),
        };
        let built = Built { place: target.clone(), file: (!record.is_directory()).then_some(inode.ino) };
        let mut inside = [0, 0];
        let mut noted = false;
        if target != from {
            let mut moving = Move::new(self);
            if record.is_directory() {
                self.evacuate(&from).await?;
                // If building fails, all that lies below the target goes: nothing of a file in use may be there, left from a
                // directory that had this place before.
                self.evacuate(&target).await?;
                inside = self.sums(&from).await?;
                moving.copy_below(&from, &target, &mut last).await?;
                self.volume.delete(&mut last, &keys::of(keys::SUMS, &from));
                if inside != [0, 0] {
                    self.volume.put(&mut last, &keys::of(keys::SUMS, &target), patches::sums(inside));
                }
            }
            if record.contents.overlaid {
                let contents = keys::contents(&from, inode.ino);
                let tail = |key: &[u8]| [&keys::of(keys::DATA, &target), &key[key.len() - keys::DATA_TAIL..]].concat();
                moving.copy(&contents, tail).await?;
                self.volume.delete_range(&mut last, &contents.0, &contents.1);
            }
            noted = moving.build(&mut last, &built).await?;
        }
        // The old name, and the new one.
        match &from_spot {
            Spot::Named(above) | Spot::Root(_, Some(above)) => {
                let key = keys::of(keys::META, &above.directory.place().child(above.position));
                self.volume.delete(&mut last, &key);
                let stored = self.stored_in(&from_spot, &inode.record()).weight(inline);
                let sums = if matches!(from_spot, Spot::Named(_)) { inside } else { [0, 0] };
                self.count(&mut last, &above.directory, [-stored[0] - sums[0], -stored[1] - sums[1]]);
            }
            Spot::Orphan(_) => self.volume.delete(&mut last, &keys::numbered(keys::ORPHAN, inode.ino)),
            Spot::Root(_, None) => {}
        }
        if let (Spot::Root(..), true) = (&from_spot, target != from) {
            self.volume.delete(&mut last, &keys::of(keys::META, &from));
        }
        self.put_spot(&mut last, &to, &record);
        if let Spot::Named(above) | Spot::Root(_, Some(above)) = &to {
            let stored = self.stored_in(&to, &record).weight(inline);
            let sums = if matches!(to, Spot::Named(_)) { inside } else { [0, 0] };
            self.count(&mut last, &above.directory, [stored[0] + sums[0], stored[1] + sums[1]]);
        }
        if let Spot::Orphan(place) = &to {
            self.note_orphan(&mut last, place, &record);
        }
        last.append(after);
        let applied = match self.volume.apply(last).await {
            Ok(applied) => applied,
            Err(error) => {
                if noted {
                    // If this fails too, the next opening does it.
                    drop(self.forget_built(&built).await);
                }
                return Err(error.into());
            }
        };
        let mut state = inode.state();
        state.own.spot = to;
        state.adopt(record, applied.seq);
        // Who counts what is stored may have looked where it was; contents are what they were.
        let version = state.version;
        state.stored_changed();
        keep_epoch(&mut state, version);
        Ok(applied)
    }

    /// Forgets what was built where nothing leads yet.
    async fn forget_built(&self, built: &Built) -> Result<()> {
        let place = &built.place;
        let mut txn = Txn::new().deleting();
        match built.file {
            Some(ino) => {
                let (low, high) = keys::contents(place, ino);
                self.volume.delete_range(&mut txn, &low, &high);
            }
            None => {
                for (low, high) in [keys::META, keys::DATA, keys::SUMS].map(|prefix| keys::below(prefix, place)) {
                    self.volume.delete_range(&mut txn, &low, &high);
                }
                self.volume.delete(&mut txn, &keys::of(keys::SUMS, place));
            }
        }
        self.volume.delete(&mut txn, &keys::of(keys::BUILDING, place));
        self.volume.commit(txn).await?;
        Ok(())
    }

    /// Finishes what a crash interrupted: forgets what was being built.
    pub(crate) async fn forget_unfinished(&self) -> Result<()> {
        for (key, value) in self.all_under(keys::BUILDING).await? {
            self.forget_built(&Built::decode(&key, &value)?).await?;
        }
        for (key, _) in self.all_under(keys::FILLING).await? {
            let range = keys::last_number(&key)?;
            let mut txn = Txn::new().deleting();
            self.volume.discard(&mut txn, keys::range_base(range), keys::RANGE_ALL);
            self.volume.delete(&mut txn, &key);
            self.volume.commit(txn).await?;
        }
        Ok(())
    }

    /// Brings the contents of files without names away from below a place: what lies there will move.
    async fn evacuate(&self, place: &Place) -> Result<()> {
        if !self.keeps(Rule::EvacuateBeforeMoving) {
            return Ok(());
        }
        let inside: Vec<Ino> = {
            let orphans = self.orphans.lock();
            orphans.iter().filter(|(_, at)| at.is_below(place)).map(|(ino, _)| *ino).collect()
        };
        for ino in inside {
            let Some(inode) = self.table.get(ino) else { continue };
            let to = Place::root_of(self.new_number().await?);
            self.move_orphan(&inode, to).await?;
        }
        Ok(())
    }

    /// Moves the contents of a file without names to a place that is nobody else's. The caller holds its lock, or the shape for
    /// writing.
    pub(crate) async fn move_orphan(&self, inode: &Arc<Inode>, to: Place) -> Result<()> {
        let applied =
            Box::pin(self.relocate(inode, Spot::Orphan(to.clone()), inode.record(), Around::default())).await?;
        self.orphans.lock().insert(inode.ino, to);
        Ok(applied.settle().await.map(drop)?)
    }

    /// Where a name would be.
    pub(crate) fn name_at(directory: &Arc<Inode>, position: u64, name: &[u8]) -> Above {
        Above { directory: directory.clone(), position, name: Bytes::copy_from_slice(name) }
    }

    /// Stored blocks of the dictionary for a file.
    pub(crate) async fn overlaid_blocks(&self, place: &Place, ino: Ino) -> Result<u64> {
        let (low, high) = keys::contents(place, ino);
        let mut count = 0;
        let note = |_: &[u8], _: &Bytes| {
            count += 1;
            Ok(std::ops::ControlFlow::Continue(()))
        };
        visit(&self.volume, &low, &high, note).await?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Zones};
    use ashlar_block::Device;
    use ashlar_devices::Memory;
    use ashlar_env::sim::simulate;
    use ashlar_pool::{Config, Creation, Pool};
    use ashlar_units::Blocks;
    use ashlar_vfs::{FileKind, FileSystem, NewNode, ROOT, WriteMode};

    /// A move of one file over another stops when its contents are built and the name is not exchanged yet, by an error or a crash.
    #[test]
    fn an_unfinished_move_takes_nothing_of_what_it_was_to_replace() {
        let left = |crash: bool| {
            simulate(1, move |env| async move {
                let device: Device = Arc::new(Memory::new(Blocks(1 << 14)));
                Pool::create(&env, std::slice::from_ref(&device), Creation::default()).await.expect("created");
                let pool = Pool::open(&env, vec![device], Config::default()).await.expect("opened");
                let volume = pool.create_volume("v").await.expect("a volume");
                Betr::format(&volume, 0, 0, Zones::default()).await.expect("formatted");
                let options = Options { part_len_max: 1, ..Options::default() };
                let mut betr = Betr::open(volume.clone(), options.clone()).await.expect("a file system");
                for (name, byte) in [(b"a", 1), (b"b", 2)] {
                    let node = NewNode {
                        kind: FileKind::File,
                        permissions: 0,
                        uid: 0,
                        gid: 0,
                        device: 0,
                        umask: 0,
                        open: false,
                    };
                    let file = betr.create(ROOT, name, node).await.expect("made").ino;
                    betr.write(file, 0, vec![byte; 12_000].into(), WriteMode::default()).await.expect("written");
                }
                let root = betr.inode(ROOT).expect("there");
                let from = betr.resolve(&root, b"a").await.expect("there");
                let place = betr.resolve(&root, b"b").await.expect("there").place();
                let built = Built { place: place.clone(), file: Some(from.ino) };
                let (mut moving, mut last) = (Move::new(&betr), Txn::new());
                let tail = |key: &[u8]| [&keys::of(keys::DATA, &place), &key[key.len() - keys::DATA_TAIL..]].concat();
                moving.copy(&keys::contents(&from.place(), from.ino), tail).await.expect("copied");
                assert!(moving.build(&mut last, &built).await.expect("built"), "in several transactions");
                if crash {
                    drop((from, root));
                    betr = Betr::open(volume, options).await.expect("a file system");
                } else {
                    betr.forget_built(&built).await.expect("forgotten");
                }
                assert_eq!(betr.audit().await.expect("audited").wrong, Vec::<String>::new());
                let ino = betr.lookup(ROOT, b"b").await.expect("there").ino;
                betr.read(ino, 0, 13_000).await.expect("read").concat()
            })
        };
        assert!([true, false].map(left) == [vec![2; 12_000], vec![2; 12_000]], "the file has lost its contents");
    }
}
