//! The geometry, exactly; and those of the thesis's findings that a small file system shows when it ages (check 6 of the
//! digest).

use super::bench::{Speed, throughput};
use super::*;
use crate::age::clock::Writeback;
use crate::age::scale::Scale;
use crate::age::state::State;
use crate::age::{AgeOptions, Done, WhenFull, age};
use crate::history::synthetic::{Common, Sizes, profile::Profile};
use crate::history::{Builder, Header, HistoryReader};
use ashlar_models::ModelFile;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const SIZE: Bytes = Bytes(1024 << 20);

fn empty(variant: Variant) -> Ffs {
    Ffs::new(SIZE, variant).expect("63 groups")
}

#[test]
fn there_are_63_groups() {
    assert_eq!(empty(Variant::Baseline).special().groups, 63);
    Ffs::new(Bytes(16 << 20), Variant::Baseline).err().expect("one group is too few");
}

/// Digest, check 4: the thirteenth block (behind 96 KB) is in another group, then every 2,048 blocks.
#[test]
fn a_file_switches_groups_behind_96_kb_and_then_every_16_mb() {
    let switched = |variant| (0..10_000).filter(move |block| switches(variant, *block)).collect::<Vec<_>>();
    assert_eq!(switched(Variant::Baseline), [12, 2060, 4108, 6156, 8204]);
    assert_eq!(switched(Variant::NoSwitch), [2060, 4108, 6156, 8204]);
    assert_eq!(12 * BLOCK, 96 << 10);
    for variant in [Variant::Baseline, Variant::NoSwitch, Variant::SmartFrag] {
        let mut ffs = empty(variant);
        ffs.write_file(1, ROOT, 0, 5000 * BLOCK).expect("room");
        let file = ffs.file(1).expect("it was made");
        assert_eq!((file.blocks.len(), file.indirect.len()), (5000, 3));
        // A group has 2,045 blocks for files, also indirect ones: 2,048 do not fit, and some begin in the one behind, where the
        // next 2,048 then begin too.
        let groups: Vec<u32> = file.blocks.iter().map(|block| ffs.allocator.group_of(block.at)).collect();
        let runs: Vec<(u32, usize)> = groups.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect();
        let expected = match variant {
            Variant::Baseline | Variant::SmartFrag => vec![(0, 12), (1, 2044), (2, 2041), (3, 903)],
            Variant::NoSwitch => vec![(0, 2042), (1, 2041), (2, 917)],
        };
        assert_eq!(runs, expected, "{variant:?}");
        // Each indirect block is where its first block is, immediately before it.
        for (indirect, first) in file.indirect.iter().zip([12, 2060, 4108]) {
            assert_eq!(indirect + u64::from(FRAGMENTS), file.blocks[first].at, "{variant:?}, block {first}");
        }
        assert_eq!(groups[0], file.group);
        ffs.remove(1);
        assert_eq!(ffs.allocator.used(), 0.0);
    }
}

#[test]
fn a_tail_is_a_fragment_only_without_indirect_blocks() {
    let mut ffs = empty(Variant::Baseline);
    for (id, size, lens) in [
        (1, 1, vec![1]),
        (2, 30 << 10, vec![8, 8, 8, 6]),
        (3, 8 << 10, vec![8]),
        (4, (96 << 10) - 8191, [vec![8; 11], vec![1]].concat()),
        (5, (96 << 10) + 1, vec![8; 13]),
        (6, 0, vec![]),
    ] {
        ffs.write_file(id, ROOT, 0, size).expect("room");
        let found: Vec<u32> = ffs.file(id).expect("made").blocks.iter().map(|block| block.len).collect();
        assert_eq!(found, lens, "{size} bytes");
    }
}

/// Section 3.3.2: FFS fills blocks that are broken already; SmartFrag goes on where the file is.
#[test]
fn fragments_go_where_the_policy_says() {
    for (variant, adjoins) in [(Variant::Baseline, false), (Variant::SmartFrag, true)] {
        let mut ffs = empty(variant);
        ffs.write_file(1, ROOT, 0, 2048).expect("room");
        ffs.write_file(2, ROOT, 0, BLOCK + 2048).expect("room");
        let (one, two) = (ffs.file(1).expect("made").blocks[0], ffs.file(2).expect("made").blocks.clone());
        assert_eq!(two[0].at + u64::from(FRAGMENTS) == two[1].at, adjoins, "{variant:?}");
        assert_eq!(one.at + 2 == two[1].at, !adjoins, "{variant:?}");
        // A file that is but a fragment goes the old way in both.
        ffs.write_file(3, ROOT, 0, 1024).expect("room");
        let three = ffs.file(3).expect("made").blocks[0];
        assert_eq!(three.at / 8, if adjoins { one.at / 8 } else { two[1].at / 8 }, "{variant:?}");
    }
}

#[test]
fn the_reserve_is_kept() {
    let mut ffs = empty(Variant::Baseline);
    let mut id = 0;
    while ffs.write_file(id, ROOT, 0, 1 << 20).is_ok() {
        id += 1;
    }
    assert!((0.895..=0.9).contains(&ffs.allocator.used()), "{}", ffs.allocator.used());
    ffs.remove(id);
    ffs.remove(0);
    ffs.write_file(id, ROOT, 0, 1 << 20).expect("there is room again");
}

/// A file system of a quarter of the thesis's size that ages for a quarter of its time.
fn aged(variant: Variant, history: &Path) -> (Ffs, Done) {
    let mut ffs = Ffs::new(Bytes(SIZE.0 / 4), variant).expect("15 groups");
    let options = AgeOptions { scale: Scale::ONE, writeback: Writeback::LINUX, when_full: WhenFull::Skip, seed: 1 };
    let mut reader = HistoryReader::new(std::fs::File::open(history).expect("it is there")).expect("a history");
    let never = AtomicBool::new(false);
    let done = age(&mut reader, 1 << 40, &mut ffs, &options, &mut State::nowhere(), &never, &|_| {});
    (ffs, done.expect("nothing fails").0)
}

fn speed(ffs: &mut Ffs, file_bytes: u64) -> Speed {
    let mut disk = ModelFile::preset("fujitsu-m2694").expect("a preset").build(0).expect("it can be built");
    throughput(ffs, disk.as_mut(), file_bytes).expect("room")
}

#[test]
fn ageing_shows_what_an_empty_file_system_hides() {
    let path = std::env::temp_dir().join(format!("ashlar-ffs-{}", std::process::id()));
    let sizes = Sizes::Lognormal(4096.0, 1.8);
    // Short-lived files were larger in the thesis, too.
    let short_sizes = Sizes::Lognormal(32_768.0, 1.8);
    let common = Common { capacity: SIZE.0 / 4, sizes, directories: 600, sync_share: 0.0, write_unit: 0, seed: 7 };
    let curve = vec![(20.0, 0.5), (54.0, 0.65)];
    let profile = Profile { common, days: 54, utilization: curve, turnover: 0.12, short_lived: 0.8, short_sizes };
    let mut builder = Builder::new(64 << 20, &std::env::temp_dir());
    let stop = AtomicBool::new(false);
    profile.run(&mut builder, &stop, &|_| {}).expect("no interruption");
    let header = Header { source: "test".into(), models: Vec::new(), seed: 7, capacity: SIZE.0 / 4 };
    builder.finish(&path, &header, &stop).expect("space");
    let variants = [Variant::Baseline, Variant::NoSwitch, Variant::SmartFrag];
    let [mut baseline, mut noswitch, smartfrag] = variants.map(|variant| aged(variant, &path).0);
    let again = aged(Variant::Baseline, &path).0;
    std::fs::remove_file(&path).expect("it is ours");
    assert_eq!(baseline.special().hash, again.special().hash, "one seed, one layout");
    let split = |ffs: &Ffs| ffs.layout().all.split.expect("groups are known").files as f64;
    let gain =
        |with: &mut Ffs, without: &mut Ffs| speed(with, 104 << 10).read_mb_s / speed(without, 104 << 10).read_mb_s;
    let (fresh, old) = (
        gain(
            &mut Ffs::new(Bytes(SIZE.0 / 4), Variant::NoSwitch).expect("15 groups"),
            &mut Ffs::new(Bytes(SIZE.0 / 4), Variant::Baseline).expect("15 groups"),
        ),
        gain(&mut noswitch, &mut baseline),
    );
    let fragments = smartfrag.special().free_in_fragments / baseline.special().free_in_fragments;
    let figures = format!(
        "split {} and {}; gain {fresh:.2} empty and {old:.2} aged; free fragments {:.3} times; scores {:?}, {:?}",
        split(&baseline),
        split(&noswitch),
        fragments,
        baseline.layout().all.score,
        smartfrag.layout().all.score
    );
    eprintln!("{figures}");
    assert!(split(&noswitch) >= 1.7 * split(&baseline), "{figures}");
    assert!(fresh > 1.2 && old < fresh, "{figures}");
    assert!(fragments > 1.7, "{figures}");
    assert!(baseline.special().two_blocks_adjoin < smartfrag.special().two_blocks_adjoin, "{figures}");
}
