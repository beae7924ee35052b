use super::*;
use crate::age::image::{Image, Kind};
use ashlar_vfs::Engine;
use std::fs;

/// A directory of a test's own.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-stands-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("made");
        Scratch(path)
    }

    fn options(&self, place: Place) -> StandOptions {
        StandOptions { scratch: self.0.clone(), ..StandOptions::new(place, "/nonexistent/ashlar".into()) }
    }

    fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("it is there").flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn can_mount(kind: Kind, name: &str) -> bool {
    let scratch = Scratch::new(&format!("{name}-can"));
    match Stand::open(&scratch.options(Place::Fresh(kind, Bytes::mib(512)))).and_then(Stand::put_away) {
        Ok(()) => true,
        Err(error) if rustix::process::geteuid().is_root() && !error.to_string().contains("is it installed") => {
            panic!("root can mount: {error}")
        }
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            false
        }
    }
}

#[test]
fn places() {
    for (text, expected) in [
        ("ext4:1GiB", Place::Fresh(Kind::Ext4, Bytes::gib(1))),
        ("ashlar:2GiB", Place::Ashlar(Engine::Files, Bytes::gib(2))),
        ("ashlar-betr:2GiB", Place::Ashlar(Engine::Betr, Bytes::gib(2))),
        ("a/b:c", Place::Path("a/b:c".into())),
        ("aged.img", Place::Path("aged.img".into())),
    ] {
        assert_eq!(text.parse(), Ok(expected.clone()));
        assert_eq!(expected.to_string(), text);
    }
    for wrong in ["ext5:1GiB", "ashlar:", "xfs:many"] {
        wrong.parse::<Place>().expect_err(wrong);
    }
}

#[test]
fn a_directory_is_left_as_it_was() {
    let scratch = Scratch::new("directory");
    fs::write(scratch.0.join("theirs"), "x").expect("space");
    let options = scratch.options(Place::Path(scratch.0.clone()));
    let mut stand = Stand::open(&options).expect("a directory");
    fs::write(stand.path().join("a"), vec![1; 100_000]).expect("space");
    let second = Stand::open(&options).expect_err("one at a time").to_string();
    assert!(second.contains("already"), "{second}");
    let coldness = stand.cold().expect("it is there");
    assert!(!coldness.remounted && coldness.names == 1, "{coldness:?}");
    stand.renew().expect("it is there");
    assert!(!stand.path().join("a").exists() && stand.path().is_dir());
    stand.put_away().expect("it is there");
    assert_eq!(scratch.entries(), ["theirs"]);
    let mut with_device = options.clone();
    with_device.device = Some("wd-re3".into());
    assert!(Stand::open(&with_device).expect_err("no image").to_string().contains("needs an image"));
    assert!(Stand::open(&scratch.options(Place::Path(scratch.0.join("theirs")))).is_err());
    assert_eq!(scratch.entries(), ["theirs"]);
}

#[test]
fn images_become_cold_and_stay_as_they_were() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        if !can_mount(kind, kind.name()) {
            continue;
        }
        let scratch = Scratch::new(kind.name());
        let image = scratch.0.join("given.img");
        let made = Image::new(kind, &image, Path::new(""));
        made.make(Bytes::mib(512), 3, None, false).expect("a file system");
        assert_eq!(Kind::found(&image).expect("a file"), Some(kind));
        let before = fs::read(&image).expect("it is there");
        let options = scratch.options(Place::Path(image.clone()));
        let mut stand = Stand::open(&options).expect("root");
        assert_eq!(stand.file_system(), kind.name());
        fs::create_dir(stand.path().join("d")).expect("space");
        fs::write(stand.path().join("d/a"), vec![1; 100_000]).expect("space");
        let warm = coldness::sample(stand.path()).expect("files");
        assert_eq!(warm.len(), 2);
        coldness::probe(stand.path()).expect("space");
        let warm = coldness::look(stand.path(), &warm, false).expect("files");
        assert!(warm.names_cached == 2 && warm.pages_cached == 16 && !warm.is_cold(), "{warm:?}");
        let cold = stand.cold().expect("root");
        assert!(cold.is_cold() && cold.remounted && cold.names == 2, "{cold:?}");
        assert_eq!(fs::read(stand.path().join("d/a")).expect("it was synced").len(), 100_000);
        stand.renew().expect("root");
        assert_eq!(fs::read_dir(stand.path()).expect("it is there").count(), 0);
        // In place, while another has only a copy; and then nobody else.
        let in_place = Stand::open(&StandOptions { in_place: true, ..options.clone() }).expect("root");
        let refused = Stand::open(&options).expect_err("in use").to_string();
        assert!(refused.contains("is made of it"), "{refused}");
        in_place.put_away().expect("root");
        stand.put_away().expect("root");
        assert_eq!(scratch.entries(), ["given.img"]);
        if kind != Kind::Btrfs {
            continue;
        }
        // Mounting in place changed it; a copy does not.
        let before_copy = fs::read(&image).expect("it is there");
        assert!(before != before_copy);
        let mut stand = Stand::open(&options).expect("root");
        fs::write(stand.path().join("a"), "x").expect("space");
        stand.cold().expect("root");
        stand.put_away().expect("root");
        assert!(fs::read(&image).expect("it is there") == before_copy);
    }
}

#[test]
fn what_a_dead_process_left_is_put_away() {
    if !can_mount(Kind::Ext4, "dead") {
        return;
    }
    let scratch = Scratch::new("dead");
    let options = scratch.options(Place::Fresh(Kind::Ext4, Bytes::mib(64)));
    let stand = Stand::open(&options).expect("root");
    let point = stand.path().to_path_buf();
    // Its lock goes, as with a process, but nothing else does.
    let lock = scratch.0.join(&scratch.entries()[0]).join("lock");
    fs::remove_file(&lock).expect("it is ours");
    fs::write(&lock, "").expect("space");
    std::mem::forget(stand);
    assert!(point.is_dir());
    Stand::open(&options).expect("root").put_away().expect("root");
    assert_eq!(scratch.entries(), Vec::<String>::new());
}

#[test]
fn memory_is_limited_where_that_is_possible() {
    let scratch = Scratch::new("limit");
    let mut stand = Stand::open(&scratch.options(Place::Path(scratch.0.clone()))).expect("a directory");
    let too_low = stand.limit(Bytes::mib(1)).expect_err("too low").to_string();
    assert!(too_low.contains("too low"), "{too_low}");
    match stand.limit(Bytes::gib(8)) {
        Ok(()) => {
            let own = fs::read_to_string("/proc/self/cgroup").expect("proc is there");
            assert!(own.contains(&format!("ashlar-{}", std::process::id())), "{own}");
            stand.cold().expect("it is there");
        }
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            assert!(error.to_string().contains("control group"), "{error}");
        }
    }
    stand.put_away().expect("it is there");
    let own = fs::read_to_string("/proc/self/cgroup").expect("proc is there");
    assert!(!own.contains(&format!("ashlar-{}", std::process::id())), "{own}");
}
