//! Power cuts under file systems of the kernel and what runs on them, and under our own pool.
//!
//! A workload runs on a file system on a disk of ours, which records every write, flush and discard, and what the workload
//! says that it was promised (*marks*). Then come the images that a power cut could have left, one after another: each is
//! mounted, which replays the journal, shown to a check together with the marks made before the cut, unmounted, and given to
//! the file system's fsck. An image fails if one of the three complains.
//!
//! * `medium`: the disk; `cuts`: which images there are; `reduce`: which part of a failing cut matters
//! * `stand`: FUSE file, loop device, mount; `marks`: the socket for marks; `saved`: failing images as files
//! * `own`: the pool instead, in process
//!
//! Departs from a real disk, for file systems of the kernel: a write that is in service while a flush begins counts as covered
//! by it, since both are answered at once. Through a loop device there are no forced writes: the kernel makes a write and a flush of each.

mod cuts;
mod marks;
mod medium;
mod own;
mod reduce;
mod saved;
pub(crate) mod stand;

pub use marks::{MARKS_VARIABLE, mark};

use ashlar_models::ModelFile;
use ashlar_pool::Rule;
use ashlar_units::Bytes as Size;
use cuts::{Cut, Cuts};
use marks::Listener;
use medium::{Event, Medium, Record};
use own::Own;
use saved::Saved;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stand::Stand;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Images opened to find the part of a failing cut that matters, for each of the two ways of looking at it.
const REDUCE_TRIES: u32 = 40;

/// A file system of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

    /// As `mount -t` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }
    /// A size that its mkfs takes, and not much more.
    pub fn size(self) -> Size {
        match self {
            Kind::Ext4 | Kind::Btrfs => Size::mib(256),
            Kind::Xfs => Size::mib(320),
        }
    }
    /// Nothing is left for later, or work in the background would go on during the recording.
    fn make(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Kind::Ext4 => ("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
            Kind::Xfs => ("mkfs.xfs", &["-q", "-f"]),
            Kind::Btrfs => ("mkfs.btrfs", &["-q", "-f"]),
        }
    }
    fn fsck(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Kind::Ext4 => ("e2fsck", &["-f", "-n"]),
            Kind::Xfs => ("xfs_repair", &["-n"]),
            Kind::Btrfs => ("btrfs", &["check", "--readonly"]),
        }
    }
    /// Why it cannot be explored here, if it cannot.
    pub fn obstacle(self) -> Option<String> {
        if let Some(obstacle) = crate::Daemon::obstacle() {
            return Some(obstacle.into());
        }
        if !Path::new("/dev/loop-control").exists() {
            return Some("there is no /dev/loop-control".into());
        }
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let exists = |program: &&str| std::env::split_paths(&paths).any(|path| path.join(program).exists());
        let needed = [self.make().0, self.fsck().0, "losetup", "mount", "umount", "blockdev"];
        let missing = needed.iter().find(|program| !exists(program))?;
        Some(format!("there is no program {missing} in PATH; install it"))
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Kind, String> {
        let unknown = || format!("{text:?} is no file system that can be explored; there are ext4, xfs and btrfs");
        Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(unknown)
    }
}

/// What loses power.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A file system of the kernel, and what runs on it.
    Kernel {
        /// The file system.
        kind: Kind,
        /// Size of the disk.
        size: Size,
        /// For `mount -o`.
        mount_options: Option<String>,
        /// How long the disk takes while the workload runs; else it answers at once. Images are opened without it.
        model: Option<Box<ModelFile>>,
        /// Program that gets the mount point, works, and makes marks.
        workload: PathBuf,
        /// Program that gets the mount point, and on standard input the marks made before the cut, one per line.
        /// Non-zero rejects the image.
        check: PathBuf,
    },
    /// Our own pool, in process, under a random history.
    Own {
        /// A rule to break.
        without: Option<Rule>,
    },
}

impl Subject {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Subject::Kernel { kind, .. } => kind.name(),
            Subject::Own { .. } => OWN,
        }
    }
    /// Why it cannot be explored here, if it cannot.
    pub fn obstacle(&self) -> Option<String> {
        match self {
            Subject::Kernel { kind, .. } => kind.obstacle(),
            Subject::Own { .. } => None,
        }
    }
}

/// Name of our own pool among the file systems.
pub const OWN: &str = "ashlar";

/// What to explore.
#[derive(Clone, Debug)]
pub struct CrashOptions {
    /// What loses power.
    pub subject: Subject,
    /// Negative control: the disk answers flushes and does nothing.
    pub drop_flushes: bool,
    /// The medium tears writes at multiples of this: 512 bytes or 4 KiB.
    pub atomic: Size,
    /// Images to open at most.
    pub images: u64,
    /// Failing images to find at most.
    pub failures: u64,
    /// Time to open images.
    pub budget: Duration,
    /// For what is left to chance.
    pub seed: u64,
    /// Directory for files of failing images.
    pub save: PathBuf,
}

/// What was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Recorded {
    /// Writes.
    pub writes: u64,
    /// Those of them that were forced (FUA). A loop device makes none.
    pub forced: u64,
    /// Data of all writes.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Marks.
    pub marks: u64,
}

/// Who rejected an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It could not be mounted.
    Mount,
    /// The check ended with another code than zero.
    Check,
    /// The file system's fsck complained after mounting and unmounting.
    Fsck,
}

/// A write or discard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Io {
    /// Its place in the record.
    pub number: usize,
    /// Write, forced write or discard.
    pub what: &'static str,
    /// First byte.
    pub at_bytes: u64,
    /// Length.
    pub len_bytes: u64,
    /// Atomic units that reached the medium, if it was torn.
    pub units_kept: Option<BTreeSet<usize>>,
}

/// A failing image.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Finding {
    /// Who rejected it.
    pub stage: Stage,
    /// In which words.
    pub said: String,
    /// The cut: operations of the record before this one had been asked for.
    pub cut: usize,
    /// Marks made before it.
    pub marks: Vec<String>,
    /// Operations that no flush covered, and that reached the medium all the same.
    pub kept: Vec<Io>,
    /// Operations that were lost, or torn.
    pub lost: Vec<Io>,
    /// The shortest list of lost and torn operations found that still fails, when all others are kept.
    pub fewest_lost: Vec<Io>,
    /// The shortest list of uncovered operations found that still fails, when all others are lost.
    pub fewest_kept: Vec<Io>,
    /// The image, for `ashlar prove crash --replay`.
    pub file: PathBuf,
}

/// What an exploration came to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CrashOutcome {
    /// The file system, or `ashlar` for our own pool.
    pub fs: &'static str,
    /// The seed.
    pub seed: u64,
    /// Whether flushes were dropped.
    pub drop_flushes: bool,
    /// What was recorded.
    pub recorded: Recorded,
    /// Images opened, without those that served to reduce a failing one.
    pub images: u64,
    /// Cuts that were not opened, because they leave an image that had been seen with as many marks.
    pub alike: u64,
    /// Whether no more different images were found.
    pub exhausted: bool,
    /// Images opened per minute.
    pub images_per_minute: u64,
    /// Failing images.
    pub failures: Vec<Finding>,
}

/// Runs the workload, and opens images until enough of them fail, or images or time are used up. An error means that it
/// could not be explored. `opened` is told the number of images opened.
pub fn explore_crash(
    options: &CrashOptions,
    stop: &Arc<AtomicBool>,
    opened: &mut dyn FnMut(u64),
) -> Result<CrashOutcome, String> {
    let (record, medium, judge) = record(options, stop)?;
    let mut outcome = CrashOutcome {
        fs: options.subject.name(),
        seed: options.seed,
        drop_flushes: options.drop_flushes,
        recorded: recorded(&record),
        images: 0,
        alike: 0,
        exhausted: false,
        images_per_minute: 0,
        failures: Vec::new(),
    };
    let mut trial = Trial { judge, medium, atomic: options.atomic, stop: stop.clone() };
    let mut cuts = Cuts::new(&record, options.atomic, options.seed, options.images);
    let began = Instant::now();
    let mut spent = Duration::ZERO;
    while outcome.images < options.images
        && (outcome.failures.len() as u64) < options.failures
        && began.elapsed() < options.budget
    {
        let this = Instant::now();
        let Some((cut, image)) = cuts.next_new() else {
            outcome.exhausted = true;
            break;
        };
        let verdict = trial.open(&record, &cut, image)?;
        outcome.images += 1;
        spent += this.elapsed();
        opened(outcome.images);
        if let Some((stage, said)) = verdict {
            let number = outcome.failures.len() + 1;
            let finding = finding(options, &record, &mut trial, cut, (stage, said), number)?;
            outcome.failures.push(finding);
        }
    }
    outcome.alike = cuts.alike;
    outcome.images_per_minute = (outcome.images as f64 * 60.0 / spent.as_secs_f64().max(0.001)) as u64;
    Ok(outcome)
}

/// Opens a saved image again. Gives who rejected it, if somebody did.
pub fn replay_crash(
    file: &Path,
    check: Option<&Path>,
    stop: &Arc<AtomicBool>,
) -> Result<Option<(Stage, String)>, String> {
    let Saved { header, record } = Saved::read(file)?;
    let (medium, judge) = match header.subject {
        saved::Subject::Kernel { kind, size_bytes, mount_options, check: own_check } => {
            if let Some(obstacle) = kind.obstacle() {
                return Err(obstacle);
            }
            let medium = Arc::new(Medium::new(Size(size_bytes).to_blocks_down(), true));
            let stand = Stand::new(kind, mount_options, medium.clone(), None, stop.clone())?;
            (medium, Judge::Kernel { stand: Box::new(stand), check: check.map_or(own_check, Path::to_path_buf) })
        }
        saved::Subject::Own { seed, without, drop_flushes } => {
            let rule = |name: String| Rule::named(&name).ok_or_else(|| format!("there is no rule {name:?}"));
            let (_, medium, own) = Own::live(seed, without.map(rule).transpose()?, drop_flushes)?;
            (medium, Judge::Own(own))
        }
    };
    let mut trial = Trial { judge, medium, atomic: Size(header.atomic_bytes), stop: stop.clone() };
    let image = record.image(&header.cut, trial.atomic);
    trial.open(&record, &header.cut, image)
}

/// Runs the workload; gives what it did to the disk, a disk for images, and who judges them.
fn record(options: &CrashOptions, stop: &Arc<AtomicBool>) -> Result<(Record, Arc<Medium>, Judge), String> {
    match &options.subject {
        Subject::Own { without } => {
            let (record, medium, own) = Own::live(options.seed, *without, options.drop_flushes)?;
            Ok((record, medium, Judge::Own(own)))
        }
        Subject::Kernel { kind, size, mount_options, model, workload, check } => {
            let medium = Arc::new(Medium::new(size.to_blocks_down(), !options.drop_flushes));
            let stand = |model| Stand::new(*kind, mount_options.clone(), medium.clone(), model, stop.clone());
            let mut slow = stand(model.as_deref())?;
            let record = record_kernel(*size, workload, &medium, &mut slow)?;
            drop(slow);
            let stand = stand(None)?;
            Ok((record, medium, Judge::Kernel { stand: Box::new(stand), check: check.clone() }))
        }
    }
}

/// Makes the file system and runs the workload, up to and including the unmount at its end.
fn record_kernel(size: Size, workload: &Path, medium: &Arc<Medium>, stand: &mut Stand) -> Result<Record, String> {
    stand.make(size)?;
    let mounted = stand.mount()?;
    if !mounted.well {
        return Err(format!("the new file system cannot be mounted: {}", mounted.said));
    }
    stand.sync()?;
    medium.record();
    let listener = Listener::new(stand.mount_point().with_file_name("marks"), medium.clone())?;
    let worked = stand.work(workload, &listener)?;
    drop(listener);
    if !worked.well {
        return Err(format!("{}: {}", workload.display(), worked.said));
    }
    stand.unmount()?;
    medium.recorded()
}

fn recorded(record: &Record) -> Recorded {
    let mut sum = Recorded::default();
    for event in &record.events {
        match event {
            Event::Write { data, forced, .. } => {
                sum.writes += 1;
                sum.forced += u64::from(*forced);
                sum.written_bytes += data.len() as u64;
            }
            Event::Discard { .. } => sum.discards += 1,
            Event::Flush { .. } => sum.flushes += 1,
            Event::Mark(_) => sum.marks += 1,
        }
    }
    sum
}

/// Who says whether an image will do.
enum Judge {
    Kernel { stand: Box<Stand>, check: PathBuf },
    Own(Own),
}

/// Opens images.
struct Trial {
    judge: Judge,
    medium: Arc<Medium>,
    atomic: Size,
    stop: Arc<AtomicBool>,
}

impl Trial {
    /// Who rejects the image, and in which words.
    fn open(&mut self, record: &Record, cut: &Cut, image: medium::Contents) -> Result<Option<(Stage, String)>, String> {
        self.medium.hold(&record.base, image);
        let marks = record.marks(cut.at);
        let verdict = match &mut self.judge {
            Judge::Own(own) => own.judge(&self.medium, &marks),
            Judge::Kernel { stand, check } => judge_kernel(stand, check, &marks),
        };
        // What was ended by Ctrl-C looks like a failure, and is none.
        if self.stop.load(Ordering::Acquire) {
            return Err("stopped".into());
        }
        verdict
    }

    /// Whether the image fails at the same stage; `None` when there are no tries left.
    fn still(&mut self, record: &Record, cut: &Cut, stage: Stage, tries: &mut u32) -> Option<bool> {
        *tries = tries.checked_sub(1)?;
        let image = record.image(cut, self.atomic);
        let verdict = self.open(record, cut, image).ok()?;
        Some(verdict.is_some_and(|(found, _)| found == stage))
    }
}

fn judge_kernel(stand: &mut Stand, check: &Path, marks: &[&str]) -> Result<Option<(Stage, String)>, String> {
    let mounted = stand.mount()?;
    if !mounted.well {
        return Ok(Some((Stage::Mount, mounted.said)));
    }
    let checked = stand.check(check, marks)?;
    stand.unmount()?;
    if !checked.well {
        return Ok(Some((Stage::Check, checked.said)));
    }
    let fsck = stand.fsck()?;
    Ok((!fsck.well).then_some((Stage::Fsck, fsck.said)))
}

/// Finds out what of the cut matters, and keeps the image.
fn finding(
    options: &CrashOptions,
    record: &Record,
    trial: &mut Trial,
    cut: Cut,
    (stage, said): (Stage, String),
    number: usize,
) -> Result<Finding, String> {
    let uncovered = record.unflushed(cut.at);
    let harmed: Vec<usize> = cut.lost.iter().chain(cut.torn.keys()).copied().collect();
    let only_harmed = |indices: &[usize]| Cut {
        at: cut.at,
        lost: cut.lost.iter().copied().filter(|index| indices.contains(index)).collect(),
        torn: cut.torn.iter().filter(|(index, _)| indices.contains(index)).map(|(i, u)| (*i, u.clone())).collect(),
    };
    let mut tries = REDUCE_TRIES;
    let fewest_lost = reduce::smallest(harmed, |left| trial.still(record, &only_harmed(left), stage, &mut tries));
    let kept: Vec<usize> = uncovered.iter().copied().filter(|index| !cut.lost.contains(index)).collect();
    let only_kept = |indices: &[usize]| Cut {
        at: cut.at,
        lost: uncovered.iter().copied().filter(|index| !indices.contains(index)).collect(),
        torn: cut.torn.iter().filter(|(index, _)| indices.contains(index)).map(|(i, u)| (*i, u.clone())).collect(),
    };
    let mut tries = REDUCE_TRIES;
    let fewest_kept = reduce::smallest(kept, |left| trial.still(record, &only_kept(left), stage, &mut tries));
    if trial.stop.load(Ordering::Acquire) {
        return Err("stopped".into());
    }
    let cut_reduced = only_harmed(&fewest_lost);
    let ios = |indices: &[usize]| -> Vec<Io> { indices.iter().filter_map(|index| io(record, &cut, *index)).collect() };
    let (whole, harmed): (Vec<usize>, Vec<usize>) =
        uncovered.iter().partition(|index| !cut.lost.contains(index) && !cut.torn.contains_key(index));
    let file = options.save.join(format!("crash-{}-seed{}-{number}.ashlar", options.subject.name(), options.seed));
    let subject = match &options.subject {
        Subject::Kernel { kind, size, mount_options, check, .. } => saved::Subject::Kernel {
            kind: *kind,
            size_bytes: size.0,
            mount_options: mount_options.clone(),
            check: std::path::absolute(check).unwrap_or_else(|_| check.clone()),
        },
        Subject::Own { without } => {
            let without = without.map(|rule| rule.name().to_string());
            saved::Subject::Own { seed: options.seed, without, drop_flushes: options.drop_flushes }
        }
    };
    let header = saved::Header { subject, atomic_bytes: options.atomic.0, cut: cut_reduced };
    Saved { header, record: record.clone() }.write(&file)?;
    Ok(Finding {
        stage,
        said,
        cut: cut.at,
        marks: record.marks(cut.at).into_iter().map(str::to_string).collect(),
        kept: ios(&whole),
        lost: ios(&harmed),
        fewest_lost: ios(&fewest_lost),
        fewest_kept: ios(&fewest_kept),
        file,
    })
}

fn io(record: &Record, cut: &Cut, number: usize) -> Option<Io> {
    let (what, at, len_bytes) = match record.events.get(number)? {
        Event::Write { at, data, forced: false } => ("write", at, data.len() as u64),
        Event::Write { at, data, forced: true } => ("forced write", at, data.len() as u64),
        Event::Discard { at, count } => ("discard", at, count.to_bytes().0),
        Event::Flush { .. } | Event::Mark(_) => return None,
    };
    Some(Io { number, what, at_bytes: at.to_bytes().0, len_bytes, units_kept: cut.torn.get(&number).cloned() })
}
