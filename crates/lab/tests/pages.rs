//! The cache stage of prediction against the kernel: pages that come into the page cache.

use ashlar_lab::age::image::Kind;
use ashlar_lab::mounts::mount_of;
use ashlar_lab::predict::engine::{Engine, FirstPass, Options};
use ashlar_lab::predict::tree::Tree;
use ashlar_lab::run::{BenchOptions, Job, Limits, Needed, Pace, PlayOptions, Repeat, Script};
use ashlar_lab::stand::{Place, Stand, StandOptions};
use ashlar_lab::trace::{Op, Record, flags};
use ashlar_lab::vector::{Family, Value, Vector};
use ashlar_models::Chance;
use ashlar_units::Bytes;
use std::sync::atomic::AtomicBool;

const SEED: u64 = 11;
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// One thread's calls.
#[derive(Default)]
struct Calls {
    records: Vec<Record>,
    open: u64,
}

impl Calls {
    fn put(&mut self, record: Record) {
        self.records.push(Record { at_ns: self.records.len() as u64, process: 1, thread: 1, ..record });
    }
    fn open(&mut self, path: &str, flags: u64) {
        self.open += 1;
        self.put(Record { file: self.open, flags, mode: 0o644, ..Record::new(Op::Open, path) });
    }
    /// On the file that was opened last.
    fn on(&mut self, op: Op, path: &str, offset: u64, len: u64) {
        let done = if matches!(op, Op::Read | Op::Write) { len } else { 0 };
        self.put(Record { file: self.open, offset, len, done, ..Record::new(op, path) });
    }
    fn whole(&mut self, path: &str, flags: u64, op: Op, len: u64, each: u64) {
        self.open(path, flags);
        (0..len.div_ceil(each)).for_each(|n| self.on(op, path, n * each, each.min(len - n * each)));
        self.on(Op::Close, path, 0, 0);
    }
    fn made(&mut self, path: &str, len: u64) {
        self.whole(path, flags::CREATE | flags::WRITE, Op::Write, len, MIB);
    }
    fn script(&self) -> Script {
        let mut builder = Script::builder(Limits { bytes: Bytes::gib(4) });
        self.records.iter().for_each(|record| builder.add(record).expect("it fits"));
        builder.finish().expect("calls")
    }
}

/// What is there before, and what is counted.
struct Workload {
    name: &'static str,
    setup: Calls,
    run: Calls,
}

fn workload(name: &'static str, make: impl FnOnce(&mut Calls, &mut Calls, &mut Chance)) -> Workload {
    let (mut setup, mut run) = (Calls::default(), Calls::default());
    make(&mut setup, &mut run, &mut Chance::new(SEED));
    Workload { name, setup, run }
}

fn workloads() -> Vec<Workload> {
    vec![
        workload("a large file from begin to end", |setup, run, _| {
            setup.made("/f", 32 * MIB + 100);
            run.whole("/f", flags::READ, Op::Read, 32 * MIB + 100, 64 << 10);
        }),
        workload("begins of files", |setup, run, _| {
            for file in 0..40 {
                let path = format!("/f{file}");
                setup.made(&path, 4 * MIB);
                run.open(&path, flags::READ);
                (0..file * 3).for_each(|page| run.on(Op::Read, &path, (file * 7 + page) * PAGE, PAGE));
                run.on(Op::Close, &path, 0, 0);
            }
        }),
        workload("reads at random", |setup, run, chance| {
            setup.made("/f", 96 * MIB);
            run.open("/f", flags::READ);
            for _ in 0..4000 {
                let len = (1 + chance.below(4)) * PAGE;
                run.on(Op::Read, "/f", chance.below(95 * MIB), len);
            }
        }),
        workload("many small files", |setup, run, chance| {
            for file in 0..600 {
                let (path, len) = (format!("/f{file}"), 1 + chance.below(60_000));
                setup.made(&path, len);
                if file % 3 > 0 {
                    run.open(&path, flags::READ);
                    run.put(Record { file: run.open, len: 64 << 10, done: len, ..Record::new(Op::Read, path.clone()) });
                    run.on(Op::Close, &path, 0, 0);
                }
            }
        }),
        workload("writing anew and over", |setup, run, chance| {
            setup.made("/f", 32 * MIB);
            run.open("/f", flags::READ_WRITE);
            for _ in 0..1500 {
                let len = 1 + chance.below(20_000);
                run.on(Op::Write, "/f", chance.below(32 * MIB - len), len);
            }
            run.on(Op::Truncate, "/f", 0, 20 * MIB + 77);
            run.on(Op::Read, "/f", 20 * MIB - 9 * PAGE, 8 * PAGE);
            run.on(Op::Write, "/f", 20 * MIB + 77, 3 * MIB);
            run.on(Op::Close, "/f", 0, 0);
            for file in 0..200 {
                let path = format!("/new{file}");
                run.made(&path, 1 + chance.below(100_000));
                if file % 2 == 0 {
                    run.put(Record::new(Op::Unlink, path));
                }
            }
        }),
    ]
}

/// The same under a bound on memory: what went comes again.
fn bounded() -> Vec<Workload> {
    vec![
        workload("round and round", |setup, run, _| {
            setup.made("/f", 96 * MIB);
            for _ in 0..3 {
                run.whole("/f", flags::READ, Op::Read, 96 * MIB, 64 << 10);
            }
        }),
        workload("some pages often", |setup, run, chance| {
            setup.made("/f", 128 * MIB);
            run.open("/f", flags::READ);
            for _ in 0..40_000 {
                let within = if chance.below(10) < 7 { 20 * MIB } else { 128 * MIB };
                run.on(Op::Read, "/f", chance.below(within / PAGE) * PAGE, PAGE);
            }
        }),
    ]
}

fn stand(scratch: &std::path::Path) -> Result<Stand, String> {
    let place = Place::Fresh(Kind::Ext4, Bytes::mib(512));
    let options = StandOptions { scratch: scratch.into(), ..StandOptions::new(place, "/nonexistent".into()) };
    Stand::open(&options).map_err(|error| error.to_string())
}

/// Pages that the kernel counts, with a run of the workload, and how many are read ahead at most, KiB.
fn measured(
    workload: &Workload,
    scratch: &std::path::Path,
    memory: Option<Bytes>,
) -> Result<(u64, Repeat, f64), String> {
    let mut stand = stand(scratch)?;
    stand.page_counter().map_err(|error| error.to_string())?;
    let (major, minor) = mount_of(stand.path()).expect("it is mounted").device;
    let ahead = std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).expect("it tells");
    let job = Job { setup: Some(workload.setup.script()), needed: Needed::new(), script: workload.run.script() };
    let play = PlayOptions { pace: Pace::Closed, sync: false, seed: SEED };
    let options = BenchOptions { play, warm: false, repeats: 1, memory };
    let done = job.bench(&mut stand, &options, &AtomicBool::new(false), |_, _| {}).map_err(|error| error.to_string());
    stand.put_away().expect("it is ours");
    let run = done?.remove(0);
    assert_eq!(run.summary.failed_here.count, 0, "{}: {run:?}", workload.name);
    let pages = run.pages.ok_or_else(|| run.pages_unknown.clone().unwrap_or_default())?;
    assert_eq!(pages.missed, 0);
    Ok((pages.added, run, ahead.trim().parse().expect("a number")))
}

fn predicted(workload: &Workload, ahead_kb: f64, memory: u64) -> u64 {
    let mut vector = Vector::named("ext4");
    vector.set(Family::RA, 0, Value::exact(ahead_kb));
    let mut first = FirstPass::default();
    workload.run.records.iter().for_each(|record| first.see(record));
    let options = Options { memory: Some(memory), ..Options::default() };
    let mut engine = Engine::new(Tree::new("/"), first, vec![vector], options);
    workload.setup.records.iter().for_each(|record| engine.before(record));
    workload.run.records.iter().for_each(|record| engine.call(record));
    engine.finish();
    engine.systems[0].prediction().caches.expect("caches of Linux").pages_added
}

struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compares; `within` is by which part they may differ.
fn compare(workload: &Workload, scratch: &Scratch, memory: Option<Bytes>, within: f64) -> Result<(), String> {
    let (measured, run, ahead_kb) = measured(workload, &scratch.0, memory)?;
    let caches = memory.map_or(Bytes::gib(16).0, |memory| memory.0 - run.own_memory_bytes.expect("there is a limit"));
    let predicted = predicted(workload, ahead_kb, caches);
    let error = predicted as f64 / measured as f64 - 1.0;
    println!(
        "{}: {measured} measured, {predicted} predicted, {:+.2} %; {ahead_kb} KiB ahead",
        workload.name,
        error * 100.0
    );
    assert!(measured > 1000 && error.abs() <= within, "{}: {measured} measured, {predicted} predicted", workload.name);
    Ok(())
}

// One test, since a limit on memory is for all of the process.
#[test]
fn pages_are_as_the_kernel_counts_them() {
    let scratch = Scratch(std::env::temp_dir().join(format!("ashlar-pages-{}", std::process::id())));
    std::fs::create_dir_all(&scratch.0).expect("space");
    // What was seen differs by 2 % at most, and by 5 % with little memory.
    let all = workloads().into_iter().map(|workload| (workload, None, 0.03));
    let bounded = bounded().into_iter().map(|workload| (workload, Some(Bytes::mib(64)), 0.1));
    for (workload, memory, within) in all.chain(bounded) {
        if let Err(obstacle) = compare(&workload, &scratch, memory, within) {
            eprintln!("SKIPPED: {}: {obstacle}", workload.name);
        }
    }
}
