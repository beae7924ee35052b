//! How a trace of requests asks: mix, working set, reuse, sequentiality, bursts, flushes, equal content.

use crate::shards::Distances;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Grain of addresses.
const BLOCK: u64 = 4096;
/// Longest request that is believed: more is a damaged record.
const LEN_MAX: u64 = 1 << 30;
/// Longest time that is believed to lie between the first request and another: ten years.
const TIME_MAX_NS: u64 = 10 * 365 * 86_400 * 1_000_000_000;
/// Streams that are followed at once, as a disk with a cache in segments does.
const STREAMS: usize = 32;
/// Bins of time; when they do not suffice, two become one.
const BINS: usize = 4096;
/// Contents with their sectors that are remembered.
const CONTENTS_MAX: usize = 1 << 19;
/// Contents with more copies are left out of the similarity of the workload, as by Koller and Rangaswami.
const COPIES_MAX: usize = 1000;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make durable.
    Flush,
    /// Give up contents.
    Discard,
}

/// A request of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// When it came, in nanoseconds from some point on.
    pub at_ns: u64,
    /// What it asks for.
    pub ask: Ask,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// A write that must be durable at once.
    pub fua: bool,
    /// Digest of what is read or written, if the trace has it; zero for zeros is not known.
    pub content: Option<u64>,
}

impl Request {
    /// Whether a device can have been asked so: not beyond all addresses, nor for more than is believed.
    pub fn is_possible(&self) -> bool {
        self.len <= LEN_MAX && self.offset.checked_add(self.len).is_some()
    }
}

/// Requests of one kind.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Kind {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
    /// Share of the requests that begin where one of the last 32 streams ended.
    pub sequential_share: f64,
}

/// A point of a miss-ratio curve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MissRatio {
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// Share of the references to blocks that miss in it, with LRU, beginning empty.
    pub miss_ratio: f64,
}

/// How references to blocks come back.
#[derive(Clone, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Reuse {
    /// References to blocks of 4 KiB.
    pub references: u64,
    /// Different ones: the working set, in bytes.
    pub working_set_bytes: u64,
    /// Mean number of references from one to the next of the same.
    pub mean_distance: Option<f64>,
    /// Miss ratios of LRU caches.
    pub miss_ratios: Vec<MissRatio>,
    /// Nothing is estimated: all references were looked at.
    pub exact: bool,
}

/// How equal contents are (Koller and Rangaswami, FAST '10).
#[derive(Clone, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Similarity {
    /// Mean number of sectors with the same content, over what was read.
    pub workload_static: Option<f64>,
    /// Reuse by content instead of address.
    pub reuse: Reuse,
    /// Share of the writes whose content was there before.
    pub rewritten_share: f64,
    /// All contents were remembered; if not, a part of them, chosen by digest.
    pub exact: bool,
}

/// How a trace asks.
#[derive(Clone, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TraceAnswer {
    /// Requests that were understood.
    pub requests: u64,
    /// Records that no device can have done: times, lengths or addresses beyond belief. They are left out.
    pub impossible: u64,
    /// Records that came before one that the trace has earlier: normal where records stand in the order of completion.
    pub out_of_order: u64,
    /// From the first request to the last, seconds.
    pub seconds: f64,
    /// Reads.
    pub reads: Kind,
    /// Writes.
    pub writes: Kind,
    /// Writes that had to be durable at once.
    pub forced_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: Kind,
    /// Share of reads among reads and writes, by requests.
    pub read_share: f64,
    /// Requests by length: upper bound in bytes, reads, writes.
    pub by_length: Vec<(u64, u64, u64)>,
    /// Seconds from one flush to the next: median.
    pub flush_interval_s: Option<f64>,
    /// Bytes that are written from one flush to the next, mean.
    pub bytes_per_flush: Option<f64>,
    /// Requests in the fullest bin of time by those of a mean one.
    pub peak_to_mean: f64,
    /// Variance by mean of requests in bins, for several lengths of bins in seconds: 1 is chance, more are bursts.
    pub dispersion: Vec<(f64, f64)>,
    /// Reuse by address.
    pub reuse: Reuse,
    /// Equal contents, if the trace has digests.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub similarity: Option<Similarity>,
}

/// Reads a trace once.
#[derive(Default)]
pub struct Analyser {
    answer: TraceAnswer,
    first_ns: Option<u64>,
    latest_ns: u64,
    lengths: BTreeMap<u64, (u64, u64)>,
    streams: [Streams; 2],
    last_flush_ns: Option<u64>,
    intervals: BTreeMap<u32, u64>,
    since_flush: u64,
    flushed: u64,
    bins: Bins,
    blocks: Distances,
    contents: Option<Contents>,
}

#[derive(Default)]
struct Streams {
    ends: Vec<u64>,
    sequential: u64,
}

impl Streams {
    fn see(&mut self, from: u64, to: u64) {
        if let Some(at) = self.ends.iter().position(|end| *end == from) {
            self.ends.remove(at);
            self.sequential += 1;
        } else if self.ends.len() == STREAMS {
            self.ends.remove(0);
        }
        self.ends.push(to);
    }
}

struct Bins {
    width_ns: u64,
    counts: Vec<u64>,
}

impl Default for Bins {
    fn default() -> Bins {
        Bins { width_ns: 1_000_000, counts: Vec::new() }
    }
}

impl Bins {
    fn see(&mut self, at_ns: u64) {
        while at_ns / self.width_ns >= BINS as u64 {
            self.width_ns *= 2;
            self.counts = halved(&self.counts);
        }
        let bin = (at_ns / self.width_ns) as usize;
        if self.counts.len() <= bin {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += 1;
    }
}

fn halved(counts: &[u64]) -> Vec<u64> {
    counts.chunks(2).map(|pair| pair.iter().sum()).collect()
}

#[derive(Default)]
struct Contents {
    reuse: Distances,
    /// Sectors that hold a content; of contents whose digest lies below the threshold.
    sectors: HashMap<u64, HashSet<u64>>,
    entries: usize,
    shift: u32,
    writes: u64,
    rewritten: u64,
}

impl Contents {
    fn see(&mut self, request: &Request, content: u64) {
        self.reuse.reference(content);
        let known = |contents: &Contents| crate::sample::mix(0xc0, content).leading_zeros() >= contents.shift;
        if !known(self) {
            return;
        }
        let sectors = self.sectors.entry(content).or_default();
        if request.ask == Ask::Write {
            self.writes += 1;
            self.rewritten += u64::from(!sectors.is_empty());
        }
        if sectors.len() <= COPIES_MAX && sectors.insert(request.offset / BLOCK) {
            self.entries += 1;
        }
        while self.entries > CONTENTS_MAX {
            self.shift += 1;
            let shift = self.shift;
            self.sectors.retain(|content, _| crate::sample::mix(0xc0, *content).leading_zeros() >= shift);
            self.entries = self.sectors.values().map(HashSet::len).sum();
        }
    }
}

/// Mean number of blocks with the same content: `(all - zeros) / (unique - 1)`, where the block of zeros is one of the
/// unique ones (Koller and Rangaswami, section 2).
pub fn static_similarity(all: u64, zeros: u64, unique: u64) -> Option<f64> {
    (unique > 1).then(|| (all - zeros) as f64 / (unique - 1) as f64)
}

impl Analyser {
    /// The next record.
    pub fn see(&mut self, request: &Request) {
        let first_ns = *self.first_ns.get_or_insert(request.at_ns);
        let late = request.at_ns.saturating_sub(first_ns) > TIME_MAX_NS
            || first_ns.saturating_sub(request.at_ns) > TIME_MAX_NS;
        if late || !request.is_possible() {
            self.answer.impossible += 1;
            return;
        }
        // A few that came before the first are counted with it.
        let at_ns = request.at_ns.saturating_sub(first_ns);
        self.answer.requests += 1;
        self.answer.out_of_order += u64::from(at_ns < self.latest_ns);
        self.latest_ns = self.latest_ns.max(at_ns);
        self.bins.see(at_ns);
        let end = request.offset + request.len;
        match request.ask {
            Ask::Read => {
                self.answer.reads.requests += 1;
                self.answer.reads.bytes += request.len;
                self.lengths.entry(request.len.next_power_of_two()).or_default().0 += 1;
                self.streams[0].see(request.offset, end);
            }
            Ask::Write => {
                self.answer.writes.requests += 1;
                self.answer.writes.bytes += request.len;
                self.answer.forced_writes += u64::from(request.fua);
                self.lengths.entry(request.len.next_power_of_two()).or_default().1 += 1;
                self.streams[1].see(request.offset, end);
                self.since_flush += request.len;
            }
            Ask::Flush => self.flush(at_ns),
            Ask::Discard => {
                self.answer.discards.requests += 1;
                self.answer.discards.bytes += request.len;
            }
        }
        if matches!(request.ask, Ask::Read | Ask::Write) && request.len > 0 {
            for block in request.offset / BLOCK..=(end - 1) / BLOCK {
                self.blocks.reference(block);
            }
            if let Some(content) = request.content {
                self.contents.get_or_insert_default().see(request, content);
            }
        }
    }

    fn flush(&mut self, at_ns: u64) {
        self.answer.flushes += 1;
        if let Some(last) = self.last_flush_ns {
            let interval = at_ns.saturating_sub(last).max(1);
            // Four buckets for each doubling.
            *self.intervals.entry(((interval as f64).log2() * 4.0) as u32).or_default() += 1;
        }
        self.last_flush_ns = Some(at_ns);
        self.flushed += std::mem::take(&mut self.since_flush);
    }

    /// The answer.
    pub fn finish(mut self) -> TraceAnswer {
        let share = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 0.0 };
        let answer = &mut self.answer;
        answer.seconds = self.latest_ns as f64 / 1e9;
        answer.reads.sequential_share = share(self.streams[0].sequential, answer.reads.requests);
        answer.writes.sequential_share = share(self.streams[1].sequential, answer.writes.requests);
        answer.read_share = share(answer.reads.requests, answer.reads.requests + answer.writes.requests);
        answer.by_length = self.lengths.iter().map(|(length, (reads, writes))| (*length, *reads, *writes)).collect();
        let mut half = self.intervals.values().sum::<u64>().div_ceil(2);
        let median = self.intervals.iter().find(|(_, count)| {
            half = half.saturating_sub(**count);
            half == 0
        });
        answer.flush_interval_s = median.map(|(bucket, _)| ((f64::from(*bucket) + 0.5) / 4.0).exp2() / 1e9);
        answer.bytes_per_flush = (answer.flushes > 0).then(|| share(self.flushed, answer.flushes));
        let (mut counts, mut width_ns) = (self.bins.counts, self.bins.width_ns);
        let mean = |counts: &[u64]| share(counts.iter().sum(), counts.len() as u64);
        answer.peak_to_mean = counts.iter().max().map_or(0.0, |peak| *peak as f64 / mean(&counts).max(1e-9));
        // The last bin is not full.
        counts.pop();
        while counts.len() >= 8 {
            let mean = mean(&counts);
            let variance = counts.iter().map(|count| (*count as f64 - mean).powi(2)).sum::<f64>() / counts.len() as f64;
            answer.dispersion.push((width_ns as f64 / 1e9, variance / mean.max(1e-9)));
            counts = counts.chunks_exact(2).map(|pair| pair.iter().sum()).collect();
            width_ns *= 2;
        }
        answer.reuse = reuse(&self.blocks);
        answer.similarity = self.contents.map(|contents| {
            let counted: Vec<usize> =
                contents.sectors.values().map(HashSet::len).filter(|copies| *copies <= COPIES_MAX).collect();
            Similarity {
                workload_static: (!counted.is_empty())
                    .then(|| counted.iter().sum::<usize>() as f64 / counted.len() as f64),
                reuse: reuse(&contents.reuse),
                rewritten_share: share(contents.rewritten, contents.writes),
                exact: contents.shift == 0,
            }
        });
        self.answer
    }
}

fn reuse(distances: &Distances) -> Reuse {
    let bytes = |blocks: f64| (blocks * BLOCK as f64) as u64;
    Reuse {
        references: distances.references(),
        working_set_bytes: bytes(distances.things()),
        mean_distance: distances.mean_between(),
        miss_ratios: distances
            .miss_ratios()
            .into_iter()
            .map(|(blocks, miss_ratio)| MissRatio { cache_bytes: bytes(blocks), miss_ratio })
            .collect(),
        exact: distances.is_exact(),
    }
}

/// A line of the FIU traces: `ts_ns pid process lba size_in_512B R|W major minor md5`.
pub fn parse_line(line: &str) -> Result<Request, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [at, _, _, sector, count, ask, _, _, digest] = fields[..] else {
        return Err("write: time_ns pid process sector count R|W major minor digest".into());
    };
    let number = |text: &str, what: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no {what}"));
    let bytes = |text: &str, what: &str| {
        number(text, what)?.checked_mul(512).ok_or_else(|| format!("{text:?} is no {what}: it is too large"))
    };
    let ask = match ask {
        "R" | "r" => Ask::Read,
        "W" | "w" => Ask::Write,
        other => return Err(format!("{other:?} is neither R nor W")),
    };
    let content = digest.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let content = Some(content.ok_or_else(|| format!("{digest:?} is no digest in hexadecimal digits"))?);
    Ok(Request {
        at_ns: number(at, "time in nanoseconds")?,
        ask,
        offset: bytes(sector, "sector")?,
        len: bytes(count, "count of sectors")?,
        fua: false,
        content,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at_ns: u64, ask: Ask, offset: u64, len: u64) -> Request {
        Request { at_ns, ask, offset, len, fua: false, content: None }
    }

    #[test]
    fn similarity_of_the_digest_check() {
        assert_eq!(static_similarity(1000, 100, 301), Some(3.0));
        assert_eq!(static_similarity(10, 10, 1), None);
    }

    /// Where each block has a content of its own, caches by content and by address are one and the same; where contents
    /// repeat, a cache that holds everything misses no oftener by content.
    #[test]
    fn content_is_reused_as_addresses_are_where_all_contents_differ() {
        let reading = |content: fn(u64) -> u64| {
            let mut analyser = Analyser::default();
            for number in 0..20_000u64 {
                let block = crate::sample::mix(1, number) % 3000;
                let content = Some(content(block));
                analyser.see(&Request { content, ..request(number, Ask::Read, block * BLOCK, BLOCK) });
            }
            let answer = analyser.finish();
            (answer.reuse, answer.similarity.expect("digests").reuse)
        };
        let curve = |reuse: &Reuse| {
            reuse.miss_ratios.iter().map(|point| (point.cache_bytes, point.miss_ratio)).collect::<Vec<_>>()
        };
        let (by_address, by_content) = reading(|block| block);
        assert!(by_address.exact && by_content.exact);
        assert_eq!(curve(&by_address), curve(&by_content));
        assert_eq!(by_address.mean_distance, by_content.mean_distance);
        let (by_address, by_content) = reading(|block| block / 3);
        let least = |reuse: &Reuse| reuse.miss_ratios.last().map(|point| point.miss_ratio);
        assert!(least(&by_content) < least(&by_address));
        assert_eq!(by_content.working_set_bytes, 1000 * BLOCK);
    }

    #[test]
    fn a_small_trace_is_described() {
        let mut analyser = Analyser::default();
        for number in 0..1000u64 {
            analyser.see(&request(number * 1_000_000, Ask::Write, number * 8192, 8192));
            if number % 10 == 9 {
                analyser.see(&request(number * 1_000_000, Ask::Flush, 0, 0));
            }
        }
        (0..500).for_each(|number| analyser.see(&request(500_000_000, Ask::Read, (number * 37 % 1000) * 8192, 4096)));
        let answer = analyser.finish();
        assert_eq!((answer.reads.requests, answer.writes.requests, answer.flushes), (500, 1000, 100));
        assert!((answer.writes.sequential_share - 0.999).abs() < 1e-9);
        assert!(answer.reads.sequential_share < 0.01);
        assert_eq!(answer.bytes_per_flush, Some(81_920.0));
        let interval = answer.flush_interval_s.expect("flushes");
        assert!((0.008..0.012).contains(&interval), "{interval}");
        assert_eq!(answer.reuse.working_set_bytes, 8_192_000);
        assert!(answer.dispersion.last().is_some_and(|(_, dispersion)| *dispersion > 1.0));
        assert!(answer.similarity.is_none());
    }

    #[test]
    fn what_cannot_be_is_counted_and_left_out() {
        let mut analyser = Analyser::default();
        analyser.see(&request(1000, Ask::Read, 0, 4096));
        analyser.see(&request(u64::MAX, Ask::Read, 0, 4096));
        analyser.see(&request(2000, Ask::Read, u64::MAX, 4096));
        analyser.see(&request(2000, Ask::Write, 0, u64::MAX));
        analyser.see(&request(500, Ask::Read, 0, 0));
        let answer = analyser.finish();
        assert_eq!((answer.requests, answer.impossible, answer.out_of_order), (2, 3, 0));
        assert!(answer.seconds < 1.0);
    }

    #[test]
    fn content_comes_back_where_addresses_do_not() {
        let mut analyser = Analyser::default();
        for number in 0..10_000u64 {
            let line = format!("{} 7 cp {} 8 W 8 0 {:032x}", number * 1000, number * 8, u128::from(number % 100) << 64);
            analyser.see(&parse_line(&line).expect("a line"));
        }
        let answer = analyser.finish();
        let similarity = answer.similarity.expect("digests");
        assert_eq!(similarity.workload_static, Some(100.0));
        assert_eq!(similarity.reuse.mean_distance, Some(100.0));
        assert_eq!(similarity.reuse.working_set_bytes, 100 * 4096);
        assert_eq!(answer.reuse.mean_distance, None);
        assert!((similarity.rewritten_share - 0.99).abs() < 1e-9);
        for wrong in
            ["", "x 1 a 1 1 R 8 0 00112233445566778899", "1 1 a 1 1 X 8 0 0011223344556677", "1 1 a 1 1 R 8 0 zz"]
        {
            parse_line(wrong).expect_err(wrong);
        }
    }
}
