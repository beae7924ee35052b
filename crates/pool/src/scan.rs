//! Reading segments batch by batch: for recovery, cleaning and checks.

use crate::Shared;
use crate::format::Lead;
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

    /// The lead of a batch, if there is one of this pool at that place; and its block.
    pub(crate) async fn lead(&mut self, uid: u64, at: u32) -> Result<Option<(Lead, Bytes)>> {
        let segment = self.shared.layout.segment.0;
        if u64::from(at) >= segment {
            return Ok(None);
        }
        let block = self.blocks(uid, at, 1).await?;
        let lead = Lead::decode(&block).filter(|lead| {
            let fits = u64::from(at) + u64::from(lead.blocks()) <= segment;
            lead.pool == self.shared.pool && lead.uid == uid && lead.at == at && fits
        });
        Ok(lead.map(|lead| (lead, block)))
    }

    /// The body of a batch; `None` if it is damaged.
    pub(crate) async fn body(&mut self, lead: &Lead, block: &Bytes) -> Result<Option<Bytes>> {
        let body = if lead.tail_blocks() == 0 {
            block.slice(crate::format::LEAD_LEN..crate::format::LEAD_LEN + lead.body_len as usize)
        } else {
            let tail = self.blocks(lead.uid, lead.at + 1 + lead.payload_blocks, lead.tail_blocks()).await?;
            tail.slice(..lead.body_len as usize)
        };
        Ok((crate::format::crc(&body) == lead.body_crc).then_some(body))
    }

    /// Whether the payload of a batch is what was written.
    pub(crate) async fn payload_holds(&mut self, lead: &Lead) -> Result<bool> {
        let payload = self.blocks(lead.uid, lead.at + 1, lead.payload_blocks).await?;
        Ok(crate::format::crc(&payload) == lead.payload_crc)
    }
}
