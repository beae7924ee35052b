//! Parts of images in the place of these: see [`crate::inside`].

use super::{Entry, Listing};
use crate::inside::{Part, Place};
use crate::sample::mix;

/// What is known of a part of an image beside its entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inner {
    /// Index of the image.
    image: u32,
    /// Number of its first unit in the image.
    first: u32,
    /// Index of its first place; its last is before that of the next one.
    places: u32,
    pub name: u64,
    pub parent: u64,
}

impl Listing {
    /// The file that holds an entry: itself, or its image.
    pub fn whole<'a>(&'a self, entry: &'a Entry) -> &'a Entry {
        self.inner(entry).and_then(|inner| self.images.get(inner.image as usize)).unwrap_or(entry)
    }

    pub(super) fn inner(&self, entry: &Entry) -> Option<&Inner> {
        self.parts.get((entry.part as usize).checked_sub(1)?)
    }

    /// All files, images as a whole.
    pub fn files(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.part == 0).chain(&self.images)
    }

    /// The place of a unit in the order in which units are read.
    pub fn order(&self, entry: &Entry, number: u32) -> (u64, u32) {
        (entry.inode, self.inner(entry).map_or(0, |inner| inner.first) + number)
    }

    /// Where the bytes of an entry from one offset up to another are in its file.
    pub fn pieces(&self, entry: &Entry, from: u64, to: u64) -> Vec<Place> {
        let Some(inner) = self.inner(entry) else { return vec![(from, to)] };
        let end = self.parts.get(entry.part as usize).map_or(self.places.len(), |next| next.places as usize);
        let places = self.places.get(inner.places as usize..end).unwrap_or_default();
        let first = places.partition_point(|(offset, (begin, end))| offset + (end - begin) <= from);
        let ahead = places[first..].iter().take_while(|(offset, _)| *offset < to);
        ahead
            .map(|(offset, (begin, end))| (begin + from.saturating_sub(*offset), (*end).min(begin + (to - offset))))
            .collect()
    }

    /// Room for files inside images, each with an extent or two, in so many bytes of memory.
    pub fn room(&self, memory: u64) -> usize {
        let taken = self.entries.len() * size_of::<Entry>() + self.names.len();
        (memory as usize).saturating_sub(taken) / (size_of::<Entry>() + size_of::<Inner>() + 4 * size_of::<Place>())
    }

    /// Takes the parts of images in the place of these; `found` are indices of entries, ascending, with the parts of each.
    pub fn divide(&mut self, found: Vec<(usize, Vec<Part>)>, unit_bytes: u64) {
        let mut found = found.into_iter().peekable();
        for (index, image) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            let Some((_, parts)) = found.next_if(|(of, _)| *of == index) else {
                self.entries.push(image);
                continue;
            };
            let mut first = 0;
            for Part { name, parent, places } in parts {
                let data: u64 = places.iter().map(|(begin, end)| end - begin).sum();
                let (image_index, at) = (self.images.len() as u32, self.places.len() as u32);
                let mut offset = 0;
                let identity = mix(image.identity, places.first().map_or(0, |(begin, _)| *begin));
                for place in places {
                    self.places.push((offset, place));
                    offset += place.1 - place.0;
                }
                // What is of no file is like nothing else.
                let name = if name == 0 { identity } else { name };
                self.parts.push(Inner { image: image_index, first, places: at, name, parent });
                first += data.div_ceil(unit_bytes) as u32;
                let part = self.parts.len() as u32;
                self.entries.push(Entry { sparse: false, size: data, data, identity, part, ..image });
            }
            self.images.push(image);
        }
    }
}
