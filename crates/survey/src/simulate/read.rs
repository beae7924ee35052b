//! Reading versions into digests.

use super::packed::Packing;
use super::{Small, Version};
use crate::chunk::{digest, fixed, gear};
use crate::listing::{Listing, Look, WalkError};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a version cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A tree.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// A file.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// There is too much.
    #[error("digests of all versions take more than {0} bytes; give more with --memory, or fewer versions")]
    Memory(u64),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

struct Reader<'a> {
    version: Version,
    memory: u64,
    stop: &'a AtomicBool,
    progress: &'a dyn Fn(u64),
    /// Bytes of the stream that are no piece yet.
    rest: Vec<u8>,
    packing: Packing,
}

/// Reads a version: a file, or a tree whose files follow each other by path, as in an archive. Files that cannot be read are
/// left out; their paths are returned.
pub fn read(
    path: &Path,
    memory: u64,
    stop: &AtomicBool,
    progress: &dyn Fn(u64),
) -> Result<(Version, Vec<PathBuf>), ReadError> {
    let fail = |error| ReadError::File(path.to_path_buf(), error);
    let mut paths = vec![path.to_path_buf()];
    if std::fs::metadata(path).map_err(fail)?.is_dir() {
        let listing = Listing::walk(path, Look { now: 0, memory, stop, progress: &|_| {} })?;
        paths = listing.entries.iter().map(|entry| listing.path(entry)).collect();
        paths.sort();
    }
    let version = Version { name: path.to_string_lossy().into_owned(), ..Version::default() };
    let mut reader = Reader { version, memory, stop, progress, rest: Vec::new(), packing: Packing::new() };
    let mut left_out = Vec::new();
    for file in paths {
        match File::open(&file) {
            Ok(open) => {
                if let Err(error) = reader.file(open) {
                    match error {
                        ReadError::File(_, error) if file == path => return Err(ReadError::File(file, error)),
                        ReadError::File(..) => left_out.push(file),
                        other => return Err(other),
                    }
                }
            }
            Err(error) if file == path => return Err(ReadError::File(file, error)),
            Err(_) => left_out.push(file),
        }
    }
    reader.pieces(true);
    let Reader { mut version, packing, .. } = reader;
    packing.finish([&mut version.pieces, &mut version.blocks]);
    Ok((version, left_out))
}

impl Reader<'_> {
    fn file(&mut self, mut file: File) -> Result<(), ReadError> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Err(ReadError::Interrupted);
            }
            let mut len = 0;
            while len < buffer.len() {
                match file.read(&mut buffer[len..]) {
                    Ok(0) => break,
                    Ok(more) => len += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(ReadError::File(PathBuf::new(), error)),
                }
            }
            for bytes in buffer[..len].chunks(fixed::BLOCK) {
                let block = fixed::block(bytes);
                self.version.blocks.push(Small::new(block.digest, block.len, 0));
            }
            self.rest.extend_from_slice(&buffer[..len]);
            self.packing.add(&buffer[..len]);
            self.pieces(false);
            (self.progress)(len as u64);
            let smalls = self.version.blocks.capacity() + self.version.pieces.capacity();
            let taken = smalls * size_of::<Small>() + self.packing.taken();
            if taken as u64 > self.memory {
                return Err(ReadError::Memory(self.memory));
            }
            if len < buffer.len() {
                if let Some(last) = self.version.blocks.last_mut() {
                    last.level = 1;
                }
                return Ok(());
            }
        }
    }

    fn pieces(&mut self, ends: bool) {
        let mut at = 0;
        while at < self.rest.len() && (ends || self.rest.len() - at >= gear::PIECE_MAX) {
            let (len, level) = gear::first_piece(&self.rest[at..]);
            let digest = digest(&self.rest[at..at + len]);
            self.version.pieces.push(Small::new(digest, len as u32, level));
            at += len;
        }
        self.rest.drain(..at);
    }
}
