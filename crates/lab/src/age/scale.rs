//! A history for a file system of another size: files are left out, or stand several times. Their sizes stay.

use crate::history::{Act, ROOT, Record};
use ashlar_survey::sample::{fast_hash, mix};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often each file stands; 0.5 is every other file, by chance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Scale(f64);

/// Most copies.
const COPIES_MAX: f64 = 1e6;

impl Scale {
    /// Every file once.
    pub const ONE: Scale = Scale(1.0);

    /// The scale at which a history that ends with `live` bytes ends with `wanted`. `None` if it ends empty.
    pub fn to(live: u64, wanted: u64) -> Option<Scale> {
        (live > 0).then(|| Scale((wanted as f64 / live as f64).clamp(0.0, COPIES_MAX)))
    }

    /// The number.
    pub fn value(self) -> f64 {
        self.0
    }

    /// How often something stands. A directory stands as often as any file.
    pub fn copies(self, id: u64, directory: bool, seed: u64) -> u32 {
        let whole = self.0.floor();
        let one_more = directory && self.0 > whole || fast_hash(seed ^ 0x5ca1e, id) < self.0 - whole;
        whole as u32 + u32::from(one_more)
    }

    /// The record of a copy.
    pub fn copy(self, record: &Record, copy: u32) -> Record {
        if copy == 0 {
            return *record;
        }
        let of = |id: u64| if id == ROOT { ROOT } else { mix(id, u64::from(copy)).max(1) };
        let act = match record.act {
            Act::MakeDirectory { parent, name_len } => Act::MakeDirectory { parent: of(parent), name_len },
            Act::Create { parent, name_len, size, how } => Act::Create { parent: of(parent), name_len, size, how },
            Act::Move { parent, name_len } => Act::Move { parent: of(parent), name_len },
            act @ (Act::Modify { .. } | Act::Delete) => act,
        };
        Record { at_ns: record.at_ns, id: of(record.id), act }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_number_of_copies_is_the_scale() {
        for scale in [0.0, 0.3, 1.0, 2.7] {
            let scale = Scale(scale);
            let copies: u64 = (0..10_000).map(|id| u64::from(scale.copies(id, false, 5))).sum();
            assert!((copies as f64 / 1e4 - scale.value()).abs() < 0.02, "{copies}");
            let most = (0..10_000).map(|id| scale.copies(id, false, 5)).max();
            assert!(most <= Some(scale.copies(1, true, 5)), "a directory is there for each");
        }
        assert_eq!(Scale::to(0, 5), None);
        assert_eq!(Scale::to(10, 5), Some(Scale(0.5)));
    }
}
