//! Names, nodes and their attributes.

use super::*;
use ashlar_vfs::{FileKind, FileSystem, NewNode, ROOT};

#[test]
fn names_come_and_go() {
    on_each_transport(|mounted, at| {
        let (a, b, directory) = (at.join("a"), at.join("b"), at.join("directory"));
        assert_eq!(fs::metadata(&a).unwrap_err().kind(), ErrorKind::NotFound);
        let lookups = mounted.served("lookup");
        for _ in 0..10 {
            assert!(!a.exists());
        }
        assert_eq!(mounted.served("lookup"), lookups, "an absent name is remembered");
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        rename2(&a, &b, libc::RENAME_EXCHANGE).unwrap();
        assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
        assert_eq!(errno(rename2(&a, &b, libc::RENAME_NOREPLACE)), libc::EEXIST);
        assert_eq!(errno(rename2(&a, &b, libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE)), libc::EINVAL);
        assert_eq!(errno(rename2(&a, &b, libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE)), libc::EEXIST);
        for flags in [libc::RENAME_WHITEOUT, libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE] {
            let moved = at.join(format!("moved {flags}"));
            rename2(&a, &moved, flags).unwrap();
            let left = fs::symlink_metadata(&a).unwrap();
            assert_eq!((left.mode(), left.rdev(), left.nlink(), left.uid()), (libc::S_IFCHR, 0, 1, 0));
            fs::rename(&moved, &a).unwrap();
        }
        fs::rename(&a, &b).unwrap();
        assert!(!a.exists());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("inside"), "x").unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().nlink(), 2);
        assert_eq!(errno(fs::remove_dir(&directory)), libc::ENOTEMPTY);
        assert_eq!(errno(fs::rename(&b, &directory)), libc::EISDIR);
        assert_eq!(errno(fs::write(at.join("n".repeat(256)), "")), libc::ENAMETOOLONG);
        fs::write(at.join("n".repeat(255)), "").unwrap();
        std::os::unix::fs::symlink("inside", directory.join("link")).unwrap();
        assert_eq!(fs::read(directory.join("link")).unwrap(), b"x");
        fs::remove_dir_all(&directory).unwrap();

        fs::hard_link(&b, &a).unwrap();
        assert_eq!((fs::metadata(&a).unwrap().nlink(), fs::metadata(&b).unwrap().nlink()), (2, 2));
        assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
        let mut open = OpenOptions::new().read(true).write(true).open(&a).unwrap();
        fs::remove_file(&a).unwrap();
        fs::remove_file(&b).unwrap();
        open.write_all(b"without a name").unwrap();
        open.sync_all().unwrap();
        assert_eq!(open.metadata().unwrap().nlink(), 0);
        let mut read = vec![0; 14];
        open.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, b"without a name");
    });
}

#[test]
fn forgotten_inodes_are_given_back() {
    on_each_transport(|mounted, at| {
        for n in 0..200 {
            fs::write(at.join(n.to_string()), "x").unwrap();
        }
        assert_eq!(fs::read_dir(at).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>(), 200);
        let open = File::open(at.join("7")).unwrap();
        for n in 0..200 {
            fs::remove_file(at.join(n.to_string())).unwrap();
        }
        until("inodes without names remain", || mounted.memory.nodes_count() == 2);
        drop(open);
        until("an inode remains that was open", || mounted.memory.nodes_count() == 1);
    });
}

#[test]
fn nodes_have_their_kinds_owners_and_times() {
    on_each_transport(|_, at| {
        let fifo = at.join("fifo");
        let device = at.join("device");
        let number = libc::makedev(4095, 1_000_000);
        // SAFETY: the pointers are to strings that end.
        check(unsafe { libc::mkfifo(text(&fifo).as_ptr(), 0o600) }).unwrap();
        // SAFETY: as above.
        check(unsafe { libc::mknod(text(&device).as_ptr(), libc::S_IFCHR | 0o600, number) }).unwrap();
        assert_eq!(fs::metadata(&fifo).unwrap().mode(), libc::S_IFIFO | 0o600);
        let data = fs::metadata(&device).unwrap();
        assert_eq!((data.mode(), data.rdev()), (libc::S_IFCHR | 0o600, number));

        let file = at.join("file");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        std::os::unix::fs::chown(&file, Some(12), Some(34)).unwrap();
        let times = fs::FileTimes::new()
            .set_accessed(std::time::UNIX_EPOCH - Duration::new(5, 0))
            .set_modified(std::time::UNIX_EPOCH + Duration::new(5_000_000_000, 123_456_789));
        File::options().write(true).open(&file).unwrap().set_times(times).unwrap();
        let data = fs::metadata(&file).unwrap();
        assert_eq!((data.uid(), data.gid()), (12, 34));
        assert_eq!((data.atime(), data.mtime(), data.mtime_nsec()), (-5, 5_000_000_000, 123_456_789));
        assert!(data.created().is_ok(), "statx gives the time of birth");
    });
}

#[test]
fn files_without_names_can_be_named() {
    on_each_transport(|_, at| {
        let mut file = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(at).unwrap();
        file.write_all(b"nameless").unwrap();
        let from = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let named = at.join("named");
        let (from, to) = (text(&from), text(&named));
        let cwd = libc::AT_FDCWD;
        // SAFETY: both pointers are to strings that end.
        check(unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) }).unwrap();
        drop(file);
        assert_eq!(fs::read(&named).unwrap(), b"nameless");
    });
}

#[test]
fn extended_attributes_keep_their_values() {
    on_each_transport(|_, at| {
        let path = at.join("file");
        fs::write(&path, "").unwrap();
        let large = incompressible(4, 60_000);
        assert_eq!(errno(xattr(&path, "user.a", 100)), libc::ENODATA);
        set_xattr(&path, "user.a", b"", libc::XATTR_CREATE).unwrap();
        assert_eq!(errno(set_xattr(&path, "user.a", b"x", libc::XATTR_CREATE)), libc::EEXIST);
        assert_eq!(errno(set_xattr(&path, "user.b", b"x", libc::XATTR_REPLACE)), libc::ENODATA);
        set_xattr(&path, "user.b", &large, 0).unwrap();
        assert_eq!(xattr(&path, "user.a", 100).unwrap(), b"");
        assert_eq!(xattr(&path, "user.b", 0).unwrap().len(), large.len());
        assert_eq!(xattr(&path, "user.b", 65_536).unwrap(), large);
        assert_eq!(errno(xattr(&path, "user.b", 100)), libc::ERANGE);
        let mut names = vec![0u8; 100];
        // SAFETY: a string that ends, and a buffer of the given length.
        let len = check(unsafe { libc::listxattr(text(&path).as_ptr(), names.as_mut_ptr().cast(), 100) } as i64);
        assert_eq!(&names[..len.unwrap() as usize], b"user.a\0user.b\0");
        let name = CString::new("user.a").unwrap();
        // SAFETY: both pointers are to strings that end.
        check(unsafe { libc::removexattr(text(&path).as_ptr(), name.as_ptr()) }).unwrap();
        assert_eq!(errno(xattr(&path, "user.a", 100)), libc::ENODATA);
    });
}

#[test]
fn a_listing_names_everything_that_stays_exactly_once() {
    on_each_transport(|_, at| {
        let directory = at.join("directory");
        fs::create_dir(&directory).unwrap();
        let stays: BTreeSet<String> = (0..5000).map(|n| format!("stays-{n}-{}", "x".repeat(n % 50))).collect();
        for name in &stays {
            fs::write(directory.join(name), "").unwrap();
        }
        std::thread::scope(|scope| {
            let churn = scope.spawn(|| {
                for n in 0..1500 {
                    fs::write(directory.join(format!("goes-{n}")), "").unwrap();
                    if n >= 10 {
                        fs::remove_file(directory.join(format!("goes-{}", n - 10))).unwrap();
                    }
                }
            });
            while !churn.is_finished() {
                let listed: Vec<String> = fs::read_dir(&directory)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .filter(|name| name.starts_with("stays"))
                    .collect();
                assert_eq!(listed.len(), stays.len());
                assert!(listed.into_iter().collect::<BTreeSet<_>>() == stays);
            }
        });
    });
}

#[test]
fn opening_and_listing_what_is_known_costs_nothing() {
    on_each_transport(|mounted, at| {
        fs::write(at.join("file"), "x").unwrap();
        let work = || {
            assert_eq!(fs::metadata(at.join("file")).unwrap().len(), 1);
            assert_eq!(File::open(at.join("file")).unwrap().read_at(&mut [0; 10], 0).unwrap(), 1);
            assert_eq!(fs::read_dir(at).unwrap().count(), 1);
        };
        for _ in 0..3 {
            work();
        }
        let before = mounted.mount.counters();
        work();
        let after = mounted.mount.counters();
        let asked = |name: &str| {
            let count = |counters: &ashlar_fuse::Counters| counters.operation(name).map_or(0, |of| of.count);
            count(&after) - count(&before)
        };
        for name in ["lookup", "open", "release", "opendir", "releasedir", "flush", "read"] {
            assert_eq!(asked(name), 0, "{name}");
        }
        assert!(mounted.served("open") <= 1 && mounted.served("opendir") <= 1);
    });
}

#[test]
fn who_lists_all_before_asking_of_each_is_told_with_the_listing() {
    on_each_transport(|mounted, at| {
        let memory = mounted.memory.clone();
        mounted.real.block_on(async move {
            let (kind, permissions) = (FileKind::File, 0o644);
            for n in 0..3000 {
                let node = NewNode { kind, permissions, uid: 0, gid: 0, device: 0, umask: 0, open: false };
                memory.create(ROOT, format!("file-{n}").as_bytes(), node).await.unwrap();
            }
        });
        let names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names.len(), 3000);
        let before = mounted.served("lookup");
        assert!(names.iter().all(|name| fs::symlink_metadata(name).unwrap().is_file()));
        assert_eq!(mounted.served("lookup") - before, 0);
    });
}
