//! What a row holds, from what its members say: pure, without I/O.

use crate::format::{Content, Record, Table, checksum};
use crate::gf;
use crate::shape::{DATA_MAX, Level};
use ashlar_block::{Error, Kind};
use ashlar_units::BLOCK_LEN;
use bytes::{Bytes, BytesMut};
use std::fmt;

static ZEROS: [u8; BLOCK_LEN] = [0; BLOCK_LEN];

/// A block of zeros.
pub fn zeros() -> Bytes {
    Bytes::from_static(&ZEROS)
}

/// What a member says about its block of a row.
#[derive(Clone, Debug)]
pub enum Seen {
    /// The member is not there, or has not been rebuilt so far.
    Absent,
    /// Nobody can use it.
    Bad(Why),
    /// It agrees with its own record.
    Good(Bytes, Record),
}

/// Why a block cannot be used.
#[derive(Clone, Debug)]
pub enum Why {
    /// The device did not give it.
    Unread(Error),
    /// The block, or its record, is not what was written.
    Wrong(&'static str),
}

impl Why {
    /// Whether the device may give it later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Why::Unread(error) if error.kind() == Kind::Retry)
    }
}
impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Unread(error) => write!(f, "{error}"),
            Why::Wrong(what) => f.write_str(what),
        }
    }
}

/// Judges a block by its record.
pub fn seen(block: &Result<Bytes, Error>, record: &Record) -> Seen {
    match (record.content, block) {
        (Content::Fresh | Content::Lost, _) => Seen::Good(zeros(), *record),
        (Content::Stored, Err(error)) => Seen::Bad(Why::Unread(error.clone())),
        (Content::Stored, Ok(block)) if checksum(block) == record.checksum => Seen::Good(block.clone(), *record),
        (Content::Stored, Ok(_)) => Seen::Bad(Why::Wrong("the checksum does not hold")),
    }
}

/// Judges a block whose checksum block may be bad itself.
pub fn seen_by(block: &Result<Bytes, Error>, table: &Result<Table, Why>, row: u64) -> Seen {
    match table {
        Ok(table) => seen(block, table.record(row)),
        Err(why) => Seen::Bad(why.clone()),
    }
}

/// Whether a data block is what parity saw last; else whether it is the parity that is old.
pub fn compare(data: &Record, role: usize, parity: &Record) -> Result<(), Older> {
    if parity.row.get(role) == Some(&data.mark()) {
        return Ok(());
    }
    Err(if data.generation > parity.expected(role).1 { Older::Parity } else { Older::Data })
}

/// Which side missed a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Older {
    /// The data block.
    Data,
    /// The parity block.
    Parity,
}

/// The factor of a data block in a parity block.
pub fn factor(level: Level, parity: usize, role: usize) -> u8 {
    if level == Level::Raid6 && parity == 1 { gf::power(role) } else { 1 }
}

/// All parity blocks of a row.
pub fn parity_of(level: Level, data: &[Bytes], parity: usize) -> Vec<Bytes> {
    match (level, data) {
        (Level::Raid1, [data]) => vec![data.clone(); parity],
        (Level::Raid6, _) if parity == 2 => {
            let (mut p, mut q) = (BytesMut::zeroed(BLOCK_LEN), BytesMut::zeroed(BLOCK_LEN));
            let data: Vec<&[u8]> = data.iter().map(|data| &data[..]).collect();
            gf::p_and_q(&data, &mut p, &mut q);
            vec![p.freeze(), q.freeze()]
        }
        _ => (0..parity).map(|_| sum(data.iter().map(|data| (data, 1)))).collect(),
    }
}

/// The sum of products.
pub fn sum<'a>(terms: impl Iterator<Item = (&'a Bytes, u8)>) -> Bytes {
    let mut sum = BytesMut::zeroed(BLOCK_LEN);
    for (term, factor) in terms {
        gf::add_product(&mut sum, term, factor);
    }
    sum.freeze()
}

/// The record of a row's parity.
pub fn parity_record(content: &Bytes, data: &[Record], generation: u64) -> Record {
    let mut row = [0; DATA_MAX];
    row.iter_mut().zip(data).for_each(|(mark, record)| *mark = record.mark());
    if row.iter().all(|mark| *mark == 0) {
        return Record::default();
    }
    Record { content: Content::Stored, checksum: checksum(content), generation, row }
}

/// A row as it should be.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Contents by role, parity behind data; nothing where it is gone.
    pub contents: Vec<Option<Bytes>>,
    /// Records by role; meaningless where the content is gone.
    pub records: Vec<Record>,
    /// What members that are there hold wrongly.
    pub wrong: Vec<(usize, Why)>,
}

/// Finds out what a row holds. With `recount`, parity that agrees with its own record is computed and compared as well.
pub fn resolve(level: Level, data: usize, mut seen: Vec<Seen>, recount: bool) -> Resolved {
    let mut wrong: Vec<(usize, Why)> = Vec::new();
    for (role, seen) in seen.iter().enumerate() {
        if let Seen::Bad(why) = seen {
            wrong.push((role, why.clone()));
        }
    }
    let mut condemn = |seen: &mut Vec<Seen>, role: usize, what: &'static str| {
        wrong.push((role, Why::Wrong(what)));
        seen[role] = Seen::Bad(Why::Wrong(what));
    };
    let record = |seen: &[Seen], role: usize| match &seen[role] {
        Seen::Good(_, record) => Some(*record),
        _ => None,
    };
    // Parity that missed a write: some data block, or the other parity, knows a newer one.
    for parity in data..seen.len() {
        let Some(mine) = record(&seen, parity) else { continue };
        let by_data = (0..data)
            .any(|role| record(&seen, role).is_some_and(|data| compare(&data, role, &mine) == Err(Older::Parity)));
        let newer = |other: Record| {
            (0..data).any(|role| {
                mine.row[role % DATA_MAX] != other.row[role % DATA_MAX]
                    && other.expected(role).1 > mine.expected(role).1
            })
        };
        let by_parity = (data..seen.len()).any(|other| other != parity && record(&seen, other).is_some_and(newer));
        if by_data || by_parity {
            condemn(&mut seen, parity, "the parity misses a write");
        }
    }
    for role in 0..data {
        let Some(mine) = record(&seen, role) else { continue };
        let old = (data..seen.len())
            .any(|parity| record(&seen, parity).is_some_and(|parity| compare(&mine, role, &parity).is_err()));
        if old {
            condemn(&mut seen, role, "a write was lost");
        }
    }
    let unknown: Vec<usize> = (0..data).filter(|role| record(&seen, *role).is_none()).collect();
    let good: Vec<usize> = (data..seen.len()).filter(|parity| record(&seen, *parity).is_some()).collect();
    let mut contents: Vec<Option<Bytes>> = Vec::with_capacity(seen.len());
    let mut records: Vec<Record> = Vec::with_capacity(seen.len());
    for seen in &seen {
        let (content, record) = match seen {
            Seen::Good(content, record) => (Some(content.clone()), *record),
            _ => (None, Record::default()),
        };
        contents.push(content);
        records.push(record);
    }
    if unknown.len() > good.len() {
        return Resolved { contents, records, wrong };
    }
    if let Some(witness) = good.first().map(|parity| records[*parity]) {
        for (role, content) in unknown.iter().zip(solve(level, data, &unknown, &good, &contents)) {
            let (kind, generation) = witness.expected(*role);
            let checksum = if kind == Content::Stored { checksum(&content) } else { 0 };
            records[*role] = Record { content: kind, checksum, generation, ..Record::default() };
            contents[*role] = Some(content);
        }
    }
    // All data are known: parity follows.
    let whole: Vec<Bytes> = contents[..data].iter().flatten().cloned().collect();
    if whole.len() == data && (recount || good.len() < seen.len() - data) {
        let newest = records.iter().map(|record| record.generation).max().unwrap_or_default();
        for (index, content) in parity_of(level, &whole, seen.len() - data).into_iter().enumerate() {
            let role = data + index;
            let known = contents[role].is_some();
            if known && contents[role].as_ref() == Some(&content) {
                continue;
            }
            if known {
                wrong.push((role, Why::Wrong("the parity is not that of the data")));
            }
            records[role] = parity_record(&content, &records[..data], newest);
            contents[role] = Some(content);
        }
    }
    Resolved { contents, records, wrong }
}

/// The unknown data blocks of a row, from as many good parity blocks.
fn solve(level: Level, data: usize, unknown: &[usize], good: &[usize], contents: &[Option<Bytes>]) -> Vec<Bytes> {
    match (unknown, good) {
        // All factors are 1.
        ([_], [p, ..]) if factor(level, p - data, 1) == 1 => {
            vec![sum(contents[..data].iter().flatten().chain(&contents[*p]).map(|content| (content, 1)))]
        }
        ([a], [_, ..]) => {
            let (_, right) = syndromes(data, contents);
            vec![sum([(&right, gf::inverse(gf::power(*a)))].into_iter())]
        }
        ([a, b], [_, _, ..]) => {
            // left = A + B, right = 2^a A + 2^b B.
            let (left, right) = syndromes(data, contents);
            let (of_a, of_b) = (gf::power(*a), gf::power(*b));
            let scale = gf::inverse(of_a ^ of_b);
            let second = sum([(&left, gf::multiply(scale, of_a)), (&right, scale)].into_iter());
            vec![sum([(&left, 1), (&second, 1)].into_iter()), second]
        }
        _ => Vec::new(),
    }
}

/// What the unknown data blocks of a row of RAID-6 add to P and to Q, where those are known: by Horner's rule, which is faster
/// than a product for each block.
fn syndromes(data: usize, contents: &[Option<Bytes>]) -> (Bytes, Bytes) {
    let blocks: Vec<&[u8]> = contents[..data].iter().map(|content| content.as_deref().unwrap_or(&ZEROS)).collect();
    let (mut p, mut q) = (BytesMut::zeroed(BLOCK_LEN), BytesMut::zeroed(BLOCK_LEN));
    gf::p_and_q(&blocks, &mut p, &mut q);
    for (sum, known) in [&mut p, &mut q].into_iter().zip(&contents[data..]) {
        known.iter().for_each(|known| gf::add(sum, known));
    }
    (p.freeze(), q.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_fuzz::incompressible;

    #[test]
    fn every_set_of_lost_members_is_solved() {
        for (level, members) in
            [(Level::Raid1, 3), (Level::Raid4, 5), (Level::Raid5, 2), (Level::Raid6, 3), (Level::Raid6, 12)]
        {
            let parity = level.parity(members);
            let data = members - parity;
            let blocks: Vec<Bytes> = (0..data as u64).map(|seed| incompressible(seed, BLOCK_LEN).into()).collect();
            let records: Vec<Record> = blocks
                .iter()
                .zip(7..)
                .map(|(block, generation)| Record {
                    content: Content::Stored,
                    checksum: checksum(block),
                    generation,
                    ..Record::default()
                })
                .collect();
            let mut all: Vec<(Bytes, Record)> = blocks.iter().cloned().zip(records.iter().copied()).collect();
            for content in parity_of(level, &blocks, parity) {
                let record = parity_record(&content, &records, 40);
                all.push((content, record));
            }
            for lost in 0u32..1 << members {
                if lost.count_ones() as usize > parity {
                    continue;
                }
                let seen = all.iter().enumerate().map(|(role, (content, record))| match lost >> role & 1 {
                    0 => Seen::Good(content.clone(), *record),
                    _ => Seen::Absent,
                });
                let resolved = resolve(level, data, seen.collect(), true);
                assert!(resolved.wrong.is_empty());
                for (role, (content, record)) in all.iter().enumerate() {
                    assert_eq!(resolved.contents[role].as_ref(), Some(content), "{level} lost {lost:b} role {role}");
                    let same = (resolved.records[role].checksum, resolved.records[role].mark());
                    assert!(
                        same == (record.checksum, record.mark()) || role >= data,
                        "{level} lost {lost:b} role {role}"
                    );
                }
            }
        }
    }

    #[test]
    fn who_missed_a_write_is_told_by_generations() {
        let block = |fill: u8| Bytes::from(vec![fill; BLOCK_LEN]);
        let record = |block: &Bytes, generation| Record {
            content: Content::Stored,
            checksum: checksum(block),
            generation,
            ..Record::default()
        };
        let (old, new, other) = (block(1), block(2), block(3));
        let row = |first: &Bytes, generation, parity: &Bytes, saw, number| {
            let data = [record(&old, saw), record(&other, 5)];
            let parity_record = parity_record(parity, &data, number);
            let first = Seen::Good(first.clone(), record(first, generation));
            let seen =
                vec![first, Seen::Good(other.clone(), record(&other, 5)), Seen::Good(parity.clone(), parity_record)];
            resolve(Level::Raid5, 2, seen, false)
        };
        let parity = |first: &Bytes| sum([(first, 1), (&other, 1)].into_iter());
        // The data block is that of write 6, parity saw 9: the data block is old.
        let resolved = row(&old, 6, &parity(&new), 9, 9);
        assert_eq!((resolved.wrong[0].0, resolved.contents[0].as_ref()), (0, Some(&new)));
        // Parity saw only 6, and was written later for another block: parity is old.
        let resolved = row(&new, 9, &parity(&old), 6, 12);
        assert_eq!((resolved.wrong[0].0, resolved.contents[2].as_ref()), (2, Some(&parity(&new))));
    }
}
