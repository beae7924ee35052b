//! What a layout must know of a drive.

use crate::common::Refused;
use ashlar_models::disk::{DiskSpec, SeekCurve};
use ashlar_models::{ModelFile, SECTOR, Spec};

/// A disk. Times are milliseconds.
#[derive(Clone, Debug)]
pub struct Drive {
    /// The model.
    pub name: String,
    /// A revolution.
    pub revolution: f64,
    /// Settling on another track before reading.
    pub read_settle: f64,
    /// Settling on another track before writing.
    pub write_settle: f64,
    /// Bytes of a track, on average over the disk.
    pub track: f64,
    /// Bytes of the disk.
    pub capacity: f64,
    /// Time that a request needs at least, whatever is near: firmware and host. Zero in our models.
    pub floor: f64,
    tracks: f64,
    cylinders: f64,
    read_seek: SeekCurve,
}

fn ns(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

impl Drive {
    /// The disk of a model.
    ///
    /// # Errors
    /// The model is of no disk.
    pub fn of(model: &ModelFile) -> Result<Drive, Refused> {
        let Spec::Disk(spec) = &model.model else {
            return Err(Refused(format!("{} is no disk; name a model of one, as in wd-re3", model.name)));
        };
        let built = model.build(0).map_err(|error| Refused(error.to_string()))?;
        let DiskSpec { rpm, surfaces, zones, seek, .. } = &**spec;
        let cylinders: u32 = zones.iter().map(|(count, _)| count).sum();
        let sectors: f64 = zones.iter().map(|(count, sectors)| f64::from(*count) * f64::from(*sectors)).sum();
        let settle = ns(seek.read_settle_ms);
        Ok(Drive {
            name: model.name.clone(),
            revolution: 60_000.0 / rpm,
            read_settle: seek.read_settle_ms,
            write_settle: seek.write_settle_ms,
            track: sectors / f64::from(cylinders) * SECTOR as f64,
            capacity: built.capacity() as f64,
            floor: 0.0,
            tracks: f64::from(cylinders) * f64::from(*surfaces),
            cylinders: f64::from(cylinders),
            read_seek: SeekCurve::new(cylinders, seek.settle_cylinders, settle, ns(seek.read_average_ms)),
        })
    }

    /// The average seek before reading, within a span of so many bytes: that over a third of it.
    pub fn seek(&self, bytes: f64) -> f64 {
        let share = (bytes / (self.tracks * self.track)).clamp(0.0, 1.0);
        self.read_seek.time_ns((self.cylinders * share / 3.0) as u32) as f64 / 1e6
    }
}
