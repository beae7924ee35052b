//! LevelDB simulated item by item, to judge the model by (section 4.6 of the paper): in memory, one thing at a time.
//!
//! As the paper's simulator, it does not take more tables of the lower level to trim false overlaps, does not let tables
//! from memory pass levels 0 and 1, and does not allow more than four tables in level 0.

use super::popularity::Distribution;
use ashlar_models::Chance;

/// Which table of a level is compacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Picking {
    /// The next one in the order of keys, as LevelDB does and the model assumes.
    #[default]
    InTurn,
    /// The one with most items (section 6.2 of the paper has stores that do so).
    Largest,
}

/// What a simulation is of. Sizes are in items.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// Keys.
    pub keys: u32,
    /// How requests are spread over them.
    pub distribution: Distribution,
    /// Items that the memtable takes.
    pub memtable: usize,
    /// Sizes of levels 1 to L-1.
    pub sizes: Vec<f64>,
    /// Most items of a table.
    pub table: usize,
    /// Most items of tables in the next but one level that a table may overlap.
    pub grandparents: usize,
    /// Requests for each key, after all keys were written once.
    pub rounds: f64,
    /// Which table of a level is compacted.
    pub picking: Picking,
    /// Decides the requests.
    pub seed: u64,
}

/// Keys of a table, in order.
type Table = Vec<u32>;

#[derive(Default)]
struct Level {
    tables: Vec<Table>,
    items: usize,
    /// Where the last compaction ended.
    last: Option<u32>,
}

/// The write amplification of the requests; the first writing of all keys does not count.
pub fn simulate(simulation: &Simulation) -> f64 {
    let mut store = Store::new(simulation);
    let mut chance = Chance::new(simulation.seed);
    let mut all: Vec<u32> = (0..simulation.keys).collect();
    for index in (1..all.len()).rev() {
        all.swap(index, chance.below(index as u64 + 1) as usize);
    }
    // After the shuffle: which key has which rank. Neighbouring ranks are not neighbouring keys.
    all.iter().for_each(|key| store.insert(*key));
    let (before, sampler) = (store.written, Sampler::new(simulation.keys, &simulation.distribution));
    let requests = (f64::from(simulation.keys) * simulation.rounds) as u64;
    for _ in 0..requests {
        store.insert(all[sampler.rank(&mut chance)]);
    }
    (store.written - before) as f64 / requests as f64
}

struct Store<'a> {
    simulation: &'a Simulation,
    memtable: Vec<u32>,
    zero: Vec<Table>,
    levels: Vec<Level>,
    /// Items written: to the log, and to tables.
    written: u64,
}

impl Store<'_> {
    fn new(simulation: &Simulation) -> Store<'_> {
        let levels = (0..=simulation.sizes.len()).map(|_| Level::default()).collect();
        Store { simulation, memtable: Vec::new(), zero: Vec::new(), levels, written: 0 }
    }

    fn insert(&mut self, key: u32) {
        self.written += 1;
        self.memtable.push(key);
        if self.memtable.len() >= self.simulation.memtable {
            let mut table = std::mem::take(&mut self.memtable);
            table.sort_unstable();
            table.dedup();
            self.written += table.len() as u64;
            self.zero.push(table);
            self.compact();
        }
    }

    /// Compacts the level that is fullest, while one is full.
    fn compact(&mut self) {
        loop {
            let score = |(index, level): (usize, &Level)| match self.simulation.sizes.get(index) {
                Some(size) => (level.items as f64 / size, index + 1),
                None => (0.0, index + 1),
            };
            let zero = (self.zero.len() as f64 / super::designs::LEVEL0_TABLES, 0);
            let scores = self.levels.iter().enumerate().map(score);
            let (score, level) = scores.fold(zero, |best, one| if one.0 > best.0 { one } else { best });
            match level {
                _ if score < 1.0 => return,
                0 => {
                    let tables = std::mem::take(&mut self.zero);
                    let keys = tables.iter().fold(Vec::new(), |keys, table| union(&keys, table));
                    self.merge(keys, 0);
                }
                level => {
                    let from = &mut self.levels[level - 1];
                    let next = match self.simulation.picking {
                        Picking::InTurn => {
                            from.last.map_or(0, |last| from.tables.partition_point(|table| table[0] <= last))
                        }
                        Picking::Largest => {
                            let sizes = from.tables.iter().map(Vec::len).enumerate();
                            sizes.max_by_key(|(_, size)| *size).map_or(0, |(index, _)| index)
                        }
                    };
                    let table = from.tables.remove(if next == from.tables.len() { 0 } else { next });
                    from.items -= table.len();
                    from.last = table.last().copied();
                    self.merge(table, level);
                }
            }
        }
    }

    /// Merges keys into the level with an index (0 is level 1).
    fn merge(&mut self, keys: Table, index: usize) {
        let (Some(&first), Some(&last)) = (keys.first(), keys.last()) else { return };
        let (below, above) = self.levels.split_at_mut(index + 1);
        let level = &mut below[index];
        let from = level.tables.partition_point(|table| table.last().is_some_and(|end| *end < first));
        let end = from + level.tables[from..].partition_point(|table| table[0] <= last);
        let old: Vec<u32> = level.tables[from..end].concat();
        let merged = union(&keys, &old);
        self.written += merged.len() as u64;
        level.items += merged.len();
        level.items -= old.len();
        let tables = split(&merged, above.first(), self.simulation);
        level.tables.splice(from..end, tables);
    }
}

/// Cuts keys into tables: full ones, or such that do not overlap too much two levels down.
fn split(keys: &[u32], grandparents: Option<&Level>, simulation: &Simulation) -> Vec<Table> {
    let no_tables = Vec::new();
    let below = grandparents.map_or(&no_tables, |level| &level.tables);
    let mut next = below.partition_point(|table| table.last() < keys.first());
    let (mut tables, mut from, mut overlap) = (Vec::new(), 0, 0);
    for (index, key) in keys.iter().enumerate() {
        while below.get(next).and_then(|table| table.last()).is_some_and(|end| end < key) {
            overlap += below[next].len();
            next += 1;
        }
        if index > from && (index - from >= simulation.table || overlap > simulation.grandparents) {
            tables.push(keys[from..index].to_vec());
            (from, overlap) = (index, 0);
        }
    }
    tables.push(keys[from..].to_vec());
    tables
}

/// Both sorted lists as one; what is in both stands once.
fn union(one: &[u32], other: &[u32]) -> Table {
    let mut merged = Vec::with_capacity(one.len() + other.len());
    let (mut i, mut j) = (0, 0);
    while i < one.len() && j < other.len() {
        let (a, b) = (one[i], other[j]);
        merged.push(a.min(b));
        i += usize::from(a <= b);
        j += usize::from(b <= a);
    }
    merged.extend_from_slice(&one[i..]);
    merged.extend_from_slice(&other[j..]);
    merged
}

/// Draws ranks.
enum Sampler {
    Uniform(u64),
    /// Sums of the probabilities up to each rank.
    Sums(Vec<f64>),
}

impl Sampler {
    fn new(keys: u32, distribution: &Distribution) -> Sampler {
        let mut sum = 0.0;
        let mut weigh = |weight: f64| {
            sum += weight;
            sum
        };
        match distribution {
            Distribution::Uniform => Sampler::Uniform(keys.into()),
            Distribution::Zipf(skew) => {
                Sampler::Sums((1..=keys).map(|rank| weigh(f64::from(rank).powf(-skew))).collect())
            }
            Distribution::Trace(traced) => {
                // Of each group as many keys as it has of all, rounded where groups end.
                let mut sums = Vec::with_capacity(keys as usize);
                let mut end = 0.0;
                for (same, sum) in traced.sums(keys.into()) {
                    end += same;
                    while (sums.len() as f64) < end.round() {
                        sums.push(weigh(sum / same));
                    }
                }
                Sampler::Sums(sums)
            }
        }
    }

    fn rank(&self, chance: &mut Chance) -> usize {
        match self {
            Sampler::Uniform(keys) => chance.below(*keys) as usize,
            Sampler::Sums(sums) => {
                let place = chance.unit() * sums.last().copied().unwrap_or(0.0);
                sums.partition_point(|sum| *sum <= place).min(sums.len() - 1)
            }
        }
    }
}
