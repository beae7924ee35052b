//! Faults of a served device as its users see them. Needs root and /dev/fuse, the file system's part also loop devices
//! and mkfs.ext4, the NBD part qemu-io; without them a test says SKIPPED.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const BLOCK: u64 = 4096;
/// Attempts, a tenth of a second apart, until something that is on its way must be there.
const PATIENCE: usize = 300;

/// A device that is served as a file, in a directory of its own.
struct Served {
    directory: PathBuf,
    server: Child,
}

fn ashlar() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ashlar"))
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn is_there(tools: &[&str]) -> bool {
    let missing = |tool: &&&str| !run(Command::new("which").arg(**tool)).status.success();
    let missing: Vec<_> = tools.iter().filter(missing).collect();
    let usable = missing.is_empty() && rustix::process::getuid().is_root() && Path::new("/dev/fuse").exists();
    if !usable {
        println!("SKIPPED: it needs root, /dev/fuse and {missing:?}");
    }
    usable
}

fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("ashlar-faults-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// Waits for what a condition asks for.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..PATIENCE {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{what}: not after {PATIENCE} attempts");
}

impl Served {
    fn start(name: &str, more: &[&str]) -> Served {
        let directory = scratch(name);
        let file = directory.join("dev/disk0");
        let mut command = ashlar();
        command.args(["device", "serve", "--size", "16MiB", "--file"]).arg(&file).args(more);
        let server = command.stderr(Stdio::null()).spawn().expect("the program runs");
        let served = Served { directory, server };
        until("the device is served", || served.socket().exists() && file.exists());
        served
    }
    fn path(&self) -> PathBuf {
        self.directory.join("dev/disk0")
    }
    fn socket(&self) -> PathBuf {
        self.directory.join("dev.control")
    }
    fn file(&self) -> File {
        File::options().read(true).write(true).open(self.path()).expect("the file is there")
    }
    /// What a command says, with --json.
    fn control(&self, command: &str) -> serde_json::Value {
        let output = run(ashlar().args(["--json", "device", "control"]).arg(self.path()).arg(command));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}: {said}");
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{command}: {error}: {said}"))
    }
    /// Ctrl-C.
    fn interrupt(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.server);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    }
    fn end(mut self) {
        self.interrupt();
        assert!(self.server.wait().expect("it runs").success());
        assert!(!self.socket().exists(), "the control socket is gone");
        std::fs::remove_dir_all(&self.directory).expect("it is ours");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Only after a failure: `end` has waited.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = run(Command::new("umount").arg("-l").arg(self.directory.join("dev")));
        // Nothing is mounted there any more, so nothing but our own goes.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The error of reading or writing, or the first byte.
fn read(file: &File, block: u64) -> Result<u8, Option<i32>> {
    let mut data = [0; BLOCK as usize];
    file.read_exact_at(&mut data, block * BLOCK).map_err(|error| error.raw_os_error())?;
    Ok(data[0])
}
fn write(file: &File, block: u64, value: u8) -> Result<(), Option<i32>> {
    file.write_all_at(&[value; BLOCK as usize], block * BLOCK).map_err(|error| error.raw_os_error())
}

const EIO: Result<u8, Option<i32>> = Err(Some(5));

#[test]
fn bad_sectors_come_and_go_at_run_time() {
    if !is_there(&[]) {
        return;
    }
    let served = Served::start("lse", &["--fault", "lse at 0..4KiB", "--fault", "read-only at 1MiB.."]);
    let file = served.file();
    assert_eq!(read(&file, 0), EIO);
    assert_eq!(write(&file, 256, 1), Err(Some(5)));
    assert_eq!(write(&file, 0, 7), Ok(()));
    assert_eq!(read(&file, 0), Ok(7), "a write heals");
    assert_eq!(served.control("fault lse at 4KiB..12KiB")["number"], 3);
    assert_eq!(read(&file, 2), EIO);
    let faults = served.control("faults");
    assert_eq!((&faults[0]["injected"], &faults[2]["bad_blocks"]), (&1.into(), &2.into()), "{faults}");
    assert_eq!(served.control("log")[2]["lba"], 2);
    assert_eq!(served.control("stats")["errors"], 3);
    served.control("clear");
    assert_eq!(read(&file, 2), Ok(0));
    assert_eq!(served.control("faults"), serde_json::json!([]));
    let wrong = run(ashlar().args(["device", "control"]).arg(served.path()).arg("fault lse"));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("write lse at RANGE"), "{wrong:?}");
    drop(file);
    served.end();
}

#[test]
fn a_power_cut_takes_what_was_not_flushed_and_only_that() {
    if !is_there(&[]) {
        return;
    }
    let served = Served::start("power", &["--fault", "power-cut", "--fault-seed", "4"]);
    let (mut lost, mut kept_by_lie) = (0, 0);
    for round in 1..=8 {
        let file = served.file();
        write(&file, 0, round).expect("power");
        file.sync_all().expect("power");
        write(&file, 1, round).expect("power");
        assert_eq!((read(&file, 0), read(&file, 1)), (Ok(round), Ok(round)));
        let cut = served.control("power-cut");
        assert_eq!((&cut["medium"], &cut["writes"]), (&true.into(), &1.into()), "{cut}");
        assert_eq!(read(&file, 0), EIO);
        served.control("restore");
        assert_eq!(read(&file, 0), Ok(round), "what was flushed is there");
        lost += u32::from(read(&file, 1) != Ok(round));
    }
    assert!(lost > 0, "nothing was lost in eight power cuts");
    let dropped = served.control("fault drop-flush")["number"].clone();
    for round in 11..=18 {
        let file = served.file();
        write(&file, 0, round).expect("power");
        file.sync_all().expect("acknowledged");
        served.control("power-cut");
        served.control("restore");
        kept_by_lie += u32::from(read(&file, 0) == Ok(round));
    }
    assert!(kept_by_lie < 8, "flushes were dropped, and nothing was lost in eight power cuts");
    served.control(&format!("clear {dropped}"));
    served.end();
}

#[test]
fn what_hangs_is_released_by_clear_and_by_the_end() {
    if !is_there(&[]) {
        return;
    }
    let mut served = Served::start("stuck", &[]);
    served.control("fault stuck on write");
    let file = served.file();
    let writer = std::thread::spawn(move || write(&file, 0, 1));
    until("the write hangs", || served.control("faults")[0]["injected"] == 1);
    assert!(!writer.is_finished());
    served.control("clear 1");
    assert_eq!(writer.join().expect("no panic"), Ok(()));

    served.control("fault stuck");
    let file = served.file();
    let reader = std::thread::spawn(move || read(&file, 0));
    until("the read hangs", || served.control("faults")[0]["injected"] == 1);
    served.interrupt();
    assert_eq!(reader.join().expect("no panic"), Ok(1), "it is let go");
    assert!(served.server.wait().expect("it runs").success());
}

#[test]
fn a_file_system_sees_the_faults_of_its_disk() {
    if !is_there(&["losetup", "mkfs.ext4", "e2fsck"]) {
        return;
    }
    let served = Served::start("ext4", &[]);
    let attached = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(served.path()));
    if !attached.status.success() {
        println!("SKIPPED: {}", String::from_utf8_lossy(&attached.stderr));
        return served.end();
    }
    let device = String::from_utf8_lossy(&attached.stdout).trim().to_string();
    let at = served.directory.join("mnt");
    std::fs::create_dir_all(&at).expect("a directory");
    let mount = || run(Command::new("mount").arg(&device).arg(&at)).status.success();
    let unmount = || assert!(run(Command::new("umount").arg(&at)).status.success());
    assert!(run(Command::new("mkfs.ext4").arg("-q").arg(&device)).status.success());
    assert!(mount());
    let data: Vec<u8> = (0..1 << 20).map(|byte: u32| (byte / 7) as u8).collect();
    std::fs::write(at.join("file"), &data).expect("space");
    unmount();
    served.control("fault lse at 0..");
    assert!(!mount(), "nothing can be read");
    served.control("clear");
    assert!(mount());
    assert!(std::fs::read(at.join("file")).expect("readable") == data, "the file is as it was");
    unmount();
    assert!(run(Command::new("losetup").arg("-d").arg(&device)).status.success());
    served.end();
}

#[test]
fn traces_are_taken_while_the_device_runs() {
    if !is_there(&[]) {
        return;
    }
    for name in ["trace.jsonl", "trace.parquet"] {
        let mut served = Served::start("trace", &["--model", "amf-page"]);
        let trace = served.directory.join(name);
        let mut tracer = ashlar();
        tracer.args(["device", "trace"]).arg(served.path()).arg("-o").arg(&trace).stderr(Stdio::null());
        let mut tracer = tracer.stdout(Stdio::null()).spawn().expect("the program runs");
        until("the trace has begun", || trace.exists());
        let file = served.file();
        for block in 0..9 {
            write(&file, block, 1).expect("a write");
        }
        drop(file);
        served.interrupt();
        assert!(served.server.wait().expect("it runs").success());
        assert!(tracer.wait().expect("it runs").success(), "the trace ends with the device");
        let replayed = run(ashlar().args(["--json", "lab", "replay"]).arg(&trace).args(["--model", "wd-re3"]));
        let said: serde_json::Value = serde_json::from_slice(&replayed.stdout).expect("a document");
        assert_eq!(said["bytes"], 9 * BLOCK, "{name}: {said}");
        std::fs::remove_dir_all(&served.directory).expect("it is ours");
    }
}

#[test]
fn a_second_serve_of_a_backing_file_is_refused() {
    if !is_there(&[]) {
        return;
    }
    let backing = scratch("backing").join("d.img");
    let path = backing.to_str().expect("a plain path");
    let served = Served::start("second", &["--backing", path]);
    let file = served.file();
    write(&file, 3, 9).expect("a write");
    let other = backing.with_extension("sock");
    let second =
        run(ashlar().args(["device", "serve", "--backing", path, "--nbd"]).arg(format!("unix:{}", other.display())));
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("d.img is in use by another process; stop that one first"), "{said}");
    assert_eq!(read(&file, 3), Ok(9), "the first serves on");
    drop(file);
    served.end();
    let kept = std::fs::read(&backing).expect("it is there");
    assert_eq!(kept[3 * BLOCK as usize..][..2], [9, 9]);
    std::fs::remove_dir_all(backing.parent().expect("a directory")).expect("it is ours");
}

#[test]
fn a_full_backing_disk_is_no_space_to_nbd_clients_and_contents_stay() {
    if !is_there(&["qemu-io"]) {
        return;
    }
    let directory = scratch("full");
    let disk = directory.join("small");
    std::fs::create_dir_all(&disk).expect("a directory");
    assert!(run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=2M", "none"]).arg(&disk)).status.success());
    let socket = directory.join("d.sock");
    let mut server = ashlar();
    server.args(["device", "serve", "--size", "16MiB", "--backing"]).arg(disk.join("d.img"));
    server.arg("--nbd").arg(format!("unix:{}", socket.display()));
    let mut server = server.stderr(Stdio::null()).spawn().expect("the program runs");
    until("the device is served", || socket.exists());
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let io = |commands: &[&str]| {
        let mut io = Command::new("qemu-io");
        io.args(["-f", "raw", &uri]);
        commands.iter().for_each(|command| _ = io.args(["-c", command]));
        let output = run(&mut io);
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let said = io(&["write -P 3 0 1M", "write -P 4 1M 8M", "read -P 3 0 1M", "write -P 5 0 64k", "flush"]);
    assert!(said.contains("write failed: No space left on device"), "{said}");
    assert!(!said.contains("verification failed") && !said.contains("read failed"), "{said}");
    let said =
        io(&["discard 1M 15M", "write -P 6 1M 512k", "read -P 6 1M 512k", "read -P 5 0 64k", "read -P 3 64k 960k"]);
    assert!(!said.contains("failed"), "space comes back: {said}");
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    assert!(server.wait().expect("it runs").success());
    assert!(run(Command::new("umount").arg(&disk)).status.success());
    std::fs::remove_dir_all(&directory).expect("it is ours");
}
