//! Where files lie on the devices.

use crate::Files;
use crate::keys::base_of;
use ashlar_inodes::{BLOCK, InodeStore};
use ashlar_pool::map::Form;
use ashlar_units::{Blocks, Bytes, Lba};
use ashlar_vfs::{Ino, Result};
use std::ops::Range;

/// A part of a file that lies in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes on the devices, one after the other; of a compressed part, all of what it is unpacked from.
    pub at: Range<u64>,
    /// Whether it is compressed.
    pub packed: bool,
}

impl Files {
    /// The pieces of a file, in its order; what is on its way to the medium has its place already.
    pub async fn places(&self, ino: Ino) -> Result<Vec<Piece>> {
        let (base, size) = {
            let inode = self.load(ino).await?;
            let record = inode.record();
            self.remove_unused(inode);
            (base_of(&record), record.size.min(record.contents.blocks_max() * BLOCK))
        };
        let runs = self.volume.runs(base, Blocks(size.div_ceil(BLOCK))).await?;
        let pool = self.volume.pool();
        let piece = |(from, run): &(Lba, ashlar_pool::map::Run)| {
            let Bytes(offset) = (*from - base).to_bytes();
            Some(Piece { offset, at: pool.place_of(run)?, packed: matches!(run.form, Form::Lz4 | Form::Zstd) })
        };
        Ok(runs.iter().filter_map(piece).collect())
    }
}
