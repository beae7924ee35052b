//! Where a file has holes, while the page cache has writes of which the engine knows nothing.

use ashlar_vfs::{Errno, Error, FileSystem, Ino, Result, SeekWhat};

/// Answers `SEEK_DATA` or `SEEK_HOLE`. Linux asks without writing back first, so what the engine takes for a hole may be
/// data: a hole goes into the answer when it was there still after the page cache had dropped its pages of it.
pub(crate) async fn confirmed_seek<F: FileSystem, D: Future<Output = ()>>(
    fs: &F,
    ino: Ino,
    offset: u64,
    what: SeekWhat,
    drop_pages: impl Fn(u64, Option<u64>) -> D,
) -> Result<u64> {
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
        drop_pages(hole.0, hole.1).await;
        confirmed = Some(hole);
    }
}
