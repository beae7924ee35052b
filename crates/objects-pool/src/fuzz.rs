//! Fuzz targets of what a store writes into its dictionary; see `ashlar_fuzz`.

use crate::format::*;
use ashlar_fuzz::{bounded, config, hostile, noise};
use ashlar_objects::Attributes;
use ashlar_units::Lba;
use proptest::prelude::*;
use std::time::Duration;

fn place() -> impl Strategy<Value = Place> {
    (0..3usize, any::<u64>()).prop_map(|(class, number)| {
        let class = Class::ALL[class];
        Place { class, number: number % class.places() }
    })
}

fn record() -> impl Strategy<Value = Record> {
    let attributes = proptest::collection::btree_map(".{0,20}", noise(60), 0..6);
    let numbers = any::<[u64; 4]>();
    (place(), numbers, 0..1_000_000_000u32, attributes).prop_map(
        |(place, [version, size, checksum, secs], nanos, said)| Record {
            version,
            size: size % (place.class.bytes() + 1),
            checksum,
            modified: Duration::new(secs, nanos),
            place,
            attributes: said.into_iter().map(|(key, value)| (key, value.into())).collect::<Attributes>(),
        },
    )
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn records(record in record(), hostile in hostile(record().prop_map(|record| record.encode().to_vec()))) {
        prop_assert_eq!(Record::decode(&record.encode()).ok(), Some(record));
        let hostile = bytes::Bytes::from(hostile);
        bounded(16 * hostile.len() as u64 + 4096, || drop(Record::decode(&hostile)));
    }

    #[test]
    fn keys(place in place(), stripe in 0..STRIPES, name in noise(60), noise in noise(20)) {
        prop_assert_eq!(building_in(&building(place)), Some(place));
        prop_assert_eq!(stripe_in(&count(stripe)), Some(stripe));
        if !name.is_empty() {
            let key = object(&name);
            prop_assert!(key.as_slice() < &objects_end()[..]);
            prop_assert_eq!(name_in(&key).map(|name| name.as_bytes().to_vec()), Some(name));
        }
        for head in [&b""[..], b"n", b"b", b"k"] {
            let key = [head, &noise].concat();
            let (_, _, _) = (name_in(&key), building_in(&key), stripe_in(&key));
            let _ = decode_numbers::<2>(&key);
        }
    }

    /// Places do not overlap, and every block tells whose it is.
    #[test]
    fn places(place in place(), at in any::<u64>()) {
        let within = at % blocks_of(place.class.bytes()).0;
        prop_assert_eq!(Place::holding(Lba(place.base().0 + within)), place);
    }
}
