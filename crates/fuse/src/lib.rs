//! The kernel's front door: a [`FileSystem`](ashlar_vfs::FileSystem) becomes a mount.
//!
//! Each worker of the executor serves a descriptor of its own, cloned from `/dev/fuse`: it waits for requests,
//! takes one, and serves it in a task on the same worker, so that a request that needs no I/O is answered
//! without crossing threads. Requests that wait do not hold up others.
//!
//! The protocol is spoken here and not through a library because the libraries bring threads or runtimes of their own,
//! copy file data, and lack requests that we answer.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod abi;
mod blocks;
mod buffers;
mod counters;
mod decode;
mod dentries;
mod flags;
#[cfg(test)]
mod fuzz;
mod helper;
mod holes;
mod listings;
mod log;
mod mount;
mod names;
mod negotiate;
mod options;
mod origins;
mod page_cache;
mod probe;
mod queue;
mod refusals;
mod reply;
mod report;
mod retrievals;
#[allow(unsafe_code)]
mod ring;
mod serve;
mod standing;
#[allow(unsafe_code)]
mod sys;

pub use counters::{Counters, OperationCounters};
pub use dentries::Dentries;
pub use flags::{Flags, UnknownFlag};
pub use log::{Heard, Logged, What};
pub use mount::{Listener, Mount, MountError, is_mounted, mounted, remount, unmount};
pub use options::Options;
pub use page_cache::PageCache;
pub use report::{Damage, OnDamage};
pub use sys::Users;
