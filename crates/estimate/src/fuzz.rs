//! Fuzz targets of what is read from users.

use crate::packing::{Histogram, mining};
use crate::{environment, idr::Code, loss::Layout, lsm::Distribution};
use ashlar_fuzz::{bounded, config, edits, noise};
use proptest::prelude::*;

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn climate_rows(rows in prop::collection::vec((-40.0..100.0f64, 0.0..100.0f64), 1..40), edits in edits(), noise in noise(4096)) {
        let text: String = rows.iter().map(|(celsius, percent)| format!("2026-01-01T00:00,{celsius},{percent}\n")).collect();
        prop_assert_eq!(environment::read(text.as_bytes()), Ok(rows));
        let mut bytes = text.into_bytes();
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            let read = bounded(1 << 20, || environment::read(&bytes[..]));
            prop_assert!(read.is_err() || read.is_ok_and(|rows| rows.iter().all(|row| row.0.is_finite() && row.1.is_finite())));
        }
    }

    #[test]
    fn size_rows(rows in prop::collection::vec((any::<u64>(), 1..1000u64), 1..40), edits in edits(), noise in noise(4096)) {
        let text: String = rows.iter().map(|(size, count)| format!("{size} {count}\n")).collect();
        let read = Histogram::read(text.as_bytes()).expect("rows");
        prop_assert_eq!(read.files(), rows.iter().map(|(_, count)| *count as f64).sum::<f64>());
        let mut bytes = text.into_bytes();
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            let read = bounded(1 << 20, || Histogram::read(&bytes[..]));
            prop_assert!(read.is_err() || read.is_ok_and(|read| read.files() > 0.0));
        }
    }

    #[test]
    fn accesses(names in prop::collection::vec("[a-c]{1,2}", 1..80), edits in edits(), noise in noise(4096)) {
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        let read = mining::read(text.as_bytes(), 0.0).expect("accesses");
        prop_assert_eq!(read.accesses, names.len() as u64);
        let mut bytes = text.into_bytes();
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        for bytes in [bytes, noise] {
            let read = bounded(1 << 24, || mining::read(&bytes[..], 0.0));
            let whole = |read: mining::Grouping| {
                read.grouped_files <= read.files && read.files <= read.accesses && read.followed <= read.grouped_accesses
            };
            prop_assert!(read.is_err() || read.is_ok_and(whole));
        }
    }

    #[test]
    fn names_of_layouts(text in "(single\\+)?(mirror|raid5|raid6|rs|spc|mds|ipc|cdp|zipf|uniform)?:?[0-9+.e-]{0,12}") {
        if let Ok(layout) = text.parse::<Layout>() {
            prop_assert!((1..=200).contains(&layout.drives()) && layout.tolerance() < layout.drives());
            prop_assert_eq!(layout.to_string().parse::<Layout>(), Ok(layout));
        }
        if let Ok(code) = text.parse::<Code>() {
            prop_assert!(code.segment() <= 4096 && code.unrecovered(&[0]) == 0);
        }
        if let Ok(Distribution::Zipf(skew)) = text.parse::<Distribution>() {
            prop_assert!((0.01..=3.0).contains(&skew));
        }
    }
}
