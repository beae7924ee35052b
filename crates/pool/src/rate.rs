//! How fast a device writes, as it did lately.

use ashlar_env::Instant;
use std::time::Duration;

/// The rate is that of the last so many bytes, about.
const RECENT: u64 = 16 << 20;
/// The least time of a write is that of one or two such times.
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Rate {
    bytes: u64,
    /// How long something was under way for these.
    busy: Duration,
    /// When something began or ended last.
    changed: Instant,
    /// The least time that a write took, in this window and in the one before.
    least: [Option<Duration>; 2],
    window: Instant,
}

impl Rate {
    /// To be called when a write begins or ends, with whether any was under way until now.
    pub(crate) fn pass(&mut self, now: Instant, is_busy: bool) {
        if is_busy {
            self.busy += now.since(self.changed);
        }
        self.changed = now;
    }

    /// A write of so many bytes ended, which took so long.
    pub(crate) fn wrote(&mut self, now: Instant, bytes: u64, took: Duration) {
        self.bytes += bytes;
        if self.bytes > RECENT {
            self.bytes /= 2;
            self.busy /= 2;
        }
        if now.since(self.window) > WINDOW {
            self.least = [None, self.least[0]];
            self.window = now;
        }
        self.least[0] = Some(self.least[0].map_or(took, |least| least.min(took)));
    }

    /// Bytes that it writes in so much time; `None` if that is not known.
    pub(crate) fn worth(&self, time: Duration) -> Option<u64> {
        let bytes = (u128::from(self.bytes) * time.as_nanos()).checked_div(self.busy.as_nanos())?;
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Twice the least time of a write. A device that is far away answers late whatever it has to do: who gives it less than it does in
    /// this time sees the rate fall for ever.
    pub(crate) fn there_and_back(&self) -> Duration {
        2 * self.least.iter().flatten().min().copied().unwrap_or_default()
    }
}
