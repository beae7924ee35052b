//! Reading: what is right at once, and what must be made again.

use crate::array::{Array, Crew, Verify};
use crate::format::{Content, Table};
use crate::member::{Class, all};
use crate::row::{Resolved, Seen, Why, compare, resolve, seen, seen_by};
use crate::shape::{GROUP, Place};
use ashlar_block::{Error, IoContext, Kind, Result};
use ashlar_env::ring::AlignedBuf;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks that are read under one lock; more are read piece by piece.
const PIECE: u64 = 2048;

/// Blocks to read, by slot and place on the member.
pub(crate) type Wants = BTreeMap<usize, BTreeMap<Lba, Class>>;

/// What was read.
#[derive(Default)]
pub(crate) struct Facts {
    blocks: BTreeMap<(usize, Lba), Result<Bytes>>,
    tables: BTreeMap<(usize, u64), Result<Table, Why>>,
}

impl Facts {
    pub fn block(&self, slot: usize, at: Lba) -> Result<Bytes> {
        let none = || Err(Error::misuse("a block was not asked for"));
        self.blocks.get(&(slot, at)).cloned().unwrap_or_else(none)
    }
    pub fn table(&self, slot: usize, group: u64) -> Result<&Table, Why> {
        match self.tables.get(&(slot, group)) {
            Some(Ok(table)) => Ok(table),
            Some(Err(why)) => Err(why.clone()),
            None => Err(Why::Wrong("the checksum block was not asked for")),
        }
    }
}

/// Rows, and what they were found from.
pub(crate) struct Examined {
    pub facts: Facts,
    pub rows: BTreeMap<u64, Resolved>,
}

pub(crate) fn groups_of_rows<'a>(rows: impl IntoIterator<Item = &'a u64>) -> BTreeSet<u64> {
    rows.into_iter().map(|row| row / GROUP).collect()
}

impl Array {
    /// Asks for a block and its checksum block, if the member has them.
    pub(crate) fn want(&self, wants: &mut Wants, crew: &Crew, row: u64, role: usize) -> bool {
        let slot = self.shape.slot(row, role);
        let class = if role < self.shape.zone(row).data { Class::Data } else { Class::Parity };
        if crew.has(slot, row / GROUP).is_none() {
            return false;
        }
        wants.entry(slot).or_default().insert(self.block_at(row), class);
        self.want_table(wants, crew, slot, row / GROUP)
    }
    pub(crate) fn want_table(&self, wants: &mut Wants, crew: &Crew, slot: usize, group: u64) -> bool {
        let there = crew.has(slot, group).is_some();
        if there {
            wants.entry(slot).or_default().insert(self.table_at(group), Class::Table);
        }
        there
    }

    /// Reads from all members at once.
    pub(crate) async fn fetch(&self, context: IoContext, crew: &Crew, wants: &Wants) -> Facts {
        let facts = Mutex::new(Facts::default());
        self.gather(context, crew, wants, |slot, at, block| self.note(&mut facts.lock(), slot, at, block)).await;
        facts.into_inner()
    }

    /// Reads from all members at once, and tells each block as it comes.
    pub(crate) async fn gather(
        &self,
        context: IoContext,
        crew: &Crew,
        wants: &Wants,
        hear: impl Fn(usize, Lba, Result<Bytes>),
    ) {
        let read = async |(slot, wanted): (&usize, &BTreeMap<Lba, Class>)| {
            if let Some(member) = crew.member(*slot) {
                member.read(context, wanted, |at, block| hear(*slot, at, block)).await;
            }
        };
        all(usize::MAX, wants.iter().map(read)).await;
    }

    /// Adds what a member holds at some place.
    pub(crate) fn note(&self, facts: &mut Facts, slot: usize, at: Lba, block: Result<Bytes>) {
        let group = self.group_at(at);
        if at == self.table_at(group) {
            let decode = |block: Bytes| Table::decode(&block, self.owner(slot, group)).map_err(Why::Wrong);
            facts.tables.insert((slot, group), block.map_err(Why::Unread).and_then(decode));
        } else {
            facts.blocks.insert((slot, at), block);
        }
    }

    /// Reads all of some rows and finds out what they hold. The groups are locked.
    pub(crate) async fn examine(
        &self,
        context: IoContext,
        crew: &Crew,
        rows: &BTreeSet<u64>,
        recount: bool,
    ) -> Examined {
        let mut wants = Wants::new();
        for row in rows {
            for role in 0..self.shape.zone(*row).members.len() {
                self.want(&mut wants, crew, *row, role);
            }
        }
        let facts = self.fetch(context, crew, &wants).await;
        let resolved = rows.iter().map(|row| (*row, self.judge(crew, &facts, *row, recount)));
        let rows = resolved.collect();
        Examined { facts, rows }
    }

    fn judge(&self, crew: &Crew, facts: &Facts, row: u64, recount: bool) -> Resolved {
        let zone = self.shape.zone(row);
        let seen = (0..zone.members.len()).map(|role| {
            let slot = self.shape.slot(row, role);
            match crew.has(slot, row / GROUP) {
                None => Seen::Absent,
                Some(_) => {
                    let table = facts.table(slot, row / GROUP).cloned();
                    seen_by(&facts.block(slot, self.block_at(row)), &table, row)
                }
            }
        });
        resolve(self.shape.level, zone.data, seen.collect(), recount)
    }

    /// The data of a place, if all that was read agrees.
    fn agreed(&self, crew: &Crew, facts: &Facts, place: Place) -> Option<Bytes> {
        let Place { row, role } = place;
        let group = row / GROUP;
        let slot = self.shape.slot(row, role);
        crew.has(slot, group)?;
        let record = *facts.table(slot, group).ok()?.record(row);
        let Seen::Good(data, _) = seen(&facts.block(slot, self.block_at(row)), &record) else { return None };
        if record.content == Content::Lost {
            return None;
        }
        if let Some(witness) = self.witness(crew, row) {
            compare(&record, role, facts.table(witness, group).ok()?.record(row)).ok()?;
        }
        Some(data)
    }

    /// The member whose parity says what the row's data must be; none if reads do not ask.
    fn witness(&self, crew: &Crew, row: u64) -> Option<usize> {
        let zone = self.shape.zone(row);
        let mut parity = (zone.data..zone.members.len()).map(|role| self.shape.slot(row, role));
        match self.options.verify {
            Verify::Row => parity.find(|slot| crew.has(*slot, row / GROUP).is_some()),
            Verify::Own => None,
        }
    }

    pub(crate) async fn read_blocks(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        if count == Blocks(1) {
            return Ok(self.read_piece(context, &[at]).await?.remove(0));
        }
        let len = count.to_bytes().0 as usize;
        let mut whole = AlignedBuf::any(len);
        let mut to = whole.as_mut().chunks_exact_mut(BLOCK_LEN);
        let mut next = at.0;
        while next < at.0 + count.0 {
            let end = (next + PIECE).min(at.0 + count.0);
            let blocks: Vec<Lba> = (next..end).map(Lba).collect();
            let pieces = self.read_piece(context, &blocks).await?;
            to.by_ref().zip(pieces).for_each(|(to, piece)| to.copy_from_slice(&piece));
            next = end;
        }
        drop(to);
        Ok(whole.freeze(len))
    }

    async fn read_piece(&self, context: IoContext, blocks: &[Lba]) -> Result<Vec<Bytes>> {
        let places: Vec<Place> = blocks.iter().map(|at| self.shape.place(*at)).collect();
        let groups = groups_of_rows(places.iter().map(|place| &place.row));
        let guards = self.share(&groups).await;
        let crew = self.crew();
        let mut wants = Wants::new();
        for Place { row, role } in &places {
            // Of a row with an absent member everything is needed later on.
            if self.want(&mut wants, &crew, *row, *role)
                && let Some(witness) = self.witness(&crew, *row)
            {
                self.want_table(&mut wants, &crew, witness, row / GROUP);
            }
        }
        let facts = self.fetch(context, &crew, &wants).await;
        let found: Vec<Option<Bytes>> = places.iter().map(|place| self.agreed(&crew, &facts, *place)).collect();
        let doubtful: BTreeSet<u64> =
            places.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(place, _)| place.row).collect();
        if doubtful.is_empty() {
            return Ok(found.into_iter().flatten().collect());
        }
        let mut rows = self.examine(context, &crew, &doubtful, false).await.rows;
        drop(guards);
        let wrong: BTreeSet<u64> =
            rows.iter().filter(|(_, resolved)| !resolved.wrong.is_empty()).map(|(row, _)| *row).collect();
        for group in groups_of_rows(&wrong) {
            let here = wrong.iter().copied().filter(|row| row / GROUP == group).collect();
            let _guards = self.own(&BTreeSet::from([group])).await;
            rows.extend(self.mend(context, &self.crew(), here, false).await.rows);
        }
        let answer = places.iter().zip(found).map(|(place, found)| match found {
            Some(data) => Ok(data),
            None => self.content(&crew, &rows, *place),
        });
        answer.collect()
    }

    /// The data of a place among examined rows, or an error that says why there are none.
    fn content(&self, crew: &Crew, rows: &BTreeMap<u64, Resolved>, place: Place) -> Result<Bytes> {
        let resolved = rows.get(&place.row).ok_or_else(|| Error::misuse("a row was not examined"))?;
        let record = resolved.records.get(place.role).copied().unwrap_or_default();
        match resolved.contents.get(place.role).cloned().flatten() {
            Some(data) if record.content != Content::Lost => Ok(data),
            lost => Err(self.gone(crew, resolved, place, lost.is_some())),
        }
    }

    fn gone(&self, crew: &Crew, resolved: &Resolved, place: Place, listed: bool) -> Error {
        let slot = self.shape.slot(place.row, place.role);
        let name = crew.member(slot).map_or("missing".to_string(), |member| member.name());
        let at = self.shape.lba(place);
        let where_to = format!("block {at}, on member {slot} ({name}) at {}", self.block_at(place.row));
        if listed {
            let help =
                "it was lost when more members failed there than the array can do without; write it anew from a copy";
            return Error::corrupt(format!("{where_to}: {help}"));
        }
        let own = resolved.wrong.iter().find(|(role, _)| *role == place.role);
        let why = own.map_or("the member is not there".to_string(), |(_, why)| why.to_string());
        let others = resolved.wrong.iter().filter(|(role, _)| *role != place.role);
        let others: String =
            others.map(|(role, why)| format!("; member {}: {why}", self.shape.slot(place.row, *role))).collect();
        let kind = match own {
            Some((_, Why::Unread(error))) if error.kind() != Kind::Misuse => error.kind(),
            _ if resolved.wrong.iter().any(|(_, why)| why.is_passing()) => Kind::Retry,
            _ => Kind::Corrupt,
        };
        let help =
            "the other members of the row are not enough to make it again; take it from a copy, and write it anew";
        Error::new(kind, format!("{where_to}: {why}{others}; {help}"))
    }
}
