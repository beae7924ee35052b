//! The contract between everything that stores blocks.
//!
//! Invariants of every [`BlockDevice`]
//!  1. A block that was never written, or was discarded where [`Capability::discard_zeroes`] holds, reads as zeros.
//!  2. A write that returned is seen by every later read. Overlapping operations in flight have no order.
//!  3. A write may be lost, torn at [`Geometry::atomic`] or reordered by a crash, until a flush that began after it
//!     returned, or until it returns itself if it asked for [`Durability::Forced`].
//!  4. After a failed flush the device is poisoned: nobody knows what it holds.
//!
//! Authors of layers implement [`Layer`] with plain `async fn`s; every layer is a [`BlockDevice`] by one blanket adapter,
//! and stacks are built of [`Device`]s.

mod checked;
pub mod conformance;
mod error;
mod strand;

pub use checked::{Checked, Counters};
pub use error::{Error, Kind, Result, ResultExt};
pub use strand::{Run, runs_of, strand};

use ashlar_env::BoxFuture;
use ashlar_units::{BLOCK, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;

/// A shared device: the edge of a stack graph.
pub type Device = Arc<dyn BlockDevice>;

/// Shape of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of blocks.
    pub capacity: Blocks,
    /// Smallest aligned unit that a crash cannot tear.
    pub atomic: Size,
}

/// What decides how long a device takes for a block somewhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Heads move: a block elsewhere takes as long as reading a megabyte on end.
    Disk,
    /// Nothing moves: a block takes as long anywhere.
    Flash,
}

/// What a device can do beyond reads, writes and flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Capability {
    /// Discard is accepted.
    pub discard: bool,
    /// Discarded blocks read as zeros, at once and after a crash that follows a flush.
    pub discard_zeroes: bool,
    /// Contents survive the process.
    pub persistent: bool,
    /// What it is made of, if it says so.
    pub medium: Option<Medium>,
    /// What is written for the first time takes room that others may take before: writes find it for certain only where
    /// [`Layer::provision`] had it set aside.
    pub thin: bool,
}

/// Blocks that are alike, as far as the device can tell without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// They read as zeros and take no space. A device that does not know says no.
    pub hole: bool,
    /// How many.
    pub count: Blocks,
}

/// When a write must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// After the next flush.
    #[default]
    Cached,
    /// When the write returns (forced unit access, or a write and a flush).
    Forced,
}

/// Who should wait for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Cleaning, scrubbing, rebuilding.
    Background,
    /// Somebody waits for this.
    #[default]
    Foreground,
}

/// What an operation tells the layers that it passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoContext {
    /// Who causes the operation; names a flow in metrics and traces.
    pub flow: &'static str,
    /// Who should wait for whom.
    pub priority: Priority,
}

impl IoContext {
    /// A foreground context of the named flow.
    pub const fn foreground(flow: &'static str) -> IoContext {
        IoContext { flow, priority: Priority::Foreground }
    }
    /// A background context of the named flow.
    pub const fn background(flow: &'static str) -> IoContext {
        IoContext { flow, priority: Priority::Background }
    }
}

/// A device as its author writes it. There are no default bodies: a layer says what it passes through, so that a new
/// method breaks the build instead of slipping past a layer. [`Layer::write_strand`] alone has one: it consists of the layer's
/// own writes, so nothing slips past.
pub trait Layer: Send + Sync + 'static {
    /// Name for errors and metrics, such as `file data.img`.
    fn name(&self) -> String;
    /// Shape of the device; fixed while it is open, until [`Layer::measure`] finds more.
    fn geometry(&self) -> Geometry;
    /// Looks how large the device is by now. One that became larger says so from then on; it is never said to be smaller.
    fn measure(&self) -> Result<()>;
    /// What it can do.
    fn capability(&self) -> Capability;
    /// Reads `count` blocks at `at` into a page-aligned buffer.
    fn read(&self, context: IoContext, at: Lba, count: Blocks) -> impl Future<Output = Result<Bytes>> + Send;
    /// Writes all pieces, one after another, at `at`. Each piece is a whole number of blocks.
    fn write(
        &self,
        context: IoContext,
        at: Lba,
        pieces: Vec<Bytes>,
        durability: Durability,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Writes many runs of blocks, which the caller has in ascending order and apart from each other, as single writes in
    /// flight would: in no order. A device that can do better with all of them than with one after another says how, as an
    /// array whose rows share parity. Else each is a write, begun in ascending order, with `most` outstanding.
    fn write_strand(
        &self,
        context: IoContext,
        runs: Vec<Run>,
        most: usize,
        durability: Durability,
    ) -> impl Future<Output = Result<()>> + Send {
        async move {
            let write = |(at, pieces)| -> BoxFuture<'_, Result<()>> {
                Box::pin(Layer::write(self, context, at, pieces, durability))
            };
            strand(most, runs.into_iter().map(write)).await.map(drop)
        }
    }
    /// Makes every write that returned before this call durable.
    fn flush(&self, context: IoContext) -> impl Future<Output = Result<()>> + Send;
    /// Gives up the contents of `count` blocks at `at`.
    fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> impl Future<Output = Result<()>> + Send;
    /// Has room set aside for `count` blocks at `at`, until they are discarded, where the device is thin; nothing else changes.
    /// An error of kind `NoSpace` if there is none.
    fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> impl Future<Output = Result<()>> + Send;
    /// Whether there is a hole at `at`, and how many of `count` blocks (at least one of which is asked for) are like it,
    /// at least one. The answer may stop short of the next change.
    fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> impl Future<Output = Result<Extent>> + Send;
}

/// A device as its users see it. See [`Layer`] for the meaning of the methods.
#[allow(missing_docs, reason = "documented at `Layer`, whose methods these are")]
pub trait BlockDevice: Send + Sync + 'static {
    fn name(&self) -> String;
    fn geometry(&self) -> Geometry;
    fn measure(&self) -> Result<()>;
    fn capability(&self) -> Capability;
    fn read(&self, context: IoContext, at: Lba, count: Blocks) -> BoxFuture<'_, Result<Bytes>>;
    fn write(
        &self,
        context: IoContext,
        at: Lba,
        pieces: Vec<Bytes>,
        durability: Durability,
    ) -> BoxFuture<'_, Result<()>>;
    fn write_strand(
        &self,
        context: IoContext,
        runs: Vec<Run>,
        most: usize,
        durability: Durability,
    ) -> BoxFuture<'_, Result<()>>;
    fn flush(&self, context: IoContext) -> BoxFuture<'_, Result<()>>;
    fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> BoxFuture<'_, Result<()>>;
    fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> BoxFuture<'_, Result<()>>;
    fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> BoxFuture<'_, Result<Extent>>;
}

impl<T: Layer> BlockDevice for T {
    fn name(&self) -> String {
        Layer::name(self)
    }
    fn geometry(&self) -> Geometry {
        Layer::geometry(self)
    }
    fn measure(&self) -> Result<()> {
        Layer::measure(self)
    }
    fn capability(&self) -> Capability {
        Layer::capability(self)
    }
    fn read(&self, context: IoContext, at: Lba, count: Blocks) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(Layer::read(self, context, at, count))
    }
    fn write(
        &self,
        context: IoContext,
        at: Lba,
        pieces: Vec<Bytes>,
        durability: Durability,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(Layer::write(self, context, at, pieces, durability))
    }
    fn write_strand(
        &self,
        context: IoContext,
        runs: Vec<Run>,
        most: usize,
        durability: Durability,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(Layer::write_strand(self, context, runs, most, durability))
    }
    fn flush(&self, context: IoContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(Layer::flush(self, context))
    }
    fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> BoxFuture<'_, Result<()>> {
        Box::pin(Layer::discard(self, context, at, count))
    }
    fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> BoxFuture<'_, Result<()>> {
        Box::pin(Layer::provision(self, context, at, count))
    }
    fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> BoxFuture<'_, Result<Extent>> {
        Box::pin(Layer::extent(self, context, at, count))
    }
}

/// Length of all pieces together, in blocks.
pub fn blocks_of(pieces: &[Bytes]) -> Blocks {
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    debug_assert_eq!(bytes % BLOCK.0 as usize, 0, "pieces are whole blocks");
    Size(bytes as u64).to_blocks_up()
}
