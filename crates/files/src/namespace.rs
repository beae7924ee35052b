//! Names: looking up, making, removing, moving, listing.

use crate::Files;
use crate::inode::{Inode, State};
use crate::keys::{self, Entry, Record};
use ashlar_inodes::{
    COLLISIONS_MAX, Gone, InodeStore, check_name, check_name_len, check_removal, check_target, commit_new, found_names,
    let_go, list_dots, lock_all, newborn,
};
use ashlar_pool::Txn;
use ashlar_vfs::{Attr, DirEntry, Errno, FileKind, Ino, Name, NewNode, ROOT, RenameMode, Result};
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;

/// Entries read from the dictionary at once.
const LISTING_PAGE: usize = 256;

/// Where a name is, or where it would go.
#[derive(Clone, Debug)]
struct Place {
    /// The entry with this name.
    found: Option<(u64, Entry)>,
    /// A position for it.
    vacant: u64,
    /// The last entry of the chain, which must learn that another follows if `vacant` lies behind it.
    last: Option<(u64, Entry)>,
}

impl Place {
    fn entry(&self) -> Result<(u64, &Entry)> {
        self.found.as_ref().map(|(position, entry)| (*position, entry)).ok_or_else(|| Errno::NotFound.into())
    }
}

impl Files {
    fn position_of(&self, name: &Name) -> u64 {
        ashlar_inodes::position_of(name, self.hash_seed, self.options.hash_bits)
    }

    async fn find(&self, directory: Ino, name: &Name) -> Result<Place> {
        let first = self.position_of(name);
        let mut place = Place { found: None, vacant: first, last: None };
        if self.fresh.lacks(directory, first) {
            return Ok(place);
        }
        let mut vacant = None;
        for position in first..first + COLLISIONS_MAX {
            let Some(value) = self.volume.get(&keys::entry(directory, position)).await? else {
                place.vacant = vacant.unwrap_or(position);
                return Ok(place);
            };
            let entry = Entry::decode(&value)?;
            let more = entry.more;
            if entry.ino == 0 {
                vacant = vacant.or(Some(position));
            } else if entry.name == name {
                place.found = Some((position, entry));
                return Ok(place);
            }
            place.last = Some((position, entry));
            if !more {
                place.vacant = vacant.unwrap_or(position + 1);
                return Ok(place);
            }
        }
        Err(Errno::NoSpace.into())
    }

    /// Puts an entry where `place` says.
    fn put_entry(&self, txn: &mut Txn, directory: Ino, place: &Place, name: &Name, ino: Ino, kind: FileKind) {
        // A removed entry in the middle of its chain is taken over with its mark; at the end the chain grows.
        let more = match &place.last {
            Some((position, last)) if place.vacant > *position => {
                let last = Entry { more: true, ..last.clone() };
                self.volume.put(txn, &keys::entry(directory, *position), last.encode());
                false
            }
            Some((position, last)) if place.vacant == *position => last.more,
            Some(_) => true,
            None => false,
        };
        let entry = Entry { ino, kind, more, name: Bytes::copy_from_slice(name) };
        self.fresh.note(directory, place.vacant);
        self.volume.put(txn, &keys::entry(directory, place.vacant), entry.encode());
    }

    /// The entry at a position now names another inode.
    fn redirect_entry(&self, txn: &mut Txn, directory: Ino, position: u64, entry: &Entry, ino: Ino, kind: FileKind) {
        let entry = Entry { ino, kind, ..entry.clone() };
        self.volume.put(txn, &keys::entry(directory, position), entry.encode());
    }

    pub(crate) fn remove_entry(&self, txn: &mut Txn, directory: Ino, position: u64, entry: &Entry) {
        let key = keys::entry(directory, position);
        if entry.more {
            let vacant = Entry { ino: 0, name: Bytes::new(), ..entry.clone() };
            self.volume.put(txn, &key, vacant.encode());
        } else {
            self.volume.delete(txn, &key);
        }
    }

    /// Stores an inode that has no name, and gives it one in `home`.
    pub(crate) async fn bring_home(&self, home: Ino, record: Record) -> Result<()> {
        let directory = self.load(home).await?;
        let _locks = lock_all(&[&directory]).await;
        let mut above = directory.record();
        let record = match record.is_directory() {
            true => {
                above.add_link()?;
                Record { parent: home, ..record }
            }
            false => Record { links: 1, ..record },
        };
        let mut names = found_names(record.ino);
        let (name, place) = loop {
            let name = names.next().ok_or(Errno::NoSpace)?;
            let place = self.find(home, name.as_bytes()).await?;
            if place.found.is_none() {
                break (name, place);
            }
        };
        above.modify(self.now());
        let mut txn = Txn::new();
        self.put_entry(&mut txn, home, &place, name.as_bytes(), record.ino, record.kind);
        self.put_record(&mut txn, &record);
        self.commit_record(txn, &directory, above).await
    }

    pub(crate) async fn look_up(&self, parent: Ino, name: &Name) -> Result<Attr> {
        check_name_len(name)?;
        let directory = self.load(parent).await?;
        if name == b"." || name == b".." {
            return self.look_around(directory, name).await;
        }
        if directory.state().record.kind != FileKind::Directory {
            return Err(Errno::NotDirectory.into());
        }
        let mut gone = Gone::default();
        loop {
            let found = self.find(parent, name).await?;
            let (position, ino) = found.entry().map(|(position, entry)| (position, entry.ino))?;
            let Some(inode) = self.inode_named(parent, name, ino).await? else { continue };
            {
                let mut state = inode.state();
                (state.lookups, state.own) = (state.lookups + 1, Some((parent, position)));
            }
            // It may have lost its last name and been reaped before the reference was counted.
            if inode.state().record.links > 0 {
                return Ok(inode.attr());
            }
            inode.state().lookups -= 1;
            let_go(self, inode).await;
            // Whoever removes it, or gives it a name, holds the directory until that is done.
            drop(directory.lock.read().await);
            gone.found(ino)?;
        }
    }

    /// The inode that an entry named a moment ago; `None` if it is gone and the name with it.
    async fn inode_named(&self, directory: Ino, name: &Name, ino: Ino) -> Result<Option<Arc<Inode>>> {
        match self.load(ino).await {
            Err(error) if error.errno == Errno::Stale => {
                if self.find(directory, name).await?.found.is_some_and(|(_, entry)| entry.ino == ino) {
                    return Err(keys::damaged(format!("an entry names inode {ino}, which does not exist")).into());
                }
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// `.` finds any inode again by its number, `..` the directory above; file handles need both.
    async fn look_around(&self, inode: Arc<Inode>, name: &Name) -> Result<Attr> {
        let record = inode.record();
        let found = match (name, record.kind) {
            (b".", _) => inode,
            (_, FileKind::Directory) => self.load(record.parent).await?,
            _ => return Err(Errno::NotDirectory.into()),
        };
        if found.state().record.links == 0 {
            let_go(self, found).await;
            return Err(Errno::Stale.into());
        }
        found.state().lookups += 1;
        Ok(found.attr())
    }

    /// Makes a name and what it names.
    pub(crate) async fn make(&self, parent: Ino, name: &Name, new: NewNode, target: &[u8]) -> Result<Attr> {
        self.admit_change()?;
        check_name(name)?;
        check_target(target)?;
        let directory = self.load(parent).await?;
        let ino = self.numbers.take(&self.volume).await?;
        let _locks = lock_all(&[&directory]).await;
        directory.state().record.check_directory()?;
        let place = self.find(parent, name).await?;
        if place.found.is_some() {
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
        self.put_entry(&mut txn, parent, &place, name, ino, record.kind);
        self.put_record(&mut txn, &record);
        let state = State::new(record, None, Default::default()).used(new.open);
        commit_new(self, &self.table, txn, (&directory, above), state).await
    }

    /// Makes a file without a name.
    pub(crate) async fn make_nameless(&self, parent: Ino, new: NewNode) -> Result<Attr> {
        self.admit_change()?;
        let directory = self.load(parent).await?;
        directory.state().record.check_directory()?;
        let ino = self.numbers.take(&self.volume).await?;
        let mut txn = Txn::new();
        let record = Record { links: 0, ..newborn(self, &mut txn, &directory, ino, &new, &[]).await? };
        self.put_record(&mut txn, &record);
        self.volume.put(&mut txn, &keys::orphan(ino), Bytes::new());
        let seq = self.volume.commit(txn).await?;
        Ok(self.table.insert(State::new(record, None, seq).used(new.open)).attr())
    }

    pub(crate) async fn add_link(&self, ino: Ino, parent: Ino, name: &Name) -> Result<Attr> {
        self.admit_change()?;
        check_name(name)?;
        let (inode, directory) = (self.load(ino).await?, self.load(parent).await?);
        let _locks = lock_all(&[&inode, &directory]).await;
        directory.state().record.check_directory()?;
        let place = self.find(parent, name).await?;
        if place.found.is_some() {
            return Err(Errno::Exists.into());
        }
        let mut record = inode.record();
        let mut txn = Txn::new();
        if record.is_directory() {
            return Err(Errno::NotPermitted.into());
        }
        if record.links == 0 {
            self.volume.delete(&mut txn, &keys::orphan(ino));
        }
        record.add_link()?;
        record.changed = self.now();
        self.put_entry(&mut txn, parent, &place, name, ino, record.kind);
        let mut above = directory.record();
        above.modify(record.changed);
        self.commit_records(txn, vec![(&inode, record), (&directory, above)]).await?;
        inode.state().lookups += 1;
        Ok(inode.attr())
    }

    /// An inode loses a name, in `txn`. Its new record, which the caller commits with that.
    fn lose_name(&self, txn: &mut Txn, inode: &Inode) -> Record {
        let mut record = inode.record();
        record.links = if record.kind == FileKind::Directory { 0 } else { record.links.saturating_sub(1) };
        record.changed = self.now();
        if record.links == 0 {
            self.volume.put(txn, &keys::orphan(inode.ino), Bytes::new());
        }
        record
    }

    /// Whether nothing but removed entries is left; removed ones are deleted in `txn`.
    async fn sweep_if_empty(&self, txn: &mut Txn, directory: Ino) -> Result<bool> {
        let mut low = keys::entry(directory, 0);
        let high = keys::entry(directory + 1, 0);
        loop {
            let page = self.volume.page(&low, Some(&high), LISTING_PAGE).await?;
            for (key, value) in &page.entries {
                if Entry::decode(value)?.ino != 0 {
                    return Ok(false);
                }
                self.volume.delete(txn, key);
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None => return Ok(true),
            }
        }
    }

    pub(crate) async fn remove(&self, parent: Ino, name: &Name, directory_wanted: bool) -> Result<()> {
        self.admit_change()?;
        check_name(name)?;
        let directory = self.load(parent).await?;
        loop {
            let ino = self.find(parent, name).await?.entry()?.1.ino;
            let Some(inode) = self.inode_named(parent, name, ino).await? else { continue };
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
        let place = self.find(directory.ino, name).await?;
        let (position, entry) = place.entry()?;
        if entry.ino != inode.ino {
            return Ok(false);
        }
        check_removal(entry.kind, directory_wanted)?;
        let mut txn = Txn::new().deleting();
        if directory_wanted && !self.sweep_if_empty(&mut txn, inode.ino).await? {
            return Err(Errno::NotEmpty.into());
        }
        self.remove_entry(&mut txn, directory.ino, position, entry);
        let record = self.lose_name(&mut txn, inode);
        let mut above = directory.record();
        above.modify(record.changed);
        if directory_wanted {
            above.links -= 1;
        }
        self.commit_records(txn, vec![(directory, above), (inode, record)]).await?;
        Ok(true)
    }

    /// Whether `directory` is `below` or lies above it.
    async fn is_above(&self, directory: Ino, below: Ino) -> Result<bool> {
        let (mut at, mut seen) = (below, HashSet::new());
        while at != directory {
            if at == ROOT {
                return Ok(false);
            }
            if !seen.insert(at) {
                return Err(keys::damaged(format!("directory {at} lies in itself")).into());
            }
            let inode = self.named(at).await?;
            at = inode.state().record.parent;
            self.remove_unused(inode);
        }
        Ok(true)
    }

    pub(crate) async fn move_name(&self, from: (Ino, &Name), to: (Ino, &Name), mode: RenameMode) -> Result<()> {
        self.admit_change()?;
        check_name(from.1)?;
        check_name(to.1)?;
        let (source_dir, target_dir) = (self.load(from.0).await?, self.load(to.0).await?);
        let whiteout = match mode.whiteout() {
            Some(new) => Some((self.numbers.take(&self.volume).await?, new)),
            None => None,
        };
        let _one = if from.0 == to.0 { None } else { Some(self.moving.lock().await) };
        loop {
            let source_ino = self.find(from.0, from.1).await?.entry()?.1.ino;
            let target_ino = self.find(to.0, to.1).await?.found.map(|(_, entry)| entry.ino);
            let Some(source) = self.inode_named(from.0, from.1, source_ino).await? else { continue };
            let whiteout = whiteout.clone();
            let moving = Move {
                files: self,
                from,
                to,
                source: &source,
                source_dir: &source_dir,
                target_dir: &target_dir,
                replaced: None,
                whiteout,
            };
            let moved = moving.over(target_ino, mode).await;
            let_go(self, source).await;
            if moved? {
                return Ok(());
            }
        }
    }

    pub(crate) async fn list(
        &self,
        ino: Ino,
        cookie: u64,
        attributes: bool,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let directory = self.load(ino).await?;
        let record = directory.record();
        if !record.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        self.ahead.listed(ino);
        let Some(cookie) = list_dots(&record, cookie, sink) else { return Ok(()) };
        let mut low = keys::entry(ino, cookie.saturating_add(1));
        let high = keys::entry(ino + 1, 0);
        loop {
            let page = self.volume.page(&low, Some(&high), LISTING_PAGE).await?;
            for (key, value) in &page.entries {
                let cookie = keys::number_in(key, 9).ok_or_else(|| keys::damaged("an entry's key is cut short"))?;
                let Entry { ino, kind, name, .. } = Entry::decode(value)?;
                if ino == 0 {
                    continue;
                }
                if !attributes {
                    if !sink(DirEntry { ino, cookie, kind, name: &name, attr: None }) {
                        return Ok(());
                    }
                    continue;
                }
                // Gone meanwhile: then it is not listed.
                let Ok(inode) = self.load(ino).await else { continue };
                let attr = inode.attr();
                if !sink(DirEntry { ino, cookie, kind, name: &name, attr: Some(attr) }) {
                    let_go(self, inode).await;
                    return Ok(());
                }
                let mut state = inode.state();
                (state.lookups, state.own) = (state.lookups + 1, Some((directory.ino, cookie)));
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None => return Ok(()),
            }
        }
    }
}

/// A rename, with the inodes that its names name.
struct Move<'a> {
    files: &'a Files,
    from: (Ino, &'a Name),
    to: (Ino, &'a Name),
    source: &'a Arc<Inode>,
    source_dir: &'a Arc<Inode>,
    target_dir: &'a Arc<Inode>,
    /// What has the new name.
    replaced: Option<&'a Arc<Inode>>,
    /// What is left under the old name, and its number.
    whiteout: Option<(Ino, NewNode)>,
}

impl Move<'_> {
    /// Does it, if `target` is what had the new name a moment ago; false if the names name others by now.
    async fn over(self, target: Option<Ino>, mode: RenameMode) -> Result<bool> {
        let Some(ino) = target else { return self.run(mode).await };
        let Some(target) = self.files.inode_named(self.to.0, self.to.1, ino).await? else { return Ok(false) };
        let files = self.files;
        let moved = Move { replaced: Some(&target), ..self }.run(mode).await;
        let_go(files, target).await;
        moved
    }

    /// Does it; false if the names name others by now.
    async fn run(&self, mode: RenameMode) -> Result<bool> {
        let mut all = vec![self.source_dir, self.target_dir, self.source];
        all.extend(self.replaced);
        let _locks = lock_all(&all).await;
        self.target_dir.state().record.check_directory()?;
        let source = self.files.find(self.from.0, self.from.1).await?;
        let target = self.files.find(self.to.0, self.to.1).await?;
        let named = target.found.as_ref().map(|(_, entry)| entry.ino);
        if source.entry()?.1.ino != self.source.ino || named != self.replaced.map(|inode| inode.ino) {
            return Ok(false);
        }
        self.change(&source, &target, mode).await.map(|()| true)
    }

    /// The transaction.
    async fn change(&self, source: &Place, target: &Place, mode: RenameMode) -> Result<()> {
        let replaced = self.replaced;
        let files = self.files;
        let ((from_dir, _), (to_dir, to_name)) = (self.from, self.to);
        let (position, entry) = source.entry()?;
        let is_directory = entry.kind == FileKind::Directory;
        // Which error comes first is as in Linux.
        match (replaced, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Errno::Exists.into()),
            (None, RenameMode::Exchange) => return Err(Errno::NotFound.into()),
            // Two names of one inode: nothing changes.
            (Some(replaced), _) if replaced.ino == self.source.ino => return Ok(()),
            _ => {}
        }
        if is_directory && from_dir != to_dir && files.is_above(self.source.ino, to_dir).await? {
            return Err(Errno::Invalid.into());
        }
        let now = files.now();
        let mut txn = Txn::new();
        let mut changes: Vec<(&Arc<Inode>, Record)> = Vec::new();
        let mut source_dir = self.source_dir.record();
        let mut target_dir = self.target_dir.record();
        let mut record = self.source.record();
        record.changed = now;
        // How the number of subdirectories changes.
        let (mut leaves, mut arrives) = (u32::from(is_directory), u32::from(is_directory));
        match (&target.found, replaced, mode) {
            (Some((at, other)), Some(inode), RenameMode::Exchange) => {
                let other_is_directory = other.kind == FileKind::Directory;
                if other_is_directory && from_dir != to_dir && files.is_above(inode.ino, from_dir).await? {
                    return Err(Errno::Invalid.into());
                }
                files.redirect_entry(&mut txn, to_dir, *at, other, entry.ino, entry.kind);
                files.redirect_entry(&mut txn, from_dir, position, entry, other.ino, other.kind);
                let mut other = inode.record();
                other.changed = now;
                if other_is_directory {
                    other.parent = from_dir;
                    (leaves, arrives) = (leaves.wrapping_sub(1), arrives.wrapping_sub(1));
                }
                changes.push((inode, other));
            }
            (Some((at, other)), Some(inode), _) => {
                let other_is_directory = other.kind == FileKind::Directory;
                match (is_directory, other_is_directory) {
                    (true, false) => return Err(Errno::NotDirectory.into()),
                    (false, true) if from_dir != to_dir && files.is_above(inode.ino, from_dir).await? => {
                        return Err(Errno::NotEmpty.into());
                    }
                    (false, true) => return Err(Errno::IsDirectory.into()),
                    (true, true) if !files.sweep_if_empty(&mut txn, inode.ino).await? => {
                        return Err(Errno::NotEmpty.into());
                    }
                    (true, true) => arrives = 0,
                    (false, false) => {}
                }
                files.redirect_entry(&mut txn, to_dir, *at, other, entry.ino, entry.kind);
                self.leave(&mut txn, position, entry).await?;
                changes.push((inode, files.lose_name(&mut txn, inode)));
            }
            _ => {
                // The old name comes first: if both share a chain, the new entry's mark must win.
                let left = self.leave(&mut txn, position, entry).await?;
                let place = self.place_after(source, left, target);
                files.put_entry(&mut txn, to_dir, &place, to_name, entry.ino, entry.kind);
            }
        }
        if is_directory {
            record.parent = to_dir;
        }
        changes.push((self.source, record));
        if from_dir == to_dir {
            source_dir.links = source_dir.links.wrapping_sub(leaves).wrapping_add(arrives);
        } else {
            source_dir.links = source_dir.links.wrapping_sub(leaves);
            target_dir.links = target_dir.links.wrapping_add(arrives);
            target_dir.modify(now);
            changes.push((self.target_dir, target_dir));
        }
        source_dir.modify(now);
        changes.push((self.source_dir, source_dir));
        files.commit_records(txn, changes).await
    }

    /// Leaves a whiteout under the old name, or nothing; gives what its entry is then.
    async fn leave(&self, txn: &mut Txn, position: u64, entry: &Entry) -> Result<Entry> {
        let (files, directory) = (self.files, self.from.0);
        let Some((ino, new)) = &self.whiteout else {
            files.remove_entry(txn, directory, position, entry);
            return Ok(Entry { ino: 0, name: Bytes::new(), ..entry.clone() });
        };
        let record = newborn(files, txn, self.source_dir, *ino, new, &[]).await?;
        files.put_record(txn, &record);
        files.redirect_entry(txn, directory, position, entry, *ino, record.kind);
        Ok(Entry { ino: *ino, kind: record.kind, ..entry.clone() })
    }

    /// Where the new name goes, given what is left of the old one in the same transaction.
    fn place_after(&self, source: &Place, left: Entry, target: &Place) -> Place {
        let mut place = target.clone();
        if let (true, Some((position, _))) = (self.from.0 == self.to.0, &source.found)
            && let Some((last_position, last)) = &mut place.last
            && last_position == position
        {
            // The old entry ended the chain. Its place becomes an empty link of the chain, or vanishes with it, or names the whiteout.
            *last = left;
        }
        place
    }
}
