//! Fuzz target of vectors.

use super::{Family, PROBABILITIES, Source, Value, Vector};
use ashlar_fuzz::{bounded, config, edits, noise};
use proptest::prelude::*;

fn vector() -> impl Strategy<Value = Vector> {
    let families: Vec<Family> = Family::all().collect();
    let value = (any::<bool>(), 1.0..1e6f64, 0.0..10.0f64, 0..1000u64);
    let entry = (prop::sample::select(families), 0..1u64 << 20, value);
    prop::collection::vec(entry, 1..40).prop_map(|entries| {
        let mut vector = Vector { name: "a b".into(), source: Source::Emulated, ..Vector::default() };
        vector.notes.push("one".into());
        for (family, size, (with, mean, error, count)) in entries {
            let quantiles = with.then(|| PROBABILITIES.map(|p| p * mean).map(|value| value.max(1.0)));
            let size = if family.described().sized { size } else { 0 };
            vector.set(family, size, Value { mean, error, count, quantiles });
        }
        vector
    })
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn vectors(vector in vector(), edits in edits(), noise in noise(600)) {
        let mut bytes = vector.to_string().into_bytes();
        prop_assert_eq!(Vector::read(bytes.as_slice()), Ok(vector));
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            if let Ok(vector) = bounded(1 << 20, || Vector::read(bytes.as_slice())) {
                for (key, _) in vector.iter() {
                    let terms = if key.family.described().sized { vector.sized(key.family, 3.0) } else { vector.once(key.family, 1.0) };
                    prop_assert!(terms.is_some_and(|terms| terms.milliseconds().is_finite()));
                }
            }
        }
    }
}
