//! A daemon that may have no more files open, and none that is longer. Needs root and /dev/fuse.

use ashlar_fuzz::incompressible;
use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use rustix::fs::Advice;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

fn up(name: &str) -> (Daemon, Pid) {
    let daemon = Daemon::new(Path::new(env!("CARGO_BIN_EXE_ashlar")), Engine::Files, name).expect("a directory");
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    let status = daemon.command(&["status", "--json"]).output().expect("it runs");
    let status: Value = serde_json::from_slice(&status.stdout).expect("a document");
    let pid = status["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("a process");
    (daemon, pid)
}

/// Ticks of a processor that a process ran.
fn ran(pid: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).expect("it is there");
    // Behind the name, which may be anything in brackets: the state is the first field.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn who_has_no_descriptors_left_waits_for_some() {
    if Daemon::is_skipped() {
        return;
    }
    let (daemon, pid) = up("descriptors");
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(3), ..before };
    prlimit(Some(pid), Resource::Nofile, few).expect("fewer are allowed");
    let mut asking = daemon.command(&["status", "--json"]).stdout(Stdio::piped()).spawn().expect("it runs");
    let ticks = ran(pid);
    std::thread::sleep(Duration::from_secs(2));
    let ticks = ran(pid) - ticks;
    // Files that are served need none.
    fs::write(daemon.mount().join("a file"), b"x").expect("it serves");
    prlimit(Some(pid), Resource::Nofile, before).expect("as many as before");
    assert!(asking.wait().expect("it ends").success(), "it is answered once there are some");
    assert!(ticks < 50, "it ran for {ticks} of 200 ticks, and nobody could be taken");
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_limit_of_lengths_is_an_error() {
    const LEN: usize = 4 << 20;
    if Daemon::is_skipped() {
        return;
    }
    let (daemon, pid) = up("lengths");
    let (kept, lost) = (daemon.mount().join("kept"), daemon.mount().join("lost"));
    let store = |path: &Path| fs::write(path, incompressible(1, LEN)).and_then(|()| File::open(path)?.sync_all());
    store(&kept).expect("there is room");
    prlimit(Some(pid), Resource::Fsize, Rlimit { current: Some(4096), ..getrlimit(Resource::Fsize) }).expect("a limit");
    store(&lost).expect_err("its device may not be so long");
    // It is there still, and gives what it has.
    let file = File::open(&kept).expect("it is there");
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("forgotten");
    assert!(fs::read(&kept).expect("it is read") == incompressible(1, LEN));
    let said = daemon.down().expect_err("something is lost");
    assert!(said.contains("File too large"), "{said}");
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    assert!(fs::read(&kept).expect("it is read") == incompressible(1, LEN));
    daemon.check().unwrap_or_else(|error| panic!("{error}"));
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
}
