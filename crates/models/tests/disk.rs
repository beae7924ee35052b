//! What a disk model must do, whatever its parameters.

use ashlar_models::disk::{Disk, DiskSpec, PowerState, Scheduler};
use ashlar_models::{Chance, Completion, Kind, Model, ModelFile, Request, Spec, closed_loop, open_loop};
use proptest::prelude::*;

fn preset(name: &str) -> DiskSpec {
    let Spec::Disk(spec) = ModelFile::preset(name).unwrap().model else { panic!("{name} is a disk") };
    *spec
}

/// Runs requests, each submitted when the one before is done.
fn one_by_one(disk: &mut Disk, requests: &[Request]) -> Vec<Completion> {
    let mut requests = requests.iter().copied();
    let mut done = Vec::new();
    closed_loop(disk, 0, 1, || requests.next(), |completion| done.push(*completion)).unwrap();
    done
}

/// Runs requests that all come at time zero.
fn at_once(disk: &mut Disk, requests: &[Request]) -> Vec<Completion> {
    let mut done = Vec::new();
    open_loop(disk, requests.iter().map(|&request| (0, request)), |completion| done.push(*completion)).unwrap();
    done
}

fn random_requests(seed: u64, capacity: u64, count: usize) -> Vec<(u64, Request)> {
    let mut chance = Chance::new(seed);
    let mut now_ns = 0;
    let mut near = 0;
    (0..count)
        .map(|_| {
            now_ns += chance.below(4) * chance.below(20_000_000);
            let len = 512 * (1 + chance.below(3000) * chance.below(2));
            if chance.below(3) == 0 {
                near = chance.below(capacity / 512) * 512;
            }
            let offset = (near + 512 * chance.below(2000)).min(capacity - len);
            near = offset + len;
            let request = match chance.below(10) {
                0 => Request::flush(),
                1 => Request::discard(offset, len),
                2 => Request::write_fua(offset, len),
                3..6 => Request::write(offset, len),
                _ => Request::read(offset, len),
            };
            (now_ns, request)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_request_is_done_once_and_its_time_is_accounted_for(seed: u64, which in 0usize..4, scheduler in 0usize..3, depth in 1u32..40) {
        let names = ["cheetah-15k5", "wd-re3", "maxtor-d740x", "exos-x20"];
        let mut spec = preset(names[which]);
        spec.queue.scheduler = [Scheduler::Fifo, Scheduler::Elevator, Scheduler::Sptf][scheduler];
        spec.queue.depth = depth;
        let run = || {
            let mut disk = Disk::new(&spec).unwrap();
            let requests = random_requests(seed, disk.capacity(), 300);
            let mut done = Vec::new();
            open_loop(&mut disk, requests, |completion| done.push(*completion)).unwrap();
            (done, disk.energy(1 << 50))
        };
        let (done, energy) = run();
        prop_assert_eq!(&(done.clone(), energy), &run(), "the same seed gives the same run");
        let mut ids: Vec<u64> = done.iter().map(|completion| completion.id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..300).collect::<Vec<u64>>());
        prop_assert!(done.windows(2).all(|pair| pair[0].done_ns <= pair[1].done_ns), "completions come in order of time");
        for completion in &done {
            prop_assert_eq!(completion.split.total_ns(), completion.response_ns(), "{:?}", completion);
            prop_assert!(completion.split.rotation_ns < 8_333_334);
        }
        prop_assert_eq!(energy.active_ns + energy.idle_ns + energy.standby_ns + energy.spin_up_ns, 1 << 50);
    }

    #[test]
    fn a_flush_covers_the_writes_that_were_done_before_it(seed: u64) {
        let mut disk = Disk::new(&preset("wd-re3")).unwrap();
        let mut chance = Chance::new(seed);
        let blocks = disk.capacity() / 4096;
        let writes: Vec<Request> = (0..40).map(|_| Request::write(chance.below(blocks) * 4096, 4096)).collect();
        let done = one_by_one(&mut disk, &[&writes[..], &[Request::flush()]].concat());
        let (flush, writes) = done.split_last().unwrap();
        prop_assert!(writes.iter().all(|write| write.response_ns() < 100_000), "buffered writes take no positioning");
        prop_assert_eq!(flush.request.kind, Kind::Flush);
        // Forty random writes to the medium, in the best order, take some revolutions at least.
        prop_assert!(flush.response_ns() > 5 * 8_333_333, "{}", flush.response_ns());
        prop_assert_eq!(disk.next_event(), None, "nothing is left in the buffer");
    }
}

#[test]
fn one_request_costs_seek_and_rotation_and_transfer() {
    let mut disk = Disk::new(&preset("cheetah-15k5")).unwrap();
    let far = disk.capacity() - 4096;
    let done = one_by_one(&mut disk, &[Request::read(far, 4096)]);
    let split = done[0].split;
    let cylinder = disk.geometry().place(far / 512).cylinder;
    assert_eq!(split.seek_ns, disk.seek_curve(Kind::Read).time_ns(cylinder));
    assert_eq!((split.queue_ns, split.overhead_ns), (0, 0));
    // 8 of the inner track's 700 sectors.
    assert!(split.transfer_ns.abs_diff(4_000_000 * 8 / 700) <= 1);
}

#[test]
fn reading_on_costs_no_rotation_and_buffered_data_no_mechanism() {
    let mut disk = Disk::new(&preset("wd-re3")).unwrap();
    let requests: Vec<Request> = (0..64).map(|i| Request::read(i * 65536, 65536)).collect();
    let done = one_by_one(&mut disk, &requests);
    assert!(done[1..].iter().all(|read| read.split.seek_ns == 0 && read.split.rotation_ns == 0));
    let again = one_by_one(&mut disk, &[Request::read(60 * 65536, 65536)]);
    assert_eq!((again[0].split.seek_ns, again[0].split.rotation_ns), (0, 0));
    assert_eq!(disk.counters().cache_hits, 1);
    // What was overwritten is read from the medium once it has left the write buffer.
    let done =
        one_by_one(&mut disk, &[Request::write(60 * 65536, 65536), Request::flush(), Request::read(60 * 65536, 65536)]);
    assert!(done[2].split.rotation_ns > 0);
}

/// Seeks of reads of a block behind another: of the same track, and of the next one.
fn seeks_behind(preset_name: &str) -> [u64; 2] {
    [100, 100 + 2 * 2040].map(|behind| {
        let mut spec = preset(preset_name);
        spec.cache.read_ahead = "0".into();
        let mut disk = Disk::new(&spec).unwrap();
        one_by_one(&mut disk, &[Request::read(0, 4096), Request::read(behind * 512, 4096)])[1].split.seek_ns
    })
}

#[test]
fn a_head_that_stays_on_its_track_settles_only_where_the_drive_does() {
    assert_eq!(seeks_behind("wd-re3"), [0, 900_000]);
    assert_eq!(seeks_behind("cheetah-15k5"), [713_000, 713_000]);
    // Another surface of the same cylinder is another track.
    let mut spec = preset("wd-re3");
    spec.band_cylinders = 1;
    spec.cache.read_ahead = "0".into();
    let mut disk = Disk::new(&spec).unwrap();
    let done = one_by_one(&mut disk, &[Request::read(0, 4096), Request::read(2040 * 512, 4096)]);
    let places = [0, 2040].map(|sector| disk.geometry().place(sector));
    assert_eq!((places[0].cylinder, places[1].surface), (places[1].cylinder, 1));
    assert_eq!(done[1].split.seek_ns, 900_000);
}

#[test]
fn uncached_writes_one_at_a_time_lose_a_rotation() {
    let spec = preset("maxtor-d740x");
    let len = 512 * 1025; // an object of 512 KB and its onode (OBFS)
    let mut disk = Disk::new(&spec).unwrap();
    let requests: Vec<Request> = (0..400).map(|i| Request::write(i * len, len)).collect();
    let done = one_by_one(&mut disk, &[&requests[..], &[Request::flush()]].concat());
    let cached = 400.0 * len as f64 * 1e3 / done.last().unwrap().done_ns as f64;
    assert!(cached > 37.0 && cached < 44.5, "{cached} MB/s");
    let mut disk = Disk::new(&spec).unwrap();
    let (mut now_ns, mut done) = (0, Vec::new());
    for i in 0..400 {
        disk.submit(now_ns, Request::write_fua(i * len, len)).unwrap();
        while let Some(event_ns) = disk.next_event() {
            disk.advance(event_ns, &mut done);
        }
        now_ns = done.pop().unwrap().done_ns + 300_000; // the host needs 0.3 ms for the next object
    }
    let turned = 400.0 * len as f64 * 1e3 / now_ns as f64;
    assert!(turned < 27.0, "{turned} MB/s: an uncached stream of objects loses a rotation each");
}

#[test]
fn the_elevator_travels_95_tracks_where_arrival_order_travels_495() {
    // Boboila and Desnoyers, FAST '10, Figure 14: tracks 70, 10, 50 four times, from track 35.
    let travel = |scheduler| {
        let mut spec = preset("cheetah-15k5");
        spec.capacity = "512000".into();
        spec.surfaces = 1;
        spec.zones = vec![(100, 10)];
        spec.seek.settle_cylinders = 1;
        spec.queue.scheduler = scheduler;
        spec.cache.read_ahead = "0".into();
        let mut disk = Disk::new(&spec).unwrap();
        let track = |track: u64, sector: u64| Request::read(track * 5120 + sector * 512, 512);
        one_by_one(&mut disk, &[track(35, 9)]);
        let requests: Vec<Request> = (0..4).flat_map(|i| [track(70, i), track(10, i), track(50, i)]).collect();
        let mut at = 35i64;
        let mut travelled = 0;
        for completion in at_once(&mut disk, &requests) {
            let track = (completion.request.offset / 5120) as i64;
            travelled += (track - at).abs();
            at = track;
        }
        travelled
    };
    assert_eq!(travel(Scheduler::Fifo), 495);
    assert_eq!(travel(Scheduler::Elevator), 95);
}

#[test]
fn requests_beyond_the_depth_wait_unseen() {
    let spec = preset("cheetah-15k5");
    let mean = |depth| {
        let mut spec = spec.clone();
        spec.queue.depth = depth;
        let mut disk = Disk::new(&spec).unwrap();
        let mut chance = Chance::new(3);
        let blocks = disk.capacity() / 4096;
        let mut left = 2000;
        let next = || {
            left -= 1;
            (left >= 0).then(|| Request::read(chance.below(blocks) * 4096, 4096))
        };
        closed_loop(&mut disk, 0, 32, next, |_| {}).unwrap().end_ns
    };
    assert!(mean(32) < mean(8) && mean(8) < mean(2), "a scheduler that sees more does better");
}

#[test]
fn a_standing_spindle_must_be_brought_up_to_speed() {
    let mut spec = preset("cheetah-15k5");
    let power = spec.power.as_mut().unwrap();
    power.standby_after_s = Some(60.0);
    let mut disk = Disk::new(&spec).unwrap();
    let mut done = Vec::new();
    let second = 1_000_000_000;
    open_loop(&mut disk, [(0, Request::read(0, 4096)), (100 * second, Request::read(1 << 30, 4096))], |c| {
        done.push(*c)
    })
    .unwrap();
    assert_eq!(done[1].split.overhead_ns, 15 * second, "{:?}", done[1]);
    let end_ns = done[1].done_ns;
    let energy = disk.energy(end_ns);
    assert_eq!((energy.spin_ups, energy.spin_up_ns), (1, 15 * second));
    let first_ns = done[0].done_ns;
    assert_eq!((energy.idle_ns, energy.standby_ns), (60 * second, 40 * second - first_ns));
    let joules = (energy.active_ns as f64 * 17.0 + energy.idle_ns as f64 * 12.8 + energy.standby_ns as f64 * 4.0) / 1e9;
    assert!((energy.joules - joules - 360.0).abs() < 1e-6, "{energy:?}");
    disk.stand_by(end_ns);
    assert_eq!(disk.power_state(end_ns + second), PowerState::Standby);
}

#[test]
fn bad_requests_are_refused() {
    let mut disk = Disk::new(&preset("cheetah-15k5")).unwrap();
    for request in [
        Request::read(300_000_000_000, 512),
        Request::read(u64::MAX - 511, 512),
        Request::read(0, 0),
        Request::write(100, 512),
        Request::write(0, 100),
    ] {
        assert!(disk.submit(0, request).is_err(), "{request:?}");
    }
    assert_eq!(disk.next_event(), None);
}
