//! Our prices: as those of the thesis, and besides
//!
//! * what is written back is charged by distinct block and run, when it happens, and not by bytes of all calls;
//! * removing depends on the size of the file, on whether it is cached, and on whether it ever reached the disk;
//! * a block of which a part is written is read first, where it is allocated, not cached and not covered;
//! * syncs by what is not durable; writes where the file has no block apart from those where it has; holes; absent names;
//!   mappings;
//! * each price says which share of it is used of what all threads share, by how many call at once.
//!
//! Where a vector lacks one of our results, that of the thesis stands in.

use super::Without;
use super::bill::{Bill, Cause};
use super::jobs::Jobs;
use super::thesis::lookup_cause;
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
    /// How many call at once.
    pub together: Together,
    /// What the jobs take by which crowds are measured.
    pub jobs: &'a Jobs,
}

/// How many threads are in calls at once, the one that is looked at included.
#[derive(Clone, Copy, Debug)]
pub struct Together {
    /// All.
    pub all: f64,
    /// Those that use the same directory.
    pub here: f64,
    /// Those that sync.
    pub syncing: f64,
}

/// What is in memory.
const CACHED: &[F] = &[F::PCA, F::PCR];
/// Names and content that change.
const CHANGES: &[F] = &[F::PCR];
/// Small files, and names, that are not in memory.
const SMALL: &[F] = &[F::PFS, F::PRD];
const RANDOM: &[F] = &[F::PRD];
const IN_ORDER: &[F] = &[F::PRS, F::PRD];
const SYNCS: &[F] = &[F::PSY];

impl Ours<'_> {
    fn first(&self, families: &[F]) -> Option<Terms> {
        families.iter().find_map(|family| self.vector.once(*family, 1.0))
    }

    fn share(&self, crowd: &[F]) -> f64 {
        self.jobs.share(self.vector, crowd, if crowd == SYNCS { self.together.syncing } else { self.together.all })
    }

    fn terms(&self, bill: &mut Bill, step: &mut Step, what: (Cause, &[F]), terms: Option<Terms>, crowd: &[F]) {
        let (cause, families) = what;
        let name = families.first().map_or("", |family| family.name());
        bill.add(self.vector, step, cause, terms, self.share(crowd), name);
    }

    fn add(&self, bill: &mut Bill, step: &mut Step, cause: Cause, families: &[F], crowd: &[F]) {
        self.terms(bill, step, (cause, families), self.first(families), crowd);
    }

    fn sized(&self, bill: &mut Bill, step: &mut Step, cause: Cause, families: &[F], kb: f64, crowd: &[F]) {
        let terms = families.iter().find_map(|family| self.vector.sized(*family, kb));
        self.terms(bill, step, (cause, families), terms, crowd);
    }

    fn times(&self, bill: &mut Bill, step: &mut Step, cause: Cause, families: &[F], times: f64, crowd: &[F]) {
        if times > 0.0 {
            let terms = families.iter().find_map(|family| self.vector.once(*family, times));
            self.terms(bill, step, (cause, families), terms, crowd);
        }
    }

    /// Prices a chain.
    pub fn price(&self, bill: &mut Bill, chain: &mut Chain) {
        // What is removed is priced with the call: by the size of what it gave up.
        let cut = chain.iter().find(|step| step.kind == Kind::Cut).cloned();
        for step in chain.iter_mut().filter(|step| !step.ignored || step.kind == Kind::Call) {
            match step.kind {
                Kind::Lookup => {
                    let fetched = matches!(step.cached, Cached::Miss | Cached::Nowhere | Cached::Attributes);
                    let crowd = if fetched && !step.near { SMALL } else { CACHED };
                    self.add(bill, step, lookup_cause(step.cached), lookup(step), crowd);
                }
                Kind::Create => self.add(bill, step, Cause::Creates, &[F::CR], CHANGES),
                Kind::Cut => self.cut(bill, step),
                // It went into the kernel and came back.
                Kind::Call if !step.is_done() => self.add(bill, step, Cause::Others, &[F::STAT], CACHED),
                Kind::Call => self.call(bill, step, cut.as_ref()),
            }
        }
        if let Some(call) = chain.last_mut() {
            let names =
                matches!(call.op, Some(Op::Unlink | Op::Rename | Op::Mkdir | Op::Rmdir | Op::Link | Op::Symlink));
            if call.is_done() && !self.without.crowds && (names || call.kind == Kind::Create) {
                self.wait_for_names(bill, call);
            }
            if !self.without.block_overhead && call.back_blocks > 0 {
                self.times(bill, call, Cause::WriteBack, &[F::WBS], call.back_blocks as f64, CHANGES);
                self.times(bill, call, Cause::WriteBack, &[F::WBR], call.back_runs as f64, CHANGES);
            }
            let held_up = call.held_up_ns as f64 / 1e6;
            if held_up > 0.0 && !self.without.dirty_files {
                bill.shared_time(call, Cause::HeldUp, held_up);
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
        self.sized(bill, step, Cause::Removes, &families, kb, CHANGES);
    }

    fn unlink(&self, bill: &mut Bill, step: &mut Step, cut: Option<&Step>) {
        let Some(cut) = cut.filter(|_| self.vector.has(F::RMC) && !self.without.sized_removes) else {
            return self.add(bill, step, Cause::Removes, &[F::RM], CHANGES);
        };
        let families: &[F] = match (cut.dirty > 0, cut.held_whole) {
            (true, _) => &[F::RMD, F::RMC],
            (false, true) => &[F::RMC],
            (false, false) => &[F::RMU, F::RMC],
        };
        self.sized(bill, step, Cause::Removes, families, cut.size as f64 / KB, CHANGES);
    }

    fn call(&self, bill: &mut Bill, step: &mut Step, cut: Option<&Step>) {
        let Some(op) = step.op else { return };
        match op {
            Op::Read => self.read(bill, step, &[F::RDO]),
            Op::Write | Op::Copy => self.write(bill, step),
            Op::Unlink => self.unlink(bill, step, cut),
            Op::Fsync | Op::Fdatasync | Op::Msync => self.sync(bill, step),
            Op::Sync => self.sized(bill, step, Cause::Syncs, &[F::SYFS], step.dirty as f64 * BLOCK_KB, SYNCS),
            Op::Getdents => self.directory(bill, step),
            Op::Mmap => {
                self.add(bill, step, Cause::Others, &[F::MAP], CACHED);
                self.mapped(bill, step);
            }
            Op::Fallocate => self.sized(bill, step, Cause::Others, &[F::FALLOC], step.len as f64 / KB, CHANGES),
            Op::Truncate if cut.is_none() => self.add(bill, step, Cause::Removes, &[F::EXTEND, F::CHMOD], CHANGES),
            Op::Truncate => {}
            Op::Stat | Op::Access if step.file != 0 => {
                self.add(bill, step, Cause::Attributes, &[F::FSTAT, F::STAT], CACHED)
            }
            Op::Close if step.dirty > 0 => {
                let kb = step.dirty as f64 * BLOCK_KB;
                match self.vector.sized(F::CLD, kb) {
                    Some(terms) => self.terms(bill, step, (Cause::Opens, &[F::CLD]), Some(terms), CHANGES),
                    None => self.add(bill, step, Cause::Opens, &[F::CLOSE], CACHED),
                }
            }
            _ => {
                let (cause, families) = plain(op);
                let crowd = if changes(cause, op) { CHANGES } else { CACHED };
                self.add(bill, step, cause, families, crowd);
            }
        }
    }

    fn read(&self, bill: &mut Bill, step: &mut Step, overhead: &[F]) {
        let done = step.done as f64 / KB;
        let missing = step.misses as f64 * BLOCK_KB;
        if step.misses > 0 && step.offset == 0 && self.vector.has(F::RFS) {
            self.sized(bill, step, Cause::RandomReads, &[F::RFS], missing, SMALL);
        } else if step.misses > 0 {
            let (families, cause, crowd) = match step.sequential || missing > done + BLOCK_KB {
                true => ([F::RD, F::RRD], Cause::SequentialReads, IN_ORDER),
                false => ([F::RRD, F::RD], Cause::RandomReads, RANDOM),
            };
            // What is read ahead is fetched by this call, and found in memory by the next ones.
            self.sized(bill, step, cause, &families, missing, crowd);
        } else {
            self.add(bill, step, Cause::CachedReads, overhead, CACHED);
        }
        let holes = (step.holes as f64 * BLOCK_KB).min(done);
        self.times(bill, step, Cause::CachedReads, &[F::HRD, F::RDC], holes, CACHED);
        let held = (done - holes - missing).max(0.0);
        self.times(bill, step, Cause::CachedReads, &[F::RDC], held, CACHED);
    }

    fn mapped(&self, bill: &mut Bill, step: &mut Step) {
        if step.misses > 0 {
            let kb = step.misses as f64 * BLOCK_KB;
            self.sized(bill, step, Cause::SequentialReads, &[F::MRD, F::RD], kb, IN_ORDER);
        }
        self.times(bill, step, Cause::CachedReads, &[F::FAULT], step.hits as f64, CACHED);
    }

    fn write(&self, bill: &mut Bill, step: &mut Step) {
        let done = step.done as f64 / KB;
        let fresh = (step.fresh as f64 * BLOCK_KB).min(done);
        let overhead: &[F] = match (step.fresh > 0, step.size) {
            (true, 0) => &[F::WNF, F::WNO, F::WRO],
            (true, _) => &[F::WNO, F::WRO],
            (false, _) => &[F::WRO],
        };
        self.add(bill, step, Cause::Writes, overhead, CHANGES);
        self.times(bill, step, Cause::Writes, &[F::WNC, F::WRC], fresh, CHANGES);
        self.times(bill, step, Cause::Writes, &[F::WRC], done - fresh, CHANGES);
        if step.partial > 0 && !self.without.partial_blocks && self.vector.has(F::RMW) {
            self.times(bill, step, Cause::PartialBlocks, &[F::RMW], step.partial as f64, RANDOM);
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
            Change::Nothing => return self.add(bill, step, Cause::Syncs, &[F::SYNONE, F::STAT], SYNCS),
        };
        if families.is_empty() {
            let terms = self.first(&[F::SYDIR]).or_else(|| self.vector.sized(F::SYNEW, 0.0));
            self.terms(bill, step, (Cause::Syncs, &[F::SYDIR]), terms, SYNCS);
        } else {
            self.sized(bill, step, Cause::Syncs, families, kb, SYNCS);
        }
        if !self.without.crowds {
            let wait = self.jobs.wait(self.vector, F::PSY, self.together.syncing);
            bill.time(step, Cause::Syncs, wait, wait);
        }
    }

    /// Who makes or removes a name waits for others that use the directory, and for the syncs that those wait for. Of what
    /// was measured, making and removing wait once each.
    fn wait_for_names(&self, bill: &mut Bill, step: &mut Step) {
        let wait = |family| self.jobs.wait(self.vector, family, self.together.here);
        let here = wait(F::PDS) - wait(F::PSY);
        if here > 0.0 {
            bill.time(step, Cause::Crowds, here / 2.0, here / 2.0);
        }
    }

    fn directory(&self, bill: &mut Bill, step: &mut Step) {
        if step.misses > 0 {
            self.add(bill, step, Cause::RandomReads, &[F::DIRU, F::LUR_NC], SMALL);
        }
        self.add(bill, step, Cause::CachedReads, &[F::DIRO, F::RDO], CACHED);
        let entries = step.done as f64 / ENTRY_BYTES;
        self.times(bill, step, Cause::CachedReads, &[F::DIRE], entries, CACHED);
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

/// Whether a call changes names or attributes.
fn changes(cause: Cause, op: Op) -> bool {
    matches!(cause, Cause::Creates | Cause::Removes | Cause::Renames)
        || matches!(op, Op::Chmod | Op::Chown | Op::Utimes | Op::Setxattr)
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
