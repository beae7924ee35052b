//! lz4 with memory that is used again: a table and room for the result, which for a node of 256 KiB are half a megabyte that the
//! library would clear each time.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

/// Inputs below this length go with the small table.
const SMALL_LEN: usize = 1 << 16;

/// A compressor. Grows to the longest input.
pub struct Lz4 {
    small: CompressTable,
    large: CompressTable,
    output: Vec<u8>,
}

impl Default for Lz4 {
    fn default() -> Lz4 {
        Lz4 { small: CompressTable::small(), large: CompressTable::large(), output: Vec::new() }
    }
}

impl Lz4 {
    /// The compressed form, a block without its length.
    pub fn pack(&mut self, data: &[u8]) -> &[u8] {
        let room = get_maximum_output_size(data.len());
        if self.output.len() < room {
            self.output.resize(room, 0);
        }
        let table = if data.len() < SMALL_LEN { &mut self.small } else { &mut self.large };
        let len =
            compress_into_with_table(data, &mut self.output, table).expect("there is room for the longest result");
        &self.output[..len]
    }
}
