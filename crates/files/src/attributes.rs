//! Attributes, plain and extended.

use crate::Files;
use crate::data::clear_setid;
use crate::inode::Inode;
use crate::keys;
use ashlar_pool::Txn;
use ashlar_vfs::{Attr, Errno, Ino, Name, Result, SetAttr, SetTime, XattrMode};
use bytes::Bytes;

/// Longest value of an extended attribute, in bytes: what Linux allows.
const XATTR_LEN_MAX: usize = 64 << 10;
/// Longest name of an extended attribute, in bytes.
const XATTR_NAME_LEN_MAX: usize = 255;
/// Names that begin like this mean something to the kernel, such as access control lists, which we do not enforce: better
/// to refuse them than to store a promise.
const SYSTEM_PREFIX: &[u8] = b"system.";
/// Keys read at once when names are listed.
const XATTR_PAGE: usize = 256;

impl Files {
    pub(crate) async fn attr(&self, inode: &Inode) -> Result<Attr> {
        let allocated = self.allocated(inode).await?;
        Ok(inode.state().record.attr(inode.ino, allocated))
    }

    pub(crate) async fn set_attr(&self, ino: Ino, changes: SetAttr) -> Result<Attr> {
        self.admit_change()?;
        let inode = self.inode(ino).await?;
        {
            let _exclusive = inode.lock.write().await;
            let now = self.now();
            let mut record = inode.record();
            let time = |time: SetTime| match time {
                SetTime::Now => now,
                SetTime::To(time) => time,
            };
            let before = record.clone();
            record.permissions = changes.permissions.unwrap_or(record.permissions);
            record.uid = changes.uid.unwrap_or(record.uid);
            record.gid = changes.gid.unwrap_or(record.gid);
            if changes.clear_setid {
                clear_setid(&mut record);
            }
            let only_times = record == before && changes.size.is_none();
            record.accessed = changes.accessed.map_or(record.accessed, time);
            record.modified = changes.modified.map_or(record.modified, time);
            record.changed = changes.changed.unwrap_or(now);
            match changes.size {
                Some(size) => {
                    if changes.modified.is_none() {
                        record.modified = now;
                    }
                    self.resize(&inode, record, size).await?;
                }
                None if only_times => {
                    let mut state = inode.state();
                    (state.record, state.dirty) = (record, true);
                }
                None => self.commit_record(Txn::new(), &inode, record).await?,
            }
        }
        self.attr(&inode).await
    }

    pub(crate) async fn get_xattr(&self, ino: Ino, name: &Name) -> Result<Bytes> {
        if name.starts_with(SYSTEM_PREFIX) {
            return Err(Errno::Unsupported.into());
        }
        let inode = self.inode(ino).await?;
        if !inode.state().record.has_xattrs {
            return Err(Errno::NoData.into());
        }
        self.volume.get(&keys::xattr(ino, name)).await?.ok_or_else(|| Errno::NoData.into())
    }

    pub(crate) async fn set_xattr(&self, ino: Ino, name: &Name, value: &[u8], mode: XattrMode) -> Result<()> {
        self.admit_change()?;
        if name.starts_with(SYSTEM_PREFIX) {
            return Err(Errno::Unsupported.into());
        }
        if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
            return Err(Errno::Invalid.into());
        }
        if value.len() > XATTR_LEN_MAX {
            return Err(Errno::TooBig.into());
        }
        let inode = self.inode(ino).await?;
        let _exclusive = inode.lock.write().await;
        let key = keys::xattr(ino, name);
        if mode != XattrMode::Set {
            let exists = self.volume.get(&key).await?.is_some();
            match (mode, exists) {
                (XattrMode::Create, true) => return Err(Errno::Exists.into()),
                (XattrMode::Replace, false) => return Err(Errno::NoData.into()),
                _ => {}
            }
        }
        let mut txn = Txn::new();
        self.volume.put(&mut txn, &key, Bytes::copy_from_slice(value));
        let mut record = inode.record();
        (record.has_xattrs, record.changed) = (true, self.now());
        self.commit_record(txn, &inode, record).await
    }

    pub(crate) async fn list_xattrs(&self, ino: Ino) -> Result<Vec<Bytes>> {
        let inode = self.inode(ino).await?;
        if !inode.state().record.has_xattrs {
            return Ok(Vec::new());
        }
        let (mut low, high) = (keys::xattr(ino, &[]), keys::xattr(ino + 1, &[]));
        let mut names = Vec::new();
        loop {
            let page = self.volume.page(&low, Some(&high), XATTR_PAGE).await?;
            names.extend(page.entries.iter().map(|(key, _)| Bytes::copy_from_slice(&key[9..])));
            match page.next {
                Some(next) => low = next.to_vec(),
                None => return Ok(names),
            }
        }
    }

    pub(crate) async fn remove_xattr(&self, ino: Ino, name: &Name) -> Result<()> {
        self.admit_change()?;
        let inode = self.inode(ino).await?;
        let _exclusive = inode.lock.write().await;
        let key = keys::xattr(ino, name);
        if !inode.state().record.has_xattrs || self.volume.get(&key).await?.is_none() {
            return Err(Errno::NoData.into());
        }
        let mut txn = Txn::new().deleting();
        self.volume.delete(&mut txn, &key);
        let mut record = inode.record();
        record.changed = self.now();
        self.commit_record(txn, &inode, record).await
    }
}
