//! File systems side by side: every contender on the same disk, round by round, so that what else the machine does meets
//! all of them.

use crate::bench::contender::{self, Contender, Mounted};
use crate::bench::rows::{Measure, OPEN_FILES, PEAK_MEMORY, ROWS, choose};
use crate::bench::scratch::Scratch;
use crate::bench::steps::{History, Place, Remover};
use crate::bench::table::Results;
use crate::bench::{catch_signals, check_interrupt, find_program, machine, quiet};
use ashlar_vfs::Engine;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What of a kernel's sources makes the small tree: some 15,000 files, so that servers that keep a file open for each can
/// take part within the usual limit.
const PARTS: [&str; 7] = ["fs", "net", "kernel", "mm", "include", "sound", "arch/x86"];

/// What to compare, and where.
#[derive(clap::Args)]
pub struct Options {
    /// A tar file with a source tree. Default: parts of the Linux sources in /usr/src (apt install linux-source).
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Which directories of the Linux sources make the tree; fewer make a smaller one, for slow disks.
    #[arg(long, value_delimiter = ',', value_name = "DIRECTORIES", default_values = PARTS, conflicts_with = "tree")]
    parts: Vec<String>,
    /// Where the disk goes, a file of 8 GiB.
    #[arg(long, default_value = "/var/tmp")]
    at: PathBuf,
    /// Rounds; the table shows medians.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The engine of ours that the others are compared with; it takes part in any case.
    #[arg(long, value_name = "files|betr", default_value_t)]
    engine: Engine,
    /// The disk takes as long as this model says, in real time: a name that `ashlar device models` lists, or a file.
    #[arg(long, value_name = "MODEL")]
    device: Option<String>,
    /// Who takes part.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ashlar,ext4,xfs,btrfs,passthrough_hp,fuse-overlayfs,gocryptfs,zfs-fuse"
    )]
    peers: Vec<String>,
    /// The file system is old: somebody followed this git repository there from its beginning, pulling now and then.
    #[arg(long, value_name = "REPOSITORY")]
    aged: Option<PathBuf>,
    /// How often.
    #[arg(long, default_value_t = NonZero::<usize>::new(100).expect("not 0"), requires = "aged")]
    pulls: NonZero<usize>,
    /// Only rows with one of these in their names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The program `passthrough_hp`, an example of libfuse.
    #[arg(long, value_name = "PATH")]
    passthrough_hp: Option<PathBuf>,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// `cargo xtask bench files`.
pub fn files(options: &Options) -> Result<(), String> {
    let (shown, done) = choose(&options.only, options.aged.is_some())?;
    let history = options.aged.as_deref().map(|aged| History::of(aged, options.pulls)).transpose()?;
    let tree = match &options.tree {
        Some(tree) => Some(std::fs::canonicalize(tree).map_err(|error| format!("{}: {error}", tree.display()))?),
        None => None,
    };
    catch_signals()?;
    let ashlar = crate::ashlar()?;
    let subject = options.engine.system();
    let mut wanted = options.peers.clone();
    wanted.push(subject.into());
    let (mut contenders, mut missing) = contender::find(&wanted, &ashlar, options.passthrough_hp.as_deref())?;
    if find_program("fio").is_none() && ROWS.iter().zip(&done).any(|(row, done)| *done && row.uses_fio()) {
        missing.push(("fio", "not installed, so its rows are left out: apt install fio".into()));
    }
    for (name, why) in &missing {
        eprintln!("{name} does not take part: {why}");
    }
    let mut facts = machine::facts(Some(&options.at));
    facts["emulated"] = options.device.clone().into();
    facts["aged"] = history.as_ref().map(History::said).into();
    let scratch = Scratch::new(&options.at, options.device.as_deref().map(|model| (ashlar.as_path(), model)))?;
    for contender in &mut contenders {
        contender.keep(&scratch)?;
    }
    let place = inputs(&scratch, tree.as_deref(), &options.parts, history.as_ref())?;
    let (figures, failures) = (BTreeMap::new(), BTreeMap::new());
    let mut results = Results { facts, subject, contenders: contenders.clone(), missing, shown, figures, failures };
    let mut outcome = Ok(());
    'rounds: for round in 1..=options.runs {
        for contender in &contenders {
            eprintln!("round {round} of {}: {}", options.runs, contender.name);
            let place = Place { remover: contender.remover(&scratch), ..place.clone() };
            outcome = Round { subject, contender, scratch: &scratch, place: &place, done: &done }.run(&mut results);
            if outcome.is_err() {
                break 'rounds;
            }
        }
        // Nobody is always the one who follows a certain other.
        contenders.rotate_left(1);
    }
    drop(place);
    drop(scratch);
    if !results.figures.is_empty() {
        match options.json {
            true => println!("{:#}", results.json()),
            false => print!("{}", results.text()),
        }
    }
    outcome
}

/// Puts the tree, and a repository with the same in it, into memory.
fn inputs<'a>(
    scratch: &'a Scratch,
    tree: Option<&Path>,
    parts: &[String],
    history: Option<&'a History>,
) -> Result<Place<'a>, String> {
    let ram = scratch.ram();
    let place = Place {
        mount: scratch.mount_point(),
        tree: ram.join("tree.tar"),
        repository: ram.join("repository.git"),
        history,
        data: &scratch.data,
        remover: Remover::default(),
    };
    let shell = |script: &str, source: &Path| {
        let mut shell = Command::new("sh");
        quiet(shell.arg("-ec").arg(script).env("SOURCE", source).current_dir(&ram))
    };
    match tree {
        Some(tree) => shell("cp \"$SOURCE\" tree.tar", tree)?,
        None => {
            let sources = linux_sources()?;
            eprintln!("taking parts of {}", sources.display());
            if let Some(odd) = parts.iter().find(|part| part.contains('\'')) {
                return Err(format!("there is no directory {odd:?} in the Linux sources"));
            }
            let parts: Vec<String> = parts.iter().map(|part| format!("'linux-source-*/{part}'")).collect();
            let (parts, choose) = (parts.join(" "), "--wildcards --no-wildcards-match-slash");
            shell(&format!("mkdir all && tar xf \"$SOURCE\" -C all {choose} {parts}"), &sources)?;
            shell("tar cf tree.tar -C all . && rm -rf all", &sources)?;
        }
    }
    check_interrupt()?;
    eprintln!("making a git repository of the tree");
    shell(
        "mkdir work && tar xf tree.tar -C work && cd work && git init -q && git config maintenance.auto false && git add -A --force",
        &ram,
    )?;
    shell("cd work && git -c user.name=a -c user.email=a@b commit -qm tree", &ram)?;
    // In one pack, as a server would send it.
    shell("cd work && git repack -adq && git prune-packed -q", &ram)?;
    shell("git clone -q --bare --no-hardlinks work repository.git && rm -rf work", &ram)?;
    Ok(place)
}

fn linux_sources() -> Result<PathBuf, String> {
    let entries = std::fs::read_dir("/usr/src").into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let tarred = entries.filter(|path| name(path).starts_with("linux-source-") && name(path).contains(".tar."));
    tarred.max().ok_or_else(|| {
        "no source tree: apt install linux-source, or give a tar file with --tree (any source tree will do)".into()
    })
}

/// One contender in one round.
struct Round<'a> {
    subject: &'a str,
    contender: &'a Contender,
    scratch: &'a Scratch,
    place: &'a Place<'a>,
    done: &'a [bool],
}

impl Round<'_> {
    /// Does the chosen rows. A row that fails a peer is noted, and what needs it is left out; the subject must not fail.
    fn run(&self, results: &mut Results) -> Result<(), String> {
        let name = self.contender.name;
        self.contender.make(self.scratch).map_err(|error| format!("{name}: {error}"))?;
        self.scratch.drop_caches()?;
        let mut mounted = self.contender.mount(self.scratch).map_err(|error| format!("{name}: {error}"))?;
        let (mut rss, mut open_files) = (None, None);
        let mut failed: Vec<&str> = Vec::new();
        for (index, row) in ROWS.iter().enumerate().filter(|(index, _)| self.done[*index]) {
            check_interrupt()?;
            let needs_fio = row.uses_fio() && find_program("fio").is_none();
            if needs_fio || row.needs.iter().any(|need| failed.contains(need)) {
                failed.push(row.name);
                continue;
            }
            let figure = match row.measure {
                Measure::Server if row.name == PEAK_MEMORY => rss.map(Ok),
                Measure::Server if row.name == OPEN_FILES => open_files.map(Ok),
                Measure::Server => None,
                Measure::Time(_) | Measure::Figure(_) => {
                    if row.cold {
                        mounted.unmount().map_err(|error| format!("{name}: {error}"))?;
                        self.scratch.drop_caches()?;
                        mounted = self.contender.mount(self.scratch).map_err(|error| format!("{name}: {error}"))?;
                    }
                    let figure = self.measure(row.measure);
                    note_usage(&mounted, &mut rss, &mut open_files);
                    Some(figure)
                }
            };
            match figure {
                Some(Ok(figure)) => {
                    eprintln!("  {}: {figure:.3} {}", row.name, row.unit.name());
                    results.figures.entry((index, name)).or_default().push(figure);
                }
                Some(Err(error)) => {
                    check_interrupt()?;
                    if name == self.subject {
                        return Err(format!("{name} failed at {}: {error}", row.name));
                    }
                    eprintln!("{name} failed at {}: {error}", row.name);
                    results.failures.insert((index, name), error);
                    failed.push(row.name);
                }
                None => {}
            }
        }
        mounted.unmount().map_err(|error| format!("{name}: {error}"))
    }

    fn measure(&self, measure: Measure) -> Result<f64, String> {
        let began = Instant::now();
        match measure {
            Measure::Time(act) => act(self.place).map(|()| began.elapsed().as_secs_f64()),
            Measure::Figure(act) => act(self.place),
            Measure::Server => Err("it is not measured this way".into()),
        }
    }
}

fn note_usage(mounted: &Mounted, rss: &mut Option<f64>, open_files: &mut Option<f64>) {
    if let Some(usage) = mounted.usage() {
        *rss = Some(rss.unwrap_or(0.0).max(usage.rss_mib));
        *open_files = Some(open_files.unwrap_or(0.0).max(usage.open_files));
    }
}
