//! How much is read of what, and what that costs.

use crate::analyse::Plan;
use crate::source::Source;
use std::time::Duration;

/// So many units the data should have, so that there are enough clusters in a sample: more would cost more, since the smaller units
/// are, the more is read for content-defined chunks around them. But a unit has no less and no more bytes than these.
const UNITS: u64 = 48 << 10;
const UNIT: [u64; 2] = [32 << 10, 1 << 20];

/// How much may be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// This share of the data.
    Share(f64),
    /// This many bytes.
    Bytes(u64),
    /// As much as can be read in this time.
    Time(Duration),
}

/// Bytes that are read for each one of a sample: of content-defined chunks more is read before a unit and behind it.
pub(crate) fn reading(source: &Source, plan: &Plan, unit: u64) -> f64 {
    let (lead, behind) = (plan.lead(), plan.tail() / 2);
    let (mut read, mut data) = (0.0, 0.0);
    for entry in &source.listing.entries {
        let len = if entry.sparse { entry.data } else { entry.size };
        // Units near the beginning, or the end, have less before them, or behind.
        let near = |most: u64| (most.min(len) as f64 * most.min(len) as f64) / 2.0 / unit as f64;
        let rest = |most: u64| len.saturating_sub(most) as f64 * most as f64 / unit as f64;
        let beside = |most: u64| if len > unit { near(most) + rest(most) } else { 0.0 };
        (read, data) = (read + len as f64 + beside(lead) + beside(behind), data + len as f64);
    }
    if data > 0.0 { read / data } else { 1.0 }
}

/// The share of so many bytes of data that is to be sampled, if each byte of a sample costs so many.
pub(crate) fn expected_share(budget: Option<Budget>, total: u64, cost: f64) -> f64 {
    match budget {
        Some(Budget::Share(share)) => share,
        // What is read beside the sample is in the budget too.
        Some(Budget::Bytes(bytes)) => (bytes as f64 / (total.max(1) as f64 * cost)).min(1.0),
        Some(Budget::Time(_)) | None => 0.05,
    }
}

/// Bytes of a unit of so many bytes of data: large where each costs as much as some hundred kilobytes.
pub(crate) fn unit_bytes(far: bool, total: u64) -> u64 {
    if far {
        return 1 << 20;
    }
    (1 << (total / UNITS).max(1).ilog2()).clamp(UNIT[0], UNIT[1])
}
