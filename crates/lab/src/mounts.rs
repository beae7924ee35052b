//! What is mounted where, as `/proc/self/mountinfo` has it, and how a file system divides its device.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub point: PathBuf,
    /// As in `ext4`.
    pub file_system: String,
    /// What, as in `/dev/loop0`.
    pub source: PathBuf,
    /// Number of its device, major and minor, by which the kernel knows it; that of `stat` is another on btrfs.
    pub device: (u32, u32),
}

/// All mounts, those that cover others last.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(std::fs::read("/proc/self/mountinfo")?.split(|byte| *byte == b'\n').filter_map(mount).collect())
}

/// The mount that holds a path.
pub fn mount_of(path: &Path) -> io::Result<Mount> {
    let path = std::fs::canonicalize(path)?;
    let mut all = mounts()?;
    all.retain(|mount| path.starts_with(&mount.point));
    // Of mounts at one point, the last covers the others.
    all.sort_by_key(|mount| mount.point.as_os_str().len());
    all.pop().ok_or_else(|| io::Error::other("nothing is mounted there"))
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let (major, minor) = std::str::from_utf8(words.nth(2)?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let point = path(words.nth(1)?);
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let file_system = String::from_utf8_lossy(words.next()?).into_owned();
    Some(Mount { point, file_system, source: path(words.next()?), device })
}

/// A path in which blanks and the like stand as `\040`.
fn path(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) => {
                bytes.push(digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0')) as u8);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// How a file system divides its device into groups of inodes and blocks that belong together: cylinder groups, block groups,
/// allocation groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Groups {
    /// As ext2, ext3 and ext4 do. Groups that share their tables of inodes (`flex_bg`) are one.
    Ext4 {
        /// Inodes of a group; the first inode is number 1.
        inodes: u32,
        /// Bytes of a group.
        bytes: u64,
        /// Where the first group begins.
        first_byte: u64,
    },
    /// As xfs does.
    Xfs {
        /// Bits of an inode number that count within a group.
        inode_bits: u32,
        /// Bytes of a group.
        bytes: u64,
    },
}

impl Groups {
    /// Reads the superblock of a mounted file system; `None` if it has no groups, or they cannot be known.
    pub fn of(mount: &Mount) -> Option<Groups> {
        let mut block = vec![0; 2048];
        File::open(&mount.source).ok()?.read_exact_at(&mut block, 0).ok()?;
        Groups::read(&mount.file_system, &block)
    }

    fn read(file_system: &str, block: &[u8]) -> Option<Groups> {
        let number = |at: usize| Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?));
        let big = |at: usize| Some(u32::from_be_bytes(block.get(at..at + 4)?.try_into().ok()?));
        match file_system {
            "ext2" | "ext3" | "ext4" if block.get(1080..1082)? == [0x53, 0xef] => {
                let block_bytes = 1024u64.checked_shl(number(1024 + 24)?.min(6))?;
                // s_feature_incompat and s_log_groups_per_flex: groups whose inodes lie together, and whose data do.
                let flexible = number(1024 + 0x60)? & 0x200 != 0;
                let flex = if flexible { 1u32.checked_shl((*block.get(1024 + 0x174)?).into())? } else { 1 };
                let bytes = u64::from(number(1024 + 32)?).checked_mul(block_bytes)?.checked_mul(flex.into())?;
                let inodes = number(1024 + 40)?.checked_mul(flex)?;
                let first_byte = u64::from(number(1024 + 20)?) * block_bytes;
                (bytes > 0 && inodes > 0).then_some(Groups::Ext4 { inodes, bytes, first_byte })
            }
            "xfs" if block.get(..4)? == b"XFSB" => {
                let bytes = u64::from(big(84)?) * u64::from(big(4)?);
                // sb_inopblog and sb_agblklog.
                let inode_bits = u32::from(*block.get(123)?) + u32::from(*block.get(124)?);
                (bytes > 0 && inode_bits < 64).then_some(Groups::Xfs { inode_bits, bytes })
            }
            _ => None,
        }
    }

    /// The group of an inode.
    pub fn of_inode(&self, inode: u64) -> u64 {
        match self {
            Groups::Ext4 { inodes, .. } => inode.saturating_sub(1) / u64::from(*inodes),
            Groups::Xfs { inode_bits, .. } => inode >> inode_bits,
        }
    }

    /// The group of a byte of the device.
    pub fn of_byte(&self, at: u64) -> u64 {
        match self {
            Groups::Ext4 { bytes, first_byte, .. } => at.saturating_sub(*first_byte) / bytes,
            Groups::Xfs { bytes, .. } => at / bytes,
        }
    }
}

/// Whether a path is as given in some other place: a device or image that is mounted or behind a loop device. The text says
/// by whom.
pub fn in_use(path: &Path) -> io::Result<Option<String>> {
    let real = std::fs::canonicalize(path)?;
    if let Some(mount) = mounts()?.into_iter().find(|mount| mount.source == real) {
        return Ok(Some(format!("it is mounted at {}", mount.point.display())));
    }
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Ok(None) };
    for device in devices.flatten() {
        let Ok(mut backing) = std::fs::read(device.path().join("loop/backing_file")) else { continue };
        backing.pop_if(|byte| *byte == b'\n');
        if backing == real.as_os_str().as_bytes() {
            return Ok(Some(format!("/dev/{} is made of it", device.file_name().to_string_lossy())));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read() {
        let line = br"36 35 98:0 /a /mnt\040x rw,noatime shared:1 master:2 - ext4 /dev/root\134 rw,errors=continue";
        let (point, source) = ("/mnt x".into(), r"/dev/root\".into());
        let expected = Mount { point, file_system: "ext4".into(), source, device: (98, 0) };
        assert_eq!(mount(line), Some(expected));
        assert_eq!(mount(b"36 35 98:0 /a /mnt"), None);
        assert_eq!(mount(b""), None);
        assert!(mounts().expect("proc is there").iter().any(|mount| mount.point == Path::new("/")));
    }

    #[test]
    fn groups_of_inodes_and_bytes() {
        let ext4 = Groups::Ext4 { inodes: 100, bytes: 1 << 20, first_byte: 1024 };
        assert_eq!([1, 100, 101].map(|inode| ext4.of_inode(inode)), [0, 0, 1]);
        assert_eq!([0, 1 << 20, (1 << 20) + 1024].map(|at| ext4.of_byte(at)), [0, 0, 1]);
        let xfs = Groups::Xfs { inode_bits: 20, bytes: 1 << 30 };
        assert_eq!((xfs.of_inode(3 << 20 | 77), xfs.of_byte(5 << 30)), (3, 5));
        let mut block = vec![0; 2048];
        block[1080..1082].copy_from_slice(&[0x53, 0xef]);
        for (at, value) in [(24, 2u32), (32, 32768), (40, 8192), (0x60, 0x200), (0x174, 4)] {
            block[1024 + at..1028 + at].copy_from_slice(&value.to_le_bytes());
        }
        let flexible = Groups::Ext4 { inodes: 16 * 8192, bytes: 16 * (128 << 20), first_byte: 0 };
        assert_eq!(Groups::read("ext4", &block), Some(flexible));
        assert_eq!(Groups::read("ext4", &[0xff; 2048]), None);
        assert_eq!(Groups::read("ext4", &[0; 2048]), None);
        assert_eq!(Groups::read("xfs", b"XFSB"), None);
    }
}
