//! Large objects over an engine that takes small ones.
//!
//! An object that fits into one of the engine's is one. A larger one is a *manifest*: runs of *stripes*, whose pieces are
//! objects of the engine under names that are reserved. Every change is one change of the manifest, which the engine makes
//! atomic; pieces are written and durable before, and deleted after. `compose` is the engine's: manifests one after another
//! are a manifest, so nothing is copied.
//!
//! Invariants
//!  1. A piece belongs to the manifest of one object.
//!  2. A manifest that can be seen has all its pieces, durable.
//!  3. Before pieces are written or a manifest goes, an *intent* that names them is durable. It goes when they are settled. So
//!     after a crash intents tell which pieces may belong to nobody.
//!  4. No intent names pieces of a manifest that moves to another name: they are gone, durably, before.
//!
//! Costs      an object beyond the engine's limit: one more small synchronous change before its pieces, and one sync before
//!            its manifest. Overwriting an object asks what it was before.
//! Departs    names that begin with [`RESERVED`](crate::RESERVED) are refused.

mod change;
mod intents;
mod pieces;

use crate::manifest::{Manifest, RUN_LEN};
use crate::{
    At, Attributes, Change, Condition, Durability, Engine, Error, Limits, List, Listing, Name, Object, Put, RESERVED,
    Result, Stat, Store, Usage, attributes_len, checksum, checksum_of_both, len_of,
};
use ashlar_env::Env;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::{Bound, Range};

/// Largest object: what S3 calls for.
const OBJECT_MAX: u64 = 5 << 40;
/// Pieces of the parts that doors should cut long streams into.
const UNIT_PIECES: u64 = 16;
/// Attribute of manifests: size and checksum of the object.
const STRIPED: &str = "\0striped";
/// Bytes of attributes that are the layer's own.
const ATTRIBUTES_OWN: u64 = 64;
/// Pieces that are written, read or deleted at once.
const AT_ONCE: usize = 16;
/// How often a read begins again because the object changed meanwhile.
const TRIES: usize = 16;
const LOCKS: usize = 64;

const ASYNC: Change = Change { condition: Condition::Any, durability: Durability::Async };
const SYNC: Change = Change { condition: Condition::Any, durability: Durability::Sync };

/// See the module.
pub struct Striped {
    env: Env,
    inner: Store,
    piece: u64,
    limits: Limits,
    /// Changes of one name happen one after another.
    locks: Vec<tokio::sync::Mutex<()>>,
}

/// What there is under a name.
struct Known {
    /// As users see it.
    stat: Stat,
    /// Its manifest, if it has one.
    manifest: Option<Manifest>,
}

fn everything() -> Range<u64> {
    0..u64::MAX
}

/// The object that an engine's object stands for; `None` if it is one itself.
fn striped(stat: &Stat) -> Option<Stat> {
    let own = stat.attributes.get(STRIPED)?;
    let (size, sum) = (own.first_chunk::<8>()?, own.get(8..)?.first_chunk::<8>()?);
    let mut stat = stat.clone();
    stat.attributes.remove(STRIPED);
    Some(Stat { size: u64::from_le_bytes(*size), checksum: u64::from_le_bytes(*sum), ..stat })
}

fn with_own(mut attributes: Attributes, size: u64, sum: u64) -> Attributes {
    let own = [size.to_le_bytes(), sum.to_le_bytes()].concat();
    attributes.insert(STRIPED.into(), own.into());
    attributes
}

impl Striped {
    /// Over an engine. What a crash left behind is settled first.
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn open(env: &Env, inner: Store) -> Result<Striped> {
        let below = inner.limits();
        let limits = Limits {
            object: OBJECT_MAX,
            attributes: below.attributes.saturating_sub(ATTRIBUTES_OWN),
            unit: below.object.saturating_mul(UNIT_PIECES).min(OBJECT_MAX),
        };
        let locks = (0..LOCKS).map(|_| tokio::sync::Mutex::default()).collect();
        let striped = Striped { env: env.clone(), inner, piece: below.object, limits, locks };
        striped.settle(None).await?;
        Ok(striped)
    }

    /// The store below.
    pub fn inner(&self) -> &Store {
        &self.inner
    }

    fn lock(&self, name: &Name) -> usize {
        (xxhash_rust::xxh3::xxh3_64(name.as_bytes()) % self.locks.len() as u64) as usize
    }

    fn admit(&self, name: &Name, size: u64, attributes: &Attributes) -> Result<()> {
        if name.is_reserved() || attributes.contains_key(STRIPED) {
            return Err(Error::Misuse(format!("{name}: names that begin with {RESERVED:?} are the store's own")));
        }
        for (what, size, limit) in [
            ("an object", size, self.limits.object),
            ("a set of attributes", attributes_len(attributes), self.limits.attributes),
        ] {
            if size > limit {
                return Err(Error::TooLarge { what, size, limit });
            }
        }
        Ok(())
    }

    /// What there is under a name, if it is in the state that is asked for.
    async fn known(&self, name: &Name, condition: Condition) -> Result<Option<Known>> {
        let known = match self.inner.stat(name).await {
            Ok(stat) => Some(self.with_manifest(stat).await?),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let version = known.as_ref().map(|known| known.stat.version);
        if condition.holds(version) { Ok(known) } else { Err(Error::Condition(name.clone())) }
    }

    async fn found(&self, name: &Name, condition: Condition) -> Result<Known> {
        self.known(name, condition).await?.ok_or_else(|| Error::NotFound(name.clone()))
    }

    async fn with_manifest(&self, stat: Stat) -> Result<Known> {
        let Some(outer) = striped(&stat) else { return Ok(Known { stat, manifest: None }) };
        let content = self.inner.get(&stat.name, everything(), Condition::Version(stat.version)).await?;
        let manifest = Manifest::decode(&content.data.concat(), outer.size)?;
        Ok(Known { stat: outer, manifest: Some(manifest) })
    }

    async fn set_attributes_of(
        &self,
        name: &Name,
        known: &Known,
        attributes: Attributes,
        change: Change,
    ) -> Result<Stat> {
        let attributes = match known.manifest {
            Some(_) => with_own(attributes, known.stat.size, known.stat.checksum),
            None => attributes,
        };
        let stat = self.inner.set_attributes(name, attributes, change).await?;
        Ok(striped(&stat).unwrap_or(stat))
    }
}

impl Engine for Striped {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn limits(&self) -> Limits {
        self.limits
    }

    async fn put(&self, name: &Name, data: Vec<Bytes>, put: Put) -> Result<Stat> {
        let (size, sum) = (len_of(&data), checksum(&data));
        self.admit(name, size, &put.attributes)?;
        let _lock = self.locks[self.lock(name)].lock().await;
        let known = self.known(name, put.change.condition).await?;
        if size <= self.piece && put.expected.is_none_or(|expected| expected <= self.piece) {
            return self.replace(name, known.as_ref(), &Manifest::default(), data, put, Vec::new()).await;
        }
        let mut fresh = Vec::new();
        let manifest = self.as_manifest(data, &mut fresh);
        self.commit(name, known.as_ref(), (manifest, sum), fresh, put).await
    }

    async fn write(&self, name: &Name, at: At, data: Vec<Bytes>, change: Change) -> Result<Stat> {
        let _lock = self.locks[self.lock(name)].lock().await;
        let known = self.found(name, change.condition).await?;
        let size = known.stat.size;
        let offset = match at {
            At::Offset(at) => at,
            At::End => size,
        };
        let end = offset.saturating_add(len_of(&data));
        self.admit(name, end, &Attributes::new())?;
        if known.manifest.is_none() && end <= self.piece {
            return self.inner.write(name, at, data, change).await;
        }
        if end == offset {
            return self.set_attributes_of(name, &known, known.stat.attributes.clone(), change).await;
        }
        self.overwrite(name, &known, offset, data, change).await
    }

    async fn compose(&self, name: &Name, parts: &[Name], put: Put) -> Result<Stat> {
        self.admit(name, 0, &put.attributes)?;
        let mut order: Vec<usize> = parts.iter().chain([name]).map(|name| self.lock(name)).collect();
        order.sort_unstable();
        order.dedup();
        let mut held = Vec::with_capacity(order.len());
        for lock in order {
            held.push(self.locks[lock].lock().await);
        }
        let old = self.known(name, put.change.condition).await?;
        for (index, part) in parts.iter().enumerate() {
            if part == name || parts[..index].contains(part) {
                return Err(Error::Misuse(format!("{part} is composed of itself, or given twice as a part")));
            }
            self.inner.stat(part).await?;
        }
        let (mut size, mut sum, mut manifest) = (0u64, checksum(&[]), Manifest::default());
        for part in parts {
            let Known { stat, manifest: runs } = self.striped_part(part).await?;
            sum = checksum_of_both(sum, stat.checksum, stat.size);
            size = size.saturating_add(stat.size);
            manifest.0.extend(runs.unwrap_or_default().0);
        }
        self.admit(name, size, &put.attributes)?;
        let (bytes, limit) = ((manifest.0.len() * RUN_LEN) as u64, self.piece);
        if bytes > limit {
            return Err(Error::TooLarge { what: "the list of what the parts are made of", size: bytes, limit });
        }
        let before = old.as_ref().and_then(|old| old.manifest.as_ref());
        let intent = match before {
            Some(before) => Some(self.intend(name, before).await?),
            None => None,
        };
        // Intents that name what the parts have are gone before the parts move; also those of changes that were given up.
        let moving: BTreeSet<&Name> = parts.iter().collect();
        self.settle(Some(&moving)).await?;
        self.inner.sync().await?;
        let put = Put { attributes: with_own(put.attributes, size, sum), expected: None, ..put };
        let stat = self.inner.compose(name, parts, put).await?;
        if let (Some(before), Some(intent)) = (before, intent) {
            self.inner.sync().await?;
            self.drop_pieces(before.pieces(self.piece)).await?;
            self.inner.sync().await?;
            self.inner.delete(&intent, ASYNC).await?;
        }
        Ok(striped(&stat).unwrap_or(stat))
    }

    async fn set_attributes(&self, name: &Name, attributes: Attributes, change: Change) -> Result<Stat> {
        let _lock = self.locks[self.lock(name)].lock().await;
        let known = self.found(name, change.condition).await?;
        self.admit(name, 0, &attributes)?;
        self.set_attributes_of(name, &known, attributes, change).await
    }

    async fn get(&self, name: &Name, range: Range<u64>, condition: Condition) -> Result<Object> {
        let mut last = None;
        for _ in 0..TRIES {
            let object = self.inner.get(name, range.clone(), condition).await?;
            if striped(&object.stat).is_none() {
                return Ok(object);
            }
            let known = match self.with_manifest(object.stat).await {
                Err(Error::Condition(_)) => continue,
                other => other?,
            };
            let stat = known.stat;
            let end = range.end.min(stat.size);
            let wanted = known.manifest.unwrap_or_default().slice(range.start.min(end), end);
            match self.read_runs(&wanted).await {
                Ok(data) => return Ok(Object { stat, data }),
                // The object may have changed, and its pieces have gone.
                Err(_) if last != Some(stat.version) => last = Some(stat.version),
                Err(Error::NotFound(piece)) => {
                    let message = format!("{name}: {piece}, which it is made of, is missing");
                    return Err(Error::Storage(ashlar_block::Error::corrupt(message)));
                }
                Err(Error::Storage(error)) => return Err(Error::Storage(error.within(name.to_string()))),
                Err(error) => return Err(error),
            }
        }
        let message = format!("{name} is changed more often than it can be read: try again");
        Err(Error::Storage(ashlar_block::Error::new(ashlar_block::Kind::Retry, message)))
    }

    async fn stat(&self, name: &Name) -> Result<Stat> {
        let stat = self.inner.stat(name).await?;
        Ok(striped(&stat).unwrap_or(stat))
    }

    async fn delete(&self, name: &Name, change: Change) -> Result<()> {
        let _lock = self.locks[self.lock(name)].lock().await;
        let known = self.found(name, change.condition).await?;
        let Some(manifest) = known.manifest else { return self.inner.delete(name, change).await };
        let intent = self.intend(name, &manifest).await?;
        self.inner.delete(name, SYNC).await?;
        self.drop_pieces(manifest.pieces(self.piece)).await?;
        self.inner.sync().await?;
        self.inner.delete(&intent, ASYNC).await
    }

    async fn list(&self, request: List) -> Result<Listing> {
        let behind = Name::new(behind_reserved())?;
        let (mut objects, mut from) = (Vec::new(), request.from);
        let limit = request.limit.max(1);
        loop {
            let page =
                self.inner.list(List { prefix: request.prefix.clone(), from, limit: limit - objects.len() }).await?;
            let last = page.objects.last().map(|stat| stat.name.clone());
            let users = page.objects.iter().filter(|stat| !stat.name.is_reserved());
            objects.extend(users.map(|stat| striped(stat).unwrap_or_else(|| stat.clone())));
            let Some(last) = last.filter(|_| page.more) else { return Ok(Listing { objects, more: false }) };
            from = if last.is_reserved() { Bound::Included(behind.clone()) } else { Bound::Excluded(last) };
            if objects.len() == limit {
                // Whether there is more, if what comes next is the layer's own?
                let next = List { prefix: request.prefix.clone(), from, limit: 1 };
                let mut next = self.inner.list(next).await?;
                if next.objects.first().is_some_and(|stat| stat.name.is_reserved()) {
                    let from = Bound::Included(behind.clone());
                    next = self.inner.list(List { prefix: request.prefix, from, limit: 1 }).await?;
                }
                return Ok(Listing { objects, more: !next.objects.is_empty() });
            }
        }
    }

    async fn sync(&self) -> Result<()> {
        self.inner.sync().await
    }
    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

/// The first name behind those that are reserved.
fn behind_reserved() -> Vec<u8> {
    let mut end = RESERVED.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use std::sync::Arc;

    async fn over_small(env: Env) -> Store {
        let limits = Limits { object: 16 << 10, attributes: 12 << 10, unit: 16 << 10 };
        let inner = Arc::new(Memory::new(env.clone(), 256 << 20).with_limits(limits));
        Arc::new(Striped::open(&env, inner).await.expect("open"))
    }
    crate::conformance!(striped, over_small);
}
