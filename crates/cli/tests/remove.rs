//! Trees that `ashlar remove` takes away from a mount, while programs use them. Needs root and /dev/fuse.

use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A moment that never comes.
const PATIENCE: Duration = Duration::from_secs(60);
const ENGINES: [Engine; 2] = [Engine::Files, Engine::Betr];

struct House(Daemon);

impl House {
    /// One that is up, if there can be one here.
    fn build(engine: Engine, name: &str) -> Option<House> {
        if Daemon::is_skipped() {
            return None;
        }
        let program = Path::new(env!("CARGO_BIN_EXE_ashlar"));
        let daemon = Daemon::new(program, engine, &format!("{name}-{engine}")).expect("a temporary directory");
        daemon.up().unwrap_or_else(|error| panic!("{error}"));
        Some(House(daemon))
    }
    fn remove(&self, arguments: &[&str]) -> Output {
        self.0.command(&[&["remove"], arguments].concat()).output().expect("the program runs")
    }
    fn removed(&self, arguments: &[&str]) -> String {
        let output = self.remove(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }
    fn refused(&self, path: &Path, said: &str) {
        let output = self.remove(&[text(path)]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(said), "{path:?}: {output:?}");
    }
    /// Everything that was taken away is removed.
    fn wait(&self) {
        until_gone(&self.0.mount().join(".ashlar-removed"));
    }
    fn end(self) {
        self.0.down().unwrap_or_else(|error| panic!("{error}"));
        self.0.check().unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Others remove it meanwhile.
fn until_gone(path: &Path) {
    let began = Instant::now();
    while path.exists() {
        assert!(began.elapsed() < PATIENCE, "{} is never removed", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A tree of so many directories with 40 files each, and its names but for the topmost.
fn plant(at: &Path, directories: u64) -> u64 {
    for directory in 0..directories {
        let directory = at.join(format!("{directory}/a/b"));
        fs::create_dir_all(&directory).expect("made");
        for file in 0..40 {
            fs::write(directory.join(file.to_string()), vec![7; 900 * file]).expect("written");
        }
    }
    directories * (3 + 40)
}

fn names(at: &Path) -> Vec<String> {
    let listed = fs::read_dir(at).expect("listed");
    let mut names: Vec<String> =
        listed.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn a_tree_is_gone_and_what_is_in_use_or_has_another_name_stays() {
    for engine in ENGINES {
        let Some(house) = House::build(engine, "remove") else { return };
        let (at, tree) = (house.0.mount(), house.0.mount().join("d/tree"));
        let planted = plant(&tree, 5);
        symlink("../..", tree.join("up")).expect("linked");
        fs::hard_link(tree.join("3/a/b/30"), at.join("kept")).expect("linked");
        let mut open = File::open(tree.join("2/a/b/20")).expect("opened");

        let said = house.removed(&[text(&tree)]);
        assert_eq!(said, format!("removed {}, {} names in all\n", tree.display(), planted + 2));
        assert!(!tree.exists() && names(&at.join("d")).is_empty());
        assert_eq!(names(&at), ["d", "kept"]);
        assert_eq!(fs::read(at.join("kept")).expect("readable"), vec![7; 27_000]);
        assert_eq!(fs::metadata(at.join("kept")).expect("there").nlink(), 1);
        let mut read = Vec::new();
        open.rewind().and_then(|()| open.read_to_end(&mut read)).expect("readable");
        assert_eq!(read, vec![7; 18_000], "what is open is gone");

        // The name is free at once, and what is made there is another's.
        plant(&tree, 20);
        let said = house.removed(&["--no-wait", text(&tree)]);
        assert!(said.contains("gone"), "{said}");
        assert!(!tree.exists());
        plant(&tree, 1);
        house.wait();
        assert_eq!(fs::read(tree.join("0/a/b/39")).expect("readable"), vec![7; 900 * 39]);
        assert_eq!(names(&tree), ["0"]);

        // A link is removed, and not what it leads to; several at once.
        symlink("d", at.join("link")).expect("linked");
        let said = house.removed(&[text(&at.join("link")), text(&at.join("kept"))]);
        assert_eq!(said, "removed 2 files and directories\n");
        assert_eq!(names(&at), ["d"]);
        house.removed(&[&format!("{}/", text(&at.join("d")))]);
        assert!(names(&at).is_empty());

        // Not every name is text.
        let odd = at.join(OsStr::from_bytes(b"n\xff"));
        fs::write(&odd, b"x").expect("written");
        let mut command = house.0.command(&["remove"]);
        assert!(command.arg(&odd).status().expect("the program runs").success());
        assert!(names(&at).is_empty());
        house.end();
    }
}

#[test]
fn what_cannot_be_removed_is_refused() {
    let Some(house) = House::build(Engine::Betr, "remove-refused") else { return };
    let (at, elsewhere) = (house.0.mount(), house.0.mount().with_file_name("elsewhere"));
    plant(&at.join("tree"), 1);
    fs::create_dir(&elsewhere).expect("made");
    house.refused(&at.join("nothing"), "No such file");
    house.refused(&at.join("tree/.."), "cannot be removed");
    house.refused(&at.join("tree/."), "cannot be removed");
    house.refused(&at, "something is mounted");
    house.refused(&elsewhere, "on no file system of this pool");
    let bind = |arguments: &[&str]| {
        let status = Command::new(arguments[0]).args(&arguments[1..]).status().expect("it runs");
        assert!(status.success(), "{arguments:?}");
    };
    let below = at.join("tree/0/a");
    bind(&["mount", "--bind", text(&elsewhere), text(&below)]);
    house.refused(&at.join("tree"), &format!("something is mounted at {}", below.display()));
    bind(&["umount", text(&below)]);
    let snapshot = at.with_file_name("snapshot");
    for arguments in [vec!["snapshot", "create", "main@now"], vec!["snapshot", "mount", "main@now", text(&snapshot)]] {
        assert!(house.0.command(&arguments).status().expect("it runs").success());
    }
    house.refused(&snapshot.join("tree"), "read-only");
    assert_eq!((names(&at), names(&snapshot)), (vec!["tree".to_string()], vec!["tree".to_string()]));
    assert_eq!(fs::read(at.join("tree/0/a/b/2")).expect("readable"), vec![7; 1800]);
    house.0.down().unwrap_or_else(|error| panic!("{error}"));
    house.refused(&elsewhere, "is not up");
}

/// Whoever ends the server, or kills it, ends clearing as well; the next server goes on with it.
#[test]
fn clearing_goes_on_after_the_server_went() {
    for engine in ENGINES {
        let Some(house) = House::build(engine, "remove-goes-on") else { return };
        let at = house.0.mount();
        plant(&at.join("first"), 60);
        plant(&at.join("second"), 60);
        File::open(&at).and_then(|root| root.sync_all()).expect("synced");
        house.removed(&["--no-wait", text(&at.join("first"))]);
        File::open(&at).and_then(|root| root.sync_all()).expect("synced");
        house.0.kill().unwrap_or_else(|error| panic!("{error}"));
        house.0.up().unwrap_or_else(|error| panic!("{error}"));
        house.wait();
        assert_eq!(names(&at), ["second"]);
        let waiting = {
            let mut command = house.0.command(&["remove", text(&at.join("second"))]);
            std::thread::spawn(move || command.output().expect("the program runs"))
        };
        until_gone(&at.join("second"));
        house.0.down().unwrap_or_else(|error| panic!("{error}"));
        let waited = waiting.join().expect("it ends");
        let said = String::from_utf8_lossy(&waited.stderr);
        assert!(waited.status.success() || said.contains("when it is up again"), "{waited:?}");
        house.0.up().unwrap_or_else(|error| panic!("{error}"));
        house.wait();
        assert!(names(&at).is_empty());
        house.end();
    }
}
