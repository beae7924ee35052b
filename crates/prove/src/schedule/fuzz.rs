//! Fuzz target of traces of executions; see `ashlar_fuzz`.

use super::{ScheduleOptions, ScheduleTrace, Scheduler, explore_schedules};
use ashlar_fuzz::{bounded, config, hostile};
use proptest::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// A trace that was found.
fn valid() -> &'static ScheduleTrace {
    static FOUND: OnceLock<ScheduleTrace> = OnceLock::new();
    FOUND.get_or_init(|| {
        let options = ScheduleOptions::new("replication", Scheduler::Random).expect("it is there");
        let options = ScheduleOptions { bug: Some("same-node-twice"), ..options };
        let outcome = explore_schedules(&options, &AtomicBool::new(false), &mut |_| {}).expect("it repeats");
        outcome.violation.expect("a bug").trace
    })
}

fn text() -> Vec<u8> {
    valid().encode().expect("a trace can be written").into_bytes()
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn traces(
        hostile in hostile(Just(()).prop_map(|()| text())),
        at in any::<prop::sample::Index>(), choice in any::<(u32, u32, u32)>(), steps_max in 0..100_000u64,
    ) {
        let read = ScheduleTrace::decode(&text()).expect("valid");
        let replayed = read.replay().expect("known");
        prop_assert_eq!(replayed.message.as_deref(), Some(valid().message()));
        // Choices that were never made, in a file that is well made: the run is another one, or none.
        let mut forged: serde_json::Value = serde_json::from_slice(&text()).expect("JSON");
        let count = forged["choices"].as_array().map_or(1, Vec::len);
        forged["choices"][at.index(count)] = serde_json::json!([choice.0, choice.1, choice.2]);
        forged["steps_max"] = steps_max.into();
        for text in [hostile, forged.to_string().into_bytes()] {
            bounded(64 << 20, || {
                if let Ok(trace) = ScheduleTrace::decode(&text) {
                    let _ = trace.replay();
                }
            });
        }
    }
}
