//! Bitmaps.

/// A fixed number of bits.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Bits {
    words: Vec<u64>,
    len: u64,
}

impl Bits {
    /// So many bits, none set.
    pub fn new(len: u64) -> Bits {
        Bits { words: vec![0; len.div_ceil(64) as usize], len }
    }
    /// Bits of stored words; `None` if there are too few, or bits behind the end are set.
    pub fn of_words(words: Vec<u64>, len: u64) -> Option<Bits> {
        let enough = words.len() as u64 == len.div_ceil(64);
        let tail = if len.is_multiple_of(64) { 0 } else { words.last().map_or(0, |last| last >> (len % 64)) };
        (enough && tail == 0).then_some(Bits { words, len })
    }
    /// The bits, 64 in a word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
    /// Number of bits.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Whether a bit is set; no for those behind the end.
    pub fn get(&self, bit: u32) -> bool {
        self.words.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }
    /// Sets a bit, if there is one; tells what it was.
    pub fn set(&mut self, bit: u32, value: bool) -> bool {
        let before = self.get(bit);
        if u64::from(bit) < self.len
            && let Some(word) = self.words.get_mut(bit as usize / 64)
        {
            *word = *word & !(1 << (bit % 64)) | u64::from(value) << (bit % 64);
        }
        before
    }
    /// Set bits.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }
    /// The first clear bit from `from` on, else from the front.
    pub fn first_clear(&self, from: u32) -> Option<u32> {
        let clear_in = |range: std::ops::Range<usize>, skip: u32| {
            let mut mask = u64::MAX << skip;
            for index in range {
                let free = !self.words[index] & mask;
                mask = u64::MAX;
                let bit = index as u64 * 64 + u64::from(free.trailing_zeros());
                if free != 0 && bit < self.len {
                    return Some(bit as u32);
                }
            }
            None
        };
        let start = (from as usize / 64).min(self.words.len());
        clear_in(start..self.words.len(), from % 64).or_else(|| clear_in(0..self.words.len(), 0))
    }
    /// Runs of clear bits: the first, and how many.
    pub fn clear_runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (index, word) in self.words.iter().enumerate() {
            let (mut word, mut at) = (*word, 0u32);
            while at < 64 {
                let ones = word.trailing_ones().min(64 - at);
                at += ones;
                word = if ones == 64 { 0 } else { word >> ones };
                if at == 64 {
                    break;
                }
                let begin = index as u64 * 64 + u64::from(at);
                let zeros = (word.trailing_zeros()).min(64 - at);
                let zeros = u64::from(zeros).min(self.len.saturating_sub(begin)) as u32;
                if zeros == 0 {
                    break;
                }
                match runs.last_mut() {
                    Some(last) if u64::from(last.0) + u64::from(last.1) == begin => last.1 += zeros,
                    _ => runs.push((begin as u32, zeros)),
                }
                at += zeros;
                word = if zeros == 64 { 0 } else { word >> zeros };
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_those_of_a_list(set in prop::collection::btree_set(0..300u32, 0..200), len in 1..300u64, from in 0..320u32) {
            let mut bits = Bits::new(len);
            for bit in &set {
                prop_assert!(!bits.set(*bit, true));
            }
            let list: Vec<bool> = (0..len as u32).map(|bit| set.contains(&bit)).collect();
            prop_assert_eq!(bits.count(), list.iter().filter(|bit| **bit).count() as u64);
            let clear: Vec<u32> = (0..len as u32).filter(|bit| !list[*bit as usize]).collect();
            let first = clear.iter().find(|bit| **bit >= from).or(clear.first()).copied();
            prop_assert_eq!(bits.first_clear(from), first);
            let listed: Vec<u32> = bits.clear_runs().iter().flat_map(|(at, count)| *at..at + count).collect();
            prop_assert_eq!(listed, clear);
            prop_assert!(bits.clear_runs().windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
            prop_assert_eq!(Bits::of_words(bits.words().to_vec(), len), Some(bits));
        }
    }
}
