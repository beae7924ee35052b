//! Damage that no device announces: what a check says of it, and what mending leaves. Index nodes have no parity here but where that
//! is tested, or they would mostly be put right.

use ashlar_block::{Device, IoContext, Kind, Layer};
use ashlar_devices::{PowerCut, Tearing};
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::format::Stream;
use ashlar_pool::{Checked, Compression, Config, Creation, Damage, Damaged, Holds, Part, Pool, Region, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes, Lba};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

fn config() -> Config {
    Config { memory: Bytes(4 << 20), compression: Compression::Off, parity: false, ..Config::default() }
}

fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Env) -> F) {
    let sim = Sim::new(1, Schedule::Random);
    let test = test(sim.env());
    sim.run(test).expect("no deadlock");
}

async fn make(env: &Env) -> (Arc<PowerCut>, Pool, Volume) {
    let device = Arc::new(PowerCut::new(Blocks(40 * 256), env.clone(), Duration::from_micros(20)));
    let devices: Vec<Device> = vec![device.clone()];
    let creation = Creation { segment: Some(Blocks(256)), force: false };
    Pool::create(env, &devices, creation).await.expect("made");
    let pool = Pool::open(env, devices, config()).await.expect("opened");
    let volume = pool.create_volume("v").await.expect("made");
    (device, pool, volume)
}

/// A block that names itself, and does not compress.
fn block(at: u64) -> Vec<u8> {
    let mut word = at + 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    };
    (0..BLOCK_LEN / 8).flat_map(|_| next()).collect()
}

async fn write(pool: &Pool, volume: &Volume, blocks: Range<u64>) {
    let mut txn = Txn::new();
    let data: Vec<u8> = blocks.clone().flat_map(block).collect();
    volume.write(&mut txn, Lba(blocks.start), &data.into());
    let seq = pool.commit(txn).await.expect("committed");
    pool.sync(seq).await.expect("synced");
}

async fn read(volume: &Volume, at: u64) -> ashlar_block::Result<Vec<u8>> {
    Ok(volume.read(Lba(at), Blocks(1)).await?.concat())
}

/// Where the medium holds a block's bytes.
async fn find(device: &PowerCut, at: u64) -> Lba {
    let wanted = block(at);
    for lba in device.written_blocks() {
        if Layer::read(device, IoContext::foreground("test"), lba, Blocks(1)).await.expect("read") == wanted {
            return lba;
        }
    }
    panic!("block {at} is not on the medium");
}

fn blocks(checked: &Checked) -> BTreeSet<(String, u64)> {
    let of = |damage: &Damage| match damage.what {
        Damaged::Blocks(at, count) => (at.0..at.0 + count.0).map(|at| (damage.volume.clone(), at)).collect::<Vec<_>>(),
        Damaged::Keys(..) | Damaged::Nothing => panic!("the index is not damaged"),
    };
    checked.damaged.iter().flat_map(of).collect()
}

fn set(of: &[(&str, u64)]) -> BTreeSet<(String, u64)> {
    of.iter().map(|(volume, at)| (volume.to_string(), *at)).collect()
}

#[test]
fn everyone_who_refers_to_a_damaged_block_is_named() {
    run(|env| async move {
        let (device, pool, volume) = make(&env).await;
        write(&pool, &volume, 0..100).await;
        let mut txn = Txn::new();
        volume.share(&mut txn, Lba(40), &volume, Lba(1000), Blocks(10)).await.expect("shared");
        pool.commit(txn).await.expect("committed");
        pool.create_snapshot("v", "s").await.expect("taken");
        pool.clone_snapshot("v@s", "w").await.expect("cloned");
        write(&pool, &volume, 60..70).await;
        device.corrupt(find(&device, 42).await, 1234);
        let checked = pool.check(|_, _| {}).await.expect("checked");
        let everywhere = ["v", "v@s", "w"].map(|volume| [(volume, 42), (volume, 1002)]).concat();
        assert_eq!(blocks(&checked), set(&everywhere));
        assert_eq!(checked.miscounted, []);
        let clone = pool.volume("w").expect("cloned");
        for (at, volume) in [(42, &volume), (1002, &clone)] {
            assert_eq!(read(volume, at).await.expect_err("damaged").kind(), Kind::Corrupt);
        }
        for at in (0..100).filter(|at| *at != 42) {
            assert_eq!(read(&volume, at).await.expect("it is whole"), block(at));
        }

        let mended = pool.mend(&checked).await.expect("mended");
        assert_eq!(mended.forgotten.len(), 4);
        assert_eq!(read(&volume, 42).await.expect("forgotten"), vec![0; BLOCK_LEN]);
        assert_eq!(read(&volume, 41).await.expect("whole"), block(41));
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!(blocks(&checked), set(&[("v@s", 42), ("v@s", 1002)]), "snapshots do not change");
        assert_eq!(pool.mend(&checked).await.expect("nothing to mend").forgotten, []);
        pool.destroy_volume("w").await.expect("destroyed");
        pool.destroy_snapshot("v@s").await.expect("destroyed");
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
    });
}

#[test]
fn what_was_written_since_the_check_is_not_forgotten() {
    run(|env| async move {
        let (device, pool, volume) = make(&env).await;
        write(&pool, &volume, 0..10).await;
        device.corrupt(find(&device, 3).await, 0);
        device.corrupt(find(&device, 4).await, 0);
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!(blocks(&checked), set(&[("v", 3), ("v", 4)]));
        write(&pool, &volume, 3..4).await;
        pool.mend(&checked).await.expect("mended");
        assert_eq!(read(&volume, 3).await.expect("written anew"), block(3));
        assert_eq!(read(&volume, 4).await.expect("forgotten"), vec![0; BLOCK_LEN]);
    });
}

#[test]
fn wrong_counts_are_found_and_put_right() {
    run(|env| async move {
        let (_, pool, volume) = make(&env).await;
        write(&pool, &volume, 0..100).await;
        let before = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!(before.miscounted, []);
        // Told that there is less than it finds, it counts more from then on.
        let wrong = Checked { miscounted: vec![(0, 0, 4096), (1, 0, 512)], ..before };
        pool.mend(&wrong).await.expect("made wrong");
        let found = pool.check(|_, _| {}).await.expect("checked");
        let excess: Vec<_> = found.miscounted.iter().map(|(slot, counted, found)| (*slot, counted - found)).collect();
        assert_eq!(excess, [(0, 4096), (1, 512)]);
        assert_eq!(pool.mend(&found).await.expect("put right").recounted, 2);
        assert_eq!(pool.check(|_, _| {}).await.expect("checked").miscounted, []);
    });
}

#[test]
fn a_damaged_log_is_cut_only_on_demand() {
    run(|env| async move {
        let (device, pool, volume) = make(&env).await;
        for at in 0..20 {
            write(&pool, &volume, at..at + 1).await;
        }
        drop((pool, volume));
        // The lead of a batch lies right before its payload.
        let lead = Lba(find(&device, 10).await.0 - 1);
        device.corrupt(lead, 70);
        let devices: Vec<Device> = vec![device.clone()];
        let error = Pool::open(&env, devices.clone(), config()).await.err().expect("the log is damaged");
        assert!(error.kind() == Kind::Corrupt && error.message().contains("--repair"), "{error}");
        let pool = Pool::open(&env, devices, Config { cut_log: true, ..config() }).await.expect("cut");
        assert!(pool.cut().is_some_and(|cut| cut.contains("the log is damaged")));
        let volume = pool.volume("v").expect("it was made before");
        for at in 0..20 {
            let expected = if at < 10 { block(at) } else { vec![0; BLOCK_LEN] };
            assert_eq!(read(&volume, at).await.expect("read"), expected, "{at}");
        }
        write(&pool, &volume, 5..30).await;
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
    });
}

#[test]
fn damage_in_the_newest_batch_of_a_quiet_log_is_no_torn_tail() {
    run(|env| async move {
        let (device, pool, volume) = make(&env).await;
        write(&pool, &volume, 0..1).await;
        write(&pool, &volume, 1..2).await;
        // Long enough for the pool to say that these were durable; nothing else comes behind them.
        env.sleep(Duration::from_secs(12)).await;
        drop((pool, volume));
        let lead = Lba(find(&device, 1).await.0 - 1);
        device.corrupt(lead, 70);
        let devices: Vec<Device> = vec![device.clone()];
        let error = Pool::open(&env, devices, config()).await.err().expect("what was synced is damaged");
        assert!(error.kind() == Kind::Corrupt && error.message().contains("was durable"), "{error}");
    });
}

#[test]
fn a_quiet_log_stays_quiet() {
    run(|env| async move {
        let (device, pool, volume) = make(&env).await;
        write(&pool, &volume, 0..1).await;
        env.sleep(Duration::from_secs(20)).await;
        let before = device.written_blocks().len();
        env.sleep(Duration::from_secs(20)).await;
        assert_eq!(device.written_blocks().len(), before, "it says once what is durable, and not that it said so");
        pool.close().await.expect("closed");
    });
}

/// Keys of a dictionary, so many that the index has several leaves, or few.
async fn put(pool: &Pool, volume: &Volume, keys: Range<u64>, generation: u8) {
    let mut txn = Txn::new();
    for key in keys {
        volume.put(&mut txn, &name(key), value(key, generation));
    }
    let seq = pool.commit(txn).await.expect("committed");
    pool.sync(seq).await.expect("synced");
}

fn name(key: u64) -> Vec<u8> {
    [b"key", &key.to_be_bytes()[..]].concat()
}

fn value(key: u64, generation: u8) -> bytes::Bytes {
    let mut value = block(key)[..200].to_vec();
    value[0] = generation;
    value.into()
}

/// Where the medium holds leaves of the dictionary.
async fn leaves(pool: &Pool) -> Vec<u64> {
    let regions = pool.anatomy().await.expect("known");
    let names = |region: &&Region| matches!(region.part, Part::Node { catalog: false, holds: Holds::Dictionary });
    regions.iter().filter(names).map(|region| region.at + region.len / 2).collect()
}

fn flip(device: &PowerCut, at: u64) {
    device.corrupt(Lba(at / BLOCK_LEN as u64), at as usize % BLOCK_LEN);
}

/// A pool with so many keys loses power with changes of every third of them, and of as many more, in its log alone; then a leaf
/// is damaged.
fn a_leaf_is_lost(keys: u64) {
    run(move |env| async move {
        let (device, pool, volume) = make(&env).await;
        put(&pool, &volume, 0..keys, 1).await;
        pool.checkpoint().await.expect("written");
        let places = leaves(&pool).await;
        assert_eq!(places.len() > 1, keys > 300, "{places:?}");
        for key in (0..2 * keys).step_by(3) {
            put(&pool, &volume, key..key + 1, 2).await;
        }
        let newest = |key: u64| if key.is_multiple_of(3) { 2 } else { 1 };
        drop((pool, volume));
        let damaged = places[places.len() / 2];
        flip(&device, damaged);
        for life in 0..3 {
            let devices: Vec<Device> = vec![device.clone()];
            let pool = Pool::open(&env, devices, config()).await.expect("one leaf is no reason not to open");
            let volume = pool.volume("v").expect("it is there");
            let mut lost = 0;
            for key in 0..2 * keys {
                let expected = (key < keys || key.is_multiple_of(3)).then(|| value(key, newest(key)));
                match volume.get(&name(key)).await {
                    Ok(found) => assert_eq!(found, expected, "key {key}"),
                    Err(error) => {
                        assert!(error.kind() == Kind::Corrupt && key % 3 > 0, "key {key}: {error}");
                        lost += 1;
                    }
                }
            }
            assert!(lost > 0 && lost < keys.max(300) * 2, "{lost} of {keys} are lost");
            let checked = pool.check(|_, _| {}).await.expect("checked");
            let named: Vec<_> = checked.damaged.iter().map(|damage| (&damage.volume[..], &damage.what)).collect();
            assert!(matches!(named[..], [("v", Damaged::Keys(..))]), "{named:?}");
            // Changes go on, on damaged ground and elsewhere.
            for key in (0..keys).step_by(9) {
                put(&pool, &volume, key..key + 1, 2).await;
            }
            write(&pool, &volume, life * 20..life * 20 + 30).await;
            pool.clean().await.expect("cleaned");
            pool.close().await.expect("closed");
        }
        // It was only out of reach: nothing is missing.
        flip(&device, damaged);
        let devices: Vec<Device> = vec![device.clone()];
        let pool = Pool::open(&env, devices, config()).await.expect("opened");
        let volume = pool.volume("v").expect("it is there");
        put(&pool, &volume, 0..1, 2).await;
        for key in 0..2 * keys {
            let expected = (key < keys || key.is_multiple_of(3)).then(|| value(key, newest(key)));
            assert_eq!(volume.get(&name(key)).await.expect("whole"), expected, "key {key}");
        }
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]));
    });
}

#[test]
fn a_damaged_leaf_takes_its_keys_and_nothing_else() {
    a_leaf_is_lost(1500);
}

#[test]
fn a_damaged_root_takes_its_keys_and_nothing_else() {
    a_leaf_is_lost(100);
}

#[test]
fn a_volume_with_a_damaged_leaf_can_be_destroyed() {
    run(|env| async move {
        let (device, pool, volume) = make(&env).await;
        put(&pool, &volume, 0..1500, 1).await;
        pool.checkpoint().await.expect("written");
        let places = leaves(&pool).await;
        drop((pool, volume));
        flip(&device, places[1]);
        let pool = Pool::open(&env, vec![device.clone()], config()).await.expect("opened");
        pool.destroy_volume("v").await.expect("destroyed");
        let checked = pool.check(|_, _| {}).await.expect("checked");
        assert_eq!(checked.damaged, vec![]);
        // What the leaf held, nobody could say: its space comes back when it is counted anew.
        pool.mend(&checked).await.expect("mended");
        assert_eq!(pool.check(|_, _| {}).await.expect("checked").miscounted, vec![]);
    });
}

fn with_parity() -> Config {
    Config { memory: Bytes(16 << 20), parity: true, ..config() }
}

/// The same with parity, and every kind of index node: leaves, a node above them, and the catalog.
async fn make_with_parity(env: &Env) -> (Arc<PowerCut>, Pool, Volume) {
    let (device, pool, _) = make(env).await;
    pool.close().await.expect("closed");
    let devices: Vec<Device> = vec![device.clone()];
    let pool = Pool::open(env, devices, with_parity()).await.expect("opened");
    let volume = pool.volume("v").expect("it is there");
    put(&pool, &volume, 0..2000, 1).await;
    pool.checkpoint().await.expect("written");
    // So that nodes are packed with others into one batch, and some lie alone in theirs.
    put(&pool, &volume, 7..8, 1).await;
    pool.checkpoint().await.expect("written");
    (device, pool, volume)
}

/// Blocks of the device with index nodes in them, and a byte of each that belongs to one.
async fn node_blocks(pool: &Pool) -> BTreeMap<u64, usize> {
    let regions = pool.anatomy().await.expect("known");
    let nodes = regions.iter().filter(|region| matches!(region.part, Part::Node { .. }));
    let len = BLOCK_LEN as u64;
    let places = nodes.flat_map(|node| {
        let blocks = node.at / len..=(node.at + node.len - 1) / len;
        blocks.map(|block| (block, (node.at.max(block * len) - block * len) as usize))
    });
    places.collect()
}

/// Damages `burst` blocks from each one with an index node on, one after another, and looks whether anybody notices.
fn a_burst_takes_nothing(burst: u64) {
    run(move |env| async move {
        let (device, pool, volume) = make_with_parity(&env).await;
        let blocks = node_blocks(&pool).await;
        assert!(blocks.len() > 100, "{}", blocks.len());
        drop((pool, volume));
        for at in blocks.keys().filter(|at| (**at..**at + burst).all(|at| blocks.contains_key(&at))) {
            let device = Arc::new(device.after_cut(Tearing::ALL, env.clone()));
            blocks.range(at..&(at + burst)).for_each(|(lba, byte)| device.corrupt(Lba(*lba), *byte));
            let devices: Vec<Device> = vec![device.clone()];
            let pool = Pool::open(&env, devices, with_parity()).await.expect("opened");
            let volume = pool.volume("v").expect("it is there");
            for key in 0..2000 {
                assert_eq!(volume.get(&name(key)).await.expect("readable"), Some(value(key, 1)), "block {at}");
            }
            let checked = pool.check(|_, _| {}).await.expect("checked");
            assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]), "block {at}");
            assert!(pool.costs().recovered > 0, "block {at}: nobody noticed");
            // The medium has it back.
            assert_eq!(pool.check(|_, _| {}).await.expect("checked").recovered, 0, "block {at}");
            pool.close().await.expect("closed");
        }
    });
}

#[test]
fn a_damaged_block_of_an_index_node_takes_nothing() {
    a_burst_takes_nothing(1);
}

#[test]
fn nor_do_two() {
    a_burst_takes_nothing(2);
}

/// The same with nodes in several batches, beside some that are needed no more.
async fn make_in_batches(env: &Env) -> (Arc<PowerCut>, Pool, Volume) {
    let (device, pool, volume) = make_with_parity(env).await;
    for round in 0..3 {
        put(&pool, &volume, round * 600..round * 600 + 600, 1).await;
        pool.checkpoint().await.expect("written");
    }
    (device, pool, volume)
}

fn is_lead_of_nodes(part: &Part) -> bool {
    matches!(part, Part::Lead { stream: Stream::Nodes, .. })
}

/// What nobody reads until it is needed: parity, leads, and nodes that are needed no more but count for the parity of others.
#[test]
fn a_check_puts_parity_right_before_it_is_needed() {
    run(|env| async move {
        let (device, pool, volume) = make_in_batches(&env).await;
        let nodes: BTreeSet<u64> = node_blocks(&pool).await.into_keys().collect();
        let regions = pool.anatomy().await.expect("known");
        drop((pool, volume));
        let mut mended = BTreeMap::new();
        for Region { at, len, part, .. } in regions {
            let kind = match part {
                Part::Parity { .. } => "parity",
                lead if is_lead_of_nodes(&lead) => "lead",
                Part::Dead => "dead",
                _ => continue,
            };
            let blocks = at.div_ceil(BLOCK_LEN as u64)..(at + len) / BLOCK_LEN as u64;
            for at in blocks.filter(|at| !nodes.contains(at)) {
                let hurt = Arc::new(device.after_cut(Tearing::ALL, env.clone()));
                hurt.corrupt(Lba(at), at as usize * 7 % 90);
                let pool = Pool::open(&env, vec![hurt.clone() as Device], with_parity()).await.expect("opened");
                let checked = pool.check(|_, _| {}).await.expect("checked");
                assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]), "{kind} {at}");
                assert_eq!((checked.recovered, checked.unprotected), (0, 0), "{kind} {at}");
                let read = async |device: &PowerCut| {
                    Layer::read(device, IoContext::foreground("test"), Lba(at), Blocks(1)).await.expect("read")
                };
                let is_right = read(&hurt).await == read(&device).await;
                assert_eq!(is_right, checked.mended_batches == 1, "{kind} {at}: {}", checked.mended_batches);
                *mended.entry(kind).or_insert(0) += checked.mended_batches;
                let again = pool.check(|_, _| {}).await.expect("checked");
                assert_eq!(again.mended_batches, 0, "{kind} {at}");
                pool.close().await.expect("closed");
            }
        }
        assert!(mended["parity"] > 20 && mended["lead"] > 1 && mended["dead"] > 20, "{mended:?}");
    });
}

/// More than parity can put right, and nothing that is needed: it is told.
#[test]
fn a_check_tells_what_has_no_parity_any_more() {
    run(|env| async move {
        let (device, pool, _volume) = make_in_batches(&env).await;
        let regions = pool.anatomy().await.expect("known");
        let leads = |region: &&Region| is_lead_of_nodes(&region.part);
        let copy = |at: u64| {
            // The last block of the parity that follows.
            let parity = regions.iter().filter(|region| matches!(region.part, Part::Parity { .. }) && region.at > at);
            parity.map(|region| (region.at + region.len) / BLOCK_LEN as u64 - 1).min().expect("it has parity")
        };
        let mut told = 0;
        for at in regions.iter().filter(leads).map(|region| region.at) {
            for lba in [at / BLOCK_LEN as u64, copy(at)] {
                device.corrupt(Lba(lba), 30);
            }
            let checked = pool.check(|_, _| {}).await.expect("checked");
            assert_eq!((checked.damaged, checked.mended_batches), (vec![], 0));
            told = told.max(checked.unprotected);
        }
        assert!(told > 1, "{told}");
    });
}

/// The power fails while a node is written back: what was torn then is computed once more.
#[test]
fn a_power_cut_while_parity_puts_a_node_right_takes_nothing() {
    run(|env| async move {
        let (device, pool, volume) = make_with_parity(&env).await;
        let blocks = node_blocks(&pool).await;
        drop((pool, volume));
        for (number, (lba, byte)) in (0u64..).zip(blocks) {
            let hurt = device.after_cut(Tearing::ALL, env.clone());
            hurt.corrupt(Lba(lba), byte);
            hurt.cut_after(number % 6);
            let hurt = Arc::new(hurt);
            if let Ok(pool) = Pool::open(&env, vec![hurt.clone() as Device], with_parity()).await
                && let Some(volume) = pool.volume("v")
            {
                for key in 0..2000 {
                    drop(volume.get(&name(key)).await);
                }
                drop(pool.checkpoint().await);
            }
            let device: Device = Arc::new(hurt.after_cut(Tearing::ALL, env.clone()));
            let pool = Pool::open(&env, vec![device], with_parity()).await.expect("opened");
            let volume = pool.volume("v").expect("it is there");
            for key in 0..2000 {
                assert_eq!(volume.get(&name(key)).await.expect("readable"), Some(value(key, 1)), "block {lba}");
            }
            let checked = pool.check(|_, _| {}).await.expect("checked");
            assert_eq!((checked.damaged, checked.miscounted), (vec![], vec![]), "block {lba}");
            pool.close().await.expect("closed");
        }
    });
}
