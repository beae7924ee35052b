//! What blocks and keys belong to, as paths: for reports of damage.

use crate::Betr;
use crate::keys::{self, Place, RANGE_BLOCKS};
use crate::record::{Entry, Stored};
use ashlar_units::{Blocks, Lba};
use ashlar_vfs::{Ino, Result};
use std::collections::HashSet;
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

    /// The path to a place: names from the root on. What cannot be read on the way stands as `?`.
    async fn path_of(&self, place: Place) -> Result<String> {
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
            let mut found = None;
            let note = |place: Place, entry: Entry| match entry.stored {
                Stored::Zone { zone: named, .. } if named == zone => {
                    found = Some(place);
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            };
            self.visit_names(note).await?;
            match found.filter(|_| seen.insert(zone)) {
                Some(place) => at = place,
                None => return Ok(format!("/?{path}")),
            }
        }
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
