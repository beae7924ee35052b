//! Fuzz target of descriptions of stacks; see `ashlar_fuzz`.

use crate::{CheckedSpec, EmulatedSpec, FaultySpec, JoinedSpec, MemorySpec, RaidSpec, SparseSpec, Spec, Stack};
use ashlar_env::sim::{Schedule, Sim};
use ashlar_fuzz::{bounded, config, hostile};
use proptest::prelude::*;
use std::path::Path;

/// Names are few, so that layers meet: also themselves.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[a-e]", 1 => ".{0,6}"]
}

const FAULTS: [&str; 5] =
    ["lse at 1MiB..", "lse model n-3 at 0..64KiB", "lse rate 1 burst 3 seed 4", "drop-flush p 0.5", "power-cut whole"];

fn spec() -> impl Strategy<Value = Spec> {
    let size = prop_oneof![4 => "[1-9]MiB", 1 => "[0-9.]{0,20}[A-Za-z]{0,4}"];
    prop_oneof![
        size.prop_map(|size| Spec::Memory(MemorySpec { size })),
        prop::collection::vec(name(), 0..4).prop_map(|of| Spec::Joined(JoinedSpec { of })),
        (prop::collection::vec(name(), 0..4), 0..9usize).prop_map(|(of, queue)| {
            Spec::Raid(RaidSpec { of, level: None, queue, verify: Default::default(), parity: Default::default() })
        }),
        name().prop_map(|of| Spec::Checked(CheckedSpec { of })),
        name().prop_map(|of| Spec::Sparse(SparseSpec { of })),
        (name(), prop_oneof![3 => Just("wd-re3".to_string()), 1 => "[a-z./]{0,9}"], any::<u64>())
            .prop_map(|(of, model, seed)| Spec::Emulated(EmulatedSpec { of, model, seed, state: None })),
        (name(), prop::sample::subsequence(&FAULTS[..], 0..4), any::<u64>()).prop_map(|(of, faults, seed)| {
            let faults = faults.into_iter().map(|fault| fault.parse().expect("a fault")).collect();
            Spec::Faulty(FaultySpec { of, faults, seed })
        }),
    ]
}

fn stack() -> impl Strategy<Value = Stack> {
    (prop::collection::vec(name(), 0..3), prop::collection::btree_map(name(), spec(), 0..6))
        .prop_map(|(devices, layer)| Stack { devices, layer })
}

fn text() -> impl Strategy<Value = String> {
    stack().prop_map(|stack| toml::to_string(&stack).expect("a stack can be written"))
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn stacks(stack in stack(), hostile in hostile(text().prop_map(String::into_bytes)), words in "[a-e\\[\\]=\".\n{} ]{0,200}") {
        let written = toml::to_string(&stack).expect("a stack can be written");
        prop_assert_eq!(&Stack::parse(&written).expect("valid"), &stack);
        let sim = Sim::new(0, Schedule::Fifo);
        for text in [&written[..], &String::from_utf8_lossy(&hostile), &words] {
            bounded(32 << 20, || {
                if let Ok(stack) = Stack::parse(text) {
                    // No file is opened: a simulation has none.
                    let env = sim.env();
                    let _ = sim.run(async move { stack.build(Path::new("/nowhere"), &env).await.map(drop) });
                }
            });
        }
    }
}
