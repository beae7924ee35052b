//! I/O counts of the paper, on the array's own counters: section 5.2 and Table 2 of Schindler et al., FAST '11.

use super::*;
use crate::write::{Way, way};
use crate::{Counts, Journaling, ParityRule, Shape};
use std::collections::BTreeSet;

/// Blocks of an extent of 16 MiB.
const EXTENT: u64 = 4096;

async fn raid4_of(env: &Env, groups: u64, journal: Blocks, options: Options) -> Arc<Array> {
    let device = |slot| NamedDevice {
        name: format!("disk{slot}"),
        device: Arc::new(Memory::new(Blocks(2) + journal + Blocks(groups * 64))),
    };
    let devices: Vec<NamedDevice> = (0..5).map(device).collect();
    let creation = Creation { journal, ..Creation::new(Level::Raid4) };
    Array::create(env, &devices, creation, |_, _| ()).await.expect("an array can be made");
    Arc::new(Array::open(env, devices, 0, options).await.expect("the array opens"))
}

fn counts(array: &Array) -> Vec<Counts> {
    array.status().members.iter().map(|member| member.counts).collect()
}

/// Blocks read and written on each member by some writes.
async fn cost(array: &Array, blocks: &[u64]) -> Vec<u64> {
    let before = counts(array);
    let strand = blocks.iter().map(|at| (Lba(*at), vec![block(*at ^ before[0].data_writes << 32)])).collect();
    BlockDevice::write_strand(array, CONTEXT, strand, 1, Durability::Cached).await.expect("a strand");
    counts(array).iter().zip(&before).map(|(after, before)| after.blocks() - before.blocks()).collect()
}

#[test]
fn a_lone_update_is_eight_ios() {
    Sim::new(1, Schedule::Fifo).run(async_lone()).expect("no deadlock");
}

async fn async_lone() {
    let sim_env = Sim::new(2, Schedule::Fifo).env();
    for rule in [ParityRule::FewestMembers, ParityRule::FewestRequests] {
        let array = raid4_of(&sim_env, 8, Blocks(256), Options { parity: rule, ..Options::default() }).await;
        fill(&array, |at| at).await;
        // Table 2, baseline: read and write of data and parity, doubled by checksum blocks.
        assert_eq!(cost(&array, &[300]).await, [0, 4, 0, 0, 4], "{rule:?}");
        let journal: Vec<u64> = counts(&array).iter().map(|counts| counts.journal_requests).collect();
        assert_eq!(cost(&array, &[5]).await, [4, 0, 0, 0, 4], "{rule:?}");
        let after: Vec<u64> = counts(&array).iter().map(|counts| counts.journal_requests).collect();
        let journal: Vec<u64> = after.iter().zip(journal).map(|(after, before)| after - before).collect();
        assert_eq!(journal, [1, 0, 0, 0, 1], "what the journal adds");
        // The paper's reads: "accessing one block ... results in two distinct block accesses"; a third is the parity's record.
        let before: u64 = counts(&array).iter().map(Counts::blocks).sum();
        read(&array, 7).await.expect("a block");
        assert_eq!(counts(&array).iter().map(Counts::blocks).sum::<u64>() - before, 3);
    }
}

/// Digest, section 2.5: subtraction 2k+2 I/Os on k+1 disks, addition N+1 on N+1 disks.
#[test]
fn parity_follows_the_rule_table() {
    let table = |rule| (1..=4).map(|k| way(rule, k, 4, 1)).collect::<Vec<_>>();
    // The paper minimises the disks engaged: k + 1 are fewer than 5 up to k = 3.
    assert_eq!(table(ParityRule::FewestMembers), [Way::Subtract, Way::Subtract, Way::Subtract, Way::Whole]);
    // By I/O count subtraction is 4, 6, 8, 10 and addition 5.
    assert_eq!(table(ParityRule::FewestRequests), [Way::Subtract, Way::Add, Way::Add, Way::Whole]);
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(async move {
        for (rule, expected) in [
            (ParityRule::FewestMembers, [[4, 0, 0, 0, 4], [4, 4, 0, 0, 4], [4, 4, 4, 0, 4], [3, 3, 3, 3, 3]]),
            // Written members: the block, and its checksum block read and written; read ones: both; parity is not read.
            (ParityRule::FewestRequests, [[4, 0, 0, 0, 4], [3, 3, 2, 2, 3], [3, 3, 3, 2, 3], [3, 3, 3, 3, 3]]),
        ] {
            let array = raid4_of(&env, 8, Blocks(256), Options { parity: rule, ..Options::default() }).await;
            fill(&array, |at| at).await;
            for (k, expected) in (1..=4).zip(expected) {
                let blocks: Vec<u64> = (0..k).map(|role| role * 252 + 17).collect();
                assert_eq!(cost(&array, &blocks).await, expected, "{rule:?}, k = {k}");
            }
        }
    })
    .expect("no deadlock");
}

#[test]
fn whole_stripes_are_written_without_reads() {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(async move {
        let array = raid4_of(&env, 8, Blocks(256), Options::default()).await;
        fill(&array, |at| at).await;
        let before = counts(&array);
        fill(&array, |at| at + 1).await;
        for (after, before) in counts(&array).iter().zip(before) {
            assert_eq!(
                (after.data_reads, after.parity_reads, after.checksum_reads),
                (before.data_reads, before.parity_reads, before.checksum_reads)
            );
            let written = after.data_writes + after.parity_writes - before.data_writes - before.parity_writes;
            assert_eq!((written, after.checksum_writes - before.checksum_writes), (504, 8));
        }
        verify(&array, |at| at + 1).await;
    })
    .expect("no deadlock");
}

/// Digest, check 5: batches of n distinct random blocks of an extent of 16 MiB on 4+1 disks, 252+4 blocks in a unit of 1 MiB,
/// by subtraction. The Monte Carlo of the digest, and by it every row of Table 2, within 3 %.
#[test]
fn batches_cost_what_table_2_says() {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(async move {
        let groups = (EXTENT / 4).div_ceil(252) * 4 + 4;
        let array = raid4_of(&env, groups, Blocks(4096), Options::default()).await;
        assert!(array.shape().capacity().0 >= EXTENT);
        fill(&array, |at| at).await;
        let table = [
            (47.5, 287.7, 295.3),
            (85.2, 464.8, 465.3),
            (119.7, 611.9, 614.8),
            (149.3, 732.5, 723.7),
            (179.1, 850.2, 847.6),
            (226.1, 1029.1, 1014.7),
            (259.5, 1153.1, 1151.5),
            (254.8, 1135.8, 1166.7),
        ];
        for (user_writes, derived, published) in table {
            let (mut total, mut updates, batches) = (0, 0, 40);
            for batch in 0..batches {
                // So many that the mean is that of the table.
                let n = (user_writes * f64::from(batch + 1)) as usize - (user_writes * f64::from(batch)) as usize;
                let mut blocks = BTreeSet::new();
                while blocks.len() < n {
                    blocks.insert(env.random() % EXTENT);
                }
                let blocks: Vec<u64> = blocks.into_iter().collect();
                total += cost(&array, &blocks).await.iter().sum::<u64>();
                updates += n;
            }
            let seen = total as f64 / f64::from(batches);
            eprintln!(
                "{:.1} updates: {seen:.1} I/Os, derived {derived}, Table 2 {published}",
                updates as f64 / f64::from(batches)
            );
            assert!((seen / derived - 1.0).abs() < 0.03, "{user_writes}: {seen:.1} and not {derived}");
            assert!((seen / published - 1.0).abs() < 0.03, "{user_writes}: {seen:.1} and not {published}");
        }
    })
    .expect("no deadlock");
}

#[test]
fn a_unit_of_the_paper_has_252_rows() {
    let shape = Shape::new(Level::Raid4, Blocks(256), &[4; 5]).expect("a shape");
    assert_eq!((shape.unit, shape.capacity()), (252, Blocks(4 * 252)));
}

/// A device that notes how many requests are outstanding, and whether reads come in ascending order.
struct Watched {
    below: Memory,
    outstanding: std::sync::atomic::AtomicUsize,
    most: std::sync::atomic::AtomicUsize,
    order: parking_lot::Mutex<Vec<Lba>>,
}

impl ashlar_block::Layer for Watched {
    fn name(&self) -> String {
        "watched".into()
    }
    fn geometry(&self) -> ashlar_block::Geometry {
        ashlar_block::Layer::geometry(&self.below)
    }
    fn measure(&self) -> ashlar_block::Result<()> {
        ashlar_block::Layer::measure(&self.below)
    }
    fn capability(&self) -> ashlar_block::Capability {
        ashlar_block::Layer::capability(&self.below)
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> ashlar_block::Result<Bytes> {
        use std::sync::atomic::Ordering::Relaxed;
        self.order.lock().push(at);
        self.most.fetch_max(self.outstanding.fetch_add(1, Relaxed) + 1, Relaxed);
        let data = ashlar_block::Layer::read(&self.below, context, at, count).await;
        self.outstanding.fetch_sub(1, Relaxed);
        data
    }
    async fn write(
        &self,
        context: IoContext,
        at: Lba,
        pieces: Vec<Bytes>,
        durability: Durability,
    ) -> ashlar_block::Result<()> {
        ashlar_block::Layer::write(&self.below, context, at, pieces, durability).await
    }
    async fn flush(&self, context: IoContext) -> ashlar_block::Result<()> {
        ashlar_block::Layer::flush(&self.below, context).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> ashlar_block::Result<()> {
        ashlar_block::Layer::discard(&self.below, context, at, count).await
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> ashlar_block::Result<()> {
        ashlar_block::Layer::provision(&self.below, context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> ashlar_block::Result<ashlar_block::Extent> {
        ashlar_block::Layer::extent(&self.below, context, at, count).await
    }
}

#[test]
fn batches_are_issued_in_ascending_order_with_bounded_queues() {
    for (queue, journal) in
        [1, 3, 8].into_iter().flat_map(|queue| [(queue, Journaling::Members), (queue, Journaling::Off)])
    {
        let sim = Sim::new(1, Schedule::Random);
        let env = sim.env();
        sim.run(async move {
            let disks: Vec<Arc<Watched>> = (0..5)
                .map(|_| {
                    let below =
                        Memory::new(Blocks(2 + 512 + 20 * 64)).with_delay(env.clone(), Duration::from_micros(50));
                    Arc::new(Watched { below, outstanding: 0.into(), most: 0.into(), order: Default::default() })
                })
                .collect();
            let named = |(slot, disk): (usize, &Arc<Watched>)| NamedDevice {
                name: format!("disk{slot}"),
                device: disk.clone(),
            };
            let devices: Vec<NamedDevice> = disks.iter().enumerate().map(named).collect();
            let creation = Creation { journal: Blocks(512), ..Creation::new(Level::Raid4) };
            Array::create(&env, &devices, creation, |_, _| ()).await.expect("an array can be made");
            let array = Array::open(&env, devices, 0, Options { queue, journal, ..Options::default() })
                .await
                .expect("it opens");
            fill(&array, |at| at).await;
            disks.iter().for_each(|disk| disk.order.lock().clear());
            let blocks: Vec<u64> = (0..200).map(|_| env.random() % array.shape().capacity().0).collect();
            cost(&array, &blocks).await;
            for disk in disks {
                let order = disk.order.lock();
                assert!(order.len() > 20 && order.is_sorted(), "{order:?}");
                assert_eq!(disk.most.load(std::sync::atomic::Ordering::Relaxed), queue);
            }
        })
        .expect("no deadlock");
    }
}
