//! What programs asked of a file system: a record for each system call on files, whoever caught it or made it up.
//!
//! One format for every stage: what captures writes it, what generates workloads writes it, what replays reads and writes it,
//! what predicts reads it.

//!
//! What captures: a source of [`event`]s ([`strace`], [`bpf`]), which know nothing but descriptors and texts, and a [`tracker`]
//! that makes records of them.

pub mod after;
pub mod bpf;
pub mod calls;
pub mod counts;
pub mod door;
pub mod event;
pub mod file;
mod files;
#[cfg(test)]
mod files_model;
pub mod flags;
pub mod host;
pub mod lanes;
pub mod live;
mod ops;
mod path;
mod record;
mod sizes;
pub mod strace;
pub mod tracker;

pub use record::{CALLS, Op, Record};
