//! Numbers that are used once: of places, and versions.

use crate::Rule;
use crate::contents::Contents;
use crate::format::{Class, Place, counters, decode_numbers, encode_numbers};
use ashlar_block::{Kind, Result};
use ashlar_pool::{Txn, Volume};
use parking_lot::Mutex;

/// Classes of places, and versions.
const KINDS: usize = Class::ALL.len() + 1;
const VERSIONS: usize = KINDS - 1;
/// How many of each are reserved at once: a sync each time, and as many lost with each opening.
const AT_ONCE: [u64; KINDS] = [1 << 16, 1 << 10, 1 << 6, 1 << 16];

/// Counters, with what is reserved.
pub(crate) struct Numbers {
    state: Mutex<State>,
    /// Held while more are reserved.
    reserving: tokio::sync::Mutex<()>,
    without: Option<Rule>,
}

#[derive(Clone, Copy)]
struct State {
    next: [u64; KINDS],
    reserved: [u64; KINDS],
}

impl Numbers {
    /// Goes on where every earlier opening reserved.
    pub(crate) async fn open(volume: &Volume, without: Option<Rule>) -> Result<Numbers> {
        let next = match volume.get(&counters()).await? {
            Some(value) => decode_numbers(&value)?,
            None => [1; KINDS],
        };
        let state = Mutex::new(State { next, reserved: next });
        Ok(Numbers { state, reserving: tokio::sync::Mutex::default(), without })
    }

    /// A place that was never used.
    pub(crate) async fn place(&self, volume: &Volume, contents: &impl Contents, class: Class) -> Result<Place> {
        let number = self.take(volume, class as usize).await?;
        let places = contents.places(class);
        if number >= places {
            let message = format!("all {places} places for objects of up to {} bytes are used", class.bytes());
            return Err(ashlar_block::Error::new(Kind::NoSpace, message));
        }
        Ok(Place { class, number })
    }

    /// A version that no object ever had.
    pub(crate) async fn version(&self, volume: &Volume) -> Result<u64> {
        self.take(volume, VERSIONS).await
    }

    async fn take(&self, volume: &Volume, kind: usize) -> Result<u64> {
        loop {
            if let Some(number) = self.try_take(kind) {
                return Ok(number);
            }
            let _one = self.reserving.lock().await;
            let State { reserved, .. } = *self.state.lock();
            if self.state.lock().next[kind] < reserved[kind] {
                continue;
            }
            let mut more = reserved;
            more[kind] += AT_ONCE[kind];
            let mut txn = Txn::new();
            volume.put(&mut txn, &counters(), encode_numbers(&more));
            let seq = volume.commit(txn).await?;
            if self.without != Some(Rule::ReserveVersions) {
                volume.pool().sync(seq).await?;
            }
            self.state.lock().reserved = more;
        }
    }

    fn try_take(&self, kind: usize) -> Option<u64> {
        let mut state = self.state.lock();
        let number = state.next[kind];
        if number >= state.reserved[kind] {
            return None;
        }
        state.next[kind] += 1;
        Some(number)
    }
}
