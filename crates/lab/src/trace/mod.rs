//! What programs asked of a file system: a record for each system call on files, whoever caught it or made it up.
//!
//! One format for every stage: what captures writes it, what generates workloads writes it, what replays reads and writes it,
//! what predicts reads it.

mod record;

pub use record::{CALLS, Op, Record};
