//! Files inside images that `mkfs.ext4` made; where it is missing the tests say so.

use ashlar_fuzz::incompressible;
use ashlar_models::Chance;
use ashlar_survey::analyse::ReadAt;
use ashlar_survey::chunk::Chunking;
use ashlar_survey::inside::{Limits, Part, look};
use ashlar_survey::{Answer, Budget, Options, survey};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use xxhash_rust::xxh3::xxh3_64;

const UNIT: u64 = 32 << 10;

/// A directory that goes with its owner.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("ashlar-images-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a place for files");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Bytes<'a>(&'a [u8]);

impl ReadAt for Bytes<'_> {
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(to.len());
        to[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

/// Files of 1 to 200 KB in directories of 20, by numbers that decide what they hold.
fn tree(at: &Path, numbers: impl Iterator<Item = u64>) -> HashMap<u64, Vec<u8>> {
    let mut files = HashMap::new();
    for number in numbers {
        let mut chance = Chance::new(number);
        let len = 1000 + chance.below(if number.is_multiple_of(4) { 200_000 } else { 20_000 });
        let directory = at.join(format!("d{}", number / 20));
        fs::create_dir_all(&directory).expect("space");
        let (name, bytes) = (format!("file-{number}"), incompressible(number, len as usize));
        fs::write(directory.join(&name), &bytes).expect("space");
        files.insert(xxh3_64(name.as_bytes()), bytes);
    }
    files
}

/// Writes a file once more with holes for its zeros: blocks that are allocated and were never written count as data as long as
/// they are in the page cache, and else as hole.
fn settle(path: &Path) {
    let bytes = fs::read(path).expect("it is there");
    fs::remove_file(path).expect("it is ours");
    let file = fs::File::create(path).expect("space");
    file.set_len(bytes.len() as u64).expect("space");
    for (index, block) in bytes.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0)) {
        file.write_all_at(block, index as u64 * 4096).expect("space");
    }
    file.sync_all().expect("space");
}

/// An ext4 image with a tree; false if there is no `mkfs.ext4`.
fn image(tree: &Path, path: &Path, mib: u64) -> bool {
    fs::File::create(path).and_then(|file| file.set_len(mib << 20)).expect("space");
    let made = Command::new("mkfs.ext4").args(["-q", "-b", "4096", "-d"]).args([tree, path]).output();
    match made {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            settle(path);
            true
        }
        Err(_) => {
            println!("SKIPPED: mkfs.ext4 is missing");
            false
        }
    }
}

fn parts(bytes: &[u8]) -> Vec<Part> {
    let stop = AtomicBool::new(false);
    let limits = Limits { read: 32 << 20, files: 100_000, unit: UNIT, stop: &stop };
    let (parts, read) = look(&mut Bytes(bytes), &[(0, bytes.len() as u64)], &limits);
    assert!(read < 8 << 20, "{read} bytes were read");
    parts.expect("it holds a file system")
}

#[test]
fn files_are_where_the_image_has_them() {
    let place = Directory::new("parts");
    let (from, path) = (place.0.join("tree"), place.0.join("image"));
    let files = tree(&from, 0..400);
    if !image(&from, &path, 48) {
        return;
    }
    let bytes = fs::read(&path).expect("it is there");
    // Once as it is, and once in a partition behind 1 MiB.
    let mut disk = vec![0; 1 << 20];
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[450] = 0x83;
    disk[454..458].copy_from_slice(&2048u32.to_le_bytes());
    disk[458..462].copy_from_slice(&((bytes.len() / 512) as u32).to_le_bytes());
    disk.extend_from_slice(&bytes);
    for bytes in [&bytes, &disk] {
        let parts = parts(bytes);
        let data: u64 = parts.iter().flat_map(|part| &part.places).map(|(begin, end)| end - begin).sum();
        assert_eq!(data, bytes.len() as u64);
        let mut known = 0;
        for (name, content) in &files {
            let Some(part) = parts.iter().find(|part| part.name == *name) else { continue };
            let held: Vec<u8> =
                part.places.iter().flat_map(|(begin, end)| &bytes[*begin as usize..*end as usize]).copied().collect();
            assert_eq!(&held[..content.len()], content);
            known += 1;
        }
        let large = files.values().filter(|content| content.len() as u64 >= UNIT).count();
        assert!(known > large && large > 50, "{known} of {}, {large} of them large", files.len());
    }
}

/// Two images of three fifths of the same files, each from another place on.
#[test]
fn copies_in_images_make_narrow_ranges() {
    let place = Directory::new("survey");
    let images = place.0.join("images");
    fs::create_dir_all(&images).expect("space");
    for (number, begin) in [(0, 0), (1, 1600)] {
        let from = place.0.join(format!("tree-{number}"));
        tree(&from, begin..begin + 4000);
        if !image(&from, &images.join(format!("{number}.img")), 256) {
            return;
        }
    }
    let run = |full: bool, seed: u64| -> Answer {
        let budget = (!full).then_some(Budget::Share(0.2));
        let chunkings = vec![Chunking::Fixed(4096), Chunking::Fixed(16 << 10)];
        let options = Options { full, seed, budget, ..Options::everything(chunkings) };
        survey(&images, &options, &|_| {}, &AtomicBool::new(false)).expect("an answer")
    };
    let whole = run(true, 1);
    assert_eq!(whole.layout.files, 2);
    let truth = |index: usize| whole.dedup[index].ratio.value.expect("all was read");
    let ranges = |unit: u64| {
        let (mut inside, mut sum) = (0, 0.0);
        for seed in 0..10 {
            let found = run(false, seed);
            assert_eq!((found.unit_bytes, found.layout.files), (unit, 2));
            for index in 0..2 {
                let ratio = &found.dedup[index].ratio;
                let (low, high) = (ratio.low.expect("a range"), ratio.high.expect("a range"));
                inside += i32::from((low..=high).contains(&truth(index)));
                sum += high - low;
            }
        }
        (inside, sum / 20.0)
    };
    let (inside, width) = ranges(UNIT);
    assert!(inside >= 19, "{inside} of 20 hold {} and {}", truth(0), truth(1));
    // Negative control: without superblocks nobody knows files.
    for number in 0..2 {
        let image = fs::File::options().write(true).open(images.join(format!("{number}.img"))).expect("it is there");
        image.write_all_at(&[0; 2], 1024 + 56).expect("space");
    }
    let (inside, blind) = ranges(UNIT);
    assert!(inside >= 19 && width < 0.05 && width < 0.6 * blind, "{inside} of 20, {width} wide and {blind}");
}
