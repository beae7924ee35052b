//! An SSD of append-once segments (application-managed flash, Lee et al., FAST '16; the ancestor of zoned devices).
//!
//! The address space is an array of segments. A sector is written once; only a trim of the whole segment makes it
//! writable again. A segment is one block of every channel and way: sector `s` lies in segment `s / S`, lane
//! `(s mod S) mod C`, page `(s mod S) / C`, with S sectors to a segment and C lanes. The device moves nothing: it gives a
//! segment, at its first write, the least-worn good block of each lane, and erases on trim.
//!
//! Inside a block pages are programmed in order, so a sector behind one that its block already has is refused like a
//! rewrite. Sectors that are skipped stay empty. What was never written is read without touching the flash.

use super::nand::{Nand, NandSpec};
use super::{Host, HostSpec};
use crate::chance::Chance;
use crate::error::{SpecError, law};
use crate::io::{Counters, Kind, Refused, Request, Split};
use crate::keep::{Placed, put_all, require, take_all};
use crate::served::{Served, Service, model_by_service};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};

/// A device of segments. A segment has as many pages as a block of each die together; a sector is a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentSpec {
    /// Segments that the host sees; blocks beyond replace bad ones.
    pub segments: u32,
    /// The flash.
    pub nand: NandSpec,
    /// The interface.
    pub host: HostSpec,
}

/// No block yet.
const NONE: u32 = u32::MAX;

/// A device of segments in some state.
pub struct Segments(Served<Aftl>);

struct Aftl {
    nand: Nand,
    host: Host,
    segments: u32,
    /// Block of each segment and lane.
    block: Vec<u32>,
    /// Append point of each segment and lane.
    append: Vec<u32>,
    /// Good free blocks of each lane, the least worn first.
    free: Vec<BinaryHeap<Reverse<(u32, u32)>>>,
}

/// Place of a sector: segment, lane, page.
fn address(sector: u64, sectors_per_segment: u64, lanes: u64) -> (u64, u64, u64) {
    let (segment, inside) = (sector / sectors_per_segment, sector % sectors_per_segment);
    (segment, inside % lanes, inside / lanes)
}

/// Bytes of a map with four bytes for each block.
pub fn segment_map_bytes(capacity: u64, block: u64) -> u64 {
    capacity / block * 4
}

/// Bytes of a map with four bytes for each page.
pub fn page_map_bytes(capacity: u64, page: u64) -> u64 {
    capacity / page * 4
}

impl Segments {
    /// A new device.
    pub fn new(spec: &SegmentSpec, seed: u64) -> Result<Segments, SpecError> {
        let nand = spec.nand.build(&mut Chance::new(seed))?;
        let (host, depth) = spec.host.check()?;
        let mut free = Vec::with_capacity(nand.dies as usize);
        for die in 0..nand.dies {
            let blocks = die * nand.blocks_per_die..(die + 1) * nand.blocks_per_die;
            let good: BinaryHeap<_> =
                blocks.filter(|&block| nand.limit[block as usize] > 0).map(|block| Reverse((0, block))).collect();
            law(
                spec.segments > 0 && spec.segments as usize <= good.len(),
                "segments",
                spec.segments,
                &format!("each segment takes a good block of every die, and a die has {}", good.len()),
            )?;
            free.push(good);
        }
        let lanes = spec.segments as usize * nand.dies as usize;
        let bad_blocks = nand.limit.iter().filter(|&&limit| limit == 0).count() as u64;
        let aftl = Aftl { host, segments: spec.segments, block: vec![NONE; lanes], append: vec![0; lanes], free, nand };
        let mut served = Served::new(aftl, depth);
        served.counters.bad_blocks = bad_blocks;
        Ok(Segments(served))
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.0.service.segment_bytes()
    }

    /// Segment, lane and page of a byte.
    pub fn place(&self, offset: u64) -> (u64, u64, u64) {
        self.0.service.place(offset / self.0.service.nand.page)
    }

    /// Erases of each block so far.
    pub fn wear(&self) -> &[u32] {
        &self.0.service.nand.erases
    }
}

impl Aftl {
    fn segment_bytes(&self) -> u64 {
        u64::from(self.nand.dies) * u64::from(self.nand.pages_per_block) * self.nand.page
    }

    fn place(&self, sector: u64) -> (u64, u64, u64) {
        address(sector, self.segment_bytes() / self.nand.page, u64::from(self.nand.dies))
    }

    fn lane_index(&self, segment: u64, lane: u64) -> usize {
        (segment * u64::from(self.nand.dies) + lane) as usize
    }

    /// The address rules. A request that breaks one changes nothing.
    fn check(&self, request: &Request) -> Result<(), Refused> {
        let Request { kind, offset, len, .. } = *request;
        let segment = self.segment_bytes();
        match kind {
            Kind::Discard if offset % segment != 0 || len % segment != 0 => {
                Err(Refused::PartialSegment { offset, len, segment })
            }
            Kind::Write => (offset / self.nand.page..(offset + len) / self.nand.page).try_for_each(|sector| {
                let (segment, lane, page) = self.place(sector);
                let index = self.lane_index(segment, lane);
                if page < u64::from(self.append[index]) {
                    Err(Refused::Rewrite { sector })
                } else if self.block[index] == NONE && self.free[lane as usize].is_empty() {
                    Err(Refused::WornOut { offset: sector * self.nand.page })
                } else {
                    Ok(())
                }
            }),
            _ => Ok(()),
        }
    }

    fn trim(&mut self, segment: u64, now_ns: u64, counters: &mut Counters) {
        for lane in 0..u64::from(self.nand.dies) {
            let index = self.lane_index(segment, lane);
            self.append[index] = 0;
            let block = std::mem::replace(&mut self.block[index], NONE);
            if block == NONE {
                continue;
            }
            counters.erases += 1;
            if self.nand.erase(block, now_ns) {
                self.free[lane as usize].push(Reverse((self.nand.erases[block as usize], block)));
            } else {
                counters.bad_blocks += 1;
            }
        }
    }
}

impl Service for Aftl {
    fn save(&self, to: &mut dyn Write) -> io::Result<()> {
        self.nand.save(to)?;
        put_all(to, &self.block)?;
        put_all(to, &self.append)
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        self.nand.restore(from)?;
        take_all(from, &mut self.block)?;
        take_all(from, &mut self.append)?;
        let mut placed = Placed::new(self.nand.blocks());
        for (index, (&block, &append)) in self.block.iter().zip(&self.append).enumerate() {
            require(append <= self.nand.pages_per_block, "has a block that is fuller than full")?;
            if block == NONE {
                require(append == 0, "has data in a block that is nowhere")?;
            } else {
                placed.place(block, &self.nand.blocks_of(index as u32 % self.nand.dies))?;
            }
        }
        for die in 0..self.nand.dies {
            let free = self.nand.blocks_of(die).filter(|&block| self.nand.good(block) && !placed.is_placed(block));
            self.free[die as usize] = free.map(|block| Reverse((self.nand.erases[block as usize], block))).collect();
        }
        Ok(())
    }

    fn capacity(&self) -> u64 {
        u64::from(self.segments) * self.segment_bytes()
    }
    fn grain(&self) -> u64 {
        self.nand.page
    }

    fn serve(&mut self, begin_ns: u64, request: &Request, counters: &mut Counters) -> Result<Split, Refused> {
        self.check(request)?;
        let start_ns = begin_ns + self.host.command_ns;
        let sectors = request.offset / self.nand.page..(request.offset + request.len) / self.nand.page;
        let (mut done_ns, mut busy_ns) = (start_ns, 0);
        match request.kind {
            Kind::Read => {
                for sector in sectors {
                    let (segment, lane, page) = self.place(sector);
                    let index = self.lane_index(segment, lane);
                    if page < u64::from(self.append[index]) {
                        let operation = self.nand.read(lane as u32, page as u32, start_ns);
                        done_ns = done_ns.max(operation.done_ns);
                        busy_ns = busy_ns.max(operation.busy_ns);
                    }
                }
                let (crossed_ns, crossing_ns) = self.host.cross(request.len, start_ns, done_ns);
                (done_ns, busy_ns) = (crossed_ns, busy_ns + crossing_ns);
            }
            Kind::Write => {
                let (arrived_ns, crossing_ns) = self.host.cross(request.len, start_ns, start_ns);
                for sector in sectors {
                    let (segment, lane, page) = self.place(sector);
                    let index = self.lane_index(segment, lane);
                    if self.block[index] == NONE {
                        let Some(Reverse((_, block))) = self.free[lane as usize].pop() else { continue };
                        self.block[index] = block;
                    }
                    let operation = self.nand.program(self.block[index], page as u32, arrived_ns);
                    self.append[index] = page as u32 + 1;
                    counters.host_pages += 1;
                    counters.programs += 1;
                    done_ns = done_ns.max(operation.done_ns);
                    busy_ns = busy_ns.max(operation.busy_ns);
                }
                busy_ns += crossing_ns;
            }
            Kind::Flush => done_ns = done_ns.max(self.nand.all_done_ns()),
            Kind::Discard => {
                let segment = self.segment_bytes();
                for segment in request.offset / segment..(request.offset + request.len) / segment {
                    self.trim(segment, start_ns, counters);
                }
            }
        }
        let transfer_ns = busy_ns.min(done_ns - start_ns);
        let queue_ns = done_ns - start_ns - transfer_ns;
        Ok(Split { queue_ns, overhead_ns: self.host.command_ns, transfer_ns, ..Split::default() })
    }
}

model_by_service!(Segments);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_maps_are_those_of_the_paper() {
        assert_eq!(address(801, 8, 4), (100, 1, 0));
        assert_eq!(segment_map_bytes(512 << 30, 512 << 10), 4 << 20);
        assert_eq!(page_map_bytes(512 << 30, 4 << 10), 512 << 20);
    }
}
