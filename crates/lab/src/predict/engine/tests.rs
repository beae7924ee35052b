use super::*;
use crate::predict::fsop::{LUHIT, LUMISS, RDBLOCKS, RDMISSBLOCKS, SUBOPS, subops};
use crate::predict::step::{Cached, Kind, Relation};
use crate::trace::Op;
use crate::vector::{Family, Value};

/// Figure 4.5: a file of 16 KB in a directory that is always in memory is opened, read in two requests, and closed.
fn golden() -> Vec<Record> {
    let on = |op, offset| Record { file: 1, offset, len: 8192, done: 8192, ..Record::new(op, "/tmp/file") };
    vec![
        Record { file: 1, ..Record::new(Op::Open, "/tmp/file") },
        on(Op::Read, 0),
        on(Op::Read, 8192),
        Record { file: 1, ..Record::new(Op::Close, "/tmp/file") },
    ]
}

/// What of Slow FFS the figure and equation 2 tell.
fn slow_ffs() -> Vector {
    let mut vector = Vector::named("Slow FFS");
    let open = 6.46 - 6.347 - 0.012;
    for (family, size, mean) in [
        (Family::BS, 0, 8192.0),
        (Family::FS, 0, 8192.0),
        (Family::LUR_BC, 0, 0.012),
        (Family::LUR_NC, 0, 6.347),
        (Family::OPEN, 0, open),
        (Family::RRD, 8, 8e3 / 5.88),
        (Family::RD, 8, 8e3 / 0.25),
        // Table 4.4 has no such benchmark, and the figure charges it.
        (Family::CLOSE, 0, 0.09),
    ] {
        vector.set(family, size, Value::exact(mean));
    }
    vector
}

fn thesis() -> Options {
    Options { price: PriceOptions { thesis: true, ..PriceOptions::default() }, memory: None, warm: false }
}

fn chains(options: Options, vector: Vector, records: &[Record]) -> (Vec<Chain>, System) {
    let mut sizes = Sizes::default();
    records.iter().for_each(|record| sizes.see(record));
    let mut names = Preprocess::new(Tree::new("/tmp"), sizes);
    let mut system = System::new(vector, options);
    let chains = (0..).zip(records).map(|(call, record)| {
        let mut chain = parse(call, record);
        names.apply(&mut chain);
        system.apply(&mut chain);
        chain
    });
    (chains.collect(), system)
}

#[test]
fn the_trace_of_figure_4_5() {
    let (chains, system) = chains(thesis(), slow_ffs(), &golden());
    let lookups: Vec<_> =
        chains[0][..2].iter().map(|step| (step.kind, step.cached, step.relation, step.sequential)).collect();
    assert_eq!(lookups[0], (Kind::Lookup, Cached::Hit, Relation::Cached, false), "1 cached lookup");
    assert_eq!(lookups[1], (Kind::Lookup, Cached::Miss, Relation::Unknown, false), "1 uncached random lookup");
    let reads: Vec<_> =
        chains[1..3].iter().map(|chain| (chain[0].hits, chain[0].misses, chain[0].sequential)).collect();
    assert_eq!(reads, [(0, 1, false), (0, 1, true)], "an uncached random block, and an uncached sequential one");
    let latencies: Vec<u64> = chains.iter().map(|chain| chain.iter().map(|step| step.predicted_ns).sum()).collect();
    assert_eq!(latencies, [6_460_000, 5_880_000, 250_000, 90_000]);
    let vectors: Vec<[u32; SUBOPS]> = chains.iter().map(|chain| subops(chain, 1)).collect();
    assert_eq!((vectors[0][LUHIT], vectors[0][LUMISS]), (1, 1));
    assert_eq!((vectors[1][RDBLOCKS], vectors[1][RDMISSBLOCKS], vectors[2][RDMISSBLOCKS]), (1, 1, 1));
    let prediction = system.prediction();
    assert!((prediction.total_seconds - 0.01268).abs() < 1e-12);
    let classes: Vec<_> = prediction.classes.iter().map(|class| (class.name.as_str(), class.count)).collect();
    assert_eq!(classes, [("open", 1), ("read", 2), ("close", 1)], "chains are collapsed");
}

#[test]
fn ours_agrees_where_there_is_nothing_else() {
    // Without memory that reads ahead, the machine's caches do the same to four calls.
    let mut vector = slow_ffs();
    vector.set(Family::RA, 0, Value::exact(0.0));
    let (chains, system) = chains(Options::default(), vector, &golden());
    assert_eq!(chains[0][1].cached, Cached::Miss);
    assert_eq!(
        chains[1..3].iter().map(|chain| (chain[0].misses, chain[0].sequential)).collect::<Vec<_>>(),
        [(2, false), (2, true)]
    );
    let prediction = system.prediction();
    assert!((prediction.total_seconds - 0.01268).abs() < 1e-9, "{prediction:?}");
    let parts: f64 = prediction.causes.iter().map(|share| share.seconds).sum();
    assert!((parts - prediction.total_seconds).abs() < 1e-9);
    assert_eq!(prediction.elapsed_seconds, prediction.total_seconds, "one thread");
}

#[test]
fn removes_partial_blocks_and_write_back_are_priced() {
    let mut vector = slow_ffs();
    for (family, size, mean) in [
        (Family::CR, 0, 1.0),
        (Family::RM, 0, 1.0),
        (Family::RMC, 4, 2.0),
        (Family::RMC, 64, 8.0),
        (Family::TR, 64, 0.5),
        (Family::WRO, 0, 0.001),
        (Family::WRC, 0, 1e6),
        (Family::RMW, 0, 9.0),
        (Family::WBS, 0, 0.01),
        (Family::WBR, 0, 0.1),
        (Family::SYNEW, 4, 20.0),
    ] {
        vector.set(family, size, Value::exact(mean));
    }
    let on = |op, path: &str, offset, len| Record { file: 1, offset, len, done: len, ..Record::new(op, path) };
    let mut records =
        vec![Record { flags: 0o100, file: 1, ..Record::new(Op::Open, "/tmp/a") }, on(Op::Write, "/tmp/a", 0, 65_536)];
    records.push(on(Op::Close, "/tmp/a", 0, 0));
    records.push(Record { at_ns: 40_000_000_000, ..Record::new(Op::Stat, "/tmp/none") });
    records.last_mut().expect("it was put").error = 2;
    records.push(Record { at_ns: 40_000_000_001, ..Record::new(Op::Unlink, "/tmp/a") });
    let run = |without| {
        let price = PriceOptions { without, pace: super::super::price::Pace::Trace, ..PriceOptions::default() };
        let (chains, system) = chains(Options { price, memory: None, warm: false }, vector.clone(), &records);
        let of = |name: &str| {
            system
                .prediction()
                .causes
                .iter()
                .find(|share| format!("{:?}", share.cause) == name)
                .map(|share| (share.seconds * 1e6).round())
        };
        (of("Removes"), of("WriteBack"), chains[3].last().map(|call| (call.back_blocks, call.back_runs)))
    };
    let all = Default::default();
    assert_eq!(run(all), (Some(8000.0), Some(260.0), Some((16, 1))));
    let without = super::super::price::Without { block_overhead: true, sized_removes: true, ..all };
    assert_eq!(run(without), (Some(1500.0), None, Some((16, 1))), "RM and TR");
}

/// Of processes that run one after another, each begins when the one before has ended; of two at once, both begin at once.
#[test]
fn processes_that_follow_each_other_take_their_times_together() {
    let mut vector = Vector::named("exact");
    vector.set(Family::STAT, 0, Value::exact(1.0));
    let run = |processes: &[u64]| {
        let stat = |process: &u64| Record { process: *process, thread: *process, ..Record::new(Op::Stat, "/m") };
        let records: Vec<Record> = processes.iter().map(stat).collect();
        let mut first = FirstPass::default();
        records.iter().for_each(|record| first.see(record));
        let mut engine = Engine::new(Tree::new("/m"), first, vec![vector.clone()], Options::default());
        records.iter().for_each(|record| engine.call(record));
        engine.finish();
        engine.systems[0].prediction().elapsed_seconds
    };
    assert_eq!(run(&[1, 1, 2, 3]), 0.004);
    assert_eq!(run(&[1, 2, 1, 2]), 0.002);
    assert_eq!(run(&[1, 2, 2, 1, 3]), 0.003);
}
