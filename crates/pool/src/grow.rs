//! Growing: one more device.
//!
//! The new device gets a copy of the newest superblock, with itself at the end of the list of devices; then it is noted
//! wherever the pool's devices are listed; then it is used. A crash before the note leaves the pool as it was, a crash
//! after it leaves a pool that has grown: of two superblocks of one generation, opening takes that with more devices.

use crate::checkpoint::Chores;
use crate::format::{DeviceRecord, Superblock};
use crate::open::{newest_superblock, require_room, write_first_superblock};
use crate::{Pool, Rule};
use ashlar_block::{Device, Error, Result};

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
        let mut records = shared.layout.records();
        if let Some(found) = newest_superblock(&device).await? {
            // What is left of growing that was cut off may be overwritten.
            let own = found.pool == shared.pool;
            if own && (found.device as usize) < records.len() {
                return Err(Error::misuse(format!("{}: is a device of this pool already, or a copy", device.name())));
            }
            if !own && !force {
                let message = format!("{}: holds another pool; overwrite it with --force", device.name());
                return Err(Error::misuse(message));
            }
        }
        let first = shared.layout.places().next().expect("a pool has a device");
        let newest = newest_superblock(&first.device).await?;
        let newest = newest.ok_or_else(|| Error::corrupt(format!("{}: lost its superblock", first.device.name())))?;
        let record = DeviceRecord { id: shared.env.random(), capacity: device.geometry().capacity };
        records.push(record);
        let superblock = Superblock { device: records.len() as u32 - 1, devices: records, ..newest };
        write_first_superblock(&device, &superblock).await?;
        let grow = async || {
            shared.space.add(shared.layout.add(device, record)?);
            self.provision().await;
            self.checkpoint_locked(Chores::default()).await
        };
        if shared.keeps(Rule::ListBeforeUse) {
            list()?;
            grow().await
        } else {
            grow().await?;
            list()
        }
    }
}
