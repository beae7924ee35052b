//! What a striped object is made of: runs of stripes, one after another.

use crate::{Error, Name, RESERVED, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::BTreeSet;

/// Bytes of a run.
pub const RUN_LEN: usize = 32;

/// Bytes of a stripe; stripe 0 is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The stripe.
    pub stripe: u128,
    /// Where in the stripe they begin.
    pub skip: u64,
    /// How many.
    pub len: u64,
}

/// The runs of an object in order. Manifests one after another are a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Manifest(pub Vec<Run>);

/// A piece of a stripe: stripe and number.
pub type Piece = (u128, u64);

/// Where pieces are kept.
pub fn piece_name((stripe, number): Piece) -> Result<Name> {
    Name::new([RESERVED, b"piece/", &stripe.to_be_bytes(), &number.to_be_bytes()].concat())
}

impl Run {
    /// The pieces that it lies in, of stripes cut at `unit`.
    pub fn pieces(&self, unit: u64) -> impl Iterator<Item = Piece> + use<> {
        let numbers = if self.stripe == 0 || self.len == 0 {
            0..0
        } else {
            self.skip / unit..(self.skip + self.len).div_ceil(unit)
        };
        let stripe = self.stripe;
        numbers.map(move |number| (stripe, number))
    }
}

impl Manifest {
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.0.len() * RUN_LEN);
        for run in &self.0 {
            bytes.put_u128_le(run.stripe);
            bytes.put_u64_le(run.skip);
            bytes.put_u64_le(run.len);
        }
        bytes.freeze()
    }

    /// Reads the manifest of an object of `size` bytes.
    ///
    /// # Errors
    /// It is not one.
    pub fn decode(mut bytes: &[u8], size: u64) -> Result<Manifest> {
        let wrong = || Error::Storage(ashlar_block::Error::corrupt("a manifest contradicts itself"));
        let mut runs = Vec::with_capacity(bytes.len() / RUN_LEN);
        let mut total = 0u64;
        while !bytes.is_empty() {
            let mut number = || bytes.try_get_u64_le().map_err(|_| wrong());
            let (low, high, skip, len) = (number()?, number()?, number()?, number()?);
            skip.checked_add(len).ok_or_else(wrong)?;
            total = total.checked_add(len).ok_or_else(wrong)?;
            runs.push(Run { stripe: u128::from(high) << 64 | u128::from(low), skip, len });
        }
        if total == size { Ok(Manifest(runs)) } else { Err(wrong()) }
    }

    /// Bytes of the object.
    pub fn size(&self) -> u64 {
        self.0.iter().map(|run| run.len).sum()
    }

    /// All pieces.
    pub fn pieces(&self, unit: u64) -> BTreeSet<Piece> {
        self.0.iter().flat_map(|run| run.pieces(unit)).collect()
    }

    /// The runs of bytes `from..to`.
    pub fn slice(&self, from: u64, to: u64) -> Manifest {
        let (mut at, mut runs) = (0, Vec::new());
        for run in &self.0 {
            let (low, high) = (from.max(at), to.min(at + run.len));
            if low < high {
                runs.push(Run { skip: run.skip + (low - at), len: high - low, ..*run });
            }
            at += run.len;
        }
        Manifest(runs)
    }

    /// This manifest, and then another; runs that continue each other are one.
    #[must_use]
    pub fn then(mut self, other: Manifest) -> Manifest {
        for run in other.0 {
            match self.0.last_mut() {
                Some(last) if last.stripe == run.stripe && (run.stripe == 0 || last.skip + last.len == run.skip) => {
                    last.len += run.len;
                }
                _ if run.len == 0 => {}
                _ => self.0.push(run),
            }
        }
        self
    }

    /// The `count` neighbouring runs that are shortest together: bytes from, to.
    pub fn shortest(&self, count: usize) -> Option<(u64, u64)> {
        let mut ends = Vec::with_capacity(self.0.len() + 1);
        ends.push(0);
        for run in &self.0 {
            ends.push(ends.last().copied().unwrap_or(0) + run.len);
        }
        (0..(self.0.len() + 1).saturating_sub(count))
            .map(|first| (ends[first], ends[first + count]))
            .min_by_key(|(from, to)| to - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_fuzz::{bounded, config, hostile};
    use proptest::prelude::*;

    fn manifest() -> impl Strategy<Value = Manifest> {
        prop::collection::vec((0..4u128, 0..50u64, 0..60u64), 0..12)
            .prop_map(|runs| Manifest(runs.into_iter().map(|(stripe, skip, len)| Run { stripe, skip, len }).collect()))
    }

    /// Every byte as the byte of a stripe.
    fn bytes(manifest: &Manifest) -> Vec<(u128, u64)> {
        let of_run = |run: &Run| {
            let run = *run;
            (run.skip..run.skip + run.len).map(move |at| if run.stripe == 0 { (0, 0) } else { (run.stripe, at) })
        };
        manifest.0.iter().flat_map(of_run).collect()
    }

    proptest! {
        #[test]
        fn parts_of_manifests_are_parts_of_bytes(a in manifest(), b in manifest(), x in 0..400u64, y in 0..400u64) {
            let (from, to) = (x.min(y), x.max(y));
            let all = bytes(&a);
            let part = all.get(from.min(all.len() as u64) as usize..to.min(all.len() as u64) as usize).expect("in order");
            prop_assert_eq!(bytes(&a.slice(from, to)), part);
            let mut both = all.clone();
            both.extend(bytes(&b));
            prop_assert_eq!(bytes(&a.clone().then(b)), both);
            let units: BTreeSet<Piece> = all.iter().filter(|(stripe, _)| *stripe != 0).map(|(s, at)| (*s, at / 7)).collect();
            prop_assert_eq!(a.pieces(7), units);
        }
    }

    mod fuzz {
        use super::*;
        proptest! {
            #![proptest_config(config(2000))]
            #[test]
            fn manifests(valid in manifest(), noise in hostile(manifest().prop_map(|valid| valid.encode().to_vec())), size in 0..900u64) {
                prop_assert_eq!(Manifest::decode(&valid.encode(), valid.size()), Ok(valid));
                if let Ok(read) = bounded(1 << 14, || Manifest::decode(&noise, size)) {
                    prop_assert_eq!(read.size(), size);
                }
            }
        }
    }
}
