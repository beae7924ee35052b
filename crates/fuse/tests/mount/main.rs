//! A file system in memory, mounted, and used through the kernel: over the device and over io_uring.
//!
//! Mounting needs root and `/dev/fuse`; without them these tests say so and pass.

mod memory;
mod speed;

use ashlar_env::real::Real;
use ashlar_fuse::{Mount, Options, detach, is_mounted};
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
        let place = Place::new();
        let real = Real::start(workers).expect("the executor starts");
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

/// Runs a body on each transport. The kernel's switch may keep io_uring off; then both are the device.
fn on_each_transport(body: impl Fn(&Mounted, &Path)) {
    if let Some(why) = obstacle() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    for (workers, over_io_uring) in [(1, false), (2, false), (processors(), true)] {
        let mounted = Mounted::new(workers, Options { over_io_uring, ..Options::default() });
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

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
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

#[test]
fn files_hold_what_is_written() {
    on_each_transport(|_, at| {
        let path = at.join("file");
        let data = pattern(3_000_001, 1);
        fs::write(&path, &data).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data);

        let mut file = OpenOptions::new().append(true).read(true).open(&path).unwrap();
        file.write_all(b"tail").unwrap();
        file.sync_all().unwrap();
        file.seek(SeekFrom::Start(3_000_001)).unwrap();
        let mut tail = String::new();
        file.read_to_string(&mut tail).unwrap();
        assert_eq!(tail, "tail");

        file.set_len(10_000).unwrap();
        file.set_len(20_000).unwrap();
        let read = fs::read(&path).unwrap();
        assert_eq!((&read[..10_000], &read[10_000..]), (&data[..10_000], &[0; 10_000][..]));

        drop(File::create(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC truncates");
        let sync = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
        sync.write_all_at(b"durable", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"durable");
    });
}

#[test]
fn names_come_and_go() {
    on_each_transport(|mounted, at| {
        let (a, b, directory) = (at.join("a"), at.join("b"), at.join("directory"));
        assert_eq!(fs::metadata(&a).unwrap_err().kind(), ErrorKind::NotFound);
        let lookups = mounted.served("lookup");
        for _ in 0..10 {
            assert!(!a.exists());
        }
        assert_eq!(mounted.served("lookup"), lookups, "an absent name is remembered");
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        rename2(&a, &b, libc::RENAME_EXCHANGE).unwrap();
        assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
        assert_eq!(errno(rename2(&a, &b, libc::RENAME_NOREPLACE)), libc::EEXIST);
        fs::rename(&a, &b).unwrap();
        assert!(!a.exists());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("inside"), "x").unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().nlink(), 2);
        assert_eq!(errno(fs::remove_dir(&directory)), libc::ENOTEMPTY);
        assert_eq!(errno(fs::rename(&b, &directory)), libc::EISDIR);
        assert_eq!(errno(fs::write(at.join("n".repeat(256)), "")), libc::ENAMETOOLONG);
        fs::write(at.join("n".repeat(255)), "").unwrap();
        std::os::unix::fs::symlink("inside", directory.join("link")).unwrap();
        assert_eq!(fs::read(directory.join("link")).unwrap(), b"x");
        fs::remove_dir_all(&directory).unwrap();

        fs::hard_link(&b, &a).unwrap();
        assert_eq!((fs::metadata(&a).unwrap().nlink(), fs::metadata(&b).unwrap().nlink()), (2, 2));
        assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
        let mut open = OpenOptions::new().read(true).write(true).open(&a).unwrap();
        fs::remove_file(&a).unwrap();
        fs::remove_file(&b).unwrap();
        open.write_all(b"without a name").unwrap();
        open.sync_all().unwrap();
        assert_eq!(open.metadata().unwrap().nlink(), 0);
        let mut read = vec![0; 14];
        open.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, b"without a name");
    });
}

#[test]
fn forgotten_inodes_are_given_back() {
    on_each_transport(|mounted, at| {
        for n in 0..200 {
            fs::write(at.join(n.to_string()), "x").unwrap();
        }
        assert_eq!(fs::read_dir(at).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>(), 200);
        let open = File::open(at.join("7")).unwrap();
        for n in 0..200 {
            fs::remove_file(at.join(n.to_string())).unwrap();
        }
        until("inodes without names remain", || mounted.memory.nodes_count() == 2);
        drop(open);
        until("an inode remains that was open", || mounted.memory.nodes_count() == 1);
    });
}

#[test]
fn nodes_have_their_kinds_owners_and_times() {
    on_each_transport(|_, at| {
        let fifo = at.join("fifo");
        let device = at.join("device");
        let number = libc::makedev(4095, 1_000_000);
        // SAFETY: the pointers are to strings that end.
        check(unsafe { libc::mkfifo(text(&fifo).as_ptr(), 0o600) }).unwrap();
        // SAFETY: as above.
        check(unsafe { libc::mknod(text(&device).as_ptr(), libc::S_IFCHR | 0o600, number) }).unwrap();
        assert_eq!(fs::metadata(&fifo).unwrap().mode(), libc::S_IFIFO | 0o600);
        let data = fs::metadata(&device).unwrap();
        assert_eq!((data.mode(), data.rdev()), (libc::S_IFCHR | 0o600, number));

        let file = at.join("file");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        std::os::unix::fs::chown(&file, Some(12), Some(34)).unwrap();
        let times = fs::FileTimes::new()
            .set_accessed(std::time::UNIX_EPOCH - Duration::new(5, 0))
            .set_modified(std::time::UNIX_EPOCH + Duration::new(5_000_000_000, 123_456_789));
        File::options().write(true).open(&file).unwrap().set_times(times).unwrap();
        let data = fs::metadata(&file).unwrap();
        assert_eq!((data.uid(), data.gid()), (12, 34));
        assert_eq!((data.atime(), data.mtime(), data.mtime_nsec()), (-5, 5_000_000_000, 123_456_789));
        assert!(data.created().is_ok(), "statx gives the time of birth");
    });
}

#[test]
fn files_without_names_can_be_named() {
    on_each_transport(|_, at| {
        let mut file = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(at).unwrap();
        file.write_all(b"nameless").unwrap();
        let from = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let named = at.join("named");
        let (from, to) = (text(&from), text(&named));
        let cwd = libc::AT_FDCWD;
        // SAFETY: both pointers are to strings that end.
        check(unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) }).unwrap();
        drop(file);
        assert_eq!(fs::read(&named).unwrap(), b"nameless");
    });
}

#[test]
fn ranges_are_reserved_punched_and_zeroed() {
    on_each_transport(|_, at| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
        let mut model = pattern(10 * PAGE as usize, 2);
        let same = |model: &[u8]| {
            let mut read = vec![0; model.len() + 1];
            let len = file.read_at(&mut read, 0).unwrap();
            assert!(read[..len] == *model);
            assert_eq!(file.metadata().unwrap().len(), model.len() as u64);
        };
        file.write_all_at(&model, 0).unwrap();
        fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, PAGE + 100, 3 * PAGE).unwrap();
        model[PAGE as usize + 100..4 * PAGE as usize + 100].fill(0);
        same(&model);
        fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, 9 * PAGE, 2 * PAGE).unwrap();
        model.truncate(9 * PAGE as usize);
        model.resize(11 * PAGE as usize, 0);
        same(&model);
        fallocate(&file, 0, 0, 20 * PAGE).unwrap();
        model.resize(20 * PAGE as usize, 0);
        same(&model);
        fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 20 * PAGE, 10 * PAGE).unwrap();
        same(&model);
        assert!(file.metadata().unwrap().blocks() * 512 >= 30 * PAGE);
        for refused in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, libc::FALLOC_FL_UNSHARE_RANGE] {
            assert_eq!(errno(fallocate(&file, refused, 0, PAGE)), libc::EOPNOTSUPP, "the kernel refuses {refused}");
        }
    });
}

#[test]
fn holes_are_those_of_the_page_cache_too() {
    on_each_transport(|_, at| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
        for written_back in [false, true] {
            file.write_all_at(&[1; 2 * PAGE as usize], 0).unwrap();
            file.write_all_at(&[1; 100], 4 * PAGE).unwrap();
            if written_back {
                file.sync_all().unwrap();
            }
            assert_eq!(seek(&file, 0, libc::SEEK_HOLE).unwrap(), 2 * PAGE);
            assert_eq!(seek(&file, 2 * PAGE, libc::SEEK_DATA).unwrap(), 4 * PAGE);
            assert_eq!(seek(&file, 4 * PAGE + 7, libc::SEEK_DATA).unwrap(), 4 * PAGE + 7);
            assert_eq!(seek(&file, 4 * PAGE, libc::SEEK_HOLE).unwrap(), 4 * PAGE + 100);
            assert_eq!(errno(seek(&file, 4 * PAGE + 100, libc::SEEK_DATA)), libc::ENXIO);
            file.set_len(0).unwrap();
        }
        // Only the page cache knows of these, and of this end.
        file.write_all_at(b"far away", 300 * PAGE).unwrap();
        assert_eq!(seek(&file, 5, libc::SEEK_DATA).unwrap(), 300 * PAGE);
        file.write_all_at(&[1; PAGE as usize], 301 * PAGE).unwrap();
        assert_eq!(seek(&file, 301 * PAGE, libc::SEEK_HOLE).unwrap(), 302 * PAGE);
        assert_eq!(seek(&file, 300 * PAGE, libc::SEEK_HOLE).unwrap(), 302 * PAGE);
    });
}

#[test]
fn ranges_are_copied_by_the_engine() {
    on_each_transport(|mounted, at| {
        let data = pattern(1 << 20, 3);
        fs::write(at.join("from"), &data).unwrap();
        let from = File::open(at.join("from")).unwrap();
        let to = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("to")).unwrap();
        let (mut at_from, mut at_to) = (1000i64, 50i64);
        // SAFETY: the pointers are to two offsets.
        let copied = check(unsafe {
            libc::copy_file_range(from.as_raw_fd(), &mut at_from, to.as_raw_fd(), &mut at_to, 500_000, 0)
        } as i64);
        assert_eq!(copied.unwrap(), 500_000);
        assert_eq!((at_from, at_to), (501_000, 500_050));
        let mut read = vec![0; 500_000];
        to.read_exact_at(&mut read, 50).unwrap();
        assert!(read == data[1000..501_000]);
        assert_eq!(mounted.served("copy_file_range") + mounted.served("copy_file_range_64"), 1);
    });
}

#[test]
fn extended_attributes_keep_their_values() {
    on_each_transport(|_, at| {
        let path = at.join("file");
        fs::write(&path, "").unwrap();
        let large = pattern(60_000, 4);
        assert_eq!(errno(xattr(&path, "user.a", 100)), libc::ENODATA);
        set_xattr(&path, "user.a", b"", libc::XATTR_CREATE).unwrap();
        assert_eq!(errno(set_xattr(&path, "user.a", b"x", libc::XATTR_CREATE)), libc::EEXIST);
        assert_eq!(errno(set_xattr(&path, "user.b", b"x", libc::XATTR_REPLACE)), libc::ENODATA);
        set_xattr(&path, "user.b", &large, 0).unwrap();
        assert_eq!(xattr(&path, "user.a", 100).unwrap(), b"");
        assert_eq!(xattr(&path, "user.b", 0).unwrap().len(), large.len());
        assert_eq!(xattr(&path, "user.b", 65_536).unwrap(), large);
        assert_eq!(errno(xattr(&path, "user.b", 100)), libc::ERANGE);
        let mut names = vec![0u8; 100];
        // SAFETY: a string that ends, and a buffer of the given length.
        let len = check(unsafe { libc::listxattr(text(&path).as_ptr(), names.as_mut_ptr().cast(), 100) } as i64);
        assert_eq!(&names[..len.unwrap() as usize], b"user.a\0user.b\0");
        let name = CString::new("user.a").unwrap();
        // SAFETY: both pointers are to strings that end.
        check(unsafe { libc::removexattr(text(&path).as_ptr(), name.as_ptr()) }).unwrap();
        assert_eq!(errno(xattr(&path, "user.a", 100)), libc::ENODATA);
    });
}

#[test]
fn a_listing_names_everything_that_stays_exactly_once() {
    on_each_transport(|_, at| {
        let directory = at.join("directory");
        fs::create_dir(&directory).unwrap();
        let stays: BTreeSet<String> = (0..5000).map(|n| format!("stays-{n}-{}", "x".repeat(n % 50))).collect();
        for name in &stays {
            fs::write(directory.join(name), "").unwrap();
        }
        std::thread::scope(|scope| {
            let churn = scope.spawn(|| {
                for n in 0..1500 {
                    fs::write(directory.join(format!("goes-{n}")), "").unwrap();
                    if n >= 10 {
                        fs::remove_file(directory.join(format!("goes-{}", n - 10))).unwrap();
                    }
                }
            });
            while !churn.is_finished() {
                let listed: Vec<String> = fs::read_dir(&directory)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .filter(|name| name.starts_with("stays"))
                    .collect();
                assert_eq!(listed.len(), stays.len());
                assert!(listed.into_iter().collect::<BTreeSet<_>>() == stays);
            }
        });
    });
}

#[test]
fn mappings_and_files_agree() {
    on_each_transport(|_, at| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
        let len = 3 * PAGE as usize;
        file.set_len(len as u64).unwrap();
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping of an open file; nobody truncates it.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), len, access, shared, file.as_raw_fd(), 0) };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: the mapping is `len` bytes long, writable and not used otherwise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), len) };
        let data = pattern(len, 5);
        bytes.copy_from_slice(&data);
        let mut read = vec![0; len];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == data);
        // SAFETY: exactly the mapping from above, whose slice is not used any more.
        unsafe {
            check(libc::msync(map, len, libc::MS_SYNC)).unwrap();
            check(libc::munmap(map, len)).unwrap();
        }
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(at.join("file")).unwrap();
        let mut buffer = vec![0; len + PAGE as usize];
        let buffer = aligned(&mut buffer, len);
        assert_eq!(direct.read_at(buffer, 0).unwrap(), len);
        assert!(*buffer == data, "the engine has what was mapped");
    });
}

#[test]
fn direct_io_goes_past_the_page_cache() {
    on_each_transport(|mounted, at| {
        let path = at.join("file");
        let len = 3 << 20;
        let direct = |create: bool| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(create).custom_flags(libc::O_DIRECT).open(&path).unwrap()
        };
        let mut buffer = vec![0; len + PAGE as usize];
        let buffer = aligned(&mut buffer, len);
        buffer.copy_from_slice(&pattern(len, 6));
        let file = direct(true);
        file.write_all_at(buffer, 0).unwrap();
        assert_eq!(mounted.mount.counters().bytes_written, len as u64);
        assert!(fs::read(&path).unwrap() == *buffer);
        let before = mounted.mount.counters().bytes_read;
        let file = direct(false).read_at(buffer, 0).map(|read| (read, file));
        assert_eq!(file.unwrap().0, len);
        assert!(mounted.mount.counters().bytes_read - before >= len as u64);
        assert!(*buffer == pattern(len, 6));
    });
}

#[test]
fn opening_and_listing_what_is_known_costs_nothing() {
    on_each_transport(|mounted, at| {
        fs::write(at.join("file"), "x").unwrap();
        let work = || {
            assert_eq!(fs::metadata(at.join("file")).unwrap().len(), 1);
            assert_eq!(File::open(at.join("file")).unwrap().read_at(&mut [0; 10], 0).unwrap(), 1);
            assert_eq!(fs::read_dir(at).unwrap().count(), 1);
        };
        for _ in 0..3 {
            work();
        }
        let before = mounted.mount.counters();
        work();
        let after = mounted.mount.counters();
        let asked = |name: &str| {
            let count = |counters: &ashlar_fuse::Counters| counters.operation(name).map_or(0, |of| of.count);
            count(&after) - count(&before)
        };
        for name in ["lookup", "open", "release", "opendir", "releasedir", "flush", "read"] {
            assert_eq!(asked(name), 0, "{name}");
        }
        assert!(mounted.served("open") <= 1 && mounted.served("opendir") <= 1);
    });
}

#[test]
fn a_request_that_waits_holds_up_nobody() {
    on_each_transport(|_, at| {
        // In directories of their own: to create, the kernel locks a directory, and a lookup holds that up.
        let directories: Vec<PathBuf> = (0..4).map(|n| at.join(format!("directory-{n}"))).collect();
        directories.iter().for_each(|directory| fs::create_dir(directory).unwrap());
        std::thread::scope(|scope| {
            let look = |directory: &Path| fs::metadata(directory.join("slow")).is_err();
            let slow: Vec<_> = directories.iter().map(|directory| scope.spawn(move || look(directory))).collect();
            std::thread::sleep(memory::SLOW / 6);
            let began = Instant::now();
            for n in 0..20 {
                fs::write(at.join(n.to_string()), "x").unwrap();
            }
            assert!(began.elapsed() < memory::SLOW / 2);
            assert!(slow.into_iter().all(|slow| slow.join().unwrap()));
        });
    });
}

#[test]
fn damage_is_an_error_for_the_program_and_a_story_for_the_operator() {
    if let Some(why) = obstacle() {
        return eprintln!("SKIPPED: {why}");
    }
    let reports = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let keep = reports.clone();
    let on_damage = Arc::new(move |damage: &ashlar_fuse::Damage| keep.lock().push(damage.to_string()));
    let mounted = Mounted::new(2, Options { on_damage, ..Options::default() });
    assert_eq!(errno(fs::metadata(mounted.place.0.join("damaged"))), libc::EIO);
    assert_eq!(*reports.lock(), ["lookup of inode 1: Io (a block is damaged)"]);
}

#[test]
fn who_only_writes_learns_that_there_is_no_space() {
    on_each_transport(|_, at| {
        let path = at.join("log");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"begun").unwrap();
        set_xattr(&path, "user.full", b"", 0).unwrap();
        // The kernel takes what it can hold. It writes back when it wants; here, when somebody else asks for it.
        file.write_all(&pattern(1 << 20, 1)).unwrap();
        let other = File::open(&path).unwrap();
        assert_eq!(errno(other.sync_all()), libc::ENOSPC);
        assert_eq!(errno(file.write(b"more")), libc::ENOSPC);
        // Who reads is not concerned, nor who writes when there is space again.
        file.write_all(&pattern(1 << 20, 2)).unwrap();
        assert_eq!(errno(other.sync_all()), libc::ENOSPC);
        assert!(fs::read(&path).is_ok());
        // SAFETY: strings that end.
        check(unsafe { libc::removexattr(text(&path).as_ptr(), c"user.full".as_ptr()) }).unwrap();
        file.write_all(b"more").unwrap();
    });
}

#[test]
fn a_snapshot_is_not_written() {
    if let Some(why) = obstacle() {
        return eprintln!("SKIPPED: {why}");
    }
    let mounted = Mounted::new(1, Options { read_only: true, ..Options::default() });
    assert_eq!(errno(fs::write(mounted.place.0.join("file"), "x")), libc::EROFS);
}

#[test]
fn refusals_say_what_to_do() {
    if let Some(why) = obstacle() {
        return eprintln!("SKIPPED: {why}");
    }
    let mounted = Mounted::new(1, Options::default());
    let place = Place::new();
    let refusal = |at: &Path| {
        let memory = Arc::new(Memory::new(mounted.real.env()));
        Mount::new(&mounted.real, memory, at, Options::default()).err().expect("it must fail").to_string()
    };
    assert!(refusal(&place.0.join("missing")).contains("mkdir -p"));
    let file = place.0.join("file");
    fs::write(&file, "x").unwrap();
    assert!(refusal(&file).contains("not a directory"));
    assert!(refusal(&place.0).contains("not empty"));
    fs::remove_file(&file).unwrap();
    assert!(refusal(&mounted.place.0).contains("mounted there already"));
}

#[test]
fn a_busy_mount_is_left_alone_unless_it_is_detached() {
    if let Some(why) = obstacle() {
        return eprintln!("SKIPPED: {why}");
    }
    let mounted = Mounted::new(2, Options::default());
    let file = File::create_new(mounted.place.0.join("file")).unwrap();
    assert!(mounted.mount.unmount(false).unwrap_err().to_string().contains("in use"));
    assert!(is_mounted(&mounted.place.0));
    mounted.mount.unmount(true).unwrap();
    assert!(!is_mounted(&mounted.place.0));
    file.write_all_at(b"its users go on", 0).unwrap();
    file.sync_all().unwrap();
    assert!(mounted.mount.is_served());
    drop(file);
    let Mounted { mount, real, .. } = mounted;
    real.block_on(async move { mount.ended().await });
}

/// A process that serves a mount until it is killed.
struct Server {
    child: Child,
    place: Place,
}

impl Server {
    fn start(over_io_uring: bool) -> Server {
        let place = Place::new();
        let child = Command::new(std::env::current_exe().expect("tests are programs"))
            .args(["--exact", "serve_until_killed", "--ignored", "--nocapture"])
            .env(MOUNT_AT, &place.0)
            .envs(over_io_uring.then_some((OVER_IO_URING, "1")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let server = Server { child, place };
        let ready = server.place.0.join("ready");
        until("the server does not mount", || is_mounted(&server.place.0) && fs::metadata(&ready).is_ok());
        server
    }

    /// Stops all its threads, and waits until they stand.
    fn stop(&self) {
        let number = self.child.id() as i32;
        // SAFETY: the calls have no memory arguments but an integer, and the number is that of our child.
        unsafe {
            check(libc::kill(number, libc::SIGSTOP)).expect("the child exists");
            check(libc::waitpid(number, &mut 0, libc::WUNTRACED)).expect("it stops");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if is_mounted(&self.place.0) {
            let _ = detach(&self.place.0);
        }
    }
}

#[test]
#[ignore = "the child of other tests"]
fn serve_until_killed() {
    let Some(at) = std::env::var_os(MOUNT_AT) else { return };
    let real = Real::start(processors()).expect("the executor starts");
    let memory = Arc::new(Memory::new(real.env()));
    let options = Options { over_io_uring: std::env::var_os(OVER_IO_URING).is_some(), ..Options::default() };
    let _mount = Mount::new(&real, memory, Path::new(&at), options).expect("mounted");
    fs::write(Path::new(&at).join("ready"), "").expect("it serves");
    // The parent holds the other end: this process does not outlive it.
    let _ = io::stdin().read(&mut [0]);
}

#[test]
fn what_a_dead_server_left_is_cleared() {
    if let Some(why) = obstacle() {
        return eprintln!("SKIPPED: {why}");
    }
    for over_io_uring in [false, true] {
        let mut server = Server::start(over_io_uring);
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        // The kernel closes the rings of the dead in its own time; until then it says ECANCELED.
        until("its mount is still connected", || errno(fs::read_dir(&server.place.0)) == libc::ENOTCONN);
        assert!(is_mounted(&server.place.0));
        let real = Real::start(1).unwrap();
        let refused = Mount::new(&real, Arc::new(Memory::new(real.env())), &server.place.0, Options::default());
        assert!(refused.err().expect("it must fail").to_string().contains("ashlar down"));
        detach(&server.place.0).unwrap();
        assert!(!is_mounted(&server.place.0));
        assert_eq!(fs::read_dir(&server.place.0).unwrap().count(), 0);
    }
}

#[test]
fn programs_that_wait_for_a_stopped_server_are_freed() {
    if let Some(why) = obstacle() {
        return eprintln!("SKIPPED: {why}");
    }
    for over_io_uring in [false, true] {
        let mut server = Server::start(over_io_uring);
        server.stop();
        let path = server.place.0.join("anything");
        let waits = std::thread::spawn(move || fs::metadata(path).map(drop));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        detach(&server.place.0).unwrap();
        if over_io_uring {
            // The request lies in the stopped thread's ring, from where only that thread, or its end, takes it.
            server.child.kill().unwrap();
        }
        until("it still waits", || waits.is_finished());
        let got = errno(waits.join().unwrap());
        assert!([libc::ECONNABORTED, libc::ENOTCONN, libc::ECANCELED].contains(&got), "{got}");
    }
}

#[test]
fn a_panic_in_the_engine_ends_the_mount() {
    on_each_transport(|mounted, at| {
        assert!(fs::metadata(at.join("panic")).is_err());
        until("it is still served", || !mounted.mount.is_served());
        assert!(!is_mounted(at));
    });
}

#[test]
fn syncfs_reaches_the_engine_only_as_writes() {
    on_each_transport(|mounted, at| {
        let mut file = File::create_new(at.join("file")).unwrap();
        file.write_all(b"x").unwrap();
        // SAFETY: the call has no memory arguments.
        check(unsafe { libc::syncfs(file.as_raw_fd()) }).unwrap();
        // Linux does not even wait for the write-back that it begins.
        until("nothing is written back", || mounted.served("write") == 1);
        assert_eq!(mounted.served("syncfs"), 0);
        // A directory is the way to reach it: fsync of one makes everything durable.
        // SAFETY: the pointer is to a string that ends.
        let directory = check(unsafe { libc::open(text(at).as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY) }).unwrap();
        // SAFETY: the descriptor was just made and nobody else owns it.
        unsafe { File::from_raw_fd(directory as i32) }.sync_all().unwrap();
        assert_eq!(mounted.served("fsyncdir"), 1);
    });
}

/// Random operations on one file, buffered and direct, against a vector.
#[test]
fn a_file_is_a_vector_of_bytes() {
    const LEN_MAX: u64 = 40 * PAGE;
    let run = |at: &Path, seed: u64| {
        let path = at.join(format!("file-{seed}"));
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags).open(&path).unwrap()
        };
        let (cached, direct) = (open(0), open(libc::O_DIRECT));
        let mut model: Vec<u8> = Vec::new();
        let mut chance = pattern(1 << 16, seed).into_iter().map(u64::from).cycle();
        let mut random = move |below: u64| (0..4).fold(0, |sum, _| sum << 8 | chance.next().unwrap()) % below.max(1);
        let mut room = vec![0; LEN_MAX as usize + PAGE as usize];
        let resize = |model: &mut Vec<u8>, len: u64| model.resize(model.len().max(len as usize), 0);
        for step in 0..400 {
            let offset = random(LEN_MAX);
            let len = 1 + random((LEN_MAX - offset).min(5 * PAGE));
            let (page_offset, page_len) = (offset / PAGE * PAGE, len.div_ceil(PAGE) * PAGE);
            let range = |len: u64, model: &[u8]| {
                let end = (offset + len).min(model.len() as u64).max(offset.min(model.len() as u64));
                offset.min(end) as usize..end as usize
            };
            let story = format!("seed {seed}, step {step}, {offset} +{len}");
            match random(9) {
                0 | 1 => {
                    let data = pattern(len as usize, random(1 << 30));
                    cached.write_all_at(&data, offset).unwrap();
                    resize(&mut model, offset + len);
                    model[offset as usize..(offset + len) as usize].copy_from_slice(&data);
                }
                2 => {
                    let data = aligned(&mut room, page_len.min(LEN_MAX - page_offset) as usize);
                    data.copy_from_slice(&pattern(data.len(), random(1 << 30)));
                    direct.write_all_at(data, page_offset).unwrap();
                    resize(&mut model, page_offset + data.len() as u64);
                    model[page_offset as usize..][..data.len()].copy_from_slice(data);
                }
                3 => {
                    let data = aligned(&mut room, page_len as usize);
                    let read = direct.read_at(data, page_offset).unwrap();
                    let from = model.get(page_offset as usize..).unwrap_or_default();
                    assert!(data[..read] == from[..from.len().min(page_len as usize)], "direct read, {story}");
                }
                4 => {
                    cached.set_len(offset).unwrap();
                    model.resize(offset as usize, 0);
                }
                5 => {
                    fallocate(&cached, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len).unwrap();
                    let range = range(len, &model);
                    model[range].fill(0);
                }
                6 => {
                    fallocate(&cached, libc::FALLOC_FL_ZERO_RANGE, offset, len).unwrap();
                    resize(&mut model, offset + len);
                    model[offset as usize..(offset + len) as usize].fill(0);
                }
                7 => fallocate(&cached, libc::FALLOC_FL_KEEP_SIZE, offset, len).unwrap(),
                _ => {
                    let read = cached.read_at(&mut room[..len as usize], offset).unwrap();
                    assert!(room[..read] == model[range(len, &model)], "read, {story}");
                }
            }
            assert_eq!(cached.metadata().unwrap().len(), model.len() as u64, "{story}");
        }
        assert!(fs::read(&path).unwrap() == model, "seed {seed}");
    };
    on_each_transport(|_, at| (1..=5).for_each(|seed| run(at, seed)));
}

#[test]
fn git_and_tar_work_on_it() {
    let works = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    if !works("git") || !works("tar") {
        return eprintln!("SKIPPED: git or tar is missing");
    }
    on_each_transport(|_, at| {
        let run = |arguments: &[&str]| {
            let out = Command::new(arguments[0]).args(&arguments[1..]).current_dir(at).output().unwrap();
            assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
            out.stdout
        };
        let origin = at.join("origin");
        for n in 0..200 {
            let directory = origin.join(format!("directory-{}", n % 7));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(n.to_string()), pattern(n * n, n as u64)).unwrap();
        }
        std::os::unix::fs::symlink("directory-1/1", origin.join("link")).unwrap();
        run(&["git", "init", "-q", "origin"]);
        run(&["git", "-C", "origin", "add", "."]);
        let commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "all"];
        run(&[&["git", "-C", "origin"], &commit[..]].concat());
        run(&["git", "clone", "-q", "--no-hardlinks", "origin", "clone"]);
        run(&["git", "-C", "clone", "fsck", "--strict"]);
        assert!(run(&["git", "-C", "clone", "status", "--porcelain"]).is_empty());
        run(&["tar", "-cf", "all.tar", "clone"]);
        fs::create_dir(at.join("untarred")).unwrap();
        run(&["tar", "-xf", "all.tar", "-C", "untarred"]);
        run(&["diff", "-r", "--no-dereference", "clone", "untarred/clone"]);
        run(&["rm", "-r", "origin", "clone", "untarred", "all.tar"]);
        assert_eq!(fs::read_dir(at).unwrap().count(), 0);
    });
}
