//! The store as an object engine.

use crate::shared::{Put as NewPut, Shared};
use crate::write::Force;
use crate::{ATTRIBUTES_LIMIT, Regions};
use ashlar_block::Kind as ErrorKind;
use ashlar_index::{Key, prefix_end};
use ashlar_objects::{
    At, Attributes, Change, Condition, Engine, Error, Limits, List, Listing, Name, Object, Put, Result, Stat, Usage,
    checksum, checksum_of_both, len_of,
};
use bytes::Bytes;
use std::ops::{Bound, Range};
use std::sync::atomic::Ordering;

/// Names that are asked of the index at once.
const PAGE: usize = 1000;
/// How often a listing begins a page again because what it was reading was reused.
const TRIES: usize = 8;

impl Shared {
    fn new_put(&self, data: Vec<Bytes>, attributes: Attributes, expected: Option<u64>) -> NewPut {
        let (size, checksum) = (len_of(&data), checksum(&data));
        NewPut {
            size,
            checksum,
            modified: self.env.wall(),
            expected: expected.unwrap_or(0).max(size),
            attributes,
            ends: Vec::new(),
            data,
        }
    }

    async fn whole(&self, name: &Name) -> Result<Object> {
        self.read(name, 0..u64::MAX).await
    }

    async fn found(&self, name: &Name, version: Option<u64>) -> Result<Object> {
        match version {
            Some(_) => self.whole(name).await,
            None => Err(Error::NotFound(name.clone())),
        }
    }
}

impl Engine for Regions {
    fn name(&self) -> String {
        format!("regions on {}", self.0.disk.device.name())
    }

    fn limits(&self) -> Limits {
        let unit = self.0.config.large_block.0;
        Limits { object: unit, attributes: ATTRIBUTES_LIMIT, unit }
    }

    async fn put(&self, name: &Name, data: Vec<Bytes>, put: Put) -> Result<Stat> {
        let shared = &self.0;
        let (size, limit) = (len_of(&data), shared.config.large_block.0);
        if size > limit {
            return Err(Error::TooLarge { what: "an object", size, limit });
        }
        let Put { change, expected, attributes } = put;
        let new = shared.new_put(data, attributes, expected);
        self.change(name, change.condition, change.durability, size, async |_| Ok(new)).await
    }

    async fn write(&self, name: &Name, at: At, data: Vec<Bytes>, change: Change) -> Result<Stat> {
        let (shared, len) = (&self.0, len_of(&data));
        let make = async |version| {
            let Object { stat, data: old } = shared.found(name, version).await?;
            let at = match at {
                At::Offset(at) => at,
                At::End => stat.size,
            };
            let (end, limit) = (at.saturating_add(len), shared.config.large_block.0);
            if end > limit {
                return Err(Error::TooLarge { what: "an object", size: end, limit });
            }
            let joined = if len == 0 { old } else { overwrite(old, stat.size, at, data, len) };
            let mut new = shared.new_put(joined, stat.attributes, None);
            if at == stat.size {
                // The checksum of all is not needed to know that of both; it must agree with it.
                debug_assert_eq!(
                    new.checksum,
                    checksum_of_both(
                        stat.checksum,
                        checksum(&crate::read::cut(new.data.clone(), at as usize, len as usize)),
                        len
                    )
                );
            }
            new.expected = new.expected.max(stat.size);
            Ok(new)
        };
        self.change(name, change.condition, change.durability, len, make).await
    }

    async fn compose(&self, name: &Name, parts: &[Name], put: Put) -> Result<Stat> {
        let shared = &self.0;
        let Put { change, expected, attributes } = put;
        let limit = shared.config.large_block.0;
        let make = async || {
            let mut data = Vec::new();
            for part in parts {
                data.extend(shared.whole(part).await?.data);
                let size = len_of(&data);
                if size > limit {
                    return Err(Error::TooLarge { what: "an object", size, limit });
                }
            }
            Ok(shared.new_put(data, attributes, expected))
        };
        self.join(name, parts, change.condition, change.durability, make).await
    }

    async fn set_attributes(&self, name: &Name, attributes: Attributes, change: Change) -> Result<Stat> {
        let shared = &self.0;
        let make = async |version| {
            let object = shared.found(name, version).await?;
            Ok(NewPut { checksum: object.stat.checksum, ..shared.new_put(object.data, attributes, None) })
        };
        self.change(name, change.condition, change.durability, 0, make).await
    }

    async fn get(&self, name: &Name, range: Range<u64>, condition: Condition) -> Result<Object> {
        let object = self.0.read(name, range).await;
        let version = match &object {
            Ok(object) => Some(object.stat.version),
            Err(Error::NotFound(_)) => None,
            Err(_) => return object,
        };
        if condition.holds(version) { object } else { Err(Error::Condition(name.clone())) }
    }

    async fn stat(&self, name: &Name) -> Result<Stat> {
        Ok(self.0.read(name, 0..0).await?.stat)
    }

    async fn delete(&self, name: &Name, change: Change) -> Result<()> {
        self.end(name, change.condition, change.durability).await
    }

    async fn list(&self, request: List) -> Result<Listing> {
        let limit = request.limit.max(1);
        let mut objects = Vec::new();
        let mut low = match request.start() {
            Bound::Unbounded => Vec::new(),
            Bound::Included(name) => name.as_bytes().to_vec(),
            Bound::Excluded(name) => [name.as_bytes(), &[0]].concat(),
        };
        let high = prefix_end(&request.prefix);
        loop {
            let (names, next) = self.names(&low, high.as_ref(), (limit + 1 - objects.len()).min(PAGE)).await?;
            for name in names {
                if objects.len() == limit {
                    // There is more only if it is an object: names of what is gone may remain for a while.
                    if self.0.version(self.0.id(&name)).await?.is_some() {
                        return Ok(Listing { objects, more: true });
                    }
                    continue;
                }
                match self.stat(&name).await {
                    Ok(stat) => objects.push(stat),
                    Err(Error::NotFound(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            match next {
                Some(next) => low = next.to_vec(),
                None => return Ok(Listing { objects, more: false }),
            }
        }
    }

    async fn sync(&self) -> Result<()> {
        self.drain(Force { flush: true, log: true }).await
    }

    fn usage(&self) -> Usage {
        let shared = &self.0;
        let shape = &shared.disk.layout.shape;
        let each = (shape.units * shape.large).min(shape.small) * ashlar_units::BLOCK.0;
        let space = shared.space.lock();
        let used = space.regions.iter().map(|region| region.entry.bytes).sum();
        let objects = shared.objects.load(Ordering::Relaxed);
        Usage { objects, capacity: each * shared.disk.layout.regions, used }
    }
}

impl Regions {
    /// A page of names; again if nodes were reused while they were read.
    async fn names(&self, low: &[u8], high: Option<&Key>, limit: usize) -> Result<(Vec<Name>, Option<Key>)> {
        let shared = &self.0;
        let mut tries = 0;
        loop {
            let high = high.map(|high| high.as_slice());
            match shared.names.page(&shared.disk, &shared.space, low, high, limit).await {
                Err(error) if error.kind() == ErrorKind::Corrupt && tries < TRIES => tries += 1,
                other => return Ok(other?),
            }
        }
    }
}

/// The contents with `data` of `len` bytes over them at `at`.
fn overwrite(old: Vec<Bytes>, size: u64, at: u64, data: Vec<Bytes>, len: u64) -> Vec<Bytes> {
    let mut new = crate::read::cut(old.clone(), 0, at.min(size) as usize);
    if at > size {
        new.push(Bytes::from(vec![0; (at - size) as usize]));
    }
    new.extend(data);
    let end = at + len;
    if end < size {
        new.extend(crate::read::cut(old, end as usize, (size - end) as usize));
    }
    new
}
