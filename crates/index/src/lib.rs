//! The Bε-tree: the ordered dictionary of the platform.
//!
//! Keys and values are byte strings. A change is a *message*; it enters the tree's memtable, and at a checkpoint all
//! messages of the frozen memtable are pushed down: each interior node buffers messages for its children, and only
//! children whose pending messages are worth an I/O are rewritten (BetrFS 0.2, §2; Bender et al., "An introduction to
//! Bε-trees"). A query sees the leaf's value under all messages on its path.
//!
//! Invariants
//!  1. In any buffer (memtable, node, or run) there is at most one message per key, and every range delete in it is older than
//!     every point message in it: a range delete that arrives eats the messages that it covers.
//!  2. Messages higher in the tree are newer than messages below; the active memtable is newest. A node's own messages are newer
//!     than those of its runs, which are in the order of their age.
//!  3. Nodes are written once. A flush makes a new root and reports the nodes that it replaced; readers of the old root
//!     go on as long as the store keeps those nodes.
//!
//! Where bytes count and places do not (flash), a buffer has *runs*: what arrives is stored by itself and the node points to it, so a
//! message is written about twice at each level and not as often as a buffer has room for (as a log-structured merge tree does
//! with its levels). Filters tell lookups which runs they need.
//!
//! Departs   BetrFS keeps a node's messages in arrival order and applies them at the leaf; here messages for one key are
//!           composed when they meet, which bounds a buffer by its keys. It can be done because patches compose
//!           ([`Semantics::overlay`] is associative). In BetrFS the root's buffer is a node like any other; here a
//!           memtable stands before it, so that nodes never change in memory.

mod entries;
mod filter;
mod flush;
#[cfg(test)]
mod fuzz;
mod legible;
mod limits;
mod lz4;
mod memtable;
mod message;
mod node;
mod pointer;
mod ranges;
mod tree;

#[cfg(test)]
mod tests;

pub use flush::{Errands, Flushed};
pub use legible::{Known, Legible};
pub use limits::Limits;
pub use lz4::Lz4;
pub use memtable::Memtable;
pub use message::{Message, Semantics};
pub use node::Node;
use pointer::POINTER_LEN;
pub use pointer::{NodePtr, Seat};
pub use ranges::RangeSet;
pub use tree::{Alone, BoxFuture, Buffers, NodeStore, Page, Tree, View, behind};

/// A key. Keys up to 24 bytes are kept inline.
pub type Key = smallvec::SmallVec<[u8; 24]>;

/// Longest key in bytes.
pub const KEY_LEN_MAX: usize = 1100;

/// CRC32C, the checksum of what is kept in memory.
fn crc(data: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// The smallest key behind every key that begins with `prefix`; `None` if there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Key> {
    let keep = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = Key::from_slice(&prefix[..=keep]);
    end[keep] += 1;
    Some(end)
}
