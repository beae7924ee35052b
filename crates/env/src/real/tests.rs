use super::ring::{AlignedBuf, Spare};
use super::*;
use crate::Readiness;
use bytes::Bytes;
use std::os::fd::OwnedFd;

#[test]
fn tasks_timers_and_files_work_together() {
    for real in [Real::start, Real::without_io_uring] {
        use_a_file(&real(2).expect("it starts"), |ops| ops);
        use_a_file(&real(2).expect("it starts"), |ops| ops.at_once());
    }
}

/// An empty file that is gone with its descriptor.
fn scratch(name: &str) -> Arc<OwnedFd> {
    let path = std::env::temp_dir().join(format!("ashlar-env-{name}-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.expect("a temporary file");
    std::fs::remove_file(&path).expect("just created");
    Arc::new(file.into())
}

fn use_a_file(real: &Real, choose: fn(&dyn FileOps) -> &dyn FileOps) {
    let env = real.env();
    let file = scratch("together");
    let sum = real.block_on(async move {
        let tasks: Vec<_> = (0..64u64)
            .map(|n| {
                let (env2, file) = (env.clone(), file.clone());
                env.spawn(async move {
                    let ops = choose(env2.file_ops().expect("the real runtime has files"));
                    let pieces = vec![Bytes::from(vec![n as u8; 4096]), Bytes::from(vec![n as u8 + 1; 4096])];
                    ops.write_at(&file, n * 8192, pieces).await.expect("write");
                    ops.sync(&file).await.expect("sync");
                    env2.sleep(Duration::from_micros(50 * (n % 7))).await;
                    let back = ops.read_at(&file, n * 8192, 8192).await.expect("read");
                    assert_eq!((back[0], back[4096], back.len()), (n as u8, n as u8 + 1, 8192));
                    env2.unblock(move || n).await
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await;
        }
        sum
    });
    assert_eq!(sum, 63 * 64 / 2);
}

/// No io_uring for this thread and those that it starts, from now on.
#[allow(unsafe_code)]
fn forbid_io_uring(errno: i32) {
    let answer = libc::SECCOMP_RET_ERRNO | errno as u32;
    let does =
        |code: u32, operand, jump_if_not| libc::sock_filter { code: code as u16, jt: 0, jf: jump_if_not, k: operand };
    let mut program = [
        does(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0), // the call's number
        does(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 1),
        does(libc::BPF_RET | libc::BPF_K, answer, 0),
        does(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the pointers are to a program that outlives the calls.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(done, "{}", io::Error::last_os_error());
}

/// As in a container: Docker says EPERM, Podman ENOSYS.
#[test]
fn where_io_uring_is_forbidden_threads_make_the_calls() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let thread = std::thread::spawn(move || {
            forbid_io_uring(errno);
            let real = Real::start(2).expect("it does without");
            assert!(!real.has_io_uring());
            use_a_file(&real, |ops| ops);
        });
        thread.join().expect("all is well");
    }
}

/// More operations than threads, of all kinds, and what goes wrong.
#[test]
fn threads_do_all_that_rings_do() {
    for start in [Real::start, Real::without_io_uring] {
        let real = start(1).expect("it starts");
        let (env, file) = (real.env(), scratch("kinds"));
        real.block_on(async move {
            let ops = || env.file_ops().expect("the real runtime has files");
            let many = |n: u64| ops().write_at(&file, n << 12, vec![Bytes::from(vec![n as u8; 4096])]);
            let tasks: Vec<_> = (0..200).map(|n| env.spawn_here(many(n))).collect();
            for written in tasks {
                written.await.expect("write");
            }
            ops()
                .fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 16 << 12)
                .await
                .expect("a hole");
            assert_eq!(ops().data_at(&file, 0).expect("it is asked"), (false, 16 << 12));
            assert_eq!(ops().data_at(&file, 20 << 12).expect("it is asked"), (true, 200 << 12));
            let read = |n: u64| ops().read_at(&file, n << 12, 4096);
            let reads: Vec<_> = (0..201).map(|n| (n, env.spawn_here(read(n)))).collect();
            for (n, read) in reads {
                let read = read.await.expect("read");
                let len = if n < 200 { 4096 } else { 0 };
                assert!(read == vec![if n < 16 { 0 } else { n as u8 }; len], "block {n}");
            }
            let closed = Arc::new(std::fs::File::open("/dev/null").expect("it is there").into());
            let error = ops().write_at(&closed, 0, vec![Bytes::from_static(b"x")]).await.expect_err("not for writing");
            assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        });
    }
}

#[test]
fn a_descriptor_is_ready_for_each_who_waits() {
    for start in [Real::start, Real::without_io_uring] {
        let real = start(1).expect("it starts");
        let env = real.env();
        real.block_on(async move {
            let (here, mut there) = std::os::unix::net::UnixStream::pair().expect("sockets");
            let here = Arc::new(OwnedFd::from(here));
            let ready = |what| {
                let (env2, here) = (env.clone(), here.clone());
                env.spawn(async move { env2.file_ops().expect("files").ready(&here, what).await })
            };
            let waiting = [ready(Readiness::Readable), ready(Readiness::Readable)];
            ready(Readiness::Writable).await.expect("there is room");
            env.sleep(Duration::from_millis(5)).await;
            assert!(waiting.iter().all(|one| !one.is_done()), "nothing was written");
            let mut early = Box::pin(env.file_ops().expect("files").ready(&here, Readiness::Readable));
            assert!(env.within(Duration::from_millis(5), &mut early).await.is_none());
            drop(early);
            // From another thread, while the worker has nothing to do.
            let late = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                io::Write::write_all(&mut there, b"x").expect("it is open");
                there
            });
            for one in waiting {
                one.await.expect("something was written");
            }
            drop(late.join().expect("it ends"));
            ready(Readiness::Readable).await.expect("nobody is there any more");
        });
    }
}

#[test]
fn a_task_begun_here_runs_here() {
    let real = Real::start(3).expect("io_uring is available");
    let env = real.env();
    let thread = || std::thread::current().id();
    let alike = real.block_on({
        let env = env.clone();
        async move {
            let here = thread();
            let mut alike = true;
            for _ in 0..8 {
                alike &= env.spawn_here(async move { thread() }).await == here;
            }
            alike
        }
    });
    assert!(alike);
    // From elsewhere it runs on any worker.
    let task = env.spawn_here(async move { thread() });
    assert_ne!(real.block_on(task), thread());
}

/// Pieces of all lengths, more of them than one call takes, and longer ones than a step.
#[test]
fn calls_write_and_read_in_steps() {
    let real = Real::start(1).expect("io_uring is available");
    let env = real.env();
    let file = scratch("steps");
    real.block_on(async move {
        let ops = env.file_ops().expect("the real runtime has files").at_once();
        let lens = (0..1500).map(|n| n % 7).chain([900_001, 3, 256 << 10, 1]);
        let pieces: Vec<Bytes> =
            lens.enumerate().map(|(n, len)| (0..len).map(|at| (at * 31 + n) as u8).collect()).collect();
        let whole = pieces.concat();
        ops.write_at(&file, 5, pieces).await.expect("write");
        assert!(ops.read_at(&file, 5, whole.len()).await.expect("read") == whole);
        let behind = ops.read_at(&file, 5 + whole.len() as u64 - 10, 100).await.expect("read");
        assert!(behind == whole[whole.len() - 10..], "short only at the end");
    });
}

#[test]
fn a_panic_reaches_whoever_waits() {
    let real = Real::start(1).expect("io_uring is available");
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| real.block_on(async { panic!("planted") })));
    assert!(caught.is_err());
    assert_eq!(real.block_on(async { 7 }), 7);
}

#[test]
fn spare_buffers_of_sizes_that_nobody_wants_make_way() {
    let mut spare = Spare::new();
    for (len, count) in [(64 << 10, 1000), (1 << 20, 56)] {
        for _ in 0..count {
            spare.keep(AlignedBuf::zeroed(len)).into_iter().for_each(std::mem::forget);
        }
    }
    let large = std::iter::from_fn(|| spare.take(900 << 10)).count();
    assert_eq!(large, 56, "all of those that were wanted last");
    assert!(spare.take(1 << 20).is_none() && spare.take(4 << 10).is_none(), "too small, and far too large");
    let small = std::iter::from_fn(|| spare.take(48 << 10)).count();
    assert_eq!(small, (64 - 56) * 16, "what there was room for besides");
}

#[test]
fn buffers_are_used_again_with_their_own_length() {
    let len = 300_001;
    let mut first = AlignedBuf::any(len);
    assert!(first.as_ref().len() == len && first.as_mut_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
    first.as_mut().fill(7);
    drop(first);
    // Whether it is the same memory is up to the other tests; what must hold is the length.
    for len in [len - 100, len, 64 << 10, 2 << 20, (2 << 20) + 1, 1, 0] {
        let mut again = AlignedBuf::any(len);
        assert_eq!(again.as_ref().len(), len);
        again.as_mut().fill(9);
        assert!(again.freeze(len).iter().all(|byte| *byte == 9));
        assert!(AlignedBuf::zeroed(len).as_ref().iter().all(|byte| *byte == 0));
        let copied = AlignedBuf::copy_of(&vec![5; len]);
        assert!(copied.as_ref().len() == len && copied.as_ref().iter().all(|byte| *byte == 5));
    }
}

/// Tells a test that it is a process of its own, and what to do there.
const PART: &str = "ASHLAR_TEST_PART";

/// Runs a test again in another process. `None`: this is that process.
fn alone(test: &str, part: &str) -> Option<std::process::Command> {
    if std::env::var(PART).is_ok_and(|own| own == part) {
        return None;
    }
    // Its own path may lead through directories that are closed to others.
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args([&format!("real::tests::{test}"), "--exact"]).env(PART, part);
    Some(command)
}

/// Root is not limited, so there it is nobody's process.
#[test]
fn what_linux_has_no_thread_for_is_done_all_the_same() {
    use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    if let Some(mut command) = alone("what_linux_has_no_thread_for_is_done_all_the_same", "few") {
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY).current_dir("/");
        }
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let reals = [Real::start(1), Real::without_io_uring(1)].map(|real| real.expect("it starts"));
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), ..getrlimit(Resource::Nproc) }).expect("less is allowed");
    std::thread::Builder::new().spawn(|| {}).expect_err("there are no threads");
    for real in &reals {
        let (env, file) = (real.env(), scratch("few"));
        real.block_on(async move {
            let ops = env.file_ops().expect("the real runtime has files");
            ops.fallocate(&file, 0, 0, 1 << 20).await.expect("room");
            ops.write_at(&file, 7, vec![Bytes::from_static(b"some"), Bytes::from_static(b"thing")])
                .await
                .expect("write");
            ops.sync(&file).await.expect("sync");
            assert_eq!(ops.read_at(&file, 7, 9).await.expect("read"), "something");
        });
    }
}

/// Otherwise programs that wait for what a task was to do would wait for ever.
#[test]
fn a_panic_is_met_by_who_drops_it_or_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    type Plant = fn(&Env);
    let plants: [(&str, Plant); 3] = [
        ("spawned", |env| drop(env.spawn(async { panic!("planted") }))),
        ("aside", |env| drop(env.spawn_aside(async { panic!("planted") }))),
        ("unblocked", |env| drop(env.unblock(|| panic!("planted")))),
    ];
    let parts = std::env::var(PART).ok();
    for (part, plant) in plants.iter().filter(|(part, _)| parts.as_deref().is_none_or(|own| own == *part)) {
        match alone("a_panic_is_met_by_who_drops_it_or_ends_the_process", part) {
            // By who dropped it, if it had failed before; else by the worker.
            Some(mut command) => {
                let status = command.output().expect("it runs").status;
                assert!(status.code() == Some(101) || status.signal() == Some(libc::SIGABRT), "{part}: {status}");
            }
            None => {
                let real = Real::start(2).expect("io_uring is available");
                plant(&real.env());
                std::thread::sleep(Duration::from_secs(20));
                return;
            }
        }
    }
}
