//! Our own files engine that ages, in virtual time on an emulated disk.
//!
//! Everything runs in one simulation: engine, pool, the disk's model and the clock, which keeps up with the history, so that
//! checkpoints and cleaning happen when they would. Files are written when the kernel would write their pages back, as with
//! any other file system. They are full of one byte, and blocks full of it take no memory ([`Filled`]), so a disk may have
//! terabytes; nothing is compressed. The processor takes no time.

use super::real::name;
use super::{Alive, Live, Look, Refusal, Subject};
use crate::history::{ROOT, Writing};
use crate::layout::{Free, HOT_NS, Layout, Lying, Tally};
use ashlar_block::Device;
use ashlar_devices::{FILL, Filled};
use ashlar_emulated::Emulated;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_files::{Files, Options, Piece};
use ashlar_models::ModelFile;
use ashlar_pool::{Compression, Config, Creation, Pool};
use ashlar_survey::layout::Score;
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size};
use ashlar_vfs::{Errno, FileKind, FileSystem, NewNode, RenameMode, SetAttr, WriteMode};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a write, as the kernel gives them to a file system in user space.
const WRITE_MAX: u64 = 1 << 20;
/// Files that are looked at for a point of the series, and read at the end.
const SAMPLE: usize = 2000;
/// Name of the volume.
const VOLUME: &str = "aged";

/// How fast files are read that lie so. 1 MB is 10^6 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct OwnSpeed {
    /// Files that were read, one after the other, nothing cached.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// MB/s; emulated.
    pub read_mb_s: f64,
}

/// A file or directory.
#[derive(Clone, Copy)]
struct Known {
    inode: u64,
    /// Bytes of a file.
    size: Option<u64>,
    /// When it was last written, by the time of the history.
    written_ns: i64,
}

/// See the module.
pub struct Own {
    sim: Sim,
    device: Device,
    files: Arc<Files>,
    known: HashMap<u64, Known>,
    /// What is not written yet.
    dirty: BTreeMap<u64, Range<u64>>,
    dirty_bytes: u64,
    began_ns: Option<i64>,
    now_ns: i64,
    fill: Bytes,
}

fn told(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn refusal(error: ashlar_vfs::Error) -> Refusal {
    match error.errno {
        Errno::NoSpace => Refusal::Full,
        _ => Refusal::Io(told(error)),
    }
}

/// Runs something in the simulation until it ends.
fn run<T: Send + 'static>(sim: &Sim, work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    sim.run(work).map_err(|_| told("the engine waits for nobody: a defect of this program"))
}

async fn open(env: ashlar_env::Env, device: Device) -> io::Result<Arc<Files>> {
    let config = Config { compression: Compression::Off, scrub: false, ..Config::default() };
    let pool = Pool::open(&env, vec![device], config).await.map_err(told)?;
    let volume = match pool.volume(VOLUME) {
        Some(volume) => volume,
        None => {
            let volume = pool.create_volume(VOLUME).await.map_err(told)?;
            Files::format(&volume, 0, 0).await.map_err(told)?;
            volume
        }
    };
    Files::open(volume, Options::default()).await.map_err(told)
}

impl Own {
    /// An empty file system on a disk of `size` bytes, as slow as `model`.
    pub fn new(size: Size, model: &ModelFile, seed: u64) -> io::Result<Own> {
        let sim = Sim::new(seed, Schedule::Fifo);
        let blocks = Blocks(size.0 / BLOCK_LEN as u64);
        let child: Device = Arc::new(Filled::new(blocks));
        let device: Device = Arc::new(Emulated::new(child, model, seed, sim.env()).map_err(told)?);
        let (env, disk) = (sim.env(), device.clone());
        let files = run(&sim, async move {
            Pool::create(&env, std::slice::from_ref(&disk), Creation::default()).await.map_err(told)?;
            open(env, disk).await
        })??;
        Ok(Own {
            sim,
            device,
            files,
            known: HashMap::from([(ROOT, Known { inode: ashlar_vfs::ROOT, size: None, written_ns: 0 })]),
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
            began_ns: None,
            now_ns: 0,
            fill: Bytes::from(vec![FILL; WRITE_MAX as usize]),
        })
    }

    /// Bytes that files can have at first.
    pub fn capacity(&self) -> Size {
        Size(self.files.pool().status().free)
    }

    /// Seconds of virtual time since it began.
    pub fn seconds(&self) -> f64 {
        self.sim.env().now().0 as f64 / 1e9
    }

    /// Has the engine do something with what it calls a file, directory or name.
    fn ask<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Files>) -> F) -> Result<T, Refusal>
    where
        F: Future<Output = ashlar_vfs::Result<T>> + Send + 'static,
    {
        run(&self.sim, work(self.files.clone())).map_err(Refusal::Io)?.map_err(refusal)
    }

    fn inode(&self, id: u64) -> Result<u64, Refusal> {
        let known = self.known.get(&id).map(|known| known.inode);
        known.ok_or_else(|| Refusal::Io(told("the history names what it never made")))
    }

    /// The directory that something is in, and its name.
    fn place(&self, id: u64, alive: &Alive) -> Result<(u64, String), Refusal> {
        let (parent, name_len) = alive.get(&id).map_or((ROOT, 0), |live| (live.parent, live.name_len));
        Ok((self.inode(parent)?, name(id, name_len)))
    }

    fn make(&mut self, id: u64, kind: FileKind, alive: &Alive) -> Result<u64, Refusal> {
        let (parent, name) = self.place(id, alive)?;
        let new = NewNode { kind, permissions: 0o755, uid: 0, gid: 0, device: 0, umask: 0, open: false };
        let inode = self.ask(|files| async move {
            let made = match kind {
                FileKind::Directory => files.mkdir(parent, name.as_bytes(), new).await?,
                _ => files.create(parent, name.as_bytes(), new).await?,
            };
            files.forget(made.ino, 1).await;
            Ok(made.ino)
        })?;
        let size = (kind == FileKind::File).then_some(0);
        self.known.insert(id, Known { inode, size, written_ns: self.now_ns });
        Ok(inode)
    }

    fn clean(&mut self, id: u64) -> Option<Range<u64>> {
        let range = self.dirty.remove(&id)?;
        self.dirty_bytes -= range.end - range.start;
        Some(range)
    }

    fn flush(&mut self, id: u64, sync: bool) -> Result<(), Refusal> {
        let (range, inode) = (self.clean(id), self.inode(id)?);
        let fill = self.fill.clone();
        self.ask(|files| async move {
            let Range { start: mut at, end } = range.unwrap_or_default();
            while at < end {
                let len = WRITE_MAX.min(end - at);
                let how = WriteMode { writeback: false, clear_setid: false, sync: false };
                files.write(inode, at, fill.slice(..len as usize), how).await?;
                at += len;
            }
            if sync { files.fsync(inode, false).await } else { Ok(()) }
        })
    }

    fn pieces(&self, inode: u64) -> io::Result<Vec<Piece>> {
        self.ask(|files| async move { files.places(inode).await }).map_err(|refusal| match refusal {
            Refusal::Full => told("full"),
            Refusal::Io(error) => error,
        })
    }

    /// Some files, evenly among all.
    fn sample(&self, most: usize) -> Vec<(Known, u64)> {
        let files = self.known.iter().filter_map(|(id, known)| Some((*id, *known, known.size?)));
        let mut files: Vec<_> = files.collect();
        files.sort_unstable_by_key(|(id, ..)| *id);
        let step = files.len().div_ceil(most).max(1);
        files.into_iter().step_by(step).map(|(_, known, size)| (known, size)).collect()
    }

    fn tally(&self, most: usize) -> io::Result<Layout> {
        let mut tally = Tally::default();
        for (known, size) in self.sample(most) {
            let (score, pieces) = score(&self.pieces(known.inode)?, size);
            let hot = known.written_ns >= self.now_ns.saturating_sub(HOT_NS);
            tally.add(&Lying { bytes: size, score, pieces, away: None, hot });
        }
        let mut by_length = BTreeMap::<u64, (u64, u64)>::new();
        for range in self.files.pool().free_ranges() {
            let len = range.end - range.start;
            let sum = by_length.entry(len.next_power_of_two()).or_default();
            *sum = (sum.0 + 1, sum.1 + len);
        }
        let by_length = by_length.into_iter().map(|(bound, (count, bytes))| (bound, count, bytes)).collect();
        Ok(tally.finish(false, 0, Some(Free::new(by_length))))
    }

    /// How all files lie.
    pub fn layout(&self) -> io::Result<Layout> {
        self.tally(usize::MAX)
    }

    /// A new file system with the same files, one written after the other.
    pub fn fresh_copy(&self, size: Size, model: &ModelFile, seed: u64) -> io::Result<Own> {
        let mut copy = Own::new(size, model, seed)?;
        let mut files: Vec<_> = self.known.iter().filter_map(|(id, known)| Some((*id, known.size?))).collect();
        files.sort_unstable();
        for (number, (id, size)) in files.into_iter().enumerate() {
            let live = Live { parent: ROOT, name_len: 0, size, directory: false };
            let wrote = copy.write(id, 0, 0, Writing::default(), &Alive::from([(id, live)]));
            wrote.map_err(|_| told("the files do not fit on a new file system"))?;
            copy.write_back(id, &Alive::new())?;
            if number % 1000 == 999 {
                copy.sync()?;
            }
        }
        copy.sync()?;
        Ok(copy)
    }

    /// Reads some of the files, each from its beginning to its end, one after the other, after everything was closed and opened
    /// again.
    pub fn read_speed(&mut self) -> io::Result<OwnSpeed> {
        let (files, device, env) = (self.files.clone(), self.device.clone(), self.sim.env());
        self.files = run(&self.sim, async move {
            files.close().await.map_err(told)?;
            files.pool().clone().close().await.map_err(told)?;
            drop(files);
            open(env, device).await
        })??;
        let sample = self.sample(SAMPLE);
        let (count, began) = (sample.len() as u64, self.seconds());
        let bytes = self.ask(|files| async move {
            let mut bytes = 0;
            for (Known { inode, .. }, size) in sample {
                let mut at = 0;
                while at < size {
                    // The kernel reads ahead, so two are under way.
                    let next = files.read(inode, at, WRITE_MAX as usize);
                    let after = files.read(inode, at + WRITE_MAX, WRITE_MAX as usize);
                    let (one, other) = tokio::join!(next, after);
                    let len = |pieces: Vec<Bytes>| pieces.iter().map(Bytes::len).sum::<usize>() as u64;
                    bytes += len(one?) + len(other?);
                    at += 2 * WRITE_MAX;
                }
            }
            Ok(bytes)
        });
        let bytes = bytes.map_err(|_| told("files that were written cannot be read"))?;
        let seconds = self.seconds() - began;
        Ok(OwnSpeed { files: count, bytes, read_mb_s: bytes as f64 / 1e6 / seconds.max(1e-9) })
    }
}

/// The layout score of a file, and in how many pieces it lies.
fn score(pieces: &[Piece], size: u64) -> (Score, u64) {
    let blocks = size.div_ceil(BLOCK_LEN as u64);
    let breaks = pieces.windows(2).filter(|pair| pair[0].at.end.next_multiple_of(BLOCK_LEN as u64) != pair[1].at.start);
    let breaks = breaks.count() as u64;
    let could = blocks.saturating_sub(1);
    (Score { following: could.saturating_sub(breaks), could }, breaks + u64::from(!pieces.is_empty()))
}

impl Subject for Own {
    /// It is nowhere but in memory, so nothing is done again.
    fn repeating(&mut self, _again: bool) {}

    fn at(&mut self, now_ns: i64) {
        self.now_ns = now_ns;
        let began_ns = *self.began_ns.get_or_insert(now_ns.saturating_sub_unsigned(self.sim.env().now().0));
        let target = u64::try_from(now_ns.saturating_sub(began_ns)).unwrap_or(0);
        let env = self.sim.env();
        // What the disk took counts as well; where it is slower than the history, time is not waited for.
        if let Some(ahead) = target.checked_sub(env.now().0).filter(|ahead| *ahead > 0) {
            let _ = self.sim.run(async move { env.sleep(Duration::from_nanos(ahead)).await });
        }
    }

    fn make_directory(&mut self, id: u64, alive: &Alive) -> Result<(), Refusal> {
        self.make(id, FileKind::Directory, alive).map(drop)
    }

    fn write(&mut self, id: u64, old: u64, keep: u64, how: Writing, alive: &Alive) -> Result<(), Refusal> {
        let size = alive.get(&id).map_or(0, |live| live.size);
        let inode = match self.known.get(&id) {
            Some(known) => known.inode,
            None => self.make(id, FileKind::File, alive)?,
        };
        let mut range = self.clean(id).unwrap_or(keep.min(size)..keep.min(size));
        if old > keep {
            range = range.start.min(keep)..range.end.min(keep);
            self.ask(|files| async move {
                files.setattr(inode, SetAttr { size: Some(keep), ..SetAttr::default() }).await.map(drop)
            })?;
        }
        let range = range.start.min(keep)..range.end.max(size);
        if !self.files.roomy(self.dirty_bytes + (range.end - range.start)) {
            return Err(Refusal::Full);
        }
        self.dirty_bytes += range.end - range.start;
        self.dirty.insert(id, range);
        self.known.insert(id, Known { inode, size: Some(size), written_ns: self.now_ns });
        if how.sync { self.flush(id, true) } else { Ok(()) }
    }

    fn rename(&mut self, id: u64, from: (u64, u8), alive: &Alive) -> Result<(), Refusal> {
        let (old, old_name) = (self.inode(from.0)?, name(id, from.1));
        let (parent, name) = self.place(id, alive)?;
        self.ask(|files| async move {
            files.rename((old, old_name.as_bytes()), (parent, name.as_bytes()), RenameMode::Replace).await
        })
    }

    fn delete(&mut self, id: u64, alive: &Alive) -> io::Result<()> {
        self.clean(id);
        let removed = self.place(id, alive).and_then(|(parent, name)| {
            let directory = alive.get(&id).is_some_and(|live| live.directory);
            self.ask(|files| async move {
                match directory {
                    true => files.rmdir(parent, name.as_bytes()).await,
                    false => files.unlink(parent, name.as_bytes()).await,
                }
            })
        });
        self.known.remove(&id);
        removed.map_err(|refusal| match refusal {
            Refusal::Full => told("a deletion finds no room"),
            Refusal::Io(error) => error,
        })
    }

    fn give_up(&mut self, id: u64, alive: &Alive) -> io::Result<()> {
        if self.known.contains_key(&id) { self.delete(id, alive) } else { Ok(()) }
    }

    fn write_back(&mut self, id: u64, _alive: &Alive) -> io::Result<()> {
        match self.flush(id, false) {
            Err(Refusal::Io(error)) => Err(error),
            Err(Refusal::Full) => Err(io::ErrorKind::StorageFull.into()),
            Ok(()) => Ok(()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        while let Some((id, _)) = self.dirty.first_key_value() {
            let id = *id;
            self.write_back(id, &Alive::new())?;
        }
        let synced = self.ask(|files| async move { files.syncfs().await });
        synced.map_err(|_| told("the engine cannot write what it accepted"))
    }

    fn look(&mut self, _alive: &Alive) -> io::Result<Look> {
        let Layout { all, free, .. } = self.tally(SAMPLE)?;
        let status = self.files.pool().status();
        let used = status.used as f64 / status.capacity.max(1) as f64;
        Ok(Look { used, score: all.score, pieces_per_file: all.pieces_per_file, free })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_or_do_not() {
        const B: u64 = BLOCK_LEN as u64;
        let piece = |block: u64, at: u64, len: u64| Piece { offset: block * B, at: at..at + len, packed: false };
        let of = |pieces: &[Piece], size| {
            let (Score { following, could }, pieces) = score(pieces, size);
            (following, could, pieces)
        };
        assert_eq!(of(&[], 0), (0, 0, 0));
        assert_eq!(of(&[piece(0, 9 * B, 100)], 100), (0, 0, 1));
        // The last block is short; what follows it begins with the next one.
        assert_eq!(of(&[piece(0, 9 * B, 2 * B), piece(2, 11 * B, 5)], 2 * B + 5), (2, 2, 1));
        assert_eq!(of(&[piece(0, 9 * B, 2 * B), piece(2, 12 * B, 2 * B)], 4 * B), (2, 3, 2));
        assert_eq!(of(&[piece(0, 9 * B, B), piece(1, 8 * B, B), piece(2, 9 * B, B)], 3 * B), (1, 2, 2));
    }
}
