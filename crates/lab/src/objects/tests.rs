use super::*;
use crate::history::synthetic::{Common, Sizes};
use ashlar_models::ModelFile;
use ashlar_regions::{Config, Memory};
use ashlar_units::Bytes as Size;
use std::time::Duration;

const DISK: Size = Size::mib(512);
const HOST: Duration = Duration::from_micros(100);

fn bench() -> Bench<OnRegions> {
    let model = ModelFile::preset("wd-re3").expect("a preset");
    let config = Config { region: Size::mib(16), ..Config::default() };
    let options = RegionsOptions { size: DISK, model, config, memory: Memory::default(), host: HOST, seed: 1 };
    Bench::new(&options).expect("a store")
}

fn streams(target: f64, transformations: u64) -> Streams {
    let sizes = Sizes::SynWrite;
    let common = Common { capacity: DISK.0, sizes, directories: 1, sync_share: 0.6, write_unit: 0, seed: 3 };
    Streams { common, target, transformations, intensity: 2.0, burst_peak: 0.6, bursts: 4, temporal_max: 512 << 10 }
}

/// What was written can be read when it was aged, and comes from the disk; the same seed gives the same times.
#[test]
fn a_store_ages_and_is_measured_the_same_each_time() {
    let never = AtomicBool::new(false);
    let run = || {
        let mut bench = bench();
        let aged = bench.age(&streams(0.4, 500), &never, &|_| {}).expect("it ages");
        assert_eq!(aged.refused, 0);
        let objects = bench.objects();
        bench.reopen().expect("it opens again");
        assert_eq!(bench.status().expect("a map").objects, objects);
        let read = bench.measure(&Mix::SynRead, 0, &never, &|_| {}).expect("it is read");
        assert_eq!((read.requests, read.written_bytes), (objects / 5, 0));
        assert!(read.device_bytes >= read.read_bytes && read.device_reads >= read.requests);
        let mixed = bench.measure(&Mix::ObjectBench, 200, &never, &|_| {}).expect("it is used");
        assert_eq!(mixed.requests, 200);
        (aged, read, mixed)
    };
    let (one, other) = (run(), run());
    assert_eq!(one, other);
    // A 7200 rpm disk gives no object faster than it turns: a fifth of a second for 20 of them is far too quick.
    assert!(one.1.seconds / one.1.requests as f64 > 0.004, "{:?}", one.1);
}

#[test]
fn a_full_store_refuses_and_goes_on() {
    let never = AtomicBool::new(false);
    let mut bench = bench();
    let written = bench.measure(&Mix::SynWrite { sync: false }, 1500, &never, &|_| {}).expect("it is used");
    assert!(written.refused > 0 && written.written_bytes < DISK.0, "{written:?}");
    bench.measure(&Mix::SynRead, 0, &never, &|_| {}).expect("what is there can be read");
    let stopped = bench.measure(&Mix::ObjectBench, 10, &AtomicBool::new(true), &|_| {}).expect_err("Ctrl-C");
    assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
}

/// 512 KiB and an onode take 11.9 ms at the outer edge of this disk. Where the next one begins has gone by when the host asks for
/// it, and comes again after a turn of 8.3 ms.
#[test]
fn a_synced_write_behind_another_loses_a_turn() {
    let model = ModelFile::preset("maxtor-d740x").expect("a preset");
    let rate = |host_us| {
        let host = Duration::from_micros(host_us);
        let config = Config { region: Size::mib(256), ..Config::default() };
        let (size, model, memory) = (Size::mib(2048), model.clone(), Memory::default());
        let options = RegionsOptions { size, model, config, memory, host, seed: 1 };
        let mut bench = Bench::new(&options).expect("a store");
        let mix = Mix::TwoValue { ratio: 1.0, small: 4096, sync: true };
        bench.measure(&mix, 200, &AtomicBool::new(false), &|_| {}).expect("measured").mb_s
    };
    let (none, some, more) = (rate(0), rate(100), rate(300));
    assert!(none > 40.0, "{none} MB/s: the disk's own rate");
    assert!((25.0..27.0).contains(&some) && (25.0..27.0).contains(&more), "{some} and {more} MB/s");
}
