//! Whole surveys of small trees and images.

use crate::answer::{Answer, Origin};
use crate::chunk::Chunking;
use crate::listing::{Listing, Look, WalkError};
use crate::qcow2::Qcow2;
use crate::source::Kind;
use crate::tally::Mode;
use crate::{Budget, Options, Status, SurveyError, survey};
use ashlar_fuzz::incompressible;
use ashlar_models::Chance;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A directory that goes with its owner.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Directory {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ashlar-survey-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a place for files");
        Directory(path)
    }
    fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("it is in ours")).expect("a directory");
        fs::write(path, bytes).expect("space");
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn options() -> Options {
    Options::everything(vec![Chunking::Fixed(4096), Chunking::Fixed(65536), Chunking::Cdc(8192)])
}

fn run(path: &Path, options: &Options) -> Answer {
    survey(path, options, &|_| {}, &AtomicBool::new(false)).expect("an answer")
}

fn value(answer: &Answer, chunking: &str) -> f64 {
    let found = answer.dedup.iter().find(|dedup| dedup.chunking == chunking).expect(chunking);
    found.ratio.value.expect("a full scan")
}

/// What takes a file's place after it was listed is named, and holds nobody up: opening a pipe a second time would.
#[test]
fn pipes_and_directories_in_the_place_of_files_are_named() {
    let tree = Directory::new();
    let names = ["pipe", "directory", "file"];
    names.iter().for_each(|name| tree.write(name, &incompressible(1, 3000)));
    let replaced = std::cell::Cell::new(false);
    let status = |status: Status| {
        if matches!(status, Status::Walking(3)) && !replaced.replace(true) {
            fs::remove_file(tree.0.join("pipe")).expect("it is ours");
            fs::remove_file(tree.0.join("directory")).expect("it is ours");
            rustix::fs::mknodat(
                rustix::fs::CWD,
                tree.0.join("pipe"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR,
                0,
            )
            .expect("a file system with pipes");
            fs::create_dir(tree.0.join("directory")).expect("space");
        }
    };
    let answer = survey(&tree.0, &options(), &status, &AtomicBool::new(false)).expect("an answer");
    let mut named: Vec<&str> = answer.unreadable.first.iter().map(|trouble| trouble.what.as_str()).collect();
    named.dedup();
    assert_eq!((answer.unreadable.count, named), (2, vec!["it is no longer a regular file"]));
    assert_eq!((answer.read_bytes, answer.missing_bytes), (3000, 6000));
}

#[test]
fn what_does_not_shrink_has_no_speed_of_the_way_back() {
    for (name, bytes) in [("noise", incompressible(1, 200_000)), ("text", b"a stone ".repeat(25_000))] {
        let tree = Directory::new();
        tree.write(name, &bytes);
        let answer = run(&tree.0, &options());
        let codecs = &answer.compression.codecs;
        assert!(codecs.iter().all(|codec| codec.decompress_mb_s.is_some() == (name == "text")), "{codecs:?}");
        assert!(codecs.iter().all(|codec| codec.compress_mb_s > 0.0 && (codec.back() == "-") == (name == "noise")));
    }
}

#[test]
fn what_was_never_written_is_a_hole_also_once_it_was_read() {
    let tree = Directory::new();
    let path = tree.0.join("disk");
    let disk = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    // Written, allocated, a hole; and a part of what is allocated written later.
    const PART: u64 = 8 << 20;
    let one = incompressible(1, PART as usize);
    if rustix::fs::fallocate(&disk, rustix::fs::FallocateFlags::empty(), PART, PART).is_err() {
        eprintln!("passed over: this file system does not allocate without writing");
        return;
    }
    disk.write_all_at(&one, 0).expect("space");
    disk.write_all_at(&incompressible(2, 5000), PART + 3000).expect("space");
    // All is allocated of the second file, and it has no hole.
    for size in [3 * PART, 2 * PART] {
        disk.set_len(size).expect("a hole");
        disk.sync_all().expect("space");
        let told = ashlar_env::host::extents_in(&disk, PART..2 * PART, 10);
        if !told.is_ok_and(|extents| extents.iter().any(|extent| extent.is_unwritten())) {
            eprintln!("passed over: this file system does not tell what was written");
            return;
        }
        // Not yet in its place: the next one that is written.
        disk.write_all_at(&one[..100], 2 * PART - 5000).expect("space");
        let whole = PART + 8192 + 4096;
        for path in [&tree.0, &path] {
            let before = run(path, &options());
            assert_eq!(before.logical_bytes, whole, "{size}");
            let read = fs::read(tree.0.join("disk")).expect("readable");
            assert_eq!(read.len() as u64, size);
            let after = run(path, &options());
            assert_eq!(after.logical_bytes, whole, "{size}");
            assert_eq!(value(&after, "fixed:4KiB"), value(&before, "fixed:4KiB"), "{size}");
            assert_eq!(after.sizes.sparse_share, before.sizes.sparse_share);
        }
    }
}

#[test]
fn a_tree_is_counted_to_the_byte() {
    let tree = Directory::new();
    let one = incompressible(1, 100_000);
    tree.write("a/one", &one);
    tree.write("b/copy", &one);
    tree.write("b/other", &incompressible(2, 50_000));
    tree.write("empty", b"");
    fs::hard_link(tree.0.join("a/one"), tree.0.join("a/link")).expect("a link");
    std::os::unix::fs::symlink("..", tree.0.join("a/loop")).expect("a link");
    std::os::unix::fs::symlink("nowhere", tree.0.join("dangling")).expect("a link");
    let odd = OsStr::from_bytes(b"odd-\xff\xfe");
    tree.write(Path::new(odd), &incompressible(3, 10));
    let holes = File::create(tree.0.join("holes")).expect("a file");
    // As large as ext4 allows.
    holes.set_len(15 << 40).expect("a sparse file of 15 TiB");
    holes.write_all_at(&incompressible(4, 8192), 1 << 40).expect("space");
    drop(holes);
    let _socket = std::os::unix::net::UnixListener::bind(tree.0.join("socket")).expect("a socket");
    let answer = run(&tree.0, &options());
    assert_eq!((answer.kind, answer.origin, answer.read_fraction), (Kind::Tree, Origin::Measured, 1.0));
    let sizes = &answer.sizes;
    assert_eq!((sizes.files, sizes.further_links, sizes.symlinks, sizes.special_files), (6, 1, 2, 1));
    assert_eq!((sizes.empty_files, sizes.sparse_files, sizes.directories), (1, 1, 3));
    assert_eq!(answer.logical_bytes, 2 * 100_000 + 50_000 + 10 + 8192);
    let truth = (100_000 + 50_000 + 10 + 8192) as f64 / answer.logical_bytes as f64;
    for chunking in ["fixed:4KiB", "fixed:64KiB", "cdc:8KiB"] {
        assert!((value(&answer, chunking) - truth).abs() < 1e-12, "{chunking}");
    }
    assert_eq!(answer.passed_over.count, 1);
    assert_eq!((answer.unreadable.count, answer.changed.count), (0, 0));
    let page = crate::page::survey_page(&answer);
    assert!(page.contains("fixed:4KiB"));
    assert!(["src=", "href=", "url(", "@import"].iter().all(|loading| !page.contains(loading)), "a page loads nothing");
}

/// Names the tree for the part of the next test that runs among mounts of its own.
const MOUNTED: &str = "ASHLAR_TEST_MOUNTED";

/// Directories and files that mounts show a second time count once. Needs root and `unshare`.
#[test]
fn what_mounts_show_again_counts_once() {
    if let Some(tree) = std::env::var_os(MOUNTED) {
        let answer = run(Path::new(&tree), &options());
        assert_eq!((answer.sizes.files, answer.logical_bytes), (3, 60_010), "{:?}", answer.passed_over);
        assert_eq!((answer.sizes.directories, answer.passed_over.count), (2, 3), "{:?}", answer.passed_over);
        return;
    }
    let tree = Directory::new();
    tree.write("a/one", &incompressible(1, 50_000));
    tree.write("a/other name", &incompressible(2, 10_000));
    tree.write("again", &incompressible(3, 10));
    for directory in ["root", "a/a"] {
        fs::create_dir_all(tree.0.join(directory)).expect("a directory");
    }
    // The root below itself, a directory below itself, and a file at the place of another.
    let script = "set -e; cd \"$ASHLAR_TEST_MOUNTED\"; mount --bind . root; mount --bind a a/a; \
        touch 'a/a file'; mount --bind a/one 'a/a file'; exec \"$0\" --exact tests::what_mounts_show_again_counts_once";
    let own = std::env::current_exe().expect("a test has a path");
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(own).env(MOUNTED, &tree.0);
    if !rustix::process::geteuid().is_root() || std::process::Command::new("unshare").arg("true").status().is_err() {
        println!("SKIPPED: mounting needs root and `unshare`");
        return;
    }
    let output = command.output().expect("it was there a moment ago");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn zeros_are_stored_once() {
    let tree = Directory::new();
    tree.write("zeros", &vec![0; 40_960]);
    tree.write("data", &incompressible(1, 40_960));
    let answer = run(&tree.0, &options());
    assert!((value(&answer, "fixed:4KiB") - 11.0 / 20.0).abs() < 1e-12);
    assert_eq!(answer.dedup[0].zero_share, 0.5);
}

#[test]
fn a_chunk_of_zeros_has_its_own_length() {
    let tree = Directory::new();
    tree.write("zeros", &vec![0; 1 << 20]);
    let answer = run(&tree.0, &options());
    assert_eq!(
        ["fixed:4KiB", "fixed:64KiB", "cdc:8KiB"].map(|chunking| value(&answer, chunking)),
        [4.0, 64.0, 32.0].map(|kib| kib / 1024.0)
    );
    assert_eq!(answer.dedup[0].chunks.value, Some(1.0));
    tree.write("short", b"a");
    let answer = run(&tree.0, &options());
    assert!((value(&answer, "fixed:4KiB") - 4097.0 / 1_048_577.0).abs() < 1e-12);
    let found = &answer.dedup[0];
    assert!(found.with_lz4.value.is_some_and(|packed| packed < found.ratio.value.expect("a full scan")));
}

#[test]
fn a_size_bounds_what_is_read_and_who_has_room_for_all_reads_all() {
    let tree = Directory::new();
    for file in 0..16 {
        tree.write(format!("{file}"), &incompressible(file, 3 << 20));
    }
    let chunkings = vec![Chunking::Fixed(4096), Chunking::Cdc(65536)];
    let asked = |budget| {
        run(&tree.0, &Options { full: false, budget: Some(budget), chunkings: chunkings.clone(), ..options() })
    };
    for mib in [6, 16, 40] {
        let answer = asked(Budget::Bytes(mib << 20));
        assert_eq!(answer.origin, Origin::Sampled);
        assert!(
            answer.read_bytes < (mib * 5) << 18 && answer.read_bytes > mib << 18,
            "{} of {mib} MiB",
            answer.read_bytes >> 20
        );
    }
    for budget in
        [Budget::Bytes(48 << 20), Budget::Share(1.0), Budget::Share(0.5), Budget::Time(Duration::from_secs(3600))]
    {
        let answer = asked(budget);
        assert_eq!((answer.origin, answer.read_fraction), (Origin::Measured, 1.0), "{budget:?}");
        assert!(answer.read_bytes < 60 << 20, "{budget:?}: {}", answer.read_bytes);
    }
}

#[test]
fn a_sample_that_was_taken_up_again_leaves_nothing_in_what_is_read_of_all() {
    let tree = Directory::new();
    for file in 0..16 {
        tree.write(format!("{file}"), &incompressible(file, 3 << 20));
    }
    let kept = Directory::new();
    let (budget, resume) = (Some(Budget::Time(Duration::from_secs(3600))), Some(kept.0.join("state")));
    let options = Options { full: false, budget, resume, ..options() };
    let stop = AtomicBool::new(false);
    let status = |status| {
        if let Status::Reading(..) = status {
            stop.store(true, Ordering::Release);
        }
    };
    let interrupted = survey(&tree.0, &options, &status, &stop).expect_err("interrupted");
    assert!(matches!(interrupted, SurveyError::Interrupted(_)) && kept.0.join("state").exists(), "{interrupted}");
    let answer = run(&tree.0, &options);
    assert_eq!((answer.origin, answer.read_fraction), (Origin::Measured, 1.0));
    assert_eq!((value(&answer, "fixed:4KiB"), answer.dedup[0].chunks.value), (1.0, Some(12288.0)));
    assert!(!kept.0.join("state").exists());
}

/// Small packages, of which some come in several versions, and some files are everywhere.
fn packages(tree: &Directory, count: u64) {
    let mut chance = Chance::new(3);
    for package in 0..count {
        for file in 0..6 {
            let len = 2000 + chance.below(30_000) as usize;
            let bytes = incompressible(package * 10 + file, len);
            tree.write(format!("p{package}/1/f{file}"), &bytes);
            if package % 3 == 0 {
                let mut bytes = bytes.clone();
                if file % 3 == 0 {
                    bytes.splice(500..600, incompressible(package, 300));
                }
                tree.write(format!("p{package}/2/f{file}"), &bytes);
            }
        }
        tree.write(format!("p{package}/license"), &incompressible(1_000_000, 11_000));
    }
}

/// A range is of 95 %: over 40 trees like this one, of 20 seeds each, 95.2 % held the truth.
#[test]
fn ranges_from_a_tenth_hold_the_truth() {
    let tree = Directory::new();
    packages(&tree, 700);
    let full = run(&tree.0, &options());
    for mode in [Mode::Full, Mode::Base] {
        let mut inside = 0;
        for seed in 0..20 {
            let options = Options { full: false, budget: Some(Budget::Share(0.1)), seed, mode, ..options() };
            let answer = run(&tree.0, &options);
            assert_eq!(answer.origin, Origin::Sampled);
            assert!((answer.read_fraction - 0.1).abs() < 0.03, "{}", answer.read_fraction);
            for (found, truth) in answer.dedup.iter().zip(&full.dedup) {
                let (low, _, high) = found.ratio.range();
                let truth = truth.ratio.value.expect("a full scan");
                inside += i32::from(low <= truth && truth <= high);
            }
        }
        assert!(inside >= 56, "{mode:?}: {inside} of 60 hold the truth");
    }
}

/// Copies compress well and the rest does not: the product of both ratios is far off.
#[test]
fn compression_of_copies_is_no_product() {
    let tree = Directory::new();
    for number in 0..300u64 {
        tree.write(format!("unique/{number}"), &incompressible(number, 32_768));
        let text = format!("{} line of a log that repeats itself; ", number % 30).repeat(900);
        tree.write(format!("copies/{number}"), &text.as_bytes()[..32_768]);
    }
    let options = Options { chunkings: vec![Chunking::Fixed(4096)], ..options() };
    let full = run(&tree.0, &options);
    let dedup = &full.dedup[0];
    let truth = dedup.with_lz4.value.expect("a full scan");
    // Half is noise and stays; of the other half a tenth of some per cent is left.
    assert!((0.5..0.51).contains(&truth), "{truth}");
    let alone = full.compression.codecs[0].ratio.range().1;
    let product = dedup.ratio.value.expect("a full scan") * alone;
    assert!(product < 0.35, "{product}");
    // All of this is little enough to be compressed. Of more, some is, and a full scan says so.
    assert_eq!(dedup.compression_origin, Origin::Measured);
    let more = Directory::new();
    for number in 0..1200u64 {
        let bytes = incompressible(number, 32_768);
        let text = bytes.iter().map(|byte| b'a' + byte % (2 + number % 20) as u8).collect::<Vec<u8>>();
        more.write(format!("{number}"), &text);
    }
    let answer = run(&more.0, &options);
    let of_more = &answer.dedup[0];
    assert_eq!((of_more.origin, of_more.compression_origin), (Origin::Measured, Origin::Sampled));
    let (low, _, high) = of_more.with_zstd_3.range();
    let mut packer = crate::compress::Packer::new();
    let mut packed = 0;
    for number in 0..1200 {
        let bytes = fs::read(more.0.join(number.to_string())).expect("it is ours");
        packed += bytes.chunks(4096).map(|block| u64::from(packer.pack(0, block).zstd)).sum::<u64>();
    }
    let truth_of_more = packed as f64 / answer.logical_bytes as f64;
    assert!(low < truth_of_more && truth_of_more < high && high - low < 0.1, "{low} to {high}: {truth_of_more}");
    let sampled = Options { full: false, budget: Some(Budget::Share(0.25)), ..options };
    let (low, _, high) = run(&tree.0, &sampled).dedup[0].with_lz4.range();
    assert!(low <= truth && truth <= high, "{low} to {high}");
}

#[test]
fn an_interrupted_scan_goes_on() {
    let tree = Directory::new();
    packages(&tree, 60);
    let state = tree.0.join("..").join(format!("ashlar-state-{}", std::process::id()));
    let whole = run(&tree.0, &options());
    let options = Options { resume: Some(state.clone()), threads: 1, ..options() };
    let stop = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    let status = |status| {
        if let Status::Reading(..) = status
            && seen.fetch_add(1, Ordering::Relaxed) == 100
        {
            stop.store(true, Ordering::Release);
        }
    };
    let error = survey(&tree.0, &options, &status, &stop).expect_err("Ctrl-C");
    assert!(matches!(error, SurveyError::Interrupted(_)), "{error}");
    let resumed = run(&tree.0, &options);
    assert!(!state.exists(), "a state that was used up is removed");
    assert_eq!(resumed.read_bytes, whole.read_bytes);
    for (resumed, whole) in resumed.dedup.iter().zip(&whole.dedup) {
        assert_eq!(resumed.ratio, whole.ratio, "{}", whole.chunking);
    }
    fs::write(&state, b"no state").expect("space");
    let error = survey(&tree.0, &options, &|_| {}, &AtomicBool::new(false)).expect_err("text");
    assert!(error.to_string().contains("remove it to begin anew"), "{error}");
    fs::remove_file(&state).expect("it is ours");
}

/// A unit of a full scan is long; one that is being read does not hold up the end, and is read again.
#[test]
fn an_interrupt_within_a_unit_loses_nothing() {
    let tree = Directory::new();
    for number in 0..6 {
        tree.write(format!("{number}"), &incompressible(number, 3 << 20));
    }
    let whole = run(&tree.0, &options());
    let state = std::env::temp_dir().join(format!("ashlar-state-within-{}", std::process::id()));
    let slow = Options { resume: Some(state.clone()), bandwidth: Some(4 << 20), ..options() };
    let stop = AtomicBool::new(false);
    let at_once = |status: Status| {
        if matches!(status, Status::Reading(1.., ..)) {
            stop.store(true, Ordering::Release);
        }
    };
    survey(&tree.0, &slow, &at_once, &stop).expect_err("Ctrl-C");
    let resumed = run(&tree.0, &Options { resume: Some(state), ..options() });
    assert_eq!((resumed.read_bytes, resumed.logical_bytes), (whole.read_bytes, whole.logical_bytes));
    for (resumed, whole) in resumed.dedup.iter().zip(&whole.dedup) {
        assert_eq!(resumed.ratio, whole.ratio, "{}", whole.chunking);
    }
}

#[test]
fn memory_that_is_short_changes_no_answer() {
    let tree = Directory::new();
    for number in 0..40 {
        tree.write(format!("{number}"), &incompressible(number % 25, 1 << 20));
    }
    let ample = run(&tree.0, &options());
    let short = run(&tree.0, &Options { memory: 200 << 10, ..options() });
    assert!(short.spilled_bytes > 0 && ample.spilled_bytes == 0, "{}", short.spilled_bytes);
    for (short, ample) in short.dedup.iter().zip(&ample.dedup) {
        assert_eq!(short.ratio, ample.ratio);
    }
}

#[test]
fn a_survey_is_the_same_for_a_seed() {
    let tree = Directory::new();
    packages(&tree, 100);
    let options = Options { full: false, budget: Some(Budget::Share(0.2)), seed: 9, ..options() };
    let (one, other) = (run(&tree.0, &options), run(&tree.0, &Options { threads: 1, ..options.clone() }));
    assert_eq!(one.read_bytes, other.read_bytes);
    for (one, other) in one.dedup.iter().zip(&other.dedup) {
        assert_eq!(one.ratio, other.ratio);
    }
    // A copy of the tree has other inode numbers, and directories that list their files in another order.
    let copy = Directory::new();
    let look = Look { now: 0, memory: 1 << 20, stop: &AtomicBool::new(false), progress: &|_| {} };
    let listing = Listing::walk(&tree.0, look).expect("a tree");
    for entry in listing.entries.iter().rev() {
        let path = listing.path(entry);
        let name = path.strip_prefix(&tree.0).expect("it is in the tree");
        copy.write(name, &fs::read(&path).expect("it is ours"));
    }
    let other = run(&copy.0, &options);
    assert_eq!(one.read_bytes, other.read_bytes);
    for (one, other) in one.dedup.iter().zip(&other.dedup) {
        let ((low, _, high), (other_low, _, other_high)) = (one.ratio.range(), other.ratio.range());
        assert!(
            (low - other_low).abs() < 1e-9 && (high - other_high).abs() < 1e-9,
            "{low} to {high} and {other_low} to {other_high}"
        );
    }
}

#[test]
fn a_walk_finds_everything_once() {
    // More entries than are sorted at once, and more directories than there are jobs ahead.
    let tree = Directory::new();
    let mut names = BTreeSet::new();
    for number in 0..9000 {
        names.insert(PathBuf::from(format!("many/{number:0width$}", width = 1 + number % 250)));
    }
    for number in 0..900 {
        names.insert(PathBuf::from(format!("deep/{}/{}/file", number % 30, number)));
    }
    names.iter().for_each(|name| tree.write(name, b"stone"));
    std::os::unix::fs::symlink("nowhere", tree.0.join("many/symlink")).expect("space");
    fs::hard_link(tree.0.join("deep/0/0/file"), tree.0.join("second")).expect("space");
    let look = Look { now: 0, memory: 64 << 20, stop: &AtomicBool::new(false), progress: &|_| {} };
    let listing = Listing::walk(&tree.0, look).expect("a tree");
    let relative = |path: PathBuf| path.strip_prefix(&tree.0).expect("it is in the tree").to_path_buf();
    let mut found: BTreeSet<_> = listing.entries.iter().map(|entry| relative(listing.path(entry))).collect();
    // One of the two names, whichever came first.
    if found.remove(Path::new("second")) {
        found.insert("deep/0/0/file".into());
    }
    assert_eq!((listing.entries.len(), found == names), (names.len(), true));
    let sizes = &listing.sizes;
    assert_eq!((sizes.files, sizes.directories, sizes.symlinks, sizes.further_links), (9900, 933, 1, 1));
    assert_eq!((sizes.apparent, listing.unreadable.count, listing.passed.count), (5 * 9900, 0, 0));
    // A root that is not there is an error.
    let gone = Listing::walk(&tree.0.join("gone"), look);
    assert!(matches!(gone, Err(WalkError::Root(..))));
}

/// A qcow2 image of 1 MiB with clusters of 4 KiB: plain clusters, holes, zeros, and a compressed one. `seed` decides where.
pub fn qcow2_image(seed: u64) -> Vec<u8> {
    let cluster = 4096usize;
    let mut chance = Chance::new(seed);
    let mut image = vec![0u8; 4 * cluster];
    image[..4].copy_from_slice(b"QFI\xfb");
    let put = |image: &mut Vec<u8>, at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(&mut image, 4, &3u32.to_be_bytes());
    put(&mut image, 20, &12u32.to_be_bytes());
    put(&mut image, 24, &(1u64 << 20).to_be_bytes());
    put(&mut image, 36, &1u32.to_be_bytes());
    put(&mut image, 40, &(cluster as u64).to_be_bytes());
    put(&mut image, 100, &104u32.to_be_bytes());
    // The L1 table has one entry, and the L2 table is the third cluster.
    put(&mut image, cluster, &((2 * cluster as u64) | (1 << 63)).to_be_bytes());
    for number in 0..256usize {
        let entry = match chance.below(4) {
            0 => {
                let at = image.len() as u64;
                image.extend(incompressible(number as u64, cluster));
                at | (1 << 63)
            }
            1 => 1,
            _ => 0,
        };
        put(&mut image, 2 * cluster + 8 * number, &entry.to_be_bytes());
    }
    // One compressed cluster, in a sector of its own.
    let packed = miniz_oxide::deflate::compress_to_vec(&b"stone".repeat(820)[..cluster], 6);
    let at = image.len() as u64;
    image.extend(packed);
    image.resize(image.len().next_multiple_of(cluster), 0);
    put(&mut image, 2 * cluster + 8 * 255, &((1u64 << 62) | at).to_be_bytes());
    image
}

#[test]
fn qcow2_images_are_read_as_their_guest_sees_them() {
    let directory = Directory::new();
    directory.write("image", &qcow2_image(5));
    let image = Qcow2::open(File::open(directory.0.join("image")).expect("it is there")).expect("an image");
    assert_eq!(image.size(), 1 << 20);
    let mut last = vec![0; 4096];
    assert_eq!(image.read_at((1 << 20) - 4096, &mut last).expect("it is there"), 4096);
    assert_eq!(last, b"stone".repeat(820)[..4096]);
    let answer = run(&directory.0.join("image"), &options());
    assert_eq!((answer.kind, answer.logical_bytes), (Kind::Qcow2, image.data_bytes()));
    assert_eq!(value(&answer, "fixed:4KiB"), 1.0);
    assert_eq!(answer.unreadable.count, 0);
}

#[test]
fn a_budget_that_is_too_small_for_anything_is_said_to_be() {
    let directory = Directory::new();
    directory.write("small", &[7; 700_000]);
    let options = Options { full: false, budget: Some(Budget::Share(0.01)), ..options() };
    let answer = run(&directory.0, &options);
    assert!(answer.read_bytes == 0 && answer.notes.iter().any(|note| note.contains("budget")), "{:?}", answer.notes);
    let answer = run(&directory.0, &Options { budget: Some(Budget::Share(0.5)), ..options });
    assert!(answer.read_bytes > 0 && answer.notes.is_empty(), "{:?}", answer.notes);
}

#[test]
fn a_truncated_qcow2_is_said_to_be() {
    let directory = Directory::new();
    let bytes = qcow2_image(5);
    directory.write("image", &bytes[..bytes.len() / 2]);
    let answer = run(&directory.0.join("image"), &options());
    assert!(answer.unreadable.count > 0);
    assert!(answer.unreadable.first[0].what.contains("truncated"), "{:?}", answer.unreadable.first[0]);
    assert!(answer.notes.iter().any(|note| note.contains("truncated")), "{:?}", answer.notes);
    // Without its only L2 table nothing is known of the guest's bytes.
    directory.write("image", &bytes[..4096 + 100]);
    let answer = run(&directory.0.join("image"), &options());
    let lost = &answer.unreadable.first[0];
    assert_eq!((answer.unreadable.count, lost.offset, lost.len), (1, Some(0), Some(1 << 20)));
    assert!(lost.what.contains("truncated"), "{lost:?}");
    assert_eq!((answer.logical_bytes, answer.missing_bytes, answer.read_fraction), (0, 1 << 20, 0.0));
    directory.write("image", &bytes[..50]);
    let error = survey(&directory.0.join("image"), &options(), &|_| {}, &AtomicBool::new(false)).expect_err("a stump");
    assert!(error.to_string().contains("cut off"), "{error}");
}

#[test]
fn a_table_of_a_qcow2_begins_with_a_cluster() {
    let directory = Directory::new();
    let mut bytes = qcow2_image(5);
    bytes[40..48].copy_from_slice(&4104u64.to_be_bytes());
    directory.write("image", &bytes);
    let error = survey(&directory.0.join("image"), &options(), &|_| {}, &AtomicBool::new(false)).expect_err("no place");
    assert!(error.to_string().contains("l1_table_offset = 4104"), "{error}");
}

/// Needs `qemu-img`; where it is missing the test says so.
#[test]
fn qcow2_images_of_qemu_are_read_back() {
    let directory = Directory::new();
    let mut bytes = incompressible(1, 3 << 20);
    bytes[1 << 20..2 << 20].fill(7);
    bytes.extend(vec![0; 5 << 20]);
    directory.write("raw", &bytes);
    for (name, arguments) in
        [("plain", vec![]), ("zlib", vec!["-c"]), ("zstd", vec!["-c", "-o", "compression_type=zstd"])]
    {
        let to = directory.0.join(name);
        let mut command = std::process::Command::new("qemu-img");
        command.args(["convert", "-f", "raw", "-O", "qcow2"]).args(arguments).arg(directory.0.join("raw")).arg(&to);
        if !command.status().is_ok_and(|status| status.success()) {
            println!("SKIPPED: qemu-img is missing");
            return;
        }
        let image = Qcow2::open(File::open(&to).expect("it is there")).expect("an image");
        let mut read = vec![0; bytes.len()];
        let mut at = 0;
        while at < read.len() {
            let len = image.read_at(at as u64, &mut read[at..]).expect("whole");
            assert!(len > 0);
            at += len;
        }
        assert!(read == bytes, "{name}");
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let tree = Directory::new();
    tree.write("good", &incompressible(1, 10_000));
    let answer = run(&tree.0, &options());
    assert_eq!(answer.unreadable.count, 0);
    let error =
        survey(&tree.0.join("missing"), &options(), &|_| {}, &AtomicBool::new(false)).expect_err("nothing there");
    assert!(error.to_string().contains("missing"), "{error}");
    let error =
        survey(Path::new("/dev/null"), &options(), &|_| {}, &AtomicBool::new(false)).expect_err("no block device");
    assert!(error.to_string().contains("neither a directory"), "{error}");
    // A file that shrinks between walk and scan.
    let mut file = File::create(tree.0.join("grows")).expect("a file");
    file.write_all(&incompressible(2, 10_000)).expect("space");
    let status = |status| {
        if let crate::Status::Reading(0, ..) = status {
            fs::write(tree.0.join("grows"), b"short").expect("space");
        }
    };
    let look = Look { now: 0, memory: 1 << 20, stop: &AtomicBool::new(false), progress: &|_| {} };
    let listed = Listing::walk(&tree.0, look).expect("a tree");
    assert_eq!(listed.entries.len(), 2);
    drop(survey(&tree.0, &options(), &status, &AtomicBool::new(false)));
}
