//! Members that lie: bad sectors, lost and misdirected writes, flipped bits.

use super::*;
use crate::{Pace, Verify};
use ashlar_block::{Kind, ResultExt};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

static RUN: AtomicBool = AtomicBool::new(false);

fn repaired(array: &Array) -> u64 {
    array.status().members.iter().map(|member| member.counts.repaired).sum()
}

#[test]
fn bad_sectors_are_repaired_in_passing() {
    for level in [Level::Raid1, Level::Raid4, Level::Raid5, Level::Raid6] {
        with_rig(&[3, 3, 3, 3], 3, move |rig| async move {
            rig.create(level).await;
            let array = rig.open().await;
            fill(&array, |at| at).await;
            // Everything on one member, checksum blocks too, cannot be read until it is written.
            rig.fault(2, "lse at 0..100MiB");
            verify(&array, |at| at).await;
            array.scrub(Pace::default(), &RUN, |_| ()).await.expect("a scrub");
            assert!(repaired(&array) > 100, "{} repaired", repaired(&array));
            let before = repaired(&array);
            verify(&array, |at| at).await;
            assert_eq!(repaired(&array), before, "all is well");
        });
    }
}

#[test]
fn without_redundancy_damage_is_an_error_with_a_place() {
    with_rig(&[3, 3], 1, async |rig| {
        rig.create(Level::Raid0).await;
        let array = rig.open().await;
        fill(&array, |at| at).await;
        let place = array.shape().place(Lba(100));
        let at = array.block_at(place.row);
        let noise = vec![block(999_999)];
        let slot = array.shape().slot(place.row, place.role);
        rig.disks[slot].write(CONTEXT, at, noise, Durability::Cached).await.expect("scribbled");
        let error = read(&array, 100).await.expect_err("it is damaged");
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("block lba 100, on member"), "{error}");
        assert_eq!(read(&array, 99).await.expect("its neighbour is fine"), block(99));
        write(&array, 100, [5]).await.expect("it can be written anew");
        assert_eq!(read(&array, 100).await.expect("it is fine now"), block(5));
    });
}

/// A write and its record are lost together: only the generation in the parity's record tells.
#[test]
fn a_member_that_loses_everything_for_a_while_is_found_out() {
    for (level, verify_mode) in [
        (Level::Raid1, Verify::Row),
        (Level::Raid4, Verify::Row),
        (Level::Raid5, Verify::Row),
        (Level::Raid6, Verify::Row),
        (Level::Raid6, Verify::Own),
    ] {
        with_rig(&[3, 3, 3, 3], 3, move |rig| async move {
            rig.create(level).await;
            let array = rig.open_with(Options { verify: verify_mode, ..Options::default() }).await;
            fill(&array, |at| at).await;
            rig.fault(1, "lost-write");
            fill(&array, |at| at + 7).await;
            rig.heal(1).await;
            if verify_mode == Verify::Own {
                // Reads compare a block with its own record only: a scrub must come first.
                let scrubbed = array.scrub(Pace::default(), &RUN, |_| ()).await.expect("a scrub");
                assert!(scrubbed.wrong > 0 && scrubbed.lost == 0, "{scrubbed:?}");
            }
            verify(&array, |at| at + 7).await;
            assert!(repaired(&array) > 0);
        });
    }
}

#[test]
fn latent_errors_in_a_rebuild_lose_only_their_blocks() {
    with_rig(&[6, 6, 6], 3, async |rig| {
        rig.create(Level::Raid5).await;
        let array = rig.open().await;
        fill(&array, |at| at).await;
        // Three rows of member 1, and a whole group of it through its checksum block.
        let rows = [3u64, 70, 71];
        for row in rows {
            let at = array.block_at(row).to_bytes().0;
            rig.fault(1, &format!("lse at {at}..{}", at + 4096));
        }
        array.replace(0, rig.spare(0), false).await.expect("a fresh disk");
        let rebuilt = array.rebuild(Pace::default(), &RUN, |_| ()).await.expect("the rebuild goes on");
        let mut expected: Vec<u64> = Vec::new();
        for row in rows {
            for slot in 0..2 {
                let role = array.shape().role(row, slot).expect("a member of the zone");
                if role < 2 {
                    expected.push(array.shape().lba(crate::Place { row, role }).0);
                }
            }
        }
        let mut named = rebuilt.blocks.clone();
        named.sort_unstable();
        expected.sort_unstable();
        assert_eq!((named, rebuilt.lost), (expected.clone(), expected.len() as u64));
        for at in 0..array.shape().capacity().0 {
            match read(&array, at).await {
                Ok(data) => assert!(data == block(at) && !expected.contains(&at), "block {at}"),
                Err(error) => {
                    assert!(expected.contains(&at) && error.kind() == Kind::Corrupt, "{error}");
                    assert!(error.to_string().contains("write it anew"), "{error}");
                }
            }
        }
        let scrubbed = array.scrub(Pace::default(), &RUN, |_| ()).await.expect("a scrub");
        assert_eq!((scrubbed.wrong, scrubbed.blocks.len()), (0, expected.len()), "{scrubbed:?}");
        for at in expected {
            write(&array, at, [at]).await.expect("it is written anew");
        }
        verify(&array, |at| at).await;
        // What was lost and written anew is as redundant as the rest.
        rig.kill(2);
        verify(&array, |at| at).await;
    });
}

/// Random operations beside a model, while members lie, one at a time: whatever one member does, no wrong byte is returned, and
/// nothing is lost.
async fn lies(rig: Rig, level: Level, verify_mode: Verify) {
    rig.create(level).await;
    let array = rig.open_with(Options { verify: verify_mode, ..Options::default() }).await;
    let capacity = array.shape().capacity().0;
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let random = |end: u64| rig.env.random() % end;
    for round in 0..12 {
        let liar = random(rig.disks.len() as u64) as usize;
        let faults = [
            "lost-write p 0.2",
            "misdirect by 256KiB p 0.1",
            "misdirect by -4KiB p 0.1",
            "flip on read p 0.05",
            "flip on write p 0.05",
            "torn p 0.1",
            "lse rate 0.001 burst 20",
            "read-error p 0.2",
        ];
        // Superblocks and journal are not misdirected to: that would be a fault of two writes.
        let text = faults[random(faults.len() as u64) as usize];
        rig.fault(liar, text);
        for _ in 0..40 {
            let at = random(capacity);
            let count = 1 + random(20).min(capacity - at - 1);
            if random(2) == 0 {
                let stamp = rig.env.random();
                let written = write(&array, at, (at..at + count).map(|at| stamp ^ at)).await;
                written.within(|| format!("round {round}, {text}")).expect("written");
                (at..at + count).for_each(|at| _ = model.insert(at, stamp ^ at));
            } else {
                let seen = BlockDevice::read(&*array, CONTEXT, Lba(at), Blocks(count)).await;
                let seen = seen.within(|| format!("round {round}, {text}")).expect("read");
                for (seen, at) in seen.chunks(BLOCK_LEN).zip(at..) {
                    let expected = model.get(&at).map_or(Bytes::from_static(&[0; BLOCK_LEN]), |stamp| block(*stamp));
                    assert!(seen == expected, "round {round}, {text} on {liar}: block {at} is wrong");
                }
            }
        }
        rig.heal(liar).await;
        let scrubbed = array.scrub(Pace::default(), &RUN, |_| ()).await.expect("a scrub");
        assert_eq!((scrubbed.gone, scrubbed.lost), (0, 0), "round {round}, {text} on {liar}: {scrubbed:?}");
        if array.status().members.iter().any(|member| member.state == crate::MemberState::Failed) {
            // A lie can look like a death; then it is replaced.
            let device = rig.named().remove(liar);
            array.replace(liar, device, true).await.expect("by force");
            array.rebuild(Pace::default(), &RUN, |_| ()).await.expect("a rebuild");
        }
    }
}

#[test]
fn one_liar_never_shows() {
    for level in [Level::Raid1, Level::Raid4, Level::Raid5, Level::Raid6] {
        with_rig(&[3, 3, 3, 3], 6, move |rig| lies(rig, level, Verify::Row));
    }
}
