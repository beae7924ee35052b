//! Several file systems of a pool, mounted side by side, and what `status` says of each. Needs root and /dev/fuse.

use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use serde_json::Value;
use std::path::{Path, PathBuf};

struct House(Daemon);

impl House {
    fn place(&self, name: &str) -> PathBuf {
        self.0.mount().with_file_name(name)
    }
    /// What a command prints with `--json`, and whether it succeeded.
    fn ask(&self, arguments: &[&str]) -> (Value, bool) {
        let output = self.0.command(arguments).arg("--json").output().expect("the program runs");
        let answer = serde_json::from_slice(&output.stdout);
        let answer = answer.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"));
        (answer, output.status.success())
    }
    fn done(&self, arguments: &[&str]) -> Value {
        let (answer, succeeded) = self.ask(arguments);
        assert!(succeeded, "{arguments:?}: {answer}");
        answer
    }
    fn refused(&self, arguments: &[&str], said: &str) {
        let (answer, succeeded) = self.ask(arguments);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(!succeeded && error.contains(said), "{arguments:?}: {answer}");
    }
}

fn unmount(at: &Path) {
    let status = std::process::Command::new("umount").arg(at).status().expect("umount runs");
    assert!(status.success());
}

#[test]
fn a_file_system_gets_devices_of_its_own_and_is_mounted_beside_others() {
    if Daemon::is_skipped() {
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_ashlar"));
    let house = House(Daemon::new(program, Engine::Betr, "mounts").expect("a temporary directory"));
    let text = |path: &Path| path.to_str().expect("text").to_string();
    let device = format!("{},size=1GiB", text(&house.place("disk.img")));
    let (one, two) = (house.place("one"), house.place("two"));
    house.refused(&["mount", "photos", &text(&one)], "no pool");
    house.done(&["fs", "create", "photos", "--engine", "betr", "--device", &device, "--inline", "16KiB"]);
    house.refused(&["fs", "create", "more", "--device", &device], "holds a pool already");
    house.refused(&["fs", "create", "more", "--inline", "16KiB"], "files keeps no files");
    house.refused(&["fs", "create", "more", "--engine", "betr", "--inline", "1MiB"], "do not fit");
    house.done(&["fs", "create", "more"]);
    house.refused(&["mount", "nothing", &text(&one)], "no nothing in this pool");
    house.done(&["mount", "photos", &text(&one)]);
    house.refused(&["mount", "nothing", &text(&two)], "no nothing in this pool");
    house.done(&["mount", "more", &text(&two)]);

    for index in 0..400 {
        std::fs::write(one.join(format!("{index}")), vec![index as u8; 9_000]).expect("written");
    }
    std::fs::create_dir(one.join("d")).expect("made");
    std::fs::write(one.join("d/large"), vec![7; 3 << 20]).expect("written");
    std::fs::write(two.join("large"), vec![9; 2 << 20]).expect("written");
    // Data leave the page cache; a snapshot takes a checkpoint.
    for at in [&one, &two] {
        std::fs::File::open(at).expect("opened").sync_all().expect("synced");
    }
    house.done(&["snapshot", "create", "photos@now"]);
    std::fs::remove_dir_all(one.join("d")).expect("removed");

    let status = house.done(&["status", "photos"]);
    assert_eq!((status["fs"].as_str(), status["mount"].as_str()), (Some("photos"), one.to_str()), "{status}");
    assert_eq!(status["zones"]["inline"], 16 << 10, "{status}");
    assert!(status["index"]["levels"].as_u64() >= Some(2) && status["index"]["memory_ranges"].as_u64() >= Some(1));
    let floor = |name: &str, what: &str| {
        let all = status["floors"].as_array().expect("floors");
        all.iter().find(|floor| floor["name"] == name).and_then(|floor| floor[what].as_u64()).expect("a number")
    };
    let user = floor("mounts", "written");
    assert!(user >= 400 * 9_000 + (5 << 20), "{status}");
    assert!(floor("log", "written") >= 400 * 9_000 && floor("index", "written") > 0, "{status}");
    let parts = ["log", "index", "cleaner", "superblocks"].map(|name| floor(name, "written"));
    assert_eq!(floor("devices", "written"), parts.iter().sum::<u64>(), "{status}");
    let status = house.done(&["status", "more"]);
    assert_eq!((status["mount"].as_str(), &status["zones"]), (two.to_str(), &Value::Null), "{status}");
    assert_eq!(house.done(&["status", "photos@now"])["mount"], Value::Null);
    house.refused(&["status", "nothing"], "no nothing in this pool");

    // What is unmounted by hand is free again, and the other stays.
    unmount(&one);
    let mut waits = 0;
    while house.done(&["status", "photos"])["mount"] != Value::Null {
        // The server's threads hear of it one after the other.
        waits += 1;
        assert!(waits < 1_000, "the server never noticed");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(house.done(&["status"])["fs"], "more");
    house.done(&["fs", "rename", "photos", "pictures"]);
    house.done(&["mount", "pictures", &text(&one)]);
    assert_eq!(std::fs::read(one.join("399")).expect("readable"), vec![143; 9_000]);
    assert_eq!(std::fs::read(two.join("large")).expect("readable"), vec![9; 2 << 20]);
    house.done(&["down"]);
    assert!(!ashlar_fuse::is_mounted(&one) && !ashlar_fuse::is_mounted(&two), "both are unmounted");
    house.0.check().unwrap_or_else(|error| panic!("{error}"));
    let status = house.done(&["status", "pictures"]);
    assert_eq!((&status["pid"], status["index"]["memory"].as_u64()), (&Value::Null, Some(0)), "{status}");
}

/// The memory of a server is for all that it has mounted: one mount more does not take as much again.
#[test]
fn many_mounts_share_the_memory_of_one_server() {
    if Daemon::is_skipped() {
        return;
    }
    const MOUNTS: u8 = 24;
    const MEMORY_KB: u64 = 512 << 10;
    let program = Path::new(env!("CARGO_BIN_EXE_ashlar"));
    let house = House(Daemon::new(program, Engine::Files, "many").expect("a temporary directory"));
    let device = format!("{},size=2GiB", house.place("disk.img").display());
    let places: Vec<PathBuf> = (0..MOUNTS).map(|index| house.place(&format!("place{index}"))).collect();
    for (index, place) in places.iter().enumerate() {
        let name = format!("fs{index}");
        let device: &[&str] = if index == 0 { &["--device", &device] } else { &[] };
        house.done(&[&["fs", "create", &name], device].concat());
        house.done(&["mount", &name, place.to_str().expect("text"), "--memory", "512MiB"]);
    }
    // Large requests at all of them at once.
    let content = |index: u8| vec![index; 8 << 20];
    std::thread::scope(|scope| {
        for (index, place) in (0..).zip(&places) {
            scope.spawn(move || {
                let large = place.join("large");
                std::fs::write(&large, content(index)).expect("written");
                let file = std::fs::File::open(&large).expect("opened");
                file.sync_all().expect("synced");
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
                assert!(std::fs::read(&large).expect("read") == content(index), "{large:?} is as it was written");
            });
        }
    });
    let server = house.done(&["status"])["pid"].as_u64().expect("a number");
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    let peak: u64 = peak.expect("the kernel tells it");
    house.done(&["down"]);
    assert!(peak <= MEMORY_KB, "{peak} kB of {MEMORY_KB}");
}
