//! Who owns what, also where a mount maps users.

use super::*;
use std::os::unix::process::CommandExt;

/// Users of a mapped mount are those of the file system and so many.
const SHIFT: u32 = 100_000;

/// Runs a command as another user, in no other group; whether it succeeded.
fn as_user(user: u32, command: &[&str], at: &Path) -> bool {
    let mut run = Command::new(command[0]);
    run.args(&command[1..]).arg(at).uid(user).gid(user).stderr(Stdio::null());
    run.status().expect("it runs").success()
}

/// A process in a user namespace whose first 65,536 users are those from [`SHIFT`] on.
struct Namespace(Child);

impl Namespace {
    fn new() -> Namespace {
        let child = Command::new("unshare").args(["--user", "sleep", "100"]).spawn().expect("it runs");
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).expect("there are namespaces");
        let namespace = Namespace(child);
        until("no user namespace", || of(&namespace.0.id().to_string()) != of("self"));
        for file in ["uid_map", "gid_map"] {
            let path = format!("/proc/{}/{file}", namespace.0.id());
            fs::write(path, format!("0 {SHIFT} 65536\n")).expect("root may");
        }
        namespace
    }
    fn open(&self) -> File {
        File::open(format!("/proc/{}/ns/user", self.0.id())).expect("it is there")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of a mount, with users mapped. Unmounted at the end.
struct Mapped(Place);

impl Mapped {
    fn new(of: &Path) -> io::Result<Mapped> {
        #[repr(C)]
        struct MountAttr {
            attr_set: u64,
            attr_clr: u64,
            propagation: u64,
            userns_fd: u64,
        }
        const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
        let (namespace, place) = (Namespace::new().open(), Place::new());
        let clone = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
        let (of, to, here) = (text(of), text(&place.0), libc::AT_FDCWD);
        // SAFETY: the pointer is to a string that ends.
        let tree = check(unsafe { libc::syscall(libc::SYS_open_tree, here, of.as_ptr(), clone) })?;
        // SAFETY: the call gave a descriptor that nobody else has.
        let tree = unsafe { File::from_raw_fd(tree as i32) };
        let attr = MountAttr {
            attr_set: MOUNT_ATTR_IDMAP,
            attr_clr: 0,
            propagation: 0,
            userns_fd: namespace.as_raw_fd() as u64,
        };
        let (fd, none, size) = (tree.as_raw_fd(), c"".as_ptr(), size_of::<MountAttr>());
        // SAFETY: the pointers are to a string that ends, and to a structure of the given size.
        check(unsafe { libc::syscall(libc::SYS_mount_setattr, fd, none, libc::AT_EMPTY_PATH, &raw const attr, size) })?;
        let from_fd = libc::MOVE_MOUNT_F_EMPTY_PATH;
        // SAFETY: the pointers are to strings that end.
        check(unsafe { libc::syscall(libc::SYS_move_mount, fd, none, here, to.as_ptr(), from_fd) })?;
        Ok(Mapped(place))
    }
    fn at(&self) -> &Path {
        &self.0.0
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let at = text(&self.0.0);
        // SAFETY: the pointer is to a string that ends.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Linux maps users of FUSE since 6.12.
fn kernel_maps() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn a_mount_may_map_users() {
    if !kernel_maps() {
        eprintln!("SKIPPED: this kernel does not map users of FUSE");
        return;
    }
    on_each_transport(|_, at| {
        let owner = |path: &Path| fs::symlink_metadata(path).map(|data| (data.uid(), data.gid())).expect("it is there");
        let own = at.join("own");
        fs::write(&own, "x").unwrap();
        let shared = at.join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        let mapped = Mapped::new(at).expect("this kernel does");
        let there = |path: &Path| mapped.at().join(path.strip_prefix(at).expect("it is below"));
        assert_eq!((owner(&own), owner(&there(&own))), ((0, 0), (SHIFT, SHIFT)));
        // What its users make is theirs, here and there.
        for (name, command) in [("file", "touch"), ("directory", "mkdir"), ("fifo", "mkfifo")] {
            let made = shared.join(name);
            assert!(as_user(SHIFT + 7, &[command], &there(&made)), "{command}");
            assert_eq!((owner(&made), owner(&there(&made))), ((7, 7), (SHIFT + 7, SHIFT + 7)));
        }
        let link = shared.join("link");
        assert!(as_user(SHIFT + 7, &["ln", "-s", "target"], &there(&link)));
        assert_eq!(owner(&link), (7, 7));
        // Also files without names.
        let nameless = || {
            // SAFETY: the calls have no memory arguments, and the kernel changes this thread alone.
            let _ = unsafe { [libc::SYS_setfsgid, libc::SYS_setfsuid].map(|call| libc::syscall(call, SHIFT + 7)) };
            let file = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(there(&shared));
            file.and_then(|file| file.metadata()).map(|data| (data.uid(), data.gid()))
        };
        let owned = std::thread::scope(|scope| scope.spawn(nameless).join().expect("no panic"));
        assert_eq!(owned.expect("made"), (SHIFT + 7, SHIFT + 7));
        // Nobody else is known there, also not root of the host.
        assert_eq!(errno(fs::write(there(&shared.join("root")), "x")), libc::EOVERFLOW);
        assert!(!as_user(7, &["touch"], &there(&shared.join("other"))));
        // Rights are those of who is meant.
        fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(as_user(SHIFT, &["cat"], &there(&own)) && !as_user(SHIFT + 7, &["cat"], &there(&own)));
        std::os::unix::fs::chown(there(&own), Some(SHIFT + 9), None).unwrap();
        assert_eq!(owner(&own), (9, 0));
    });
}

#[test]
fn set_id_bits_go_when_others_change_a_file() {
    on_each_transport(|_, at| {
        let file = at.join("file");
        fs::write(&file, [7; 9000]).unwrap();
        let mode = || fs::metadata(&file).unwrap().mode() & 0o7777;
        let set = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let punch = ["fallocate", "--punch-hole", "--offset", "0", "--length", "4096"];
        let append = ["dd", "if=/dev/zero", "bs=1", "count=1", "conv=notrunc"];
        set(0o6777);
        // Who may keep them does.
        let open = File::options().write(true).open(&file).unwrap();
        fallocate(&open, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, PAGE).unwrap();
        assert_eq!(mode(), 0o6777);
        assert!(as_user(7, &punch, &file));
        assert_eq!(mode(), 0o777);
        // Everybody is root in a user namespace of his own, where that is allowed, and of this file no owner.
        let root = ["unshare", "--user", "--map-root-user"];
        if as_user(7, &[&root[..], &["ls"]].concat(), Path::new("/")) {
            set(0o6777);
            assert!(as_user(7, &[&root[..], &punch].concat(), &file));
            assert_eq!(mode(), 0o777);
        }
        set(0o6777);
        let into = PathBuf::from(format!("of={}", file.display()));
        assert!(as_user(7, &append, &into));
        assert_eq!(mode(), 0o777);
    });
}
