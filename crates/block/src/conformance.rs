//! One conformance body for every device and layer.
//!
//! `conformance!(memory, |env| async move { ... -> Device })` in a test module runs a byte-vector model under random
//! operations, edges and zero lengths, and overlapping concurrency, in the simulated runtime, with printed seeds.

use crate::{Device, Durability, IoContext, Kind};
use ashlar_env::Env;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;

const CONTEXT: IoContext = IoContext::foreground("conformance");

fn pattern(stamp: u64, block: u64) -> Vec<u8> {
    let mut data = vec![0u8; BLOCK_LEN];
    for (index, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(stamp ^ block.rotate_left(17) ^ index as u64).to_le_bytes());
    }
    data
}

/// Random reads, writes, flushes and discards against a model of what every block holds.
///
/// # Panics
/// When the device breaks the contract.
pub async fn random_operations(env: Env, device: Device, operations: u64) {
    let capacity = device.geometry().capacity.0;
    let zero = device.capability().discard_zeroes;
    // None: unknown contents after a discard that promises nothing.
    let mut model: Vec<Option<Vec<u8>>> = vec![Some(vec![0; BLOCK_LEN]); capacity as usize];
    for stamp in 0..operations {
        let at = env.random() % capacity;
        let count = env.random() % 9 % (capacity - at + 1);
        let range = at as usize..(at + count) as usize;
        match env.random() % 10 {
            0..4 => {
                let data: Vec<u8> = (at..at + count).flat_map(|block| pattern(stamp, block)).collect();
                for (slot, block) in model[range].iter_mut().zip(data.chunks(BLOCK_LEN)) {
                    *slot = Some(block.to_vec());
                }
                let cut = (count / 2) as usize * BLOCK_LEN;
                let data = Bytes::from(data);
                let pieces = vec![data.slice(..cut), data.slice(cut..)];
                let durability = if stamp % 5 == 0 { Durability::Forced } else { Durability::Cached };
                if stamp % 3 == 0 {
                    let places = [Lba(at), Lba(at + count / 2)];
                    let runs = places.into_iter().zip(pieces.into_iter().map(|piece| vec![piece])).collect();
                    device.write_strand(CONTEXT, runs, 2, durability).await.expect("a strand in range");
                } else {
                    device.write(CONTEXT, Lba(at), pieces, durability).await.expect("write in range");
                }
            }
            4..8 => {
                let data = device.read(CONTEXT, Lba(at), Blocks(count)).await.expect("read in range");
                assert_eq!(data.len(), count as usize * BLOCK_LEN);
                for (index, (seen, expected)) in data.chunks(BLOCK_LEN).zip(&model[range]).enumerate() {
                    let same = expected.as_ref().is_none_or(|expected| expected == seen);
                    assert!(same, "operation {stamp}: block {} differs", at as usize + index);
                }
            }
            8 if stamp % 2 == 0 => device.flush(CONTEXT).await.expect("flush"),
            8 if count > 0 => {
                let extent = device.extent(CONTEXT, Lba(at), Blocks(count)).await.expect("query in range");
                assert!((1..=count).contains(&extent.count.0), "operation {stamp}: {extent:?} of {count}");
                let mut alike = model[range].iter().take(extent.count.0 as usize).flatten();
                let zeros = alike.all(|block| block.iter().all(|byte| *byte == 0));
                assert!(!extent.hole || zeros, "operation {stamp}: a hole at {at} holds data");
            }
            _ if device.capability().discard => {
                device.discard(CONTEXT, Lba(at), Blocks(count)).await.expect("discard in range");
                model[range].fill(zero.then(|| vec![0; BLOCK_LEN]));
            }
            _ => {}
        }
    }
}

/// Zero lengths at both ends are fine, anything past the end is refused as misuse.
///
/// # Panics
/// When the device breaks the contract.
pub async fn edges(device: Device) {
    let end = Lba(device.geometry().capacity.0);
    for at in [Lba(0), end] {
        assert!(device.read(CONTEXT, at, Blocks(0)).await.expect("empty read").is_empty());
        device.write(CONTEXT, at, vec![], Durability::Cached).await.expect("empty write");
    }
    let block = || vec![Bytes::from(vec![1; BLOCK_LEN])];
    for at in [end, Lba(u64::MAX)] {
        let read = device.read(CONTEXT, at, Blocks(1)).await.expect_err("read past the end");
        assert_eq!(read.kind(), Kind::Misuse);
        let write = device.write(CONTEXT, at, block(), Durability::Cached).await.expect_err("write past the end");
        assert_eq!(write.kind(), Kind::Misuse);
    }
    let past = device.provision(CONTEXT, end, Blocks(1)).await.expect_err("room past the end");
    assert_eq!(past.kind(), Kind::Misuse);
    device.write(CONTEXT, Lba(0), block(), Durability::Cached).await.expect("write");
    for _ in 0..2 {
        device.provision(CONTEXT, Lba(0), Blocks(4)).await.expect("there is room");
        let read = device.read(CONTEXT, Lba(0), Blocks(1)).await.expect("read");
        assert_eq!(read[..], block()[0], "setting room aside changes nothing");
    }
    let odd = vec![Bytes::from_static(b"not a block")];
    let odd = device.write(CONTEXT, Lba(0), odd, Durability::Cached).await.expect_err("a piece of 11 bytes");
    assert_eq!(odd.kind(), Kind::Misuse);
}

/// Many tasks, each alone on its stripe, see only their own writes.
///
/// # Panics
/// When the device breaks the contract.
pub async fn concurrency(env: Env, device: Device) {
    const TASKS: u64 = 8;
    let stripe = device.geometry().capacity.0 / TASKS;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (env2, device) = (env.clone(), device.clone());
            env.spawn(async move {
                for round in 0..20 {
                    let at = task * stripe + env2.random() % stripe;
                    let data = pattern(task << 32 | round, at);
                    device.write(CONTEXT, Lba(at), vec![data.clone().into()], Durability::Cached).await.expect("write");
                    let back = device.read(CONTEXT, Lba(at), Blocks(1)).await.expect("read");
                    assert!(back == data, "task {task} round {round}: read back something else");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

/// Runs the conformance suite on what `$make` builds from an `Env`, wrapped in [`Checked`](crate::Checked) as in a stack.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn run<F: Future<Output = ()> + Send + 'static>(
                body: fn(ashlar_env::Env, $crate::Device) -> F,
                seeds: u64,
            ) {
                for seed in 0..seeds {
                    eprintln!("conformance {} seed {seed}", stringify!($name));
                    let sim = ashlar_env::sim::Sim::new(seed, ashlar_env::sim::Schedule::Random);
                    let env = sim.env();
                    sim.run(async move {
                        let device: $crate::Device = $make(env.clone()).await;
                        let device = std::sync::Arc::new($crate::Checked::new(device, env.clone()));
                        body(env, device).await;
                    })
                    .expect("no deadlock");
                }
            }
            #[test]
            fn random_operations() {
                run(|env, device| $crate::conformance::random_operations(env, device, 400), 16);
            }
            #[test]
            fn edges() {
                run(|_, device| $crate::conformance::edges(device), 1);
            }
            #[test]
            fn concurrency() {
                run($crate::conformance::concurrency, 16);
            }
        }
    };
}
