//! A part of a disk that is as far apart as the whole.

use ashlar_block::{Capability, Device, Durability, Extent, Geometry, IoContext, Layer, Result, blocks_of};
use ashlar_env::{Env, Instant};
use ashlar_units::{Blocks, Lba};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::time::Duration;

/// How much of a disk is used. All in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What comes before the first extents.
    pub head: u64,
    /// A piece: the first has the head before it.
    pub piece: u64,
    /// All that is used.
    pub count: u64,
}

/// What a device was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
    /// While any request was under way.
    pub busy: Duration,
}

/// Pieces of a disk, all over it, as one device; counted, and timed. Each piece has room for extents, so that a few extents are
/// a sample of a full disk.
pub struct Pieces {
    child: Device,
    env: Env,
    shape: Shape,
    /// Blocks from the begin of one piece to that of the next.
    stride: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    spent: Spent,
    under_way: u64,
    since: Option<Instant>,
}

/// A request under way.
struct Request<'a>(&'a Pieces);

impl<'a> Request<'a> {
    fn new(of: &'a Pieces) -> Request<'a> {
        let mut state = of.state.lock();
        if state.under_way == 0 {
            state.since = Some(of.env.now());
        }
        state.under_way += 1;
        Request(of)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.under_way -= 1;
        if state.under_way == 0
            && let Some(since) = state.since.take()
        {
            state.spent.busy += self.0.env.now().since(since);
        }
    }
}

impl Pieces {
    /// Pieces at equal distances.
    pub fn new(child: Device, shape: Shape, env: Env) -> Pieces {
        let stride = child.geometry().capacity.0 / (shape.count.div_ceil(shape.piece) + 1);
        assert!(stride >= shape.head + shape.piece, "the disk has room for {shape:?}");
        Pieces { child, env, shape, stride, state: Mutex::default() }
    }

    /// What was asked for so far.
    pub fn spent(&self) -> Spent {
        self.state.lock().spent
    }

    /// The parts of a request: where they are on the disk, and how long.
    fn parts(&self, at: Lba, count: Blocks) -> Vec<(Lba, Blocks)> {
        let Shape { head, piece, .. } = self.shape;
        let (mut at, end) = (at.0, at.0 + count.0);
        let mut parts = Vec::new();
        while at < end {
            let (number, within) = match at.checked_sub(head) {
                Some(behind) => (behind / piece, behind % piece + head),
                None => (0, at),
            };
            let run = (end - at).min(piece + head - within);
            parts.push((Lba(number * self.stride + within), Blocks(run)));
            at += run;
        }
        parts
    }
}

impl Layer for Pieces {
    fn name(&self) -> String {
        format!("pieces of {}", self.child.name())
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: Blocks(self.shape.count), ..self.child.geometry() }
    }
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        self.child.capability()
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let _request = Request::new(self);
        let mut data = BytesMut::new();
        for (at, count) in self.parts(at, count) {
            self.state.lock().spent.reads += 1;
            data.extend_from_slice(&self.child.read(context, at, count).await?);
        }
        Ok(data.freeze())
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let _request = Request::new(self);
        let mut data = Bytes::from(pieces.concat());
        for (at, count) in self.parts(at, blocks_of(&pieces)) {
            self.state.lock().spent.writes += 1;
            let part = data.split_to(count.to_bytes().0 as usize);
            self.child.write(context, at, vec![part], durability).await?;
        }
        Ok(())
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        let _request = Request::new(self);
        self.child.flush(context).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        for (at, count) in self.parts(at, count) {
            self.child.discard(context, at, count).await?;
        }
        Ok(())
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.child.provision(context, at, count).await
    }
    async fn extent(&self, _context: IoContext, _at: Lba, count: Blocks) -> Result<Extent> {
        Ok(Extent { hole: false, count })
    }
}
