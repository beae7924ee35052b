//! What is remembered of the parts of an upload when they have become an object, as attributes of the object.
//!
//! ```text
//! parts        lengths in bytes, as `LENGTH*COUNT` with commas between: clients send parts of one length, and a last one
//! part-sums    the checksum of each, in base64, with commas between
//! upload       the upload's identifier
//! ```
//!
//! Lengths or checksums that take too much room are not kept: then ranges must do in place of numbers of parts.

use crate::described::{checksums, text};
use crate::names::PART_MAX;
use crate::sums::{only, value_at};
use ashlar_objects::{Attributes, Stat};
use s3s::dto::Checksum;

const LENGTHS: &str = "parts";
const SUMS: &str = "part-sums";
pub(crate) const UPLOAD: &str = "upload";
/// All of them.
pub(crate) const KEYS: [&str; 3] = [LENGTHS, SUMS, UPLOAD];
/// Most bytes of lengths, and of checksums. With all else that is kept of an object they must be below 8 KiB, which every
/// store takes.
const LENGTHS_MAX: usize = 1024;
const SUMS_MAX: usize = 2048;

/// Keeps what there is to know of parts whose checksums are at `place`.
pub(crate) fn keep_parts(attributes: &mut Attributes, parts: &[Stat], place: Option<usize>) {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for part in parts {
        match runs.last_mut() {
            Some((known, count)) if *known == part.size => *count += 1,
            _ => runs.push((part.size, 1)),
        }
    }
    let runs: Vec<String> = runs.iter().map(|(length, count)| format!("{length}*{count}")).collect();
    let sums: Option<Vec<String>> =
        place.and_then(|place| parts.iter().map(|part| value_at(&checksums(part), place).cloned()).collect());
    let texts = [(LENGTHS, runs.join(","), LENGTHS_MAX), (SUMS, sums.unwrap_or_default().join(","), SUMS_MAX)];
    for (key, text, most) in texts {
        if !text.is_empty() && text.len() <= most {
            attributes.insert(key.into(), text.into_bytes().into());
        }
    }
}

/// Lengths of the parts that an object was uploaded in, in bytes, if they were kept.
pub(crate) fn lengths(stat: &Stat) -> Option<Vec<u64>> {
    let mut lengths: Vec<u64> = Vec::new();
    for run in text(stat, LENGTHS)?.split(',') {
        let (length, count) = run.split_once('*')?;
        let (length, count) = (length.parse::<u64>().ok()?, count.parse::<usize>().ok()?);
        if count > PART_MAX as usize - lengths.len() {
            return None;
        }
        lengths.extend(std::iter::repeat_n(length, count));
    }
    Some(lengths)
}

/// Checksums of the parts, if they were kept: of the kind that the object has.
pub(crate) fn sums(stat: &Stat) -> Option<Vec<Checksum>> {
    let whole = checksums(stat);
    let place = (0..5).find(|place| value_at(&whole, *place).is_some())?;
    let of_part = |sum: &str| Checksum { checksum_type: whole.checksum_type.clone(), ..only(place, sum.to_string()) };
    Some(text(stat, SUMS)?.split(',').map(of_part).collect())
}

#[cfg(test)]
mod tests {
    use super::{LENGTHS, keep_parts, lengths, sums};
    use ashlar_objects::{Attributes, Name, Stat};
    use proptest::prelude::*;
    use std::time::Duration;

    fn stat(size: u64, attributes: Attributes) -> Stat {
        let name = Name::new("name").expect("a name");
        Stat { name, version: 1, size, checksum: size, modified: Duration::ZERO, attributes }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn lengths_and_sums_come_back(sizes in proptest::collection::vec(prop_oneof![Just(5 << 20), 0u64..9], 1..60)) {
            let parts: Vec<Stat> = sizes.iter().map(|size| stat(*size, Attributes::new())).collect();
            let mut attributes = Attributes::new();
            keep_parts(&mut attributes, &parts, Some(2));
            let kept = stat(1, attributes);
            prop_assert_eq!(lengths(&kept), Some(sizes.clone()));
            let found: Vec<_> = sums(&kept).expect("they fit").into_iter().map(|sum| sum.checksum_crc64nvme).collect();
            let expected: Vec<_> = parts.iter().map(|part| crate::described::checksums(part).checksum_crc64nvme).collect();
            prop_assert_eq!(found, expected);
        }

        /// Whatever an attribute holds, it is read without a panic, in bounded memory.
        #[test]
        fn forged_lengths(text in "([0-9]{0,20}[*,]?){0,6}") {
            let kept = stat(1, [(LENGTHS.to_string(), text.into_bytes().into())].into());
            prop_assert!(lengths(&kept).is_none_or(|lengths| lengths.len() <= 10_000));
        }
    }
}
