//! The values of the paper.

use super::*;

#[track_caller]
fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} and not {expected}");
}

fn device(translation: Translation) -> Device {
    Device {
        translation,
        capacity: 64e9,
        spare: 0.07,
        page: 4096.0,
        pages: 64.0,
        zones: 4.0,
        cycles: 3000.0,
        cycles_deviation: 0.1,
        cycles_from: "a test".into(),
        written_per_day: 20e9,
        random: 1.0,
        seed: 1,
    }
}

/// A ring of blocks, erased one after another, without arithmetic.
fn ring(limits: &[u64]) -> u64 {
    let mut list: std::collections::VecDeque<(u64, u64)> = limits.iter().map(|limit| (*limit, 0)).collect();
    let mut writes = 0;
    while list.len() > 1 {
        let Some((limit, erased)) = list.pop_front() else { break };
        writes += 1;
        if erased + 1 < limit {
            list.push_back((limit, erased + 1));
        }
    }
    writes
}

#[test]
fn one_address_dies_after_the_free_list_went_round() {
    assert_eq!(rotation(&[1000; 7]), 6999);
    let mut chance = Chance::new(1);
    for _ in 0..200 {
        let limits: Vec<u64> = (0..2 + chance.below(7)).map(|_| 1 + chance.below(30)).collect();
        assert_eq!(rotation(&limits), ring(&limits), "{limits:?}");
    }
}

#[test]
fn order_saves_seeks_and_erasures_as_in_figure_14() {
    let tracks =
        |from: u64, order: &[u64]| order.iter().fold((from, 0), |(at, sum), next| (*next, sum + at.abs_diff(*next))).1;
    let requests = [70, 10, 50].repeat(4);
    assert_eq!(tracks(35, &requests), 495);
    // The elevator goes up first, and then down.
    let mut up = requests.clone();
    up.sort_unstable_by_key(|track| (*track < 35, *track));
    assert_eq!(tracks(35, &up), 95);
    let writes = [70, 10, 50, 70, 10, 50];
    assert_eq!(erasures(&writes, 2), 4);
    assert_eq!(grouped(&writes), [70, 70, 10, 10, 50, 50]);
    assert_eq!(erasures(&grouped(&writes), 2), 1);
}

#[test]
fn devices_of_table_5() {
    // (blocks of a zone, free, pages, cycles) as capacity and spare.
    let of = |translation, zone: f64, free: f64, pages: f64, cycles: f64| {
        let (page, spare) = (4096.0, free / zone);
        let capacity = zone * (1.0 - spare) * page * pages;
        let device = Device {
            translation,
            capacity,
            spare,
            page,
            pages,
            zones: 1.0,
            cycles,
            random: 0.0,
            ..device(translation)
        };
        let (low, high, _) = device.writes();
        (low, high)
    };
    let (low, high) = of(Translation::Generic, 256.0, 6.0, 32.0, 1e7);
    near(low / 6e7, 1.0, 1e-9);
    near(high / 6e7, 1.0, 1e-9);
    let (low, high) = of(Translation::LogBlock, 2048.0, 30.0, 64.0, 1e6);
    near(low / 3e7, 1.0, 1e-9);
    near(high / 1.92e9, 1.0, 1e-9);
    let (low, _) = of(Translation::Levelled, 1024.0, 4.0, 64.0, 1e6);
    near(low / 6.5536e10, 1.0, 1e-9);
}

#[test]
fn a_log_block_device_dies_between_its_bounds() {
    // 63 updates of one page, then data and log are merged into a free block and both erased.
    let (free, cycles) = (30usize, 1000u64);
    let mut list: std::collections::VecDeque<u64> = vec![0; free].into();
    let mut writes = 0u64;
    let (mut data, mut log) = (0, 0);
    let mut worn = 0;
    while worn < free {
        let Some(next) = list.pop_front() else { break };
        writes += 63;
        for erased in [&mut data, &mut log] {
            *erased += 1;
        }
        let old = [data, log];
        data = next;
        for erased in old {
            if erased < cycles { list.push_back(erased) } else { worn += 1 }
        }
        let Some(next) = list.pop_front() else { break };
        log = next;
    }
    let (low, high) = predict(Wear::LogBlock, free as f64, 64.0, cycles as f64, 2048.0);
    assert!(low < writes as f64 && (writes as f64) < high, "{low} {writes} {high}");
}

#[test]
fn chips_are_drawn_within_what_was_seen() {
    let mut chance = Chance::new(1);
    for chip in CHIPS {
        let drawn: Vec<f64> = (0..2000).map(|_| chip.sample(&mut chance)).collect();
        assert!(drawn.iter().all(|cycles| chip.least <= *cycles && *cycles <= chip.most), "{}", chip.name);
        near(drawn.iter().sum::<f64>() / 2000.0 / chip.mean, 1.0, 0.12);
        assert_eq!(Chip::find(chip.name), Some(chip));
    }
}

#[test]
fn estimates_follow_spare_flash_and_randomness() {
    let years = |change: &dyn Fn(&mut Device)| {
        let mut device = device(Translation::Page);
        change(&mut device);
        estimate(&device).expect("estimated").answer.years
    };
    let base = years(&|_| ());
    assert!(years(&|d| d.spare = 0.28) > 2.0 * base && years(&|d| d.random = 0.0) > 3.0 * base);
    near(years(&|d| d.written_per_day *= 2.0) / base, 0.5, 1e-9);
    for (translation, _) in Translation::ALL {
        let device = device(translation);
        let done = estimate(&device).expect("estimated");
        let predicted = &done.predictions[0];
        assert!(predicted.low <= predicted.value && predicted.value <= predicted.high);
        assert!(!done.dominant_assumption.is_empty() && figure(&done, &device).svg().contains("modelled"));
    }
    for bad in [
        Device { cycles: 0.0, ..device(Translation::Page) },
        Device { spare: 1.0, ..device(Translation::Page) },
        Device { capacity: f64::NAN, ..device(Translation::Page) },
    ] {
        estimate(&bad).expect_err("nonsense");
    }
}

/// Physical writes by logical ones of random writes to `blocks` blocks of `pages` pages, of which a part `free` holds no
/// data, when the block with the fewest valid pages is always cleaned; in the long run.
fn greedy_in_steps(blocks: usize, pages: usize, free: f64, seed: u64) -> f64 {
    let logical = (blocks as f64 * pages as f64 * (1.0 - free)) as usize;
    let mut chance = Chance::new(seed);
    let mut place = vec![usize::MAX; logical];
    let mut owner = vec![usize::MAX; blocks * pages];
    let mut valid = vec![0usize; blocks];
    let mut empty: Vec<usize> = (0..blocks).collect();
    let (mut open, mut at) = (empty.pop().expect("a block"), 0);
    let (mut given, mut moved) = (0u64, 0u64);
    let long = 12 * logical;
    for step in 0..logical + long {
        // All pages once in order, then random ones; counted is the second half.
        let page = if step < logical { step } else { chance.below(logical as u64) as usize };
        let counts = step >= logical + long / 2;
        given += u64::from(counts);
        let mut queue = vec![page];
        while let Some(page) = queue.pop() {
            if at == pages {
                if empty.len() <= 1 {
                    let full = (0..blocks).filter(|block| *block != open && !empty.contains(block));
                    let victim = full.min_by_key(|block| valid[*block]).expect("a block");
                    // What is valid there moves, the page that is waiting comes last.
                    let live: Vec<usize> = owner[victim * pages..(victim + 1) * pages].to_vec();
                    let live: Vec<usize> = live.into_iter().filter(|page| *page != usize::MAX).collect();
                    owner[victim * pages..(victim + 1) * pages].fill(usize::MAX);
                    live.iter().for_each(|page| place[*page] = usize::MAX);
                    valid[victim] = 0;
                    empty.insert(0, victim);
                    moved += if counts { live.len() as u64 } else { 0 };
                    queue.push(page);
                    let live = live.into_iter().filter(|other| *other != page);
                    queue.extend(live);
                    open = empty.pop().expect("one was cleaned");
                    at = 0;
                    continue;
                }
                (open, at) = (empty.pop().expect("there are some"), 0);
            }
            let old = place[page];
            if old != usize::MAX {
                owner[old] = usize::MAX;
                valid[old / pages] -= 1;
            }
            place[page] = open * pages + at;
            owner[open * pages + at] = page;
            valid[open] += 1;
            at += 1;
        }
    }
    (given + moved) as f64 / given as f64
}

/// The digest's own runs: 6.4, 7.0, 7.4 for 32, 64, 128 pages at 6.7 % free, and 2.53 for 32 at 20 %; for large blocks the
/// formula, 7.6 and 2.69.
#[test]
fn greedy_cleaning_by_pages_of_a_block() {
    for (pages, free, expected) in [(32, 0.067, 6.4), (64, 0.067, 7.0), (128, 0.067, 7.4), (32, 0.20, 2.53)] {
        // Fewer blocks than the digest's 1024 say the same; one block in 256 is kept empty, which is space too.
        let found = greedy_in_steps(256, pages, free + 1.0 / 256.0, 1);
        near(found, expected, 0.06 * expected);
        let formula = ashlar_models::endurance::greedy_amplification(free);
        assert!(found < formula * 1.02, "{pages} pages: {found}, and {formula} for large blocks");
        near(greedy_amplification_of_blocks(pages as u32, free), found, 0.05 * found);
    }
    for (pages, free) in [(1, 0.07), (2, 0.07), (4, 0.2), (8, 0.07)] {
        let found = greedy_in_steps(512, pages, free + 1.0 / 512.0, 1);
        near(greedy_amplification_of_blocks(pages as u32, free), found, 0.05 * found);
    }
}

#[test]
fn pages_of_a_block_matter_to_cleaning() {
    let of = |pages| estimate(&Device { pages, ..device(Translation::Page) }).expect("it is sound").answer;
    let years = [1.0, 2.0, 32.0, 128.0].map(|pages| of(pages).years);
    assert!(years.is_sorted_by(|few, more| few > more), "{years:?}");
    assert_eq!(of(1.0).amplification, Some(1.0));
    near(of(32.0).amplification.expect("of pages"), 6.06, 0.01);
}
