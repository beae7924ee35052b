//! Fuzz target of sizes as people write them; see `ashlar_fuzz`.

use crate::{Blocks, Bytes, Lba};
use ashlar_fuzz::{bounded, config, hostile};
use proptest::prelude::*;

fn size() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{1,21}(\\.[0-9]{0,20})? ?[kmgtpKMGTP]?i?[bB]?",
        "[0-9.a-zA-Z -]{0,40}",
        any::<u64>().prop_map(|bytes| Bytes(bytes).to_string()),
    ]
}

proptest! {
    #![proptest_config(config(4000))]

    #[test]
    fn sizes(bytes in any::<u64>(), text in size(), noise in hostile(size().prop_map(String::into_bytes))) {
        prop_assert_eq!(bytes.to_string().parse(), Ok(Bytes(bytes)));
        for text in [&text[..], &String::from_utf8_lossy(&noise)] {
            if let Ok(size) = bounded(1 << 12, || text.parse::<Bytes>()) {
                // What is printed reads as the same, but for the one decimal that is printed.
                let printed = size.to_string();
                let near = |back: Bytes| back.0.abs_diff(size.0) as f64 <= size.0 as f64 * 0.05;
                prop_assert!(printed.parse().map_or(printed.contains('E'), near), "{} became {}", text, printed);
            }
        }
        // Numbers of blocks that no bytes can count stop at the largest.
        prop_assert!(Lba(bytes).to_bytes() <= Bytes(u64::MAX) && Blocks(bytes).to_bytes().to_blocks_down() <= Blocks(bytes));
    }
}
