//! Each fault against a model of what it may do.

use super::*;
use ashlar_block::{Kind, conformance};
use ashlar_devices::Memory;
use ashlar_env::sim::{Schedule, Sim};
use proptest::prelude::*;
use std::sync::Arc;

const CONTEXT: IoContext = IoContext::foreground("test");
const CAPACITY: Blocks = Blocks(64);

async fn calm(env: Env) -> Device {
    Arc::new(Faulty::new(Arc::new(Memory::new(Blocks(300))), 1, env))
}
conformance!(no_faults, calm);

/// A volatile cache that is always too small is still a device as any other.
async fn volatile(env: Env) -> Device {
    let memory = Arc::new(Memory::new(Blocks(300)).with_delay(env.clone(), Duration::from_micros(5)));
    let faults = ["power-cut window 40KiB".parse().expect("a fault")];
    Arc::new(Faulty::with_faults(memory, 1, &faults, env).expect("they fit"))
}
conformance!(volatile_cache, volatile);

/// Time changes nothing but time.
async fn late(env: Env) -> Device {
    let faults = ["delay exponential 5us", "slow 3x on write", "slow 4GB/s on read", "stuck for 9us p 0.1"];
    let faults = faults.map(|fault| fault.parse().expect("a fault"));
    let memory = Arc::new(Memory::new(Blocks(300)).with_delay(env.clone(), Duration::from_micros(5)));
    Arc::new(Faulty::with_faults(memory, 1, &faults, env).expect("they fit"))
}
conformance!(late_operations, late);

fn faulty(faults: &[&str], seed: u64, env: &Env) -> Arc<Faulty> {
    let faults: Vec<Fault> = faults.iter().map(|fault| fault.parse().expect("a fault")).collect();
    Arc::new(Faulty::with_faults(Arc::new(Memory::new(CAPACITY)), seed, &faults, env.clone()).expect("they fit"))
}

/// Runs `body` with a device that has these faults.
fn with<F: Future<Output = ()> + Send + 'static>(faults: &[&str], seed: u64, body: impl FnOnce(Arc<Faulty>, Env) -> F) {
    let sim = Sim::new(seed, Schedule::Random);
    let env = sim.env();
    let body = body(faulty(faults, seed, &env), env);
    sim.run(body).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
}

/// Blocks of this byte.
fn of(value: u8, blocks: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![value; blocks * BLOCK_LEN])]
}

async fn write(device: &Faulty, at: u64, value: u8, blocks: usize) {
    device.write(CONTEXT, Lba(at), of(value, blocks), Durability::Cached).await.expect("a write");
}

/// The first byte of each block.
async fn read(device: &Faulty, at: u64, blocks: u64) -> Result<Vec<u8>> {
    let data = device.read(CONTEXT, Lba(at), Blocks(blocks)).await?;
    Ok(data.chunks(BLOCK_LEN).map(|block| block[0]).collect())
}

#[test]
fn bad_sectors_fail_until_they_are_written() {
    with(&["lse at 16KiB..24KiB"], 1, |device, _| async move {
        write(&device, 0, 1, 4).await;
        assert_eq!(read(&device, 0, 4).await.expect("good blocks"), [1; 4]);
        let error = read(&device, 0, 6).await.expect_err("two bad blocks");
        assert_eq!(error.kind(), Kind::Failed);
        assert!(
            error.to_string().contains("medium error, unrecovered read at lba 4, 2 blocks by fault 1 (lse"),
            "{error}"
        );
        let hole = device.extent(CONTEXT, Lba(4), Blocks(8)).await.expect("a query");
        assert_eq!(hole, Extent { hole: false, count: Blocks(2) }, "a hole would not be read");
        device.discard(CONTEXT, Lba(4), Blocks(2)).await.expect("a discard");
        read(&device, 4, 1).await.expect_err("a discard writes nothing");
        write(&device, 5, 7, 1).await;
        assert_eq!(read(&device, 5, 1).await.expect("healed"), [7]);
        read(&device, 4, 1).await.expect_err("its neighbour is not");
        assert_eq!(device.faults()[0].bad_blocks, Some(1));
        assert_eq!(device.faults()[0].injected, 3);
        device.clear(Some(1)).await.expect("it is there");
        assert_eq!(read(&device, 4, 1).await.expect("as before"), [0]);
    });
}

#[test]
fn transient_errors_come_with_their_chance_and_go() {
    with(&["read-error p 0.3 at 0..4KiB"], 5, |device, _| async move {
        let mut failed = 0;
        for _ in 0..1000 {
            match read(&device, 0, 2).await {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Retry);
                    failed += 1;
                }
            }
            read(&device, 1, 2).await.expect("not in the range");
        }
        // The standard deviation is 14.5.
        assert!((230..370).contains(&failed), "{failed} of 1000");
        assert_eq!(device.faults()[0].injected, failed);
    });
}

#[test]
fn one_bit_turns_in_what_is_read_or_in_what_is_kept() {
    with(&["flip p 0.5 on read"], 3, |device, _| async move {
        write(&device, 0, 0, 16).await;
        let mut turned = 0;
        for _ in 0..50 {
            let data = device.read(CONTEXT, Lba(0), Blocks(16)).await.expect("no error");
            for block in data.chunks(BLOCK_LEN) {
                let bits: u32 = block.iter().map(|byte| byte.count_ones()).sum();
                assert!(bits <= 1, "{bits} bits in a block");
                turned += bits;
            }
        }
        assert!((320..480).contains(&turned), "{turned} of 800");
        device.clear(None).await.expect("cleared");
        let data = device.read(CONTEXT, Lba(0), Blocks(16)).await.expect("no error");
        assert!(data.iter().all(|byte| *byte == 0), "the medium is as it was");
    });
    with(&["flip on write at 4KiB..8KiB times 1"], 3, |device, _| async move {
        for _ in 0..2 {
            write(&device, 0, 0, 3).await;
            let ones =
                |data: Bytes| data.chunks(BLOCK_LEN).map(|block| block.iter().map(|b| b.count_ones()).sum()).collect();
            let ones: Vec<u32> = ones(device.read(CONTEXT, Lba(0), Blocks(3)).await.expect("no error"));
            let spent = device.log().len() == 1 && ones == [0, 0, 0];
            assert!(ones == [0, 1, 0] || spent, "{ones:?}");
        }
        assert!(device.faults()[0].spent);
    });
}

#[test]
fn lost_misdirected_and_torn_writes_do_what_they_say() {
    with(&["lost-write at 4KiB..8KiB"], 1, |device, _| async move {
        write(&device, 0, 1, 3).await;
        assert_eq!(read(&device, 0, 3).await.expect("read"), [1, 0, 1]);
    });
    with(&["misdirect by -8KiB at 4KiB..8KiB"], 1, |device, _| async move {
        write(&device, 0, 1, 3).await;
        assert_eq!(read(&device, 0, 3).await.expect("read"), [1, 0, 1]);
        assert_eq!(read(&device, 63, 1).await.expect("around the end"), [1]);
    });
    with(&["torn sectors 11"], 1, |device, _| async move {
        write(&device, 0, 1, 1).await;
        write(&device, 0, 2, 3).await;
        let data = device.read(CONTEXT, Lba(0), Blocks(3)).await.expect("read");
        let (new, old) = data.split_at(11 * 512);
        assert!(new.iter().all(|byte| *byte == 2) && old.iter().all(|byte| *byte == 0));
        assert_eq!(device.faults()[0].injected, 1, "a write of 8 sectors is whole");
    });
    for seed in 0..20 {
        with(&["torn p 0.5"], seed, |device, _| async move {
            write(&device, 0, 1, 2).await;
            let data = device.read(CONTEXT, Lba(0), Blocks(2)).await.expect("read");
            let new = data.iter().take_while(|byte| **byte == 1).count();
            assert!(new.is_multiple_of(512) && data[new..].iter().all(|byte| *byte == 0));
            assert_eq!(new < data.len(), device.faults()[0].injected == 1);
        });
    }
}

#[test]
fn stale_reads_return_the_version_before() {
    with(&["stale p 0.5 at 0..8KiB"], 2, |device, _| async move {
        for value in 1..=3 {
            write(&device, 0, value, 4).await;
        }
        let mut seen = [0; 4];
        for _ in 0..200 {
            let data = read(&device, 0, 4).await.expect("read");
            assert!(data[..2].iter().all(|value| [2, 3].contains(value)) && data[2..] == [3, 3], "{data:?}");
            seen[usize::from(data[0])] += 1;
        }
        assert!(seen[2] > 60 && seen[3] > 60, "{seen:?}");
    });
}

#[test]
fn full_removed_and_read_only_devices_refuse() {
    with(&["full after 8KiB"], 1, |device, _| async move {
        write(&device, 0, 1, 2).await;
        let error = device.write(CONTEXT, Lba(2), of(2, 1), Durability::Cached).await.expect_err("full");
        assert_eq!(error.kind(), Kind::NoSpace);
        assert_eq!(read(&device, 0, 3).await.expect("contents are there"), [1, 1, 0]);
        device.flush(CONTEXT).await.expect("a flush");
    });
    with(&["removed"], 1, |device, _| async move {
        assert_eq!(read(&device, 0, 1).await.expect_err("gone").kind(), Kind::Failed);
        assert_eq!(device.flush(CONTEXT).await.expect_err("gone").kind(), Kind::Failed);
        assert!(!device.extent(CONTEXT, Lba(0), Blocks(1)).await.expect("a query").hole);
        device.clear(None).await.expect("cleared");
        read(&device, 0, 1).await.expect("back");
    });
    with(&["read-only at 0..4KiB times 2"], 1, |device, _| async move {
        for _ in 0..2 {
            let error = device.write(CONTEXT, Lba(0), of(1, 1), Durability::Cached).await.expect_err("protected");
            assert!(error.to_string().contains("write-protected"), "{error}");
        }
        write(&device, 0, 1, 1).await;
    });
}

/// Virtual time an operation takes, in microseconds.
async fn time_us<T>(env: &Env, work: impl Future<Output = Result<T>>) -> u64 {
    let began = env.now();
    work.await.map(drop).expect("it works");
    (env.now().since(began).as_nanos() / 1000) as u64
}

#[test]
fn delays_have_their_distributions() {
    let mean_us = |fault: &'static str| {
        let (sender, receiver) = std::sync::mpsc::channel();
        with(&[fault], 9, |device, env| async move {
            let mut times = Vec::new();
            for _ in 0..2000 {
                times.push(time_us(&env, device.read(CONTEXT, Lba(0), Blocks(1))).await);
                assert_eq!(time_us(&env, device.flush(CONTEXT)).await, 0, "only reads are late");
            }
            times.sort_unstable();
            sender
                .send((times.iter().sum::<u64>() / 2000, times[1000], times[0], times[1999]))
                .expect("somebody waits");
        });
        receiver.recv().expect("it ran")
    };
    assert_eq!(mean_us("delay 5ms on read"), (5000, 5000, 5000, 5000));
    let (mean, _, least, most) = mean_us("delay uniform 1ms..3ms on read");
    assert!((1950..2050).contains(&mean) && least >= 1000 && most <= 3000, "{mean} {least} {most}");
    let (mean, median, ..) = mean_us("delay exponential 5ms on read");
    assert!((4600..5400).contains(&mean) && (3100..3800).contains(&median), "{mean} {median}");
    let (mean, median, ..) = mean_us("delay lognormal 5ms sigma 1 on read");
    // The mean is exp(1/2) times the median.
    assert!((7300..9300).contains(&mean) && (4500..5500).contains(&median), "{mean} {median}");
}

#[test]
fn slow_devices_take_their_factor_or_share_their_rate() {
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    sim.run(async move {
        let memory = Arc::new(Memory::new(CAPACITY).with_delay(env.clone(), Duration::from_micros(100)));
        let plain = Arc::new(Faulty::new(memory, 1, env.clone()));
        let mut sums = [0, 0];
        for (sum, slow) in sums.iter_mut().zip([false, true]) {
            if slow {
                plain.inject("slow 10x".parse().expect("a fault")).expect("it fits");
            }
            for _ in 0..300 {
                *sum += time_us(&env, plain.read(CONTEXT, Lba(0), Blocks(1))).await;
            }
        }
        let factor = sums[1] as f64 / sums[0] as f64;
        assert!((8.0..12.0).contains(&factor), "{factor}");

        let narrow = faulty(&["slow 4MiB/s on write"], 1, &env);
        let began = env.now();
        let tasks: Vec<_> = (0..8)
            .map(|at| {
                let narrow = narrow.clone();
                env.spawn(async move { write(&narrow, at * 8, 1, 8).await })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        // 256 KiB at 4 MiB/s.
        assert_eq!(env.now().since(began).as_micros(), 62_500);
    })
    .expect("no deadlock");
}

#[test]
fn what_is_stuck_hangs_until_it_is_cleared_or_time_is_up() {
    with(&["stuck on write", "stuck for 3s on flush"], 1, |device, env| async move {
        let writer = device.clone();
        let task = env.spawn(async move { write(&writer, 0, 1, 1).await });
        assert!(time_us(&env, device.flush(CONTEXT)).await >= 3_000_000);
        env.sleep(Duration::from_secs(3600)).await;
        assert!(!task.is_done());
        device.clear(Some(1)).await.expect("it is there");
        task.await;
        assert_eq!(read(&device, 0, 1).await.expect("read"), [1]);
        // Who hangs when the power fails is told.
        device.inject("stuck on read".parse().expect("a fault")).expect("it fits");
        let reader = device.clone();
        let task = env.spawn(async move { read(&reader, 0, 1).await });
        env.sleep(Duration::from_secs(1)).await;
        device.cut_power().await.expect("the power was on");
        let error = task.await.expect_err("no power").to_string();
        assert!(error.contains("the power is cut"), "{error}");
        device.retire().await.expect("at the end everything goes on");
        read(&device, 0, 1).await.expect("nothing hangs");
    });
}

#[test]
fn a_power_cut_takes_what_no_flush_covers() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..100 {
        let (sender, receiver) = std::sync::mpsc::channel();
        with(&["power-cut atomic 512"], seed, |device, _| async move {
            write(&device, 0, 1, 4).await;
            device.flush(CONTEXT).await.expect("a flush");
            write(&device, 0, 2, 4).await;
            device.write(CONTEXT, Lba(8), of(3, 1), Durability::Forced).await.expect("a forced write");
            assert_eq!(read(&device, 0, 4).await.expect("what was written last"), [2; 4]);
            assert_eq!(device.held(), Blocks(4).to_bytes());
            let report = device.cut_power().await.expect("the power was on");
            assert_eq!((report.medium, report.writes, report.bytes), (true, 1, 4 * 4096));
            read(&device, 0, 1).await.expect_err("no power");
            device.cut_power().await.expect_err("twice");
            assert!(device.restore().await);
            let data = device.read(CONTEXT, Lba(0), Blocks(9)).await.expect("power");
            assert!(data[8 * BLOCK_LEN..].iter().all(|byte| *byte == 3), "what was forced is there");
            let units = data[..4 * BLOCK_LEN].chunks(512).map(|unit| {
                assert!(unit.iter().all(|byte| *byte == unit[0]) && [1, 2].contains(&unit[0]));
                u64::from(unit[0] == 2)
            });
            let new: u64 = units.sum();
            assert_eq!(new * 512, report.survived_bytes);
            sender.send(new).expect("somebody waits");
        });
        match receiver.recv().expect("it ran") {
            0 => lost += 1,
            32 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(lost > 10 && kept > 10 && torn > 10, "lost {lost}, kept {kept}, torn {torn}");
}

#[test]
fn a_dropped_flush_covers_nothing() {
    let mut lost = 0;
    for seed in 0..40 {
        let (sender, receiver) = std::sync::mpsc::channel();
        with(&["power-cut", "drop-flush"], seed, |device, _| async move {
            device.write(CONTEXT, Lba(0), of(1, 1), Durability::Forced).await.expect("acknowledged");
            device.flush(CONTEXT).await.expect("acknowledged");
            device.cut_power().await.expect("the power was on");
            device.restore().await;
            sender.send(read(&device, 0, 1).await.expect("power")).expect("somebody waits");
        });
        lost += u32::from(receiver.recv().expect("it ran") == [0]);
    }
    assert!(lost > 5, "lost in {lost} of 40");
}

#[test]
fn the_power_fails_by_itself_and_the_window_is_bounded() {
    with(&["power-cut window 16KiB ordered whole after 10"], 4, |device, _| async move {
        for block in 0..10 {
            write(&device, block, 1, 1).await;
            assert!(device.held() <= Size::kib(16));
        }
        let error = device.write(CONTEXT, Lba(10), of(1, 1), Durability::Cached).await.expect_err("no power");
        assert!(error.to_string().contains("the power is cut"), "{error}");
        device.restore().await;
        let data = read(&device, 0, 11).await.expect("power");
        let prefix = data.iter().take_while(|value| **value == 1).count();
        // At most four writes were held.
        assert!((6..=10).contains(&prefix) && data[prefix..].iter().all(|value| *value == 0), "{data:?}");
    });
}

#[test]
fn numbers_bounds_and_places_are_checked() {
    with(&[], 1, |device, _| async move {
        let inject = |text: &str| device.inject(text.parse().expect("a fault"));
        assert_eq!(inject("drop-flush").expect("the first"), 1);
        assert!(inject("lse at 1GiB..2GiB").expect_err("outside").to_string().contains("past the end"));
        inject("power-cut").expect("a medium");
        assert!(inject("power-cut").expect_err("two media").to_string().contains("fault 2 declares the medium"));
        let error = device.clear(Some(7)).await.expect_err("no such fault").to_string();
        assert!(error.contains("there are: 1, 2"), "{error}");
        for _ in 2..FAULTS_MAX {
            inject("delay 0s").expect("there is room");
        }
        assert!(inject("delay 0s").expect_err("too many").to_string().contains("clear some"));
        for _ in 0..LOG_MAX / 100 {
            device.flush(CONTEXT).await.expect("dropped");
        }
        assert_eq!(device.log().len(), LOG_MAX);
        assert_eq!(device.clear(None).await.expect("all"), FAULTS_MAX);
    });
}

/// Random operations.
async fn work(device: &Faulty, mut number: u64) -> Vec<(u64, bool, Vec<u8>)> {
    let mut seen = Vec::new();
    for step in 0..200u64 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (at, count) = ((number >> 33) % 60, 1 + (number >> 50) % 4);
        match (number >> 60) % 4 {
            0 | 1 => {
                let outcome = device.write(CONTEXT, Lba(at), of(step as u8, count as usize), Durability::Cached).await;
                seen.push((step, outcome.is_ok(), Vec::new()));
            }
            2 => {
                let outcome = device.read(CONTEXT, Lba(at), Blocks(count)).await;
                seen.push((step, outcome.is_ok(), outcome.map(|data| data.to_vec()).unwrap_or_default()));
            }
            _ => seen.push((step, device.flush(CONTEXT).await.is_ok(), Vec::new())),
        }
    }
    seen
}

const MIXTURE: [&str; 9] = [
    "lse rate 0.01 burst 3",
    "read-error p 0.05",
    "flip p 0.05 on read",
    "flip p 0.05 on write",
    "lost-write p 0.05",
    "misdirect p 0.05 by 12KiB",
    "torn p 0.1",
    "stale p 0.1",
    "power-cut window 32KiB",
];

#[test]
fn a_seed_gives_the_same_faults_again_and_another_seed_gives_others() {
    let run = |seed: u64, faults: &[&str]| {
        let (sender, receiver) = std::sync::mpsc::channel();
        with(faults, seed, |device, _| async move {
            let seen = work(&device, 7).await;
            let log: Vec<_> = device.log();
            sender.send((seen, log)).expect("somebody waits");
        });
        receiver.recv().expect("it ran")
    };
    assert_eq!(run(1, &MIXTURE), run(1, &MIXTURE));
    assert_ne!(run(1, &MIXTURE).1, run(2, &MIXTURE).1);
    let struck = |faults: &[&str]| run(1, faults).1.into_iter().filter(|it| it.fault == 1).collect::<Vec<_>>();
    let alone = struck(&["read-error p 0.05"]);
    assert_eq!(alone, struck(&["read-error p 0.05", "flip p 0.5 on read"]), "others do not change its dice");
}

proptest! {
    #![proptest_config(ashlar_fuzz::config(120))]

    /// Any mixture: where the log says that nothing struck, every block is what was written last.
    #[test]
    fn faults_strike_only_where_they_say(seed in any::<u64>(), chosen in prop::sample::subsequence(MIXTURE.to_vec(), 0..6), steps in any::<u64>()) {
        with(&chosen.clone(), seed, |device, _| async move {
            let mut model = vec![0u8; CAPACITY.0 as usize];
            let mut spoiled = [false; CAPACITY.0 as usize];
            let mut number = steps;
            for value in 1..120u8 {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (at, count) = ((number >> 33) % 60, 1 + (number >> 50) % 4);
                let before: u64 = device.faults().iter().map(|fault| fault.injected).sum();
                let struck = |device: &Faulty| device.faults().iter().map(|fault| fault.injected).sum::<u64>() > before;
                if number >> 63 == 0 {
                    write(&device, at, value, count as usize).await;
                    for block in at..at + count {
                        model[block as usize] = value;
                        spoiled[block as usize] = false;
                    }
                    if struck(&device) {
                        // Anywhere that a write of this step may have gone, or not gone.
                        for block in (at..at + count).flat_map(|block| [block, (block + 3) % CAPACITY.0]) {
                            spoiled[block as usize] = true;
                        }
                    }
                } else {
                    match read(&device, at, count).await {
                        Ok(data) if !struck(&device) => {
                            for (block, seen) in (at as usize..).zip(data) {
                                assert!(spoiled[block] || seen == model[block], "block {block} holds {seen}, not {}", model[block]);
                            }
                        }
                        Ok(_) => {}
                        Err(error) => assert!(struck(&device) && error.to_string().contains("by fault"), "{error}"),
                    }
                }
            }
        });
    }
}
