//! What of a device survives a restart, as little-endian numbers in a row. What is read back is checked against the
//! description of the device: it comes from a file.

use std::io::{self, Read, Write};

/// Why a saved state was not taken.
pub(crate) fn refuse(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the saved state of the device {why}"))
}

/// Refuses the state unless `holds`.
pub(crate) fn require(holds: bool, why: &str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(refuse(why)) }
}

pub(crate) fn put(to: &mut dyn Write, number: u64) -> io::Result<()> {
    to.write_all(&number.to_le_bytes())
}

pub(crate) fn put_all(to: &mut dyn Write, numbers: &[u32]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 << 10);
    numbers.chunks(1 << 10).try_for_each(|chunk| {
        bytes.clear();
        chunk.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        to.write_all(&bytes)
    })
}

/// Numbers with their count before them.
pub(crate) fn put_list(to: &mut dyn Write, numbers: &[u32]) -> io::Result<()> {
    put(to, numbers.len() as u64)?;
    put_all(to, numbers)
}

pub(crate) fn take(from: &mut dyn Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Fills `numbers`.
pub(crate) fn take_all(from: &mut dyn Read, numbers: &mut [u32]) -> io::Result<()> {
    let mut bytes = vec![0; 4 << 10];
    numbers.chunks_mut(1 << 10).try_for_each(|chunk| {
        let bytes = &mut bytes[..4 * chunk.len()];
        from.read_exact(bytes)?;
        for (number, bytes) in chunk.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *number = u32::from_le_bytes(*bytes);
        }
        Ok(())
    })
}

/// Numbers with their count before them, at most `most`.
pub(crate) fn take_list(from: &mut dyn Read, most: usize) -> io::Result<Vec<u32>> {
    let count = take(from)?;
    require(count <= most as u64, "has a list that is too long")?;
    let mut numbers = vec![0; count as usize];
    take_all(from, &mut numbers)?;
    Ok(numbers)
}

/// Marks blocks that have a place; each may have one.
pub(crate) struct Placed(Vec<bool>);

impl Placed {
    pub(crate) fn new(blocks: u32) -> Placed {
        Placed(vec![false; blocks as usize])
    }
    pub(crate) fn is_placed(&self, block: u32) -> bool {
        self.0[block as usize]
    }
    /// Gives `block`, which must lie in `range`, a place.
    pub(crate) fn place(&mut self, block: u32, range: &std::ops::Range<u32>) -> io::Result<()> {
        require(range.contains(&block), "names a block that is elsewhere")?;
        require(!std::mem::replace(&mut self.0[block as usize], true), "has a block at two places")
    }
}
