//! Bytes that do not compress, and are not the same twice.

use ashlar_models::Chance;
use ashlar_survey::sample::mix;

/// The longest piece.
pub const PIECE_MAX: usize = 1 << 20;
/// Places at which a piece begins.
const SHIFTS: usize = 4096;

/// See the module.
pub struct Noise(Vec<u8>);

impl Noise {
    /// Noise of a seed.
    pub fn new(seed: u64) -> Noise {
        let mut chance = Chance::new(seed);
        Noise((0..(PIECE_MAX + SHIFTS) / 8).flat_map(|_| chance.below(u64::MAX).to_le_bytes()).collect())
    }

    /// The bytes of something from `at` on; at most [`PIECE_MAX`]. Pieces differ, so that nothing that deduplicates finds more
    /// than there is.
    pub fn piece(&self, id: u64, at: u64, len: usize) -> &[u8] {
        let shift = mix(id, at) as usize % SHIFTS;
        &self.0[shift..shift + len.min(PIECE_MAX)]
    }
}
