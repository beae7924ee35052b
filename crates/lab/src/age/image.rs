//! Images of file systems: made, mounted by way of a loop device, and put away, with the system's own programs.

use crate::mounts::{in_use, mounts};
use ashlar_units::Bytes;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

/// A file system of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Kind {
    /// As `mount -t` has it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }

    /// The program that makes it, with what makes it the same each time and lets nothing happen in the background.
    pub(crate) fn make(self, uuid: &str) -> (&'static str, Vec<String>) {
        let words = |text: String| text.split(' ').map(String::from).collect();
        match self {
            Kind::Ext4 => ("mkfs.ext4", words(format!("-q -F -U {uuid} -E hash_seed={uuid},nodiscard"))),
            Kind::Xfs => ("mkfs.xfs", words(format!("-q -f -K -m uuid={uuid}"))),
            Kind::Btrfs => ("mkfs.btrfs", words(format!("-q -f -K --uuid {uuid}"))),
        }
    }

    /// Options with which it does nothing in the background, and two of the same make can be mounted.
    pub(crate) fn mount_options(self) -> &'static str {
        match self {
            Kind::Ext4 => "noatime,noinit_itable",
            Kind::Xfs => "noatime,nouuid",
            Kind::Btrfs => "noatime",
        }
    }

    /// The file system in a file, by its magic numbers; `None` for others.
    pub fn found(path: &Path) -> io::Result<Option<Kind>> {
        let file = File::open(path)?;
        let has = |at: u64, magic: &[u8]| {
            let mut found = [0; 8];
            let found = &mut found[..magic.len().min(8)];
            file.read_exact_at(found, at).is_ok() && found == magic
        };
        // `s_magic` of the superblock at 1 KiB, `sb_magicnum`, and `magic` of the superblock at 64 KiB.
        let all = [
            (Kind::Ext4, has(1024 + 56, &[0x53, 0xef])),
            (Kind::Xfs, has(0, b"XFSB")),
            (Kind::Btrfs, has((64 << 10) + 64, b"_BHRfS_M")),
        ];
        Ok(all.into_iter().find(|(_, is)| *is).map(|(kind, _)| kind))
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Kind, String> {
        [Kind::Ext4, Kind::Xfs, Kind::Btrfs]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or(format!("{text:?} is no file system that can be aged as an image; there are ext4, xfs and btrfs"))
    }
}

/// Runs a program to its end, and returns what it printed. It is in a process group of its own, so that Ctrl-C does not stop
/// what cleans up.
pub(crate) fn run(program: &str, arguments: &mut Command) -> io::Result<String> {
    let output = arguments.stdin(Stdio::null()).process_group(0).output();
    let output =
        output.map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}; is it installed?")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // mkfs.xfs says what is wrong, and then all that it can do.
    let said = said.split("\nUsage:").next().unwrap_or_default();
    // Ours begin with their name themselves.
    let said = said.trim().trim_start_matches(&format!("{program}: "));
    Err(io::Error::other(format!("{program}: {said}")))
}

/// An image that is being aged. Dropping it leaves it mounted: [`Image::put_away`] does not.
#[derive(Debug)]
pub struct Image {
    kind: Kind,
    path: PathBuf,
    point: PathBuf,
}

impl Image {
    /// The image `path`, mounted at `point` or to be mounted there.
    pub fn new(kind: Kind, path: &Path, point: &Path) -> Image {
        Image { kind, path: path.into(), point: point.into() }
    }

    /// Where it is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Makes the image: a sparse file with a file system, which is the same for one seed. What is there already is
    /// overwritten if `force` says so, but never what is in use, nor what is no regular file.
    pub fn make(&self, size: Bytes, seed: u64, options: Option<&str>, force: bool) -> io::Result<()> {
        let refuse = |what: String| Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        if let Ok(found) = std::fs::symlink_metadata(&self.path) {
            if !found.is_file() {
                return refuse("it is no regular file; only images in files are aged".into());
            }
            if let Some(user) = in_use(&self.path)? {
                return refuse(format!("{user}; unmount it first"));
            }
            if !force {
                return refuse("it is there already; --force overwrites it".into());
            }
            std::fs::remove_file(&self.path)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).open(&self.path)?;
        file.set_len(size.0)?;
        let uuid = format!("a51a0000-0000-4000-8000-{:012x}", seed & 0xffff_ffff_ffff);
        let (program, arguments) = self.kind.make(&uuid);
        let mut command = Command::new(program);
        command.args(arguments);
        command.args(options.unwrap_or_default().split_whitespace());
        let made = run(program, command.arg(&self.path)).map(drop);
        if made.is_err() {
            let _ = std::fs::remove_file(&self.path);
        }
        made
    }

    /// Whether it is mounted at its point.
    pub fn is_mounted(&self) -> io::Result<bool> {
        let point = std::fs::canonicalize(&self.point)?;
        Ok(mounts()?.iter().any(|mount| mount.point == point))
    }

    /// Mounts it, unless a run that was killed left it mounted.
    pub fn mount(&self, options: Option<&str>) -> io::Result<()> {
        std::fs::create_dir_all(&self.point)?;
        if self.is_mounted()? {
            return Ok(());
        }
        if let Some(user) = in_use(&self.path)? {
            return Err(io::Error::other(format!("{user}, and not by this run; put that away first")));
        }
        let mut all = format!("loop,{}", self.kind.mount_options());
        options.iter().for_each(|options| all = format!("{all},{options}"));
        let mut mount = Command::new("mount");
        run("mount", mount.args(["-t", self.kind.name(), "-o", &all]).arg(&self.path).arg(&self.point)).map(drop)
    }

    /// Unmounts it. What is free becomes a hole of the image, where that works.
    pub fn put_away(&self) -> io::Result<()> {
        let _ = run("fstrim", Command::new("fstrim").arg(&self.point));
        run("umount", Command::new("umount").arg(&self.point))?;
        std::fs::remove_dir(&self.point)
    }
}
