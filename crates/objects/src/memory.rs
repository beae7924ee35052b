//! Objects in memory: gone with the process, and the simplest thing that keeps the contract.

use crate::{
    At, Attributes, Change, Condition, Engine, Error, Limits, List, Listing, Name, Object, Put, Result, Stat, Usage,
    attributes_len, checksum, len_of,
};
use ashlar_env::Env;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

/// Objects in memory, of up to `capacity` bytes together.
pub struct Memory {
    env: Env,
    capacity: u64,
    limits: Limits,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    objects: BTreeMap<Name, (Stat, Bytes)>,
    used: u64,
    /// The newest version of all.
    version: u64,
}

const LIMITS: Limits = Limits { object: 1 << 32, attributes: 1 << 16, unit: 8 << 20 };

impl Memory {
    /// An empty store.
    pub fn new(env: Env, capacity: u64) -> Memory {
        Memory { env, capacity, limits: LIMITS, held: Mutex::default() }
    }

    /// The same, with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Memory {
        Memory { limits, ..self }
    }

    fn admit(&self, size: u64, attributes: &Attributes) -> Result<()> {
        too_large("an object", size, self.limits.object)?;
        too_large("a set of attributes", attributes_len(attributes), self.limits.attributes)
    }

    /// Makes or replaces an object of what `make` makes of the one that is there, as one step.
    fn change(
        &self,
        name: &Name,
        condition: Condition,
        make: impl FnOnce(&mut Held) -> Result<(Bytes, Attributes)>,
    ) -> Result<Stat> {
        let mut held = self.held.lock();
        if !condition.holds(held.objects.get(name).map(|(stat, _)| stat.version)) {
            return Err(Error::Condition(name.clone()));
        }
        let before = held.objects.get(name).map_or(0, |(stat, _)| stat.size);
        let (data, attributes) = make(&mut held)?;
        let size = data.len() as u64;
        let used = held.used - before + size;
        if used > self.capacity {
            return Err(Error::NoSpace);
        }
        held.used = used;
        held.version += 1;
        let checksum = checksum(std::slice::from_ref(&data));
        let modified = self.env.wall();
        let stat = Stat { name: name.clone(), size, version: held.version, modified, checksum, attributes };
        held.objects.insert(name.clone(), (stat.clone(), data));
        Ok(stat)
    }
}

fn too_large(what: &'static str, size: u64, limit: u64) -> Result<()> {
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
}

/// The condition comes first: who names a state learns that the object is not in it, also if there is no object.
fn found_in<'a>(held: &'a Held, name: &Name, condition: Condition) -> Result<&'a (Stat, Bytes)> {
    let version = held.objects.get(name).map(|(stat, _)| stat.version);
    if condition.holds(version) { found(held, name) } else { Err(Error::Condition(name.clone())) }
}

/// All pieces as one.
fn joined(pieces: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(pieces) {
        Ok([piece]) => piece,
        Err(pieces) => pieces.concat().into(),
    }
}

fn found<'a>(held: &'a Held, name: &Name) -> Result<&'a (Stat, Bytes)> {
    held.objects.get(name).ok_or_else(|| Error::NotFound(name.clone()))
}

impl Engine for Memory {
    fn name(&self) -> String {
        "objects in memory".into()
    }
    fn limits(&self) -> Limits {
        self.limits
    }

    async fn put(&self, name: &Name, data: Vec<Bytes>, put: Put) -> Result<Stat> {
        self.admit(len_of(&data), &put.attributes)?;
        self.change(name, put.change.condition, |_| Ok((joined(data), put.attributes)))
    }

    async fn write(&self, name: &Name, at: At, data: Vec<Bytes>, change: Change) -> Result<Stat> {
        self.change(name, change.condition, |held| {
            let (stat, old) = found(held, name)?;
            let at = match at {
                At::Offset(at) => at,
                At::End => stat.size,
            };
            let end = at.saturating_add(len_of(&data));
            too_large("an object", end, self.limits.object)?;
            if end > self.capacity {
                return Err(Error::NoSpace);
            }
            let mut new = BytesMut::from(&old[..]);
            if end > at {
                new.resize(new.len().max(end as usize), 0);
                new[at as usize..end as usize].copy_from_slice(&joined(data));
            }
            Ok((new.freeze(), stat.attributes.clone()))
        })
    }

    async fn compose(&self, name: &Name, parts: &[Name], put: Put) -> Result<Stat> {
        self.change(name, put.change.condition, |held| {
            let mut pieces = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                if part == name || parts[..index].contains(part) {
                    return Err(Error::Misuse(format!("{part} is composed of itself, or given twice as a part")));
                }
                pieces.push(found(held, part)?.1.clone());
            }
            self.admit(len_of(&pieces), &put.attributes)?;
            for part in parts {
                let gone = held.objects.remove(part);
                held.used -= gone.map_or(0, |(stat, _)| stat.size);
            }
            Ok((joined(pieces), put.attributes))
        })
    }

    async fn set_attributes(&self, name: &Name, attributes: Attributes, change: Change) -> Result<Stat> {
        self.admit(0, &attributes)?;
        self.change(name, change.condition, |held| Ok((found(held, name)?.1.clone(), attributes)))
    }

    async fn get(&self, name: &Name, range: Range<u64>, condition: Condition) -> Result<Object> {
        let held = self.held.lock();
        let (stat, data) = found_in(&held, name, condition)?;
        let end = range.end.min(stat.size);
        let data = data.slice(range.start.min(end) as usize..end as usize);
        Ok(Object { stat: stat.clone(), data: vec![data] })
    }

    async fn stat(&self, name: &Name) -> Result<Stat> {
        Ok(found(&self.held.lock(), name)?.0.clone())
    }

    async fn delete(&self, name: &Name, change: Change) -> Result<()> {
        let mut held = self.held.lock();
        let size = found_in(&held, name, change.condition)?.0.size;
        held.used -= size;
        held.objects.remove(name);
        Ok(())
    }

    async fn list(&self, request: List) -> Result<Listing> {
        let held = self.held.lock();
        let mut rest = held.objects.range((request.start(), Bound::Unbounded)).map(|(_, (stat, _))| stat.clone());
        let mut rest = rest.by_ref().take_while(|stat| stat.name.as_bytes().starts_with(&request.prefix));
        let objects = rest.by_ref().take(request.limit.max(1)).collect();
        Ok(Listing { objects, more: rest.next().is_some() })
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        let held = self.held.lock();
        let objects = held.objects.keys().filter(|name| !name.is_reserved()).count() as u64;
        Usage { objects, capacity: self.capacity, used: held.used }
    }
}

#[cfg(test)]
mod tests {
    use super::Memory;

    crate::conformance!(memory, |env: ashlar_env::Env| async move {
        std::sync::Arc::new(Memory::new(env, 64 << 20)) as crate::Store
    });
}
