//! Moving names, and adding them.

use crate::inode::{Inode, Placed, Spot};
use crate::keys::{self, DEPTH_MAX};
use crate::record::{Entry, Record};
use crate::zones::Around;
use crate::{Betr, Rule};
use ashlar_inodes::{InodeStore, check_name, let_go, lock_all, newborn, visit};
use ashlar_pool::Txn;
use ashlar_vfs::{Attr, Errno, Ino, Name, NewNode, RenameMode, Result};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A name, and what has it.
struct Named {
    directory: Arc<Inode>,
    position: u64,
    entry: Entry,
    inode: Arc<Inode>,
}

/// Whether `inode` is `directory` or lies above it.
fn is_above(inode: &Arc<Inode>, directory: &Arc<Inode>) -> bool {
    let mut at = Some(directory.clone());
    while let Some(here) = at {
        if Arc::ptr_eq(&here, inode) {
            return true;
        }
        at = here.state().own.above().map(|above| above.directory.clone());
    }
    false
}

/// What keeps others out while a name moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The caller holds the shape for reading; the inodes that are concerned are locked. A file moves, and nothing with it.
    Inodes,
    /// The caller holds the shape for writing: what lies below a directory moves with it.
    Shape,
}

/// What came of a move.
#[derive(PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is done.
    Done,
    /// A directory is concerned, so it takes [`Hold::Shape`]. Nothing has changed.
    TakesShape,
    /// The names name others by now. Nothing has changed.
    Again,
}

impl Betr {
    /// Moves a name.
    pub(crate) async fn move_name(
        &self,
        from: (Ino, &Name),
        to: (Ino, &Name),
        mode: RenameMode,
        hold: Hold,
    ) -> Result<Moved> {
        self.admit_change()?;
        check_name(from.1)?;
        check_name(to.1)?;
        let (source_dir, target_dir) = (self.inode(from.0)?, self.inode(to.0)?);
        source_dir.state().record.check_directory()?;
        loop {
            let source = self.resolve(&source_dir, from.1).await?;
            let moved = self.move_over((&source_dir, from.1, &source), (&target_dir, to.1), mode, hold).await;
            let_go(self, source).await;
            match moved? {
                Moved::Again => {}
                moved => return Ok(moved),
            }
        }
    }

    /// Gives what had a name a moment ago that of `to`, over what may have it.
    async fn move_over(
        &self,
        from: (&Arc<Inode>, &Name, &Arc<Inode>),
        to: (&Arc<Inode>, &Name),
        mode: RenameMode,
        hold: Hold,
    ) -> Result<Moved> {
        to.0.state().record.check_directory()?;
        let target = self.named(to.0, to.1).await?;
        let alone =
            !from.2.record().is_directory() && !target.as_ref().is_some_and(|inode| inode.record().is_directory());
        let moved = match hold {
            Hold::Inodes if !alone => self.bring_along(from.2).await.map(|()| Moved::TakesShape),
            _ => self.move_locked(from, to, target.as_ref(), mode).await,
        };
        if let Some(inode) = target {
            let_go(self, inode).await;
        }
        moved
    }

    /// Reads what moves with a directory, so that all of it is in memory when everybody waits for the move.
    async fn bring_along(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.state().own.is_root_of_zone() {
            return Ok(());
        }
        let place = inode.place();
        for (low, high) in [keys::META, keys::DATA, keys::SUMS].map(|prefix| keys::below(prefix, &place)) {
            visit(&self.volume, &low, &high, |_, _| Ok(ControlFlow::Continue(()))).await?;
        }
        Ok(())
    }

    /// The move, with both inodes at hand.
    async fn move_locked(
        &self,
        from: (&Arc<Inode>, &Name, &Arc<Inode>),
        to: (&Arc<Inode>, &Name),
        target: Option<&Arc<Inode>>,
        mode: RenameMode,
    ) -> Result<Moved> {
        let mut all = vec![from.0, to.0, from.2];
        all.extend(target);
        let _locks = if self.keeps(Rule::LockWhatMoves) { lock_all(&all).await } else { Vec::new() };
        to.0.state().record.check_directory()?;
        // They may have been moved or removed before they were locked.
        let Some((position, entry)) = self.find(from.0, from.1).await?.entry else {
            return Err(Errno::NotFound.into());
        };
        let found = self.find(to.0, to.1).await?;
        if entry.stored.ino() != from.2.ino || found.ino() != target.map(|inode| inode.ino) {
            return Ok(Moved::Again);
        }
        let source = Named { directory: from.0.clone(), position, entry, inode: from.2.clone() };
        let vacant = found.vacant;
        let target = found.entry.zip(target).map(|((position, entry), inode)| Named {
            directory: to.0.clone(),
            position,
            entry,
            inode: inode.clone(),
        });
        self.change(&source, to, target, vacant, mode).await.map(|()| Moved::Done)
    }

    /// Does it. `vacant` is a position for the new name, if nothing has that.
    async fn change(
        &self,
        source: &Named,
        (target_dir, name): (&Arc<Inode>, &Name),
        target: Option<Named>,
        vacant: u64,
        mode: RenameMode,
    ) -> Result<()> {
        let is_directory = source.inode.record().is_directory();
        // Which error comes first is as in Linux.
        match (&target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Errno::Exists.into()),
            (None, RenameMode::Exchange) => return Err(Errno::NotFound.into()),
            // Two names of one inode: nothing changes.
            (Some(target), _) if target.inode.ino == source.inode.ino => return Ok(()),
            _ => {}
        }
        if is_directory && is_above(&source.inode, target_dir) {
            return Err(Errno::Invalid.into());
        }
        if let (Some(target), RenameMode::Exchange) = (&target, mode) {
            return self.exchange(source, target).await;
        }
        if let Some(target) = &target {
            match (is_directory, target.inode.record().is_directory()) {
                (true, false) => return Err(Errno::NotDirectory.into()),
                (false, true) if is_above(&target.inode, &source.directory) => return Err(Errno::NotEmpty.into()),
                (false, true) => return Err(Errno::IsDirectory.into()),
                (true, true) if !self.is_empty(&target.inode.place()).await? => return Err(Errno::NotEmpty.into()),
                _ => {}
            }
        }
        self.own_name(source);
        let position = target.as_ref().map_or(vacant, |target| target.position);
        if is_directory && !source.inode.state().own.is_root_of_zone() {
            let depth = target_dir.place().depth() + 1 + self.depth_below(&source.inode.place()).await?;
            // Nothing may be built where a directory still is, and nothing may lie too deep.
            if target.is_some() || depth > DEPTH_MAX {
                self.split(&source.inode).await?;
            }
        }
        let (mut txn, mut after) = (Txn::new(), Txn::new());
        if let Some(new) = mode.whiteout() {
            self.leave_whiteout(&mut after, source, &new).await?;
        }
        let loss = target
            .as_ref()
            .map(|target| self.lose_name(&mut txn, target_dir, target.position, &target.entry, &target.inode));
        let now = self.now();
        let replaced_directory = target.as_ref().is_some_and(|target| target.inode.record().is_directory());
        let leaves = u32::from(is_directory);
        let arrives = leaves - u32::from(replaced_directory && is_directory);
        let dirs = self.touch(&mut txn, (&source.directory, leaves), (target_dir, arrives));
        let mut record = Record { changed: now, ..source.inode.record() };
        if is_directory {
            record.parent = target_dir.ino;
        }
        let above = Betr::name_at(target_dir, position, name);
        let spot = match &source.inode.state().own.spot {
            Spot::Root(zone, _) => Spot::Root(*zone, Some(above)),
            _ => Spot::Named(above),
        };
        let applied = match self.relocate(&source.inode, spot, record, Around { before: txn, after }).await {
            Ok(applied) => applied,
            Err(error) => {
                if let (Some(loss), Some(target)) = (&loss, &target) {
                    loss.undo(&target.inode);
                }
                return Err(error);
            }
        };
        self.adopt(dirs, applied.seq);
        if let (Some(loss), Some(target)) = (loss, target) {
            self.adopt_loss(&target.inode, loss, applied.seq);
        }
        applied.settle().await?;
        if mode.whiteout().is_some() {
            // It may take more than what moved away, which may be the name of a zone.
            self.look_at_sums(&source.directory).await?;
        }
        self.look_at_sums(target_dir).await
    }

    /// Leaves a whiteout under the old name of a move, in what comes after it.
    async fn leave_whiteout(&self, after: &mut Txn, source: &Named, new: &NewNode) -> Result<()> {
        let ino = self.new_number().await?;
        let record = newborn(self, after, &source.directory, ino, new, &[]).await?;
        let spot = Spot::Named(Betr::name_at(&source.directory, source.position, &source.entry.name));
        self.put_spot(after, &spot, &record);
        self.count(after, &source.directory, self.stored_in(&spot, &record).weight(self.zones.inline.0));
        Ok(())
    }

    /// Of several names of an inode, this one is now the one that memory knows: it will move.
    fn own_name(&self, named: &Named) {
        let mut state = named.inode.state();
        if let Spot::Root(zone, _) = state.own.spot {
            let above = Betr::name_at(&named.directory, named.position, &named.entry.name);
            state.own.spot = Spot::Root(zone, Some(above));
        }
    }

    /// Directories of which one loses and one gets so many subdirectories: their records go into `txn`.
    fn touch(
        &self,
        txn: &mut Txn,
        (source, leaves): (&Arc<Inode>, u32),
        (target, arrives): (&Arc<Inode>, u32),
    ) -> Vec<(Arc<Inode>, Record)> {
        let now = self.now();
        let mut changed = vec![(source.clone(), source.record())];
        changed[0].1.links = changed[0].1.links.wrapping_sub(leaves);
        if !Arc::ptr_eq(source, target) {
            changed.push((target.clone(), target.record()));
        }
        if let Some((_, record)) = changed.last_mut() {
            record.links = record.links.wrapping_add(arrives);
        }
        for (directory, record) in &mut changed {
            record.modify(now);
            self.put_record(txn, directory, record);
        }
        changed
    }

    /// A transaction with the records of directories was applied.
    fn adopt(&self, changed: Vec<(Arc<Inode>, Record)>, seq: ashlar_pool::Seq) {
        for (directory, record) in changed {
            directory.state().adopt(record, seq);
        }
    }

    /// Swaps two names. Both become roots of zones first: then it is two pointers.
    async fn exchange(&self, source: &Named, target: &Named) -> Result<()> {
        let (source_is_directory, target_is_directory) =
            (source.inode.record().is_directory(), target.inode.record().is_directory());
        if target_is_directory && is_above(&target.inode, &source.directory) {
            return Err(Errno::Invalid.into());
        }
        for named in [source, target] {
            self.own_name(named);
            if !named.inode.state().own.is_root_of_zone() {
                self.split(&named.inode).await?;
                self.shrunk.lock().insert(named.inode.ino);
            }
        }
        let mut txn = Txn::new();
        let now = self.now();
        let (leaves, arrives) = (u32::from(source_is_directory), u32::from(target_is_directory));
        let change = leaves.wrapping_sub(arrives);
        let dirs = match Arc::ptr_eq(&source.directory, &target.directory) {
            true => self.touch(&mut txn, (&source.directory, 0), (&target.directory, 0)),
            false => self.touch(&mut txn, (&source.directory, change), (&target.directory, change)),
        };
        let mut placed = Vec::new();
        for (named, at) in [(source, target), (target, source)] {
            let mut record = Record { changed: now, ..named.inode.record() };
            if record.is_directory() {
                record.parent = at.directory.ino;
            }
            let Spot::Root(zone, _) = named.inode.state().own.spot else { continue };
            let above = Betr::name_at(&at.directory, at.position, &at.entry.name);
            let spot = Spot::Root(zone, Some(above));
            self.put_spot(&mut txn, &spot, &record);
            placed.push((named.inode.clone(), spot, record));
        }
        let applied = self.volume.apply(txn).await?;
        self.adopt(dirs, applied.seq);
        for (inode, spot, record) in placed {
            let mut state = inode.state();
            state.own.spot = spot;
            state.adopt(record, applied.seq);
        }
        Ok(applied.settle().await.map(drop)?)
    }

    /// Gives an inode another name, or its first. It has a zone of its own from then on. The caller holds the shape.
    pub(crate) async fn add_link(&self, ino: Ino, parent: Ino, name: &Name) -> Result<Attr> {
        self.admit_change()?;
        check_name(name)?;
        let (inode, directory) = (self.inode(ino)?, self.inode(parent)?);
        let _locks = lock_all(&[&inode, &directory]).await;
        directory.state().record.check_directory()?;
        let found = self.find(&directory, name).await?;
        if found.entry.is_some() {
            return Err(Errno::Exists.into());
        }
        let mut record = inode.record();
        if inode.state().reaped {
            return Err(Errno::Stale.into());
        }
        if record.is_directory() {
            return Err(Errno::NotPermitted.into());
        }
        let nameless = record.links == 0;
        record.add_link()?;
        let spot = inode.state().own.spot.clone();
        match spot {
            Spot::Named(_) => self.split(&inode).await?,
            Spot::Orphan(place) if place.depth() > 0 => {
                let to = keys::Place::root_of(self.new_number().await?);
                self.move_orphan(&inode, to).await?;
            }
            _ => {}
        }
        // The directory may be the one that held the only name: its place is as before, what it counts is not.
        let mut txn = Txn::new();
        let spot = inode.state().own.spot.clone();
        let above = Betr::name_at(&directory, found.vacant, name);
        let zone = match &spot {
            Spot::Root(zone, _) => *zone,
            Spot::Orphan(place) => place.zone(),
            Spot::Named(_) => return Err(keys::damaged("a file with several names is in no zone of its own").into()),
        };
        if nameless {
            self.volume.delete(&mut txn, &keys::numbered(keys::ORPHAN, ino));
        }
        record.changed = self.now();
        let spot = Spot::Root(zone, Some(above));
        self.put_spot(&mut txn, &spot, &record);
        self.count(&mut txn, &directory, self.stored_in(&spot, &record).weight(self.zones.inline.0));
        let dirs = self.touch(&mut txn, (&directory, 0), (&directory, 0));
        let applied = self.volume.apply(txn).await?;
        self.adopt(dirs, applied.seq);
        self.orphans.lock().remove(&ino);
        {
            let mut state = inode.state();
            state.own.spot = spot;
            state.adopt(record, applied.seq);
        }
        applied.settle().await?;
        inode.state().lookups += 1;
        self.look_at_sums(&directory).await?;
        Ok(inode.attr())
    }
}
