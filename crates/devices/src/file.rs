//! A host file or block device, through io_uring, past the page cache where the host allows.

use ashlar_block::{
    Capability, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Medium, Result, blocks_of,
};
use ashlar_env::Env;
use ashlar_units::{BLOCK, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For how long what another process holds is asked for again, and how often.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(20);

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// How to open a [`FileDevice`].
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Create the file with this size if it is missing.
    pub create: Option<Size>,
    /// Refuse writes.
    pub read_only: bool,
    /// Use the page cache even where direct I/O works.
    pub buffered: bool,
}

/// A host file or block device.
pub struct FileDevice {
    path: PathBuf,
    file: Arc<OwnedFd>,
    env: Env,
    /// In blocks.
    capacity: AtomicU64,
    block_device: bool,
    /// The file lies in memory, so nothing is waited for.
    in_memory: bool,
    medium: Option<Medium>,
    /// Its file system takes room for what is written when that comes.
    thin: bool,
}

impl FileDevice {
    /// Opens, and with [`OpenOptions::create`] makes, the file; takes an exclusive lock on it. A block device that is to be
    /// written is opened for this program alone.
    pub fn open(path: &Path, options: &OpenOptions, env: Env) -> Result<FileDevice> {
        let shown = path.display();
        let found = std::fs::metadata(path).ok();
        let block_device = found.as_ref().is_some_and(|found| found.file_type().is_block_device());
        // Linux gives a block device to one such opener at a time, by whatever node, and never beside a mount. With O_CREAT the
        // flag would mean something else.
        let exclusive = if block_device && !options.read_only { libc::O_EXCL } else { 0 };
        let open = |direct: i32| {
            File::options()
                .read(true)
                .write(!options.read_only)
                .create(options.create.is_some() && !block_device)
                .custom_flags(direct | exclusive | libc::O_CLOEXEC)
                .open(path)
        };
        let file = patiently(|| match open(if options.buffered { 0 } else { libc::O_DIRECT }) {
            Err(error) if !options.buffered && !is_taken(&error) => open(0),
            outcome => outcome,
        });
        let refused = |error: io::Error, what: &str| match (is_taken(&error), block_device) {
            (false, _) => {
                let help = match error.kind() {
                    io::ErrorKind::NotFound => "; attach the device, or correct its path where it is named",
                    io::ErrorKind::PermissionDenied => "; do it as its owner, or with sudo",
                    _ => "",
                };
                let error = Error::io(format!("cannot {what} {shown}"), &error);
                Error::new(error.kind(), format!("{error}{help}"))
            }
            (true, true) => {
                let message = format!(
                    "{shown} is in use by another process, or mounted; stop that one first (ashlar down, or Ctrl-C where it \
                     is served), unmount it, or use another device"
                );
                Error::new(Kind::Retry, message)
            }
            (true, false) => {
                let message = format!(
                    "{shown} is in use by another process; stop that one first (ashlar down, or Ctrl-C where it is \
                     served), or use another device"
                );
                Error::new(Kind::Retry, message)
            }
        };
        let file = file.map_err(|error| refused(error, "open"))?;
        patiently(|| Ok(file.try_lock()?)).map_err(|error| refused(error, "lock"))?;
        let kind = file.metadata().map_err(|error| Error::io(format!("cannot examine {shown}"), &error))?;
        let block_device = kind.file_type().is_block_device();
        if !block_device && !kind.is_file() {
            return Err(Error::misuse(format!("{shown} is neither a file nor a block device")));
        }
        if let Some(size) = options.create.filter(|_| found.is_none() && !block_device) {
            file.set_len(size.0).map_err(|error| Error::io(format!("cannot size {shown} to {size}"), &error))?;
        }
        let capacity = AtomicU64::new(size_of_file(&file, path)?.0);
        let in_memory = !block_device && is_in_memory(&file);
        let medium = medium_of(if block_device { kind.rdev() } else { kind.dev() });
        Ok(FileDevice {
            path: path.into(),
            file: Arc::new(file.into()),
            env,
            capacity,
            block_device,
            in_memory,
            medium,
            // In memory, setting room aside costs as much as writing.
            thin: !block_device && !in_memory && !options.read_only,
        })
    }

    fn ops(&self) -> Result<&dyn ashlar_env::FileOps> {
        let none = || Error::new(Kind::Unsupported, "host files exist in the real runtime only");
        let ops = self.env.file_ops().ok_or_else(none)?;
        Ok(if self.in_memory { ops.at_once() } else { ops })
    }
    fn failed(&self, what: &str, at: Lba, error: &io::Error) -> Error {
        let failed = Error::io(format!("{what} at {at}"), error);
        match failed.kind() {
            Kind::NoSpace => {
                Error::new(Kind::NoSpace, format!("{failed}; the file system that holds it is full: make room there"))
            }
            _ => failed,
        }
    }
}

/// Whole blocks of an open file or block device.
fn size_of_file(file: impl AsFd, path: &Path) -> Result<Blocks> {
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0));
    let size = size.map_err(|error| Error::io(format!("cannot measure {}", path.display()), &error.into()))?;
    Ok(Size(size).to_blocks_down())
}

/// Whether two paths lead to one file or block device.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let number = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        let block_device = found.file_type().is_block_device();
        Some(if block_device { (true, found.rdev(), 0) } else { (false, found.dev(), found.ino()) })
    };
    number(one).is_some_and(|found| number(other) == Some(found))
}

/// Whether a file is in one of the file systems that have no medium.
fn is_in_memory(file: &File) -> bool {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|found| [libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&found.f_type))
}

/// What the kernel knows of the block device with this number, or of the one of which it is a part. It is told wrong by many
/// virtual machines, which call everything a disk.
fn medium_of(device: u64) -> Option<Medium> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let said = ["queue", "../queue"]
        .into_iter()
        .find_map(|queue| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/rotational")).ok())?;
    Some(if said.trim() == "0" { Medium::Flash } else { Medium::Disk })
}

fn aligned(piece: &Bytes) -> bool {
    (piece.as_ptr() as usize).is_multiple_of(BLOCK.0 as usize)
}

impl Layer for FileDevice {
    fn name(&self) -> String {
        self.path.display().to_string()
    }
    fn geometry(&self) -> Geometry {
        Geometry { capacity: Blocks(self.capacity.load(Ordering::Acquire)), atomic: Size(512) }
    }
    fn measure(&self) -> Result<()> {
        self.capacity.fetch_max(size_of_file(&self.file, &self.path)?.0, Ordering::AcqRel);
        Ok(())
    }
    fn capability(&self) -> Capability {
        // A block device may ignore discard or keep old data; a file's hole reads as zeros.
        Capability {
            discard: true,
            discard_zeroes: !self.block_device,
            persistent: true,
            medium: self.medium,
            thin: self.thin,
        }
    }
    async fn read(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let len = count.to_bytes().0 as usize;
        let read = self.ops()?.read_at(&self.file, at.to_bytes().0, len).await;
        let data = read.map_err(|error| self.failed("read", at, &error))?;
        if data.len() < len {
            let message = format!(
                "read at {at}: only {} of {len} bytes are there: the file or device became shorter while it was open; give \
                 it back its size",
                data.len()
            );
            return Err(Error::new(Kind::Failed, message));
        }
        Ok(data)
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let pieces: Vec<Bytes> = pieces
            .into_iter()
            .filter(|piece| !piece.is_empty())
            .map(|piece| if self.in_memory || aligned(&piece) { piece } else { realign(&piece) })
            .collect();
        if blocks_of(&pieces) > Blocks(0) {
            let write = self.ops()?.write_at(&self.file, at.to_bytes().0, pieces).await;
            write.map_err(|error| self.failed("write", at, &error))?;
        }
        match durability {
            Durability::Cached => Ok(()),
            Durability::Forced => self.flush(context).await,
        }
    }
    async fn flush(&self, _context: IoContext) -> Result<()> {
        let sync = self.ops()?.sync(&self.file).await;
        sync.map_err(|error| self.failed("flush", Lba(0), &error))
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        let (offset, len) = (at.to_bytes().0, count.to_bytes().0);
        if len == 0 {
            return Ok(());
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match self.ops()?.fallocate(&self.file, mode, offset, len).await {
            // A file system without holes: zeros by hand, in pieces of bounded memory.
            Err(error) if error.kind() == io::ErrorKind::Unsupported && !self.block_device => {
                let zeros = Bytes::from_static(&ZEROS);
                let mut at = at;
                let end = at + count;
                while at < end {
                    let part = (end - at).to_bytes().0.min(ZEROS.len() as u64) as usize;
                    Layer::write(self, context, at, vec![zeros.slice(..part)], Durability::Cached).await?;
                    at += Size(part as u64).to_blocks_up();
                }
                Ok(())
            }
            Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(self.failed("discard", at, &error)),
            _ => Ok(()),
        }
    }
    async fn provision(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        let (offset, len) = (at.to_bytes().0, count.to_bytes().0);
        if !self.thin || len == 0 {
            return Ok(());
        }
        match self.ops()?.fallocate(&self.file, libc::FALLOC_FL_KEEP_SIZE, offset, len).await {
            // Such a file system has room set aside for nobody.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            done => done.map_err(|error| self.failed("setting room aside", at, &error)),
        }
    }
    async fn extent(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        let answer = self.ops()?.data_at(&self.file, at.to_bytes().0);
        // A block device, or a file system that does not tell.
        let (data, end) = answer.unwrap_or((true, u64::MAX));
        // A block that is half a hole is data, whichever half comes first.
        let end = if data { Size(end).to_blocks_up() } else { Size(end).to_blocks_down() };
        let whole = end.0.saturating_sub(at.0);
        Ok(Extent { hole: !data && whole > 0, count: Blocks(whole.clamp(1, count.0)) })
    }
}

/// A copy at a page-aligned address, as direct I/O wants it.
fn realign(piece: &Bytes) -> Bytes {
    ashlar_env::ring::AlignedBuf::copy_of(piece).freeze(piece.len())
}

/// Asks again for a while for what another process holds: one that was killed holds it until the kernel has ended its I/O.
fn patiently<T>(mut ask: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let began = Instant::now();
    loop {
        match ask() {
            Err(error) if is_taken(&error) && began.elapsed() < PATIENCE => std::thread::sleep(RETRY),
            outcome => return outcome,
        }
    }
}

/// Whether somebody else has it.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::{Checked, Device, conformance};
    use ashlar_env::real::Real;
    use std::process::Command;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ashlar-file-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_real_file_conforms() {
        conforms(scratch("conforms"), &Real::start(2).expect("it starts"));
        conforms(scratch("conforms"), &Real::without_io_uring(2).expect("it starts"));
    }

    #[test]
    fn a_file_in_memory_conforms() {
        let path = Path::new("/dev/shm").join(scratch("memory").file_name().expect("a name"));
        for start in [Real::start, Real::without_io_uring] {
            assert!(conforms(path.clone(), &start(2).expect("it starts")), "the file is in memory");
        }
    }

    /// Whether the file is in memory.
    fn conforms(path: PathBuf, real: &Real) -> bool {
        let env = real.env();
        let options = OpenOptions { create: Some(Size::mib(1)), ..OpenOptions::default() };
        let device = FileDevice::open(&path, &options, env.clone()).expect("a scratch file");
        std::fs::remove_file(&path).expect("just created");
        let in_memory = device.in_memory;
        let device: Device = Arc::new(Checked::new(Arc::new(device), env.clone()));
        real.block_on(async move {
            conformance::random_operations(env.clone(), device.clone(), 400).await;
            conformance::edges(device.clone()).await;
            conformance::concurrency(env, device).await;
        });
        in_memory
    }

    #[test]
    fn a_second_user_is_refused() {
        let real = Real::start(1).expect("io_uring is available");
        let path = scratch("twice");
        let options = OpenOptions { create: Some(Size::mib(1)), ..OpenOptions::default() };
        let first = FileDevice::open(&path, &options, real.env()).expect("a scratch file");
        let second = FileDevice::open(&path, &options, real.env()).err().expect("the second is refused");
        std::fs::remove_file(&path).expect("just created");
        assert_eq!(second.kind(), Kind::Retry);
        assert!(second.to_string().contains("in use by another process"));
        drop(first);
    }

    #[test]
    fn what_is_missing_is_to_be_attached() {
        let real = Real::start(1).expect("io_uring is available");
        let missing = FileDevice::open(&scratch("missing"), &OpenOptions::default(), real.env()).err();
        let error = missing.expect("there is no such file");
        assert!(
            error.kind() == Kind::Failed && error.to_string().contains("; attach the device, or correct"),
            "{error}"
        );
    }

    #[test]
    fn what_is_cut_off_meanwhile_cannot_be_read() {
        for path in [scratch("cut"), Path::new("/dev/shm").join(scratch("cut").file_name().expect("a name"))] {
            let real = Real::start(1).expect("io_uring is available");
            let options = OpenOptions { create: Some(Size::mib(1)), ..OpenOptions::default() };
            let device = FileDevice::open(&path, &options, real.env()).expect("a scratch file");
            File::options().write(true).open(&path).and_then(|file| file.set_len(64 << 10)).expect("cut");
            real.block_on(async move {
                const TEST: IoContext = IoContext::foreground("test");
                let read = async |at, count| Layer::read(&device, TEST, Lba(at), Blocks(count)).await;
                assert_eq!(read(0, 16).await.expect("it is there").len(), 64 << 10);
                for (at, count) in [(8, 16), (100, 1)] {
                    let error = read(at, count).await.expect_err("it is gone");
                    assert!(error.kind() == Kind::Failed && error.to_string().contains("became shorter"), "{error}");
                }
            });
            std::fs::remove_file(&path).expect("just created");
        }
    }

    /// A loop device on a file of 1 MiB, gone at the end.
    struct Loop {
        device: PathBuf,
        file: PathBuf,
    }

    impl Loop {
        fn new(name: &str) -> Option<Loop> {
            let file = scratch(name);
            File::create(&file).and_then(|made| made.set_len(1 << 20)).expect("a scratch file");
            let found = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
            match found {
                Ok(found) if found.status.success() => {
                    let device = String::from_utf8(found.stdout).expect("text").trim().into();
                    Some(Loop { device, file })
                }
                _ => {
                    println!("SKIPPED: no loop device can be had");
                    std::fs::remove_file(&file).expect("just created");
                    None
                }
            }
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
            let _ = std::fs::remove_file(&self.file);
        }
    }

    #[test]
    fn a_block_device_has_one_user_by_whatever_node() {
        let Some(disk) = Loop::new("loop") else { return };
        let real = Real::start(1).expect("io_uring is available");
        let open = |path: &Path, read_only| {
            let options = OpenOptions { create: Some(Size::mib(1)), read_only, ..OpenOptions::default() };
            FileDevice::open(path, &options, real.env())
        };
        let claim = || File::options().read(true).custom_flags(libc::O_EXCL).open(&disk.device);
        let node = scratch("loop-node");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &node,
            rustix::fs::FileType::BlockDevice,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            std::fs::metadata(&disk.device).expect("a device").rdev(),
        );
        let other = if made.is_ok() { &node } else { &disk.device };
        assert!(is_same(&disk.device, other) && !is_same(&disk.device, &disk.file));
        let device = open(&disk.device, false).expect("nobody has it");
        assert!(is_taken(&claim().expect_err("we have it")));
        drop(device);
        let claimed = claim().expect("it is free again");
        let error = open(other, false).err().expect("somebody else has it");
        assert_eq!(error.kind(), Kind::Retry);
        assert!(error.to_string().contains("in use by another process, or mounted"), "{error}");
        open(&disk.device, true).expect("who only reads is in nobody's way");
        drop(claimed);
        open(other, false).expect("it is free again");
        let _ = std::fs::remove_file(&node);
    }
}
