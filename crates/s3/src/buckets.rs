//! Where buckets come from.

use ashlar_env::{BoxFuture, Env};
use ashlar_objects::{Memory, Store};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// A bucket in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketInfo {
    /// Its name.
    pub name: String,
    /// When it was made, since 1970.
    pub created: Duration,
}

/// Why a bucket cannot be opened, made or destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketError {
    /// There is none of this name.
    NotFound,
    /// There is one of this name.
    Exists,
    /// Something failed, or is not done here; the text says what and how to mend it.
    Failed(String),
}

/// Buckets by name. The server asks from its own threads; an implementation goes to the stores' runtime itself.
pub trait Buckets: Send + Sync + 'static {
    /// All of them, in the order of names.
    fn list(&self) -> BoxFuture<'_, Result<Vec<BucketInfo>, BucketError>>;
    /// Opens one. The server keeps what it opened.
    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Store, BucketError>>;
    /// Makes an empty one.
    fn create<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), BucketError>>;
    /// Destroys one, which is empty and no longer used.
    fn destroy<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), BucketError>>;
}

/// Buckets in memory, gone with the process.
pub struct InMemory {
    env: Env,
    capacity: u64,
    held: Mutex<BTreeMap<String, (Duration, Store)>>,
}

impl InMemory {
    /// None yet; each may hold `capacity` bytes.
    pub fn new(env: Env, capacity: u64) -> InMemory {
        InMemory { env, capacity, held: Mutex::default() }
    }
}

impl Buckets for InMemory {
    fn list(&self) -> BoxFuture<'_, Result<Vec<BucketInfo>, BucketError>> {
        let info =
            |(name, (created, _)): (&String, &(Duration, Store))| BucketInfo { name: name.clone(), created: *created };
        Box::pin(async move { Ok(self.held.lock().iter().map(info).collect()) })
    }
    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Store, BucketError>> {
        Box::pin(async move { self.held.lock().get(name).map(|(_, store)| store.clone()).ok_or(BucketError::NotFound) })
    }
    fn create<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), BucketError>> {
        Box::pin(async move {
            let mut held = self.held.lock();
            if held.contains_key(name) {
                return Err(BucketError::Exists);
            }
            let store: Store = std::sync::Arc::new(Memory::new(self.env.clone(), self.capacity));
            held.insert(name.into(), (self.env.wall(), store));
            Ok(())
        })
    }
    fn destroy<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), BucketError>> {
        Box::pin(async move { self.held.lock().remove(name).map(drop).ok_or(BucketError::NotFound) })
    }
}
