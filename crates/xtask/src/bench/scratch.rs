//! The place where a comparison happens: one file that stands for the disk, a loop device on it, some memory for inputs.
//! Whatever is made here goes when its owner is dropped, also after an error or Ctrl-C.

use crate::bench::server::{Server, lateness};
use crate::bench::{check_interrupt, quiet, said};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the disk that every contender is given.
pub const DISK_BYTES: u64 = 8 << 30;
/// Bytes of the random data that are written again and again; more than any contender compresses together.
pub const DATA_BYTES: usize = 64 << 20;
/// What an emulated disk was asked, a line of JSON for each request.
const REQUESTS: &str = "requests.json";
/// Memory for the tree and the repository.
const RAM: &str = "size=4G";

/// A directory of our own with all that a comparison needs.
pub struct Scratch {
    directory: PathBuf,
    /// The disk: a loop device with direct I/O on a file that was written in full beforehand.
    /// Nobody may discard there: it would punch holes, and who writes there next would pay for it.
    /// (The limit in /sys would outlast us: with a limit of 0, Linux takes no other for that loop device.)
    pub device: PathBuf,
    /// That file.
    pub disk: PathBuf,
    /// What an emulated disk is made of, which the loop device does not say.
    pub medium: Option<String>,
    /// What serves an emulated disk below the loop device.
    server: Option<Server>,
    /// Bytes that do not compress.
    pub data: Vec<u8>,
}

impl Scratch {
    /// Makes the directory and the disk under `at`. `emulated`: our program, and the model of a device; the disk then takes as
    /// long as that would, in real time.
    pub fn new(at: &Path, emulated: Option<(&Path, &str)>) -> Result<Scratch, String> {
        let directory = at.join(format!("ashlar-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let mut scratch = Scratch {
            directory,
            device: PathBuf::new(),
            disk: PathBuf::new(),
            medium: None,
            server: None,
            data: random(DATA_BYTES)?,
        };
        for name in ["mnt", "back", "ram", "served"] {
            fs::create_dir(scratch.path(name)).map_err(|error| format!("{name}: {error}"))?;
        }
        quiet(Command::new("mount").args(["-t", "tmpfs", "-o", RAM, "ashlar-bench"]).arg(scratch.ram()))?;
        let mut disk = scratch.path("disk");
        match emulated {
            None => {
                eprintln!("writing a disk of {} GiB", DISK_BYTES >> 30);
                write_data(&disk, DISK_BYTES, &scratch.data)?;
            }
            Some((program, model)) => disk = scratch.emulate(program, model)?,
        }
        let device = said(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&disk))?;
        (scratch.device, scratch.disk) = (PathBuf::from(device.trim()), disk);
        Ok(scratch)
    }

    /// Serves the disk as a file that takes as long as the model says. What keeps the contents is much faster.
    fn emulate(&mut self, program: &Path, model: &str) -> Result<PathBuf, String> {
        let disk = self.path("disk");
        let made = File::create(&disk).and_then(|file| file.set_len(DISK_BYTES));
        made.map_err(|error| format!("{}: {error}", disk.display()))?;
        let kept = self.path("serving");
        fs::copy(program, &kept).map_err(|error| format!("{}: {error}", program.display()))?;
        let served = self.path("served").join("disk");
        self.medium = medium_of(program, model)?;
        // Whatever the contenders do to the processors, the disk shall not be late.
        let mut serve = Command::new("nice");
        serve.args(["-n", "-10"]).arg(kept).args(["device", "serve", model, "--trace"]).arg(self.path(REQUESTS));
        serve.args(["--size", &DISK_BYTES.to_string(), "--backing"]).arg(&disk);
        let mut server = Server::start(serve.arg("--file").arg(&served), self.path("serve.log"))?;
        server.wait_for(&served)?;
        self.server = Some(server);
        Ok(served)
    }

    /// Where contenders are mounted.
    pub fn mount_point(&self) -> PathBuf {
        self.path("mnt")
    }
    /// A directory in memory, for inputs.
    pub fn ram(&self) -> PathBuf {
        self.path("ram")
    }
    /// A place in our directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Empties the kernel's caches. The programs of the rows are brought back: it is not they who are measured.
    pub fn drop_caches(&self) -> Result<(), String> {
        quiet(Command::new("sync").arg("-f").arg(self.path("disk")))?;
        fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| format!("/proc/sys/vm/drop_caches: {error}"))?;
        for program in ["sh", "find", "grep", "git", "sync", "fio"] {
            let version = if program == "sh" { vec!["-c", ":"] } else { vec!["--version"] };
            let _ = quiet(Command::new(program).args(version));
        }
        Ok(())
    }
}

/// What a preset is made of, as `pool create --medium` has it; `None` for others.
fn medium_of(program: &Path, model: &str) -> Result<Option<String>, String> {
    let presets = said(Command::new(program).args(["device", "models", "--json"]))?;
    let presets: Vec<Value> = serde_json::from_str(&presets).map_err(|error| error.to_string())?;
    let kind = presets.iter().find(|preset| preset["name"] == model).and_then(|preset| preset["kind"].as_str());
    Ok(kind.filter(|kind| ["disk", "flash"].contains(kind)).map(String::from))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut failed = Vec::new();
        if is_mounted(&self.ram()) {
            failed.extend(quiet(Command::new("umount").arg(self.ram())).err());
        }
        if !self.device.as_os_str().is_empty() {
            failed.extend(quiet(Command::new("losetup").arg("--detach").arg(&self.device)).err());
        }
        if let Some(server) = self.server.take() {
            failed.extend(server.signal("TERM").and_then(|()| server.wait_for_end()).err());
            match lateness(&self.path(REQUESTS)) {
                Ok(late) => eprintln!("{}", said_of(&late)),
                Err(error) => failed.push(error),
            }
        }
        let mounted = mount_points().into_iter().find(|at| at.starts_with(&self.directory));
        match mounted {
            // Removing what lies below would remove what is in it.
            Some(at) => failed.push(format!("{} is still mounted", at.display())),
            None => failed.extend(fs::remove_dir_all(&self.directory).err().map(|error| error.to_string())),
        }
        for error in failed {
            eprintln!("xtask: left something in {}: {error}", self.directory.display());
        }
    }
}

/// How late an emulated disk was.
fn said_of(late: &[f64]) -> String {
    let ms = |percent: usize| {
        late.get((late.len() * percent / 100).min(late.len().saturating_sub(1))).map_or(0.0, |ns| ns / 1e6)
    };
    let (middle, most) = (ms(50), ms(99));
    format!(
        "the disk answered {} requests, half of them at most {middle:.2} ms late, 99 of 100 {most:.2} ms",
        late.len()
    )
}

fn random(len: usize) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let mut data = vec![0; len];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut data));
    read.map(|()| data).map_err(|error| format!("/dev/urandom: {error}"))
}

/// Writes a file of `len` bytes in pieces of 1 MiB and waits until it is durable.
pub fn write_data(path: &Path, len: u64, data: &[u8]) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::create(path).map_err(fail)?;
    let mut pieces = data.chunks(1 << 20).cycle();
    for _ in 0..len >> 20 {
        check_interrupt()?;
        file.write_all(pieces.next().unwrap_or_default()).map_err(fail)?;
    }
    file.sync_all().map_err(fail)
}

/// Reads what [`write_data`] wrote; looks at the beginning of each piece.
pub fn read_data(path: &Path, len: u64, data: &[u8]) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(fail)?;
    let mut piece = vec![0; 1 << 20];
    for index in 0..len >> 20 {
        check_interrupt()?;
        file.read_exact_at(&mut piece, index << 20).map_err(fail)?;
        let expected = &data[(index as usize % (data.len() >> 20)) << 20..];
        if piece[4096..8192] != expected[4096..8192] {
            return Err(format!("{}: MiB {index} is not what was written", path.display()));
        }
    }
    Ok(())
}

/// Everything that is mounted.
pub fn mount_points() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

/// Whether something is mounted at exactly this place.
pub fn is_mounted(at: &Path) -> bool {
    mount_points().iter().any(|mounted| mounted == at)
}
