//! What operators get to see of damage.

use ashlar_vfs::{Error, Ino};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Reports of damage per second; the rest is counted and named in the next one.
const REPORTS_PER_SECOND: u32 = 10;

/// A storage error behind a failed request: applications see only `EIO`, the operator sees this.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The operation that met it.
    pub operation: &'static str,
    /// The inode.
    pub ino: Ino,
    /// Where in the file, if it was about data.
    pub offset: Option<u64>,
    /// How many bytes, if it was about data.
    pub len: Option<u64>,
    /// The error with its cause.
    pub error: Error,
    /// Reports that were left out since the one before this.
    pub left_out: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of inode {}", self.operation, self.ino)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        if let Some(len) = self.len {
            write!(f, ", {len} bytes")?;
        }
        write!(f, ": {}", self.error)?;
        if self.left_out > 0 {
            write!(f, " (and {} like it were not reported)", self.left_out)?;
        }
        Ok(())
    }
}

/// Takes reports of damage. Called from executor threads: it must not block for long.
pub type OnDamage = Arc<dyn Fn(&Damage) + Send + Sync>;

/// Limits the rate of reports.
#[derive(Default)]
pub(crate) struct Limiter(Mutex<Window>);

#[derive(Default)]
struct Window {
    second: u64,
    given: u32,
    left_out: u64,
}

impl Limiter {
    /// Whether to report now, and how many were left out before.
    pub(crate) fn admit(&self, nanos: u64) -> Option<u64> {
        let mut window = self.0.lock();
        let second = nanos / 1_000_000_000;
        if second != window.second {
            window.second = second;
            window.given = 0;
        }
        if window.given >= REPORTS_PER_SECOND {
            window.left_out += 1;
            return None;
        }
        window.given += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_limited_per_second_and_the_rest_is_counted() {
        let limiter = Limiter::default();
        let given = (0..100).filter(|_| limiter.admit(5).is_some()).count();
        assert_eq!(given, REPORTS_PER_SECOND as usize);
        assert_eq!(limiter.admit(2_000_000_000), Some(90));
        assert_eq!(limiter.admit(2_000_000_000), Some(0));
    }
}
