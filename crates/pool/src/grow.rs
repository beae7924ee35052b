//! Growing: one more device, or what a device became larger by.
//!
//! A new device gets a copy of the newest superblock, with itself at the end of the list of devices; then it is noted
//! wherever the pool's devices are listed; then it is used. A crash before the note leaves the pool as it was, a crash
//! after it leaves a pool that has grown: of two superblocks of one generation, opening takes that with more devices.
//!
//! What a device became larger by is a device of its own to the pool, so that segments keep their numbers, and needs no note: opening
//! looks for superblocks behind what it knows of each device.

use crate::assemble::{Member, least_device, newest_superblock, require_room, write_first_superblock};
use crate::checkpoint::Chores;
use crate::format::{DeviceRecord, SEGMENTS_MAX, SUPERBLOCKS, Superblock};
use crate::{Pool, Rule};
use ashlar_block::{Device, Error, Result};
use ashlar_units::{Blocks, Bytes as Size, Lba};

/// What lies on a device behind what the pool has of it.
struct End {
    number: u32,
    device: Device,
    at: Lba,
    count: Blocks,
}

/// What devices became larger by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enlarged {
    /// Devices, and bytes that the pool has more of them.
    pub taken: Vec<(String, Size)>,
    /// Devices, and bytes that they became larger by, which are too few.
    pub left: Vec<(String, Size)>,
    /// So much is enough.
    pub least: Size,
}

impl Pool {
    /// Adds a device, while the pool is in use. What it held is lost; if that was a pool, only with `force`.
    ///
    /// `list` must note the device, durably, wherever the devices for [`Pool::open`] are listed. It is called when the
    /// pool could be opened with the device, and before anything is stored on it.
    pub async fn grow(&self, device: Device, force: bool, list: impl FnOnce() -> Result<()>) -> Result<()> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        shared.admit()?;
        require_room(&device, shared.layout.segment)?;
        if let Some(found) = newest_superblock(&device).await? {
            // What is left of growing that was cut off may be overwritten.
            let own = found.pool == shared.pool;
            if own && (found.device as usize) < shared.layout.places().count() {
                return Err(Error::misuse(format!("{}: is a device of this pool already, or a copy", device.name())));
            }
            if !own && !force {
                let message = format!("{}: holds another pool; overwrite it with --force", device.name());
                return Err(Error::misuse(message));
            }
        }
        self.take(Member::whole(device), list).await
    }

    /// Takes what devices became larger by since the pool has them, while it is in use. Too little of it is left.
    pub async fn enlarge(&self) -> Result<Enlarged> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        shared.admit()?;
        let least = least_device(shared.layout.segment);
        let mut enlarged = Enlarged { least: least.to_bytes(), ..Enlarged::default() };
        let most = SUPERBLOCKS.0 + SEGMENTS_MAX * shared.layout.segment.0;
        for End { number, device, at, count } in self.ends()? {
            let (mut at, mut left) = (at, count);
            while left >= least {
                let part = left.min(Blocks(most));
                self.take(Member::part(number, device.clone(), at, part), || Ok(())).await?;
                (at, left) = (at + part, left - part);
            }
            match (left < count, left) {
                (true, _) => enlarged.taken.push((device.name(), (count - left).to_bytes())),
                (false, Blocks(0)) => {}
                (false, _) => enlarged.left.push((device.name(), left.to_bytes())),
            }
        }
        Ok(enlarged)
    }

    /// Bytes that [`Pool::enlarge`] would take; none if the devices do not tell.
    pub fn unused_ends(&self) -> Size {
        let least = least_device(self.0.layout.segment);
        let ends = self.ends().unwrap_or_default().into_iter().filter(|end| end.count >= least);
        Size(ends.map(|end| end.count.to_bytes().0).sum())
    }

    /// The ends of the devices, as large as they are now.
    fn ends(&self) -> Result<Vec<End>> {
        let mut ends: Vec<End> = Vec::new();
        for (index, place) in (0..).zip(self.0.layout.places()) {
            if place.part_of.is_none() {
                place.whole.measure()?;
            }
            let capacity = place.whole.geometry().capacity;
            let end = End {
                number: place.part_of.unwrap_or(index),
                device: place.whole.clone(),
                at: place.behind,
                count: Blocks(capacity.0.saturating_sub(place.behind.0)),
            };
            // A later part lies behind the ones before it.
            match ends.iter_mut().find(|known| known.number == end.number) {
                Some(known) => *known = end,
                None => ends.push(end),
            }
        }
        Ok(ends)
    }

    /// Takes a device, or a part of one, behind the others.
    async fn take(&self, member: Member, list: impl FnOnce() -> Result<()>) -> Result<()> {
        let shared = &self.0;
        let first = shared.layout.places().next().expect("a pool has a device");
        let newest = newest_superblock(&first.device).await?;
        let newest = newest.ok_or_else(|| Error::corrupt(format!("{}: lost its superblock", first.device.name())))?;
        let (device, part_of) = (member.device.clone(), member.part_of);
        let record = DeviceRecord { id: shared.env.random(), capacity: device.geometry().capacity };
        let mut devices = shared.layout.records();
        shared.layout.admit(&device, record)?;
        devices.push(record);
        let superblock = Superblock { device: devices.len() as u32 - 1, part_of, devices, ..newest };
        let first = async || write_first_superblock(&device, &superblock).await;
        // A part is noted by its superblock.
        let note = async || if part_of.is_some() { first().await } else { list() };
        let grow = async || {
            shared.space.add(shared.layout.add(member, record)?);
            self.provision().await;
            self.checkpoint_locked(Chores::default()).await
        };
        if part_of.is_none() {
            first().await?;
        }
        if shared.keeps(Rule::ListBeforeUse) {
            note().await?;
            grow().await
        } else {
            grow().await?;
            note().await
        }
    }
}
