//! Where a file has holes, while the page cache has writes of which the engine knows nothing.

use crate::serve::Kernel;
use ashlar_vfs::{Errno, Error, FileSystem, Ino, Result, SeekWhat};
use rustix::param::page_size;

/// Answers `SEEK_DATA` or `SEEK_HOLE`. Linux asks without writing back first, so what the engine takes for a hole may be
/// data: a hole goes into the answer when it was there still after the page cache had dropped its pages of it.
///
/// The page at the end of a file holds data before that, which would have to be read again. It stays if the page cache has
/// nothing behind the end that we know: nobody can write there meanwhile, for Linux holds the inode's lock while it asks.
pub(crate) async fn confirmed_seek<F: FileSystem, K: Kernel>(
    fs: &F,
    kernel: &K,
    ino: Ino,
    offset: u64,
    what: SeekWhat,
) -> Result<u64> {
    // Pages of the page cache begin at multiples of it.
    let page = page_size() as u64;
    let mut confirmed = None;
    loop {
        let answer = fs.seek(ino, offset, what).await;
        let hole = match (what, &answer) {
            (SeekWhat::Data, Ok(data)) => (offset, Some(*data)),
            (SeekWhat::Data, Err(Error { errno: Errno::NoSuchAddress, .. })) => (offset, None),
            // The end of a file is a hole too, and the page cache may know of a later end.
            (SeekWhat::Hole, Ok(hole)) => (*hole, fs.seek(ino, *hole, SeekWhat::Data).await.ok()),
            (SeekWhat::Hole, Err(Error { errno: Errno::NoSuchAddress, .. })) => (offset, None),
            (_, Err(_)) => return answer,
        };
        if hole.1 == Some(hole.0) || confirmed == Some(hole) {
            return answer;
        }
        let from = match hole {
            (from, None) if from % page != 0 && !kernel.has_byte(ino, from).await => from.next_multiple_of(page),
            (from, _) => from,
        };
        kernel.drop_pages(ino, from, hole.1).await;
        confirmed = Some(hole);
    }
}
