//! Acceptance checks of the simulator.

use super::bimodal::{Emit, bigs, breaking_apart, k_fixed};
use super::*;
use crate::chunk::{digest, gear};
use crate::sample::mix;
use ashlar_fuzz::incompressible;

/// Smalls of one byte each, named by numbers.
fn named(names: impl IntoIterator<Item = u64>) -> Vec<Small> {
    names.into_iter().map(|name| Small::new(mix(1, name), 1, 0)).collect()
}

fn lengths(smalls: &[Small], store: &mut Store, scheme: impl Fn(&mut Emit)) -> Vec<usize> {
    let mut emit = Emit::new(smalls, store);
    emit.keep = true;
    scheme(&mut emit);
    assert_eq!(emit.runs.concat_len(), smalls.len(), "everything is emitted once, in order");
    emit.runs.iter().map(std::ops::Range::len).collect()
}

trait ConcatLen {
    fn concat_len(&self) -> usize;
}
impl ConcatLen for Vec<std::ops::Range<usize>> {
    fn concat_len(&self) -> usize {
        let mut at = 0;
        for run in self {
            assert_eq!(run.start, at);
            at = run.end;
        }
        at
    }
}

/// Check 1: D N N N N D gives big, small, big, big, small, big; with the cuts of figure 2, chunks 2 to 6 and 9 to 11 are
/// small of 12.
#[test]
fn breaking_apart_of_figure_2() {
    let smalls = named(0..24);
    // Big chunks of 4, 5, 4, 4, 3 and 4 smalls.
    let mut begin = 0;
    let bigs: Vec<_> = [4, 5, 4, 4, 3, 4]
        .into_iter()
        .map(|len| {
            begin += len;
            begin - len..begin
        })
        .collect();
    let mut store = Store::new(0.0, 0);
    store.emit(&smalls[bigs[0].clone()]);
    store.emit(&smalls[bigs[5].clone()]);
    let lengths = lengths(&smalls, &mut store, |emit| breaking_apart(&bigs, emit));
    assert_eq!(lengths, [4, 1, 1, 1, 1, 1, 4, 4, 1, 1, 1, 4]);
    assert_eq!(store.queries, 6, "one question for each big chunk");
}

/// Check 2: k = 3, duplicates at small positions 0 and 13, new ones between.
#[test]
fn k_fixed_of_figures_3_and_4() {
    let smalls = named(0..16);
    let store = || {
        let mut store = Store::new(0.0, 0);
        store.emit(&smalls[0..3]);
        store.emit(&smalls[13..16]);
        store
    };
    let extended = lengths(&smalls, &mut store(), |emit| k_fixed(16, 3, true, emit));
    assert_eq!(extended, [3, 1, 1, 1, 3, 1, 1, 1, 1, 3]);
    let minimal = lengths(&smalls, &mut store(), |emit| k_fixed(16, 3, false, emit));
    assert_eq!(minimal, [3, 1, 1, 1, 3, 3, 1, 3]);
}

/// Check 3: table 1 with 800 bytes of metadata for each chunk.
#[test]
fn metadata_of_table_1() {
    let rows = [
        (4952.0, 4.68, 13742.0, 4.59, 4.029, 4.337),
        (6184.0, 4.14, 15225.0, 4.05, 3.666, 3.848),
        (6921.0, 3.51, 16804.0, 3.52, 3.146, 3.360),
        (7525.0, 3.23, 17265.0, 2.95, 2.920, 2.819),
    ];
    for (mean, der, bimodal_mean, bimodal_der, expected, bimodal_expected) in rows {
        assert!((effective(der, mean, 800.0) - expected).abs() < 5e-4);
        assert!((effective(bimodal_der, bimodal_mean, 800.0) - bimodal_expected).abs() < 5e-4);
    }
}

fn pieces(bytes: &[u8]) -> Vec<Small> {
    let mut at = 0;
    let cuts = gear::pieces(bytes).into_iter();
    cuts.map(|(len, level)| {
        at += len;
        Small::new(digest(&bytes[at - len..at]), len as u32, level)
    })
    .collect()
}

/// Check 4: with 1:2:3, e^-2 = 13.5 % of chunks reach the longest length without a cut of their level, e^-4 = 1.83 % also
/// without one of the level below. (Pieces have a least length, which takes 3 % of the places away.)
#[test]
fn backups_are_rarely_missing() {
    let chunks = smalls(&pieces(&incompressible(1, 48 << 20)), 13);
    let part = |level: u32| chunks.iter().filter(|chunk| chunk.level < level).count() as f64 / chunks.len() as f64;
    assert!((0.125..0.155).contains(&part(13)), "{}", part(13));
    assert!((0.012..0.028).contains(&part(12)), "{}", part(12));
    // With two backup levels 0.034 %: of some 4000 chunks one or two, so this is a bound from above only.
    assert!(part(11) < 0.0015, "{}", part(11));
}

/// Full backups of a tree: each changes a few places of the one before.
fn backups(count: usize, edits: u64) -> Vec<Version> {
    let mut bytes = incompressible(7, 4 << 20);
    let mut chance = Chance::new(8);
    (0..count)
        .map(|_| {
            for _ in 0..edits {
                let at = chance.below(bytes.len() as u64 - 10_000) as usize;
                let new = incompressible(chance.below(u64::MAX), 200 + chance.below(4000) as usize);
                let old = chance.below(4000) as usize;
                bytes.splice(at..at + old, new);
            }
            Version { name: String::new(), pieces: pieces(&bytes), blocks: Vec::new() }
        })
        .collect()
}

/// Check 5: questions. Check 10: a stream without repeats, chunked a second time, stores nothing.
#[test]
fn questions_are_few_and_nothing_is_stored_twice() {
    for version in backups(3, 5) {
        let smalls = smalls(&version.pieces, 11);
        let count = smalls.len() as u64;
        for k in [2, 4, 8] {
            let bigs = bigs(&smalls, k);
            for (scheme, most) in [(0, bigs.len() as u64), (1, count), (2, k as u64 * count)] {
                let mut store = Store::new(0.0, 0);
                replay(scheme, &smalls, k, &mut store);
                assert!(store.queries <= most, "scheme {scheme}, k {k}: {} of {most}", store.queries);
                assert!(scheme != 0 || store.queries == most);
                let stored = store.stored;
                assert_eq!(stored, smalls.iter().map(|small| u64::from(small.len)).sum::<u64>());
                replay(scheme, &smalls, k, &mut store);
                assert_eq!(store.stored, stored, "scheme {scheme}, k {k}");
            }
        }
    }
}

/// Check 6: at matched ratio the mean chunk is at least twice that of the baseline. Check 9: the oracle stores the same
/// bytes in fewer chunks, and bimodal lies between. Check 8: wrong answers cost.
#[test]
fn backups_pay_for_two_sizes() {
    let versions = backups(10, 6);
    let setting = Setting { metadata: 800, k: 8, seed: 1 };
    let found = compare(&versions, &setting);
    let row = |scheme: &str| found.rows.iter().find(|row| row.scheme == scheme).expect(scheme);
    let (small, oracle, bimodal) =
        (row("small alone over 4 KiB"), row("oracle over 4 KiB"), row("k-fixed k=8 over 4 KiB"));
    assert_eq!(small.ratio, oracle.ratio, "to the digit");
    assert!(oracle.mean_chunk_bytes > 5.0 * small.mean_chunk_bytes);
    // The baseline with the same ratio, between two of its sizes.
    let baseline: Vec<_> = found.rows.iter().filter(|row| row.scheme.starts_with("cdc:")).collect();
    let above = baseline.iter().find(|row| row.ratio >= bimodal.ratio).expect("large chunks are worse");
    assert!(bimodal.mean_chunk_bytes > 2.0 * small.mean_chunk_bytes, "{bimodal:?} {small:?}");
    assert!(bimodal.mean_chunk_bytes < oracle.mean_chunk_bytes);
    assert!(bimodal.ratio_with_metadata < above.ratio_with_metadata * 1.02, "{bimodal:?} {above:?}");
    let wrong: Vec<f64> = found.false_positives.iter().map(|point| point.1).collect();
    assert!(wrong[4] > wrong[0] && wrong.is_sorted(), "{wrong:?}");
}

/// What lz4 leaves of chunks of all lengths is what it leaves of their bytes, on data that compress by more the longer chunks are, with
/// stretches that do not compress.
#[test]
fn lz4_of_chunks_is_known_from_blocks() {
    let mut chance = Chance::new(5);
    let words: Vec<Vec<u8>> = (0..3000).map(|word| incompressible(word, 3 + chance.below(9) as usize)).collect();
    let mut bytes = Vec::new();
    while bytes.len() < 6 << 20 {
        // A paragraph has words of its own; some are pictures.
        let first = chance.below(2500);
        for _ in 0..chance.below(3000) {
            bytes.extend_from_slice(&words[(first + chance.below(500).min(chance.below(500))) as usize]);
        }
        if chance.below(10) == 0 {
            bytes.extend(incompressible(chance.below(u64::MAX), 30_000));
        }
    }
    let mut pieces = pieces(&bytes);
    let mut packing = packed::Packing::new();
    bytes.chunks(70_001).for_each(|part| packing.add(part));
    packing.finish([&mut pieces, &mut []]);
    let (mut last, mut buffer) = (1.0, vec![0; 2 << 20]);
    for power in [13, 14, 15, 16, 17, 18] {
        let (mut at, mut modelled, mut measured) = (0, 0.0, 0);
        for chunk in cut(&pieces, Params::fast(1 << power)) {
            let len = chunk.len as usize;
            let packed = lz4_flex::block::compress_into(&bytes[at..at + len], &mut buffer).expect("room");
            measured += packed.min(len);
            modelled += packed_bytes(len as u64, len as f64, &chunk.packed);
            at += len;
        }
        assert_eq!(at, bytes.len());
        let ratio = modelled / measured as f64;
        assert!((0.98..1.02).contains(&ratio), "{} KiB: {ratio}", 1 << (power - 10));
        let share = modelled / bytes.len() as f64;
        assert!(share < last, "longer chunks compress better: {share} {last}");
        last = share;
    }
}
