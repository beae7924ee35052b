//! What blocks and keys belong to, as paths: for reports of damage.

use crate::Betr;
use crate::keys::{self, Place, RANGE_BLOCKS};
use crate::record::{Entry, Stored};
use ashlar_inodes::{BLOCK, Lost};
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{Ino, Result};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

impl Betr {
    /// What a block of the volume belongs to: a block range, and the byte offset in the file that has it.
    pub fn range_at(&self, block: Lba) -> (u64, u64) {
        (block.0 / RANGE_BLOCKS, Blocks(block.0 % RANGE_BLOCKS).to_bytes().0)
    }

    /// The number of the file that has a block range, and a path that leads to it, as far as the way can be read; `None` if no
    /// name that can be read leads to it. It reads all names.
    pub async fn path_of_range(&self, range: u64) -> Result<Option<(Ino, String)>> {
        let mut found = None;
        let note = |place: Place, entry: Entry| match entry.stored {
            Stored::Record(record) if record.contents.range == range => {
                found = Some((record.ino, place));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        };
        self.visit_names(note).await?;
        let Some((ino, place)) = found else { return Ok(None) };
        Ok(Some((ino, self.path_of(place).await?)))
    }

    /// The path of the directory, as far as the way can be read, that holds the first of these keys: what is lost with them are
    /// names and small files from there on. `None` if the keys are of another kind.
    pub async fn path_at(&self, key: &[u8]) -> Result<Option<String>> {
        let (Some(prefix), rest) = (key.first(), key.get(1..).unwrap_or_default()) else { return Ok(None) };
        if ![keys::META, keys::DATA, keys::SUMS].contains(prefix) {
            return Ok(None);
        }
        let Some(place) = Place::first_in(rest) else { return Ok(Some("/".into())) };
        self.path_of(place.above().unwrap_or(place)).await.map(Some)
    }

    /// Files that reach into these blocks, up to `most`, with the byte offset and the bytes that they have there; and how many more
    /// there are.
    pub async fn files_in(&self, first: Lba, count: Blocks, most: usize) -> Result<(Vec<(String, u64, u64)>, u64)> {
        let (mut found, mut more) = (Vec::new(), 0);
        let end = first.0.saturating_add(count.0);
        let note = |place: Place, entry: Entry| {
            if let Stored::Record(record) = entry.stored
                && record.contents.range != 0
            {
                let base = record.contents.base().0;
                let from = first.0.saturating_sub(base).saturating_mul(BLOCK);
                let to = end.saturating_sub(base).saturating_mul(BLOCK).min(record.size);
                if from < to && found.len() < most {
                    found.push((place, from, to - from));
                } else if from < to {
                    more += 1;
                }
            }
            ControlFlow::Continue(())
        };
        self.visit_names(note).await?;
        let (mut files, mut zones) = (Vec::with_capacity(found.len()), HashMap::new());
        for (place, offset, len) in found {
            files.push((self.path_by(place, &mut zones).await?, offset, len));
        }
        Ok((files, more))
    }

    /// Files in blocks with pieces over them whose keys meet these: paths, up to `most`, and how many more there are.
    pub(crate) async fn overlaid_in(&self, lost: &[Lost], most: usize) -> Result<(Vec<String>, u64)> {
        let (mut found, mut more) = (Vec::new(), 0);
        let note = |place: Place, entry: Entry| {
            if let Stored::Record(record) = entry.stored
                && record.contents.range != 0
                && record.contents.overlaid
            {
                let (low, high) = keys::contents(&place, record.ino);
                let meets = |(start, end): &Lost| start[..] < high[..] && end.as_ref().is_none_or(|end| low < *end);
                if lost.iter().any(meets) && found.len() < most {
                    found.push(place);
                } else if lost.iter().any(meets) {
                    more += 1;
                }
            }
            ControlFlow::Continue(())
        };
        self.visit_names(note).await?;
        let (mut paths, mut zones) = (Vec::with_capacity(found.len()), HashMap::new());
        for place in found {
            paths.push(self.path_by(place, &mut zones).await?);
        }
        Ok((paths, more))
    }

    /// The path to a place: names from the root on. What cannot be read on the way stands as `?`.
    async fn path_of(&self, place: Place) -> Result<String> {
        self.path_by(place, &mut HashMap::new()).await
    }

    /// The same, with the places of zones that are known.
    async fn path_by(&self, place: Place, zones: &mut HashMap<u64, Option<Place>>) -> Result<String> {
        let (mut at, mut path, mut seen) = (place, String::new(), HashSet::new());
        loop {
            while let Some(above) = at.above() {
                let name = match self.volume.get(&keys::of(keys::META, &at)).await {
                    Ok(Some(value)) => Entry::decode(&value).ok().map(|entry| entry.name),
                    _ => None,
                };
                path = format!("/{}{path}", name.as_deref().map_or("?".into(), String::from_utf8_lossy));
                at = above;
            }
            let zone = at.zone();
            if zone == keys::ROOT_ZONE {
                return Ok(if path.is_empty() { "/".into() } else { path });
            }
            let known = zones.get(&zone).cloned();
            let found = match known {
                Some(found) => found,
                None => self.place_of_zone(zone).await?,
            };
            zones.insert(zone, found.clone());
            match found.filter(|_| seen.insert(zone)) {
                Some(place) => at = place,
                None => return Ok(format!("/?{path}")),
            }
        }
    }

    /// Where the name of a zone lies. It reads all names.
    async fn place_of_zone(&self, zone: u64) -> Result<Option<Place>> {
        let mut found = None;
        let note = |place: Place, entry: Entry| match entry.stored {
            Stored::Zone { zone: named, .. } if named == zone => {
                found = Some(place);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        };
        self.visit_names(note).await?;
        Ok(found)
    }

    /// Visits the names and roots of zones that can be read, in key order, until a visit breaks off. Of a zone with damage it
    /// visits what comes before that.
    async fn visit_names(&self, mut visit: impl FnMut(Place, Entry) -> ControlFlow<()> + Send) -> Result<()> {
        let (mut low, end) = (vec![keys::META], [keys::META + 1]);
        // Zones to go on behind after damage: more each time, for a leaf of the index may hold many.
        let mut step = 1u64;
        loop {
            let Ok(page) = self.volume.page(&low, Some(&end), ashlar_inodes::PAGE).await else {
                let zone = Place::first_in(&low[1..]).map_or(0, |place| place.zone()).saturating_add(step);
                if zone > keys::NUMBER_MAX {
                    return Ok(());
                }
                low = keys::of(keys::META, &Place::root_of(zone));
                step = step.saturating_mul(2);
                continue;
            };
            for (key, value) in &page.entries {
                if let (Ok(place), Ok(entry)) = (Place::decode(&key[1..]), Entry::decode(value))
                    && visit(place, entry).is_break()
                {
                    return Ok(());
                }
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None => return Ok(()),
            }
        }
    }
}
