//! What recipes promise.

use super::age_target::AgeTarget;
use super::profile::Profile;
use super::streams::Streams;
use super::*;
use crate::history::stats::{Closing, Stats, blocks};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

const CAPACITY: u64 = 1 << 30;

fn common(sizes: Sizes) -> Common {
    Common { capacity: CAPACITY, sizes, directories: 50, sync_share: 0.1, write_unit: 0, seed: 3 }
}

/// The history of a recipe, and the most bytes in use in each hundredth of it.
fn history(run: impl FnOnce(&mut Builder) -> io::Result<()>) -> (Vec<Record>, Closing) {
    let mut builder = Builder::new(64 << 20, &std::env::temp_dir());
    run(&mut builder).expect("no interruption");
    let mut records = Vec::new();
    let done = builder.ordered(&AtomicBool::new(false), |record| {
        records.push(record);
        Ok(())
    });
    let (closing, tidied) = done.expect("no interruption");
    assert_eq!(tidied.dropped, 0);
    (records, closing)
}

static NEVER: AtomicBool = AtomicBool::new(false);

#[test]
fn sizes_have_their_means() {
    let mut chance = Chance::new(1);
    for (text, mean, tolerance) in [
        ("agrawal", 26_290_408.0 / 230.0, 0.03),
        ("synwrite", 0.8 * 524_288.0 + 0.2 * 264_192.0, 0.01),
        ("even:100-200", 150.0, 0.01),
        ("gamma:32KiB,1.5", 32_768.0, 0.02),
        ("gamma:256KiB,0.5", 262_144.0, 0.03),
        ("lognormal:4KiB,1.8", 4096.0 * 1.62f64.exp(), 0.1),
    ] {
        let sizes: Sizes = text.parse().expect("a distribution");
        assert_eq!(sizes.to_string().parse::<Sizes>().expect("what is shown can be read"), sizes);
        let found = (0..100_000).map(|_| sizes.draw(&mut chance) as f64).sum::<f64>() / 1e5;
        assert!((found / mean - 1.0).abs() < tolerance, "{text}: {found}");
    }
    for wrong in ["", "even:", "even:9-3", "gamma:1KiB", "gamma:1KiB,0", "gamma:0,1", "zipf:1", "even:1-1e99"] {
        wrong.parse::<Sizes>().expect_err(wrong);
    }
}

#[test]
fn a_profile_follows_its_curve() {
    let utilization = vec![(10.0, 0.2), (30.0, 0.7), (40.0, 0.5)];
    let profile = Profile {
        common: common(Sizes::Agrawal),
        days: 40,
        utilization,
        turnover: 0.1,
        short_lived: 0.6,
        short_sizes: Sizes::Agrawal,
    };
    let (records, closing) = history(|builder| profile.run(builder, &NEVER, &|_| {}));
    let mut stats = Stats::default();
    let mut by_day = [0.0; 42];
    for record in &records {
        stats.add(record);
        let day = (record.at_ns / 86_400_000_000_000) as usize;
        by_day[day.min(41)] = stats.live_bytes() as f64 / CAPACITY as f64;
    }
    for (day, wanted) in [(9, 0.2), (19, 0.45), (29, 0.7), (39, 0.5)] {
        assert!((by_day[day] - wanted).abs() < 0.05, "day {day}: {} instead of {wanted}", by_day[day]);
    }
    let short: u64 = closing.lifetimes[..4].iter().map(|(_, files)| files).sum();
    let share = short as f64 / closing.created as f64;
    assert!((0.5..0.75).contains(&share), "{share} of the files lived for less than a day");
    let (again, _) = history(|builder| profile.run(builder, &NEVER, &|_| {}));
    assert!(again == records, "one seed, one history");
}

#[test]
fn two_streams_reach_the_target_and_burst() {
    let streams = Streams {
        common: common(Sizes::SynWrite),
        target: 0.2,
        transformations: 10_000,
        intensity: 2.0,
        burst_peak: 20.0 / 29.0,
        bursts: 3,
        temporal_max: 512 << 10,
    };
    let (_, closing) = history(|builder| streams.run(builder, &NEVER, &|_| {}));
    let share = |bytes: u64| bytes as f64 / CAPACITY as f64;
    assert!((0.17..0.23).contains(&share(closing.live_bytes)), "{closing:?}");
    assert!((0.62..0.74).contains(&share(closing.peak_bytes)), "{closing:?}");
    assert!((29_000..32_000).contains(&(closing.created + closing.deleted)), "{closing:?}");
}

#[test]
fn ages_become_what_is_wanted() {
    let target = AgeTarget {
        common: common(Sizes::Even(1 << 16, 1 << 18)),
        utilization: 0.6,
        ages: vec![0.4, 0.3, 0.2, 0.1],
        tolerance: 0.03,
        rounds: 20.0,
    };
    let mut ended = None;
    let (records, closing) = history(|builder| {
        ended = Some(target.run(builder, &NEVER, &|_| {})?);
        Ok(())
    });
    assert!(ended.is_some_and(|ended| ended.distance <= 0.03), "{ended:?}");
    assert!((closing.live_bytes as f64 / CAPACITY as f64 - 0.6).abs() < 0.03);
    let mut live = HashMap::new();
    for record in &records {
        match record.act {
            Act::Create { size, .. } => drop(live.insert(record.id, (record.at_ns, blocks(size)))),
            Act::Delete => drop(live.remove(&record.id)),
            _ => {}
        }
    }
    let young = live.values().filter(|(made, _)| (closing.span_ns - made) * 4 < closing.span_ns).count();
    assert!((young as f64 / live.len() as f64 - 0.4).abs() < 0.05, "{young} of {}", live.len());
    let wrong = AgeTarget { ages: vec![0.0], ..target };
    assert!(wrong.run(&mut Builder::new(0, &std::env::temp_dir()), &NEVER, &|_| {}).is_err());
}
