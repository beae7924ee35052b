//! Flash devices: NAND with a page map, with append-once segments, or with log blocks as in memory cards.

mod hybrid;
mod nand;
mod page;
mod segment;

pub use hybrid::{Hybrid, HybridSpec};
pub use nand::{Cell, NandSpec};
pub use page::{Cleaning, FlashSpec, PageMapped};
pub use segment::{SegmentSpec, Segments, page_map_bytes, segment_map_bytes};

use crate::error::{SpecError, law, time_ns};
use serde::{Deserialize, Serialize};

/// Between host and controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Time to process a command, microseconds.
    pub command_us: f64,
    /// Rate of the interface, MB/s.
    pub interface_mb_s: f64,
    /// Requests that the device serves at once; more wait.
    pub depth: u32,
}

/// The same in the units of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    command_ns: u64,
    ns_per_kib: u64,
    /// When the interface has worked off what it was given.
    free_ns: u64,
}

impl HostSpec {
    pub(crate) fn check(&self) -> Result<(Host, usize), SpecError> {
        law(
            (1..=1 << 16).contains(&self.depth),
            "host.depth",
            self.depth,
            "a device serves 1 to 65,536 requests at once",
        )?;
        law(
            self.interface_mb_s.is_finite() && (0.001..=1e6).contains(&self.interface_mb_s),
            "host.interface_mb_s",
            self.interface_mb_s,
            "an interface moves 0.001 to 1,000,000 MB/s",
        )?;
        let host = Host {
            command_ns: time_ns("host.command_us", self.command_us, 1e3)?,
            ns_per_kib: (1024.0 * 1e3 / self.interface_mb_s).round() as u64,
            free_ns: 0,
        };
        Ok((host, self.depth as usize))
    }
}

impl Host {
    /// When `len` bytes have crossed the interface that can begin at `ready_ns`, given to it at `now_ns`; and how long
    /// the crossing alone takes.
    fn cross(&mut self, len: u64, now_ns: u64, ready_ns: u64) -> (u64, u64) {
        let time_ns = (len * self.ns_per_kib) >> 10;
        let begin_ns = ready_ns.max(self.free_ns);
        self.free_ns = self.free_ns.max(now_ns) + time_ns;
        (begin_ns + time_ns, time_ns)
    }
}
