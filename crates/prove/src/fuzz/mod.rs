//! Fuzz targets of whole images: a pool with file systems, changed on its device with and without good checksums, then
//! opened, read, checked and used. Everything may fail; nothing may panic, hang or take much memory. See `ashlar_fuzz`.

mod forge;
mod use_all;

use crate::pool::SMALL_NODES;
use ashlar_betr::Betr;
use ashlar_block::Device;
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_files::Files;
use ashlar_fuzz::{Edit, bounded, config, edits, incompressible};
use ashlar_pool::{Config, Creation, Pool, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use ashlar_vfs::{FallocateMode, FileKind, NewNode, ROOT, WriteMode, XattrMode};
use bytes::Bytes;
use forge::{Image, NodeChange, Room};
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::{Arc, OnceLock};
use use_all::{Used, use_all};

const CAPACITY: Blocks = Blocks(40 * 256 + 300);
const SEGMENT: Blocks = Blocks(256);
/// Extents of 128 KiB for forged nodes.
const ROOMS: u64 = 8;
/// From this round on, what happens is in the log behind the superblock.
const LOGGED: u64 = 3;
/// What using an image may take: the image's blocks, caches, what is written.
const MEMORY_MAX: u64 = 128 << 20;

fn settings() -> Config {
    Config { memory: Size(2 << 20), log_bytes: Size(4 << 20), nodes: Some(SMALL_NODES[0]), ..Config::default() }
}

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> Bytes {
    incompressible(seed, len).into()
}

fn new_node(kind: FileKind) -> NewNode {
    NewNode { kind, permissions: 0o644, uid: 1, gid: 1, device: 0, umask: 0, open: false }
}

/// A pool with a bit of everything, and a log that the superblock does not cover.
async fn history<T: Used>(env: Env) -> Image {
    let device: Device = Arc::new(Memory::new(CAPACITY));
    let creation = Creation { segment: Some(SEGMENT), force: false };
    Pool::create(&env, std::slice::from_ref(&device), creation).await.expect("created");
    let pool = Pool::open(&env, vec![device.clone()], settings()).await.expect("opened");
    let room = make_room(&pool).await;
    let volume = pool.create_volume("v").await.expect("a volume");
    let fs = pool.create_volume("main").await.expect("a volume");
    T::format(&fs, T::setting()).await.expect("formatted");
    let files = T::start(fs, T::setting()).await.expect("opened");
    for round in 0..LOGGED {
        fill_volume(&volume, round).await;
        fill_files(&files, round).await;
        files.syncfs().await.expect("synced");
        pool.checkpoint().await.expect("a checkpoint");
        if round + 1 < LOGGED {
            pool.create_snapshot("main", &format!("s{round}")).await.expect("a snapshot");
            pool.create_snapshot("v", &format!("s{round}")).await.expect("a snapshot");
        }
    }
    pool.clone_snapshot("main@s0", "clone").await.expect("a clone");
    pool.checkpoint().await.expect("a checkpoint");
    for round in LOGGED..LOGGED + 3 {
        fill_volume(&volume, round).await;
        fill_files(&files, round).await;
        files.syncfs().await.expect("synced");
    }
    Image::of(&device, room).await
}

async fn make_room(pool: &Pool) -> Vec<Room> {
    let volume = pool.create_volume("room").await.expect("a volume");
    for chunk in 0..ROOMS {
        let mut txn = Txn::new();
        volume.write(&mut txn, Lba(chunk * 32), &noise(chunk + 1, 32 * BLOCK_LEN));
        volume.commit(txn).await.expect("written");
    }
    pool.checkpoint().await.expect("a checkpoint");
    let runs = volume.runs(Lba(0), Blocks(ROOMS * 32)).await.expect("readable");
    runs.iter().map(|(_, run)| Room { uid: run.uid, offset: run.offset, len: run.stored }).collect()
}

/// Blocks of all forms, shared and remapped ones, holes; a dictionary of several leaves.
async fn fill_volume(volume: &Volume, round: u64) {
    let mut txn = Txn::new();
    for at in 0..12 {
        let data = noise(round * 100 + at, 3 * BLOCK_LEN);
        let data = if at % 2 == 0 { Bytes::from(data[..100].repeat(90)) } else { data };
        volume.write(&mut txn, Lba(at * 41 + round * 7), &data);
    }
    // The log's values are small, so that changes of it often hit what has a meaning.
    let value_len = if round < LOGGED { 4000 } else { 20 };
    for key in 0..24u64 {
        let name = [&b"k"[..], &((key * 7 + round * 3) % 60).to_be_bytes()].concat();
        volume.put(&mut txn, &name, noise(key + round, value_len));
    }
    volume.delete_range(&mut txn, &[b"k".as_slice(), &3u64.to_be_bytes()].concat(), b"k\0\0\0\0\0\0\0\x05");
    volume.discard(&mut txn, Lba(90 + round), Blocks(40));
    volume.commit(txn).await.expect("committed");
    let mut txn = Txn::new();
    volume.share(&mut txn, Lba(41), volume, Lba(1000 + round * 50), Blocks(45)).await.expect("shared");
    volume.remap(&mut txn, Lba(205), Lba(2000 + round * 50), Blocks(20)).await.expect("moved");
    let seq = volume.commit(txn).await.expect("committed");
    volume.pool().sync(seq).await.expect("synced");
}

async fn fill_files<T: Used>(files: &Arc<T>, round: u64) {
    let name = |what: &str| format!("{what}{round}").into_bytes();
    let directory = files.mkdir(ROOT, &name("d"), new_node(FileKind::Directory)).await.expect("made").ino;
    let small = files.create(directory, &name("small"), new_node(FileKind::File)).await.expect("made").ino;
    files.write(small, 100, noise(round, 9000), WriteMode::default()).await.expect("written");
    let large = files.create(ROOT, &name("large"), new_node(FileKind::File)).await.expect("made").ino;
    files.write(large, (1 << 20) + 5000, noise(round, 5000), WriteMode::default()).await.expect("written");
    files.fallocate(large, 4096, 8192, FallocateMode::Insert).await.expect("shifted");
    files.copy_range((small, 0), (large, 8192), 8192).await.expect("copied");
    files.symlink(directory, &name("link"), b"../target", new_node(FileKind::Symlink)).await.expect("made");
    files.setxattr(small, b"user.note", b"value", XattrMode::Set).await.expect("set");
    files.link(small, ROOT, &name("hard")).await.expect("linked");
    let gone = files.tmpfile(directory, new_node(FileKind::File)).await.expect("made").ino;
    files.write(gone, 0, noise(9, 5000), WriteMode::default()).await.expect("written");
    files.create(directory, &name("pipe"), new_node(FileKind::Fifo)).await.expect("made");
    files.unlink(directory, &name("pipe")).await.expect("removed");
}

/// Which file system is on the image.
#[derive(Clone, Copy, Debug)]
enum Engine {
    Files,
    Betr,
}

/// The image, made once: it is always the same.
fn sound(engine: Engine) -> &'static Image {
    static IMAGES: [OnceLock<Image>; 2] = [const { OnceLock::new() }; 2];
    IMAGES[engine as usize].get_or_init(|| {
        let sim = Sim::new(1, Schedule::Fifo);
        let env = sim.env();
        let image = match engine {
            Engine::Files => sim.run(history::<Files>(env)),
            Engine::Betr => sim.run(history::<Betr>(env)),
        };
        image.expect("no deadlock")
    })
}

/// Opens and uses an image; what failed.
async fn use_image(env: &Env, image: &Image, How { engine, mend }: How) -> Vec<String> {
    let device = image.device().await;
    match engine {
        Engine::Files => use_all::<Files>(env, device, settings(), mend).await,
        Engine::Betr => use_all::<Betr>(env, device, settings(), mend).await,
    }
}

/// What is attacked.
#[derive(Clone, Copy, Debug)]
struct How {
    engine: Engine,
    /// It is mended before it is used.
    mend: bool,
}

fn how() -> impl Strategy<Value = How> {
    let engine = prop_oneof![Just(Engine::Files), Just(Engine::Betr)];
    (engine, any::<bool>()).prop_map(|(engine, mend)| How { engine, mend })
}

/// Opens and uses a changed image.
fn attack(how: How, change: impl FnOnce(&mut Image)) {
    let mut image = sound(how.engine).clone();
    change(&mut image);
    bounded(MEMORY_MAX, move || {
        let sim = Sim::new(2, Schedule::Random);
        let env = sim.env();
        sim.run(async move { use_image(&env, &image, how).await }).expect("no deadlock")
    });
}

fn node_change() -> impl Strategy<Value = NodeChange> {
    prop_oneof![
        3 => edits().prop_map(NodeChange::Bytes),
        6 => (any::<Index>(), edits()).prop_map(|(entry, edits)| NodeChange::Entry(entry, edits)),
        1 => any::<Index>().prop_map(NodeChange::Become),
        1 => any::<Index>().prop_map(NodeChange::Stray),
    ]
}

fn damages() -> impl Strategy<Value = Vec<(Index, Vec<Edit>)>> {
    prop::collection::vec((any::<Index>(), edits()), 1..6)
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn images_with_forged_nodes(how in how(), at in any::<Index>(), change in node_change()) {
        attack(how, |image| image.forge_node(at, &change));
    }

    #[test]
    fn images_with_forged_logs(
        how in how(),
        at in any::<Index>(),
        edits in edits(),
        in_place in prop::bool::weighted(0.7),
        counts in prop::option::weighted(0.1, any::<[u32; 2]>()),
    ) {
        attack(how, |image| image.forge_body(at, &edits, in_place, counts));
    }

    #[test]
    fn images_with_forged_leads(how in how(), at in any::<Index>(), edits in edits()) {
        attack(how, |image| image.forge_lead(at, &edits));
    }

    #[test]
    fn images_with_forged_superblocks(how in how(), edits in edits()) {
        attack(how, |image| image.forge_superblock(&edits));
    }

    #[test]
    fn damaged_images(how in how(), damages in damages()) {
        attack(how, |image| damages.iter().for_each(|(at, edits)| image.damage(*at, edits)));
    }
}

/// What is attacked must be worth it, and errors must come from the attacks.
mod tests {
    use super::*;

    #[test]
    fn the_sound_image_is_used_without_an_error() {
        let all = [Engine::Files, Engine::Betr].map(|engine| [false, true].map(|mend| How { engine, mend }));
        for how in all.concat() {
            let engine = how.engine;
            let (nodes, batches) = sound(engine).counts();
            assert!(nodes > 12 && batches > 4, "{nodes} nodes and {batches} batches are too few to attack");
            let sim = Sim::new(2, Schedule::Random);
            let env = sim.env();
            let failed = sim.run(async move { use_image(&env, sound(engine), how).await });
            assert_eq!(failed.expect("no deadlock"), Vec::<String>::new(), "{how:?}");
        }
    }
}
