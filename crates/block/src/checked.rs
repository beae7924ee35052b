//! `Checked` stands at every edge of a stack: it verifies the contract and counts.

use crate::{Capability, Device, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Result, Run, blocks_of};
use ashlar_env::Env;
use ashlar_units::{BLOCK, Blocks, Lba};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What passed an edge since the device was opened.
#[derive(Default, Debug)]
pub struct Counters {
    /// Completed reads.
    pub reads: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Completed writes.
    pub writes: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
    /// Completed flushes.
    pub flushes: AtomicU64,
    /// Completed discards.
    pub discards: AtomicU64,
    /// Operations that failed.
    pub errors: AtomicU64,
    /// Time spent in the device, in nanoseconds, summed over operations.
    pub busy_ns: AtomicU64,
}

/// A device that trusts neither side: arguments are checked, a failed flush poisons, everything is counted.
pub struct Checked {
    child: Device,
    env: Env,
    counters: Counters,
    poisoned: AtomicBool,
}

impl Checked {
    /// Wraps `child`.
    pub fn new(child: Device, env: Env) -> Checked {
        Checked { child, env, counters: Counters::default(), poisoned: AtomicBool::new(false) }
    }
    /// What passed so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn admit(&self, what: &str, at: Lba, count: Blocks) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            let message = "an earlier flush failed, so nobody knows what this device holds; close it and open it again";
            return Err(Error::new(Kind::Poisoned, message).within(self.child.name()));
        }
        let capacity = self.child.geometry().capacity;
        if at.0.checked_add(count.0).is_none_or(|end| end > capacity.0) {
            let message = format!("{what} of {count} at {at} passes the end of the device ({capacity})");
            return Err(Error::misuse(message).within(self.child.name()));
        }
        Ok(())
    }

    /// Refuses what is no run of whole blocks on the device; gives its length.
    fn admit_write(&self, at: Lba, pieces: &[Bytes]) -> Result<Blocks> {
        if pieces.iter().any(|piece| !(piece.len() as u64).is_multiple_of(BLOCK.0)) {
            let message = "a write must consist of pieces of whole 4 KiB blocks";
            return Err(Error::misuse(message).within(self.child.name()));
        }
        let count = blocks_of(pieces);
        self.admit("write", at, count).map(|()| count)
    }

    fn count<T>(&self, began: ashlar_env::Instant, counter: &AtomicU64, result: &Result<T>) {
        let spent = self.env.now().since(began).as_nanos() as u64;
        self.counters.busy_ns.fetch_add(spent, Ordering::Relaxed);
        let counter = if result.is_ok() { counter } else { &self.counters.errors };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Layer for Checked {
    fn name(&self) -> String {
        self.child.name()
    }
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }
    fn measure(&self) -> Result<()> {
        self.child.measure().map_err(|error| error.within(self.child.name()))
    }
    fn capability(&self) -> Capability {
        self.child.capability()
    }

    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.admit("read", at, count)?;
        let began = self.env.now();
        let result = self.child.read(context, at, count).await.map_err(|error| error.within(self.child.name()));
        self.count(began, &self.counters.reads, &result);
        let data = result?;
        if data.len() as u64 != count.to_bytes().0 {
            let message = format!("read of {count} at {at} returned {} bytes", data.len());
            return Err(Error::new(Kind::Failed, message).within(self.child.name()));
        }
        self.counters.read_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data)
    }

    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let count = self.admit_write(at, &pieces)?;
        let began = self.env.now();
        let result = self.child.write(context, at, pieces, durability).await;
        self.count(began, &self.counters.writes, &result);
        result.map_err(|error| error.within(self.child.name()))?;
        self.counters.written_bytes.fetch_add(count.to_bytes().0, Ordering::Relaxed);
        Ok(())
    }

    async fn write_strand(
        &self,
        context: IoContext,
        runs: Vec<Run>,
        most: usize,
        durability: Durability,
    ) -> Result<()> {
        let (mut end, mut count) = (Lba(0), Blocks(0));
        for (at, pieces) in &runs {
            let blocks = self.admit_write(*at, pieces)?;
            if *at < end {
                let message = format!("the runs of a strand must ascend, and one at {at} comes behind one up to {end}");
                return Err(Error::misuse(message).within(self.child.name()));
            }
            (end, count) = (*at + blocks, count + blocks);
        }
        let (began, requests) = (self.env.now(), runs.len() as u64);
        let result = self.child.write_strand(context, runs, most, durability).await;
        self.count(began, &self.counters.writes, &result);
        result.map_err(|error| error.within(self.child.name()))?;
        // One of them is counted already.
        self.counters.writes.fetch_add(requests.saturating_sub(1), Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(count.to_bytes().0, Ordering::Relaxed);
        Ok(())
    }

    async fn flush(&self, context: IoContext) -> Result<()> {
        self.admit("flush", Lba(0), Blocks(0))?;
        let began = self.env.now();
        let result = self.child.flush(context).await;
        self.count(began, &self.counters.flushes, &result);
        if result.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        result.map_err(|error| error.within(self.child.name()))
    }

    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.admit("discard", at, count)?;
        let began = self.env.now();
        let result = self.child.discard(context, at, count).await;
        self.count(began, &self.counters.discards, &result);
        result.map_err(|error| error.within(self.child.name()))
    }

    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.admit("provision", at, count)?;
        self.child.provision(context, at, count).await.map_err(|error| error.within(self.child.name()))
    }

    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.admit("query", at, count)?;
        let extent = self.child.extent(context, at, count).await.map_err(|error| error.within(self.child.name()))?;
        if extent.count == Blocks(0) || extent.count > count {
            let message = format!("query of {count} at {at} was answered with {}", extent.count);
            return Err(Error::new(Kind::Failed, message).within(self.child.name()));
        }
        Ok(extent)
    }
}
