//! Names of what the door keeps in a store for itself. They begin with a NUL byte, which no key holds.
//!
//! ```text
//! \0s…                    parts of streams that are under way; see `ashlar_objects::Session`
//! \0u KEY \0 UPLOAD       a multipart upload: no bytes; its attributes are those of the object to be
//! \0p UPLOAD / NNNNN      a part of it
//! \0p UPLOAD / ~NNNNN     many parts of it, while it is completed
//! ```
//!
//! `KEY` is the first 900 bytes of the key, so that uploads lie in the order of keys; the whole key is an attribute.
//! `UPLOAD` is 32 hexadecimal digits, `NNNNN` decimal.

use ashlar_objects::{HIDDEN, Name, Result};

/// Digits of an upload's identifier.
const UPLOAD_LEN: usize = 32;
/// Bytes of a key that the name of its upload holds.
const KEY_PART_MAX: usize = 900;
/// Parts of an upload are numbered from 1.
pub(crate) const PART_MAX: i32 = 10_000;

/// A key's object.
pub(crate) fn of_key(key: &str) -> Result<Name> {
    if key.as_bytes().contains(&HIDDEN) {
        return Err(ashlar_objects::Error::Misuse("a key cannot hold a NUL byte".into()));
    }
    Name::new(key.as_bytes().to_vec())
}

/// The first name that a key may have.
pub(crate) fn first_key() -> Name {
    known(vec![HIDDEN + 1])
}

/// A name that is surely not too long.
fn known(bytes: Vec<u8>) -> Name {
    Name::new(bytes).expect("names made here have 1 to 1,024 bytes")
}

/// Identifier of an upload, as clients know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UploadId(String);

impl UploadId {
    /// One of chance.
    pub(crate) fn new(high: u64, low: u64) -> UploadId {
        UploadId(format!("{high:016x}{low:016x}"))
    }
    /// One that a client names, if it can be one.
    pub(crate) fn parse(text: &str) -> Option<UploadId> {
        let valid = text.len() == UPLOAD_LEN && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        valid.then(|| UploadId(text.into()))
    }
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The upload itself.
    pub(crate) fn record(&self, key: &str) -> Name {
        let mut name = records_under(key.as_bytes());
        name.push(0);
        name.extend_from_slice(self.0.as_bytes());
        known(name)
    }
    /// What all names of its parts begin with.
    pub(crate) fn parts(&self) -> Vec<u8> {
        [&[HIDDEN, b'p'], self.0.as_bytes(), b"/"].concat()
    }
    /// A part, by its number.
    pub(crate) fn part(&self, number: i32) -> Name {
        known([self.parts(), format!("{number:05}").into_bytes()].concat())
    }
    /// Many parts, made one while the upload is completed.
    pub(crate) fn group(&self, number: usize) -> Name {
        known([self.parts(), format!("~{number:05}").into_bytes()].concat())
    }
}

/// What names of uploads begin with whose keys begin with `prefix`, as far as names hold keys.
pub(crate) fn records_under(prefix: &[u8]) -> Vec<u8> {
    let part = prefix.get(..KEY_PART_MAX).unwrap_or(prefix);
    [&[HIDDEN, b'u'], part].concat()
}

/// The identifier in the name of an upload.
pub(crate) fn record_id(name: &Name) -> Option<UploadId> {
    let rest = name.as_bytes().strip_prefix(&[HIDDEN, b'u'])?;
    let at = rest.len().checked_sub(UPLOAD_LEN + 1)?;
    let (_, tail) = rest.split_at_checked(at)?;
    UploadId::parse(std::str::from_utf8(tail.strip_prefix(&[0])?).ok()?)
}

/// What names of parts of all uploads begin with.
pub(crate) const PARTS: [u8; 2] = [HIDDEN, b'p'];

/// The upload of a part, and its number if it is not many.
pub(crate) fn part_id(name: &Name) -> Option<(UploadId, Option<i32>)> {
    let rest = name.as_bytes().strip_prefix(&PARTS)?;
    let (id, number) = rest.split_at_checked(UPLOAD_LEN)?;
    let id = UploadId::parse(std::str::from_utf8(id).ok()?)?;
    let number = std::str::from_utf8(number.strip_prefix(b"/")?).ok()?;
    Some((id, number.parse().ok().filter(|number| (1..=PART_MAX).contains(number))))
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn names_of_uploads(key in "[^\0]{0,1024}", id in any::<(u64, u64)>(), number in 1..=PART_MAX) {
            let id = UploadId::new(id.0, id.1);
            prop_assert_eq!(UploadId::parse(id.as_str()), Some(id.clone()));
            let key: String = key.chars().scan(0, |len, next| {
                *len += next.len_utf8();
                (*len <= 1024).then_some(next)
            }).collect();
            let record = id.record(&key);
            prop_assert!(record.is_hidden());
            prop_assert_eq!(record_id(&record), Some(id.clone()));
            prop_assert!(record.as_bytes().starts_with(&records_under(key.as_bytes())));
            prop_assert_eq!(part_id(&id.part(number)), Some((id.clone(), Some(number))));
            prop_assert_eq!(part_id(&id.group(7)), Some((id, None)));
        }

        /// Whatever name a store holds, it is told apart without a panic.
        #[test]
        fn foreign_names(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            for head in [&b""[..], &[0, b'u'], &[0, b'p']] {
                let name = Name::new([head, &bytes].concat()).expect("a name");
                let (_, _) = (record_id(&name), part_id(&name));
            }
        }

        /// Uploads lie in the order of their keys.
        #[test]
        fn order_of_uploads(a in "[\u{1}-\u{7f}]{0,20}", b in "[\u{1}-\u{7f}]{0,20}") {
            let id = UploadId::new(1, 2);
            prop_assert_eq!(a.cmp(&b), id.record(&a).cmp(&id.record(&b)));
        }
    }
}
