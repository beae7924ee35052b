//! Where bytes come from: a tree, a device or raw image, a qcow2 image.

use crate::analyse::{ReadAt, Stretch};
use crate::bucket::{Access, Bucket, is_bucket};
use crate::careful::{Careful, Direct};
use crate::inside::{self, IMAGE_MIN, Limits, Place};
use crate::listing::{Entry, Listing, Look, WalkError, data_bytes, segments};
use crate::qcow2::{Qcow2, Qcow2Error};
use crate::sample::mix;
use crate::scan::{Pace, Paced};
use parking_lot::Mutex;
use rustix::fs::{Advice, CWD, FileType, Mode, OFlags, SeekFrom, fadvise, fstat, openat, seek};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is surveyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The files below a directory.
    Tree,
    /// A block device.
    Device,
    /// A file that is taken as an image: its bytes are what counts.
    Image,
    /// A qcow2 image: what its guest sees. What it takes from a backing file counts as hole.
    Qcow2,
    /// The objects of a bucket.
    Bucket,
    /// A trace of requests.
    Trace,
}

/// Where bytes come from.
pub struct Source {
    /// What it is.
    pub kind: Kind,
    /// Its path.
    pub path: PathBuf,
    /// Its files.
    pub listing: Listing,
    qcow2: Option<Arc<Qcow2>>,
    bucket: Option<Arc<Bucket>>,
    /// Bytes that fail together.
    block: u64,
    /// Directories by their number.
    directories: Mutex<[Option<Known>; DIRECTORIES]>,
}

/// The number of a directory, and it.
type Known = (u32, Arc<OwnedFd>);

/// Something that cannot be surveyed.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be opened.
    #[error("{0}: {1}")]
    Open(PathBuf, io::Error),
    /// The walk ended.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// A qcow2 image that is none, or uses what is not supported.
    #[error("{0}: {1}")]
    Qcow2(PathBuf, Qcow2Error),
    /// No data there.
    #[error("{0}")]
    Unsupported(String),
}

/// Data around a unit that are looked for: more than the longest chunk, and than what is read before a unit.
const REACH: u64 = 4 << 20;

/// `NOATIME` comes with it: looking must not change what is looked at. `NONBLOCK`: a pipe that took a file's place must not hold
/// us up.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Directories that are kept open.
const DIRECTORIES: usize = 64;

/// Opens what is to be looked at, by its name in a directory.
pub(crate) fn open(at: impl AsFd, path: &Path) -> io::Result<File> {
    let open = |flags| openat(&at, path, flags, Mode::empty());
    match open(FLAGS | OFlags::NOATIME) {
        // Only the owner of a file may leave its time alone.
        Err(Errno::PERM) => Ok(open(FLAGS)?.into()),
        opened => Ok(opened?.into()),
    }
}

/// A part of a file that is open.
pub enum Reader {
    /// A file or device.
    Plain(File),
    /// A qcow2 image.
    Qcow2(Arc<Qcow2>),
    /// An object: its bucket, key and size.
    Object(Arc<Bucket>, String, u64),
}

/// Reads, and where that fails once more past the page cache: that holds whole pages, and fails for all of one.
pub struct Reading<'a> {
    reader: &'a Reader,
    direct: Option<Option<Direct>>,
}

impl ReadAt for Reading<'_> {
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let file = match self.reader {
            Reader::Plain(file) => file,
            Reader::Qcow2(image) => return image.read_at(offset, to),
            Reader::Object(bucket, key, size) => return bucket.read_at(key, *size, offset, to),
        };
        let done = file.read_at(to, offset);
        if let Err(error) = &done
            && error.kind() != io::ErrorKind::Interrupted
            && to.len() <= 4096
            && let Some(direct) = self.direct.get_or_insert_with(|| Direct::open(file))
        {
            return direct.read_at(offset, to);
        }
        done
    }

    fn announce(&self, offset: u64, len: u64) {
        self.reader.announce(offset, len);
    }
}

impl Source {
    fn new(kind: Kind, path: &Path, listing: Listing, block: u64) -> Source {
        let directories = Mutex::new([const { None }; DIRECTORIES]);
        Source { kind, path: path.into(), listing, qcow2: None, bucket: None, block, directories }
    }

    /// Opens what is at `path`; of a tree, walks through it; of a bucket, lists it.
    pub fn open(path: &Path, access: &Access, look: Look<'_>) -> Result<Source, SourceError> {
        let fail = |error| SourceError::Open(path.to_path_buf(), error);
        if let Some(name) = path.to_str().filter(|name| is_bucket(name)) {
            let bucket = Bucket::new(name, access).map_err(WalkError::from)?;
            let listing = Listing::of_bucket(&bucket, look)?;
            let bucket = Some(Arc::new(bucket));
            // An object is there or not; a request less is worth more than a byte.
            let block = u64::MAX;
            return Ok(Source { bucket, ..Source::new(Kind::Bucket, path, listing, block) });
        }
        let metadata = std::fs::metadata(path).map_err(fail)?;
        let block = block_bytes(path);
        if metadata.is_dir() {
            let listing = Listing::walk(path, look)?;
            return Ok(Source::new(Kind::Tree, path, listing, block));
        }
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = "neither a directory, a file nor a block device; name one of these";
            return Err(SourceError::Unsupported(format!("{}: {what}", path.display())));
        }
        let file = open(CWD, path).map_err(fail)?;
        let size = seek(&file, SeekFrom::End(0)).map_err(|error| fail(error.into()))?;
        if kind.is_file() && Qcow2::is(&file).map_err(fail)? {
            let image = Qcow2::open(file).map_err(|error| SourceError::Qcow2(path.to_path_buf(), error))?;
            let mut listing = Listing::single(path, image.size(), image.data_bytes(), metadata.mtime());
            image.lost().for_each(|damage| listing.unreadable.add_range(path, &damage));
            let block = image.cluster();
            let qcow2 = Some(Arc::new(image));
            return Ok(Source { qcow2, ..Source::new(Kind::Qcow2, path, listing, block) });
        }
        let data = if kind.is_file() { data_bytes(&file, size).map_err(fail)? } else { size };
        let mut listing = Listing::single(path, size, data, metadata.mtime());
        if kind.is_file() {
            let name = path.file_name().unwrap_or_default();
            listing.sizes.file(name, size, data, metadata.blocks().saturating_mul(512), look.now - metadata.mtime(), 0);
        }
        let kind = if kind.is_file() { Kind::Image } else { Kind::Device };
        Ok(Source::new(kind, path, listing, block))
    }

    /// What a user should know about it.
    pub fn notes(&self) -> Vec<String> {
        self.qcow2.iter().flat_map(|image| image.notes()).collect()
    }

    /// Bytes of which it is not known what they are, since a truncated image has lost the tables of them.
    pub fn lost_bytes(&self) -> u64 {
        self.qcow2.iter().flat_map(|image| image.lost()).map(|damage| damage.len).sum()
    }

    /// Reads what a reader does, around damage.
    pub fn careful<'a>(&self, reader: &'a Reader) -> Careful<Reading<'a>> {
        Careful { inner: Reading { reader, direct: None }, block: self.block }
    }

    /// Looks for file systems in images, so that these are sampled by the files in them. Says how many bytes it read.
    pub fn look_inside(&mut self, mut limits: Limits<'_>, idle: bool, bandwidth: Option<u64>) -> u64 {
        let pace = Pace::new(bandwidth);
        let look = |limits: &mut Limits<'_>| {
            let (mut found, mut sum) = (Vec::new(), 0);
            for (index, entry) in self.listing.entries.iter().enumerate() {
                if entry.data < IMAGE_MIN || limits.stop.load(Ordering::Acquire) {
                    continue;
                }
                let Ok(reader) = self.reader(entry) else { continue };
                let Some(data) = ranges(&reader, entry, limits.files) else { continue };
                let inner = Reading { reader: &reader, direct: None };
                let (parts, read) = inside::look(&mut Paced { inner, pace: &pace, stop: limits.stop }, &data, limits);
                (sum, limits.read) = (sum + read, limits.read - read);
                if let Some(parts) = parts {
                    limits.files = limits.files.saturating_sub(parts.iter().map(|part| part.places.len()).sum());
                    found.push((index, parts));
                }
            }
            (found, sum)
        };
        let unit = limits.unit;
        let (found, sum) = aside(idle, || look(&mut limits));
        self.listing.divide(found, unit);
        sum
    }

    /// The stretches of data in a unit.
    pub fn stretches(&self, reader: &Reader, entry: &Entry, from: u64, to: u64) -> io::Result<Vec<Stretch>> {
        let whole = self.listing.whole(entry);
        let salt = mix(whole.identity, whole.size);
        let mut stretches = Vec::new();
        for (from, to) in self.listing.pieces(entry, from, to.min(entry.size)) {
            stretches.extend(reader.stretches(whole, from, to, salt)?);
        }
        Ok(stretches)
    }

    /// Opens a file. What it is, and whether it changed since it was listed, [`Source::changed`] says.
    pub fn reader(&self, entry: &Entry) -> io::Result<Reader> {
        if let Some(image) = &self.qcow2 {
            return Ok(Reader::Qcow2(image.clone()));
        }
        if let Some(bucket) = &self.bucket {
            return Ok(Reader::Object(bucket.clone(), self.listing.key(entry), entry.size));
        }
        let Some((directory, name)) = self.listing.place(entry) else {
            return Ok(Reader::Plain(open(CWD, &self.listing.path(entry))?));
        };
        // Files that lie side by side are often of one directory; the way to that is gone only once.
        let slot = directory as usize % DIRECTORIES;
        let known = self.directories.lock()[slot].clone().filter(|(number, _)| *number == directory);
        let at = match known {
            Some((_, at)) => at,
            None => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let at = Arc::new(openat(CWD, self.listing.directory(directory), flags, Mode::empty())?);
                self.directories.lock()[slot] = Some((directory, at.clone()));
                at
            }
        };
        Ok(Reader::Plain(open(at, Path::new(name))?))
    }

    /// Whether a file changed since it was listed; an error if what took its place is no file. One question behind what was
    /// read, and none before: a pipe or a directory cannot be read at an offset.
    pub fn changed(&self, reader: &Reader, entry: &Entry) -> io::Result<bool> {
        // Of an object, each read says so.
        let Reader::Plain(file) = reader else { return Ok(false) };
        let found = fstat(file)?;
        let is_file = FileType::from_raw_mode(found.st_mode).is_file();
        if !is_file && self.kind == Kind::Tree {
            return Err(io::Error::other("it is no longer a regular file"));
        }
        let entry = self.listing.whole(entry);
        Ok(is_file && (found.st_size as u64 != entry.size || found.st_mtime != entry.changed))
    }
}

/// The ranges of data of a file, in blocks of 4 KiB but for its end; none if there are more than so many.
fn ranges(reader: &Reader, entry: &Entry, most: usize) -> Option<Vec<Place>> {
    let mut data: Vec<Place> = Vec::new();
    let told = reader.data(entry, 0, entry.size, &mut |from, to| {
        let (from, to) = (from & !4095, to.next_multiple_of(4096).min(entry.size));
        match data.last_mut() {
            Some(last) if last.1 >= from => last.1 = to,
            _ => data.push((from, to)),
        }
        data.len() <= most
    });
    (told.is_ok() && data.len() <= most).then_some(data)
}

impl Reader {
    /// Tells the kernel what will be read.
    pub fn announce(&self, from: u64, len: u64) {
        if let (Reader::Plain(file), Some(len)) = (self, NonZeroU64::new(len)) {
            // Advice may be refused; nothing depends on it.
            let _ = fadvise(file, from, Some(len), Advice::WillNeed);
        }
    }

    /// Whether the byte at an offset is in the page cache; no, where the kernel does not say.
    pub fn is_cached(&self, at: u64) -> bool {
        let Reader::Plain(file) = self else { return false };
        let mut byte = [0];
        preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT) == Ok(1)
    }

    /// Tells the kernel to read nothing but what is asked for or announced: of a sample, what lies behind is of no use.
    pub fn read_no_more(&self) {
        if let Reader::Plain(file) = self {
            let _ = fadvise(file, 0, None, Advice::Random);
        }
    }

    /// Calls `each` with the ranges of data in a range, and where the data of each go on to, for as long as it likes.
    pub fn data(&self, entry: &Entry, from: u64, to: u64, each: &mut dyn FnMut(u64, u64) -> bool) -> io::Result<()> {
        match self {
            _ if !entry.sparse => {
                each(from, to.min(entry.size));
                Ok(())
            }
            Reader::Plain(file) => segments(file, from, to, each),
            Reader::Qcow2(image) => image.segments(from, to, each),
            Reader::Object(..) => {
                each(from, to.min(entry.size));
                Ok(())
            }
        }
    }

    /// The stretches of data in a range.
    fn stretches(&self, entry: &Entry, from: u64, to: u64, salt: u64) -> io::Result<Vec<Stretch>> {
        let to = to.min(entry.size);
        if from >= to {
            return Ok(Vec::new());
        }
        if !entry.sparse {
            return Ok(vec![Stretch { from, to, data_end: entry.size, data_begin: 0, begins: true, salt }]);
        }
        // A chunk may go on beyond the unit, or begin before it, but not beyond a hole.
        let mut stretches: Vec<Stretch> = Vec::new();
        let (back, reach) = (from.saturating_sub(REACH), to.saturating_add(REACH).min(entry.size));
        let mut before = None;
        self.data(entry, back, from, &mut |begin, end| {
            before = Some(begin & !4095).filter(|_| end >= from);
            true
        })?;
        self.data(entry, from, reach, &mut |begin, end| {
            if begin < to {
                let own = begin & !4095;
                let data_begin = before.filter(|_| begin == from).unwrap_or(own);
                let begins = data_begin == 0 || data_begin > back;
                stretches.push(Stretch { from: own, to: end.min(to), data_end: end, data_begin, begins, salt });
            }
            begin < to
        })?;
        Ok(stretches)
    }
}

/// This thread gives way to all other requests if it is to be `idle`.
pub(crate) fn give_way(idle: bool) {
    if idle {
        // Where it is refused, requests are as those of others.
        let _ = ashlar_env::host::be_idle();
    }
}

/// Does something in a thread of its own, which may have to give way.
pub(crate) fn aside<T: Send>(idle: bool, work: impl FnOnce() -> T + Send) -> T {
    let work = move || {
        give_way(idle);
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Bytes that the device under a path reads or fails to read together: 512 to 4096; 4096 where it cannot be told.
fn block_bytes(path: &Path) -> u64 {
    logical_block(path).filter(|bytes: &u64| bytes.is_power_of_two() && (512..=4096).contains(bytes)).unwrap_or(4096)
}

fn logical_block(path: &Path) -> Option<u64> {
    let metadata = std::fs::metadata(path).ok()?;
    let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let disk = place.ancestors().find(|place| place.join("queue").exists())?;
    std::fs::read_to_string(disk.join("queue/logical_block_size")).ok()?.trim().parse().ok()
}
