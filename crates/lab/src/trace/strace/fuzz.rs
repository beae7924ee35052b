//! Fuzz target: what strace may have written.

use super::*;
use crate::trace::host::Past;
use ashlar_fuzz::{bounded, config, hostile};
use proptest::prelude::*;

/// A line of every kind.
const VALID: &str = "\
1 1.0 open(\"/a\", O_RDWR|O_APPEND) = 3 <0.000001>
1 1.1 openat2(3</a>, \"f\", {flags=O_RDWR|O_CREAT, mode=0640, resolve=0}, 24) = 4 <0.1>
[pid 1] 1.2 clone3({flags=CLONE_VM|CLONE_FILES, exit_signal=0} => {parent_tid=[2]}, 88 <unfinished ...>
2 1.3 writev(3, [{iov_base=\"a,]\", iov_len=3}, {iov_base=\"\\x7d\\7\", iov_len=2}], 2) = 5 <0.0>
1 1.4 <... clone3 resumed>) = 2 <0.0>
1 1.5 pipe2([5, 6], O_CLOEXEC) = 0 <0.0>
1 1.5 dup2(3, 7) = 7
2 1.6 close_range(3, 4294967295, CLOSE_RANGE_UNSHARE) = 0 <0.0>
2 1.6 mmap(NULL, 8192, PROT_READ, MAP_SHARED, 4, 0x1000) = 0x7f0000000000 <0.0>
2 1.6 msync(0x7f0000001000, 4096, MS_SYNC) = 0 <0.0>
1 1.6 sendfile(4, 3, [10] => [20], 10) = 10 <0.0>
2 1.7 execve(\"/bin/b\", [\"b\"], 0x1 <unfinished ...>
1 1.8 +++ superseded by execve in pid 2 +++
1 1.9 <... execve resumed>) = 0 <0.0>
1 2.0 read(3, 0x7ffe, 4096) = ? ERESTARTSYS (To be restarted) <0.1>
1 2.1 --- SIGCHLD {si_signo=SIGCHLD} ---
1 2.2 +++ exited with 0 +++
";

fn take(text: &[u8]) -> u64 {
    let mut tracker = Tracker::new(Past { directory: "/w".into() }, None);
    let mut records = 0;
    let each = |tracker: &mut Tracker<Past>| {
        records += tracker.take().count() as u64;
        Ok(())
    };
    read(text, &mut tracker, each).expect("memory can be read");
    assert_eq!(tracker.counts().records, records);
    records
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn lines(text in hostile(Just(VALID.as_bytes().to_vec()))) {
        // Names of calls are read into a table once, by whoever is first.
        let _ = known("");
        bounded(1 << 20, || take(&text));
    }
}

#[test]
fn memory_is_bounded_whatever_a_file_claims() {
    let _ = known("");
    let long = format!("1 1.0 open(\"{}\", O_RDONLY) = 3 <0.0>\n", "a".repeat(3 << 20));
    assert_eq!(bounded(4 << 20, || take(long.as_bytes())), 0);
    // Every process has what the one before had, and one descriptor more.
    let mut forks = String::new();
    for n in 1..3000 {
        forks += &format!("{n} 1.0 open(\"/{n}\", O_RDONLY) = {n} <0.0>\n{n} 1.0 fork() = {} <0.0>\n", n + 1);
    }
    assert_eq!(bounded(600 << 20, || take(forks.as_bytes())), 2999);
}
