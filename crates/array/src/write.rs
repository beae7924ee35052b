//! Writing: by subtraction, by addition, or whole rows.
//!
//! A row of `N` data and `m` parity blocks of which `k` data blocks are written:
//!
//! | way | reads | writes | members engaged |
//! | --- | --- | --- | --- |
//! | subtraction | k old data, m old parity | k + m | k + m |
//! | addition | N - k other data | k + m | N + m |
//! | whole row (k = N) | none | N + m | N + m |
//!
//! With the checksum blocks of all members that are read or written, each of them twice as many; checksum blocks of several
//! blocks of a batch are read and written once.

use crate::array::{Array, Crew, Guards, Journaling, ParityRule, Work};
use crate::format::{Content, Record, Table, checksum};
use crate::member::Class;
use crate::read::{Facts, Wants, groups_of_rows};
use crate::row::{Seen, Why, compare, factor, parity_of, parity_record, seen, sum, zeros};
use crate::shape::GROUP;
use ashlar_block::{Durability, Error, IoContext, Kind, Result};
use ashlar_units::Lba;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// New data of a row, by role.
type NewRow = BTreeMap<usize, Bytes>;
/// New data by row.
pub(crate) type NewRows = BTreeMap<u64, NewRow>;

/// What rows need before they can be written.
pub(crate) struct Plan {
    ways: BTreeMap<u64, Way>,
    /// Blocks to read.
    pub wants: Wants,
    /// Groups that are written from end to end, of which nothing is read.
    whole: BTreeSet<u64>,
}

/// How the parity of a row follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing is read.
    Whole,
    /// Old data and old parity are read.
    Subtract,
    /// The other data are read.
    Add,
    /// Everything is read, and made again where it is missing.
    Resolve,
}

/// The way for `k` of `data` blocks, with so many parity blocks.
pub(crate) fn way(rule: ParityRule, k: usize, data: usize, parity: usize) -> Way {
    if k == data || parity == 0 {
        return Way::Whole;
    }
    let (subtract, add) = (2 * (k + parity), data + parity);
    match rule {
        // k + parity members are fewer than data + parity.
        ParityRule::FewestMembers => Way::Subtract,
        ParityRule::FewestRequests if subtract <= add => Way::Subtract,
        ParityRule::FewestRequests => Way::Add,
    }
}

/// Checksum blocks of groups that are being written.
type Tables = BTreeMap<(usize, u64), Table>;

impl Array {
    pub(crate) async fn write_blocks(
        &self,
        context: IoContext,
        blocks: BTreeMap<Lba, Bytes>,
        durability: Durability,
    ) -> Result<()> {
        self.admit_write()?;
        let most = self.part_blocks_max();
        let mut rows = NewRows::new();
        for (at, block) in blocks {
            let place = self.shape.place(at);
            rows.entry(place.row).or_default().insert(place.role, block);
        }
        // As many rows in one entry as its parts can have, with their checksum blocks, and whole groups where possible.
        let mut entry = NewRows::new();
        let mut used = 0;
        let mut groups: BTreeMap<u64, NewRows> = BTreeMap::new();
        for (row, new) in rows {
            groups.entry(row / GROUP).or_default().insert(row, new);
        }
        for rows in groups.into_values() {
            if used + rows.len() + 1 > most {
                self.write_entry(context, std::mem::take(&mut entry), durability).await?;
                used = 0;
            }
            used += rows.len() + 1;
            entry.extend(rows);
        }
        self.write_entry(context, entry, durability).await
    }

    async fn write_entry(&self, context: IoContext, rows: NewRows, durability: Durability) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let groups = groups_of_rows(rows.keys());
        let _guards: Guards = self.own(&groups).await;
        let crew = self.crew();
        let ways: BTreeMap<u64, Way> = rows.iter().map(|(row, new)| (*row, self.way_of(&crew, *row, new))).collect();
        let (wants, whole) = self.wants(&crew, &rows, &ways);
        let plan = Plan { ways, wants, whole };
        match self.options.journal {
            Journaling::Members => {
                let facts = self.fetch(context, &crew, &plan.wants).await;
                self.carry_out(context, &crew, &plan, rows, &facts, durability).await
            }
            Journaling::Off => self.write_groups(context, &crew, &plan, rows, durability).await,
        }
    }

    /// Writes rows of a plan, when what it wants of their groups has been read.
    pub(crate) async fn carry_out(
        &self,
        context: IoContext,
        crew: &Crew,
        Plan { ways, whole, .. }: &Plan,
        rows: NewRows,
        facts: &Facts,
        durability: Durability,
    ) -> Result<()> {
        let doubtful: BTreeSet<u64> = rows
            .iter()
            .filter(|(row, new)| !self.sound(crew, facts, whole, **row, new, ways[row]))
            .map(|(row, _)| row / GROUP)
            .collect();
        let number = self.number().await?;
        let mut tables = Tables::new();
        let mut work = Work::new();
        let mut slow: BTreeMap<u64, NewRows> = BTreeMap::new();
        for (row, new) in rows {
            let group = row / GROUP;
            if doubtful.contains(&group) {
                slow.entry(group).or_default().insert(row, new);
                continue;
            }
            for slot in self.shape.zone(row).members.iter().filter(|slot| crew.has(**slot, group).is_some()) {
                if tables.contains_key(&(*slot, group)) {
                    continue;
                }
                let table = match whole.contains(&group) {
                    true => Some(Table::fresh(self.owner(*slot, group))),
                    false => facts.table(*slot, group).ok().cloned(),
                };
                table.map(|table| tables.insert((*slot, group), table));
            }
            self.follow(crew, facts, &mut tables, &mut work, (row, ways[&row]), &new, number);
        }
        for ((slot, group), table) in &tables {
            // Tables that were only read have not changed.
            let unread = || facts.table(*slot, *group).ok() != Some(table);
            if crew.has(*slot, *group).is_some() && unread() {
                self.put_table(&mut work, *slot, *group, table);
            }
        }
        self.commit(context, crew, work, durability).await?;
        for (group, rows) in slow {
            self.write_resolved(context, crew, group, rows, durability).await?;
        }
        Ok(())
    }

    fn put(&self, work: &mut Work, crew: &Crew, row: u64, role: usize, data: Bytes) {
        let slot = self.shape.slot(row, role);
        let class = if role < self.shape.zone(row).data { Class::Data } else { Class::Parity };
        if crew.has(slot, row / GROUP).is_some() {
            work.entry(slot).or_default().insert(self.block_at(row), (class, data));
        }
    }
    fn put_table(&self, work: &mut Work, slot: usize, group: u64, table: &Table) {
        work.entry(slot).or_default().insert(self.table_at(group), (Class::Table, table.encode()));
    }

    /// Parity roles of a row whose members are there.
    fn parities(&self, crew: &Crew, row: u64) -> Vec<usize> {
        let zone = self.shape.zone(row);
        let there = |role: &usize| crew.has(self.shape.slot(row, *role), row / GROUP).is_some();
        (zone.data..zone.members.len()).filter(there).collect()
    }

    fn way_of(&self, crew: &Crew, row: u64, new: &NewRow) -> Way {
        let data = self.shape.zone(row).data;
        let there = |role: usize| crew.has(self.shape.slot(row, role), row / GROUP).is_some();
        let way = way(self.options.parity, new.len(), data, self.parities(crew, row).len());
        let subtractable = new.keys().all(|role| there(*role));
        let addable = (0..data).all(|role| new.contains_key(&role) || there(role));
        match way {
            // Without parity there, a block on a member that is not there would be lost.
            Way::Whole if new.len() < data && !subtractable => Way::Resolve,
            Way::Subtract if !subtractable => {
                if addable {
                    Way::Add
                } else {
                    Way::Resolve
                }
            }
            Way::Add if !addable => {
                if subtractable {
                    Way::Subtract
                } else {
                    Way::Resolve
                }
            }
            way => way,
        }
    }

    /// What must be read, and the groups that are written from end to end, of which nothing must.
    fn wants(&self, crew: &Crew, rows: &NewRows, ways: &BTreeMap<u64, Way>) -> (Wants, BTreeSet<u64>) {
        let mut whole_rows: BTreeMap<u64, u64> = BTreeMap::new();
        for (row, new) in rows {
            if new.len() == self.shape.zone(*row).data {
                *whole_rows.entry(row / GROUP).or_default() += 1;
            }
        }
        let whole: BTreeSet<u64> =
            whole_rows.into_iter().filter(|(_, rows)| *rows == GROUP).map(|(group, _)| group).collect();
        let mut wants = Wants::new();
        for (row, new) in rows.iter().filter(|(row, _)| !whole.contains(&(*row / GROUP))) {
            let zone = self.shape.zone(*row);
            for role in 0..zone.members.len() {
                let (parity, written) = (role >= zone.data, new.contains_key(&role));
                let read = match ways[row] {
                    Way::Whole | Way::Resolve => false,
                    Way::Subtract => parity || written,
                    Way::Add => !parity && !written,
                };
                if read {
                    self.want(&mut wants, crew, *row, role);
                } else if parity || written {
                    self.want_table(&mut wants, crew, self.shape.slot(*row, role), row / GROUP);
                }
            }
        }
        (wants, whole)
    }

    /// Whether everything that was read for a row agrees.
    fn sound(&self, crew: &Crew, facts: &Facts, whole: &BTreeSet<u64>, row: u64, new: &NewRow, way: Way) -> bool {
        let (group, zone) = (row / GROUP, self.shape.zone(row));
        if whole.contains(&group) {
            return true;
        }
        let parities = self.parities(crew, row);
        let good = |role: usize| self.old(facts, row, role).is_some();
        let table_of = |role: usize| facts.table(self.shape.slot(row, role), group);
        let there = |role: usize| crew.has(self.shape.slot(row, role), group).is_some();
        let agrees = |role: usize| {
            good(role)
                && parities.iter().all(|parity| {
                    let (Ok(mine), Ok(theirs)) = (table_of(role), table_of(*parity)) else { return false };
                    compare(mine.record(row), role, theirs.record(row)).is_ok()
                })
        };
        let tables = || new.keys().chain(&parities).filter(|role| there(**role)).all(|role| table_of(*role).is_ok());
        match way {
            Way::Whole => tables(),
            Way::Subtract => new.keys().all(|role| agrees(*role)) && parities.iter().all(|role| good(*role)),
            Way::Add => tables() && (0..zone.data).all(|role| new.contains_key(&role) || agrees(role)),
            Way::Resolve => false,
        }
    }

    /// What was read of a block, if it agrees with its record and is no block that was lost.
    fn old(&self, facts: &Facts, row: u64, role: usize) -> Option<Bytes> {
        let slot = self.shape.slot(row, role);
        let record = facts.table(slot, row / GROUP).ok()?.record(row);
        match seen(&facts.block(slot, self.block_at(row)), record) {
            Seen::Good(data, _) => Some(data),
            _ => None,
        }
    }

    /// Adds a row to the work: its new data, the parity that follows, and their records.
    #[allow(clippy::too_many_arguments, reason = "the parts of one write")]
    fn follow(
        &self,
        crew: &Crew,
        facts: &Facts,
        tables: &mut Tables,
        work: &mut Work,
        (row, way): (u64, Way),
        new: &NewRow,
        number: u64,
    ) {
        let (group, zone) = (row / GROUP, self.shape.zone(row));
        let level = self.shape.level;
        let fresh: BTreeMap<usize, Record> = new.iter().map(|(role, data)| (*role, stored(data, number))).collect();
        for (role, data) in new {
            if let Some(table) = tables.get_mut(&(self.shape.slot(row, *role), group)) {
                table.set(row, fresh[role]);
            }
            self.put(work, crew, row, *role, data.clone());
        }
        let parities = self.parities(crew, row);
        if parities.is_empty() {
            return;
        }
        let parity: Vec<Bytes> = match way {
            Way::Subtract => {
                let mut difference = BTreeMap::new();
                for (role, data) in new {
                    let old = self.old(facts, row, *role).unwrap_or_else(zeros);
                    difference.insert(*role, sum([(&old, 1), (data, 1)].into_iter()));
                }
                let follow = |role: &usize| {
                    let old = self.old(facts, row, *role).unwrap_or_else(zeros);
                    let terms = difference.iter().map(|(of, data)| (data, factor(level, role - zone.data, *of)));
                    sum(terms.chain([(&old, 1)]))
                };
                parities.iter().map(follow).collect()
            }
            _ => {
                let data = (0..zone.data)
                    .map(|role| new.get(&role).cloned().or_else(|| self.old(facts, row, role)).unwrap_or_else(zeros));
                let all = parity_of(level, &data.collect::<Vec<_>>(), zone.parity());
                parities.iter().map(|role| all[role - zone.data].clone()).collect()
            }
        };
        for (role, data) in parities.into_iter().zip(parity) {
            if let Some(table) = tables.get_mut(&(self.shape.slot(row, role), group)) {
                let mut record = Record {
                    content: Content::Stored,
                    checksum: checksum(&data),
                    generation: number,
                    ..*table.record(row)
                };
                for (of, fresh) in &fresh {
                    record.row.iter_mut().skip(*of).take(1).for_each(|mark| *mark = fresh.mark());
                }
                table.set(row, record);
            }
            self.put(work, crew, row, role, data);
        }
    }

    /// Writes rows of a group by making all of them anew: something there is missing or wrong. What is gone is given up: it is
    /// marked as lost.
    async fn write_resolved(
        &self,
        context: IoContext,
        crew: &Crew,
        group: u64,
        mut new: NewRows,
        durability: Durability,
    ) -> Result<()> {
        let mut examined = self.examine(context, crew, &new.keys().copied().collect(), false).await;
        if !self.bad_tables(crew, &examined, group).is_empty() {
            (group * GROUP..(group + 1) * GROUP).for_each(|row| _ = new.entry(row).or_default());
            examined = self.examine(context, crew, &new.keys().copied().collect(), false).await;
        }
        let number = self.number().await?;
        let mut work = Work::new();
        let mut tables = Tables::new();
        for (row, new) in new {
            let zone = self.shape.zone(row);
            let resolved = &examined.rows[&row];
            let mut data = Vec::with_capacity(zone.data);
            let mut records = Vec::with_capacity(zone.data);
            for role in 0..zone.data {
                let (block, record) = match (new.get(&role), &resolved.contents[role]) {
                    (Some(block), _) => (block.clone(), stored(block, number)),
                    (None, Some(block)) => (block.clone(), resolved.records[role]),
                    (None, None)
                        if zone.parity() == 0 && examined.facts.table(self.shape.slot(row, role), group).is_ok() =>
                    {
                        // Nothing depends on it: it stays as it is, for as long as it may come back.
                        (zeros(), Record::default())
                    }
                    (None, None) => {
                        self.give_up(resolved.wrong.iter().find(|(wrong, _)| *wrong == role).map(|(_, why)| why))?;
                        (zeros(), lost(number))
                    }
                };
                data.push(block);
                records.push(record);
            }
            for block in parity_of(self.shape.level, &data, zone.parity()) {
                records.push(parity_record(&block, &records[..zone.data], number));
                data.push(block);
            }
            for (role, (block, record)) in data.into_iter().zip(records).enumerate() {
                let slot = self.shape.slot(row, role);
                let known = examined.facts.table(slot, group).cloned();
                if zone.parity() == 0 && !new.contains_key(&role) && known.is_ok() {
                    continue;
                }
                let table = tables
                    .entry((slot, group))
                    .or_insert_with(|| known.unwrap_or_else(|_| Table::fresh(self.owner(slot, group))));
                table.set(row, record);
                if record.content != Content::Fresh {
                    self.put(&mut work, crew, row, role, block);
                }
            }
        }
        for ((slot, group), table) in &tables {
            if crew.has(*slot, *group).is_some() {
                self.put_table(&mut work, *slot, *group, table);
            }
        }
        self.commit(context, crew, work, durability).await
    }

    /// Whether a block that cannot be read may be given up.
    pub(crate) fn give_up(&self, why: Option<&Why>) -> Result<()> {
        let Some(why) = why.filter(|why| why.is_passing()) else { return Ok(()) };
        let message = format!("the row's other blocks cannot be read just now, and may be later: {why}");
        Err(Error::new(Kind::Retry, message))
    }
}

/// The record of a block that is being written.
pub(crate) fn stored(data: &Bytes, number: u64) -> Record {
    Record { content: Content::Stored, checksum: checksum(data), generation: number, ..Record::default() }
}

/// The record of a block that is given up.
pub(crate) fn lost(number: u64) -> Record {
    Record { content: Content::Lost, generation: number, ..Record::default() }
}
