//! How far Linux reads ahead of a program (mm/readahead.c), a window for each open file.

/// What is remembered of an open file, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// First page of the last window.
    start: u64,
    /// Its pages.
    size: u64,
    /// When the page so far before its end is used, the next window is fetched.
    ahead: u64,
    /// The page behind the last that was read.
    next: u64,
}

impl Window {
    /// What is fetched when `pages` pages from `at` on are read and the first of them is not in memory: first page and
    /// number. `max` is the most that is read ahead.
    pub fn miss(&mut self, at: u64, pages: u64, max: u64) -> (u64, u64) {
        let sequential = at == self.next || at == self.next.saturating_sub(1);
        if at == 0 {
            return self.first(at, pages, max);
        }
        if at == self.start.saturating_add(self.size) && self.size > 0 {
            let size = next_size(self.size, max);
            *self = Window { start: at, size, ahead: size, next: self.next };
            return (at, size);
        }
        if pages > max || sequential {
            return self.first(at, pages, max);
        }
        // Read as it is asked for.
        (at, pages)
    }

    /// What is fetched as `page` is used, though it is in memory.
    pub fn hit(&mut self, page: u64, max: u64) -> Option<(u64, u64)> {
        let end = self.start.saturating_add(self.size);
        if self.ahead == 0 || page != end.saturating_sub(self.ahead) {
            return None;
        }
        let size = next_size(self.size, max);
        *self = Window { start: end, size, ahead: size, next: self.next };
        Some((end, size))
    }

    /// Pages up to here were read.
    pub fn read(&mut self, end: u64) {
        self.next = end;
    }

    fn first(&mut self, at: u64, pages: u64, max: u64) -> (u64, u64) {
        let size = first_size(pages, max);
        let ahead = if size > pages { size - pages } else { size };
        *self = Window { start: at, size, ahead, next: self.next };
        (at, size)
    }
}

/// `get_init_ra_size`.
fn first_size(pages: u64, max: u64) -> u64 {
    let size = pages.max(1).next_power_of_two();
    if size <= max / 32 {
        size * 4
    } else if size <= max / 4 {
        size * 2
    } else {
        max.max(1)
    }
}

/// `get_next_ra_size`.
fn next_size(size: u64, max: u64) -> u64 {
    if size < max / 16 {
        size * 4
    } else if size <= max / 2 {
        size * 2
    } else {
        max.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_to_the_most() {
        let mut window = Window::default();
        // 128 KiB ahead, reads of one page: what the kernel does, by its own comment in the source.
        assert_eq!(window.miss(0, 1, 32), (0, 4));
        let mut fetched = vec![(0, 4)];
        for page in 0..59 {
            window.read(page + 1);
            fetched.extend(window.hit(page + 1, 32));
        }
        assert_eq!(fetched, [(0, 4), (4, 8), (12, 16), (28, 32), (60, 32)]);
        let mut window = Window::default();
        window.read(7);
        assert_eq!(window.miss(100, 3, 32), (100, 3), "at random");
        assert_eq!(window.miss(100, 200, 32).1, 32, "more than is read ahead");
    }
}
