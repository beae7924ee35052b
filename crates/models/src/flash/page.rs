//! An SSD with a page map.
//!
//! Logical pages are dealt to the dies in turn, and each die maps its own: it has an open block for what the host writes
//! and one for what cleaning moves, and cleans when no more than `RESERVE` blocks are free. Cleaning happens at once,
//! before the write that needs it: the die is busy for all of it, as an old drive is. A write is done when it is in the
//! write buffer, if there is one, else when it is programmed.
//!
//! Not modelled: wear levelling of data that never change, read disturb and retention, suspension of programs and
//! erases, planes, a map that does not fit into memory, pages larger than the unit of mapping, a cache of single bits.

use super::nand::{Divisor, Nand, NandSpec};
use super::{Host, HostSpec};
use crate::chance::Chance;
use crate::error::{SpecError, law, size};
use crate::io::{Counters, Kind, Refused, Request, Split};
use crate::keep::{Placed, put, put_all, put_list, refuse, require, take, take_all, take_list};
use crate::served::{Served, Service, model_by_service};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// A page-mapped SSD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashSpec {
    /// Bytes that the host sees; what the flash has more is over-provisioning.
    pub capacity: String,
    /// How blocks are chosen for cleaning.
    pub cleaning: Cleaning,
    /// Buffer that makes a write done before it is programmed, as in "1MiB"; "0" for none.
    pub write_buffer: String,
    /// The flash.
    pub nand: NandSpec,
    /// The interface.
    pub host: HostSpec,
}

/// Which block is cleaned next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleaning {
    /// The one with the fewest valid pages.
    Greedy,
    /// The one with the most (1 - u) age / 2u, for the valid part u (Kawaguchi et al., USENIX '95).
    CostBenefit,
}

/// Free blocks of a die that are kept for cleaning.
const RESERVE: usize = 1;
/// No block, no page.
const NONE: u32 = u32::MAX;

/// A page-mapped SSD in some state.
pub struct PageMapped(Served<Ssd>);

struct Ssd {
    nand: Nand,
    host: Host,
    cleaning: Cleaning,
    capacity: u64,
    /// Physical page of each logical page, plus one; zero if it has none. So memory is used only by what was written.
    map: Vec<u32>,
    /// Logical page that was last written to each physical page.
    owner: Vec<u32>,
    /// A bit for each physical page that is valid; each block begins with a new word. It is small enough for a cache of the
    /// processor, where `owner` and `map` are not.
    is_valid: Vec<u64>,
    words_per_block: usize,
    blocks: Vec<Block>,
    /// When a block was last written, in pages that its die had programmed.
    written: Vec<u64>,
    dies: Vec<Die>,
    /// First block of the list of full blocks for each die and count of valid pages.
    full: Vec<u32>,
    /// Deals logical pages to dies.
    deal: Divisor,
    /// Times at which the pages in the write buffer are programmed, in a ring.
    buffer: Vec<u64>,
    buffer_at: usize,
}

/// What is known of a block.
#[derive(Clone, Copy)]
struct Block {
    /// How many of its pages are valid.
    valid: u32,
    /// Neighbours in the list of full blocks with as many valid pages.
    before: u32,
    after: u32,
    /// Whether it is in such a list.
    is_full: bool,
}

struct Die {
    free: std::collections::VecDeque<u32>,
    open: Front,
    moving: Front,
    /// No list below this one has a block.
    fewest: usize,
    programs: u64,
    worn_out: bool,
}

/// A block that is being filled.
#[derive(Clone, Copy, Debug)]
struct Front {
    block: u32,
    page: u32,
}

impl PageMapped {
    /// A new drive; the seed decides which blocks are bad and how long each lives.
    pub fn new(spec: &FlashSpec, seed: u64) -> Result<PageMapped, SpecError> {
        let nand = spec.nand.build(&mut Chance::new(seed))?;
        let (host, depth) = spec.host.check()?;
        let capacity = size("capacity", &spec.capacity)? / nand.page * nand.page;
        let pages = capacity / nand.page;
        let per_die = pages.div_ceil(u64::from(nand.dies));
        let mut dies = Vec::with_capacity(nand.dies as usize);
        for die in 0..nand.dies {
            let first = die * nand.blocks_per_die;
            let free: std::collections::VecDeque<u32> =
                (first..first + nand.blocks_per_die).filter(|&block| nand.limit[block as usize] > 0).collect();
            let room = (free.len() as u64).saturating_sub(RESERVE as u64 + 2) * u64::from(nand.pages_per_block);
            law(
                per_die <= room && pages > 0,
                "capacity",
                &spec.capacity,
                &format!("the good blocks of a die hold {} bytes beside those that cleaning needs", room * nand.page),
            )?;
            let nothing = Front { block: NONE, page: 0 };
            dies.push(Die {
                free,
                open: nothing,
                moving: nothing,
                fewest: nand.pages_per_block as usize + 1,
                programs: 0,
                worn_out: false,
            });
        }
        let blocks = nand.blocks() as usize;
        let physical = blocks * nand.pages_per_block as usize;
        let words_per_block = nand.pages_per_block.div_ceil(u64::BITS) as usize;
        let buffer_pages = (size("write_buffer", &spec.write_buffer)? / nand.page) as usize;
        law(buffer_pages <= 1 << 22, "write_buffer", &spec.write_buffer, "a buffer has at most 4,194,304 pages")?;
        let bad_blocks = nand.limit.iter().filter(|&&limit| limit == 0).count() as u64;
        let ssd = Ssd {
            host,
            cleaning: spec.cleaning,
            capacity,
            map: vec![0; pages as usize],
            owner: vec![0; physical],
            is_valid: vec![0; blocks * words_per_block],
            words_per_block,
            blocks: vec![Block { valid: 0, before: NONE, after: NONE, is_full: false }; blocks],
            written: vec![0; blocks],
            full: vec![NONE; dies.len() * (nand.pages_per_block as usize + 1)],
            deal: Divisor::new(nand.dies),
            dies,
            buffer: vec![0; buffer_pages],
            buffer_at: 0,
            nand,
        };
        let mut served = Served::new(ssd, depth);
        served.counters.bad_blocks = bad_blocks;
        Ok(PageMapped(served))
    }

    /// Erases of each block so far.
    pub fn wear(&self) -> &[u32] {
        &self.0.service.nand.erases
    }

    /// Cleans `count` blocks of a die, as if space had become short.
    pub fn clean(&mut self, die: u32, count: u32) {
        for _ in 0..count {
            self.0.service.clean(die, 0, &mut self.0.counters);
        }
    }

    /// Part of the flash that holds nothing, of what takes part in cleaning: without the blocks of the reserve and those
    /// that are being filled.
    pub fn spare(&self) -> f64 {
        let ssd = &self.0.service;
        let good = ssd.nand.limit.iter().filter(|&&limit| limit > 0).count() as f64;
        let circulating = good - f64::from(ssd.nand.dies) * (RESERVE as f64 + 1.0);
        1.0 - ssd.map.len() as f64 / (circulating * f64::from(ssd.nand.pages_per_block))
    }
}

impl Ssd {
    #[inline]
    fn die_of(&self, logical: u64) -> u32 {
        self.deal.remainder(logical as u32)
    }

    /// The lists of full blocks of a die, by their valid pages.
    #[inline]
    fn list(&self, die: u32, valid: u32) -> usize {
        die as usize * (self.nand.pages_per_block as usize + 1) + valid as usize
    }

    fn link(&mut self, die: u32, block: u32) {
        let valid = self.blocks[block as usize].valid;
        let list = self.list(die, valid);
        let first = std::mem::replace(&mut self.full[list], block);
        if first != NONE {
            self.blocks[first as usize].before = block;
        }
        let linked = &mut self.blocks[block as usize];
        (linked.before, linked.after, linked.is_full) = (NONE, first, true);
        let fewest = &mut self.dies[die as usize].fewest;
        *fewest = (*fewest).min(valid as usize);
    }

    fn unlink(&mut self, die: u32, block: u32) {
        let linked = &mut self.blocks[block as usize];
        linked.is_full = false;
        let Block { valid, before, after, .. } = *linked;
        if before == NONE {
            let list = self.list(die, valid);
            self.full[list] = after;
        } else {
            self.blocks[before as usize].after = after;
        }
        if after != NONE {
            self.blocks[after as usize].before = before;
        }
    }

    /// The word and bit that say whether a page of a block is valid.
    #[inline]
    fn valid_bit(&self, block: u32, page: u32) -> (usize, u64) {
        (block as usize * self.words_per_block + (page / u64::BITS) as usize, 1 << (page % u64::BITS))
    }

    /// The place of a logical page holds nothing valid any more.
    fn invalidate(&mut self, logical: u64) {
        let Some(physical) = std::mem::take(&mut self.map[logical as usize]).checked_sub(1) else { return };
        let (block, page) = self.nand.block_of(physical);
        let (word, bit) = self.valid_bit(block, page);
        self.is_valid[word] &= !bit;
        if self.blocks[block as usize].is_full {
            let die = self.nand.die_of(block);
            self.unlink(die, block);
            self.blocks[block as usize].valid -= 1;
            self.link(die, block);
        } else {
            self.blocks[block as usize].valid -= 1;
        }
    }

    /// The next page to fill of a die: for the host or for cleaning. `None` if no block is free.
    fn next_page(&mut self, die: u32, moving: bool) -> Option<(u32, u32)> {
        let pages = self.nand.pages_per_block;
        let dies = &mut self.dies[die as usize];
        let front = if moving { dies.moving } else { dies.open };
        let front = if front.block == NONE { Front { block: dies.free.pop_front()?, page: 0 } } else { front };
        let next = Front { block: front.block, page: front.page + 1 };
        let full = next.page == pages;
        let kept = if full { Front { block: NONE, page: 0 } } else { next };
        dies.programs += 1;
        self.written[front.block as usize] = dies.programs;
        if moving {
            dies.moving = kept;
        } else {
            dies.open = kept;
        }
        Some((front.block, front.page))
    }

    /// Puts a logical page to a place, and a block that is full to the lists.
    fn place(&mut self, die: u32, logical: u64, block: u32, page: u32) {
        let physical = block * self.nand.pages_per_block + page;
        self.map[logical as usize] = physical + 1;
        self.owner[physical as usize] = logical as u32;
        let (word, bit) = self.valid_bit(block, page);
        self.is_valid[word] |= bit;
        self.blocks[block as usize].valid += 1;
        if page + 1 == self.nand.pages_per_block {
            self.link(die, block);
        }
    }

    fn victim(&mut self, die: u32) -> Option<u32> {
        let pages = self.nand.pages_per_block;
        let first = self.list(die, 0);
        let lists = &self.full[first..=first + pages as usize];
        let here = &mut self.dies[die as usize];
        while lists.get(here.fewest).is_some_and(|&first| first == NONE) {
            here.fewest += 1;
        }
        // Nothing is won by cleaning a block that is all valid.
        if here.fewest >= pages as usize {
            return None;
        }
        match self.cleaning {
            Cleaning::Greedy => lists.get(here.fewest).copied(),
            Cleaning::CostBenefit => {
                let mut best: Option<(f64, u32)> = None;
                for (valid, &first) in lists.iter().enumerate().take(pages as usize).skip(here.fewest) {
                    let mut block = first;
                    while block != NONE {
                        let used = valid as f64 / f64::from(pages);
                        let age = (here.programs - self.written[block as usize]) as f64;
                        let score = if valid == 0 { f64::INFINITY } else { (1.0 - used) * age / (2.0 * used) };
                        if best.is_none_or(|(most, _)| score > most) {
                            best = Some((score, block));
                        }
                        block = self.blocks[block as usize].after;
                    }
                }
                best.map(|(_, block)| block)
            }
        }
    }

    /// Cleans one block of a die; `false` if none is worth it.
    fn clean(&mut self, die: u32, now_ns: u64, counters: &mut Counters) -> bool {
        let Some(victim) = self.victim(die) else { return false };
        self.unlink(die, victim);
        let first = victim * self.nand.pages_per_block;
        let words = victim as usize * self.words_per_block;
        for word in words..words + self.words_per_block {
            while self.is_valid[word] != 0 {
                let page = (word - words) as u32 * u64::BITS + self.is_valid[word].trailing_zeros();
                let Some((block, to)) = self.next_page(die, true) else {
                    self.link(die, victim);
                    return false;
                };
                self.is_valid[word] &= self.is_valid[word] - 1;
                self.blocks[victim as usize].valid -= 1;
                self.place(die, u64::from(self.owner[(first + page) as usize]), block, to);
                self.nand.copy(block, to, now_ns);
                counters.copies += 1;
                counters.programs += 1;
            }
        }
        counters.erases += 1;
        if self.nand.erase(victim, now_ns) {
            self.dies[die as usize].free.push_back(victim);
        } else {
            counters.bad_blocks += 1;
        }
        true
    }

    /// Programs a logical page; answers when that is done.
    fn write_page(&mut self, logical: u64, begin_ns: u64, counters: &mut Counters) -> u64 {
        let die = self.die_of(logical);
        while self.dies[die as usize].open.block == NONE
            && self.dies[die as usize].free.len() <= RESERVE
            && self.clean(die, begin_ns, counters)
        {}
        // The old place goes first, while the block that is being filled is still known as such.
        let here = &self.dies[die as usize];
        if here.open.block != NONE || !here.free.is_empty() {
            self.invalidate(logical);
        }
        let Some((block, page)) = self.next_page(die, false) else {
            self.dies[die as usize].worn_out = true;
            return begin_ns;
        };
        counters.host_pages += 1;
        self.place(die, logical, block, page);
        counters.programs += 1;
        let operation = self.nand.program(block, page, begin_ns);
        // The next write would find no block: say so when it comes, while reads go on.
        if self.dies[die as usize].open.block == NONE && self.dies[die as usize].free.is_empty() {
            self.dies[die as usize].worn_out = self.victim(die).is_none();
        }
        operation.done_ns
    }

    /// Reads a logical page; one that was never written needs no flash.
    fn read_page(&mut self, logical: u64, begin_ns: u64) -> (u64, u64) {
        let Some(physical) = self.map[logical as usize].checked_sub(1) else { return (begin_ns, 0) };
        let (block, page) = self.nand.block_of(physical);
        let operation = self.nand.read(self.nand.die_of(block), page, begin_ns);
        (operation.done_ns, operation.busy_ns)
    }

    /// The first logical page of a write whose die takes no more.
    fn worn_out(&self, request: &Request) -> Option<u64> {
        let mut pages = request.offset / self.nand.page..(request.offset + request.len).div_ceil(self.nand.page);
        pages.end = pages.end.min(pages.start + self.dies.len() as u64);
        pages.find(|&page| self.dies[self.die_of(page) as usize].worn_out).filter(|_| request.kind == Kind::Write)
    }

    /// Room in the write buffer for one more page: when there is some.
    fn room_ns(&mut self, programmed_ns: u64) -> u64 {
        let Some(oldest) = self.buffer.get_mut(self.buffer_at) else { return programmed_ns };
        let room_ns = std::mem::replace(oldest, programmed_ns);
        self.buffer_at = (self.buffer_at + 1) % self.buffer.len();
        room_ns
    }
}

impl Ssd {
    /// The blocks of a list of full blocks, the first first.
    fn listed(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |block: u32| (block != NONE).then_some(block);
        std::iter::successors(some(first), move |&block| some(self.blocks[block as usize].after))
    }

    fn save_die(&self, die: &Die, full: &[u32], to: &mut dyn Write) -> io::Result<()> {
        for front in [die.open, die.moving] {
            put(to, u64::from(front.block))?;
            put(to, u64::from(front.page))?;
        }
        put(to, die.programs)?;
        put(to, u64::from(die.worn_out))?;
        put_list(to, &die.free.iter().copied().collect::<Vec<_>>())?;
        put_list(to, &full.iter().flat_map(|first| self.listed(*first)).collect::<Vec<_>>())
    }

    fn restore_die(&mut self, die: u32, placed: &mut Placed, from: &mut dyn Read) -> io::Result<()> {
        let (range, pages) = (self.nand.blocks_of(die), self.nand.pages_per_block);
        let mut front = || -> io::Result<Front> {
            let (block, page) = (take(from)?, take(from)?);
            if block != u64::from(NONE) {
                require(page < u64::from(pages), "has a block that is fuller than full")?;
                let block = u32::try_from(block).unwrap_or(NONE);
                placed.place(block, &range)?;
                let is_valid = |page: u32| {
                    let (word, bit) = self.valid_bit(block, page);
                    self.is_valid[word] & bit != 0
                };
                require(!(page as u32..pages).any(is_valid), "has a page where none was programmed yet")?;
            }
            Ok(Front { block: block as u32, page: page as u32 })
        };
        let (open, moving) = (front()?, front()?);
        let (programs, worn_out) = (take(from)?, take(from)? != 0);
        let free = take_list(from, range.len())?;
        for &block in &free {
            placed.place(block, &range)?;
            require(self.blocks[block as usize].valid == 0 && self.nand.good(block), "has a free block that is none")?;
        }
        let here = &mut self.dies[die as usize];
        (here.open, here.moving, here.programs, here.worn_out) = (open, moving, programs, worn_out);
        here.free = free.into();
        here.fewest = pages as usize + 1;
        let list = self.list(die, 0);
        self.full[list..=list + pages as usize].fill(NONE);
        let full = take_list(from, range.len())?;
        for &block in &full {
            placed.place(block, &range)?;
        }
        // The last first, as each is put before those that are there.
        full.into_iter().rev().for_each(|block| self.link(die, block));
        let lost = range.into_iter().find(|&block| self.blocks[block as usize].valid > 0 && !placed.is_placed(block));
        require(lost.is_none(), "has data in a block that is nowhere")
    }
}

impl Service for Ssd {
    fn save(&self, to: &mut dyn Write) -> io::Result<()> {
        self.nand.save(to)?;
        put_all(to, &self.map)?;
        self.written.iter().try_for_each(|&written| put(to, written))?;
        let lists = self.full.chunks(self.nand.pages_per_block as usize + 1);
        self.dies.iter().zip(lists).try_for_each(|(die, full)| self.save_die(die, full, to))
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        self.nand.restore(from)?;
        take_all(from, &mut self.map)?;
        for logical in 0..self.map.len() {
            let Some(physical) = self.map[logical].checked_sub(1) else { continue };
            let owner = self.owner.get_mut(physical as usize).ok_or_else(|| refuse("has a page behind the end"))?;
            *owner = logical as u32;
            let (block, page) = self.nand.block_of(physical);
            let (word, bit) = self.valid_bit(block, page);
            require(self.is_valid[word] & bit == 0, "has two pages at one place")?;
            require(self.nand.die_of(block) == self.die_of(logical as u64), "has a page on the wrong die")?;
            self.is_valid[word] |= bit;
            self.blocks[block as usize].valid += 1;
        }
        for block in 0..self.written.len() {
            self.written[block] = take(from)?;
        }
        let mut placed = Placed::new(self.nand.blocks());
        for die in 0..self.nand.dies {
            self.restore_die(die, &mut placed, from)?;
            let programs = self.dies[die as usize].programs;
            let blocks = self.nand.blocks_of(die);
            let newest = self.written[blocks.start as usize..blocks.end as usize].iter().max();
            require(newest.is_none_or(|&newest| newest <= programs), "has a block from the future")?;
        }
        Ok(())
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }
    fn grain(&self) -> u64 {
        crate::io::SECTOR
    }

    fn serve(&mut self, begin_ns: u64, request: &Request, counters: &mut Counters) -> Result<Split, Refused> {
        if let Some(logical) = self.worn_out(request) {
            return Err(Refused::WornOut { offset: logical * self.nand.page });
        }
        let start_ns = begin_ns + self.host.command_ns;
        let mut split = Split { overhead_ns: self.host.command_ns, ..Split::default() };
        let (first, end) = (request.offset / self.nand.page, (request.offset + request.len).div_ceil(self.nand.page));
        let (mut done_ns, mut busy_ns) = (start_ns, 0);
        match request.kind {
            Kind::Read => {
                for logical in first..end {
                    let (page_ns, page_busy_ns) = self.read_page(logical, start_ns);
                    done_ns = done_ns.max(page_ns);
                    busy_ns = busy_ns.max(page_busy_ns);
                }
                let (crossed_ns, crossing_ns) = self.host.cross(request.len, start_ns, done_ns);
                done_ns = crossed_ns;
                busy_ns += crossing_ns;
            }
            Kind::Write => {
                let (arrived_ns, crossing_ns) = self.host.cross(request.len, start_ns, start_ns);
                (done_ns, busy_ns) = (arrived_ns, crossing_ns);
                for logical in first..end {
                    let whole = logical * self.nand.page >= request.offset
                        && (logical + 1) * self.nand.page <= request.offset + request.len;
                    // Part of a page: the rest is read first.
                    let from_ns = if whole { arrived_ns } else { self.read_page(logical, arrived_ns).0 };
                    let programmed_ns = self.write_page(logical, from_ns, counters);
                    let room_ns = self.room_ns(programmed_ns);
                    done_ns = done_ns.max(if request.fua { programmed_ns } else { room_ns });
                }
            }
            Kind::Flush => done_ns = done_ns.max(self.nand.all_done_ns()),
            Kind::Discard => {
                let whole = request.offset.div_ceil(self.nand.page)..(request.offset + request.len) / self.nand.page;
                whole.for_each(|logical| self.invalidate(logical));
            }
        }
        split.transfer_ns = busy_ns.min(done_ns - start_ns);
        split.queue_ns = done_ns - start_ns - split.transfer_ns;
        Ok(split)
    }
}

model_by_service!(PageMapped);
