//! Sorting what is long by two threads: while one sorts, nobody reads.

/// From so many on; below, beginning a thread costs as much as it gains.
const LONG: usize = 1 << 15;

/// Sorts by a key; equal ones come in any order.
pub fn sort_by_key<T: Send, K: Ord>(list: &mut [T], key: impl Fn(&T) -> K + Sync) {
    if list.len() < LONG {
        return list.sort_unstable_by_key(key);
    }
    let middle = list.len() / 2;
    let (low, _, high) = list.select_nth_unstable_by_key(middle, &key);
    std::thread::scope(|scope| {
        scope.spawn(|| low.sort_unstable_by_key(&key));
        high.sort_unstable_by_key(&key);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_models::Chance;

    #[test]
    fn long_and_short_lists() {
        let mut chance = Chance::new(3);
        for (len, most) in [(0, 9), (1, 9), (100, 10), (LONG - 1, 100), (LONG, u64::MAX), (3 * LONG + 1, 2)] {
            let list: Vec<u64> = (0..len).map(|_| chance.below(most)).collect();
            let (mut ours, mut expected) = (list.clone(), list);
            sort_by_key(&mut ours, |value| u64::MAX - value);
            expected.sort_unstable_by_key(|value| u64::MAX - value);
            assert!(ours == expected, "{len} below {most}");
        }
    }
}
