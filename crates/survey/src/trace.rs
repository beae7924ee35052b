//! How a trace of requests asks: mix, working set, reuse, sequentiality, bursts, flushes, equal content.

use crate::shards::Distances;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Grain of addresses.
const BLOCK: u64 = 4096;
/// Longest request that is believed: more is a damaged record.
const LEN_MAX: u64 = 1 << 30;
/// Longest time that is believed to lie between the first request and another: ten years.
const TIME_MAX_NS: i128 = 10 * 365 * 86_400 * 1_000_000_000;
/// Streams that are followed at once, as a disk with a cache in segments does.
const STREAMS: usize = 32;
/// Bins of time; when they do not suffice, two become one.
const BINS: i64 = 4096;
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
    /// Stands for a record with a number that no device can have told, below zero or beyond 64 bits.
    pub const IMPOSSIBLE: Request =
        Request { at_ns: 0, ask: Ask::Read, offset: 0, len: u64::MAX, fua: false, content: None };

    /// Whether a device can have been asked so: not beyond all addresses, nor for more than is believed, nor for nothing.
    pub fn is_possible(&self) -> bool {
        (self.len > 0 || self.ask == Ask::Flush) && self.len <= LEN_MAX && self.offset.checked_add(self.len).is_some()
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
    /// From the earliest request to the latest, seconds.
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
    /// Times are those since the first request of the trace; others may have come before.
    earliest_ns: i64,
    latest_ns: i64,
    lengths: BTreeMap<u64, (u64, u64)>,
    streams: [Streams; 2],
    last_flush_ns: Option<i64>,
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
    width_ns: i64,
    /// Which the first of `counts` is; that of the trace's first request is 0.
    first: i64,
    counts: VecDeque<u64>,
}

impl Default for Bins {
    fn default() -> Bins {
        Bins { width_ns: 1_000_000, first: 0, counts: VecDeque::new() }
    }
}

impl Bins {
    fn see(&mut self, at_ns: i64) {
        loop {
            let bin = at_ns.div_euclid(self.width_ns);
            let end = (self.first + self.counts.len() as i64).max(bin + 1);
            if end - self.first.min(bin) > BINS {
                self.widen();
                continue;
            }
            while bin < self.first {
                self.counts.push_front(0);
                self.first -= 1;
            }
            self.counts.resize((end - self.first) as usize, 0);
            self.counts[(bin - self.first) as usize] += 1;
            return;
        }
    }

    /// Two bins become one.
    fn widen(&mut self) {
        if self.first % 2 != 0 {
            self.counts.push_front(0);
            self.first -= 1;
        }
        self.counts = self.counts.make_contiguous().chunks(2).map(|pair| pair.iter().sum()).collect();
        self.first /= 2;
        self.width_ns *= 2;
    }
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
        if !request.is_possible() {
            self.answer.impossible += 1;
            return;
        }
        let first_ns = *self.first_ns.get_or_insert(request.at_ns);
        let at_ns = i128::from(request.at_ns) - i128::from(first_ns);
        if at_ns < -TIME_MAX_NS && self.answer.requests == 1 {
            // The first is the one that is beyond belief.
            let impossible = self.answer.impossible + 1;
            *self = Analyser::default();
            self.answer.impossible = impossible;
            return self.see(request);
        }
        let Some(at_ns) = i64::try_from(at_ns).ok().filter(|_| at_ns.abs() <= TIME_MAX_NS) else {
            self.answer.impossible += 1;
            return;
        };
        self.answer.requests += 1;
        self.answer.out_of_order += u64::from(at_ns < self.latest_ns);
        self.earliest_ns = self.earliest_ns.min(at_ns);
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
        if matches!(request.ask, Ask::Read | Ask::Write) {
            for block in request.offset / BLOCK..=(end - 1) / BLOCK {
                self.blocks.reference(block);
            }
            if let Some(content) = request.content {
                self.contents.get_or_insert_default().see(request, content);
            }
        }
    }

    fn flush(&mut self, at_ns: i64) {
        self.answer.flushes += 1;
        if let Some(last) = self.last_flush_ns {
            let interval = (at_ns - last).max(1);
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
        answer.seconds = (self.latest_ns - self.earliest_ns) as f64 / 1e9;
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
        let Bins { width_ns: mut bin_ns, first, counts } = self.bins;
        let mut counts = Vec::from(counts);
        let mean = |counts: &[u64]| share(counts.iter().sum(), counts.len() as u64);
        answer.peak_to_mean = counts.iter().max().map_or(0.0, |peak| *peak as f64 / mean(&counts).max(1e-9));
        // The last bin is not full, nor is one before that of the first request.
        counts.pop();
        if first < 0 && !counts.is_empty() {
            counts.remove(0);
        }
        while counts.len() >= 8 {
            let mean = mean(&counts);
            let variance = counts.iter().map(|count| (*count as f64 - mean).powi(2)).sum::<f64>() / counts.len() as f64;
            answer.dispersion.push((bin_ns as f64 / 1e9, variance / mean.max(1e-9)));
            counts = counts.chunks_exact(2).map(|pair| pair.iter().sum()).collect();
            bin_ns *= 2;
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

/// A line of the FIU traces: `ts_ns pid process lba size_in_512B R|W major minor md5`; one with numbers that cannot be is
/// [`Request::IMPOSSIBLE`].
pub fn parse_line(line: &str) -> Result<Request, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [at, _, _, sector, count, ask, _, _, digest] = fields[..] else {
        return Err("write: time_ns pid process sector count R|W major minor digest".into());
    };
    // `None` if it is a number, but not one of 64 bits.
    let number = |text: &str, what: &str| match text.parse::<u64>() {
        Ok(number) => Ok(Some(number)),
        Err(_) if is_number(text) => Ok(None),
        Err(_) => Err(format!("{text:?} is no {what}")),
    };
    let bytes =
        |text: &str, what: &str| Ok::<_, String>(number(text, what)?.and_then(|sectors| sectors.checked_mul(512)));
    let ask = match ask {
        "R" | "r" => Ask::Read,
        "W" | "w" => Ask::Write,
        other => return Err(format!("{other:?} is neither R nor W")),
    };
    let content = digest.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let content = Some(content.ok_or_else(|| format!("{digest:?} is no digest in hexadecimal digits"))?);
    let at_ns = number(at, "time in nanoseconds")?;
    let (offset, len) = (bytes(sector, "sector")?, bytes(count, "count of sectors")?);
    let (Some(at_ns), Some(offset), Some(len)) = (at_ns, offset, len) else { return Ok(Request::IMPOSSIBLE) };
    Ok(Request { at_ns, ask, offset, len, fua: false, content })
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
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
        analyser.see(&request(2000, Ask::Read, 0, 0));
        analyser.see(&request(2000, Ask::Write, 0, 0));
        for line in ["-5 1 a 1 1 R 8 0 0011223344556677", "1 1 a 99999999999999999999 1 W 8 0 0011223344556677"] {
            analyser.see(&parse_line(line).expect("numbers, if none that can be"));
        }
        analyser.see(&request(500, Ask::Flush, 0, 0));
        let answer = analyser.finish();
        assert_eq!((answer.requests, answer.impossible, answer.out_of_order), (2, 7, 1));
        assert_eq!(answer.seconds, 500e-9);
    }

    #[test]
    fn an_impossible_record_does_not_say_when_a_trace_begins() {
        for first in [Request::IMPOSSIBLE, request(u64::MAX - 1, Ask::Read, 0, 4096)] {
            let mut analyser = Analyser::default();
            analyser.see(&first);
            (0..100).for_each(|second| analyser.see(&request(second * 1_000_000_000, Ask::Read, 0, 4096)));
            let answer = analyser.finish();
            assert_eq!((answer.requests, answer.impossible, answer.out_of_order), (100, 1, 0));
            assert_eq!(answer.seconds, 99.0);
        }
    }

    /// Read backwards, a trace has the same length and the same bursts.
    #[test]
    fn requests_before_the_first_of_a_trace_keep_their_times() {
        let answer = |times: &mut dyn Iterator<Item = u64>| {
            let mut analyser = Analyser::default();
            times.for_each(|second| analyser.see(&request(second * 1_000_000_000, Ask::Write, 0, 4096)));
            analyser.finish()
        };
        let times = || (0..1000u64).map(|number| number + u64::from(number % 100 < 50) * (number % 50));
        let mut sorted: Vec<u64> = times().collect();
        sorted.sort_unstable();
        let forwards = answer(&mut sorted.iter().copied());
        let backwards = answer(&mut sorted.iter().rev().copied());
        assert_eq!((forwards.out_of_order, forwards.seconds), (0, 999.0));
        assert!(backwards.out_of_order > 900, "{}", backwards.out_of_order);
        assert_eq!(backwards.seconds, forwards.seconds);
        assert!(backwards.peak_to_mean > 1.5);
        assert!((backwards.peak_to_mean - forwards.peak_to_mean).abs() < 0.2 * forwards.peak_to_mean);
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
