//! A mount as the upper layer of overlayfs, as containers have it. Needs root, /dev/fuse and overlayfs.

use ashlar_models::Chance;
use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names in each directory.
const NAMES: u64 = 8;
/// Changes before the machine stops.
const CHANGES: u64 = 400;

#[test]
fn files_are_an_upper_layer_of_overlayfs() {
    overlay(Engine::Files);
}

#[test]
fn so_is_the_write_optimized_engine() {
    overlay(Engine::Betr);
}

fn overlay(engine: Engine) {
    if Daemon::is_skipped() {
        return;
    }
    // Mounting would load it.
    let _ = Command::new("modprobe").arg("overlay").output();
    if !fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("\toverlay")) {
        println!("SKIPPED: there is no overlayfs");
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_ashlar"));
    let daemon = Daemon::new(program, engine, &format!("overlay-{engine}")).expect("a temporary directory");
    let place = |name: &str| daemon.mount().with_file_name(name);
    let (merged, control) = (place("merged"), place("control"));
    daemon.up().expect("it is up");
    for name in ["lower", "upper", "work", "indexed", "indexed work"] {
        fs::create_dir(daemon.mount().join(name)).expect("made");
    }
    fs::create_dir(&merged).expect("made");
    // What a layer below has, and the same as ordinary files.
    for tree in [daemon.mount().join("lower"), control.clone()] {
        for directory in ["0", "1", "1/0", "2"] {
            fs::create_dir_all(tree.join(directory)).expect("made");
            for name in 3..NAMES {
                fs::write(tree.join(directory).join(name.to_string()), format!("{directory} {name}")).expect("written");
            }
        }
    }
    let indexed = Overlay::new(&daemon.mount(), ["indexed", "indexed work"], "index=on", &merged);
    assert!(indexed.is_none(), "an index is refused, since Linux would not find what it notes");
    // Directories of the layer below can be moved, too.
    let mount = || Overlay::new(&daemon.mount(), ["upper", "work"], "redirect_dir=on", &merged).expect("mounted");
    let overlaid = mount();
    let seed = 2026;
    let mut chance = Chance::new(seed);
    for number in 0..CHANGES {
        let (from, to, what) = (path(&mut chance), path(&mut chance), chance.below(6));
        let done = [&merged, &control].map(|tree| change(&tree.join(&from), &tree.join(&to), what, number));
        assert_eq!(done[0], done[1], "{engine}, seed {seed}, change {number}: {what} of {from:?}, {to:?}");
    }
    let expected = contents(&control);
    assert_eq!(contents(&merged), expected, "{engine}, seed {seed}");
    assert!(whiteouts(&daemon.mount().join("upper")) > 3, "the layer below is hidden in part");
    File::open(daemon.mount()).and_then(|root| root.sync_all()).expect("synced");
    daemon.kill().expect("killed");
    drop(overlaid);
    daemon.up().expect("it is up again");
    let overlaid = mount();
    assert_eq!(contents(&merged), expected, "{engine}, seed {seed}, after kill -9");
    drop(overlaid);
    daemon.down().expect("it is down");
    daemon.check().expect("everything is in order");
}

/// An overlay, until it is dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn new(mount: &Path, [upper, work]: [&str; 2], options: &str, at: &Path) -> Option<Overlay> {
        let layer = |name: &str| mount.join(name).to_str().expect("text").to_string();
        let layers = format!("lowerdir={},upperdir={},workdir={}", layer("lower"), layer(upper), layer(work));
        let mut command = Command::new("mount");
        command.args(["-t", "overlay", "overlay", "-o", &format!("{layers},{options}")]).arg(at);
        command.status().expect("mount runs").success().then(|| Overlay(at.to_path_buf()))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A place one to three levels down.
fn path(chance: &mut Chance) -> PathBuf {
    (0..=chance.below(3)).map(|_| chance.below(NAMES).to_string()).collect()
}

/// Changes something; gives the kind of the error.
fn change(from: &Path, to: &Path, what: u64, number: u64) -> Result<(), io::ErrorKind> {
    let done = match what {
        0 => fs::write(from, format!("new {number}")),
        1 => fs::create_dir(from),
        2 => fs::remove_file(from),
        3 => fs::remove_dir(from),
        4 => File::options().append(true).open(from).and_then(|mut file| io::Write::write_all(&mut file, b"more")),
        _ => fs::rename(from, to),
    };
    done.map_err(|error| error.kind())
}

/// Everything below a directory: files with what they hold, directories with nothing.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(directory.join(&below)).expect("listed") {
            let entry = entry.expect("listed");
            let path = below.join(entry.file_name());
            if entry.file_type().expect("known").is_dir() {
                waiting.push(path.clone());
                found.insert(path, None);
            } else {
                let read = fs::read(entry.path()).unwrap_or_else(|error| panic!("{:?}: {error}", entry.path()));
                found.insert(path, Some(read));
            }
        }
    }
    found
}

/// Whiteouts below a directory.
fn whiteouts(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("listed"));
    let count = entries.map(|entry| match entry.file_type().expect("known") {
        kind if kind.is_dir() => whiteouts(&entry.path()),
        kind => usize::from(kind.is_char_device()),
    });
    count.sum()
}
