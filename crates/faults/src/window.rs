//! Writes that are acknowledged and not durable: a volatile cache that a power cut empties.
//!
//! Writes are held in memory, in order, and reach the device below when a flush covers them, or when the window is full:
//! then the oldest go, a quarter of it at a time, and count as durable. Reads see what is held. So nothing that can still be
//! lost has touched the device below, and a power cut is true also of a real one.
//!
//! Invariants
//!  1. `newest` has exactly the blocks of `pending`, each with the data and the number of the last operation that wrote it.
//!  2. One task at a time writes below what was held, or what overlaps it (`order`); so the device below sees the writes of
//!     a block in their order.
//!  3. Nothing is held while the power is off.
//!
//! Discards are durable at once, as the contract of devices allows.

use ashlar_block::{Device, Durability, Error, IoContext, Kind, Result, blocks_of};
use ashlar_devices::Tearing;
use ashlar_env::ring::AlignedBuf;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use tokio::sync::Mutex as AsyncMutex;

/// Blocks written below at a time.
const RUN_MAX: usize = 256;

/// Blocks in order of place, no two neighbours.
type Run = (u64, Vec<Bytes>);

pub(crate) struct Window {
    child: Device,
    held: Mutex<Held>,
    order: AsyncMutex<()>,
}

#[derive(Default)]
struct Held {
    pending: VecDeque<Operation>,
    newest: BTreeMap<u64, (u64, Bytes)>,
    blocks: usize,
    next: u64,
    off: bool,
    /// Power cuts so far.
    cuts: u64,
}

struct Operation {
    number: u64,
    blocks: Vec<(u64, Bytes)>,
}

/// What a power cut did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Writes that no flush covered.
    pub writes: u64,
    /// Units of the medium in them.
    pub units: u64,
    /// Units of those that survived.
    pub survived: u64,
}

fn no_power() -> Error {
    Error::new(Kind::Failed, "the power is cut; `restore` brings it back")
}

/// Joins blocks that lie one behind another.
fn runs(blocks: impl IntoIterator<Item = (u64, Bytes)>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (block, data) in blocks {
        match runs.last_mut() {
            Some((at, run)) if *at + run.len() as u64 == block && run.len() < RUN_MAX => run.push(data),
            _ => runs.push((block, vec![data])),
        }
    }
    runs
}

impl Window {
    pub fn new(child: Device) -> Window {
        Window { child, held: Mutex::default(), order: AsyncMutex::new(()) }
    }

    /// Fails when the power is off; else tells how often it has been cut, so that an operation can see that it was.
    pub fn powered(&self) -> Result<u64> {
        let held = self.held.lock();
        if held.off { Err(no_power()) } else { Ok(held.cuts) }
    }
    /// Fails if the power was cut since.
    pub fn still(&self, cuts: u64) -> Result<()> {
        if self.powered()? == cuts { Ok(()) } else { Err(no_power()) }
    }
    pub fn is_empty(&self) -> bool {
        self.held.lock().pending.is_empty()
    }
    /// Blocks that are held.
    pub fn blocks(&self) -> usize {
        self.held.lock().blocks
    }

    /// Holds a write; when more than `most` blocks are held, the oldest go.
    pub async fn hold(&self, context: IoContext, at: Lba, pieces: &[Bytes], most: usize) -> Result<()> {
        // Each block is its own copy: as a part of what was written it would keep all of that alive.
        let copies = pieces.iter().flat_map(|piece| piece.chunks(BLOCK_LEN)).map(Bytes::copy_from_slice);
        let blocks: Vec<_> = (at.0..).zip(copies).collect();
        let oldest = {
            let mut held = self.held.lock();
            if held.off {
                return Err(no_power());
            }
            let number = held.next;
            held.next += 1;
            held.blocks += blocks.len();
            for (block, data) in &blocks {
                held.newest.insert(*block, (number, data.clone()));
            }
            held.pending.push_back(Operation { number, blocks });
            held.too_old(most)
        };
        match oldest {
            Some(number) => self.drain(context, number).await,
            None => Ok(()),
        }
    }

    /// Writes below what was held when this was called.
    pub async fn drain_all(&self, context: IoContext) -> Result<()> {
        let last = self.held.lock().pending.back().map(|operation| operation.number);
        match last {
            Some(number) => self.drain(context, number).await,
            None => Ok(()),
        }
    }

    async fn drain(&self, context: IoContext, last: u64) -> Result<()> {
        let _order = self.order.lock().await;
        let mut blocks = BTreeMap::new();
        {
            let held = self.held.lock();
            if held.off {
                return Err(no_power());
            }
            for operation in held.pending.iter().take_while(|operation| operation.number <= last) {
                blocks.extend(operation.blocks.iter().cloned());
            }
        }
        for (at, run) in runs(blocks) {
            self.child.write(context, Lba(at), run, Durability::Cached).await?;
        }
        let mut held = self.held.lock();
        while held.pending.front().is_some_and(|operation| operation.number <= last) {
            let Some(operation) = held.pending.pop_front() else { break };
            held.forget(&operation);
        }
        Ok(())
    }

    /// Writes below at once, past what is held.
    pub async fn force(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let count = blocks_of(&pieces);
        let _order = self.order.lock().await;
        let before = {
            let held = self.held.lock();
            if held.off {
                return Err(no_power());
            }
            held.next
        };
        self.child.write(context, at, pieces, durability).await?;
        self.held.lock().supersede(at.0..at.0 + count.0, before);
        Ok(())
    }

    /// Discards below at once, and what is held there with it.
    pub async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        let _order = self.order.lock().await;
        let before = {
            let held = self.held.lock();
            if held.off {
                return Err(no_power());
            }
            held.next
        };
        self.child.discard(context, at, count).await?;
        self.held.lock().supersede(at.0..at.0 + count.0, before);
        Ok(())
    }

    /// Reads what was written last.
    pub async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let found: Vec<(u64, Bytes)> = {
            let held = self.held.lock();
            let range = held.newest.range(at.0..at.0 + count.0);
            range.map(|(block, (_, data))| (*block, data.clone())).collect()
        };
        let below = self.child.read(context, at, count).await?;
        if found.is_empty() {
            return Ok(below);
        }
        let mut data = AlignedBuf::zeroed(below.len());
        data.as_mut().copy_from_slice(&below);
        for (block, held) in found {
            let offset = (block - at.0) as usize * BLOCK_LEN;
            data.as_mut().iter_mut().skip(offset).zip(&held).for_each(|(byte, held)| *byte = *held);
        }
        Ok(data.freeze(below.len()))
    }

    /// The first of these blocks that is held.
    pub fn first_in(&self, blocks: Range<u64>) -> Option<u64> {
        self.held.lock().newest.range(blocks).next().map(|(block, _)| *block)
    }

    /// Turns the power off: from now on everything fails.
    pub fn switch_off(&self) -> Result<()> {
        let mut held = self.held.lock();
        if held.off {
            return Err(Error::new(Kind::Misuse, "the power is cut already; `restore` brings it back"));
        }
        held.off = true;
        held.cuts += 1;
        Ok(())
    }

    /// After the power went off: leaves on the device below what the medium kept. `unit_len` is what it writes whole.
    pub async fn settle(&self, tearing: Tearing, unit_len: usize, dice: impl FnMut() -> u64) -> Result<Cut> {
        // What is being written below gets there: it was about to be durable.
        let _order = self.order.lock().await;
        let pending = {
            let mut held = self.held.lock();
            held.newest.clear();
            held.blocks = 0;
            std::mem::take(&mut held.pending)
        };
        let mut cut = Cut { writes: pending.len() as u64, ..Cut::default() };
        let units = pending.into_iter().map(|operation| {
            let units = operation.blocks.into_iter().flat_map(|(block, data)| {
                let offsets = (0..BLOCK_LEN).step_by(unit_len);
                offsets.map(move |offset| (block, offset, data.slice(offset..offset + unit_len)))
            });
            units.collect::<Vec<_>>()
        });
        let units: Vec<Vec<_>> = units.collect();
        cut.units = units.iter().map(|units| units.len() as u64).sum();
        let kept = tearing.survivors(units, dice);
        cut.survived = kept.len() as u64;
        let mut blocks: BTreeMap<u64, Vec<(usize, Bytes)>> = BTreeMap::new();
        for (block, offset, data) in kept {
            blocks.entry(block).or_default().push((offset, data));
        }
        let context = IoContext::foreground("power cut");
        for (block, units) in blocks {
            let old = self.child.read(context, Lba(block), Blocks(1)).await?;
            let mut new = AlignedBuf::zeroed(BLOCK_LEN);
            new.as_mut().copy_from_slice(&old);
            for (offset, data) in units {
                new.as_mut()[offset..offset + data.len()].copy_from_slice(&data);
            }
            self.child.write(context, Lba(block), vec![new.freeze(BLOCK_LEN)], Durability::Cached).await?;
        }
        self.child.flush(context).await?;
        Ok(cut)
    }

    /// Turns the power on; false if it was on.
    pub async fn restore(&self) -> bool {
        // A cut that still writes ends first.
        let _order = self.order.lock().await;
        std::mem::replace(&mut self.held.lock().off, false)
    }
}

impl Held {
    /// The last operation that must go so that the window is a quarter below `most`, if it is above.
    fn too_old(&self, most: usize) -> Option<u64> {
        if self.blocks <= most {
            return None;
        }
        let mut left = self.blocks;
        let goes = |operation: &&Operation| {
            let above = left > most / 4 * 3;
            left -= operation.blocks.len();
            above
        };
        self.pending.iter().take_while(goes).last().map(|operation| operation.number)
    }

    /// Takes out what an operation that is no longer pending left.
    fn forget(&mut self, operation: &Operation) {
        self.blocks -= operation.blocks.len();
        for (block, _) in &operation.blocks {
            if self.newest.get(block).is_some_and(|(number, _)| *number == operation.number) {
                self.newest.remove(block);
            }
        }
    }

    /// Blocks of operations before number `before` have newer contents below.
    fn supersede(&mut self, range: Range<u64>, before: u64) {
        let old: Vec<u64> = {
            let found = self.newest.range(range.clone());
            found.filter(|(_, (number, _))| *number < before).map(|(block, _)| *block).collect()
        };
        if range.is_empty() || self.newest.range(range.clone()).next().is_none() {
            return;
        }
        for block in old {
            self.newest.remove(&block);
        }
        let mut gone = 0;
        for operation in self.pending.iter_mut().filter(|operation| operation.number < before) {
            let len = operation.blocks.len();
            operation.blocks.retain(|(block, _)| !range.contains(block));
            gone += len - operation.blocks.len();
        }
        self.blocks -= gone;
        self.pending.retain(|operation| !operation.blocks.is_empty());
    }
}
