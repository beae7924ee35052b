//! Typed faults: the pool returns no wrong data whatever is damaged, and the harness would see it if it did.

use ashlar_prove::typed::{Case, Fault, Matrix, Outcome, Target, Type, TypedOptions, Without, explore_typed};
use ashlar_vfs::Engine;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const SEED: u64 = 1;

fn explore(options: &TypedOptions) -> Matrix {
    let stop = Arc::new(AtomicBool::new(false));
    explore_typed(options, &stop, &mut |_| {}).unwrap_or_else(|error| panic!("seed {}: {error}", options.seed))
}

fn outcomes(matrix: &Matrix, of: Type) -> Vec<Outcome> {
    let cells = matrix.cells.iter().filter(|cell| cell.of == of.name());
    cells.flat_map(|cell| cell.counts.keys().copied()).collect()
}

#[test]
fn damage_on_the_disk_is_never_returned_as_data() {
    damage_is_never_returned(Engine::Files, &[Type::LeafMap], &[Outcome::Named]);
}

#[test]
fn nor_by_the_write_optimized_engine() {
    // Files of some kilobytes are not in blocks: what it writes over is more often all that was damaged, and snapshots alone
    // refer to no blocks.
    let lacking = [Type::LeafMap, Type::DataSnapshot];
    damage_is_never_returned(Engine::Betr, &lacking, &[Outcome::Named, Outcome::Repaired]);
}

/// `lacking`: types that the pool has not on its disk; `data`: what may become of data.
fn damage_is_never_returned(engine: Engine, lacking: &[Type], data: &[Outcome]) {
    let matrix = explore(&TypedOptions { engine, ..TypedOptions::new(Target::Pool, SEED) });
    // Nor is what bad memory changed.
    assert!(!matrix.is_bad(true), "{matrix}");
    // Every type that the pool has on its disk was damaged.
    for of in Type::of(Target::Pool).filter(|of| of.in_memory().is_none() && !lacking.contains(of)) {
        assert!(!outcomes(&matrix, of).is_empty(), "no {} was damaged: {matrix}", of.name());
    }
    // What has a copy is repaired, what is not in use is masked, and what has one copy is reported: table 2 of the paper for
    // two copies and for one. Its rows with all copies bad are errors; so are these.
    let all = |of: Type, allowed: &[Outcome]| {
        let found = outcomes(&matrix, of);
        assert!(found.iter().all(|outcome| allowed.contains(outcome)), "{}: {found:?}\n{matrix}", of.name());
    };
    all(Type::Superblock, &[Outcome::Repaired]);
    all(Type::SuperblockOld, &[Outcome::Masked]);
    all(Type::Free, &[Outcome::Masked]);
    all(Type::ParityOld, &[Outcome::Masked]);
    // Who reads nodes does not look at it, but a check does, unless all of them were replaced before.
    all(Type::Parity, &[Outcome::Masked, Outcome::Repaired]);
    assert!(outcomes(&matrix, Type::Parity).contains(&Outcome::Repaired), "{matrix}");
    // Parity puts index nodes right.
    for of in [Type::Catalog, Type::Interior, Type::LeafNames, Type::LeafBoth] {
        all(of, &[Outcome::Repaired]);
    }
    for of in [Type::DataRaw, Type::DataCompressed, Type::DataSnapshot] {
        all(of, data);
    }
}

#[test]
fn without_parity_index_nodes_are_lost_and_nothing_else() {
    let without = |of: Type| TypedOptions {
        without: Some(Without::Parity),
        of: Some(of),
        ..TypedOptions::new(Target::Pool, SEED)
    };
    let reported = [Outcome::Named, Outcome::Unnamed, Outcome::Refused];
    // A leaf takes its keys and nothing else, also where the log has changes for it.
    let named = [Outcome::Named];
    for (of, allowed) in [(Type::Catalog, &reported[2..]), (Type::Interior, &reported), (Type::LeafNames, &named)] {
        let matrix = explore(&without(of));
        let found = outcomes(&matrix, of);
        assert!(
            !found.is_empty() && found.iter().all(|outcome| allowed.contains(outcome)),
            "{of:?}: {found:?}\n{matrix}"
        );
    }
}

#[test]
fn without_checksums_wrong_data_show() {
    for fault in [Fault::BitFlip, Fault::Stale, Fault::Misdirected] {
        let options =
            TypedOptions { of: Some(Type::DataRaw), fault: Some(fault), ..TypedOptions::new(Target::Pool, SEED) };
        let sound = explore(&options);
        assert_eq!(outcomes(&sound, Type::DataRaw), [Outcome::Named], "{sound}");
        let broken = explore(&TypedOptions { without: Some(Without::Checksums), ..options });
        assert_eq!(outcomes(&broken, Type::DataRaw), [Outcome::Wrong], "{broken}");
        assert!(broken.is_bad(false));
        assert!(broken.examples[0].replay.contains("--without checksums"), "{broken}");
    }
}

#[test]
fn a_case_is_the_same_every_time() {
    let case = Case::named(Target::Pool, "data-compressed/random/3").expect("a case");
    let options = TypedOptions { case: Some(case), ..TypedOptions::new(Target::Pool, SEED) };
    let [first, second] = [explore(&options), explore(&options)];
    assert_eq!((first.cases, first.examples[0].said.clone()), (1, second.examples[0].said.clone()));
    assert!(!first.examples[0].said.is_empty(), "{first}");
    assert!(Case::named(Target::Pool, "data-compressed/random").is_err());
    assert!(Case::named(Target::Pool, "data/random/1").is_err(), "data is a type of ext4");
}

#[test]
fn bad_memory_is_neither_read_nor_written() {
    // Entries and messages are verified when they are looked at, nodes before they are written anew, and messages before they
    // become nodes.
    for of in [Type::CachedNode, Type::CachedPointer, Type::Memtable] {
        let written = (0..4).map(|number| (Fault::FlipWrite, number));
        for (fault, number) in written.chain([(Fault::FlipRead, 1), (Fault::FlipRead, 2), (Fault::FlipIdle, 1)]) {
            let case = Some(Case { of, fault, number });
            let matrix = explore(&TypedOptions { case, ..TypedOptions::new(Target::Pool, SEED) });
            let well = [Outcome::Masked, Outcome::Repaired];
            assert!(outcomes(&matrix, of).iter().all(|outcome| well.contains(outcome)), "{matrix}");
        }
    }
    let case = Some(Case { of: Type::UnwrittenData, fault: Fault::FlipRead, number: 0 });
    let matrix = explore(&TypedOptions { case, ..TypedOptions::new(Target::Pool, SEED) });
    assert_eq!(outcomes(&matrix, Type::UnwrittenData), [Outcome::Named], "{matrix}");
}

#[test]
fn ext4_returns_wrong_data_and_refuses_wrong_metadata() {
    let explore = |of: Type, number: u64| {
        let stop = Arc::new(AtomicBool::new(false));
        let case = Some(Case { of, fault: Fault::Random, number });
        let options = TypedOptions { case, ..TypedOptions::new(Target::Ext4, SEED) };
        explore_typed(&options, &stop, &mut |_| {})
    };
    match explore(Type::Ext4Data, 0) {
        // Only where tools or rights are missing: anything else is a failure.
        Err(obstacle) if obstacle.starts_with("there is no") || obstacle.contains("root") => {
            println!("SKIPPED: {obstacle}");
        }
        Err(error) => panic!("seed {SEED}: {error}"),
        Ok(matrix) => {
            assert_eq!(outcomes(&matrix, Type::Ext4Data), [Outcome::Wrong], "{matrix}");
            assert!(matrix.is_bad(false));
            let matrix = explore(Type::Ext4ExtentTree, 0).expect("it went before");
            assert_eq!(outcomes(&matrix, Type::Ext4ExtentTree), [Outcome::Named], "{matrix}");
        }
    }
}
