//! Memory cards and USB sticks: a block map with log blocks (Boboila and Desnoyers, FAST '10).
//!
//! The flash is divided into zones that are mapped and worn apart. In a zone each logical block has a data block, and a
//! few more blocks are free. With log blocks, pages that are written to a logical block go to its log block, one behind
//! the other; when the log block is full, or another logical block needs it (the one used longest ago gives way), log
//! and data block are merged into a free block and both are erased. Without log blocks every write copies the whole
//! data block. The free list is first in, first out, which is all the dynamic wear levelling there is; with static wear
//! levelling, every so many merges the content of a rarely written block moves to a free block, and its old block joins
//! the list.
//!
//! A zone is dead when a write finds no free block. The other zones live on.

use super::nand::{Nand, NandSpec};
use super::{Host, HostSpec};
use crate::chance::Chance;
use crate::error::{SpecError, law};
use crate::io::{Counters, Kind, Refused, Request, SECTOR, Split};
use crate::keep::{Placed, put, put_all, put_list, refuse, require, take, take_all, take_list};
use crate::served::{Served, Service, model_by_service};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, Read, Write};

/// A device with log blocks. All of its flash is one die for the purpose of timing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HybridSpec {
    /// Zones; each has as many blocks.
    pub zones: u32,
    /// Free blocks of a zone.
    pub free_blocks: u32,
    /// Log blocks of a zone; zero for none.
    pub log_blocks: u32,
    /// Pages of a log block that take updates.
    pub log_pages: u32,
    /// Blocks that are programmed and erased together; multiplies the erases, not the times.
    pub planes: u32,
    /// Whether a write of several pages of a block goes past the log to a new data block.
    pub several_pages_skip_log: bool,
    /// Merges between two moves of static wear levelling; zero for none.
    pub static_wear_every: u32,
    /// The flash.
    pub nand: NandSpec,
    /// The interface.
    pub host: HostSpec,
}

/// A device with log blocks in some state.
pub struct Hybrid(Served<Card>);

struct Card {
    is: HybridSpec,
    nand: Nand,
    host: Host,
    /// Logical blocks of a zone.
    logical_per_zone: u32,
    zones: Vec<Zone>,
}

struct Zone {
    /// Data block of each logical block.
    data: Vec<u32>,
    free: VecDeque<u32>,
    /// The one used longest ago first.
    logs: VecDeque<Log>,
    merges: u64,
    /// Next logical block that static wear levelling looks at.
    cold: u32,
    dead: bool,
}

#[derive(Clone, Copy, Debug)]
struct Log {
    logical: u32,
    block: u32,
    used: u32,
}

/// The zone has no free block.
struct Dead;

impl Hybrid {
    /// A new device; the seed decides how long each block lives.
    pub fn new(spec: &HybridSpec, seed: u64) -> Result<Hybrid, SpecError> {
        let nand = spec.nand.build(&mut Chance::new(seed))?;
        let (host, depth) = spec.host.check()?;
        law(nand.dies == 1, "nand.channels", nand.dies, "the card model has one die on one channel")?;
        law(
            spec.zones > 0 && nand.blocks().is_multiple_of(spec.zones),
            "zones",
            spec.zones,
            &format!("zones have equal shares of the {} blocks", nand.blocks()),
        )?;
        let per_zone = nand.blocks() / spec.zones;
        law(
            spec.free_blocks > spec.log_blocks && spec.free_blocks < per_zone,
            "free_blocks",
            spec.free_blocks,
            "a merge needs a free block beside the log blocks, and some blocks hold data",
        )?;
        law(
            spec.log_blocks == 0 || (1..=nand.pages_per_block).contains(&spec.log_pages),
            "log_pages",
            spec.log_pages,
            "a log block takes an update at least, and no more than it has pages",
        )?;
        law((1..=16).contains(&spec.planes), "planes", spec.planes, "there are 1 to 16 planes")?;
        let logical_per_zone = per_zone - spec.free_blocks;
        let zones = (0..spec.zones)
            .map(|zone| {
                let first = zone * per_zone;
                Zone {
                    data: (first..first + logical_per_zone).collect(),
                    free: (first + logical_per_zone..first + per_zone).collect(),
                    logs: VecDeque::with_capacity(spec.log_blocks as usize + 1),
                    merges: 0,
                    cold: 0,
                    dead: false,
                }
            })
            .collect();
        Ok(Hybrid(Served::new(Card { is: spec.clone(), nand, host, logical_per_zone, zones }, depth)))
    }

    /// Bytes of an erase block.
    pub fn block_bytes(&self) -> u64 {
        self.0.service.block_bytes()
    }

    /// First byte of a zone.
    pub fn zone_offset(&self, zone: u32) -> u64 {
        u64::from(zone) * u64::from(self.0.service.logical_per_zone) * self.block_bytes()
    }

    /// Erases of each block so far.
    pub fn wear(&self) -> &[u32] {
        &self.0.service.nand.erases
    }
}

impl Card {
    fn block_bytes(&self) -> u64 {
        u64::from(self.nand.pages_per_block) * self.nand.page
    }

    fn erase(&mut self, zone: usize, block: u32, now_ns: u64, counters: &mut Counters) {
        counters.erases += u64::from(self.is.planes);
        if self.nand.erase(block, now_ns) {
            self.zones[zone].free.push_back(block);
        } else {
            counters.bad_blocks += 1;
        }
    }

    fn take_free(&mut self, zone: usize) -> Result<u32, Dead> {
        self.zones[zone].free.pop_front().ok_or(Dead)
    }

    /// Copies all pages of a block but `written` to another; the copy comes before any erase.
    fn copy_block(&mut self, to: u32, written: u32, now_ns: u64, counters: &mut Counters) {
        for page in written..self.nand.pages_per_block {
            self.nand.copy(to, page, now_ns);
        }
        let pages = u64::from(self.nand.pages_per_block - written);
        counters.copies += pages;
        counters.programs += pages;
    }

    /// Puts the newest pages of a logical block together in a free block: `written` new ones, and the rest from the data
    /// block and its log, which are erased.
    fn rewrite(
        &mut self,
        zone: usize,
        logical: u32,
        written: u32,
        now_ns: u64,
        counters: &mut Counters,
    ) -> Result<(), Dead> {
        let to = self.take_free(zone)?;
        for page in 0..written {
            self.nand.program(to, page, now_ns);
        }
        self.copy_block(to, written, now_ns, counters);
        let old = std::mem::replace(&mut self.zones[zone].data[logical as usize], to);
        self.erase(zone, old, now_ns, counters);
        let logs = &mut self.zones[zone].logs;
        if let Some(index) = logs.iter().position(|log| log.logical == logical)
            && let Some(log) = logs.remove(index)
        {
            self.erase(zone, log.block, now_ns, counters);
            self.merged(zone, now_ns, counters)?;
        }
        Ok(())
    }

    /// After a merge: static wear levelling when its turn has come.
    fn merged(&mut self, zone: usize, now_ns: u64, counters: &mut Counters) -> Result<(), Dead> {
        counters.merges += 1;
        self.zones[zone].merges += 1;
        let every = u64::from(self.is.static_wear_every);
        if every == 0 || !self.zones[zone].merges.is_multiple_of(every) {
            return Ok(());
        }
        let cold = self.zones[zone].cold;
        self.zones[zone].cold = (cold + 1) % self.logical_per_zone;
        if self.zones[zone].logs.iter().any(|log| log.logical == cold) {
            return Ok(());
        }
        let to = self.take_free(zone)?;
        self.copy_block(to, 0, now_ns, counters);
        let old = std::mem::replace(&mut self.zones[zone].data[cold as usize], to);
        self.erase(zone, old, now_ns, counters);
        Ok(())
    }

    /// Writes `pages` pages of one logical block.
    fn write(
        &mut self,
        zone: usize,
        logical: u32,
        pages: u32,
        now_ns: u64,
        counters: &mut Counters,
    ) -> Result<(), Dead> {
        counters.host_pages += u64::from(pages);
        counters.programs += u64::from(pages);
        if self.is.log_blocks == 0 || (pages > 1 && self.is.several_pages_skip_log) {
            return self.rewrite(zone, logical, pages, now_ns, counters);
        }
        for _ in 0..pages {
            let block = self.log_page(zone, logical, now_ns, counters)?;
            self.nand.program(block, 0, now_ns);
        }
        Ok(())
    }

    /// A page of a logical block's log, after the merges that it takes to have one.
    fn log_page(&mut self, zone: usize, logical: u32, now_ns: u64, counters: &mut Counters) -> Result<u32, Dead> {
        let mine = self.zones[zone].logs.iter().find(|log| log.logical == logical).copied();
        if mine.is_some_and(|log| log.used >= self.is.log_pages) {
            self.rewrite(zone, logical, 0, now_ns, counters)?;
        } else if mine.is_none()
            && self.zones[zone].logs.len() >= self.is.log_blocks as usize
            && let Some(oldest) = self.zones[zone].logs.front().copied()
        {
            self.rewrite(zone, oldest.logical, 0, now_ns, counters)?;
        }
        let logs = &mut self.zones[zone].logs;
        if let Some(index) = logs.iter().position(|log| log.logical == logical)
            && let Some(mut log) = logs.remove(index)
        {
            log.used += 1;
            logs.push_back(log);
            return Ok(log.block);
        }
        let block = self.take_free(zone)?;
        self.zones[zone].logs.push_back(Log { logical, block, used: 1 });
        Ok(block)
    }
}

impl Card {
    fn restore_zone(&mut self, zone: u32, placed: &mut Placed, from: &mut dyn Read) -> io::Result<()> {
        let per_zone = self.nand.blocks() / self.is.zones;
        let range = zone * per_zone..(zone + 1) * per_zone;
        let mut data = vec![0; self.logical_per_zone as usize];
        take_all(from, &mut data)?;
        data.iter().try_for_each(|&block| placed.place(block, &range))?;
        let free = take_list(from, per_zone as usize)?;
        free.iter().try_for_each(|&block| placed.place(block, &range))?;
        let mut logs = VecDeque::new();
        for log in take_list(from, 3 * self.is.log_blocks as usize)?.chunks(3) {
            let &[logical, block, used] = log else { return Err(refuse("has half a log")) };
            let known = logical < self.logical_per_zone && used <= self.is.log_pages;
            let twice = logs.iter().any(|log: &Log| log.logical == logical);
            require(known && !twice, "has a log of no block, or two")?;
            placed.place(block, &range)?;
            logs.push_back(Log { logical, block, used });
        }
        let (merges, cold, dead) = (take(from)?, take(from)?, take(from)? != 0);
        require(cold < u64::from(self.logical_per_zone), "levels the wear of no block")?;
        self.zones[zone as usize] = Zone { data, free: free.into(), logs, merges, cold: cold as u32, dead };
        Ok(())
    }
}

impl Service for Card {
    fn save(&self, to: &mut dyn Write) -> io::Result<()> {
        self.nand.save(to)?;
        self.zones.iter().try_for_each(|zone| {
            put_all(to, &zone.data)?;
            put_list(to, &zone.free.iter().copied().collect::<Vec<_>>())?;
            let logs: Vec<u32> = zone.logs.iter().flat_map(|log| [log.logical, log.block, log.used]).collect();
            put_list(to, &logs)?;
            put(to, zone.merges)?;
            put(to, u64::from(zone.cold))?;
            put(to, u64::from(zone.dead))
        })
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        self.nand.restore(from)?;
        let mut placed = Placed::new(self.nand.blocks());
        (0..self.is.zones).try_for_each(|zone| self.restore_zone(zone, &mut placed, from))
    }

    fn capacity(&self) -> u64 {
        u64::from(self.is.zones) * u64::from(self.logical_per_zone) * self.block_bytes()
    }
    fn grain(&self) -> u64 {
        SECTOR
    }

    fn serve(&mut self, begin_ns: u64, request: &Request, counters: &mut Counters) -> Result<Split, Refused> {
        let start_ns = begin_ns + self.host.command_ns;
        let (mut done_ns, mut busy_ns) = (start_ns, 0);
        let pages = request.offset / self.nand.page..(request.offset + request.len).div_ceil(self.nand.page);
        let (per_block, per_zone) = (u64::from(self.nand.pages_per_block), u64::from(self.logical_per_zone));
        match request.kind {
            Kind::Read => {
                for page in pages {
                    let operation = self.nand.read(0, (page % per_block) as u32, start_ns);
                    done_ns = done_ns.max(operation.done_ns);
                    busy_ns += operation.busy_ns;
                }
                let (crossed_ns, crossing_ns) = self.host.cross(request.len, start_ns, done_ns);
                (done_ns, busy_ns) = (crossed_ns, busy_ns + crossing_ns);
            }
            Kind::Write => {
                let zone_of = |page: u64| (page / per_block / per_zone) as usize;
                if let Some(page) = pages.clone().find(|&page| self.zones[zone_of(page)].dead) {
                    return Err(Refused::WornOut { offset: page * self.nand.page });
                }
                let (arrived_ns, crossing_ns) = self.host.cross(request.len, start_ns, start_ns);
                let mut page = pages.start;
                while page < pages.end {
                    let stop = pages.end.min((page / per_block + 1) * per_block);
                    let (zone, logical) = (zone_of(page), (page / per_block % per_zone) as u32);
                    if self.write(zone, logical, (stop - page) as u32, arrived_ns, counters).is_err() {
                        self.zones[zone].dead = true;
                        return Err(Refused::WornOut { offset: page * self.nand.page });
                    }
                    page = stop;
                }
                done_ns = self.nand.die_free_ns(0).max(arrived_ns);
                busy_ns = crossing_ns;
            }
            Kind::Flush => done_ns = done_ns.max(self.nand.all_done_ns()),
            Kind::Discard => {}
        }
        let transfer_ns = busy_ns.min(done_ns - start_ns);
        let queue_ns = done_ns - start_ns - transfer_ns;
        Ok(Split { queue_ns, overhead_ns: self.host.command_ns, transfer_ns, ..Split::default() })
    }
}

model_by_service!(Hybrid);
