//! Compression of extents, with memory that is used again.

use crate::Compression;
use crate::map::Form;
use bytes::Bytes;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use parking_lot::Mutex;

/// Inputs below this length go with the small table.
const SMALL_LEN: usize = 1 << 16;

/// Compressors, as many as were ever at work at once.
#[derive(Default)]
pub(crate) struct Packers(Mutex<Vec<Packer>>);

/// A compressor.
struct Packer {
    small: CompressTable,
    large: CompressTable,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    output: Vec<u8>,
}

impl Packers {
    /// The compressed form, if it saves at least an eighth.
    pub(crate) fn pack(&self, data: &[u8], how: Compression) -> Option<(Form, Bytes)> {
        if how == Compression::Off {
            return None;
        }
        let idle = self.0.lock().pop();
        let mut packer = idle.unwrap_or_else(Packer::new);
        let form = packer.pack(data, how);
        let packed = form.filter(|(_, len)| *len < data.len() / 8 * 7);
        let packed = packed.map(|(form, len)| (form, Bytes::copy_from_slice(&packer.output[..len])));
        self.0.lock().push(packer);
        packed
    }
}

impl Packer {
    fn new() -> Packer {
        Packer { small: CompressTable::small(), large: CompressTable::large(), zstd: None, output: Vec::new() }
    }

    /// Compresses into `output`; gives the length. `None` where the compressor fails.
    fn pack(&mut self, data: &[u8], how: Compression) -> Option<(Form, usize)> {
        let room = get_maximum_output_size(data.len()).max(zstd::zstd_safe::compress_bound(data.len()));
        if self.output.len() < room {
            self.output.resize(room, 0);
        }
        match how {
            Compression::Off => None,
            Compression::Lz4 => {
                let table = if data.len() < SMALL_LEN { &mut self.small } else { &mut self.large };
                compress_into_with_table(data, &mut self.output, table).ok().map(|len| (Form::Lz4, len))
            }
            Compression::Zstd(level) => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Compressor::new(level).ok();
                }
                let len = self.zstd.as_mut()?.compress_to_buffer(data, &mut self.output[..]).ok()?;
                Some((Form::Zstd, len))
            }
        }
    }
}
