//! The description of a drive, and the laws that it must keep.

use super::geometry::Geometry;
use super::power::PowerSpec;
use super::seek::SeekCurve;
use crate::error::{SpecError, law, size, time_ns};
use crate::io::SECTOR;
use serde::{Deserialize, Serialize};

/// A mechanical disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Bytes that the host sees, as in "300GB"; at most what the zones hold.
    pub capacity: String,
    /// Revolutions per minute.
    pub rpm: f64,
    /// Recording surfaces, one head each.
    pub surfaces: u32,
    /// Cylinders and sectors per track of each zone, from the outer edge inwards. Sectors are of 512 bytes.
    pub zones: Vec<(u32, u32)>,
    /// Cylinders of a band of the serpentine layout.
    pub band_cylinders: u32,
    /// Skew between neighbouring tracks of a surface, milliseconds.
    pub cylinder_skew_ms: f64,
    /// Skew where the next track is on another surface, milliseconds.
    pub track_skew_ms: f64,
    /// Arm movement.
    pub seek: SeekSpec,
    /// Scheduling.
    pub queue: QueueSpec,
    /// Buffer.
    pub cache: CacheSpec,
    /// Time to process a command before the mechanism can be given it, microseconds.
    pub command_us: f64,
    /// Rate between buffer and host, MB/s.
    pub interface_mb_s: f64,
    /// Power; the energy account stays at zero without it.
    pub power: Option<PowerSpec>,
}

/// The seek curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeekSpec {
    /// Distance up to which a seek takes only the time to settle, cylinders.
    pub settle_cylinders: u32,
    /// Time to settle before reading, milliseconds.
    pub read_settle_ms: f64,
    /// Time to settle before writing, milliseconds.
    pub write_settle_ms: f64,
    /// Time to get ready for another place on the same track, milliseconds. Absent: the time to settle.
    pub same_track_ms: Option<f64>,
    /// Average seek before reading, milliseconds: reached at a third of the stroke.
    pub read_average_ms: f64,
    /// Average seek before writing, milliseconds.
    pub write_average_ms: f64,
}

/// How the drive chooses among the requests that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// In order of arrival.
    Fifo,
    /// C-LOOK: upwards through the addresses, then from the lowest again.
    Elevator,
    /// Shortest positioning time first: seek and rotation together.
    Sptf,
}

/// The queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// The order of service.
    pub scheduler: Scheduler,
    /// Requests that the drive holds; more wait outside, unseen by the scheduler.
    pub depth: u32,
    /// How much of its waiting time a request is forgiven by shortest-positioning-time-first; 0 is the pure kind, which
    /// may starve requests.
    pub age_weight: f64,
}

/// The buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// How far the drive reads on after a read when nothing else waits, as in "1MiB".
    pub read_ahead: String,
    /// Runs of sectors that the drive remembers for reads.
    pub segments: u32,
    /// Whether a write is done when it is in the buffer.
    pub write_back: bool,
    /// Buffer for such writes, as in "16MiB".
    pub write_buffer: String,
}

/// The same in the units of the model.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub capacity: u64,
    pub geometry: Geometry,
    pub read_seek: SeekCurve,
    pub write_seek: SeekCurve,
    pub same_track_ns: Option<u64>,
    pub scheduler: Scheduler,
    pub depth: usize,
    pub age_weight: f64,
    pub read_ahead_sectors: u64,
    pub segments: usize,
    pub write_back: bool,
    pub write_buffer: u64,
    pub command_ns: u64,
    pub interface_ns_per_sector: u64,
}

const MS: f64 = 1e6;
const US: f64 = 1e3;

impl DiskSpec {
    pub(super) fn check(&self) -> Result<Parameters, SpecError> {
        law(
            self.rpm.is_finite() && (1.0..=100_000.0).contains(&self.rpm),
            "rpm",
            self.rpm,
            "a disk turns 1 to 100,000 times a minute",
        )?;
        let revolution_ns = (60e9 / self.rpm).round() as u64;
        law((1..=64).contains(&self.surfaces), "surfaces", self.surfaces, "a drive has 1 to 64 surfaces")?;
        law(
            !self.zones.is_empty() && self.zones.len() <= 256,
            "zones",
            self.zones.len(),
            "a drive has 1 to 256 zones",
        )?;
        for &(cylinders, sectors) in &self.zones {
            law((1..=1 << 22).contains(&cylinders), "zones", cylinders, "a zone has 1 to 4,194,304 cylinders")?;
            law((1..=100_000).contains(&sectors), "zones", sectors, "a track has 1 to 100,000 sectors")?;
        }
        let cylinders: u64 = self.zones.iter().map(|zone| u64::from(zone.0)).sum();
        law(cylinders <= 1 << 24, "zones", cylinders, "a drive has at most 16,777,216 cylinders")?;
        let cylinders = cylinders as u32;
        let falling = self.zones.windows(2).all(|pair| pair[0].1 >= pair[1].1);
        law(falling, "zones", "rising", "sectors per track do not rise inwards: inner tracks are shorter")?;
        law(self.band_cylinders > 0, "band_cylinders", self.band_cylinders, "a band has at least one cylinder")?;
        // A band is as wide as the drive at most; more changes nothing and would overflow.
        let band = self.band_cylinders.min(cylinders);
        let skew = |name, value| {
            let ns = time_ns(name, value, MS)?;
            law(ns < revolution_ns, name, value, "a skew is less than a revolution")?;
            Ok(ns)
        };
        let cylinder_skew_ns = skew("cylinder_skew_ms", self.cylinder_skew_ms)?;
        let track_skew_ns = skew("track_skew_ms", self.track_skew_ms)?;
        let geometry = Geometry::new(&self.zones, self.surfaces, band, revolution_ns, cylinder_skew_ns, track_skew_ns);
        let capacity = size("capacity", &self.capacity)? / SECTOR * SECTOR;
        law(capacity > 0, "capacity", &self.capacity, "a drive holds at least a sector")?;
        law(
            capacity <= geometry.bytes(),
            "capacity",
            &self.capacity,
            &format!("the zones hold {} bytes, and a drive holds no more", geometry.bytes()),
        )?;
        let (read_seek, write_seek) = self.seek.check(cylinders)?;
        let same_track_ns = self.seek.same_track_ns()?;
        law(
            (1..=1024).contains(&self.queue.depth),
            "queue.depth",
            self.queue.depth,
            "a drive holds 1 to 1024 requests",
        )?;
        law(
            self.queue.age_weight.is_finite() && (0.0..=100.0).contains(&self.queue.age_weight),
            "queue.age_weight",
            self.queue.age_weight,
            "the weight of age is 0 to 100; at the top the order is that of arrival",
        )?;
        law(self.cache.segments <= 1024, "cache.segments", self.cache.segments, "a drive has at most 1024 segments")?;
        law(
            self.interface_mb_s.is_finite() && (0.001..=1e6).contains(&self.interface_mb_s),
            "interface_mb_s",
            self.interface_mb_s,
            "an interface moves 0.001 to 1,000,000 MB/s",
        )?;
        if let Some(power) = &self.power {
            power.check()?;
        }
        Ok(Parameters {
            capacity,
            geometry,
            read_seek,
            write_seek,
            same_track_ns,
            scheduler: self.queue.scheduler,
            depth: self.queue.depth as usize,
            age_weight: self.queue.age_weight,
            read_ahead_sectors: size("cache.read_ahead", &self.cache.read_ahead)? / SECTOR,
            segments: self.cache.segments as usize,
            write_back: self.cache.write_back,
            write_buffer: size("cache.write_buffer", &self.cache.write_buffer)?,
            command_ns: time_ns("command_us", self.command_us, US)?,
            interface_ns_per_sector: (SECTOR as f64 * 1e3 / self.interface_mb_s).round() as u64,
        })
    }
}

impl SeekSpec {
    fn check(&self, cylinders: u32) -> Result<(SeekCurve, SeekCurve), SpecError> {
        law(
            self.settle_cylinders < cylinders / 4,
            "seek.settle_cylinders",
            self.settle_cylinders,
            "the arm settles without a real seek over less than a quarter of the cylinders",
        )?;
        let curve = |settle_name, settle_ms, average_name, average_ms| {
            let settle = time_ns(settle_name, settle_ms, MS)?;
            let average = time_ns(average_name, average_ms, MS)?;
            law(settle < average, settle_name, settle_ms, "settling takes less time than an average seek")?;
            Ok((settle, average))
        };
        let read = curve("seek.read_settle_ms", self.read_settle_ms, "seek.read_average_ms", self.read_average_ms)?;
        let write =
            curve("seek.write_settle_ms", self.write_settle_ms, "seek.write_average_ms", self.write_average_ms)?;
        law(
            write.0 >= read.0,
            "seek.write_settle_ms",
            self.write_settle_ms,
            "a write needs at least as exact a place as a read",
        )?;
        let make = |(settle, average)| SeekCurve::new(cylinders, self.settle_cylinders, settle, average);
        Ok((make(read), make(write)))
    }

    fn same_track_ns(&self) -> Result<Option<u64>, SpecError> {
        let Some(stay_ms) = self.same_track_ms else { return Ok(None) };
        let stay_ns = time_ns("seek.same_track_ms", stay_ms, MS)?;
        law(
            stay_ms <= self.read_settle_ms,
            "seek.same_track_ms",
            stay_ms,
            "staying on a track takes no longer than settling on another",
        )?;
        Ok(Some(stay_ns))
    }
}
