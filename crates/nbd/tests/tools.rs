//! The clients that people have. A test whose tools are absent says SKIPPED.

mod common;

use ashlar_block::{Checked, Device};
use ashlar_devices::{FileDevice, Memory, OpenOptions};
use ashlar_env::real::Real;
use ashlar_fuse::Mount;
use ashlar_nbd::{ByteDevice, DiskFile};
use ashlar_units::Bytes as Size;
use common::Served;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const SIZE: Size = Size::mib(512);

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-tools-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Scratch(path)
    }
    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn have(tools: &[&str]) -> bool {
    let missing: Vec<_> = tools
        .iter()
        .filter(|tool| Command::new("which").arg(tool).output().is_ok_and(|out| !out.status.success()))
        .collect();
    if !missing.is_empty() {
        println!("SKIPPED: {missing:?} are not installed");
    }
    missing.is_empty()
}

/// Runs a line of shell; what it prints.
fn run(line: &str) -> String {
    let output = Command::new("bash").arg("-ec").arg(line).output().expect("a shell");
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{line}\n{said}");
    said
}

fn memory(real: &Real) -> Device {
    Arc::new(Checked::new(Arc::new(Memory::new(SIZE.to_blocks_down())), real.env()))
}

fn sparse_file(path: &Path, real: &Real) -> Device {
    let options = OpenOptions { create: Some(SIZE), ..OpenOptions::default() };
    let file = FileDevice::open(path, &options, real.env()).expect("a scratch file");
    Arc::new(Checked::new(Arc::new(file), real.env()))
}

fn uri(served: &Served) -> String {
    format!("'nbd+unix:///?socket={}'", served.path.display())
}

/// 40 MB of data that differ everywhere, and a hole behind them, as large as the device.
fn make_image(path: &Path) {
    run(&format!("openssl rand 40000000 > {0} && truncate -s {1} {0}", path.display(), SIZE.0));
}

#[test]
fn nbdinfo_and_nbdcopy() {
    if !have(&["nbdinfo", "nbdcopy", "openssl"]) {
        return;
    }
    let scratch = Scratch::new("nbdcopy");
    for backing in [false, true] {
        let served = Served::new(|real| if backing { sparse_file(&scratch.at("d.img"), real) } else { memory(real) });
        let (uri, image, copy) = (uri(&served), scratch.at("image"), scratch.at("copy"));
        make_image(&image);
        let said = run(&format!("nbdinfo {uri}"));
        for fact in ["can_multi_conn: true", "can_fua: true", "can_df: true", "can_fast_zero: true", "base:allocation"]
        {
            assert!(said.contains(fact), "{fact}: {said}");
        }
        run(&format!("nbdcopy --flush {} {uri}", image.display()));
        run(&format!("rm -f {1}; nbdcopy {uri} {1} && cmp {0} {1}", image.display(), copy.display()));
        let map = run(&format!("nbdinfo --map --totals {uri}"));
        assert!(map.contains("hole,zero") && map.contains("data"), "{map}");
    }
}

#[test]
fn qemu() {
    if !have(&["qemu-img", "qemu-io", "openssl"]) {
        return;
    }
    let scratch = Scratch::new("qemu");
    let served = Served::new(memory);
    let (uri, image, copy) = (uri(&served), scratch.at("image"), scratch.at("copy.qcow2"));
    make_image(&image);
    let (image, copy) = (image.display(), copy.display());
    assert!(run(&format!("qemu-img info {uri}")).contains("512 MiB"));
    run(&format!("qemu-img convert -n -f raw -O raw {image} {uri}"));
    assert!(run(&format!("qemu-img compare -f raw -F raw {image} {uri}")).contains("identical"));
    run(&format!("qemu-img convert -f raw -O qcow2 {uri} {copy}"));
    assert!(run(&format!("qemu-img compare -f raw {image} -F qcow2 {copy}")).contains("identical"));
    assert!(run(&format!("qemu-img map --output=json {uri}")).contains("\"zero\": true, \"data\": false"));
    let commands = [
        "write -P 7 1000 70000",
        "read -P 7 1000 70000",
        "write -z 4000 9000",
        "read -P 0 4000 9000",
        "read -P 7 1000 3000",
        "read -P 7 13000 58000",
        "write -zu 1M 4M",
        "read -P 0 1M 4M",
        "discard 8M 1M",
        "read -P 0 8M 1M",
        "write -f -P 3 12345 777",
        "read -P 3 12345 777",
        "flush",
    ];
    let commands: String = commands.iter().map(|command| format!(" -c '{command}'")).collect();
    let said = run(&format!("qemu-io -f raw {uri}{commands}"));
    assert!(!said.contains("fail") && !said.contains("rror"), "{said}");
}

const VERIFY: &str = "--name=v --rw=randwrite --verify=crc32c --verify_state_save=0 --verify_fatal=1 --verify_backlog=64 --size=8m \
                      --group_reporting";

#[test]
fn fio_verifies_over_nbd() {
    if !have(&["fio"]) {
        return;
    }
    if !run("fio --enghelp").contains("nbd") {
        println!("SKIPPED: this fio has no nbd engine");
        return;
    }
    let scratch = Scratch::new("fio");
    for backing in [false, true] {
        let served = Served::new(|real| if backing { sparse_file(&scratch.at("d.img"), real) } else { memory(real) });
        let uri = uri(&served);
        for depth in [1, 16, 32] {
            for size in ["4k-4k", "512-512", "3k-70k"] {
                run(&format!("fio {VERIFY} --ioengine=nbd --uri={uri} --bsrange={size} --iodepth={depth}"));
            }
            let jobs = "--numjobs=4 --thread --offset_increment=16m";
            run(&format!("fio {VERIFY} --ioengine=nbd --uri={uri} --bs=4k --iodepth={depth} {jobs}"));
        }
    }
}

/// Detaches what a failed test left, so that the mount can go.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("bash").arg("-c").arg(format!("umount {0}; losetup -d {0}", self.0)).output();
    }
}

#[test]
fn file_systems_on_a_loop_device_on_the_file() {
    let tools = ["losetup", "fio", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "fstrim", "openssl"];
    if !have(&tools) {
        return;
    }
    let scratch = Scratch::new("loop");
    let real = Real::start(2).expect("io_uring is available");
    let device = Arc::new(ByteDevice::new(memory(&real), "test"));
    let file = DiskFile::new(device.clone(), b"disk0", false, real.env()).expect("a name");
    let options = ashlar_fuse::Options { direct: true, ..ashlar_fuse::Options::default() };
    std::fs::create_dir(scratch.at("dev")).expect("a directory");
    let mount = match Mount::new(&real, Arc::new(file), &scratch.at("dev"), options) {
        Ok(mount) => mount,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let disk = scratch.at("dev/disk0").display().to_string();
    for depth in [1, 16, 32] {
        run(&format!("fio {VERIFY} --ioengine=libaio --direct=1 --filename={disk} --bs=4k --iodepth={depth}"));
        run(&format!(
            "fio {VERIFY} --ioengine=libaio --filename={disk} --bsrange=1k-9k --bs_unaligned --iodepth={depth}"
        ));
    }
    let attached = Command::new("losetup").args(["-f", "--show", "--direct-io=on", &disk]).output().expect("a shell");
    if !attached.status.success() {
        drop(mount);
        return println!("SKIPPED: there are no loop devices");
    }
    let device = Loop(String::from_utf8_lossy(&attached.stdout).trim().into());
    let (at, name) = (scratch.at("mnt"), &device.0);
    std::fs::create_dir(&at).expect("a directory");
    for depth in [1, 16, 32] {
        run(&format!(
            "fio {VERIFY} --ioengine=libaio --direct=1 --filename={name} --bsrange=512-64k --iodepth={depth}"
        ));
    }
    make_image(&scratch.at("image"));
    let (at, image) = (at.display(), scratch.at("image"));
    for (make, check) in
        [("mkfs.ext4 -q -F", "fsck.ext4 -fn"), ("mkfs.xfs -q -f", "xfs_repair -n"), ("mkfs.btrfs -q -f", "btrfs check")]
    {
        run(&format!("{make} {name} && mount -o discard {name} {at}"));
        run(&format!("head -c 40000000 {0} > {at}/a && cp {at}/a {at}/b && rm {at}/a && sync", image.display()));
        run(&format!("fstrim {at} && umount {at} && mount {name} {at} && cmp -n 40000000 {} {at}/b", image.display()));
        run(&format!("fio {VERIFY} --ioengine=libaio --direct=1 --directory={at} --bsrange=4k-128k --iodepth=16"));
        run(&format!("umount {at} && {check} {name}"));
    }
    drop(device);
    mount.unmount(false).expect("nobody uses it");
}
