//! Bloom filters: which keys a run of a buffer may have, in ten bits for each.
//!
//! Source    Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 1970; two hashes for all probes by Kirsch and
//!           Mitzenmacher, "Less hashing, same performance", ESA 2006.

use bytes::Bytes;

const BITS_PER_KEY: usize = 10;
/// With ten bits for each key, one foreign key in 110 passes.
const PROBES: u32 = 6;

/// What a filter keeps of a key.
pub(crate) fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// The bits of a key in a filter of so many, of which there is at least one.
fn bits(hash: u64, count: u64) -> impl Iterator<Item = usize> {
    let (start, step) = (hash & 0xffff_ffff, (hash >> 32) | 1);
    (0..u64::from(PROBES)).map(move |probe| (start.wrapping_add(probe.wrapping_mul(step)) % count) as usize)
}

/// A filter for so many keys.
pub(crate) fn of<'a>(keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Bytes {
    let mut filter = vec![0u8; (keys.len() * BITS_PER_KEY).div_ceil(8)];
    let count = filter.len() as u64 * 8;
    for key in keys {
        bits(hash(key), count).for_each(|bit| filter[bit / 8] |= 1 << (bit % 8));
    }
    filter.into()
}

/// Whether a key with this hash may be among those of a filter. An empty one says nothing.
pub(crate) fn may_have(filter: &[u8], hash: u64) -> bool {
    filter.is_empty() || bits(hash, filter.len() as u64 * 8).all(|bit| filter[bit / 8] & 1 << (bit % 8) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_pass_and_few_others_do() {
        let keys: Vec<[u8; 8]> = (0..3000u64).map(u64::to_be_bytes).collect();
        for count in [1, 2, 7, 3000] {
            let filter = of(keys[..count].iter().map(|key| &key[..]));
            assert_eq!(filter.len(), (count * 10).div_ceil(8));
            assert!(keys[..count].iter().all(|key| may_have(&filter, hash(key))));
            let foreign = (1 << 32..(1 << 32) + 20_000u64).filter(|key| may_have(&filter, hash(&key.to_be_bytes())));
            // One in 110 of many; a filter of a byte or two is coarser.
            let passed = foreign.count();
            assert!(passed < if count > 100 { 260 } else { 4000 }, "{passed} of 20,000 with {count} keys");
        }
        assert!(may_have(&[], hash(b"anything")));
    }
}
