//! One member: its device, a bound on what is outstanding there, and counters of what goes where.

use ashlar_block::{Device, Durability, Error, IoContext, Kind, Result};
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use tokio::sync::{Mutex, Semaphore};

/// Blocks of one request at most: 1 MiB.
const REQUEST_BLOCKS_MAX: u64 = 256;

/// What a block of a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Data.
    Data,
    /// Parity, or a mirror of data.
    Parity,
    /// Checksum block.
    Table,
}

/// Blocks that were read from a member, or written to it. "No merging": neighbours count one by one; `requests` counts
/// what went to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Blocks of data read.
    pub data_reads: u64,
    /// Blocks of data written.
    pub data_writes: u64,
    /// Blocks of parity, or mirrors, read.
    pub parity_reads: u64,
    /// Blocks of parity, or mirrors, written.
    pub parity_writes: u64,
    /// Checksum blocks read.
    pub checksum_reads: u64,
    /// Checksum blocks written.
    pub checksum_writes: u64,
    /// Blocks written to the journal.
    pub journal_writes: u64,
    /// Requests to read, and to write in place; neighbouring blocks go together.
    pub requests: u64,
    /// Requests to write to the journal.
    pub journal_requests: u64,
    /// Flushes.
    pub flushes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Blocks that were wrong here and have been written anew from the others.
    pub repaired: u64,
}

impl Counts {
    /// Blocks read and written in place, with checksum blocks: the paper's disk I/Os.
    pub fn blocks(&self) -> u64 {
        self.data_reads
            + self.data_writes
            + self.parity_reads
            + self.parity_writes
            + self.checksum_reads
            + self.checksum_writes
    }
}

/// A member's device.
pub struct Member {
    device: Device,
    called: String,
    /// Requests that may be outstanding.
    queue: Semaphore,
    queue_max: usize,
    counters: [AtomicU64; 12],
    /// Writes that wait for a flush, and those that a flush has covered.
    written: AtomicU64,
    covered: Mutex<u64>,
}

/// Indices of `counters`.
const DATA: usize = 0;
const PARITY: usize = 2;
const TABLE: usize = 4;
const JOURNAL: usize = 6;
const REQUESTS: usize = 7;
const JOURNAL_REQUESTS: usize = 8;
const FLUSHES: usize = 9;
const ERRORS: usize = 10;
const REPAIRED: usize = 11;

/// Runs futures, at most so many at a time, begun in their order; gives what they give in that order.
pub async fn all<F: Future>(most: usize, futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting = futures.into_iter().enumerate();
    let mut running: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    let mut done: Vec<(usize, F::Output)> = Vec::new();
    std::future::poll_fn(|context| {
        loop {
            while running.len() < most.max(1)
                && let Some((index, future)) = waiting.next()
            {
                running.push((index, Box::pin(future)));
            }
            let before = running.len();
            let mut at = 0;
            while at < running.len() {
                match running[at].1.as_mut().poll(context) {
                    Poll::Ready(value) => done.push((running.remove(at).0, value)),
                    Poll::Pending => at += 1,
                }
            }
            if running.len() == before {
                return if running.is_empty() { Poll::Ready(()) } else { Poll::Pending };
            }
        }
    })
    .await;
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, value)| value).collect()
}

/// Neighbouring keys, in stretches of a bounded number.
pub fn runs<T>(blocks: impl IntoIterator<Item = (Lba, T)>) -> Vec<(Lba, Vec<T>)> {
    let mut runs: Vec<(Lba, Vec<T>)> = Vec::new();
    for (at, value) in blocks {
        match runs.last_mut() {
            Some((from, run)) if from.0 + run.len() as u64 == at.0 && (run.len() as u64) < REQUEST_BLOCKS_MAX => {
                run.push(value);
            }
            _ => runs.push((at, vec![value])),
        }
    }
    runs
}

impl Member {
    /// A member with at most `queue` requests outstanding.
    pub fn new(device: Device, called: String, queue: usize) -> Member {
        Member {
            device,
            called,
            queue: Semaphore::new(queue.max(1)),
            queue_max: queue.max(1),
            counters: Default::default(),
            written: AtomicU64::new(0),
            covered: Mutex::new(0),
        }
    }

    /// The device below.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// Its name.
    pub fn name(&self) -> String {
        self.called.clone()
    }
    /// What went there.
    pub fn counts(&self) -> Counts {
        let count = |index: usize| self.counters[index].load(Ordering::Relaxed);
        Counts {
            data_reads: count(DATA),
            data_writes: count(DATA + 1),
            parity_reads: count(PARITY),
            parity_writes: count(PARITY + 1),
            checksum_reads: count(TABLE),
            checksum_writes: count(TABLE + 1),
            journal_writes: count(JOURNAL),
            requests: count(REQUESTS),
            journal_requests: count(JOURNAL_REQUESTS),
            flushes: count(FLUSHES),
            errors: count(ERRORS),
            repaired: count(REPAIRED),
        }
    }
    /// Counts blocks that were repaired.
    pub fn note_repaired(&self, blocks: u64) {
        self.count(REPAIRED, blocks);
    }

    fn count(&self, index: usize, by: u64) {
        self.counters[index].fetch_add(by, Ordering::Relaxed);
    }
    fn count_class(&self, class: Class, write: bool) {
        let first = match class {
            Class::Data => DATA,
            Class::Parity => PARITY,
            Class::Table => TABLE,
        };
        self.count(first + usize::from(write), 1);
    }
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.count(ERRORS, 1);
        }
        result
    }

    async fn read_run(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let _permit = self.queue.acquire().await.map_err(|_| Error::misuse("the queue is closed"))?;
        self.count(REQUESTS, 1);
        let data = self.noted(self.device.read(context, at, count).await)?;
        if data.len() as u64 != count.to_bytes().0 {
            return Err(Error::new(Kind::Failed, format!("read of {count} at {at} returned {} bytes", data.len())));
        }
        Ok(data)
    }

    /// Reads blocks, in ascending order, neighbours together, and tells each as it comes. A stretch that fails is read again
    /// block by block, so that only the bad ones are lost, and one that may succeed later is tried once more.
    pub async fn read(&self, context: IoContext, wanted: &BTreeMap<Lba, Class>, hear: impl Fn(Lba, Result<Bytes>)) {
        wanted.values().for_each(|class| self.count_class(*class, false));
        let runs = runs(wanted.keys().map(|at| (*at, ())));
        let read = async |(at, run): (Lba, Vec<()>)| {
            let count = Blocks(run.len() as u64);
            match self.read_run(context, at, count).await {
                Ok(data) => (0..run.len()).for_each(|index| {
                    hear(Lba(at.0 + index as u64), Ok(data.slice(index * BLOCK_LEN..(index + 1) * BLOCK_LEN)));
                }),
                Err(error) => {
                    for at in (at.0..).take(run.len()).map(Lba) {
                        let again = if run.len() > 1 || error.kind() == Kind::Retry {
                            self.read_run(context, at, Blocks(1)).await
                        } else {
                            Err(error.clone())
                        };
                        hear(at, again);
                    }
                }
            }
        };
        all(self.queue_max, runs.into_iter().map(read)).await;
    }

    /// Writes blocks in place, in ascending order, neighbours together.
    pub async fn write(
        &self,
        context: IoContext,
        blocks: &BTreeMap<Lba, (Class, Bytes)>,
        durability: Durability,
    ) -> Result<()> {
        blocks.values().for_each(|(class, _)| self.count_class(*class, true));
        let runs = runs(blocks.iter().map(|(at, (_, data))| (*at, data.clone())));
        let write = async |(at, pieces): (Lba, Vec<Bytes>)| {
            let _permit = self.queue.acquire().await.map_err(|_| Error::misuse("the queue is closed"))?;
            self.count(REQUESTS, 1);
            self.noted(self.device.write(context, at, pieces, durability).await)
        };
        let outcomes = all(self.queue_max, runs.into_iter().map(write)).await;
        outcomes.into_iter().collect()
    }

    /// Writes into the journal.
    pub async fn write_journal(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>) -> Result<()> {
        self.count(JOURNAL, pieces.len() as u64);
        self.count(JOURNAL_REQUESTS, 1);
        self.noted(self.device.write(context, at, pieces, Durability::Cached).await)
    }

    /// Makes durable what was written before the call; those who wait at the same time share a flush. `covers` is asked when
    /// the flush begins, and its answer returned when that has ended; an older flush gives nothing.
    pub async fn flush<T>(&self, context: IoContext, covers: impl FnOnce() -> T) -> Result<Option<T>> {
        let mine = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        let mut covered = self.covered.lock().await;
        if *covered >= mine {
            return Ok(None);
        }
        let end = self.written.load(Ordering::Acquire);
        let what = covers();
        self.count(FLUSHES, 1);
        self.noted(self.device.flush(context).await)?;
        *covered = end;
        Ok(Some(what))
    }
}
