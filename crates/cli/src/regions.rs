//! `ashlar regions` and `ashlar check STORE`: the map of a region store, and its repair.

use crate::arguments::CheckStore;
use crate::objects::catalogue;
use crate::objects::control::{self, Answer, Request};
use crate::output::{Failure, Output};
use crate::{config, framing};
use ashlar_block::{Device, Kind as ErrorKind};
use ashlar_devices::{FileDevice, OpenOptions};
use ashlar_env::Env;
use ashlar_env::real::Real;
use ashlar_objects::Error;
use ashlar_regions::{Checked, Config, Health, Memory, Progress, RegionStatus, Regions, Status, format};
use ashlar_report::{Axis, Origin, Plot, Series, escape, page};
use ashlar_units::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The map of a region store.
#[derive(Args)]
pub struct RegionsArguments {
    /// The file or block device that the store is on, or the name of its bucket in the pool's directory (--pool). If `ashlar s3
    /// serve` of that directory has it open, it is asked.
    #[arg(value_name = "STORE")]
    pub store: PathBuf,
    /// Write the map as a picture, too: an HTML page.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Make an empty store first. A file that is not there is made of the size that --size says.
    #[arg(long)]
    pub format: bool,
    /// Size of a file that is made.
    #[arg(long, value_name = "SIZE", requires = "format")]
    pub size: Option<Bytes>,
    /// Size of a region.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", requires = "format")]
    pub region: Bytes,
    /// Size of a large block.
    #[arg(long, value_name = "SIZE", default_value = "512KiB", requires = "format")]
    pub large_block: Bytes,
    /// Expected mean size of objects, by which the lookup table is sized.
    #[arg(long, value_name = "SIZE", default_value = "250KiB", requires = "format")]
    pub object_mean: Bytes,
    /// Small blocks of 4KiB for each onode of a small region: 8 suits objects of 32KiB, 1 tiny ones.
    #[arg(long, value_name = "N", default_value = "8", requires = "format")]
    pub blocks_per_onode: u64,
    /// With --format: replace the store that is there, with all its objects.
    #[arg(long, requires = "format")]
    pub force: bool,
}

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Map(Status);

impl fmt::Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { device, region_bytes, large_block_bytes, objects, log_blocks, regions, tail, .. } = &self.0;
        writeln!(
            f,
            "{device}: {objects} objects, {} regions of {}, large blocks of {}, {} of {} blocks of the log in use",
            regions.len(),
            Bytes(*region_bytes),
            Bytes(*large_block_bytes),
            log_blocks[0],
            log_blocks[1]
        )?;
        writeln!(f, "region  kind    objects  fill  fragmented  generation        health")?;
        for region in regions.iter().chain(tail) {
            let percent = |share: f64| format!("{:.0}%", share * 100.0);
            let kind = format!("{:?}", region.kind).to_lowercase();
            let fragmented = region.fragmentation.map_or("-".into(), percent);
            let health = if region.health == Health::Good { "good" } else { "damaged" };
            writeln!(
                f,
                "{:>6}  {kind:<6}  {:>7}  {:>4}  {fragmented:>10}  {:<16x}  {health}",
                number_of(&self.0, region),
                region.objects,
                percent(region.fill),
                region.generation
            )?;
        }
        Ok(())
    }
}

/// What people call a region.
fn number_of(status: &Status, region: &RegionStatus) -> String {
    if status.tail.as_ref() == Some(region) { "tail".into() } else { region.region.to_string() }
}

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Report(Checked);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Checked { regions, objects, problems, lost, damaged, pages_rebuilt, names_rebuilt, repaired } = &self.0;
        writeln!(f, "{regions} regions, {objects} objects")?;
        problems.iter().try_for_each(|problem| writeln!(f, "wrong: {problem}"))?;
        damaged.iter().try_for_each(|name| writeln!(f, "damaged contents: {name}"))?;
        lost.iter().try_for_each(|name| writeln!(f, "lost: {name}"))?;
        if *pages_rebuilt > 0 {
            writeln!(f, "{pages_rebuilt} buckets of the lookup table were made anew")?;
        }
        if *names_rebuilt {
            writeln!(f, "the index of names was made anew")?;
        }
        match (self.0.is_clean(), repaired) {
            (true, _) => writeln!(f, "nothing is wrong"),
            (false, true) => writeln!(f, "mended what can be mended"),
            (false, false) => writeln!(f, "run it with --repair to mend what can be mended"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(error.to_string())
    }
}

fn open(path: &Path, create: Option<Bytes>, env: &Env) -> Result<Device, Failure> {
    let options = OpenOptions { create, ..OpenOptions::default() };
    Ok(Arc::new(FileDevice::open(path, &options, env.clone())?))
}

/// Where a store is: here, or with the server that has it open.
enum Found {
    Here(Device),
    Served(UnixStream, PathBuf),
}

/// The device of a store that goes by its path or by the name of its bucket.
fn device_of(pool: Option<&Path>, store: &Path) -> Result<PathBuf, Failure> {
    if store.exists() {
        return Ok(store.into());
    }
    let buckets = catalogue::read(&config::pool_directory(pool)?)?.bucket;
    let spec = store.to_str().and_then(|name| buckets.get(name)).filter(|spec| spec.engine == "regions");
    spec.and_then(|spec| spec.device.clone()).ok_or_else(|| {
        let shown = store.display();
        Failure::new(format!(
            "{shown}: there is no such device, and no bucket of engine regions of this name; `ashlar bucket list` names all"
        ))
    })
}

/// Finds a store. One that another process uses is asked for at `ashlar s3 serve` of this pool's directory.
fn find(pool: Option<&Path>, store: &Path, env: &Env) -> Result<Found, Failure> {
    let path = device_of(pool, store)?;
    let error = match FileDevice::open(&path, &OpenOptions::default(), env.clone()) {
        Ok(device) => return Ok(Found::Here(Arc::new(device))),
        Err(error) if error.kind() == ErrorKind::Retry => error,
        Err(error) => return Err(error.into()),
    };
    let directory = config::pool_directory(pool)?;
    let stream = control::connect(&directory).ok_or_else(|| {
        let server = format!("if `ashlar s3 serve` uses it, name its pool with --pool, not {}", directory.display());
        Failure::new(format!("{error}; {server}"))
    })?;
    let path = path.canonicalize().map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    Ok(Found::Served(stream, path))
}

/// Asks the server.
fn ask(stream: UnixStream, request: &Request, progress: &Progress) -> Result<Answer, Failure> {
    Ok(framing::ask(stream, "the server", request, &|done, all| progress(done, all))?.0)
}

/// A bar for what goes through regions.
fn bar(output: &Output) -> (ProgressBar, Progress) {
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} regions, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let shown = bar.clone();
    let progress = move |done, all| {
        shown.set_length(all);
        shown.set_position(done);
    };
    (bar, Arc::new(progress))
}

const STRANGE: &str = "the server answers something else; is it of another version?";

/// `ashlar regions`.
pub fn run(pool: Option<&Path>, arguments: &RegionsArguments, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Map>() {
        return Ok(code);
    }
    let real = Real::start(1).map_err(|error| Failure::new(error.to_string()))?;
    let env = real.env();
    let config = arguments.format.then_some(Config {
        region: arguments.region,
        large_block: arguments.large_block,
        object_mean: arguments.object_mean,
        blocks_per_onode: arguments.blocks_per_onode,
        force: arguments.force,
        ..Config::default()
    });
    let found = match config {
        Some(_) => Found::Here(open(&arguments.store, arguments.size, &env)?),
        None => find(pool, &arguments.store, &env)?,
    };
    let status = match found {
        Found::Here(device) => real.block_on(async move {
            if let Some(config) = config {
                format(&env, &device, config).await?;
            }
            let store = Regions::open(&env, device, Memory::default()).await?;
            let status = store.status(true).await?;
            store.close().await?;
            Ok::<_, Failure>(status)
        })?,
        Found::Served(stream, store) => match ask(stream, &Request::Map { store }, &bar(output).1)? {
            Answer::Map(status) => status,
            Answer::Checked(_) => return Err(Failure::new(STRANGE)),
        },
    };
    if let Some(file) = &arguments.picture {
        let html = picture(&status);
        std::fs::write(file, html).map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
    }
    output.print(&Map(status));
    Ok(ExitCode::SUCCESS)
}

/// The map as a page: how full and how fragmented each region is, by kind.
fn picture(status: &Status) -> String {
    let regions = || status.regions.iter().chain(&status.tail);
    let categories: Vec<String> = regions().map(|region| number_of(status, region)).collect();
    let share = Axis::new("share, %").from(0.0);
    let mut fill = Plot::bars("How full each region is", categories.clone(), share, Origin::Measured);
    for (name, kind) in [
        ("large", ashlar_regions::Kind::Large),
        ("small", ashlar_regions::Kind::Small),
        ("table", ashlar_regions::Kind::Table),
    ] {
        let of_kind = regions().map(|region| if region.kind == kind { region.fill * 100.0 } else { 0.0 });
        fill = fill.with(Series::bars(name, of_kind.collect()));
    }
    let values = regions().map(|region| region.fragmentation.unwrap_or(0.0) * 100.0);
    let title = "How fragmented free space is: what of it lies outside its longest extent";
    let share = Axis::new("share, %").from(0.0);
    let fragmented =
        Plot::bars(title, categories, share, Origin::Measured).with(Series::bars("free space", values.collect()));
    let damaged: Vec<String> = regions()
        .filter(|region| region.health == Health::Damaged)
        .map(|region| format!("<p>Region {} is damaged.</p>", number_of(status, region)))
        .collect();
    let head = format!("<p>{} objects on {}</p>{}", status.objects, escape(&status.device), damaged.concat());
    page("Regions", &(head + &fill.figure_html() + &fragmented.figure_html()))
}

/// `ashlar check STORE`.
pub fn check(pool: Option<&Path>, arguments: &CheckStore, repair: bool, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let real = Real::start(1).map_err(|error| Failure::new(error.to_string()))?;
    let env = real.env();
    let Some(path) = &arguments.store else {
        return Err(
            Failure::new("--region needs the store that the region is of: ashlar check STORE --region N").with_code(2)
        );
    };
    let (region, (bar, progress)) = (arguments.region, bar(output));
    let checked = match find(pool, path, &env)? {
        Found::Here(device) => real.block_on(async move {
            let (store, recovered) = Regions::open_with_report(&env, device, Memory::default()).await?;
            let mut checked = store.check_telling(region, repair, progress).await?;
            checked.problems.splice(..0, recovered.damage);
            store.close().await?;
            Ok::<_, Failure>(checked)
        }),
        Found::Served(stream, store) => match ask(stream, &Request::Check { store, region, repair }, &progress) {
            Ok(Answer::Map(_)) => Err(Failure::new(STRANGE)),
            Ok(Answer::Checked(checked)) => Ok(checked),
            Err(failure) => Err(failure),
        },
    };
    bar.finish_and_clear();
    let checked = checked?;
    let wrong = !checked.is_clean() && !checked.repaired || !checked.lost.is_empty() || !checked.damaged.is_empty();
    output.print(&Report(checked));
    Ok(ExitCode::from(u8::from(wrong)))
}
