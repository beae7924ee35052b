//! Rules about names.

use crate::{Contents, Record};
use ashlar_vfs::{DirEntry, Errno, FileKind, NAME_LEN_MAX, Name, Result};

/// Names of one hash in a directory: positions that one takes.
pub const COLLISIONS_MAX: u64 = 256;
/// Longest target of a symbolic link, in bytes.
const TARGET_LEN_MAX: usize = 4095;
/// Cookies of `.` and `..`; those of entries are larger, for they are positions.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// A name that may be given, or has been.
pub fn check_name(name: &Name) -> Result<()> {
    check_name_len(name)?;
    let valid = !name.is_empty() && !name.contains(&b'/') && !name.contains(&0) && name != b"." && name != b"..";
    if valid { Ok(()) } else { Err(Errno::Invalid.into()) }
}

/// A name that may be looked up.
pub fn check_name_len(name: &Name) -> Result<()> {
    if name.len() > NAME_LEN_MAX { Err(Errno::NameTooLong.into()) } else { Ok(()) }
}

/// A target that a symbolic link may have.
pub fn check_target(target: &[u8]) -> Result<()> {
    if target.len() > TARGET_LEN_MAX { Err(Errno::NameTooLong.into()) } else { Ok(()) }
}

/// Whether `rmdir`, or `unlink`, takes something of this kind away.
pub fn check_removal(kind: FileKind, directory_wanted: bool) -> Result<()> {
    match (kind == FileKind::Directory, directory_wanted) {
        (true, false) => Err(Errno::IsDirectory.into()),
        (false, true) => Err(Errno::NotDirectory.into()),
        _ => Ok(()),
    }
}

/// The first of the [`COLLISIONS_MAX`] positions that a name may have in its directory. `bits` of the hash count, at most 55.
pub fn position_of(name: &Name, seed: u64, bits: u32) -> u64 {
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(name, seed) >> (64 - bits);
    hash.max(1) * COLLISIONS_MAX
}

/// Hands `.` and `..` of a directory to the sink of a listing, if they lie behind `cookie`. Gives the cookie behind which it goes on;
/// `None` if the sink takes no more.
pub fn list_dots<C: Contents>(
    directory: &Record<C>,
    mut cookie: u64,
    sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
) -> Option<u64> {
    for (own, name, ino) in [(DOT, &b"."[..], directory.ino), (DOT_DOT, b"..", directory.parent)] {
        if cookie < own {
            let entry = DirEntry { ino, cookie: own, kind: FileKind::Directory, name, attr: None };
            if !sink(entry) {
                return None;
            }
            cookie = own;
        }
    }
    Some(cookie)
}
