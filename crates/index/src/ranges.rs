//! Sets of keys as disjoint half-open ranges.

use crate::Key;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Disjoint, non-adjacent, non-empty half-open ranges of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(BTreeMap<Key, Key>);

/// No keys.
pub(crate) static NO_KEYS: RangeSet = RangeSet(BTreeMap::new());

impl RangeSet {
    /// Adds `low..high`.
    pub fn insert(&mut self, low: &[u8], high: &[u8]) {
        if low >= high {
            return;
        }
        let (mut low, mut high) = (Key::from_slice(low), Key::from_slice(high));
        // Swallow every range that touches the new one, starting with the last that begins at or before its end.
        while let Some((start, end)) = self.0.range::<Key, _>(..=&high).next_back() {
            if *end < low {
                break;
            }
            let start = start.clone();
            high = high.max(self.0.remove(&start).expect("just found"));
            low = low.min(start);
        }
        self.0.insert(low, high);
    }
    /// Whether `key` is in the set.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.before(key).is_some_and(|(_, end)| key < end.as_slice())
    }
    /// Whether all of `low..high` (without end: everything from `low`) is in the set.
    pub fn covers(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        self.before(low).is_some_and(|(_, end)| low < end.as_slice() && high.is_some_and(|high| high <= end.as_slice()))
    }
    fn before(&self, key: &[u8]) -> Option<(&Key, &Key)> {
        self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }
    /// The ranges that meet `low..high`, clipped to it.
    pub fn within<'a>(&'a self, low: &'a [u8], high: Option<&'a [u8]>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let first = self.before(low).filter(|(start, end)| start.as_slice() < low && low < end.as_slice());
        let upper = high.map_or(Bound::Unbounded, Bound::Excluded);
        let empty = high.is_some_and(|high| high <= low);
        let rest = (!empty).then(|| self.0.range::<[u8], _>((Bound::Included(low), upper)));
        first.filter(|_| !empty).into_iter().chain(rest.into_iter().flatten()).map(move |(start, end)| {
            let end = end.as_slice();
            (start.as_slice().max(low), high.map_or(end, |high| end.min(high)))
        })
    }
    /// Removes what meets `low..high`, and gives it. Costs a search for each range that meets it.
    pub fn take(&mut self, low: &[u8], high: Option<&[u8]>) -> RangeSet {
        let taken: BTreeMap<Key, Key> =
            self.within(low, high).map(|(start, end)| (Key::from_slice(start), Key::from_slice(end))).collect();
        for (start, end) in &taken {
            // The range that holds this one: only the first may begin before it, only the last end behind it.
            let (from, to) = self.before(start).map(|(from, to)| (from.clone(), to.clone())).expect("it was there");
            self.0.remove(&from);
            if from < *start {
                self.0.insert(from, start.clone());
            }
            if *end < to {
                self.0.insert(end.clone(), to);
            }
        }
        RangeSet(taken)
    }
    /// All ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(start, end)| (start.as_slice(), end.as_slice()))
    }
    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_points(
            inserts in proptest::collection::vec((0u8..40, 0u8..40), 0..20),
            query in (0u8..40, 0u8..40),
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (low, high) in inserts {
                set.insert(&[low], &[high]);
                model.extend(low..high);
            }
            for point in 0..40 {
                prop_assert_eq!(set.contains(&[point]), model.contains(&point));
            }
            let (low, high) = query;
            let seen: BTreeSet<u8> =
                set.within(&[low], Some(&[high])).flat_map(|(start, end)| start[0]..end[0]).collect();
            prop_assert_eq!(seen, model.iter().copied().filter(|p| (low..high).contains(p)).collect::<BTreeSet<_>>());
            let covered = low < high && (low..high).all(|point| model.contains(&point));
            if low < high {
                prop_assert_eq!(set.covers(&[low], Some(&[high])), covered);
            }
            let mut rest = set.clone();
            let taken = rest.take(&[low], Some(&[high]));
            for point in 0..40 {
                prop_assert_eq!(taken.contains(&[point]), set.contains(&[point]) && (low..high).contains(&point));
                prop_assert_eq!(rest.contains(&[point]), set.contains(&[point]) && !(low..high).contains(&point));
            }
            for set in [set, taken, rest] {
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "disjoint and not adjacent");
            }
        }
    }
}
