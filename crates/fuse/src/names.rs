//! Which name an inode has, as far as requests tell since somebody wants to know.

use ashlar_vfs::{Ino, ROOT};
use std::collections::{HashMap, VecDeque};

/// Directories above one another that are followed: a path of 4,096 bytes, as Linux has them, names no more.
const DEPTH_MAX: usize = 2048;

/// Inodes that are kept though the kernel gave back all references that were seen.
const GONE_MAX: usize = 1 << 16;

type Place = (Ino, Box<[u8]>);

#[derive(Debug)]
struct Named {
    place: Place,
    /// References that the kernel holds, of those that were seen.
    lookups: u64,
}

/// The names that the kernel was told.
///
/// Costs    about 250 bytes for each inode that the kernel holds.
#[derive(Debug, Default)]
pub(crate) struct Names {
    inodes: HashMap<Ino, Named>,
    /// Who is at a place.
    places: HashMap<Place, Ino>,
    /// Inodes of which no reference is left that was seen, in their order. The kernel may have one from before, and gives
    /// that back when the name was found anew: so they are kept for a while.
    gone: VecDeque<Ino>,
}

impl Names {
    /// The kernel was told that `name` in `parent` is this inode, and counts a reference.
    pub(crate) fn found(&mut self, parent: Ino, name: &[u8], ino: Ino) {
        // By its number, or from below: it keeps the name that it has.
        if matches!(name, b"." | b"..")
            && let Some(named) = self.inodes.get_mut(&ino)
        {
            named.lookups += 1;
            return;
        }
        let place: Place = (parent, name.into());
        self.places.insert(place.clone(), ino);
        let named = self.inodes.entry(ino).or_insert_with(|| Named { place: place.clone(), lookups: 0 });
        named.place = place;
        named.lookups += 1;
    }

    /// The kernel gave back so many references.
    pub(crate) fn forgotten(&mut self, ino: Ino, count: u64) {
        let Some(named) = self.inodes.get_mut(&ino) else { return };
        named.lookups = named.lookups.saturating_sub(count);
        if named.lookups == 0 {
            self.gone.push_back(ino);
        }
        if self.gone.len() > GONE_MAX
            && let Some(ino) = self.gone.pop_front()
            && self.inodes.get(&ino).is_some_and(|named| named.lookups == 0)
            && let Some(Named { place, .. }) = self.inodes.remove(&ino)
            && self.places.get(&place) == Some(&ino)
        {
            self.places.remove(&place);
        }
    }

    /// A name is no more. Who has it open keeps the path.
    pub(crate) fn removed(&mut self, parent: Ino, name: &[u8]) {
        self.places.remove(&(parent, name.into()));
    }

    /// A name moved; with `exchange` what was there moved back.
    pub(crate) fn renamed(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8]), exchange: bool) {
        let (from, to): (Place, Place) = ((from.0, from.1.into()), (to.0, to.1.into()));
        let (moved, other) = (self.places.remove(&from), self.places.remove(&to));
        self.put(to, moved);
        if exchange {
            self.put(from, other);
        }
    }

    fn put(&mut self, place: Place, ino: Option<Ino>) {
        let Some(ino) = ino else { return };
        if let Some(named) = self.inodes.get_mut(&ino) {
            named.place = place.clone();
        }
        self.places.insert(place, ino);
    }

    /// The path of an inode from the root of the mount on, which is `/`; `None` where nobody was told.
    pub(crate) fn path(&self, mut ino: Ino) -> Option<String> {
        let mut names: Vec<&[u8]> = Vec::new();
        while ino != ROOT {
            let (parent, name) = &self.inodes.get(&ino)?.place;
            names.push(name);
            ino = *parent;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Some(if path.is_empty() { "/".into() } else { String::from_utf8_lossy(&path).into_owned() })
    }

    /// The path of a name in a directory.
    pub(crate) fn path_in(&self, parent: Ino, name: &[u8]) -> Option<String> {
        let mut path = self.path(parent)?;
        if path != "/" {
            path.push('/');
        }
        path.push_str(&String::from_utf8_lossy(name));
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A tree that keeps paths: what names must agree with.
    #[derive(Default)]
    struct Model(HashMap<String, Ino>);

    impl Model {
        fn rename(&mut self, from: &str, to: &str) {
            let below = |path: &str| path == from || path.starts_with(&format!("{from}/"));
            let moved: Vec<_> = self.0.keys().filter(|path| below(path)).cloned().collect();
            for path in moved {
                let ino = self.0.remove(&path).expect("it was there");
                self.0.insert(format!("{to}{}", &path[from.len()..]), ino);
            }
        }
    }

    #[test]
    fn what_is_found_by_its_number_keeps_its_name() {
        let mut names = Names::default();
        for (parent, name, ino) in [(ROOT, "directory", 2), (2, "file", 3), (3, ".", 3), (2, ".", 2), (4, "..", 2)] {
            names.found(parent, name.as_bytes(), ino);
        }
        assert_eq!(names.path(3).as_deref(), Some("/directory/file"));
    }

    proptest! {
        /// Directories and files made, renamed and removed at random have the paths that they should.
        #[test]
        fn paths_follow_renames(steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..6u8), 0..80)) {
            let mut names = Names::default();
            let mut model = Model::default();
            let mut next = ROOT + 1;
            for (what, one, other, name) in steps {
                let mut paths: Vec<(String, Ino)> = model.0.iter().map(|(path, ino)| (path.clone(), *ino)).collect();
                paths.sort();
                let at = |index: prop::sample::Index| match paths.is_empty() {
                    true => (String::new(), ROOT),
                    false => paths[index.index(paths.len())].clone(),
                };
                let ((from, ino), (into, parent)) = (at(one), at(other));
                let to = format!("{into}/{name}");
                let (above, own) = from.rsplit_once('/').unwrap_or_default();
                let above_ino = model.0.get(above).copied().unwrap_or(ROOT);
                match what {
                    0 | 1 if !model.0.contains_key(&to) => {
                        names.found(parent, name.to_string().as_bytes(), next);
                        model.0.insert(to, next);
                        next += 1;
                    }
                    2 if !from.is_empty() && !to.starts_with(&format!("{from}/")) && !model.0.contains_key(&to) => {
                        names.renamed((above_ino, own.as_bytes()), (parent, name.to_string().as_bytes()), false);
                        model.rename(&from, &to);
                    }
                    3 if !from.is_empty() && !model.0.keys().any(|path| path.starts_with(&format!("{from}/"))) => {
                        names.removed(above_ino, own.as_bytes());
                        prop_assert_eq!(names.path(ino), Some(from.clone()), "who has it open keeps the path");
                        names.forgotten(ino, 1);
                        model.0.remove(&from);
                    }
                    _ => {}
                }
                for (path, ino) in &model.0 {
                    prop_assert_eq!(names.path(*ino), Some(path.clone()));
                }
            }
        }
    }

    #[test]
    fn exchanged_names_change_places() {
        let mut names = Names::default();
        names.found(ROOT, b"a", 10);
        names.found(ROOT, b"b", 11);
        names.found(10, b"c", 12);
        names.renamed((ROOT, b"a"), (ROOT, b"b"), true);
        assert_eq!([10, 11, 12].map(|ino| names.path(ino).expect("known")), ["/b", "/a", "/b/c"]);
        assert_eq!(names.path_in(12, b"d").as_deref(), Some("/b/c/d"));
        assert_eq!(names.path(13), None);
        assert_eq!(names.path(ROOT).as_deref(), Some("/"));
    }

    /// A reference from before is given back when the name was found anew; and memory is bounded all the same.
    #[test]
    fn forgotten_names_are_kept_for_a_while() {
        let mut names = Names::default();
        names.found(ROOT, b"dir", 10);
        names.forgotten(10, 1);
        assert_eq!(names.path(10).as_deref(), Some("/dir"));
        for ino in 0..2 * GONE_MAX as u64 {
            names.found(ROOT, ino.to_string().as_bytes(), 100 + ino);
            names.forgotten(100 + ino, 1);
        }
        assert_eq!(names.path(10), None);
        assert_eq!((names.inodes.len(), names.places.len()), (GONE_MAX, GONE_MAX));
    }
}
