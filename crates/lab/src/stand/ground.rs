//! What the directory for work is on, and how that is mounted.

use super::home::{Home, again, unmount};
use super::{OWN, Place, StandOptions};
use crate::age::image::{Image, Kind, run};
use crate::mounts::in_use;
use ashlar_units::Bytes;
use ashlar_vfs::Engine;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ticks of `/proc` in a second, the same on all architectures of today.
const USER_HZ: u64 = 100;
/// Memory of a pool's server.
const POOL_MEMORY: Bytes = Bytes::mib(512);

/// See the module.
#[derive(Debug)]
pub struct Ground {
    kind: GroundKind,
    root: PathBuf,
    mounted: bool,
    begun: bool,
}

#[derive(Debug)]
enum GroundKind {
    Directory,
    Image(ImageGround),
    Pool(PoolGround),
}

fn failed(path: &Path, text: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {text}", path.display()))
}

impl Ground {
    /// Makes what is needed; nothing is mounted.
    pub fn prepare(options: &StandOptions, home: Option<Home>) -> io::Result<Ground> {
        let ground = |kind, root| Ground { kind, root, mounted: false, begun: false };
        let Some(home) = home else {
            let Place::Path(path) = &options.place else { return Err(io::Error::other("a stand without a home")) };
            let only_images = [("a device", &options.device), ("options of mount", &options.mount_options)];
            if let Some((what, _)) = only_images.iter().find(|(_, option)| option.is_some()) {
                return Err(failed(path, format!("it is a directory; {what} needs an image or ext4:SIZE")));
            }
            return Ok(ground(GroundKind::Directory, std::fs::canonicalize(path)?));
        };
        let root = home.join("mnt");
        let made = match &options.place {
            Place::Ashlar(engine, size) => PoolGround::new(home, *engine, *size, options).map(GroundKind::Pool),
            _ => ImageGround::new(home, options).map(GroundKind::Image),
        };
        Ok(ground(made?, root))
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// It can be mounted anew.
    pub fn is_own(&self) -> bool {
        !matches!(self.kind, GroundKind::Directory)
    }

    /// Mounts it.
    pub fn mount(&mut self) -> io::Result<()> {
        // First, so that what was mounted by half is unmounted.
        self.mounted = true;
        match &mut self.kind {
            GroundKind::Directory => Ok(()),
            GroundKind::Image(image) => image.mount(&self.root),
            GroundKind::Pool(pool) => pool.up(&self.root),
        }
    }

    /// Unmounts it, if it is mounted.
    pub fn unmount(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        match &mut self.kind {
            GroundKind::Directory => Ok(()),
            GroundKind::Image(image) => image.unmount(&self.root),
            GroundKind::Pool(pool) => pool.down(),
        }
    }

    /// Makes the directory for work.
    pub fn begin(&mut self) -> io::Result<()> {
        let own = self.root.join(OWN);
        // An image is ours alone while it is mounted: what is there was left by a run that was killed.
        if matches!(self.kind, GroundKind::Image(_)) && own.exists() {
            std::fs::remove_dir_all(&own)?;
        }
        std::fs::create_dir(&own).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => failed(&own, "it is there already; if no other run uses it, remove it"),
            _ => failed(&own, error),
        })?;
        self.begun = true;
        std::fs::create_dir(own.join("work"))
    }

    /// Removes it with all that was made.
    pub fn end(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.begun) {
            return Ok(());
        }
        match &self.kind {
            // What goes as a whole need not be emptied.
            GroundKind::Image(image) if image.copied => Ok(()),
            GroundKind::Pool(_) => Ok(()),
            _ => std::fs::remove_dir_all(self.root.join(OWN)),
        }
    }

    /// What is below the file system becomes as it was; it is not mounted.
    pub fn renew(&mut self) -> io::Result<()> {
        match &mut self.kind {
            GroundKind::Directory => Ok(()),
            GroundKind::Image(image) => image.make(),
            GroundKind::Pool(pool) => pool.make(),
        }
    }

    /// Copies the image, which is not mounted, to a file.
    pub fn keep(&self, to: &Path) -> io::Result<()> {
        match &self.kind {
            GroundKind::Image(image) => image.keep(to),
            _ => Err(failed(to, "only images can be kept")),
        }
    }

    /// Processor time of servers.
    pub fn server_cpu(&self) -> Duration {
        let (ended, process) = match &self.kind {
            GroundKind::Directory => return Duration::ZERO,
            GroundKind::Image(image) => (image.cpu, image.server.as_ref().map(Child::id)),
            GroundKind::Pool(pool) => (pool.cpu, pool.process),
        };
        ended + process.map_or(Duration::ZERO, cpu_of)
    }

    /// Removes what was made; nothing is mounted.
    pub fn put_away(&mut self) -> io::Result<()> {
        let home = match &self.kind {
            GroundKind::Directory => return Ok(()),
            GroundKind::Image(image) => &image.home,
            GroundKind::Pool(pool) => &pool.home,
        };
        home.remove()
    }
}

/// Processor time of a process, threads that ended included; zero if there is none.
fn cpu_of(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything; user and system time are the 14th and 15th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / USER_HZ)
}

#[derive(Debug)]
struct ImageGround {
    home: Home,
    options: StandOptions,
    kind: Kind,
    /// The image that is mounted.
    image: PathBuf,
    /// It is ours, and goes with us.
    copied: bool,
    server: Option<Child>,
    /// Processor time of servers that ended.
    cpu: Duration,
}

impl ImageGround {
    fn new(home: Home, options: &StandOptions) -> io::Result<ImageGround> {
        let (kind, own) = match &options.place {
            Place::Path(path) => {
                if !std::fs::metadata(path).map_err(|error| failed(path, error))?.is_file() {
                    return Err(failed(path, "it is no regular file; name an image, a directory, or ext4:SIZE"));
                }
                if let Some(user) = in_use(path)? {
                    return Err(failed(path, format!("{user}; put that away first")));
                }
                let kind = Kind::found(path)?;
                (kind.ok_or_else(|| failed(path, "it holds neither ext4, nor xfs, nor btrfs"))?, options.in_place)
            }
            Place::Fresh(kind, _) => (*kind, false),
            Place::Ashlar(..) => return Err(io::Error::other("a pool is no image")),
        };
        let image = match &options.place {
            Place::Path(path) if own => std::fs::canonicalize(path)?,
            _ => home.join("disk.img"),
        };
        let (options, cpu) = (options.clone(), Duration::ZERO);
        let made = ImageGround { home, options, kind, image, copied: !own, server: None, cpu };
        made.make()?;
        Ok(made)
    }

    /// Makes the image, or copies it.
    fn make(&self) -> io::Result<()> {
        match &self.options.place {
            Place::Fresh(_, size) => {
                let image = Image::new(self.kind, &self.image, Path::new(""));
                image.make(*size, self.options.seed, self.options.mkfs_options.as_deref(), true)
            }
            Place::Path(path) if self.copied => {
                use std::os::unix::fs::MetadataExt;
                let needed = Bytes(std::fs::metadata(path)?.blocks() * 512);
                let space = rustix::fs::statvfs(&self.home.path)?;
                let free = Bytes(space.f_bavail.saturating_mul(space.f_frsize));
                if free.0 < needed.0 {
                    let home = self.home.path.display();
                    let text = format!(
                        "a copy needs {needed}, and {home} has {free}; name another scratch directory, or work in place"
                    );
                    return Err(failed(path, text));
                }
                let mut copy = Command::new("cp");
                run("cp", copy.args(["--reflink=auto", "--sparse=auto"]).arg(path).arg(&self.image)).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Keeps the image; it is not mounted.
    fn keep(&self, to: &Path) -> io::Result<()> {
        let mut copy = Command::new("cp");
        run("cp", copy.args(["--reflink=auto", "--sparse=auto"]).arg(&self.image).arg(to)).map(drop)
    }

    /// The file for the loop device: the image, or what the emulated device shows of it.
    fn served(&mut self) -> io::Result<PathBuf> {
        if self.options.device.is_none() && !self.options.sparse {
            return Ok(self.image.clone());
        }
        let shown = self.home.join("dev").join("disk");
        let log = self.home.join("serve.log");
        let mut command = Command::new(&self.home.program);
        command.args(["device", "serve", "--seed", &self.options.seed.to_string()]);
        if let Some(model) = &self.options.device {
            command.args(["--model", model]);
        }
        if let Some(trace) = &self.options.trace {
            command.arg("--trace").arg(trace);
        }
        if self.options.sparse {
            command.arg("--sparse");
        }
        command.arg("--backing").arg(&self.image).arg("--file").arg(&shown);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| failed(&self.home.program, error))?;
        let len = std::fs::metadata(&self.image)?.len();
        let there = again(|| {
            let ended = child.try_wait()?.is_some();
            match std::fs::metadata(&shown) {
                _ if ended => Ok(false),
                Ok(found) if found.len() > 0 => Ok(true),
                _ => Err(failed(&shown, "the emulated device does not come up")),
            }
        });
        match there {
            Ok(true) => {
                self.server = Some(child);
                let found = std::fs::metadata(&shown)?.len();
                if found < len {
                    let model = self.options.device.as_deref().unwrap_or("without a model");
                    let text = format!("the device, {model}, shows {} of its {}", Bytes(found), Bytes(len));
                    return Err(failed(&self.image, text));
                }
                Ok(shown)
            }
            there => {
                let _ = child.kill();
                let _ = child.wait();
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                there.and(Err(failed(&shown, said.trim().trim_start_matches("ashlar: "))))
            }
        }
    }

    fn mount(&mut self, point: &Path) -> io::Result<()> {
        std::fs::create_dir_all(point)?;
        let file = self.served()?;
        let mut setup = Command::new("losetup");
        let device = run("losetup", setup.args(["--find", "--show", "--direct-io=on"]).arg(&file))?;
        let device = device.trim();
        let name = device.trim_start_matches("/dev/");
        let direct = std::fs::read_to_string(format!("/sys/block/{name}/loop/dio"));
        let direct = direct.is_ok_and(|text| text.trim() == "1");
        let mut all = self.kind.mount_options().to_string();
        self.options.mount_options.iter().for_each(|options| all = format!("{all},{options}"));
        let mut mount = Command::new("mount");
        mount.args(["-t", self.kind.name(), "-o", &all, device]).arg(point);
        let mounted = if direct {
            run("mount", &mut mount).map(drop)
        } else {
            let text = "the loop device has no direct I/O, so that pages would be cached twice";
            Err(failed(&file, format!("{text}; put it on another file system")))
        };
        // In use it stays until it is unmounted, and then goes by itself, whatever becomes of us.
        let detached = run("losetup", Command::new("losetup").args(["--detach", device]));
        mounted.and(detached.map(drop))
    }

    fn unmount(&mut self, point: &Path) -> io::Result<()> {
        let mounted = crate::mounts::mounts()?.iter().any(|mount| mount.point == point);
        let unmounted = if mounted { unmount(point) } else { Ok(()) };
        let Some(mut server) = self.server.take() else { return unmounted };
        self.cpu += cpu_of(server.id());
        if let Some(process) = Pid::from_raw(server.id() as i32) {
            // It ends when the loop device has let go of its file.
            let _ = kill_process(process, Signal::TERM);
        }
        let ended = again(|| match server.try_wait()? {
            Some(status) => Ok(status.success()),
            None => Err(failed(&self.home.path, "the emulated device does not end")),
        });
        match ended {
            Ok(true) => unmounted,
            Ok(false) => {
                let said = std::fs::read_to_string(self.home.join("serve.log")).unwrap_or_default();
                unmounted.and(Err(failed(&self.image, said.trim())))
            }
            Err(error) => {
                self.server = Some(server);
                unmounted.and(Err(error))
            }
        }
    }
}

#[derive(Debug)]
struct PoolGround {
    home: Home,
    options: StandOptions,
    engine: Engine,
    size: Bytes,
    process: Option<u32>,
    cpu: Duration,
}

impl PoolGround {
    fn new(home: Home, engine: Engine, size: Bytes, options: &StandOptions) -> io::Result<PoolGround> {
        let made = PoolGround { home, options: options.clone(), engine, size, process: None, cpu: Duration::ZERO };
        made.make()?;
        Ok(made)
    }

    fn pool(&self) -> PathBuf {
        self.home.join("pool")
    }

    fn make(&self) -> io::Result<()> {
        let (pool, device) = (self.pool(), self.home.join("disk.img"));
        if self.options.mkfs_options.is_some() || self.options.mount_options.is_some() {
            return Err(io::Error::other("a pool has no options of mkfs and mount"));
        }
        if pool.exists() {
            std::fs::remove_dir_all(&pool)?;
        }
        let _ = std::fs::remove_file(&device);
        let file = File::create_new(&device)?;
        file.set_len(self.size.0)?;
        match &self.options.device {
            None => {
                let argument = format!("{}", device.display());
                self.home.ashlar(|command| command.args(["pool", "create"]).arg(&pool).args(["--device", &argument]))
            }
            Some(model) => {
                let model = if model.ends_with(".toml") { std::path::absolute(model)? } else { model.into() };
                let (device, model) = (device.display().to_string(), model.display().to_string());
                let stack = format!(
                    "devices = [\"timed\"]\n[layer.timed.emulated]\nof = \"contents\"\nmodel = {model:?}\nseed = {}\n\
                     [layer.contents.file]\npath = {device:?}\n",
                    self.options.seed
                );
                let path = self.home.join("stack.toml");
                std::fs::write(&path, stack)?;
                self.home.ashlar(|command| command.args(["pool", "create"]).arg(&pool).arg("--stack").arg(&path))
            }
        }
        .map(drop)
    }

    fn up(&mut self, point: &Path) -> io::Result<()> {
        std::fs::create_dir_all(point)?;
        let (pool, memory, engine) = (self.pool(), POOL_MEMORY.0.to_string(), self.engine.name());
        self.home.ashlar(|command| {
            let command = command.args(["up", "--detach", "--memory", &memory, "--pool"]).arg(&pool);
            command.args(["--engine", engine]).arg("--mount").arg(point)
        })?;
        let status = self.home.ashlar(|command| command.args(["status", "--json", "--pool"]).arg(&pool))?;
        let status: serde_json::Value = serde_json::from_str(&status).map_err(io::Error::other)?;
        self.process = status["pid"].as_u64().map(|pid| pid as u32);
        Ok(())
    }

    fn down(&mut self) -> io::Result<()> {
        self.cpu += self.process.take().map_or(Duration::ZERO, cpu_of);
        let pool = self.pool();
        self.home.ashlar(|command| command.arg("down").arg("--pool").arg(&pool)).map(drop)
    }
}
