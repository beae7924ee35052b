//! The store: one transaction for each change.

use crate::Rule;
use crate::audit::Scan;
use crate::building::STEP;
use crate::contents::{Change as Batch, Contents};
use crate::format::{
    Class, Place, Record, VERSION, all_building, all_counts, blocks_of, building, building_in, count, decode_numbers,
    encode_numbers, head, name_in, object, stripe_in,
};
use crate::locks::{Locks, stripe};
use crate::numbers::Numbers;
use ashlar_block::{Kind, ResultExt};
use ashlar_objects::{
    At, Attributes, Change, Condition, Durability, Engine, Error, Limits, List, Listing, Name, Object, PARTS_MAX, Put,
    Result, Stat, Usage, attributes_len, checksum, len_of,
};
use ashlar_pool::{Pool, Seq, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

const BLOCK: u64 = BLOCK_LEN as u64;
pub(crate) const LIMITS: Limits = Limits { object: 1 << 44, attributes: 32 << 10, unit: STEP };
/// Bytes of the pool's longest extents. Contents that came in other pieces are put together first, lest extents be short.
const EXTENT: usize = 128 << 10;
/// Entries of the dictionary that are read at once.
const PAGE: usize = 256;

/// How a store behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A rule to break, for explorations that must notice.
    pub without: Option<Rule>,
}

/// Objects: their descriptions in the dictionary of a volume, and their contents there too, or where `C` has them.
pub struct Objects<C = Volume> {
    pub(crate) volume: Volume,
    pub(crate) contents: C,
    name: String,
    locks: Locks,
    numbers: Numbers,
    /// Objects and bytes of each stripe that has any; changed under the stripe's lock.
    counts: Mutex<BTreeMap<u16, [u64; 2]>>,
    options: Options,
}

impl Objects {
    /// Opens the store on a volume that has the contents, too; `name` is for errors and metrics. One store at a time may be open
    /// on a volume.
    ///
    /// # Errors
    /// Those of [`open_with`](Objects::open_with).
    pub async fn open(volume: Volume, name: String, options: Options) -> ashlar_block::Result<Objects> {
        Objects::open_with(volume.clone(), volume, name, options).await
    }

    /// Makes an empty volume a store.
    ///
    /// # Errors
    /// `Misuse` if the volume holds something.
    pub async fn format(volume: &Volume) -> ashlar_block::Result<()> {
        if Scan::new(volume, &[], &[0xff]).next().await?.is_some() {
            return Err(ashlar_block::Error::misuse("the volume holds something already"));
        }
        let mut txn = Txn::new();
        volume.put(&mut txn, &head(), Bytes::copy_from_slice(&VERSION.to_le_bytes()));
        let seq = volume.commit(txn).await?;
        volume.pool().sync(seq).await
    }
}

impl<C: Contents> Objects<C> {
    /// Opens the store whose dictionary is on a volume, and whose contents are elsewhere.
    ///
    /// # Errors
    /// `Unsupported` if the volume holds something else; those of the pool.
    pub async fn open_with(
        volume: Volume,
        contents: C,
        name: String,
        options: Options,
    ) -> ashlar_block::Result<Objects<C>> {
        let unsupported = |message: &str| ashlar_block::Error::new(Kind::Unsupported, format!("{name}: {message}"));
        match volume.get(&head()).await? {
            Some(version) if *version == VERSION.to_le_bytes() => {}
            Some(_) => return Err(unsupported("these objects were made by another version of this program")),
            None => return Err(unsupported("this volume holds no objects")),
        }
        let mut counts = BTreeMap::new();
        let (low, high) = all_counts();
        let mut scan = Scan::new(&volume, &low, &high);
        while let Some((key, value)) = scan.next().await? {
            let stripe =
                stripe_in(&key).ok_or_else(|| ashlar_block::Error::corrupt("the key of a count is damaged"))?;
            counts.insert(stripe, decode_numbers(&value)?);
        }
        let numbers = Numbers::open(&volume, options.without).await?;
        let counts = Mutex::new(counts);
        let objects = Objects { volume, contents, name, locks: Locks::new(), numbers, counts, options };
        // What was being built when the store was last used is nobody's.
        let (low, high) = all_building();
        let mut scan = Scan::new(&objects.volume, &low, &high);
        while let Some((key, _)) = scan.next().await? {
            let place = building_in(&key).ok_or_else(|| ashlar_block::Error::corrupt("a place's key is damaged"))?;
            objects.raze(place).await?;
        }
        Ok(objects)
    }

    #[cfg(test)]
    pub(crate) async fn numbers_place(&self) -> Place {
        self.numbers.place(&self.volume, &self.contents, Class::Medium).await.expect("a place")
    }

    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.options.without != Some(rule)
    }

    /// Where the contents are.
    pub fn contents(&self) -> &C {
        &self.contents
    }

    fn pool(&self) -> &Pool {
        self.volume.pool()
    }

    /// An object's description.
    async fn record(&self, name: &Name) -> Result<Option<Record>> {
        let value = self.volume.get(&object(name.as_bytes())).await?;
        let record = value.map(|value| Record::decode(&value)).transpose();
        Ok(record.within(|| format!("object {name} of {}", self.name))?)
    }

    /// The description of an object in the state that is asked for; nothing if that may be.
    async fn admitted(&self, name: &Name, condition: Condition) -> Result<Option<Record>> {
        let record = self.record(name).await?;
        match condition.holds(record.as_ref().map(|record| record.version)) {
            true => Ok(record),
            false => Err(Error::Condition(name.clone())),
        }
    }

    pub(crate) async fn found(&self, name: &Name, condition: Condition) -> Result<Record> {
        self.admitted(name, condition).await?.ok_or_else(|| Error::NotFound(name.clone()))
    }

    /// Bytes of an object, which has them.
    pub(crate) async fn read(&self, record: &Record, range: Range<u64>) -> ashlar_block::Result<Vec<Bytes>> {
        if range.is_empty() {
            return Ok(vec![]);
        }
        let (first, end) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let mut pieces =
            self.contents.read(self.contents.base(record.place) + Blocks(first), Blocks(end - first)).await?;
        let mut skip = (range.start - first * BLOCK) as usize;
        let mut left = (range.end - range.start) as usize;
        pieces.retain_mut(|piece| {
            let front = skip.min(piece.len());
            skip -= front;
            *piece = piece.slice(front..);
            piece.truncate(left);
            left -= piece.len();
            !piece.is_empty()
        });
        Ok(pieces)
    }

    /// Puts a stripe's count into a transaction; what to do with it when that is committed.
    pub(crate) fn count(&self, txn: &mut Txn, changes: &[(&Name, [i64; 2])]) -> BTreeMap<u16, [u64; 2]> {
        let counts = self.counts.lock();
        let mut changed: BTreeMap<u16, [u64; 2]> = BTreeMap::new();
        for (name, [objects, bytes]) in changes {
            let stripe = stripe(name);
            let entry = changed.entry(stripe).or_insert_with(|| counts.get(&stripe).copied().unwrap_or_default());
            // Those of layers are not users' objects; their bytes count.
            let objects = if name.is_reserved() { 0 } else { *objects };
            *entry = [entry[0].saturating_add_signed(objects), entry[1].saturating_add_signed(*bytes)];
        }
        for (stripe, [objects, bytes]) in &changed {
            match (objects, bytes) {
                (0, 0) => self.volume.delete(txn, &count(*stripe)),
                _ => self.volume.put(txn, &count(*stripe), encode_numbers(&[*objects, *bytes])),
            }
        }
        changed
    }

    /// Commits what makes `record` the object `name` instead of `old`; the caller holds the lock.
    pub(crate) async fn replace(
        &self,
        mut batch: Batch,
        name: &Name,
        old: Option<&Record>,
        record: &Record,
    ) -> Result<Seq> {
        self.volume.put(&mut batch.txn, &object(name.as_bytes()), record.encode());
        let replaced: Vec<&Record> = old.filter(|old| old.place != record.place).into_iter().collect();
        if !self.keeps(Rule::ChangeAtOnce) {
            let mut first = Batch::default();
            self.give_up(&mut first, &replaced);
            self.contents.commit(first).await?;
        }
        let (before, now) = (old.map_or(0, |old| old.size as i64), record.size as i64);
        let counted = self.count(&mut batch.txn, &[(name, [i64::from(old.is_none()), now - before])]);
        self.commit(batch, &replaced, counted).await
    }

    /// Puts the end of contents into a change: of some their blocks, of what does not fit the place, which is listed as one that is
    /// being built. Gives those that are listed.
    fn give_up(&self, batch: &mut Batch, records: &[&Record]) -> Vec<Place> {
        let (mut room, mut listed) = (self.contents.discard_max(), Vec::new());
        for record in records {
            let count = blocks_of(record.size);
            if count <= room {
                room -= count;
                self.contents.discard(batch, self.contents.base(record.place), count);
            } else {
                self.volume.put(&mut batch.txn, &building(record.place), Bytes::new());
                listed.push(record.place);
            }
        }
        listed
    }

    /// Commits a change in which the contents of some objects cease.
    pub(crate) async fn commit(
        &self,
        mut batch: Batch,
        ended: &[&Record],
        counted: BTreeMap<u16, [u64; 2]>,
    ) -> Result<Seq> {
        let listed = self.give_up(&mut batch, ended);
        let seq = self.contents.commit(batch).await?;
        self.counts.lock().extend(counted);
        for place in listed {
            // What is not cleared now, the next opening clears.
            let _ = self.raze(place).await;
        }
        Ok(seq)
    }

    async fn settle(&self, seq: Seq, durability: Durability) -> Result<()> {
        match durability {
            Durability::Sync => Ok(self.pool().sync(seq).await?),
            Durability::Async => Ok(()),
        }
    }

    /// A description of contents that are in `place`.
    pub(crate) async fn described(
        &self,
        place: Place,
        size: u64,
        checksum: u64,
        attributes: Attributes,
    ) -> Result<Record> {
        let version = self.numbers.version(&self.volume).await?;
        let modified = self.pool().env().wall();
        Ok(Record { version, size, checksum, modified, place, attributes })
    }

    pub(crate) async fn place(&self, size: u64) -> Result<Place> {
        let class = Class::of(size).ok_or(Error::TooLarge { what: "an object", size, limit: LIMITS.object })?;
        Ok(self.numbers.place(&self.volume, &self.contents, class).await?)
    }

    /// Builds contents, and finishes them under the lock; gives up what was built if that fails.
    pub(crate) async fn finish_or_raze<T>(&self, place: Place, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            // The error says more than a second one would; the place stays listed, and the next opening clears it.
            let _ = self.raze(place).await;
        }
        outcome
    }

    async fn put_built(&self, name: &Name, data: Vec<Bytes>, put: Put, place: Place) -> Result<(Stat, Seq)> {
        let mut building = self.build(place).await?;
        self.append(&mut building, &data).await?;
        let _exclusive = self.locks.write(name).await;
        let old = self.admitted(name, put.change.condition).await?;
        let record = self.described(place, building.len, checksum(&data), put.attributes).await?;
        let mut batch = Batch::default();
        self.built(&mut batch, &building);
        let seq = self.replace(batch, name, old.as_ref(), &record).await?;
        Ok((record.stat(name), seq))
    }
}

pub(crate) fn too_large(what: &'static str, size: u64, limit: u64) -> Result<()> {
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
}

fn admit(size: u64, attributes: &Attributes) -> Result<()> {
    too_large("an object", size, LIMITS.object)?;
    too_large("a set of attributes", attributes_len(attributes), LIMITS.attributes)
}

/// Pieces of which all but the last are whole extents: those that are given, if they are such, else one.
fn in_extents(mut data: Vec<Bytes>) -> Vec<Bytes> {
    data.retain(|piece| !piece.is_empty());
    match data.split_last() {
        Some((_, before)) if before.iter().any(|piece| !piece.len().is_multiple_of(EXTENT)) => {
            vec![data.concat().into()]
        }
        _ => data,
    }
}

impl<C: Contents> Engine for Objects<C> {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn limits(&self) -> Limits {
        LIMITS
    }

    async fn put(&self, name: &Name, data: Vec<Bytes>, put: Put) -> Result<Stat> {
        let size = len_of(&data);
        admit(size, &put.attributes)?;
        let durability = put.change.durability;
        let place = self.place(size).await?;
        if size > self.contents.write_max() {
            // What cannot be is refused before anything is written.
            self.admitted(name, put.change.condition).await?;
            let built = self.put_built(name, data, put, place).await;
            let (stat, seq) = self.finish_or_raze(place, built).await?;
            self.settle(seq, durability).await?;
            return Ok(stat);
        }
        // Compressed and summed before the lock.
        let mut batch = Batch::default();
        let sum = checksum(&data);
        let mut at = self.contents.base(place);
        for piece in in_extents(data) {
            self.contents.write(&mut batch, at, &piece);
            at += Blocks(piece.len() as u64 / BLOCK);
        }
        let (record, seq) = {
            let _exclusive = self.locks.write(name).await;
            let old = self.admitted(name, put.change.condition).await?;
            let record = self.described(place, size, sum, put.attributes).await?;
            let seq = self.replace(batch, name, old.as_ref(), &record).await?;
            (record, seq)
        };
        self.settle(seq, durability).await?;
        Ok(record.stat(name))
    }

    async fn write(&self, name: &Name, at: At, data: Vec<Bytes>, change: Change) -> Result<Stat> {
        let (record, seq) = {
            let _exclusive = self.locks.write(name).await;
            let old = self.found(name, change.condition).await?;
            let at = match at {
                At::Offset(at) => at,
                At::End => old.size,
            };
            let len = len_of(&data);
            too_large("an object", at.saturating_add(len), LIMITS.object)?;
            if len == 0 {
                let record = self.described(old.place, old.size, old.checksum, old.attributes.clone()).await?;
                (record.clone(), self.replace(Batch::default(), name, Some(&old), &record).await?)
            } else {
                let size = old.size.max(at + len);
                let sum = self.checksum_after(&old, at, &data).await?;
                let mut batch = Batch::default();
                if size <= old.place.class.bytes() && len <= self.contents.write_max() {
                    self.overwrite(&mut batch, &old, at, &data).await?;
                    let record = self.described(old.place, size, sum, old.attributes.clone()).await?;
                    (record.clone(), self.replace(batch, name, Some(&old), &record).await?)
                } else {
                    let place = self.place(size).await?;
                    let rewritten = async {
                        let building = self.rewrite(&old, at, &data, place).await?;
                        self.built(&mut batch, &building);
                        let record = self.described(place, size, sum, old.attributes.clone()).await?;
                        let seq = self.replace(batch, name, Some(&old), &record).await?;
                        Ok((record, seq))
                    };
                    let rewritten = rewritten.await;
                    self.finish_or_raze(place, rewritten).await?
                }
            }
        };
        self.settle(seq, change.durability).await?;
        Ok(record.stat(name))
    }

    async fn compose(&self, name: &Name, parts: &[Name], put: Put) -> Result<Stat> {
        too_large("a list of parts", parts.len() as u64, PARTS_MAX as u64)?;
        admit(0, &put.attributes)?;
        let (stat, seq) = {
            let _exclusive = self.locks.write_all(parts.iter().chain([name])).await;
            let old = self.admitted(name, put.change.condition).await?;
            self.composed(name, parts, &put, old.as_ref()).await?
        };
        self.settle(seq, put.change.durability).await?;
        Ok(stat)
    }

    async fn set_attributes(&self, name: &Name, attributes: Attributes, change: Change) -> Result<Stat> {
        admit(0, &attributes)?;
        let (record, seq) = {
            let _exclusive = self.locks.write(name).await;
            let old = self.found(name, change.condition).await?;
            let record = self.described(old.place, old.size, old.checksum, attributes).await?;
            (record.clone(), self.replace(Batch::default(), name, Some(&old), &record).await?)
        };
        self.settle(seq, change.durability).await?;
        Ok(record.stat(name))
    }

    async fn get(&self, name: &Name, range: Range<u64>, condition: Condition) -> Result<Object> {
        let _shared = self.locks.read(name).await;
        let record = self.found(name, condition).await?;
        let end = range.end.min(record.size);
        let data = self.read(&record, range.start.min(end)..end).await;
        let data = data.within(|| format!("object {name} of {}", self.name))?;
        Ok(Object { stat: record.stat(name), data })
    }

    async fn stat(&self, name: &Name) -> Result<Stat> {
        Ok(self.found(name, Condition::Any).await?.stat(name))
    }

    async fn delete(&self, name: &Name, change: Change) -> Result<()> {
        let seq = {
            let _exclusive = self.locks.write(name).await;
            let old = self.found(name, change.condition).await?;
            let mut batch = Batch { txn: Txn::new().deleting(), ..Batch::default() };
            self.volume.delete(&mut batch.txn, &object(name.as_bytes()));
            let counted = self.count(&mut batch.txn, &[(name, [-1, -(old.size as i64)])]);
            self.commit(batch, &[&old], counted).await?
        };
        self.settle(seq, change.durability).await
    }

    async fn list(&self, request: List) -> Result<Listing> {
        let limit = request.limit.max(1);
        let mut low = match request.start() {
            Bound::Unbounded => object(&[]),
            Bound::Included(name) => object(name.as_bytes()),
            // The next key there can be.
            Bound::Excluded(name) => [object(name.as_bytes()), vec![0]].concat(),
        };
        let high = prefix_end(&object(&request.prefix));
        let mut objects = Vec::new();
        while low < high {
            let page = self.volume.page(&low, Some(&high), (limit + 1 - objects.len()).min(PAGE)).await?;
            for (key, value) in page.entries {
                if objects.len() == limit {
                    return Ok(Listing { objects, more: true });
                }
                let damaged = || ashlar_block::Error::corrupt("the key of an object is damaged");
                let name = name_in(&key).ok_or_else(damaged)?;
                let record = Record::decode(&value).within(|| format!("object {name} of {}", self.name))?;
                objects.push(record.stat(&name));
            }
            match page.next {
                Some(next) => low = next.to_vec(),
                None => break,
            }
        }
        Ok(Listing { objects, more: false })
    }

    async fn sync(&self) -> Result<()> {
        Ok(self.contents.sync().await?)
    }

    fn usage(&self) -> Usage {
        let totals = self.counts.lock().values().fold([0, 0], |sum, count| [sum[0] + count[0], sum[1] + count[1]]);
        Usage { objects: totals[0], capacity: self.contents.capacity(), used: totals[1] }
    }
}

/// Behind all keys that begin with `prefix`, which begins with the byte of objects.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let keep = prefix.iter().rposition(|byte| *byte != 0xff).unwrap_or(0);
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    end
}
