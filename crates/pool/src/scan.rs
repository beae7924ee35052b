//! Reading segments batch by batch: for recovery, cleaning and checks.

use crate::Shared;
use crate::format::{LEAD_LEN, Lead, crc};
use ashlar_block::{Error, IoContext, Result};
use ashlar_units::{BLOCK_LEN, Blocks};
use bytes::Bytes;

const SCAN: IoContext = IoContext::background("scan");
/// Blocks read at once, so that a log of small batches is not read block by block.
const WINDOW: u32 = 128;

/// Reads along segments.
pub(crate) struct Scanner<'a> {
    shared: &'a Shared,
    uid: u64,
    at: u32,
    window: Bytes,
}

impl Shared {
    /// What a block says, if it is the lead of a batch of this pool in this segment, at whatever place.
    fn any_lead(&self, uid: u64, block: &[u8]) -> Option<Lead> {
        Lead::decode(block).filter(|lead| {
            let fits = u64::from(lead.at) + u64::from(lead.blocks()) <= self.layout.segment.0;
            lead.pool == self.pool && lead.uid == uid && fits
        })
    }
    /// The same of the lead that stands where its batch begins.
    pub(crate) fn lead_of(&self, uid: u64, at: u32, block: &[u8]) -> Option<Lead> {
        self.any_lead(uid, block).filter(|lead| lead.at == at)
    }
    /// The same of one that stands there once more, at the end of its batch.
    pub(crate) fn copied_lead(&self, uid: u64, at: u32, block: &[u8]) -> Option<Lead> {
        self.any_lead(uid, block).filter(|lead| lead.copy_at() == Some(at))
    }
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Scanner<'a> {
        Scanner { shared, uid: 0, at: 0, window: Bytes::new() }
    }

    /// `count` blocks at block `at` of a segment; an error if the segment ends before.
    pub(crate) async fn blocks(&mut self, uid: u64, at: u32, count: u32) -> Result<Bytes> {
        let layout = &self.shared.layout;
        let segment = layout.segment.0 as u32;
        if at.checked_add(count).is_none_or(|end| end > segment) || !layout.holds(uid, 0, 0) {
            return Err(Error::corrupt(format!("segment {uid:#x} has no {count} blocks at {at}")));
        }
        let cached = (self.window.len() / BLOCK_LEN) as u32;
        if uid != self.uid || at < self.at || at + count > self.at + cached {
            let want = count.max(WINDOW).min(segment - at);
            let (place, address) = layout.locate(uid, at);
            // A bad sector further on is no reason not to read what was asked for.
            self.window = match place.device.read(SCAN, address, Blocks(u64::from(want))).await {
                Err(_) if want > count => place.device.read(SCAN, address, Blocks(u64::from(count))).await?,
                other => other?,
            };
            (self.uid, self.at) = (uid, at);
        }
        let from = (at - self.at) as usize * BLOCK_LEN;
        Ok(self.window.slice(from..from + count as usize * BLOCK_LEN))
    }

    /// The lead of a batch, if there is one of this pool at that place.
    pub(crate) async fn lead(&mut self, uid: u64, at: u32) -> Result<Option<Lead>> {
        if u64::from(at) >= self.shared.layout.segment.0 {
            return Ok(None);
        }
        let block = self.blocks(uid, at, 1).await?;
        Ok(self.shared.lead_of(uid, at, &block))
    }

    /// The body of a batch; `None` if it is damaged.
    pub(crate) async fn body(&mut self, lead: &Lead) -> Result<Option<Bytes>> {
        let (at, count, skip) = match lead.tail_blocks() {
            0 => (lead.at, 1, LEAD_LEN),
            tail => (lead.payload().end, tail, 0),
        };
        let body = self.blocks(lead.uid, at, count).await?.slice(skip..skip + lead.body_len as usize);
        Ok((crc(&body) == lead.body_crc).then_some(body))
    }

    /// Whether the payload of a batch is what was written.
    pub(crate) async fn payload_holds(&mut self, lead: &Lead) -> Result<bool> {
        let payload = self.blocks(lead.uid, lead.at + 1, lead.payload_blocks).await?;
        Ok(crc(&payload) == lead.payload_crc)
    }
}
