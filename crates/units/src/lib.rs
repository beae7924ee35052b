//! Units of storage as types.
//!
//! A bare integer never says whether it counts bytes or blocks; these types do. `Lba` numbers a 4 KiB block, `Blocks`
//! counts blocks, `Bytes` counts bytes. The only bridges are [`Lba::to_bytes`], [`Blocks::to_bytes`] and
//! [`Bytes::to_blocks_up`].

mod duration;
#[cfg(test)]
mod fuzz;
mod text;

pub use duration::{ParseDurationError, duration, some_duration};
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
pub use text::ParseBytesError;

/// Size of a block, the grain of every device and volume of the platform.
pub const BLOCK: Bytes = Bytes(4096);
/// [`BLOCK`] where a slice length is meant.
pub const BLOCK_LEN: usize = 4096;

/// A count of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A count of 4 KiB blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Blocks(pub u64);

/// The number of a 4 KiB block in some space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lba(pub u64);

impl Bytes {
    /// `n` times 1,024 bytes.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }
    /// `n` times 2^20 bytes.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }
    /// `n` times 2^30 bytes.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }
    /// Whole blocks that hold this many bytes, rounded up.
    pub const fn to_blocks_up(self) -> Blocks {
        Blocks(self.0.div_ceil(BLOCK.0))
    }
    /// Whole blocks that fit into this many bytes, rounded down.
    pub const fn to_blocks_down(self) -> Blocks {
        Blocks(self.0 / BLOCK.0)
    }
}

impl Blocks {
    /// The same amount in bytes, or as many as can be counted.
    pub const fn to_bytes(self) -> Bytes {
        Bytes(self.0.saturating_mul(BLOCK.0))
    }
}

impl Lba {
    /// Byte address of the block's first byte, or the last address that there is.
    pub const fn to_bytes(self) -> Bytes {
        Bytes(self.0.saturating_mul(BLOCK.0))
    }
}

macro_rules! arithmetic {
    ($($left:ty, $right:ty => $sum:ident;)*) => {$(
        impl Add<$right> for $left {
            type Output = $sum;
            fn add(self, other: $right) -> $sum { $sum(self.0 + other.0) }
        }
        impl Sub<$right> for $left {
            type Output = $sum;
            fn sub(self, other: $right) -> $sum { $sum(self.0 - other.0) }
        }
        impl AddAssign<$right> for $left {
            fn add_assign(&mut self, other: $right) { self.0 += other.0 }
        }
        impl SubAssign<$right> for $left {
            fn sub_assign(&mut self, other: $right) { self.0 -= other.0 }
        }
    )*};
}
arithmetic! {
    Bytes, Bytes => Bytes;
    Blocks, Blocks => Blocks;
    Lba, Blocks => Lba;
}

impl Sub for Lba {
    type Output = Blocks;
    fn sub(self, other: Lba) -> Blocks {
        Blocks(self.0 - other.0)
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.0)
    }
}
impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lba {}", self.0)
    }
}
macro_rules! debug_as_display {
    ($($t:ty),*) => {$(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(self, f) }
        }
    )*};
}
debug_as_display!(Bytes, Blocks, Lba);
