//! A pool that goes, or of which a snapshot is taken, while programs use its mount. Needs root and /dev/fuse.

use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A daemon that is up, if there can be one here.
fn daemon(name: &str) -> Option<Daemon> {
    if Daemon::is_skipped() {
        return None;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_ashlar"));
    let daemon = Daemon::new(program, Engine::Files, name).expect("a temporary directory");
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    Some(daemon)
}

/// What a command says.
fn said(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = daemon.command(arguments).output().expect("the program runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_was_written_to_open_files_is_in_a_snapshot_and_survives_the_end() {
    let Some(daemon) = daemon("in-use") else { return };
    let at = daemon.mount();
    let data = vec![7; 3_000_001];
    let mut open = File::create(at.join("open")).expect("made");
    // Nobody syncs or closes it, so the page cache alone has this.
    open.write_all(&data).expect("written");
    assert_eq!(said(&daemon, &["snapshot", "create", "main@now"]), "took snapshot main@now\n");
    let snapshot = at.with_file_name("now");
    said(&daemon, &["snapshot", "mount", "main@now", snapshot.to_str().expect("text")]);
    assert!(fs::read(snapshot.join("open")).expect("readable") == data, "the snapshot lacks what was written");

    open.write_all(b"and more").expect("written");
    let said = said(&daemon, &["down"]);
    assert!(said.starts_with("everything is written; the pool is down\n"), "{said}");
    assert!(said.contains(&format!("{} was in use", at.display())), "{said}");
    assert!(said.contains("fsync gives an error") && !said.contains("may be lost"), "{said}");
    assert!(open.write_all(b"too late").and_then(|()| open.sync_all()).is_err(), "nobody takes it any more");
    drop(open);
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    let read = fs::read(at.join("open")).expect("readable");
    assert!(read[..data.len()] == data && &read[data.len()..] == b"and more", "what was written is lost");
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn several_may_clear_what_a_server_left() {
    let Some(daemon) = daemon("cleared-twice") else { return };
    daemon.kill().unwrap_or_else(|error| panic!("{error}"));
    let downs: Vec<_> = (0..4).map(|_| daemon.command(&["down"]).stdout(Stdio::piped()).spawn()).collect();
    for down in downs {
        let output = down.and_then(|down| down.wait_with_output()).expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }
    assert!(!ashlar_fuse::is_mounted(&daemon.mount()));
}

/// Where [`those_who_seek`] do so.
const PLACE: &str = "ASHLAR_TEST_SEEKS_IN";
/// What they say when they are at it.
const AT_IT: &str = "they seek";

/// A seek has pages written back, which the server waits for in the kernel: killed then, it is not gone until somebody clears
/// its mount. Those who seek are a process of their own: a command that is started by one with open files there closes them
/// before it begins, and closing waits for the server too.
#[test]
fn a_server_that_is_killed_while_it_waits_for_its_own_mount_is_cleared() {
    let Some(daemon) = daemon("killed-waiting") else { return };
    let mut seekers = Command::new(std::env::current_exe().expect("this program"))
        .args(["those_who_seek", "--exact", "--ignored", "--nocapture"])
        .env(PLACE, daemon.mount())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(seekers.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.ends_with(AT_IT)), "they ended");
    daemon.kill().unwrap_or_else(|error| panic!("{error}"));
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
    // The end of the mount ends them.
    lines.for_each(drop);
    assert!(seekers.wait().expect("a child").success());
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    daemon.check().unwrap_or_else(|error| panic!("{error}"));
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
#[ignore = "a part of the test above, which runs it"]
fn those_who_seek() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let seek_in = |name: String, seeks: &AtomicU64| -> io::Result<()> {
        let path = Path::new(&place).join(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        for round in 0.. {
            file.write_all_at(&[1; 100], round % 1000 * 8192)?;
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0))?;
            seeks.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let seeks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (seek_in, seeks) = (&seek_in, &seeks);
            scope.spawn(move || seek_in(number.to_string(), seeks).expect_err("only its end ends it"));
        }
        let began = Instant::now();
        while seeks.load(Ordering::Relaxed) < 200 && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("{AT_IT}");
    });
}
