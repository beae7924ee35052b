//! Strands without a journal, whose groups go each its own way.

use super::*;
use crate::{Journaling, Pace};
use ashlar_block::{Capability, Extent, Geometry, Layer, Result, Run};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static RUN: AtomicBool = AtomicBool::new(false);
const NO_JOURNAL: Options = Options {
    queue: 4,
    verify: crate::Verify::Row,
    parity: crate::ParityRule::FewestMembers,
    journal: Journaling::Off,
    without: None,
};

/// Blocks all over an array, each with a stamp.
fn random_strand(env: &Env, capacity: u64, stamp: u64) -> BTreeMap<u64, u64> {
    let size = 1 + env.random() % 60;
    (0..size).map(|_| (env.random() % capacity, stamp)).collect()
}

async fn write_strand(array: &Array, strand: &BTreeMap<u64, u64>) -> Result<()> {
    let runs: Vec<Run> = strand.iter().map(|(at, stamp)| (Lba(*at), vec![block(*stamp)])).collect();
    BlockDevice::write_strand(array, CONTEXT, runs, 1, Durability::Cached).await
}

/// Strands by two tasks in halves of the array, while blocks are damaged and a member dies: nothing is lost.
#[test]
fn strands_survive_damage_and_death() {
    for (level, deaths) in [(Level::Raid1, 2), (Level::Raid4, 1), (Level::Raid5, 1), (Level::Raid6, 2)] {
        with_rig(&[6, 6, 6, 6], 4, move |rig| async move {
            rig.create(level).await;
            let array = rig.open_with(NO_JOURNAL).await;
            fill(&array, |at| at).await;
            let capacity = array.shape().capacity().0;
            let half = capacity / 2;
            let writers: Vec<_> = [0, half]
                .map(|from| {
                    let (env, array) = (rig.env.clone(), array.clone());
                    rig.env.spawn(async move {
                        let mut written = BTreeMap::new();
                        for stamp in 1..25 {
                            let strand: BTreeMap<u64, u64> = random_strand(&env, half, stamp << 32 | from)
                                .into_iter()
                                .map(|(at, stamp)| (at + from, stamp))
                                .collect();
                            write_strand(&array, &strand).await.expect("redundancy is left");
                            written.extend(strand);
                        }
                        written
                    })
                })
                .into_iter()
                .collect();
            // A stretch of bad sectors that one member has, and then members that die.
            let at = rig.env.random() % 200 * 4096;
            rig.env.sleep(Duration::from_micros(rig.env.random() % 400)).await;
            rig.fault(3, &format!("lse at {at}..{}", at + 4096 * 40));
            rig.env.sleep(Duration::from_micros(rig.env.random() % 400)).await;
            if deaths > 1 || rig.env.random().is_multiple_of(2) {
                rig.heal(3).await;
                (0..deaths).for_each(|slot| rig.kill(slot));
            }
            let mut all = BTreeMap::new();
            for writer in writers {
                all.extend(writer.await);
            }
            verify(&array, |at| all.get(&at).copied().unwrap_or(at)).await;
            let scrubbed = array.scrub(Pace::default(), &RUN, |_| ()).await.expect("a scrub");
            assert_eq!(scrubbed.lost, 0, "{scrubbed:?}");
            let again = array.scrub(Pace::default(), &RUN, |_| ()).await.expect("a scrub");
            assert_eq!((again.wrong, again.lost), (0, 0), "{again:?}");
        });
    }
}

/// A device whose reads take their time, and that counts writes which begin while reads are under way.
struct Slow {
    below: Memory,
    reading: Arc<AtomicUsize>,
    met: Arc<AtomicUsize>,
}

impl Layer for Slow {
    fn name(&self) -> String {
        "slow".into()
    }
    fn geometry(&self) -> Geometry {
        Layer::geometry(&self.below)
    }
    fn measure(&self) -> Result<()> {
        Layer::measure(&self.below)
    }
    fn capability(&self) -> Capability {
        Layer::capability(&self.below)
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        self.reading.fetch_add(1, Ordering::Relaxed);
        let data = Layer::read(&self.below, context, at, count).await;
        self.reading.fetch_sub(1, Ordering::Relaxed);
        data
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        if self.reading.load(Ordering::Relaxed) > 0 {
            self.met.fetch_add(1, Ordering::Relaxed);
        }
        Layer::write(&self.below, context, at, pieces, durability).await
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        Layer::flush(&self.below, context).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        Layer::discard(&self.below, context, at, count).await
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        Layer::provision(&self.below, context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        Layer::extent(&self.below, context, at, count).await
    }
}

/// With a journal the first block is written when the last is read; without one they meet.
#[test]
fn groups_are_written_while_others_are_read() {
    for journal in [Journaling::Off, Journaling::Members] {
        let sim = Sim::new(1, Schedule::Fifo);
        let env = sim.env();
        sim.run(async move {
            let (reading, met) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let device = |slot| {
                let below = Memory::new(Blocks(2) + JOURNAL_MIN + Blocks(12 * 64));
                let below = below.with_delay(env.clone(), Duration::from_micros(50));
                let device = Arc::new(Slow { below, reading: reading.clone(), met: met.clone() });
                NamedDevice { name: format!("disk{slot}"), device }
            };
            let devices: Vec<NamedDevice> = (0..4).map(device).collect();
            Array::create(&env, &devices, CREATION, |_, _| ()).await.expect("an array can be made");
            let array = Array::open(&env, devices, 0, Options { journal, ..NO_JOURNAL }).await.expect("it opens");
            fill(&array, |at| at).await;
            met.store(0, Ordering::Relaxed);
            let strand = (0..array.shape().capacity().0).step_by(37).map(|at| (at, at + 1)).collect();
            write_strand(&array, &strand).await.expect("a strand");
            let met = met.load(Ordering::Relaxed);
            assert_eq!(met > 20, journal == Journaling::Off, "{journal:?}: {met} writes began while others were read");
            verify(&array, |at| if at % 37 == 0 { at + 1 } else { at }).await;
        })
        .expect("no deadlock");
    }
}
