//! Many files: how long making, opening, finding and listing take, and how much memory.
//!
//! `scale make ENGINE DIR FILES` fills a pool in a file in `DIR`: half of the files in one directory, the rest by thousands, each
//! of 100 KiB with a block at its end. `scale use ENGINE DIR` opens it in a process of its own. An engine is `files` or `betr`.
//! Each line of the output is one figure, as JSON: the row, its unit and its value. `cargo xtask bench scale` runs both.

use ashlar_betr::{Betr, Zones};
use ashlar_block::Device;
use ashlar_devices::{FileDevice, OpenOptions};
use ashlar_env::Env;
use ashlar_env::real::Real;
use ashlar_files::Files;
use ashlar_pool::{Config, Creation, Pool, Volume};
use ashlar_units::Bytes as Size;
use ashlar_vfs::{DirEntry, FileKind, FileSystem, Ino, NewNode, ROOT, WriteMode};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The program's own allocator, so that figures carry over.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What `ashlar up` gives the pool by default.
const MEMORY: Size = Size(512 << 20);
const DEVICE: Size = Size(1 << 40);
const FILES_PER_DIRECTORY: u64 = 1000;
/// Where each file has its block.
const AT: u64 = 96 << 10;
/// As many as a request of the kernel takes.
const ENTRIES_PER_PAGE: u64 = 1000;
const SAMPLES: u64 = 100_000;

/// What the two engines have in common beside files.
trait Engine: FileSystem + Sized {
    fn format(volume: &Volume) -> impl Future<Output = ()> + Send;
    fn start(volume: Volume, read_only: bool) -> impl Future<Output = Arc<Self>> + Send;
    /// Inodes, and what is wrong.
    fn audit(&self) -> impl Future<Output = (u64, Vec<String>)> + Send;
    fn close(&self) -> impl Future<Output = ()> + Send;
}

impl Engine for Files {
    async fn format(volume: &Volume) {
        Files::format(volume, 0, 0).await.expect("formatted");
    }
    async fn start(volume: Volume, read_only: bool) -> Arc<Files> {
        Files::open(volume, ashlar_files::Options { read_only, ..Default::default() }).await.expect("opened")
    }
    async fn audit(&self) -> (u64, Vec<String>) {
        let audit = Files::audit(self).await.expect("audited");
        (audit.inodes, audit.wrong)
    }
    async fn close(&self) {
        Files::close(self).await.expect("closed");
    }
}

impl Engine for Betr {
    async fn format(volume: &Volume) {
        Betr::format(volume, 0, 0, Zones::default()).await.expect("formatted");
    }
    async fn start(volume: Volume, read_only: bool) -> Arc<Betr> {
        Betr::open(volume, ashlar_betr::Options { read_only, ..Default::default() }).await.expect("opened")
    }
    async fn audit(&self) -> (u64, Vec<String>) {
        let audit = Betr::audit(self).await.expect("audited");
        (audit.inodes, audit.wrong)
    }
    async fn close(&self) {
        Betr::close(self).await.expect("closed");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", engine, at, files] => {
            let files = files.parse().expect("a number of files");
            match engine {
                "betr" => make::<Betr>(Path::new(at), files),
                _ => make::<Files>(Path::new(at), files),
            }
        }
        ["use", "betr", at] => inspect::<Betr>(Path::new(at)),
        ["use", _, at] => inspect::<Files>(Path::new(at)),
        // `cargo test --benches` and the like: nothing to measure without a place.
        _ => eprintln!("usage: scale make ENGINE DIR FILES | scale use ENGINE DIR"),
    }
}

fn report(row: &str, unit: &str, value: f64) {
    println!("{{\"row\":\"{row}\",\"unit\":\"{unit}\",\"value\":{value}}}");
}

/// Most memory that this process ever had, in bytes.
fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0.0) * 1024.0
}

fn device(env: &Env, at: &Path) -> Vec<Device> {
    let path = at.join("pool.img");
    let options = OpenOptions::default();
    vec![Arc::new(FileDevice::open(&path, &options, env.clone()).expect("the file opens"))]
}

fn node(kind: FileKind) -> NewNode {
    NewNode { kind, permissions: 0o755, uid: 0, gid: 0, device: 0, umask: 0, open: false }
}

fn make<F: Engine>(at: &Path, count: u64) {
    let real = Real::start(2).expect("threads");
    let (env, at) = (real.env(), at.to_path_buf());
    real.block_on(async move { make_in::<F>(&env, &at, count).await });
}

fn inspect<F: Engine>(at: &Path) {
    let real = Real::start(2).expect("threads");
    let (env, at) = (real.env(), at.to_path_buf());
    real.block_on(async move { inspect_in::<F>(&env, &at).await });
}

async fn make_in<F: Engine>(env: &Env, at: &Path, count: u64) {
    std::fs::create_dir_all(at).expect("made");
    let file = std::fs::File::create(at.join("pool.img")).expect("made");
    file.set_len(DEVICE.0).expect("as long as the device");
    let devices = device(env, at);
    Pool::create(env, &devices, Creation::default()).await.expect("created");
    let pool = Pool::open(env, devices, Config { memory: MEMORY, ..Config::default() }).await.expect("opened");
    let volume = pool.create_volume("v").await.expect("made");
    F::format(&volume).await;
    let files = F::start(volume, false).await;
    let began = Instant::now();
    let large = files.mkdir(ROOT, b"large", node(FileKind::Directory)).await.expect("made").ino;
    let mut small = ROOT;
    for index in 0..count {
        let parent = if index % 2 == 0 { large } else { small };
        if index % (2 * FILES_PER_DIRECTORY) == 0 {
            let name = format!("small {}", index / (2 * FILES_PER_DIRECTORY));
            small = files.mkdir(ROOT, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino;
        }
        make_file(&*files, if index == 0 { large } else { parent }, index).await;
    }
    files.syncfs().await.expect("synced");
    let seconds = began.elapsed().as_secs_f64();
    report("files made, each with a block", "/s", count as f64 / seconds);
    report("peak memory while making", "bytes", peak_memory());
    files.close().await;
    pool.close().await.expect("closed");
}

async fn make_file(files: &impl FileSystem, parent: Ino, index: u64) {
    let ino = files.create(parent, name(index).as_bytes(), node(FileKind::File)).await.expect("made").ino;
    let data = format!("file {index} ").repeat(4096).into_bytes();
    let data = Bytes::from(data).slice(..4096);
    files.write(ino, AT, data, WriteMode::default()).await.expect("written");
    files.forget(ino, 1).await;
}

fn name(index: u64) -> String {
    format!("a file with the number {index}")
}

async fn inspect_in<F: Engine>(env: &Env, at: &Path) {
    let began = Instant::now();
    let devices = device(env, at);
    let pool = Pool::open(env, devices, Config { memory: MEMORY, ..Config::default() }).await.expect("opened");
    let volume = pool.volume("v").expect("it was made");
    let files = F::start(volume, false).await;
    report("opening", "s", began.elapsed().as_secs_f64());
    report("peak memory after opening", "bytes", peak_memory());
    let large = files.lookup(ROOT, b"large").await.expect("it was made").ino;

    let began = Instant::now();
    let (mut cookie, mut listed) = (0, 0u64);
    loop {
        let (before, from) = (listed, cookie);
        let mut page = 0;
        let mut sink = |entry: DirEntry<'_>| {
            (cookie, listed, page) = (entry.cookie, listed + 1, page + 1);
            page < ENTRIES_PER_PAGE
        };
        files.readdir(large, from, false, &mut sink).await.expect("listed");
        if listed == before {
            break;
        }
    }
    listed -= 2; // `.` and `..`
    report("entries listed of one directory", "", listed as f64);
    report("listing", "entries/s", listed as f64 / began.elapsed().as_secs_f64());

    let began = Instant::now();
    let count = 2 * listed;
    let mut number = 1u64;
    for _ in 0..SAMPLES {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (number >> 16) % count / 2 * 2;
        let attr = files.lookup(large, name(index).as_bytes()).await.expect("it was made");
        assert_eq!(attr.size, AT + 4096);
        files.forget(attr.ino, 1).await;
    }
    report("random names found in it", "/s", SAMPLES as f64 / began.elapsed().as_secs_f64());

    let began = Instant::now();
    for index in count..count + SAMPLES {
        make_file(&*files, large, index).await;
    }
    report("files made in it", "/s", SAMPLES as f64 / began.elapsed().as_secs_f64());
    let began = Instant::now();
    for index in count..count + SAMPLES {
        files.unlink(large, name(index).as_bytes()).await.expect("removed");
    }
    report("files removed from it", "/s", SAMPLES as f64 / began.elapsed().as_secs_f64());
    report("peak memory in use", "bytes", peak_memory());

    let began = Instant::now();
    files.close().await;
    let checked = pool.check(|_, _| {}).await.expect("checked");
    assert!(checked.damaged.is_empty() && checked.miscounted.is_empty(), "{checked:?}");
    report("check", "s", began.elapsed().as_secs_f64());
    let volume = pool.volume("v").expect("it was made");
    let files = F::start(volume, true).await;
    let began = Instant::now();
    let (inodes, wrong) = files.audit().await;
    assert!(wrong.is_empty(), "{:?}", wrong.first());
    report("audit", "s", began.elapsed().as_secs_f64());
    report("inodes", "", inodes as f64);
    report("peak memory with check and audit", "bytes", peak_memory());
    pool.close().await.expect("closed");
}
