//! Compression of extents, with memory that is used again.

use crate::Compression;
use crate::map::Form;
use ashlar_index::Lz4;
use bytes::Bytes;
use parking_lot::Mutex;

/// Compressors, as many as were ever at work at once.
#[derive(Default)]
pub(crate) struct Packers(Mutex<Vec<Packer>>);

/// A compressor.
#[derive(Default)]
struct Packer {
    lz4: Lz4,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    /// What zstd made last.
    output: Vec<u8>,
}

impl Packers {
    /// The compressed form, if it saves at least an eighth.
    pub(crate) fn pack(&self, data: &[u8], how: Compression) -> Option<(Form, Bytes)> {
        if how == Compression::Off {
            return None;
        }
        let idle = self.0.lock().pop();
        let mut packer = idle.unwrap_or_default();
        let packed = packer.pack(data, how).filter(|(_, packed)| packed.len() < data.len() / 8 * 7);
        let packed = packed.map(|(form, packed)| (form, Bytes::copy_from_slice(packed)));
        self.0.lock().push(packer);
        packed
    }
}

impl Packer {
    /// The compressed form. `None` where the compressor fails.
    fn pack(&mut self, data: &[u8], how: Compression) -> Option<(Form, &[u8])> {
        match how {
            Compression::Off => None,
            Compression::Lz4 => Some((Form::Lz4, self.lz4.pack(data))),
            Compression::Zstd(level) => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Compressor::new(level).ok();
                }
                let room = zstd::zstd_safe::compress_bound(data.len());
                if self.output.len() < room {
                    self.output.resize(room, 0);
                }
                let len = self.zstd.as_mut()?.compress_to_buffer(data, &mut self.output[..]).ok()?;
                Some((Form::Zstd, &self.output[..len]))
            }
        }
    }
}
