//! A pool on a file with holes, in a file system that others fill. Needs root, /dev/fuse, loop devices and mkfs.ext4.

use ashlar_fuzz::incompressible;
use ashlar_prove::Daemon;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small file system, and beside it a place to mount a pool's. Gone at the end.
struct Disk(PathBuf);

impl Disk {
    fn new(name: &str, bytes: u64) -> Option<Disk> {
        if Daemon::is_skipped() {
            return None;
        }
        let directory = std::env::temp_dir().join(format!("ashlar-full-below-{name}-{}", std::process::id()));
        ["disk", "mnt"].iter().for_each(|name| fs::create_dir_all(directory.join(name)).expect("made"));
        let image = directory.join("image");
        File::create(&image).and_then(|image| image.set_len(bytes)).expect("made");
        let disk = Disk(directory);
        let made = Command::new("mkfs.ext4").arg("-q").arg(&image).stderr(Stdio::null()).status();
        let mount = || Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.0.join("disk")).status();
        if !made.is_ok_and(|made| made.success()) || !mount().is_ok_and(|mounted| mounted.success()) {
            println!("SKIPPED: there is no mkfs.ext4, or no loop device");
            return None;
        }
        Some(disk)
    }

    fn pool(&self) -> PathBuf {
        self.0.join("disk/pool")
    }

    fn mount(&self) -> PathBuf {
        self.0.join("mnt")
    }

    fn ashlar(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.arg("--pool").arg(self.pool()).arg("--json").args(arguments).stdin(Stdio::null());
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    fn up(&self) {
        let at = self.mount();
        self.ashlar(&["up", "--mount", at.to_str().expect("text"), "--detach"]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut down = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        let _ = down.arg("--pool").arg(self.pool()).arg("down").output();
        let _ = Command::new("umount").arg(self.0.join("disk")).output();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes a file durable, or removes it again.
fn store(path: &Path, data: &[u8]) -> io::Result<()> {
    let stored = File::create(path).and_then(|mut file| file.write_all(data).and_then(|()| file.sync_all()));
    if stored.is_err() {
        let _ = fs::remove_file(path);
    }
    stored
}

/// Others can have what was deleted, once the pool has said that it is free.
#[test]
fn a_file_gives_back_what_is_free() {
    let Some(disk) = Disk::new("trim", 512 << 20) else { return };
    fs::create_dir(disk.pool()).expect("made");
    let device = disk.pool().join("device.img");
    let argument = format!("{},size=1GiB", device.to_str().expect("text"));
    disk.ashlar(&["pool", "create", disk.pool().to_str().expect("text"), "--device", &argument]);
    disk.up();
    let name = |number: u64| disk.mount().join(number.to_string());
    let taken = || fs::metadata(&device).expect("it is there").blocks() * 512;
    let len = 3 << 20;
    (0..80).for_each(|number| store(&name(number), &incompressible(number, len)).expect("there is room"));
    let full = taken();
    // Some is kept ahead of who writes; at least half of what is removed must come back.
    let wanted = 78 * len as u64 / 2;
    let removed: Vec<PathBuf> = (2..80).map(name).collect();
    let removed = removed.iter().map(|path| path.to_str().expect("text"));
    disk.ashlar(&["remove"].into_iter().chain(removed).collect::<Vec<_>>());
    let told = disk.ashlar(&["pool", "trim"]);
    assert_eq!(told["unable"], serde_json::json!([]), "{told}");
    assert!(told["given_back"].as_u64() > Some(wanted), "{told}");
    assert!(taken() < full - wanted, "{full} and {}", taken());
    (0..2).for_each(|number| {
        assert!(fs::read(name(number)).expect("readable") == incompressible(number, len), "{number}")
    });
    store(&disk.0.join("disk/other"), &incompressible(9, 200 << 20)).expect("others have the room");
    disk.ashlar(&["down"]);
    disk.ashlar(&["pool", "trim"]);
    let check = disk.ashlar(&["check"]);
    assert_eq!(check["damaged"], serde_json::json!([]), "{check}");
}

#[test]
fn a_full_file_system_below_makes_a_full_pool() {
    let Some(disk) = Disk::new("full", 128 << 20) else { return };
    // The log of the daemon lies there, too.
    fs::create_dir(disk.pool()).expect("made");
    let device = format!("{},size=1GiB", disk.pool().join("device.img").to_str().expect("text"));
    disk.ashlar(&["pool", "create", disk.pool().to_str().expect("text"), "--device", &device]);
    disk.up();
    let name = |number: u64| disk.mount().join(number.to_string());
    let len = 3 << 20;
    let mut stored = 0;
    let refused = loop {
        match store(&name(stored), &incompressible(stored, len)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 43, "it holds more than it has room for");
    };
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
    assert!(stored >= 20, "{stored}: most of the file system can be used");
    let status = disk.ashlar(&["status"]);
    assert!(status["full_below"] == true && status["stopped"].is_null() && status["free"] == 0, "{status}");
    for round in 0..2 {
        for number in round..stored {
            assert!(
                fs::read(name(number)).expect("readable") == incompressible(number, len),
                "file {number} reads otherwise"
            );
        }
        if round == 0 {
            // It goes, and comes again, where not a byte is left.
            fs::remove_file(name(0)).expect("a full pool takes deletions");
            disk.ashlar(&["down"]);
            disk.up();
        }
    }
    (1..stored / 2).for_each(|number| fs::remove_file(name(number)).expect("a full pool takes deletions"));
    let again = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        store(&name(0), &incompressible(0, len)).is_ok()
    });
    assert!(again, "what was deleted is free");
    disk.ashlar(&["down"]);
    let check = disk.ashlar(&["check"]);
    assert_eq!(check["damaged"], serde_json::json!([]), "{check}");
}
