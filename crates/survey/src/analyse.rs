//! One stretch of bytes, looked at in every way at once.
//!
//! A chunk belongs to the stretch in which it begins, and the last one is read to its end, beyond the stretch; so of the
//! chunks of a file each belongs to exactly one stretch, whatever its length, and so does each block of a fixed size. Where
//! content-defined chunks begin in the middle of a file depends on those before, so some of the data before the stretch are
//! read too: cuts that begin anywhere meet those of the whole file after a chunk or two.

use crate::chunk::cdc::{Cutter, Params};
use crate::chunk::fixed::{BLOCK, Block, Joiner, block};
use crate::chunk::{Chunking, Digests, digest, gear, is_zero};
use crate::compress::{Packed, Packer, Study};
use crate::sample::mix;
use std::collections::BTreeSet;
use std::io;

/// Bytes that are read at once from what is near: they are still in the processor's cache when they are digested.
pub const READ: u64 = 256 << 10;
/// Bytes that are read at once beyond the end, for the last chunks.
const READ_ON: usize = 64 << 10;

/// Of the blocks that are compressed, one in so many is at all levels, and back.
const ALL_EVERY: u64 = 4;

/// So many mean lengths before a stretch cuts begin. Of random bytes in stretches of two mean lengths 0.6 % are then in chunks
/// that are none of the whole; with two lengths 2 %, with one 12 %, and without a lead 15 %, and 22 % are in none at all.
const LEAD: u64 = 3;
/// Pieces without a cut that show that a run of bytes has none, such as zeros: random bytes have so many in a row once in 2^28.
const CUTLESS: usize = 5;
/// Mean lengths of the longest content-defined chunks in which most that are under way end.
const TAIL: u64 = 2;

/// What to look at.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The chunkings.
    pub chunkings: Vec<Chunking>,
    /// Bytes that are read at once.
    pub read: u64,
    /// For each chunking: one chunk in so many is compressed, by its digest: the same for equal chunks. None if zero, or not
    /// there.
    pub pack_every: Vec<u64>,
    /// One 64 KiB in so many is compressed, some of these at several levels, and its entropy taken. None if zero.
    pub study_every: u64,
}

impl Plan {
    /// Bytes before a stretch that are read to know where its chunks begin.
    pub fn lead(&self) -> u64 {
        let longest = self.longest();
        if longest == 0 { 0 } else { (LEAD * longest).max(((CUTLESS + 1) * gear::PIECE_MAX) as u64) }
    }

    /// Bytes behind a stretch where most of its last chunks end.
    pub fn tail(&self) -> u64 {
        TAIL * self.longest()
    }

    /// The longest mean of content-defined chunks.
    fn longest(&self) -> u64 {
        let mean = |chunking: &Chunking| match *chunking {
            Chunking::Fixed(_) => 0,
            Chunking::Cdc(mean) => u64::from(mean),
        };
        self.chunkings.iter().map(mean).max().unwrap_or(0)
    }
}

/// A chunk that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its digest.
    pub value: u64,
    /// Its bytes.
    pub len: u32,
}

/// What a stretch holds.
#[derive(Default, Debug)]
pub struct Outcome {
    /// Bytes of data in it: holes do not count.
    pub logical: u64,
    /// Bytes that were read for it, more than once where it ends within a chunk.
    pub read: u64,
    /// For each chunking.
    pub chunks: Vec<Chunks>,
    /// Chunks that were compressed.
    pub packed: Vec<(usize, Packed)>,
    /// What compressing at several levels gave.
    pub study: Study,
}

/// Chunks of one kind in a stretch.
#[derive(Default, Clone, Debug)]
pub struct Chunks {
    /// Those that are not all zeros.
    pub found: Vec<Found>,
    /// Bytes of all of them, those of zeros included.
    pub bytes: u64,
    /// Bytes of zeros.
    pub zero: u64,
    /// Lengths of chunks of zeros: each is a chunk of its own.
    pub zero_lens: BTreeSet<u32>,
}

impl Chunks {
    fn add_zeros(&mut self, len: u32) {
        self.zero += u64::from(len);
        self.zero_lens.insert(len);
    }
}

/// Reads at an offset; returns fewer bytes only at the end.
pub trait ReadAt {
    /// Fills `to` from `offset` on as far as there is something.
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize>;

    /// Says what will be read soon.
    fn announce(&self, _offset: u64, _len: u64) {}
}

/// A stretch of a file without holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First byte, a multiple of 4 KiB.
    pub from: u64,
    /// Chunks that begin from here on are not its own.
    pub to: u64,
    /// Where the data end: the end of the file, or a hole.
    pub data_end: u64,
    /// Data are readable from here on, or from further before; not beyond `from`.
    pub data_begin: u64,
    /// They begin there: nothing is before, or a hole is.
    pub begins: bool,
    /// Decides which blocks are studied.
    pub salt: u64,
}

/// Looks at stretches; reused, since its buffers are large.
pub struct Analyser {
    plan: Plan,
    window: Window,
    /// Where reading goes on.
    reached: u64,
    packer: Packer,
}

/// Bytes of a file that are at hand: from one offset up to another. Its memory is used again without being cleared.
#[derive(Default)]
struct Window {
    memory: Vec<u8>,
    /// Where in memory the first byte is.
    begin: usize,
    /// Behind the last one.
    end: usize,
    /// Offset in the file of the first byte.
    base: u64,
}

impl Window {
    /// Empties it; what is appended next is at `base`.
    fn restart(&mut self, base: u64) {
        *self = Window { memory: std::mem::take(&mut self.memory), begin: 0, end: 0, base };
    }

    /// Room for `len` bytes behind the last one. It has them after [`Window::append`].
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.end + len > self.memory.len() {
            self.memory.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            let needed = self.end + len;
            if needed > self.memory.len() {
                self.memory.resize(needed.next_multiple_of(READ as usize), 0);
            }
        }
        &mut self.memory[self.end..self.end + len]
    }

    /// The first so many bytes of the room are there.
    fn append(&mut self, len: usize) {
        self.end += len;
    }

    /// Drops what is before an offset.
    fn forget(&mut self, offset: u64) {
        let gone = (offset.saturating_sub(self.base) as usize).min(self.end - self.begin);
        self.begin += gone;
        self.base += gone as u64;
        if self.begin == self.end {
            // What comes next goes where the processor's cache still is.
            (self.begin, self.end) = (0, 0);
        }
    }

    /// All bytes from an offset on; none if it is not at hand.
    fn rest(&self, offset: u64) -> &[u8] {
        let bytes = &self.memory[self.begin..self.end];
        offset.checked_sub(self.base).and_then(|from| bytes.get(from as usize..)).unwrap_or_default()
    }

    /// So many bytes from an offset on; none if not all of them are at hand.
    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        self.rest(offset).get(..len as usize).unwrap_or_default()
    }
}

struct Fixed {
    index: usize,
    start: u64,
    /// The last block ends here.
    end: u64,
    joiner: Joiner,
    /// The first block began before the stretch, with bytes that are not known.
    torn: bool,
}

struct Defined {
    index: usize,
    cutter: Cutter,
    /// Where the chunk under way begins.
    start: u64,
    /// Its pieces: digests and lengths.
    pieces: Vec<(u64, u32)>,
    /// A cut was met, or it does not matter where chunks begin.
    synchronised: bool,
    /// Pieces since the last cut of any level.
    cutless: usize,
    /// The last chunk, if it ended for its length alone.
    forced: Option<u64>,
}

impl Defined {
    /// In a run without any cut, as of zeros, all longest chunks are equal wherever they begin. Of the whole file nobody knows where
    /// without reading from its beginning, so they begin at multiples of their length, in each stretch of the run.
    fn begin_in_run(&mut self, at: u64) {
        if !self.synchronised && self.cutless >= CUTLESS {
            let before = at % u64::from(self.cutter.longest());
            self.start = at - before;
            self.cutter.restart(before as u32);
            self.pieces.clear();
            self.pieces.extend((before > 0).then_some((0, before as u32)));
            self.synchronised = true;
        }
    }
}

impl Analyser {
    /// An analyser with empty buffers.
    pub fn new(plan: &Plan) -> Analyser {
        Analyser { plan: plan.clone(), window: Window::default(), reached: 0, packer: Packer::new() }
    }

    /// Looks at a stretch and adds what it finds to `outcome`. Where reading fails it ends, and [`Analyser::reached`] says
    /// where: all before counts, but for chunks that go on there, which nobody knows.
    pub fn stretch(&mut self, from: &mut impl ReadAt, stretch: &Stretch, outcome: &mut Outcome) -> io::Result<()> {
        outcome.chunks.resize(self.plan.chunkings.len(), Chunks::default());
        let begin = stretch.data_begin.max(stretch.from.saturating_sub(self.plan.lead()));
        let (mut fixed, mut defined) = (Vec::new(), Vec::new());
        for (index, chunking) in self.plan.chunkings.iter().enumerate() {
            match *chunking {
                Chunking::Fixed(bytes) => {
                    let whole = stretch.begins && stretch.from == stretch.data_begin;
                    let torn = !whole && !stretch.from.is_multiple_of(u64::from(bytes));
                    let joiner = Joiner::within(bytes, stretch.from);
                    let begins = whole || stretch.from.next_multiple_of(u64::from(bytes)) < stretch.to;
                    let end = if begins { stretch.to.next_multiple_of(u64::from(bytes)) } else { stretch.to };
                    let end = end.min(stretch.data_end);
                    fixed.push(Fixed { index, start: stretch.from, end, joiner, torn });
                }
                Chunking::Cdc(mean) => defined.push(Defined {
                    index,
                    cutter: Cutter::new(Params::fast(mean)),
                    start: begin,
                    pieces: Vec::new(),
                    synchronised: stretch.begins && begin == stretch.data_begin,
                    cutless: 0,
                    forced: None,
                }),
            }
        }
        let mut piece_at = self.lead(from, begin, &mut defined, stretch, outcome);
        let (mut next, mut data_end) = (stretch.from, stretch.data_end);
        let blocks_end = fixed.iter().map(|blocks| blocks.end).max().unwrap_or(stretch.to);
        let on = |defined: &[Defined]| defined.iter().any(|chunks| chunks.start < stretch.to);
        while next < data_end && (next < stretch.to.max(blocks_end) || on(&defined)) {
            let step = match () {
                () if next < stretch.to => (stretch.to - next).min(self.plan.read),
                () if next < blocks_end => (blocks_end - next).min(self.plan.read),
                () => READ_ON as u64,
            };
            self.reached = next;
            let (got, failed) = self.fill(from, next, step.min(data_end - next) as usize);
            if got == 0 && failed.is_none() {
                // It became shorter.
                data_end = next;
                break;
            }
            outcome.read += got as u64;
            let end = next + got as u64;
            outcome.logical += end.min(stretch.to).saturating_sub(next);
            let looked = end.min(blocks_end);
            if next < looked {
                self.blocks(&mut fixed, next, looked, stretch, outcome);
                if failed.is_none() && looked == blocks_end.min(data_end) {
                    // Here, while their bytes are at hand.
                    self.finish_blocks(&mut fixed, outcome);
                }
            }
            next = end;
            let under_way = fixed.iter().filter(|blocks| blocks.start < blocks.end).map(|blocks| blocks.start).min();
            let mut needed = under_way.unwrap_or(next);
            if !defined.is_empty() {
                let ends = next == data_end && failed.is_none();
                piece_at = self.pieces(&mut defined, piece_at, ends, stretch, outcome);
                needed = defined.iter().map(|chunks| chunks.start).min().unwrap_or(next).min(piece_at).min(needed);
            }
            self.window.forget(needed);
            if let Some(error) = failed {
                return Err(error);
            }
        }
        self.finish_blocks(&mut fixed, outcome);
        if data_end < stretch.data_end && !defined.is_empty() {
            self.pieces(&mut defined, piece_at, true, stretch, outcome);
        }
        Ok(())
    }

    /// Reads from `begin` to the stretch, to learn where its chunks begin; returns where the next piece begins.
    fn lead(
        &mut self,
        from: &mut impl ReadAt,
        begin: u64,
        defined: &mut [Defined],
        stretch: &Stretch,
        outcome: &mut Outcome,
    ) -> u64 {
        self.window.restart(begin);
        let len = (stretch.from - begin) as usize;
        let (got, _) = self.fill(from, begin, len);
        outcome.read += got as u64;
        if got == len {
            let next = self.pieces(defined, begin, false, stretch, outcome);
            defined.iter_mut().for_each(|defined| defined.begin_in_run(next));
            return next;
        }
        // It cannot be read, or is gone: chunks count from the first cut on.
        self.window.restart(stretch.from);
        for defined in defined {
            (defined.start, defined.synchronised) = (stretch.from, false);
        }
        stretch.from
    }

    /// What failed, if something did; else where the last read began.
    pub fn reached(&self) -> u64 {
        self.reached
    }

    /// Appends to the window what is at `offset`. After an error whole blocks of 4 KiB remain of what was before.
    fn fill(&mut self, from: &mut impl ReadAt, offset: u64, len: usize) -> (usize, Option<io::Error>) {
        let room = self.window.room(len);
        let (mut got, mut failed) = (0, None);
        while got < len {
            match from.read_at(offset + got as u64, &mut room[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.reached = offset + got as u64;
                    got -= ((offset + got as u64) % BLOCK as u64).min(got as u64) as usize;
                    failed = Some(error);
                    break;
                }
            }
        }
        self.window.append(got);
        (got, failed)
    }

    fn blocks(&mut self, fixed: &mut [Fixed], from: u64, to: u64, stretch: &Stretch, outcome: &mut Outcome) {
        let mut at = from;
        while at < to {
            let len = (to - at).min(BLOCK as u64);
            let every = self.plan.study_every;
            let studied = every > 0 && at < stretch.to && at.is_multiple_of(Study::BLOCK as u64);
            let draw = mix(stretch.salt, at);
            if studied && draw.is_multiple_of(every) {
                let len = (to.min(stretch.to) - at).min(Study::BLOCK as u64) as u32;
                // Of few blocks all.
                let all = every == 1 || (draw / every).is_multiple_of(ALL_EVERY);
                self.packer.study(self.window.bytes(at, len), all, &mut outcome.study);
            }
            if !fixed.is_empty() {
                let block = block(self.window.bytes(at, len as u32));
                for fixed in fixed.iter_mut().filter(|fixed| at < fixed.end) {
                    if let Some(block) = fixed.joiner.push(block) {
                        self.add_block(fixed, &block, outcome);
                    }
                }
            }
            at += len;
        }
    }

    fn finish_blocks(&mut self, fixed: &mut [Fixed], outcome: &mut Outcome) {
        for fixed in fixed {
            if let Some(block) = fixed.joiner.finish() {
                self.add_block(fixed, &block, outcome);
            }
        }
    }

    fn add_block(&mut self, fixed: &mut Fixed, block: &Block, outcome: &mut Outcome) {
        let (index, start) = (fixed.index, fixed.start);
        fixed.start += u64::from(block.len);
        if std::mem::take(&mut fixed.torn) {
            return;
        }
        let chunks = &mut outcome.chunks[index];
        chunks.bytes += u64::from(block.len);
        if block.zero {
            chunks.add_zeros(block.len);
            return;
        }
        chunks.found.push(Found { value: block.digest, len: block.len });
        self.pack(index, start, block.digest, block.len, outcome);
    }

    fn pack(&mut self, index: usize, start: u64, value: u64, len: u32, outcome: &mut Outcome) {
        let every = self.plan.pack_every.get(index).copied().unwrap_or(0);
        if every == 0 || !(value >> 7).is_multiple_of(every) {
            return;
        }
        let bytes = self.window.bytes(start, len);
        if !bytes.is_empty() {
            outcome.packed.push((index, self.packer.pack(value, bytes)));
        }
    }

    /// Cuts pieces from `at` on; returns where the next one begins.
    fn pieces(&mut self, all: &mut [Defined], at: u64, ends: bool, stretch: &Stretch, outcome: &mut Outcome) -> u64 {
        let mut at = at;
        loop {
            let rest = self.window.rest(at);
            if rest.is_empty() || rest.len() < gear::PIECE_MAX && !ends {
                break;
            }
            let (len, level) = gear::first_piece(rest);
            let value = digest(&rest[..len]);
            at += len as u64;
            for defined in &mut *all {
                defined.pieces.push((value, len as u32));
                defined.cutless = if level == 0 { defined.cutless + 1 } else { 0 };
                let mut cuts = [(0u32, false); 8];
                let mut count = 0;
                defined.cutter.push(len as u32, level, |len, natural| {
                    if let Some(cut) = cuts.get_mut(count) {
                        *cut = (len, natural);
                        count += 1;
                    }
                });
                for &(len, natural) in cuts.iter().take(count) {
                    self.add_defined(defined, len, natural, stretch, outcome);
                }
            }
        }
        if ends {
            for defined in all {
                if let Some(len) = defined.cutter.finish() {
                    self.add_defined(defined, len, true, stretch, outcome);
                }
                defined.start = stretch.to;
            }
        }
        at
    }

    fn add_defined(
        &mut self,
        defined: &mut Defined,
        len: u32,
        natural: bool,
        stretch: &Stretch,
        outcome: &mut Outcome,
    ) {
        let (mut digests, mut sum, mut count) = (Digests::default(), 0, 0);
        for (value, piece) in &defined.pieces {
            if sum >= len {
                break;
            }
            digests.push(*value);
            sum += piece;
            count += 1;
        }
        defined.pieces.drain(..count);
        let start = defined.start;
        defined.start += u64::from(len);
        let value = digests.take();
        let counts = defined.synchronised;
        // What repeats itself without a cut where a chunk may end does so wherever its chunks begin.
        defined.synchronised |= natural || defined.forced == Some(value);
        defined.forced = (!natural).then_some(value);
        if !counts || start < stretch.from || start >= stretch.to {
            return;
        }
        let bytes = self.window.bytes(start, len);
        let zero = bytes.first() == Some(&0) && is_zero(bytes);
        let chunks = &mut outcome.chunks[defined.index];
        chunks.bytes += u64::from(len);
        if zero {
            chunks.add_zeros(len);
            return;
        }
        chunks.found.push(Found { value, len });
        self.pack(defined.index, start, value, len, outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_fuzz::incompressible;

    impl ReadAt for &[u8] {
        fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
            let rest = self.get(offset as usize..).unwrap_or_default();
            let len = rest.len().min(to.len());
            to[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        }
    }

    fn plan(chunkings: &[Chunking]) -> Plan {
        Plan { chunkings: chunkings.to_vec(), read: READ, pack_every: Vec::new(), study_every: 0 }
    }

    #[test]
    fn stretches_of_a_file_find_what_the_whole_file_does() {
        let mut bytes = incompressible(1, 3_333_333);
        bytes[500_000..900_000].fill(0);
        let plan = plan(&Chunking::DEFAULT);
        let mut analyser = Analyser::new(&plan);
        let end = bytes.len() as u64;
        let (mut whole, mut parts) = (Outcome::default(), Outcome::default());
        let stretch = Stretch { from: 0, to: end, data_end: end, data_begin: 0, begins: true, salt: 0 };
        analyser.stretch(&mut bytes.as_slice(), &stretch, &mut whole).expect("memory");
        for from in (0..end).step_by(1 << 18) {
            let stretch =
                Stretch { from, to: (from + (1 << 18)).min(end), data_end: end, data_begin: 0, begins: true, salt: 0 };
            analyser.stretch(&mut bytes.as_slice(), &stretch, &mut parts).expect("memory");
        }
        assert_eq!((whole.logical, whole.read), (end, end));
        for (index, chunking) in plan.chunkings.iter().enumerate() {
            let (whole, parts) = (&whole.chunks[index], &parts.chunks[index]);
            assert_eq!(whole.bytes, end, "{chunking}");
            if matches!(chunking, Chunking::Fixed(_)) {
                assert_eq!((&whole.found, whole.zero), (&parts.found, parts.zero), "{chunking}");
            } else {
                // Stretches may miss a chunk each until they have met the cuts of the whole.
                let missing = whole.found.iter().filter(|found| !parts.found.contains(found)).count();
                let wrong = parts.found.iter().filter(|found| !whole.found.contains(found)).count();
                assert!(
                    missing <= 13 && wrong <= 13,
                    "{chunking}: {missing} missing, {wrong} wrong of {}",
                    whole.found.len()
                );
            }
        }
    }

    #[test]
    fn blocks_belong_to_the_stretch_in_which_they_begin() {
        let bytes = incompressible(3, 1_234_567);
        let plan = plan(&[4, 8, 64, 128].map(|kib| Chunking::Fixed(kib << 10)));
        let end = bytes.len() as u64;
        let stretch = Stretch { from: 0, to: end, data_end: end, data_begin: 0, begins: true, salt: 0 };
        let mut whole = Outcome::default();
        Analyser::new(&plan).stretch(&mut bytes.as_slice(), &stretch, &mut whole).expect("memory");
        for seed in 0..20 {
            let (mut chance, mut from, mut parts) = (ashlar_models::Chance::new(seed), 0, Outcome::default());
            while from < end {
                let to = (from + 4096 * (1 + chance.below(40))).min(end);
                let stretch = Stretch { from, to, ..stretch };
                Analyser::new(&plan).stretch(&mut bytes.as_slice(), &stretch, &mut parts).expect("memory");
                from = to;
            }
            assert_eq!(parts.logical, end);
            for (whole, parts) in whole.chunks.iter().zip(&parts.chunks) {
                assert_eq!((whole.bytes, &whole.found), (parts.bytes, &parts.found), "seed {seed}");
            }
        }
    }

    #[test]
    fn chunks_of_a_short_stretch_are_those_of_the_whole_file() {
        const UNIT: u64 = 128 << 10;
        let bytes = incompressible(7, 32 << 20);
        let mut analyser = Analyser::new(&plan(&[Chunking::Cdc(64 << 10)]));
        let end = bytes.len() as u64;
        let stretch = Stretch { from: 0, to: end, data_end: end, data_begin: 0, begins: true, salt: 0 };
        let mut whole = Outcome::default();
        analyser.stretch(&mut bytes.as_slice(), &stretch, &mut whole).expect("memory");
        let known: BTreeSet<u64> = whole.chunks[0].found.iter().map(|found| found.value).collect();
        let (mut counted, mut wrong) = (0, 0);
        for from in (0..end).step_by(UNIT as usize) {
            let stretch = Stretch { from, to: from + UNIT, ..stretch };
            let mut part = Outcome::default();
            analyser.stretch(&mut bytes.as_slice(), &stretch, &mut part).expect("memory");
            counted += part.chunks[0].bytes;
            let foreign = part.chunks[0].found.iter().filter(|found| !known.contains(&found.value));
            wrong += foreign.map(|found| u64::from(found.len)).sum::<u64>();
        }
        let (counted, wrong) = (counted as f64 / end as f64, wrong as f64 / end as f64);
        assert!((counted - 1.0).abs() < 0.01 && wrong < 0.01, "counted {counted}, wrong {wrong}");
    }

    #[test]
    fn runs_without_cuts_are_found_in_each_stretch() {
        let period: Vec<u8> = (0..4 << 20).map(|at: u32| (at % 4 + 7) as u8).collect();
        let random = |seed| incompressible(seed, 1 << 20);
        let parts = [
            random(1),
            vec![0; 40 << 20],
            random(2),
            vec![65; 8 << 20],
            random(3),
            period,
            random(4),
            vec![0; 4 << 20],
        ];
        let bytes = parts.concat();
        let end = bytes.len() as u64;
        let chunkings = [Chunking::Cdc(8 << 10), Chunking::Cdc(64 << 10)];
        let mut analyser = Analyser::new(&plan(&chunkings));
        let whole = Stretch { from: 0, to: end, data_end: end, data_begin: 0, begins: true, salt: 0 };
        let mut found = |unit: u64| {
            let mut outcome = Outcome::default();
            for from in (0..end).step_by(unit as usize) {
                let stretch = Stretch { from, to: (from + unit).min(end), ..whole };
                analyser.stretch(&mut bytes.as_slice(), &stretch, &mut outcome).expect("memory");
            }
            outcome
                .chunks
                .iter()
                .map(|chunks| {
                    let distinct: BTreeSet<_> = chunks.found.iter().map(|found| (found.value, found.len)).collect();
                    let stored: u64 = distinct.iter().map(|(_, len)| u64::from(*len)).sum();
                    [chunks.bytes, chunks.zero, stored].map(|bytes| bytes as f64 / end as f64)
                })
                .collect::<Vec<_>>()
        };
        let expected = found(end);
        assert!(
            expected.iter().all(|[bytes, zero, stored]| *bytes == 1.0 && *zero > 0.7 && *stored < 0.12),
            "{expected:?}"
        );
        for unit in [32 << 10, 128 << 10, 1 << 20, 16 << 20] {
            for (found, expected) in found(unit).iter().zip(&expected) {
                let off =
                    found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
                assert!(off < 0.02, "{unit}: {found:?} and not {expected:?}");
            }
        }
    }

    #[test]
    fn blocks_are_those_of_the_bytes() {
        let bytes = [
            incompressible(1, 4096),
            incompressible(2, 4096),
            incompressible(1, 4096),
            vec![0; 4096],
            incompressible(3, 10),
        ]
        .concat();
        let plan = plan(&[Chunking::Fixed(4096)]);
        let mut outcome = Outcome::default();
        let end = bytes.len() as u64;
        let stretch = Stretch { from: 0, to: end, data_end: end, data_begin: 0, begins: true, salt: 0 };
        Analyser::new(&plan).stretch(&mut bytes.as_slice(), &stretch, &mut outcome).expect("memory");
        let chunks = &outcome.chunks[0];
        assert_eq!((chunks.bytes, chunks.zero, chunks.found.len()), (end, 4096, 4));
        assert_eq!(chunks.found[0], chunks.found[2]);
        assert_ne!(chunks.found[0], chunks.found[1]);
        assert_eq!(chunks.found[3], Found { value: digest(&bytes[16384..]), len: 10 });
    }

    #[test]
    fn a_file_that_became_shorter_ends_where_it_ends() {
        let bytes = incompressible(1, 100_000);
        let plan = plan(&Chunking::DEFAULT);
        let mut outcome = Outcome::default();
        let stretch = Stretch { from: 0, to: 1 << 20, data_end: 1 << 20, data_begin: 0, begins: true, salt: 0 };
        Analyser::new(&plan).stretch(&mut bytes.as_slice(), &stretch, &mut outcome).expect("memory");
        assert_eq!(outcome.logical, 100_000);
        assert!(outcome.chunks.iter().all(|chunks| chunks.bytes == 100_000));
    }
}
