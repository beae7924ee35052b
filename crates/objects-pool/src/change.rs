//! Changes that need what is there: writes in place, writes that outgrow the place, and composing.

use crate::building::{Building, STEP};
use crate::contents::{Change as Batch, Contents};
use crate::format::{Class, Place, Record, object};
use crate::store::{LIMITS, Objects, too_large};
use ashlar_objects::{
    Condition, Error, Name, Put, Result, Stat, checksum, checksum_of_both, checksum_of_zeros, checksum_with, len_of,
};
use ashlar_pool::Seq;
use ashlar_units::{BLOCK_LEN, Blocks};
use bytes::{Bytes, BytesMut};

const BLOCK: u64 = BLOCK_LEN as u64;

impl<C: Contents> Objects<C> {
    /// Writes into an object in place: first and last block are read and merged.
    pub(crate) async fn overwrite(&self, batch: &mut Batch, record: &Record, at: u64, data: &[Bytes]) -> Result<()> {
        let end = at + len_of(data);
        let (first, last) = (at / BLOCK, (end - 1) / BLOCK);
        let mut whole = BytesMut::with_capacity((end - first * BLOCK) as usize + BLOCK_LEN);
        for piece in self.read(record, (first * BLOCK).min(record.size)..at.min(record.size)).await? {
            whole.extend_from_slice(&piece);
        }
        whole.resize((at - first * BLOCK) as usize, 0);
        data.iter().for_each(|piece| whole.extend_from_slice(piece));
        let tail = end..record.size.min((last + 1) * BLOCK);
        if tail.start < tail.end {
            for piece in self.read(record, tail).await? {
                whole.extend_from_slice(&piece);
            }
        }
        self.contents.write(batch, self.contents.base(record.place) + Blocks(first), &whole.freeze());
        Ok(())
    }

    /// Checksum of an object after a write.
    pub(crate) async fn checksum_after(&self, record: &Record, at: u64, data: &[Bytes]) -> Result<u64> {
        let (size, len) = (record.size, len_of(data));
        let known = at.min(size)..(at + len).min(size);
        let old = self.read(record, known.clone()).await?;
        let new: Bytes = data.concat().into();
        let within = (known.end - known.start) as usize;
        let replaced = checksum(&[new.slice(..within)]);
        let patched = checksum_with(record.checksum, checksum(&old), replaced, size - known.end);
        let gap = at.saturating_sub(size);
        let grown = checksum_of_both(patched, checksum_of_zeros(gap), gap);
        let rest = new.slice(within..);
        let rest_len = rest.len() as u64;
        Ok(checksum_of_both(grown, checksum(&[rest]), rest_len))
    }

    /// A write that does not fit the object's place or a transaction: the object is built anew, of what it shares with the
    /// old one and what is written. The caller holds the lock.
    pub(crate) async fn rewrite(&self, old: &Record, at: u64, data: &[Bytes], place: Place) -> Result<Building> {
        let mut building = self.build(place).await?;
        self.append_object(&mut building, old, at.min(old.size)).await?;
        // What lies between is a hole, except in the block where the old bytes end.
        let gap = at.saturating_sub(building.len);
        if gap > 0 {
            let edge = (building.len.next_multiple_of(BLOCK) - building.len).min(gap);
            self.append(&mut building, &[Bytes::from(vec![0; edge as usize])]).await?;
            self.skip_to(&mut building, at).await?;
        }
        self.append(&mut building, data).await?;
        let mut next = building.len;
        while next < old.size {
            let end = old.size.min(next + STEP);
            let rest = self.read(old, next..end).await?;
            self.append(&mut building, &rest).await?;
            next = end;
        }
        Ok(building)
    }

    pub(crate) async fn skip_to(&self, building: &mut Building, at: u64) -> Result<()> {
        // Whole blocks stay holes; the beginning of the last one is written.
        let whole = at / BLOCK * BLOCK;
        if building.len < whole {
            building.len = whole;
        }
        let zeros = Bytes::from(vec![0; (at - building.len) as usize]);
        Ok(self.append(building, &[zeros]).await?)
    }

    pub(crate) async fn composed(
        &self,
        name: &Name,
        parts: &[Name],
        put: &Put,
        old: Option<&Record>,
    ) -> Result<(Stat, Seq)> {
        let mut records = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            if part == name || parts[..index].contains(part) {
                return Err(Error::Misuse(format!("{part} is composed of itself, or given twice as a part")));
            }
            records.push(self.found(part, Condition::Any).await?);
        }
        let size = records.iter().map(|record| record.size).fold(0, u64::saturating_add);
        too_large("an object", size, LIMITS.object)?;
        let sum = records.iter().fold(checksum(&[]), |sum, part| checksum_of_both(sum, part.checksum, part.size));
        let place = self.place(size).await?;
        let made = self.compose_in(place, &records, size).await;
        let (mut batch, razes) = match made {
            Ok(made) => made,
            Err(error) => return self.finish_or_raze(place, Err(error)).await,
        };
        let finish = async {
            let record = self.described(place, size, sum, put.attributes.clone()).await?;
            self.volume.put(&mut batch.txn, &object(name.as_bytes()), record.encode());
            let mut changes =
                vec![(name, [i64::from(old.is_none()), size as i64 - old.map_or(0, |old| old.size as i64)])];
            for (part, record) in parts.iter().zip(&records) {
                self.volume.delete(&mut batch.txn, &object(part.as_bytes()));
                changes.push((part, [-1, -(record.size as i64)]));
            }
            let ended: Vec<&Record> = records.iter().chain(old).collect();
            let counted = self.count(&mut batch.txn, &changes);
            let seq = self.commit(batch, &ended, counted).await?;
            Ok((record.stat(name), seq))
        };
        let finished = finish.await;
        if razes { self.finish_or_raze(place, finished).await } else { finished }
    }

    /// The contents of all parts in `place`: in the transaction that is given, or built before it.
    pub(crate) async fn compose_in(&self, place: Place, parts: &[Record], size: u64) -> Result<(Batch, bool)> {
        let mut batch = Batch::default();
        if place.class == Class::Small && size <= self.contents.write_max() {
            let mut whole = BytesMut::with_capacity(size as usize);
            for part in parts {
                for piece in self.read(part, 0..part.size).await? {
                    whole.extend_from_slice(&piece);
                }
            }
            if size > 0 {
                self.contents.write(&mut batch, self.contents.base(place), &whole.freeze());
            }
            return Ok((batch, false));
        }
        let mut building = self.build(place).await?;
        for part in parts {
            self.append_object(&mut building, part, part.size).await?;
        }
        self.built(&mut batch, &building);
        Ok((batch, true))
    }
}
