//! What no name leads to, after names were lost with a node of the index, is brought to `lost+found`.
//!
//! Attributes lie under the name, so both are lost together. What is left of a file are its contents, under its number: in the
//! dictionary, in the block range that has the same number, or in both. What is left of a directory is what lies below it.

use crate::Betr;
use crate::inode::{Above, Inode, Spot};
use crate::keys::{self, Place, RANGE_ALL, RANGE_BLOCKS};
use crate::record::{Contents, Entry, Record, Stored, ZONE_WEIGHT};
use crate::zones::{Built, Move};
use ashlar_inodes::{
    BLOCK, FIXES_MAX, InodeStore, found_names, found_node, lost_and_found, next_range, stored_end, visit,
};
use ashlar_pool::{Txn, patches};
use ashlar_units::Lba;
use ashlar_vfs::{Errno, FileKind, Ino, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Block ranges that are compared with all names in one pass, at most: 16 MiB.
const RANGES_PER_PASS_MAX: usize = 1 << 20;
/// Bytes that each takes.
const RANGE_LEN: usize = 16;

/// What no name leads to.
#[derive(Default)]
pub(crate) struct Strays {
    /// Contents without attributes, by the number of the file: where they are in the dictionary, and whether there is a range.
    files: BTreeMap<u64, (Option<Place>, bool)>,
    /// Directories whose attributes are lost, with their numbers if those are known.
    directories: BTreeMap<Place, Option<Ino>>,
    /// Zones without a name.
    zones: BTreeMap<u64, Record>,
}

impl Strays {
    pub(crate) fn len(&self) -> usize {
        self.files.len() + self.directories.len() + self.zones.len()
    }
    pub(crate) fn contents(&mut self, ino: Ino, place: Place) {
        if self.len() < FIXES_MAX {
            self.files.entry(ino).or_default().0.get_or_insert(place);
        }
    }
    pub(crate) fn range(&mut self, range: u64) {
        if self.len() < FIXES_MAX {
            self.files.entry(range).or_default().1 = true;
        }
    }
    pub(crate) fn directory(&mut self, place: Place, ino: Option<Ino>) {
        if self.len() < FIXES_MAX {
            let known = self.directories.entry(place).or_default();
            *known = known.or(ino);
        }
    }
    pub(crate) fn zone(&mut self, zone: u64, record: Record) {
        if self.len() < FIXES_MAX {
            self.zones.insert(zone, record);
        }
    }
}

impl Betr {
    /// Block ranges that memory has room for, in one pass.
    pub(crate) fn ranges_per_pass(&self) -> usize {
        self.volume.pool().held_beside(RANGE_LEN).min(RANGES_PER_PASS_MAX)
    }

    /// Block ranges that no file has: as many at a time as `per_pass`, each a pass over all names.
    pub(crate) async fn stray_ranges(&self, per_pass: usize, mut note: impl FnMut(u64) + Send) -> Result<()> {
        let filling = self.all_under(keys::FILLING).await?;
        let filling =
            filling.iter().map(|(key, _)| keys::last_number(key)).collect::<ashlar_block::Result<HashSet<_>>>()?;
        let end = keys::range_base(keys::NUMBER_MAX); // nothing has the last one
        let mut next = Some(Lba(0));
        while let Some(from) = next.take() {
            let mut ranges = BTreeSet::new();
            let mut at = from;
            while let Some(range) = next_range(&self.volume, at, end, RANGE_BLOCKS).await? {
                if ranges.len() == per_pass {
                    next = Some(keys::range_base(range));
                    break;
                }
                ranges.extend(Some(range).filter(|range| !filling.contains(range)));
                at = keys::range_base(range + 1);
            }
            if ranges.is_empty() {
                continue;
            }
            for (_, value) in self.all_under(keys::ORPHAN).await? {
                ranges.remove(&crate::decode_orphan(value)?.1.contents.range);
            }
            self.visit_records(|record| {
                ranges.remove(&record.contents.range);
            })
            .await?;
            ranges.into_iter().for_each(&mut note);
        }
        Ok(())
    }

    /// Visits the attributes of all that has a name, or is the root of a zone.
    async fn visit_records(&self, mut see: impl FnMut(Record) + Send) -> Result<()> {
        let see = |_: &[u8], value: &Bytes| {
            if let Stored::Record(record) = Entry::decode(value)?.stored {
                see(record);
            }
            Ok(ControlFlow::Continue(()))
        };
        visit(&self.volume, &[keys::META], &[keys::META + 1], see).await
    }

    /// Attributes of a file of which only contents are left, owned by root; `None` if there are none. It ends with the last
    /// piece of them, or with the last block: where zeros were behind it, they are gone.
    pub(crate) async fn file_of(&self, number: u64, place: Option<&Place>, ino: Ino) -> Result<Option<Record>> {
        let mut size = stored_end(&self.volume, keys::range_base(number), RANGE_ALL).await?;
        let mut contents = Contents { range: if size > 0 { number } else { 0 }, overlaid: false };
        if let Some(place) = place {
            let (low, high) = keys::contents(place, number);
            let note = |key: &[u8], value: &Bytes| {
                let pieces = patches::pieces(value)?;
                let behind = pieces.iter().map(|piece| piece.offset + piece.bytes.len()).max().unwrap_or(0);
                size = (keys::last_number(key)? * BLOCK + behind as u64).max(size);
                contents.overlaid = true;
                Ok(ControlFlow::Continue(()))
            };
            visit(&self.volume, &low, &high, note).await?;
        }
        let found = contents != Contents::default();
        Ok(found.then(|| {
            let record = Record::root(self.now(), 0, 0).child(ino, &found_node(FileKind::File), &[], self.now());
            Record { contents, size, sparse: true, ..record }
        }))
    }

    /// Gives names to what has none. Nobody else may have the file system open. How much was brought back; sums and links are
    /// counted anew by the audit that follows.
    pub(crate) async fn salvage(&self, strays: Strays) -> Result<u64> {
        let home = self.inode(lost_and_found(self).await?)?;
        let mut used: HashSet<Ino> = HashSet::new();
        let numbers: HashSet<u64> =
            strays.files.keys().copied().chain(strays.directories.values().flatten().copied()).collect();
        self.visit_records(|record| {
            used.extend(Some(record.ino).filter(|ino| numbers.contains(ino)));
        })
        .await?;
        let mut brought = 0;
        // First what moves away by itself, then directories from below, so that each place is still the one that was found.
        for (number, (place, _)) in strays.files {
            brought += u64::from(self.salvage_file(&home, number, place, used.contains(&number)).await?);
        }
        let mut directories: Vec<_> = strays.directories.into_iter().collect();
        directories.sort_by_key(|(place, _)| std::cmp::Reverse(place.depth()));
        for (place, ino) in directories {
            self.salvage_directory(&home, place, ino.filter(|ino| !used.contains(ino))).await?;
            brought += 1;
        }
        for (zone, record) in strays.zones {
            self.give_name(&home, zone, record, Txn::new()).await?;
            brought += 1;
        }
        Ok(brought)
    }

    async fn salvage_file(&self, home: &Arc<Inode>, number: u64, place: Option<Place>, used: bool) -> Result<bool> {
        let ino = if used { self.new_number().await? } else { number };
        let Some(record) = self.file_of(number, place.as_ref(), ino).await? else { return Ok(false) };
        let zone = self.new_number().await?;
        let target = Place::root_of(zone);
        let mut last = Txn::new();
        if let Some(place) = place {
            let contents = keys::contents(&place, number);
            let mut moving = Move::new(self);
            moving.copy(&contents, |key| keys::data(&target, ino, keys::last_number(key).unwrap_or(0))).await?;
            self.volume.delete_range(&mut last, &contents.0, &contents.1);
            moving.build(&mut last, &Built { place: target, file: Some(ino) }).await?;
        }
        self.give_name(home, zone, record, last).await?;
        Ok(true)
    }

    async fn salvage_directory(&self, home: &Arc<Inode>, place: Place, ino: Option<Ino>) -> Result<()> {
        let ino = match ino {
            Some(ino) => ino,
            None => self.new_number().await?,
        };
        let record = Record { ino, permissions: 0o700, ..Record::root(self.now(), 0, 0) };
        if place.depth() == 0 {
            return self.give_name(home, place.zone(), record, Txn::new()).await;
        }
        let zone = self.new_number().await?;
        let target = Place::root_of(zone);
        let (mut moving, mut last) = (Move::new(self), Txn::new());
        moving.copy_below(&place, &target, &mut last).await?;
        self.volume.delete(&mut last, &keys::of(keys::SUMS, &place));
        moving.build(&mut last, &Built { place: target, file: None }).await?;
        self.give_name(home, zone, record, last).await
    }

    /// Gives a zone a name in `home`, and stores `record` as its root; in the transaction `last`.
    async fn give_name(&self, home: &Arc<Inode>, zone: u64, record: Record, mut last: Txn) -> Result<()> {
        let directory = record.is_directory();
        let record = match directory {
            true => Record { parent: home.ino, ..record },
            false => Record { links: 1, ..record },
        };
        let mut names = found_names(record.ino);
        let (name, vacant) = loop {
            let name = names.next().ok_or(Errno::NoSpace)?;
            let found = self.find(home, name.as_bytes()).await?;
            if found.entry.is_none() {
                break (name, found.vacant);
            }
        };
        let above = Above { directory: home.clone(), position: vacant, name: name.into() };
        let spot = Spot::Root(zone, Some(above));
        self.put_spot(&mut last, &spot, &record);
        self.count(&mut last, home, ZONE_WEIGHT);
        let mut changed = home.record();
        if directory {
            changed.add_link()?;
        }
        changed.modify(self.now());
        self.commit_record(last, home, changed).await?;
        self.maintain().await
    }
}
