//! What a volume of objects holds, compared with itself.

use crate::format::{
    Place, Record, all_building, all_counts, blocks_of, building_in, decode_numbers, name_in, object, objects_end,
    stripe_in,
};
use crate::locks::stripe;
use ashlar_block::{Error, Result};
use ashlar_objects::Name;
use ashlar_pool::Volume;
use ashlar_pool::map::{BACK_PREFIX, Form, MAP_PREFIX, chunk_start, decode};
use ashlar_units::{Blocks, Lba};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Entries of the dictionary that are read at once.
const PAGE: usize = 256;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Objects.
    pub objects: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Places that are being built.
    pub building: u64,
    /// What is wrong, a sentence each.
    pub wrong: Vec<String>,
}

/// Compares descriptions, contents, places being built and counts with each other; nothing may change meanwhile. It holds
/// some 100 bytes for each object.
///
/// # Errors
/// Those of the pool, for what cannot be read.
pub async fn audit(volume: &Volume) -> Result<Audit> {
    let mut stored = Vec::new();
    let mut scan = Scan::new(volume, &[MAP_PREFIX], &[BACK_PREFIX]);
    while let Some((key, value)) = scan.next().await? {
        let first = chunk_start(&key).ok_or_else(|| Error::corrupt("a map key of the wrong length"))?;
        let runs = decode(&value)?;
        let runs = runs.iter().filter(|run| run.form != Form::Hole);
        stored.extend(runs.map(|run| (first + u64::from(run.start))..(first + u64::from(run.end()))));
    }
    audit_with(volume, Place::base, stored).await
}

/// The same where the contents are elsewhere: with the first block of a place, and the blocks that hold something.
///
/// # Errors
/// Those of the pool, for what cannot be read.
pub async fn audit_with(
    volume: &Volume,
    base: impl Fn(Place) -> Lba,
    stored: impl IntoIterator<Item = Range<u64>>,
) -> Result<Audit> {
    let mut audit = Audit::default();
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    let mut counts: BTreeMap<u16, [u64; 2]> = BTreeMap::new();
    let mut scan = Scan::new(volume, &object(&[]), &objects_end());
    while let Some((key, value)) = scan.next().await? {
        let Some(name) = name_in(&key) else {
            audit.wrong.push(format!("a key of {} bytes is no object's", key.len()));
            continue;
        };
        let record = Record::decode(&value)?;
        let entry = counts.entry(stripe(&name)).or_default();
        *entry = [entry[0] + u64::from(!name.is_reserved()), entry[1] + record.size];
        audit.objects += 1;
        audit.bytes += record.size;
        let first = base(record.place);
        if ends.insert(first.0, (first + blocks_of(record.size)).0).is_some() {
            audit.wrong.push(format!("{name} is in the place of another object"));
        }
    }
    let (low, high) = all_building();
    let mut scan = Scan::new(volume, &low, &high);
    while let Some((key, _)) = scan.next().await? {
        let place = building_in(&key).ok_or_else(|| Error::corrupt("a place's key is damaged"))?;
        audit.building += 1;
        let first = base(place);
        if ends.insert(first.0, (first + blocks_of(place.class.bytes())).0).is_some() {
            audit.wrong.push("a place that is being built is an object's".into());
        }
    }
    counts.retain(|_, count| *count != [0, 0]);
    let (low, high) = all_counts();
    let mut scan = Scan::new(volume, &low, &high);
    while let Some((key, value)) = scan.next().await? {
        let stripe = stripe_in(&key).ok_or_else(|| Error::corrupt("the key of a count is damaged"))?;
        if counts.remove(&stripe) != Some(decode_numbers(&value)?) {
            audit.wrong.push(format!("objects or bytes of stripe {stripe} are counted wrongly"));
        }
    }
    audit.wrong.extend(counts.keys().map(|stripe| format!("objects of stripe {stripe} are not counted")));
    for Range { start, end } in stored {
        // A run may go on from one full place into the next.
        let mut at = start;
        while at < end {
            match ends.range(..=at).next_back() {
                Some((_, behind)) if *behind > at => at = *behind,
                _ => {
                    audit.wrong.push(format!("blocks {at} to {end} are stored and no object's"));
                    break;
                }
            }
        }
    }
    Ok(audit)
}

/// The object that a block belongs to, and how many bytes lie before the block. It reads all descriptions.
///
/// # Errors
/// Those of the pool.
pub async fn object_at(volume: &Volume, block: Lba) -> Result<Option<(Name, u64)>> {
    let place = Place::holding(block);
    let mut scan = Scan::new(volume, &object(&[]), &objects_end());
    while let Some((key, value)) = scan.next().await? {
        if let Some(name) = name_in(&key)
            && Record::decode(&value).is_ok_and(|record| record.place == place)
        {
            return Ok(Some((name, Blocks(block.0 - place.base().0).to_bytes().0)));
        }
    }
    Ok(None)
}

/// Entries of a range of the dictionary, one after another.
pub(crate) struct Scan<'a> {
    volume: &'a Volume,
    low: Option<Vec<u8>>,
    high: Vec<u8>,
    page: std::vec::IntoIter<(Vec<u8>, Bytes)>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(volume: &'a Volume, low: &[u8], high: &[u8]) -> Scan<'a> {
        Scan { volume, low: Some(low.to_vec()), high: high.to_vec(), page: vec![].into_iter() }
    }
    pub(crate) async fn next(&mut self) -> Result<Option<(Vec<u8>, Bytes)>> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            let Some(low) = self.low.take() else { return Ok(None) };
            let page = self.volume.page(&low, Some(&self.high), PAGE).await?;
            let entries: Vec<_> = page.entries.into_iter().map(|(key, value)| (key.to_vec(), value)).collect();
            self.page = entries.into_iter();
            self.low = page.next.map(|next| next.to_vec());
        }
    }
}
