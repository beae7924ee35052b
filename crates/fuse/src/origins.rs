//! What overlayfs notes in an upper layer of where things came from.
//!
//! It keeps the file handle of an original, in the layer below, in an attribute of its copy, so that this keeps the number of the
//! inode. If the layer below is a FUSE mount, Linux (6.16 and later; seen with 6.18) finds the original by its handle once it has
//! forgotten its name, and then takes it for gone, since FUSE gives what is found so no epoch. So after mounting anew the copy is
//! `ESTALE`, where an overlay follows handles without a UUID (`redirect_dir`, `metacopy`). Without the note it does not look: it takes
//! `EPERM` for a node that can have no such attribute, and goes on. Of a directory the note is never followed, and says that whiteouts
//! may be in it, so directories may have it.
//!
//! An index (`index=on`, `nfs_export=on`) is nothing but handles, so that is refused when it is mounted.

use ashlar_vfs::{Errno, FileKind};

/// The original of a copy, in overlays of root and of others.
const ORIGINS: [&[u8]; 2] = [b"trusted.overlay.origin", b"user.overlay.origin"];
/// The directory of which an index is.
const INDEXES: [&[u8]; 2] = [b"trusted.overlay.upper", b"user.overlay.upper"];
/// Version and magic of a handle of overlayfs.
const HEAD: [u8; 2] = [0, 0xfb];
/// Handles of FUSE mounts: an inode with its generation, and with its directory.
const KINDS: [u8; 2] = [0x81, 0x82];

/// Whether overlayfs keeps something in an attribute.
pub(crate) fn is_of_overlayfs(name: &[u8]) -> bool {
    [&b"trusted.overlay."[..], b"user.overlay."].iter().any(|prefix| name.starts_with(prefix))
}

/// Why an attribute is not set: it is a note of what lies on a FUSE mount.
pub(crate) fn refusal(name: &[u8], value: &[u8], of: FileKind) -> Option<Errno> {
    match name {
        name if ORIGINS.contains(&name) && of != FileKind::Directory => {
            is_of_fuse(value).then_some(Errno::NotPermitted)
        }
        name if INDEXES.contains(&name) => is_of_fuse(value).then_some(Errno::Unsupported),
        _ => None,
    }
}

/// Whether it is the handle of something on a FUSE mount: version, magic, length, flags, kind, the UUID of its file system (16
/// bytes; FUSE has none), and the handle.
fn is_of_fuse(value: &[u8]) -> bool {
    let [version, magic, _len, _flags, kind, rest @ ..] = value else { return false };
    let no_uuid = rest.get(..16).is_some_and(|uuid| uuid.iter().all(|byte| *byte == 0));
    [*version, *magic] == HEAD && KINDS.contains(kind) && no_uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_fuse_mounts_are_known() {
        let mut note = [0; 33];
        note[..5].copy_from_slice(&[0, 0xfb, 28, 0x80, 0x81]);
        note[21] = 7;
        let file = |name: &[u8], value: &[u8]| refusal(name, value, FileKind::File);
        assert!(ORIGINS.iter().all(|name| file(name, &note) == Some(Errno::NotPermitted)));
        assert_eq!(refusal(ORIGINS[0], &note, FileKind::Directory), None);
        assert_eq!(refusal(INDEXES[0], &note, FileKind::Directory), Some(Errno::Unsupported));
        assert_eq!(file(b"trusted.overlay.redirect", &note), None);
        assert_eq!((file(ORIGINS[0], &note[..20]), file(ORIGINS[0], b"")), (None, None));
        // XFS has the same kind, and a UUID.
        let mut xfs = note;
        xfs[9] = 1;
        assert_eq!(file(ORIGINS[0], &xfs), None);
        // ext4.
        note[4] = 1;
        assert_eq!(file(ORIGINS[0], &note), None);
    }
}
