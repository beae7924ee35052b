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
    for line in [
        "layout /",
        "snapshot / -o /x",
        "history",
        "age /x --on /y",
        "replay x --model y",
        "workloads",
        "run x --on y",
        "tune --workload x",
    ] {
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

/// Why images cannot be made here by this program.
fn obstacle(mkfs: &str) -> Option<String> {
    let missing = [mkfs, "mount"].into_iter().find(|program| Command::new(program).arg("-V").output().is_err());
    match missing {
        _ if !rustix::process::geteuid().is_root() => Some("it needs root".into()),
        _ if !std::path::Path::new("/dev/loop-control").exists() => Some("there is no /dev/loop-control".into()),
        Some(program) => Some(format!("{program} is missing")),
        None => None,
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

/// Where a file's pieces are, in bytes: in the file, on the device, and how long.
type Places = Vec<[u64; 3]>;

/// What debugfs says about an inode of ext4.
fn debugfs(image: &std::path::Path, inode: u64, block: u64) -> Option<Places> {
    let ask = format!("ex -l <{inode}>");
    let output = Command::new("debugfs").args(["-R", &ask]).arg(image).output().ok()?;
    // Level, levels, entry, entries, first and last logical, first and last physical, length: in blocks.
    let text = String::from_utf8_lossy(&output.stdout).replace(['/', '-'], " ");
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().map_while(|word| word.parse().ok()).collect());
    let leaves = rows.filter(|row: &Vec<u64>| row.len() >= 9);
    Some(leaves.map(|row| [row[4], row[6], row[8]].map(|blocks| blocks * block)).collect())
}

/// What xfs_db says about an inode of xfs.
fn xfs_db(image: &std::path::Path, inode: u64, block: u64) -> Option<Places> {
    let ask = format!("inode {inode}");
    let ask = ["-r", "-c", "sb 0", "-c", "print agblocks", "-c", &ask, "-c", "bmap"];
    let output = Command::new("xfs_db").args(ask).arg(image).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (first, rest) = text.split_once('\n')?;
    let group: u64 = first.strip_prefix("agblocks = ")?.parse().ok()?;
    // "data offset 0 startblock 65560 (1/24) count 5 flag 0": in blocks; within the brackets allocation group and block of it.
    let numbers = |line: &str| -> Vec<u64> {
        line.split(|letter: char| !letter.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    };
    let rows = rest.lines().map(numbers).filter(|row| row.len() >= 5);
    Some(rows.map(|row| [row[0], row[2] * group + row[3], row[4]].map(|blocks| blocks * block)).collect())
}

/// Whether a snapshot's extents are those that another program reads from the device (check 5 of the digest).
fn extents_are_those_of(scratch: &Scratch, image: &str, program: fn(&std::path::Path, u64, u64) -> Option<Places>) {
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
        let Some(expected) = program(std::path::Path::new(&scratch.path(image)), entry.inode, block) else {
            return eprintln!("SKIPPED: there is no debugfs or xfs_db");
        };
        let found: Places = entry.extents.iter().map(|extent| [extent.logical, extent.physical, extent.len]).collect();
        assert_eq!(found, expected, "inode {}", entry.inode);
        looked += 1;
        pieces += found.len();
    }
    assert!(looked > 20 && pieces >= looked, "{looked} files in {pieces} pieces");
}

#[test]
fn an_image_ages_and_goes_on_after_a_kill() {
    if let Some(obstacle) = obstacle("mkfs.ext4") {
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
    extents_are_those_of(&scratch, "aged.img", debugfs);
    let checked = Command::new("fsck.ext4").args(["-f", "-n"]).arg(scratch.path("aged.img")).output();
    assert!(checked.expect("e2fsprogs has it").status.success());
    // A file system that is too small is full, which is told, and the rest goes on.
    let output = scratch.ashlar("age @churn --on ext4:16MiB -o @small.img --json");
    let small: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(output.status.code(), Some(1));
    assert!(small["done"]["refused"].as_u64().is_some_and(|refused| refused > 0), "{small}");
    scratch.refused("age @churn --on ext4:16MiB -o @full.img --when-full stop", "the file system is full");
}

#[test]
fn extents_of_xfs_are_those_of_xfs_db() {
    if let Some(obstacle) = obstacle("mkfs.xfs") {
        eprintln!("SKIPPED: {obstacle}");
        return;
    }
    let scratch = Scratch::new("xfs");
    scratch.json(&format!("{RECIPE} --days 5 -o @churn"));
    scratch.json("age @churn --on xfs:384MiB -o @aged.img");
    extents_are_those_of(&scratch, "aged.img", xfs_db);
}

/// Settings with which a workload is short.
const SHORT: &str = "--set files=60 --set transactions=100";

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: mounting needs root");
    }
    root
}

/// Nothing of a stand is left in a directory.
fn assert_put_away(scratch: &Scratch) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("proc is there");
    assert!(!mounts.contains(scratch.0.to_str().expect("a path")), "{mounts}");
    let left = std::fs::read_dir(&scratch.0).expect("it is there").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.starts_with("ashlar-stand")), "{left:?}");
}

#[test]
fn workloads_are_listed_and_written_and_their_traces_run() {
    let scratch = Scratch::new("workloads");
    let all = scratch.json("workloads");
    assert_eq!(all["workloads"].as_array().expect("a list").len(), 10);
    for workload in all["workloads"].as_array().expect("a list") {
        assert!(!workload["source"].as_str().expect("text").is_empty(), "{workload}");
    }
    let written = scratch.json(&format!("workloads postmark {SHORT} -o @w.parquet"));
    assert_eq!(written["written"]["setup_calls"], 51);
    scratch.refused("workloads postmark --set flies=1", "there are files, transactions");
    scratch.refused("workloads nothing", "there are postmark");
    std::fs::create_dir(scratch.0.join("d")).expect("made");
    std::fs::write(scratch.0.join("d/theirs"), "x").expect("space");
    let run = scratch.json("run @w.parquet --setup @w.setup.parquet --on @d --repeats 3 --sync -o @out.jsonl");
    assert_eq!(run["calls"], written["written"]["run_calls"]);
    assert_eq!((&run["calls_per_s"]["count"], run["runs"].as_array().map(Vec::len)), (&3.into(), Some(3)));
    assert!(run["total_s"]["half_width"].is_number() && run["modelled_j"]["mean"].as_f64().expect("a number") > 0.0);
    assert_eq!(run["runs"][2]["failed_here"]["count"], 0, "{run}");
    // The same without the trace of what was there before: directories are found out.
    let again = scratch.json("run @out.jsonl --on @d --warm --no-ledger");
    assert_eq!(again["calls"], run["calls"]);
    assert_eq!(again["runs"][0]["prefilled"]["directories"], 51);
    let ledger = std::fs::read_to_string(scratch.0.join("ledger.jsonl")).expect("a ledger");
    assert!(ledger.contains("run.total") && ledger.contains("w.parquet on"), "{ledger}");
    // Pages are counted where programs in the kernel can be.
    let counted = run["runs"][0]["pages"].is_object();
    assert!(counted != run["runs"][0]["pages_unknown"].is_string(), "{run}");
    assert_eq!((ledger.lines().count(), ledger.contains("run.pages")), (2 + usize::from(counted), counted), "{ledger}");
    let nothing = scratch.ashlar("run @w.parquet --no-prefill --on @d");
    assert_eq!(nothing.status.code(), Some(1), "{nothing:?}");
    let said = String::from_utf8_lossy(&nothing.stdout);
    assert!(said.contains("failed here, and not in the trace") && said.contains("not those of the workload"), "{said}");
    let after = std::fs::read_to_string(scratch.0.join("ledger.jsonl")).expect("a ledger");
    assert_eq!(after, ledger, "what failed is no measurement");
    scratch.refused("run @w.parquet --on @d --max-bytes 1KiB", "--max-bytes");
    scratch.refused("run @w.parquet --on @d --device wd-re3", "needs an image");
    scratch.refused("run @w.parquet --on @d --device floppy", "floppy");
    scratch.refused("run @nothing --on @d", "no such trace");
    scratch.refused("run @d/theirs --on @d", "no record");
    let left: Vec<_> = std::fs::read_dir(scratch.0.join("d")).expect("it is there").flatten().collect();
    assert_eq!(left.len(), 1);
}

#[test]
fn a_snapshot_is_made_before_a_run() {
    let scratch = Scratch::new("from");
    let tree = scratch.0.join("tree");
    std::fs::create_dir_all(tree.join("a")).expect("made");
    std::fs::write(tree.join("a/file"), vec![7; 5000]).expect("space");
    scratch.json("snapshot @tree -o @s0");
    let path = tree.join("a/file");
    let line = |op: &str, more: &str| format!("{{\"at_ns\":1,\"op\":\"{op}\",\"path\":{path:?},\"file\":1{more}}}\n");
    let trace = line("open", "") + &line("read", ",\"len\":100,\"done\":100") + &line("close", "");
    std::fs::write(scratch.0.join("t.jsonl"), trace).expect("space");
    std::fs::create_dir(scratch.0.join("d")).expect("made");
    for (option, size) in [("--from @s0", 5000), ("", 100), ("--from @s0 --no-prefill", 5000)] {
        let run = scratch.json(format!("run @t.jsonl --on @d --no-ledger {option}").trim());
        assert_eq!(run["runs"][0]["prefilled"]["bytes"], size, "{option}");
        assert_eq!(run["runs"][0]["read_bytes"], 100);
    }
}

#[test]
fn a_trace_that_was_cut_is_used_as_far_as_it_is_whole() {
    let scratch = Scratch::new("cut");
    let written = scratch.json("workloads postmark --set files=500 --set transactions=4000 -o @w.parquet");
    let all = written["written"]["run_calls"].as_u64().expect("a count");
    std::fs::write(scratch.0.join("v"), "OPEN 0.09\n").expect("space");
    let whole = std::fs::read(scratch.0.join("w.parquet")).expect("it is there");
    std::fs::create_dir(scratch.0.join("d")).expect("made");
    // As a tracer leaves it that was killed.
    let cut = |len: usize| std::fs::write(scratch.0.join("cut.parquet.new"), &whole[..len]).expect("space");
    let note = |answer: &Value| answer["notes"].to_string();
    cut(whole.len() - 1);
    let predicted = scratch.json("predict @cut.parquet.new @v --no-ledger");
    let calls = predicted["calls"].as_u64().expect("a count");
    assert!((4096..all).contains(&calls), "{calls} of {all}");
    assert!(note(&predicted).contains(&format!("cut behind {calls} records")), "{}", note(&predicted));
    let run = scratch.json("run @cut.parquet.new --setup @w.setup.parquet --on @d --no-ledger");
    assert_eq!(run["calls"], calls);
    assert!(note(&run).contains(&format!("cut.parquet.new is not whole: it was cut behind {calls} records")), "{run}");
    cut(100);
    scratch.refused("predict @cut.parquet.new @v --no-ledger", "nothing of it can be read");
    scratch.refused("run @cut.parquet.new --on @d --no-ledger", "nothing of it can be read");
    let predicted = scratch.json("predict @w.parquet @v --no-ledger");
    assert_eq!(predicted["calls"], all);
    assert!(!note(&predicted).contains("whole"), "{}", note(&predicted));
}

#[test]
fn a_snapshot_may_be_the_text_of_the_thesis() {
    let scratch = Scratch::new("text");
    let tree = scratch.0.join("tree");
    std::fs::create_dir_all(tree.join("a b/empty")).expect("made");
    std::fs::write(tree.join("a b/file"), vec![7; 5000]).expect("space");
    std::os::unix::fs::symlink("a b/file", tree.join("link")).expect("made");
    std::fs::write(tree.join("with\nbreak"), "").expect("space");
    let taken = scratch.json("snapshot @tree -o @s.txt --text");
    assert!(taken["notes"].to_string().contains("1 names are not in it"), "{taken}");
    assert_eq!((&taken["counts"]["files"], &taken["counts"]["size_bytes"]), (&1.into(), &5000.into()));
    let text = std::fs::read_to_string(scratch.0.join("s.txt")).expect("text");
    assert!(text.starts_with("./ ") && text.ends_with("\n~~\n"), "{text}");
    assert!(
        text.contains(" 2 8 link a b/file\n") && text.contains("\n./a b/\n") && text.contains(" 0 5000 file\n"),
        "{text}"
    );
    let line =
        |op: &str, path: &str| format!("{{\"at_ns\":1,\"op\":\"{op}\",\"path\":\"{path}\",\"len\":9,\"done\":9}}\n");
    let trace = line("stat", "/mnt/a b/file") + &line("stat", "/mnt/a b/empty") + &line("readlink", "/mnt/link");
    std::fs::write(scratch.0.join("t.jsonl"), trace).expect("space");
    std::fs::write(scratch.0.join("v"), "OPEN 0.09\n").expect("space");
    for (snapshot, root, known) in [("@s.txt ", "/mnt", true), ("@s.txt ", "/elsewhere", false), ("", "/mnt", false)] {
        let predicted = scratch.json(&format!("predict @t.jsonl {snapshot}@v --root {root} --no-ledger"));
        assert_eq!(predicted["found"] == 0, known, "{snapshot}{root}: {predicted}");
    }
    scratch.refused("predict @t.jsonl @s.txt @s.txt @v", "there is a snapshot already");
    std::fs::write(scratch.0.join("open.txt"), text.strip_suffix("~~\n").expect("an end")).expect("space");
    let predicted = scratch.json("predict @t.jsonl @open.txt @v --root /mnt --no-ledger");
    assert!(predicted["notes"].to_string().contains("has no ~~ at its end"), "{predicted}");
    std::fs::write(scratch.0.join("cut.txt"), &text[..text.len() - 9]).expect("space");
    scratch.refused("predict @t.jsonl @cut.txt @v", "it ends within a line");
    scratch.refused("snapshot @tree -o @x --text --hash-names=k", "cannot be used with");
}

#[test]
fn a_workload_runs_on_images_devices_and_pools() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("stands");
    let given = scratch.0.join("given.img");
    std::fs::File::create(&given).and_then(|file| file.set_len(64 << 20)).expect("space");
    let made = Command::new("mkfs.ext4").arg("-q").arg(&given).output();
    if !made.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: there is no mkfs.ext4");
        return;
    }
    let before = std::fs::read(&given).expect("it is there");
    for (place, file_system, kind) in [
        ("@given.img", "ext4", "measured"),
        ("@given.img --device wd-re3 --mount-options data=journal", "ext4", "emulated"),
        ("ashlar:1GiB", "fuse.ashlar", "measured"),
        ("ashlar:1GiB --device wd-re3", "fuse.ashlar", "emulated"),
    ] {
        let run = scratch.json(&format!("run postmark {SHORT} --repeats 2 --on {place} --scratch @"));
        assert_eq!((&run["file_system"], &run["kind"]), (&file_system.into(), &kind.into()));
        for repeat in run["runs"].as_array().expect("a list") {
            let coldness = &repeat["coldness"];
            assert_eq!((&coldness["names_cached"], &coldness["pages_cached"]), (&0.into(), &0.into()), "{run}");
            assert!(coldness["remounted"] == true && repeat["failed_here"]["count"] == 0, "{run}");
        }
        assert_put_away(&scratch);
    }
    assert!(std::fs::read(&given).expect("it is there") == before);
    scratch.refused("run postmark --on ext4:8MiB --scratch @ --mkfs-options nonsense=", "mkfs");
    scratch.refused("run fileserver --on ext4:64MiB --scratch @", "must be there before");
    assert_put_away(&scratch);
}

#[test]
fn whatever_ends_a_run_nothing_stays() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("ended");
    // Syncs on an emulated disk: it takes minutes.
    let line = "run mailsync --set messages=100000 --on ext4:256MiB --device wd-re3 --scratch @";
    let start = || {
        let child = scratch.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let begun = |path: PathBuf| path.join("mnt/ashlar-stand/work/maildir/u0-0/new").exists();
        let homes = || std::fs::read_dir(&scratch.0).expect("it is there").flatten().map(|entry| entry.path());
        while !homes().any(begun) {
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    };
    let child = start();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is there");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("stopped"), "{ended:?}");
    assert_put_away(&scratch);
    let mut child: Child = start();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    // The next one puts away what is left.
    scratch.json(&format!("run postmark {SHORT} --on ext4:64MiB --scratch @"));
    assert_put_away(&scratch);
}

#[test]
fn where_no_room_is_errors_name_the_file_and_nothing_stays() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("full");
    let full = scratch.0.join("full/mnt");
    scratch.json(&format!("workloads postmark {SHORT} -o @small.parquet"));
    scratch.json(&format!("{RECIPE} --days 3 -o @churn"));
    std::fs::create_dir_all(&full).expect("space");
    std::fs::create_dir(scratch.0.join("d")).expect("space");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(&full).status();
    assert!(mount.expect("it is there").success());
    std::fs::write(full.join("fill"), vec![0; 64 << 10]).expect("just enough");
    let small = scratch.path("small.parquet");
    for (line, name) in [
        (format!("workloads postmark {SHORT} -o @full/mnt/w.parquet"), "w.setup.parquet"),
        ("snapshot @d -o @full/mnt/s.snap".into(), "s.snap"),
        (format!("{RECIPE} --days 3 -o @full/mnt/h.age"), "h.age"),
        ("trace -o @full/mnt/t.jsonl -- ls /".into(), "t.jsonl"),
        ("trace -o @full/mnt/t.parquet -- ls /".into(), "t.parquet"),
        ("predict @small.parquet --stage parse -o @full/mnt/p.parquet".into(), "p.parquet"),
        ("predict @small.parquet --stage parse -o @full/mnt/p.jsonl".into(), "p.jsonl"),
        (
            "run @small.parquet --setup @small.setup.parquet --on @d -o @full/mnt/m.parquet --no-ledger".into(),
            "m.parquet",
        ),
    ] {
        let output = scratch.ashlar(&line);
        let text = String::from_utf8_lossy(&output.stderr);
        let file = scratch.path(&format!("full/mnt/{name}"));
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains(&format!("{file}: No space left")), "{line}: {text}");
        assert!(text.matches(&file).count() == 1 && !text.contains(&small), "{line}: {text}");
        let left: Vec<_> =
            std::fs::read_dir(&full).expect("it is mounted").map(|entry| entry.expect("it is").file_name()).collect();
        assert_eq!(left, ["fill"], "{line}");
    }
    assert!(Command::new("umount").arg(&full).status().expect("it is there").success());
}

#[test]
fn options_are_searched_on_aged_images() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("tune");
    scratch.json(&format!("{} --days 4 -o @churn", RECIPE.replace("64MiB", "16MiB")));
    let line =
        format!("tune --workload postmark {SHORT} --fs ext4 --size 96MiB --repeats 2 --history @churn --scratch @");
    let tuned = scratch.json(&line);
    let measured = tuned["measured"].as_array().expect("a list");
    assert!(measured.len() + tuned["unusable"].as_array().expect("a list").len() >= 11, "{tuned}");
    assert!(measured.len() >= 9 && measured[0]["options"].as_array().expect("a list").is_empty(), "{tuned}");
    let mean = |scored: &Value| scored["rate"]["mean"].as_f64().expect("a number");
    let classes = ["no-journal", "stale-data", "metadata", "data"];
    let rank = |class: &Value| classes.iter().position(|name| class == *name).expect("a class");
    for best in tuned["best"].as_array().expect("a list") {
        let fits = || measured.iter().filter(|scored| rank(&scored["class"]) >= rank(&best["at_least"]));
        let is_default = |scored: &Value| scored["options"].as_array().expect("a list").is_empty();
        // What cannot be told from the defaults is not better than they are, where they are safe enough.
        let sure = |scored: &&Value| scored["distinguishable"] == true || is_default(scored) || !fits().any(is_default);
        assert_eq!(fits().filter(sure).map(mean).fold(0.0, f64::max), mean(best), "{tuned}");
    }
    assert_put_away(&scratch);
    let left: Vec<_> = std::fs::read_dir(&scratch.0).expect("it is there").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// A store ages on an emulated disk and is measured; sizes that do not fit are refused.
#[test]
fn object_stores_are_measured_on_an_emulated_disk() {
    let scratch = Scratch::new("objectbench");
    let line = "objectbench --on regions:1GiB:wd-re3 --region 32MiB --aged 40% --ageing-requests 3000 --requests 200";
    let report = scratch.json(line);
    assert_eq!(report["runs"][0]["requests"], 200);
    assert!(report["before"]["objects"].as_u64() > Some(0) && report["before"]["regions"]["all"] == 31, "{report}");
    assert_eq!(scratch.json(line), report, "the same seed gives the same times");
    let small = "objectbench --on regions:2GiB --large-block 64KiB";
    let refused = scratch.ashlar(small);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("make those larger"), "{refused:?}");
    scratch.refused("objectbench --on regions:1MiB", "regions");
    scratch.refused("objectbench --on regions:1GiB:none", "none");
    scratch.refused("objectbench --on ext5:1GiB", "regions:SIZE");
    scratch.refused("objectbench --on regions:1GiB --repeats 2", "--repeats");
    scratch.refused("objectbench --on none.img --aged 40%", "as it is");
}

/// A file system of the kernel ages by the same requests as our store, its image takes no room for objects, and it is measured on
/// the emulated disk by the same requests, from an image that was kept too.
#[test]
fn file_systems_hold_objects_on_an_emulated_disk() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("objects-on-files");
    if Command::new("mkfs.ext4").arg("-V").output().is_err() {
        return eprintln!("SKIPPED: there is no mkfs.ext4");
    }
    let common = "--seed 3 --requests 30 --aged 30% --ageing-requests 600";
    let ours = scratch.json(&format!("objectbench --on regions:1GiB:wd-re3 --region 32MiB {common}"));
    let theirs = scratch.json(&format!("objectbench --on ext4:1GiB:wd-re3 --scratch @ --save @aged.img {common}"));
    for (part, what) in [("aged", "requests"), ("aged", "written_bytes"), ("before", "objects")] {
        assert_eq!(ours[part][what], theirs[part][what], "{part}, {what}: {theirs}");
    }
    let image = std::fs::metadata(scratch.0.join("aged.img")).expect("it was kept");
    let room = std::os::unix::fs::MetadataExt::blocks(&image) * 512;
    let objects = theirs["aged"]["written_bytes"].as_u64().expect("a number");
    assert!(image.len() == 1 << 30 && room < 64 << 20 && objects > 80 << 20, "{room} bytes for {objects}");
    let again =
        scratch.json("objectbench --on @aged.img --device wd-re3 --seed 3 --requests 30 --repeats 2 --scratch @");
    assert_eq!((again["runs"].as_array().map(Vec::len), &again["engine"]), (Some(2), &Value::from("ext4")));
    for run in [&theirs["runs"][0], &again["runs"][0], &again["runs"][1]] {
        for what in ["requests", "read_bytes", "written_bytes"] {
            assert_eq!(run[what], ours["runs"][0][what], "{what}: {run}");
        }
        // Nothing was in memory: what is read comes from the disk, which seeks for it.
        assert!(run["device_bytes"].as_u64() >= run["read_bytes"].as_u64(), "{run}");
        assert!(run["disk"]["seek_s"].as_f64() > Some(0.0) && run["disk"]["late_max_us"].as_f64() > Some(0.0), "{run}");
    }
    let output = scratch.ashlar("objectbench --on ext4:1GiB --save @aged.img --requests 0 --scratch @");
    assert!(String::from_utf8_lossy(&output.stderr).contains("remove it first"), "{output:?}");
    assert_put_away(&scratch);
}
