//! The request vector that a record of the thesis's trace has (appendix A, table A.4).
//!
//! Departs from the thesis, whose figure A.1 declares 17 elements and whose table has indices up to 18: there are 19 here.

use super::step::{Cached, Kind, Step};
use crate::trace::Op;

/// Elements. 11 and 12 are not used.
pub const SUBOPS: usize = 19;
/// Blocks written.
pub const WRBLOCKS: usize = 0;
/// Fragments written, of blocks that are not whole.
pub const WRFRAGS: usize = 1;
/// Blocks read.
pub const RDBLOCKS: usize = 2;
/// Fragments read.
pub const RDFRAGS: usize = 3;
/// Blocks read that were not cached.
pub const RDMISSBLOCKS: usize = 4;
/// Fragments read that were not cached.
pub const RDMISSFRAGS: usize = 5;
/// Lookups, name and attributes cached.
pub const LUHIT: usize = 6;
/// Lookups, neither cached.
pub const LUMISS: usize = 7;
/// Lookups, neither cached, but the directory's block.
pub const LUMISSBC: usize = 8;
/// Lookups, attributes cached.
pub const LUATTRHIT: usize = 9;
/// Lookups, name cached.
pub const LUNAMEHIT: usize = 10;
/// Files cut that were cached.
pub const TRUNCACHED: usize = 13;
/// Files cut that were not.
pub const TRUNCUNCACHED: usize = 14;
/// Files removed.
pub const FILEREMOVE: usize = 15;
/// Directories removed.
pub const DIRREMOVE: usize = 16;
/// Files made.
pub const FILECREATE: usize = 17;
/// Directories made.
pub const DIRCREATE: usize = 18;

/// The request vector of a chain; a block has so many fragments, which is what the cache stage counted.
pub fn subops(chain: &[Step], fragments: u64) -> [u32; SUBOPS] {
    let mut vector = [0u32; SUBOPS];
    let mut add = |at: usize, count: u64| {
        vector[at] = vector[at].saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    };
    let per = fragments.max(1);
    for step in chain.iter().filter(|step| !step.ignored) {
        match (step.kind, step.op) {
            (Kind::Lookup, _) => match step.cached {
                Cached::Hit | Cached::Negative => add(LUHIT, 1),
                Cached::Attributes => add(LUATTRHIT, 1),
                _ => add(LUMISS, 1),
            },
            (Kind::Cut, _) => add(if step.held_whole { TRUNCACHED } else { TRUNCUNCACHED }, 1),
            (Kind::Create, _) => add(FILECREATE, 1),
            (Kind::Call, Some(Op::Read | Op::Getdents)) => {
                let all = step.hits + step.misses;
                [(RDBLOCKS, all / per), (RDFRAGS, all % per)].into_iter().for_each(|(at, count)| add(at, count));
                let missed = [(RDMISSBLOCKS, step.misses / per), (RDMISSFRAGS, step.misses % per)];
                missed.into_iter().for_each(|(at, count)| add(at, count));
            }
            (Kind::Call, Some(Op::Write)) => {
                let blocks = step.done.div_ceil(4096);
                [(WRBLOCKS, blocks / per), (WRFRAGS, blocks % per)].into_iter().for_each(|(at, count)| add(at, count));
            }
            (Kind::Call, Some(Op::Unlink)) => add(FILEREMOVE, 1),
            (Kind::Call, Some(Op::Rmdir)) => add(DIRREMOVE, 1),
            (Kind::Call, Some(Op::Mkdir)) => add(DIRCREATE, 1),
            _ => {}
        }
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_table_a_4() {
        let indices = [
            (WRBLOCKS, 0),
            (WRFRAGS, 1),
            (RDBLOCKS, 2),
            (RDFRAGS, 3),
            (RDMISSBLOCKS, 4),
            (RDMISSFRAGS, 5),
            (LUHIT, 6),
            (LUMISS, 7),
            (LUMISSBC, 8),
            (LUATTRHIT, 9),
            (LUNAMEHIT, 10),
            (TRUNCACHED, 13),
            (TRUNCUNCACHED, 14),
            (FILEREMOVE, 15),
            (DIRREMOVE, 16),
            (FILECREATE, 17),
            (DIRCREATE, 18),
        ];
        assert!(indices.iter().all(|(is, expected)| is == expected) && indices.len() == 17);
        assert_eq!(subops(&[], 8).len(), 19, "17 elements, indices to 18");
        let read = Step { op: Some(Op::Read), hits: 9, misses: 11, ..Step::default() };
        let made = Step { kind: Kind::Create, op: Some(Op::Open), ..Step::default() };
        let vector = subops(&[read, made], 8);
        assert_eq!((vector[2], vector[3], vector[4], vector[5], vector[17]), (2, 4, 1, 3, 1));
    }
}
