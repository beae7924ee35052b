//! A device whose requests are recorded. No model says where their time goes.

use crate::{Operation, Record, Trace};
use ashlar_block::{Capability, Device, Durability, Extent, Geometry, IoContext, Layer, Result, blocks_of};
use ashlar_env::{Env, Instant};
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use std::sync::atomic::{AtomicU32, Ordering};

/// The device below, with a record of each request when it is done: its response time, and zeros for the parts of it.
pub struct Traced {
    child: Device,
    env: Env,
    began: Instant,
    under_way: AtomicU32,
    trace: Trace,
}

impl Traced {
    /// Gives a record of every request to `trace`. Time begins now.
    pub fn new(child: Device, env: Env, trace: Trace) -> Traced {
        Traced { child, began: env.now(), env, under_way: AtomicU32::new(0), trace }
    }

    fn now_ns(&self) -> u64 {
        self.env.now().0 - self.began.0
    }

    async fn record<T>(
        &self,
        (op, at, count, fua): (Operation, Lba, Blocks, bool),
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let at_ns = self.now_ns();
        let depth = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        let outcome = work.await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        (self.trace)(&Record {
            at_ns,
            op,
            offset: at.to_bytes().0,
            len: count.to_bytes().0,
            fua,
            depth,
            response_ns: self.now_ns() - at_ns,
            queue_ns: 0,
            overhead_ns: 0,
            seek_ns: 0,
            rotation_ns: 0,
            transfer_ns: 0,
            late_ns: 0,
        });
        outcome
    }
}

impl Layer for Traced {
    fn name(&self) -> String {
        self.child.name()
    }
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }
    fn measure(&self) -> Result<()> {
        self.child.measure()
    }
    fn capability(&self) -> Capability {
        self.child.capability()
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.record((Operation::Read, at, count, false), self.child.read(context, at, count)).await
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let what = (Operation::Write, at, blocks_of(&pieces), durability == Durability::Forced);
        self.record(what, self.child.write(context, at, pieces, durability)).await
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        self.record((Operation::Flush, Lba(0), Blocks(0), false), self.child.flush(context)).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.record((Operation::Discard, at, count, false), self.child.discard(context, at, count)).await
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.child.provision(context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.child.extent(context, at, count).await
    }
}
