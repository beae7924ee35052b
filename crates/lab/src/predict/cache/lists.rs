//! Lists of what is cached, in order of use: every change takes the same short time.

const NONE: u32 = u32::MAX;

/// A place in one of the lists.
pub type Slot = u32;

#[derive(Debug)]
struct Node<T> {
    value: Option<T>,
    list: usize,
    newer: Slot,
    older: Slot,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    newest: Slot,
    oldest: Slot,
    len: u64,
}

/// `N` lists.
#[derive(Debug)]
pub struct Lists<T, const N: usize> {
    nodes: Vec<Node<T>>,
    free: Vec<Slot>,
    ends: [Ends; N],
}

impl<T, const N: usize> Default for Lists<T, N> {
    fn default() -> Self {
        Lists { nodes: Vec::new(), free: Vec::new(), ends: [Ends { newest: NONE, oldest: NONE, len: 0 }; N] }
    }
}

impl<T, const N: usize> Lists<T, N> {
    /// Puts a value at the new end of a list.
    pub fn insert(&mut self, list: usize, value: T) -> Slot {
        let node = Node { value: Some(value), list, newer: NONE, older: NONE };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as Slot - 1
            }
        };
        self.link(slot, list);
        slot
    }

    /// Puts what is there already at the new end of a list.
    pub fn renew(&mut self, slot: Slot, list: usize) {
        self.unlink(slot);
        self.link(slot, list);
    }

    /// Takes a value out.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let value = self.nodes[slot as usize].value.take()?;
        self.unlink(slot);
        self.free.push(slot);
        Some(value)
    }

    /// The oldest of a list.
    pub fn oldest(&self, list: usize) -> Option<Slot> {
        let oldest = self.ends[list].oldest;
        (oldest != NONE).then_some(oldest)
    }

    /// The value at a place.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.nodes.get_mut(slot as usize)?.value.as_mut()
    }

    /// In which list it is.
    pub fn list(&self, slot: Slot) -> usize {
        self.nodes[slot as usize].list
    }

    /// How many a list has.
    pub fn len(&self, list: usize) -> u64 {
        self.ends[list].len
    }

    fn link(&mut self, slot: Slot, list: usize) {
        let before = self.ends[list].newest;
        let node = &mut self.nodes[slot as usize];
        (node.list, node.newer, node.older) = (list, NONE, before);
        match before {
            NONE => self.ends[list].oldest = slot,
            before => self.nodes[before as usize].newer = slot,
        }
        self.ends[list].newest = slot;
        self.ends[list].len += 1;
    }

    fn unlink(&mut self, slot: Slot) {
        let Node { list, newer, older, .. } = self.nodes[slot as usize];
        match newer {
            NONE => self.ends[list].newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.ends[list].oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        self.ends[list].len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_fuzz::config;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(config(200))]

        /// Against vectors, the newest last.
        #[test]
        fn lists_are_as_vectors(operations in prop::collection::vec((0..4u8, any::<prop::sample::Index>(), 0..2usize), 1..200)) {
            let mut lists = Lists::<u32, 2>::default();
            let mut model: [Vec<(Slot, u32)>; 2] = [Vec::new(), Vec::new()];
            for (number, (what, index, list)) in (0u32..).zip(operations) {
                let all: Vec<(usize, usize)> = (0..2).flat_map(|list| (0..model[list].len()).map(move |at| (list, at))).collect();
                match what {
                    0 | 1 => model[list].push((lists.insert(list, number), number)),
                    2 if !all.is_empty() => {
                        let (from, at) = all[index.index(all.len())];
                        let moved = model[from].remove(at);
                        prop_assert_eq!(lists.list(moved.0), from);
                        lists.renew(moved.0, list);
                        model[list].push(moved);
                    }
                    3 if !all.is_empty() => {
                        let (from, at) = all[index.index(all.len())];
                        let gone = model[from].remove(at);
                        prop_assert_eq!(lists.remove(gone.0), Some(gone.1));
                    }
                    _ => {}
                }
                for (list, model) in model.iter().enumerate() {
                    prop_assert_eq!(lists.len(list), model.len() as u64);
                    prop_assert_eq!(lists.oldest(list), model.first().map(|(slot, _)| *slot));
                }
            }
        }
    }
}
