//! Checking: every pointer, every block that is read through one, and the map of free blocks against all pointers.

use crate::engine::{Engine, READ, staged_at};
use crate::format::{Pointer, checksum};
use ashlar_block::{Result, strand};
use ashlar_pool::Volume;
use ashlar_units::{Blocks, Lba};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks of an extent that are looked at together.
const STEP: u64 = 1 << 14;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks with a pointer in the live extents.
    pub live: u64,
    /// Extents and offsets whose data on the disk are not what was written, in the live extents or in a snapshot.
    pub damaged: Vec<(String, u32, u64)>,
    /// Blocks with several pointers in the live extents.
    pub doubled: Vec<u64>,
    /// Blocks with a pointer that are not in use by the map.
    pub lost: Vec<u64>,
    /// Blocks in use without a pointer: space that nobody gets.
    pub idle: Vec<u64>,
}

impl Checked {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.doubled.is_empty() && self.lost.is_empty() && self.idle.is_empty()
    }
}

/// A bit for each block of the data device.
struct Bits(Vec<u64>);

impl Bits {
    /// Sets a bit; says whether it was set.
    fn put(&mut self, at: u64) -> bool {
        let Some(word) = self.0.get_mut((at / 64) as usize) else { return true };
        let was = *word >> (at % 64) & 1 == 1;
        *word |= 1 << (at % 64);
        was
    }
    fn has(&self, at: u64) -> bool {
        self.0.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}

impl Engine {
    /// Checks everything. Nobody writes meanwhile, and nobody destages. It takes a bit of memory for each block of the disk.
    pub async fn check(&self) -> Result<Checked> {
        let inner = &*self.0;
        self.flush().await?;
        let _one = inner.destaging.lock().await;
        let mut found = Checked::default();
        let mut seen = Bits(vec![0; inner.capacity().0.div_ceil(64) as usize]);
        let mut views = vec![(String::new(), inner.extents.clone())];
        for name in self.snapshots() {
            views.extend(inner.pool.volume(&crate::snapshots::full_name(&name)).map(|volume| (name, volume)));
        }
        for (name, volume) in views {
            for (extent, length) in crate::engine::list_extents(&volume).await? {
                for start in (0..length.0).step_by(STEP as usize) {
                    let part = start..length.0.min(start + STEP);
                    let mut pointers = inner.pointers(&volume, extent, part.clone()).await?;
                    for pointer in pointers.values() {
                        let again = seen.put(pointer.at);
                        found.live += u64::from(name.is_empty());
                        if again && name.is_empty() {
                            found.doubled.push(pointer.at);
                        }
                    }
                    let masked = self.masked(&volume, extent, &part).await?;
                    pointers.retain(|offset, _| !masked.contains(offset));
                    for offset in self.damaged(&pointers).await? {
                        found.damaged.push((name.clone(), extent, offset));
                    }
                }
            }
        }
        seen.put(0); // the label
        let areas = inner.space.lock().areas_count();
        for area in 0..areas {
            self.load(area).await?;
            for (at, used) in inner.space.lock().uses(area) {
                match (seen.has(at), used) {
                    (true, false) => found.lost.push(at),
                    (false, true) => found.idle.push(at),
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    /// Offsets of a range that are staged in a volume: what their pointers point at may hold other data by now.
    async fn masked(&self, volume: &Volume, extent: u32, part: &Range<u64>) -> Result<BTreeSet<u64>> {
        let runs = volume.runs(staged_at(extent, part.start), Blocks(part.end - part.start)).await?;
        let offsets = |(at, run): (Lba, ashlar_pool::map::Run)| {
            let offset = (at - staged_at(extent, 0)).0;
            offset..offset + u64::from(run.count)
        };
        Ok(runs.into_iter().flat_map(offsets).collect())
    }

    async fn damaged(&self, pointers: &BTreeMap<u64, Pointer>) -> Result<Vec<u64>> {
        let inner = &*self.0;
        let places: Vec<u64> = pointers.values().map(|pointer| pointer.at).collect();
        let reads = places.into_iter().map(|at| inner.data.read(READ, Lba(at), Blocks(1)));
        let data = strand(inner.config.outstanding, reads).await?;
        let wrong = |((offset, pointer), block): ((&u64, &Pointer), bytes::Bytes)| {
            (checksum(&block) != pointer.crc).then_some(*offset)
        };
        Ok(pointers.iter().zip(data).filter_map(wrong).collect())
    }
}
