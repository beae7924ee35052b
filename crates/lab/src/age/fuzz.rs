//! Fuzz target of where a run is.

use super::Point;
use super::state::State;
use ashlar_fuzz::{bounded, config, edits, noise};
use proptest::prelude::*;
use std::path::PathBuf;

/// A directory for a run, removed at the end.
struct Home(PathBuf);

impl Home {
    fn new() -> Home {
        Home(std::env::temp_dir().join(format!("ashlar-age-fuzz-{}", std::process::id())))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

proptest! {
    #![proptest_config(config(60))]

    /// What was noted is there again, up to the position; whatever becomes of a file, it is a state or an error.
    #[test]
    fn states(
        records in prop::collection::vec((0u64..100, any::<u64>()), 0..20),
        position in 0u64..100,
        file in prop::sample::select(vec!["run.json", "position", "refused", "points.jsonl"]),
        edits in edits(),
        noise in noise(2000),
    ) {
        let home = Home::new();
        let mut state = State::begin(&home.0, "this").expect("a fresh directory");
        for (record, operation) in &records {
            state.refuse(*record, *operation).expect("room");
            state.add_point(&Point { record: *record, ..Point::default() }).expect("room");
        }
        state.advance(position).expect("room");
        let mut again = State::resume(&home.0, "this").expect("it was begun");
        prop_assert_eq!(again.position(), position);
        let refused = records.iter().filter(|(record, _)| *record < position).map(|(_, operation)| *operation);
        prop_assert_eq!(again.take_refused(), refused.collect());
        let points: Vec<u64> = again.take_points().iter().map(|point| point.record).collect();
        let expected: Vec<u64> = records.iter().map(|(record, _)| *record).filter(|record| *record <= position).collect();
        prop_assert_eq!(points, expected);

        let path = home.0.join(file);
        let mut bytes = std::fs::read(&path).expect("it was begun");
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            std::fs::write(&path, bytes).expect("room");
            bounded(1 << 20, || drop(State::resume(&home.0, "this")));
        }
    }
}
