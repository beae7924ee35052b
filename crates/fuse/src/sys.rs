//! System calls: the device, mounting, unmounting.

use crate::flags::Flags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// `FUSE_DEV_IOC_CLONE`: makes another descriptor serve the same mount.
const CLONE: libc::c_ulong = 0x8004_e500;

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::other("a path contains a zero byte"))
}

/// Opens `/dev/fuse`, non-blocking.
pub(crate) fn open_device() -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the path is a constant string.
    let fd = unsafe { libc::open(c"/dev/fuse".as_ptr(), flags) };
    check(fd.into())?;
    // SAFETY: the descriptor was just made and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Turns the kernel's switch for requests over io_uring on. Whether it is on.
pub(crate) fn enable_uring() -> bool {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    std::fs::write(SWITCH, "Y").is_ok() || std::fs::read(SWITCH).is_ok_and(|value| value.starts_with(b"Y"))
}

/// Another descriptor for the mount that `master` serves.
pub(crate) fn clone_device(master: &OwnedFd) -> io::Result<OwnedFd> {
    let device = open_device()?;
    let number = master.as_raw_fd() as u32;
    // SAFETY: the argument is a pointer to four readable bytes.
    check(unsafe { libc::ioctl(device.as_raw_fd(), CLONE, &raw const number) }.into())?;
    Ok(device)
}

/// Mounts `device` at `at`.
pub(crate) fn mount(source: &str, at: &Path, flags: Flags, data: &str) -> io::Result<()> {
    let (source, at) = (CString::new(source).map_err(io::Error::other)?, text(at)?);
    let data = CString::new(data).map_err(io::Error::other)?;
    // SAFETY: all pointers are to strings that end.
    let result =
        unsafe { libc::mount(source.as_ptr(), at.as_ptr(), c"fuse.ashlar".as_ptr(), flags.0, data.as_ptr().cast()) };
    check(result.into()).map(drop)
}

/// Changes the flags of the mount at `at`.
pub(crate) fn remount(at: &Path, flags: Flags) -> io::Result<()> {
    let at = text(at)?;
    let flags = flags.0 | libc::MS_REMOUNT;
    // SAFETY: the pointer is to a string that ends, and the others may be null.
    let result = unsafe { libc::mount(ptr::null(), at.as_ptr(), ptr::null(), flags, ptr::null()) };
    check(result.into()).map(drop)
}

/// What becomes of the users of a mount that goes.
#[derive(Clone, Copy, Debug)]
pub enum Users {
    /// There must be none.
    None,
    /// They go on until the last one leaves; nobody new comes.
    GoOn,
    /// They get errors, also those who wait for an answer.
    Fail,
}

/// Unmounts.
pub(crate) fn unmount(at: &Path, users: Users) -> io::Result<()> {
    let at = text(at)?;
    let flags = libc::UMOUNT_NOFOLLOW
        | match users {
            Users::None => 0,
            Users::GoOn => libc::MNT_DETACH,
            // By force the kernel first cuts the connection to the server, so nothing is left to wait for.
            Users::Fail => libc::MNT_FORCE | libc::MNT_DETACH,
        };
    // SAFETY: the pointer is to a string that ends.
    check(unsafe { libc::umount2(at.as_ptr(), flags) }.into()).map(drop)
}

/// Takes the next request. `WouldBlock`: there is none; `ENODEV`: unmounted.
pub(crate) fn read(device: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is writable for its length.
    check(unsafe { libc::read(device.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } as libc::c_long)
}

/// Hands over a reply.
pub(crate) fn write(device: &OwnedFd, head: &[u8], pieces: &[bytes::Bytes]) -> io::Result<usize> {
    let vector = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let vectors: smallvec::SmallVec<[libc::iovec; 8]> =
        std::iter::once(vector(head)).chain(pieces.iter().map(|piece| vector(piece))).collect();
    // SAFETY: every vector points to readable bytes that outlive the call.
    check(unsafe { libc::writev(device.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32) } as libc::c_long)
}

/// Whether the kernel still has the connection to a mount.
pub(crate) fn is_connected(device: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(device, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&now)).is_ok() && !asked[0].revents().contains(PollFlags::ERR)
}

/// Processors that the machine may have, also those that are off: the kernel keeps a queue for each.
pub(crate) fn processors() -> usize {
    // SAFETY: the call has no memory arguments.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// Lets the current thread run on these processors only.
pub(crate) fn pin_thread(processors: &[usize]) {
    // SAFETY: a zeroed set is an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for processor in processors.iter().filter(|processor| **processor < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number lies within the set.
        unsafe { libc::CPU_SET(*processor, &mut set) };
    }
    // Without permission the thread runs where it likes, which only costs speed.
    // SAFETY: the pointer is to a set of the given size.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

/// Device number of the file system mounted at `path`, without asking that file system.
pub(crate) fn mounted_device(path: &Path) -> io::Result<Option<(String, String)>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let wanted = path.to_string_lossy();
    // Fields: id, parent, major:minor, root, mount point, ...; the newest mount stands last.
    let found = mounts.lines().rev().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let kind = fields.iter().position(|field| *field == "-").and_then(|dash| fields.get(dash + 1))?;
        (unescape(fields.get(4)?) == wanted).then(|| (fields[2].to_string(), (*kind).to_string()))
    });
    Ok(found)
}

/// Whether a thread that waits for an answer has a capability. If that cannot be found out, not; nor if it has it in another user
/// namespace, which anybody can make for himself.
pub fn has_capability(thread: u32, number: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    if namespace("self").is_none_or(|own| namespace(&thread.to_string()) != Some(own)) {
        return false;
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> number & 1 != 0)
}

/// Undoes the octal escapes of `/proc/self/mountinfo`.
fn unescape(field: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(field.to_string(), |text, (escape, plain)| text.replace(escape, plain))
}
