//! Devices: memory, a host file or block device, several joined, one that loses power, one on which zeros take no room, and
//! one whose room others may take.

mod file;
mod filled;
mod joined;
mod memory;
mod part;
mod powercut;
mod sparse;
mod thin;

pub use file::{FileDevice, OpenOptions, is_same};
pub use filled::{FILL, Filled};
pub use joined::Joined;
pub use memory::Memory;
pub use part::Part;
pub use powercut::{Power, PowerCut, Tearing};
pub use sparse::Sparse;
pub use thin::{Room, Thin};
