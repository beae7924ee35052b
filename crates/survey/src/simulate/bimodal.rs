//! The three bimodal schemes. They decide from answers of the index alone, so they are the same over digests and over bytes.

use super::{Small, Store, digest_of};
use crate::chunk::cdc::{Cutter, Params};
use std::collections::HashMap;
use std::ops::Range;

/// Where chunks go, and who is asked about them. Each question is asked once.
pub struct Emit<'a> {
    smalls: &'a [Small],
    store: &'a mut Store,
    answers: HashMap<(usize, usize), bool>,
    /// What was emitted: runs of smalls.
    pub runs: Vec<Range<usize>>,
    /// Keep `runs`.
    pub keep: bool,
}

impl<'a> Emit<'a> {
    /// Emits runs of `smalls` into a store.
    pub fn new(smalls: &'a [Small], store: &'a mut Store) -> Emit<'a> {
        Emit { smalls, store, answers: HashMap::new(), runs: Vec::new(), keep: false }
    }
    fn exists(&mut self, run: Range<usize>) -> bool {
        let (smalls, store) = (self.smalls, &mut *self.store);
        *self.answers.entry((run.start, run.end)).or_insert_with(|| store.exists(digest_of(&smalls[run])))
    }
    fn chunk(&mut self, run: Range<usize>) {
        self.store.emit(&self.smalls[run.clone()]);
        // Answers about what is behind are of no more use.
        if self.answers.len() > 1 << 12 {
            self.answers.retain(|(start, _), _| *start >= run.end);
        }
        if self.keep {
            self.runs.push(run);
        }
    }
    fn each(&mut self, run: Range<usize>) {
        run.for_each(|index| self.chunk(index..index + 1));
    }
}

/// Big chunks of about `k` smalls each, cut by content: where the level is three doublings higher for `k` of 8.
pub fn bigs(smalls: &[Small], k: usize) -> Vec<Range<usize>> {
    let mean: u64 = smalls.iter().map(|small| u64::from(small.len)).sum::<u64>() / smalls.len().max(1) as u64;
    // Half of the mean is the least length, and half what the level adds.
    let level = (mean.max(1) * k as u64 / 2).max(1).ilog2();
    let mut cutter = Cutter::new(Params::classic(level.clamp(1, 29)));
    let (mut bigs, mut begin, mut count) = (Vec::new(), 0, 0);
    let mut take = |len: u32, count: usize| {
        let (mut sum, mut end) = (0, begin);
        while sum < len && end < count {
            sum += smalls[end].len;
            end += 1;
        }
        bigs.push(begin..end);
        begin = end;
    };
    for small in smalls {
        count += 1;
        cutter.push(small.len, small.level, |len, _| take(len, count));
    }
    if let Some(len) = cutter.finish() {
        take(len, count);
    }
    bigs
}

/// Breaking-apart: a new big chunk beside a duplicate is cut into smalls. One question for each big chunk.
pub fn breaking_apart(bigs: &[Range<usize>], emit: &mut Emit) {
    let mut after_duplicate = false;
    for (index, big) in bigs.iter().enumerate() {
        let exists = emit.exists(big.clone());
        // The next is asked about in any case, so the number of questions is that of the big chunks.
        let before_duplicate = bigs.get(index + 1).is_some_and(|next| emit.exists(next.clone()));
        if exists || !after_duplicate && !before_duplicate {
            emit.chunk(big.clone());
        } else {
            emit.each(big.clone());
        }
        after_duplicate = exists;
    }
}

/// Amalgamation: at each place `find` looks for a duplicate among the next smalls, of which `k` are left. What is before one
/// is emitted one by one, and so are `k` smalls behind one; else they become one chunk.
fn amalgamate(
    smalls: usize,
    k: usize,
    emit: &mut Emit,
    mut find: impl FnMut(usize, &mut Emit) -> Option<Range<usize>>,
) {
    let (mut at, mut after_duplicate) = (0, false);
    while at + k <= smalls {
        if let Some(run) = find(at, emit) {
            emit.each(at..run.start);
            emit.chunk(run.clone());
            (at, after_duplicate) = (run.end, true);
            continue;
        }
        if after_duplicate {
            emit.each(at..at + k);
        } else {
            emit.chunk(at..at + k);
        }
        (at, after_duplicate) = (at + k, false);
    }
    emit.each(at..smalls);
}

/// Amalgamation of `k` smalls each. The search for a duplicate goes up to `k` smalls ahead, or with `extended` to `2 k - 1`.
/// At most one question for each small.
pub fn k_fixed(smalls: usize, k: usize, extended: bool, emit: &mut Emit) {
    let reach = if extended { 2 * k - 1 } else { k };
    amalgamate(smalls, k, emit, |at, emit| {
        let mut runs = (at..=at + reach).map(|from| from..from + k).take_while(|run| run.end <= smalls);
        runs.find(|run| emit.exists(run.clone()))
    });
}

/// Amalgamation of 2 to `k` smalls: every length is asked about at every place, the longest first. At most `k - 1` questions
/// for each small.
pub fn k_var(smalls: usize, k: usize, emit: &mut Emit) {
    amalgamate(smalls, k, emit, |at, emit| {
        let mut runs = (at..=at + k).flat_map(|from| (2..=k).rev().map(move |len| from..from + len));
        runs.find(|run| run.end <= smalls && emit.exists(run.clone()))
    });
}
