//! Fourth stage: what a step has to do with the disk-bound step before it (thesis, section 4.4.5.3).
//!
//! A read is sequential if it goes on where the last disk-bound read ended; a lookup, if it is in the directory of the step
//! before. What caches answer is passed over.

use super::step::{Cached, Chain, Kind, Relation, Step};
use crate::trace::Op;

/// The disk-bound step before.
#[derive(Clone, Copy, Debug)]
struct Before {
    inode: u64,
    directory: u64,
    /// Where a read ended.
    end: Option<u64>,
}

/// The stage.
#[derive(Debug, Default)]
pub struct Pattern {
    before: Option<Before>,
}

impl Pattern {
    /// Annotates a chain.
    pub fn apply(&mut self, chain: &mut Chain) {
        for step in chain.iter_mut().filter(|step| !step.ignored) {
            let read = step.kind == Kind::Call && matches!(step.op, Some(Op::Read | Op::Getdents | Op::Mmap));
            let bound = match step.kind {
                Kind::Lookup => matches!(step.cached, Cached::Miss | Cached::Attributes | Cached::Nowhere),
                _ => step.misses > 0 || step.partial > 0 || step.kind == Kind::Cut && !step.held_whole,
            };
            if !bound {
                step.relation = Relation::Cached;
                // Names that are cached cost a little more where another directory is needed; that is no matter of disks.
                step.sequential =
                    step.kind == Kind::Lookup && self.before.is_some_and(|before| before.directory == step.directory);
                continue;
            }
            step.relation = self.before.map_or(Relation::Unknown, |before| relation(&before, step));
            step.sequential = match step.kind {
                Kind::Lookup => self.before.is_some_and(|before| before.directory == step.directory),
                _ => self.before.is_some_and(|before| before.inode == step.inode && before.end == Some(step.offset)),
            };
            let end = read.then(|| step.offset.saturating_add(step.done));
            self.before = Some(Before { inode: step.inode, directory: step.directory, end });
        }
    }
}

fn relation(before: &Before, step: &Step) -> Relation {
    if before.inode == step.inode {
        Relation::Same
    } else if before.directory == step.directory {
        Relation::SameDir
    } else if before.inode == step.directory {
        Relation::Child
    } else if before.directory == step.inode {
        Relation::Parent
    } else {
        Relation::Unknown
    }
}
