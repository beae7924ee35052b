//! How fast files are that lie so, on the model of a disk (thesis, sections 3.1.1 and 3.3).
//!
//! The *throughput* benchmark makes 32 MB of files of one size, at most 25 to a directory, and reads them in the same order
//! after the cache was emptied. The *hot file* benchmark reads and overwrites the files that changed in the last 30 days,
//! directory by directory.
//!
//! Requests are those of FFS: clusters of at most 56 KB, a request of its own for a fragment and for an indirect block, which
//! must be there before what it points to is asked for; one cluster is read ahead. Making a file waits for two writes, of its
//! inode and of its directory.
//!
//! Not modelled: the processor; inodes that are scattered over a group of an old file system; updates of inodes that wait.

use super::{BLOCK, CLUSTER, DIRECT, FRAGMENT, FRAGMENTS, Ffs, FfsFile, GROUP_BYTES, POINTERS, Piece};
use crate::history::ROOT;
use ashlar_models::{Model, Refused, Request, closed_loop};
use ashlar_survey::layout::Score;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};

/// Bytes of a run.
const TOTAL: u64 = 32 << 20;
/// Files of a directory.
const PER_DIRECTORY: u64 = 25;
/// Inodes of a block.
const INODES_PER_BLOCK: u64 = BLOCK / 128;
/// Numbers of the benchmark's own files begin here; a history's are hashes, of which none will be among so few.
const OWN: u64 = u64::MAX - (1 << 20);
/// Requests under way: one, and one read ahead or written behind.
const DEPTH: usize = 2;

/// Rates of files of one size. 1 MB is 10^6 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Speed {
    /// Bytes of a file.
    pub file_bytes: u64,
    /// Reading, MB/s.
    pub read_mb_s: f64,
    /// Making and writing, MB/s.
    pub write_mb_s: f64,
    /// Their layout score; null for files of one block.
    pub score: Option<f64>,
}

/// Why a benchmark did not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The file system is too full.
    #[error("there is no room for the {0} bytes of the benchmark")]
    Full(u64),
    /// The disk is too small.
    #[error("the model of the disk: {0}; take a larger one")]
    Disk(#[from] Refused),
}

/// Requests of which those of a stage wait for those of the stage before.
type Stages = Vec<Vec<Request>>;

fn bytes(piece: &Piece) -> (u64, u64) {
    (piece.at * FRAGMENT, u64::from(piece.len) * FRAGMENT)
}

/// Blocks that lie together, as clusters; a fragment by itself.
fn clusters(blocks: &[Piece], request: fn(u64, u64) -> Request) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    for piece in blocks {
        let (at, len) = bytes(piece);
        match requests.last_mut() {
            Some(last) if piece.len == FRAGMENTS && last.offset + last.len == at && last.len < CLUSTER * BLOCK => {
                last.len += len;
            }
            _ => requests.push(request(at, len)),
        }
    }
    requests
}

/// What reading or overwriting a file asks of the disk, without its inode.
fn file(file: &FfsFile, request: fn(u64, u64) -> Request) -> Stages {
    let (direct, rest) = file.blocks.split_at(file.blocks.len().min(DIRECT as usize));
    let mut stages = vec![clusters(direct, request)];
    for (indirect, blocks) in file.indirect.iter().zip(rest.chunks(POINTERS as usize)) {
        stages.push(vec![request(indirect * FRAGMENT, BLOCK)]);
        stages.push(clusters(blocks, request));
    }
    stages
}

/// Where inodes are, as if a group's were given out one after the other.
#[derive(Default)]
struct Inodes {
    given: HashMap<u32, u64>,
    cached: BTreeSet<u64>,
}

impl Inodes {
    fn place(&mut self, group: u32) -> u64 {
        let number = self.given.entry(group).or_default();
        *number += 1;
        u64::from(group) * GROUP_BYTES + (2 + (*number - 1) / INODES_PER_BLOCK) * BLOCK
    }

    /// What reading the next inode of a group asks of the disk.
    fn read(&mut self, group: u32) -> Vec<Request> {
        let at = self.place(group);
        if self.cached.insert(at) { vec![Request::read(at, BLOCK)] } else { Vec::new() }
    }
}

/// Serves the stages from `start_ns` on; returns when the last is done.
fn serve(disk: &mut dyn Model, start_ns: u64, stages: &Stages) -> Result<u64, Refused> {
    let mut now_ns = start_ns;
    for stage in stages {
        let mut requests = stage.iter().copied();
        now_ns = closed_loop(disk, now_ns, DEPTH, || requests.next(), |_| {})?.end_ns.max(now_ns);
    }
    Ok(now_ns)
}

/// Files of one size on a disk that did nothing before. The file system is as before afterwards.
pub fn throughput(ffs: &mut Ffs, disk: &mut dyn Model, file_bytes: u64) -> Result<Speed, BenchError> {
    let count = (TOTAL / file_bytes.max(1)).clamp(1, 1 << 16);
    let mut made = Vec::new();
    let mut full = false;
    let directories = count.div_ceil(PER_DIRECTORY);
    for number in 0..count {
        let directory = OWN + number / PER_DIRECTORY;
        if number.is_multiple_of(PER_DIRECTORY) {
            ffs.add_directory(directory);
        }
        let id = OWN + directories + number;
        made.push((id, directory));
        if ffs.write_file(id, directory, 0, file_bytes).is_err() {
            full = true;
            break;
        }
    }
    let measured = if full { Err(BenchError::Full(TOTAL)) } else { measure(ffs, disk, &made, file_bytes) };
    made.iter().rev().for_each(|(id, _)| ffs.remove(*id));
    (0..directories).for_each(|number| ffs.remove(OWN + number));
    measured
}

fn measure(ffs: &Ffs, disk: &mut dyn Model, made: &[(u64, u64)], file_bytes: u64) -> Result<Speed, BenchError> {
    let (mut writes, mut reads, mut score) = (Stages::new(), Stages::new(), Score::default());
    let (mut written, mut read) = (Inodes::default(), Inodes::default());
    for (id, directory) in made {
        let Some(found) = ffs.file(*id) else { continue };
        score.add(super::score(&found.blocks).0);
        let above = ffs.directories.get(directory).copied().unwrap_or(0);
        // The directory's own fragment is taken to be the first of the group's data.
        let name = Request::write(u64::from(above) * GROUP_BYTES + 40 * BLOCK, FRAGMENT);
        writes.push(vec![Request::write(written.place(found.group), BLOCK)]);
        writes.push(vec![name]);
        writes.extend(file(found, Request::write));
        reads.push(read.read(found.group));
        reads.extend(file(found, Request::read));
    }
    let middle_ns = serve(disk, 0, &writes)?;
    let end_ns = serve(disk, middle_ns, &reads)?;
    let bytes = (made.len() as u64 * file_bytes) as f64;
    let rate = |ns: u64| bytes / (ns.max(1) as f64 / 1e9) / 1e6;
    Ok(Speed { file_bytes, read_mb_s: rate(end_ns - middle_ns), write_mb_s: rate(middle_ns), score: score.value() })
}

/// Rates of the hot files.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct HotSpeed {
    /// Files.
    pub files: u64,
    /// Their bytes, as whole fragments.
    pub bytes: u64,
    /// Reading, MB/s.
    pub read_mb_s: f64,
    /// Overwriting, MB/s.
    pub write_mb_s: f64,
}

/// Reads and overwrites what changed in the last 30 days.
pub fn hot(ffs: &Ffs, disk: &mut dyn Model) -> Result<HotSpeed, BenchError> {
    let from_ns = ffs.now_ns.saturating_sub(crate::layout::HOT_NS);
    let mut files: Vec<(u32, u64, &FfsFile)> = Vec::new();
    files.extend(
        ffs.files.iter().filter(|(_, file)| file.written_ns >= from_ns).map(|(id, file)| (file.group, *id, file)),
    );
    files.sort_by_key(|(group, id, _)| (*group, *id));
    let (mut reads, mut writes, mut inodes, mut sum) = (Stages::new(), Stages::new(), Inodes::default(), 0);
    for (group, _, found) in &files {
        reads.push(inodes.read(*group));
        reads.extend(file(found, Request::read));
        writes.extend(file(found, Request::write));
        sum += found.blocks.iter().map(|piece| bytes(piece).1).sum::<u64>();
    }
    let middle_ns = serve(disk, 0, &reads)?;
    let end_ns = serve(disk, middle_ns, &writes)?;
    let rate = |ns: u64| sum as f64 / (ns.max(1) as f64 / 1e9) / 1e6;
    let (read_mb_s, write_mb_s) = (rate(middle_ns), rate(end_ns - middle_ns));
    Ok(HotSpeed { files: files.len() as u64, bytes: sum, read_mb_s, write_mb_s })
}

const _: () = assert!(ROOT < OWN);
