//! A file that exists for one open of ours.
//!
//! The kernel learns that it need not ask for opens and closes when an OPEN is declined, and until then sends a RELEASE for
//! every file that it has created. A program that only makes files never opens one, so we do it, once, at the beginning.

use crate::decode::{Operation, Request};
use crate::reply::{Reply, Timeouts};
use ashlar_vfs::{Attr, FileKind, Ino, ROOT};
use std::path::Path;
use std::process::{Command, Stdio};

/// No engine gives this number.
const INO: Ino = u64::MAX - 1;
/// How long the other program may take; a busy machine takes long to start one.
const PATIENCE: &str = "2s";

/// The file, by a name that nobody can guess.
pub(crate) struct Probe {
    name: String,
}

impl Probe {
    /// `chance` makes the name.
    pub(crate) fn new(chance: u64) -> Probe {
        Probe { name: format!(".ashlar-door-{chance:016x}") }
    }

    /// Opens it at the mount, by another program, since a server that waits for itself could not be killed; and waits until
    /// that is done, since nobody can unmount meanwhile. Where it fails it only costs speed.
    pub(crate) fn open(&self, mount: &Path) {
        let mut head = Command::new("timeout");
        head.args(["--signal=KILL", PATIENCE, "head", "-c", "0"]).arg(mount.join(&self.name));
        let _ = head.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }

    /// Answers what concerns the file. Whether it does.
    pub(crate) fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> bool {
        match (&request.operation, request.header.nodeid) {
            (Operation::Lookup { name }, ROOT) if *name == self.name.as_bytes() => {
                reply.put_entry(&attr(), &Timeouts::AT_ONCE)
            }
            (Operation::GetAttr(_), INO) => reply.put_attr(&attr(), &Timeouts::AT_ONCE),
            (Operation::Statx, INO) => reply.put_statx(&attr(), &Timeouts::AT_ONCE),
            (Operation::Forget { .. }, INO) => reply.silence(),
            (_, INO) => reply.fail(libc::ENOSYS),
            _ => return false,
        }
        true
    }
}

fn attr() -> Attr {
    Attr::plain(INO, FileKind::File, 0o400)
}
