//! What files hold.

use super::*;

#[test]
fn files_hold_what_is_written() {
    on_each_transport(|_, at| {
        let path = at.join("file");
        let data = incompressible(1, 3_000_001);
        fs::write(&path, &data).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data);

        let mut file = OpenOptions::new().append(true).read(true).open(&path).unwrap();
        file.write_all(b"tail").unwrap();
        file.sync_all().unwrap();
        file.seek(SeekFrom::Start(3_000_001)).unwrap();
        let mut tail = String::new();
        file.read_to_string(&mut tail).unwrap();
        assert_eq!(tail, "tail");

        file.set_len(10_000).unwrap();
        file.set_len(20_000).unwrap();
        let read = fs::read(&path).unwrap();
        assert_eq!((&read[..10_000], &read[10_000..]), (&data[..10_000], &[0; 10_000][..]));

        drop(File::create(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC truncates");
        let sync = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
        sync.write_all_at(b"durable", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"durable");
    });
}

#[test]
fn ranges_are_reserved_punched_and_zeroed() {
    on_each_transport(|_, at| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
        let mut model = incompressible(2, 10 * PAGE as usize);
        let same = |model: &[u8]| {
            let mut read = vec![0; model.len() + 1];
            let len = file.read_at(&mut read, 0).unwrap();
            assert!(read[..len] == *model);
            assert_eq!(file.metadata().unwrap().len(), model.len() as u64);
        };
        file.write_all_at(&model, 0).unwrap();
        fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, PAGE + 100, 3 * PAGE).unwrap();
        model[PAGE as usize + 100..4 * PAGE as usize + 100].fill(0);
        same(&model);
        fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, 9 * PAGE, 2 * PAGE).unwrap();
        model.truncate(9 * PAGE as usize);
        model.resize(11 * PAGE as usize, 0);
        same(&model);
        fallocate(&file, 0, 0, 20 * PAGE).unwrap();
        model.resize(20 * PAGE as usize, 0);
        same(&model);
        fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 20 * PAGE, 10 * PAGE).unwrap();
        same(&model);
        assert!(file.metadata().unwrap().blocks() * 512 >= 30 * PAGE);
        for refused in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, libc::FALLOC_FL_UNSHARE_RANGE] {
            assert_eq!(errno(fallocate(&file, refused, 0, PAGE)), libc::EOPNOTSUPP, "the kernel refuses {refused}");
        }
    });
}

#[test]
fn holes_are_those_of_the_page_cache_too() {
    on_each_transport(|_, at| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
        for written_back in [false, true] {
            file.write_all_at(&[1; 2 * PAGE as usize], 0).unwrap();
            file.write_all_at(&[1; 100], 4 * PAGE).unwrap();
            if written_back {
                file.sync_all().unwrap();
            }
            assert_eq!(seek(&file, 0, libc::SEEK_HOLE).unwrap(), 2 * PAGE);
            assert_eq!(seek(&file, 2 * PAGE, libc::SEEK_DATA).unwrap(), 4 * PAGE);
            assert_eq!(seek(&file, 4 * PAGE + 7, libc::SEEK_DATA).unwrap(), 4 * PAGE + 7);
            assert_eq!(seek(&file, 4 * PAGE, libc::SEEK_HOLE).unwrap(), 4 * PAGE + 100);
            assert_eq!(errno(seek(&file, 4 * PAGE + 100, libc::SEEK_DATA)), libc::ENXIO);
            file.set_len(0).unwrap();
        }
        // Only the page cache knows of these, and of this end.
        file.write_all_at(b"far away", 300 * PAGE).unwrap();
        assert_eq!(seek(&file, 5, libc::SEEK_DATA).unwrap(), 300 * PAGE);
        file.write_all_at(&[1; PAGE as usize], 301 * PAGE).unwrap();
        assert_eq!(seek(&file, 301 * PAGE, libc::SEEK_HOLE).unwrap(), 302 * PAGE);
        assert_eq!(seek(&file, 300 * PAGE, libc::SEEK_HOLE).unwrap(), 302 * PAGE);
    });
}

/// A seek waits for writes of the page cache, which need entries of the queues too.
#[test]
fn seeks_in_what_is_not_written_back_leave_room_for_the_writes() {
    if let Some(why) = obstacle() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let (seekers, rounds, fewest) = (24, 40, Bytes(0));
    let mounted = Mounted::new(processors(), Options { buffers: fewest, ..Options::default() });
    let seek_on = |seeker: u64| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mounted.place.0.join(seeker.to_string()))?;
        for round in 0..rounds {
            // Each round's data lie apart from those of the others, and end within a page.
            let (at, len) = ((round * 7 + seeker) % 97 * 2 * PAGE + 5, 100);
            file.write_all_at(&[1; 100], at)?;
            assert!(seek(&file, at, libc::SEEK_HOLE)? >= at + len);
            assert_eq!(seek(&file, at, libc::SEEK_DATA)?, at);
        }
        io::Result::Ok(())
    };
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let seekers = (0..seekers).map(|seeker| {
            let (ended, seek_on) = (&ended, &seek_on);
            scope.spawn(move || {
                let outcome = on_first_processor().and_then(|()| seek_on(seeker));
                ended.fetch_add(1, Ordering::Relaxed);
                outcome
            })
        });
        let seekers: Vec<_> = seekers.collect();
        let began = Instant::now();
        while ended.load(Ordering::Relaxed) < seekers.len() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Nothing else frees who waits for ever.
        if ended.load(Ordering::Relaxed) < seekers.len() {
            mounted.mount.abort().unwrap();
        }
        seekers.into_iter().for_each(|seeker| seeker.join().unwrap().expect("it waits for itself"));
    });
    mounted.unmount();
}

#[test]
fn ranges_are_copied_by_the_engine() {
    on_each_transport(|mounted, at| {
        let data = incompressible(3, 1 << 20);
        fs::write(at.join("from"), &data).unwrap();
        let from = File::open(at.join("from")).unwrap();
        let to = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("to")).unwrap();
        let (mut at_from, mut at_to) = (1000i64, 50i64);
        // SAFETY: the pointers are to two offsets.
        let copied = check(unsafe {
            libc::copy_file_range(from.as_raw_fd(), &mut at_from, to.as_raw_fd(), &mut at_to, 500_000, 0)
        } as i64);
        assert_eq!(copied.unwrap(), 500_000);
        assert_eq!((at_from, at_to), (501_000, 500_050));
        let mut read = vec![0; 500_000];
        to.read_exact_at(&mut read, 50).unwrap();
        assert!(read == data[1000..501_000]);
        assert_eq!(mounted.served("copy_file_range") + mounted.served("copy_file_range_64"), 1);
    });
}

#[test]
fn mappings_and_files_agree() {
    on_each_transport(|_, at| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
        let len = 3 * PAGE as usize;
        file.set_len(len as u64).unwrap();
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping of an open file; nobody truncates it.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), len, access, shared, file.as_raw_fd(), 0) };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: the mapping is `len` bytes long, writable and not used otherwise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), len) };
        let data = incompressible(5, len);
        bytes.copy_from_slice(&data);
        let mut read = vec![0; len];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == data);
        // SAFETY: exactly the mapping from above, whose slice is not used any more.
        unsafe {
            check(libc::msync(map, len, libc::MS_SYNC)).unwrap();
            check(libc::munmap(map, len)).unwrap();
        }
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(at.join("file")).unwrap();
        let mut buffer = vec![0; len + PAGE as usize];
        let buffer = aligned(&mut buffer, len);
        assert_eq!(direct.read_at(buffer, 0).unwrap(), len);
        assert!(*buffer == data, "the engine has what was mapped");
    });
}

#[test]
fn direct_io_goes_past_the_page_cache() {
    on_each_transport(|mounted, at| {
        let path = at.join("file");
        let len = 3 << 20;
        let direct = |create: bool| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(create).custom_flags(libc::O_DIRECT).open(&path).unwrap()
        };
        let mut buffer = vec![0; len + PAGE as usize];
        let buffer = aligned(&mut buffer, len);
        buffer.copy_from_slice(&incompressible(6, len));
        let file = direct(true);
        file.write_all_at(buffer, 0).unwrap();
        assert_eq!(mounted.mount.counters().bytes_written, len as u64);
        assert!(fs::read(&path).unwrap() == *buffer);
        let before = mounted.mount.counters().bytes_read;
        let file = direct(false).read_at(buffer, 0).map(|read| (read, file));
        assert_eq!(file.unwrap().0, len);
        assert!(mounted.mount.counters().bytes_read - before >= len as u64);
        assert!(*buffer == incompressible(6, len));
    });
}

#[test]
fn who_only_writes_learns_that_there_is_no_space() {
    on_each_transport(|_, at| {
        let path = at.join("log");
        let mut file = File::create(&path).unwrap();
        set_xattr(&path, "user.full", b"", 0).unwrap();
        // The kernel takes what it can hold. It writes back when it wants; at the latest here, when somebody else asks for it.
        file.write_all(&incompressible(1, 1 << 20)).unwrap();
        let other = File::open(&path).unwrap();
        assert_eq!(errno(other.sync_all()), libc::ENOSPC);
        assert_eq!(errno(file.write(b"more")), libc::ENOSPC);
        // Who reads is not concerned, nor who writes when there is space again.
        file.write_all(&incompressible(2, 1 << 20)).unwrap();
        assert_eq!(errno(other.sync_all()), libc::ENOSPC);
        assert!(fs::read(&path).is_ok());
        // SAFETY: strings that end.
        check(unsafe { libc::removexattr(text(&path).as_ptr(), c"user.full".as_ptr()) }).unwrap();
        file.write_all(b"more").unwrap();
    });
}

#[test]
fn syncfs_reaches_the_engine_only_as_writes() {
    on_each_transport(|mounted, at| {
        let mut file = File::create_new(at.join("file")).unwrap();
        file.write_all(b"x").unwrap();
        // SAFETY: the call has no memory arguments.
        check(unsafe { libc::syncfs(file.as_raw_fd()) }).unwrap();
        // Linux does not even wait for the write-back that it begins.
        until("nothing is written back", || mounted.served("write") == 1);
        assert_eq!(mounted.served("syncfs"), 0);
        // A directory is the way to reach it: fsync of one makes everything durable.
        // SAFETY: the pointer is to a string that ends.
        let directory = check(unsafe { libc::open(text(at).as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY) }).unwrap();
        // SAFETY: the descriptor was just made and nobody else owns it.
        unsafe { File::from_raw_fd(directory as i32) }.sync_all().unwrap();
        assert_eq!(mounted.served("fsyncdir"), 1);
    });
}

/// Random operations on one file, buffered and direct, against a vector.
#[test]
fn a_file_is_a_vector_of_bytes() {
    const LEN_MAX: u64 = 40 * PAGE;
    let run = |at: &Path, seed: u64| {
        let path = at.join(format!("file-{seed}"));
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags).open(&path).unwrap()
        };
        let (cached, direct) = (open(0), open(libc::O_DIRECT));
        let mut model: Vec<u8> = Vec::new();
        let mut chance = incompressible(seed, 1 << 16).into_iter().map(u64::from).cycle();
        let mut random = move |below: u64| (0..4).fold(0, |sum, _| sum << 8 | chance.next().unwrap()) % below.max(1);
        let mut room = vec![0; LEN_MAX as usize + PAGE as usize];
        let resize = |model: &mut Vec<u8>, len: u64| model.resize(model.len().max(len as usize), 0);
        for step in 0..400 {
            let offset = random(LEN_MAX);
            let len = 1 + random((LEN_MAX - offset).min(5 * PAGE));
            let (page_offset, page_len) = (offset / PAGE * PAGE, len.div_ceil(PAGE) * PAGE);
            let range = |len: u64, model: &[u8]| {
                let end = (offset + len).min(model.len() as u64).max(offset.min(model.len() as u64));
                offset.min(end) as usize..end as usize
            };
            let story = format!("seed {seed}, step {step}, {offset} +{len}");
            match random(9) {
                0 | 1 => {
                    let data = incompressible(random(1 << 30), len as usize);
                    cached.write_all_at(&data, offset).unwrap();
                    resize(&mut model, offset + len);
                    model[offset as usize..(offset + len) as usize].copy_from_slice(&data);
                }
                2 => {
                    let data = aligned(&mut room, page_len.min(LEN_MAX - page_offset) as usize);
                    data.copy_from_slice(&incompressible(random(1 << 30), data.len()));
                    direct.write_all_at(data, page_offset).unwrap();
                    resize(&mut model, page_offset + data.len() as u64);
                    model[page_offset as usize..][..data.len()].copy_from_slice(data);
                }
                3 => {
                    let data = aligned(&mut room, page_len as usize);
                    let read = direct.read_at(data, page_offset).unwrap();
                    let from = model.get(page_offset as usize..).unwrap_or_default();
                    assert!(data[..read] == from[..from.len().min(page_len as usize)], "direct read, {story}");
                }
                4 => {
                    cached.set_len(offset).unwrap();
                    model.resize(offset as usize, 0);
                }
                5 => {
                    fallocate(&cached, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len).unwrap();
                    let range = range(len, &model);
                    model[range].fill(0);
                }
                6 => {
                    fallocate(&cached, libc::FALLOC_FL_ZERO_RANGE, offset, len).unwrap();
                    resize(&mut model, offset + len);
                    model[offset as usize..(offset + len) as usize].fill(0);
                }
                7 => fallocate(&cached, libc::FALLOC_FL_KEEP_SIZE, offset, len).unwrap(),
                _ => {
                    let read = cached.read_at(&mut room[..len as usize], offset).unwrap();
                    assert!(room[..read] == model[range(len, &model)], "read, {story}");
                }
            }
            assert_eq!(cached.metadata().unwrap().len(), model.len() as u64, "{story}");
        }
        assert!(fs::read(&path).unwrap() == model, "seed {seed}");
    };
    on_each_transport(|_, at| (1..=5).for_each(|seed| run(at, seed)));
}

#[test]
fn a_file_that_stays_open_has_blocks() {
    on_each_transport(|mounted, at| {
        let path = at.join("log");
        let file = File::create(&path).unwrap();
        let blocks = || fs::metadata(&path).unwrap().blocks();
        assert_eq!(blocks(), 0);
        file.write_all_at(&[1; 3 * PAGE as usize], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(blocks(), 24);
        file.write_all_at(&[1; PAGE as usize], 3 * PAGE).unwrap();
        // SAFETY: the call has no memory arguments.
        check(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) }).unwrap();
        until("blocks are not counted", || blocks() == 32);
        let before = mounted.served("getattr") + mounted.served("statx");
        assert_eq!((blocks(), mounted.served("getattr") + mounted.served("statx")), (32, before));
    });
}
