//! Numbers that are given once and never again.

use ashlar_block::Error;
use ashlar_pool::{Txn, Volume};
use ashlar_vfs::{Errno, Result};
use bytes::{Buf, Bytes};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// Numbers are reserved in the dictionary in lots of this many: a crash loses what is left of one.
pub const NUMBER_LOT: u64 = 4096;

/// A number as a value of the dictionary.
pub fn number_value(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// Reads a number.
///
/// # Errors
/// `Corrupt` if it is cut short.
pub fn read_number(mut value: &[u8]) -> ashlar_block::Result<u64> {
    value.try_get_u64_le().map_err(|_| Error::corrupt("a counter is cut short"))
}

/// A counter in the dictionary: all numbers from what is stored on were never given.
pub struct Numbers {
    key: &'static [u8],
    /// Numbers from here on are not to be given.
    end: u64,
    next: AtomicU64,
    /// What is stored.
    reserved: AtomicU64,
    /// Held while more are reserved.
    reserving: Mutex<()>,
}

impl Numbers {
    /// The counter under `key`, where `next` is stored.
    pub fn new(key: &'static [u8], next: u64, end: u64) -> Numbers {
        Numbers { key, end, next: next.into(), reserved: next.into(), reserving: Mutex::default() }
    }

    /// A number that nobody has had.
    ///
    /// # Errors
    /// `NoSpace` if there is none left.
    pub async fn take(&self, volume: &Volume) -> Result<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.end {
            return Err(Errno::NoSpace.into());
        }
        let is_reserved = || number < self.reserved.load(Ordering::Acquire);
        while !is_reserved() {
            let _alone = self.reserving.lock().await;
            if !is_reserved() {
                let until = number + NUMBER_LOT;
                let mut txn = Txn::new();
                volume.put(&mut txn, self.key, number_value(until));
                volume.commit(txn).await?;
                self.reserved.store(until, Ordering::Release);
            }
        }
        Ok(number)
    }
}
