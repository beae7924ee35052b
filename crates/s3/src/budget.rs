//! Memory that requests may hold, all together.

use s3s::{S3Result, s3_error};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit in which memory is counted.
const GRAIN: u64 = 4096;

/// Memory for the bodies of all requests. A request takes what it needs at once, before the first byte, and never more
/// later: so nobody waits for memory while he holds some.
#[derive(Clone)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    grains: u64,
    patience: Duration,
}

/// Memory that somebody holds until this is dropped.
pub(crate) type Allowance = Arc<OwnedSemaphorePermit>;

impl Budget {
    /// `bytes` in all; who waits for longer than `patience` is told to come again.
    pub(crate) fn new(bytes: u64, patience: Duration) -> Budget {
        let grains = (bytes / GRAIN).clamp(1, Semaphore::MAX_PERMITS as u64);
        Budget { free: Arc::new(Semaphore::new(grains as usize)), grains, patience }
    }

    /// Takes `bytes`, or all there are if that is less.
    ///
    /// # Errors
    /// `SlowDown` when others hold them for too long.
    pub(crate) async fn take(&self, bytes: u64) -> S3Result<Allowance> {
        let grains = bytes.div_ceil(GRAIN).clamp(1, self.grains).min(u64::from(u32::MAX)) as u32;
        match tokio::time::timeout(self.patience, self.free.clone().acquire_many_owned(grains)).await {
            Ok(Ok(permit)) => Ok(Arc::new(permit)),
            _ => Err(s3_error!(SlowDown, "other requests hold all memory for bodies; try again later")),
        }
    }

    /// Gives back what is held beyond `bytes`.
    pub(crate) fn shrink(held: &mut Allowance, bytes: u64) {
        let keep = bytes.div_ceil(GRAIN).max(1) as usize;
        if let Some(permit) = Arc::get_mut(held)
            && let Some(spare) = permit.num_permits().checked_sub(keep)
        {
            drop(permit.split(spare));
        }
    }

    /// Whether more than half is free.
    pub(crate) fn is_ample(&self) -> bool {
        self.free.available_permits() as u64 > self.grains / 2
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;
    use std::time::Duration;

    #[test]
    fn what_is_held_is_bounded_and_given_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let budget = Budget::new(1 << 20, Duration::from_millis(10));
            let mut all = budget.take(1 << 30).await.expect("all there is");
            assert!(!budget.is_ample());
            assert!(budget.take(1).await.is_err(), "nothing is left");
            Budget::shrink(&mut all, 100_000);
            assert!(budget.is_ample());
            let rest = budget.take(900_000).await.expect("what was given back");
            assert!(budget.take(100_000).await.is_err());
            drop((all, rest));
            drop(budget.take(1 << 20).await.expect("everything again"));
        });
    }
}
