//! Long streams: parts under reserved names, composed at the end.

use crate::{Change, Durability, Error, HIDDEN, List, Name, Put, Result, Stat, Store, len_of};
use ashlar_env::Env;
use bytes::Bytes;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names of streams' parts begin with these bytes; see [`HIDDEN`].
const STEM: &[u8] = &[HIDDEN, b's'];

/// Most parts of one `compose`: engines make it one transaction, of bounded size.
pub const PARTS_MAX: usize = 256;

/// Whoever writes streams into a store: tells their parts from those that another left when it died. One for each time
/// that a store is opened.
pub struct Session {
    env: Env,
    number: u64,
    streams: AtomicU64,
}

impl Session {
    /// A session of its own.
    pub fn new(env: Env) -> Session {
        let number = env.random();
        Session { env, number, streams: AtomicU64::new(0) }
    }

    /// The runtime on which stores are used.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// A new stream into `store`.
    pub fn upload(&self, store: Store) -> Upload {
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let stem = [STEM, format!("{:016x}/{stream:016x}/", self.number).as_bytes()].concat();
        Upload { env: self.env.clone(), store, stem, parts: Vec::new(), written: 0, size: 0 }
    }

    /// Deletes parts of streams of other sessions, which are dead: a store has one session at a time. Gives their number.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn collect(&self, store: &Store) -> Result<u64> {
        let own = [STEM, format!("{:016x}/", self.number).as_bytes()].concat();
        let (mut from, mut found) = (Bound::Unbounded, 0);
        loop {
            let page = store.list(List { prefix: STEM.to_vec(), from, limit: 1000 }).await?;
            for stat in &page.objects {
                if !stat.name.as_bytes().starts_with(&own) {
                    found += u64::from(forget(store, &stat.name).await?);
                }
            }
            match page.objects.last() {
                Some(last) if page.more => from = Bound::Excluded(last.name.clone()),
                _ => return Ok(found),
            }
        }
    }
}

/// Deletes an object that may be gone; whether it was there.
///
/// # Errors
/// Those of the store.
pub async fn forget(store: &Store, name: &Name) -> Result<bool> {
    let change = Change { durability: Durability::Async, ..Change::default() };
    match store.delete(name, change).await {
        Ok(()) => Ok(true),
        Err(Error::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A stream on its way into a store: nobody sees it before it is finished, and what was written of one that is dropped is
/// deleted. Its methods may be awaited on any executor: the store is used on its own runtime.
pub struct Upload {
    env: Env,
    store: Store,
    stem: Vec<u8>,
    parts: Vec<Name>,
    /// Parts so far, with those that were composed.
    written: u64,
    size: u64,
}

impl Upload {
    /// Bytes so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes the next bytes of the stream; best as many as the store's `Limits::unit`.
    ///
    /// # Errors
    /// Those of `put`.
    pub async fn push(&mut self, data: Vec<Bytes>) -> Result<()> {
        self.size += len_of(&data);
        let name = self.next_name()?;
        self.parts.push(name.clone());
        let (store, put) = (self.store.clone(), hidden());
        self.env.spawn(async move { store.put(&name, data, put).await }).await?;
        if self.parts.len() == PARTS_MAX { self.fold().await } else { Ok(()) }
    }

    /// Makes all parts one. As many bytes are composed again and again as the square of the stream's length over that of
    /// 256 parts; where composing costs nothing by the byte, that is nothing.
    async fn fold(&mut self) -> Result<()> {
        let name = self.next_name()?;
        let parts = self.parts.clone();
        self.parts.push(name.clone());
        let (store, put) = (self.store.clone(), hidden());
        let folded = name.clone();
        self.env.spawn(async move { store.compose(&folded, &parts, put).await }).await?;
        self.parts = vec![name];
        Ok(())
    }

    fn next_name(&mut self) -> Result<Name> {
        self.written += 1;
        Name::new([self.stem.as_slice(), format!("{:08x}", self.written).as_bytes()].concat())
    }

    /// Makes the object `name` of all that was written, and `rest` behind it.
    ///
    /// # Errors
    /// Those of `put` and `compose`.
    pub async fn finish(mut self, name: &Name, rest: Vec<Bytes>, put: Put) -> Result<Stat> {
        let (store, name) = (self.store.clone(), name.clone());
        if self.parts.is_empty() {
            return self.env.spawn(async move { store.put(&name, rest, put).await }).await;
        }
        if len_of(&rest) > 0 {
            self.push(rest).await?;
        }
        let parts = self.parts.clone();
        let stat = self.env.spawn(async move { store.compose(&name, &parts, put).await }).await?;
        self.parts.clear();
        Ok(stat)
    }
}

/// How parts are made: the change that composes them makes them durable, as a later change of the same store.
fn hidden() -> Put {
    Put { change: Change { durability: Durability::Async, ..Change::default() }, ..Put::default() }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        if parts.is_empty() {
            return;
        }
        let store = self.store.clone();
        drop(self.env.spawn(async move {
            for part in parts {
                // What cannot be deleted now is collected by the next session.
                let _ = forget(&store, &part).await;
            }
        }));
    }
}
