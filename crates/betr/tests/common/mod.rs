//! What the tests of the engine share.

pub use ashlar_env::sim::simulate;
use ashlar_vfs::{FileKind, NewNode};

/// Something new that belongs to root.
pub fn node(kind: FileKind) -> NewNode {
    NewNode { kind, permissions: 0o755, uid: 0, gid: 0, device: 0, umask: 0, open: false }
}
