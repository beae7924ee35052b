use super::*;
use crate::trace::counts::Counts;
use crate::trace::host::Past;
use crate::trace::{Op, Record};

/// Records and counts of what strace wrote, with `/w` as the directory.
fn taken(text: &str) -> (Vec<Record>, Counts) {
    let mut tracker = Tracker::new(Past { directory: "/w".into() }, None);
    read(text.as_bytes(), &mut tracker, |_| Ok(())).expect("memory can be read");
    let records = tracker.take().collect();
    (records, tracker.counts().clone())
}

/// A record as a line: time, thread, what, path, other path, file, offset, bytes asked for and done, error.
fn shown(record: &Record) -> String {
    let Record { at_ns, thread, op, path, path2, file, offset, len, done, error, .. } = record;
    format!("{at_ns} t{thread} {} {path} {path2} f{file} {offset}+{len}={done} e{error}", op.name())
}

#[track_caller]
fn expect(text: &str, expected: &[&str]) -> Counts {
    let (records, counts) = taken(text);
    let lines: Vec<String> = records.iter().map(shown).collect();
    assert_eq!(lines, expected);
    assert_eq!(counts.records, records.len() as u64);
    counts
}

#[test]
fn a_program_that_copies_a_file() {
    let text = r#"
29767 100.000000 execve("/usr/bin/cp", ["cp", "a", "b"], 0x7fff /* 39 vars */) = 0 <0.000913>
29767 100.000100 brk(NULL)       = 0x55830fa00000 <0.000035>
29767 100.000200 mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7eff49694000 <0.000051>
29767 100.000300 openat(AT_FDCWD, "/etc/ld.so.cache", O_RDONLY|O_CLOEXEC) = 3 <0.000039>
29767 100.000400 newfstatat(3, "", {st_mode=S_IFREG|0644, st_size=36475, ...}, AT_EMPTY_PATH) = 0 <0.000036>
29767 100.000500 mmap(NULL, 36475, PROT_READ, MAP_PRIVATE, 3, 0x1000) = 0x7eff4968b000 <0.000038>
29767 100.000600 close(3)        = 0 <0.000033>
29767 100.000700 openat(AT_FDCWD, "a", O_RDONLY) = 3 <0.000039>
29767 100.000800 openat(AT_FDCWD, "../w/./b", O_WRONLY|O_CREAT|O_EXCL, 0644) = 4 <0.000039>
29767 100.000900 ioctl(4, BTRFS_IOC_CLONE or FICLONE, 3) = -1 EOPNOTSUPP (Operation not supported) <0.000039>
29767 100.001000 copy_file_range(3, NULL, 4, NULL, 9223372035781033984, 0) = 71 <0.0001>
29767 100.001100 copy_file_range(3, NULL, 4, NULL, 9223372035781033984, 0) = 0 <0.0001>
29767 100.001200 read(3, "", 131072) = 0 <0.000039>
29767 100.001300 close(4)        = 0 <0.000033>
29767 100.001400 close(3)        = 0 <0.000033>
29767 100.001500 lseek(0, 0, SEEK_CUR) = -1 ESPIPE (Illegal seek) <0.00001>
29767 100.001600 write(1, "done\n", 5) = 5 <0.00001>
29767 100.001700 exit_group(0)   = ?
29767 100.001800 +++ exited with 0 +++
"#;
    let counts = expect(
        text,
        &[
            "300000 t1 open /etc/ld.so.cache  f1 0+0=0 e0",
            "400000 t1 stat /etc/ld.so.cache  f1 0+0=0 e0",
            "500000 t1 mmap /etc/ld.so.cache  f1 4096+36475=0 e0",
            "600000 t1 close /etc/ld.so.cache  f1 0+0=0 e0",
            "700000 t1 open /w/a  f2 0+0=0 e0",
            "800000 t1 open /w/b  f3 0+0=0 e0",
            "1000000 t1 copy /w/b /w/a f3 0+9223372035781033984=71 e0",
            "1100000 t1 copy /w/b /w/a f3 71+9223372035781033984=0 e0",
            "1200000 t1 read /w/a  f2 71+131072=0 e0",
            "1300000 t1 close /w/b  f3 0+0=0 e0",
            "1400000 t1 close /w/a  f2 0+0=0 e0",
        ],
    );
    assert_eq!(counts.of(Cause::OtherCall), 2, "brk and an anonymous mapping");
    assert_eq!(counts.of(Cause::NoFile), 1, "write to standard output");
    assert_eq!(counts.dropped, [].into());
    let (records, _) = taken(text);
    let made = &records[5];
    assert_eq!((made.flags, made.mode, made.latency_ns), (0o301, 0o644, 39_000));
    assert_eq!((records[2].flags, records[2].mode), (2, 1));
}

#[test]
fn unfinished_and_resumed_calls_signals_and_restarts() {
    let text = "\
1 5.000000 execve(\"/bin/a\", [\"a\"], 0x1 /* 3 vars */) = 0 <0.1>
1 5.000001 openat(AT_FDCWD, \"/d/in (x), \\\"y\\\"\", O_RDONLY <unfinished ...>
1 5.000002 <... openat resumed>) = 3 <0.000009>
1 5.000003 vfork( <unfinished ...>
2 5.000004 close(3) = 0 <0.000001>
2 5.000005 openat(AT_FDCWD, \"b\\303\\244\\n\", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 1 <0.000001>
2 5.000006 execve(\"/bin/b\", [\"b\"], 0x1 /* 3 vars */ <unfinished ...>
1 5.000007 <... vfork resumed>) = 2 <0.000030>
1 5.000008 read(3,  <unfinished ...>
2 5.000009 <... execve resumed>) = 0 <0.000006>
2 5.000010 write(1, \"x\"..., 100) = 100 <0.000001>
1 5.000011 <... read resumed>\"some\"..., 4096) = 4096 <0.000030>
1 5.000012 read(3, 0x7ffe, 4096) = ? ERESTARTSYS (To be restarted if SA_RESTART is set) <0.000100>
1 5.000013 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=2, si_uid=0} ---
2 5.000014 exit_group(0 <unfinished ...>
1 5.000015 read(3,  <unfinished ...>
2 5.000016 <... exit_group resumed>) = ?
2 5.000017 +++ exited with 0 +++
1 5.000018 <... read resumed>\"\"..., 4096) = 904 <0.000030>
1 5.000019 +++ killed by SIGKILL (core dumped) +++
";
    let counts = expect(
        text,
        &[
            "1000 t1 open /d/in (x), \"y\"  f1 0+0=0 e0",
            "5000 t2 open /w/b\u{e4}\n  f2 0+0=0 e0",
            "10000 t2 write /w/b\u{e4}\n  f2 0+100=100 e0",
            "8000 t1 read /d/in (x), \"y\"  f1 0+4096=4096 e0",
            "17000 t2 close /w/b\u{e4}\n  f2 0+0=0 e0",
            "15000 t1 read /d/in (x), \"y\"  f1 4096+4096=904 e0",
            "19000 t1 close /d/in (x), \"y\"  f1 0+0=0 e0",
        ],
    );
    assert_eq!(counts.dropped, [(Cause::Restarted, 1)].into());
}

#[test]
fn descriptors_of_threads_processes_and_programs() {
    // A thread shares them, a process copies them, another program loses those that close on exec.
    let text = "\
1 1.0 open(\"/a\", O_RDWR) = 3 <0.0>
1 1.1 open(\"/b\", O_RDWR|O_CLOEXEC) = 4 <0.0>
1 1.2 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD, child_tid=0x1, exit_signal=0} => {parent_tid=[2]}, 88) = 2 <0.0>
2 1.3 open(\"/c\", O_RDWR) = 5 <0.0>
1 1.4 write(5, \"\"..., 10) = 10 <0.0>
1 1.5 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7) = 3 <0.0>
3 1.6 write(5, \"\"..., 10) = 10 <0.0>
3 1.7 dup2(5, 4) = 4 <0.0>
3 1.8 fcntl(5, F_DUPFD_CLOEXEC, 10) = 10 <0.0>
3 1.9 close(5) = 0 <0.0>
3 2.0 execve(\"/bin/b\", [\"b\"], 0x1) = 0 <0.0>
3 2.1 write(4, \"\"..., 10) = 10 <0.0>
3 2.2 write(10, \"\"..., 10) = -1 EBADF (Bad file descriptor) <0.0>
1 2.3 close_range(4, 4294967295, 0) = 0 <0.0>
2 2.4 write(5, \"\"..., 10) = -1 EBADF (Bad file descriptor) <0.0>
2 2.5 chdir(\"/sub\") = 0 <0.0>
1 2.6 mkdir(\"x\", 0777) = 0 <0.0>
3 2.7 mkdir(\"x\", 0777) = 0 <0.0>
2 2.8 +++ exited with 0 +++
1 2.9 lseek(3, 100, SEEK_SET) = 100 <0.0>
3 3.0 read(3, \"\"..., 10) = 10 <0.0>
1 3.1 +++ exited with 0 +++
3 3.2 close(4) = 0 <0.0>
3 3.3 +++ exited with 0 +++
";
    let counts = expect(
        text,
        &[
            "0 t1 open /a  f1 0+0=0 e0",
            "100000000 t1 open /b  f2 0+0=0 e0",
            "300000000 t2 open /c  f3 0+0=0 e0",
            "400000000 t1 write /c  f3 0+10=10 e0",
            "600000000 t3 write /c  f3 10+10=10 e0",
            "1100000000 t3 write /c  f3 20+10=10 e0",
            // Thread 1 closes 4 and 5; file 3 stays with process 3 as descriptor 4.
            "1300000000 t1 close /b  f2 0+0=0 e0",
            "1600000000 t1 mkdir /sub/x  f0 0+0=0 e0",
            "1700000000 t3 mkdir /w/x  f0 0+0=0 e0",
            // The position is that of the open file, which both have.
            "2000000000 t3 read /a  f1 100+10=10 e0",
            "2200000000 t3 close /c  f3 0+0=0 e0",
            "2300000000 t3 close /a  f1 0+0=0 e0",
        ],
    );
    assert_eq!(counts.dropped, [].into());
}

#[test]
fn calls_with_two_paths_directories_and_structures() {
    let text = "\
1 1.0 openat(AT_FDCWD, \"/d\", O_RDONLY|O_DIRECTORY) = 3</d> <0.0>
1 1.0 openat2(3, \"f\", {flags=O_RDWR|O_APPEND|O_CREAT, mode=0640, resolve=RESOLVE_BENEATH}, 24) = 4 <0.0>
1 1.0 writev(4, [{iov_base=\"a,]\", iov_len=3}, {iov_base=\"}b\", iov_len=2}], 2) = 5 <0.0>
1 1.0 pwrite64(4, \"x\", 1, 100) = 1 <0.0>
1 1.0 preadv2(4, [{iov_base=\"\", iov_len=7}], 1, 3, RWF_NOWAIT) = -1 EAGAIN (Resource temporarily unavailable) <0.0>
1 1.0 renameat2(3, \"f\", AT_FDCWD, \"g\", RENAME_NOREPLACE) = 0 <0.0>
1 1.0 linkat(AT_FDCWD, \"g\", 3, \"h\", 0) = 0 <0.0>
1 1.0 symlinkat(\"../t\", 3, \"s\") = 0 <0.0>
1 1.0 unlinkat(3, \"sub\", AT_REMOVEDIR) = -1 ENOTEMPTY (Directory not empty) <0.0>
1 1.0 utimensat(4, NULL, NULL, 0) = 0 <0.0>
1 1.0 sendfile(4, 3, [10] => [20], 10) = 10 <0.0>
1 1.0 getdents64(3, 0x5581 /* 3 entries */, 32768) = 80 <0.0>
1 1.0 readlink(\"/d/s\", \"../t\", 4096) = 4 <0.0>
1 1.0 fallocate(4, FALLOC_FL_KEEP_SIZE, 4096, 1048576) = 0 <0.0>
1 1.0 pipe2([5, 6], O_CLOEXEC) = 0 <0.0>
1 1.0 read(5, \"\", 10) = 0 <0.0>
1 1.0 mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_SHARED, 4, 0x1000) = 0x7f0000000000 <0.0>
1 1.0 msync(0x7f0000001000, 4096, MS_SYNC) = 0 <0.0>
1 1.0 stat(\"/proc/self/maps\", {st_mode=S_IFREG|0444, st_size=0, ...}) = 0 <0.0>
1 1.0 openat(AT_FDCWD, \"/dev/null\", O_RDWR) = 7 <0.0>
1 1.0 write(7, \"\", 1) = 1 <0.0>
1 1.0 sync()  = 0 <0.0>
1 1.0 faccessat2(3, \"f\", R_OK|X_OK, AT_EACCESS) = -1 ENOENT (No such file or directory) <0.0>
1 1.0 fsetxattr(4, \"user.a\", \"b\", 1, XATTR_CREATE) = 0 <0.0>
";
    let counts = expect(
        text,
        &[
            "0 t1 open /d  f1 0+0=0 e0",
            "0 t1 open /d/f  f2 0+0=0 e0",
            "0 t1 write /d/f  f2 0+5=5 e0",
            // Appends, whatever it says.
            "0 t1 write /d/f  f2 5+1=1 e0",
            "0 t1 read /d/f  f2 3+7=0 e11",
            "0 t1 rename /d/f /w/g f0 0+0=0 e0",
            "0 t1 link /w/g /d/h f0 0+0=0 e0",
            "0 t1 symlink /d/s ../t f0 0+0=0 e0",
            "0 t1 rmdir /d/sub  f0 0+0=0 e39",
            "0 t1 utimes /d/f  f2 0+0=0 e0",
            "0 t1 copy /d/f /d f2 5+10=10 e0",
            "0 t1 getdents /d  f1 0+32768=80 e0",
            "0 t1 readlink /d/s  f0 0+4096=4 e0",
            "0 t1 fallocate /d/f  f2 4096+1048576=0 e0",
            "0 t1 mmap /d/f  f2 4096+8192=0 e0",
            "0 t1 msync /d/f  f2 8192+4096=0 e0",
            "0 t1 sync   f0 0+0=0 e0",
            "0 t1 access /d/f  f0 0+0=0 e2",
            "0 t1 setxattr /d/f  f2 0+1=0 e0",
        ],
    );
    assert_eq!(counts.left_out, [(Cause::NoFile, 1), (Cause::Virtual, 3)].into());
    assert_eq!(counts.remarks, [(Cause::GuessedOffset, 1)].into(), "the length of a file that may have been there");
    assert_eq!(counts.dropped, [].into());
}

#[test]
fn numbers_and_escapes_of_raw_output_mean_the_same() {
    let raw = "\
1 1.000000001 openat(-100, \"\\x2f\\x61\", 0x80241, 0666) = 3 <0.000000005>
1 1.000000002 fcntl(3, 0x406, 10) = 11 <0.0>
1 1.000000003 lseek(11, 7, 0) = 7 <0.0>
1 1.000000004 read(3, \"\"..., 5) = 5 <0.0>
1 1.000000005 clone(child_stack=0, flags=0x1200011, child_tidptr=0x7) = 2 <0.0>
";
    let (records, counts) = taken(raw);
    let lines: Vec<String> = records.iter().map(shown).collect();
    assert_eq!(lines, ["0 t1 open /a  f1 0+0=0 e0", "3 t1 read /a  f1 7+5=5 e0"]);
    assert_eq!((records[0].flags, records[0].mode, records[0].latency_ns), (0o2_001_101, 0o666, 5));
    assert_eq!(counts.dropped, [].into());
}

#[test]
fn what_makes_no_sense_is_counted_and_the_rest_taken() {
    let text = "\
nonsense
1 9.5 openat(AT_FDCWD, \"a\", O_RDONLY) = 3 <0.0>
1 9.4 read(3, \"\"..., 5) = 5 <0.0>
1 9.6 read(3, \"\"..., 5) = 5 <0.0>
1 9.7 read(77, \"\"..., 5) = 5 <0.0>
1 9.7 fresh_call(1, 2) = 0 <0.0>
1 9.7 openat(55, \"b\", O_RDONLY) = 4 <0.0>
1 9.7 read(4, \"\"..., 5) = 5 <0.0>
1 9.7 openat(AT_FDCWD, \"cut\"..., O_RDONLY) = -1 ENOENT (No such file or directory) <0.0>
1 9.7 io_uring_enter(5, 1, 0, 0, NULL, 8) = 1 <0.0>
1 9.7 <... write resumed>) = 4 <0.0>
2 9.7 read(0,  <unfinished ...>
3 9.7 futex(0x1, FUTEX_WAIT, 2, NULL <unfinished ...>
1 9.8 read(3, \"abc";
    let counts = expect(
        text,
        &[
            "0 t1 open /w/a  f1 0+0=0 e0",
            // The clock stood still for a while.
            "0 t1 read /w/a  f1 0+5=5 e0",
            "200000000 t1 read /w/a  f1 5+5=5 e0",
        ],
    );
    let expected = [
        (Cause::UnknownCall, 1),
        (Cause::MissingDescriptor, 3),
        (Cause::UnreadablePath, 1),
        (Cause::NotRepresented, 1),
        (Cause::Unfinished, 1),
        (Cause::TruncatedEnd, 1),
        (Cause::UnreadableLine, 2),
    ];
    assert_eq!(counts.dropped, expected.into());
    assert_eq!(counts.remarks, [(Cause::ClockStep, 1)].into());
}

#[test]
fn paths_that_strace_knew_are_used() {
    let text = "\
1 1.0 openat(AT_FDCWD</home/u>, \"a\", O_RDONLY) = 9</home/u/a> <0.0>
1 1.0 pread64(5</srv/x (1), \\74y\\76>, \"\"..., 5, 10) = 5 <0.0>
1 1.0 read(6<TCP:[127.0.0.1:1->127.0.0.1:2]>, \"\"..., 5) = 5 <0.0>
";
    let counts = expect(text, &["0 t1 open /home/u/a  f1 0+0=0 e0", "0 t1 read /srv/x (1), <y>  f2 10+5=5 e0"]);
    assert_eq!(counts.left_out, [(Cause::NoFile, 1)].into());
    assert_eq!(counts.dropped, [].into());
}

#[test]
fn children_of_two_parents_that_fork_at_once_wait_until_their_parents_are_known() {
    let text = "\
1 1.0 open(\"/a\", O_RDONLY) = 3 <0.0>
1 1.1 fork() = 2 <0.0>
2 1.2 dup2(3, 5) = 5 <0.0>
2 1.2 close(3) = 0 <0.0>
1 1.3 clone(child_stack=NULL, flags=SIGCHLD <unfinished ...>
2 1.4 clone(child_stack=NULL, flags=SIGCHLD <unfinished ...>
3 1.5 read(5, \"\"..., 1) = 1 <0.0>
4 1.6 read(3, \"\"..., 1) = 1 <0.0>
1 1.7 <... clone resumed>, child_tidptr=0x7) = 4 <0.0>
2 1.8 <... clone resumed>, child_tidptr=0x7) = 3 <0.0>
";
    let counts = expect(
        text,
        &["0 t1 open /a  f1 0+0=0 e0", "600000000 t3 read /a  f1 0+1=1 e0", "500000000 t4 read /a  f1 1+1=1 e0"],
    );
    assert_eq!(counts.dropped, [].into());
}

#[test]
fn a_thread_that_executes_another_program_becomes_the_first_one() {
    let text = "\
1 1.0 open(\"/a\", O_RDONLY|O_CLOEXEC) = 3 <0.0>
1 1.1 clone(child_stack=0x7, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2 <0.0>
1 1.2 futex(0x1, FUTEX_WAIT, 2, NULL <unfinished ...>
2 1.3 open(\"/b\", O_RDONLY) = 4 <0.0>
2 1.4 execve(\"/bin/b\", [\"b\"], 0x1 <unfinished ...>
1 1.5 +++ superseded by execve in pid 2 +++
1 1.6 <... execve resumed>) = 0 <0.0>
1 1.7 read(4, \"\"..., 1) = 1 <0.0>
1 1.8 +++ exited with 0 +++
";
    let counts = expect(
        text,
        &[
            "0 t1 open /a  f1 0+0=0 e0",
            "300000000 t2 open /b  f2 0+0=0 e0",
            "400000000 t2 close /a  f1 0+0=0 e0",
            "700000000 t2 read /b  f2 0+1=1 e0",
            "800000000 t2 close /b  f2 0+0=0 e0",
        ],
    );
    assert_eq!(counts.dropped, [].into());
}

#[test]
fn paths_that_are_longer_than_the_kernel_takes_are_counted() {
    let long = "b".repeat(3000);
    let text = format!(
        "1 1.0 open(\"/{long}{long}\", O_RDONLY) = 3 <0.0>\n1 1.0 read(3, \"\", 1) = 0 <0.0>\n\
         1 1.0 chdir(\"/{long}\") = 0 <0.0>\n1 1.0 stat(\"a\", {{}}) = 0 <0.0>\n1 1.0 stat(\"{long}\", {{}}) = 0 <0.0>\n\
         1 1.0 symlink(\"{long}{long}\", \"/s\") = 0 <0.0>\n"
    );
    let counts = expect(&text, &[&format!("0 t1 stat /{long}/a  f0 0+0=0 e0")]);
    assert_eq!(counts.dropped, [(Cause::MissingDescriptor, 1), (Cause::UnreadablePath, 3)].into());
}

#[test]
fn only_what_is_below_a_directory() {
    let text = "\
1 1.0 open(\"/a/x\", O_RDONLY) = 3 <0.0>
1 1.0 open(\"/ab\", O_RDONLY) = 4 <0.0>
1 1.0 rename(\"/ab\", \"/a/y\") = 0 <0.0>
1 1.0 symlink(\"/a/y\", \"/z\") = 0 <0.0>
";
    let mut tracker = Tracker::new(Past { directory: "/w".into() }, Some("/a/"));
    read(text.as_bytes(), &mut tracker, |_| Ok(())).expect("memory can be read");
    let ops: Vec<Op> = tracker.take().map(|record| record.op).collect();
    assert_eq!(ops, [Op::Open, Op::Rename]);
    assert_eq!(tracker.counts().left_out, [(Cause::Elsewhere, 2)].into());
}
