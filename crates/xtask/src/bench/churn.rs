//! Somebody at work on a file system, in real time: files come, grow, are saved anew and go.

use crate::bench::check_interrupt;
use ashlar_lab::history::synthetic::Sizes;
use ashlar_models::Chance;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DIRECTORIES: u64 = 40;
/// Files that grow all the time, as logs and downloads do, a piece each in turn: what a file system interleaves most easily.
const GROWING: usize = 6;
const PIECE: usize = 64 << 10;
/// Longest file that is made at once.
const SIZE_MAX: u64 = 16 << 20;
/// Longest log; a longer one begins anew.
const LOG_MAX: u64 = 4 << 20;

/// How somebody works.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Habits {
    /// Share of the files that become others in a period.
    #[arg(long, default_value_t = 0.4)]
    turnover: f64,
    /// Share of the file system that is in use from the end of the first period on.
    #[arg(long, default_value_t = 0.85)]
    used: f64,
    /// Logs to which 1 to 16 KiB are appended and synced, in turn: nothing scatters files more.
    #[arg(long, default_value_t = 60)]
    logs: usize,
}

/// See the module.
pub struct Churn {
    root: PathBuf,
    capacity: u64,
    habits: Habits,
    chance: Chance,
    sizes: Sizes,
    files: Vec<(PathBuf, u64)>,
    growing: Vec<(PathBuf, u64)>,
    logs: Vec<(PathBuf, u64)>,
    bytes: u64,
    made: u64,
    data: Vec<u8>,
}

impl Churn {
    /// Begins in an empty directory of a file system of `capacity` bytes.
    pub fn new(root: &Path, capacity: u64, habits: Habits, seed: u64) -> io::Result<Churn> {
        let mut chance = Chance::new(seed);
        for number in 0..DIRECTORIES {
            fs::create_dir(root.join(format!("d{number}")))?;
        }
        let data = (0..PIECE / 8).flat_map(|_| chance.below(u64::MAX).to_le_bytes()).collect();
        let (files, growing, sizes) = (Vec::new(), Vec::new(), Sizes::Lognormal(24_000.0, 2.2));
        let logs =
            (0..habits.logs).map(|number| (root.join(format!("d{}/log{number}", number % DIRECTORIES as usize)), 0));
        let logs = logs.collect();
        Ok(Churn { root: root.into(), capacity, habits, chance, sizes, files, growing, logs, bytes: 0, made: 0, data })
    }

    /// Works for a time; at its end a share of the files is another, and as much is in use as should be.
    pub fn work(&mut self, time: Duration) -> Result<(), String> {
        let began = Instant::now();
        let replaced = (self.files.len() as f64 * self.habits.turnover) as u64;
        let from = self.bytes;
        let mut changed = 0;
        loop {
            check_interrupt()?;
            let past = (began.elapsed().as_secs_f64() / time.as_secs_f64()).min(1.0);
            let wanted = from as f64 + past * (self.capacity as f64 * self.habits.used - from as f64);
            let mut idle = true;
            while (self.bytes as f64) < wanted || changed < (past * replaced as f64) as u64 {
                changed += self.step(wanted as u64).map_err(|error| error.to_string())?;
                idle = false;
            }
            if past >= 1.0 {
                return Ok(());
            }
            if idle {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn any(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.chance.below(self.files.len() as u64) as usize)
    }

    /// One thing; returns how many files are others now.
    fn step(&mut self, wanted: u64) -> io::Result<u64> {
        self.grow()?;
        self.log()?;
        let (what, index) = (self.chance.unit(), self.any());
        match index {
            Some(index) if self.bytes > wanted || what < 0.3 => self.delete(index).map(|()| 1),
            Some(index) if what < 0.4 => self.append(index).map(|()| 1),
            Some(index) if what < 0.5 => self.save(index).map(|()| 1),
            // Gone before anybody looks.
            _ if what < 0.6 => {
                self.create()?;
                let last = self.files.len() - 1;
                self.delete(last).map(|()| 0)
            }
            _ => self.create().map(|()| 1),
        }
    }

    fn write(&mut self, path: &Path, len: u64) -> io::Result<()> {
        let mut file = File::create(path)?;
        let mut left = len;
        while left > 0 {
            let piece = left.min(PIECE as u64);
            file.write_all(self.data.get(..piece as usize).unwrap_or_default())?;
            left -= piece;
        }
        if self.chance.unit() < 0.1 { file.sync_all() } else { Ok(()) }
    }

    fn place(&mut self, kind: &str) -> PathBuf {
        self.made += 1;
        self.root.join(format!("d{}/{kind}{}", self.chance.below(DIRECTORIES), self.made))
    }

    fn create(&mut self) -> io::Result<()> {
        let (path, size) = (self.place("f"), self.sizes.draw(&mut self.chance).min(SIZE_MAX));
        self.write(&path, size)?;
        self.files.push((path, size));
        self.bytes += size;
        Ok(())
    }

    fn delete(&mut self, index: usize) -> io::Result<()> {
        let (path, size) = self.files.swap_remove(index);
        self.bytes -= size;
        fs::remove_file(path)
    }

    fn append(&mut self, index: usize) -> io::Result<()> {
        let len = 1 + self.chance.below(PIECE as u64);
        let Some((path, size)) = self.files.get_mut(index) else { return Ok(()) };
        OpenOptions::new().append(true).open(path)?.write_all(&self.data[..len as usize])?;
        *size += len;
        self.bytes += len;
        Ok(())
    }

    /// As editors do: a new file takes the name.
    fn save(&mut self, index: usize) -> io::Result<()> {
        let Some((path, size)) = self.files.get(index).cloned() else { return Ok(()) };
        let new = path.with_extension("new");
        self.write(&new, size)?;
        fs::rename(new, path)
    }

    fn log(&mut self) -> io::Result<()> {
        if self.logs.is_empty() {
            return Ok(());
        }
        let (index, len) = (self.chance.below(self.logs.len() as u64) as usize, 1 + self.chance.below(16 << 10));
        let Some((path, size)) = self.logs.get_mut(index) else { return Ok(()) };
        if *size > LOG_MAX {
            fs::remove_file(&*path)?;
            self.bytes -= *size;
            *size = 0;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(&self.data[..len as usize])?;
        *size += len;
        self.bytes += len;
        file.sync_data()
    }

    fn grow(&mut self) -> io::Result<()> {
        if self.growing.len() < GROWING {
            let path = self.place("g");
            File::create(&path)?;
            self.growing.push((path, 0));
        }
        let index = self.chance.below(self.growing.len() as u64) as usize;
        let Some((path, size)) = self.growing.get_mut(index) else { return Ok(()) };
        OpenOptions::new().write(true).open(&*path)?.write_all_at(&self.data, *size)?;
        *size += PIECE as u64;
        self.bytes += PIECE as u64;
        if *size >= SIZE_MAX {
            let done = self.growing.swap_remove(index);
            self.files.push(done);
        }
        Ok(())
    }
}
