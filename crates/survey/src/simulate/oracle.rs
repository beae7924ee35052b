//! The upper bound: chunks that always occur together, as one. It needs to know the future.

use super::Small;
use std::collections::HashMap;

/// Neighbours of a chunk: the same at every occurrence, or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    Always(u64),
    Differs,
}

fn meet(known: &mut HashMap<u64, Neighbour>, of: u64, neighbour: Option<u64>) {
    let now = neighbour.map_or(Neighbour::Differs, Neighbour::Always);
    let before = known.entry(of).or_insert(now);
    if *before != now {
        *before = Neighbour::Differs;
    }
}

/// Chunks that are left when those that always follow each other become one, and how often these occur.
pub fn together(versions: &[Vec<Small>]) -> (u64, u64) {
    let (mut next, mut previous) = (HashMap::new(), HashMap::new());
    for smalls in versions {
        for (index, small) in smalls.iter().enumerate() {
            meet(&mut next, small.digest, smalls.get(index + 1).map(|small| small.digest));
            meet(&mut previous, small.digest, index.checked_sub(1).map(|before| smalls[before].digest));
        }
    }
    // A chunk that always has the same one before it, which always has it behind, is no beginning.
    let joins = |digest: u64| match previous.get(&digest) {
        Some(Neighbour::Always(before)) if *before != digest => next.get(before) == Some(&Neighbour::Always(digest)),
        _ => false,
    };
    let entries = previous.keys().filter(|digest| !joins(**digest)).count() as u64;
    let references = versions.iter().flatten().filter(|small| !joins(small.digest)).count() as u64;
    (entries, references)
}
