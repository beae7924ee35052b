//! A file system of the kernel, on the model of a disk in real time: an object is a file in one of 256 directories, as the
//! thesis put objects on ext2 and XFS.
//!
//! It is prepared on an image at full speed, without a model: aged, or filled. Then each measurement has a copy of that image,
//! mounted anew on the emulated disk, so that caches are empty. Objects are full of zeros, which take no room in the image, so that a
//! disk of 80 GB needs what its metadata need.
//!
//! While it ages, files are written back by the clock of the history, as in `lab age`, for at full speed the kernel's clock
//! would not write before most of them are gone.

use super::mix::Held;
use super::{Bench, DiskTime, Mix, Outcome, Subject};
use crate::age::clock::{Clock, Writeback};
use crate::history::synthetic::streams::Streams;
use crate::layout::of_tree;
use crate::stand::{DeviceUse, Place, Stand, StandOptions};
use crate::workload::directory_of_object;
use ashlar_emulated::Record;
use ashlar_env::host::start_writeback;
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Directories of objects.
pub const DIRECTORIES: u64 = 256;
/// Where they are.
const OBJECTS: &str = "objects";
/// The largest object that is written at once.
const OBJECT_MAX: usize = 1 << 20;

/// How a file system is prepared and measured.
#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// A new file system, or the image of one that was prepared before. Its `device` is the model.
    pub stand: StandOptions,
    /// Memory for this process and the page cache while it is measured.
    pub memory: Option<Bytes>,
    /// Decides what is left to chance.
    pub seed: u64,
}

/// What was prepared.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Aged {
    /// Objects.
    pub objects: u64,
    /// Layout score of all files.
    pub score: Option<f64>,
    /// Pieces of a file, on average.
    pub pieces_per_file: f64,
    #[serde(skip)]
    live: Vec<Held>,
}

/// A file system of the kernel.
pub struct OnFiles {
    stand: Stand,
    root: PathBuf,
    zeros: Vec<u8>,
    /// Room for what is read.
    buffer: Vec<u8>,
    began: Instant,
    /// While it ages.
    clock: Option<(Clock, i64)>,
}

fn about(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

impl OnFiles {
    /// With directories, if there are none yet.
    fn open(options: &StandOptions) -> io::Result<OnFiles> {
        let stand = Stand::open(options)?;
        let root = stand.root().join(OBJECTS);
        if !root.exists() {
            std::fs::create_dir(&root)?;
            (0..DIRECTORIES).try_for_each(|directory| std::fs::create_dir(root.join(directory.to_string())))?;
        }
        let (zeros, buffer) = (vec![0; OBJECT_MAX], vec![0; OBJECT_MAX]);
        Ok(OnFiles { stand, root, zeros, buffer, began: Instant::now(), clock: None })
    }

    fn path(&self, object: u64) -> PathBuf {
        self.root.join(directory_of_object(object).to_string()).join(format!("{object:016x}"))
    }

    /// What is there, in the order in which it was made.
    fn look(&self) -> io::Result<Aged> {
        let mut live = Vec::new();
        for directory in std::fs::read_dir(&self.root)? {
            for entry in std::fs::read_dir(directory?.path())? {
                let entry = entry?;
                let name = entry.file_name();
                let object = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
                let object = object.ok_or_else(|| about(&entry.path(), "it is no object of `lab objectbench`"))?;
                live.push(Held { object, size: entry.metadata()?.len() });
            }
        }
        live.sort_unstable_by_key(|held| held.object);
        let seen =
            of_tree(&self.root, 0, &AtomicBool::new(false), &|_| {}).map_err(|error| about(&self.root, error))?;
        let all = seen.layout.all;
        Ok(Aged { objects: live.len() as u64, score: all.score, pieces_per_file: all.pieces_per_file, live })
    }

    fn write_back(&self, objects: Vec<u64>) -> io::Result<()> {
        for object in objects {
            start_writeback(File::open(self.path(object))?)?;
        }
        Ok(())
    }
}

impl FilesOptions {
    fn at_full_speed(&self, place: Place) -> StandOptions {
        StandOptions { place, device: None, sparse: true, ..self.stand.clone() }
    }

    /// Makes the file system, ages it, writes more objects, and keeps the image as `image`. Returns what ageing took; `seen`
    /// gets the requests so far.
    ///
    /// # Errors
    /// Those of the file system; no room for the image; `Interrupted`.
    pub fn prepare(
        &self,
        streams: Option<&Streams>,
        objects: u64,
        image: &Path,
        stop: &AtomicBool,
        seen: &dyn Fn(u64),
    ) -> io::Result<Option<Outcome>> {
        let mut bench =
            Bench::with(OnFiles::open(&self.at_full_speed(self.stand.place.clone()))?, Vec::new(), self.seed);
        bench.subject.clock = Some((Clock::new(Writeback::LINUX), 0));
        let aged = streams.map(|streams| bench.age(streams, stop, seen)).transpose()?;
        if objects > 0 {
            bench.measure(&Mix::SynWrite { sync: false }, objects, stop, seen)?;
        }
        bench.subject.stand.keep(image)?;
        Ok(aged)
    }

    /// What is on an image that was prepared.
    ///
    /// # Errors
    /// It is none; those of the file system.
    pub fn look(&self, image: &Path) -> io::Result<Aged> {
        let files = OnFiles::open(&self.at_full_speed(Place::Path(image.into())))?;
        let seen = files.look();
        files.stand.put_away().and(seen)
    }

    /// Measures a workload on a copy of an image, with empty caches; as often as it is called, from the same beginning. The
    /// disk's time is from mounting to unmounting.
    ///
    /// # Errors
    /// Those of the file system; `Interrupted`.
    pub fn measure(
        &self,
        image: &Path,
        aged: &Aged,
        (mix, requests): (&Mix, u64),
        stop: &AtomicBool,
        seen: &dyn Fn(u64),
    ) -> io::Result<(Outcome, DiskTime)> {
        let directory = std::fs::canonicalize(&self.stand.scratch)?;
        let trace = directory.join(format!("ashlar-objectbench-{}.jsonl", std::process::id()));
        let place = Place::Path(image.into());
        let stand = StandOptions { place, sparse: true, trace: Some(trace.clone()), ..self.stand.clone() };
        let mut files = OnFiles::open(&stand)?;
        if let Some(memory) = self.memory {
            files.stand.limit(memory)?;
        }
        let mut bench = Bench::with(files, aged.live.clone(), self.seed);
        let measured = bench.measure(mix, requests, stop, seen);
        let away = bench.subject.stand.put_away();
        let time = measured.and_then(|measured| Ok((measured, disk_time(&trace)?)));
        let _ = std::fs::remove_file(&trace);
        away.and(time)
    }
}

fn disk_time(trace: &Path) -> io::Result<DiskTime> {
    let mut time = DiskTime::default();
    for line in BufReader::new(File::open(trace)?).lines() {
        let record: Record = serde_json::from_str(&line?).map_err(|error| about(trace, error))?;
        time.add(&record);
    }
    Ok(time)
}

impl Subject for OnFiles {
    fn put(&mut self, object: u64, size: u64, sync: bool) -> io::Result<bool> {
        let path = self.path(object);
        let data = self.zeros.get(..size as usize);
        let data = data.ok_or_else(|| about(&path, format!("an object of {} is too large", Bytes(size))))?;
        let written = (|| {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
            file.write_all_at(data, 0)?;
            if sync { file.sync_all() } else { Ok(()) }
        })();
        match written {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                std::fs::remove_file(&path)?;
                return Ok(false);
            }
            written => written?,
        }
        if let Some((clock, now_ns)) = &mut self.clock {
            let due = if sync { Vec::new() } else { clock.dirty(object, *now_ns, size) };
            self.write_back(due)?;
        }
        Ok(true)
    }

    fn get(&mut self, object: u64, size: u64) -> io::Result<()> {
        let file = File::open(self.path(object))?;
        let into = self.buffer.get_mut(..size as usize).ok_or_else(|| io::Error::other("an object is too large"))?;
        file.read_exact_at(into, 0)
    }

    fn delete(&mut self, object: u64) -> io::Result<()> {
        if let Some((clock, _)) = &mut self.clock {
            clock.clean(object);
        }
        std::fs::remove_file(self.path(object))
    }

    fn at(&mut self, now_ns: i64) -> io::Result<()> {
        let Some((clock, now)) = &mut self.clock else { return Ok(()) };
        *now = now_ns;
        let due = clock.due(now_ns);
        self.write_back(due)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }

    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn device(&self) -> DeviceUse {
        self.stand.device_use().unwrap_or_default()
    }
}
