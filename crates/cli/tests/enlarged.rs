//! A pool on a file that becomes larger. Needs root and /dev/fuse.

use ashlar_fuzz::incompressible;
use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The answer; and what was said if that is a refusal.
fn ask(daemon: &Daemon, arguments: &[&str]) -> Result<Value, String> {
    let output = daemon.command(arguments).arg("--json").output().expect("it runs");
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)),
        false => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// Bytes of the pool, and of what its devices became larger by.
fn size(daemon: &Daemon) -> (u64, u64) {
    let status = ask(daemon, &["status"]).expect("it is known");
    (status["capacity"].as_u64().expect("a number"), status["unused_ends"].as_u64().expect("a number"))
}

fn enlarge(device: &Path, size: u64) {
    File::options().write(true).open(device).and_then(|file| file.set_len(size)).expect("it grows");
}

#[test]
fn a_pool_takes_what_its_file_became_larger_by() {
    const LEN: usize = 24 << 20;
    if Daemon::is_skipped() {
        return;
    }
    let daemon = Daemon::new(Path::new(env!("CARGO_BIN_EXE_ashlar")), Engine::Files, "enlarged").expect("a directory");
    let home = daemon.mount().parent().map(PathBuf::from).expect("it has a home");
    let (pool, device) = (home.join("pool"), home.join("device.img"));
    let argument = format!("{},size=64MiB", device.display());
    ask(&daemon, &["pool", "create", pool.to_str().expect("text"), "--device", &argument]).expect("made");
    let up = || daemon.up().unwrap_or_else(|error| panic!("{error}"));
    let name = |number: u8| daemon.mount().join(number.to_string());
    let store = |number: u8| {
        fs::write(name(number), incompressible(number.into(), LEN)).and_then(|()| File::open(name(number))?.sync_all())
    };
    up();
    store(0).expect("there is room");
    let (capacity, unused) = size(&daemon);
    assert_eq!((capacity >> 20, unused), (62, 0));
    let refused = ask(&daemon, &["pool", "grow"]).expect_err("nothing is larger");
    assert!(refused.contains("enlarge one first"), "{refused}");
    enlarge(&device, 70 << 20);
    let refused = ask(&daemon, &["pool", "grow"]).expect_err("it is too little");
    assert!(refused.contains("6 MiB more of") && refused.contains("takes at least 13.1 MiB"), "{refused}");
    let refused = ask(&daemon, &["pool", "grow", "--device", device.to_str().expect("text")]).expect_err("it is there");
    assert!(refused.contains("or none to take what it became larger by"), "{refused}");
    // While it is mounted, and something is written.
    enlarge(&device, 192 << 20);
    assert_eq!(size(&daemon), (capacity, 128 << 20));
    let writer = std::thread::scope(|scope| {
        let writer = scope.spawn(|| store(1));
        ask(&daemon, &["pool", "grow"]).expect("it grows");
        writer.join().expect("no panic")
    });
    // It may have found the pool full a moment before.
    writer.or_else(|_| store(1)).expect("there is room");
    (2..6).for_each(|number| store(number).expect("there is room"));
    let larger = size(&daemon);
    assert_eq!((larger.0 >> 20, larger.1), (62 + 126, 0));
    daemon.kill().and_then(|()| daemon.down()).unwrap_or_else(|error| panic!("{error}"));
    up();
    let holds = || {
        (0..6).for_each(|number| assert!(fs::read(name(number)).expect("there") == incompressible(number.into(), LEN)))
    };
    holds();
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
    // And while it is not.
    enlarge(&device, 256 << 20);
    ask(&daemon, &["pool", "grow"]).expect("it grows");
    assert_eq!(size(&daemon).0 >> 20, 62 + 126 + 62);
    daemon.check().unwrap_or_else(|error| panic!("{error}"));
    up();
    holds();
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
    // What it had once, it needs.
    enlarge(&device, 200 << 20);
    let refused = daemon.up().expect_err("the end is missing");
    assert!(refused.contains("device 3 of 3 is missing") && refused.contains("as large as then"), "{refused}");
}
