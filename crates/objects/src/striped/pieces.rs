//! Pieces, written and read several at once.

use super::{ASYNC, AT_ONCE, Striped};
use crate::manifest::{Manifest, Run, piece_name};
use crate::{Attributes, Condition, Error, Put, Result, len_of};
use bytes::Bytes;

impl Striped {
    pub(super) fn fresh(&self) -> u128 {
        (u128::from(self.env.random()) << 64 | u128::from(self.env.random())).max(1)
    }

    /// Writes contents as pieces of a stripe from byte `skip` of it on, which is where a piece begins.
    pub(super) async fn write_pieces(&self, run: Run, mut data: Vec<Bytes>) -> Result<()> {
        let mut pieces = run.pieces(self.piece).peekable();
        while pieces.peek().is_some() {
            let mut tasks = Vec::with_capacity(AT_ONCE);
            for piece in pieces.by_ref().take(AT_ONCE) {
                let content = take_front(&mut data, self.piece);
                let (inner, name) = (self.inner.clone(), piece_name(piece)?);
                let put = Put { change: ASYNC, expected: Some(self.piece), attributes: Attributes::new() };
                tasks.push(self.env.spawn(async move { inner.put(&name, content, put).await }));
            }
            for task in tasks {
                task.await?;
            }
        }
        Ok(())
    }

    /// The bytes of a manifest.
    pub(super) async fn read_runs(&self, manifest: &Manifest) -> Result<Vec<Bytes>> {
        let mut parts = Vec::new();
        for run in &manifest.0 {
            if run.stripe == 0 {
                parts.push((None, 0..run.len));
            }
            for piece in run.pieces(self.piece) {
                let start = piece.1 * self.piece;
                let low = run.skip.max(start) - start;
                parts.push((Some(piece), low..(run.skip + run.len - start).min(self.piece)));
            }
        }
        let mut data = Vec::with_capacity(parts.len());
        for parts in parts.chunks(AT_ONCE) {
            let mut tasks = Vec::with_capacity(parts.len());
            for (piece, range) in parts {
                let (inner, piece, range) = (self.inner.clone(), *piece, range.clone());
                tasks.push(self.env.spawn(async move {
                    let Some(piece) = piece else { return Ok(zeros(range.end)) };
                    let object = inner.get(&piece_name(piece)?, range.clone(), Condition::Any).await?;
                    if len_of(&object.data) != range.end - range.start {
                        let message = format!("piece {} of stripe {:x} is too short", piece.1, piece.0);
                        return Err(Error::Storage(ashlar_block::Error::corrupt(message)));
                    }
                    Ok(object.data)
                }));
            }
            for task in tasks {
                data.extend(task.await?);
            }
        }
        Ok(data)
    }
}

/// So many bytes of zeros, in pieces that share memory.
pub(super) fn zeros(len: u64) -> Vec<Bytes> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let whole = std::iter::repeat_n(ZEROS.len() as u64, (len / ZEROS.len() as u64) as usize);
    whole.chain([len % ZEROS.len() as u64]).map(|len| Bytes::from_static(&ZEROS[..len as usize])).collect()
}

/// Takes up to `len` bytes from the front.
pub(super) fn take_front(data: &mut Vec<Bytes>, len: u64) -> Vec<Bytes> {
    let (mut left, mut taken, mut used) = (len as usize, Vec::new(), 0);
    for piece in data.iter_mut() {
        let part = piece.split_to(left.min(piece.len()));
        left -= part.len();
        if !part.is_empty() {
            taken.push(part);
        }
        if !piece.is_empty() {
            break;
        }
        used += 1;
    }
    data.drain(..used);
    taken
}

/// `len` bytes from byte `skip` on.
pub(super) fn cut(data: &[Bytes], skip: u64, len: u64) -> Vec<Bytes> {
    let mut data = data.to_vec();
    take_front(&mut data, skip);
    take_front(&mut data, len)
}
