//! The test stand: the disk as a file in a mount of ours, a loop device on the file, and a file system on the loop device.
//! One stand serves all images. Dropping it takes everything away again.

use super::Kind;
use super::marks::Listener;
use ashlar_block::Device;
use ashlar_emulated::Emulated;
use ashlar_env::real::Real;
use ashlar_fuse::Mount;
use ashlar_models::ModelFile;
use ashlar_nbd::{ByteDevice, DiskFile};
use ashlar_units::Bytes as Size;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a program said last; the rest is not shown.
const SAID_MAX: u64 = 4096;
/// A mount, a check or an fsck that takes longer counts as failed.
const PROGRAM_MAX: Duration = Duration::from_secs(120);
/// A workload that takes longer is ended.
const WORKLOAD_MAX: Duration = Duration::from_secs(3600);
/// How long a mount may remain in use after the program that used it ended.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// The disk's sector. Writes then arrive as the file system made them, without others' bytes around.
const SECTOR: &str = "4096";
/// How often a program that runs is looked at; it grows from the first to the second.
const LOOKS: (Duration, Duration) = (Duration::from_micros(300), Duration::from_millis(5));

/// Tells stands of one process apart.
static STANDS: AtomicU64 = AtomicU64::new(0);

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) well: bool,
    /// How it ended, and what it said.
    pub(crate) said: String,
}

pub(crate) struct Stand {
    kind: Kind,
    mount_options: Option<String>,
    home: PathBuf,
    _real: Real,
    file: Option<Mount>,
    loop_device: Option<PathBuf>,
    mounted: bool,
    stop: Arc<AtomicBool>,
}

impl Stand {
    /// Sets the disk up; nothing is on it yet. With a model it takes as long as the model says.
    pub(crate) fn new(
        kind: Kind,
        mount_options: Option<String>,
        disk: Device,
        model: Option<&ModelFile>,
        stop: Arc<AtomicBool>,
    ) -> Result<Stand, String> {
        let number = STANDS.fetch_add(1, Ordering::Relaxed);
        let home = std::env::temp_dir().join(format!("ashlar-crash-{}-{number}", std::process::id()));
        let failed = |error: std::io::Error| format!("{}: {error}", home.display());
        let real = Real::start(2).map_err(failed)?;
        let disk = match model {
            None => disk,
            Some(model) => {
                let emulated = Emulated::new(disk, model, 0, real.env());
                Arc::new(emulated.map_err(|error| error.to_string())?)
            }
        };
        let device = Arc::new(ByteDevice::new(disk, "crash"));
        let file = DiskFile::new(device, b"disk", false, real.env()).map_err(|error| format!("{:?}", error.errno))?;
        for part in ["dev", "mnt"] {
            fs::create_dir_all(home.join(part)).map_err(failed)?;
        }
        // Damage that a disk reports here was made on purpose.
        let options = ashlar_fuse::Options {
            source: "ashlar:crash".into(),
            direct: true,
            on_damage: Arc::new(|_| {}),
            ..ashlar_fuse::Options::default()
        };
        let mount = Mount::new(&real, Arc::new(file), &home.join("dev"), options);
        // From here on dropping it cleans up.
        let mut stand =
            Stand { kind, mount_options, home, _real: real, file: None, loop_device: None, mounted: false, stop };
        stand.file = Some(mount.map_err(|error| error.to_string())?);
        let disk = stand.home.join("dev/disk");
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--direct-io=on", "--sector-size", SECTOR]).arg(disk);
        let ended = stand.run(command, b"", PROGRAM_MAX)?;
        let device = PathBuf::from(ended.said.trim());
        if !ended.well || !device.starts_with("/dev") {
            return Err(format!("no loop device: losetup {}", ended.said));
        }
        stand.loop_device = Some(device);
        Ok(stand)
    }

    /// The loop device.
    pub(crate) fn device(&self) -> &Path {
        self.loop_device.as_deref().unwrap_or(Path::new("/dev/null"))
    }

    /// Where the file system is mounted.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.home.join("mnt")
    }

    /// Makes the file system.
    pub(crate) fn make(&self, size: Size) -> Result<(), String> {
        let (program, arguments) = self.kind.make();
        let mut command = Command::new(program);
        command.args(arguments).arg(self.device());
        let ended = self.run(command, b"", PROGRAM_MAX)?;
        if ended.well { Ok(()) } else { Err(format!("{program} of {size}: {}", ended.said)) }
    }

    /// Mounts it.
    pub(crate) fn mount(&mut self) -> Result<Ended, String> {
        // Nothing of the image before may be left in the kernel's cache of the loop device.
        let mut flush = Command::new("blockdev");
        flush.arg("--flushbufs").arg(self.device());
        self.run(flush, b"", PROGRAM_MAX)?;
        let mut command = Command::new("mount");
        command.args(["-t", self.kind.name()]);
        if let Some(options) = &self.mount_options {
            command.args(["-o", options]);
        }
        command.arg(self.device()).arg(self.mount_point());
        let ended = self.run(command, b"", PROGRAM_MAX)?;
        self.mounted = ended.well;
        Ok(ended)
    }

    /// Writes all that the kernel holds of the file system.
    pub(crate) fn sync(&self) -> Result<(), String> {
        let root = File::open(self.mount_point()).map_err(|error| error.to_string())?;
        rustix::fs::syncfs(&root).map_err(|error| format!("sync: {error}"))
    }

    /// Unmounts it.
    pub(crate) fn unmount(&mut self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let mut command = Command::new("umount");
            command.arg(self.mount_point()).stdin(Stdio::null());
            let output = command.output().map_err(|error| format!("umount: {error}"))?;
            if output.status.success() {
                self.mounted = false;
                return Ok(());
            }
            if began.elapsed() > BUSY_MAX {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("{}a program that still runs there must be ended by who started it", said));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Looks at the unmounted file system without changing it.
    pub(crate) fn fsck(&self) -> Result<Ended, String> {
        let (program, arguments) = self.kind.fsck();
        let mut command = Command::new(program);
        command.args(arguments).arg(self.device());
        let mut ended = self.run(command, b"", PROGRAM_MAX)?;
        ended.said = format!("{program}: {}", ended.said);
        Ok(ended)
    }

    /// Runs the workload.
    pub(super) fn work(&self, workload: &Path, marks: &Listener) -> Result<Ended, String> {
        let mut command = Command::new(workload);
        command.arg(self.mount_point()).env(super::MARKS_VARIABLE, marks.path());
        // `ashlar prove mark` is this program, wherever it is.
        let own = std::env::current_exe().ok();
        let paths = own.iter().filter_map(|own| own.parent()).map(Path::to_path_buf);
        let old = std::env::var_os("PATH").unwrap_or_default();
        if let Ok(paths) = std::env::join_paths(paths.chain(std::env::split_paths(&old))) {
            command.env("PATH", paths);
        }
        self.run(command, b"", WORKLOAD_MAX)
    }

    /// Runs the check with marks.
    pub(crate) fn check(&self, check: &Path, marks: &[&str]) -> Result<Ended, String> {
        let lines: String = marks.iter().flat_map(|mark| [mark, "\n"]).collect();
        let mut command = Command::new(check);
        command.arg(self.mount_point());
        self.run(command, lines.as_bytes(), PROGRAM_MAX)
    }

    /// Runs a program to its end, in a process group of its own: Ctrl-C is for us, and we end what we started.
    fn run(&self, mut command: Command, stdin: &[u8], time_max: Duration) -> Result<Ended, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no program {name}; install it, or name another"),
            _ => format!("{name}: {error}"),
        };
        let input = self.home.join("stdin");
        fs::write(&input, stdin).map_err(failed)?;
        let mut said = File::options().read(true).write(true).create(true).truncate(true).open(self.home.join("said"));
        let said = said.as_mut().map_err(|error| format!("{}: {error}", self.home.display()))?;
        command.stdin(File::open(input).map_err(failed)?);
        command.stdout(said.try_clone().map_err(failed)?).stderr(said.try_clone().map_err(failed)?);
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        let began = Instant::now();
        let mut pause = LOOKS.0;
        let mut ended_by_us = None;
        // It is left unreaped until its group was ended, so that the group's number is surely still that of ours.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("no process number")?;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), look).map_err(|error| failed(error.into()))?.is_none() {
            let stopped = self.stop.load(Ordering::Acquire);
            if ended_by_us.is_none() && (stopped || began.elapsed() > time_max) {
                ended_by_us = Some(if stopped { "stopped" } else { "took too long" });
                end_group(pid);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOKS.1);
        }
        // What it left running would keep the mount in use.
        end_group(pid);
        let status = child.wait().map_err(failed)?;
        let text = tail(said).map_err(failed)?;
        let well = status.success() && ended_by_us.is_none();
        let how = ended_by_us.map_or_else(|| status.to_string(), str::to_string);
        Ok(Ended { well, said: if well { text } else { format!("{how}\n{text}").trim_end().to_string() } })
    }
}

/// Kills what is left of a program that we started and its children.
fn end_group(leader: Pid) {
    // It fails if nobody is left.
    let _ = kill_process_group(leader, Signal::KILL);
}

fn tail(file: &mut File) -> std::io::Result<String> {
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(SAID_MAX)))?;
    let mut text = Vec::new();
    file.take(SAID_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Runs a program that takes something away; that it is gone already is no failure.
fn quietly(program: &str, arguments: &[&OsStr]) {
    let mut command = Command::new(program);
    let _ = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

impl Drop for Stand {
    fn drop(&mut self) {
        if self.mounted && self.unmount().is_err() {
            quietly("umount", &["--lazy".as_ref(), self.mount_point().as_os_str()]);
        }
        if let Some(device) = self.loop_device.take() {
            quietly("losetup", &["--detach".as_ref(), device.as_os_str()]);
        }
        if let Some(file) = self.file.take() {
            let began = Instant::now();
            // The kernel may take a moment to let go of the loop device.
            while file.unmount(false).is_err() {
                if began.elapsed() > BUSY_MAX {
                    let _ = file.abort();
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // Nothing is removed from a mount that is still there: directories must be empty.
        for file in ["stdin", "said"] {
            let _ = fs::remove_file(self.home.join(file));
        }
        for directory in ["mnt", "dev", "."] {
            let _ = fs::remove_dir(if directory == "." { self.home.clone() } else { self.home.join(directory) });
        }
    }
}
