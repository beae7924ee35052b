//! Attributes, plain and extended.

use crate::Files;
use crate::data::{BLOCK, blocks_of, clear_setid};
use crate::inode::Inode;
use crate::keys;
use ashlar_pool::Txn;
use ashlar_vfs::acl::{self, Acl};
use ashlar_vfs::{Attr, Errno, FileKind, Ino, Name, Result, SetAttr, SetTime, XattrMode};
use bytes::Bytes;

/// Longest value of an extended attribute, in bytes: what Linux allows.
const XATTR_LEN_MAX: usize = 64 << 10;
/// Longest name of an extended attribute, in bytes.
const XATTR_NAME_LEN_MAX: usize = 255;
/// Names that begin like this mean something to the kernel. But for access control lists we refuse them: better that than
/// to store a promise.
const SYSTEM_PREFIX: &[u8] = b"system.";
/// Keys read at once when names are listed.
const XATTR_PAGE: usize = 256;

impl Files {
    /// Attributes as they are known. What a sparse file takes may be estimated by its size: files are written much more often
    /// than that is wanted.
    pub(crate) fn attr(inode: &Inode) -> Attr {
        let state = inode.state();
        let allocated = Files::allocated_known(&state);
        let estimate = || blocks_of(state.record.size) * BLOCK;
        let attr = state.record.attr(inode.ino, allocated.unwrap_or_else(estimate));
        Attr { estimated: allocated.is_none(), ..attr }
    }

    /// Attributes as they are.
    pub(crate) async fn exact_attr(&self, inode: &Inode) -> Result<Attr> {
        let attr = Files::attr(inode);
        if !attr.estimated {
            return Ok(attr);
        }
        let allocated = self.count_allocated(inode).await?;
        Ok(Attr { allocated, estimated: false, ..Files::attr(inode) })
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
            let mut txn = Txn::new();
            if changes.permissions.is_some()
                && let Some(list) = self.acl(&inode, acl::ACCESS).await?
            {
                let list = list.with_mode(record.permissions);
                self.volume.put(&mut txn, &keys::xattr(ino, acl::ACCESS), list.encode());
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
                None => self.commit_record(txn, &inode, record).await?,
            }
        }
        Ok(Files::attr(&inode))
    }

    pub(crate) async fn get_xattr(&self, ino: Ino, name: &Name) -> Result<Bytes> {
        Self::check_namespace(name)?;
        let inode = self.inode(ino).await?;
        if !inode.state().record.has_xattrs {
            return Err(Errno::NoData.into());
        }
        self.volume.get(&keys::xattr(ino, name)).await?.ok_or_else(|| Errno::NoData.into())
    }

    pub(crate) async fn set_xattr(&self, ino: Ino, name: &Name, value: &[u8], mode: XattrMode) -> Result<()> {
        self.admit_change()?;
        Self::check_namespace(name)?;
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
        let mut record = inode.record();
        (record.has_xattrs, record.changed) = (true, self.now());
        let list = if name == acl::ACCESS || name == acl::DEFAULT { Some(Acl::decode(value)?) } else { None };
        if name == acl::DEFAULT && record.kind != FileKind::Directory {
            return Err(Errno::AccessDenied.into());
        }
        match list.filter(|_| name == acl::ACCESS) {
            Some(list) => {
                record.permissions = record.permissions & !0o777 | list.mode();
                if list.is_plain() {
                    self.volume.delete(&mut txn, &key);
                } else {
                    self.volume.put(&mut txn, &key, list.encode());
                }
            }
            None => self.volume.put(&mut txn, &key, Bytes::copy_from_slice(value)),
        }
        self.commit_record(txn, &inode, record).await
    }

    fn check_namespace(name: &Name) -> Result<()> {
        let known = name == acl::ACCESS || name == acl::DEFAULT || !name.starts_with(SYSTEM_PREFIX);
        if known { Ok(()) } else { Err(Errno::Unsupported.into()) }
    }

    /// An access control list.
    pub(crate) async fn acl(&self, inode: &Inode, name: &Name) -> Result<Option<Acl>> {
        if !inode.state().record.has_xattrs {
            return Ok(None);
        }
        let stored = self.volume.get(&keys::xattr(inode.ino, name)).await?;
        stored.map(|bytes| Acl::decode(&bytes)).transpose()
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
