//! What the kernel knows of names.

use crate::abi::{EXPIRE_ONLY, NOTIFY_INVAL_ENTRY, NotifyInvalEntryOut, OutHeader};
use crate::mount::State;
use crate::sys;
use ashlar_vfs::{Ino, Name};
use std::io;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Names of a mount, as the kernel has them in memory.
pub struct Dentries(pub(crate) Arc<State>);

impl Dentries {
    /// Has the kernel forget a name, which was moved or removed without it, with all that it knows below; not from a worker, which must
    /// serve those whom this waits for. What is mounted below is detached. With a tree of many names in memory it takes long.
    ///
    /// # Errors
    /// If it does not take notices any more.
    pub fn forget(&self, parent: Ino, name: &Name) -> io::Result<()> {
        self.notify(parent, name, 0)
    }

    /// Has the kernel ask for a name when somebody uses it again; not from a worker. At once, whatever is below (Linux 6.2; before, it is
    /// forgotten).
    ///
    /// # Errors
    /// If it does not take notices any more.
    pub fn expire(&self, parent: Ino, name: &Name) -> io::Result<()> {
        self.notify(parent, name, EXPIRE_ONLY)
    }

    fn notify(&self, parent: Ino, name: &Name, flags: u32) -> io::Result<()> {
        let notice = NotifyInvalEntryOut { parent, name_len: name.len() as u32, flags };
        let len = size_of::<OutHeader>() + size_of::<NotifyInvalEntryOut>() + name.len() + 1;
        let header = OutHeader { len: len as u32, error: NOTIFY_INVAL_ENTRY, unique: 0 };
        match sys::write(&self.0.notices, &[header.as_bytes(), notice.as_bytes(), name, &[0]].concat(), &[]) {
            // It does not know the name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            sent => sent.map(drop),
        }
    }
}
