//! How far Linux reads ahead of a program (mm/readahead.c as of 6.18), a window for each open file.
//!
//! A miss at the begin of a file, or where the last read ended, begins a window; where pages before it are in memory, these
//! count as a stream; any other reads what is asked for. One page of each window is marked: when it is read, the next window
//! is fetched. Windows grow, and end where large folios would.
//!
//! Departs  a window is not cut by congestion. Of a large folio all pages have its mark, here one page; reads at random then
//!          fetch a little less than they do.

/// Pages of one request that a device takes, unless it says otherwise (`BLK_DEF_MAX_SECTORS_CAP`, 1,280 KiB): who reads more
/// than is read ahead at once gets windows up to this.
const REQUEST_MAX: u64 = 320;

/// What is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// First page.
    pub from: u64,
    /// Pages.
    pub count: u64,
    /// The page that is marked.
    pub mark: Option<u64>,
}

/// What is remembered of an open file, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// First page of the last window.
    start: u64,
    /// Its pages.
    size: u64,
    /// How far before its end the mark is.
    ahead: u64,
    /// Order of folios; windows end at multiples of that.
    order: u32,
    /// The byte behind the last that was read.
    read_to: Option<u64>,
}

impl Window {
    /// What is fetched when `wanted` pages from `at` on are read and the first is not in memory. `max` is the most that is
    /// read ahead; `before` says how many pages directly before `at`, of at most so many, are in memory.
    pub fn miss(&mut self, at: u64, wanted: u64, max: u64, before: impl FnOnce(u64) -> u64) -> Fetch {
        if max == 0 {
            return Fetch { from: at, count: 1, mark: None };
        }
        let max = most(wanted, max);
        let goes_on = self.read_to.is_some_and(|end| (0..=1).contains(&at.wrapping_sub(end / PAGE)));
        if at == 0 || wanted > max || goes_on {
            let size = first_size(wanted, max);
            let ahead = if size > wanted { size - wanted } else { size / 2 };
            *self = Window { start: at, size, ahead, order: 0, ..*self };
            return self.fetch();
        }
        let stream = before(max);
        if stream <= wanted {
            return Fetch { from: at, count: wanted, mark: None };
        }
        // All of the file up to here: a long stream, most likely.
        let stream = if stream == at { stream * 2 } else { stream };
        *self = Window { start: at, size: (stream + wanted).min(max), ahead: 1, order: 0, ..*self };
        self.fetch()
    }

    /// What is fetched as the marked page `at` is read, with `wanted` pages from there on. `behind` says where the first page
    /// behind `at` is that is not in memory, if it is at most so many pages away.
    pub fn hit(&mut self, at: u64, wanted: u64, max: u64, behind: impl FnOnce(u64) -> Option<u64>) -> Option<Fetch> {
        if max == 0 {
            return None;
        }
        let max = most(wanted, max);
        let end = self.start.saturating_add(self.size);
        if self.size > 0 && at == end.saturating_sub(self.ahead) {
            (self.start, self.size) = (end, self.size.max(next_size(self.size, max)));
        } else {
            // Another stream's mark, or of one that was left.
            let start = behind(max)?;
            (self.start, self.size) = (start, next_size(start - at + wanted, max));
        }
        self.order = (self.order + 2).min(max.trailing_zeros());
        let aligned = self.start.saturating_add(self.size) >> self.order << self.order;
        if aligned > self.start {
            self.size = aligned - self.start;
        }
        self.order = self.order.min(self.size.max(1).ilog2());
        self.ahead = self.size;
        Some(self.fetch())
    }

    /// Whether a read at this byte begins in the page where the last one ended: the kernel takes both for one use of it.
    pub fn is_same_page(&self, offset: u64) -> bool {
        self.read_to.is_some_and(|end| end > 0 && (end - 1) / PAGE == offset / PAGE)
    }

    /// Bytes up to here were read.
    pub fn read(&mut self, end: u64) {
        self.read_to = Some(end);
    }

    fn fetch(&self) -> Fetch {
        let mark = self.start.saturating_add(self.size) - self.ahead.min(self.size);
        Fetch { from: self.start, count: self.size, mark: (self.ahead > 0).then_some(mark) }
    }
}

/// Bytes of a page.
const PAGE: u64 = 4096;

/// `ractl_max_pages`.
fn most(wanted: u64, max: u64) -> u64 {
    if wanted > max && REQUEST_MAX > max { wanted.min(REQUEST_MAX) } else { max }
}

/// `get_init_ra_size`.
fn first_size(pages: u64, max: u64) -> u64 {
    let size = pages.max(1).next_power_of_two();
    if size <= max / 32 {
        size * 4
    } else if size <= max / 4 {
        size * 2
    } else {
        max
    }
}

/// `get_next_ra_size`.
fn next_size(size: u64, max: u64) -> u64 {
    if size < max / 16 {
        size * 4
    } else if size <= max / 2 {
        size * 2
    } else {
        max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Reads, in pages, of a large file by one who has it open; which of them fetched how many pages.
    fn fetched(max: u64, reads: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let (mut window, mut here, mut marks) = (Window::default(), BTreeSet::new(), BTreeSet::new());
        let mut all = Vec::new();
        for (from, count) in reads {
            let before = here.len() as u64;
            for at in from..from + count {
                let mut fetch = |here: &mut BTreeSet<u64>, fetch: Fetch| {
                    here.extend(fetch.from..fetch.from + fetch.count);
                    marks.extend(fetch.mark);
                };
                if !here.contains(&at) {
                    let found = window.miss(at, from + count - at, max, |most| {
                        (1..=most.min(at)).take_while(|back| here.contains(&(at - back))).count() as u64
                    });
                    fetch(&mut here, found);
                }
                if marks.remove(&at) {
                    let behind = |most| (at + 1..=at + most).find(|page| !here.contains(page));
                    if let Some(found) = window.hit(at, from + count - at, max, behind) {
                        here.extend(found.from..found.from + found.count);
                        marks.extend(found.mark);
                    }
                }
            }
            window.read((from + count) * PAGE);
            let more = here.len() as u64 - before;
            all.extend((more > 0).then_some((from, more)));
        }
        all
    }

    // As `cachestat` showed after each read on Linux 6.18, ext4, with 128 KiB and 2,560 KiB read ahead.
    #[test]
    fn windows_are_those_of_the_kernel() {
        let one_by_one = |range: std::ops::Range<u64>| range.map(|page| (page, 1));
        let expected = [(0, 4), (1, 8), (4, 4), (12, 8), (16, 8), (24, 16), (32, 16), (48, 32), (64, 32), (96, 32)];
        assert_eq!(fetched(32, one_by_one(0..128)), expected);
        let expected = [(0, 4), (1, 16), (4, 60), (20, 112), (80, 192), (192, 384)];
        assert_eq!(fetched(640, one_by_one(0..300)), expected);
        let expected = [(0, 8), (4, 16), (8, 24), (24, 16), (48, 32), (64, 32), (96, 32)];
        assert_eq!(fetched(32, (0..32).map(|n| (n * 4, 4))), expected);
        let expected = [(0, 16), (4, 64), (16, 128), (80, 240), (208, 448)];
        assert_eq!(fetched(640, (0..75).map(|n| (n * 4, 4))), expected);
        let expected = [(100, 1), (101, 4), (102, 7), (105, 14), (112, 2), (126, 4), (128, 8), (132, 16)];
        assert_eq!(fetched(32, one_by_one(100..140)), expected, "from the middle");
        assert_eq!(fetched(640, one_by_one(100..140)), [(100, 1), (101, 4), (102, 15), (105, 56), (120, 80)]);
        assert_eq!(fetched(32, [(50, 8), (58, 8), (66, 8)]), [(50, 8), (58, 16), (66, 30)]);
        assert_eq!(fetched(640, [(50, 8), (58, 8), (66, 8)]), [(50, 8), (58, 32), (66, 126)]);
    }

    #[test]
    fn more_than_is_read_ahead_is_read_in_larger_windows() {
        let reads: Vec<_> = (0..10).map(|n| (n * 64, 64)).collect();
        let expected: Vec<_> = (0..10).map(|n| (n * 64, if n == 0 { 128 } else { 64 })).collect();
        assert_eq!(fetched(32, reads.clone()), expected);
        assert_eq!(fetched(640, reads), [(0, 128), (64, 256), (128, 512), (384, 640)]);
    }

    #[test]
    fn at_random_what_is_asked_for_is_read() {
        for max in [32, 640] {
            assert_eq!(fetched(max, [(5, 1), (6, 1), (9, 1)]), [(5, 1), (6, 4)]);
            assert!(fetched(max, (0..30).map(|n| (100 + 3 * n, 1))).iter().all(|(_, pages)| *pages == 1));
            assert!(fetched(max, (0..30).map(|n| (200 - n, 1))).iter().all(|(_, pages)| *pages == 1), "backwards");
            let every_other = fetched(max, (0..50).map(|n| (100 + 2 * n, 1)));
            assert_eq!(every_other.iter().map(|(_, pages)| pages).sum::<u64>(), 101);
            let expected = [(50, 3), (100, 1), (53, 4), (101, 1)];
            assert_eq!(fetched(max, [(50, 3), (100, 1), (53, 1), (101, 1), (54, 1)]), expected, "two streams");
        }
    }
}
