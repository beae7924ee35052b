//! What the machine tells of itself.

use super::bench::Bench;
use crate::vector::{Family, Value};
use std::io;

/// Sizes and limits, as the kernel tells them.
pub fn machine(bench: &mut Bench) -> io::Result<()> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let number = |path: &str| read(path).trim().parse::<f64>().ok();
    let memory = read("/proc/meminfo");
    let kb = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim_end_matches("kB").trim().parse::<f64>().ok())
    };
    let space = rustix::fs::statvfs(bench.stand().path())?;
    let mut set = |family, value: Option<f64>| {
        if let Some(value) = value {
            bench.set(family, 0, Value::exact(value));
        }
    };
    let available = kb("MemAvailable:");
    set(Family::BC, available);
    set(Family::BS, Some(space.f_bsize as f64));
    set(Family::FS, Some(space.f_frsize as f64));
    let share = |path: &str| number(path).zip(available).map(|(percent, kb)| percent / 100.0 * kb);
    set(Family::DIRTYBG, share("/proc/sys/vm/dirty_background_ratio"));
    set(Family::DIRTYMAX, share("/proc/sys/vm/dirty_ratio"));
    let hundredths = |path: &str| number(path).map(|value| value / 100.0);
    set(Family::EXPIRE, hundredths("/proc/sys/vm/dirty_expire_centisecs"));
    set(Family::WAKE, hundredths("/proc/sys/vm/dirty_writeback_centisecs"));
    let slabs = read("/proc/slabinfo");
    let slab = |name: &str| {
        let line = slabs.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.and_then(|line| line.split_whitespace().nth(3)?.parse::<f64>().ok())
    };
    set(Family::DCB, slab("dentry"));
    let inodes = match bench.stand().file_system() {
        "ext4" => "ext4_inode_cache",
        "xfs" => "xfs_inode",
        "btrfs" => "btrfs_inode",
        _ => "fuse_inode",
    };
    let device = rustix::fs::stat(bench.stand().path())?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let ahead = number(&format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    // btrfs has a device of its own, which no file tells.
    let ahead = ahead.or_else(|| number("/sys/class/bdi/btrfs-1/read_ahead_kb")).unwrap_or(128.0);
    bench.set(Family::ICB, 0, Value::exact(slab(inodes).unwrap_or(1100.0)));
    bench.set(Family::RA, 0, Value::exact(ahead));
    Ok(())
}
