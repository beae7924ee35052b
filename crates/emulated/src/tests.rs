use super::*;
use ashlar_block::conformance;
use ashlar_devices::Memory;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_models::{Chance, Completion, closed_loop};
use parking_lot::Mutex;

const CONTEXT: IoContext = IoContext::foreground("test");

fn emulated(model: &str, blocks: Blocks, env: Env) -> Emulated {
    let model = ModelFile::preset(model).expect("a preset");
    Emulated::new(Arc::new(Memory::new(blocks)), &model, 1, env).expect("it fits")
}

macro_rules! conforms {
    ($name:ident, $model:expr) => {
        mod $name {
            use super::*;
            async fn make(env: Env) -> Device {
                Arc::new(emulated($model, Blocks(322), env))
            }
            conformance!(contents, make);
        }
    };
}
conforms!(disk, "wd-re3");
conforms!(small_flash, "usb-memorex");
conforms!(network, "network-disk");

async fn traced(env: Env) -> Device {
    let memory = Arc::new(Memory::new(Blocks(322)).with_delay(env.clone(), std::time::Duration::from_micros(3)));
    Arc::new(Traced::new(memory, env, Arc::new(|_| {})))
}
conformance!(without_model, traced);

#[test]
fn requests_are_recorded_without_a_model() {
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    let records = Arc::new(Mutex::new(Vec::new()));
    let kept = records.clone();
    sim.run(async move {
        let delay = std::time::Duration::from_micros(100);
        let memory = Arc::new(Memory::new(Blocks(8)).with_delay(env.clone(), delay));
        let device: Device =
            Arc::new(Traced::new(memory, env.clone(), Arc::new(move |record| kept.lock().push(*record))));
        let data = vec![Bytes::from(vec![1; 8192])];
        let other = device.clone();
        let read = env.spawn(async move { other.read(CONTEXT, Lba(4), Blocks(1)).await });
        device.write(CONTEXT, Lba(1), data, Durability::Forced).await.expect("write");
        read.await.expect("read");
        device.flush(CONTEXT).await.expect("flush");
    })
    .expect("no deadlock");
    let mut records = records.lock().clone();
    records.sort_by_key(|record| (record.offset, record.at_ns));
    let seen: Vec<_> = records.iter().map(|record| (record.op, record.offset, record.len, record.fua)).collect();
    let expected =
        [(Operation::Flush, 0, 0, false), (Operation::Write, 4096, 8192, true), (Operation::Read, 16384, 4096, false)];
    assert_eq!(seen, expected);
    assert!(records.iter().all(|record| record.response_ns > 0 && record.response_ns <= 100_000), "{records:?}");
    assert_eq!(records.iter().map(|record| record.depth).max(), Some(2));
}

/// Random requests in a closed loop of `depth` tasks, with the records in order of completion.
fn run(
    model: &'static str,
    depth: usize,
    count: usize,
    seed: u64,
    mut draw: impl FnMut() -> Request + Send + 'static,
) -> Vec<Record> {
    let file = ModelFile::preset(model).expect("a preset");
    let capacity = Size(file.build(1).expect("a preset").capacity()).to_blocks_down();
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    let records = Arc::new(Mutex::new(Vec::new()));
    let kept = records.clone();
    sim.run(async move {
        let device = emulated(model, capacity, env.clone());
        let device: Device = Arc::new(device.with_trace(Arc::new(move |record| kept.lock().push(*record))));
        let requests: Vec<Request> = (0..count).map(|_| draw()).collect();
        let requests = Arc::new(Mutex::new(requests.into_iter()));
        let tasks: Vec<_> = (0..depth)
            .map(|_| {
                let (device, requests) = (device.clone(), requests.clone());
                env.spawn(async move {
                    loop {
                        let next = requests.lock().next();
                        let Some(Request { kind, offset, len, fua }) = next else { return };
                        let (at, count) = (Lba(offset / 4096), Blocks(len / 4096));
                        match kind {
                            ashlar_models::Kind::Read => drop(device.read(CONTEXT, at, count).await.expect("read")),
                            ashlar_models::Kind::Write => {
                                let durability = if fua { Durability::Forced } else { Durability::Cached };
                                let data = vec![Bytes::from(vec![7; len as usize])];
                                device.write(CONTEXT, at, data, durability).await.expect("write");
                            }
                            ashlar_models::Kind::Flush => device.flush(CONTEXT).await.expect("flush"),
                            ashlar_models::Kind::Discard => {
                                device.discard(CONTEXT, at, count).await.expect("discard");
                            }
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    })
    .expect("no deadlock");
    Arc::into_inner(records).expect("the device is gone").into_inner()
}

/// Any request in the first GiB.
fn any(chance: &mut Chance) -> Request {
    let (offset, len) = (chance.below(1 << 18) * 4096, (1 + chance.below(16)) * 4096);
    match chance.below(20) {
        0 => Request::flush(),
        1 => Request::discard(offset, len),
        2 => Request::write_fua(offset, len),
        3..11 => Request::write(offset, len),
        _ => Request::read(offset, len),
    }
}

fn completion_key(done: &Completion) -> (u64, u64, u64, u64) {
    (done.submitted_ns, done.done_ns, done.request.offset, done.request.len)
}

fn record_key(record: &Record) -> (u64, u64, u64, u64) {
    (record.at_ns, record.at_ns + record.response_ns, record.offset, record.len)
}

/// Through the device, one request after another takes exactly as long as in the model alone, whatever it is.
#[test]
fn at_depth_one_the_model_is_followed_to_the_nanosecond() {
    for model in ["wd-re3", "cheetah-15k5", "network-disk"] {
        let mut chance = Chance::new(3);
        let records = run(model, 1, 2000, 5, move || any(&mut chance));
        let mut alone = ModelFile::preset(model).expect("a preset").build(1).expect("a preset");
        let (mut chance, mut left, mut expected) = (Chance::new(3), 2000, Vec::new());
        let next = || {
            left -= 1;
            (left >= 0).then(|| any(&mut chance))
        };
        closed_loop(alone.as_mut(), 0, 1, next, |done| expected.push(completion_key(done))).expect("in range");
        let seen: Vec<_> = records.iter().map(record_key).collect();
        let differing = seen.iter().zip(&expected).position(|(seen, expected)| seen != expected);
        assert_eq!(differing.map(|index| (index, seen[index], expected[index])), None, "{model}");
        assert_eq!(seen.len(), expected.len(), "{model}");
        assert!(records.iter().all(|record| record.late_ns == 0 && record.depth == 1));
    }
}

/// Eight at a time, the queue of the model is full whenever it chooses: the rate of reads is that of `calibrate`.
#[test]
fn eight_at_a_time_are_as_fast_as_in_the_model() {
    let capacity = ModelFile::preset("wd-re3").expect("a preset").build(1).expect("a preset").capacity();
    let read = move |chance: &mut Chance| Request::read(chance.below(capacity / 4096) * 4096, 4096);
    let mut chance = Chance::new(7);
    let records = run("wd-re3", 8, 8000, 1, move || read(&mut chance));
    let mut alone = ModelFile::preset("wd-re3").expect("a preset").build(1).expect("a preset");
    let (mut chance, mut left) = (Chance::new(7), 8000);
    let next = || {
        left -= 1;
        (left >= 0).then(|| read(&mut chance))
    };
    let expected = closed_loop(alone.as_mut(), 0, 8, next, |_| {}).expect("in range").end_ns;
    let end = records.iter().map(|record| record.at_ns + record.response_ns).max().expect("some");
    assert_eq!(end, expected);
    assert_eq!(records.iter().map(|record| record.depth).max(), Some(8));
}

#[test]
fn one_seed_gives_one_trace() {
    let trace = |seed| {
        let mut chance = Chance::new(9);
        run("ssd-tlc", 16, 1500, seed, move || any(&mut chance))
    };
    let (one, again, other) = (trace(1), trace(1), trace(2));
    assert!(one == again, "two runs of seed 1 differ");
    assert!(one != other, "the schedule decides nothing");
}

#[test]
fn parts_add_up_and_lines_are_read_back() {
    let mut chance = Chance::new(4);
    for record in run("exos-x20", 8, 400, 2, move || any(&mut chance)) {
        let Record { queue_ns, overhead_ns, seek_ns, rotation_ns, transfer_ns, response_ns, .. } = record;
        assert_eq!(queue_ns + overhead_ns + seek_ns + rotation_ns + transfer_ns, response_ns);
        let line = serde_json::to_string(&record).expect("a line");
        assert_eq!(serde_json::from_str::<Record>(&line).expect("the same line"), record);
    }
}

/// A buffered write returns at once; the flush after it, and a forced write, wait for the medium.
#[test]
fn the_write_cache_is_seen() {
    let mut requests = [Request::write(1 << 30, 4096), Request::flush(), Request::write_fua(1 << 29, 4096)].into_iter();
    let records = run("wd-re3", 1, 3, 1, move || requests.next().expect("three"));
    assert!(records[0].response_ns < 100_000, "{:?}", records[0]);
    assert!(records[1].response_ns > 1_000_000, "{:?}", records[1]);
    assert!(records[2].response_ns > 1_000_000, "{:?}", records[2]);
}

#[test]
fn what_the_model_refuses_does_not_reach_the_contents() {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(async move {
        let device = emulated("amf-segments", Blocks(1 << 14), env);
        let block = |byte| vec![Bytes::from(vec![byte; 4096])];
        device.write(CONTEXT, Lba(0), block(1), Durability::Cached).await.expect("the first time");
        let error = device.write(CONTEXT, Lba(0), block(2), Durability::Cached).await.expect_err("append once");
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("trim the segment first"), "{error}");
        let data = device.read(CONTEXT, Lba(0), Blocks(1)).await.expect("read");
        assert!(data.iter().all(|byte| *byte == 1));
    })
    .expect("no deadlock");
}

#[test]
fn a_child_that_is_too_large_is_refused() {
    let sim = Sim::new(1, Schedule::Fifo);
    let model = ModelFile::preset("maxtor-d740x").expect("a preset");
    let child = Arc::new(Memory::new(Size::gib(1000).to_blocks_down()));
    let error = Emulated::new(child, &model, 0, sim.env()).err().expect("too large").to_string();
    assert!(error.contains("make it smaller"), "{error}");
}

/// A request that is given up half-way does no harm, and dropping the device ends its task.
#[test]
fn requests_may_be_dropped() {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(async move {
        let device = emulated("wd-re3", Blocks(1 << 20), env.clone());
        {
            let mut read = std::pin::pin!(device.read(CONTEXT, Lba(9), Blocks(1)));
            std::future::poll_fn(|context| {
                assert!(read.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        }
        env.sleep(std::time::Duration::from_secs(1)).await;
        let clock = Arc::downgrade(&device.clock);
        device.read(CONTEXT, Lba(1 << 19), Blocks(1)).await.expect("read");
        drop(device);
        env.sleep(std::time::Duration::from_secs(1)).await;
        assert!(clock.upgrade().is_none(), "the driver is still there");
    })
    .expect("no deadlock");
}

#[test]
fn wear_survives_a_restart() {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    let path = std::env::temp_dir().join(format!("ashlar-wear-{}.model", std::process::id()));
    let state = path.clone();
    sim.run(async move {
        let model = ModelFile::preset("usb-house").expect("a preset");
        let child = || Arc::new(Memory::new(Blocks(64)));
        let start =
            |seed| Emulated::new(child(), &model, seed, env.clone()).and_then(|d| d.kept_in(&state, &model, seed));
        for life in 0..3 {
            let device = start(1).expect("a device");
            assert_eq!(device.counters().writes, 200 * life);
            for at in 0..200 {
                let data = vec![Bytes::from(vec![1; 4096])];
                device.write(CONTEXT, Lba(at % 64), data, Durability::Cached).await.expect("a write");
            }
            assert!(device.counters().erases > life, "nothing wears");
        }
        let error = start(2).err().expect("another specimen").to_string();
        assert!(error.contains("another seed"), "{error}");
        let mut bytes = std::fs::read(&state).expect("it was written");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&state, bytes).expect("it is ours");
        let error = start(1).err().expect("damaged").to_string();
        assert!(error.contains("remove the file"), "{error}");
    })
    .expect("no deadlock");
    std::fs::remove_file(path).expect("it is ours");
}
