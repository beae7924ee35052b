//! How exact an emulated device is in real time. A model with a known latency is served over NBD to a client that sends requests
//! at random times; what the device's trace says of lateness, and what the client saw beyond the latency, are compared with the
//! bar.

use crate::bench::server::{Place, Server, lateness};
use crate::bench::table::align;
use crate::bench::{arrivals, catch_signals, check_interrupt, find_program, machine, quiet};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Requests in a second.
const RATES: [u32; 3] = [1_000, 5_000, 20_000];
/// Latencies of the model, in microseconds.
const LATENCIES_US: [u32; 2] = [200, 5_000];
/// Blocks of the device: 1 GiB.
const BLOCKS: u64 = 1 << 18;
/// The bar: so late at the median, or so much of the latency, whichever is more.
const LATE_US: f64 = 50.0;
const LATE_SHARE: f64 = 0.02;

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Seconds for each rate.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Processor of the server alone, as taskset names it; the client has the others. Both share all if it is not given.
    #[arg(long)]
    core: Option<u32>,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// `cargo xtask bench timing`.
pub fn timing(options: &Options) -> Result<(), String> {
    catch_signals()?;
    if let Some(core) = options.core {
        find_program("taskset").ok_or("taskset is not installed; apt install util-linux")?;
        leave(core)?;
    }
    let ashlar = crate::ashlar()?;
    let facts = machine::facts(None);
    let place = Place::new("timing")?;
    let mut rows = Vec::new();
    for latency_us in LATENCIES_US {
        for rate in RATES {
            check_interrupt()?;
            eprintln!("{latency_us} us, {rate} requests/s");
            rows.push(measure(options, &ashlar, &place.0, latency_us, rate)?);
        }
    }
    if options.json {
        println!("{:#}", json!({ "machine": facts, "rows": rows }));
    } else {
        println!("{}\n\n{}", machine::heading(&facts), text(&rows));
    }
    Ok(())
}

/// A device that takes so long for everything.
fn model(latency_us: u32) -> String {
    let sources =
        ["capacity", "depth", "read_us", "write_us", "flush_us", "mb_s"].map(|name| format!("{name} = \"ours\"\n"));
    format!(
        "name = \"steady\"\nwhat = \"the same time for everything\"\nnot_modelled = [\"anything else\"]\n\n[sources]\n{}\n\
         [model.generic]\ncapacity = \"1GiB\"\ndepth = 4096\nread_us.constant = {latency_us}\nwrite_us.constant = {latency_us}\n\
         flush_us.constant = {latency_us}\nmb_s.constant = 1000000\n",
        sources.concat()
    )
}

fn measure(options: &Options, ashlar: &Path, place: &Path, latency_us: u32, rate: u32) -> Result<Value, String> {
    let [model_at, trace, socket] = ["model.toml", "trace.jsonl", "nbd.sock"].map(|name| place.join(name));
    for left in [&trace, &socket] {
        let _ = fs::remove_file(left);
    }
    fs::write(&model_at, model(latency_us)).map_err(|error| format!("{}: {error}", model_at.display()))?;
    let mut serve = on(options.core, ashlar);
    serve.args(["device", "serve"]).arg(&model_at).args(["--size", "1GiB", "--nbd"]);
    serve.arg(format!("unix:{}", socket.display())).arg("--trace").arg(&trace);
    let mut server = Server::start(&mut serve, place.join("server.log"))?;
    server.wait_for(&socket)?;
    let answers = arrivals::read_at_random(&socket, BLOCKS, rate, options.seconds)?;
    server.signal("INT")?;
    server.wait_for_end()?;
    let late = lateness(&trace)?;
    let at =
        |sorted: &[f64], share: f64| sorted.get((sorted.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let device = |share: f64| at(&late, share) / 1e3;
    let client = |share: f64| at(&answers.latencies_us, share) - f64::from(latency_us);
    let bar = LATE_US.max(LATE_SHARE * f64::from(latency_us));
    Ok(json!({
        "latency_us": latency_us, "rate": rate, "reached_rate": answers.rate,
        "late_us": { "p50": device(0.5), "p90": device(0.9), "p99": device(0.99) },
        "client_us": { "p50": client(0.5), "p90": client(0.9), "p99": client(0.99) },
        "bar_us": bar, "reached": device(0.5) <= bar, "client_reached": client(0.5) <= bar,
    }))
}

/// A program, on one processor.
fn on(core: Option<u32>, program: &Path) -> Command {
    let Some(core) = core else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &core.to_string()]).arg(program);
    command
}

/// Keeps this process, which is the client, away from a processor.
fn leave(core: u32) -> Result<(), String> {
    let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let others: Vec<String> = (0..count).filter(|other| *other != core).map(|other| other.to_string()).collect();
    if others.is_empty() {
        return Err("there is one processor only; leave out --core".into());
    }
    let own = std::process::id().to_string();
    quiet(Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", &others.join(","), &own]))
}

fn text(rows: &[Value]) -> String {
    let heads =
        ["model", "requests/s", "reached", "late p50", "p90", "p99", "client p50", "p90", "p99", "bar", "p50 in it"];
    let mut lines = vec![heads.map(String::from).to_vec()];
    for row in rows {
        let us = |side: &str, percent: &str| format!("{:.0} us", row[side][percent].as_f64().unwrap_or(f64::NAN));
        let mut line = vec![
            format!("{} us", row["latency_us"]),
            row["rate"].to_string(),
            format!("{:.0}", row["reached_rate"].as_f64().unwrap_or(f64::NAN)),
        ];
        for side in ["late_us", "client_us"] {
            line.extend(["p50", "p90", "p99"].map(|percent| us(side, percent)));
        }
        line.push(format!("{} us", row["bar_us"]));
        let said = |name: &str| if row[name] == true { "yes" } else { "NO" };
        line.push(format!("{}, client {}", said("reached"), said("client_reached")));
        lines.push(line);
    }
    format!(
        "Every figure is measured. *Late* is how much later than its model the device was done, from its trace; *client* is what \
         the client saw beyond the model's latency, with both ways over the socket in it. 4 KiB random reads, arrivals at random.\n\n{}",
        align(&lines)
    )
}
