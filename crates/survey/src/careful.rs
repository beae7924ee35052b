//! Reading where a device is damaged: large reads that fail are tried again in smaller pieces, down to the device's block,
//! so that only what is damaged is missing, and it is known to the byte.

use crate::analyse::{Analyser, Outcome, ReadAt, Stretch};
use crate::chunk::fixed;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Blocks of a unit that are tried one by one and fail, before the rest of it is passed over: a dead device must not hold
/// a scan up for ever.
const FAILING_MAX: u32 = 4096;
/// The smallest blocks that are looked at: what is left of one is of no use.
const SMALLEST: u64 = fixed::BLOCK as u64;
/// Largest block of a device.
const BLOCK_MAX: usize = 4096;
/// `O_DIRECT`: past the page cache, which reads whole pages where the device has smaller blocks.
const DIRECT: i32 = 0o40_000;
/// `O_NONBLOCK`: who opens a pipe that took a file's place does not wait for a writer.
const NONBLOCK: i32 = 0o4_000;

/// A range that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What the system said.
    pub what: String,
}

/// Reads as much as can be read: fails only where the block at the very offset does.
pub struct Careful<R> {
    /// Who reads.
    pub inner: R,
    /// Bytes that fail together.
    pub block: u64,
}

impl<R: ReadAt> ReadAt for Careful<R> {
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let mut len = to.len();
        loop {
            match self.inner.read_at(offset, &mut to[..len]) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted && len as u64 > self.block => {
                    len = len.div_ceil(2).next_multiple_of(self.block as usize).min(len - 1);
                }
                done => return done,
            }
        }
    }
}

/// Looks at all of a stretch that can be read. Gives what could not.
pub fn stretch<R: ReadAt>(
    analyser: &mut Analyser,
    from: &mut Careful<R>,
    stretch: &Stretch,
    outcome: &mut Outcome,
) -> Vec<Damage> {
    let mut damages: Vec<Damage> = Vec::new();
    let mut stretch = *stretch;
    let mut tries = FAILING_MAX;
    while let Err(error) = analyser.stretch(from, &stretch, outcome) {
        let at = analyser.reached();
        let limit = stretch.to.min(stretch.data_end).max(at + 1);
        stretch.from = from.probe(at, limit, &error.to_string(), &mut tries, &mut damages).next_multiple_of(SMALLEST);
        (stretch.data_begin, stretch.begins) = (stretch.from, false);
        if stretch.from >= limit {
            break;
        }
    }
    damages
}

impl<R: ReadAt> Careful<R> {
    /// Tries block after block from one on that failed, until there is one that does not and that a block of 4 KiB begins
    /// with. Gives where.
    fn probe(&mut self, at: u64, limit: u64, what: &str, tries: &mut u32, damages: &mut Vec<Damage>) -> u64 {
        let mut block = vec![0; self.block.min(limit - at) as usize];
        let (mut at, mut failed) = (at, true);
        while at < limit {
            let end = (at / self.block + 1).saturating_mul(self.block).min(limit);
            match damages.last_mut() {
                Some(last) if failed && last.offset + last.len == at && last.what == what => last.len += end - at,
                _ if failed => damages.push(Damage { offset: at, len: end - at, what: what.to_string() }),
                _ => {}
            }
            *tries = tries.saturating_sub(u32::from(failed));
            at = end;
            if *tries == 0 && at < limit {
                let what = format!("not tried, since {FAILING_MAX} blocks before it failed");
                damages.push(Damage { offset: at, len: limit - at, what });
                return limit;
            }
            failed = at < limit && self.inner.read_at(at, &mut block).is_err();
            if !failed && at.is_multiple_of(SMALLEST) {
                break;
            }
        }
        at
    }
}

/// A block, placed in memory as reads past the page cache want it.
#[repr(align(4096))]
struct Page([u8; BLOCK_MAX]);

/// Reads single blocks past the page cache.
pub struct Direct {
    file: File,
    page: Box<Page>,
}

impl Direct {
    /// The same file once more; `None` where the file system reads through its cache alone.
    pub fn open(file: &File) -> Option<Direct> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = OpenOptions::new().read(true).custom_flags(DIRECT | NONBLOCK).open(path).ok()?;
        Some(Direct { file, page: Box::new(Page([0; BLOCK_MAX])) })
    }

    /// Reads a block of the device.
    pub fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let page = self.page.0.get_mut(..to.len()).ok_or(io::ErrorKind::InvalidInput)?;
        let len = self.file.read_at(page, offset)?;
        to[..len].copy_from_slice(&page[..len]);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::{Plan, READ};
    use crate::chunk::Chunking;
    use ashlar_fuzz::incompressible;
    use proptest::prelude::*;
    use proptest::test_runner::{RngSeed, TestRunner};
    use std::collections::HashSet;

    /// Bytes of which some blocks of 512 fail, each for itself or with its neighbours, as the kernel likes it.
    struct Faulty<'a> {
        bytes: &'a [u8],
        bad: &'a HashSet<u64>,
        /// Reads give what is before the first bad block instead of an error.
        short: bool,
    }

    impl ReadAt for Faulty<'_> {
        fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
            let end = (offset + to.len() as u64).min(self.bytes.len() as u64);
            let first = (offset / 512..end.div_ceil(512)).find(|block| self.bad.contains(block));
            let len = match first {
                Some(bad) if self.short && bad * 512 > offset => bad * 512 - offset,
                Some(_) => return Err(io::Error::other("bad block")),
                None => end.saturating_sub(offset),
            };
            let mut whole = self.bytes;
            whole.read_at(offset, &mut to[..len as usize])
        }
    }

    fn plan() -> Plan {
        let chunkings = vec![Chunking::Fixed(4096), Chunking::Fixed(65_536), Chunking::Cdc(8192)];
        Plan { chunkings, read: READ, pack_every: Vec::new(), study_every: 0 }
    }

    /// What was read of random bytes around bad blocks, and what there is.
    struct Around {
        end: u64,
        bad: HashSet<u64>,
        damages: Vec<Damage>,
        all: Outcome,
        found: Outcome,
    }

    impl Around {
        /// `bad` blocks fail, and a run of them in the middle.
        fn new(seed: u64, short: bool, bad: HashSet<u64>, run: u64) -> Around {
            let bytes = incompressible(seed, 1_500_000);
            let end = bytes.len() as u64;
            let mut bad = bad;
            bad.retain(|block| block * 512 < end);
            bad.extend(2000..2000 + run);
            let whole = Stretch { from: 0, to: end, data_end: end, data_begin: 0, begins: true, salt: 0 };
            let (mut all, mut found) = (Outcome::default(), Outcome::default());
            let mut analyser = Analyser::new(&plan());
            analyser.stretch(&mut bytes.as_slice(), &whole, &mut all).expect("memory");
            let mut reader = Careful { inner: Faulty { bytes: &bytes, bad: &bad, short }, block: 512 };
            let damages = stretch(&mut analyser, &mut reader, &whole, &mut found);
            Around { end, bad, damages, all, found }
        }

        /// Of each content-defined chunk that was found, whether the whole has it.
        fn right(&self) -> Vec<bool> {
            let all: HashSet<u64> = self.all.chunks[2].found.iter().map(|chunk| chunk.value).collect();
            self.found.chunks[2].found.iter().map(|chunk| all.contains(&chunk.value)).collect()
        }
    }

    fn bad_blocks() -> impl Strategy<Value = HashSet<u64>> {
        prop::collection::hash_set(0u64..3000, 0..12)
    }

    proptest! {
        #![proptest_config(ashlar_fuzz::config(48))]

        /// Exactly the bad blocks are named, and exactly the chunks that hold one are missing.
        #[test]
        fn only_what_is_damaged_is_missing(seed in 0u64..1000, short: bool, bad in bad_blocks(), run in 0u64..300) {
            let around = Around::new(seed, short, bad, run);
            let right = around.right();
            let Around { end, bad, damages, all, found } = around;
            let named: HashSet<u64> = damages
                .iter()
                .flat_map(|damage| damage.offset / 512..(damage.offset + damage.len).div_ceil(512))
                .collect();
            prop_assert_eq!(&named, &bad);
            let pages: HashSet<u64> = bad.iter().map(|block| block / 8).collect();
            let lost: u64 = pages.iter().map(|page| (end - page * 4096).min(4096)).sum();
            prop_assert_eq!(found.logical, end - lost);
            for (index, chunking) in plan().chunkings.iter().enumerate() {
                let Chunking::Fixed(size) = *chunking else { continue };
                let mut at = 0;
                let mut rest = all.chunks[index].found.clone();
                rest.retain(|chunk| {
                    let from = at;
                    at += u64::from(chunk.len);
                    !bad.iter().any(|block| (from..at).contains(&(block * 512)))
                });
                prop_assert_eq!(&rest, &found.chunks[index].found, "blocks of {}", size);
            }
            // Of content-defined chunks those are missing that hold damage, and some behind it; once cuts are those of the whole again,
            // they stay so up to the next damage.
            let lost_again = right.windows(2).filter(|pair| pair[0] && !pair[1]).count();
            prop_assert!(lost_again <= damages.len(), "{:?} after {} damages", right, damages.len());
        }
    }

    /// How soon is chance: the bound is of these inputs, and they are the same in a soak.
    #[test]
    fn cuts_are_found_again_soon() {
        let config = ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(0), ..ashlar_fuzz::config(48) };
        let inputs = (0u64..1000, any::<bool>(), bad_blocks(), 0u64..300);
        let outcome = TestRunner::new(config).run(&inputs, |(seed, short, bad, run)| {
            let around = Around::new(seed, short, bad, run);
            let (wrong, damages) = (around.right().iter().filter(|right| !**right).count(), around.damages.len());
            prop_assert!(wrong <= 2 * damages, "{} wrong chunks after {} damages", wrong, damages);
            Ok(())
        });
        outcome.expect("cuts are found again");
    }

    #[test]
    fn a_dead_device_ends_soon() {
        let bytes = vec![7; 8 << 20];
        let bad = (0..bytes.len() as u64 / 512).collect();
        let whole = Stretch { from: 0, to: 8 << 20, data_end: 8 << 20, data_begin: 0, begins: true, salt: 0 };
        let mut outcome = Outcome::default();
        let mut reader = Careful { inner: Faulty { bytes: &bytes, bad: &bad, short: false }, block: 512 };
        let damages = stretch(&mut Analyser::new(&plan()), &mut reader, &whole, &mut outcome);
        assert_eq!(damages.iter().map(|damage| damage.len).sum::<u64>(), 8 << 20);
        assert_eq!((damages.len(), outcome.logical), (2, 0));
        assert!(damages[1].what.contains("not tried"), "{}", damages[1].what);
    }
}
