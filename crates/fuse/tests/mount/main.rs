//! A file system in memory, mounted, and used through the kernel: over the device and over io_uring.
//!
//! Mounting needs root and `/dev/fuse`; without them these tests say so and pass.

mod files;
mod life;
mod memory;
mod names;
mod owners;
mod speed;

use ashlar_env::real::Real;
use ashlar_fuse::{Mount, Options, Users, is_mounted, unmount};
use ashlar_fuzz::incompressible;
use ashlar_units::Bytes;
use memory::Memory;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Tells the child of `Server` where to mount.
const MOUNT_AT: &str = "ASHLAR_TEST_MOUNT_AT";
/// Tells it to serve io_uring.
const OVER_IO_URING: &str = "ASHLAR_TEST_OVER_IO_URING";

/// Why mounting is impossible here.
fn obstacle() -> Option<&'static str> {
    // SAFETY: the call has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Some("mounting needs root");
    }
    (!Path::new("/dev/fuse").exists()).then_some("there is no /dev/fuse")
}

/// An empty directory, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ashlar-fuse-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let at = std::env::temp_dir().join(name);
        fs::create_dir(&at).expect("the name is fresh");
        Place(at)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A mounted file system. Dropped in this order: unmounted, stopped, removed.
struct Mounted {
    mount: Mount,
    real: Real,
    memory: Arc<Memory>,
    place: Place,
}

impl Mounted {
    fn new(workers: usize, options: Options) -> Mounted {
        Mounted::on(Real::start(workers).expect("the executor starts"), options)
    }

    fn on(real: Real, options: Options) -> Mounted {
        let place = Place::new();
        let memory = Arc::new(Memory::new(real.env()));
        let mount = Mount::new(&real, memory.clone(), &place.0, options).expect("mounted");
        Mounted { mount, real, memory, place }
    }

    /// Unmounts when nobody uses it any more: a process that another test is just starting may hold our open files.
    fn unmount(&self) {
        until("it is still in use", || self.mount.unmount(false).is_ok());
    }

    fn served(&self, operation: &str) -> u64 {
        self.mount.counters().operation(operation).map_or(0, |counters| counters.count)
    }
}

/// As many as serve io_uring too.
fn processors() -> usize {
    // SAFETY: the call has no memory arguments.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) as usize }
}

/// Keeps the current thread where all its requests go into one queue.
fn on_first_processor() -> io::Result<()> {
    // SAFETY: a zeroed set is an empty one, processor 0 lies within it, and the pointer is to a set of the given size.
    check(unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    })
    .map(drop)
}

/// Runs a body on each transport, and where nothing has io_uring. The kernel's switch may keep it off; then all are the device.
fn on_each_transport(body: impl Fn(&Mounted, &Path)) {
    if let Some(why) = obstacle() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let with = |workers| Real::start(workers).expect("the executor starts");
    let without = |workers| Real::without_io_uring(workers).expect("the executor starts");
    for (real, over_io_uring) in
        [(with(1), false), (with(2), false), (with(processors()), true), (without(processors()), true)]
    {
        let mounted = Mounted::on(real, Options { over_io_uring, ..Options::default() });
        body(&mounted, &mounted.place.0);
        mounted.unmount();
        until("the queues do not end", || !mounted.mount.is_served());
    }
}

fn until(complaint: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{complaint}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn check(result: impl Into<i64>) -> io::Result<i64> {
    let result = result.into();
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero bytes")
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("it must fail").raw_os_error().expect("an error of the system")
}

fn rename2(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (text(from), text(to));
    // SAFETY: both pointers are to strings that end.
    check(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) }).map(drop)
}

fn fallocate(file: &File, mode: i32, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) }).map(drop)
}

fn seek(file: &File, offset: u64, whence: i32) -> io::Result<u64> {
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) }).map(|at| at as u64)
}

fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (text(path), CString::new(name).expect("no zero bytes"));
    // SAFETY: strings that end, and a value of the given length.
    check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) }).map(drop)
}

fn xattr(path: &Path, name: &str, room: usize) -> io::Result<Vec<u8>> {
    let (path, name) = (text(path), CString::new(name).expect("no zero bytes"));
    let mut value = vec![0; room];
    // SAFETY: strings that end, and a buffer of the given length.
    let len = check(unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), room) } as i64)?;
    if room > 0 {
        value.truncate(len as usize);
    } else {
        value.resize(len as usize, 0);
    }
    Ok(value)
}

/// A page-aligned part of a buffer, as `O_DIRECT` wants it.
fn aligned(buffer: &mut [u8], len: usize) -> &mut [u8] {
    let skip = buffer.as_ptr().align_offset(PAGE as usize);
    &mut buffer[skip..skip + len]
}
