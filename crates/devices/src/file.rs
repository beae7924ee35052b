//! A host file or block device, through io_uring, past the page cache where the host allows.

use ashlar_block::{
    Capability, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Medium, Result, blocks_of,
};
use ashlar_env::Env;
use ashlar_units::{BLOCK, Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a lock that another process holds is asked for again, and how often.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(20);

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
    capacity: Blocks,
    block_device: bool,
    /// The file lies in memory, so nothing is waited for.
    in_memory: bool,
    medium: Option<Medium>,
}

impl FileDevice {
    /// Opens, and with [`OpenOptions::create`] makes, the file; takes an exclusive lock on it.
    pub fn open(path: &Path, options: &OpenOptions, env: Env) -> Result<FileDevice> {
        let shown = path.display();
        let open = |direct: i32| {
            File::options()
                .read(true)
                .write(!options.read_only)
                .create(options.create.is_some())
                .custom_flags(direct | libc::O_CLOEXEC)
                .open(path)
        };
        let existed = path.exists();
        let file = if options.buffered { open(0) } else { open(libc::O_DIRECT).or_else(|_| open(0)) };
        let file = file.map_err(|error| Error::io(format!("cannot open {shown}"), &error))?;
        lock(&file).map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => Error::new(
                Kind::Retry,
                format!(
                    "{shown} is in use by another process; stop that one first (ashlar down, or Ctrl-C where it \
                     is served), or use another device"
                ),
            ),
            std::fs::TryLockError::Error(error) => Error::io(format!("cannot lock {shown}"), &error),
        })?;
        let kind = file.metadata().map_err(|error| Error::io(format!("cannot examine {shown}"), &error))?;
        let block_device = kind.file_type().is_block_device();
        if !block_device && !kind.is_file() {
            return Err(Error::misuse(format!("{shown} is neither a file nor a block device")));
        }
        if let Some(size) = options.create.filter(|_| !existed && !block_device) {
            file.set_len(size.0).map_err(|error| Error::io(format!("cannot size {shown} to {size}"), &error))?;
        }
        let size = {
            use std::io::{Seek, SeekFrom};
            (&file).seek(SeekFrom::End(0)).map_err(|error| Error::io(format!("cannot measure {shown}"), &error))?
        };
        let capacity = Size(size).to_blocks_down();
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
        })
    }

    fn ops(&self) -> Result<&dyn ashlar_env::FileOps> {
        let none = || Error::new(Kind::Unsupported, "host files exist in the real runtime only");
        let ops = self.env.file_ops().ok_or_else(none)?;
        Ok(if self.in_memory { ops.at_once() } else { ops })
    }
    fn failed(&self, what: &str, at: Lba, error: &std::io::Error) -> Error {
        Error::io(format!("{what} at {at}"), error)
    }
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
        Geometry { capacity: self.capacity, atomic: Size(512) }
    }
    fn capability(&self) -> Capability {
        // A block device may ignore discard or keep old data; a file's hole reads as zeros.
        Capability { discard: true, discard_zeroes: !self.block_device, persistent: true, medium: self.medium }
    }
    async fn read(&self, _context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let len = count.to_bytes().0 as usize;
        let read = self.ops()?.read_at(&self.file, at.to_bytes().0, len).await;
        read.map_err(|error| self.failed("read", at, &error))
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
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported && !self.block_device => {
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
            Err(error) if error.kind() != std::io::ErrorKind::Unsupported => Err(self.failed("discard", at, &error)),
            _ => Ok(()),
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

/// Locks a file. A process that was killed holds it until the kernel has ended its I/O, so a lock that is held is asked
/// for again for a while.
fn lock(file: &File) -> std::result::Result<(), std::fs::TryLockError> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_RETRY);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::{Checked, Device, conformance};
    use ashlar_env::real::Real;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ashlar-file-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_real_file_conforms() {
        conforms(scratch("conforms"));
    }

    #[test]
    fn a_file_in_memory_conforms() {
        let path = Path::new("/dev/shm").join(scratch("memory").file_name().expect("a name"));
        assert!(conforms(path), "the file is in memory");
    }

    /// Whether the file is in memory.
    fn conforms(path: PathBuf) -> bool {
        let real = Real::start(2).expect("io_uring is available");
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
}
