//! Sums that can be done by hand.

use super::*;

fn histogram(rows: &[(u64, u64)]) -> Histogram {
    let mut histogram = Histogram::default();
    rows.iter().for_each(|(size, count)| histogram.add(*size, *count));
    histogram
}

#[test]
fn a_thousand_tiny_files_take_what_their_bytes_take() {
    let packing = Packing { dead: 0.0, ..Packing::default() };
    let answer = packing.pack(&histogram(&[(100, 1000), (100_000, 1)]));
    // 25 blocks of data, 7 of table; the large file has 25 blocks, as before.
    assert_eq!((answer.before.blocks, answer.after.blocks), (1025.0, 32.0 + 25.0));
    assert_eq!((answer.before.inodes, answer.after.inodes), (1001.0, 2.0));
    assert_eq!((answer.before.put_requests, answer.after.put_requests), (1001.0, 2.0));
    assert_eq!(answer.before.put_dollars, 1.001 * 0.005);
    assert_eq!(answer.composites, 1.0);
}

#[test]
fn a_group_is_one_inode_and_one_table() {
    // Section 6, check 5: 32 files, of which a cold read fetches one inode and one table instead of 32 inodes.
    let packing = Packing { dead: 0.0, files: 32.0, ..Packing::default() };
    let answer = packing.pack(&histogram(&[(4096, 32)]));
    assert_eq!(
        (answer.before.inodes, answer.after.inodes, answer.after.blocks - answer.before.blocks),
        (32.0, 1.0, 1.0)
    );
}

#[test]
fn what_cannot_be_packed_stays() {
    let large = histogram(&[(1 << 20, 7)]);
    let answer = Packing::default().pack(&large);
    assert_eq!((answer.before, answer.composites), (answer.after, 0.0));
    // Empty files have an inode and a request, and no block.
    let empty = Packing::default().pack(&histogram(&[(0, 1_000_000)]));
    assert_eq!((empty.before.blocks, empty.before.inodes, empty.composites), (0.0, 1e6, 1000.0));
    // A sparse file of 20 TB is one file.
    assert_eq!(Packing::default().pack(&histogram(&[(20 << 40, 1)])).after.inodes, 1.0);
}

#[test]
fn histograms_are_read_or_refused_with_their_row() {
    assert_eq!(Histogram::read("size count\n10 2\n\n10,3\n7\t1\n".as_bytes()), Ok(histogram(&[(10, 5), (7, 1)])));
    for (bad, expected) in [
        ("", "no files"),
        ("10 2\nx 3\n", "row 2"),
        ("10\n", "row 1"),
        ("1 2 3\n", "row 1"),
        ("-1 2\n", "row 1"),
        ("-5 1\n4096 10\n", "row 1"),
        ("1e300 1\n", "row 1"),
        ("size count\n", "no files"),
        ("1 1\n-1 2\n", "row 2"),
        ("1 99999999999999999999\n", "row 1"),
    ] {
        let refused = Histogram::read(bad.as_bytes()).expect_err(expected);
        assert!(refused.0.contains(expected), "{refused}");
    }
}

#[test]
fn estimates_hold_their_value_and_refuse_nonsense() {
    let sizes = histogram(&[(300, 10_000), (5000, 3000), (200_000, 100)]);
    let done = estimate("test", &sizes, &Packing::default()).expect("estimated");
    for one in &done.predictions {
        assert!(one.low <= one.value && one.value <= one.high);
    }
    assert!(done.answer.after.blocks < done.answer.before.blocks && !done.dominant_assumption.is_empty());
    assert!(figure(&done).svg().contains("before"));
    for bad in [
        Packing { block: 0.0, ..Packing::default() },
        Packing { dead: 0.9, ..Packing::default() },
        Packing { small: f64::NAN, ..Packing::default() },
    ] {
        estimate("test", &sizes, &bad).expect_err("nonsense");
    }
}
