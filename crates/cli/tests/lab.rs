//! `ashlar lab`, through the front door.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A directory of a test's own with a ledger, gone at its end with what is mounted in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-lab-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("made");
        Scratch(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path").into()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.arg("lab").args(line.split(' ').map(|word| word.replace("@", &format!("{}/", self.0.display()))));
        command.env("ASHLAR_LEDGER", self.0.join("ledger.jsonl")).stdin(Stdio::null());
        command
    }

    /// Runs `ashlar lab LINE`, in which `@` is the directory.
    fn ashlar(&self, line: &str) -> Output {
        self.command(line).output().expect("it runs")
    }

    fn json(&self, line: &str) -> Value {
        let output = self.ashlar(&format!("{line} --json"));
        assert!(output.status.success(), "{line}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("one document")
    }

    fn refused(&self, line: &str, expected: &str) {
        let output = self.ashlar(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(expected), "{line}: {said}");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Ok(entries) = std::fs::read_dir(&self.0) {
            for entry in entries.flatten() {
                let point = entry.path().join("mnt");
                if point.is_dir() {
                    let _ = Command::new("umount").arg(point).output();
                }
            }
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const RECIPE: &str =
    "history --recipe profile --capacity 64MiB --sizes even:1KiB-40KiB --directories 20 --utilization 40%";

#[test]
fn snapshots_are_compared() {
    let scratch = Scratch::new("snapshots");
    let tree = scratch.0.join("tree");
    std::fs::create_dir_all(tree.join("a")).expect("made");
    let write = |name: &str, len: usize| std::fs::write(tree.join(name), vec![7; len]).expect("space");
    write("a/stays", 5000);
    write("a/goes", 10);
    write("a/grows", 4096);
    let first = scratch.json("snapshot @tree -o @s0");
    assert_eq!(first["counts"]["files"], 3);
    // In this order, so that the new file does not get the old one's inode.
    write("new", 1);
    write("a/grows", 9000);
    std::fs::remove_file(tree.join("a/goes")).expect("it is there");
    scratch.json("snapshot @tree -o @s1");
    let history = scratch.json("history @s0 @s1 -o @churn --no-short-lived");
    let found = &history["snapshots"];
    let counts = ["initial", "new", "gone", "modified", "replaced"].map(|name| found[name].as_u64().expect("a count"));
    assert_eq!(counts, [4, 1, 1, 1, 0], "{history}");
    let shown = scratch.json("history @churn");
    assert_eq!(shown["statistics"], history["statistics"]);
    assert_eq!((&shown["statistics"]["live_files"], &shown["statistics"]["created"]), (&3.into(), &4.into()));
    let (live, of_snapshot) = (scratch.json("layout @tree"), scratch.json("layout @s1"));
    assert_eq!(live["all"], of_snapshot["all"]);
    scratch.refused("history @s1 @s0 -o @x", "oldest first");
    scratch.refused("layout @churn", "it is no snapshot");
    scratch.refused("history @s0", "it is no history");
    scratch.json("snapshot @tree -o @s2 --hash-names=key");
    scratch.refused("history @s0 @s2 -o @x", "hashes of names");
    let bytes = std::fs::read(scratch.0.join("s1")).expect("it is there");
    std::fs::write(scratch.0.join("cut"), &bytes[..bytes.len() - 1]).expect("space");
    scratch.refused("layout @cut", "ends before its end frame");
}

#[test]
fn schemas_are_printed() {
    let scratch = Scratch::new("schemas");
    for line in ["layout /", "snapshot / -o /x", "history", "age /x --on /y", "replay x --model y"] {
        let output = scratch.ashlar(&format!("{line} --json-schema"));
        let schema: Value = serde_json::from_slice(&output.stdout).expect("a schema");
        assert_eq!(schema["type"], "object", "{line}");
    }
}

#[test]
fn a_directory_and_ffs_age() {
    let scratch = Scratch::new("age");
    let history = scratch.json(&format!("{} --days 4 -o @churn", RECIPE.replace("64MiB", "16MiB")));
    let live = history["statistics"]["live_files"].as_u64().expect("a count");
    std::fs::create_dir(scratch.0.join("d")).expect("made");
    scratch.refused("age @churn --on @d", "--yes agrees");
    scratch.refused("age @churn --on @nowhere", "no such directory");
    scratch.refused("age @churn --on ext4:1GiB", "-o FILE");
    let aged = scratch.json("age @churn --on @d --yes --report @page.html");
    assert_eq!((aged["layout"]["all"]["files"].as_u64(), aged["done"]["refused"].as_u64()), (Some(live), Some(0)));
    assert!(std::fs::read_to_string(scratch.0.join("page.html")).expect("written").contains("Layout over time"));
    assert!(!PathBuf::from(scratch.path("churn.ageing")).exists());
    scratch.refused("age @churn --on @d --yes", "it is there already");
    let once = scratch.json("age @churn --on ffs:64MiB --to 60%");
    let again = scratch.json("age @churn --on ffs:64MiB --to 60%");
    assert_eq!(once["ffs"], again["ffs"], "one seed, one layout");
    let used = once["ffs"]["used"].as_f64().expect("a share");
    assert!((0.5..0.75).contains(&used), "{used}");
    let ledger = std::fs::read_to_string(scratch.0.join("ledger.jsonl")).expect("written");
    assert!(ledger.contains("layout.score") && ledger.contains("emulated"), "{ledger}");
}

/// Why images cannot be made here.
fn obstacle() -> Option<&'static str> {
    let there = |program: &str| Command::new(program).arg("-V").output().is_ok();
    match () {
        () if !rustix::process::geteuid().is_root() => Some("it needs root"),
        () if !std::path::Path::new("/dev/loop-control").exists() => Some("there is no /dev/loop-control"),
        () if !there("mkfs.ext4") || !there("mount") => Some("mkfs.ext4 or mount is missing"),
        () => None,
    }
}

/// Lets a run live until some of its records are done, and kills it.
fn kill(mut child: Child, position: &std::path::Path, records: u64) {
    loop {
        let done = std::fs::read(position).ok().and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        if done.is_some_and(|done| done >= records) {
            child.kill().expect("it lives, or has ended");
            child.wait().expect("it ended");
            return;
        }
        assert!(child.try_wait().expect("ours").is_none(), "it ended before {records} records were done");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a snapshot's extents are those that debugfs reads from the device (check 5 of the digest).
fn extents_are_those_of_debugfs(scratch: &Scratch, image: &str) {
    let point = scratch.0.join("look/mnt");
    std::fs::create_dir_all(&point).expect("made");
    let mounted = Command::new("mount").args(["-o", "loop,ro"]).arg(scratch.path(image)).arg(&point).output();
    assert!(mounted.expect("it runs").status.success());
    scratch.json("snapshot @look/mnt -o @look.snap");
    assert!(Command::new("umount").arg(&point).status().expect("it runs").success());
    let file = std::fs::File::open(scratch.path("look.snap")).expect("it was taken");
    let mut snapshot = ashlar_lab::snapshot::SnapshotReader::new(file).expect("a snapshot");
    let (mut looked, mut pieces, block) = (0, 0, snapshot.header().block_bytes);
    while let Some(entry) = snapshot.entry().expect("whole") {
        if entry.extents.is_empty() || entry.inode % 16 != 0 && entry.extents.len() < 3 {
            continue;
        }
        let ask = format!("ex -l <{}>", entry.inode);
        let output = Command::new("debugfs").args(["-R", &ask]).arg(scratch.path(image)).output();
        let Ok(output) = output else { return eprintln!("SKIPPED: there is no debugfs") };
        // Level, levels, entry, entries, first and last logical, first and last physical, length: in blocks.
        let text = String::from_utf8_lossy(&output.stdout).replace(['/', '-'], " ");
        let rows =
            text.lines().skip(1).map(|line| line.split_whitespace().map_while(|word| word.parse().ok()).collect());
        let expected: Vec<[u64; 3]> = rows
            .filter(|row: &Vec<u64>| row.len() >= 9)
            .map(|row| [row[4], row[6], row[8]].map(|blocks| blocks * block))
            .collect();
        let found: Vec<[u64; 3]> =
            entry.extents.iter().map(|extent| [extent.logical, extent.physical, extent.len]).collect();
        assert_eq!(found, expected, "inode {}: {text}", entry.inode);
        looked += 1;
        pieces += found.len();
    }
    assert!(looked > 20 && pieces >= looked, "{looked} files in {pieces} pieces");
}

#[test]
fn an_image_ages_and_goes_on_after_a_kill() {
    if let Some(obstacle) = obstacle() {
        eprintln!("SKIPPED: {obstacle}");
        return;
    }
    let scratch = Scratch::new("image");
    let history = scratch.json(&format!("{RECIPE} --days 20 --sync-share 0.01 -o @churn"));
    let (live, records) =
        (&history["statistics"]["live_files"], history["statistics"]["records"].as_u64().expect("a count"));
    let line = "age @churn --on ext4:128MiB -o @aged.img --json";
    let child = scratch.command(line).stdout(Stdio::null()).spawn().expect("it runs");
    kill(child, &scratch.0.join("aged.img.ageing/position"), records / 8);
    // Another run must not take its place.
    scratch.refused("age @churn --on ext4:128MiB -o @aged.img --seed 9", "another run");
    let aged = scratch.json("age @churn --on ext4:128MiB -o @aged.img");
    assert!(aged["resumed_at"].as_u64().is_some_and(|at| at >= records / 8), "{aged}");
    assert_eq!((&aged["layout"]["all"]["files"], &aged["done"]["refused"]), (live, &0.into()));
    assert_eq!(aged["done"]["records"], records);
    assert!(!scratch.0.join("aged.img.ageing").exists());
    scratch.refused("age @churn --on ext4:128MiB -o @aged.img", "--force overwrites");
    extents_are_those_of_debugfs(&scratch, "aged.img");
    let checked = Command::new("fsck.ext4").args(["-f", "-n"]).arg(scratch.path("aged.img")).output();
    assert!(checked.expect("e2fsprogs has it").status.success());
    // A file system that is too small is full, which is told, and the rest goes on.
    let output = scratch.ashlar("age @churn --on ext4:16MiB -o @small.img --json");
    let small: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(output.status.code(), Some(1));
    assert!(small["done"]["refused"].as_u64().is_some_and(|refused| refused > 0), "{small}");
    scratch.refused("age @churn --on ext4:16MiB -o @full.img --when-full stop", "the file system is full");
}
