//! How a file system fares in its third year (Smith, *Workload-Specific File System Benchmarks*, Harvard 2001).
//!
//! * [`walk`] looks at every file of a file system, [`snapshot`] keeps what it saw, [`layout`] says how files lie;
//! * [`history`] is what happened between snapshots, and [`age`] applies it to another file system, or to a simulated [`ffs`];
//! * [`trace`] has what programs ask of it, [`workload`] makes such up, [`run`] does both for real and measures, [`stats`] says how sure
//!   that is, and [`tune`] searches options by it;
//! * [`profile`] measures what operations cost on a file system (a [`vector`]), [`predict`] says what a trace would take on it;
//! * [`stand`] offers a mounted file system to measure on, cold if wanted;
//! * [`sorter`] and [`frames`] are below both: sorting in bounded memory, and files of checked, compressed frames.
//!
//! Promises: what is looked at is not changed, times of access included where the kernel allows it. Files that this crate
//! reads may be anybody's: a damaged one is an error with a place.

pub mod age;
pub mod codec;
pub mod ffs;
pub mod frames;
pub mod history;
pub mod layout;
pub mod mounts;
mod noise;
pub mod objects;
pub mod partial;
pub mod predict;
pub mod profile;
pub mod run;
pub mod snapshot;
pub mod sorter;
pub mod stand;
pub mod stats;
pub mod trace;
pub mod tune;
pub mod vector;
pub mod walk;
pub mod workload;
