use super::root::below;
use super::*;
use crate::trace::{Op, Record};
use crate::workload::{Kind, records};
use ashlar_units::Bytes;
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

const CREATE: u64 = 0o102;

/// A directory of a test's own, in which `work` is the root of runs.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-run-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("work")).expect("made");
        Scratch(path)
    }
    fn work(&self) -> PathBuf {
        self.0.join("work")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn script(records: &[Record]) -> Script {
    let mut builder = Script::builder(Limits { bytes: Bytes::gib(1) });
    records.iter().for_each(|record| builder.add(record).expect("few"));
    builder.finish().expect("it fits")
}

const OPTIONS: PlayOptions = PlayOptions { pace: Pace::Closed, sync: false, seed: 1 };

fn run(scratch: &Scratch, records: &[Record]) -> (Script, Played) {
    let script = script(records);
    let root = Root::new(&scratch.work(), script.links).expect("it is there");
    let played = play(&script, &root, &OPTIONS, &AtomicBool::new(false)).expect("threads");
    (script, played)
}

fn on(thread: u64, record: Record) -> Record {
    Record { thread, ..record }
}

fn open(thread: u64, path: &str, file: u64, flags: u64) -> Record {
    on(thread, Record { file, flags, mode: 0o644, ..Record::new(Op::Open, path) })
}

fn data(op: Op, thread: u64, path: &str, file: u64, offset: u64, len: u64) -> Record {
    on(thread, Record { file, offset, len, done: len, ..Record::new(op, path) })
}

fn close(thread: u64, path: &str, file: u64) -> Record {
    on(thread, Record { file, ..Record::new(Op::Close, path) })
}

#[test]
fn paths_stay_below() {
    for (path, expected) in [("/a/b", Some("a/b")), ("a", Some("a")), ("/", Some("."))] {
        assert_eq!(below(path), expected);
    }
    let deep = "/a".repeat(129);
    for wrong in ["", "/a/../b", "/..", "..", "/./a", "//a", "/a/", "/a\0b", &"/a".repeat(3000), &deep] {
        assert_eq!(below(wrong), None, "{wrong}");
    }
}

#[test]
fn workloads_run_without_a_failure() {
    for (name, settings) in [
        ("postmark", vec!["files=100", "transactions=200"]),
        ("fileserver", vec!["files=100", "threads=8", "loops=5", "mean=8KiB"]),
        ("webserver", vec!["files=100", "threads=8", "loops=3"]),
        ("varmail", vec!["files=100", "threads=8", "loops=3"]),
        ("oltp", vec!["files=2", "size=1MiB", "readers=8", "writers=2", "loops=30", "reads-per-log-write=40"]),
        ("build", vec!["sources=20", "headers=20", "includes=5", "jobs=4"]),
        ("mailsync", vec!["messages=20", "boxes=2"]),
        ("objectbench", vec!["objects=10", "requests=30"]),
        ("smallfile", vec!["files=40", "threads=3"]),
    ] {
        let scratch = Scratch::new(name);
        let kind = Kind::find(name).expect("it is listed");
        let mut values = kind.values(3);
        settings.iter().for_each(|setting| values.set(setting).expect("it fits"));
        let plan = kind.plan(&values).expect("a plan");
        for part in [plan.setup, plan.run] {
            let all: Vec<Record> = records(part).collect();
            let (script, played) = run(&scratch, &all);
            let summary = Summary::of(&script, &played);
            let Summary { failed_here, failed_there, failed_otherwise, .. } = &summary;
            let differ = failed_here.count + failed_there.count + failed_otherwise.count;
            assert_eq!((differ, summary.calls), (0, all.len() as u64), "{name}: {summary:?}");
            let bytes = |op: Op| all.iter().filter(|r| r.op == op).map(|r| r.len).sum::<u64>();
            assert_eq!((summary.read_bytes, summary.written_bytes), (bytes(Op::Read), bytes(Op::Write)), "{name}");
            // What is measured is a trace again, with the same calls of each thread.
            let measured = played.records(&script);
            assert!(measured.is_sorted_by_key(|record| record.at_ns) && measured.iter().all(|r| r.latency_ns > 0));
            let calls_of = |records: &[Record], thread| -> Vec<(Op, String, u64, u64)> {
                let own = records.iter().filter(|record| record.thread == thread);
                own.map(|r| (r.op, r.path.clone(), r.file, r.offset)).collect()
            };
            for thread in 1..=11 {
                assert_eq!(calls_of(&measured, thread), calls_of(&all, thread), "{name}");
            }
        }
    }
}

#[test]
fn a_call_waits_for_what_it_needs() {
    let records = [
        on(1, Record::new(Op::Mkdir, "/d")),
        open(2, "/d/a", 1, CREATE),
        data(Op::Write, 2, "/d/a", 1, 0, 100),
        close(2, "/d/a", 1),
        open(3, "/d/a", 2, 0),
        data(Op::Read, 3, "/d/a", 2, 0, 100),
        // The same open file in another thread.
        data(Op::Read, 4, "/d/a", 2, 50, 50),
        close(3, "/d/a", 2),
        on(4, Record { path2: "/d/b".into(), ..Record::new(Op::Rename, "/d/a") }),
        on(1, Record::new(Op::Stat, "/d/b")),
        on(2, Record { error: 2, ..Record::new(Op::Stat, "/d/a") }),
        on(3, Record { path2: "/e".into(), ..Record::new(Op::Rename, "/d") }),
        on(1, Record::new(Op::Unlink, "/e/b")),
        on(2, Record::new(Op::Rmdir, "/e")),
    ];
    // Many times, since without waiting it would go well by chance.
    for round in 0..40 {
        let scratch = Scratch::new("waits");
        let (script, played) = run(&scratch, &records);
        let summary = Summary::of(&script, &played);
        let differ = [&summary.failed_here, &summary.failed_there, &summary.failed_otherwise];
        assert!(differ.iter().all(|difference| difference.count == 0), "round {round}: {summary:?}");
        assert_eq!((summary.read_bytes, fs::read_dir(scratch.work()).expect("it is there").count()), (150, 0));
    }
}

#[test]
fn independent_threads_do_not_wait() {
    let records: Vec<Record> = (0..20)
        .flat_map(|number| [1, 2].map(|thread| on(thread, Record::new(Op::Mkdir, format!("/t{thread}-{number}")))))
        .collect();
    let script = script(&records);
    assert_eq!(script.size(), (40, 2));
    assert!(script.calls.iter().all(|call| script.waits(call).is_empty()));
}

#[test]
fn threads_that_do_not_overlap_share_one() {
    let records: Vec<Record> =
        (0..3000).map(|thread| on(thread, Record { error: 2, ..Record::new(Op::Stat, "/x") })).collect();
    assert_eq!(script(&records).size(), (3000, 1));
    let mut builder = Script::builder(Limits { bytes: Bytes::gib(1) });
    for record in records.iter().chain(&records) {
        builder.add(record).expect("few");
    }
    assert_eq!(builder.finish().err(), Some(ScriptError::Threads));
}

#[test]
fn what_a_trace_writes_is_bounded() {
    let mut builder = Script::builder(Limits { bytes: Bytes(100) });
    builder.add(&data(Op::Write, 1, "/a", 1, 0, 101)).expect("few");
    assert_eq!(builder.finish().err(), Some(ScriptError::Bytes(Bytes(101), Bytes(100))));
    let script = script(&[
        data(Op::Write, 1, "/a", 1, u64::MAX, 1),
        data(Op::Write, 1, "/a", 1, 1 << 44, 1),
        data(Op::Read, 1, "/a", 1, 0, 1 << 40),
        Record::new(Op::Unlink, "/../a"),
        Record { path2: "../b".into(), ..Record::new(Op::Rename, "/a") },
    ]);
    assert_eq!(script.size(), (0, 0));
    assert_eq!(script.dropped.values().sum::<u64>(), 5);
}

#[test]
fn symbolic_links_lead_nowhere_else() {
    let scratch = Scratch::new("links");
    fs::create_dir(scratch.0.join("outside")).expect("made");
    fs::write(scratch.0.join("outside/secret"), "x").expect("space");
    let symlink = |path: &str, target: &str| Record { path2: target.into(), ..Record::new(Op::Symlink, path) };
    let absolute = scratch.0.join("outside");
    let records = [
        Record::new(Op::Mkdir, "/d"),
        Record::new(Op::Mkdir, "/d/e"),
        symlink("/d/e/up", "../../d"),
        symlink("/out", "../outside"),
        symlink("/abs", absolute.to_str().expect("text")),
        // Harmless where it was made, and no more where it is now.
        symlink("/d/e/moved", "../../../outside"),
        Record { path2: "/moved".into(), ..Record::new(Op::Rename, "/d/e/moved") },
        open(0, "/d/e/up/in", 1, CREATE),
        open(0, "/out/secret", 2, 1),
        open(0, "/out/new", 3, CREATE),
        open(0, "/abs/new", 4, CREATE),
        open(0, "/moved/new", 5, CREATE),
        Record::new(Op::Unlink, "/out/secret"),
        Record::new(Op::Mkdir, "/abs/dir"),
        Record { path2: "/moved/taken".into(), ..Record::new(Op::Rename, "/d/e") },
        Record { mode: 0o777, ..Record::new(Op::Chmod, "/out/secret") },
        Record::new(Op::Truncate, "/out/secret"),
        Record::new(Op::Readlink, "/out"),
    ];
    let (script, played) = run(&scratch, &records);
    assert!(script.links);
    let errors: Vec<u16> = played.calls.iter().map(|call| call.error).collect();
    let beyond = 18; // EXDEV
    assert_eq!(errors, [[0; 8].as_slice(), &[beyond; 9], &[0]].concat());
    assert!(scratch.work().join("d/in").exists());
    let left: Vec<_> = fs::read_dir(scratch.0.join("outside")).expect("it is there").flatten().collect();
    assert_eq!((left.len(), fs::read(scratch.0.join("outside/secret")).expect("it is there").len()), (1, 1));
}

#[test]
fn differences_are_counted_with_examples() {
    let scratch = Scratch::new("differences");
    let (script, played) = run(
        &scratch,
        &[
            Record::new(Op::Unlink, "/not/there"),
            Record { error: 2, ..Record::new(Op::Mkdir, "/d") },
            Record::new(Op::Unlink, "/nor/here"),
            Record { error: 13, ..Record::new(Op::Stat, "/gone") },
            data(Op::Read, 1, "/lost", 9, 0, 10),
        ],
    );
    let summary = Summary::of(&script, &played);
    assert_eq!(summary.failed_here.count, 3);
    let kind = |op, count, path: &str| Example { op, error: 2, count, path: path.into() };
    assert_eq!(
        summary.failed_here.examples,
        [kind(Op::Unlink, 2, "not/there"), kind(Op::Read, 1, "lost")],
        "one of a kind, the most frequent first"
    );
    let text = summary.failed_here.to_string();
    assert!(text.starts_with("3, as in unlink /not/there: ") && text.contains("(2 times); read /lost: "), "{text}");
    assert_eq!((summary.failed_there.count, summary.failed_otherwise.count), (1, 1));
    assert_eq!((summary.calls, summary.ops.len()), (5, 4));
}

#[test]
fn what_a_trace_found_is_made_before() {
    let records = [
        open(1, "/home/a", 1, 0),
        data(Op::Read, 1, "/home/a", 1, 1000, 500),
        close(1, "/home/a", 1),
        // Appended to: what lies before was there.
        open(1, "/home/log", 2, 0o2001),
        data(Op::Write, 1, "/home/log", 2, 7000, 10),
        close(1, "/home/log", 2),
        // Made unless it was there, which it was.
        open(1, "/home/more", 6, 0o2101),
        data(Op::Write, 1, "/home/more", 6, 400, 10),
        close(1, "/home/more", 6),
        Record { error: 2, ..Record::new(Op::Stat, "/home/absent") },
        Record::new(Op::Mkdir, "/new"),
        open(1, "/new/made", 3, CREATE),
        data(Op::Write, 1, "/new/made", 3, 0, 10),
        data(Op::Read, 1, "/new/made", 3, 0, 10),
        close(1, "/new/made", 3),
        Record { path2: "/moved".into(), ..Record::new(Op::Rename, "/old") },
        open(1, "/moved/inside", 4, 0),
        data(Op::Read, 1, "/moved/inside", 4, 0, 30),
        close(1, "/moved/inside", 4),
        Record::new(Op::Stat, "/home"),
        Record { file: 5, flags: 0o200000, ..Record::new(Op::Open, "/list") },
        Record { file: 5, len: 4096, done: 100, ..Record::new(Op::Getdents, "/list") },
        Record::new(Op::Rmdir, "/empty"),
    ];
    let mut finder = Finder::default();
    records.iter().for_each(|record| finder.add(record));
    let found = finder.finish();
    let expected: Needed = [
        ("empty", Content::Directory),
        ("home", Content::Directory),
        ("home/a", Content::File(1500)),
        ("home/log", Content::File(7000)),
        ("home/more", Content::File(400)),
        ("list", Content::Directory),
        ("old", Content::Directory),
        ("old/inside", Content::File(30)),
    ]
    .map(|(path, content)| (path.to_string(), content))
    .into();
    assert_eq!(found, expected);
    assert_eq!(bytes(&found), 8930);
    let scratch = Scratch::new("prefill");
    let root = Root::new(&scratch.work(), false).expect("it is there");
    let made = prefill(&root, &found, 5).expect("space");
    assert_eq!(made, Prefilled { files: 4, directories: 4, links: 0, bytes: 8930 });
    let (script, played) = run(&scratch, &records);
    let summary = Summary::of(&script, &played);
    let differ = [&summary.failed_here, &summary.failed_there, &summary.failed_otherwise];
    assert!(differ.iter().all(|difference| difference.count == 0), "{summary:?}");
    assert_eq!(summary.read_bytes, 540);
}

#[test]
fn a_trace_keeps_its_pace_and_can_be_stopped() {
    let scratch = Scratch::new("pace");
    let at = |at_ns: u64, path: &str| Record { at_ns, ..Record::new(Op::Mkdir, path) };
    let script = script(&[at(5_000_000_000, "/a"), at(5_040_000_000, "/b"), at(7_000_000_000_000, "/c")]);
    let root = Root::new(&scratch.work(), false).expect("it is there");
    let stop = AtomicBool::new(false);
    let options = PlayOptions { pace: Pace::Times, ..OPTIONS };
    let played = std::thread::scope(|scope| {
        let running = scope.spawn(|| play(&script, &root, &options, &stop).expect("threads"));
        while !scratch.work().join("b").exists() {
            std::thread::yield_now();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        running.join().expect("no panic")
    });
    assert!(played.stopped && played.calls[1].start_ns >= 40_000_000 && played.calls[2].latency_ns == 0);
    assert_eq!(Summary::of(&script, &played).calls, 2);
}

#[test]
fn modelled_energy_is_that_of_the_digest() {
    use std::time::Duration;
    let second = Duration::from_secs(1);
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    near(joules(second, Duration::ZERO, 2.0, Duration::ZERO), 214.0 + 7.0);
    near(joules(second, 2 * second, 2.0, second), 279.0 + 22.0);
    near(joules(10 * second, 10 * second, 2.0, 5 * second), 10.0 * (214.0 + 32.5 + 7.0 + 7.5));
}

// The digest of FAST '10, check 3: of random writes of 2 KiB to a file that is not cached, each needs a read where blocks
// have 4 KiB, and none where they have 2.
#[test]
fn a_write_smaller_than_a_block_needs_a_read() {
    use crate::age::image::Kind;
    use crate::stand::{Place, Stand, StandOptions};
    const WRITES: u64 = 200;
    for kind in [Kind::Ext4, Kind::Xfs] {
        let option = if kind == Kind::Ext4 { "-b" } else { "-b size=" };
        let counted = [4096u64, 2048].map(|block| {
            let scratch = Scratch::new(&format!("block-{}-{block}", kind.name()));
            let separator = if option.ends_with('=') { "" } else { " " };
            let options = StandOptions {
                scratch: scratch.0.clone(),
                mkfs_options: Some(format!("{option}{separator}{block}")),
                ..StandOptions::new(Place::Fresh(kind, Bytes::mib(512)), "/nonexistent".into())
            };
            let mut stand = match Stand::open(&options) {
                Ok(stand) => stand,
                Err(error) => {
                    eprintln!("SKIPPED: {error}");
                    return None;
                }
            };
            let write = |number: u64| data(Op::Write, 1, "/f", 1, (number * 7919 % 4096) * 8192 + 2048, 2048);
            let records: Vec<Record> = std::iter::once(open(1, "/f", 1, 2)).chain((0..WRITES).map(write)).collect();
            let needed = Needed::from([("f".to_string(), Content::File(32 << 20))]);
            let job = Job { setup: None, needed, script: script(&records) };
            let options = BenchOptions { play: OPTIONS, warm: false, repeats: 1, memory: None };
            let runs = job.bench(&mut stand, &options, &AtomicBool::new(false), |_, _| {}).expect("root");
            stand.put_away().expect("root");
            assert_eq!(runs[0].summary.failed_here.count, 0, "{runs:?}");
            Some(runs[0].device.expect("a loop device").reads)
        });
        if let [Some(of_4k), Some(of_2k)] = counted {
            // Some more are for the inode and for where its blocks are.
            const METADATA: u64 = 20;
            assert!((WRITES..=WRITES + METADATA).contains(&of_4k), "{}: {of_4k}", kind.name());
            assert!(of_2k <= METADATA, "{}: {of_2k}", kind.name());
        }
    }
}

fn any_record() -> impl Strategy<Value = Record> {
    let path = prop_oneof![
        3 => prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4).prop_map(|names| format!("/{}", names.join("/"))),
        1 => prop::sample::select(vec!["", "/", "/..", "a", "/a/../b", "//"]).prop_map(String::from),
    ];
    let numbers = (0..4u64, 0..4u64, 0..70_000u64, 0..70_000u64, 0..3u64);
    let flags = prop_oneof![Just(0u64), Just(CREATE), Just(0o1102), any::<u64>()];
    (prop::sample::select(Op::ALL.to_vec()), path.clone(), path, numbers, flags).prop_map(
        |(op, path, path2, (thread, file, offset, len, error), flags)| Record {
            path2,
            thread,
            file,
            offset,
            len,
            done: len,
            error,
            flags: if op == Op::Fallocate { flags % 2 } else { flags },
            mode: flags % 0o10000,
            ..Record::new(op, path)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Whatever a trace asks, it ends, changes nothing elsewhere, and is told whole.
    #[test]
    fn any_trace_ends_and_stays_below(records in prop::collection::vec(any_record(), 1..60)) {
        let scratch = Scratch::new("any");
        fs::write(scratch.0.join("outside"), "x").expect("space");
        let mut finder = Finder::default();
        records.iter().for_each(|record| finder.add(record));
        let needed = finder.finish();
        let script = script(&records);
        let careful = script.links || needed.values().any(|content| *content == Content::Link);
        let root = Root::new(&scratch.work(), careful).expect("it is there");
        // What contradicts itself cannot be made, and that is told.
        let _ = prefill(&root, &needed, 1);
        let played = play(&script, &root, &OPTIONS, &AtomicBool::new(false)).expect("threads");
        let dropped: u64 = script.dropped.values().sum();
        prop_assert_eq!(Summary::of(&script, &played).calls + dropped, records.len() as u64);
        prop_assert_eq!(played.records(&script).len() as u64 + dropped, records.len() as u64);
        let left: Vec<_> = fs::read_dir(&scratch.0).expect("it is there").flatten().map(|e| e.file_name()).collect();
        prop_assert_eq!(left.len(), 2);
    }
}
