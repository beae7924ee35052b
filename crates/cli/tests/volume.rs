//! Volumes, by the program: made, served, checked, damaged, and refused where they must be.

mod served;

use served::{Scratch, Served, refused};
use std::os::unix::fs::FileExt;
use std::process::{Command, Output};

/// The program, in a directory of the test's own.
fn ashlar(scratch: &Scratch, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
    command.current_dir(scratch.at("")).args(["--pool", "pool"]).args(arguments.split_whitespace());
    command.output().expect("the program runs")
}

/// Standard output of a command that must succeed.
fn ok(scratch: &Scratch, arguments: &str) -> String {
    let output = ashlar(scratch, arguments);
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Commands of qemu-io on a volume that is served meanwhile.
fn qemu(scratch: &Scratch, volume: &str, commands: &[&str]) -> String {
    let socket = scratch.at("socket");
    let served = Served::start(scratch.serve("volume", &[volume, "--pool", "pool"], "socket"), &socket);
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]).args(commands.iter().flat_map(|command| ["-c", command]));
    let output = qemu.arg(format!("nbd+unix:///?socket={socket}")).output().expect("qemu-io runs");
    let (well, said) = served.interrupt();
    assert!(well, "{said}");
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn is_skipped() -> bool {
    let missing = Command::new("qemu-io").arg("--version").output().is_err();
    if missing {
        println!("SKIPPED: there is no qemu-io");
    }
    missing
}

const DISKS: &str =
    "--device a,size=40MiB --device b,size=40MiB --device c,size=40MiB --device d,size=40MiB --device e,size=40MiB";

#[test]
fn a_volume_on_an_array_outlives_a_member() {
    if is_skipped() {
        return;
    }
    let scratch = Scratch::new("volume-array");
    let create = format!("volume create vm1 --engine proximal --array raid4(4+1) {DISKS} --staging s,size=64MiB");
    let made = ok(&scratch, &create);
    assert!(made.contains("`ashlar volume serve vm1` serves it"), "{made}");
    let list = ok(&scratch, "volume list");
    assert!(list.contains("vm1") && list.contains("proximal"), "{list}");
    let small: Vec<String> = (0..40).map(|at| format!("write -P {} {}k 4k", at + 1, at * 508)).collect();
    let mut commands = vec!["write -P 99 0 20M"];
    commands.extend(small.iter().map(String::as_str));
    commands.push("flush");
    let wrote = qemu(&scratch, "vm1", &commands);
    assert_eq!(wrote.matches("wrote").count(), 41, "{wrote}");
    let checked = ok(&scratch, "volume check vm1");
    assert!(checked.contains("everything is in order"), "{checked}");
    std::fs::remove_file(scratch.at("b")).expect("it was there");
    let reads: Vec<String> = (0..40).map(|at| format!("read -P {} {}k 4k", at + 1, at * 508)).collect();
    let mut commands: Vec<&str> = reads.iter().map(String::as_str).collect();
    commands.extend([
        "read -P 99 4k 504k",
        "write -P 5 1M 64k",
        "read -P 5 1M 64k",
        "discard 2M 1M",
        "read -P 0 2M 1M",
    ]);
    let read = qemu(&scratch, "vm1", &commands);
    assert!(!read.contains("fail") && !read.contains("rror"), "{read}");
    assert_eq!(read.matches("read ").count(), 43, "{read}");
}

#[test]
fn damage_is_found_and_named() {
    if is_skipped() {
        return;
    }
    let scratch = Scratch::new("volume-damage");
    ok(&scratch, "volume create vm1 --engine proximal --device d,size=32MiB --staging s,size=64MiB --size 16MiB");
    let wrote = qemu(&scratch, "vm1", &["write -P 7 1M 2M", "flush"]);
    assert!(wrote.contains("wrote 2097152/2097152"), "{wrote}");
    ok(&scratch, "volume check vm1");
    let disk = std::fs::File::options().write(true).open(scratch.at("d")).expect("the disk");
    disk.write_all_at(&vec![1; 31 << 20], 1 << 20).expect("scribbled");
    let found = ashlar(&scratch, "volume check vm1 --json");
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).expect("a document");
    let damaged = report["damaged"].as_array().expect("a list");
    assert_eq!((damaged.len(), &damaged[0]["block"]), (512, &256.into()), "{report}");
    let read = qemu(&scratch, "vm1", &["read -P 7 1M 4k", "read -P 0 8M 4k"]);
    assert!(read.contains("Input/output error") && read.contains("read 4096/4096"), "{read}");
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let scratch = Scratch::new("volume-refused");
    let create = |rest: &str| format!("volume create {rest} --engine proximal --staging s,size=64MiB");
    let two = "--device a,size=32MiB --device b,size=32MiB";
    for (rest, reason) in [
        (format!("vm1 {two}"), "say what to make of them"),
        (format!("vm1 {two} --array raid4(4+1)"), "is to have 5 members, and 2 devices are given"),
        ("VM --device a,size=32MiB".into(), "is no name of a volume"),
        ("vm1 --device nowhere".into(), "say how large it is"),
    ] {
        let said = refused(&ashlar(&scratch, &create(&rest)));
        assert!(said.contains(reason), "{rest}: {said}");
    }
    for (level, reason) in [("raid4(4+2)", "for redundancy"), ("raid9", "raid9"), ("raid4(4+", "write a level")] {
        let output = ashlar(&scratch, &create(&format!("vm1 {two} --array {level}")));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{level}: {said}");
    }
    assert!(ok(&scratch, "volume list").contains("no volumes"), "nothing was made");
    ok(&scratch, &create("vm1 --device a,size=32MiB"));
    for (arguments, reason) in [
        (create("vm1 --device x,size=32MiB"), "there is a volume \"vm1\" already"),
        (create("vm2 --device a"), "--force"),
        ("volume serve vm1".into(), "serve it how?"),
        ("volume serve vm9 --nbd unix:x".into(), "there is no volume \"vm9\""),
        ("volume check vm9".into(), "`ashlar volume list` names all"),
    ] {
        let said = refused(&ashlar(&scratch, &arguments));
        assert!(said.contains(reason), "{arguments}: {said}");
    }
    let served = Served::start(scratch.serve("volume", &["vm1", "--pool", "pool"], "socket"), &scratch.at("socket"));
    let said = refused(&ashlar(&scratch, "volume check vm1"));
    assert!(said.contains("in use by another process"), "{said}");
    let (well, said) = served.interrupt();
    assert!(well, "{said}");
    ok(&scratch, "volume rm vm1");
    ok(&scratch, &format!("{} --force", create("vm1 --device a")));
}
