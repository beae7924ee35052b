//! References and handles that the door counts, and what happens when the last of them goes.

use crate::{Inode, InodeStore, RecordOf, StateOf, Table};
use ashlar_pool::Txn;
use ashlar_vfs::{Attr, Ino, Result};
use std::sync::Arc;

/// Commits what makes an inode and its name, with the record of the directory that gets the name; the caller holds the lock of that.
///
/// The inode is in memory first: who finds the name finds this one. Else it would be read from the dictionary, and there were two
/// of this number, each with changes that the other lacks.
pub async fn commit_new<S: InodeStore>(
    store: &S,
    table: &Table<S::Cell>,
    txn: Txn,
    (directory, above): (&Arc<Inode<S::Cell>>, RecordOf<S::Cell>),
    state: StateOf<S::Cell>,
) -> Result<Attr> {
    let (lookups, handles) = (state.lookups, state.handles);
    let inode = table.insert(state);
    let applied = match store.apply_record(txn, directory, above).await {
        Ok(applied) => applied,
        Err(error) => {
            {
                let mut state = inode.state();
                (state.lookups, state.handles, state.reaped, state.record.links) = (0, 0, true, 0);
            }
            store.remove_unused(inode);
            return Err(error);
        }
    };
    inode.state().follow(applied.seq);
    if let Err(error) = store.settle_record(applied, directory).await {
        // It is there, but the caller does not learn of it.
        {
            let mut state = inode.state();
            (state.lookups, state.handles) = (state.lookups - lookups, state.handles - handles);
        }
        let_go(store, inode).await;
        return Err(error);
    }
    Ok(inode.attr())
}

/// Gives back so many references, and lets go of the inode.
pub async fn forget<S: InodeStore>(store: &S, ino: Ino, count: u64) {
    let Ok(inode) = store.load(ino).await else { return };
    {
        let mut state = inode.state();
        state.lookups = state.lookups.saturating_sub(count);
    }
    let_go(store, inode).await;
}

/// Gives back a handle, and lets go of the inode.
pub async fn release<S: InodeStore>(store: &S, ino: Ino) {
    let Ok(inode) = store.load(ino).await else { return };
    {
        let mut state = inode.state();
        state.handles = state.handles.saturating_sub(1);
    }
    let_go(store, inode).await;
}

/// Lets go of an inode: if nobody uses it, it is written, and forgotten or, without names, reaped. The caller holds no lock of it.
pub async fn let_go<S: InodeStore>(store: &S, inode: Arc<Inode<S::Cell>>) {
    let (used, dirty, links) = {
        let state = inode.state();
        (state.is_used(), state.dirty, state.record.links)
    };
    if !used {
        if links == 0 {
            // If this fails, the orphan's key makes the next opening try again.
            drop(store.reap(&inode).await);
        } else if dirty {
            drop(store.write_record(&inode).await);
        }
        store.remove_unused(inode);
    }
}

/// Makes an inode durable: its record, and what was committed with it and before.
pub async fn make_durable<S: InodeStore>(store: &S, inode: &Arc<Inode<S::Cell>>) -> Result<()> {
    write_newer(store, inode).await?;
    sync_commits(store, inode).await
}

/// Writes the record of an inode, if it is newer in memory than in the dictionary.
pub async fn write_newer<S: InodeStore>(store: &S, inode: &Arc<Inode<S::Cell>>) -> Result<()> {
    let dirty = inode.state().dirty;
    if dirty { store.write_record(inode).await } else { Ok(()) }
}

/// Waits until all that was committed of an inode, and before, is durable. A device flushes meanwhile, which takes long: nobody else
/// should have to wait for the caller.
pub async fn sync_commits<S: InodeStore>(store: &S, inode: &Arc<Inode<S::Cell>>) -> Result<()> {
    let seq = inode.state().seq;
    Ok(store.volume().pool().sync(seq).await?)
}
