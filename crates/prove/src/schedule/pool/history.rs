//! What writers have written, and how a volume is compared with it.

use super::{Found, RANGE, WRITERS, text};
use ashlar_pool::Volume;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use parking_lot::Mutex;

/// The words of the block that a stamp makes; they do not compress.
fn words(stamp: u64) -> impl Iterator<Item = [u8; 8]> {
    let mut word = stamp;
    let words = std::iter::repeat_with(move || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word ^ (word >> 29)).to_le_bytes()
    });
    words.take(BLOCK_LEN / 8)
}

/// Blocks with stamps one behind another.
pub(super) fn blocks(first: u64, count: u64) -> Bytes {
    let mut data = Vec::with_capacity(count as usize * BLOCK_LEN);
    (first..first + count).flat_map(words).for_each(|word| data.extend_from_slice(&word));
    data.into()
}

/// A writer's blocks by the stamp that made them, and the value of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) blocks: Vec<Option<u64>>,
    pub(super) key: u64,
}

/// The states of all writers.
pub(super) struct History {
    pub(super) writers: Vec<Mutex<States>>,
}

pub(super) struct States {
    pub(super) all: Vec<Model>,
    /// How many of them are committed; the one behind may be, or not.
    pub(super) committed: usize,
}

impl States {
    pub(super) fn newest(&self) -> usize {
        self.all.len() - 1
    }
}

impl History {
    pub(super) fn new() -> History {
        let empty = || Model { blocks: vec![None; RANGE as usize], key: 0 };
        let states = || Mutex::new(States { all: vec![empty()], committed: 0 });
        History { writers: (0..WRITERS).map(|_| states()).collect() }
    }
    /// The newest state of each writer that is surely committed.
    pub(super) fn committed(&self) -> Vec<usize> {
        self.writers.iter().map(|states| states.lock().committed).collect()
    }
    /// The newest state of each writer that may be committed.
    pub(super) fn begun(&self) -> Vec<usize> {
        self.writers.iter().map(|states| states.lock().newest()).collect()
    }
}

pub(super) fn key_of(writer: u64) -> Vec<u8> {
    format!("writer {writer}").into_bytes()
}

/// Which state of a writer a volume holds, key and all blocks.
pub(super) async fn state_in(volume: &Volume, writer: u64, models: &[Model]) -> Found<Option<usize>> {
    let key = volume.get(&key_of(writer)).await.map_err(text)?;
    let key = key.map_or(0, |bytes| bytes.first().copied().map_or(0, u64::from));
    let data = read(volume, writer * RANGE, RANGE).await?;
    let fits = |model: &Model| {
        model.key == key && data.chunks(BLOCK_LEN).zip(&model.blocks).all(|(data, stamp)| holds(data, *stamp))
    };
    Ok(models.iter().rposition(fits))
}

pub(super) async fn read(volume: &Volume, at: u64, count: u64) -> Found<Vec<u8>> {
    Ok(volume.read(Lba(at), Blocks(count)).await.map_err(text)?.concat())
}

pub(super) fn holds(data: &[u8], stamp: Option<u64>) -> bool {
    match stamp {
        Some(stamp) => data.chunks(8).eq(words(stamp)),
        None => data.iter().all(|byte| *byte == 0),
    }
}
