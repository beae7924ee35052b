//! Directories: their tree, and which of them gets a file.
//!
//! A new directory comes under an old one with a probability in proportion to the subdirectories of that plus two (Agrawal
//! et al., FAST '07). How many files a directory has is inverse polynomial of degree 2 and offset 2.36 (Impressions).

use crate::history::ROOT;
use ashlar_models::Chance;
use ashlar_survey::sample::mix;

/// Where the distribution is cut. Ours: without an end it has no mean, and one directory gets most of the files.
const FILES_MAX: f64 = 500.0;

pub(super) struct Tree {
    ids: Vec<(u64, u64)>,
    /// Sums of the weights up to and with each directory.
    sums: Vec<f64>,
}

impl Tree {
    pub(super) fn new(count: u32, seed: u64, chance: &mut Chance) -> Tree {
        // Each stands here twice, and once more for each of its subdirectories.
        let mut stake = vec![ROOT, ROOT];
        let (mut ids, mut sums, mut sum) = (Vec::new(), Vec::new(), 0.0);
        for number in 0..count {
            let parent = stake[chance.below(stake.len() as u64) as usize];
            let id = mix(seed ^ 0xd1, u64::from(number)).max(1);
            stake.extend([parent, id, id]);
            ids.push((id, parent));
            // P(files ≥ n) = 2.36 / (n + 2.36).
            let files = (2.36 / (1.0 - chance.unit()) - 2.36).min(FILES_MAX);
            sum += files + 0.1;
            sums.push(sum);
        }
        Tree { ids, sums }
    }

    /// Each with its parent, parents first.
    pub(super) fn directories(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ids.iter().copied()
    }

    /// A directory for a file.
    pub(super) fn choose(&self, chance: &mut Chance) -> u64 {
        let at = chance.unit() * self.sums.last().copied().unwrap_or(0.0);
        let index = self.sums.partition_point(|sum| *sum <= at);
        self.ids.get(index).map_or(ROOT, |(id, _)| *id)
    }
}
