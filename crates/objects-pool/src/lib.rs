//! Objects on a volume of a pool, or with their names there and their contents elsewhere ([`Contents`]).
//!
//! The contents of an object are one virtual range of the volume, its description is an entry of the volume's dictionary.
//! Entries lie in the order of names, so a listing is a scan.
//!
//! Invariants
//!  1. Every change is one transaction of the pool: contents, description, counts, and the end of what it replaces. A crash
//!     leaves all of it or nothing. Contents that do not fit a transaction are built in a place that is listed as being
//!     built; opening clears such places.
//!  2. A place is used once: numbers count up, and are reserved durably before they are used. So are versions.
//!  3. Behind the last byte of an object its last block is zeros, so that growing shows zeros.
//!  4. Who changes an object holds its stripe's lock for writing from looking at it to the commit; who reads holds it for
//!     reading; several stripes are locked in ascending order.
//!
//! Layout    the module [`mod@format`]; docs/objects.md describes it.
//! Needs     the pool's log is in commit order, and recovery yields a prefix of it.
//! Costs     a put of up to 8 MiB is one transaction, and one sync that it shares with whoever syncs at that time.
//!           `compose` shares extents: its cost is by the piece of 128 KiB, and by the byte where a part does not end at a
//!           block and is not the last.

mod audit;
mod building;
mod change;
mod contents;
pub mod format;
#[cfg(test)]
mod fuzz;
mod locks;
mod numbers;
mod rules;
mod store;
#[cfg(test)]
mod tests;

pub use audit::{Audit, audit, audit_with, object_at};
pub use contents::{Change, Contents};
pub use rules::Rule;
pub use store::{Objects, Options};

/// What the names of volumes with objects begin with; those of file systems do not.
const VOLUME: &str = "bucket:";

/// The volume of a bucket.
pub fn volume_of(bucket: &str) -> String {
    format!("{VOLUME}{bucket}")
}

/// Whether a volume of this name holds objects, not files.
pub fn is_bucket(volume: &str) -> bool {
    volume.starts_with(VOLUME)
}
