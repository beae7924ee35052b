//! What raw chips bore (Table 2 of the paper), and how wear goes round.

use ashlar_models::Chance;

/// A chip that was worn out, in cycles of program and erase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Its name.
    pub name: &'static str,
    /// What its maker promises.
    pub nominal: f64,
    /// Mean of the blocks that were tried.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

const fn chip(name: &'static str, nominal: f64, mean: f64, deviation: f64, below: f64, above: f64) -> Chip {
    Chip {
        name,
        nominal,
        mean: mean * 1e6,
        deviation: deviation * 1e6,
        least: (mean - below) * 1e6,
        most: (mean + above) * 1e6,
    }
}

/// Table 2.
pub const CHIPS: [Chip; 8] = [
    chip("slc-128mb-90nm", 1e5, 10.3, 0.003, 0.002, 0.002),
    chip("slc-512mb-90nm", 1e5, 6.59, 1.32, 1.82, 2.09),
    chip("slc-2gb-50nm", 1e5, 0.806, 0.388, 0.324, 0.660),
    chip("slc-4gb-72nm", 1e5, 2.39, 1.65, 1.02, 2.89),
    chip("slc-8gb-60nm", 1e5, 0.827, 0.248, 0.359, 0.465),
    chip("mlc-8gb-72nm", 1e4, 0.783, 0.198, 0.252, 0.313),
    chip("slc-16gb-50nm", 1e5, 0.614, 0.078, 0.089, 0.136),
    chip("mlc-32gb-50nm", 1e4, 0.793, 0.164, 0.128, 0.185),
];

impl Chip {
    /// The chip of a name.
    pub fn find(name: &str) -> Option<Chip> {
        CHIPS.into_iter().find(|chip| chip.name == name)
    }

    /// Cycles that a block bears.
    pub fn sample(&self, chance: &mut Chance) -> f64 {
        (self.mean + self.deviation * chance.normal()).clamp(self.least, self.most)
    }
}

/// Writes of one address until the device is dead, where each update takes the free block that was erased longest ago, and
/// erases the old one. `limits` are the cycles of the free blocks and of the block that holds the address; the device is
/// dead when all but one have reached theirs.
pub fn rotation(limits: &[u64]) -> u64 {
    // Every living block is erased in turn: when the last but one dies, the last has one erasure less, or as many.
    let mut order: Vec<(u64, usize)> = limits.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let Some(&[(death, at), (_, last)]) = order.last_chunk::<2>() else { return 0 };
    let dead: u64 = order[..order.len() - 1].iter().map(|(limit, _)| limit).sum();
    dead + if last < at { death } else { death - 1 }
}

/// Erasures of a device with log blocks, for writes to erase blocks in order: a block without a log takes the log that
/// was opened longest ago, which is merged.
pub fn erasures(writes: &[u64], logs: usize) -> u64 {
    let mut open = std::collections::VecDeque::new();
    let mut count = 0;
    for block in writes {
        if open.contains(block) {
            continue;
        }
        if open.len() == logs {
            open.pop_front();
            count += 1;
        }
        open.push_back(*block);
    }
    count
}

/// Writes in the order that erases least: those of one erase block beside each other, in the order of their first.
pub fn grouped(writes: &[u64]) -> Vec<u64> {
    let mut order: Vec<u64> = Vec::new();
    writes.iter().for_each(|block| {
        if !order.contains(block) {
            order.push(*block)
        }
    });
    order.into_iter().flat_map(|block| writes.iter().copied().filter(move |other| *other == block)).collect()
}
