//! Power cuts under ext4: clean when flushes are honoured, loss when they are dropped. Needs root, /dev/fuse, loop devices and
//! mkfs.ext4.

use ashlar_prove::crash::Kind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn explore(save: &Path, more: &[&str]) -> Output {
    let scripts = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/crash"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
    command.args(["prove", "crash", "--json", "--fs", "ext4", "--size", "64MiB", "--seed", "1", "--images", "12"]);
    command.args(["--failures", "1", "--save"]).arg(save);
    command.arg("--workload").arg(scripts.join("fsync-work.sh"));
    command.arg("--check").arg(scripts.join("fsync-check.sh")).args(more);
    command.output().expect("the program runs")
}

#[test]
fn acknowledged_data_are_lost_only_when_flushes_are_dropped() {
    if let Some(obstacle) = Kind::Ext4.obstacle() {
        println!("SKIPPED: {obstacle}");
        return;
    }
    let save = std::env::temp_dir().join(format!("ashlar-crash-test-{}", std::process::id()));
    std::fs::create_dir_all(&save).expect("a directory");
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();

    let honoured = explore(&save, &[]);
    assert_eq!(honoured.status.code(), Some(0), "seed 1: {}", said(&honoured));
    let dropped = explore(&save, &["--fault", "drop-flush"]);
    assert_eq!(dropped.status.code(), Some(1), "seed 1: {}", said(&dropped));
    assert!(said(&dropped).contains("was acknowledged and is gone or damaged"), "{}", said(&dropped));

    let mut replay = Command::new(env!("CARGO_BIN_EXE_ashlar"));
    replay.args(["prove", "crash", "--json", "--replay"]).arg(save.join("crash-ext4-seed1-1.ashlar"));
    let replayed = replay.output().expect("the program runs");
    assert_eq!(replayed.status.code(), Some(1), "the kept image fails again: {}", said(&replayed));
    std::fs::remove_dir_all(&save).expect("it is ours");
}
