//! The books of the journal; nothing waits here, and nothing is written.
//!
//! An *entry* is one write, over all members; its *part* on a member has the blocks that this member is to write. Parts
//! follow each other in a ring on their member, in the order of their entries. In front of the ring are two blocks for
//! *marks*, which say which entries are released.
//!
//! An entry begins when room for all its parts is reserved, at once, so that nobody who holds room waits for room. It is
//! *placed* when its blocks are written, *settled* on a member when a flush there has covered that, and *released* when it
//! and all before it are settled on all. A part's room is used again when its own member durably says that it is released:
//! then recovery, which looks at the members that are there, never misses a part that it needs, and never takes an entry
//! for unreleased of which only the newer neighbours are overwritten.

use crate::format::PART_BLOCKS_MAX;
use crate::rules::Rule;
use ashlar_units::{Blocks, Lba};
use std::collections::{BTreeMap, VecDeque};

/// Blocks for marks, which alternate.
const MARKS: Blocks = Blocks(2);
/// Least journal of a member: two writes of a whole group.
pub const JOURNAL_MIN: Blocks = Blocks(2 + 2 * 66);

struct Part {
    sequence: u64,
    offset: u64,
}

/// The ring of a member.
struct Ring {
    parts: VecDeque<Part>,
    /// Where the next part begins.
    head: u64,
    /// The greatest number that a written head or mark calls released, and that of a durable one.
    written: u64,
    marked: u64,
    marks: u64,
}

struct Entry {
    placed: bool,
    /// Members on which it is not settled, as bits.
    waiting: u32,
}

/// See the module.
pub struct Journal {
    at: Lba,
    len: u64,
    rings: Vec<Ring>,
    entries: BTreeMap<u64, Entry>,
    last: u64,
    /// Members that are not used, as bits.
    dead: u32,
    without: Option<Rule>,
}

/// Room for an entry.
#[derive(Debug)]
pub struct Reserved {
    /// Its number.
    pub sequence: u64,
    /// What its heads may call released.
    pub released: u64,
    /// Where its parts begin, by slot.
    pub parts: Vec<(usize, Lba)>,
}

/// What must happen before there is room.
#[derive(Debug, PartialEq, Eq)]
pub enum Wait {
    /// A mark must be written to this member, there, with this number.
    Mark(usize, Lba, u64),
    /// All members must be flushed.
    Flush,
    /// An entry must be placed.
    Placed,
}

/// What a flush of a member will settle.
pub struct Covered {
    mark: u64,
    placed: Vec<u64>,
}

impl Journal {
    /// An empty journal on so many members, `blocks` from `at` on.
    pub fn new(members: usize, at: Lba, blocks: Blocks, without: Option<Rule>) -> Journal {
        let ring = || Ring { parts: VecDeque::new(), head: 0, written: 0, marked: 0, marks: 0 };
        let len = blocks.0.saturating_sub(MARKS.0);
        let rings = (0..members).map(|_| ring()).collect();
        Journal { at: at + MARKS, len, rings, entries: BTreeMap::new(), last: 0, dead: 0, without }
    }
    /// Most blocks of a part.
    pub fn part_blocks_max(&self) -> usize {
        PART_BLOCKS_MAX.min((self.len / 2).saturating_sub(1) as usize)
    }
    /// Entries up to this one are released.
    pub fn released(&self) -> u64 {
        self.entries.first_key_value().map_or(self.last, |(first, _)| first - 1)
    }

    fn reusable(&self, slot: usize) -> u64 {
        if self.without == Some(Rule::MarkBeforeReuse) { self.released() } else { self.rings[slot].marked }
    }

    /// Room in a ring; none as long as parts are in the way.
    fn room(&self, slot: usize, len: u64) -> Option<u64> {
        let ring = &self.rings[slot];
        let Some(oldest) = ring.parts.front() else {
            return Some(if ring.head + len <= self.len { ring.head } else { 0 });
        };
        if ring.head > oldest.offset {
            // Parts lie between: room behind the newest, or before the oldest.
            match ring.head + len <= self.len {
                true => Some(ring.head),
                false => (len < oldest.offset).then_some(0),
            }
        } else {
            (ring.head + len < oldest.offset).then_some(ring.head)
        }
    }

    /// Reserves room for parts of so many blocks, each with its head. Members that are used no more get none.
    pub fn reserve(&mut self, needs: &[(usize, usize)]) -> Result<Reserved, Wait> {
        let len = |blocks: usize| blocks as u64 + 1;
        let dead = self.dead;
        let needs = || needs.iter().filter(|(slot, _)| dead >> slot & 1 == 0);
        for (slot, blocks) in needs() {
            let reusable = self.reusable(*slot);
            while self.rings[*slot].parts.front().is_some_and(|part| part.sequence <= reusable) {
                self.rings[*slot].parts.pop_front();
            }
            if self.room(*slot, len(*blocks)).is_none() {
                let oldest = self.rings[*slot].parts.front().map_or(0, |part| part.sequence);
                return Err(self.wait(*slot, oldest));
            }
        }
        let released = self.released();
        self.last += 1;
        let sequence = self.last;
        let mut parts = Vec::new();
        let mut waiting = 0;
        for (slot, blocks) in needs() {
            let offset = self.room(*slot, len(*blocks)).unwrap_or_default();
            let ring = &mut self.rings[*slot];
            ring.parts.push_back(Part { sequence, offset });
            ring.head = offset + len(*blocks);
            waiting |= 1 << slot;
            parts.push((*slot, self.at + Blocks(offset)));
        }
        self.entries.insert(sequence, Entry { placed: false, waiting });
        Ok(Reserved { sequence, released, parts })
    }

    fn wait(&self, slot: usize, oldest: u64) -> Wait {
        let ring = &self.rings[slot];
        match self.entries.get(&oldest) {
            Some(entry) if !entry.placed => Wait::Placed,
            _ if self.released() >= oldest => {
                let at = Lba(self.at.0 - MARKS.0 + ring.marks % MARKS.0);
                Wait::Mark(slot, at, self.released())
            }
            // An older one may still be on its way.
            _ if self.entries.values().any(|entry| !entry.placed) => Wait::Placed,
            _ => Wait::Flush,
        }
    }

    /// A head or a mark that calls entries up to `released` released is written.
    pub fn noted(&mut self, slot: usize, released: u64) {
        let ring = &mut self.rings[slot];
        ring.written = ring.written.max(released);
    }
    /// A mark is durable.
    pub fn marked(&mut self, slot: usize, released: u64) {
        let ring = &mut self.rings[slot];
        ring.marked = ring.marked.max(released);
        ring.marks += 1;
    }
    /// The blocks of an entry are written.
    pub fn placed(&mut self, sequence: u64) {
        if self.without == Some(Rule::ReleaseAfterFlush) {
            self.entries.remove(&sequence);
        } else if let Some(entry) = self.entries.get_mut(&sequence) {
            entry.placed = true;
            if entry.waiting == 0 {
                self.entries.remove(&sequence);
            }
        }
    }
    /// A flush of a member begins.
    pub fn flush_begins(&self, slot: usize) -> Covered {
        let placed = self.entries.iter().filter(|(_, entry)| entry.placed && entry.waiting >> slot & 1 == 1);
        Covered { mark: self.rings[slot].written, placed: placed.map(|(sequence, _)| *sequence).collect() }
    }
    /// It has ended.
    pub fn flush_ended(&mut self, slot: usize, covered: Covered) {
        let ring = &mut self.rings[slot];
        ring.marked = ring.marked.max(covered.mark);
        for sequence in covered.placed {
            self.settle(sequence, slot);
        }
    }
    /// A new member takes this place.
    pub fn welcome(&mut self, slot: usize) {
        self.forget(slot);
        self.dead &= !(1 << slot);
    }
    /// A member is used no more.
    pub fn forget(&mut self, slot: usize) {
        self.dead |= 1 << slot;
        let all: Vec<u64> = self.entries.keys().copied().collect();
        all.into_iter().for_each(|sequence| self.settle(sequence, slot));
        let ring = &mut self.rings[slot];
        (ring.head, ring.written, ring.marked, ring.marks) = (0, 0, 0, 0);
        ring.parts.clear();
    }

    fn settle(&mut self, sequence: u64, slot: usize) {
        if let Some(entry) = self.entries.get_mut(&sequence) {
            entry.waiting &= !(1 << slot);
            if entry.waiting == 0 && entry.placed {
                self.entries.remove(&sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        Journal::new(2, Lba(2), Blocks(12), None)
    }
    const BOTH: [(usize, usize); 2] = [(0, 2), (1, 2)];

    #[test]
    fn room_is_reused_when_a_mark_is_durable() {
        let mut journal = journal();
        let first = journal.reserve(&BOTH).expect("an empty ring");
        assert_eq!((first.sequence, first.released, &first.parts[..]), (1, 0, &[(0, Lba(4)), (1, Lba(4))][..]));
        journal.reserve(&BOTH).expect("room for three");
        journal.reserve(&BOTH).expect("room for three");
        assert_eq!(journal.reserve(&BOTH).expect_err("full"), Wait::Placed);
        journal.placed(1);
        assert_eq!(journal.reserve(&BOTH).expect_err("full"), Wait::Placed);
        (2..=3).for_each(|sequence| journal.placed(sequence));
        assert_eq!(journal.reserve(&BOTH).expect_err("full"), Wait::Flush);
        for slot in 0..2 {
            assert_eq!(journal.released(), 0);
            let covered = journal.flush_begins(slot);
            journal.flush_ended(slot, covered);
        }
        assert_eq!(journal.released(), 3);
        assert_eq!(journal.reserve(&BOTH).expect_err("no mark yet"), Wait::Mark(0, Lba(2), 3));
        journal.marked(0, 3);
        assert_eq!(journal.reserve(&BOTH).expect_err("no mark yet"), Wait::Mark(1, Lba(2), 3));
        journal.marked(1, 3);
        assert_eq!(journal.reserve(&BOTH).expect("room").released, 3);
    }

    #[test]
    fn without_its_rule_room_is_reused_before_the_mark() {
        let mut journal = Journal { without: Some(Rule::MarkBeforeReuse), ..journal() };
        for sequence in 1..=3 {
            journal.reserve(&BOTH).expect("room for three");
            journal.placed(sequence);
        }
        for slot in 0..2 {
            let covered = journal.flush_begins(slot);
            journal.flush_ended(slot, covered);
        }
        // No member says durably that anything is released, and yet parts would be overwritten.
        assert!(journal.rings.iter().all(|ring| ring.marked == 0));
        journal.reserve(&BOTH).expect("the broken rule gives room");
    }

    #[test]
    fn what_a_dead_member_had_holds_up_nobody() {
        let mut journal = journal();
        journal.reserve(&BOTH).expect("an empty ring");
        journal.placed(1);
        let covered = journal.flush_begins(0);
        journal.flush_ended(0, covered);
        journal.forget(1);
        assert_eq!(journal.released(), 1);
    }
}
