//! Patterns that codes recover, counted one by one; and what bursts make of it.

use super::*;
use std::str::FromStr;

/// Patterns of `count` lost sectors that a code does not recover, and all of them.
fn uncorrectable(code: Code, count: usize) -> (u64, u64) {
    let segment = code.segment();
    let mut places: Vec<u32> = (0..count as u32).collect();
    let (mut bad, mut all) = (0, 0);
    loop {
        all += 1;
        bad += u64::from(code.unrecovered(&places) > 0);
        let Some(index) = (0..count).rev().find(|&index| places[index] < segment - (count - index) as u32) else {
            return (bad, all);
        };
        places[index] += 1;
        (index + 1..count).for_each(|next| places[next] = places[next - 1] + 1);
    }
}

#[test]
fn segments_of_cdp() {
    for (prime, data, parity) in [(5, 16, 8), (23, 484, 44)] {
        let code = Code::Cdp { prime };
        assert_eq!((code.data(), code.parity(), code.segment()), (data, parity, data + parity));
    }
}

#[test]
fn uncorrectable_patterns_are_as_many_as_enumeration_gave() {
    let of = |text: &str, counts: &[usize]| -> Vec<(u64, u64)> {
        let code = Code::from_str(text).expect("a code");
        counts.iter().map(|count| uncorrectable(code, *count)).collect()
    };
    assert_eq!(of("cdp:5", &[2, 3, 4]), [(0, 276), (16, 2024), (420, 10_626)]);
    assert_eq!(of("ipc:16+8", &[2, 3, 4]), [(24, 276), (512, 2024), (4956, 10_626)]);
    assert_eq!(of("mds:16+8", &[2, 3, 4]), [(0, 276), (0, 2024), (0, 10_626)]);
    assert_eq!(of("cdp:7", &[2, 3, 4]), [(0, 1128), (36, 17_296), (2025, 194_580)]);
    assert_eq!(of("ipc:36+12", &[2, 3, 4]), [(72, 1128), (3216, 17_296), (67_860, 194_580)]);
}

#[test]
fn cdp_recovers_any_two_columns_and_ipc_any_short_burst() {
    for prime in [3, 5, 7, 11, 13, 17, 19, 23] {
        let column = |column: u32| (column * (prime - 1)..(column + 1) * (prime - 1)).collect::<Vec<u32>>();
        for one in 0..=prime {
            for other in 0..one {
                assert_eq!(
                    Code::Cdp { prime }.unrecovered(&[column(one), column(other)].concat()),
                    0,
                    "{prime}: {one}, {other}"
                );
            }
        }
    }
    let code = Code::Ipc { data: 56, parity: 7 };
    for from in 0..code.segment() - 7 {
        assert_eq!(code.unrecovered(&(from..from + 7).collect::<Vec<u32>>()), 0);
        assert_eq!(
            code.unrecovered(&(from..from + 8).collect::<Vec<u32>>()),
            if from + 8 > code.segment() { 0 } else { 2 }
        );
    }
}

#[test]
fn peeling_does_all_that_algebra_could() {
    // GF(2): the lost sectors are determined if the columns of the parity equations that belong to them are independent.
    let prime = 5u32;
    let rows = prime - 1;
    let column = |place: u32| -> u32 {
        let (col, row) = (place / rows, place % rows);
        let diagonal = if col == prime { row } else { (row + col) % prime };
        u32::from(col < prime) << row | if diagonal < rows { 1 << (rows + diagonal) } else { 0 }
    };
    let independent = |lost: &[u32]| {
        let mut basis: Vec<u32> = Vec::new();
        lost.iter().all(|place| {
            let rest = basis.iter().fold(column(*place), |rest, base| rest.min(rest ^ base));
            basis.push(rest);
            rest != 0
        })
    };
    let mut chance = Chance::new(3);
    for _ in 0..20_000 {
        let count = 1 + chance.below(8) as usize;
        let mut lost: Vec<u32> = Vec::new();
        while lost.len() < count {
            let place = chance.below(24) as u32;
            if !lost.contains(&place) {
                lost.push(place);
            }
        }
        assert_eq!(Code::Cdp { prime }.unrecovered(&lost) == 0, independent(&lost), "{lost:?}");
    }
}

/// Parts of disks that lose something, over all models of drives: MDS, CDP, IPC, SPC with segments of one size.
fn losses(prime: u32, placing: Placing) -> [f64; 4] {
    let cdp = Code::Cdp { prime };
    let (data, parity) = (cdp.data(), cdp.parity());
    let codes = [Code::Mds { data, parity }, cdp, Code::Ipc { data, parity }, Code::Spc { data: data + parity - 1 }];
    let mut sums = [0.0; 4];
    for model in DRIVE_MODELS {
        let left = compare(&codes, model, placing, 1 << 30, 1500, 11);
        sums.iter_mut().zip(left).for_each(|(sum, left)| *sum += left.part() / DRIVE_MODELS.len() as f64);
    }
    sums
}

#[test]
fn bursts_rank_the_codes_and_their_absence_hides_it() {
    let gap = |prime| {
        let [mds, cdp, ipc, spc] = losses(prime, Placing::Clustered);
        assert!(mds <= cdp && cdp < ipc && ipc < spc, "{prime}: {mds} {cdp} {ipc} {spc}");
        ipc / cdp
    };
    let (small, large) = (gap(5), gap(11));
    assert!(large > small, "CDP gains on IPC with larger segments: {small}, {large}");
    // The negative control: bursts of geometric length anywhere, and IPC is as good as MDS.
    let [mds, cdp, ipc, spc] = losses(5, Placing::Independent);
    assert!(ipc - mds < 0.01, "{mds} {cdp} {ipc} {spc}");
    assert!(losses(5, Placing::Clustered)[2] - losses(5, Placing::Clustered)[0] > 0.03);
}

#[test]
fn what_is_no_code_is_refused() {
    for text in [
        "",
        "cdp:4",
        "cdp:67",
        "cdp:x",
        "spc:8+2",
        "ipc:10+4",
        "mds:0+1",
        "mds:8+0",
        "mds:4000000000+4000000000",
        "rs:8+2",
    ] {
        Code::from_str(text).expect_err(text);
    }
    for text in ["spc:8+1", "mds:16+2", "ipc:56+7", "cdp:23"] {
        assert_eq!(Code::from_str(text).expect("a code").to_string(), text);
    }
}
