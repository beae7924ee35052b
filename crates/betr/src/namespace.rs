//! Names: looking up, making, removing, listing.

use crate::Betr;
use crate::inode::{Above, Inode, Spot, State, lock_all};
use crate::keys::{self, DEPTH_MAX, Place};
use crate::record::{Entry, Record, Stored};
use ashlar_pool::Txn;
use ashlar_vfs::{Attr, DirEntry, Errno, FileKind, Ino, NAME_LEN_MAX, Name, NewNode, Result, acl};
use bytes::Bytes;
use std::sync::Arc;

/// Most names of one inode.
pub(crate) const LINKS_MAX: u32 = 65_000;
/// Names of one hash in a directory.
const COLLISIONS_MAX: u64 = 256;
/// Longest target of a symbolic link.
const TARGET_LEN_MAX: usize = 4095;
const S_ISGID: u32 = 0o2000;
/// Cookies of `.` and `..`; those of entries are larger.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Entries read from the dictionary at once.
const LISTING_PAGE: usize = 256;

/// Where a name is, or where it would go.
pub(crate) struct Found {
    /// The entry with this name, and its position.
    pub(crate) entry: Option<(u64, Entry)>,
    /// A position for it.
    pub(crate) vacant: u64,
}

impl Betr {
    pub(crate) fn position_of(&self, name: &Name) -> u64 {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(name, self.hash_seed) >> (64 - self.options.hash_bits);
        hash.max(1) * COLLISIONS_MAX
    }

    /// Looks for a name in the directory at `place`.
    pub(crate) async fn find(&self, place: &Place, name: &Name) -> Result<Found> {
        let first = self.position_of(name);
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

    /// A directory that still has a name, for adding to it.
    pub(crate) fn check_directory(directory: &Inode) -> Result<()> {
        let state = directory.state();
        match (state.record.kind, state.record.links) {
            (FileKind::Directory, 0) => Err(Errno::NotFound.into()),
            (FileKind::Directory, _) => Ok(()),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    pub(crate) fn check_name(name: &Name) -> Result<()> {
        if name.len() > NAME_LEN_MAX {
            return Err(Errno::NameTooLong.into());
        }
        let valid = !name.is_empty() && !name.contains(&b'/') && !name.contains(&0) && name != b"." && name != b"..";
        if valid { Ok(()) } else { Err(Errno::Invalid.into()) }
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
            Stored::Record(record) => State::new(record, Spot::Named(above), seq),
            Stored::Zone { zone, .. } => match self.zone_root(zone).await? {
                Some(record) if record.ino == ino => State::new(record, Spot::Root(zone, Some(above)), seq),
                // It is being removed, or was meanwhile.
                _ if self.table.get(ino).is_some() || self.table.evictions() != before => return Ok(None),
                _ => return Err(keys::damaged(format!("an entry names zone {zone}, which has no root")).into()),
            },
        };
        Ok(self.table.admit(before, state))
    }

    /// The inode with this name. The caller holds the shape.
    pub(crate) async fn resolve(&self, directory: &Arc<Inode>, name: &Name) -> Result<(u64, Arc<Inode>)> {
        let place = directory.place();
        loop {
            let before = self.table.evictions();
            let (position, entry) = self.find(&place, name).await?.entry.ok_or(Errno::NotFound)?;
            if let Some(inode) = self.admit_entry(directory, position, entry, before).await? {
                return Ok((position, inode));
            }
        }
    }

    pub(crate) async fn look_up(&self, parent: Ino, name: &Name) -> Result<Attr> {
        if name.len() > NAME_LEN_MAX {
            return Err(Errno::NameTooLong.into());
        }
        let directory = self.inode(parent)?;
        if name == b"." || name == b".." {
            return self.look_around(directory, name);
        }
        match directory.record() {
            Record { links: 0, kind: FileKind::Directory, .. } => return Err(Errno::NotFound.into()),
            record if !record.is_directory() => return Err(Errno::NotDirectory.into()),
            _ => {}
        }
        loop {
            let (_, inode) = self.resolve(&directory, name).await?;
            {
                let mut state = inode.state();
                // It may have lost its last name before the reference was counted.
                if state.record.links > 0 {
                    state.lookups += 1;
                    drop(state);
                    return Ok(Betr::attr(&inode));
                }
            }
            self.let_go(inode).await;
            // Whoever removes it holds the directory until the name is gone.
            drop(directory.lock.read().await);
        }
    }

    /// `.` finds an inode in memory again by its number, `..` the directory above.
    fn look_around(&self, inode: Arc<Inode>, name: &Name) -> Result<Attr> {
        let record = inode.record();
        let found = match (name, record.kind) {
            (b".", _) => inode,
            (_, FileKind::Directory) => self.inode(record.parent)?,
            _ => return Err(Errno::NotDirectory.into()),
        };
        let mut state = found.state();
        if state.record.links == 0 {
            return Err(Errno::Stale.into());
        }
        state.lookups += 1;
        drop(state);
        Ok(Betr::attr(&found))
    }

    /// The record of a new inode in `directory`.
    fn new_record(&self, ino: Ino, directory: &Record, new: &NewNode, target: Bytes) -> Record {
        let inherits = directory.permissions & S_ISGID != 0;
        let is_directory = new.kind == FileKind::Directory;
        Record {
            permissions: new.permissions | if inherits && is_directory { S_ISGID } else { 0 },
            uid: new.uid,
            gid: if inherits { directory.gid } else { new.gid },
            device: new.device,
            size: target.len() as u64,
            parent: if is_directory { directory.ino } else { 0 },
            target,
            ..Record::new(ino, new.kind, self.now())
        }
    }

    /// Gives a new inode what its directory's default access control list says; without one, the umask applies.
    async fn inherit(&self, txn: &mut Txn, directory: &Inode, record: &mut Record, umask: u32) -> Result<()> {
        if record.kind == FileKind::Symlink {
            return Ok(());
        }
        let Some(default) = self.acl(directory, acl::DEFAULT).await? else {
            record.permissions &= !(umask & 0o777);
            return Ok(());
        };
        if record.is_directory() {
            self.volume.put(txn, &keys::xattr(record.ino, acl::DEFAULT), default.encode());
            record.has_xattrs = true;
        }
        let list = default.inherited(record.permissions);
        record.permissions = record.permissions & !0o777 | list.mode();
        if !list.is_plain() {
            self.volume.put(txn, &keys::xattr(record.ino, acl::ACCESS), list.encode());
            record.has_xattrs = true;
        }
        Ok(())
    }

    /// Makes a name and what it names.
    pub(crate) async fn make(&self, parent: Ino, name: &Name, new: NewNode, target: &[u8]) -> Result<Attr> {
        self.admit_change()?;
        Self::check_name(name)?;
        if target.len() > TARGET_LEN_MAX {
            return Err(Errno::NameTooLong.into());
        }
        let directory = self.inode(parent)?;
        let ino = self.new_number().await?;
        let _lock = directory.lock.write().await;
        Self::check_directory(&directory)?;
        let place = directory.place();
        let found = self.find(&place, name).await?;
        if found.entry.is_some() {
            return Err(Errno::Exists.into());
        }
        let mut above = directory.record();
        let mut txn = Txn::new();
        let mut record = self.new_record(ino, &above, &new, Bytes::copy_from_slice(target));
        self.inherit(&mut txn, &directory, &mut record, new.umask).await?;
        if record.is_directory() {
            if above.links >= LINKS_MAX {
                return Err(Errno::TooManyLinks.into());
            }
            above.links += 1;
        }
        (above.modified, above.changed) = (record.born, record.born);
        let name = Above { directory: directory.clone(), position: found.vacant, name: Bytes::copy_from_slice(name) };
        let deep = record.is_directory() && place.depth() + 1 >= DEPTH_MAX;
        let spot = if deep { Spot::Root(self.new_number().await?, Some(name)) } else { Spot::Named(name) };
        self.put_spot(&mut txn, &spot, &record);
        self.count(&mut txn, &directory, self.stored_in(&spot, &record).weight(self.zones.inline.0));
        // In memory first: who finds the name must find this inode.
        let mut state = State::new(record, spot, Default::default());
        (state.lookups, state.handles, state.grown) = (1, u64::from(new.open), 0);
        let inode = self.table.insert(state);
        if let Err(error) = self.commit_record(txn, &directory, above).await {
            let mut state = inode.state();
            (state.lookups, state.handles, state.reaped, state.record.links) = (0, 0, true, 0);
            drop(state);
            self.table.remove_unused(inode);
            return Err(error);
        }
        inode.state().seq = directory.state().seq;
        Ok(Betr::attr(&inode))
    }

    /// What a name of an inode at this spot stands for.
    pub(crate) fn stored_in(&self, spot: &Spot, record: &Record) -> Stored {
        match spot {
            Spot::Root(zone, _) => Stored::Zone { zone: *zone, ino: record.ino, kind: record.kind },
            _ => Stored::Record(record.clone()),
        }
    }

    /// Stores the name of a spot and what it stands for; the root of a zone also at the zone.
    pub(crate) fn put_spot(&self, txn: &mut Txn, spot: &Spot, record: &Record) {
        if let Spot::Root(zone, _) = spot {
            let root = Entry::nameless(record.clone());
            self.volume.put(txn, &keys::of(keys::META, &Place::root_of(*zone)), root.encode());
        }
        if let Spot::Named(above) | Spot::Root(_, Some(above)) = spot {
            let entry = Entry { name: above.name.clone(), stored: self.stored_in(spot, record) };
            let key = keys::of(keys::META, &above.directory.place().child(above.position));
            self.volume.put(txn, &key, entry.encode());
        }
    }

    /// Makes a file without a name. Its place is a zone of its own.
    pub(crate) async fn make_nameless(&self, parent: Ino, new: NewNode) -> Result<Attr> {
        self.admit_change()?;
        let directory = self.inode(parent)?;
        Self::check_directory(&directory)?;
        let (ino, zone) = (self.new_number().await?, self.new_number().await?);
        let mut txn = Txn::new();
        let mut record = Record { links: 0, ..self.new_record(ino, &directory.record(), &new, Bytes::new()) };
        self.inherit(&mut txn, &directory, &mut record, new.umask).await?;
        let place = Place::root_of(zone);
        self.note_orphan(&mut txn, &place, &record);
        let seq = self.volume.commit(txn).await?;
        self.orphans.lock().insert(ino, place.clone());
        let mut state = State::new(record, Spot::Orphan(place), seq);
        (state.lookups, state.handles) = (1, u64::from(new.open));
        let inode = self.table.insert(state);
        Ok(Betr::attr(&inode))
    }

    pub(crate) async fn remove(&self, parent: Ino, name: &Name, directory_wanted: bool) -> Result<()> {
        self.admit_change()?;
        Self::check_name(name)?;
        let directory = self.inode(parent)?;
        Self::check_directory(&directory)?;
        loop {
            let (_, inode) = self.resolve(&directory, name).await?;
            let removed = self.remove_inode(&directory, name, &inode, directory_wanted).await;
            self.let_go(inode).await;
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
        Self::check_directory(directory)?;
        let (position, entry) = self.find(&directory.place(), name).await?.entry.ok_or(Errno::NotFound)?;
        if entry.stored.ino() != inode.ino {
            return Ok(false);
        }
        let is_directory = entry.stored.kind() == FileKind::Directory;
        match (is_directory, directory_wanted) {
            (true, false) => return Err(Errno::IsDirectory.into()),
            (false, true) => return Err(Errno::NotDirectory.into()),
            _ => {}
        }
        if is_directory && !self.is_empty(&inode.place()).await? {
            return Err(Errno::NotEmpty.into());
        }
        let mut txn = Txn::new().deleting();
        let lost = self.lose_name(&mut txn, directory, position, &entry, inode);
        let mut above = directory.record();
        (above.modified, above.changed) = (lost.record.changed, lost.record.changed);
        above.links -= u32::from(is_directory);
        self.commit_record(txn, directory, above).await.inspect_err(|_| lost.undo(inode))?;
        self.adopt_loss(inode, lost, directory.state().seq);
        Ok(true)
    }

    /// Whether nothing lies in the directory at `place`.
    pub(crate) async fn is_empty(&self, place: &Place) -> Result<bool> {
        let (mut low, high) = keys::entries(place, 0);
        loop {
            let page = self.volume.page(&low, Some(&high), 1).await?;
            match (page.entries.is_empty(), page.next) {
                (false, _) => return Ok(false),
                (true, None) => return Ok(true),
                (true, Some(next)) => low = next.to_vec(),
            }
        }
    }

    /// An inode loses a name, in `txn`, and with the last one its place. The caller holds both locks, or the shape for
    /// writing; after the commit it calls [`Betr::adopt_loss`], or [`Loss::undo`].
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
            (state.is_used(), before, state.spot.clone())
        };
        let record = Record { changed: self.now(), ..inode.record() };
        let spot = match spot {
            _ if record.links == 0 => Spot::Orphan(place.clone()),
            Spot::Root(zone, Some(above)) if above.is(directory, position) => Spot::Root(zone, None),
            spot => spot,
        };
        match (record.links, &entry.stored) {
            (0, stored) => {
                if matches!(stored, Stored::Zone { .. }) {
                    self.volume.delete(txn, &keys::of(keys::META, &place));
                }
                if record.is_directory() {
                    self.volume.delete(txn, &keys::of(keys::SUMS, &place));
                }
                if used {
                    self.note_orphan(txn, &place, &record);
                } else {
                    self.forget_file(txn, &place, &record);
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
        (state.record, state.spot, state.reaped) = (loss.record, loss.spot, loss.reaped);
        (state.dirty, state.seq) = (false, state.seq.max(seq));
    }

    pub(crate) async fn list(
        &self,
        ino: Ino,
        mut cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let directory = self.inode(ino)?;
        let record = directory.record();
        if !record.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        for (own, name, target) in [(DOT, &b"."[..], ino), (DOT_DOT, b"..", record.parent)] {
            let entry = DirEntry { ino: target, cookie: own, kind: FileKind::Directory, name, attr: None };
            if cookie < own {
                if !sink(entry) {
                    return Ok(());
                }
                cookie = own;
            }
        }
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
                        Ok((_, inode)) => inode,
                        Err(error) if error.errno == Errno::NotFound => continue,
                        Err(error) => return Err(error),
                    },
                };
                inode.state().lookups += 1;
                let attr = Betr::attr(&inode);
                // Gone meanwhile: then it is not listed.
                let taken = attr.links > 0 && {
                    let entry = DirEntry { ino: attr.ino, cookie, kind: attr.kind, name: &name, attr: Some(attr) };
                    if sink(entry) {
                        true
                    } else {
                        inode.state().lookups -= 1;
                        self.let_go(inode).await;
                        return Ok(());
                    }
                };
                if !taken {
                    inode.state().lookups -= 1;
                    self.let_go(inode).await;
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
    /// The transaction was not committed.
    pub(crate) fn undo(&self, inode: &Inode) {
        inode.state().record.links = self.before;
    }
}
