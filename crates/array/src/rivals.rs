//! Which superblock counts, where members tell different stories.
//!
//! The newest does, but for two cases. The power may fail while superblocks are written, so that one member bears a newer one
//! than the others; if these are used without it next, they list it as failed and go on, and what it bears may still be as
//! new or newer. And it may list as failed one of the others, who never heard of that. A failure is *in force* when all whom
//! its superblock uses list it, and nothing that a failed member missed is acknowledged before. So what a member bears counts
//! no more once a failure of it is in force; unless the same is true the other way round: then both went on.

use crate::format::{Standing, Superblock};

/// The member that bears a superblock, and one that it used, each of whom says that the other failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rivals {
    pub one: usize,
    pub other: usize,
}

/// The place of the superblock that counts, among those of one array with equally many members.
pub(crate) fn counting(found: &[&Superblock]) -> Result<usize, Rivals> {
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(found[*place].generation));
    let mut rivals = Rivals { one: 0, other: 0 };
    for place in order {
        let mine = found[place];
        let mut against = found.iter().filter(|one| fails(one, mine) && in_force(one, found)).peekable();
        let Some(theirs) = against.peek() else { return Ok(place) };
        rivals = Rivals { one: mine.slot, other: theirs.slot };
        if let Some(theirs) = against.find(|theirs| fails(mine, theirs) && in_force(mine, found)) {
            return Err(Rivals { one: mine.slot, other: theirs.slot });
        }
    }
    // Everybody is listed as failed by somebody else.
    Err(rivals)
}

/// Whether a superblock lists the member that bears another as failed.
fn fails(one: &Superblock, other: &Superblock) -> bool {
    let listed = one.members[other.slot];
    listed.standing == Standing::Failed && listed.id == other.members[other.slot].id
}

/// Whether all whom a superblock uses, as far as they are there, list the failures that it does.
fn in_force(superblock: &Superblock, found: &[&Superblock]) -> bool {
    let uses = |one: &Superblock| {
        let listed = superblock.members[one.slot];
        listed.standing != Standing::Failed && listed.id == one.members[one.slot].id
    };
    let lists = |one: &Superblock| {
        // Who has another identity there was replaced since.
        superblock.members.iter().zip(&one.members).all(|(listed, theirs)| {
            listed.standing != Standing::Failed || theirs.standing == Standing::Failed || theirs.id != listed.id
        })
    };
    found.iter().filter(|one| uses(one)).all(|one| lists(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Listed;
    use crate::shape::Level;
    use ashlar_units::Blocks;
    use proptest::prelude::*;

    /// The superblock of a member that lists these as failed.
    fn listing(slot: usize, generation: u64, failed: &[usize]) -> Superblock {
        let member = |slot: usize| Listed {
            id: slot as u128,
            groups: 3,
            standing: if failed.contains(&slot) { Standing::Failed } else { Standing::Active },
        };
        Superblock {
            array: 1,
            level: Level::Raid5,
            unit: Blocks(7),
            journal: crate::journal::JOURNAL_MIN,
            slot,
            generation,
            sequence_end: 1,
            salt: 0,
            members: (0..3).map(member).collect(),
        }
    }

    fn counts(found: &[Superblock]) -> Result<usize, Rivals> {
        counting(&found.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_newest_counts() {
        assert_eq!(counts(&[listing(0, 4, &[]), listing(1, 5, &[0]), listing(2, 5, &[0])]), Ok(1));
        // Also one of which the others have not heard: the member that it calls failed may have missed something.
        assert_eq!(counts(&[listing(0, 4, &[]), listing(1, 5, &[0]), listing(2, 4, &[])]), Ok(1));
        assert_eq!(counts(&[listing(0, 4, &[1]), listing(1, 3, &[]), listing(2, 4, &[1])]), Ok(0));
    }

    #[test]
    fn a_failure_that_never_came_into_force_is_passed_over() {
        // Member 1 listed 0 as failed when the others had lost their power; they went on without it.
        assert_eq!(counts(&[listing(0, 4, &[1]), listing(1, 5, &[0]), listing(2, 4, &[1])]), Ok(0));
        assert_eq!(counts(&[listing(0, 6, &[1]), listing(1, 5, &[0]), listing(2, 6, &[1])]), Ok(0));
        // Neither did: the newest.
        assert_eq!(counts(&[listing(0, 4, &[1]), listing(1, 5, &[0]), listing(2, 3, &[])]), Ok(1));
        // Member 0 alone was written to; then the others went on without it.
        assert_eq!(counts(&[listing(0, 2, &[]), listing(1, 2, &[0]), listing(2, 2, &[0])]), Ok(1));
        assert_eq!(counts(&[listing(0, 3, &[]), listing(1, 2, &[0]), listing(2, 2, &[0])]), Ok(1));
    }

    #[test]
    fn two_that_went_on_are_rivals() {
        let found = [listing(0, 4, &[1, 2]), listing(1, 5, &[0, 2])];
        assert_eq!(counts(&found), Err(Rivals { one: 1, other: 0 }));
    }

    fn failures(found: &[&Superblock]) -> Result<Vec<usize>, TestCaseError> {
        let place = counting(found).map_err(|rivals| TestCaseError::fail(format!("{rivals:?} of {found:?}")))?;
        let standing = |slot: &usize| found[place].members[*slot].standing;
        Ok((0..3).filter(|slot| standing(slot) == Standing::Failed).collect())
    }

    proptest! {
        /// Lives of three members of which one may be left out, or fail, and whose power fails while superblocks are written:
        /// nobody goes on alone, and a failure that came into force is never passed over.
        #[test]
        fn what_is_in_force_counts(lives in prop::collection::vec((0..3usize, 0..4usize, 0..3u8), 1..10)) {
            let mut all: Vec<Superblock> = (0..3).map(|slot| listing(slot, 1, &[])).collect();
            let mut in_force = Vec::new();
            for (away, written, what) in lives {
                let everybody: Vec<&Superblock> = all.iter().collect();
                let mut failed = failures(&everybody)?;
                prop_assert!(in_force.iter().all(|slot| failed.contains(slot)), "{:?} of {:?}", in_force, all);
                // Whoever leaves one out looks first who failed.
                let leaves_out = what == 2 && failed.iter().all(|slot| *slot == away);
                let found: Vec<&Superblock> = all.iter().filter(|one| !leaves_out || one.slot != away).collect();
                if leaves_out {
                    failed = failures(&found)?;
                }
                if failed.is_empty() && what > 0 {
                    failed.push(away);
                } else if leaves_out && failed != [away] {
                    continue; // two are missing
                }
                let newest = found.iter().map(|one| one.generation).max().unwrap_or(0);
                let uses: Vec<usize> = (0..3).filter(|slot| !failed.contains(slot)).collect();
                uses.iter().cycle().skip(away).take(written.min(uses.len())).for_each(|slot| {
                    all[*slot] = listing(*slot, newest + 1, &failed);
                });
                if written >= uses.len() {
                    in_force = failed;
                }
            }
        }
    }
}
