//! The disk of the exploration: it records what it is asked to do, and later holds one image after another.
//!
//! An image lies as an overlay over the base, the contents when the recording began; neither is copied.
//!
//! An operation stands in the record where it took effect: between its request and its answer. So a mark stands behind all
//! that was acknowledged when it was made. A disk without pace answers at once; with pace, operations overlap, and a flush
//! covers only what had been answered when it began.

use ashlar_block::{Capability, Durability, Extent, Geometry, IoContext, Layer, Result};
use ashlar_env::Env;
use ashlar_units::{BLOCK, BLOCK_LEN, Blocks, Bytes as Size, Lba};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Blocks that differ from what lies below; below the base are zeros.
pub(super) type Contents = BTreeMap<u64, Bytes>;

pub(super) static ZEROS: Bytes = Bytes::from_static(&[0; BLOCK_LEN]);

/// Data that a record may hold: it is kept in memory.
const RECORD_MAX: Size = Size::gib(2);

/// Longest time of a paced operation.
const PACE_NS: u64 = 50_000;

/// What the disk was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A write; `forced` ones are durable when they are answered (FUA).
    Write { at: Lba, data: Bytes, forced: bool },
    /// Contents given up: they read as zeros.
    Discard { at: Lba, count: Blocks },
    /// A flush: events before this one are durable now. A flush that was dropped covers none.
    Flush { covers: usize },
    /// What the workload said.
    Mark(String),
}

/// What happened to the disk since the recording began.
#[derive(Clone, Default)]
pub(super) struct Record {
    pub base: Arc<Contents>,
    pub events: Vec<Event>,
}

#[derive(Default)]
struct State {
    base: Arc<Contents>,
    overlay: Contents,
    events: Vec<Event>,
    recording: bool,
    recorded: Size,
}

impl State {
    fn block(&self, block: u64) -> Option<&Bytes> {
        self.overlay.get(&block).or_else(|| self.base.get(&block))
    }
}

/// The disk.
pub(super) struct Medium {
    capacity: Blocks,
    honours_flushes: bool,
    pace: Option<Env>,
    state: Mutex<State>,
}

impl Medium {
    /// An empty disk.
    pub(super) fn new(capacity: Blocks, honours_flushes: bool) -> Medium {
        Medium { capacity, honours_flushes, pace: None, state: Mutex::default() }
    }

    /// A disk that takes its time.
    pub(super) fn paced(self, env: Env) -> Medium {
        Medium { pace: Some(env), ..self }
    }

    async fn pause(&self) {
        if let Some(env) = &self.pace {
            env.sleep(Duration::from_nanos(env.random() % PACE_NS)).await;
        }
    }

    /// What the disk holds now is the base, and everything from now on is recorded.
    pub(super) fn record(&self) {
        let mut state = self.state.lock();
        state.base = Arc::new(std::mem::take(&mut state.overlay));
        state.recording = true;
    }

    /// Adds a mark to the record.
    pub(super) fn mark(&self, text: &str) {
        let mut state = self.state.lock();
        if state.recording {
            state.events.push(Event::Mark(text.into()));
        }
    }

    /// Ends the recording. Fails if the record became too large to be kept.
    pub(super) fn recorded(&self) -> std::result::Result<Record, String> {
        let mut state = self.state.lock();
        state.recording = false;
        if state.recorded > RECORD_MAX {
            return Err(format!(
                "the workload wrote {}, and at most {RECORD_MAX} can be recorded: let it do less",
                state.recorded
            ));
        }
        Ok(Record { base: state.base.clone(), events: std::mem::take(&mut state.events) })
    }

    /// From now on the disk holds this image. Nobody may have it open.
    pub(super) fn hold(&self, base: &Arc<Contents>, image: Contents) {
        let mut state = self.state.lock();
        state.base = base.clone();
        state.overlay = image;
    }
}

impl Layer for Medium {
    fn name(&self) -> String {
        "crash".into()
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: self.capacity, atomic: BLOCK }
    }
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        Capability { discard: true, discard_zeroes: true, persistent: false, medium: None, thin: false }
    }
    async fn read(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.pause().await;
        let state = self.state.lock();
        let mut data = BytesMut::with_capacity(count.to_bytes().0 as usize);
        for block in at.0..at.0 + count.0 {
            data.extend_from_slice(state.block(block).unwrap_or(&ZEROS));
        }
        Ok(data.freeze())
    }
    async fn write(&self, _context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        self.pause().await;
        // A copy: what came may be a small part of a large buffer.
        let data = Bytes::from(pieces.concat());
        let mut state = self.state.lock();
        for (block, start) in (at.0..).zip((0..data.len()).step_by(BLOCK_LEN)) {
            state.overlay.insert(block, data.slice(start..start + BLOCK_LEN));
        }
        if state.recording {
            state.recorded = Size(state.recorded.0 + data.len() as u64);
            if state.recorded <= RECORD_MAX {
                state.events.push(Event::Write { at, data, forced: durability == Durability::Forced });
            }
        }
        Ok(())
    }
    async fn flush(&self, _context: IoContext) -> Result<()> {
        let answered = self.state.lock().events.len();
        self.pause().await;
        let mut state = self.state.lock();
        if state.recording {
            state.events.push(Event::Flush { covers: if self.honours_flushes { answered } else { 0 } });
        }
        Ok(())
    }
    async fn discard(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.pause().await;
        let mut state = self.state.lock();
        for block in at.0..at.0 + count.0 {
            if state.base.contains_key(&block) {
                state.overlay.insert(block, ZEROS.clone());
            } else {
                state.overlay.remove(&block);
            }
        }
        if state.recording {
            state.events.push(Event::Discard { at, count });
        }
        Ok(())
    }
    async fn provision(&self, _: IoContext, _: Lba, _: Blocks) -> Result<()> {
        Ok(())
    }
    async fn extent(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let state = self.state.lock();
        let hole = state.block(at.0).is_none();
        let alike = (at.0..at.0 + count.0).take_while(|block| state.block(*block).is_none() == hole).count();
        Ok(Extent { hole, count: Blocks(alike as u64) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::{Device, conformance};

    async fn empty(_env: Env) -> Device {
        Arc::new(Medium::new(Blocks(300), true))
    }
    conformance!(crash_medium, empty);

    async fn paced(env: Env) -> Device {
        Arc::new(Medium::new(Blocks(300), true).paced(env))
    }
    conformance!(paced_crash_medium, paced);
}
