//! The contract between everything that stores objects, and the doors that serve them.
//!
//! A store holds objects under flat names, in the order of the names' bytes. An object is a string of bytes with
//! attributes; it has a version, which every change replaces, and a checksum of its contents.
//!
//! Invariants of every [`ObjectStore`]
//!  1. Every change (`put`, `write`, `compose`, `set_attributes`, `delete`) happens as a whole or not at all, for everybody
//!     who looks, and also in a crash. Nobody ever sees a part of it.
//!  2. A change that returned is seen by every later call.
//!  3. A change with [`Durability::Sync`] that returned survives a crash. One with [`Durability::Async`] may be lost until a
//!     `sync` that began after it returned; a lost change to a name takes all later ones to that name with it.
//!  4. What was deleted or replaced does not come back, once that is durable; nor does a version.
//!  5. Bytes that a read returns are those that were written: they were checked on the way. Damage is an error with the
//!     name of the object, and touches no other object.
//!
//! Authors of engines implement [`Engine`] with plain `async fn`s; every engine is an [`ObjectStore`] by one blanket
//! adapter. [`conformance`](crate::conformance!) is the suite that every engine passes.

pub mod conformance;
mod error;
mod manifest;
mod memory;
mod striped;
mod types;
mod upload;

pub use error::{Error, Result};
pub use memory::Memory;
pub use striped::Striped;
pub use types::*;
pub use upload::{PARTS_MAX, Session, Upload, forget};

use ashlar_env::BoxFuture;
use bytes::Bytes;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

/// A shared store, as doors hold it.
pub type Store = Arc<dyn ObjectStore>;

/// An object store as its author writes it. Every method may run concurrently with every other. A condition is looked at
/// before anything else: of an object that is not there, a version is asked for in vain with [`Error::Condition`].
pub trait Engine: Send + Sync + 'static {
    /// Name for errors and metrics, such as `regions on disk.img`.
    fn name(&self) -> String;
    /// What the store takes; fixed while it is open.
    fn limits(&self) -> Limits;
    /// Makes the object `name` of `data`, or replaces it.
    ///
    /// # Errors
    /// [`Error::Condition`] if `put.condition` does not hold, [`Error::TooLarge`] past [`Limits`], [`Error::NoSpace`].
    fn put(&self, name: &Name, data: Vec<Bytes>, put: Put) -> impl Future<Output = Result<Stat>> + Send;
    /// Writes `data` into the object at `at`; what lies between its end and `at` becomes zeros.
    ///
    /// # Errors
    /// As [`put`](Engine::put), and [`Error::NotFound`].
    fn write(&self, name: &Name, at: At, data: Vec<Bytes>, change: Change)
    -> impl Future<Output = Result<Stat>> + Send;
    /// Makes the object `name` of the contents of `parts`, one after another, and deletes the parts: up to [`PARTS_MAX`]. A
    /// part may be given once, and not be `name` itself. With [`Durability::Sync`] the contents survive a crash however the
    /// parts were written. It takes no longer for large parts than for small ones, where the engine can.
    ///
    /// # Errors
    /// As [`put`](Engine::put), and [`Error::NotFound`] with the name of a part.
    fn compose(&self, name: &Name, parts: &[Name], put: Put) -> impl Future<Output = Result<Stat>> + Send;
    /// Replaces all attributes of the object.
    ///
    /// # Errors
    /// As [`write`](Engine::write).
    fn set_attributes(
        &self,
        name: &Name,
        attributes: Attributes,
        change: Change,
    ) -> impl Future<Output = Result<Stat>> + Send;
    /// What the object is, and the bytes of `range` as far as the object has them. The pieces follow each other.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Condition`]; [`Error::Storage`] if it is damaged.
    fn get(&self, name: &Name, range: Range<u64>, condition: Condition) -> impl Future<Output = Result<Object>> + Send;
    /// What the object is.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Storage`] if its description is damaged.
    fn stat(&self, name: &Name) -> impl Future<Output = Result<Stat>> + Send;
    /// Deletes the object.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Condition`].
    fn delete(&self, name: &Name, change: Change) -> impl Future<Output = Result<()>> + Send;
    /// Objects in the order of their names. Each name that is there from the beginning to the end of the listing, over all
    /// its pages, is listed once; for others nothing is promised.
    ///
    /// # Errors
    /// Those of the device.
    fn list(&self, request: List) -> impl Future<Output = Result<Listing>> + Send;
    /// Makes every change that returned before this call durable.
    ///
    /// # Errors
    /// Those of the device; after one, nobody knows what became durable.
    fn sync(&self) -> impl Future<Output = Result<()>> + Send;
    /// How full the store is. Objects of layers (see [`RESERVED`]) are not counted.
    fn usage(&self) -> Usage;
}

/// An object store as its users see it. See [`Engine`] for the meaning of the methods.
#[allow(missing_docs, reason = "documented at `Engine`, whose methods these are")]
pub trait ObjectStore: Send + Sync + 'static {
    fn name(&self) -> String;
    fn limits(&self) -> Limits;
    fn put<'a>(&'a self, name: &'a Name, data: Vec<Bytes>, put: Put) -> BoxFuture<'a, Result<Stat>>;
    fn write<'a>(&'a self, name: &'a Name, at: At, data: Vec<Bytes>, change: Change) -> BoxFuture<'a, Result<Stat>>;
    fn compose<'a>(&'a self, name: &'a Name, parts: &'a [Name], put: Put) -> BoxFuture<'a, Result<Stat>>;
    fn set_attributes<'a>(
        &'a self,
        name: &'a Name,
        attributes: Attributes,
        change: Change,
    ) -> BoxFuture<'a, Result<Stat>>;
    fn get<'a>(&'a self, name: &'a Name, range: Range<u64>, condition: Condition) -> BoxFuture<'a, Result<Object>>;
    fn stat<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Stat>>;
    fn delete<'a>(&'a self, name: &'a Name, change: Change) -> BoxFuture<'a, Result<()>>;
    fn list(&self, request: List) -> BoxFuture<'_, Result<Listing>>;
    fn sync(&self) -> BoxFuture<'_, Result<()>>;
    fn usage(&self) -> Usage;
}

impl<T: Engine> ObjectStore for T {
    fn name(&self) -> String {
        Engine::name(self)
    }
    fn limits(&self) -> Limits {
        Engine::limits(self)
    }
    fn put<'a>(&'a self, name: &'a Name, data: Vec<Bytes>, put: Put) -> BoxFuture<'a, Result<Stat>> {
        Box::pin(Engine::put(self, name, data, put))
    }
    fn write<'a>(&'a self, name: &'a Name, at: At, data: Vec<Bytes>, change: Change) -> BoxFuture<'a, Result<Stat>> {
        Box::pin(Engine::write(self, name, at, data, change))
    }
    fn compose<'a>(&'a self, name: &'a Name, parts: &'a [Name], put: Put) -> BoxFuture<'a, Result<Stat>> {
        Box::pin(Engine::compose(self, name, parts, put))
    }
    fn set_attributes<'a>(
        &'a self,
        name: &'a Name,
        attributes: Attributes,
        change: Change,
    ) -> BoxFuture<'a, Result<Stat>> {
        Box::pin(Engine::set_attributes(self, name, attributes, change))
    }
    fn get<'a>(&'a self, name: &'a Name, range: Range<u64>, condition: Condition) -> BoxFuture<'a, Result<Object>> {
        Box::pin(Engine::get(self, name, range, condition))
    }
    fn stat<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Stat>> {
        Box::pin(Engine::stat(self, name))
    }
    fn delete<'a>(&'a self, name: &'a Name, change: Change) -> BoxFuture<'a, Result<()>> {
        Box::pin(Engine::delete(self, name, change))
    }
    fn list(&self, request: List) -> BoxFuture<'_, Result<Listing>> {
        Box::pin(Engine::list(self, request))
    }
    fn sync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(Engine::sync(self))
    }
    fn usage(&self) -> Usage {
        Engine::usage(self)
    }
}
