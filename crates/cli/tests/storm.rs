//! Clients that all do what they like with one pool at once, and a server that is killed now and then: every command ends with an
//! answer, and the pool is in order. Needs root and /dev/fuse.

use ashlar_fuzz::config;
use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::Config;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const CLIENTS: usize = 4;
const ACTIONS: usize = 30;
/// A command that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
enum Action {
    /// A command line, in which `AT` is a place to mount at.
    Ask(Vec<String>),
    Unmount {
        lazily: bool,
    },
    Write {
        name: u8,
        len: usize,
    },
    Kill,
}

fn action() -> impl Strategy<Value = (Action, u8)> {
    let fs = || prop_oneof!["[abc]"];
    let snapshot = || "[abc]@[xyz]".prop_map(String::from);
    let ask = |words: &[&str]| Action::Ask(words.iter().map(|word| (*word).to_string()).collect());
    let fixed = prop_oneof![
        4 => Just(ask(&["check"])),
        1 => Just(ask(&["check", "--repair"])),
        1 => Just(ask(&["pool", "trim"])),
        2 => Just(ask(&["status"])),
        1 => Just(ask(&["fs", "list"])),
        1 => Just(ask(&["snapshot", "list"])),
        1 => Just(ask(&["down"])),
    ];
    let action = prop_oneof![
        5 => fixed,
        2 => (fs(), prop_oneof!["files", "betr"]).prop_map(move |(fs, engine)| ask(&["fs", "create", &fs, "--engine", &engine])),
        1 => fs().prop_map(move |fs| ask(&["fs", "destroy", &fs])),
        1 => (fs(), fs()).prop_map(move |(from, to)| ask(&["fs", "rename", &from, &to])),
        1 => fs().prop_map(move |fs| ask(&["status", &fs])),
        2 => snapshot().prop_map(move |name| ask(&["snapshot", "create", &name])),
        1 => snapshot().prop_map(move |name| ask(&["snapshot", "destroy", &name])),
        1 => (snapshot(), fs()).prop_map(move |(name, to)| ask(&["snapshot", "clone", &name, &to])),
        4 => prop_oneof![3 => fs(), 1 => snapshot()].prop_map(move |name| ask(&["mount", &name, "AT", "--memory", "64MiB"])),
        1 => fs().prop_map(move |fs| ask(&["up", "--detach", "--fs", &fs, "--mount", "AT", "--memory", "64MiB"])),
        3 => prop::bool::weighted(0.1).prop_map(|lazily| Action::Unmount { lazily }),
        3 => (0..20_u8, 0..200_000_usize).prop_map(|(name, len)| Action::Write { name, len }),
        1 => Just(Action::Kill),
    ];
    (action, 0..4_u8)
}

/// Runs a command to its end, which must come.
fn run(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let began = Instant::now();
    // What it says fits into its pipes.
    while child.try_wait().expect("it is ours").is_none() {
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{command:?} hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_known = matches!(output.status.code(), Some(0 | 1 | 32));
    assert!(is_known && !said.contains("panicked"), "{command:?}: {output:?}");
    let says_why = said.contains(": ") || output.stdout.starts_with(b"{\n  \"error\"");
    assert!(output.status.success() || says_why, "{command:?} does not say why: {output:?}");
    output
}

fn act(daemon: &Daemon, action: &Action, at: &Path) {
    match action {
        Action::Ask(words) => {
            let words: Vec<&str> =
                words.iter().map(|word| if word == "AT" { at.to_str().expect("text") } else { word }).collect();
            run(daemon.command(&words));
        }
        Action::Unmount { lazily } => {
            let mut command = Command::new("umount");
            command.args(lazily.then_some("-l")).arg(at);
            run(command);
        }
        // What is not mounted, or a snapshot, or a server that was killed, takes nothing.
        Action::Write { name, len } => {
            if ashlar_fuse::is_mounted(at) {
                let file = File::create(at.join(name.to_string()));
                let _ = file.and_then(|mut file| file.write_all(&vec![*name; *len]));
            }
        }
        Action::Kill => {
            let status = run(daemon.command(&["status", "--json"]));
            let status: Value = serde_json::from_slice(&status.stdout).expect("a document");
            let pid = status["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
            pid.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL)); // it may have ended meanwhile
        }
    }
}

proptest! {
    // Another run of the same is never quite the same, so that looking for a smaller one would lead nowhere.
    #![proptest_config(Config { max_shrink_iters: 0, ..config(3) })]
    #[test]
    fn commands_end_and_leave_a_pool_in_order(clients in vec(vec(action(), ACTIONS), CLIENTS)) {
        if Daemon::is_skipped() {
            return Ok(());
        }
        let daemon = Daemon::new(Path::new(env!("CARGO_BIN_EXE_ashlar")), Engine::Files, "storm").expect("a directory");
        daemon.up().unwrap_or_else(|error| panic!("{error}"));
        let places: Vec<PathBuf> = (0..4).map(|place| daemon.mount().with_file_name(format!("at-{place}"))).collect();
        std::thread::scope(|scope| {
            for actions in &clients {
                scope.spawn(|| actions.iter().for_each(|(action, at)| act(&daemon, action, &places[usize::from(*at)])));
            }
        });
        daemon.down().unwrap_or_else(|error| panic!("{error}"));
        // What a killed server left is cleared by whoever asks first; the rest is nobody's any more.
        let left: Vec<_> = places.iter().filter(|at| ashlar_fuse::is_mounted(at)).collect();
        prop_assert!(left.is_empty(), "{left:?}");
        daemon.check().unwrap_or_else(|error| panic!("{error}"));
    }
}
