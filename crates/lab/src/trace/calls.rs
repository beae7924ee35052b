//! The system calls that matter to files: which argument is what. Numbers are those of x86-64.

use super::Op;
use std::collections::HashMap;
use std::sync::LazyLock;

/// What a call does to the tables of descriptors, and which record comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Only the record.
    Only(Op),
    /// Opens a file. `openat2` has its flags and mode in memory.
    Open,
    /// Opens for writing, creates and cuts.
    Creat,
    /// Closes a descriptor.
    Close,
    /// Closes those from one number to another, or will at `execve`.
    CloseRange,
    /// Makes another descriptor of the same open file.
    Dup,
    /// As `dup2`.
    DupTo,
    /// Many things; some make descriptors.
    Fcntl,
    /// Of a kind of [`Op::Read`] or [`Op::Write`], at the offset that is given, else at the position of the file.
    Transfer(Op),
    /// Moves the position of a file.
    Seek,
    /// Copies between two descriptors: `fd` gives, `fd2` takes.
    Copy,
    /// Changes the current directory, by path.
    Chdir,
    /// The same by descriptor.
    Fchdir,
    /// Changes the root directory.
    Chroot,
    /// Ends what is shared with other threads.
    Unshare,
    /// Makes a thread or process. Not asked of the kernel's tracepoints, which tell of new tasks themselves.
    Fork,
    /// Begins another program.
    Exec,
    /// Never returns.
    Exit,
    /// Maps a file, unless the mapping is anonymous.
    Map,
    /// Ends mappings.
    Unmap,
    /// Writes mappings back.
    Sync,
    /// Many things; some share blocks between files.
    Ioctl,
    /// Makes a descriptor that is no file.
    Other,
    /// Makes two of them, and puts their numbers into memory.
    Pair,
    /// Makes a descriptor of a file that nobody knows.
    Nameless,
    /// Works on files in a way that records cannot say.
    Beyond,
}

/// What of the memory that an argument points to must be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// `struct open_how`: flags and mode.
    How,
    /// An offset. The kernel moves it on by what was done.
    Offset,
    /// The lengths of an `iovec`, whose count is the argument behind it.
    Lengths,
    /// Two descriptors.
    Pair,
}

/// A system call: which of its arguments is what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// As `strace` prints it.
    pub name: &'static str,
    /// On x86-64.
    pub number: u16,
    /// What it does.
    pub does: Does,
    /// Descriptor.
    pub fd: Option<u8>,
    /// The other descriptor: what a copy goes to, or the new number.
    pub fd2: Option<u8>,
    /// Directory descriptor of `path`.
    pub dir: Option<u8>,
    /// Directory descriptor of `path2`.
    pub dir2: Option<u8>,
    /// Path.
    pub path: Option<u8>,
    /// The other path.
    pub path2: Option<u8>,
    /// First byte.
    pub offset: Option<u8>,
    /// Bytes.
    pub len: Option<u8>,
    /// Flags.
    pub flags: Option<u8>,
    /// Mode; of a mapping its protection.
    pub mode: Option<u8>,
    /// Flags that the name of the call implies.
    pub implied: u64,
    /// Arguments that point to what must be known.
    pub memory: [Option<(u8, Memory)>; 2],
}

/// `AT_FDCWD`, as the low 32 bits of an argument.
pub const AT_FDCWD: u32 = -100i32 as u32;
/// `AT_SYMLINK_NOFOLLOW`.
const NOFOLLOW: u64 = 0x100;

const fn call(name: &'static str, number: u16, does: Does) -> Call {
    Call {
        name,
        number,
        does,
        fd: None,
        fd2: None,
        dir: None,
        dir2: None,
        path: None,
        path2: None,
        offset: None,
        len: None,
        flags: None,
        mode: None,
        implied: 0,
        memory: [None; 2],
    }
}

/// A call on a path.
const fn named(name: &'static str, number: u16, op: Op, path: u8) -> Call {
    let mut call = call(name, number, Does::Only(op));
    call.path = Some(path);
    call
}

/// A call on a descriptor, its first argument.
const fn on(name: &'static str, number: u16, op: Op) -> Call {
    call(name, number, Does::Only(op)).fd(0)
}

/// A call on two paths.
const fn two(name: &'static str, number: u16, op: Op, path: u8, path2: u8) -> Call {
    let mut call = named(name, number, op, path);
    call.path2 = Some(path2);
    call
}

/// A call that moves bytes between memory and its first argument.
const fn moves(name: &'static str, number: u16, op: Op) -> Call {
    call(name, number, Does::Transfer(op)).fd(0)
}

/// A call that makes a descriptor that is no file.
const fn other(name: &'static str, number: u16) -> Call {
    call(name, number, Does::Other)
}

impl Call {
    const fn fd(mut self, at: u8) -> Call {
        self.fd = Some(at);
        self
    }
    const fn fd2(mut self, at: u8) -> Call {
        self.fd2 = Some(at);
        self
    }
    const fn dir(mut self, at: u8) -> Call {
        self.dir = Some(at);
        self
    }
    const fn dir2(mut self, at: u8) -> Call {
        self.dir2 = Some(at);
        self
    }
    const fn path(mut self, at: u8) -> Call {
        self.path = Some(at);
        self
    }
    const fn offset(mut self, at: u8) -> Call {
        self.offset = Some(at);
        self
    }
    const fn len(mut self, at: u8) -> Call {
        self.len = Some(at);
        self
    }
    const fn flags(mut self, at: u8) -> Call {
        self.flags = Some(at);
        self
    }
    const fn mode(mut self, at: u8) -> Call {
        self.mode = Some(at);
        self
    }
    const fn implied(mut self, flags: u64) -> Call {
        self.implied = flags;
        self
    }
    const fn memory(mut self, at: u8, what: Memory) -> Call {
        match self.memory[0] {
            None => self.memory[0] = Some((at, what)),
            Some(_) => self.memory[1] = Some((at, what)),
        }
        self
    }
}

/// All of them.
pub static TABLE: &[Call] = &[
    call("open", 2, Does::Open).path(0).flags(1).mode(2),
    call("openat", 257, Does::Open).dir(0).path(1).flags(2).mode(3),
    call("openat2", 437, Does::Open).dir(0).path(1).memory(2, Memory::How),
    call("creat", 85, Does::Creat).path(0).mode(1),
    call("open_by_handle_at", 304, Does::Nameless),
    call("close", 3, Does::Close).fd(0),
    call("close_range", 436, Does::CloseRange).flags(2),
    call("dup", 32, Does::Dup).fd(0),
    call("dup2", 33, Does::DupTo).fd(0).fd2(1),
    call("dup3", 292, Does::DupTo).fd(0).fd2(1).flags(2),
    call("fcntl", 72, Does::Fcntl).fd(0),
    moves("read", 0, Op::Read).len(2),
    moves("pread64", 17, Op::Read).len(2).offset(3),
    moves("readv", 19, Op::Read).memory(1, Memory::Lengths),
    moves("preadv", 295, Op::Read).memory(1, Memory::Lengths).offset(3),
    moves("preadv2", 327, Op::Read).memory(1, Memory::Lengths).offset(3).flags(5),
    moves("write", 1, Op::Write).len(2),
    moves("pwrite64", 18, Op::Write).len(2).offset(3),
    moves("writev", 20, Op::Write).memory(1, Memory::Lengths),
    moves("pwritev", 296, Op::Write).memory(1, Memory::Lengths).offset(3),
    moves("pwritev2", 328, Op::Write).memory(1, Memory::Lengths).offset(3).flags(5),
    call("lseek", 8, Does::Seek).fd(0),
    call("sendfile", 40, Does::Copy).fd2(0).fd(1).memory(2, Memory::Offset).len(3),
    call("copy_file_range", 326, Does::Copy).fd(0).memory(1, Memory::Offset).fd2(2).memory(3, Memory::Offset).len(4),
    call("splice", 275, Does::Copy).fd(0).memory(1, Memory::Offset).fd2(2).memory(3, Memory::Offset).len(4),
    on("fsync", 74, Op::Fsync),
    on("fdatasync", 75, Op::Fdatasync),
    call("sync", 162, Does::Only(Op::Sync)),
    on("syncfs", 306, Op::Sync),
    call("sync_file_range", 277, Does::Beyond),
    named("truncate", 76, Op::Truncate, 0).len(1),
    on("ftruncate", 77, Op::Truncate).len(1),
    on("fallocate", 285, Op::Fallocate).flags(1).offset(2).len(3),
    named("stat", 4, Op::Stat, 0),
    on("fstat", 5, Op::Stat),
    named("lstat", 6, Op::Stat, 0).implied(NOFOLLOW),
    named("newfstatat", 262, Op::Stat, 1).dir(0).flags(3),
    named("statx", 332, Op::Stat, 1).dir(0).flags(2),
    named("access", 21, Op::Access, 0).mode(1),
    named("faccessat", 269, Op::Access, 1).dir(0).mode(2),
    named("faccessat2", 439, Op::Access, 1).dir(0).mode(2).flags(3),
    named("chmod", 90, Op::Chmod, 0).mode(1),
    on("fchmod", 91, Op::Chmod).mode(1),
    named("fchmodat", 268, Op::Chmod, 1).dir(0).mode(2),
    named("fchmodat2", 452, Op::Chmod, 1).dir(0).mode(2).flags(3),
    named("chown", 92, Op::Chown, 0),
    on("fchown", 93, Op::Chown),
    named("lchown", 94, Op::Chown, 0).implied(NOFOLLOW),
    named("fchownat", 260, Op::Chown, 1).dir(0).flags(4),
    named("utime", 132, Op::Utimes, 0),
    named("utimes", 235, Op::Utimes, 0),
    named("futimesat", 261, Op::Utimes, 1).dir(0),
    named("utimensat", 280, Op::Utimes, 1).dir(0).flags(3),
    named("readlink", 89, Op::Readlink, 0).len(2),
    named("readlinkat", 267, Op::Readlink, 1).dir(0).len(3),
    on("getdents", 78, Op::Getdents).len(2),
    on("getdents64", 217, Op::Getdents).len(2),
    named("mkdir", 83, Op::Mkdir, 0).mode(1),
    named("mkdirat", 258, Op::Mkdir, 1).dir(0).mode(2),
    named("rmdir", 84, Op::Rmdir, 0),
    named("unlink", 87, Op::Unlink, 0),
    named("unlinkat", 263, Op::Unlink, 1).dir(0).flags(2),
    two("rename", 82, Op::Rename, 0, 1),
    two("renameat", 264, Op::Rename, 1, 3).dir(0).dir2(2),
    two("renameat2", 316, Op::Rename, 1, 3).dir(0).dir2(2).flags(4),
    two("link", 86, Op::Link, 0, 1),
    two("linkat", 265, Op::Link, 1, 3).dir(0).dir2(2).flags(4),
    two("symlink", 88, Op::Symlink, 1, 0),
    two("symlinkat", 266, Op::Symlink, 2, 0).dir(1),
    named("mknod", 133, Op::Mknod, 0).mode(1),
    named("mknodat", 259, Op::Mknod, 1).dir(0).mode(2),
    named("getxattr", 191, Op::Getxattr, 0).len(3),
    named("lgetxattr", 192, Op::Getxattr, 0).len(3).implied(NOFOLLOW),
    on("fgetxattr", 193, Op::Getxattr).len(3),
    named("listxattr", 194, Op::Getxattr, 0).len(2),
    named("llistxattr", 195, Op::Getxattr, 0).len(2).implied(NOFOLLOW),
    on("flistxattr", 196, Op::Getxattr).len(2),
    named("setxattr", 188, Op::Setxattr, 0).len(3).flags(4),
    named("lsetxattr", 189, Op::Setxattr, 0).len(3).flags(4).implied(NOFOLLOW),
    on("fsetxattr", 190, Op::Setxattr).len(3).flags(4),
    named("removexattr", 197, Op::Setxattr, 0),
    named("lremovexattr", 198, Op::Setxattr, 0).implied(NOFOLLOW),
    on("fremovexattr", 199, Op::Setxattr),
    call("mmap", 9, Does::Map).len(1).mode(2).flags(3).fd(4).offset(5),
    call("munmap", 11, Does::Unmap).len(1),
    call("msync", 26, Does::Sync).len(1).flags(2),
    on("fadvise64", 221, Op::Fadvise).offset(1).len(2).flags(3),
    // What POSIX_FADV_WILLNEED asks for.
    on("readahead", 187, Op::Fadvise).offset(1).len(2).implied(3),
    named("statfs", 137, Op::Statfs, 0),
    on("fstatfs", 138, Op::Statfs),
    call("ioctl", 16, Does::Ioctl).fd(0),
    call("chdir", 80, Does::Chdir).path(0),
    call("fchdir", 81, Does::Fchdir).fd(0),
    call("chroot", 161, Does::Chroot).path(0),
    call("unshare", 272, Does::Unshare).flags(0),
    call("clone", 56, Does::Fork).flags(0),
    call("clone3", 435, Does::Fork).flags(0),
    call("fork", 57, Does::Fork),
    call("vfork", 58, Does::Fork),
    call("execve", 59, Does::Exec),
    call("execveat", 322, Does::Exec),
    call("exit", 60, Does::Exit),
    call("exit_group", 231, Does::Exit),
    call("pipe", 22, Does::Pair).memory(0, Memory::Pair),
    call("pipe2", 293, Does::Pair).memory(0, Memory::Pair).flags(1),
    call("socketpair", 53, Does::Pair).memory(3, Memory::Pair).flags(1),
    other("socket", 41),
    other("accept", 43),
    other("accept4", 288),
    other("epoll_create", 213),
    other("epoll_create1", 291),
    other("eventfd", 284),
    other("eventfd2", 290),
    other("signalfd", 282),
    other("signalfd4", 289),
    other("timerfd_create", 283),
    other("inotify_init", 253),
    other("inotify_init1", 294),
    other("fanotify_init", 300),
    other("memfd_create", 319),
    other("memfd_secret", 447),
    other("userfaultfd", 323),
    other("perf_event_open", 298),
    other("pidfd_open", 434),
    other("io_uring_setup", 425),
    other("bpf", 321),
    other("fsopen", 430),
    other("fsmount", 432),
    other("fspick", 433),
    other("open_tree", 428),
    other("mq_open", 240),
    other("landlock_create_ruleset", 444),
    call("pidfd_getfd", 438, Does::Nameless),
    call("io_submit", 209, Does::Beyond),
    call("io_uring_enter", 426, Does::Beyond),
];

/// Calls that have nothing to do with files, or change nothing that is told here.
static ELSEWHERE: &str = "poll mprotect brk rt_sigaction rt_sigprocmask rt_sigreturn select sched_yield mremap mincore \
    madvise shmget shmat shmctl pause nanosleep getitimer alarm setitimer getpid connect sendto recvfrom sendmsg recvmsg \
    shutdown bind listen getsockname getpeername setsockopt getsockopt wait4 kill uname semget semop semctl shmdt msgget \
    msgsnd msgrcv msgctl flock getcwd umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid \
    setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid \
    setresgid getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo \
    rt_sigsuspend sigaltstack uselib personality ustat sysfs getpriority setpriority sched_setparam sched_getparam \
    sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock \
    mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit acct settimeofday mount \
    umount umount2 swapon swapoff reboot sethostname setdomainname iopl ioperm init_module delete_module quotactl gettid \
    tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_cancel \
    get_thread_area lookup_dcookie epoll_ctl_old epoll_wait_old remap_file_pages set_tid_address restart_syscall semtimedop \
    timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres \
    clock_nanosleep epoll_wait epoll_ctl tgkill mbind set_mempolicy get_mempolicy mq_unlink mq_timedsend mq_timedreceive \
    mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_add_watch \
    inotify_rm_watch migrate_pages pselect6 ppoll set_robust_list get_robust_list tee vmsplice move_pages epoll_pwait \
    timerfd_settime timerfd_gettime rt_tgsigqueueinfo recvmmsg fanotify_mark prlimit64 name_to_handle_at clock_adjtime \
    sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr seccomp \
    getrandom kexec_file_load membarrier mlock2 pkey_mprotect pkey_alloc pkey_free io_pgetevents rseq pidfd_send_signal \
    io_uring_register move_mount fsconfig process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_add_rule \
    landlock_restrict_self process_mrelease futex_waitv futex_wake futex_wait futex_requeue set_mempolicy_home_node \
    cachestat map_shadow_stack statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal";

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It matters to files.
    Call(&'static Call),
    /// It does not.
    Elsewhere,
    /// Nobody has heard of it.
    No,
}

/// Looks a name up.
pub fn known(name: &str) -> Known {
    static NAMES: LazyLock<HashMap<&str, Known>> = LazyLock::new(|| {
        let elsewhere = ELSEWHERE.split_whitespace().map(|name| (name, Known::Elsewhere));
        elsewhere.chain(TABLE.iter().map(|call| (call.name, Known::Call(call)))).collect()
    });
    NAMES.get(name).copied().unwrap_or(Known::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_there_once() {
        let mut numbers: Vec<u16> = TABLE.iter().map(|call| call.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), TABLE.len());
        assert!(ELSEWHERE.split_whitespace().all(|name| known(name) == Known::Elsewhere));
        assert!(TABLE.iter().all(|call| known(call.name) == Known::Call(call)));
        assert_eq!(known("no_such_call"), Known::No);
    }
}
