//! What a scan keeps to be taken up again: a file, checked by its digest before anything in it is believed.

use crate::compress::Study;
use crate::listing::Troubles;
use crate::scan::FULL_UNIT;
use crate::tally::Tally;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

const MAGIC: [u8; 8] = *b"ASHSURV7";
/// Longest header: mostly names of files that could not be read.
const HEADER_MAX: u32 = 16 << 20;

/// Where a scan was, and what is not in tallies.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// The same path, chunkings, seed and mode, as one text: a state is of one survey alone.
    pub survey: String,
    /// Files and their times, as a number.
    pub fingerprint: u64,
    /// See [`crate::probe::Probe`].
    pub far: bool,
    /// Everything is read, whatever the survey was asked for.
    pub full: bool,
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// The share under way.
    pub from: f64,
    /// Up to here.
    pub to: f64,
    /// In base mode: the part to draw from is being read.
    pub drawing: bool,
    /// Units of the share that are done: up to the file of this inode number, and the unit of this number in it.
    pub last: Option<(u64, u32)>,
    /// Bytes that were read.
    pub read: u64,
    /// Logical bytes in them.
    pub logical: u64,
    /// Bytes that could not be read.
    pub missing: u64,
    /// Seconds so far.
    pub seconds: f64,
    /// Sums of the study of compression, as numbers.
    pub study: Vec<f64>,
    /// What could not be read.
    pub unreadable: Troubles,
    /// What changed.
    pub changed: Troubles,
}

/// Why a state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no state, or damaged.
    #[error("it is no state of a survey, or it is damaged ({0}); remove it to begin anew")]
    Damaged(&'static str),
}

struct Hashed<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl<T: Write> Write for Hashed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..len]);
        Ok(len)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes a state beside `path` and puts it in its place when it is durable.
pub fn save(path: &Path, progress: &Progress, tallies: &mut [Tally]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let file = File::create(&name)?;
    let mut to = Hashed { inner: BufWriter::with_capacity(1 << 20, file), hasher: blake3::Hasher::new() };
    let header = serde_json::to_vec(progress).map_err(io::Error::other)?;
    to.write_all(&MAGIC)?;
    to.write_all(&(header.len() as u32).to_le_bytes())?;
    to.write_all(&header)?;
    for tally in tallies {
        tally.write_to(&mut to)?;
    }
    let hash = to.hasher.finalize();
    to.inner.write_all(hash.as_bytes())?;
    let file = to.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    std::fs::rename(&name, path)
}

/// Reads a state into tallies.
pub fn load(path: &Path, survey: &str, tallies: &mut [Tally]) -> Result<Progress, StateError> {
    let len = std::fs::metadata(path)?.len();
    let body = len.checked_sub(32).ok_or(StateError::Damaged("it is too short"))?;
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut (&mut file).take(body), &mut hasher)?;
    let mut hash = [0; 32];
    file.read_exact(&mut hash)?;
    if hasher.finalize() != blake3::Hash::from_bytes(hash) {
        return Err(StateError::Damaged("its digest is wrong"));
    }
    decode(&mut BufReader::with_capacity(1 << 20, File::open(path)?.take(body)), survey, tallies)
}

fn cut(error: io::Error) -> StateError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => StateError::Damaged("it ends too early"),
        _ => StateError::Io(error),
    }
}

/// What a file says about where its scan was, if it is a state; [`load`] checks it.
pub fn peek(path: &Path) -> Option<Progress> {
    let progress = decode_progress(&mut File::open(path).ok()?).ok()?;
    let unit = progress.unit_bytes;
    (unit.is_power_of_two() && (4096..=FULL_UNIT).contains(&unit)).then_some(progress)
}

fn decode_progress(from: &mut impl Read) -> Result<Progress, StateError> {
    let mut magic = [0; 8];
    from.read_exact(&mut magic).map_err(cut)?;
    if magic != MAGIC {
        return Err(StateError::Damaged("its first bytes are others"));
    }
    let mut len = [0; 4];
    from.read_exact(&mut len).map_err(cut)?;
    let len = u32::from_le_bytes(len);
    if len > HEADER_MAX {
        return Err(StateError::Damaged("its header is too long"));
    }
    let mut header = Vec::new();
    from.take(u64::from(len)).read_to_end(&mut header).map_err(cut)?;
    serde_json::from_slice(&header).map_err(|_| StateError::Damaged("its header"))
}

/// Reads what [`save`] wrote, without its digest.
pub fn decode(from: &mut impl Read, survey: &str, tallies: &mut [Tally]) -> Result<Progress, StateError> {
    let progress = decode_progress(from)?;
    if progress.survey != survey {
        return Err(StateError::Damaged("it is of another survey: other path, seed, chunkings, budget or mode"));
    }
    for tally in tallies {
        tally.read_from(from).map_err(cut)?;
    }
    Ok(progress)
}

impl Study {
    /// All sums.
    pub fn numbers(&self) -> Vec<f64> {
        let mut numbers =
            vec![self.blocks as f64, self.bytes as f64, self.entropy_bits, self.dense as f64, self.zero as f64];
        numbers.extend(self.squares);
        numbers.extend(self.some.map(|bytes| bytes as f64));
        numbers.extend(self.codecs.iter().flat_map(|codec| [codec.0 as f64, codec.1 as f64, codec.2 as f64]));
        numbers
    }
    /// The sums again; none if there are too few.
    pub fn from_numbers(numbers: &[f64]) -> Study {
        let [blocks, bytes, entropy_bits, dense, zero, one, other, some, beside, codecs @ ..] = numbers else {
            return Study::default();
        };
        let mut study = Study {
            blocks: *blocks as u64,
            bytes: *bytes as u64,
            entropy_bits: *entropy_bits,
            dense: *dense as u64,
            zero: *zero as u64,
            squares: [*one, *other],
            some: [*some as u64, *beside as u64],
            ..Study::default()
        };
        for (codec, sums) in study.codecs.iter_mut().zip(codecs.as_chunks::<3>().0) {
            *codec = (sums[0] as u64, sums[1] as u64, sums[2] as u64);
        }
        study
    }
}
