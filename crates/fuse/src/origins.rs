//! What overlayfs notes in an upper layer of where a file came from.
//!
//! It keeps the file handle of the original, in the layer below, in an attribute, so that a copy keeps the number of its inode. If the
//! layer below is a FUSE mount, Linux 6.16 and later (before, where a server cannot look up `/`) finds the original by its handle once
//! it has forgotten its name, and then takes it for gone, since FUSE gives what is found so no epoch; so the copy is `ESTALE`, after
//! mounting anew, where an overlay follows handles without a UUID (`redirect_dir`, `metacopy`). Without the note it does not look.
//! Overlayfs takes `EPERM` for a node that can have no such attribute, and goes on.

/// The attributes, of whoever may mount with them.
const NAMES: [&[u8]; 2] = [b"trusted.overlay.origin", b"user.overlay.origin"];
/// Version and magic of a handle of overlayfs.
const HEAD: [u8; 2] = [0, 0xfb];
/// Handles of FUSE mounts: an inode with its generation, and with its directory.
const KINDS: [u8; 2] = [0x81, 0x82];

/// Whether an attribute is the note of an original on a FUSE mount: version, magic, length, flags, kind, the UUID of its file system
/// (16 bytes; FUSE has none), and the handle.
pub(crate) fn is_of_fuse(name: &[u8], value: &[u8]) -> bool {
    let [version, magic, _len, _flags, kind, rest @ ..] = value else { return false };
    let no_uuid = rest.get(..16).is_some_and(|uuid| uuid.iter().all(|byte| *byte == 0));
    NAMES.contains(&name) && [*version, *magic] == HEAD && KINDS.contains(kind) && no_uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn originals_on_fuse_mounts_are_known() {
        let mut note = [0; 33];
        note[..5].copy_from_slice(&[0, 0xfb, 28, 0x80, 0x81]);
        note[21] = 7;
        assert!(NAMES.iter().all(|name| is_of_fuse(name, &note)));
        assert!(!is_of_fuse(b"trusted.overlay.redirect", &note));
        assert!(!is_of_fuse(NAMES[0], &note[..20]) && !is_of_fuse(NAMES[0], b""));
        // XFS has the same kind, and a UUID.
        let mut xfs = note;
        xfs[9] = 1;
        assert!(!is_of_fuse(NAMES[0], &xfs));
        // ext4.
        note[4] = 1;
        assert!(!is_of_fuse(NAMES[0], &note));
    }
}
