//! Block devices side by side: ours in memory, served over NBD and as a file under a loop device, beside nbdkit's.

use crate::bench::server::{Place, Server};
use crate::bench::table::align;
use crate::bench::{catch_signals, check_interrupt, find_program, fio, machine, median, quiet, said};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is asked: operation, bytes, depth.
const JOBS: [(&str, &str, u32); 6] = [
    ("randread", "4k", 1),
    ("randread", "4k", 32),
    ("randwrite", "4k", 1),
    ("randwrite", "4k", 32),
    ("read", "1m", 8),
    ("write", "1m", 8),
];

/// What to compare.
#[derive(clap::Args)]
pub struct Options {
    /// Rounds; the table shows medians.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// How a device is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Nbd,
    Loop,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Nbd => "NBD",
            Way::Loop => "file + loop",
        }
    }
    /// How many times theirs ours should be.
    fn bar(self) -> f64 {
        match self {
            Way::Nbd => 1.0,
            Way::Loop => 1.5,
        }
    }
    /// The jobs that count for the bar: on a loop device, operations per second.
    fn counts(self, job: &(&str, &str, u32)) -> bool {
        self == Way::Nbd || job.1 == "4k"
    }
}

/// `cargo xtask bench devices`.
pub fn devices(options: &Options) -> Result<(), String> {
    catch_signals()?;
    let program =
        |name: &str| find_program(name).ok_or(format!("{name} is not installed; apt install fio nbdkit nbdfuse"));
    for name in ["fio", "nbdkit", "nbdfuse", "losetup"] {
        program(name)?;
    }
    let ashlar = crate::ashlar()?;
    let facts = machine::facts(None);
    let place = Place::new("devices")?;
    let mut figures: BTreeMap<(Way, usize, bool), Vec<f64>> = BTreeMap::new();
    for round in 0..options.runs {
        for turn in 0..2 {
            let ours = (round + turn) % 2 == 0;
            eprintln!("round {} of {}: {}", round + 1, options.runs, if ours { "ashlar" } else { "nbdkit" });
            for way in [Way::Nbd, Way::Loop] {
                let server = Served::start(&ashlar, &place.0, way, ours)?;
                for (index, (operation, bytes, depth)) in JOBS.iter().enumerate() {
                    check_interrupt()?;
                    let rate = server.measure(operation, bytes, *depth)?;
                    figures.entry((way, index, ours)).or_default().push(rate);
                }
            }
        }
    }
    let rows = rows(&figures);
    if options.json {
        println!("{:#}", json!({ "machine": facts, "rows": rows }));
    } else {
        println!("{}\n\n{}", machine::heading(&facts), text(&rows, options.runs));
    }
    Ok(())
}

fn rows(figures: &BTreeMap<(Way, usize, bool), Vec<f64>>) -> Vec<Value> {
    let mut rows = Vec::new();
    for way in [Way::Nbd, Way::Loop] {
        for (index, job) in JOBS.iter().enumerate() {
            let of = |ours: bool| figures.get(&(way, index, ours)).map_or(f64::NAN, |figures| median(figures));
            let (ours, theirs) = (of(true), of(false));
            let bar = way.counts(job).then(|| way.bar());
            rows.push(json!({
                "way": way.name(), "operation": job.0, "bytes": job.1, "depth": job.2,
                "ashlar": ours, "nbdkit": theirs, "ratio": ours / theirs,
                "bar": bar, "reached": bar.map(|bar| ours / theirs >= bar),
            }));
        }
    }
    rows
}

fn text(rows: &[Value], runs: usize) -> String {
    let mut lines = vec![["job", "ashlar /s", "nbdkit /s", "ratio", "bar", "reached"].map(String::from).to_vec()];
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        let text = |name: &str| row[name].as_str().unwrap_or_default();
        lines.push(vec![
            format!("{}: {} {}, depth {}", text("way"), text("operation"), text("bytes"), row["depth"]),
            format!("{:.0}", number("ashlar")),
            format!("{:.0}", number("nbdkit")),
            format!("{:.2}", number("ratio")),
            row["bar"].as_f64().map_or(String::new(), |bar| bar.to_string()),
            row["reached"].as_bool().map_or("", |reached| if reached { "yes" } else { "NO" }).to_string(),
        ]);
    }
    format!(
        "Every figure is measured: the median of {runs} rounds. 1 GiB in memory. \"file + loop\" is a file in a FUSE mount under a \
         loop device with direct I/O; nbdkit's is made by nbdfuse.\n\n{}",
        align(&lines)
    )
}

/// A device that is served. Dropping it ends the servers.
struct Served {
    /// The last one first to end.
    servers: Vec<Server>,
    mount: Option<PathBuf>,
    device: Option<String>,
    socket: PathBuf,
}

impl Served {
    fn start(ashlar: &Path, place: &Path, way: Way, ours: bool) -> Result<Served, String> {
        let (socket, mount) = (place.join("nbd.sock"), place.join("mount"));
        let _ = fs::remove_file(&socket);
        let mut served = Served { servers: Vec::new(), mount: None, device: None, socket: socket.clone() };
        let mut nbdkit = Command::new("nbdkit");
        nbdkit.arg("--foreground").arg("-U").arg(&socket).args(["memory", "1G"]);
        let mut serve = Command::new(ashlar);
        serve.args(["device", "serve", "--size", "1GiB", "--control"]).arg(place.join("control"));
        match (way, ours) {
            (Way::Nbd, true) => served.begin(serve.arg("--nbd").arg(format!("unix:{}", socket.display())), &socket)?,
            (Way::Nbd, false) => served.begin(&mut nbdkit, &socket)?,
            (Way::Loop, true) => {
                served.mount = Some(mount.clone());
                served.begin(serve.arg("--file").arg(mount.join("disk")), &mount.join("disk"))?;
            }
            (Way::Loop, false) => {
                served.begin(&mut nbdkit, &socket)?;
                fs::create_dir_all(&mount).map_err(|error| error.to_string())?;
                served.mount = Some(mount.clone());
                let mut nbdfuse = Command::new("nbdfuse");
                nbdfuse.arg(mount.join("disk")).arg("--unix").arg(&socket);
                // It serves its whole mount, and the file is in it.
                served.begin(&mut nbdfuse, &mount.join("disk"))?;
            }
        }
        if way == Way::Loop {
            let mut losetup = Command::new("losetup");
            let device = said(losetup.args(["--find", "--show", "--direct-io=on"]).arg(mount.join("disk")))?;
            served.device = Some(device.trim().to_string());
        }
        Ok(served)
    }

    fn begin(&mut self, command: &mut Command, makes: &Path) -> Result<(), String> {
        let log = self.socket.with_file_name(format!("server-{}.log", self.servers.len()));
        let mut server = Server::start(command, log)?;
        let serves = server.wait_for(makes);
        self.servers.push(server);
        serves
    }

    fn measure(&self, operation: &str, bytes: &str, depth: u32) -> Result<f64, String> {
        let target = match &self.device {
            Some(device) => vec!["--ioengine=libaio".into(), "--direct=1".into(), format!("--filename={device}")],
            None => vec!["--ioengine=nbd".into(), format!("--uri=nbd+unix:///?socket={}", self.socket.display())],
        };
        let bytes = format!("--bs={bytes}");
        fio(target.into_iter().chain([bytes, "--runtime=2".into(), "--norandommap".into()]), operation, depth)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            let _ = quiet(Command::new("losetup").arg("--detach").arg(device));
        }
        while let Some(server) = self.servers.pop() {
            let _ = server.signal("INT");
            let _ = server.wait_for_end();
        }
        if let Some(mount) = self.mount.take().filter(|mount| crate::bench::scratch::is_mounted(mount)) {
            let _ = quiet(Command::new("umount").arg("--lazy").arg(mount));
        }
    }
}
