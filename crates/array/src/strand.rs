//! Groups that are written without a journal go each its own way.
//!
//! With a journal the blocks of a write become durable in it at one moment, so all old blocks are read before the first is
//! written. Without one nothing ties groups together but the order of reading: reads go out in ascending order on every
//! member, and a group is written as soon as what it needs has come from all of them, while the members still read what lies
//! behind. A member that is done early with its own reads does not wait for the slowest.

use crate::array::{Array, Crew};
use crate::member::all;
use crate::read::Facts;
use crate::shape::GROUP;
use crate::write::{NewRows, Plan};
use ashlar_block::{Durability, IoContext, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// What comes in of a group.
struct Coming {
    facts: Facts,
    /// Blocks that have not come so far.
    left: usize,
    to: Option<oneshot::Sender<Facts>>,
}

impl Coming {
    /// Hands over what has come.
    fn end(&mut self) {
        if let Some(to) = self.to.take() {
            // Whoever does not wait any more has failed.
            let _ = to.send(std::mem::take(&mut self.facts));
        }
    }
}

impl Array {
    /// Writes rows by groups. The caller owns them.
    pub(crate) async fn write_groups(
        &self,
        context: IoContext,
        crew: &Crew,
        plan: &Plan,
        rows: NewRows,
        durability: Durability,
    ) -> Result<()> {
        let mut groups: BTreeMap<u64, NewRows> = BTreeMap::new();
        for (row, new) in rows {
            groups.entry(row / GROUP).or_default().insert(row, new);
        }
        let mut left: BTreeMap<u64, usize> = BTreeMap::new();
        for at in plan.wants.values().flat_map(BTreeMap::keys) {
            *left.entry(self.group_at(*at)).or_default() += 1;
        }
        let mut coming: BTreeMap<u64, Mutex<Coming>> = BTreeMap::new();
        let mut waiting = Vec::with_capacity(groups.len());
        for (group, rows) in groups {
            let (to, from) = oneshot::channel();
            let left = left.get(&group).copied().unwrap_or_default();
            let mut comes = Coming { facts: Facts::default(), left, to: Some(to) };
            if left == 0 {
                comes.end();
            }
            coming.insert(group, Mutex::new(comes));
            waiting.push((from, rows));
        }
        let read = async {
            let hear = |slot, at, block| {
                let Some(mut comes) = coming.get(&self.group_at(at)).map(Mutex::lock) else { return };
                self.note(&mut comes.facts, slot, at, block);
                comes.left = comes.left.saturating_sub(1);
                if comes.left == 0 {
                    comes.end();
                }
            };
            self.gather(context, crew, &plan.wants, hear).await;
            coming.values().for_each(|comes| comes.lock().end());
        };
        let write = async |(from, rows): (oneshot::Receiver<Facts>, NewRows)| {
            // A group of which nothing is known is examined anew.
            let facts = from.await.unwrap_or_default();
            self.carry_out(context, crew, plan, rows, &facts, durability).await
        };
        let ((), outcomes) = tokio::join!(read, all(usize::MAX, waiting.into_iter().map(write)));
        outcomes.into_iter().collect()
    }
}
