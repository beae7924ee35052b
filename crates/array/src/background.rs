//! Scrubbing, replacing and rebuilding, while the array is used.

use crate::array::{Array, Crew, Work};
use crate::format::{Content, Record, Standing, Table, groups_of};
use crate::member::{Class, Member};
use crate::open::{Device, wipe};
use crate::row::{Resolved, parity_of, parity_record, zeros};
use crate::rules::Rule;
use crate::shape::{GROUP, Place};
use crate::write::lost;
use ashlar_block::{Durability, Error, IoContext, Kind, Result};
use ashlar_env::Instant;
use ashlar_units::{BLOCK_LEN, Bytes as Size, Lba};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const REBUILD: IoContext = IoContext::background("array rebuild");
const SCRUB: IoContext = IoContext::background("array scrub");
/// Groups between two superblocks that count them: 16 MiB of a member.
const COUNTED_GROUPS: u64 = 64;
/// How long background work waits for users, for each group, at most: so it never stands still.
const YIELD_MAX: Duration = Duration::from_millis(10);
const YIELD_STEP: Duration = Duration::from_millis(1);
/// Lost blocks that a report names.
const NAMED_MAX: usize = 1000;

/// How fast background work goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Bytes of each member in a second at most; none is as fast as users allow.
    pub rate: Option<Size>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Groups done.
    pub done: u64,
    /// Groups in all.
    pub total: u64,
}

/// What a rebuild came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rebuilt {
    /// Members that are whole again.
    pub members: Vec<usize>,
    /// Blocks that were lost, since another member could not give its part.
    pub lost: u64,
    /// The first of them, as numbers of blocks of 4 KiB of the array.
    pub blocks: Vec<u64>,
    /// It was stopped, and goes on from there the next time.
    pub stopped: bool,
}

/// What a scrub came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Scrubbed {
    /// Groups that were verified.
    pub groups: u64,
    /// Blocks that were wrong on some member.
    pub wrong: u64,
    /// Of those, how many could not be made again: data or parity.
    pub gone: u64,
    /// Blocks of the array that cannot be read.
    pub lost: u64,
    /// The first of them, as numbers of blocks of 4 KiB of the array.
    pub blocks: Vec<u64>,
    /// It was stopped before the end.
    pub stopped: bool,
}

impl Array {
    /// Ends what works in the background, now and later.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    fn is_stopped(&self, stop: &AtomicBool) -> bool {
        stop.load(Ordering::Acquire) || self.stopped.load(Ordering::Acquire)
    }

    /// Lets users go first, and keeps to the rate.
    async fn pace(&self, pace: Pace, began: Instant, groups: u64) {
        let mut waited = Duration::ZERO;
        while self.foreground.load(Ordering::Acquire) > 0 && waited < YIELD_MAX {
            self.env.sleep(YIELD_STEP).await;
            waited += YIELD_STEP;
        }
        if let Some(rate) = pace.rate {
            let bytes = groups * (GROUP + 1) * BLOCK_LEN as u64;
            let due = Duration::from_secs_f64(bytes as f64 / rate.0.max(1) as f64);
            let spent = self.env.now().since(began);
            self.env.sleep(due.saturating_sub(spent)).await;
        }
        self.env.yield_now().await;
    }

    /// Reads and verifies everything, parity too, and repairs what can be repaired.
    pub async fn scrub(&self, pace: Pace, stop: &AtomicBool, progress: impl Fn(Progress)) -> Result<Scrubbed> {
        self.look(pace, stop, progress, true).await
    }

    /// Reads and verifies everything, parity too, and changes nothing.
    pub async fn check(&self, pace: Pace, stop: &AtomicBool, progress: impl Fn(Progress)) -> Result<Scrubbed> {
        self.look(pace, stop, progress, false).await
    }

    async fn look(&self, pace: Pace, stop: &AtomicBool, progress: impl Fn(Progress), repair: bool) -> Result<Scrubbed> {
        let (mut report, began) = (Scrubbed::default(), self.env.now());
        let total = self.shape.groups();
        for group in 0..total {
            if self.is_stopped(stop) {
                report.stopped = true;
                break;
            }
            {
                let _guards = self.own(&BTreeSet::from([group])).await;
                let rows: BTreeSet<u64> = (group * GROUP..(group + 1) * GROUP).collect();
                let examined = match repair {
                    true => self.mend(SCRUB, &self.crew(), rows, true).await,
                    false => self.examine(SCRUB, &self.crew(), &rows, true).await,
                };
                for (row, resolved) in &examined.rows {
                    report.wrong += resolved.wrong.len() as u64;
                    let gone = resolved.wrong.iter().filter(|(role, _)| resolved.contents[*role].is_none());
                    report.gone += gone.count() as u64;
                    for role in unreadable(resolved, self.shape.zone(*row).data) {
                        report.lost += 1;
                        name(&mut report.blocks, self.shape.lba(Place { row: *row, role }));
                    }
                }
            }
            report.groups += 1;
            progress(Progress { done: group + 1, total });
            self.pace(pace, began, group + 1).await;
        }
        Ok(report)
    }

    /// Puts a device in the place of a member, which is used no more. Then [`rebuild`](Array::rebuild) fills it; until then
    /// the array is without that member.
    pub async fn replace(&self, slot: usize, device: Device, force: bool) -> Result<()> {
        let _changing = self.changing.lock().await;
        let seat = self.roll.read().seats.get(slot).cloned();
        let count = self.roll.read().seats.len();
        let seat =
            seat.ok_or_else(|| Error::misuse(format!("there is no member {slot}; there are 0 to {}", count - 1)))?;
        let room = groups_of(device.device.geometry().capacity, self.journal_blocks);
        let needed = self.shape.groups_of(slot);
        if room < needed {
            let message = format!(
                "{} is too small: member {slot} has {needed} groups of 64 blocks and it has room for {room}; take one of at \
                 least {}",
                device.name,
                crate::format::groups_at(self.journal_blocks).to_bytes().0 + needed * 64 * 4096
            );
            return Err(Error::misuse(message));
        }
        if !force {
            let head = device.device.read(REBUILD, Lba(0), crate::format::SUPERBLOCKS).await?;
            if head.iter().any(|byte| *byte != 0) {
                return Err(Error::misuse(format!("{} holds something; --force overwrites it", device.name)));
            }
        }
        wipe(&device, 0, self.journal_blocks, |_| ()).await?;
        {
            let mut roll = self.roll.write();
            let mine = &mut roll.seats[slot];
            mine.listed.standing = Standing::Failed;
            if crate::array::lacking(&self.shape, &roll.seats).is_some() {
                roll.seats[slot] = seat;
                let message =
                    format!("the array cannot do without member {slot} while another is missing: rebuild that first");
                return Err(Error::misuse(message));
            }
            let mine = &mut roll.seats[slot];
            mine.listed.id = (u128::from(self.env.random()) << 64) | u128::from(self.env.random());
            (mine.listed.standing, mine.counted) = (Standing::Rebuilding { groups: 0 }, 0);
            mine.member = Some(Arc::new(Member::new(device.device, device.name, self.options.queue)));
        }
        self.welcome(slot);
        self.write_superblocks().await
    }

    /// Fills members that were replaced, from where an earlier rebuild ended. Blocks that cannot be made again, since another
    /// member fails there, are lost: they are marked so and named, and the rebuild goes on.
    pub async fn rebuild(&self, pace: Pace, stop: &AtomicBool, progress: impl Fn(Progress)) -> Result<Rebuilt> {
        let _one = self.rebuilding.lock().await;
        let (mut report, began) = (Rebuilt::default(), self.env.now());
        let mut groups = 0;
        // Asked anew for each group, since members may be replaced, or fail, meanwhile.
        while let Some((slot, target, group)) = self.next_to_rebuild() {
            let total = self.shape.groups_of(slot);
            let stopped = self.is_stopped(stop);
            if stopped || group == total || group.is_multiple_of(COUNTED_GROUPS) {
                let kept = self.count_rebuilt(slot, &target, group, group == total).await?;
                if kept && group == total {
                    report.members.push(slot);
                }
                if stopped {
                    report.stopped = group < total;
                    return Ok(report);
                }
            }
            if group < total {
                self.rebuild_group(slot, &target, group, &mut report).await?;
                groups += 1;
                progress(Progress { done: group + 1, total });
                self.pace(pace, began, groups).await;
            }
        }
        Ok(report)
    }

    fn next_to_rebuild(&self) -> Option<(usize, Arc<Member>, u64)> {
        let roll = self.roll.read();
        roll.seats.iter().enumerate().find_map(|(slot, seat)| match (seat.listed.standing, &seat.member) {
            (Standing::Rebuilding { groups }, Some(member)) => Some((slot, member.clone(), groups)),
            _ => None,
        })
    }

    /// Says durably how much of a member is rebuilt, or that all is; false if it is no longer the member there.
    async fn count_rebuilt(&self, slot: usize, target: &Arc<Member>, groups: u64, whole: bool) -> Result<bool> {
        let _changing = self.changing.lock().await;
        if !self.is_member(slot, target) {
            return Ok(false);
        }
        if self.keeps(Rule::RebuiltBeforeCounted)
            && let Err(error) = self.flush_member(REBUILD, slot, target).await
        {
            self.fail(slot, &error).await?;
            return Err(error.within(format!("member {slot}, which was being rebuilt")));
        }
        let standing = if whole { Standing::Active } else { Standing::Rebuilding { groups } };
        {
            let seat = &mut self.roll.write().seats[slot];
            (seat.listed.standing, seat.counted) = (standing, groups);
        }
        self.write_superblocks().await.map(|()| true)
    }

    fn is_member(&self, slot: usize, target: &Arc<Member>) -> bool {
        self.crew().member(slot).is_some_and(|member| Arc::ptr_eq(member, target))
    }

    async fn rebuild_group(&self, slot: usize, target: &Arc<Member>, group: u64, report: &mut Rebuilt) -> Result<()> {
        let _guards = self.own(&BTreeSet::from([group])).await;
        let crew = self.crew();
        let rows: BTreeSet<u64> = (group * GROUP..(group + 1) * GROUP).collect();
        let mut examined = self.mend(REBUILD, &crew, rows.clone(), false).await;
        if examined.rows.values().any(|resolved| resolved.contents.iter().any(Option::is_none)) {
            self.give_up_rows(&crew, group, &examined.rows, report).await?;
            examined = self.examine(REBUILD, &crew, &rows, false).await;
        }
        let mut table = Table::fresh(self.owner(slot, group));
        let mut blocks = BTreeMap::new();
        for (row, resolved) in &examined.rows {
            let Some(role) = self.shape.role(*row, slot) else { continue };
            let Some(content) = resolved.contents[role].clone() else {
                let message = format!("row {row} could not be read again for member {slot}; rebuild again");
                return Err(Error::new(Kind::Retry, message));
            };
            table.set(*row, resolved.records[role]);
            if resolved.records[role].content == Content::Stored {
                let class = if role < self.shape.zone(*row).data { Class::Data } else { Class::Parity };
                blocks.insert(self.block_at(*row), (class, content));
            }
        }
        blocks.insert(self.table_at(group), (Class::Table, table.encode()));
        if let Err(error) = target.write(REBUILD, &blocks, Durability::Cached).await {
            let _changing = self.changing.lock().await;
            if self.is_member(slot, target) {
                self.fail(slot, &error).await?;
            }
            return Err(error.within(format!("member {slot}, which was being rebuilt")));
        }
        // From here on reads and writes of this group include the member.
        let mut roll = self.roll.write();
        let seat = &mut roll.seats[slot];
        let same = seat.member.as_ref().is_some_and(|member| Arc::ptr_eq(member, target));
        if same && seat.listed.standing == (Standing::Rebuilding { groups: group }) {
            seat.listed.standing = Standing::Rebuilding { groups: group + 1 };
        }
        Ok(())
    }

    /// Marks as lost what cannot be made again in a group, so that its rows agree once more.
    async fn give_up_rows(
        &self,
        crew: &Crew,
        group: u64,
        rows: &BTreeMap<u64, Resolved>,
        report: &mut Rebuilt,
    ) -> Result<()> {
        let number = self.number().await?;
        let mut tables: BTreeMap<usize, Table> = BTreeMap::new();
        let mut work = Work::new();
        for (row, resolved) in rows {
            let zone = self.shape.zone(*row);
            let mut data: Vec<Bytes> = Vec::new();
            let mut records: Vec<Record> = Vec::new();
            for role in 0..zone.data {
                match &resolved.contents[role] {
                    Some(content) => {
                        data.push(content.clone());
                        records.push(resolved.records[role]);
                    }
                    None => {
                        self.give_up(resolved.wrong.iter().find(|(wrong, _)| *wrong == role).map(|(_, why)| why))?;
                        report.lost += 1;
                        name(&mut report.blocks, self.shape.lba(Place { row: *row, role }));
                        data.push(zeros());
                        records.push(lost(number));
                    }
                }
            }
            let gone = resolved.contents.iter().any(Option::is_none);
            for (block, role) in parity_of(self.shape.level, &data, zone.parity()).into_iter().zip(zone.data..) {
                // Of rows that are whole only the records are needed.
                records.push(if gone {
                    parity_record(&block, &records[..zone.data], number)
                } else {
                    resolved.records[role]
                });
                data.push(block);
            }
            for (role, (block, record)) in data.into_iter().zip(records).enumerate() {
                let slot = self.shape.slot(*row, role);
                if crew.has(slot, group).is_none() {
                    continue;
                }
                tables.entry(slot).or_insert_with(|| Table::fresh(self.owner(slot, group))).set(*row, record);
                let class = if role < zone.data { Class::Data } else { Class::Parity };
                if gone && record.content != Content::Fresh {
                    work.entry(slot).or_default().insert(self.block_at(*row), (class, block));
                }
            }
        }
        for (slot, table) in tables {
            work.entry(slot).or_default().insert(self.table_at(group), (Class::Table, table.encode()));
        }
        self.commit(REBUILD, crew, work, Durability::Cached).await
    }
}

/// Roles of a row whose data users cannot have.
fn unreadable(resolved: &Resolved, data: usize) -> Vec<usize> {
    let gone = |role: &usize| resolved.contents[*role].is_none() || resolved.records[*role].content == Content::Lost;
    (0..data).filter(gone).collect()
}

fn name(blocks: &mut Vec<u64>, at: Lba) {
    if blocks.len() < NAMED_MAX {
        blocks.push(at.0);
    }
}
