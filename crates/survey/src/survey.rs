//! A survey from beginning to end: which shares are read, what is kept, and what is answered.

use crate::analyse::{Plan, READ};
use crate::answer::{Answer, DedupAnswer, LayoutAnswer, Origin};
use crate::bucket::Access;
use crate::budget::{Budget, expected_share, reading, unit_bytes};
use crate::chunk::Chunking;
use crate::compress::Study;
use crate::evaluate::{Evaluation, EvaluationError, Whole, evaluate};
use crate::inside::Limits;
use crate::layout::layout;
use crate::listing::Look;
use crate::probe::Probe;
use crate::sample::{Share, fast_hash};
use crate::scan::{Done, FULL_UNIT, Scan, Unit};
use crate::source::{Kind, Source, SourceError, aside, give_way};
use crate::state::{self, Progress, StateError};
use crate::tally::{Mode, Part, Tally};
use crate::unseen::base::BASE;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Data of less than this are read in full unless a budget is given: a sample of them would say little.
const SMALL: u64 = 256 << 20;
/// The same where places are far: a disk reads so much in less than a minute, and a fifth of it in hardly less if it is in small files.
const SMALL_FAR: u64 = 4 << 30;
/// Shares after which a survey without a budget looks whether its ranges are narrow enough; the paper needs 15 % at most.
const STEPS: [f64; 8] = [0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15, 0.20];
/// Bytes of chunks that are compressed for each chunking, at most; all chunks of data of less than twice as many.
const PACKED_BYTES: u64 = 12 << 20;
/// The same, at least: enough small chunks for their mean ratio.
const PACKED_BYTES_MIN: u64 = 2 << 20;
/// Chunks that are compressed for each chunking, at least: enough large ones.
const PACKED_CHUNKS_MIN: u64 = 64;
/// Blocks that are compressed to learn how well data compress, at least and at most.
const STUDIED: [u64; 2] = [64, 128];
/// Between these, one byte in so many that are read is compressed: compressing takes some 20 times as long as the rest.
const PACKED_PART: u64 = 64;
/// To learn where files are inside images, such a part of what is to be read may be read beforehand.
const LOOK: f64 = 1.0;
/// With a time, everything is read if this many times as much could be.
const ALL_IN_PARTS: f64 = 4.0;
/// Saving a state takes at most this share of the time.
const SAVING: u32 = 20;
/// States are saved so often at most.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// Bytes that a bucket is asked for at once: a request costs as much as some hundred kilobytes.
const REQUEST: u64 = 1 << 20;
/// Threads that ask a bucket: most of the time they wait for answers.
const REQUESTS: usize = 16;

/// How to survey.
#[derive(Clone, Debug)]
pub struct Options {
    /// Read everything.
    pub full: bool,
    /// How much to read; without it until the ranges are narrow.
    pub budget: Option<Budget>,
    /// Decides what is read.
    pub seed: u64,
    /// Chunkings to look at.
    pub chunkings: Vec<Chunking>,
    /// How much of the sample to remember.
    pub mode: Mode,
    /// Bytes of a unit of the sample; without it by the device.
    pub unit: Option<u64>,
    /// Without a budget: stop when no range is wider.
    pub width: f64,
    /// Memory, in bytes.
    pub memory: u64,
    /// Threads that look at bytes.
    pub threads: usize,
    /// Bytes per second, at most.
    pub bandwidth: Option<u64>,
    /// Give way to all other requests.
    pub idle: bool,
    /// A file that keeps the state: the scan goes on from it, and after Ctrl-C it can be taken up again.
    pub resume: Option<PathBuf>,
    /// Where to put aside what exceeds the memory.
    pub temporary: PathBuf,
    /// Of buckets: where they are, and who asks.
    pub access: Access,
}

impl Options {
    /// Everything is read, by two threads in 256 MiB.
    pub fn everything(chunkings: Vec<Chunking>) -> Options {
        Options {
            full: true,
            budget: None,
            seed: 1,
            chunkings,
            mode: Mode::Full,
            unit: None,
            width: 0.05,
            memory: 256 << 20,
            threads: 2,
            bandwidth: None,
            idle: false,
            resume: None,
            temporary: std::env::temp_dir(),
            access: Access::default(),
        }
    }
}

/// How far a survey is.
#[derive(Clone, Copy, Debug)]
pub enum Status {
    /// Walking through the tree: files so far.
    Walking(u64),
    /// Reading: bytes of those of this step, and the share that is read after it.
    Reading(u64, u64, f64),
    /// Looking at where files lie.
    Layout,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// What was to be surveyed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Ctrl-C.
    #[error("interrupted; {0}")]
    Interrupted(String),
    /// The state.
    #[error("{0}: {1}")]
    State(PathBuf, StateError),
    /// What was put aside.
    #[error(
        "what does not fit into memory cannot be put aside: {0}; name another place with TMPDIR, or give more --memory"
    )]
    Aside(#[from] io::Error),
    /// The estimator.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
}

struct Survey<'a> {
    source: &'a Source,
    options: &'a Options,
    plan: Plan,
    tallies: Vec<Tally>,
    at: Progress,
    study: Study,
    unit_bytes: u64,
    full: bool,
    total: u64,
    /// The share that is to be sampled, and bytes that are read for one that is.
    share: f64,
    cost: f64,
    /// Bytes that were read to learn where files are inside images.
    looked: u64,
    began: Instant,
    saved: (Instant, Duration),
    status: &'a dyn Fn(Status),
    stop: &'a AtomicBool,
}

/// What came of reading.
enum Read {
    /// As far as was asked for.
    Done(Vec<Evaluation>),
    /// To go on takes more than to read everything.
    All,
}

/// Surveys what is at `path`.
pub fn survey(
    path: &Path,
    options: &Options,
    status: &dyn Fn(Status),
    stop: &AtomicBool,
) -> Result<Answer, SurveyError> {
    let mut all = None;
    loop {
        match attempt(path, options, all, status, stop)? {
            Attempt::Answer(answer) => return Ok(*answer),
            Attempt::All { read } => all = Some(read),
        }
        // What was kept is of a sample.
        if let Some(state) = &options.resume {
            let _ = std::fs::remove_file(state);
        }
    }
}

enum Attempt {
    Answer(Box<Answer>),
    /// Everything is to be read; so much was read in vain.
    All {
        read: u64,
    },
}

/// Surveys once; everything if `all` says so, after so many bytes were read in vain.
fn attempt(
    path: &Path,
    options: &Options,
    all: Option<u64>,
    status: &dyn Fn(Status),
    stop: &AtomicBool,
) -> Result<Attempt, SurveyError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let began = Instant::now();
    let progress = |files| status(Status::Walking(files));
    let look = Look { now: now as i64, memory: options.memory / 2, stop, progress: &progress };
    let mut source = Source::open(path, &options.access, look)?;
    let total = source.listing.data_bytes();
    // A survey that is taken up again goes on with the same units.
    let kept = options.resume.as_deref().and_then(state::peek);
    let full = options.full || all.is_some() || kept.as_ref().is_some_and(|kept| kept.full);
    let Probe { far, read: mut looked } = match &kept {
        _ if full => Probe::default(),
        Some(kept) => Probe { far: kept.far, read: 0 },
        None => aside(options.idle, || source.probe(options.seed, stop)),
    };
    // What a bucket is asked for may cost money.
    let small = if far && source.kind != Kind::Bucket { SMALL_FAR } else { SMALL };
    looked += all.unwrap_or(0);
    let mut plan = Plan {
        chunkings: options.chunkings.clone(),
        read: if source.kind == Kind::Bucket { REQUEST } else { READ },
        pack_every: Vec::new(),
        study_every: 0,
    };
    let unit_bytes = match (&kept, options.unit) {
        (Some(kept), _) => kept.unit_bytes,
        (_, Some(unit)) => unit,
        _ => unit_bytes(far, total),
    };
    let cost = reading(&source, &plan, unit_bytes);
    let share = expected_share(options.budget, total, cost);
    // More would be read for so large a sample than there is.
    let covers = options.budget.is_some() && kept.is_none() && share * cost > 1.0 - 1e-9;
    let full = full || covers || options.budget.is_none() && total <= small;
    let unit_bytes = if full { FULL_UNIT } else { unit_bytes };
    if !full {
        let read = (share * total as f64 * LOOK) as u64;
        let limits = Limits { read, files: source.listing.room(options.memory / 2), unit: unit_bytes, stop };
        // Where files lie in an image is told all over it.
        if !far {
            looked += source.look_inside(limits, options.idle, options.bandwidth);
        }
        source.listing.group(unit_bytes);
    }
    let sampled = (!full).then_some(share);
    let expected = (total as f64 * sampled.unwrap_or(1.0)) as u64;
    plan.pack_every = options.chunkings.iter().map(|chunking| pack_every(*chunking, expected)).collect();
    plan.study_every = study_every(expected);
    let mode = if full { Mode::Full } else { options.mode };
    // Smaller chunks are more.
    let memory = options.memory / 2;
    let parts: f64 = options.chunkings.iter().map(|chunking| 1.0 / f64::from(chunking.bytes())).sum();
    let tally = |chunking: &Chunking| {
        let part = 1.0 / f64::from(chunking.bytes()) / parts;
        Tally::new(mode, (memory as f64 * part) as u64, &options.temporary)
    };
    let tallies = options.chunkings.iter().map(tally).collect();
    let name = format!(
        "{:?} {} {} {:?} {:?} {:?} {:?}",
        path, options.seed, options.full, options.unit, options.budget, options.mode, options.chunkings
    );
    let fingerprint = source.listing.fingerprint();
    let at = Progress { survey: name, fingerprint, far, full, unit_bytes, ..Progress::default() };
    let mut survey = Survey {
        source: &source,
        options,
        plan,
        tallies,
        at,
        study: Study::default(),
        unit_bytes,
        full,
        total,
        share,
        cost,
        looked,
        began,
        saved: (began, Duration::ZERO),
        status,
        stop,
    };
    let notes = survey.resume()?;
    // Where files lie is looked at meanwhile: it waits for other parts of the device than reading does.
    let (evaluations, layout) = std::thread::scope(|scope| {
        let layout = scope.spawn(|| {
            give_way(options.idle);
            layout(&source, sampled, options.seed, stop)
        });
        let evaluations = survey.read()?;
        status(Status::Layout);
        let layout = layout.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, SurveyError>((evaluations, layout))
    })?;
    match evaluations {
        Read::Done(evaluations) => {
            survey.answer(path, now, mode, evaluations, layout, notes).map(Box::new).map(Attempt::Answer)
        }
        Read::All => Ok(Attempt::All { read: survey.at.read + survey.looked }),
    }
}

/// One chunk in so many is compressed, of so many bytes that will be read.
fn pack_every(chunking: Chunking, expected: u64) -> u64 {
    let least = PACKED_BYTES_MIN.max(PACKED_CHUNKS_MIN * u64::from(chunking.bytes())).min(PACKED_BYTES);
    let packed =
        if expected < 2 * PACKED_BYTES { expected } else { (expected / PACKED_PART).clamp(least, PACKED_BYTES) };
    expected.checked_div(packed).unwrap_or(1)
}

/// One block in so many is compressed to learn how well data compress.
fn study_every(expected: u64) -> u64 {
    let blocks = expected / Study::BLOCK as u64;
    let [least, most] = STUDIED;
    (blocks / (blocks / PACKED_PART).clamp(least, most)).max(1)
}

impl Survey<'_> {
    /// Goes on from a state, if there is one. Gives what a user should know.
    fn resume(&mut self) -> Result<Vec<String>, SurveyError> {
        let mut notes = self.source.notes();
        let Some(path) = self.options.resume.as_deref().filter(|path| path.exists()) else { return Ok(notes) };
        let fail = |error| SurveyError::State(path.to_path_buf(), error);
        let loaded = state::load(path, &self.at.survey, &mut self.tallies).map_err(fail)?;
        if loaded.fingerprint != self.at.fingerprint {
            notes.push("files came, went or changed between two parts of this scan".into());
        }
        self.study = Study::from_numbers(&loaded.study);
        self.at = Progress { fingerprint: self.at.fingerprint, ..loaded };
        notes.push(format!("taken up again after {:.0} s", self.at.seconds));
        Ok(notes)
    }

    fn read(&mut self) -> Result<Read, SurveyError> {
        if self.full {
            self.step(Share::ALL, false)?;
            return self.evaluate().map(Read::Done);
        }
        let sampled = self.options.budget.map_or(STEPS[0], |_| self.share);
        let base = base_share(&self.options.chunkings, self.total).min(sampled);
        if self.options.mode == Mode::Base && (self.at.drawing || self.at.last.is_none() && self.at.to == 0.0) {
            self.step(Share { from: 0.0, to: base }, true)?;
            (self.at.drawing, self.at.last, self.at.from, self.at.to) = (false, None, 0.0, 0.0);
        }
        match self.options.budget {
            Some(Budget::Time(time)) => self.read_for(time),
            Some(_) => {
                self.step(Share { from: 0.0, to: self.share }, false)?;
                self.evaluate().map(Read::Done)
            }
            None => {
                let mut from = 0.0;
                let mut found = Vec::new();
                for to in STEPS {
                    if to * self.cost >= 1.0 && self.may_read_all() {
                        return Ok(Read::All);
                    }
                    if to > self.at.from {
                        self.step(Share { from, to }, false)?;
                        found = self.evaluate()?;
                        if found.iter().all(|found| found.dedup.width() <= self.options.width) {
                            break;
                        }
                    }
                    from = to;
                }
                Ok(Read::Done(found))
            }
        }
    }

    /// Reads in steps, each as large as the time that is left allows by the speed of those before.
    fn read_for(&mut self, time: Duration) -> Result<Read, SurveyError> {
        let mut from = self.at.from;
        let mut to: f64 = if self.at.to > from { self.at.to } else { from + 0.005 };
        loop {
            let began = Instant::now();
            self.step(Share { from, to }, false)?;
            let rate = (to - from) / began.elapsed().as_secs_f64().max(1e-6);
            let left = time.as_secs_f64() - self.seconds();
            from = to;
            // Some is kept for the last step to be slower than the ones before.
            let more = rate * left * 0.8;
            if left <= 0.0 || to >= 1.0 || more < 0.001 {
                return self.evaluate().map(Read::Done);
            }
            // Everything is read in a small part of the time that is left: it cannot end early.
            if more * self.cost >= ALL_IN_PARTS && self.may_read_all() {
                return Ok(Read::All);
            }
            to = (to + more.min(to * 4.0)).min(1.0);
        }
    }

    /// Whether everything may be read instead of a sample that takes as much. What a bucket is asked for may cost money.
    fn may_read_all(&self) -> bool {
        self.source.kind != Kind::Bucket
    }

    fn seconds(&self) -> f64 {
        self.at.seconds + self.began.elapsed().as_secs_f64()
    }

    /// Reads the units of a share.
    fn step(&mut self, share: Share, drawing: bool) -> Result<(), SurveyError> {
        let scan = Scan {
            source: self.source,
            plan: &self.plan.clone(),
            unit_bytes: self.unit_bytes,
            far: self.at.far,
            full: self.full,
            threads: if self.source.kind == Kind::Bucket {
                self.options.threads.max(REQUESTS)
            } else {
                self.options.threads
            },
            bandwidth: self.options.bandwidth,
            idle: self.options.idle,
            stop: self.stop,
        };
        let mut units = scan.units(self.options.seed, share);
        let listing = &self.source.listing;
        let key = |unit: &Unit| listing.order(&listing.entries[unit.entry as usize], unit.number);
        let resumed = self.at.last.filter(|_| (self.at.from, self.at.to) == (share.from, share.to));
        if let Some(last) = resumed {
            units.retain(|unit| key(unit) > last);
        }
        (self.at.from, self.at.to, self.at.drawing) = (share.from, share.to, drawing);
        let expected: u64 = units.iter().map(|unit| scan.data_bytes(*unit)).sum();
        for (tally, chunking) in self.tallies.iter_mut().zip(&self.options.chunkings) {
            tally.incidences.expect(expected / u64::from(chunking.bytes()) + units.len() as u64);
        }
        let mut done_bytes = 0;
        let mut failed = None;
        let run = scan.run(&units, |done| {
            if done.cut {
                return Ok(false);
            }
            done_bytes += done.outcome.logical;
            (self.status)(Status::Reading(done_bytes, expected, share.to));
            if !drawing {
                scan.note(&done, &mut self.at.unreadable, &mut self.at.changed);
                self.at.missing += done.missing;
            }
            self.at.last = Some(key(&done.unit));
            self.collect(&done, drawing)?;
            if let Err(error) = self.save_sometimes() {
                failed = Some(error);
                return Ok(false);
            }
            Ok(!self.stop.load(Ordering::Acquire))
        });
        run?;
        if let Some(error) = failed {
            return Err(error);
        }
        if self.stop.load(Ordering::Acquire) {
            return Err(self.interrupted());
        }
        // The next share begins with its first unit.
        (self.at.from, self.at.last) = (share.to, None);
        Ok(())
    }

    fn collect(&mut self, done: &Done, drawing: bool) -> io::Result<()> {
        if !drawing {
            self.at.read += done.outcome.read;
            self.at.logical += done.outcome.logical;
            self.study.add(&done.outcome.study);
        }
        let hash = fast_hash(self.options.seed, done.place);
        for (index, chunks) in done.outcome.chunks.iter().enumerate() {
            let (Some(tally), Some(chunking)) = (self.tallies.get_mut(index), self.options.chunkings.get(index)) else {
                continue;
            };
            if drawing && hash >= base_part(chunking.bytes(), self.total) {
                continue;
            }
            for found in &chunks.found {
                tally.found(found.value, done.cluster, found.len, drawing)?;
            }
            if !drawing {
                tally.zeros(&chunks.zero_lens);
            }
            let Done { first, stratum, .. } = *done;
            tally.unit(done.cluster, Part { bytes: chunks.bytes, zero: chunks.zero, first, stratum }, drawing);
        }
        if !drawing {
            for (index, packed) in &done.outcome.packed {
                if let Some(tally) = self.tallies.get_mut(*index) {
                    tally.packed(packed);
                }
            }
        }
        Ok(())
    }

    fn save_sometimes(&mut self) -> Result<(), SurveyError> {
        let (at, took) = self.saved;
        if self.options.resume.is_none() || at.elapsed() < SAVE_EVERY.max(took * SAVING) {
            return Ok(());
        }
        self.save()
    }

    fn save(&mut self) -> Result<(), SurveyError> {
        let Some(path) = &self.options.resume else { return Ok(()) };
        let began = Instant::now();
        let progress = Progress { seconds: self.seconds(), study: self.study.numbers(), ..self.at.clone() };
        let fail = |error| SurveyError::State(path.clone(), StateError::Io(error));
        state::save(path, &progress, &mut self.tallies).map_err(fail)?;
        self.saved = (Instant::now(), began.elapsed());
        Ok(())
    }

    fn interrupted(&mut self) -> SurveyError {
        match &self.options.resume {
            None => SurveyError::Interrupted("nothing is kept; with --resume FILE it could be taken up again".into()),
            Some(path) => {
                let text = format!("the same command goes on from {}", path.display());
                match self.save() {
                    Ok(()) => SurveyError::Interrupted(text),
                    Err(error) => error,
                }
            }
        }
    }

    fn evaluate(&mut self) -> Result<Vec<Evaluation>, SurveyError> {
        let whole = Whole { logical: self.total, full: self.full, strata: self.source.listing.strata() };
        self.tallies.iter_mut().map(|tally| Ok(evaluate(tally, whole)?)).collect()
    }

    fn answer(
        &mut self,
        path: &Path,
        time: u64,
        mode: Mode,
        evaluations: Vec<Evaluation>,
        layout: LayoutAnswer,
        mut notes: Vec<String>,
    ) -> Result<Answer, SurveyError> {
        let listing = &self.source.listing;
        let mut unreadable = listing.unreadable.clone();
        unreadable.count += self.at.unreadable.count;
        unreadable.first.extend(self.at.unreadable.first.iter().cloned());
        unreadable.first.truncate(crate::listing::NAMED_MAX);
        let lost = self.source.lost_bytes();
        let missing = self.at.missing + lost;
        if missing > 0 {
            let asked = missing + self.at.logical;
            let share = 100.0 * missing as f64 / asked as f64;
            notes.push(format!(
                "{missing} bytes, {share:.2} % of what was to be read, could not be; ratios are of the rest"
            ));
        }
        let spilled: u64 = self.tallies.iter().map(|tally| tally.incidences.spilled()).sum();
        if spilled > 0 {
            notes.push(format!(
                "{spilled} bytes were put aside in files, since memory was short; the answers are the same"
            ));
        }
        if !self.full && self.at.logical == 0 && missing == 0 && self.total > 0 {
            notes.push(format!(
                "nothing was read: the budget has no room for one part of {} bytes, so nothing is known of the data; allow more, or read \
                 everything (--full)",
                self.unit_bytes
            ));
        }
        let to_read = self.total + lost;
        let read_fraction = if self.full && self.at.logical >= to_read {
            1.0
        } else {
            (self.at.logical as f64 / to_read.max(1) as f64).min(1.0)
        };
        if let Some(path) = &self.options.resume {
            // It is of no more use; if it stays, it is refused or finished again.
            let _ = std::fs::remove_file(path);
        }
        Ok(Answer {
            path: path.to_string_lossy().into_owned(),
            kind: self.source.kind,
            time,
            logical_bytes: self.total,
            read_bytes: self.at.read + self.looked,
            read_fraction,
            missing_bytes: missing,
            seed: self.options.seed,
            unit_bytes: self.unit_bytes,
            mode,
            origin: if self.full { Origin::Measured } else { Origin::Sampled },
            seconds: self.seconds(),
            memory_peak_bytes: memory_peak(),
            spilled_bytes: spilled,
            dedup: self
                .options
                .chunkings
                .iter()
                .zip(&evaluations)
                .map(|(chunking, found)| dedup(*chunking, found))
                .collect(),
            compression: self.study.answer(),
            sizes: if matches!(self.source.kind, Kind::Tree | Kind::Image | Kind::Bucket) {
                listing.sizes.answer()
            } else {
                crate::sizes::SizesAnswer::default()
            },
            packing: if matches!(self.source.kind, Kind::Tree | Kind::Bucket) { listing.sizes.packing() } else { None },
            layout,
            trace: None,
            unreadable,
            changed: self.at.changed.clone(),
            passed_over: listing.passed.clone(),
            notes,
        })
    }
}

/// The share of the data from which bases are drawn: that of the largest chunks, since of small ones less is taken of it.
fn base_share(chunkings: &[Chunking], total: u64) -> f64 {
    chunkings.iter().map(|chunking| base_part(chunking.bytes(), total)).fold(0.0, f64::max)
}

/// The share of the data that holds 50,000 chunks.
fn base_part(chunk_bytes: u32, total: u64) -> f64 {
    (BASE as f64 * f64::from(chunk_bytes) / total.max(1) as f64).min(1.0)
}

fn dedup(chunking: Chunking, found: &Evaluation) -> DedupAnswer {
    DedupAnswer {
        chunking: chunking.to_string(),
        ratio: found.dedup.into(),
        with_lz4: found.compressed[0].into(),
        with_zstd_3: found.compressed[1].into(),
        chunks: found.chunks.into(),
        mean_chunk_bytes: found.mean_len,
        zero_share: found.zeros,
        origin: found.dedup.origin(),
        compression_origin: found.compressed[0].origin(),
        seen_by_copies: found.by_copies.clone(),
        ledger_id: None,
    }
}

/// Most memory that this process held.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_has_room_for_each_chunking() {
        let chunkings = [Chunking::Fixed(4 << 10), Chunking::Fixed(128 << 10), Chunking::Cdc(8 << 10)];
        let total = 1 << 40;
        let share = base_share(&chunkings, total);
        for bytes in chunkings.map(|chunking| chunking.bytes()) {
            let chunks = share.min(base_part(bytes, total)) * total as f64 / f64::from(bytes);
            assert!((chunks - BASE as f64).abs() < 1.0, "{chunks} chunks of {bytes} bytes");
        }
    }
}
