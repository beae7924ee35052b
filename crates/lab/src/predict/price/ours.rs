//! Our prices: as those of the thesis, and besides
//!
//! * what is written back is charged by distinct block and run, when it happens, and not by bytes of all calls;
//! * removing depends on the size of the file, on whether it is cached, and on whether it ever reached the disk;
//! * a block of which a part is written is read first, where it is allocated, not cached and not covered;
//! * syncs by what is not durable; writes where the file has no block apart from those where it has; holes; absent names;
//!   mappings; how many call at once.
//!
//! Where a vector lacks one of our results, that of the thesis stands in.

use super::bill::{Bill, Cause};
use super::thesis::lookup_cause;
use super::{Without, crowd, wait};
use crate::predict::step::{Cached, Chain, Change, Kind, Step};
use crate::trace::Op;
use crate::vector::{Family as F, Terms, Vector};

const KB: f64 = 1024.0;
/// Kilobytes of a block.
const BLOCK_KB: f64 = 4.0;
/// Bytes of an entry of a directory, as `getdents` returns it: 19 and a name, in steps of 8.
const ENTRY_BYTES: f64 = 32.0;

/// Prices chains.
pub struct Ours<'a> {
    /// The system.
    pub vector: &'a Vector,
    /// What is left out, to see what it earns.
    pub without: Without,
    /// How many call at once, this one included.
    pub depth: f64,
    /// Those of them that use the same directory.
    pub depth_here: f64,
}

impl Ours<'_> {
    fn first(&self, families: &[F]) -> Option<Terms> {
        families.iter().find_map(|family| self.vector.once(*family, 1.0))
    }

    fn add(&self, bill: &mut Bill, step: &mut Step, cause: Cause, families: &[F]) {
        let name = families.first().map_or("", |family| family.name());
        bill.add(self.vector, step, cause, self.first(families), crowd(self.vector, F::PCR, self.depth), name);
    }

    fn sized(&self, bill: &mut Bill, step: &mut Step, cause: Cause, families: &[F], kb: f64, crowd: f64) {
        let terms = families.iter().find_map(|family| self.vector.sized(*family, kb));
        let name = families.first().map_or("", |family| family.name());
        bill.add(self.vector, step, cause, terms, crowd, name);
    }

    fn rate(&self, bill: &mut Bill, step: &mut Step, cause: Cause, families: &[F], kb: f64) {
        if kb > 0.0 {
            let terms = families.iter().find_map(|family| self.vector.once(*family, kb));
            let name = families.first().map_or("", |family| family.name());
            bill.add(self.vector, step, cause, terms, crowd(self.vector, F::PCR, self.depth), name);
        }
    }

    /// Prices a chain.
    pub fn price(&self, bill: &mut Bill, chain: &mut Chain) {
        // What is removed is priced with the call: by the size of what it gave up.
        let cut = chain.iter().find(|step| step.kind == Kind::Cut).cloned();
        for step in chain.iter_mut().filter(|step| !step.ignored || step.kind == Kind::Call) {
            match step.kind {
                Kind::Lookup => self.add(bill, step, lookup_cause(step.cached), lookup(step)),
                Kind::Create => self.add(bill, step, Cause::Creates, &[F::CR]),
                Kind::Cut => self.cut(bill, step),
                // It went into the kernel and came back.
                Kind::Call if !step.is_done() => self.add(bill, step, Cause::Others, &[F::STAT]),
                Kind::Call => self.call(bill, step, cut.as_ref()),
            }
        }
        if let Some(call) = chain.last_mut() {
            let names =
                matches!(call.op, Some(Op::Unlink | Op::Rename | Op::Mkdir | Op::Rmdir | Op::Link | Op::Symlink));
            if call.is_done() && (names || call.kind == Kind::Create) {
                self.wait_for_names(bill, call);
            }
            if !self.without.block_overhead && call.back_blocks > 0 {
                let blocks = self.vector.once(F::WBS, call.back_blocks as f64);
                bill.add(self.vector, call, Cause::WriteBack, blocks, 1.0, "WBS");
                let runs = self.vector.once(F::WBR, call.back_runs as f64);
                bill.add(self.vector, call, Cause::WriteBack, runs, 1.0, "WBR");
            }
            let held_up = call.held_up_ns as f64 / 1e6;
            if held_up > 0.0 {
                bill.time(call, Cause::HeldUp, held_up, held_up);
            }
        }
    }

    fn cut(&self, bill: &mut Bill, step: &mut Step) {
        let by_call = matches!(step.op, Some(Op::Unlink)) && self.vector.has(F::RMC) && !self.without.sized_removes;
        if step.size == 0 || by_call {
            return;
        }
        let families = if step.held_whole { [F::TR, F::TRC] } else { [F::TRC, F::TR] };
        let kb = step.size.saturating_sub(step.offset) as f64 / KB;
        self.sized(bill, step, Cause::Removes, &families, kb, 1.0);
    }

    fn unlink(&self, bill: &mut Bill, step: &mut Step, cut: Option<&Step>) {
        let Some(cut) = cut.filter(|_| self.vector.has(F::RMC) && !self.without.sized_removes) else {
            return self.add(bill, step, Cause::Removes, &[F::RM]);
        };
        let families: &[F] = match (cut.dirty > 0, cut.held_whole) {
            (true, _) => &[F::RMD, F::RMC],
            (false, true) => &[F::RMC],
            (false, false) => &[F::RMU, F::RMC],
        };
        let crowd = crowd(self.vector, F::PCR, self.depth);
        self.sized(bill, step, Cause::Removes, families, cut.size as f64 / KB, crowd);
    }

    fn call(&self, bill: &mut Bill, step: &mut Step, cut: Option<&Step>) {
        let Some(op) = step.op else { return };
        match op {
            Op::Read => self.read(bill, step, &[F::RDO]),
            Op::Write | Op::Copy => self.write(bill, step),
            Op::Unlink => self.unlink(bill, step, cut),
            Op::Fsync | Op::Fdatasync | Op::Msync => self.sync(bill, step),
            Op::Sync => self.sized(bill, step, Cause::Syncs, &[F::SYFS], step.dirty as f64 * BLOCK_KB, 1.0),
            Op::Getdents => self.directory(bill, step),
            Op::Mmap => {
                self.add(bill, step, Cause::Others, &[F::MAP]);
                self.mapped(bill, step);
            }
            Op::Fallocate => self.sized(bill, step, Cause::Others, &[F::FALLOC], step.len as f64 / KB, 1.0),
            Op::Truncate if cut.is_none() => self.add(bill, step, Cause::Removes, &[F::EXTEND, F::CHMOD]),
            Op::Truncate => {}
            Op::Stat | Op::Access if step.file != 0 => self.add(bill, step, Cause::Attributes, &[F::FSTAT, F::STAT]),
            _ => {
                let (cause, families) = plain(op);
                self.add(bill, step, cause, families);
            }
        }
    }

    fn read(&self, bill: &mut Bill, step: &mut Step, overhead: &[F]) {
        let done = step.done as f64 / KB;
        let missing = step.misses as f64 * BLOCK_KB;
        if step.misses > 0 && step.offset == 0 && self.vector.has(F::RFS) {
            let crowd = crowd(self.vector, F::PRD, self.depth);
            self.sized(bill, step, Cause::RandomReads, &[F::RFS], missing, crowd);
        } else if step.misses > 0 {
            let (families, cause) = match step.sequential || step.misses as f64 * BLOCK_KB > done + BLOCK_KB {
                true => ([F::RD, F::RRD], Cause::SequentialReads),
                false => ([F::RRD, F::RD], Cause::RandomReads),
            };
            // What is read ahead is fetched by this call, and found in memory by the next ones.
            self.sized(bill, step, cause, &families, missing, crowd(self.vector, F::PRD, self.depth));
        } else {
            self.add(bill, step, Cause::CachedReads, overhead);
        }
        let holes = (step.holes as f64 * BLOCK_KB).min(done);
        self.rate(bill, step, Cause::CachedReads, &[F::HRD, F::RDC], holes);
        self.rate(bill, step, Cause::CachedReads, &[F::RDC], (done - holes - missing).max(0.0));
    }

    fn mapped(&self, bill: &mut Bill, step: &mut Step) {
        if step.misses > 0 {
            let kb = step.misses as f64 * BLOCK_KB;
            self.sized(
                bill,
                step,
                Cause::SequentialReads,
                &[F::MRD, F::RD],
                kb,
                crowd(self.vector, F::PRD, self.depth),
            );
        }
        if step.hits > 0 {
            let terms = self.vector.once(F::FAULT, step.hits as f64);
            bill.add(self.vector, step, Cause::CachedReads, terms, 1.0, "FAULT");
        }
    }

    fn write(&self, bill: &mut Bill, step: &mut Step) {
        let done = step.done as f64 / KB;
        let fresh = (step.fresh as f64 * BLOCK_KB).min(done);
        self.add(bill, step, Cause::Writes, if step.fresh > 0 { &[F::WNO, F::WRO] } else { &[F::WRO] });
        self.rate(bill, step, Cause::Writes, &[F::WNC, F::WRC], fresh);
        self.rate(bill, step, Cause::Writes, &[F::WRC], done - fresh);
        if step.partial > 0 && !self.without.partial_blocks && self.vector.has(F::RMW) {
            let terms = self.vector.once(F::RMW, step.partial as f64);
            bill.add(self.vector, step, Cause::PartialBlocks, terms, crowd(self.vector, F::PRD, self.depth), "RMW");
        }
        if step.durable {
            self.sync(bill, step);
        }
    }

    /// Who syncs waits besides for what others have under way: a journal commits for all.
    fn sync(&self, bill: &mut Bill, step: &mut Step) {
        let kb = step.dirty as f64 * BLOCK_KB;
        let families: &[F] = match step.change {
            Change::New => &[F::SYNEW, F::SYAPP],
            Change::Grown => &[F::SYAPP, F::SYNEW],
            Change::Over => &[F::SYOVER, F::SYAPP, F::SYNEW],
            Change::Names => &[],
            Change::Nothing => return self.add(bill, step, Cause::Syncs, &[F::SYNONE, F::STAT]),
        };
        if families.is_empty() {
            let terms = self.first(&[F::SYDIR]).or_else(|| self.vector.sized(F::SYNEW, 0.0));
            bill.add(self.vector, step, Cause::Syncs, terms, 1.0, "SYDIR");
        } else {
            self.sized(bill, step, Cause::Syncs, families, kb, 1.0);
        }
        let wait = wait(self.vector, F::PSY, self.depth);
        bill.time(step, Cause::Syncs, wait, wait);
    }

    /// Who makes or removes a name waits for others that use the directory, and for the syncs that those wait for. Of what
    /// was measured, making and removing wait once each.
    fn wait_for_names(&self, bill: &mut Bill, step: &mut Step) {
        let here = wait(self.vector, F::PDS, self.depth_here) - wait(self.vector, F::PSY, self.depth_here);
        if here > 0.0 {
            bill.time(step, Cause::Crowds, here / 2.0, here / 2.0);
        }
    }

    fn directory(&self, bill: &mut Bill, step: &mut Step) {
        if step.misses > 0 {
            self.add(bill, step, Cause::RandomReads, &[F::DIRU, F::LUR_NC]);
        }
        self.add(bill, step, Cause::CachedReads, &[F::DIRO, F::RDO]);
        let entries = step.done as f64 / ENTRY_BYTES;
        bill.add(self.vector, step, Cause::CachedReads, self.vector.once(F::DIRE, entries), 1.0, "DIRE");
    }
}

/// Which results stand for a lookup. Near is what is sequential for the thesis: the directory is in memory, whoever brought it
/// there.
fn lookup(step: &Step) -> &'static [F] {
    match (step.cached, step.near) {
        (Cached::Hit | Cached::Unknown, _) => &[F::LUR_BC],
        (Cached::Negative, _) => &[F::LUS_NG, F::LUR_BC],
        (Cached::Absent, _) => &[F::LUS_NN, F::LUR_BC],
        (Cached::Nowhere, _) => &[F::LUR_NN, F::LUR_NC],
        (Cached::Attributes, true) => &[F::LUS_AC, F::LUS_NC],
        (Cached::Attributes, false) => &[F::LUR_AC, F::LUR_NC],
        (Cached::Miss, true) => &[F::LUS_NC, F::LUR_NC],
        (Cached::Miss, false) => &[F::LUR_NC],
    }
}

/// Calls that cost the same each time.
fn plain(op: Op) -> (Cause, &'static [F]) {
    match op {
        Op::Open => (Cause::Opens, &[F::OPEN]),
        Op::Close => (Cause::Opens, &[F::CLOSE]),
        Op::Stat | Op::Access => (Cause::Attributes, &[F::STAT]),
        Op::Chmod | Op::Chown => (Cause::Attributes, &[F::CHMOD]),
        Op::Utimes => (Cause::Attributes, &[F::UTIMES, F::CHMOD]),
        Op::Getxattr => (Cause::Attributes, &[F::GETXA, F::STAT]),
        Op::Setxattr => (Cause::Attributes, &[F::SETXA, F::CHMOD]),
        Op::Mkdir => (Cause::Creates, &[F::MKDIR]),
        Op::Mknod => (Cause::Creates, &[F::CR]),
        Op::Symlink => (Cause::Creates, &[F::SYMLINK, F::CR]),
        Op::Link => (Cause::Renames, &[F::LINK, F::RENAME]),
        Op::Rename => (Cause::Renames, &[F::RENAME]),
        Op::Rmdir => (Cause::Removes, &[F::RMDIR]),
        Op::Readlink => (Cause::Attributes, &[F::READLINK, F::STAT]),
        Op::Statfs => (Cause::Others, &[F::STATFS, F::STAT]),
        _ => (Cause::Others, &[F::FSTAT, F::STAT]),
    }
}
