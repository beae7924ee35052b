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

use crate::manifest::{Manifest, Piece, RUN_LEN, Run, piece_name};
use crate::{
    At, Attributes, Change, Condition, Durability, Engine, Error, Limits, List, Listing, Name, Object, Put, RESERVED,
    Result, Stat, Store, Usage, attributes_len, checksum, checksum_of_both, checksum_of_zeros, checksum_with, len_of,
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
/// Attribute of intents: the object.
const OWNER: &str = "\0owner";
/// Bytes of attributes that are the layer's own.
const ATTRIBUTES_OWN: u64 = 64;
/// Pieces that are written, read or deleted at once.
const AT_ONCE: usize = 16;
/// Runs that become one when a manifest is full.
const JOINED: usize = 64;
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

fn intent_prefix() -> Vec<u8> {
    [RESERVED, b"intent/"].concat()
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

    /// Notes pieces that may soon belong to nobody.
    async fn intend(&self, owner: &Name, pieces: &Manifest) -> Result<Name> {
        let number = u128::from(self.env.random()) << 64 | u128::from(self.env.random());
        let name = Name::new([&intent_prefix()[..], &number.to_be_bytes()].concat())?;
        let owner = Bytes::copy_from_slice(owner.as_bytes());
        let attributes = Attributes::from([(OWNER.into(), owner)]);
        let put = Put { change: SYNC, attributes, ..Put::default() };
        self.inner.put(&name, vec![pieces.encode()], put).await?;
        Ok(name)
    }

    /// Deletes pieces; those that are not there were never written.
    async fn drop_pieces(&self, pieces: impl IntoIterator<Item = Piece>) -> Result<()> {
        let delete = |piece| {
            let inner = self.inner.clone();
            self.env.spawn(async move {
                match inner.delete(&piece_name(piece)?, ASYNC).await {
                    Ok(()) | Err(Error::NotFound(_)) => Ok(()),
                    Err(error) => Err(error),
                }
            })
        };
        let mut pieces = pieces.into_iter().peekable();
        while pieces.peek().is_some() {
            let tasks: Vec<_> = pieces.by_ref().take(AT_ONCE).map(delete).collect();
            for task in tasks {
                task.await?;
            }
        }
        Ok(())
    }

    /// Settles what intents say, of all objects or of these: pieces that the owner does not have are deleted. Nobody changes
    /// those objects meanwhile.
    async fn settle(&self, owners: Option<&BTreeSet<&Name>>) -> Result<()> {
        let mut from = Bound::Unbounded;
        loop {
            let page = self.inner.list(List { prefix: intent_prefix(), from, limit: 100 }).await?;
            let (last, more) = (page.objects.last().map(|intent| intent.name.clone()), page.more);
            let mut settled = Vec::new();
            for intent in page.objects {
                let owner = Name::new(intent.attributes.get(OWNER).cloned().unwrap_or_default())?;
                if owners.is_none_or(|owners| owners.contains(&owner)) {
                    self.settle_one(&intent.name, &owner).await?;
                    settled.push(intent.name);
                }
            }
            if !settled.is_empty() {
                // The pieces are gone for good before that is forgotten.
                self.inner.sync().await?;
                for intent in &settled {
                    self.inner.delete(intent, ASYNC).await?;
                }
                self.inner.sync().await?;
            }
            match last {
                Some(last) if more => from = Bound::Excluded(last),
                _ => return Ok(()),
            }
        }
    }

    /// Deletes the pieces that an intent names and its owner does not have.
    async fn settle_one(&self, intent: &Name, owner: &Name) -> Result<()> {
        let content = self.inner.get(intent, everything(), Condition::Any).await?.data.concat();
        let runs = content.chunks_exact(RUN_LEN);
        let size = runs.map(|run| run.last_chunk::<8>().map_or(0, |len| u64::from_le_bytes(*len))).sum();
        let owned = match self.known(owner, Condition::Any).await? {
            Some(Known { manifest: Some(manifest), .. }) => manifest.pieces(self.piece),
            _ => BTreeSet::new(),
        };
        let named = Manifest::decode(&content, size)?.pieces(self.piece);
        self.drop_pieces(named.difference(&owned).copied()).await
    }

    fn fresh(&self) -> u128 {
        (u128::from(self.env.random()) << 64 | u128::from(self.env.random())).max(1)
    }

    /// Writes contents as pieces of a stripe from byte `skip` of it on, which is where a piece begins.
    async fn write_pieces(&self, run: Run, mut data: Vec<Bytes>) -> Result<()> {
        let mut pieces = run.pieces(self.piece).peekable();
        while pieces.peek().is_some() {
            let mut tasks = Vec::with_capacity(AT_ONCE);
            for piece in pieces.by_ref().take(AT_ONCE) {
                let content = take_front(&mut data, self.piece);
                let (inner, name) = (self.inner.clone(), piece_name(piece)?);
                let put = Put { change: ASYNC, expected: Some(self.piece), attributes: Attributes::new() };
                tasks.push(self.env.spawn(async move { inner.put(&name, content, put).await }));
            }
            for task in tasks {
                task.await?;
            }
        }
        Ok(())
    }

    /// The bytes of a manifest.
    async fn read_runs(&self, manifest: &Manifest) -> Result<Vec<Bytes>> {
        let mut parts = Vec::new();
        for run in &manifest.0 {
            if run.stripe == 0 {
                parts.push((None, 0..run.len));
            }
            for piece in run.pieces(self.piece) {
                let start = piece.1 * self.piece;
                let low = run.skip.max(start) - start;
                parts.push((Some(piece), low..(run.skip + run.len - start).min(self.piece)));
            }
        }
        let mut data = Vec::with_capacity(parts.len());
        for parts in parts.chunks(AT_ONCE) {
            let mut tasks = Vec::with_capacity(parts.len());
            for (piece, range) in parts {
                let (inner, piece, range) = (self.inner.clone(), *piece, range.clone());
                tasks.push(self.env.spawn(async move {
                    let Some(piece) = piece else { return Ok(zeros(range.end)) };
                    let object = inner.get(&piece_name(piece)?, range.clone(), Condition::Any).await?;
                    if len_of(&object.data) != range.end - range.start {
                        let message = format!("piece {} of stripe {:x} is too short", piece.1, piece.0);
                        return Err(Error::Storage(ashlar_block::Error::corrupt(message)));
                    }
                    Ok(object.data)
                }));
            }
            for task in tasks {
                data.extend(task.await?);
            }
        }
        Ok(data)
    }

    /// Replaces an object by a manifest with fresh runs, which `data` are the contents of. The old manifest's pieces that the
    /// new one does not have go.
    async fn commit(
        &self,
        name: &Name,
        old: Option<&Known>,
        new: (Manifest, u64),
        fresh: Vec<(Run, Vec<Bytes>)>,
        put: Put,
    ) -> Result<Stat> {
        let (manifest, sum) = new;
        let mut intents = Vec::new();
        if !fresh.is_empty() {
            intents.push(self.intend(name, &Manifest(fresh.iter().map(|(run, _)| *run).collect())).await?);
        }
        for (run, data) in fresh {
            self.write_pieces(run, data).await?;
        }
        if !intents.is_empty() {
            self.inner.sync().await?;
        }
        let attributes = with_own(put.attributes, manifest.size(), sum);
        let put = Put { attributes, expected: None, ..put };
        let content = manifest.encode();
        self.replace(name, old, &manifest, vec![content], put, intents).await
    }

    /// Replaces an object, and settles the pieces that it had.
    async fn replace(
        &self,
        name: &Name,
        old: Option<&Known>,
        manifest: &Manifest,
        content: Vec<Bytes>,
        put: Put,
        mut intents: Vec<Name>,
    ) -> Result<Stat> {
        let before = old.and_then(|old| old.manifest.as_ref());
        if let Some(before) = before {
            intents.push(self.intend(name, before).await?);
        }
        let stat = self.inner.put(name, content, put).await?;
        let stat = striped(&stat).unwrap_or(stat);
        if let Some(before) = before {
            // The old pieces may go only when the old manifest cannot come back.
            self.inner.sync().await?;
            let kept = manifest.pieces(self.piece);
            self.drop_pieces(before.pieces(self.piece).difference(&kept).copied()).await?;
            self.inner.sync().await?;
        } else if !intents.is_empty() {
            self.inner.sync().await?;
        }
        for intent in intents {
            self.inner.delete(&intent, ASYNC).await?;
        }
        Ok(stat)
    }

    /// A manifest with so few runs that it fits: neighbouring short ones are copied into one.
    async fn bounded(&self, mut manifest: Manifest, fresh: &mut Vec<(Run, Vec<Bytes>)>) -> Result<Manifest> {
        let most = (self.piece as usize / RUN_LEN).max(2);
        let count = JOINED.min(most / 2).max(2);
        while manifest.0.len() > most {
            let Some((from, to)) = manifest.shortest(count) else { break };
            let part = manifest.slice(from, to);
            let mut data = Vec::new();
            for run in &part.0 {
                match fresh.iter().find(|(new, _)| new.stripe == run.stripe && run.skip >= new.skip) {
                    Some((new, held)) => data.extend(cut(held, run.skip - new.skip, run.len)),
                    None => data.extend(self.read_runs(&Manifest(vec![*run])).await?),
                }
            }
            let run = Run { stripe: self.fresh(), skip: 0, len: to - from };
            fresh.push((run, data));
            let size = manifest.size();
            manifest = manifest.slice(0, from).then(Manifest(vec![run])).then(manifest.slice(to, size));
        }
        Ok(manifest)
    }

    /// The manifest of an object, with its contents as a fresh stripe if it had none.
    fn as_manifest(&self, data: Vec<Bytes>, fresh: &mut Vec<(Run, Vec<Bytes>)>) -> Manifest {
        let len = len_of(&data);
        if len == 0 {
            return Manifest::default();
        }
        let run = Run { stripe: self.fresh(), skip: 0, len };
        fresh.push((run, data));
        Manifest(vec![run])
    }

    async fn overwrite(&self, name: &Name, known: &Known, at: u64, data: Vec<Bytes>, change: Change) -> Result<Stat> {
        let (size, len) = (known.stat.size, len_of(&data));
        let (end, mut fresh) = (at + len, Vec::new());
        let old = match &known.manifest {
            Some(manifest) => manifest.clone(),
            None => {
                let content = self.inner.get(name, everything(), Condition::Any).await?.data;
                self.as_manifest(content, &mut fresh)
            }
        };
        // Where it cuts pieces, what is beside it in them is written again, so that runs begin where pieces do.
        let low = at.min(size) - at.min(size) % self.piece;
        let high = end.next_multiple_of(self.piece).min(size).max(low);
        let read = |from: u64, to: u64| {
            let (part, fresh) = (old.slice(from, to), &fresh);
            async move {
                match &fresh[..] {
                    [(_, held)] => Ok(cut(held, from, to.saturating_sub(from))),
                    _ => self.read_runs(&part).await,
                }
            }
        };
        let before = read(low, at.min(size)).await?;
        let replaced = read(at.min(size), end.min(size)).await?;
        let behind = if end < high { read(end, high).await? } else { Vec::new() };
        let gap = at.saturating_sub(size);
        let sum = if at >= size {
            let padded = checksum_of_both(known.stat.checksum, checksum_of_zeros(gap), gap);
            checksum_of_both(padded, checksum(&data), len)
        } else if end <= size {
            checksum_with(known.stat.checksum, checksum(&replaced), checksum(&data), size - end)
        } else {
            let inside = size - at;
            let front = cut(&data, 0, inside);
            let sum = checksum_with(known.stat.checksum, checksum(&replaced), checksum(&front), 0);
            checksum_of_both(sum, checksum(&cut(&data, inside, len - inside)), len - inside)
        };
        // A gap that lies in one piece with the data is written as zeros; a long one is none.
        let long = gap > self.piece;
        let mut content = before;
        let mut middle = Manifest::default();
        if long {
            middle = self.as_manifest(std::mem::take(&mut content), &mut fresh);
            middle = middle.then(Manifest(vec![Run { stripe: 0, skip: 0, len: gap }]));
        } else {
            content.extend(zeros(gap));
        }
        content.extend(data);
        content.extend(behind);
        let front = old.slice(0, low);
        let tail = self.extend(&front, &middle, content, &mut fresh);
        let manifest = front.then(middle).then(tail).then(old.slice(high, size));
        let manifest = self.bounded(manifest, &mut fresh).await?;
        // Runs that nothing needs are not written.
        fresh.retain(|(run, _)| manifest.0.iter().any(|used| used.stripe == run.stripe && overlaps(used, run)));
        let attributes = known.stat.attributes.clone();
        let version = Condition::Version(known.stat.version);
        let put = Put { change: Change { condition: version, ..change }, expected: None, attributes };
        self.commit(name, Some(known), (manifest, sum), fresh, put).await
    }

    /// Contents as runs: whole pieces go on where the stripe before them ends, if it ends where a piece does, so that an object
    /// that grows at its end stays a few runs; the rest is a stripe of its own.
    fn extend(
        &self,
        front: &Manifest,
        middle: &Manifest,
        mut content: Vec<Bytes>,
        fresh: &mut Vec<(Run, Vec<Bytes>)>,
    ) -> Manifest {
        let last = if middle.0.is_empty() { front.0.last() } else { None };
        let goes_on = last.filter(|last| {
            last.stripe != 0
                && last.skip == 0
                && last.len.is_multiple_of(self.piece)
                && front.0.iter().filter(|run| run.stripe == last.stripe).count() == 1
        });
        let len = len_of(&content);
        let whole = len - len % self.piece;
        let mut manifest = Manifest::default();
        if let Some(last) = goes_on.filter(|last| whole > 0 && !fresh.iter().any(|(run, _)| run.stripe == last.stripe))
        {
            let run = Run { stripe: last.stripe, skip: last.skip + last.len, len: whole };
            let mut data = Vec::new();
            for _ in 0..whole / self.piece {
                data.extend(take_front(&mut content, self.piece));
            }
            fresh.push((run, data));
            manifest = Manifest(vec![run]);
        }
        manifest.then(self.as_manifest(content, fresh))
    }

    /// A part in the form of a manifest, for composing.
    async fn striped_part(&self, name: &Name) -> Result<Known> {
        let known = self.found(name, Condition::Any).await?;
        if known.manifest.is_some() {
            return Ok(known);
        }
        let data = self.inner.get(name, everything(), Condition::Any).await?.data;
        let mut fresh = Vec::new();
        let manifest = self.as_manifest(data, &mut fresh);
        let put = Put { change: ASYNC, expected: None, attributes: known.stat.attributes.clone() };
        let stat = self.commit(name, Some(&known), (manifest.clone(), known.stat.checksum), fresh, put).await?;
        Ok(Known { stat, manifest: Some(manifest) })
    }
}

fn overlaps(a: &Run, b: &Run) -> bool {
    a.skip < b.skip + b.len && b.skip < a.skip + a.len
}

/// So many bytes of zeros, in pieces that share memory.
fn zeros(len: u64) -> Vec<Bytes> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let whole = std::iter::repeat_n(ZEROS.len() as u64, (len / ZEROS.len() as u64) as usize);
    whole.chain([len % ZEROS.len() as u64]).map(|len| Bytes::from_static(&ZEROS[..len as usize])).collect()
}

/// Takes up to `len` bytes from the front.
fn take_front(data: &mut Vec<Bytes>, len: u64) -> Vec<Bytes> {
    let (mut left, mut taken, mut used) = (len as usize, Vec::new(), 0);
    for piece in data.iter_mut() {
        let part = piece.split_to(left.min(piece.len()));
        left -= part.len();
        if !part.is_empty() {
            taken.push(part);
        }
        if !piece.is_empty() {
            break;
        }
        used += 1;
    }
    data.drain(..used);
    taken
}

/// `len` bytes from byte `skip` on.
fn cut(data: &[Bytes], skip: u64, len: u64) -> Vec<Bytes> {
    let mut data = data.to_vec();
    take_front(&mut data, skip);
    take_front(&mut data, len)
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

impl Striped {
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
