//! From what was found in a sample to ranges of ratios.
//!
//! A ratio is stored bytes by logical bytes. Logical are all bytes but those of holes, each file once whatever its number of
//! names. The sample is one of clusters ([`crate::sample`]); a value counts in each cluster that holds it, once. So there
//! are three parts: zeros, which are stored once; copies within clusters, which the sample counts; and values that clusters
//! share, which [`crate::unseen`] estimates.
//!
//! The noise of the histogram is measured. Chunks that lie side by side in the same clusters come into the sample together,
//! so they count as one event however many they are; and events that have a cluster in common come together more often. The
//! variance of a number of the histogram is the sum of the products of all pairs of its events that share a cluster (the
//! estimator of Horvitz and Thompson for a small share). Independent chunks are events of their own, and this is then the
//! variance of a Poisson number.

use crate::compress::Packer;
use crate::incidence::Incidences;
use crate::listing::STRATA;
use crate::sample::mix;
use crate::tally::{Base, Cluster, PackedValue, Tally};
use crate::unseen::{NoAnswer, Sample, Slack, range};
use std::collections::{BTreeMap, HashMap};
use std::io;

/// Values in more clusters than this are told together.
const ROWS: usize = 60;
/// Values in more clusters than this are abundant: others like them are in the sample for certain.
const RARE: usize = 16;
/// Standard deviations of the range: 95 of 100 samples.
const DEVIATIONS: f64 = 2.0;
/// Where no event was seen, two deviations are as many events as are missed by 5 of 100 samples: three.
const NONE_SEEN: f64 = 1.5;
/// Events that must count for their usual size to be known.
const EVENTS_KNOWN: f64 = 30.0;
/// Clusters of a stratum without which it is none of its own.
const STRATUM_MIN: usize = 10;
/// Standard deviations of the mean ratio of compression: more, since neighbours compress alike.
const DEVIATIONS_PACKING: f64 = 3.0;
/// Chunks that must have been compressed for their ratio to say something of the others.
const PACKED_MIN: usize = 30;

/// A ratio: a range from a sample, or the value itself from everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ratio {
    /// Between these.
    Range(f64, f64),
    /// This.
    Value(f64),
}

impl Ratio {
    /// Bounds.
    pub fn bounds(self) -> (f64, f64) {
        match self {
            Ratio::Range(low, high) => (low, high),
            Ratio::Value(value) => (value, value),
        }
    }
    /// From the lower bound to the upper.
    pub fn width(self) -> f64 {
        let (low, high) = self.bounds();
        high - low
    }
}

/// What is known about one chunking.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Stored by logical bytes.
    pub dedup: Ratio,
    /// The same with what is stored compressed by lz4, and by zstd at level 3. A value only if every chunk was compressed.
    pub compressed: [Ratio; 2],
    /// Share of the logical bytes that are chunks of zeros.
    pub zeros: f64,
    /// Chunks that would be indexed.
    pub chunks: Ratio,
    /// Mean length of a chunk in bytes.
    pub mean_len: f64,
    /// Distinct values by the number of places where they were seen: of one, two, … the last of that many or more.
    pub by_copies: Vec<f64>,
}

impl Evaluation {
    /// Nothing was in the sample.
    fn unknown() -> Evaluation {
        let any = Ratio::Range(0.0, 1.0);
        let (chunks, by_copies) = (Ratio::Range(0.0, 0.0), vec![0.0; ROWS + 1]);
        Evaluation { dedup: any, compressed: [any; 2], zeros: 0.0, chunks, mean_len: 0.0, by_copies }
    }
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum EvaluationError {
    /// A file of spilled incidences.
    #[error("what was put aside cannot be read: {0}")]
    Spilled(#[from] io::Error),
    /// The estimator.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
}

/// Weight, weight after lz4, and after zstd, of the values in a row that were compressed.
type Packed = [f64; 3];

/// The histogram and its noise.
#[derive(Default)]
struct Rows {
    weight: Vec<f64>,
    values: Vec<f64>,
    packed: Vec<Packed>,
    /// Compressed values.
    packed_values: usize,
    /// Over all compressed values: sums of squares of lengths, and for each codec of squares and of products with lengths.
    packed_squares: [f64; 5],
    /// Events by what clusters they are in: row and weight.
    events: BTreeMap<u64, (usize, f64)>,
    /// Weight that each cluster shares with others, by row: what comes and goes with it.
    shared: BTreeMap<(u32, usize), f64>,
    /// Of values in more clusters than are told apart: weight times clusters, squares of weights, and these times clusters.
    common: [f64; 3],
    /// Bytes of all incidences of each cluster, for the noise of their share.
    clusters: BTreeMap<u32, f64>,
}

impl Rows {
    fn new() -> Rows {
        let zeros = vec![0.0; ROWS + 1];
        Rows { weight: zeros.clone(), values: zeros, packed: vec![[0.0; 3]; ROWS + 1], ..Rows::default() }
    }

    /// A value in `places` clusters, of which the first are named. A drawn value stands for `factor` values.
    fn add(&mut self, places: usize, clusters: &[u32], len: f64, factor: f64, packed: Option<&PackedValue>) {
        let row = places.saturating_sub(1).min(ROWS);
        let weight = len * factor;
        self.weight[row] += weight;
        self.values[row] += factor;
        if let Some(packed) = packed {
            self.packed_values += 1;
            let sum = &mut self.packed[row];
            let [len, lz4, zstd] = [packed.len, packed.lz4, packed.zstd].map(f64::from);
            *sum = [sum[0] + len, sum[1] + lz4, sum[2] + zstd];
            let squares = &mut self.packed_squares;
            for (sum, more) in squares.iter_mut().zip([len * len, lz4 * lz4, lz4 * len, zstd * zstd, zstd * len]) {
                *sum += more;
            }
        }
        if row == ROWS {
            let places = places as f64;
            let more = [weight * places, weight * weight, weight * weight * places];
            self.common.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        } else if row > 0 {
            let signature = clusters.iter().fold(0, |sum, cluster| mix(sum, u64::from(*cluster) + 1));
            let event = self.events.entry(signature).or_insert((row, 0.0));
            event.1 += weight;
            for cluster in clusters {
                *self.shared.entry((*cluster, row)).or_insert(0.0) += weight;
            }
        }
    }

    /// Standard deviations of all rows up to the last of rare values, and of the number of all others.
    fn noise(&self, least_event: f64) -> (Vec<f64>, f64) {
        let (mut variance, mut events) = (vec![0.0; ROWS], vec![0.0; ROWS]);
        for ((_, row), weight) in &self.shared {
            variance[*row] += weight * weight;
        }
        let (mut squares, mut fourths, mut sum) = (0.0, 0.0, 0.0);
        for (row, weight) in self.events.values() {
            // Of pairs of events that have a cluster in common, each counts in all clusters of both; of one event alone
            // that is too often by all but once.
            variance[*row] -= weight * weight * *row as f64;
            events[*row] += weight * weight;
            squares += weight * weight;
            fourths += weight.powi(4);
            sum += weight;
        }
        // What was not seen may still be there: an event more of the usual size. While few events, or few large ones, were
        // seen, the usual size is not known, and it may be a whole cluster.
        let known = if fourths > 0.0 { squares * squares / fourths / EVENTS_KNOWN } else { 0.0 };
        let event = if sum > 0.0 { (squares / sum).max(least_event * (1.0 - known)) } else { least_event };
        let variance: Vec<f64> = variance.iter().zip(&events).map(|(variance, least)| variance.max(*least)).collect();
        let deviation = |row: usize| {
            // A row with few values by chance seems to have little noise, and would count for more than one with many: of rows
            // that are much alike all have the noise of their mean.
            let near = &variance[row - row / 3..(row + row / 3 + 1).min(ROWS)];
            (near.iter().sum::<f64>() / near.len() as f64 + event * event).sqrt()
        };
        let abundant = variance[RARE..].iter().sum::<f64>() + self.common[1] + event * event;
        ((0..RARE).map(deviation).collect(), abundant.sqrt())
    }

    /// Standard deviation of the mass of abundant values in the sample. Those that are in more clusters than are told apart lie
    /// in clusters together as the others do.
    fn abundant_noise(&self, share: f64) -> f64 {
        let mut together: BTreeMap<u32, f64> = BTreeMap::new();
        for ((cluster, _), weight) in self.shared.iter().filter(|((_, row), _)| *row >= RARE) {
            *together.entry(*cluster).or_insert(0.0) += weight;
        }
        let squares: f64 = together.values().map(|weight| weight * weight).sum();
        let apart = self.events.values().filter(|(row, _)| *row >= RARE);
        let apart: f64 = apart.map(|(row, weight)| weight * weight * (*row + 1) as f64).sum();
        let factor = if apart > 0.0 { (squares / apart).max(1.0) } else { 1.0 };
        ((apart + self.common[2]) * factor * (1.0 - share)).sqrt()
    }

    /// Mass of rare values, and weight of abundant ones.
    fn rare_and_abundant(&self) -> (f64, f64) {
        let (rare, abundant) = self.weight.split_at(RARE);
        (rare.iter().zip(1..).map(|(weight, places)| weight * f64::from(places)).sum(), abundant.iter().sum())
    }

    /// Weight of all values, in each cluster that holds them.
    fn mass(&self) -> f64 {
        let rare: f64 = self.weight[..ROWS].iter().zip(1..).map(|(weight, places)| weight * f64::from(places)).sum();
        rare + self.common[0]
    }

    /// Mean ratio of compression in a row; of all rows where the row has none.
    fn packing(&self, codec: usize) -> Vec<f64> {
        let ratio = |packed: Packed| if packed[0] > 0.0 { packed[codec + 1] / packed[0] } else { f64::NAN };
        let join = |rows: &[Packed]| {
            rows.iter().fold([0.0; 3], |sum, row| [sum[0] + row[0], sum[1] + row[1], sum[2] + row[2]])
        };
        let all = ratio(join(&self.packed));
        let shared = ratio(join(&self.packed[1..]));
        let pick = |row: usize| {
            let own = ratio(self.packed[row]);
            // A handful of chunks say little about a row.
            let known = self.packed[row][0] >= 32.0 * self.mean_len();
            [own, shared, all, 1.0].into_iter().skip(usize::from(!known)).find(|ratio| ratio.is_finite()).unwrap_or(1.0)
        };
        (0..=ROWS).map(pick).collect()
    }

    /// Bytes of all compressed values: before, or after a codec.
    fn packed_bytes(&self, index: usize) -> f64 {
        self.packed.iter().map(|row| row[index]).sum()
    }

    /// Bytes that are stored if every value was compressed; `None` if only some were.
    fn all_packed(&self, codec: usize) -> Option<f64> {
        let all = (self.packed_bytes(0) - self.weight.iter().sum::<f64>()).abs() < 0.5;
        all.then(|| self.packed_bytes(codec + 1))
    }

    /// Relative standard deviation of the mean ratio of compression; one if nothing is known of it.
    fn packing_noise(&self, codec: usize) -> f64 {
        let [len, packed] = [0, codec + 1].map(|index| self.packed_bytes(index));
        if packed <= 0.0 || self.packed_values < PACKED_MIN {
            return 1.0;
        }
        let ratio = packed / len;
        let [lens, squares, products] = [0, 2 * codec + 1, 2 * codec + 2].map(|index| self.packed_squares[index]);
        (squares - 2.0 * ratio * products + ratio * ratio * lens).max(0.0).sqrt() / packed
    }

    fn mean_len(&self) -> f64 {
        let values: f64 = self.values.iter().sum();
        if values > 0.0 { self.weight.iter().sum::<f64>() / values } else { 0.0 }
    }
}

/// What the sample is of.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// Logical bytes of everything.
    pub logical: u64,
    /// All of it was read.
    pub full: bool,
    /// Bytes of the first files of each size in their groups, and of all, by stratum.
    pub strata: [[u64; 2]; STRATA],
}

/// Ratios of a chunking from what was found.
pub fn evaluate(tally: &mut Tally, whole: Whole) -> Result<Evaluation, EvaluationError> {
    let mut rows = Rows::new();
    let mut seen = tally.bytes as f64;
    let mut zero_share = if seen > 0.0 { tally.zero as f64 / seen } else { 0.0 };
    match &mut tally.base {
        Some(base) => base_rows(base, seen, &tally.packed, &mut rows),
        None => all_rows(&mut tally.incidences, whole.full, &tally.packed, &mut rows)?,
    }
    if seen == 0.0 && whole.logical > 0 && !whole.full {
        return Ok(Evaluation::unknown());
    }
    if seen == 0.0 {
        (seen, zero_share) = (1.0, 0.0);
    }
    let share = if whole.full { 1.0 } else { (seen / whole.logical.max(1) as f64).min(1.0) };
    let exact = whole.full || share >= 0.9999;
    let zero_stored: f64 = tally.zero_lens.iter().map(|len| f64::from(*len)).sum();
    let zero_packed = packed_zeros(tally.zero_lens.last().copied());
    // What the sample holds of mass by chance more or less than its share.
    let (scale, within) = if exact { (1.0, 0.0) } else { calibrated(&rows, tally, &whole, share) };
    let ratio = |codec: Option<usize>| -> Result<Ratio, NoAnswer> {
        let within = within.hypot(codec.map_or(0.0, |codec| DEVIATIONS_PACKING * rows.packing_noise(codec)));
        let packing = codec;
        let packing = packing.map_or_else(|| vec![1.0; ROWS + 1], |codec| rows.packing(codec));
        let counts: Vec<f64> = rows.weight.iter().zip(&packing).map(|(weight, packing)| weight * packing).collect();
        let stored: f64 = counts.iter().sum();
        let logical = seen / share;
        let zero_stored = zero_stored * codec.map_or(1.0, |codec| zero_packed[codec]);
        if exact {
            let part = |stored: f64| (stored + zero_stored) / logical;
            let sampled =
                || Ratio::Range(part(stored * (1.0 - within).max(0.0)), part(stored * (1.0 + within)).min(1.0));
            return Ok(match codec {
                None => Ratio::Value(part(stored)),
                Some(codec) => rows.all_packed(codec).map_or_else(sampled, |stored| Ratio::Value(part(stored))),
            });
        }
        let (rare, abundant) = counts.split_at(RARE);
        let abundant: f64 = abundant.iter().sum();
        let mass: f64 = rare.iter().zip(1..).map(|(count, places)| count * f64::from(places)).sum();
        let mean_cluster = rows.mass() / tally.clusters.len().max(1) as f64;
        let (noise, abundant_noise) = rows.noise(NONE_SEEN * mean_cluster);
        let mut noise: Vec<f64> = noise.iter().zip(&packing).map(|(noise, packing)| noise * packing).collect();
        let last = rare.iter().rposition(|count| *count > 0.0).map_or(1, |row| row + 2).min(RARE);
        let used = if abundant > 0.0 { RARE } else { last };
        let mut counts = rare.to_vec();
        counts.truncate(used);
        noise.truncate(used);
        // What abundant values have by chance too little of the sample, the others have too much.
        let (rare_seen, abundant_seen) = rows.rare_and_abundant();
        let split = if rare_seen > 0.0 { DEVIATIONS * rows.abundant_noise(share) / rare_seen } else { 0.0 };
        let within = within.hypot(split);
        let packed = if abundant_seen > 0.0 { abundant / abundant_seen } else { 1.0 };
        let beyond = (abundant, abundant_noise * packed);
        let found = range(&Sample { counts, noise, beyond, share, total: mass / share }, Slack::Noise(DEVIATIONS))?;
        let part = |distinct: f64| (distinct * scale + abundant + zero_stored) / logical;
        let least = if codec.is_none() { (stored + zero_stored) / logical } else { 0.0 };
        // Errors of different origin that do not depend on each other.
        let best = part(found.best);
        let low = (best - (best - part(found.low)).hypot(best * within)).max(least);
        let high = (best + (part(found.high) - best).hypot(best * within)).min(1.0).max(low);
        Ok(Ratio::Range(low, high))
    };
    let dedup = ratio(None)?;
    // What does not become smaller is stored as it is.
    let compressed = [ratio(Some(0))?, ratio(Some(1))?].map(|ratio| match ratio {
        Ratio::Range(low, high) => Ratio::Range(low.min(dedup.bounds().1), high.min(dedup.bounds().1)),
        value => value,
    });
    let mean_len = match rows.mean_len() {
        0.0 => zero_stored / tally.zero_lens.len().max(1) as f64,
        mean => mean,
    };
    let count = |ratio: f64| if mean_len > 0.0 { ratio * whole.logical as f64 / mean_len } else { 0.0 };
    let chunks = match dedup {
        Ratio::Value(value) => Ratio::Value(count(value)),
        Ratio::Range(low, high) => Ratio::Range(count(low), count(high)),
    };
    Ok(Evaluation { dedup, compressed, zeros: zero_share, chunks, mean_len, by_copies: rows.values })
}

/// What both codecs leave of zeros.
fn packed_zeros(longest: Option<u32>) -> [f64; 2] {
    let zeros = vec![0; longest.unwrap_or(1) as usize];
    let packed = Packer::new().pack(0, &zeros);
    [packed.lz4, packed.zstd].map(|bytes| f64::from(bytes) / zeros.len() as f64)
}

/// By how much the mass of values in all clusters, each value once in each cluster, differs from that of the sample divided
/// by its share; and the relative error of this that 95 of 100 samples stay below, and some more.
///
/// Clusters differ much: of twelve equal files a twelfth is left, of twelve versions more. But the listing tells sizes of all
/// files, sampled or not, and equal sizes in a group are most often copies. So mass is estimated by regression on the bytes of
/// the first file of each size and on those of all files, both known of the whole, within classes of groups by the number of
/// sizes (a separate regression estimator after stratification: Cochran, *Sampling Techniques*, chapter 7; Särndal, Swensson and
/// Wretman, *Model Assisted Survey Sampling*, chapter 6). Residuals are weighted by one over a cluster's bytes, so that their
/// sum is zero. If sizes mislead, residuals are large, and so is the error. A cluster pulls the fit towards itself, which its
/// residual is corrected for (as HC3 of MacKinnon and White, 1985); and where few residuals make up most of the squares, their
/// sum says little, so Student's distribution takes the place of the normal one, with as many degrees of freedom as there are
/// residuals that count.
fn calibrated(rows: &Rows, tally: &Tally, whole: &Whole, share: f64) -> (f64, f64) {
    let mut strata = [Stratum::default(); STRATA];
    let index = |known: &Cluster| usize::from(known.stratum).min(STRATA - 1);
    tally.clusters.values().for_each(|known| strata[index(known)].clusters += 1);
    // Few clusters say nothing of a stratum: all such ones are one.
    let few = strata.map(|stratum| stratum.clusters < STRATUM_MIN);
    let rest = few.iter().position(|few| *few).unwrap_or(0);
    let place = |stratum: usize| if few[stratum] { rest } else { stratum };
    for (stratum, [first, all]) in whole.strata.iter().enumerate() {
        let whole = &mut strata[place(stratum)].whole;
        *whole = [whole[0] + *first as f64, whole[1] + *all as f64];
    }
    let known = || {
        tally.clusters.iter().filter(|(_, known)| known.bytes > 0).map(|(cluster, known)| {
            let mass = rows.clusters.get(cluster).copied().unwrap_or(0.0);
            (place(index(known)), [known.first as f64, known.bytes as f64], mass)
        })
    };
    known().for_each(|(stratum, sizes, mass)| strata[stratum].add(sizes, mass));
    strata.iter_mut().for_each(Stratum::fit);
    known().for_each(|(stratum, sizes, mass)| strata[stratum].residual(sizes, mass));
    let seen = rows.mass();
    let sums = strata.iter().filter(|stratum| stratum.squares[2] > 0.0).fold([0.0; 4], |sum, stratum| {
        let Stratum { whole, residuals, .. } = stratum;
        [sum[0] + stratum.total(), sum[1] + residuals[0], sum[2] + residuals[1], sum[3] + whole[1]]
    });
    let [total, variance, fourths, covered] = sums;
    if seen <= 0.0 || total <= 0.0 || covered <= 0.0 {
        return (1.0, 0.0);
    }
    // Strata of which nothing was seen are as the others are.
    let all: f64 = strata.iter().map(|stratum| stratum.whole[1]).sum();
    let total_all = total * all / covered;
    let freedom = if fourths > 0.0 { variance * variance / fourths - 1.0 } else { f64::INFINITY };
    (total_all / (seen / share), student(freedom) * variance.sqrt() / total)
}

/// What 98 of 100 values of Student's distribution stay below by their absolute value: few large clusters make most of the
/// variance, which is then too small in as many samples as it is too large. With 95, 18 to 20 of 20 ranges of 9 GB of packages
/// held the truth; with 98, 20 of 20, a fifth wider. Fewer degrees of freedom than one and a half are what chance made of a sample
/// that is too small to tell.
fn student(freedom: f64) -> f64 {
    ashlar_models::student_quantile(0.99, freedom.max(1.5))
}

/// Below this the two sizes of clusters tell the same: the determinant, relative to what it is at most.
const COLLINEAR: f64 = 1e-3;

/// Clusters of one class, and the regression of their mass.
#[derive(Clone, Copy, Default)]
struct Stratum {
    clusters: usize,
    /// Bytes of the first files and of all, of the whole.
    whole: [f64; 2],
    /// Weighted sums of squares and products of these, of clusters in the sample: first by first, first by all, all by all.
    squares: [f64; 3],
    /// Weighted sums of their products with the mass.
    products: [f64; 2],
    /// Inverse of the matrix of squares, and the coefficients.
    inverse: [f64; 3],
    fitted: [f64; 2],
    /// Squares and fourth powers of what mass differs by from the fit, as of the whole.
    residuals: [f64; 2],
}

impl Stratum {
    fn add(&mut self, [first, all]: [f64; 2], mass: f64) {
        for (sum, more) in self.squares.iter_mut().zip([first * first / all, first, all]) {
            *sum += more;
        }
        for (sum, more) in self.products.iter_mut().zip([first * mass / all, mass]) {
            *sum += more;
        }
    }

    fn fit(&mut self) {
        let [one, both, other] = self.squares;
        let determinant = one * other - both * both;
        self.inverse = match () {
            () if determinant > COLLINEAR * one * other => {
                [other / determinant, -both / determinant, one / determinant]
            }
            () if other > 0.0 => [0.0, 0.0, 1.0 / other],
            () => [0.0; 3],
        };
        self.fitted = self.solve(self.products);
    }

    fn solve(&self, right: [f64; 2]) -> [f64; 2] {
        let [one, both, other] = self.inverse;
        [one * right[0] + both * right[1], both * right[0] + other * right[1]]
    }

    fn residual(&mut self, sizes: [f64; 2], mass: f64) {
        let dot = |one: [f64; 2], other: [f64; 2]| one[0] * other[0] + one[1] * other[1];
        let own = (dot(sizes, self.solve(sizes)) / sizes[1]).clamp(0.0, 0.9);
        let weight = dot(sizes, self.solve(self.whole)) / sizes[1];
        let residual = weight * (mass - dot(sizes, self.fitted)) / (1.0 - own);
        self.residuals = [self.residuals[0] + residual.powi(2), self.residuals[1] + residual.powi(4)];
    }

    /// Mass of the whole: no more than there are bytes.
    fn total(&self) -> f64 {
        (self.fitted[0] * self.whole[0] + self.fitted[1] * self.whole[1]).clamp(0.0, self.whole[1])
    }
}

/// Reads all incidences into rows.
fn all_rows(
    incidences: &mut Incidences,
    full: bool,
    packed: &HashMap<u64, PackedValue>,
    rows: &mut Rows,
) -> io::Result<()> {
    let (mut value, mut places, mut named, mut len) = (None, 0usize, Vec::new(), 0.0);
    let mut clusters = BTreeMap::new();
    incidences.for_each(|found| {
        if value != Some(found.value) {
            if let Some(value) = value {
                rows.add(places, &named, len, 1.0, packed.get(&value));
            }
            named.clear();
            (value, places, len) = (Some(found.value), 0, f64::from(found.len));
        }
        places += if full { found.count as usize } else { 1 };
        if named.len() < ROWS {
            named.push(found.cluster);
        }
        if !full {
            *clusters.entry(found.cluster).or_insert(0.0) += f64::from(found.len);
        }
    })?;
    if let Some(value) = value {
        rows.add(places, &named, len, 1.0, packed.get(&value));
    }
    rows.clusters = clusters;
    Ok(())
}

/// Rows from the base sample, for `seen` bytes of sample.
fn base_rows(base: &Base, seen: f64, packed: &HashMap<u64, PackedValue>, rows: &mut Rows) {
    // Each incidence of the sample was drawn with this probability.
    let drawn_share = base.bytes as f64 / seen.max(1.0);
    if drawn_share <= 0.0 {
        return;
    }
    for (value, counted) in &base.values {
        let places = counted.places();
        let factor = f64::from(counted.draws) / places as f64 / drawn_share;
        rows.add(places, counted.clusters(), f64::from(counted.len), factor, packed.get(value));
        for cluster in counted.drawn_in(base) {
            *rows.clusters.entry(cluster).or_insert(0.0) += f64::from(counted.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Share;
    use crate::tally::{Mode, Part};
    use ashlar_models::Chance;

    /// A whole of clusters of 16 chunks; every fourth cluster repeats an earlier one, shifted by `shift` chunks.
    fn whole(shift: u64, clusters: u64) -> Vec<Vec<u64>> {
        let mut chance = Chance::new(5);
        let mut whole: Vec<Vec<u64>> = Vec::new();
        for cluster in 0..clusters {
            let chunks = match cluster % 4 {
                0 if cluster > 0 => {
                    let from = chance.below(cluster) as usize;
                    (0..16).map(|index| whole[from][((index + shift) % 16) as usize]).collect()
                }
                _ => (0..16).map(|index| mix(cluster + 1, index)).collect(),
            };
            whole.push(chunks);
        }
        whole
    }

    fn sampled(whole: &[Vec<u64>], seed: u64, part: f64, mode: Mode) -> Evaluation {
        let share = Share { from: 0.0, to: part };
        let mut tally = Tally::new(mode, 1 << 30, &std::env::temp_dir());
        let base_part = part / 4.0;
        let passes: &[bool] = if mode == Mode::Base { &[true, false] } else { &[false] };
        for drawing in passes {
            for (cluster, chunks) in whole.iter().enumerate() {
                if !share.has(seed, cluster as u64)
                    || *drawing && !(Share { from: 0.0, to: base_part }).has(seed, cluster as u64)
                {
                    continue;
                }
                for value in chunks {
                    tally.found(*value, cluster as u32, 4096, *drawing).expect("space");
                }
                let part = Part { bytes: chunks.len() as u64 * 4096, zero: 0, first: true, stratum: 0 };
                tally.unit(cluster as u32, part, *drawing);
            }
        }
        let logical = whole.iter().map(Vec::len).sum::<usize>() as u64 * 4096;
        let mut strata = [[0; 2]; STRATA];
        strata[0] = [logical, logical];
        evaluate(&mut tally, Whole { logical, full: part >= 1.0, strata }).expect("an answer")
    }

    #[test]
    fn quantiles_of_student() {
        for (freedom, expected) in [(2.0, 6.965), (3.0, 4.541), (5.0, 3.365), (10.0, 2.764), (1e9, 2.326)] {
            assert!((student(freedom) / expected - 1.0).abs() < 3e-4, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn everything_gives_the_value() {
        let whole = whole(0, 1000);
        let Ratio::Value(value) = sampled(&whole, 1, 1.0, Mode::Full).dedup else { panic!("a range") };
        let mut all: Vec<u64> = whole.concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert!((value - all.len() as f64 / count as f64).abs() < 1e-12);
    }

    /// Values with so many copies each, anywhere; clusters of 8 chunks.
    fn scattered(classes: &[(u64, u64)]) -> Vec<Vec<u64>> {
        let mut chance = Chance::new(9);
        let mut all = Vec::new();
        for (class, (values, copies)) in classes.iter().enumerate() {
            for value in 0..*values {
                all.extend(std::iter::repeat_n(mix(class as u64 + 77, value), *copies as usize));
            }
        }
        for at in (1..all.len()).rev() {
            all.swap(at, chance.below(at as u64 + 1) as usize);
        }
        all.chunks(8).map(<[u64]>::to_vec).collect()
    }

    #[test]
    fn ranges_hold_the_truth_where_some_values_have_hundreds_of_copies() {
        let sets: [&[(u64, u64)]; 5] = [
            &[(60_000, 1), (120, 300)],
            &[(60_000, 1), (12, 3000)],
            &[(60_000, 1), (8, 3000), (40, 300)],
            &[(90_000, 1), (60, 500), (200, 40)],
            &[(40_000, 1), (10_000, 2), (1000, 20), (100, 100), (20, 800)],
        ];
        for classes in sets {
            let whole = scattered(classes);
            let Ratio::Value(truth) = sampled(&whole, 1, 1.0, Mode::Full).dedup else { panic!("a range") };
            for (part, most) in [(0.02, 0.65), (0.05, 0.4), (0.10, 0.2), (0.20, 0.07)] {
                let (mut inside, mut width) = (0, 0.0);
                for seed in 0..20 {
                    let Ratio::Range(low, high) = sampled(&whole, seed, part, Mode::Full).dedup else {
                        panic!("a value")
                    };
                    inside += i32::from(low <= truth && truth <= high);
                    width += (high - low) / 20.0;
                }
                assert!(inside >= 19, "{classes:?} {part}: {inside} of 20 hold {truth}");
                assert!(width < most, "{classes:?} {part}: {width}");
            }
        }
    }

    #[test]
    fn ranges_of_correlated_samples_hold_the_truth() {
        let whole = whole(3, 60_000);
        let Ratio::Value(truth) = sampled(&whole, 1, 1.0, Mode::Full).dedup else { panic!("a range") };
        for (mode, most) in [(Mode::Full, 0.45), (Mode::Base, 0.6)] {
            let (mut inside, mut width) = (0, 0.0);
            for seed in 0..20 {
                let Ratio::Range(low, high) = sampled(&whole, seed, 0.05, mode).dedup else { panic!("a value") };
                inside += i32::from(low <= truth && truth <= high);
                width += (high - low) / 20.0;
            }
            assert!(inside >= 19, "{mode:?}: {inside} of 20 hold {truth}; mean width {width}");
            assert!(width < most, "{mode:?}: {width}");
        }
    }
}
