//! Who belongs to an array: what is refused, and members that come, go and return.

use super::*;
use crate::format::Superblock;
use crate::{MemberState, Pace, inspect};
use ashlar_block::Kind;
use std::sync::atomic::AtomicBool;

static RUN: AtomicBool = AtomicBool::new(false);

async fn refused(rig: &Rig, devices: Vec<NamedDevice>, absent: usize) -> String {
    let opened = Array::open(&rig.env, devices, absent, Options::default()).await;
    opened.err().expect("the array must be refused").to_string()
}

fn states(array: &Array) -> Vec<MemberState> {
    array.status().members.iter().map(|member| member.state).collect()
}

#[test]
fn errors_teach() {
    with_rig(&[3, 3, 3, 3], 1, async |rig| {
        let blank = refused(&rig, rig.named(), 0).await;
        assert!(blank.contains("disk0 bears no array: make one with `ashlar array create`"), "{blank}");
        rig.create(Level::Raid5).await;
        let other = Rig::new(&rig.env, &[3, 3, 3]);
        other.create(Level::Raid5).await;
        let again = Array::create(&rig.env, &rig.named(), CREATION, |_, _| ()).await.expect_err("it holds an array");
        assert!(again.to_string().contains("--force overwrites it"), "{again}");
        let mut mixed = rig.named();
        mixed[2] = NamedDevice { name: "stranger".into(), ..other.named().remove(2) };
        let mixed = refused(&rig, mixed, 0).await;
        assert!(mixed.contains("members of two arrays") && mixed.contains("stranger does not belong here"), "{mixed}");
        let mut twice = rig.named();
        twice[1] = twice[0].clone();
        let twice = refused(&rig, twice, 1).await;
        assert!(twice.contains("there are two of member 0"), "{twice}");
        let fewer = refused(&rig, rig.named().split_off(1), 0).await;
        assert!(
            fewer.contains("members [0] of 4 are not among the devices") && fewer.contains("--degraded"),
            "{fewer}"
        );
        let too_few = refused(&rig, rig.named().split_off(2), 2).await;
        assert!(too_few.contains("raid5 needs 3 of its members [0, 1, 2, 3], and [0, 1] are missing"), "{too_few}");
        // In another order they are the same array.
        let mut turned = rig.named();
        turned.rotate_left(2);
        let array = Array::open(&rig.env, turned, 0, Options::default()).await.expect("any order will do");
        let spare = NamedDevice { name: "small".into(), device: Arc::new(Memory::new(Blocks(200))) };
        let small = array.replace(1, spare, false).await.expect_err("it is too small").to_string();
        assert!(small.contains("small is too small"), "{small}");
        let none = array.replace(9, rig.spare(0), false).await.expect_err("there are four").to_string();
        assert!(none.contains("there is no member 9; there are 0 to 3"), "{none}");
    });
}

#[test]
fn members_die_are_replaced_and_rebuilt_while_the_array_is_used() {
    for (level, deaths) in [(Level::Raid1, 3), (Level::Raid4, 1), (Level::Raid5, 1), (Level::Raid6, 2)] {
        with_rig(&[4, 4, 4, 4], 4, move |rig| async move {
            rig.create(level).await;
            let array = rig.open().await;
            fill(&array, |at| at).await;
            (0..deaths).for_each(|slot| rig.kill(slot));
            verify(&array, |at| at).await;
            let capacity = array.shape().capacity().0;
            write(&array, 0, (0..capacity / 2).map(|at| at + 1)).await.expect("a degraded array takes writes");
            let now = move |at| if at < capacity / 2 { at + 1 } else { at };
            verify(&array, now).await;
            let replacing = rig.env.spawn({
                let (array, spares) = (array.clone(), (0..deaths).map(|slot| rig.spare(slot)).collect::<Vec<_>>());
                async move {
                    for (slot, spare) in spares.into_iter().enumerate() {
                        array.replace(slot, spare, false).await.expect("a fresh disk");
                    }
                    array.rebuild(Pace::default(), &RUN, |_| ()).await.expect("a rebuild")
                }
            });
            while !replacing.is_done() {
                let at = rig.env.random() % capacity;
                write(&array, at, [now(at)]).await.expect("users are served meanwhile");
                assert_eq!(read(&array, at).await.expect("users are served meanwhile"), block(now(at)));
            }
            let rebuilt = replacing.await;
            assert_eq!((rebuilt.lost, rebuilt.members.len()), (0, deaths), "{rebuilt:?}");
            verify(&array, now).await;
            assert_eq!(states(&array), [MemberState::Active; 4]);
            let scrubbed = array.scrub(Pace::default(), &RUN, |_| ()).await.expect("a scrub");
            assert_eq!((scrubbed.wrong, scrubbed.lost), (0, 0), "{scrubbed:?}");
            // What was rebuilt carries the array when others die.
            (deaths..2 * deaths).filter(|slot| *slot < 4 && level != Level::Raid1).for_each(|slot| rig.kill(slot));
            verify(&array, now).await;
        });
    }
}

#[test]
fn a_rebuild_goes_on_where_it_was_stopped() {
    with_rig(&[140, 140, 140], 1, async |rig| {
        rig.create(Level::Raid5).await;
        let array = rig.open().await;
        fill(&array, |at| at).await;
        let spare = rig.spare(1);
        array.replace(1, spare.clone(), false).await.expect("a fresh disk");
        let stop = AtomicBool::new(false);
        let stop_at =
            |progress: crate::Progress| stop.store(progress.done == 100, std::sync::atomic::Ordering::Relaxed);
        let rebuilt = array.rebuild(Pace::default(), &stop, stop_at).await.expect("a rebuild");
        assert!(rebuilt.stopped);
        drop(array);
        let mut devices = rig.named();
        devices[1] = spare;
        let found = inspect(&devices).await.expect("they bear an array").remove(0);
        assert_eq!((found.members[1].state, found.members[1].rebuilt), (MemberState::Rebuilding, 100));
        let array = Arc::new(Array::open(&rig.env, devices, 0, Options::default()).await.expect("it opens"));
        verify(&array, |at| at).await;
        let first = parking_lot::Mutex::new(None);
        let note = |progress: crate::Progress| _ = first.lock().get_or_insert(progress.done);
        array.rebuild(Pace::default(), &RUN, note).await.expect("a rebuild");
        assert_eq!(*first.lock(), Some(101));
        verify(&array, |at| at).await;
        assert_eq!(array.scrub(Pace::default(), &RUN, |_| ()).await.expect("a scrub").wrong, 0);
    });
}

#[test]
fn a_rebuild_keeps_to_its_rate() {
    with_rig(&[32, 32, 32], 1, async |rig| {
        rig.create(Level::Raid5).await;
        let array = rig.open().await;
        array.replace(0, rig.spare(0), false).await.expect("a fresh disk");
        let began = rig.env.now();
        let pace = Pace { rate: Some(ashlar_units::Bytes::mib(1)) };
        array.rebuild(pace, &RUN, |_| ()).await.expect("a rebuild");
        // Virtual time: 32 groups of 256 KiB at 1 MiB/s.
        let spent = rig.env.now().since(began).as_secs_f64();
        assert!((8.0..8.2).contains(&spent), "{spent} s");
    });
}

#[test]
fn a_member_that_missed_writes_is_stale() {
    with_rig(&[3, 3, 3], 4, async |rig| {
        rig.create(Level::Raid5).await;
        let array = rig.open().await;
        fill(&array, |at| at).await;
        rig.kill(0);
        fill(&array, |at| at + 1).await;
        assert_eq!(states(&array)[0], MemberState::Failed);
        drop(array);
        rig.heal(0).await;
        let array = rig.open().await;
        assert_eq!(states(&array)[0], MemberState::Failed);
        verify(&array, |at| at + 1).await;
        // It may come back, as a fresh one.
        let device = rig.named().remove(0);
        let held = array.replace(0, device.clone(), false).await.expect_err("it holds an array").to_string();
        assert!(held.contains("--force"), "{held}");
        array.replace(0, device, true).await.expect("by force");
        array.rebuild(Pace::default(), &RUN, |_| ()).await.expect("a rebuild");
        verify(&array, |at| at + 1).await;
    });
}

#[test]
fn halves_that_went_on_alone_are_noticed() {
    with_rig(&[3, 3], 1, async |rig| {
        rig.create(Level::Raid1).await;
        for slot in 0..2 {
            let alone = vec![rig.named().remove(slot)];
            let array = Array::open(&rig.env, alone, 1, Options::default()).await.expect("one half is enough");
            fill(&array, |at| at + slot as u64).await;
        }
        let both = refused(&rig, rig.named(), 0).await;
        assert!(both.contains("each say that the other failed"), "{both}");
    });
}

#[test]
fn a_member_that_alone_was_written_to_is_stale_when_the_others_went_on() {
    with_rig(&[3, 3, 3], 1, async |rig| {
        rig.create(Level::Raid5).await;
        fill(&*rig.open().await, |at| at).await;
        // The power fails while superblocks are written, several times: only the first member gets newer ones.
        let first = rig.named().remove(0).device;
        let mut alone: Option<Superblock> = None;
        for at in 0..2 {
            let block = first.read(CONTEXT, Lba(at), Blocks(1)).await.expect("a superblock");
            let found = Superblock::decode(&block).expect("whole");
            alone = [alone, found].into_iter().flatten().max_by_key(|superblock| superblock.generation);
        }
        let mut alone = alone.expect("a label");
        for _ in 0..5 {
            alone.generation += 1;
            let at = Lba(alone.generation % 2);
            first.write(CONTEXT, at, vec![alone.encode()], Durability::Forced).await.expect("room");
        }
        // Its cable comes loose, and the others go on.
        let others = rig.named().split_off(1);
        let array = Array::open(&rig.env, others, 1, Options::default()).await.expect("two are enough");
        fill(&array, |at| at + 1).await;
        drop(array);
        let listed = inspect(&rig.named()).await.expect("labels");
        assert_eq!(listed[0].members[0].state, MemberState::Failed);
        for _ in 0..3 {
            let own = Options { verify: crate::Verify::Own, ..Options::default() };
            let array = rig.open_with(own).await;
            assert_eq!(states(&array)[0], MemberState::Failed);
            verify(&array, |at| at + 1).await;
        }
    });
}

#[test]
fn a_fresh_member_that_has_nothing_yet_is_not_missed() {
    with_rig(&[3, 3, 3], 1, async |rig| {
        rig.create(Level::Raid5).await;
        let array = rig.open().await;
        fill(&array, |at| at).await;
        // It is in its place, and the power fails before anybody writes down which device it is.
        array.replace(1, rig.spare(1), false).await.expect("a fresh disk");
        drop(array);
        let array = rig.open().await;
        assert_eq!(states(&array), [MemberState::Active, MemberState::Failed, MemberState::Active]);
        verify(&array, |at| at).await;
    });
}

#[test]
fn one_death_too_many_is_an_error_and_no_lie() {
    with_rig(&[3, 3, 3], 4, async |rig| {
        rig.create(Level::Raid5).await;
        let array = rig.open().await;
        fill(&array, |at| at).await;
        rig.kill(0);
        verify(&array, |at| at).await;
        rig.kill(1);
        let error = read(&array, 3).await.err().or(read(&array, 10).await.err()).expect("not all can be read");
        assert!(matches!(error.kind(), Kind::Failed | Kind::Corrupt), "{error}");
        write(&array, 0, 0..30).await.expect_err("not all can be written");
        assert_eq!(write(&array, 0, 0..30).await.expect_err("it is broken").kind(), Kind::Poisoned);
        drop(array);
        rig.heal(0).await;
        rig.heal(1).await;
        // Nothing that was there before was touched on the way.
        let array = rig.open().await;
        for at in 40..array.shape().capacity().0 {
            assert_eq!(read(&array, at).await.expect("it is there"), block(at));
        }
    });
}
