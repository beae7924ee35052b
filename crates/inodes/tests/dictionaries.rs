//! What engines of files write into a volume's dictionary, to the byte: media of today must be read tomorrow.

use ashlar_betr::{Betr, Zones};
use ashlar_block::Device;
use ashlar_devices::Memory;
use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_files::Files;
use ashlar_pool::{Config, Creation, Pool, Volume};
use ashlar_units::Blocks;
use ashlar_vfs::{
    Engine, FallocateMode, FileKind, FileSystem, Ino, Name, NewNode, ROOT, RenameMode, SetAttr, SetTime, Time,
    WriteMode, XattrMode, acl,
};
use std::sync::Arc;
use std::time::Duration;

/// `user::rwx user:7:rw- group::r-x mask::rwx other::r--`
const LIST: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x06\0\x07\0\0\0\
    \x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";

/// Everything that changes records, names and attributes; later by a second each time.
struct Scene<'a, F> {
    env: &'a Env,
    files: &'a F,
}

impl<F: FileSystem> Scene<'_, F> {
    async fn later(&self) -> &F {
        self.env.sleep(Duration::from_secs(1)).await;
        self.files
    }
    async fn make(&self, parent: Ino, name: &Name, kind: FileKind, permissions: u32) -> Ino {
        let new = NewNode { kind, permissions, uid: 7, gid: 8, device: 0x0510_0003, umask: 0o022, open: false };
        let files = self.later().await;
        let made = match kind {
            FileKind::Directory => files.mkdir(parent, name, new).await,
            FileKind::Symlink => files.symlink(parent, name, b"some/where", new).await,
            _ => files.create(parent, name, new).await,
        };
        made.expect("made").ino
    }
    async fn write(&self, ino: Ino, offset: u64, len: usize) {
        let how = WriteMode { clear_setid: true, ..WriteMode::default() };
        self.later().await.write(ino, offset, vec![7; len].into(), how).await.expect("written");
    }
    async fn set(&self, ino: Ino, changes: SetAttr) {
        self.later().await.setattr(ino, changes).await.expect("set");
    }
    async fn xattr(&self, ino: Ino, name: &Name, value: &[u8]) {
        self.later().await.setxattr(ino, name, value, XattrMode::Set).await.expect("set");
    }

    async fn mode_and_size(&self) {
        let file = self.make(ROOT, b"file", FileKind::File, 0o664).await;
        self.xattr(file, acl::ACCESS, LIST).await;
        for (permissions, size) in [(0o640, 5000), (0o600, 10), (0o777, 0)] {
            let changes = SetAttr { permissions: Some(permissions), size: Some(size), ..SetAttr::default() };
            self.set(file, changes).await;
            let attr = self.files.getattr(file).await.expect("there");
            let list = self.files.getxattr(file, acl::ACCESS).await.expect("stored");
            let list = acl::Acl::decode(&list).expect("valid");
            assert_eq!((attr.permissions, attr.size, list.mode()), (permissions, size, permissions));
        }
    }

    async fn play(&self) {
        let docs = self.make(ROOT, b"docs", FileKind::Directory, 0o2775).await;
        let inner = self.make(docs, b"inner", FileKind::Directory, 0o755).await;
        let small = self.make(docs, b"small", FileKind::File, 0o6755).await;
        let large = self.make(inner, b"large", FileKind::File, 0o644).await;
        for (name, kind) in [
            (&b"pipe"[..], FileKind::Fifo),
            (b"socket", FileKind::Socket),
            (b"tty", FileKind::CharDevice),
            (b"disk", FileKind::BlockDevice),
            (b"link", FileKind::Symlink),
        ] {
            self.make(inner, name, kind, 0o777).await;
        }
        self.write(small, 0, 300).await;
        self.write(small, 9000, 20).await;
        self.write(large, 100, 9000).await;
        self.write(large, (1 << 20) + 5, 70_000).await;
        self.write(large, 10, 90).await;
        let stamp = SetTime::To(Time { seconds: -5, nanos: 999_999_999 });
        self.set(small, SetAttr { accessed: Some(stamp), modified: Some(SetTime::Now), ..SetAttr::default() }).await;
        self.set(large, SetAttr { uid: Some(70), gid: Some(80), clear_setid: true, ..SetAttr::default() }).await;
        self.set(large, SetAttr { size: Some(1_100_001), ..SetAttr::default() }).await;
        self.xattr(small, b"user.one", b"value").await;
        self.xattr(small, b"user.two", &[9; 500]).await;
        self.later().await.removexattr(small, b"user.one").await.expect("removed");
        // What is made from now on inherits a list; changing the mode changes it.
        self.xattr(docs, acl::DEFAULT, LIST).await;
        self.xattr(large, acl::ACCESS, LIST).await;
        let heir = self.make(docs, b"heir", FileKind::File, 0o664).await;
        self.make(docs, b"heirs", FileKind::Directory, 0o775).await;
        self.set(heir, SetAttr { permissions: Some(0o601), ..SetAttr::default() }).await;
        let files = self.later().await;
        files.link(small, ROOT, b"second").await.expect("linked");
        files.fallocate(large, 8192, 8192, FallocateMode::Punch).await.expect("punched");
        files.rename((docs, b"inner"), (ROOT, b"moved"), RenameMode::Replace).await.expect("renamed");
        files.rename((docs, b"heir"), (inner, b"link"), RenameMode::Exchange).await.expect("exchanged");
        files.copy_range((large, 0), (heir, 0), 40_000).await.expect("copied");
        // Without names, and in use.
        files.open(small, false).await.expect("opened");
        files.unlink(docs, b"small").await.expect("removed");
        files.unlink(ROOT, b"second").await.expect("removed");
        let new = NewNode { kind: FileKind::File, permissions: 0o600, uid: 1, gid: 2, device: 0, umask: 0, open: true };
        let nameless = files.tmpfile(inner, new).await.expect("made").ino;
        self.write(nameless, 5, 50).await;
        // Access times are changed in memory, and written later.
        let files = self.later().await;
        files.read(heir, 0, 10).await.expect("read");
        files.unlink(inner, b"tty").await.expect("removed");
        files.rmdir(docs, b"heirs").await.expect("removed");
        files.syncfs().await.expect("synced");
    }
}

/// All of a dictionary, a line for each key.
async fn listing(volume: &Volume) -> String {
    let (mut low, mut lines) = (vec![ashlar_pool::patches::PIECES_PREFIX], Vec::new());
    loop {
        let page = volume.page(&low, None, 100).await.expect("read");
        lines.extend(
            page.entries.iter().map(|(key, value)| format!("{:x} {value:x}\n", bytes::Bytes::from(key.to_vec()))),
        );
        match page.next {
            Some(next) => low = next.to_vec(),
            None => return lines.concat(),
        }
    }
}

/// Which of the scenes.
#[derive(Clone, Copy, PartialEq)]
enum Play {
    Everything,
    ModeAndSize,
}

impl<F: FileSystem> Scene<'_, F> {
    async fn run(&self, play: Play) {
        match play {
            Play::Everything => self.play().await,
            Play::ModeAndSize => self.mode_and_size().await,
        }
    }
}

/// Plays on a new file system; gives its dictionary.
fn played(engine: Engine, play: Play) -> String {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    let run = async move {
        let devices = vec![Arc::new(Memory::new(Blocks(64 << 10))) as Device];
        Pool::create(&env, &devices, Creation::default()).await.expect("made");
        let pool = Pool::open(&env, devices, Config::default()).await.expect("opened");
        let volume = pool.create_volume("v").await.expect("made");
        match engine {
            Engine::Files => {
                Files::format(&volume, 1, 2).await.expect("formatted");
                let files = Files::open(volume.clone(), Default::default()).await.expect("opened");
                Scene { env: &env, files: &*files }.run(play).await;
            }
            Engine::Betr => {
                // As the dictionaries were written.
                let zones = Zones { inline: ashlar_units::Bytes(16 << 10), ..Zones::default() };
                Betr::format(&volume, 1, 2, zones).await.expect("formatted");
                let files = Betr::open(volume.clone(), Default::default()).await.expect("opened");
                Scene { env: &env, files: &*files }.run(play).await;
            }
        }
        listing(&volume).await
    };
    sim.run(run).expect("no deadlock")
}

/// Keys and digest of a dictionary.
fn digest(listing: &str) -> (usize, u64) {
    (listing.lines().count(), xxhash_rust::xxh3::xxh3_64(listing.as_bytes()))
}

/// What betr wrote of it before it kept ways: it still reads that.
fn without_ways(listing: &str) -> String {
    let is_format = |line: &str| line.starts_with("46 83") || line.starts_with("7a 83");
    let lines = listing.lines().filter(|line| !line.starts_with("69"));
    let line = |line: &str| if is_format(line) { line.replacen(" 83", " 82", 1) } else { line.to_string() };
    lines.map(|one| line(one) + "\n").collect()
}

#[test]
fn engines_write_what_they_wrote() {
    let files = played(Engine::Files, Play::Everything);
    assert_eq!(digest(&files), (35, 2_226_940_836_666_406_797), "what files wrote:\n{files}");
    let betr = played(Engine::Betr, Play::Everything);
    assert_eq!(digest(&betr), (39, 8_562_647_989_883_210_219), "what betr wrote:\n{betr}");
    assert_eq!(digest(&without_ways(&betr)), (31, 14_660_880_789_712_004_349), "and before it kept ways");
}

#[test]
fn lists_follow_modes_that_change_together_with_sizes() {
    Engine::ALL.into_iter().for_each(|engine| drop(played(engine, Play::ModeAndSize)));
}
