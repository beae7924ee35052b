//! Mending: what members hold wrongly is made from the others and written back.

use crate::array::{Array, Crew, Work};
use crate::format::Table;
use crate::member::Class;
use crate::read::Examined;
use crate::shape::GROUP;
use ashlar_block::{Durability, IoContext};
use std::collections::{BTreeMap, BTreeSet};

impl Array {
    /// Members of a group whose checksum block cannot be used.
    pub(crate) fn bad_tables(&self, crew: &Crew, examined: &Examined, group: u64) -> BTreeSet<usize> {
        let zone = self.shape.zone(group * GROUP);
        let bad = |slot: &&usize| crew.has(**slot, group).is_some() && examined.facts.table(**slot, group).is_err();
        zone.members.iter().filter(bad).copied().collect()
    }

    /// Examines rows of one group that the caller owns, and repairs what can be repaired. A checksum block that is bad is made
    /// again, with all its rows. Blocks that are gone stay as they are.
    pub(crate) async fn mend(
        &self,
        context: IoContext,
        crew: &Crew,
        mut rows: BTreeSet<u64>,
        recount: bool,
    ) -> Examined {
        let mut examined = self.examine(context, crew, &rows, recount).await;
        let Some(group) = rows.first().map(|row| row / GROUP) else { return examined };
        let bad = self.bad_tables(crew, &examined, group);
        if !bad.is_empty() && rows.len() < GROUP as usize {
            rows = (group * GROUP..(group + 1) * GROUP).collect();
            examined = self.examine(context, crew, &rows, recount).await;
        }
        let bad = self.bad_tables(crew, &examined, group);
        let mut tables: BTreeMap<usize, Table> = BTreeMap::new();
        let mut work = Work::new();
        let mut repaired: BTreeMap<usize, u64> = BTreeMap::new();
        for slot in &bad {
            let known = rows.iter().all(|row| {
                let role = self.shape.role(*row, *slot);
                role.is_some_and(|role| examined.rows[row].contents[role].is_some())
            });
            if known {
                tables.insert(*slot, Table::fresh(self.owner(*slot, group)));
                *repaired.entry(*slot).or_default() += 1;
            }
        }
        for (row, resolved) in &examined.rows {
            for (role, (content, record)) in resolved.contents.iter().zip(&resolved.records).enumerate() {
                let slot = self.shape.slot(*row, role);
                let Some(content) = content else { continue };
                let (wrong, anew) = (resolved.wrong.iter().any(|(wrong, _)| *wrong == role), bad.contains(&slot));
                if crew.has(slot, group).is_none() || !(wrong || anew) || (anew && !tables.contains_key(&slot)) {
                    continue;
                }
                let known = examined.facts.table(slot, group).cloned();
                let table = tables
                    .entry(slot)
                    .or_insert_with(|| known.unwrap_or_else(|_| Table::fresh(self.owner(slot, group))));
                table.set(*row, *record);
                let class = if role < self.shape.zone(*row).data { Class::Data } else { Class::Parity };
                if record.content != crate::format::Content::Fresh {
                    work.entry(slot).or_default().insert(self.block_at(*row), (class, content.clone()));
                    *repaired.entry(slot).or_default() += u64::from(wrong);
                }
            }
        }
        for (slot, table) in tables {
            work.entry(slot).or_default().insert(self.table_at(group), (Class::Table, table.encode()));
        }
        // What was found is right also where it cannot be written back: then the member is listed as failed.
        if self.commit(context, crew, work, Durability::Cached).await.is_ok() {
            for (slot, blocks) in repaired {
                crew.member(slot).inspect(|member| member.note_repaired(blocks));
            }
        }
        examined
    }
}
