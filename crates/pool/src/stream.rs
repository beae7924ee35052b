//! Streams: batches that fill segments front to back.
//!
//! A stream's state is changed under its lock only, in memory; what is sealed there is written by the caller afterwards.

use crate::format::{BodyWriter, INLINE_BODY_LEN, Lead, OpenSegment, Stream, crc};
use crate::memory_faults::flipped;
use crate::parity::{parity, parity_blocks};
use crate::space::{Claim, Layout, Space};
use ashlar_block::{Error, Result};
use ashlar_env::ring::AlignedBuf;
use ashlar_units::BLOCK_LEN;
use bytes::Bytes;

/// A batch is sealed when its payload passes this, so that sequential writes leave in large pieces.
const BATCH_PAYLOAD_BYTES: u64 = 1 << 20;
/// A batch is sealed when its body passes this.
const BATCH_BODY_BYTES: usize = 128 << 10;

/// Whether an extent or node takes whole blocks. Smaller ones lie one behind another.
fn is_whole(stored: &Bytes) -> bool {
    stored.len().is_multiple_of(BLOCK_LEN)
}

/// Pieces one behind another, with zeros up to the end of a block.
fn padded(pieces: &[Bytes]) -> Bytes {
    let len = pieces.iter().map(Bytes::len).sum::<usize>().next_multiple_of(BLOCK_LEN);
    let mut buffer = AlignedBuf::any(len);
    let mut rest = buffer.as_mut();
    for piece in pieces {
        let (place, behind) = rest.split_at_mut(piece.len());
        place.copy_from_slice(piece);
        rest = behind;
    }
    rest.fill(0);
    buffer.freeze(len)
}

/// What has been appended since the last batch was sealed.
#[derive(Default)]
struct Open {
    pieces: Vec<Bytes>,
    /// Bytes of payload; a multiple of the block size if the last piece is.
    payload: u64,
    body: BodyWriter,
    /// Offsets of extents, by which the in-flight table knows them.
    keys: Vec<u32>,
}

impl Open {
    /// Blocks of payload, and of tail, with so many more bytes of payload and of body.
    fn blocks_with(&self, payload: u64, body: usize) -> (u64, u64) {
        let block = BLOCK_LEN as u64;
        let body = self.body.len() + body;
        let tail = if body > INLINE_BODY_LEN { body.div_ceil(BLOCK_LEN) } else { 0 };
        ((self.payload.next_multiple_of(block) + payload).div_ceil(block), tail as u64)
    }
}

/// A batch that must be written.
pub(crate) struct Sealed {
    lead: Lead,
    body: Bytes,
    pieces: Vec<Bytes>,
    pub(crate) uid: u64,
    /// Where it begins in its segment.
    pub(crate) block: u32,
    pub(crate) keys: Vec<u32>,
    /// Orders batches of one stream for those who wait until they are written.
    pub(crate) ticket: u64,
    /// Whether its operations are those that were given to it.
    pub(crate) holds: bool,
}

impl Sealed {
    /// The bytes, with checksums over all of them.
    pub(crate) fn image(&mut self) -> Vec<Bytes> {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let mut image = vec![Bytes::new()]; // the lead has a checksum over what follows
        for run in self.pieces.chunk_by(|one, next| !is_whole(one) && !is_whole(next)) {
            let payload = if is_whole(&run[0]) { run[0].clone() } else { padded(run) };
            digest.update(&payload);
            image.push(payload);
        }
        self.lead.payload_crc = digest.finalize() as u32;
        image[0] = self.lead.encode(&self.body).freeze();
        if self.lead.tail_blocks() > 0 {
            image.push(padded(std::slice::from_ref(&self.body)));
        }
        if let Some(count) = self.lead.parity {
            let payload = image.iter().flat_map(|part| part.chunks(BLOCK_LEN)).skip(1);
            let sums = parity(payload.take(self.lead.payload_blocks as usize), count);
            image.extend([sums, image[0].clone()]);
        }
        image
    }
}

/// Where a batch of the log goes and what it follows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    /// Number of the next batch.
    pub(crate) seq: u64,
    /// Checksum over all batches so far.
    pub(crate) link: u32,
    /// The newest durable batch.
    pub(crate) durable: u64,
}

impl Chain {
    /// The link after a batch with this body.
    pub(crate) fn after(self, body_crc: u32) -> u32 {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.link.to_le_bytes());
        bytes[12..].copy_from_slice(&body_crc.to_le_bytes());
        crc(&bytes)
    }
}

pub(crate) struct StreamState {
    stream: Stream,
    pool: u64,
    /// The segment that is being filled.
    pub(crate) segment: Option<OpenSegment>,
    /// The log names its next segment ahead, so that recovery finds it.
    pub(crate) next: Option<OpenSegment>,
    pub(crate) chain: Chain,
    /// Batches up to this one are said to be durable, by a batch behind them or a superblock; or would not be missed.
    announced: u64,
    open: Open,
    tickets: u64,
    /// Whether its batches have parity.
    has_parity: bool,
}

impl StreamState {
    pub(crate) fn new(stream: Stream, pool: u64, has_parity: bool) -> StreamState {
        let (chain, open) = (Chain::default(), Open::default());
        StreamState { stream, pool, segment: None, next: None, chain, announced: 0, open, tickets: 0, has_parity }
    }

    pub(crate) fn last_ticket(&self) -> u64 {
        self.tickets
    }
    /// Notes that a superblock covers batches up to this one.
    pub(crate) fn note_announced(&mut self, seq: u64) {
        self.announced = self.announced.max(seq);
    }
    /// Whether batches are durable of which nothing on the medium says so, and none is open that will.
    pub(crate) fn is_unannounced(&self) -> bool {
        !self.has_open_batch() && self.segment.is_some() && self.chain.durable > self.announced
    }
    pub(crate) fn has_open_batch(&self) -> bool {
        !self.open.body.is_empty()
    }

    /// Whether `payload` more bytes and `body` more bytes of body are for another batch.
    fn is_full(&self, payload: u64, body: usize) -> bool {
        self.open.payload + payload > BATCH_PAYLOAD_BYTES || self.open.body.len() + body > BATCH_BODY_BYTES
    }

    /// Blocks of a batch with so many more bytes of payload and of body.
    fn blocks_with(&self, open: &Open, payload: u64, body: usize) -> u64 {
        let (payload, tail) = open.blocks_with(payload, body);
        1 + payload + tail + if self.has_parity { u64::from(parity_blocks(payload as u32)) + 1 } else { 0 }
    }

    /// Blocks of an extent of `payload` bytes, with `body` bytes of body, that the current segment would still take.
    pub(crate) fn blocks_that_fit(&self, payload: u64, body: usize, layout: &Layout) -> u64 {
        let Some(segment) = &self.segment else { return 0 };
        let left = layout.segment.0 - u64::from(segment.used);
        let taken = if self.has_open_batch() && self.is_full(payload, body) {
            self.blocks_with(&self.open, 0, 0) + self.blocks_with(&Open::default(), 0, body)
        } else {
            self.blocks_with(&self.open, 0, body)
        };
        left.saturating_sub(taken)
    }

    /// Makes sure that `payload` more bytes and `body` more bytes of body fit into the current batch.
    pub(crate) fn make_room(
        &mut self,
        payload: u64,
        body: usize,
        space: &Space,
        layout: &Layout,
        claim: Claim,
        sealed: &mut Vec<Sealed>,
    ) -> Result<()> {
        if self.has_open_batch() && self.is_full(payload, body) {
            self.seal(sealed);
        }
        let left = |segment: &OpenSegment| layout.segment.0 - u64::from(segment.used);
        if self.segment.as_ref().is_some_and(|segment| self.blocks_with(&self.open, payload, body) <= left(segment)) {
            return Ok(());
        }
        if self.blocks_with(&Open::default(), payload, body) > layout.segment.0 {
            return Err(Error::misuse("a transaction is larger than a segment"));
        }
        // Find the successor first: on failure nothing has changed.
        let (successor, after) = match self.stream {
            Stream::Log => {
                let successor = match self.next {
                    Some(next) => next,
                    None => space.allocate(self.stream, claim)?,
                };
                let after = space.allocate(self.stream, claim);
                if after.is_err() {
                    self.next = Some(successor);
                }
                (successor, Some(after?))
            }
            _ => (space.allocate(self.stream, claim)?, None),
        };
        if self.has_open_batch() {
            self.seal(sealed);
        }
        if let Some(full) = self.segment.replace(successor) {
            space.seal(full.uid);
        }
        self.next = after;
        Ok(())
    }

    /// Adds an extent or node for which there is room; gives its byte offset in the segment.
    pub(crate) fn append(&mut self, tree: u64, key: &[u8], level: Option<u8>, stored: Bytes) -> (OpenSegment, u32) {
        let segment = self.segment.expect("room was made");
        let len = stored.len();
        if is_whole(&stored) {
            self.open.payload = self.open.payload.next_multiple_of(BLOCK_LEN as u64);
        }
        let offset = (u64::from(segment.used) + 1) * BLOCK_LEN as u64 + self.open.payload;
        self.open.pieces.push(stored);
        self.open.payload += len as u64;
        self.open.body.item(tree, key, level, offset as u32, len as u32);
        self.open.keys.push(offset as u32);
        (segment, offset as u32)
    }

    /// Flips a bit of the payload that is not yet written, for explorations: bit `dice` of it, counted round. Gives the
    /// offsets in the segment of the extent that it hit, and of the byte.
    pub(crate) fn flip_in_payload(&mut self, dice: u64) -> Option<(u32, u32)> {
        let (wanted, bit) = ((dice / 8) % self.open.payload.max(1), dice % 8);
        let base = (u64::from(self.segment?.used) + 1) * BLOCK_LEN as u64;
        let mut at = 0;
        for piece in &mut self.open.pieces {
            if is_whole(piece) {
                at = u64::next_multiple_of(at, BLOCK_LEN as u64);
            }
            let len = piece.len() as u64;
            if (at..at + len).contains(&wanted) {
                *piece = flipped(piece, (wanted - at) * 8 + bit);
                let byte = (base + wanted) as u32;
                let extent = self.open.keys.iter().copied().filter(|offset| *offset <= byte).max()?;
                return Some((extent, byte));
            }
            at += len;
        }
        None
    }

    /// The body of the open batch, for operations.
    pub(crate) fn body(&mut self) -> &mut BodyWriter {
        &mut self.open.body
    }

    /// Ends the open batch.
    pub(crate) fn seal(&mut self, sealed: &mut Vec<Sealed>) {
        let next = Open { body: BodyWriter::like(&self.open.body), ..Open::default() };
        let open = std::mem::replace(&mut self.open, next);
        let empty = open.body.is_empty();
        let mut segment = self.segment.expect("a batch lies in a segment");
        let holds = open.body.holds();
        let (items, operations, body) = open.body.finish();
        let body_crc = crc(&body);
        let payload_blocks = open.payload.div_ceil(BLOCK_LEN as u64) as u32;
        let lead = Lead {
            stream: self.stream,
            pool: self.pool,
            uid: segment.uid,
            at: segment.used,
            payload_blocks,
            body_len: body.len() as u32,
            items,
            operations,
            seq: if self.stream == Stream::Log { self.chain.seq } else { 0 },
            chain: self.chain.link,
            durable: self.chain.durable,
            next: self.next.unwrap_or_default(),
            body_crc,
            payload_crc: 0,
            parity: self.has_parity.then(|| parity_blocks(payload_blocks)),
        };
        self.note_announced(if empty { self.chain.seq } else { self.chain.durable });
        self.chain.link = self.chain.after(body_crc);
        self.chain.seq += 1;
        self.tickets += 1;
        let ticket = self.tickets;
        sealed.push(Sealed {
            lead,
            body,
            pieces: open.pieces,
            uid: segment.uid,
            block: segment.used,
            keys: open.keys,
            ticket,
            holds,
        });
        segment.used += lead.blocks();
        self.segment = Some(segment);
    }
}
