use super::*;
use crate::trace::{Op, flags as open};
use std::collections::{HashMap, HashSet};

fn plan(name: &str, settings: &[&str]) -> Plan {
    let kind = Kind::find(name).expect("it is listed");
    let mut values = kind.values(7);
    settings.iter().for_each(|setting| values.set(setting).expect("it fits"));
    kind.plan(&values).expect("a plan")
}

/// Setup and run in order, after the other.
fn all(plan: Plan) -> (Vec<Record>, Vec<Record>) {
    (records(plan.setup).collect(), records(plan.run).collect())
}

/// Settings with which a workload is short.
fn short(name: &str) -> Vec<&'static str> {
    match name {
        "postmark" => vec!["files=300", "transactions=500"],
        "oltp" => vec!["size=1MiB", "readers=20", "writers=2", "loops=200", "reads-per-log-write=400"],
        "build" => vec!["sources=30", "headers=40", "includes=10", "jobs=3"],
        "mailsync" => vec!["messages=60", "boxes=3"],
        "objectbench" => vec!["objects=50", "requests=200"],
        "smallfile" => vec!["files=60"],
        _ => vec!["files=400", "threads=4", "loops=20"],
    }
}

/// The kinds that need nothing of this machine.
fn own_kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.into_iter().filter(|kind| kind.name != "git-history")
}

/// Applies calls to a model of a file system; the first that does not fit is told.
#[derive(Default)]
struct Model {
    directories: HashSet<String>,
    files: HashMap<String, u64>,
    open: HashMap<u64, String>,
    seen: HashSet<u64>,
}

impl Model {
    fn apply(&mut self, record: &Record) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {record:?}"));
        let path = record.path.clone();
        let parent = |path: &str| path.rsplit_once('/').map(|(above, _)| above.to_string()).unwrap_or_default();
        let parent_there =
            |model: &Model, path: &str| parent(path).is_empty() || model.directories.contains(&parent(path));
        let there = self.files.contains_key(&path) || self.directories.contains(&path) || path == "/";
        match record.op {
            Op::Open => {
                if !self.seen.insert(record.file) {
                    return wrong("a number of a file again");
                }
                let create = record.flags & open::CREATE != 0;
                if !parent_there(self, &path) || (there && record.flags & open::EXCLUSIVE != 0) || (!there && !create) {
                    return wrong("cannot be opened");
                }
                if create && (!there || record.flags & open::CUT != 0) {
                    self.files.insert(path.clone(), 0);
                }
                self.open.insert(record.file, path);
            }
            Op::Close if self.open.remove(&record.file).is_none() => return wrong("not open"),
            Op::Close => {}
            _ if record.file != 0 => {
                let Some(name) = self.open.get(&record.file).filter(|name| **name == path) else {
                    return wrong("not open");
                };
                let end = record.offset + record.len;
                match (record.op, self.files.get_mut(name)) {
                    (Op::Read, Some(size)) if end > *size => return wrong("reads past the end"),
                    (Op::Write, Some(size)) => *size = end.max(*size),
                    _ => {}
                }
            }
            Op::Stat if there != (record.error == 0) => return wrong("there or not"),
            Op::Stat | Op::Chmod => {}
            Op::Mkdir if there || !parent_there(self, &path) => return wrong("cannot be made"),
            Op::Mkdir => {
                self.directories.insert(path);
            }
            Op::Rmdir if !self.directories.remove(&path) => return wrong("no directory"),
            Op::Rmdir => {}
            Op::Unlink if self.files.remove(&path).is_none() => return wrong("no file"),
            Op::Unlink => {}
            Op::Rename => match self.files.remove(&path) {
                Some(size) => {
                    self.files.insert(record.path2.clone(), size);
                }
                None => return wrong("no file"),
            },
            _ => return wrong("not expected here"),
        }
        Ok(())
    }
}

#[test]
fn every_call_fits_what_is_there_and_the_seed_decides_all() {
    for kind in own_kinds() {
        let (setup, run) = all(plan(kind.name, &short(kind.name)));
        let mut model = Model::default();
        for record in setup.iter().chain(&run) {
            model.apply(record).unwrap_or_else(|error| panic!("{}: {error}", kind.name));
        }
        assert!(!run.is_empty() && model.open.is_empty(), "{}", kind.name);
        let times = |records: &[Record]| records.iter().map(|record| record.at_ns).collect::<Vec<_>>();
        assert!(times(&run).is_sorted() && times(&setup).is_sorted());
        assert_eq!(all(plan(kind.name, &short(kind.name))), (setup, run), "{}", kind.name);
    }
}

#[test]
fn parameters_are_checked() {
    let mut values = Kind::find("postmark").expect("it is listed").values(0);
    for (wrong, expected) in [
        ("files", "NAME=VALUE"),
        ("files=-1", "number up to"),
        ("flies=1", "there are files, transactions"),
        ("low=many", "a size"),
        ("read=2", "from 0 to 1"),
    ] {
        let error = values.set(wrong).expect_err(wrong).to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(values.described(), "postmark seed=0");
    values.set("files=10").expect("it fits");
    assert_eq!(values.described(), "postmark files=10 seed=0");
    assert!(Kind::find("webserver2").expect_err("not listed").to_string().contains("varmail"));
    for kind in KINDS {
        let mut values = kind.values(0);
        for parameter in kind.parameters {
            values.set(&format!("{}={}", parameter.name, parameter.default)).expect("defaults fit");
        }
    }
    for kind in own_kinds() {
        for parameter in kind.parameters.iter().filter(|parameter| parameter.unit != Unit::Path) {
            // Zeros are refused or mean nothing; they make no panic and no endless loop.
            let mut values = kind.values(0);
            short(kind.name).iter().for_each(|setting| values.set(setting).expect("it fits"));
            if values.set(&format!("{}=0", parameter.name)).is_ok()
                && let Ok(plan) = kind.plan(&values)
            {
                assert!(records(plan.setup).chain(records(plan.run)).take(2_000_000).count() < 2_000_000);
            }
        }
    }
}

#[test]
fn postmark_has_the_numbers_of_the_thesis() {
    let (_, run) = all(plan("postmark", &[]));
    let count = |op: Op| run.iter().filter(|record| record.op == op).count();
    let creations = run.iter().filter(|record| record.flags & open::CREATE != 0).count();
    // 5,000 at first and about half of 20,000; all are deleted.
    assert!((14_700..15_300).contains(&creations) && count(Op::Unlink) == creations, "{creations}");
    let written: u64 = run.iter().filter(|record| record.op == Op::Write).map(|record| record.len).sum();
    // Digest: 95 MB written, with 20,000 operations. Files of 8.4 kB on average are 126 MB alone, appends some more.
    assert!((120_000_000..190_000_000).contains(&written), "{written}");
    assert!(run.iter().all(|record| record.offset + record.len <= 16 << 10));
}

// The digest of FAST '10, check 1.
#[test]
fn depths_are_those_of_table_1() {
    for (files, width, exact, table) in
        [(20_000, 20, 3.306, 3.3), (50_000, 20, 3.612, 3.6), (50_000, 1_000_000, 0.783, 0.8), (10, 1024, 0.332, 0.3)]
    {
        let depth = depth(files, width);
        assert!((depth - exact).abs() < 0.0005 && (depth - table).abs() < 0.05, "{depth} {exact}");
    }
}

/// Sizes of files that are made at the beginning.
fn sizes(setup: impl Iterator<Item = Record>) -> Vec<f64> {
    let mut sizes = HashMap::new();
    for record in setup {
        match record.op {
            Op::Open if !record.path.ends_with("log") => *sizes.entry(record.path).or_insert(0.0) += 0.0,
            Op::Write if !record.path.ends_with("log") => *sizes.entry(record.path).or_insert(0.0) += record.len as f64,
            _ => {}
        }
    }
    sizes.into_values().collect()
}

// The digest of FAST '10, check 4.
#[test]
fn servers_have_the_numbers_of_table_1() {
    for (name, files, mean) in
        [("webserver", 20_000.0, 32.0), ("fileserver", 40_000.0, 256.0), ("varmail", 40_000.0, 16.0)]
    {
        let sizes = sizes(records(plan(name, &[]).setup));
        let count = sizes.len() as f64;
        assert!((count / files - 1.0).abs() < 0.02, "{name}: {count}");
        let found = sizes.iter().sum::<f64>() / count;
        assert!((found / (mean * 1024.0) - 1.0).abs() < 0.05, "{name}: {found}");
        // The variance of a gamma distribution is the square of its mean divided by its shape.
        let variance = sizes.iter().map(|size| (size - found).powi(2)).sum::<f64>() / count;
        let shape = found * found / variance;
        assert!((shape / 1.5 - 1.0).abs() < 0.05, "{name}: shape {shape}");
    }
    let database = records(plan("oltp", &[]).setup);
    let sizes = sizes(database);
    assert!(sizes.len() == 10 && sizes.iter().all(|size| *size == (512 << 20) as f64), "{sizes:?}");
}

/// How many whole files are read, files are written or appended to, and the bytes of appends.
fn flows(run: &[Record]) -> (f64, f64, HashSet<u64>) {
    let flags: HashMap<u64, u64> = run.iter().filter(|r| r.op == Op::Open).map(|r| (r.file, r.flags)).collect();
    let first_reads: HashSet<u64> = run.iter().filter(|r| r.op == Op::Read).map(|r| r.file).collect();
    let is_append = |r: &&Record| flags[&r.file] & open::APPEND != 0;
    let appends: Vec<&Record> = run.iter().filter(|r| r.op == Op::Write).filter(is_append).collect();
    let made = flags.values().filter(|flags| **flags & open::CREATE != 0).count();
    (first_reads.len() as f64, (appends.len() + made) as f64, appends.iter().map(|r| r.len).collect())
}

// The digest of FAST '10, check 4: R:W and sizes of appends.
#[test]
fn servers_read_and_write_as_table_1_says() {
    for (name, ratio) in [("webserver", 10.0), ("fileserver", 0.5), ("varmail", 1.0)] {
        // Sizes far from zero, since of an empty file nothing is read.
        let (_, run) = all(plan(name, &["files=2000", "threads=10", "loops=40", "shape=20"]));
        let (reads, writes, appends) = flows(&run);
        assert!((reads / writes / ratio - 1.0).abs() < 0.02, "{name}: {reads} {writes}");
        assert_eq!(appends, HashSet::from([16 << 10]), "{name}");
        let threads: HashSet<u64> = run.iter().map(|record| record.thread).collect();
        assert_eq!(threads.len(), 10);
    }
    let (_, run) = all(plan("oltp", &["loops=20", "reads-per-log-write=1000"]));
    let count = |op: Op, len: u64| run.iter().filter(|record| record.op == op && record.len == len).count();
    assert_eq!((count(Op::Read, 2048), count(Op::Write, 2048), count(Op::Write, 256 << 10)), (4000, 200, 4));
    let threads: HashSet<u64> = run.iter().map(|record| record.thread).collect();
    assert_eq!(threads.len(), 211);
    let synced = |record: &&Record| record.flags & open::DATA_SYNC != 0;
    assert!(run.iter().filter(synced).all(|record| record.path == "/db/log"));
}

#[test]
fn a_repository_is_checked_out() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let git = std::process::Command::new("git").args(["-C", manifest, "rev-parse", "HEAD"]).output();
    if !git.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: the sources are in no repository");
        return;
    }
    let setting = format!("repository={manifest}");
    let (setup, run) = all(plan("git-history", &[&setting, "records=3000"]));
    let mut model = Model::default();
    for record in setup.iter().chain(&run) {
        model.apply(record).expect("it fits");
    }
    assert!(model.files.len() > 20 && run.iter().any(|record| record.op == Op::Read));
    let error = Kind::find("git-history").expect("it is listed");
    let mut values = error.values(0);
    values.set("repository=/nowhere").expect("a path");
    assert!(error.plan(&values).err().expect("no repository").to_string().contains("/nowhere"));
}
