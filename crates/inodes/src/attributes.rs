//! Attributes, plain and extended.
//!
//! Extended attributes lie under keys of their own, whatever else an engine has in its dictionary: `X`, the inode's number as 8 bytes,
//! big-endian, and the name.

use crate::{BLOCK, Inode, InodeStore, RecordOf};
use ashlar_env::Instant;
use ashlar_pool::Txn;
use ashlar_vfs::acl::{self, Acl};
use ashlar_vfs::{Attr, Errno, FileKind, Ino, Name, NewNode, Result, SetAttr, XattrMode};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Longest value of an extended attribute, in bytes: what Linux allows.
const XATTR_LEN_MAX: usize = 64 << 10;
/// Longest name of an extended attribute, in bytes.
const XATTR_NAME_LEN_MAX: usize = 255;
/// Names that begin like this mean something to the kernel. But for access control lists we refuse them: better that than
/// to store a promise.
const SYSTEM_PREFIX: &[u8] = b"system.";
/// Keys read at once when names are listed: their values come with them.
const XATTR_PAGE: usize = 256;
const XATTR: u8 = b'X';
/// Bytes of a key before the name.
const XATTR_KEY_HEAD: usize = 9;

/// The key of an extended attribute.
pub fn xattr_key(ino: Ino, name: &Name) -> Vec<u8> {
    [&[XATTR], &ino.to_be_bytes()[..], name].concat()
}

/// The keys of all extended attributes of an inode: from the first on, below the second.
pub fn xattr_keys(ino: Ino) -> (Vec<u8>, Vec<u8>) {
    (xattr_key(ino, &[]), xattr_key(ino + 1, &[]))
}

/// Counting what a sparse file takes is short if no more keys are looked at.
const KEYS_OF_SHORT: usize = 4096;
/// After a long counting so many times its time goes by until the next one, whatever changes.
const REST: u32 = 20;

/// Attributes as they are. What a large sparse file takes, which somebody changes, may be as it was a short while ago: the kernel asks
/// after each `fsync` and each hole that is punched, and to count takes as long as there are pieces of it.
pub async fn counted_attr<S: InodeStore>(store: &S, inode: &Arc<Inode<S::Cell>>) -> Result<Attr> {
    let env = store.volume().pool().env();
    let began = env.now();
    let lately = inode.state().attr_at(Some(began));
    if lately.estimated.is_none_or(|lasts| lasts > Duration::ZERO) {
        return Ok(lately);
    }
    let counted = store.count_stored(inode).await?;
    let now = env.now();
    let rest = if counted.keys > KEYS_OF_SHORT { now.since(began) * REST } else { Duration::ZERO };
    let until = Instant(now.0.saturating_add(rest.as_nanos() as u64));
    let mut state = inode.state();
    state.note_count(counted, until);
    // It is an estimate if contents changed meanwhile.
    Ok(Attr { allocated: counted.blocks * BLOCK, ..state.attr_at(Some(now)) })
}

/// Changes attributes, all or none.
pub async fn set_attr<S: InodeStore>(store: &S, ino: Ino, changes: SetAttr) -> Result<Attr> {
    store.admit_change()?;
    let inode = store.load(ino).await?;
    {
        let _exclusive = inode.lock.write().await;
        let (now, before) = (store.now(), inode.record());
        let mut record = before.clone();
        record.set_owner_and_mode(&changes);
        let mut txn = Txn::new();
        if changes.permissions.is_some()
            && let Some(list) = list_of(store, &inode, acl::ACCESS).await?
        {
            let list = list.with_mode(record.permissions);
            store.volume().put(&mut txn, &xattr_key(ino, acl::ACCESS), list.encode());
        }
        let only_times = record == before;
        record.set_times(&changes, now);
        match changes.size {
            Some(size) => {
                record.check_file()?;
                if size > S::SIZE_MAX {
                    return Err(Errno::FileTooBig.into());
                }
                store.resize(txn, &inode, record, size).await?;
            }
            None if only_times => {
                let mut state = inode.state();
                (state.record, state.dirty) = (record, true);
            }
            None => store.commit_record(txn, &inode, record).await?,
        }
    }
    Ok(inode.attr())
}

/// An access control list of an inode.
async fn list_of<S: InodeStore>(store: &S, inode: &Inode<S::Cell>, name: &Name) -> Result<Option<Acl>> {
    if !inode.state().record.has_xattrs {
        return Ok(None);
    }
    let stored = store.volume().get(&xattr_key(inode.ino, name)).await?;
    stored.map(|bytes| Acl::decode(&bytes)).transpose()
}

/// What a new inode in `directory` is born with; what else it inherits goes into `txn`.
pub async fn newborn<S: InodeStore>(
    store: &S,
    txn: &mut Txn,
    directory: &Inode<S::Cell>,
    ino: Ino,
    new: &NewNode,
    target: &[u8],
) -> Result<RecordOf<S::Cell>> {
    let mut record = directory.record().child(ino, new, target, store.now());
    inherit(store, txn, directory, &mut record, new.umask).await?;
    Ok(record)
}

/// Gives a new inode what its directory's default access control list says; without one, the umask applies.
async fn inherit<S: InodeStore>(
    store: &S,
    txn: &mut Txn,
    directory: &Inode<S::Cell>,
    record: &mut RecordOf<S::Cell>,
    umask: u32,
) -> Result<()> {
    if record.kind == FileKind::Symlink {
        return Ok(());
    }
    let Some(default) = list_of(store, directory, acl::DEFAULT).await? else {
        record.permissions &= !(umask & 0o777);
        return Ok(());
    };
    if record.is_directory() {
        store.volume().put(txn, &xattr_key(record.ino, acl::DEFAULT), default.encode());
        record.has_xattrs = true;
    }
    let list = default.inherited(record.permissions);
    record.set_mode(list.mode());
    if !list.is_plain() {
        store.volume().put(txn, &xattr_key(record.ino, acl::ACCESS), list.encode());
        record.has_xattrs = true;
    }
    Ok(())
}

fn check_namespace(name: &Name) -> Result<()> {
    let known = name == acl::ACCESS || name == acl::DEFAULT || !name.starts_with(SYSTEM_PREFIX);
    if known { Ok(()) } else { Err(Errno::Unsupported.into()) }
}

/// Value of an extended attribute.
pub async fn get_xattr<S: InodeStore>(store: &S, ino: Ino, name: &Name) -> Result<Bytes> {
    check_namespace(name)?;
    let inode = store.load(ino).await?;
    if !inode.state().record.has_xattrs {
        return Err(Errno::NoData.into());
    }
    store.volume().get(&xattr_key(ino, name)).await?.ok_or_else(|| Errno::NoData.into())
}

/// Sets an extended attribute. An access control list that permission bits can say becomes permission bits.
pub async fn set_xattr<S: InodeStore>(store: &S, ino: Ino, name: &Name, value: &[u8], mode: XattrMode) -> Result<()> {
    store.admit_change()?;
    check_namespace(name)?;
    if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
        return Err(Errno::Invalid.into());
    }
    if value.len() > XATTR_LEN_MAX {
        return Err(Errno::TooBig.into());
    }
    let inode = store.load(ino).await?;
    let _exclusive = inode.lock.write().await;
    let (volume, key) = (store.volume(), xattr_key(ino, name));
    if mode != XattrMode::Set {
        let exists = volume.get(&key).await?.is_some();
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(Errno::Exists.into()),
            (XattrMode::Replace, false) => return Err(Errno::NoData.into()),
            _ => {}
        }
    }
    let mut txn = Txn::new();
    let mut record = inode.record();
    (record.has_xattrs, record.changed) = (true, store.now());
    let list = if name == acl::ACCESS || name == acl::DEFAULT { Some(Acl::decode(value)?) } else { None };
    if name == acl::DEFAULT && !record.is_directory() {
        return Err(Errno::AccessDenied.into());
    }
    match list.filter(|_| name == acl::ACCESS) {
        Some(list) => {
            record.set_mode(list.mode());
            if list.is_plain() {
                volume.delete(&mut txn, &key);
            } else {
                volume.put(&mut txn, &key, list.encode());
            }
        }
        None => volume.put(&mut txn, &key, Bytes::copy_from_slice(value)),
    }
    store.commit_record(txn, &inode, record).await
}

/// Names of all extended attributes.
pub async fn list_xattrs<S: InodeStore>(store: &S, ino: Ino) -> Result<Vec<Bytes>> {
    let inode = store.load(ino).await?;
    if !inode.state().record.has_xattrs {
        return Ok(Vec::new());
    }
    let ((mut low, high), mut names) = (xattr_keys(ino), Vec::new());
    loop {
        let page = store.volume().page(&low, Some(&high), XATTR_PAGE).await?;
        let names_here = page.entries.iter().filter_map(|(key, _)| key.get(XATTR_KEY_HEAD..));
        names.extend(names_here.map(Bytes::copy_from_slice));
        match page.next {
            Some(next) => low = next.to_vec(),
            None => return Ok(names),
        }
    }
}

/// Removes an extended attribute.
pub async fn remove_xattr<S: InodeStore>(store: &S, ino: Ino, name: &Name) -> Result<()> {
    store.admit_change()?;
    let inode = store.load(ino).await?;
    let _exclusive = inode.lock.write().await;
    let (volume, key) = (store.volume(), xattr_key(ino, name));
    if !inode.state().record.has_xattrs || volume.get(&key).await?.is_none() {
        return Err(Errno::NoData.into());
    }
    let mut txn = Txn::new().deleting();
    volume.delete(&mut txn, &key);
    let mut record = inode.record();
    record.changed = store.now();
    store.commit_record(txn, &inode, record).await
}
