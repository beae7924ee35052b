//! Devices: memory, a host file or block device, several joined, and one that loses power.

mod file;
mod filled;
mod joined;
mod memory;
mod powercut;

pub use file::{FileDevice, OpenOptions};
pub use filled::{FILL, Filled};
pub use joined::Joined;
pub use memory::Memory;
pub use powercut::{Power, PowerCut, Tearing};
