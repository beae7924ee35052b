use crate::testing::record;
use crate::*;
use ashlar_block::Device;
use ashlar_devices::Memory;
use ashlar_env::Instant;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_pool::{Config, Creation};
use ashlar_units::Blocks;
use ashlar_vfs::{DirEntry, Errno, FileKind, NAME_LEN_MAX, NewNode, ROOT};
use bytes::BytesMut;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

type Plain = Record<()>;

proptest! {
    #[test]
    fn heads_and_tails_are_read_back(record in record(u64::MAX, Just(())), own in 0..64u8, cut in any::<prop::sample::Index>()) {
        let mut bytes = BytesMut::new();
        record.put_head(&mut bytes, own << 2);
        let head = bytes.len();
        record.put_tail(&mut bytes);
        let tail = bytes.len() - record.target.len();
        let bytes = bytes.freeze();
        let mut rest = bytes.clone();
        let (read, flags) = Plain::get_head(&mut rest).expect("whole");
        prop_assert_eq!(flags >> 2, own);
        let read = read.with_tail(rest).expect("whole");
        prop_assert!(read.has_valid_times());
        let (ino, size, parent) = (record.ino, record.size, record.parent);
        prop_assert_eq!(Record { ino, size, parent, ..read }, record);
        // What is cut short is not read.
        prop_assert!(Plain::get_head(&mut bytes.slice(..cut.index(head))).is_none());
        let mut short = bytes.slice(..head + cut.index(tail - head));
        let (read, _) = Plain::get_head(&mut short).expect("whole");
        prop_assert!(read.with_tail(short).is_none());
    }

    #[test]
    fn trimming_is_slicing(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..6), skip in 0..50usize, len in 0..50usize) {
        let whole: Vec<u8> = parts.concat();
        let mut trimmed: Vec<Bytes> = parts.into_iter().map(Bytes::from).collect();
        trim(&mut trimmed, skip, len);
        let from = skip.min(whole.len());
        prop_assert_eq!(&trimmed.concat()[..], &whole[from..(from + len).min(whole.len())]);
        prop_assert!(trimmed.iter().all(|part| !part.is_empty()));
    }

    #[test]
    fn positions_are_cookies_behind_the_dots(name in prop::collection::vec(any::<u8>(), 1..9), seed in any::<u64>(), bits in 1..=55u32) {
        let position = position_of(&name, seed, bits);
        prop_assert!(position.is_multiple_of(COLLISIONS_MAX) && position > 2);
        prop_assert!(position >> 8 < 1 << bits);
    }
}

#[test]
fn shifts_are_of_whole_blocks_inside_a_file() {
    let shift = |offset, len, insert| Shift::new(3 * BLOCK + 5, offset, len, insert, 5 * BLOCK);
    assert_eq!(shift(BLOCK, 2 * BLOCK, false).expect("inside").size, BLOCK + 5);
    assert_eq!(shift(3 * BLOCK, BLOCK, true).expect("inside").size, 4 * BLOCK + 5);
    let invalid = [(1, BLOCK, false), (0, 5, true), (BLOCK, 3 * BLOCK, false), (4 * BLOCK, BLOCK, true)];
    for (offset, len, insert) in invalid {
        let error = shift(offset, len, insert).expect_err("refused");
        assert_eq!(error.errno, Errno::Invalid, "{offset} {len} {insert}");
    }
    assert_eq!(shift(0, 2 * BLOCK, true).expect_err("too long").errno, Errno::FileTooBig);
}

fn time(seconds: i64) -> Time {
    Time { seconds, nanos: 0 }
}

#[test]
fn names_of_every_form_are_judged() {
    for name in [&b"a"[..], b"...", b"\xff", &[b'x'; NAME_LEN_MAX]] {
        assert!(check_name(name).is_ok(), "{name:?}");
    }
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert_eq!(check_name(name).map_err(|error| error.errno), Err(Errno::Invalid), "{name:?}");
    }
    let long = [b'x'; NAME_LEN_MAX + 1];
    assert_eq!(check_name(&long).map_err(|error| error.errno), Err(Errno::NameTooLong));
}

#[test]
fn listings_go_on_behind_every_dot() {
    let directory = Plain { parent: 7, ..Record::new(9, FileKind::Directory, time(0)) };
    for (cookie, taken, then) in [(0, 2, Some(2)), (1, 1, Some(2)), (2, 0, Some(2)), (500, 0, Some(500))] {
        let mut seen = Vec::new();
        let mut sink = |entry: DirEntry<'_>| {
            seen.push((entry.ino, entry.cookie));
            true
        };
        assert_eq!(list_dots(&directory, cookie, &mut sink), then);
        assert_eq!(seen, [(9, 1), (7, 2)][2 - taken..], "behind {cookie}");
    }
    assert_eq!(list_dots(&directory, 0, &mut |_| false), None);
}

#[test]
fn access_times_follow_changes_and_days() {
    let mut record: Plain = Record::new(9, FileKind::File, time(100));
    assert!(record.access(time(101)), "it was never read");
    assert!(!record.access(time(102)), "nothing has changed since");
    record.modify(time(103));
    assert!(record.access(time(104)));
    assert!(!record.access(time(104 + 24 * 3600)));
    assert!(record.access(time(105 + 24 * 3600)));
    assert_eq!((record.accessed, record.modified), (time(105 + 24 * 3600), time(103)));
}

#[test]
fn writing_clears_set_id_bits_and_children_inherit_the_group() {
    let new = |kind, permissions| NewNode { kind, permissions, uid: 1, gid: 2, device: 0, umask: 0, open: false };
    let directory = Plain { permissions: 0o2755, gid: 50, ..Record::root(time(0), 0, 0) };
    let mut file = directory.child(9, &new(FileKind::File, 0o6711), b"", time(5));
    assert_eq!((file.permissions, file.gid, file.parent, file.links), (0o6711, 50, 0, 1));
    file.clear_setid();
    assert_eq!(file.permissions, 0o711);
    file.permissions = 0o6701;
    file.clear_setid();
    assert_eq!(file.permissions, 0o2701, "without the group's x bit it means locking");
    let mut below = directory.child(10, &new(FileKind::Directory, 0o700), b"", time(5));
    assert_eq!((below.permissions, below.gid, below.parent, below.links), (0o2700, 50, ROOT, 2));
    below.clear_setid();
    assert_eq!(below.permissions, 0o2700);
}

#[test]
fn what_was_counted_lately_will_do_for_a_while() {
    let sparse = Record { sparse: true, size: 10 * BLOCK, ..Record::new(7, FileKind::File, time(0)) };
    let mut state = State::<()>::new(sparse, (), Default::default());
    let told = |state: &State<()>, now: u64| {
        let attr = state.attr_at(Some(Instant(now)));
        (attr.allocated / BLOCK, attr.estimated.map(|lasts| lasts.as_nanos()))
    };
    assert_eq!(told(&state, 0), (10, Some(0)), "nobody has counted");
    let counted = |blocks, version| Counted { blocks, keys: 0, version };
    state.note_count(counted(3, 0), Instant(100));
    assert_eq!(told(&state, 500), (3, None));
    state.stored_changed();
    assert_eq!((told(&state, 40), told(&state, 100)), ((3, Some(60)), (10, Some(0))));
    // Who began to count later knows better.
    state.note_count(counted(0, 1), Instant(200));
    state.note_count(counted(5, 0), Instant(300));
    assert_eq!(told(&state, 0), (0, None));
    state.stored_changed();
    assert_eq!(told(&state, 150), (1, Some(50)), "it may have blocks now");
    state.record.size = 0;
    assert_eq!(told(&state, 150), (0, Some(50)));
    assert_eq!(state.attr().estimated, Some(Duration::ZERO), "who does not ask for that alone gets an estimate");
}

#[test]
fn the_clock_gives_a_second_chance() {
    let table = Table::<Mutex<State<()>>>::default();
    for ino in ROOT..=1024 {
        table.insert(State::new(Record::new(ino, FileKind::File, time(0)), (), Default::default()));
    }
    assert!(table.surplus(1024).is_empty());
    // All are new: the first round takes that from them, and the second takes shard by shard until there are enough.
    let chosen = table.surplus(1000);
    assert!((1024 - 875..1024 - 875 + 1024 / 64).contains(&chosen.len()), "{}", chosen.len());
    assert!(!chosen.contains(&ROOT));
    let all: BTreeSet<Ino> = table.surplus(0).into_iter().collect();
    assert_eq!(all.len(), 1023, "all but the root");
    // Who has been asked for since is passed once. The hand stands some shards further on, and stops before it comes by again.
    let passed = 8 * 64 + 40;
    table.shard(passed).get(&passed).expect("it is there").mark();
    assert!(!table.surplus(0).contains(&passed));
    assert!(table.surplus(0).contains(&passed));
}

#[test]
fn numbers_are_given_once_also_after_a_crash() {
    const KEY: &[u8] = b"N";
    let sim = Sim::new(1, Schedule::Random);
    let env = sim.env();
    let run = async move {
        let devices = vec![Arc::new(Memory::new(Blocks(64 * 256))) as Device];
        Pool::create(&env, &devices, Creation::default()).await.expect("made");
        let pool = Pool::open(&env, devices, Config::default()).await.expect("opened");
        let volume = pool.create_volume("v").await.expect("made");
        let end = 2 * NUMBER_LOT + 10;
        let (mut given, mut next) = (BTreeSet::new(), 1);
        // Each time, what is in memory is lost.
        for _ in 0..2 {
            let numbers = Arc::new(Numbers::new(KEY, next, end));
            let take = |_| {
                let (numbers, volume) = (numbers.clone(), volume.clone());
                env.spawn(async move { numbers.take(&volume).await.expect("there are more") })
            };
            for task in (0..20).map(take).collect::<Vec<_>>() {
                assert!(given.insert(task.await), "given twice");
            }
            next = read_number(&volume.get(KEY).await.expect("read").expect("stored")).expect("a number");
            assert!(given.iter().all(|number| *number < next));
        }
        let numbers = Numbers::new(KEY, end - 1, end);
        assert_eq!(numbers.take(&volume).await.expect("the last"), end - 1);
        assert_eq!(numbers.take(&volume).await.expect_err("no more").errno, Errno::NoSpace);
    };
    sim.run(run).expect("no deadlock");
}

#[test]
fn who_finds_the_same_inode_without_names_again_and_again_is_told() {
    let mut gone = Gone::default();
    // Names come and go.
    assert!((0..1000).all(|number| gone.found(7 + number % 2).is_ok()));
    let error = (0..1000).find_map(|_| gone.found(9).err()).expect("not for ever");
    assert_eq!(error.errno, Errno::Io);
}
