//! Layout on real file systems, beside what their own tools say. Needs root, loop devices, `filefrag` and the `mkfs` of each;
//! what is missing is said and passed over.

use ashlar_fuzz::incompressible;
use ashlar_survey::answer::LayoutAnswer;
use ashlar_survey::chunk::Chunking;
use ashlar_survey::{Options, survey};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// A file system in a file, mounted; both go with their owner.
struct Mounted {
    place: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{program} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

impl Mounted {
    fn new(kind: &str, options: &str) -> Result<Mounted, String> {
        let place = std::env::temp_dir().join(format!("ashlar-layout-{kind}-{}", std::process::id()));
        let mounted = Mounted { place };
        let (image, at) = (mounted.place.join("image"), mounted.at());
        fs::create_dir_all(&at).map_err(|error| error.to_string())?;
        File::create(&image).and_then(|file| file.set_len(320 << 20)).map_err(|error| error.to_string())?;
        run(&format!("mkfs.{kind}"), &["-q", &image.to_string_lossy()])?;
        run("mount", &["-o", options, &image.to_string_lossy(), &at.to_string_lossy()])?;
        Ok(mounted)
    }
    fn at(&self) -> PathBuf {
        self.place.join("mount")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("umount", &[&self.at().to_string_lossy()]);
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// Files of all kinds: in one piece, in many, with a hole, tiny, allocated but never written, and compressible.
fn fill(at: &Path) -> std::io::Result<()> {
    fs::write(at.join("plain"), incompressible(7, 3 << 20))?;
    let (mut one, mut other) = (File::create(at.join("one"))?, File::create(at.join("other"))?);
    for _ in 0..30 {
        for file in [&mut one, &mut other] {
            file.write_all(&incompressible(7, 64 << 10))?;
            file.sync_all()?;
        }
    }
    let holes = File::create(at.join("holes"))?;
    holes.set_len(64 << 20)?;
    holes.write_all_at(&incompressible(7, 1 << 20), 32 << 20)?;
    fs::write(at.join("tiny"), b"some words")?;
    fs::write(at.join("text"), b"a line of a log that is like the others\n".repeat(60_000))?;
    run("fallocate", &["-l", "1MiB", &at.join("reserved").to_string_lossy()]).map_err(std::io::Error::other)?;
    run("sync", &["-f", &at.to_string_lossy()]).map_err(std::io::Error::other)?;
    Ok(())
}

fn layout(at: &Path) -> LayoutAnswer {
    let options = Options::everything(vec![Chunking::Fixed(4096)]);
    survey(at, &options, &|_| {}, &AtomicBool::new(false)).expect("an answer").layout
}

/// Extents as `filefrag` counts them.
fn extents(file: &Path) -> u64 {
    let text = run("filefrag", &[&file.to_string_lossy()]).expect("it is of e2fsprogs");
    let count = text.rsplit(": ").next().and_then(|rest| rest.split(' ').next()).and_then(|count| count.parse().ok());
    count.unwrap_or_else(|| panic!("{text}"))
}

/// Makes, fills and surveys a file system; `None` if it cannot be made here.
fn surveyed(kind: &str, options: &str, reflink: bool) -> Option<(Mounted, LayoutAnswer)> {
    let mounted = match Mounted::new(kind, options) {
        Ok(mounted) if run("filefrag", &["-V"]).is_ok() || Path::new("/usr/sbin/filefrag").exists() => mounted,
        Ok(_) => {
            println!("SKIPPED: filefrag is missing");
            return None;
        }
        Err(error) => {
            println!("SKIPPED: {error}");
            return None;
        }
    };
    let at = mounted.at();
    fill(&at).expect("320 MiB are enough");
    if reflink {
        let name = |name: &str| at.join(name).to_string_lossy().into_owned();
        run("cp", &["--reflink=always", &name("plain"), &name("again")]).expect("it has reflinks");
        run("sync", &["-f", &name("")]).expect("a mount");
    }
    let answer = layout(&at);
    Some((mounted, answer))
}

/// Extents per file as `filefrag` has them, over files with content.
fn told(at: &Path, files: &[&str]) -> u64 {
    files.iter().map(|name| extents(&at.join(name))).sum()
}

const PLAIN: [&str; 7] = ["plain", "one", "other", "holes", "tiny", "text", "reserved"];

fn free_bytes(answer: &LayoutAnswer) -> u64 {
    answer.free_ranges.iter().map(|range| range.2).sum()
}

fn check_free(told: u64, answer: &LayoutAnswer) {
    let found = free_bytes(answer);
    assert!((found as f64 / told as f64 - 1.0).abs() < 0.05, "{found} of {told} bytes free");
}

/// Free bytes as the file system counts them.
fn free_by_stat(at: &Path) -> u64 {
    let told = run("stat", &["-f", "-c", "%f %S", &at.to_string_lossy()]).expect("a mount");
    told.split_whitespace().map(|word| word.parse::<u64>().expect("a number")).product()
}

/// Free bytes as `xfs_db` finds them: `stat` leaves out what xfs keeps for itself.
fn free_by_xfs_db(mounted: &Mounted) -> u64 {
    run("umount", &[&mounted.at().to_string_lossy()]).expect("nobody uses it");
    let text = run("xfs_db", &["-r", "-c", "freesp -s", &mounted.place.join("image").to_string_lossy()]);
    let text = text.expect("it is of xfsprogs");
    let blocks = text.lines().find_map(|line| line.strip_prefix("total free blocks "));
    blocks.and_then(|blocks| blocks.trim().parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}")) * 4096
}

#[test]
fn ext4_is_told_as_filefrag_does() {
    let Some((mounted, answer)) = surveyed("ext4", "loop", false) else { return };
    assert_eq!(answer.files, 7);
    assert!((answer.extents_per_file * 7.0 - told(&mounted.at(), &PLAIN) as f64).abs() < 1e-6, "{answer:?}");
    assert_eq!((answer.encoded_share, answer.shared_share), (0.0, 0.0));
    assert!((0.03..0.15).contains(&answer.unwritten_share), "{answer:?}");
    check_free(free_by_stat(&mounted.at()), &answer);
}

#[test]
fn xfs_is_told_as_filefrag_does() {
    let Some((mounted, answer)) = surveyed("xfs", "loop", true) else { return };
    let told = told(&mounted.at(), &PLAIN) + extents(&mounted.at().join("again"));
    assert!((answer.extents_per_file * 8.0 - told as f64).abs() < 1e-6, "{answer:?}");
    // Both names of three of 14 MiB.
    assert!((0.3..0.6).contains(&answer.shared_share), "{answer:?}");
    check_free(free_by_xfs_db(&mounted), &answer);
}

#[test]
fn btrfs_is_labelled() {
    let Some((mounted, answer)) = surveyed("btrfs", "loop,compress=zstd", true) else { return };
    assert_eq!(answer.inline_files, 1, "{answer:?}");
    assert!(answer.shared_share > 0.3, "{answer:?}");
    // The text alone is compressed, in pieces of 128 KiB that lie side by side and so count as one.
    assert!((0.1..0.3).contains(&answer.encoded_share), "{answer:?}");
    let told = told(&mounted.at(), &["plain", "again", "one", "other", "holes", "reserved"]);
    let text = answer.extents_per_file * answer.files as f64 - told as f64;
    let split = extents(&mounted.at().join("text"));
    assert!((1.0..split as f64 / 2.0).contains(&text), "{text} pieces where filefrag has {split}; {answer:?}");
    assert!(answer.free_ranges.is_empty() && answer.notes.iter().any(|note| note.contains("free space")));
}
