//! Content-defined chunks of any mean, as runs of pieces.
//!
//! Departs: FastCDC scans the bytes once for each mean and masks; here the cuts of the one pass over pieces are taken, so a
//! chunk ends only where a piece does. Where the longest length is reached, the chunk ends at the latest cut of the highest
//! level so far, as Kruus et al. (FAST '10, section 2.2) do with backup cut-points, and not at an arbitrary byte.

/// When a chunk ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// No cut before so many bytes.
    pub min: u32,
    /// Here the level changes from `strict` to `loose`.
    pub normal: u32,
    /// No chunk is longer, unless a single piece is.
    pub max: u32,
    /// Level of a cut before `normal`.
    pub strict: u32,
    /// Level of a cut from `normal` on.
    pub loose: u32,
}

impl Params {
    /// FastCDC-style, normalised by one level: from a quarter to four times the mean, which is a power of two.
    pub fn fast(mean: u32) -> Params {
        let level = mean.ilog2();
        Params { min: mean / 4, normal: mean, max: mean.saturating_mul(4), strict: level + 1, loose: level - 1 }
    }
    /// As Kruus et al.: min, mean and max as 1:2:3, so that `mean = min + 2^level`.
    pub fn classic(level: u32) -> Params {
        let unit = 1u32 << level;
        Params { min: unit, normal: 0, max: unit.saturating_mul(3), strict: level, loose: level }
    }
}

/// Finds the ends of chunks in a stream of pieces.
#[derive(Clone, Debug)]
pub struct Cutter {
    params: Params,
    /// Since the last cut.
    len: u32,
    /// The best cut to fall back on: its level, and the length up to it.
    backup: Option<(u32, u32)>,
    /// Cuts and levels since the backup, which is where the next chunk would begin.
    since: Vec<(u32, u32)>,
    /// Pieces that are still to be looked at; empty between calls.
    pending: Vec<(u32, u32)>,
}

impl Cutter {
    /// A cutter at the beginning of a chunk.
    pub fn new(params: Params) -> Cutter {
        Cutter { params, len: 0, backup: None, since: Vec::new(), pending: Vec::new() }
    }

    /// No chunk is longer, unless a single piece is.
    pub fn longest(&self) -> u32 {
        self.params.max
    }

    /// Begins anew in the middle of a chunk, of which so many bytes without a cut are known.
    pub fn restart(&mut self, len: u32) {
        self.clear();
        if len > 0 {
            self.push(len, 0, |_, _| {});
        }
    }

    /// Takes a piece; calls `cut` with the length of each chunk that ends by that, from the first on, and whether it ends
    /// where its content says so.
    pub fn push(&mut self, piece: u32, level: u32, mut cut: impl FnMut(u32, bool)) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.push((piece, level));
        while let Some((piece, level)) = pending.pop() {
            let Params { min, normal, max, strict, loose } = self.params;
            let len = self.len.saturating_add(piece);
            if let Some((_, at)) = self.backup.filter(|_| len > max) {
                // Too long: it ended at the backup. What came after begins the next one, and is looked at again.
                cut(at, false);
                pending.push((piece, level));
                pending.extend(self.since.drain(..).rev());
                (self.len, self.backup) = (0, None);
                continue;
            }
            if len >= min && level >= if len < normal { strict } else { loose } {
                cut(len, true);
                self.clear();
                continue;
            }
            self.len = len;
            self.since.push((piece, level));
            if len >= min && self.backup.is_none_or(|(best, _)| level >= best) {
                self.backup = Some((level, len));
                self.since.clear();
            }
            if len >= max && self.backup.is_some_and(|(_, at)| at == len) {
                cut(len, false);
                self.clear();
            }
        }
        self.pending = pending;
    }

    /// The stream ends: the rest is a chunk, or none if there is no rest.
    pub fn finish(&mut self) -> Option<u32> {
        let len = self.len;
        self.clear();
        (len > 0).then_some(len)
    }

    fn clear(&mut self) {
        self.len = 0;
        self.backup = None;
        self.since.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::gear;
    use ashlar_models::Chance;

    fn chunks(params: Params, pieces: &[(usize, u32)]) -> Vec<u32> {
        let (mut cutter, mut chunks) = (Cutter::new(params), Vec::new());
        pieces.iter().for_each(|(len, level)| cutter.push(*len as u32, *level, |len, _| chunks.push(len)));
        chunks.extend(cutter.finish());
        chunks
    }

    #[test]
    fn a_chunk_that_becomes_too_long_ends_at_the_latest_cut_of_the_highest_level() {
        let params = Params { min: 100, normal: 0, max: 300, strict: 12, loose: 12 };
        let pieces = [(60, 11), (60, 0), (60, 11), (60, 11), (50, 0), (60, 0), (60, 12)];
        // 60+60 (level 0), +60 (level 11), +60 (level 11, later), +50; the next would be 350.
        assert_eq!(chunks(params, &pieces), [240, 170]);
    }

    #[test]
    fn chunks_have_the_mean_that_was_asked_for() {
        let mut chance = Chance::new(1);
        let bytes: Vec<u8> = (0..8 << 20).map(|_| chance.below(256) as u8).collect();
        let pieces = gear::pieces(&bytes);
        for mean in [4 << 10, 8 << 10, 32 << 10] {
            let chunks = chunks(Params::fast(mean), &pieces);
            assert_eq!(chunks.iter().map(|len| u64::from(*len)).sum::<u64>(), 8 << 20);
            let found = (8 << 20) as f64 / chunks.len() as f64;
            // FastCDC's means lie above the nominal one, by less than a third and the least length.
            assert!((0.9..1.5).contains(&(found / f64::from(mean))), "{mean}: {found}");
            assert!(chunks.iter().all(|len| *len <= 4 * mean));
        }
    }
}
