//! Arrays: RAID-0, 1, 4, 5 and 6 over block devices, with checksums, generations and a journal of their own.
//!
//! Invariants
//!  1. Every block that is read is compared with its record: checksum, place, and (but for [`Verify::Own`]) the generation
//!     that its row's parity saw. What does not agree is made again from the others, written back and counted; what cannot be
//!     made again is [`Kind::Corrupt`](ashlar_block::Kind::Corrupt), with member and place, and never wrong bytes.
//!  2. A write is in the journal of every member that it touches, durably, before any block changes in place. So a power cut
//!     leaves each block old or new, its record with it, and the row consistent: there is no write hole, also when members are
//!     missing.
//!  3. A member that missed a write is durably listed as failed before that write is acknowledged, and never used again
//!     until it is rebuilt.
//!  4. What is lost for good is marked as lost, in its own record and in its row's parity, until it is written again.
//!
//! Layout    `format.rs`: superblocks, journal, groups of 63 blocks and their checksum block; `shape.rs`: roles and zones.
//! Needs     a child's flush covers what was written before it; a block of 4 KiB is written whole or not (else a power cut in
//!           a write may leave that block torn, which is then found and made again from the journal).
//! Promises  a write is durable when it returns; any one (RAID-6: two, RAID-1: all but one) of the members may die.
//! Costs     docs/array.md: a lone block is 8 I/Os on RAID-4 and 5, as in the paper, and 2 writes to journals.
//! Departs   docs/array.md: where expected generations live, the journal, what a checksum block holds of its own.
//!
//! The design follows section 4.4 of Schindler, Shete and Smith, *Improving Throughput for Small Disk Requests with Proximal
//! I/O*, FAST '11.

#![warn(missing_docs)]

mod array;
mod background;
mod commit;
mod format;
#[cfg(test)]
mod fuzz;
pub mod gf;
mod journal;
mod member;
mod mend;
mod open;
mod read;
mod replay;
mod rivals;
mod row;
mod rules;
mod shape;
mod status;
mod strand;
#[cfg(test)]
mod tests;
mod write;

pub use array::{Array, Journaling, Options, ParityRule, Verify};
pub use background::{Pace, Progress, Rebuilt, Scrubbed};
pub use format::VERSION;
pub use journal::JOURNAL_MIN;
pub use member::Counts;
pub use open::{Creation, Device as NamedDevice, inspect};
pub use rules::Rule;
pub use shape::{DATA_MAX, GROUP, Level, MEMBERS_MAX, Place, Shape, Zone, rows_of_unit};
pub use status::{ArrayStatus, MemberState, MemberStatus};
