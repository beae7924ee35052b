//! Exports: a [`Device`](ashlar_block::Device) for programs that know nothing of us, over the Network Block Device
//! protocol or as one file in a mount.
//!
//! The protocol is that of <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>: fixed newstyle
//! handshake, simple and structured replies, `base:allocation`.
//!
//! Invariants
//!  1. A client can neither make the server panic nor make it hold more than [`Limits`] allow, whatever it sends.
//!  2. A request that was answered with success has been done by the device; a write or flush is acknowledged only when
//!     the device has acknowledged it. Nothing is cached here, so a flush on one connection covers the writes that were
//!     answered on all of them (`NBD_FLAG_CAN_MULTI_CONN`).
//!  3. Bytes outside a request's range never change, also where it begins or ends within a block.
//!
//! Costs: one task for each connection and one for each request in service, all on the connection's worker; replies that
//! become ready together leave in one system call.

#![deny(missing_docs)]

mod address;
mod bytewise;
mod channel;
mod connection;
mod disk_file;
mod execute;
mod handshake;
mod inlet;
pub mod options;
mod outbox;
mod ranges;
mod server;
mod tls;
pub mod wire;

pub use address::Address;
pub use bytewise::{ByteDevice, Zeroing};
pub use disk_file::DiskFile;
pub use server::{Export, Limits, Server};
pub use tls::Tls;
