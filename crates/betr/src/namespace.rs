//! Names: looking up, making, removing, listing.

use crate::inode::{Above, Inode, Own, Placed, Spot, State};
use crate::keys::{self, DEPTH_MAX, Place};
use crate::record::{Entry, Record, Stored};
use crate::{Betr, Rule};
use ashlar_inodes::{
    COLLISIONS_MAX, Gone, InodeStore, check_name, check_name_len, check_removal, check_target, commit_new, let_go,
    list_dots, lock_all, newborn,
};
use ashlar_pool::Txn;
use ashlar_vfs::{Attr, DirEntry, Errno, FileKind, Ino, Name, NewNode, Result};
use bytes::Bytes;
use std::sync::Arc;

/// Entries read from the dictionary at once.
const LISTING_PAGE: usize = 256;

/// Files in use without names, up to which it is looked whether one lies below a directory that is removed.
const ORPHANS_LOOKED_AT: usize = 1000;

/// Where a name is, or where it would go.
pub(crate) struct Found {
    /// The entry with this name, and its position.
    pub(crate) entry: Option<(u64, Entry)>,
    /// A position for it.
    pub(crate) vacant: u64,
}

impl Found {
    /// The inode with this name.
    pub(crate) fn ino(&self) -> Option<Ino> {
        self.entry.as_ref().map(|(_, entry)| entry.stored.ino())
    }
}

impl Betr {
    pub(crate) fn position_of(&self, name: &Name) -> u64 {
        ashlar_inodes::position_of(name, self.hash_seed, self.options.hash_bits)
    }

    /// Looks for a name in a directory.
    pub(crate) async fn find(&self, directory: &Arc<Inode>, name: &Name) -> Result<Found> {
        let first = self.position_of(name);
        if self.fresh.lacks(directory.ino, first) {
            return Ok(Found { entry: None, vacant: first });
        }
        let place = directory.place();
        if let Some(value) = self.volume.get(&keys::of(keys::META, &place.child(first))).await? {
            let entry = Entry::decode(&value)?;
            if entry.name == name {
                return Ok(Found { entry: Some((first, entry)), vacant: first });
            }
        }
        // Not there, or not only there: all names of this hash.
        let (mut low, high) =
            (keys::of(keys::META, &place.child(first)), keys::of(keys::META, &place.child(first + COLLISIONS_MAX)));
        let mut vacant = first;
        loop {
            let page = self.volume.page(&low, Some(&high), COLLISIONS_MAX as usize).await?;
            for (key, value) in &page.entries {
                let (position, entry) = (keys::last_number(key)?, Entry::decode(value)?);
                if entry.name == name {
                    return Ok(Found { entry: Some((position, entry)), vacant: position });
                }
                vacant = if position == vacant { vacant + 1 } else { vacant };
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None if vacant < first + COLLISIONS_MAX => return Ok(Found { entry: None, vacant }),
                None => return Err(Errno::NoSpace.into()),
            }
        }
    }

    /// The inode that an entry, read after `before` evictions, stands for; `None`: read the entry again.
    pub(crate) async fn admit_entry(
        &self,
        directory: &Arc<Inode>,
        position: u64,
        entry: Entry,
        before: u64,
    ) -> Result<Option<Arc<Inode>>> {
        let Entry { name, stored } = entry;
        let ino = stored.ino();
        if let Some(inode) = self.table.get(ino) {
            return Ok(Some(inode));
        }
        // A copy: a slice would keep the whole index node in memory.
        let above = Above { directory: directory.clone(), position, name: Bytes::copy_from_slice(&name) };
        // Which commit concerned it last is not known any more, but it was not a later one.
        let seq = self.pool().newest();
        let state = match stored {
            Stored::Record(record) => State::new(record, Own::at(Spot::Named(above)), seq),
            Stored::Zone { zone, .. } => match self.zone_root(zone).await? {
                Some(record) if record.ino == ino => State::new(record, Own::at(Spot::Root(zone, Some(above))), seq),
                // It is being removed, or was meanwhile.
                _ if self.table.get(ino).is_some() || self.table.evictions() != before => return Ok(None),
                _ => return Err(keys::damaged(format!("an entry names zone {zone}, which has no root")).into()),
            },
        };
        Ok(self.table.admit(before, state))
    }

    /// The inode with this name, if anything has it. The caller holds the shape.
    pub(crate) async fn named(&self, directory: &Arc<Inode>, name: &Name) -> Result<Option<Arc<Inode>>> {
        loop {
            let before = self.table.evictions();
            let Some((position, entry)) = self.find(directory, name).await?.entry else { return Ok(None) };
            if let Some(inode) = self.admit_entry(directory, position, entry, before).await? {
                return Ok(Some(inode));
            }
        }
    }

    /// The same where something must have it.
    pub(crate) async fn resolve(&self, directory: &Arc<Inode>, name: &Name) -> Result<Arc<Inode>> {
        Ok(self.named(directory, name).await?.ok_or(Errno::NotFound)?)
    }

    pub(crate) async fn look_up(&self, parent: Ino, name: &Name) -> Result<Attr> {
        check_name_len(name)?;
        if name == b"." || name == b".." {
            let inode = self.by_number(parent).await?;
            let found = self.look_around(&inode, name).await;
            let_go(self, inode).await;
            return found;
        }
        let directory = self.inode(parent)?;
        directory.state().record.check_directory()?;
        let mut gone = Gone::default();
        loop {
            let inode = self.resolve(&directory, name).await?;
            {
                let mut state = inode.state();
                // It may have lost its last name before the reference was counted.
                if state.record.links > 0 {
                    state.lookups += 1;
                    return Ok(state.attr());
                }
            }
            let ino = inode.ino;
            let_go(self, inode).await;
            // Whoever removes it holds the directory until the name is gone.
            drop(directory.lock.read().await);
            gone.found(ino)?;
        }
    }

    /// `.` finds an inode by its number, `..` the directory above.
    async fn look_around(&self, inode: &Arc<Inode>, name: &Name) -> Result<Attr> {
        let record = inode.record();
        let found = match (name, record.kind) {
            (b".", _) => inode.clone(),
            (_, FileKind::Directory) => self.by_number(record.parent).await?,
            _ => return Err(Errno::NotDirectory.into()),
        };
        let attr = {
            let mut state = found.state();
            let named = state.record.links > 0;
            state.lookups += u64::from(named);
            named.then(|| state.attr())
        };
        let_go(self, found).await;
        Ok(attr.ok_or(Errno::Stale)?)
    }

    /// Makes a name and what it names.
    pub(crate) async fn make(&self, parent: Ino, name: &Name, new: NewNode, target: &[u8]) -> Result<Attr> {
        self.admit_change()?;
        check_name(name)?;
        check_target(target)?;
        let directory = self.inode(parent)?;
        let ino = self.new_number().await?;
        let _lock = directory.lock.write().await;
        directory.state().record.check_directory()?;
        let found = self.find(&directory, name).await?;
        if found.entry.is_some() {
            return Err(Errno::Exists.into());
        }
        let mut above = directory.record();
        let mut txn = Txn::new();
        let record = newborn(self, &mut txn, &directory, ino, &new, target).await?;
        if record.is_directory() {
            above.add_link()?;
            self.fresh.made(ino);
        }
        above.modify(record.born);
        let name = Above { directory: directory.clone(), position: found.vacant, name: Bytes::copy_from_slice(name) };
        let deep = record.is_directory() && directory.place().depth() + 1 >= DEPTH_MAX;
        let spot = if deep { Spot::Root(self.new_number().await?, Some(name)) } else { Spot::Named(name) };
        self.put_spot(&mut txn, &spot, &record);
        self.count(&mut txn, &directory, self.stored_in(&spot, &record).weight(self.zones.inline.0));
        let state = State::new(record, Own { grown: 0, ..Own::at(spot) }, Default::default()).used(new.open);
        commit_new(self, &self.table.all, txn, (&directory, above), state).await
    }

    /// What a name of an inode at this spot stands for.
    pub(crate) fn stored_in(&self, spot: &Spot, record: &Record) -> Stored {
        match spot {
            Spot::Root(zone, _) => Stored::Zone { zone: *zone, ino: record.ino, kind: record.kind },
            _ => Stored::Record(record.clone()),
        }
    }

    /// Stores the name of a spot and what it stands for, and the way there; the root of a zone also at the zone.
    pub(crate) fn put_spot(&self, txn: &mut Txn, spot: &Spot, record: &Record) {
        self.put_way(txn, spot, record);
        if let Spot::Root(zone, _) = spot {
            let root = Entry::nameless(record.clone());
            self.volume.put(txn, &keys::of(keys::META, &Place::root_of(*zone)), root.encode());
        }
        if let Spot::Named(above) | Spot::Root(_, Some(above)) = spot {
            let entry = Entry { name: above.name.clone(), stored: self.stored_in(spot, record) };
            let key = keys::of(keys::META, &above.directory.place().child(above.position));
            if self.keeps(Rule::NoteNames) {
                self.fresh.note(above.directory.ino, above.position);
            }
            self.volume.put(txn, &key, entry.encode());
        }
    }

    /// Makes a file without a name. Its place is a zone of its own.
    pub(crate) async fn make_nameless(&self, parent: Ino, new: NewNode) -> Result<Attr> {
        self.admit_change()?;
        let directory = self.inode(parent)?;
        directory.state().record.check_directory()?;
        let (ino, zone) = (self.new_number().await?, self.new_number().await?);
        let mut txn = Txn::new();
        let record = Record { links: 0, ..newborn(self, &mut txn, &directory, ino, &new, &[]).await? };
        let place = Place::root_of(zone);
        self.note_orphan(&mut txn, &place, &record);
        let seq = self.volume.commit(txn).await?;
        self.orphans.lock().insert(ino, place.clone());
        let state = State::new(record, Own::at(Spot::Orphan(place)), seq).used(new.open);
        Ok(self.table.all.insert(state).attr())
    }

    pub(crate) async fn remove(&self, parent: Ino, name: &Name, directory_wanted: bool) -> Result<()> {
        self.admit_change()?;
        check_name(name)?;
        let directory = self.inode(parent)?;
        directory.state().record.check_directory()?;
        loop {
            let inode = self.resolve(&directory, name).await?;
            let removed = self.remove_inode(&directory, name, &inode, directory_wanted).await;
            let_go(self, inode).await;
            if removed? {
                return Ok(());
            }
        }
    }

    /// Removes a name of this inode; false if it names another by now.
    async fn remove_inode(
        &self,
        directory: &Arc<Inode>,
        name: &Name,
        inode: &Arc<Inode>,
        directory_wanted: bool,
    ) -> Result<bool> {
        let _locks = lock_all(&[directory, inode]).await;
        directory.state().record.check_directory()?;
        let (position, entry) = self.find(directory, name).await?.entry.ok_or(Errno::NotFound)?;
        if entry.stored.ino() != inode.ino {
            return Ok(false);
        }
        let is_directory = entry.stored.kind() == FileKind::Directory;
        check_removal(entry.stored.kind(), directory_wanted)?;
        if is_directory && !self.is_empty(&inode.place()).await? {
            return Err(Errno::NotEmpty.into());
        }
        let mut txn = Txn::new().deleting();
        if is_directory {
            self.gather_deletes(&mut txn, &inode.place());
        }
        let lost = self.lose_name(&mut txn, directory, position, &entry, inode);
        let mut above = directory.record();
        above.modify(lost.record.changed);
        above.links -= u32::from(is_directory);
        let applied = self.apply_record(txn, directory, above).await.inspect_err(|_| lost.undo(inode))?;
        self.adopt_loss(inode, lost, applied.seq);
        self.settle_record(applied, directory).await?;
        Ok(true)
    }

    /// Deletes all names and contents below an empty directory once more, whose keys are all gone already: in two range deletes, which
    /// take the place of those for each, and drop nodes unread.
    fn gather_deletes(&self, txn: &mut Txn, place: &Place) {
        let (low, high) = keys::below(keys::META, place);
        self.volume.delete_range(txn, &low, &high);
        // But contents of files that are in use without names stay where they are.
        let orphans = self.orphans.lock();
        if orphans.len() <= ORPHANS_LOOKED_AT && !orphans.values().any(|orphan| orphan.is_below(place)) {
            let (low, high) = keys::below(keys::DATA, place);
            self.volume.delete_range(txn, &low, &high);
        }
    }

    /// Whether nothing lies in the directory at `place`.
    pub(crate) async fn is_empty(&self, place: &Place) -> Result<bool> {
        let (low, high) = keys::entries(place, 0);
        Ok(self.volume.first(&low, &high, 1).await?.is_empty())
    }

    /// An inode loses a name, in `txn`, and with the last one its place. The caller holds both locks; when it is applied it calls [`Betr::adopt_loss`], and if it is not, [`Loss::undo`].
    pub(crate) fn lose_name(
        &self,
        txn: &mut Txn,
        directory: &Arc<Inode>,
        position: u64,
        entry: &Entry,
        inode: &Arc<Inode>,
    ) -> Loss {
        let place = inode.place();
        self.volume.delete(txn, &keys::of(keys::META, &directory.place().child(position)));
        let weight = entry.stored.weight(self.zones.inline.0).map(|number| -number);
        self.count(txn, directory, weight);
        let (used, before, spot) = {
            let mut state = inode.state();
            let before = state.record.links;
            let record = &mut state.record;
            record.links = if record.is_directory() { 0 } else { record.links.saturating_sub(1) };
            (state.is_used(), before, state.own.spot.clone())
        };
        let record = Record { changed: self.now(), ..inode.record() };
        // A new directory may get the place of one that is gone, and then what lies below is the new one's. Numbers are of
        // one sequence: no zone has that of an inode.
        let rest = if record.is_directory() { Place::root_of(inode.ino) } else { place.clone() };
        let spot = match spot {
            _ if record.links == 0 => Spot::Orphan(rest.clone()),
            Spot::Root(zone, Some(above)) if above.is(directory, position) => Spot::Root(zone, None),
            spot => spot,
        };
        match (record.links, &entry.stored) {
            (0, stored) => {
                self.delete_way(txn, inode.ino);
                if matches!(stored, Stored::Zone { .. }) {
                    self.volume.delete(txn, &keys::of(keys::META, &place));
                }
                if record.is_directory() {
                    self.volume.delete(txn, &keys::of(keys::SUMS, &place));
                }
                if used {
                    self.note_orphan(txn, &rest, &record);
                } else {
                    self.forget_file(txn, &rest, &record);
                }
            }
            _ => self.volume.put(txn, &keys::of(keys::META, &place), Entry::nameless(record.clone()).encode()),
        }
        Loss { record, spot, before, reaped: record_is_gone(used, inode) }
    }

    /// A name was lost: memory follows.
    pub(crate) fn adopt_loss(&self, inode: &Arc<Inode>, loss: Loss, seq: ashlar_pool::Seq) {
        if let (Spot::Orphan(place), false) = (&loss.spot, loss.reaped) {
            self.orphans.lock().insert(inode.ino, place.clone());
        }
        let mut state = inode.state();
        (state.own.spot, state.reaped) = (loss.spot, loss.reaped);
        state.adopt(loss.record, seq);
    }

    pub(crate) async fn list(
        &self,
        ino: Ino,
        cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let directory = self.inode(ino)?;
        let record = directory.record();
        if !record.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        self.ahead.listed(ino);
        let Some(cookie) = list_dots(&record, cookie, sink) else { return Ok(()) };
        if record.links == 0 {
            return Ok(());
        }
        let place = directory.place();
        let (mut low, high) = keys::entries(&place, cookie.saturating_add(1));
        loop {
            let before = self.table.evictions();
            let page = self.volume.page(&low, Some(&high), LISTING_PAGE).await?;
            for (key, value) in &page.entries {
                let (cookie, entry) = (keys::last_number(key)?, Entry::decode(value)?);
                let (ino, kind, name) = (entry.stored.ino(), entry.stored.kind(), entry.name.clone());
                if !attributes {
                    if !sink(DirEntry { ino, cookie, kind, name: &name, attr: None }) {
                        return Ok(());
                    }
                    continue;
                }
                let inode = match self.admit_entry(&directory, cookie, entry, before).await? {
                    Some(inode) => inode,
                    None => match self.resolve(&directory, &name).await {
                        Ok(inode) => inode,
                        Err(error) if error.errno == Errno::NotFound => continue,
                        Err(error) => return Err(error),
                    },
                };
                inode.state().lookups += 1;
                let attr = inode.attr();
                // Gone meanwhile: then it is not listed.
                let taken = attr.links > 0 && {
                    let entry = DirEntry { ino: attr.ino, cookie, kind: attr.kind, name: &name, attr: Some(attr) };
                    if sink(entry) {
                        true
                    } else {
                        inode.state().lookups -= 1;
                        let_go(self, inode).await;
                        return Ok(());
                    }
                };
                if !taken {
                    inode.state().lookups -= 1;
                    let_go(self, inode).await;
                }
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None => return Ok(()),
            }
        }
    }
}

/// Whether an inode that lost a name went with it.
fn record_is_gone(used: bool, inode: &Inode) -> bool {
    !used && inode.state().record.links == 0
}

/// What a lost name leaves in memory.
pub(crate) struct Loss {
    pub(crate) record: Record,
    spot: Spot,
    /// Links before.
    before: u32,
    reaped: bool,
}

impl Loss {
    /// The transaction was not applied.
    pub(crate) fn undo(&self, inode: &Inode) {
        inode.state().record.links = self.before;
    }
}
