//! Requests that wait, damage, servers that die, and programs on the mount.

use super::*;

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
            .args(["--exact", "life::serve_until_killed", "--ignored", "--nocapture"])
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
            let _ = unmount(&self.place.0, Users::Fail);
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
        unmount(&server.place.0, Users::Fail).unwrap();
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
        unmount(&server.place.0, Users::Fail).unwrap();
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
            fs::write(directory.join(n.to_string()), incompressible(n as u64, n * n)).unwrap();
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
