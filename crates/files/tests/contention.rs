//! Several tasks on the same files at once, under random schedules, and power cuts in the middle of long operations.

use ashlar_block::Device;
use ashlar_devices::{PowerCut, Tearing};
use ashlar_env::sim::{Schedule, Sim};
use ashlar_env::{BoxFuture, Env};
use ashlar_files::{Files, Options};
use ashlar_pool::{Config, Creation, Pool};
use ashlar_units::{Blocks, Bytes};
use ashlar_vfs::{Errno, FallocateMode, FileKind, FileSystem, Ino, NewNode, ROOT, SetAttr, WriteMode};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const TASKS: u64 = 5;
const BLOCK: usize = 4096;

/// A pool on a device that can lose power, with so little memory that operations wait often.
async fn build(env: &Env) -> Arc<PowerCut> {
    let device = Arc::new(PowerCut::new(Blocks(96 << 10), env.clone(), Duration::from_micros(50)));
    let creation = Creation { segment: Some(Blocks(512)), force: false };
    Pool::create(env, &[device.clone() as Device], creation).await.expect("created");
    let pool = Pool::open(env, vec![device.clone() as Device], config()).await.expect("opened");
    Files::format(&pool.create_volume("v").await.expect("a volume"), 0, 0).await.expect("formatted");
    pool.close().await.expect("closed");
    device
}

fn config() -> Config {
    Config { memory: Bytes(256 << 10), log_bytes: Bytes(1 << 20), ..Config::default() }
}

async fn open(env: &Env, device: &Arc<PowerCut>) -> (Pool, Arc<Files>) {
    let pool = Pool::open(env, vec![device.clone() as Device], config()).await.expect("opened");
    let files = Files::open(pool.volume("v").expect("the volume"), Options::default()).await.expect("a file system");
    (pool, files)
}

/// Runs a test on a fresh file system and checks the file system at the end; two runs of a seed must be the same.
fn with_files<F: Future<Output = ()> + Send + 'static>(seed: u64, test: fn(Env, Arc<Files>) -> F) {
    let run = || {
        let sim = Sim::new(seed, Schedule::Random);
        let env = sim.env();
        let main = async move {
            let device = build(&env).await;
            let (pool, files) = open(&env, &device).await;
            test(env.clone(), files.clone()).await;
            check(&pool, &files, seed).await;
        };
        sim.run(main).unwrap_or_else(|_| panic!("seed {seed}: deadlock"));
        sim.trace().hash
    };
    assert_eq!(run(), run(), "seed {seed}: two runs differ");
}

async fn check(pool: &Pool, files: &Files, seed: u64) {
    files.syncfs().await.expect("synced");
    let audit = files.audit().await.expect("read");
    assert!(audit.wrong.is_empty(), "seed {seed}: {:?}", audit.wrong);
    let checked = pool.check(|_, _| {}).await.expect("checked");
    assert!(checked.damaged.is_empty() && checked.miscounted.is_empty(), "seed {seed}: {checked:?}");
}

async fn all(env: &Env, mut task: impl FnMut(u64) -> BoxFuture<'static, ()>) {
    let tasks: Vec<_> = (0..TASKS).map(|number| env.spawn(task(number))).collect();
    for task in tasks {
        task.await;
    }
}

async fn file(files: &Files, name: &str) -> Ino {
    let new = NewNode { kind: FileKind::File, permissions: 0o644, uid: 0, gid: 0, device: 0, umask: 0, open: false };
    files.create(ROOT, name.as_bytes(), new).await.expect("created").ino
}

async fn contents(files: &Files, ino: Ino) -> Vec<u8> {
    let size = files.getattr(ino).await.expect("there").size as usize;
    files.read(ino, 0, size).await.expect("read").concat()
}

/// Bytes that tell which write made them; every other stamp gives such that do not compress.
fn pattern(stamp: u64, len: usize) -> Vec<u8> {
    let mut word = stamp | 1;
    let words = std::iter::repeat_with(|| {
        if stamp.is_multiple_of(2) {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        word.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// Every task owns bytes that share blocks with those of others; all must be there in the end.
async fn neighbours(env: Env, files: Arc<Files>) {
    const STRIPE: usize = 1000;
    const STRIPES: usize = 300;
    // Across the border where a file gets another range.
    const FIRST: usize = (1 << 20) - 150_000;
    let (ino, blocks) = (file(&files, "shared").await, file(&files, "blocks").await);
    all(&env, |number| {
        let files = files.clone();
        Box::pin(async move {
            for stripe in (0..STRIPES).filter(|stripe| *stripe as u64 % TASKS == number) {
                let (data, how) = (pattern(stripe as u64, STRIPE), WriteMode::default());
                files.write(ino, (FIRST + stripe * STRIPE) as u64, data.into(), how).await.expect("written");
                let data = pattern(stripe as u64, BLOCK);
                files.write(blocks, (stripe * BLOCK) as u64, data.into(), how).await.expect("written");
                if stripe % 7 == 0 {
                    files.fsync(ino, false).await.expect("synced");
                }
                files.read(blocks, 0, STRIPES * BLOCK).await.expect("read");
            }
        })
    })
    .await;
    let data = contents(&files, ino).await;
    for stripe in 0..STRIPES {
        assert_eq!(data[FIRST + stripe * STRIPE..][..STRIPE], pattern(stripe as u64, STRIPE), "stripe {stripe}");
    }
    let data = contents(&files, blocks).await;
    assert_eq!(data.len(), STRIPES * BLOCK);
    for stripe in 0..STRIPES {
        assert_eq!(data[stripe * BLOCK..][..BLOCK], pattern(stripe as u64, BLOCK), "block {stripe}");
    }
}

#[test]
fn writes_to_shared_blocks_do_not_lose_each_other() {
    for seed in 0..4 {
        with_files(seed, neighbours);
    }
}

/// Every operation on data, on the same few files: no deadlock, no torn block.
async fn data(env: Env, files: Arc<Files>) {
    let mut inodes = Vec::new();
    for name in ["a", "b", "c"] {
        inodes.push(file(&files, name).await);
    }
    let inodes = Arc::new(inodes);
    all(&env, |number| {
        let (env, files, inodes) = (env.clone(), files.clone(), inodes.clone());
        Box::pin(async move {
            for _ in 0..40 {
                let (ino, other) = (inodes[(env.random() % 3) as usize], inodes[(env.random() % 3) as usize]);
                let at = (env.random() % 400) * BLOCK as u64;
                let len = (1 + env.random() % 40) * BLOCK as u64;
                let result = match env.random() % 10 {
                    0..=2 => {
                        // Whole blocks of one byte: a reader never sees two in a block.
                        let data = vec![1 + number as u8; len as usize];
                        files.write(ino, at, data.into(), WriteMode::default()).await
                    }
                    3 | 4 => files.read(ino, at, len as usize).await.map(|pieces| {
                        for block in pieces.concat().chunks_exact(BLOCK) {
                            assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
                        }
                    }),
                    5 => files.setattr(ino, SetAttr { size: Some(at), ..SetAttr::default() }).await.map(drop),
                    6 if ino == other => Ok(()), // the kernel refuses copies that overlap
                    6 => files.copy_range((ino, at), (other, env.random() % 5 * BLOCK as u64), len).await.map(drop),
                    7 => files.fallocate(ino, at, len, FallocateMode::Collapse).await,
                    8 => files.fallocate(ino, at, len, FallocateMode::Insert).await,
                    _ => files.fallocate(ino, at, len, FallocateMode::Punch).await,
                };
                if let Err(error) = result {
                    assert_eq!(error.errno, Errno::Invalid, "task {number}: {error}");
                }
                if env.random().is_multiple_of(8) {
                    files.fsync(ino, false).await.expect("synced");
                }
            }
        })
    })
    .await;
}

#[test]
fn operations_on_data_do_not_disturb_each_other() {
    for seed in 0..8 {
        with_files(seed, data);
    }
}

/// Collapsing builds a new layout in many transactions while others sync; the power fails somewhere in it.
async fn cut_while_collapsing(env: Env, cut: u64) -> bool {
    const LEN: usize = 40 << 20;
    let device = build(&env).await;
    let (pool, files) = open(&env, &device).await;
    let ino = file(&files, "f").await;
    let old: Vec<u8> = (0..LEN).map(|at| (at / BLOCK % 251) as u8 ^ 1).collect();
    files.write(ino, 0, old.clone().into(), WriteMode::default()).await.expect("written");
    files.syncfs().await.expect("synced");
    device.cut_after(cut);
    let syncing = pool.clone();
    let beside =
        env.spawn(async move { while syncing.sync_all().await.is_ok() && syncing.checkpoint().await.is_ok() {} });
    let _ = files.fallocate(ino, 4096, 4096, FallocateMode::Collapse).await;
    beside.await;
    drop((pool, files));
    let device = Arc::new(device.after_cut(Tearing::ALL, env.clone()));
    let (pool, files) = open(&env, &device).await;
    check(&pool, &files, cut).await;
    let ino = files.lookup(ROOT, b"f").await.expect("there").ino;
    let held = contents(&files, ino).await;
    let is_new = held == [&old[..4096], &old[8192..]].concat();
    assert!(is_new || held == old, "cut {cut}: neither the old file nor the new one");
    is_new
}

#[test]
fn a_power_cut_while_a_file_gets_a_new_layout_leaves_the_old_or_the_new() {
    let mut landed = [0, 0];
    for cut in (0..96).step_by(6) {
        let sim = Sim::new(cut, Schedule::Random);
        let env = sim.env();
        let run = sim.run(async move { cut_while_collapsing(env, cut).await });
        landed[usize::from(run.unwrap_or_else(|_| panic!("cut {cut}: deadlock")))] += 1;
    }
    assert!(landed[0] > 0 && landed[1] > 0, "cuts before and after: {landed:?}");
}

/// An inode that was forgotten and read anew: `fsync` covers what was written before.
#[test]
fn fsync_covers_what_was_written_before_the_inode_was_forgotten() {
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    let main = async move {
        let device = build(&env).await;
        let (pool, files) = open(&env, &device).await;
        let ino = file(&files, "f").await;
        files.write(ino, 0, vec![7; 5000].into(), WriteMode::default()).await.expect("written");
        files.forget(ino, 1).await;
        assert_eq!(files.inodes_in_memory(), 1, "only the root");
        let ino = files.lookup(ROOT, b"f").await.expect("there").ino;
        files.fsync(ino, true).await.expect("synced");
        device.cut_after(0);
        drop((pool, files));
        let device = Arc::new(device.after_cut(Tearing::ALL, env.clone()));
        let (_pool, files) = open(&env, &device).await;
        let ino = files.lookup(ROOT, b"f").await.expect("it survives").ino;
        assert_eq!(contents(&files, ino).await, [7; 5000]);
    };
    sim.run(main).expect("no deadlock");
}
