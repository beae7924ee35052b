//! Pages of files: read (`filemap_read`), written, cut.

use super::super::readahead::Fetch;
use super::super::units;
use super::{Change, Linux, Op, Step, WINDOWS_MAX};
use crate::predict::tree::BLOCK;

impl Linux {
    pub(super) fn read(&mut self, step: &mut Step) {
        let blocks = units(step.offset, step.done, BLOCK);
        // What is asked for behind the end counts for the size of windows, and is not read.
        let asked = units(step.offset, step.len.max(step.done), BLOCK).end;
        let last = step.size.div_ceil(BLOCK);
        if self.windows.len() > WINDOWS_MAX {
            self.windows.clear();
        }
        let mut window = self.windows.get(&step.file).copied().unwrap_or_default();
        let (inode, ahead) = (step.inode, self.memory.ahead);
        let (mut hits, mut misses) = (0, 0);
        for block in blocks.clone() {
            if self.has(inode, block) {
                hits += 1;
            } else {
                let fetch = window.miss(block, asked - block, ahead, |most| self.before(inode, block, most));
                misses += self.fetch(inode, fetch, last)
                    + self.fetch(inode, Fetch { from: block, count: 1, mark: None }, last);
            }
            if self.take_mark(inode, block)
                && let Some(fetch) = window.hit(block, asked - block, ahead, |most| {
                    (block + 1..=block + most).find(|at| !self.has(inode, *at))
                })
            {
                misses += self.fetch(inode, fetch, last);
            }
            if block > blocks.start || !window.is_same_page(step.offset) {
                self.touch(inode, block);
            }
        }
        if step.done > 0 {
            window.read(step.offset.saturating_add(step.done));
        }
        (step.hits, step.misses) = (hits, misses.saturating_sub(step.holes));
        self.windows.insert(step.file, window);
    }

    /// Pages directly before a block that are there, at most so many.
    fn before(&self, inode: u64, block: u64, most: u64) -> u64 {
        (1..=most.min(block)).take_while(|back| self.has(inode, block - back)).count() as u64
    }

    /// Pages come in, as far as the file has them and they are not there; returns how many.
    fn fetch(&mut self, inode: u64, fetch: Fetch, last: u64) -> u64 {
        let end = fetch.from.saturating_add(fetch.count).min(last);
        let added = (fetch.from..end).filter(|page| self.add(inode, *page)).count() as u64;
        if let Some(mark) = fetch.mark {
            self.mark(inode, mark);
        }
        self.counts.pages_fetched += added;
        added
    }

    pub(super) fn write(&mut self, step: &mut Step, now_ns: u64) {
        let blocks = units(step.offset, step.done, BLOCK);
        let end = step.offset.saturating_add(step.done);
        let old_end = step.size.div_ceil(BLOCK);
        for block in blocks.clone() {
            let has = self.has(step.inode, block);
            step.hits += u64::from(has);
            let whole = step.offset <= block * BLOCK && (end >= (block + 1) * BLOCK || end >= step.size);
            // What is new needs no reading; nor does what is behind the end.
            if !has && !whole && block < old_end && step.fresh < blocks.end - blocks.start {
                step.partial += 1;
            }
            // Writing marks no page as used.
            self.add(step.inode, block);
        }
        step.held_up_ns = self.dirty.write(step.inode, blocks, now_ns);
        self.counts.blocks_written += self.dirty.take_forced();
        self.written.insert(step.file);
        self.dirty.changed(step.inode, if step.fresh > 0 || end > step.size { Change::Grown } else { Change::Over });
        if step.durable {
            self.sync(step);
        }
    }

    pub(super) fn cut(&mut self, step: &mut Step) {
        let (first, last) = (0, step.size.saturating_sub(1) / BLOCK);
        let known = self.inode_slots.contains_key(&step.inode);
        step.held_whole = known && (step.size == 0 || self.has(step.inode, first) && self.has(step.inode, last));
        let from = step.offset.div_ceil(BLOCK);
        step.dirty = self.dirty.cut(step.inode, from);
        self.counts.blocks_absorbed += step.dirty;
        self.drop_pages(step.inode, from);
        if !matches!(step.op, Some(Op::Open | Op::Truncate)) {
            self.dirty.forget(step.inode);
            self.drop_inode(step.inode);
        } else if !step.offset.is_multiple_of(BLOCK) {
            // The rest of the last block is filled with zeros.
            self.add(step.inode, step.offset / BLOCK);
        }
    }
}
