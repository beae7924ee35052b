//! Fuzz target of the texts of faults; see `ashlar_fuzz`.

use crate::lse::MODELS;
use crate::{Delay, Fault, KINDS, Lse, Medium, Operation, Range, Slow, What};
use ashlar_fuzz::{bounded, config, hostile};
use ashlar_units::Bytes;
use proptest::prelude::*;
use std::time::Duration;

fn chance() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1.0), (1e-12..1.0f64), (1..=1000u32).prop_map(|parts| f64::from(parts) / 1000.0)]
}

/// Up to what `parse` takes as a time.
fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..=3_153_600_000_000_000_000u64).prop_map(Duration::from_nanos),
        (0..10_000u64).prop_map(Duration::from_millis)
    ]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), (0..1u64 << 20, 0..5u32).prop_map(|(n, power)| n << (10 * power).min(40)), 0..100_000u64]
}

fn what() -> impl Strategy<Value = What> {
    let seed = || prop::option::of(any::<u64>());
    prop_oneof![
        Just(What::Lse(Lse::Range)),
        (chance(), 1..=1u64 << 20, seed()).prop_map(|(rate, burst, seed)| What::Lse(Lse::Rate { rate, burst, seed })),
        (0..MODELS.len(), seed()).prop_map(|(at, seed)| What::Lse(Lse::Model { name: MODELS[at].name, seed })),
        prop::sample::select(vec![
            What::ReadError,
            What::WriteError,
            What::Flip,
            What::LostWrite,
            What::Stale,
            What::DropFlush,
            What::Removed,
            What::ReadOnly
        ]),
        (1..1i64 << 50, any::<bool>())
            .prop_map(|(blocks, back)| What::Misdirect { by: if back { -blocks << 12 } else { blocks << 12 } }),
        prop::option::of(any::<u64>()).prop_map(|sectors| What::Torn { sectors }),
        time().prop_map(|time| What::Delay(Delay::Constant(time))),
        (time(), time()).prop_map(|(one, other)| What::Delay(Delay::Uniform(one.min(other), one.max(other)))),
        time().prop_map(|mean| What::Delay(Delay::Exponential(mean))),
        (time(), chance()).prop_map(|(median, sigma)| What::Delay(Delay::Lognormal(median, sigma * 10.0))),
        (1.0..=1e6f64).prop_map(|factor| What::Slow(Slow::Factor(factor))),
        bytes().prop_map(|rate| What::Slow(Slow::Rate(Bytes(rate.max(1))))),
        prop::option::of(time()).prop_map(|time| What::Stuck { time }),
        bytes().prop_map(|after| What::Full { after: Bytes(after) }),
        (4096..=1u64 << 30, any::<[bool; 3]>(), prop::option::of(any::<u64>())).prop_map(|(window, flags, after)| {
            let [small, ordered, whole] = flags;
            let atomic = Bytes(if small { 512 } else { 4096 });
            What::PowerCut(Medium { window: Bytes(window), atomic, ordered, whole, after })
        }),
    ]
}

fn range() -> impl Strategy<Value = Range> {
    (bytes(), prop::option::of(bytes())).prop_map(|(one, other)| match other {
        Some(other) if other != one => Range { start: one.min(other), end: Some(one.max(other)) },
        _ => Range { start: one, end: None },
    })
}

/// Any fault, with only the clauses that it can have.
fn fault() -> impl Strategy<Value = Fault> {
    let clauses = (chance(), prop::option::of(0..4usize), prop::option::of(range()), prop::option::of(1..=u64::MAX));
    (what(), clauses).prop_map(|(what, (p, on, at, times))| {
        let kind = KINDS.iter().find(|kind| kind.name == what.name()).expect("every fault is listed");
        let on = on.map(|on| Operation::ALL[on]);
        let mut fault = Fault {
            p: if kind.takes("p") { p } else { 1.0 },
            on: on.filter(|_| kind.takes("on")),
            at: at.filter(|_| kind.takes("at")),
            times: times.filter(|_| kind.takes("times")),
            what,
        };
        match &fault.what {
            What::Flip if !matches!(fault.on, Some(Operation::Read | Operation::Write)) => {
                fault.on = Some(Operation::Read);
            }
            What::Lse(Lse::Range) if fault.at.is_none() => fault.at = Some(Range { start: 0, end: None }),
            _ => {}
        }
        fault
    })
}

proptest! {
    #![proptest_config(config(4000))]

    #[test]
    fn faults(fault in fault(), hostile in hostile(fault().prop_map(|fault| fault.to_string().into_bytes())), words in "(lse|flip|delay|slow|stuck|power-cut|torn)( [a-z0-9.+-]{1,8}){0,6}") {
        let text = fault.to_string();
        prop_assert_eq!(&text.parse::<Fault>().map_err(|error| error.to_string()), &Ok(fault));
        for text in [&String::from_utf8_lossy(&hostile)[..], &words] {
            if let Ok(fault) = bounded(1 << 14, || text.parse::<Fault>()) {
                let printed = fault.to_string();
                prop_assert_eq!(printed.parse::<Fault>().map_err(|error| error.to_string()), Ok(fault), "{} became {}", text, printed);
            }
        }
    }
}
