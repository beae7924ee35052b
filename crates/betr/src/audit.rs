//! Consistency of everything in the dictionary: places, names, zones, sums, contents.
//!
//! One zone after the other, in key order; memory is needed for the largest zone, and some bytes for each zone, file without
//! names and inode with several names.

use crate::Betr;
use crate::keys::{self, Place};
use crate::record::{Entry, Record, Stored};
use ashlar_pool::patches;
use ashlar_vfs::{FileKind, Ino, ROOT, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

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
    /// What is wrong, as sentences for people. Each is a defect of this software, for transactions keep all of it together.
    pub wrong: Vec<String>,
}

/// A directory of the zone at hand.
#[derive(Default)]
struct Directory {
    ino: Ino,
    links: u32,
    subdirectories: u32,
    sums: [i64; 2],
}

/// The zone at hand.
#[derive(Default)]
struct Zone {
    number: u64,
    /// By what the places of their entries begin with.
    directories: HashMap<Vec<u8>, Directory>,
    /// Place and number of what may have contents in the dictionary.
    overlaid: HashSet<Vec<u8>>,
}

/// What is known of all zones.
#[derive(Default)]
struct Zones {
    /// By number: the root's inode, kind, links and parent.
    roots: BTreeMap<u64, (Ino, FileKind, u32, Ino)>,
    /// By number: who names it, with what it takes the root to be.
    names: BTreeMap<u64, Vec<(Ino, FileKind, Ino)>>,
    /// Sums as they must be, by place: of the zone at hand, then compared.
    sums: BTreeMap<Vec<u8>, [i64; 2]>,
    /// Place and number of what may have contents in the dictionary.
    overlaid: HashSet<Vec<u8>>,
}

impl Betr {
    /// Compares everything with everything. Nothing may change meanwhile: audit a snapshot.
    pub async fn audit(&self) -> Result<Audit> {
        let mut audit = Audit { smallest: u64::MAX, ..Audit::default() };
        let mut zones = Zones::default();
        self.audit_names(&mut audit, &mut zones).await?;
        self.audit_orphans(&mut audit, &mut zones).await?;
        self.audit_sums(&mut audit, &zones).await?;
        self.audit_contents(&mut audit, &zones).await?;
        zones.judge(&mut audit);
        audit.wrong.sort_unstable();
        Ok(audit)
    }

    /// What is being built: places below which keys are nobody's yet.
    async fn building(&self) -> Result<BTreeSet<Place>> {
        let all = self.all_under(keys::BUILDING).await?;
        Ok(all.iter().map(|(key, _)| Place::decode(&key[1..])).collect::<Result<_, _>>()?)
    }

    async fn audit_names(&self, audit: &mut Audit, zones: &mut Zones) -> Result<()> {
        let (building, inline) = (self.building().await?, self.zones.inline.0);
        let mut zone = Zone::default();
        // Keys of one zone follow each other, a directory before what lies in it.
        let note = |key: &[u8], value: &Bytes| {
            let place = Place::decode(&key[1..])?;
            if building.iter().any(|built| place.is_below(built)) {
                return Ok(ControlFlow::Continue(()));
            }
            if place.zone() != zone.number {
                std::mem::take(&mut zone).close(audit, zones);
                zone.number = place.zone();
                audit.zones += 1;
            }
            self.audit_entry(&place, &Entry::decode(value)?, &mut zone, audit, zones, inline);
            Ok(ControlFlow::Continue(()))
        };
        self.visit(&[keys::META], &[keys::META + 1], note).await?;
        zone.close(audit, zones);
        Ok(())
    }

    fn audit_entry(
        &self,
        place: &Place,
        entry: &Entry,
        zone: &mut Zone,
        audit: &mut Audit,
        zones: &mut Zones,
        inline: u64,
    ) {
        let shown = String::from_utf8_lossy(&entry.name).into_owned();
        let root = place.depth() == 0;
        if let Some(above) = place.above() {
            audit.entries += 1;
            let is_directory = entry.stored.kind() == FileKind::Directory;
            let Some(directory) = zone.directories.get_mut(&above.below()) else {
                audit.wrong.push(format!("{shown:?} lies in a directory of zone {} that is gone", zone.number));
                return;
            };
            directory.subdirectories += u32::from(is_directory);
            let parent = directory.ino;
            let hashed = self.position_of(&entry.name);
            if !place.position().is_some_and(|position| (hashed..hashed + 256).contains(&position)) {
                audit.wrong.push(format!("{shown:?} in directory {parent} is not where its name belongs"));
            }
            if let Stored::Zone { zone, ino, kind } = entry.stored {
                zones.names.entry(zone).or_default().push((ino, kind, parent));
            }
            if let Stored::Record(Record { kind: FileKind::Directory, ino, parent: noted, .. }) = entry.stored
                && noted != parent
            {
                audit.wrong.push(format!("directory {ino} lies in {parent}, not in {noted}"));
            }
            let weight = entry.stored.weight(inline);
            let mut at = Some(above);
            while let Some(here) = at {
                if let Some(directory) = zone.directories.get_mut(&here.below()) {
                    directory.sums = [directory.sums[0] + weight[0], directory.sums[1] + weight[1]];
                }
                at = here.above();
            }
        }
        let Stored::Record(record) = &entry.stored else {
            if root {
                audit.wrong.push(format!("the root of zone {} is another zone", zone.number));
            }
            return;
        };
        audit.inodes += 1;
        let Record { ino, kind, links, parent, .. } = *record;
        if root {
            zones.roots.insert(zone.number, (ino, kind, links, parent));
        } else if kind != FileKind::Directory && links != 1 {
            audit.wrong.push(format!("inode {ino} has {links} links and no zone of its own"));
        }
        if kind == FileKind::Directory {
            zone.directories.insert(place.below(), Directory { ino, links, ..Directory::default() });
        } else if record.overlaid {
            zone.overlaid.insert(keys::data(place, ino, 0)[..].to_vec());
        }
        if record.range != 0 && kind != FileKind::File {
            audit.wrong.push(format!("inode {ino} is no file and has contents"));
        }
    }

    async fn audit_orphans(&self, audit: &mut Audit, zones: &mut Zones) -> Result<()> {
        for (_, value) in self.all_under(keys::ORPHAN).await? {
            let (place, record) = crate::decode_orphan(value)?;
            audit.inodes += 1;
            if record.links != 0 {
                audit
                    .wrong
                    .push(format!("inode {} has {} links and is noted as one without", record.ino, record.links));
            }
            if record.overlaid {
                zones.overlaid.insert(keys::data(&place, record.ino, 0));
            }
        }
        Ok(())
    }

    async fn audit_sums(&self, audit: &mut Audit, zones: &Zones) -> Result<()> {
        let (building, mut seen) = (self.building().await?, 0);
        let wrong = &mut audit.wrong;
        let note = |key: &[u8], value: &Bytes| {
            let (place, found) = (Place::decode(&key[1..])?, patches::read_sums(value)?);
            if building.iter().any(|built| *built == place || place.is_below(built)) {
                return Ok(ControlFlow::Continue(()));
            }
            match zones.sums.get(place.bytes()) {
                Some(expected) if *expected == found => seen += 1,
                expected => {
                    wrong.push(format!("a directory of zone {} counts {found:?}, not {expected:?}", place.zone()))
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        self.visit(&[keys::SUMS], &[keys::SUMS + 1], note).await?;
        if wrong.is_empty() && seen != zones.sums.len() {
            wrong.push(format!("{} directories count nothing, and have something", zones.sums.len() - seen));
        }
        Ok(())
    }

    /// Contents without a file that knows of them.
    async fn audit_contents(&self, audit: &mut Audit, zones: &Zones) -> Result<()> {
        let building = self.building().await?;
        let wrong = &mut audit.wrong;
        let note = |key: &[u8], value: &Bytes| {
            patches::pieces(value)?;
            let file = &key[..key.len().saturating_sub(8)];
            let place = Place::decode(file.get(1..file.len().saturating_sub(8)).unwrap_or_default())?;
            let known = zones.overlaid.contains(&[file, &[0; 8][..]].concat());
            if !known && !building.iter().any(|built| *built == place || place.is_below(built)) {
                let ino = keys::last_number(file)?;
                wrong.push(format!(
                    "block {} of inode {ino} in zone {} is nobody's",
                    keys::last_number(key)?,
                    place.zone()
                ));
            }
            Ok(ControlFlow::Continue(()))
        };
        self.visit(&[keys::DATA], &[keys::DATA + 1], note).await
    }
}

impl Zone {
    /// All of the zone was seen.
    fn close(self, audit: &mut Audit, zones: &mut Zones) {
        zones.overlaid.extend(self.overlaid);
        for (below, directory) in self.directories {
            let Directory { ino, links, subdirectories, sums } = directory;
            if links != 2 + subdirectories {
                audit.wrong.push(format!("directory {ino} counts {links} links and has {}", 2 + subdirectories));
            }
            let root = below.len() == 8;
            let size = sums[0].max(sums[1]).max(0) as u64;
            if !root {
                audit.largest = audit.largest.max(size);
            } else if ino != ROOT {
                audit.smallest = audit.smallest.min(size);
            }
            if sums != [0, 0] {
                let place = if root { below } else { of_below(below) };
                zones.sums.insert(place, sums);
            }
        }
    }
}

/// The place of the directory whose entries begin like this.
fn of_below(mut below: Vec<u8>) -> Vec<u8> {
    let tag = below.len() - 9;
    below[tag] = 1;
    below
}

impl Zones {
    /// Roots of zones and their names fit together.
    fn judge(&self, audit: &mut Audit) {
        for (zone, (ino, kind, links, parent)) in &self.roots {
            let none = Vec::new();
            let names = self.names.get(zone).unwrap_or(&none);
            let is_directory = *kind == FileKind::Directory;
            let expected = if is_directory { 1 } else { *links as usize };
            if *ino != ROOT && names.len() != expected {
                audit.wrong.push(format!("zone {zone} has {} names, not {expected}", names.len()));
            }
            for (named, named_kind, directory) in names {
                if (named, named_kind) != (ino, kind) {
                    audit.wrong.push(format!("a name takes the root of zone {zone} for inode {named}, not {ino}"));
                }
                if is_directory && directory != parent {
                    audit.wrong.push(format!("directory {ino} lies in {directory}, not in {parent}"));
                }
            }
        }
        for zone in self.names.keys().filter(|zone| !self.roots.contains_key(zone)) {
            audit.wrong.push(format!("a name names zone {zone}, which is gone"));
        }
    }
}
