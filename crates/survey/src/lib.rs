//! What data are: duplicates, compressibility, sizes, layout and access, from a sample or in full.
//!
//! [`survey()`] looks at a tree, a device or an image in one pass and answers with ranges and the fraction that was read.
//! The parts, from the bytes up:
//!
//! * [`chunk`] cuts bytes into blocks and content-defined chunks of all sizes at once; [`analyse`] does so for a stretch of
//!   a file, and compresses some of it ([`compress`]);
//! * [`listing`] and [`source`] know where bytes are, [`qcow2`] reads images and [`bucket`] objects, [`inside`] knows files in images; [`scan`] reads units in order, with several
//!   threads, politely, and [`careful`] around damage; [`probe`] tells what a place costs;
//! * [`sample`] says which units; [`tally`] and [`incidence`] remember what was found where, in bounded memory; [`state`]
//!   keeps it to be taken up again;
//! * [`unseen`] estimates how many different values there are, and [`evaluate`] makes ranges of ratios of that;
//! * [`layout`] and [`sizes`] look at files, [`trace`] and [`shards`] at requests, [`simulate`] compares chunkers.
//!
//! Promises: nothing is written but the state and, when memory is short, files without a name; no times of files change.
//! What cannot be read is named and passed over. Memory is bounded by [`Options::memory`] and some 100 MiB of buffers.

pub mod analyse;
pub mod answer;
pub mod bucket;
mod budget;
pub mod careful;
pub mod chunk;
pub mod compress;
pub mod evaluate;
#[cfg(test)]
mod fuzz;
pub mod incidence;
pub mod inside;
pub mod layout;
pub mod listing;
pub mod page;
pub mod probe;
pub mod qcow2;
pub mod sample;
pub mod scan;
pub mod shards;
pub mod simulate;
pub mod sizes;
mod sort;
pub mod source;
pub mod state;
mod survey;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod unseen;

pub use answer::Answer;
pub use budget::Budget;
pub use survey::{Options, Status, SurveyError, survey};
