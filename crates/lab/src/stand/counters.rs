//! What a device did, as the kernel counts it.

use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;

/// Bytes of a sector of these counters, whatever sectors the device has.
const SECTOR: u64 = 512;

/// Requests of a device, merged ones counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct DeviceUse {
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Flushes; zero where the kernel does not count them (before Linux 5.5).
    pub flushes: u64,
    /// Seconds in which something was under way.
    pub busy_s: f64,
}

impl DeviceUse {
    /// Since the device is there, as `/sys/class/block/NAME/stat` has it.
    pub fn of(device: &Path) -> Option<DeviceUse> {
        let name = device.strip_prefix("/dev").ok()?.file_name()?;
        let stat = std::fs::read_to_string(Path::new("/sys/class/block").join(name).join("stat")).ok()?;
        let numbers: Vec<u64> = stat.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let number = |at: usize| numbers.get(at).copied();
        Some(DeviceUse {
            reads: number(0)?,
            read_bytes: number(2)? * SECTOR,
            writes: number(4)?,
            written_bytes: number(6)? * SECTOR,
            flushes: number(15).unwrap_or(0),
            busy_s: number(9)? as f64 / 1e3,
        })
    }

    /// Since an earlier time.
    pub fn since(&self, before: &DeviceUse) -> DeviceUse {
        DeviceUse {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            flushes: self.flushes.saturating_sub(before.flushes),
            busy_s: (self.busy_s - before.busy_s).max(0.0),
        }
    }
}
