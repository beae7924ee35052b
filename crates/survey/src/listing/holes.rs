//! Where a file has data.

use crate::chunk::fixed::BLOCK;
use crate::chunk::is_zero;
use ashlar_env::host::extents_in;
use rustix::fs::{SeekFrom, seek};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Extents of a range of data that are looked at; of what lies behind them all was written.
const EXTENTS_MAX: usize = 100_000;
/// Bytes that are read at once of what was never written.
const READ: u64 = 256 << 10;

/// Calls `each` with the ranges of data in a range of a file, for as long as it likes.
///
/// What was allocated and never written is a hole, for the kernel too; but once somebody has read it, its zeros are in the page
/// cache, and ext4 and xfs call that data. So blocks of zeros are holes there, whoever read them: the same files give the same
/// answer again.
pub fn segments(file: &File, from: u64, to: u64, each: &mut dyn FnMut(u64, u64) -> bool) -> io::Result<()> {
    let mut found = Joined { last: None, each };
    let mut at = from;
    while at < to {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin.max(at),
            Err(rustix::io::Errno::NXIO) => break,
            // The file system cannot tell: all is data.
            Err(_) => at,
        };
        if begin >= to {
            break;
        }
        let end = seek(file, SeekFrom::Hole(begin)).unwrap_or(to).clamp(begin + 1, to);
        if !written(file, begin, end, &mut found) {
            return Ok(());
        }
        at = end;
    }
    found.finish();
    Ok(())
}

/// Bytes of a file of this size that are not holes.
pub fn data_bytes(file: &File, size: u64) -> io::Result<u64> {
    let mut sum = 0;
    segments(file, 0, size, &mut |from, to| {
        sum += to - from;
        true
    })?;
    Ok(sum)
}

/// Adds what was written of a range that the kernel calls data. False: no more is wanted.
fn written(file: &File, from: u64, to: u64, found: &mut Joined<'_>) -> bool {
    let mut bytes = Vec::new();
    let mut at = from;
    // Where the file system cannot tell, all was written.
    for extent in
        extents_in(file, from..to, EXTENTS_MAX).unwrap_or_default().iter().filter(|extent| extent.is_unwritten())
    {
        let end = extent.logical.saturating_add(extent.len).min(to);
        if !found.add(at, extent.logical) {
            return false;
        }
        at = at.max(extent.logical);
        while at < end {
            bytes.resize((end.min((at / READ + 1) * READ) - at) as usize, 0);
            let is_read = file.read_exact_at(&mut bytes, at).is_ok();
            let head = (at.next_multiple_of(BLOCK as u64) - at) as usize;
            let (head, blocks) = bytes.split_at(bytes.len().min(head));
            for block in std::iter::once(head).chain(blocks.chunks(BLOCK)) {
                let next = at + block.len() as u64;
                // If it is not zero, somebody is just writing it.
                let is_hole = is_read && is_zero(block);
                if !is_hole && !found.add(at, next) {
                    return false;
                }
                at = next;
            }
        }
    }
    found.add(at, to)
}

/// Ranges side by side are one.
struct Joined<'a> {
    last: Option<(u64, u64)>,
    each: &'a mut dyn FnMut(u64, u64) -> bool,
}

impl Joined<'_> {
    /// Takes the next range, which may be empty. False: no more is wanted.
    fn add(&mut self, from: u64, to: u64) -> bool {
        match &mut self.last {
            _ if from >= to => true,
            Some((_, end)) if *end == from => {
                *end = to;
                true
            }
            last => last.replace((from, to)).is_none_or(|(from, to)| (self.each)(from, to)),
        }
    }

    fn finish(self) {
        if let Some((from, to)) = self.last {
            (self.each)(from, to);
        }
    }
}
