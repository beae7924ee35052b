//! Commands that come at once, or just when a server ends. Needs root and /dev/fuse.

use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};

const ROUNDS: usize = 5;
const CLIENTS: usize = 4;

/// A program that another test starts has, until it runs, the files that are open here, and nobody could unmount theirs.
static ALONE: Mutex<()> = Mutex::new(());

/// A pool that is up; `None`: it cannot be here.
fn house(name: &str) -> Option<(MutexGuard<'static, ()>, Daemon)> {
    if Daemon::is_skipped() {
        return None;
    }
    let alone = ALONE.lock().unwrap_or_else(|failed| failed.into_inner());
    let daemon = Daemon::new(Path::new(env!("CARGO_BIN_EXE_ashlar")), Engine::Files, name).expect("a directory");
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    Some((alone, daemon))
}

fn place(daemon: &Daemon, name: &str) -> PathBuf {
    daemon.mount().with_file_name(name)
}

/// Runs all commands at once; how they ended.
fn at_once(commands: impl IntoIterator<Item = Command>) -> Vec<Output> {
    let spawn = |mut command: Command| {
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("it runs")
    };
    let children: Vec<_> = commands.into_iter().map(spawn).collect();
    children.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect()
}

fn succeeded(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| output.status.success()).count()
}

fn unmount(at: &Path) {
    let output = Command::new("umount").arg(at).output().expect("umount runs");
    assert!(output.status.success(), "{output:?}");
}

/// Mounted at two places, a file system would be changed by two engines that know nothing of each other.
#[test]
fn a_file_system_is_mounted_at_one_place() {
    let Some((_alone, daemon)) = house("one-place") else { return };
    for round in 0..ROUNDS {
        // One makes it, and others would find what is being made.
        let name = format!("fs-{round}");
        let create = |_| daemon.command(&["fs", "create", &name]);
        let made = at_once((0..CLIENTS).map(create));
        assert_eq!(succeeded(&made), 1, "{made:?}");
        let places: Vec<PathBuf> = (0..CLIENTS).map(|client| place(&daemon, &format!("{name}-{client}"))).collect();
        let mount = |at: &PathBuf| daemon.command(&["mount", &name, at.to_str().expect("text")]);
        let mounted = at_once(places.iter().map(mount));
        assert_eq!(succeeded(&mounted), 1, "{mounted:?}");
        let there: Vec<&PathBuf> = places.iter().filter(|at| ashlar_fuse::is_mounted(at)).collect();
        assert_eq!(there.len(), 1, "{there:?}");
        // Who unmounts it can mount it elsewhere at once.
        unmount(there[0]);
        assert_eq!(succeeded(&at_once([mount(&places[0])])), 1);
    }
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
    daemon.check().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn all_devices_that_are_added_belong_to_the_pool() {
    let Some((_alone, daemon)) = house("devices") else { return };
    let device = |client| format!("{},size=256MiB", place(&daemon, &format!("more-{client}.img")).display());
    let grown = at_once((0..CLIENTS).map(|client| daemon.command(&["pool", "grow", "--device", &device(client)])));
    assert_eq!(succeeded(&grown), CLIENTS, "{grown:?}");
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
    // Without one of them it would not open.
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn checks_wait_for_each_other() {
    let Some((_alone, daemon)) = house("checks") else { return };
    std::fs::write(daemon.mount().join("a file"), vec![7; 1 << 20]).expect("there is room");
    for _ in 0..ROUNDS {
        let checked = at_once((0..CLIENTS).map(|_| daemon.command(&["check"])));
        assert_eq!(succeeded(&checked), CLIENTS, "{checked:?}");
    }
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
}

/// Without a server each opens the pool itself, one after the other; a server that starts waits, too.
#[test]
fn who_does_without_a_server_waits_for_the_others() {
    let Some((_alone, daemon)) = house("turns") else { return };
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
    for round in 0..ROUNDS {
        let (snapshot, bucket) = (format!("main@{round}"), format!("bucket-{round}"));
        let mount = daemon.mount();
        let commands = [
            vec!["status"],
            vec!["snapshot", "create", &snapshot],
            vec!["check"],
            vec!["fs", "list"],
            vec!["bucket", "create", &bucket, "--engine", "pool"],
            vec!["up", "--detach", "--mount", mount.to_str().expect("text")],
        ];
        let last = if round % 2 == 0 { commands.len() } else { commands.len() - 1 };
        let mut done = at_once(commands[..last].iter().map(|command| daemon.command(command)));
        // Buckets are not made while a server has the pool.
        let bucket = done.remove(4);
        assert!(bucket.status.success() || round % 2 == 0, "round {round}: {bucket:?}");
        assert_eq!(succeeded(&done), done.len(), "round {round}: {done:?}");
        daemon.down().unwrap_or_else(|error| panic!("{error}"));
    }
}

/// With its last mount a server ends. Who comes then waits until it has, and starts another one.
#[test]
fn what_was_just_unmounted_is_mounted_again() {
    let Some((_alone, daemon)) = house("again") else { return };
    let (file, text) = (daemon.mount().join("a file"), daemon.mount().to_str().expect("text").to_string());
    let noted = place(&daemon, "pool").join("mounts");
    for round in 0..4 * ROUNDS {
        std::fs::write(&file, round.to_string()).expect("it is mounted");
        // What a server that ended had noted is gone, and not what this one did: `down` clears that if it is killed.
        assert_eq!(std::fs::read_to_string(&noted).expect("a note"), format!("{text}\n"), "round {round}");
        unmount(&daemon.mount());
        // So that it is asked at all moments of its end.
        std::thread::sleep(std::time::Duration::from_millis(round as u64 * 2));
        match round % 4 {
            0 => {
                let again = at_once([daemon.command(&["mount", "main", &text])]);
                assert_eq!(succeeded(&again), 1, "round {round}: {again:?}");
            }
            1 => {
                let again = at_once((0..CLIENTS).map(|_| daemon.command(&["mount", "main", &text])));
                assert_eq!(succeeded(&again), 1, "round {round}: {again:?}");
            }
            2 => {
                let asked = at_once([daemon.command(&["snapshot", "list"])]);
                assert_eq!(succeeded(&asked), 1, "round {round}: {asked:?}");
                daemon.up().unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
            _ => daemon.up().unwrap_or_else(|error| panic!("round {round}: {error}")),
        }
        assert_eq!(std::fs::read_to_string(&file).expect("it is mounted"), round.to_string());
    }
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
    daemon.check().unwrap_or_else(|error| panic!("{error}"));
}
