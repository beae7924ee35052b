//! Delta debugging: "Simplifying and Isolating Failure-Inducing Input", Zeller and Hildebrandt, 2002, section 3 (ddmin).

/// The smallest part of `items` found for which `fails` still holds, as it does for all of them. Ends when nothing can be
/// left out, or when `fails` gives `None` (no more tries).
pub(super) fn smallest<T: Clone>(items: Vec<T>, mut fails: impl FnMut(&[T]) -> Option<bool>) -> Vec<T> {
    let mut items = items;
    let mut parts = 1;
    while !items.is_empty() {
        let len = items.len().div_ceil(parts);
        let mut smaller = None;
        for start in (0..items.len()).step_by(len) {
            let mut rest = items.clone();
            rest.drain(start..(start + len).min(items.len()));
            match fails(&rest) {
                None => return items,
                Some(true) => {
                    smaller = Some(rest);
                    break;
                }
                Some(false) => {}
            }
        }
        match smaller {
            Some(rest) => (items, parts) = (rest, parts.saturating_sub(1).max(1)),
            None if len == 1 => break,
            None => parts = (parts * 2).min(items.len()),
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_left() {
        let needed = |rest: &[u32]| Some(rest.contains(&17) && rest.contains(&80));
        assert_eq!(smallest((0..100).collect(), needed), [17, 80]);
        assert_eq!(smallest((0..100).collect::<Vec<u32>>(), |_| Some(true)), Vec::<u32>::new());
        let mut tries = 3;
        let few = smallest((0..100).collect::<Vec<u32>>(), |rest| {
            tries -= 1;
            (tries >= 0).then(|| rest.contains(&99))
        });
        assert!(few.contains(&99) && few.len() < 100, "{few:?}");
    }
}
