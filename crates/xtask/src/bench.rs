//! File systems side by side. Every contender lives on an 8 GiB file of the same disk and runs the same steps; caches are
//! dropped before the cold ones. The table shows medians in seconds and the ratio to ext4 (or to the first peer).

use crate::{ashlar, run};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const SIZE: &str = "8G";
const SMALL_FILES: usize = 10_000;

/// A step: its name, whether caches are dropped before, and a shell script in which `$M` is the mount point, `$TREE` the
/// tar file, and `$RANDOM_FILE` a GiB that does not compress.
const STEPS: [(&str, bool, &str); 13] = [
    ("untar", false, "mkdir $M/t && tar xf $TREE -C $M/t && sync -f $M"),
    ("find cold", true, "find $M/t -type f -size +100000k"),
    ("find warm", false, "find $M/t -type f -size +100000k"),
    ("grep -r cold", true, "grep -rq no-such-text-anywhere $M/t || true"),
    ("grep -r warm", false, "grep -rq no-such-text-anywhere $M/t || true"),
    (
        "git add, commit",
        false,
        "cd $M/t && git init -q . && git add -A && git -c user.email=a@b -c user.name=a commit -qm a",
    ),
    ("git clone", false, "git clone -q file://$M/t $M/clone"),
    ("git status warm", false, "cd $M/t && git status"),
    ("rm -rf", false, "rm -rf $M/t $M/clone && sync -f $M"),
    ("write 1 GiB", false, "dd if=$RANDOM_FILE of=$M/big bs=1M conv=fsync"),
    ("read 1 GiB cold", true, "dd if=$M/big of=/dev/null bs=1M"),
    ("unlink 1 GiB", false, "rm $M/big"),
    (
        "4 KiB append + fsync x 1000",
        false,
        "dd if=$RANDOM_FILE of=$M/log bs=4k count=1000 oflag=append,dsync conv=notrunc",
    ),
];

/// `cargo xtask bench files`.
pub fn files(tree: &Path, at: &Path, runs: usize, peers: &[String]) -> Result<(), String> {
    let tree = fs::canonicalize(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    let ashlar = ashlar()?;
    fs::create_dir_all(at).map_err(|error| format!("{}: {error}", at.display()))?;
    let random = at.join("random");
    shell(&format!("head -c 1G /dev/urandom > {}", random.display()), &[])?;
    let mut times: BTreeMap<(usize, String), Vec<f64>> = BTreeMap::new();
    for round in 0..runs {
        for name in peers.iter().map(String::as_str).chain(["ashlar"]) {
            eprintln!("run {} of {runs}: {name}", round + 1);
            let bench = Contender { name, at, ashlar: &ashlar };
            bench.mount()?;
            let measured = bench.measure(&tree, &random);
            bench.unmount()?;
            for (step, seconds) in measured?.into_iter().enumerate() {
                times.entry((step, name.to_string())).or_default().push(seconds);
            }
        }
    }
    let _ = fs::remove_dir_all(at);
    print_table(&mut times, peers);
    Ok(())
}

struct Contender<'a> {
    name: &'a str,
    at: &'a Path,
    ashlar: &'a Path,
}

impl Contender<'_> {
    fn image(&self) -> PathBuf {
        self.at.join("image")
    }
    fn mount_point(&self) -> PathBuf {
        self.at.join("mnt")
    }
    fn pool(&self) -> PathBuf {
        self.at.join("pool")
    }

    fn mount(&self) -> Result<(), String> {
        let (image, mount) = (self.image(), self.mount_point());
        fs::create_dir_all(&mount).map_err(|error| error.to_string())?;
        if self.name == "ashlar" {
            let size = format!("{SIZE}iB");
            let up = ["up", "--detach", "--size", &size];
            return run(Command::new(self.ashlar).args(up).arg("--pool").arg(self.pool()).arg("--mount").arg(&mount));
        }
        let (image, mount, name) = (image.display(), mount.display(), self.name);
        let force = if name == "ext4" { "-F" } else { "-f" };
        shell(
            &format!("truncate -s {SIZE} {image} && mkfs.{name} -q {force} {image} && mount -o loop {image} {mount}"),
            &[],
        )
    }

    fn unmount(&self) -> Result<(), String> {
        if self.name == "ashlar" {
            run(Command::new(self.ashlar).arg("down").arg("--pool").arg(self.pool()).stdout(Stdio::null()))?;
            return fs::remove_dir_all(self.pool()).map_err(|error| error.to_string());
        }
        run(Command::new("umount").arg(self.mount_point()))?;
        fs::remove_file(self.image()).map_err(|error| error.to_string())
    }

    /// Seconds of each step, and of making and removing small files.
    fn measure(&self, tree: &Path, random: &Path) -> Result<Vec<f64>, String> {
        let mount = self.mount_point();
        let variables = [("M", &*mount), ("TREE", tree), ("RANDOM_FILE", random)];
        let mut seconds = Vec::new();
        for (_, cold, script) in STEPS {
            if cold {
                shell("sync; echo 3 > /proc/sys/vm/drop_caches", &[])?;
            }
            let began = Instant::now();
            shell(script, &variables)?;
            seconds.push(began.elapsed().as_secs_f64());
        }
        let directory = mount.join("small");
        let began = Instant::now();
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        for index in 0..SMALL_FILES {
            fs::write(directory.join(index.to_string()), [b'x'; 100]).map_err(|error| error.to_string())?;
        }
        seconds.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        fs::remove_dir_all(&directory).map_err(|error| error.to_string())?;
        seconds.push(began.elapsed().as_secs_f64());
        Ok(seconds)
    }
}

fn shell(script: &str, variables: &[(&str, &Path)]) -> Result<(), String> {
    let mut command = Command::new("sh");
    command.arg("-ec").arg(script).envs(variables.iter().copied()).stdout(Stdio::null()).stderr(Stdio::null());
    run(&mut command)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print_table(times: &mut BTreeMap<(usize, String), Vec<f64>>, peers: &[String]) {
    let names: Vec<&str> = STEPS.iter().map(|(name, ..)| *name).chain(["create 10,000 files", "remove them"]).collect();
    let contenders: Vec<String> = peers.iter().cloned().chain(["ashlar".to_string()]).collect();
    print!("{:<30}", "seconds (measured, median)");
    contenders.iter().for_each(|name| print!("{name:>10}"));
    let base = contenders.first().map_or("", String::as_str);
    println!("{:>16}", format!("ashlar/{base}"));
    for (step, name) in names.iter().enumerate() {
        print!("{name:<30}");
        let medians: Vec<f64> = contenders
            .iter()
            .map(|contender| times.get_mut(&(step, contender.clone())).map_or(f64::NAN, |times| median(times)))
            .collect();
        medians.iter().for_each(|seconds| print!("{seconds:>10.3}"));
        println!(
            "{:>16.2}",
            medians.last().copied().unwrap_or(f64::NAN) / medians.first().copied().unwrap_or(f64::NAN)
        );
    }
}
