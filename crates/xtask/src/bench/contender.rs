//! Who takes part, and how each is made, mounted and unmounted. All live on the same loop device; file systems that need
//! another one below stand on ext4 there.

use crate::bench::daemon::peak_memory;
use crate::bench::scratch::{Scratch, is_mounted};
use crate::bench::server::Server;
use crate::bench::steps::Remover;
use crate::bench::{find_program, quiet};
use ashlar_vfs::Engine;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The pool's name inside zfs-fuse; the process number is added.
const ZFS_POOL: &str = "ashlarbench";

/// What a contender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What all this is about: an engine of ours.
    Ashlar(Engine, Below),
    /// In the kernel.
    Kernel,
    /// libfuse's example that hands every request to a directory below.
    PassthroughHp(Data),
    /// Layers of directories.
    FuseOverlayfs,
    /// Encrypts each file.
    Gocryptfs,
    /// ZFS as a process.
    ZfsFuse,
}

/// What a pool of ours lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// The loop device, as everybody.
    Loop,
    /// The file below it, which spares the loop device.
    File,
}

/// Who reads and writes what is in the files of `passthrough_hp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The kernel, in the file below (`FUSE_PASSTHROUGH`, Linux 6.9; root alone is granted that): such requests never
    /// come to the server.
    Kernel,
    /// The server.
    Server,
}

const KNOWN: [(&str, Kind, &str); 11] = [
    ("ashlar", Kind::Ashlar(Engine::Files, Below::Loop), ""),
    ("ashlar-on-file", Kind::Ashlar(Engine::Files, Below::File), ""),
    ("ashlar-betr", Kind::Ashlar(Engine::Betr, Below::Loop), ""),
    ("ext4", Kind::Kernel, "mkfs.ext4"),
    ("xfs", Kind::Kernel, "mkfs.xfs"),
    ("btrfs", Kind::Kernel, "mkfs.btrfs"),
    ("passthrough_hp", Kind::PassthroughHp(Data::Kernel), "passthrough_hp"),
    ("passthrough_hp-served", Kind::PassthroughHp(Data::Server), "passthrough_hp"),
    ("fuse-overlayfs", Kind::FuseOverlayfs, "fuse-overlayfs"),
    ("gocryptfs", Kind::Gocryptfs, "gocryptfs"),
    ("zfs-fuse", Kind::ZfsFuse, "zfs-fuse"),
];

/// One who takes part.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in tables.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its server, or what formats it.
    program: PathBuf,
}

/// The name of one who cannot take part, and why.
pub type Missing = (&'static str, String);

/// Finds those who can take part; for the others, why not.
pub fn find(
    wanted: &[String],
    ashlar: &Path,
    passthrough_hp: Option<&Path>,
) -> Result<(Vec<Contender>, Vec<Missing>), String> {
    if let Some(unknown) = wanted.iter().find(|name| KNOWN.iter().all(|(known, ..)| known != name)) {
        let known: Vec<&str> = KNOWN.iter().map(|(name, ..)| *name).collect();
        return Err(format!("there is no contender {unknown:?}; there are {}", known.join(", ")));
    }
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, kind, program) in KNOWN.into_iter().filter(|(name, ..)| wanted.iter().any(|wanted| wanted == name)) {
        let place = match (kind, passthrough_hp) {
            (Kind::Ashlar(..), _) => Some(ashlar.to_path_buf()),
            (Kind::PassthroughHp(_), Some(given)) => {
                Some(fs::canonicalize(given).map_err(|error| format!("{}: {error}", given.display()))?)
            }
            _ => find_program(program),
        };
        match (place, kind) {
            (Some(program), _) => found.push(Contender { name, kind, program }),
            (None, Kind::PassthroughHp(_)) => {
                missing.push((name, "build libfuse's examples and give --passthrough-hp PATH".into()));
            }
            (None, Kind::Kernel) => missing.push((name, format!("{program} is not installed"))),
            (None, _) => missing.push((name, format!("not installed: apt install {name}"))),
        }
    }
    Ok((found, missing))
}

impl Contender {
    /// Whether it lives in the kernel.
    pub fn in_kernel(&self) -> bool {
        self.kind == Kind::Kernel
    }

    /// Whether it lives in user space and is not ours.
    pub fn in_user_space(&self) -> bool {
        !matches!(self.kind, Kind::Kernel | Kind::Ashlar(..))
    }

    /// What removes a tree there.
    pub fn remover(&self, scratch: &Scratch) -> Remover {
        let Kind::Ashlar(..) = self.kind else { return Remover { gone: "rm -rf".into(), room: "rm -rf".into() } };
        let room = format!("'{}' --pool '{}' remove", self.program.display(), scratch.path("pool").display());
        Remover { gone: format!("{room} --no-wait"), room }
    }

    /// Takes a copy of our own program, so that a build during the run does not change who takes part.
    pub fn keep(&mut self, scratch: &Scratch) -> Result<(), String> {
        if matches!(self.kind, Kind::Ashlar(..)) {
            let copy = scratch.path(self.name);
            fs::copy(&self.program, &copy).map_err(|error| format!("{}: {error}", self.program.display()))?;
            self.program = copy;
        }
        Ok(())
    }

    /// Makes it anew, empty. What the disk held is lost.
    pub fn make(&self, scratch: &Scratch) -> Result<(), String> {
        let device = &scratch.device;
        match self.kind {
            Kind::Ashlar(_, below) => {
                let device = if below == Below::Loop { device } else { &scratch.disk };
                let pool = scratch.path("pool");
                let _ = fs::remove_dir_all(&pool);
                let mut create = Command::new(&self.program);
                create.args(["pool", "create", "--force", "--device"]).arg(device).arg(pool);
                quiet(create.args(scratch.medium.iter().flat_map(|medium| ["--medium", medium])))
            }
            Kind::Kernel => make_kernel(&self.program, self.name, device),
            Kind::PassthroughHp(_) | Kind::FuseOverlayfs | Kind::Gocryptfs => {
                let mkfs = find_program("mkfs.ext4").ok_or("mkfs.ext4 is not installed")?;
                make_kernel(&mkfs, "ext4", device)?;
                let below = Mounted::kernel("ext4", device, scratch.path("back"))?;
                for name in ["data", "lower", "work"] {
                    let path = scratch.path("back").join(name);
                    fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                }
                if self.kind == Kind::Gocryptfs {
                    let password = scratch.path("password");
                    fs::write(&password, "benchmark").map_err(|error| error.to_string())?;
                    let mut init = Command::new(&self.program);
                    init.args(["-init", "-q", "-scryptn", "10", "-passfile"]).arg(password);
                    quiet(init.arg(scratch.path("back").join("data")))?;
                }
                below.unmount()
            }
            Kind::ZfsFuse => {
                let server = self.start_zfs(scratch)?;
                let mut create = Command::new("zpool");
                create
                    .args(["create", "-f", "-m"])
                    .arg(scratch.mount_point())
                    .arg(zfs_pool())
                    .arg(self.zfs_device(scratch)?);
                quiet(&mut create)?;
                server.unmount()
            }
        }
    }

    /// Mounts it.
    pub fn mount(&self, scratch: &Scratch) -> Result<Mounted, String> {
        let (device, at, back) = (&scratch.device, scratch.mount_point(), scratch.path("back"));
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Kernel => return Mounted::kernel(self.name, device, at),
            Kind::ZfsFuse => {
                let server = self.start_zfs(scratch)?;
                let mut import = Command::new("zpool");
                quiet(import.arg("import").arg("-d").arg(scratch.path("zfs-devices")).arg("-f").arg(zfs_pool()))?;
                return Ok(server);
            }
            Kind::Ashlar(engine, _) => {
                command.args(["up", "--engine", engine.name(), "--pool"]).arg(scratch.path("pool"));
                command.arg("--mount").arg(&at);
            }
            Kind::PassthroughHp(data) => {
                command
                    .args((data == Data::Server).then_some("--nopassthrough"))
                    .arg("--foreground")
                    .arg(back.join("data"))
                    .arg(&at);
            }
            Kind::FuseOverlayfs => {
                let directory = |name: &str| back.join(name).display().to_string();
                let (lower, upper, work) = (directory("lower"), directory("data"), directory("work"));
                command.args(["-f", "-o", &format!("lowerdir={lower},upperdir={upper},workdir={work}")]).arg(&at);
            }
            Kind::Gocryptfs => {
                command.args(["-fg", "-q", "-nosyslog", "-passfile"]).arg(scratch.path("password"));
                command.arg(back.join("data")).arg(&at);
            }
        }
        let below = match self.kind {
            Kind::Ashlar(..) => None,
            _ => Some(Box::new(Mounted::kernel("ext4", device, back)?)),
        };
        let server = start(&mut command, scratch)?;
        let mut mounted = Mounted { at: at.clone(), server: Some(server), zfs: false, below };
        mounted.wait_until(|| is_mounted(&at))?;
        Ok(mounted)
    }

    fn start_zfs(&self, scratch: &Scratch) -> Result<Mounted, String> {
        let mut command = Command::new(&self.program);
        command.args(["-n", "--no-kstat-mount", "-m", "1024"]);
        let server = start(&mut command, scratch)?;
        let mut mounted = Mounted { at: scratch.mount_point(), server: Some(server), zfs: true, below: None };
        mounted.wait_until(|| quiet(Command::new("zpool").arg("list")).is_ok())?;
        Ok(mounted)
    }

    /// `zpool import` looks for devices in a directory: one with ours alone, so that it finds no other pool.
    fn zfs_device(&self, scratch: &Scratch) -> Result<PathBuf, String> {
        let directory = scratch.path("zfs-devices");
        let link = directory.join("disk");
        let _ = fs::remove_file(&link);
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        std::os::unix::fs::symlink(&scratch.device, &link).map_err(|error| error.to_string())?;
        Ok(link)
    }
}

fn zfs_pool() -> String {
    format!("{ZFS_POOL}{}", std::process::id())
}

fn make_kernel(mkfs: &Path, name: &str, device: &Path) -> Result<(), String> {
    // Nobody discards: see Scratch::device.
    let options: &[&str] = match name {
        "ext4" => &["-q", "-F", "-E", "nodiscard"],
        _ => &["-q", "-f", "-K"],
    };
    quiet(Command::new(mkfs).args(options).arg(device))
}

/// Starts a server of this contender.
fn start(command: &mut Command, scratch: &Scratch) -> Result<Server, String> {
    Server::start(command, scratch.path("server.log"))
}

/// What a server took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Most memory that it ever had, in MiB.
    pub rss_mib: f64,
    /// Files that it has open.
    pub open_files: f64,
}

/// A mounted contender. Dropping it unmounts by force.
pub struct Mounted {
    at: PathBuf,
    server: Option<Server>,
    zfs: bool,
    below: Option<Box<Mounted>>,
}

impl Mounted {
    fn kernel(name: &str, device: &Path, at: PathBuf) -> Result<Mounted, String> {
        // Nobody discards: see Scratch::device.
        quiet(Command::new("mount").args(["-o", "nodiscard", "-t", name]).arg(device).arg(&at))?;
        Ok(Mounted { at, server: None, zfs: false, below: None })
    }

    fn wait_until(&mut self, serves: impl FnMut() -> bool) -> Result<(), String> {
        self.server.as_mut().map_or(Ok(()), |server| server.wait_until(serves))
    }

    /// What the server takes; `None` for the kernel.
    pub fn usage(&self) -> Option<Usage> {
        let id = self.server.as_ref()?.id();
        let peak = peak_memory(u64::from(id)).unwrap_or(f64::NAN);
        let process = Path::new("/proc").join(id.to_string());
        let open_files = fs::read_dir(process.join("fd")).map_or(0, Iterator::count) as f64;
        Some(Usage { rss_mib: peak / f64::from(1 << 20), open_files })
    }

    /// Unmounts, and waits until the server has written everything and ended.
    pub fn unmount(mut self) -> Result<(), String> {
        self.end()?;
        match self.below.take() {
            Some(below) => below.unmount(),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), String> {
        let zfs = std::mem::take(&mut self.zfs);
        if zfs {
            quiet(Command::new("zpool").arg("export").arg(zfs_pool()))?;
        } else if is_mounted(&self.at) {
            unmount(&self.at)?;
        }
        let Some(server) = self.server.take() else { return Ok(()) };
        if zfs {
            // It serves until it is told to end, also without a pool.
            let _ = server.signal("TERM");
        }
        server.wait_for_end()
    }
}

/// Just after its last user has gone, a mount may be busy for a moment.
fn unmount(at: &Path) -> Result<(), String> {
    let began = Instant::now();
    loop {
        match quiet(Command::new("umount").arg(at)) {
            Err(_) if began.elapsed() < Duration::from_secs(5) => std::thread::sleep(Duration::from_millis(50)),
            outcome => return outcome,
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A server that has not mounted yet would not end by itself.
        if (self.zfs || is_mounted(&self.at))
            && let Err(error) = self.end()
        {
            eprintln!("xtask: {}: {error}; unmounting by force", self.at.display());
        }
        drop(self.server.take());
        if is_mounted(&self.at) {
            let _ = quiet(Command::new("umount").arg("--lazy").arg(&self.at));
        }
    }
}
