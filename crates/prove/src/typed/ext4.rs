//! One case on ext4: it lies on a disk of ours, behind FUSE and a loop device. Damage, mount, read, unmount, fsck.
//!
//! What a block is, dumpe2fs and debugfs say.

use super::disk::{Contents, Disk};
use super::fault::{Fault, Image, damage};
use super::matrix::{Outcome, Type, Verdict};
use super::scene::bytes;
use crate::crash::Kind;
use crate::crash::stand::Stand;
use crate::seeded::Dice;
use ashlar_units::{BLOCK_LEN, Bytes as Size};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

const SIZE: Size = Size::mib(64);
/// Reading that takes longer hangs.
const READ_MAX: Duration = Duration::from_secs(60);
/// Bytes of an inode, as mkfs makes them.
const INODE_LEN: u64 = 256;
/// Bytes of a group descriptor.
const DESCRIPTOR_LEN: u64 = 64;
/// The journal, and the root directory.
const JOURNAL: u64 = 8;
const ROOT: u64 = 2;
const BLOCK: u64 = BLOCK_LEN as u64;

/// Why it cannot be tried here, if it cannot.
pub(super) fn obstacle() -> Option<String> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let missing = |program: &&str| !std::env::split_paths(&paths).any(|path| path.join(program).exists());
    let needed = ["dumpe2fs", "debugfs"];
    let missing =
        needed.iter().find(|program| missing(program)).map(|name| format!("there is no program {name} in PATH"));
    Kind::Ext4.obstacle().or(missing)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
    Other,
}

/// What is known of an inode in use.
#[derive(Clone, Copy)]
struct Inode {
    directory: bool,
    /// Whether it has blocks of its own.
    has_blocks: bool,
}

type Tree = BTreeMap<PathBuf, Entry>;
type Stretches = BTreeMap<Type, Vec<Range<u64>>>;

/// The file system on its disk.
pub(super) struct Ext4 {
    stand: Stand,
    disk: Arc<Disk>,
    contents: Arc<Contents>,
    previous: Contents,
    stretches: Stretches,
    tree: Tree,
}

impl Ext4 {
    /// Makes it, with files.
    pub(super) fn new(seed: u64, stop: &Arc<AtomicBool>) -> Result<Ext4, String> {
        let disk = Arc::new(Disk::new(SIZE.to_blocks_down()));
        let mut stand = Stand::new(Kind::Ext4, None, disk.clone(), None, stop.clone())?;
        stand.make(SIZE)?;
        let failed = |error: std::io::Error| format!("filling the file system: {error}");
        let mut dice = Dice::new(seed);
        mount(&mut stand)?;
        fill(&stand.mount_point(), &mut dice).map_err(failed)?;
        stand.unmount()?;
        // Once more, so that blocks have an old version.
        mount(&mut stand)?;
        change(&stand.mount_point(), &mut dice).map_err(failed)?;
        let mut seen = Read::default();
        read(&stand.mount_point(), Path::new(""), &mut seen);
        let inodes = inodes(&stand.mount_point(), &seen.tree).map_err(failed)?;
        stand.unmount()?;
        if let Some(error) = seen.errors.first() {
            return Err(error.clone());
        }
        let stretches = classify(stand.device(), &inodes)?;
        let (contents, previous) = disk.contents();
        Ok(Ext4 { stand, disk, contents: Arc::new(contents), previous, stretches, tree: seen.tree })
    }

    /// Runs a case.
    pub(super) fn run(&mut self, of: Type, fault: Fault, mut dice: Dice) -> Result<Verdict, String> {
        let nothing = Verdict::new(Outcome::NotTried, Vec::new());
        let Some(stretches) = self.stretches.get(&of).filter(|_| Fault::DISK.contains(&fault)) else {
            return Ok(nothing);
        };
        let image = Image { contents: &self.contents, previous: &self.previous };
        let Some(damage) = damage(&image, fault, stretches, false, &mut dice) else { return Ok(nothing) };
        self.disk.hold(&self.contents);
        self.disk.damage(&damage);
        let mounted = self.stand.mount()?;
        if !mounted.well {
            return Ok(Verdict::new(Outcome::Refused, vec![mounted.said]));
        }
        let (sender, receiver) = mpsc::channel();
        let at = self.stand.mount_point();
        std::thread::spawn(move || {
            let mut seen = Read::default();
            read(&at, Path::new(""), &mut seen);
            // Nobody listens any more if it took too long.
            let _ = sender.send(seen);
        });
        let seen = receiver.recv_timeout(READ_MAX);
        self.stand.unmount()?;
        let Ok(seen) = seen else {
            return Ok(Verdict::new(Outcome::Crash, vec![format!("reading did not end in {} s", READ_MAX.as_secs())]));
        };
        let fsck = self.stand.fsck()?;
        let wrong = seen.differs(&self.tree);
        let (outcome, said) = if !wrong.is_empty() {
            (Outcome::Wrong, wrong)
        } else if !seen.errors.is_empty() {
            (Outcome::Named, seen.errors)
        } else if !fsck.well {
            (Outcome::Unnamed, vec![fsck.said])
        } else {
            (Outcome::Masked, Vec::new())
        };
        Ok(Verdict::new(outcome, said))
    }
}

fn mount(stand: &mut Stand) -> Result<(), String> {
    let mounted = stand.mount()?;
    if mounted.well { Ok(()) } else { Err(format!("the new file system cannot be mounted: {}", mounted.said)) }
}

fn fill(at: &Path, dice: &mut Dice) -> std::io::Result<()> {
    for number in 0..24usize {
        fs::write(at.join(format!("file{number}")), bytes(dice, 100 + number * 8000, number % 2 == 0))?;
    }
    fs::create_dir_all(at.join("deep/a/b"))?;
    fs::write(at.join("deep/a/b/file"), bytes(dice, 30_000, false))?;
    fs::create_dir(at.join("many"))?;
    for number in 0..400 {
        fs::write(at.join(format!("many/a name of some length {number}")), "")?;
    }
    // More extents than an inode holds.
    let sparse = fs::File::create(at.join("sparse"))?;
    for number in 0..24 {
        sparse.write_all_at(&bytes(dice, BLOCK_LEN, false), number * 2 * BLOCK)?;
    }
    // Too long for an inode.
    std::os::unix::fs::symlink("../".repeat(30) + "target", at.join("deep/link"))
}

fn change(at: &Path, dice: &mut Dice) -> std::io::Result<()> {
    for number in 0..24 {
        let file = fs::File::options().write(true).open(at.join(format!("file{number}")))?;
        file.write_all_at(&bytes(dice, 5000, false), 0)?;
    }
    for number in 0..40 {
        fs::remove_file(at.join(format!("many/a name of some length {}", number * 9)))?;
        fs::write(at.join(format!("many/another name {number}")), "")?;
    }
    Ok(())
}

/// What was read.
#[derive(Default)]
struct Read {
    tree: Tree,
    errors: Vec<String>,
    /// Directories that could not be listed.
    unlisted: Vec<PathBuf>,
}

impl Read {
    /// What is another than it should be; what could not be read is no difference.
    fn differs(&self, expected: &Tree) -> Vec<String> {
        let mut wrong = Vec::new();
        for (path, entry) in expected {
            let refused = self.errors.iter().any(|error| error.starts_with(&format!("{}:", path.display())));
            let unlisted = self.unlisted.iter().any(|directory| path.starts_with(directory));
            match self.tree.get(path) {
                Some(found) if found == entry => {}
                Some(_) => wrong.push(format!("{} is not what was written", path.display())),
                None if refused || unlisted => {}
                None => wrong.push(format!("{} is gone", path.display())),
            }
        }
        let more = self.tree.keys().filter(|path| !expected.contains_key(*path));
        wrong.extend(more.map(|path| format!("{} was never made", path.display())));
        wrong
    }
}

/// Reads everything below `root` joined with `within`.
fn read(root: &Path, within: &Path, seen: &mut Read) {
    let entries = match fs::read_dir(root.join(within)) {
        Ok(entries) => entries,
        Err(error) => return refuse(within, &error, seen),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                refuse(within, &error, seen);
                break;
            }
        };
        let path = within.join(entry.file_name());
        if path == Path::new("lost+found") || path.components().count() > 20 {
            continue;
        }
        let full = root.join(&path);
        let read_entry = || -> std::io::Result<Entry> {
            let kind = fs::symlink_metadata(&full)?.file_type();
            if kind.is_dir() {
                return Ok(Entry::Directory);
            }
            if kind.is_symlink() {
                return fs::read_link(&full).map(Entry::Link);
            }
            // A pipe or device, which nobody made, is not opened: that could wait for ever.
            if kind.is_file() { fs::read(&full).map(Entry::File) } else { Ok(Entry::Other) }
        };
        match read_entry() {
            Ok(entry) => {
                let directory = entry == Entry::Directory;
                seen.tree.insert(path.clone(), entry);
                if directory {
                    read(root, &path, seen);
                }
            }
            Err(error) => seen.errors.push(format!("{}: {error}", path.display())),
        }
    }
}

fn refuse(directory: &Path, error: &std::io::Error, seen: &mut Read) {
    seen.errors.push(format!("{}: {error}", directory.display()));
    seen.unlisted.push(directory.to_path_buf());
}

/// Inodes in use, by number.
fn inodes(root: &Path, tree: &Tree) -> std::io::Result<BTreeMap<u64, Inode>> {
    let mut found = BTreeMap::from([(ROOT, Inode { directory: true, has_blocks: true })]);
    for (path, entry) in tree {
        let known = fs::symlink_metadata(root.join(path))?;
        let inode = Inode { directory: *entry == Entry::Directory, has_blocks: known.blocks() > 0 };
        found.insert(known.ino(), inode);
    }
    Ok(found)
}

fn ask(program: &str, arguments: &[&str], device: &Path) -> Result<String, String> {
    let output = Command::new(program).args(arguments).arg(device).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads `17-20` or `17`.
fn blocks_of(text: &str) -> Option<Range<u64>> {
    let text: String = text.trim().chars().take_while(|c| c.is_ascii_digit() || *c == '-').collect();
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
}

/// What the blocks of the device are.
fn classify(device: &Path, inodes: &BTreeMap<u64, Inode>) -> Result<Stretches, String> {
    let mut found = Stretches::new();
    let mut add = |of: Type, blocks: Range<u64>| {
        found.entry(of).or_default().extend(blocks.map(|block| block * BLOCK..(block + 1) * BLOCK));
    };
    let dump = ask("dumpe2fs", &[], device)?;
    let (mut table, mut descriptors) = (None, None);
    for line in dump.lines().map(str::trim) {
        let behind = |mark: &str| line.split_once(mark).and_then(|(_, rest)| blocks_of(rest));
        if table.is_none() {
            table = behind("Inode table at ");
            descriptors = descriptors.or(behind("Group descriptors at "));
        }
        behind("Block bitmap at ").into_iter().for_each(|blocks| add(Type::Ext4BlockBitmap, blocks));
        behind("Inode bitmap at ").into_iter().for_each(|blocks| add(Type::Ext4InodeBitmap, blocks));
        if let Some(free) = line.strip_prefix("Free blocks: ") {
            free.split(", ").filter_map(blocks_of).for_each(|blocks| add(Type::Ext4Free, blocks));
        }
    }
    let (Some(table), Some(descriptors)) = (table, descriptors) else {
        return Err("dumpe2fs did not say where the inode table is".into());
    };
    let with_blocks = inodes.iter().filter(|(_, inode)| inode.has_blocks);
    let known = with_blocks.map(|(number, inode)| (*number, Some(inode.directory)));
    for (inode, directory) in known.chain([(JOURNAL, None)]) {
        let request = format!("stat <{inode}>");
        let stat = ask("debugfs", &["-R", &request], device)?;
        let extents = stat.split_once("EXTENTS:").map_or("", |(_, extents)| extents);
        for part in extents.split([',', '\n']).map(str::trim) {
            let Some((what, place)) = part.split_once("):") else { continue };
            let Some(blocks) = blocks_of(place) else { continue };
            let of = match directory {
                _ if what.contains("ETB") => Type::Ext4ExtentTree,
                None => Type::Ext4Journal,
                Some(true) => Type::Ext4Directory,
                Some(false) => Type::Ext4Data,
            };
            add(of, blocks);
        }
    }
    found.insert(Type::Ext4Superblock, std::iter::once(1024..2048).collect());
    let start = descriptors.start * BLOCK;
    found.insert(Type::Ext4Descriptors, std::iter::once(start..start + DESCRIPTOR_LEN).collect());
    let place = |inode: &u64| table.start * BLOCK + (inode - 1) * INODE_LEN;
    let places = inodes.keys().map(place).map(|at| at..at + INODE_LEN).collect();
    found.insert(Type::Ext4InodeTable, places);
    Ok(found)
}
