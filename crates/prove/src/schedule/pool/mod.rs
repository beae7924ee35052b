//! Our own pool: commits, reads, discards, sharing, snapshots, cleaning and checkpoints at once.
//!
//! Each writer owns a range of blocks and one key, and notes its states: before a commit begins, and when it has returned.
//! A block that is read must be as in a state that the writer may have had meanwhile; a snapshot must be, as a whole, one
//! state of each writer; in the end, and after opening the pool again, the volume is in the last states, snapshots have
//! not changed, and the accounts of live bytes are exact. An operation that fails is a violation, and so is an execution
//! in which not everybody comes to an end.
//!
//! The device begins with segments that are mostly dead, so that the cleaner has work, and what it frees is written again
//! at once, since the lowest free segment is taken first. It is made once and copied.

mod device;
mod history;

use super::{Bug, Harness};
use crate::seeded::Dice;
use ashlar_block::{Device, Kind};
use ashlar_env::Env;
use ashlar_env::sim::{Handle, Monitor, Mood, Schedule, Sim};
use ashlar_pool::{Config, Creation, Pool, Rule, Txn, Volume};
use ashlar_units::{BLOCK_LEN, Blocks, Bytes as Size, Lba};
use device::{Contents, Reordering};
use history::{History, Model, blocks, holds, key_of, read, state_in};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Forty segments. What snapshots see stays in its place, so that they can take fifteen; the pool keeps six in reserve.
const CAPACITY: Blocks = Blocks(40 * 256 + 300);
const SEGMENT: Blocks = Blocks(256);
const WRITERS: u64 = 3;
/// Blocks of a writer: some chunks.
const RANGE: u64 = 80;
/// Blocks that nobody changes, among dead ones in every segment.
const OLD: u64 = 400;
const OLD_AT: u64 = 1 << 20;
/// Transactions of a writer.
const COMMITS: usize = 5;
const READS: usize = 8;
const READERS: u64 = 3;
/// Snapshots, and rounds of the cleaner.
const ROUNDS: usize = 3;
/// Blocks that are written anew after each round of the cleaner, at [`SCRATCH_AT`]: more than a segment, so that what was
/// freed is used again.
const SCRATCH: u64 = 320;
const SCRATCH_AT: u64 = 1 << 21;
/// Blocks of it in one transaction.
const SCRATCH_STEP: u64 = 32;
/// So long nobody has anything to do who does not wait for somebody.
const LONG: Duration = Duration::from_millis(1);

pub(super) struct PoolTogether;

impl Harness for PoolTogether {
    fn name(&self) -> &'static str {
        "pool"
    }
    fn what(&self) -> &'static str {
        "our pool: commits, reads, discards, sharing, snapshots, cleaning and checkpoints at once"
    }
    fn bugs(&self) -> &'static [Bug] {
        &[
            Bug { name: "wait-for-readers", what: "a segment is reused while a reader may still want it" },
            Bug { name: "hold-while-trimming", what: "a segment is used while its device is told that it is free" },
            Bug { name: "still-while-sharing", what: "extents move between the reading of a reference and its copy" },
        ]
    }
    fn steps_max(&self) -> u64 {
        200_000
    }
    fn start(&self, sim: &Handle, bug: Option<&'static str>) {
        static PREPARED: OnceLock<Contents> = OnceLock::new();
        let contents = PREPARED.get_or_init(prepare).clone();
        let watch = sim.watch("everybody comes to an end", Ends);
        watch.tell(false);
        let (handle, device) = (sim.clone(), Reordering::new(sim.env(), CAPACITY, contents));
        let without = bug.and_then(Rule::named);
        sim.spawn("main", async move {
            match play(&handle, Arc::new(device), without).await {
                Ok(()) => watch.tell(true),
                Err(what) => handle.violation(what),
            }
            handle.finish();
        });
    }
}

type Found<T> = Result<T, String>;

fn text(error: ashlar_block::Error) -> String {
    error.to_string()
}

/// Hot until it is told that all is over.
struct Ends;

impl Monitor for Ends {
    type Event = bool;
    fn observe(&mut self, over: bool) -> Result<Mood, String> {
        Ok(if over { Mood::Cold } else { Mood::Hot })
    }
}

fn config(without: Option<Rule>) -> Config {
    Config { memory: Size(1 << 20), log_bytes: Size(1 << 20), without, ..Config::default() }
}

/// A pool whose segments hold little that lives.
fn prepare() -> Contents {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    let made = sim.run(async move {
        let device = Arc::new(Reordering::new(env.clone(), CAPACITY, Contents::new()));
        let creation = Creation { segment: Some(SEGMENT), force: false };
        Pool::create(&env, &[device.clone() as Device], creation).await?;
        let pool = Pool::open(&env, vec![device.clone() as Device], config(None)).await?;
        let volume = pool.create_volume("v").await?;
        let mut old = 0;
        while old < OLD {
            let mut txn = Txn::new();
            // One block in four stays.
            volume.write(&mut txn, Lba(OLD_AT + old), &blocks(OLD_AT + old, 8));
            volume.write(&mut txn, Lba(0), &blocks(old, 24));
            pool.commit(txn).await?;
            old += 8;
        }
        let mut txn = Txn::new();
        volume.discard(&mut txn, Lba(0), Blocks(24));
        pool.commit(txn).await?;
        write_scratch(&volume, 0).await?;
        pool.close().await?;
        Ok::<_, ashlar_block::Error>(device.contents())
    });
    made.expect("no deadlock").expect("a pool on good memory")
}

/// Writes all of what has no owner.
async fn write_scratch(volume: &Volume, round: u64) -> ashlar_block::Result<()> {
    for part in (0..SCRATCH).step_by(SCRATCH_STEP as usize) {
        let mut txn = Txn::new();
        volume.write(&mut txn, Lba(SCRATCH_AT + part), &blocks(scratch_stamp(round) + part, SCRATCH_STEP));
        volume.commit(txn).await?;
    }
    Ok(())
}

fn scratch_stamp(round: u64) -> u64 {
    SCRATCH_AT + round * SCRATCH
}

struct House {
    sim: Handle,
    env: Env,
    pool: Pool,
    volume: Volume,
    history: History,
}

async fn play(sim: &Handle, device: Arc<Reordering>, without: Option<Rule>) -> Found<()> {
    let env = sim.env();
    let open = || Pool::open(&env, vec![device.clone() as Device], config(without));
    let pool = open().await.map_err(text)?;
    let volume = pool.volume("v").ok_or("the volume is gone")?;
    let history = History::new();
    let house = Arc::new(House { sim: sim.clone(), env: env.clone(), pool: pool.clone(), volume, history });
    let (running, mut over) = tokio::sync::mpsc::channel::<()>(1);
    for number in 0..WRITERS {
        let (running, house) = (running.clone(), house.clone());
        house.clone().sim.spawn(format!("writer {number}"), async move {
            house.report(house.write(number).await);
            drop(running);
        });
    }
    for number in 0..READERS {
        let (running, house) = (running.clone(), house.clone());
        house.clone().sim.spawn(format!("reader {number}"), async move {
            house.report(house.read().await);
            drop(running);
        });
    }
    let kept = Arc::new(Mutex::new(Vec::new()));
    {
        let (running, house, kept) = (running.clone(), house.clone(), kept.clone());
        house.clone().sim.spawn("snapshots", async move {
            house.report(house.snapshots(&kept).await);
            drop(running);
        });
    }
    {
        let (running, house) = (running.clone(), house.clone());
        house.clone().sim.spawn("trimmer", async move {
            house.report(house.trim().await);
            drop(running);
        });
    }
    {
        let house = house.clone();
        house.clone().sim.spawn("cleaner", async move {
            house.report(house.clean().await);
            drop(running);
        });
    }
    let _ = over.recv().await;
    sim.note(|| "all is done; now it is checked".into());
    let kept = std::mem::take(&mut *kept.lock());
    house.check(&pool, &kept).await?;
    pool.close().await.map_err(text)?;
    let pool = open().await.map_err(|error| format!("opened again: {error}"))?;
    house.check(&pool, &kept).await.map_err(|what| format!("opened again: {what}"))?;
    pool.close().await.map_err(text)
}

/// A snapshot, and the state of each writer in it.
type Kept = (String, Vec<usize>);

impl House {
    fn report(&self, outcome: Found<()>) {
        if let Err(what) = outcome {
            self.sim.violation(what);
        }
    }

    fn dice(&self) -> Dice {
        Dice::new(self.env.random())
    }

    async fn write(&self, writer: u64) -> Found<()> {
        let mut dice = self.dice();
        let states = &self.history.writers[writer as usize];
        let first = writer * RANGE;
        for commit in 1..=COMMITS as u64 {
            let mut model = states.lock().all.last().cloned().ok_or("there is no state")?;
            let mut txn = Txn::new();
            let said = self.change(&mut txn, &mut model, first, (writer << 32) | (commit << 16), &mut dice).await?;
            model.key = commit;
            self.volume.put(&mut txn, &key_of(writer), commit.to_le_bytes().to_vec());
            states.lock().all.push(model);
            self.sim.note(|| format!("commits state {commit}: {said}"));
            let seq = self.pool.commit(txn).await;
            let seq = seq.map_err(|error| format!("writer {writer}, commit {commit}: {error}"))?;
            states.lock().committed = commit as usize;
            self.sim.note(|| format!("committed state {commit}"));
            if dice.one_in(2) {
                self.pool.sync(seq).await.map_err(text)?;
            }
        }
        Ok(())
    }

    /// One change of some blocks, in the model too; says what.
    async fn change(&self, txn: &mut Txn, model: &mut Model, first: u64, stamp: u64, dice: &mut Dice) -> Found<String> {
        let at = dice.below(RANGE);
        let count = 1 + dice.below((RANGE - at).min(40));
        let range = at as usize..(at + count) as usize;
        match dice.below(5) {
            0 | 1 => {
                self.volume.write(txn, Lba(first + at), &blocks(stamp + at, count));
                range.for_each(|block| model.blocks[block] = Some(stamp + block as u64));
                Ok(format!("{count} blocks at {at}"))
            }
            2 => {
                self.volume.discard(txn, Lba(first + at), Blocks(count));
                model.blocks[range].fill(None);
                Ok(format!("discards {count} blocks at {at}"))
            }
            _ => {
                // Old blocks, which the cleaner moves, or those of the other half.
                let count = count.min(16);
                let old = dice.one_in(2).then(|| dice.below(OLD - count));
                let half = RANGE / 2;
                let (from, to) = (dice.below(half - count), half + dice.below(half - count));
                let from_at = old.map_or(first + from, |old| OLD_AT + old);
                let shared = self.volume.share(txn, Lba(from_at), &self.volume, Lba(first + to), Blocks(count)).await;
                shared.map_err(text)?;
                for index in 0..count as usize {
                    let source = model.blocks[from as usize + index];
                    model.blocks[to as usize + index] = match old {
                        Some(old) => Some(OLD_AT + old + index as u64),
                        None => source,
                    };
                }
                // The cleaner may come between, and be done before.
                for _ in 0..dice.below(8) {
                    self.env.yield_now().await;
                }
                if dice.one_in(4) {
                    self.env.sleep(LONG).await;
                }
                Ok(format!("shares {count} blocks of {from_at} at {to}"))
            }
        }
    }

    /// Reads ranges of writers, and what is old.
    async fn read(&self) -> Found<()> {
        let mut dice = self.dice();
        for _ in 0..READS {
            match dice.below(4) {
                0 => {
                    self.expect_old(&self.volume, dice.below(OLD - 32), 32).await?;
                    continue;
                }
                1 => {
                    // In so many segments that some are emptied and written again before a reader comes to them.
                    self.expect_old(&self.volume, 0, OLD).await?;
                    continue;
                }
                2 => {
                    self.expect_scratch(dice.below(SCRATCH - 32), 32).await?;
                    continue;
                }
                _ => {}
            }
            let writer = dice.below(WRITERS);
            let states = &self.history.writers[writer as usize];
            let oldest = states.lock().committed;
            let data = read(&self.volume, writer * RANGE, RANGE).await?;
            let states = states.lock();
            for (index, data) in data.chunks(BLOCK_LEN).enumerate() {
                let mut possible = states.all[oldest..].iter().map(|model| model.blocks[index]);
                if !possible.any(|stamp| holds(data, stamp)) {
                    let newest = states.newest();
                    return Err(format!(
                        "block {index} of writer {writer} is as in none of the states {oldest} to {newest}"
                    ));
                }
            }
        }
        Ok(())
    }

    async fn expect_old(&self, volume: &Volume, at: u64, count: u64) -> Found<()> {
        let data = read(volume, OLD_AT + at, count).await?;
        for (block, data) in (OLD_AT + at..).zip(data.chunks(BLOCK_LEN)) {
            if !holds(data, Some(block)) {
                return Err(format!("block {block}, which nobody has changed, has changed"));
            }
        }
        Ok(())
    }

    async fn expect_scratch(&self, at: u64, count: u64) -> Found<()> {
        let data = read(&self.volume, SCRATCH_AT + at, count).await?;
        for (block, data) in (at..).zip(data.chunks(BLOCK_LEN)) {
            if !(0..=ROUNDS as u64).any(|round| holds(data, Some(scratch_stamp(round) + block))) {
                return Err(format!("block {} was never written so", SCRATCH_AT + block));
            }
        }
        Ok(())
    }

    /// Makes snapshots, finds the states in them, and destroys some.
    async fn snapshots(&self, kept: &Mutex<Vec<Kept>>) -> Found<()> {
        let mut dice = self.dice();
        for number in 0..ROUNDS {
            let oldest = self.history.committed();
            let name = format!("s{number}");
            self.pool.create_snapshot("v", &name).await.map_err(text)?;
            let newest = self.history.begun();
            self.sim.note(|| format!("made snapshot {name}: states {oldest:?} to {newest:?}"));
            let snapshot = self.pool.volume(&format!("v@{name}")).ok_or("the snapshot is gone")?;
            let mut found = Vec::new();
            for writer in 0..WRITERS {
                let models = self.history.writers[writer as usize].lock().all.clone();
                let (oldest, newest) = (oldest[writer as usize], newest[writer as usize]);
                let state = state_in(&snapshot, writer, &models).await?;
                let state = state.filter(|state| (oldest..=newest).contains(state));
                found.push(state.ok_or_else(|| {
                    format!("snapshot {name} holds none of the states {oldest} to {newest} of writer {writer}")
                })?);
            }
            if dice.one_in(3) {
                self.pool.destroy_snapshot(&format!("v@{name}")).await.map_err(text)?;
            } else {
                kept.lock().push((name, found));
            }
        }
        Ok(())
    }

    async fn clean(&self) -> Found<()> {
        for round in 1..=ROUNDS as u64 {
            match self.pool.clean().await {
                Ok(gained) => self.sim.note(|| format!("cleaned; gained: {gained}")),
                Err(error) if error.kind() == Kind::NoSpace => {}
                Err(error) => return Err(format!("cleaning: {error}")),
            }
            write_scratch(&self.volume, round).await.map_err(text)?;
        }
        Ok(())
    }

    async fn trim(&self) -> Found<()> {
        for _ in 0..ROUNDS {
            let trimmed = self.pool.trim(|_, _| {}).await.map_err(text)?;
            self.sim.note(|| format!("told the device that {} are free", trimmed.bytes));
        }
        Ok(())
    }

    /// Compares everything, when nobody works any more.
    async fn check(&self, pool: &Pool, kept: &[Kept]) -> Found<()> {
        let volume = pool.volume("v").ok_or("the volume is gone")?;
        let last: Vec<usize> = self.history.begun();
        let snapshots = kept.iter().map(|(name, states)| (format!("v@{name}"), states));
        for (name, states) in [("v".to_string(), &last)].into_iter().chain(snapshots) {
            let volume = pool.volume(&name).ok_or_else(|| format!("{name} is gone"))?;
            for (writer, state) in (0..).zip(states) {
                let model = self.history.writers[writer as usize].lock().all[*state].clone();
                if state_in(&volume, writer, std::slice::from_ref(&model)).await?.is_none() {
                    return Err(format!("in the end, {name} does not hold state {state} of writer {writer}"));
                }
            }
        }
        self.expect_old(&volume, 0, OLD).await?;
        let checked = pool.check(|_, _| {}).await.map_err(text)?;
        if !checked.damaged.is_empty() || !checked.miscounted.is_empty() {
            return Err(format!("check found {:?} {:?}", checked.damaged, checked.miscounted));
        }
        Ok(())
    }
}
