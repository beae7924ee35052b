//! `ashlar lab age`.

use super::arguments::{AgeArguments, Target};
use super::{about, failed, layout, now_ns};
use crate::device::find;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_lab::age::clock::Writeback;
use ashlar_lab::age::image::Image;
use ashlar_lab::age::scale::Scale;
use ashlar_lab::age::state::State;
use ashlar_lab::age::years::Years;
use ashlar_lab::age::{AgeError, AgeOptions, Directory, Done, Own, OwnSpeed, Point, Subject, WhenFull, age, page};
use ashlar_lab::ffs::bench::{HotSpeed, Speed, hot, throughput};
use ashlar_lab::ffs::{Ffs, FfsLayout};
use ashlar_lab::history::{Closing, Header, HistoryReader};
use ashlar_lab::layout::{Layout, of_tree};
use ashlar_lab::mounts::mount_of;
use ashlar_ledger::{Kind, Ledger, Measurement};
use ashlar_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Sizes of files that are measured on FFS: those about the first indirect block, and some before and behind.
const SIZES_KIB: [u64; 11] = [8, 12, 16, 32, 64, 96, 104, 128, 256, 1024, 4096];

/// An ageing, and what came of it.
#[derive(Serialize, JsonSchema)]
struct Aged {
    /// What aged.
    target: String,
    /// The image, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// Where the history comes from.
    history: Header,
    /// How often each of its files stands.
    scale: Scale,
    /// Decides what is left to chance.
    seed: u64,
    /// The run was stopped before, after so many records.
    resumed_at: u64,
    /// What was done, in all runs together.
    done: Done,
    /// The layout over time; of a sample, but for FFS.
    points: Vec<Point>,
    /// The layout at the end.
    layout: Layout,
    /// What is special about FFS, with rates on the emulated disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    ffs: Option<FfsReport>,
    /// What is special about our own files on an emulated disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<OwnReport>,
    /// Seconds of this run for its records.
    seconds: f64,
    /// Records of this run in a second.
    records_per_second: f64,
    /// What a reader should know.
    notes: Vec<String>,
}

/// FFS, with rates on the emulated disk.
#[derive(Serialize, JsonSchema)]
struct FfsReport {
    /// Where things are.
    #[serde(flatten)]
    layout: FfsLayout,
    /// The model of the disk.
    model: String,
    /// Rates by size of the files, on the aged file system; emulated.
    aged: Vec<Speed>,
    /// The same on an empty one; emulated.
    empty: Vec<Speed>,
    /// The files that changed in the last 30 days; emulated.
    hot: Option<HotSpeed>,
}

impl fmt::Display for FfsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FfsLayout { free_in_fragments, two_blocks_adjoin, hash, .. } = &self.layout;
        let percent = |share: f64| ashlar_report::number(100.0 * share);
        writeln!(
            f,
            "ffs            {} % of the free space in fragments, {} % of the files of two blocks adjoin, layout {hash}",
            percent(*free_in_fragments),
            percent(*two_blocks_adjoin)
        )?;
        writeln!(f, "emulated on {}, MB/s: size of file, read and write when empty, read and write aged", self.model)?;
        for (empty, aged) in self.empty.iter().zip(&self.aged) {
            let size = Bytes(empty.file_bytes).to_string();
            let (one, other) = ((empty.read_mb_s, empty.write_mb_s), (aged.read_mb_s, aged.write_mb_s));
            writeln!(f, "    {size:>9}{:>9.3}{:>9.3}{:>12.3}{:>9.3}", one.0, one.1, other.0, other.1)?;
        }
        let Some(HotSpeed { files, read_mb_s, write_mb_s, .. }) = self.hot else { return Ok(()) };
        writeln!(f, "    hot files {files}: read {read_mb_s:.3}, overwrite {write_mb_s:.3}")
    }
}

impl fmt::Display for Aged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Aged { done, .. } = self;
        writeln!(
            f,
            "{}: {}, each file {:.3} times, seed {}",
            self.target,
            self.history.source,
            self.scale.value(),
            self.seed
        )?;
        writeln!(f, "{done}")?;
        writeln!(f, "{:.0} records/s", self.records_per_second)?;
        layout::text(f, &self.layout)?;
        self.ffs.iter().try_for_each(|ffs| write!(f, "{ffs}"))?;
        self.own.iter().try_for_each(|own| write!(f, "{own}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

/// Our own files on an emulated disk.
#[derive(Serialize, JsonSchema)]
struct OwnReport {
    /// The model of the disk.
    model: String,
    /// Virtual time of the ageing, seconds.
    virtual_s: f64,
    /// Reading the files as they lie; emulated.
    aged: OwnSpeed,
    /// Reading as many of a new file system to which the same files were written one after the other; emulated.
    fresh: OwnSpeed,
}

impl fmt::Display for OwnReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OwnReport { model, virtual_s, aged, fresh } = self;
        writeln!(f, "emulated on {model}: {:.0} s of virtual time", virtual_s)?;
        for (what, speed) in [("aged", aged), ("fresh", fresh)] {
            let (files, bytes) = (speed.files, Bytes(speed.bytes));
            writeln!(f, "    {what:<7}reading {files} files, {bytes}: {:.1} MB/s", speed.read_mb_s)?;
        }
        Ok(())
    }
}

/// A history that is to be applied.
struct Given<'a> {
    arguments: &'a AgeArguments,
    header: Header,
    closing: Closing,
    /// Everything that decides what is done, as one text.
    what: String,
    stop: std::sync::Arc<AtomicBool>,
}

/// What a run gave.
struct Ran {
    scale: Scale,
    resumed_at: u64,
    done: Done,
    points: Vec<Point>,
    seconds: f64,
}

/// `ashlar lab age`.
pub fn run(arguments: &AgeArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Aged>() {
        return Ok(code);
    }
    let mut reader = open(&arguments.history)?;
    let damaged = |error| about(&arguments.history, error);
    let closing = reader.closing().map_err(damaged)?;
    let header = reader.header().clone();
    let what = serde_json::json!({
        "history": header, "statistics": closing, "on": format!("{:?}", arguments.on), "to": arguments.to, "years": arguments.years,
        "seed": arguments.seed, "when_full": arguments.when_full, "dirty": arguments.dirty.0,
        "output": arguments.output, "mkfs": arguments.mkfs_options, "mount": arguments.mount_options,
    });
    let given = Given { arguments, header, closing, what: what.to_string(), stop: on_signal()? };
    let aged = match &arguments.on {
        Target::Image(kind, size) => {
            let to = arguments.output.as_deref();
            let to = to.ok_or_else(|| Failure::new("give -o FILE for the image").with_code(2))?;
            given.image(to, *kind, *size, output)
        }
        Target::Ffs(size, variant) => given.ffs(*size, *variant, output),
        Target::Own(size, model) => given.own(*size, model, output),
        Target::Directory(path) => given.directory(path, output),
    }?;
    if let Some(file) = &arguments.report {
        let what = format!("{} on {}, each file {:.3} times", aged.history.source, aged.target, aged.scale.value());
        let html = page("Ageing", &what, &aged.done, &aged.points, &aged.layout, aged.ffs.is_some());
        std::fs::write(file, html).map_err(|error| about(file, error))?;
    }
    if !arguments.no_ledger {
        record(&aged, output);
    }
    let code = ExitCode::from(u8::from(aged.done.refused > 0));
    output.print(&aged);
    Ok(code)
}

fn open(path: &Path) -> Result<HistoryReader<BufReader<File>>, Failure> {
    let file = File::open(path).map_err(|error| about(path, error))?;
    HistoryReader::new(BufReader::with_capacity(1 << 18, file)).map_err(|error| about(path, error))
}

/// What was measured, for the ledger.
fn record(aged: &Aged, output: &Output) {
    let subject =
        format!("{} aged on {}, {:.3} times, seed {}", aged.history.source, aged.target, aged.scale.value(), aged.seed);
    let kind = Some(if aged.ffs.is_some() || aged.own.is_some() { Kind::Emulated } else { Kind::Measured });
    let values = [
        ("layout.score", "share", aged.layout.all.score),
        ("layout.pieces", "pieces/file", Some(aged.layout.all.pieces_per_file)),
    ];
    for (quantity, unit, value) in values {
        let Some(value) = value else { continue };
        let (quantity, unit) = (quantity.to_string(), unit.to_string());
        let measured = Measurement { subject: subject.clone(), quantity, unit, value, how: "lab age".into(), kind };
        if let Err(error) = Ledger::open_default().and_then(|ledger| ledger.measure(measured)) {
            return output.say(format!("ashlar: what was measured is not in the ledger: {error}"));
        }
    }
}

/// A path with more at its end.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

impl Given<'_> {
    /// The state of a run that goes on, or of one that begins once `begin` has prepared it.
    fn state(&self, home: &Path, begin: impl FnOnce() -> Result<(), Failure>) -> Result<State, Failure> {
        if State::is_there(home) && !self.arguments.fresh {
            return State::resume(home, &self.what).map_err(failed);
        }
        begin()?;
        State::begin(home, &self.what).map_err(failed)
    }

    /// Applies the history to `subject`, which holds `capacity` bytes.
    fn apply(
        &self,
        subject: &mut impl Subject,
        capacity: Bytes,
        state: &mut State,
        output: &Output,
    ) -> Result<Ran, Failure> {
        let scale = match self.arguments.to {
            None => Scale::ONE,
            Some(share) => {
                let wanted = (capacity.0 as f64 * share) as u64;
                Scale::to(self.closing.live_bytes, wanted)
                    .ok_or_else(|| failed("the history ends with no files, so --to cannot be reached; leave it out"))?
            }
        };
        let when_full = if self.arguments.when_full == "stop" { WhenFull::Stop } else { WhenFull::Skip };
        let writeback = Writeback { background_bytes: self.arguments.dirty.0, ..Writeback::LINUX };
        let options = AgeOptions { scale, writeback, when_full, seed: self.arguments.seed };
        let span_ns = self.closing.span_ns;
        let times = self.arguments.years.map_or(1.0, |years| years * 365.0 * 86_400e9 / (span_ns as f64 + 1e9));
        // Of a history that is lived again, about: deletions come to it.
        let (total, resumed_at) = ((self.closing.records as f64 * times) as u64, state.position());
        let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(total) };
        let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} records, {per_sec}, {eta} left");
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let began = Instant::now();
        let seen = |count| bar.set_position(count);
        let done = match self.arguments.years {
            None => age(&mut open(&self.arguments.history)?, total, subject, &options, state, &self.stop, &seen),
            Some(years) => {
                open(&self.arguments.history)?;
                let again = || {
                    let file = File::open(&self.arguments.history)?;
                    HistoryReader::new(BufReader::with_capacity(1 << 18, file))
                };
                let mut lived =
                    Years::new(again, span_ns, years).map_err(|error| about(&self.arguments.history, error))?;
                age(&mut lived, total, subject, &options, state, &self.stop, &seen)
            }
        };
        bar.finish_and_clear();
        let (done, points) = done.map_err(|error| match error {
            AgeError::Stopped(_) => Failure::new(error.to_string()),
            error => failed(error),
        })?;
        Ok(Ran { scale, resumed_at, done, points, seconds: began.elapsed().as_secs_f64() })
    }

    fn aged(&self, ran: Ran, target: String, image: Option<&Path>, layout: Layout, mut notes: Vec<String>) -> Aged {
        if ran.resumed_at == 0 && ran.done.refused > 0 && self.closing.peak_bytes > self.closing.live_bytes {
            notes.push(format!(
                "at its height the history has {} times the bytes that it ends with",
                ashlar_report::number(self.closing.peak_bytes as f64 / self.closing.live_bytes.max(1) as f64)
            ));
        }
        Aged {
            target,
            image: image.map(|path| path.to_string_lossy().into_owned()),
            history: self.header.clone(),
            scale: ran.scale,
            seed: self.arguments.seed,
            resumed_at: ran.resumed_at,
            records_per_second: (ran.done.records - ran.resumed_at) as f64 / ran.seconds.max(1e-9),
            done: ran.done,
            points: ran.points,
            layout,
            ffs: None,
            own: None,
            seconds: ran.seconds,
            notes,
        }
    }

    fn image(
        &self,
        to: &Path,
        kind: ashlar_lab::age::image::Kind,
        size: Bytes,
        output: &Output,
    ) -> Result<Aged, Failure> {
        let home = beside(to, ".ageing");
        let point = home.join("mnt");
        std::fs::create_dir_all(&home).map_err(|error| about(&home, error))?;
        let image = Image::new(kind, to, &point);
        let arguments = self.arguments;
        let mut state = self.state(&home, || {
            // A run that is forgotten may have left it mounted.
            if arguments.fresh && point.exists() && image.is_mounted().is_ok_and(|mounted| mounted) {
                image.put_away().map_err(|error| about(&point, error))?;
            }
            let force = arguments.force || arguments.fresh && State::is_there(&home);
            let options = arguments.mkfs_options.as_deref();
            let made = image.make(size, arguments.seed, options, force);
            made.map_err(|error| {
                let _ = std::fs::remove_dir(&home);
                about(to, error)
            })
        })?;
        image.mount(arguments.mount_options.as_deref()).map_err(|error| about(to, error))?;
        let worked = self.on_mount(&point, &mut state, output);
        // Whatever happened, nothing stays mounted, and the run may go on later.
        let put_away = image.put_away();
        let (ran, layout, notes) = match (worked, put_away) {
            (Ok(worked), Ok(())) => worked,
            (Ok(_), Err(error)) => return Err(about(&point, error)),
            (Err(failure), put_away) => {
                if put_away.is_ok() {
                    state.put_away().map_err(|error| about(&home, error))?;
                }
                return Err(failure);
            }
        };
        std::fs::remove_dir_all(&home).map_err(|error| about(&home, error))?;
        Ok(self.aged(ran, format!("{}:{}", kind.name(), size), Some(to), layout, notes))
    }

    /// Ages what is mounted, below a directory of its own.
    fn on_mount(
        &self,
        point: &Path,
        state: &mut State,
        output: &Output,
    ) -> Result<(Ran, Layout, Vec<String>), Failure> {
        let home = point.join("aged");
        std::fs::create_dir_all(&home).map_err(|error| about(&home, error))?;
        let space = rustix::fs::statvfs(point).map_err(|error| about(point, error))?;
        let capacity = Bytes(space.f_blocks.saturating_mul(space.f_frsize));
        let mut subject = Directory::new(&home, self.arguments.seed).map_err(|error| about(&home, error))?;
        let ran = self.apply(&mut subject, capacity, state, output)?;
        drop(subject);
        let seen = of_tree(&home, now_ns(), &AtomicBool::new(false), &|_| {})?;
        let mut notes = seen.notes;
        let space = rustix::fs::statvfs(point).map_err(|error| about(point, error))?;
        if ran.done.refused > 0 && space.f_ffree < space.f_files / 20 {
            notes.push("nearly all inodes are in use: with ext4, --mkfs-options '-N NUMBER' makes more".into());
        }
        Ok((ran, seen.layout, notes))
    }

    fn directory(&self, path: &Path, output: &Output) -> Result<Aged, Failure> {
        if !path.is_dir() {
            return Err(about(
                path,
                "there is no such directory; devices are not aged, but mount one and name the directory",
            ));
        }
        let mount = mount_of(path).map_err(|error| about(path, error))?;
        let real = std::fs::canonicalize(path).map_err(|error| about(path, error))?;
        if mount.point != real && !self.arguments.yes {
            let text = format!(
                "it is part of the file system at {}, which others may use and which would be filled; --yes agrees to that",
                mount.point.display()
            );
            return Err(about(path, text));
        }
        let home = beside(&self.arguments.history, ".ageing");
        let mut state = self.state(&home, || {
            let aged = path.join("aged");
            match aged.symlink_metadata() {
                Ok(_) if !self.arguments.fresh => {
                    Err(about(&aged, "it is there already; remove it, or name another directory"))
                }
                Ok(_) => std::fs::remove_dir_all(&aged).map_err(|error| about(&aged, error)),
                Err(_) => Ok(()),
            }
        })?;
        let (ran, layout, notes) = match self.on_mount(path, &mut state, output) {
            Ok(worked) => worked,
            Err(failure) => {
                state.put_away().map_err(|error| about(&home, error))?;
                return Err(failure);
            }
        };
        std::fs::remove_dir_all(&home).map_err(|error| about(&home, error))?;
        Ok(self.aged(ran, format!("{} ({})", path.display(), mount.file_system), None, layout, notes))
    }

    fn ffs(&self, size: Bytes, variant: ashlar_lab::ffs::Variant, output: &Output) -> Result<Aged, Failure> {
        let model = find(&self.arguments.model)?;
        let mut ffs = Ffs::new(size, variant).map_err(failed)?;
        let capacity = ffs.capacity();
        let ran = self.apply(&mut ffs, capacity, &mut State::nowhere(), output)?;
        let mut notes = vec!["rates are emulated, without a processor's time".to_string()];
        let mut rates = |ffs: &mut Ffs| {
            let mut rates = Vec::new();
            for kib in SIZES_KIB {
                let mut disk = model.build(self.arguments.seed)?;
                match throughput(ffs, disk.as_mut(), kib << 10) {
                    Ok(speed) => rates.push(speed),
                    Err(error) => notes.push(format!("files of {kib} KiB: {error}")),
                }
            }
            Ok::<_, Failure>(rates)
        };
        let aged = rates(&mut ffs)?;
        let empty = rates(&mut Ffs::new(size, variant).map_err(failed)?)?;
        let hot = hot(&ffs, model.build(self.arguments.seed)?.as_mut()).map_err(failed)?;
        let layout = ffs.layout();
        let special = FfsReport { layout: ffs.special(), model: model.name, aged, empty, hot: Some(hot) };
        let aged = self.aged(ran, format!("ffs:{size}:{variant:?}").to_lowercase(), None, layout, notes);
        Ok(Aged { ffs: Some(special), ..aged })
    }

    fn own(&self, size: Bytes, model: &str, output: &Output) -> Result<Aged, Failure> {
        let model = find(model)?;
        let mut own = Own::new(size, &model, self.arguments.seed).map_err(failed)?;
        let capacity = own.capacity();
        let ran = self.apply(&mut own, capacity, &mut State::nowhere(), output)?;
        let (layout, virtual_s) = (own.layout().map_err(failed)?, own.seconds());
        let aged = own.read_speed().map_err(failed)?;
        let mut copy = own.fresh_copy(size, &model, self.arguments.seed).map_err(failed)?;
        drop(own);
        let fresh = copy.read_speed().map_err(failed)?;
        let notes = vec!["rates are emulated, without a processor's time, and nothing is compressed".to_string()];
        let special = OwnReport { model: model.name.clone(), virtual_s, aged, fresh };
        let aged = self.aged(ran, format!("ashlar:{size}:{}", model.name), None, layout, notes);
        Ok(Aged { own: Some(special), ..aged })
    }
}
