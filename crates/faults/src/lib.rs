//! Faults of storage devices, on demand and by seed, over any block device.
//!
//! [`Faulty`] is a layer with a list of faults, which can change while it works. A fault is a text, as in
//! `lse at 2GiB..2GiB+64KiB` or `delay lognormal 5ms sigma 1 on read`; docs/faults.md has all of them, with their sources.
//!
//! Invariants
//!  1. Without faults the layer is the device below: nothing is drawn, copied or held.
//!  2. Every die comes from a seed. The same seed, faults and operations, in the same order, give the same injections.
//!  3. A fault is never noticed as anything else: errors name the fault, and wrong data are what the fault says, in the
//!     blocks that it names. Holes that a fault of reads covers are not reported as holes, so that nobody skips them.
//!  4. Memory is bounded: of faults, of the log, of old versions, of the window before a power cut.
//!
//! Costs: an atomic load when there are no faults; else a lock and a walk over the list for each operation.

#![warn(missing_docs)]

mod active;
mod lse;
mod parse;
mod ranges;
mod spec;
mod window;

pub use active::{FAULTS_MAX, FaultStatus, Injection, LOG_MAX, OLD_BLOCKS_MAX};
pub use parse::{KINDS, Kind, ParseError};
pub use spec::{Delay, Fault, Lse, Medium, Operation, Range, Slow, What};

use active::{Placed, State, Touch};
use ashlar_block::{
    Capability, Counters, Device, Durability, Extent, Geometry, IoContext, Layer, Result, ResultExt, blocks_of,
};
use ashlar_devices::Tearing;
use ashlar_env::ring::AlignedBuf;
use ashlar_env::{Env, Instant};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use window::Window;

/// What a power cut did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CutReport {
    /// A medium was declared, so that something could be lost.
    pub medium: bool,
    /// Writes that no flush covered.
    pub writes: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of those that reached the medium.
    pub survived_bytes: u64,
}

/// A device with faults. See the crate.
pub struct Faulty {
    child: Device,
    env: Env,
    state: Mutex<State>,
    window: Window,
    counters: Counters,
    /// There are no faults, the power is on, and nothing is held.
    calm: AtomicBool,
    /// A fault was cleared, or the power was cut.
    changed: Notify,
}

/// What an operation carries from its admission to its end.
struct Passage {
    began: Instant,
    cuts: u64,
    factors: Vec<(u64, f64)>,
}

impl Faulty {
    /// `child`, with no faults yet. The seed decides all chance of those to come.
    pub fn new(child: Device, seed: u64, env: Env) -> Faulty {
        Faulty {
            state: Mutex::new(State::new(seed, child.geometry().capacity)),
            window: Window::new(child.clone()),
            child,
            env,
            counters: Counters::default(),
            calm: AtomicBool::new(true),
            changed: Notify::new(),
        }
    }

    /// The same with these faults.
    pub fn with_faults(child: Device, seed: u64, faults: &[Fault], env: Env) -> Result<Faulty> {
        let faulty = Faulty::new(child, seed, env);
        for fault in faults {
            faulty.inject(*fault)?;
        }
        Ok(faulty)
    }

    /// Adds a fault, from now on; returns its number.
    pub fn inject(&self, fault: Fault) -> Result<u64> {
        let mut state = self.state.lock();
        let number = state.inject(fault)?;
        self.calm.store(false, Ordering::Release);
        Ok(number)
    }

    /// Takes away one fault, or all, and lets go what hangs in them. Returns how many there were. What a volatile cache
    /// holds goes to the device below.
    pub async fn clear(&self, number: Option<u64>) -> Result<usize> {
        let (cleared, volatile) = {
            let mut state = self.state.lock();
            (state.clear(number)?, state.medium().is_some())
        };
        self.changed.notify_waiters();
        if !volatile && self.window.powered().is_ok() {
            self.window.drain_all(IoContext::foreground("faults")).await?;
        }
        self.calm_down();
        Ok(cleared)
    }

    /// Cuts the power: everything fails until [`restore`](Faulty::restore). With a declared medium (`power-cut`), what no
    /// flush covered is lost, reordered and torn as the medium says; without one nothing is lost.
    pub async fn cut_power(&self) -> Result<CutReport> {
        self.calm.store(false, Ordering::Release);
        self.window.switch_off()?;
        self.changed.notify_waiters();
        let (declared, mut dice) = {
            let mut state = self.state.lock();
            (state.medium(), state.cut_dice(self.env.now()))
        };
        let medium = declared.map_or_else(Medium::default, |(_, medium)| medium);
        let tearing = Tearing { lose: true, tear: !medium.whole, reorder: !medium.ordered };
        let throw = || dice.as_mut().map_or(0, |dice| dice.random());
        let cut = self.window.settle(tearing, medium.atomic.0 as usize, throw).await?;
        let unit = medium.atomic.0;
        Ok(CutReport {
            medium: declared.is_some(),
            writes: cut.writes,
            bytes: cut.units * unit,
            survived_bytes: cut.survived * unit,
        })
    }

    /// Brings the power back; false if it was there.
    pub async fn restore(&self) -> bool {
        let restored = self.window.restore().await;
        self.calm_down();
        restored
    }

    /// Ends all faults and brings the power back, so that nothing hangs and a flush makes everything durable.
    pub async fn retire(&self) -> Result<()> {
        self.window.restore().await;
        self.clear(None).await.map(drop)
    }

    /// The faults, with what they did.
    pub fn faults(&self) -> Vec<FaultStatus> {
        self.state.lock().status()
    }
    /// The last injections, oldest first.
    pub fn log(&self) -> Vec<Injection> {
        self.state.lock().log()
    }
    /// What passed.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    /// Whether the power is on.
    pub fn is_powered(&self) -> bool {
        self.window.powered().is_ok()
    }
    /// Bytes that a power cut could take.
    pub fn held(&self) -> Size {
        Blocks(self.window.blocks() as u64).to_bytes()
    }

    fn calm_down(&self) {
        let state = self.state.lock();
        let calm = state.is_empty() && self.window.is_empty() && self.window.powered().is_ok();
        self.calm.store(calm, Ordering::Release);
    }
    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Acquire)
    }

    /// Waits until the fault is gone, the power fails, or it is time.
    async fn wait(&self, number: u64, until: Option<Instant>) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let late = until.is_some_and(|until| self.env.now() >= until);
            if late || !self.state.lock().has(number) || self.window.powered().is_err() {
                return;
            }
            let Some(until) = until else {
                changed.await;
                continue;
            };
            let mut sleep = pin!(self.env.sleep(until.since(self.env.now())));
            std::future::poll_fn(|context| {
                if changed.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                sleep.as_mut().poll(context)
            })
            .await;
        }
    }

    fn touch(&self, op: Operation, at: Lba, count: Blocks) -> Touch {
        Touch { op, at, count, now: self.env.now() }
    }

    async fn admit(&self, op: Operation, at: Lba, count: Blocks) -> Result<Passage> {
        let cuts = self.window.powered()?;
        let admission = self.state.lock().admit(&self.touch(op, at, count));
        if admission.cut && self.is_powered() {
            self.cut_power().await?;
        }
        let refuse = |error: Option<ashlar_block::Error>| error.map_or(Ok(()), Err);
        if admission.at_once {
            refuse(admission.refusal.clone())?;
        }
        for (number, until) in admission.waits {
            self.wait(number, until).await;
        }
        self.window.still(cuts)?;
        refuse(admission.refusal)?;
        Ok(Passage { began: self.env.now(), cuts, factors: admission.factors })
    }

    /// Lets an operation take as long as it is to, and fail if the power was cut meanwhile.
    async fn leave(&self, passage: Passage) -> Result<()> {
        for (number, factor) in passage.factors {
            let spent = self.env.now().since(passage.began).as_nanos() as f64;
            let until = passage.began.0 as f64 + spent * factor;
            self.wait(number, Some(Instant(until as u64))).await;
        }
        self.window.still(passage.cuts)
    }

    /// How many blocks the volatile cache may hold; nothing if there is none.
    fn volatile(&self) -> Option<usize> {
        self.state.lock().medium().map(|(_, medium)| medium.window.to_blocks_down().0 as usize)
    }

    /// Writes blocks to where they go.
    async fn put(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let count = blocks_of(&pieces);
        let blocks = at.0..at.0 + count.0;
        let wants_old = self.state.lock().wants_old(&blocks);
        if wants_old {
            let old = self.window.read(context, at, count).await?;
            self.state.lock().remember(at, &old);
        }
        match (self.volatile(), durability) {
            (Some(most), Durability::Cached) => {
                self.window.hold(context, at, &pieces, most).await?;
                if self.volatile().is_none() {
                    // The fault was cleared meanwhile, and nobody else will empty the cache.
                    self.window.drain_all(context).await?;
                }
            }
            (None, _) if self.window.is_empty() => self.child.write(context, at, pieces, durability).await?,
            _ => self.window.force(context, at, pieces, durability).await?,
        }
        self.state.lock().heal(blocks);
        Ok(())
    }

    /// Writes what faults left of a write.
    async fn put_placed(&self, context: IoContext, placed: Vec<Placed>, durability: Durability) -> Result<()> {
        let mut run: Option<(u64, Vec<Bytes>)> = None;
        for part in placed {
            let data = if part.keep == BLOCK_LEN {
                part.data
            } else {
                let old = self.window.read(context, Lba(part.block), Blocks(1)).await?;
                let mut torn = AlignedBuf::zeroed(BLOCK_LEN);
                torn.as_mut().copy_from_slice(&old);
                torn.as_mut()[..part.keep].copy_from_slice(&part.data[..part.keep]);
                torn.freeze(BLOCK_LEN)
            };
            match &mut run {
                Some((at, pieces)) if *at + pieces.len() as u64 == part.block => pieces.push(data),
                _ => {
                    if let Some((at, pieces)) = run.replace((part.block, vec![data])) {
                        self.put(context, Lba(at), pieces, durability).await?;
                    }
                }
            }
        }
        match run {
            Some((at, pieces)) => self.put(context, Lba(at), pieces, durability).await,
            None => Ok(()),
        }
    }

    async fn troubled_read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let passage = self.admit(Operation::Read, at, count).await?;
        let data = self.window.read(context, at, count).await?;
        self.leave(passage).await?;
        Ok(self.state.lock().spoil(&self.touch(Operation::Read, at, count), data))
    }

    async fn troubled_write(
        &self,
        context: IoContext,
        at: Lba,
        pieces: Vec<Bytes>,
        durability: Durability,
    ) -> Result<()> {
        let count = blocks_of(&pieces);
        let passage = self.admit(Operation::Write, at, count).await?;
        let ((placed, failed), lies) = {
            let mut state = self.state.lock();
            let touch = self.touch(Operation::Write, at, count);
            (state.place(&touch, &pieces), durability == Durability::Forced && state.drops(&touch))
        };
        self.put_placed(context, placed, if lies { Durability::Cached } else { durability }).await?;
        self.leave(passage).await?;
        failed.map_or(Ok(()), Err)
    }

    async fn troubled_flush(&self, context: IoContext) -> Result<()> {
        let passage = self.admit(Operation::Flush, Lba(0), Blocks(0)).await?;
        let dropped = self.state.lock().drops(&self.touch(Operation::Flush, Lba(0), Blocks(0)));
        if !dropped {
            self.window.drain_all(context).await?;
            self.child.flush(context).await?;
        }
        self.leave(passage).await
    }

    async fn troubled_discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        let passage = self.admit(Operation::Discard, at, count).await?;
        self.window.discard(context, at, count).await?;
        self.leave(passage).await
    }

    fn count<T>(&self, began: Instant, counter: &AtomicU64, bytes: Option<(&AtomicU64, Blocks)>, result: &Result<T>) {
        let spent: Duration = self.env.now().since(began);
        self.counters.busy_ns.fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
        let counter = if result.is_ok() { counter } else { &self.counters.errors };
        counter.fetch_add(1, Ordering::Relaxed);
        if let (Some((bytes, count)), true) = (bytes, result.is_ok()) {
            bytes.fetch_add(count.to_bytes().0, Ordering::Relaxed);
        }
    }
}

impl Layer for Faulty {
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
        let began = self.env.now();
        let result = match self.is_calm() {
            true => self.child.read(context, at, count).await,
            false => self.troubled_read(context, at, count).await.within(|| format!("read of {count} at {at}")),
        };
        self.count(began, &self.counters.reads, Some((&self.counters.read_bytes, count)), &result);
        result
    }

    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let began = self.env.now();
        let count = blocks_of(&pieces);
        let result = match self.is_calm() {
            true => self.child.write(context, at, pieces, durability).await,
            false => {
                let written = self.troubled_write(context, at, pieces, durability).await;
                written.within(|| format!("write of {count} at {at}"))
            }
        };
        self.count(began, &self.counters.writes, Some((&self.counters.written_bytes, count)), &result);
        result
    }

    async fn flush(&self, context: IoContext) -> Result<()> {
        let began = self.env.now();
        let result = match self.is_calm() {
            true => self.child.flush(context).await,
            false => self.troubled_flush(context).await.within(|| "flush".into()),
        };
        self.count(began, &self.counters.flushes, None, &result);
        result
    }

    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        let began = self.env.now();
        let result = match self.is_calm() {
            true => self.child.discard(context, at, count).await,
            false => self.troubled_discard(context, at, count).await.within(|| format!("discard of {count} at {at}")),
        };
        self.count(began, &self.counters.discards, None, &result);
        result
    }

    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.child.provision(context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        if self.is_calm() {
            return self.child.extent(context, at, count).await;
        }
        self.window.powered()?;
        let blocks = at.0..at.0 + count.0;
        let watched = self.state.lock().first_watched(blocks.clone());
        let held = self.window.first_in(blocks).map(|block| block..block + 1);
        match watched.into_iter().chain(held).min_by_key(|special| special.start) {
            Some(special) if special.start == at.0 => {
                Ok(Extent { hole: false, count: Blocks(special.end - special.start) })
            }
            Some(special) => self.child.extent(context, at, Blocks(special.start - at.0)).await,
            None => self.child.extent(context, at, count).await,
        }
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
