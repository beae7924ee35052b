//! Consistency of everything in the dictionary: places, names, zones, sums, contents.
//!
//! Directories and roots of zones are compared with all names, so many at a time as memory has room for; contents are compared
//! with files in one pass over both, since their keys are in the same order.

use crate::Betr;
use crate::keys::{self, Place};
use crate::record::{Entry, Record, Stored};
use crate::salvage::Strays;
use crate::way::{Way, WaySum};
use ashlar_block::Kind;
use ashlar_inodes::{FIXES_MAX, InodeStore, let_go, visit};
use ashlar_pool::{Txn, Volume, patches};
use ashlar_vfs::{Errno, FileKind, Ino, ROOT, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;

/// Directories and roots of zones that are compared with all names in one pass, at most.
const SEEN_PER_PASS_MAX: usize = 1 << 18;
/// Bytes that each takes, roughly.
const SEEN_LEN: usize = 250;
/// Sentences that are kept; the rest is counted.
const WRONG_MAX: usize = 1000;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Inodes that exist.
    pub inodes: u64,
    /// Names.
    pub entries: u64,
    /// Zones.
    pub zones: u64,
    /// The most that is counted below a directory that is no zone's root, of contents or metadata, in bytes.
    pub largest: u64,
    /// The least that a zone of a directory has, but for the root's, in bytes of contents and metadata.
    pub smallest: u64,
    /// What is wrong, as sentences for people. Each is a defect of this software, for transactions keep all of it together, or
    /// comes of keys that were lost.
    pub wrong: Vec<String>,
}

/// A change that makes something right which follows from the rest.
pub(crate) enum Fix {
    Put(Vec<u8>, Bytes),
    Delete(Vec<u8>),
}

impl Fix {
    pub(crate) fn apply(self, volume: &Volume, txn: &mut Txn) {
        match self {
            Fix::Put(key, value) => volume.put(txn, &key, value),
            Fix::Delete(key) => volume.delete(txn, &key),
        }
    }
}

/// Findings, and what would mend them.
#[derive(Default)]
pub(crate) struct Findings {
    wrong: Vec<String>,
    more: u64,
    pub(crate) fixes: Vec<Fix>,
    pub(crate) strays: Strays,
}

impl Findings {
    fn note(&mut self, what: String) {
        if self.wrong.len() < WRONG_MAX { self.wrong.push(what) } else { self.more += 1 }
    }
    fn fix(&mut self, what: String, fix: Fix) {
        self.note(what);
        if self.fixes.len() < FIXES_MAX {
            self.fixes.push(fix);
        }
    }
    fn join(&mut self, other: Findings) {
        other.wrong.into_iter().for_each(|what| self.note(what));
        self.more += other.more;
        self.fixes.extend(other.fixes.into_iter().take(FIXES_MAX.saturating_sub(self.fixes.len())));
    }
    fn sentences(mut self) -> Vec<String> {
        self.wrong.sort_unstable();
        if self.more > 0 {
            self.wrong.push(format!("and {} more", self.more));
        }
        self.wrong
    }
}

/// What names say of ways. A way lies by number and not by place, so to look each up would read the index at random: the sum of all
/// says whether they are as they must be.
#[derive(Default)]
struct Told {
    sum: WaySum,
    /// Each is looked up.
    each: Option<Findings>,
}

/// Keys of a range, one after the other.
struct Cursor<'a> {
    volume: &'a Volume,
    next: Option<Vec<u8>>,
    high: Vec<u8>,
    page: std::vec::IntoIter<(Vec<u8>, Bytes)>,
}

impl Cursor<'_> {
    fn new(volume: &Volume, low: Vec<u8>, high: Vec<u8>) -> Cursor<'_> {
        Cursor { volume, next: Some(low), high, page: Vec::new().into_iter() }
    }
    async fn next(&mut self) -> Result<Option<(Vec<u8>, Bytes)>> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            let Some(low) = self.next.take() else { return Ok(None) };
            let page = self.volume.page(&low, Some(&self.high), ashlar_inodes::PAGE).await?;
            let entries: Vec<_> = page.entries.into_iter().map(|(key, value)| (key.to_vec(), value)).collect();
            (self.next, self.page) = (page.next.map(|next| next.to_vec()), entries.into_iter());
        }
    }
}

/// A directory or the root of a zone, and what names say of it.
struct Seen {
    /// Empty for the root of a zone.
    name: Bytes,
    record: Record,
    names: u32,
    subdirectories: u32,
    sums: [i64; 2],
    /// Its sums are as they must be.
    counted: bool,
}

/// Those that one pass compares: by place, from one key on and below another.
struct Pass {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    seen: BTreeMap<Vec<u8>, Seen>,
}

impl Pass {
    fn holds(&self, place: &Place) -> bool {
        let key = keys::of(keys::META, place);
        key >= self.low && self.high.as_ref().is_none_or(|high| key < *high)
    }
}

impl Betr {
    /// Compares everything with everything. Nothing may change meanwhile: audit a snapshot.
    pub async fn audit(&self) -> Result<Audit> {
        let (audit, findings) = self.audit_by(self.seen_per_pass()).await?;
        Ok(Audit { wrong: findings.sentences(), ..audit })
    }

    /// Directories and zones that memory has room for, in one pass.
    pub(crate) fn seen_per_pass(&self) -> usize {
        self.volume.pool().held_beside(SEEN_LEN).min(SEEN_PER_PASS_MAX)
    }

    /// The same, with so many directories and zones at a time.
    pub(crate) async fn audit_by(&self, seen_per_pass: usize) -> Result<(Audit, Findings)> {
        let mut audit = Audit { smallest: u64::MAX, ..Audit::default() };
        let mut findings = Findings::default();
        let building = self.building().await?;
        let mut told = Told::default();
        self.audit_places(seen_per_pass, &building, &mut audit, &mut findings, &mut told).await?;
        // Once names are as they must be: of what nothing leads to yet some is brought back.
        if self.ways && findings.wrong.is_empty() && self.stored_ways().await? != told.sum {
            self.audit_ways(seen_per_pass, &building, &mut findings).await?;
        }
        self.audit_contents(&building, &mut audit, &mut findings).await?;
        self.stray_ranges(self.ranges_per_pass(), |range| {
            findings.note(format!("block range {range} is nobody's"));
            findings.strays.range(range);
        })
        .await?;
        Ok((audit, findings))
    }

    /// Compares names, places and sums, and adds up which ways there must be.
    async fn audit_places(
        &self,
        seen_per_pass: usize,
        building: &BTreeSet<Place>,
        audit: &mut Audit,
        findings: &mut Findings,
        told: &mut Told,
    ) -> Result<()> {
        let mut next = Some(vec![keys::META]);
        while let Some(low) = next {
            let first = low.len() == 1;
            let mut pass = self.seen_from(low, seen_per_pass, building).await?;
            let counted = if first { Some(&mut *audit) } else { None };
            self.audit_names(&mut pass, building, counted, findings, told).await?;
            self.audit_sums(&mut pass, building, findings).await?;
            pass.seen.iter().for_each(|(place, seen)| seen.judge(place, audit, findings));
            next = pass.high;
        }
        Ok(())
    }

    /// What is being built: places below which keys are nobody's yet.
    async fn building(&self) -> Result<BTreeSet<Place>> {
        let all = self.all_under(keys::BUILDING).await?;
        Ok(all.iter().map(|(key, _)| Place::decode(&key[1..])).collect::<Result<_, _>>()?)
    }

    /// Directories and roots of zones from a key on.
    async fn seen_from(&self, low: Vec<u8>, count: usize, building: &BTreeSet<Place>) -> Result<Pass> {
        let mut cursor = Cursor::new(&self.volume, low.clone(), vec![keys::META + 1]);
        let mut pass = Pass { low, high: None, seen: BTreeMap::new() };
        while let Some((key, value)) = cursor.next().await? {
            let (place, entry) = (Place::decode(&key[1..])?, Entry::decode(&value)?);
            let Stored::Record(record) = entry.stored else { continue };
            if (place.depth() > 0 && !record.is_directory()) || is_below_any(&place, building) {
                continue;
            }
            if pass.seen.len() == count {
                pass.high = Some(key);
                break;
            }
            // A copy: a slice would keep the whole index node in memory.
            let name = Bytes::copy_from_slice(&entry.name);
            let seen = Seen { name, record, names: 0, subdirectories: 0, sums: [0, 0], counted: false };
            pass.seen.insert(place.bytes().to_vec(), seen);
        }
        Ok(pass)
    }

    /// Compares all names with what one pass has seen. `counted`: also what needs no comparison, once.
    async fn audit_names(
        &self,
        pass: &mut Pass,
        building: &BTreeSet<Place>,
        mut counted: Option<&mut Audit>,
        findings: &mut Findings,
        told: &mut Told,
    ) -> Result<()> {
        let mut cursor = Cursor::new(&self.volume, vec![keys::META], vec![keys::META + 1]);
        let inline = self.zones.inline.0;
        while let Some((key, value)) = cursor.next().await? {
            let (place, entry) = (Place::decode(&key[1..])?, Entry::decode(&value)?);
            if is_below_any(&place, building) {
                continue;
            }
            if let Some(audit) = counted.as_deref_mut() {
                self.audit_entry(&place, &entry, audit, findings);
                self.audit_root(&place, &entry, told).await?;
            }
            let Some(above) = place.above() else { continue };
            self.audit_place(&place, &above, &entry, (&mut *pass, &mut *findings, &mut *told)).await?;
            let weight = entry.stored.weight(inline);
            let mut at = Some(above);
            while let Some(here) = at {
                if let Some(seen) = pass.seen.get_mut(here.bytes()) {
                    seen.sums = [seen.sums[0] + weight[0], seen.sums[1] + weight[1]];
                }
                at = here.above();
            }
        }
        Ok(())
    }

    /// What one entry must be by itself.
    fn audit_entry(&self, place: &Place, entry: &Entry, audit: &mut Audit, findings: &mut Findings) {
        let root = place.depth() == 0;
        audit.zones += u64::from(root);
        audit.entries += u64::from(!root);
        if let Some(position) = place.position() {
            let hashed = self.position_of(&entry.name);
            if !(hashed..hashed + ashlar_inodes::COLLISIONS_MAX).contains(&position) {
                let name = String::from_utf8_lossy(&entry.name);
                findings.note(format!("{name:?} in zone {} is not where its name belongs", place.zone()));
            }
        }
        let Stored::Record(record) = &entry.stored else {
            if root {
                findings.note(format!("the root of zone {} is another zone", place.zone()));
            }
            return;
        };
        audit.inodes += 1;
        let Record { ino, kind, links, .. } = *record;
        if !root && kind != FileKind::Directory && links != 1 {
            findings.note(format!("inode {ino} has {links} links and no zone of its own"));
        }
        if record.contents.range != 0 && kind != FileKind::File {
            findings.note(format!("inode {ino} is no file and has contents"));
        }
    }

    /// The way to a file that is the root of a zone.
    async fn audit_root(&self, place: &Place, entry: &Entry, told: &mut Told) -> Result<()> {
        match &entry.stored {
            Stored::Record(record) if place.depth() == 0 && !record.is_directory() => {
                self.audit_way(record.ino, Way::Zone(place.zone()), told).await
            }
            _ => Ok(()),
        }
    }

    /// Adds the way to an inode as it was found, and compares it if each is to be.
    async fn audit_way(&self, ino: Ino, way: Way, told: &mut Told) -> Result<()> {
        let way = way.encode();
        told.sum.add(ino, &way);
        if let Some(findings) = &mut told.each {
            let key = keys::numbered(keys::WAY, ino);
            if self.volume.get(&key).await?.as_deref() != Some(&way) {
                findings.fix(format!("inode {ino} is not found by its number"), Fix::Put(key, way));
            }
        }
        Ok(())
    }

    /// All ways that are stored.
    async fn stored_ways(&self) -> Result<WaySum> {
        let mut sum = WaySum::default();
        let add = |key: &[u8], value: &Bytes| {
            sum.add(keys::last_number(key)?, value);
            Ok(ControlFlow::Continue(()))
        };
        visit(&self.volume, &[keys::WAY], &[keys::WAY + 1], add).await?;
        Ok(sum)
    }

    /// Some ways are not as they must be: each is looked for, and if all are there, some lead nowhere.
    async fn audit_ways(
        &self,
        seen_per_pass: usize,
        building: &BTreeSet<Place>,
        findings: &mut Findings,
    ) -> Result<()> {
        let mut told = Told { each: Some(Findings::default()), ..Told::default() };
        let (audit, others) = (&mut Audit::default(), &mut Findings::default());
        self.audit_places(seen_per_pass, building, audit, others, &mut told).await?;
        findings.join(told.each.unwrap_or_default());
        if !findings.wrong.is_empty() {
            return Ok(());
        }
        let mut cursor = Cursor::new(&self.volume, vec![keys::WAY], vec![keys::WAY + 1]);
        while let Some((key, _)) = cursor.next().await? {
            let ino = keys::last_number(&key)?;
            match self.by_number(ino).await {
                Ok(inode) => let_go(self, inode).await,
                Err(error) if error.errno != Errno::Stale && !is_corrupt(&error) => return Err(error),
                Err(_) => findings.fix(format!("the way to inode {ino} leads nowhere"), Fix::Delete(key)),
            }
        }
        Ok(())
    }

    /// Compares an entry with its directory, and with the zone that it names.
    async fn audit_place(
        &self,
        place: &Place,
        above: &Place,
        entry: &Entry,
        (pass, findings, told): (&mut Pass, &mut Findings, &mut Told),
    ) -> Result<()> {
        let name = String::from_utf8_lossy(&entry.name);
        let mut parent = None;
        if pass.holds(above) {
            match pass.seen.get_mut(above.bytes()) {
                None => {
                    findings.note(format!("{name:?} lies in a directory of zone {} that is gone", place.zone()));
                    let ino = match &entry.stored {
                        Stored::Record(record) if record.is_directory() => Some(record.parent),
                        _ => None,
                    };
                    findings.strays.directory(above.clone(), ino);
                }
                Some(directory) => {
                    directory.subdirectories += u32::from(entry.stored.kind() == FileKind::Directory);
                    parent = Some(directory.record.ino);
                }
            }
            let found_by_name = entry.stored.kind() == FileKind::Directory || matches!(entry.stored, Stored::Record(_));
            if let (Some(directory), Some(position), true) = (parent, place.position(), found_by_name) {
                self.audit_way(entry.stored.ino(), Way::Name { directory, position }, told).await?;
            }
            if let Stored::Record(record @ Record { kind: FileKind::Directory, ino, parent: noted, .. }) = &entry.stored
                && let Some(parent) = parent.filter(|parent| parent != noted)
            {
                let stored = Stored::Record(Record { parent, ..record.clone() });
                let fixed = Entry { name: entry.name.clone(), stored };
                let fix = Fix::Put(keys::of(keys::META, place), fixed.encode());
                findings.fix(format!("directory {ino} lies in {parent}, not in {noted}"), fix);
            }
        }
        let Stored::Zone { zone, ino, kind } = entry.stored else { return Ok(()) };
        let root = Place::root_of(zone);
        if !pass.holds(&root) {
            return Ok(());
        }
        if !pass.holds(above)
            && let Some(value) = self.volume.get(&keys::of(keys::META, above)).await?
        {
            parent = Some(Entry::decode(&value)?.stored.ino());
        }
        let Some(seen) = pass.seen.get_mut(root.bytes()) else {
            let what = format!("{name:?} names zone {zone}, which is gone");
            // A directory gets a new root, for what lies in it has kept its place, and so does a file of which there are contents.
            let record = match (kind, parent) {
                (FileKind::Directory, Some(parent)) => Some(Record { ino, parent, ..Record::root(self.now(), 0, 0) }),
                (FileKind::File, _) => self.file_of(ino, Some(&root), ino).await?,
                _ => None,
            };
            let fix = match record {
                Some(record) => Fix::Put(keys::of(keys::META, &root), Entry::nameless(record).encode()),
                None => Fix::Delete(keys::of(keys::META, place)),
            };
            findings.fix(what, fix);
            return Ok(());
        };
        seen.names += 1;
        let Record { ino: found, kind: found_kind, parent: noted, .. } = seen.record;
        if (found, found_kind) != (ino, kind) {
            findings.note(format!("a name takes the root of zone {zone} for inode {ino}, not {found}"));
        }
        if let Some(parent) = parent.filter(|parent| kind == FileKind::Directory && *parent != noted) {
            let fixed = Entry::nameless(Record { parent, ..seen.record.clone() });
            let fix = Fix::Put(keys::of(keys::META, &root), fixed.encode());
            findings.fix(format!("directory {ino} lies in {parent}, not in {noted}"), fix);
        }
        Ok(())
    }

    /// Compares sums with what a pass has counted.
    async fn audit_sums(&self, pass: &mut Pass, building: &BTreeSet<Place>, findings: &mut Findings) -> Result<()> {
        let swapped = |key: &[u8]| [&[keys::SUMS], key.get(1..).unwrap_or_default()].concat();
        let high = pass.high.as_deref().map_or_else(|| vec![keys::SUMS + 1], swapped);
        let mut cursor = Cursor::new(&self.volume, swapped(&pass.low), high);
        while let Some((key, value)) = cursor.next().await? {
            let (place, found) = (Place::decode(&key[1..])?, patches::read_sums(&value)?);
            match pass.seen.get_mut(place.bytes()) {
                Some(seen) if seen.sums == found => seen.counted = true,
                Some(_) => {}
                None if building.contains(&place) || is_below_any(&place, building) => {}
                None => findings.fix(format!("sums of nobody lie in zone {}", place.zone()), Fix::Delete(key)),
            }
        }
        for (place, seen) in pass.seen.iter().filter(|(_, seen)| !seen.counted && seen.record.is_directory()) {
            let key = [&[keys::SUMS], &place[..]].concat();
            let found = self.sums(&Place::decode(place)?).await?;
            let fix = match seen.sums {
                sums if sums == found => continue, // nothing, and nothing stored
                [0, 0] => Fix::Delete(key),
                sums => Fix::Put(key, patches::sums(sums)),
            };
            findings.fix(format!("directory {} counts {found:?}, not {:?}", seen.record.ino, seen.sums), fix);
        }
        Ok(())
    }

    /// Contents must have a file that knows of them. Both lie in the order of places.
    async fn audit_contents(
        &self,
        building: &BTreeSet<Place>,
        audit: &mut Audit,
        findings: &mut Findings,
    ) -> Result<()> {
        let mut orphans = HashSet::new();
        for (_, value) in self.all_under(keys::ORPHAN).await? {
            let (place, record) = crate::decode_orphan(value)?;
            audit.inodes += 1;
            if record.links != 0 {
                findings.note(format!("inode {} has {} links and is noted as one without", record.ino, record.links));
            }
            orphans.insert((place, record.ino));
        }
        let mut names = Cursor::new(&self.volume, vec![keys::META], vec![keys::META + 1]);
        let mut contents = Cursor::new(&self.volume, vec![keys::DATA], vec![keys::DATA + 1]);
        let (mut name, mut last) = (names.next().await?, None);
        while let Some((key, value)) = contents.next().await? {
            patches::pieces(&value)?;
            let file = &key[..key.len().saturating_sub(8)];
            let place = Place::decode(file.get(1..file.len().saturating_sub(8)).unwrap_or_default())?;
            let ino = keys::last_number(file)?;
            if last.as_ref() == Some(&(place.clone(), ino)) {
                continue;
            }
            while name.as_ref().is_some_and(|(key, _)| key[1..] < *place.bytes()) {
                name = names.next().await?;
            }
            let record = match name.as_ref().filter(|(key, _)| key[1..] == *place.bytes()) {
                Some((_, value)) => match Entry::decode(value)?.stored {
                    Stored::Record(record) => Some(record),
                    Stored::Zone { .. } => None,
                },
                None => None,
            };
            let known = record.is_some_and(|record| record.contents.overlaid && record.ino == ino)
                || orphans.contains(&(place.clone(), ino))
                || building.contains(&place)
                || is_below_any(&place, building);
            if !known {
                findings.note(format!("contents of inode {ino} in zone {} are nobody's", place.zone()));
                findings.strays.contents(ino, place.clone());
            }
            last = Some((place, ino));
        }
        Ok(())
    }
}

fn is_corrupt(error: &ashlar_vfs::Error) -> bool {
    error.cause.as_deref().is_some_and(|cause| cause.kind() == Kind::Corrupt)
}

fn is_below_any(place: &Place, building: &BTreeSet<Place>) -> bool {
    building.iter().any(|built| place.is_below(built))
}

impl Seen {
    /// All names were seen.
    fn judge(&self, place: &[u8], audit: &mut Audit, findings: &mut Findings) {
        let Seen { record, names, subdirectories, sums, .. } = self;
        let Record { ino, links, .. } = *record;
        let root = place.len() == 8;
        let is_directory = record.is_directory();
        if root && ino != ROOT {
            let expected = if is_directory { 1 } else { links };
            if *names != expected {
                let what = format!("the zone of inode {ino} has {names} names, not {expected}");
                match *names {
                    0 => {
                        findings.note(what);
                        let zone = place.try_into().map_or(0, u64::from_be_bytes);
                        findings.strays.zone(zone, record.clone());
                    }
                    _ if is_directory => findings.note(what),
                    names => findings.fix(what, self.with_links(place, names)),
                }
            }
        }
        if !is_directory {
            return;
        }
        if links != 2 + subdirectories {
            let what = format!("directory {ino} counts {links} links and has {}", 2 + subdirectories);
            findings.fix(what, self.with_links(place, 2 + subdirectories));
        }
        let size = sums[0].max(sums[1]).max(0) as u64;
        if !root {
            audit.largest = audit.largest.max(size);
        } else if ino != ROOT {
            audit.smallest = audit.smallest.min(size);
        }
    }

    /// The same with another number of links.
    fn with_links(&self, place: &[u8], links: u32) -> Fix {
        let stored = Stored::Record(Record { links, ..self.record.clone() });
        Fix::Put([&[keys::META], place].concat(), Entry { name: self.name.clone(), stored }.encode())
    }
}

#[cfg(test)]
mod tests;
