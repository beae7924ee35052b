use super::*;

fn memory(pages: u64) -> Memory {
    let limits = Limits {
        background: 1 << 20,
        most: 1 << 21,
        expire_ns: 30_000_000_000,
        wake_ns: 5_000_000_000,
        rate: 1e9,
        files: u64::MAX,
        file_wait_ns: 0,
    };
    Memory { bytes: pages * BLOCK, inode_bytes: 1024, name_bytes: 192, ahead: 1, limits, warm: false }
}

fn io(op: Op, inode: u64, offset: u64, len: u64, size: u64) -> Step {
    Step { op: Some(op), inode, file: inode, offset, len, done: len, size, ..Step::default() }
}

fn run(cache: &mut Linux, step: Step) -> Step {
    let mut chain = vec![step];
    cache.apply(&mut chain, 0);
    chain.remove(0)
}

fn lookup(cache: &mut Linux, inode: u64, path: &str) -> Cached {
    run(cache, Step { kind: Kind::Lookup, op: Some(Op::Stat), inode, path: path.into(), ..Step::default() }).cached
}

/// Pages that are read at random.
fn scan(cache: &mut Linux, inode: u64, blocks: std::ops::Range<u64>) {
    for block in blocks {
        page(cache, inode, block);
    }
}

/// A page that is read at random.
fn page(cache: &mut Linux, inode: u64, block: u64) -> bool {
    // Odd places, so that nothing is in order.
    let read = run(cache, io(Op::Read, inode, (block * 3 + 7) * BLOCK, BLOCK, 1 << 40));
    assert_eq!(read.hits + read.misses, 1);
    read.hits == 1
}

#[test]
fn pages_that_are_used_again_survive_a_scan() {
    let mut cache = Linux::new(memory(100));
    for _ in 0..2 {
        scan(&mut cache, 1, 0..20);
    }
    scan(&mut cache, 2, 0..500);
    assert!((0..20).all(|block| page(&mut cache, 1, block)), "they are active");
    assert!(!page(&mut cache, 2, 0), "it was read once");
    let mut lru =
        super::super::Thesis::new(super::super::Sizes { fragments: 100, names: 9, inodes: 9, fragment_bytes: 4096 });
    for (inode, block) in (0..20).map(|block| (1, block)).chain((0..500).map(|block| (2, block))).chain([(1, 0)]) {
        let mut chain = vec![io(Op::Read, inode, block * BLOCK, BLOCK, 1 << 40)];
        lru.apply(&mut chain, 0);
        assert_eq!(chain[0].hits, 0, "by last use alone they do not");
    }
}

#[test]
fn what_comes_back_soon_becomes_active() {
    let mut cache = Linux::new(memory(100));
    for _ in 0..2 {
        scan(&mut cache, 1, 0..60);
    }
    // The inactive list has 40: a loop over 50 misses, but its distance is within the active list.
    for _ in 0..6 {
        scan(&mut cache, 2, 0..50);
    }
    let hits = (0..50).filter(|block| page(&mut cache, 2, *block)).count();
    assert!(hits > 10, "{hits}");
}

#[test]
fn names_and_inodes() {
    let mut cache = Linux::new(memory(10));
    assert_eq!(lookup(&mut cache, 5, "/a"), Cached::Miss);
    assert_eq!(lookup(&mut cache, 5, "/a"), Cached::Hit);
    // The first name brought the directory into memory; another directory is not there.
    assert_eq!(lookup(&mut cache, 0, "/b"), Cached::Absent);
    let elsewhere =
        Step { kind: Kind::Lookup, op: Some(Op::Stat), directory: 77, path: "/x/b".into(), ..Step::default() };
    assert_eq!(run(&mut cache, elsewhere).cached, Cached::Nowhere);
    assert_eq!(lookup(&mut cache, 0, "/b"), Cached::Negative);
    let made = Step { kind: Kind::Create, op: Some(Op::Open), inode: 6, path: "/b".into(), ..Step::default() };
    run(&mut cache, made);
    assert_eq!(lookup(&mut cache, 6, "/b"), Cached::Hit);
    assert_eq!(lookup(&mut cache, 6, "/c"), Cached::Attributes, "another name of it");
    run(&mut cache, Step { op: Some(Op::Unlink), inode: 6, path: "/b".into(), ..Step::default() });
    assert_eq!(lookup(&mut cache, 0, "/b"), Cached::Negative);
    scan(&mut cache, 9, 0..200);
    assert_ne!(lookup(&mut cache, 5, "/a"), Cached::Hit, "memory was full");
    assert!(cache.counts().names_evicted > 0 && cache.used_bytes() <= 10 * BLOCK);
}

#[test]
fn parts_of_blocks_are_read_first() {
    let mut cache = Linux::new(memory(100));
    let partial = |cache: &mut Linux, offset, len, size, fresh| {
        run(cache, Step { fresh, ..io(Op::Write, 3, offset, len, size) }).partial
    };
    assert_eq!(partial(&mut cache, 100, 10, 20_000, 0), 1, "allocated, not cached, not covered");
    assert_eq!(partial(&mut cache, 200, 10, 20_000, 0), 0, "it is cached now");
    assert_eq!(partial(&mut cache, 4096, 8192, 20_000, 0), 0, "covered");
    assert_eq!(partial(&mut cache, 16_384, 3616, 20_000, 0), 0, "covered up to the end of the file");
    assert_eq!(partial(&mut cache, 20_480, 10, 20_000, 1), 0, "behind the end");
    let synced = run(&mut cache, io(Op::Fsync, 3, 0, 0, 20_490));
    assert_eq!((synced.dirty, synced.change), (5, Change::Grown));
    assert_eq!(run(&mut cache, io(Op::Fsync, 3, 0, 0, 20_490)).change, Change::Nothing);
}

#[test]
fn memory_is_never_exceeded_and_files_in_memory_read_without_a_miss() {
    use ashlar_fuzz::config;
    use proptest::prelude::*;
    let step = (0..4u8, 1..6u64, 0..40u64, 1..9u64);
    let mut runner = proptest::test_runner::TestRunner::new(config(100));
    let result = runner.run(&prop::collection::vec(step, 1..200), |steps| {
        let mut cache = Linux::new(Memory { ahead: 8, ..memory(32) });
        for (what, inode, block, blocks) in steps {
            let op = [Op::Read, Op::Write, Op::Fsync, Op::Read][usize::from(what)];
            run(&mut cache, io(op, inode, block * BLOCK + u64::from(what), blocks * BLOCK, 60 * BLOCK));
            prop_assert!(cache.used_bytes() <= 32 * BLOCK);
            if op == Op::Read && blocks < 5 {
                let again = run(&mut cache, io(op, inode, block * BLOCK, BLOCK, 60 * BLOCK));
                prop_assert!(again.hits == 1 || cache.memory.ahead > 4, "{again:?}");
            }
        }
        Ok(())
    });
    result.expect("it holds for all");
}
