//! The S3 door beside other servers of S3: the same client, the same loopback, the same directory.

mod client;
mod contender;

use crate::bench::server::Place;
use crate::bench::table::align;
use crate::bench::{catch_signals, check_interrupt, machine, median};
use client::{Asked, Load};
use contender::{Contender, Kind, OURS, PEERS};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How many times the best peer ours should be.
const BAR: f64 = 0.8;

/// What to compare.
#[derive(clap::Args)]
pub struct Options {
    /// Rounds; the table shows medians.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Connections at once.
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Objects of 4 KiB.
    #[arg(long, default_value_t = 8000)]
    small: usize,
    /// Objects of 8 MiB.
    #[arg(long, default_value_t = 96)]
    large: usize,
    /// Where devices and directories of all servers are; in memory, flushing costs nobody anything.
    #[arg(long, default_value = "/dev/shm")]
    at: PathBuf,
    /// MinIO's program. Default: the one in PATH; who is not found does not take part.
    #[arg(long, value_name = "PROGRAM")]
    peer_minio: Option<PathBuf>,
    /// Versity's gateway.
    #[arg(long, value_name = "PROGRAM")]
    peer_versitygw: Option<PathBuf>,
    /// SeaweedFS's program.
    #[arg(long, value_name = "PROGRAM")]
    peer_weed: Option<PathBuf>,
    /// One JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

impl Options {
    fn given(&self, kind: Kind) -> Option<PathBuf> {
        match kind {
            Kind::Ashlar(_) => None,
            Kind::MinIo => self.peer_minio.clone(),
            Kind::Versity => self.peer_versitygw.clone(),
            Kind::SeaweedFs => self.peer_weed.clone(),
        }
    }
    fn loads(&self) -> [Load; 4] {
        let load = |asked, size, count| Load { asked, size, count, connections: self.connections.max(1) };
        let (small, large) = (4 << 10, 8 << 20);
        [
            load(Asked::Put, small, self.small),
            load(Asked::Get, small, self.small),
            load(Asked::Put, large, self.large),
            load(Asked::Get, large, self.large),
        ]
    }
}

/// Requests per second, one figure for each round.
type Figures = BTreeMap<(usize, String), Vec<f64>>;

/// `cargo xtask bench s3`.
pub fn s3(options: &Options) -> Result<(), String> {
    catch_signals()?;
    let ashlar = crate::ashlar()?;
    let mut contenders = Vec::new();
    for kind in OURS {
        contenders.push(Contender::find(kind, Some(&ashlar))?);
    }
    let mut missing = Vec::new();
    for kind in PEERS {
        match Contender::find(kind, options.given(kind).as_deref()) {
            Ok(peer) => contenders.push(peer),
            Err(error) => missing.push(error),
        }
    }
    if contenders.len() == OURS.len() {
        return Err(format!("there is nobody to compare with: {}", missing.join("; ")));
    }
    let facts = machine::facts(Some(&options.at));
    let mut figures = Figures::new();
    for round in 0..options.runs {
        for turn in 0..contenders.len() {
            let contender = &contenders[(turn + round) % contenders.len()];
            eprintln!("round {} of {}: {}", round + 1, options.runs, contender.name);
            let place = Place::within(&options.at, "s3")?;
            let (server, client) = contender.start(&place.0).map_err(|error| format!("{}: {error}", contender.name))?;
            for (row, load) in options.loads().iter().enumerate() {
                check_interrupt()?;
                let rate = client.run(load).map_err(|error| format!("{}: {error}", contender.name))?;
                figures.entry((row, contender.name.clone())).or_default().push(rate);
            }
            server.signal("INT")?;
            server.wait_for_end()?;
        }
    }
    let rows: Vec<Value> =
        options.loads().iter().enumerate().map(|(row, load)| row_of(row, load, &contenders, &figures)).collect();
    if options.json {
        let promises: BTreeMap<_, _> =
            contenders.iter().map(|one| (&one.name, (&one.version, one.kind.promise()))).collect();
        println!("{:#}", json!({ "machine": facts, "contenders": promises, "missing": missing, "rows": rows }));
    } else {
        println!("{}\n\n{}", machine::heading(&facts), text(&rows, options, &contenders, &missing));
    }
    Ok(())
}

fn row_of(row: usize, load: &Load, contenders: &[Contender], figures: &Figures) -> Value {
    let of = |name: &str| figures.get(&(row, name.to_string())).map_or(f64::NAN, |figures| median(figures));
    let best = contenders.iter().skip(OURS.len()).map(|peer| (of(&peer.name), &peer.name));
    let best = best.max_by(|one, other| one.0.total_cmp(&other.0));
    let measured: BTreeMap<&str, Value> = contenders
        .iter()
        .map(|one| {
            let rounds = figures.get(&(row, one.name.clone()));
            (one.name.as_str(), json!({ "median": of(&one.name), "rounds": rounds }))
        })
        .collect();
    let ratios: BTreeMap<&str, Value> = contenders
        .iter()
        .take(OURS.len())
        .map(|ours| {
            let ratio = of(&ours.name) / best.map_or(f64::NAN, |(best, _)| best);
            (ours.name.as_str(), json!({ "ratio": ratio, "reached": ratio >= BAR }))
        })
        .collect();
    json!({
        "asked": load.asked.name(), "bytes": load.size, "objects": load.count, "connections": load.connections,
        "measured": measured, "best_peer": best.map(|(_, name)| name), "ratios": ratios, "bar": BAR,
    })
}

fn text(rows: &[Value], options: &Options, contenders: &[Contender], missing: &[String]) -> String {
    let mut header = vec!["requests/s".to_string()];
    header.extend(contenders.iter().map(|one| one.name.clone()));
    header.push("best peer".into());
    header.extend(contenders.iter().take(OURS.len()).map(|ours| format!("{} / best", ours.name)));
    header.push("bar".into());
    let mut lines = vec![header];
    for row in rows {
        let size = row["bytes"].as_u64().unwrap_or(0);
        let size = if size < 1 << 20 { format!("{} KiB", size >> 10) } else { format!("{} MiB", size >> 20) };
        let mut line = vec![format!("{} {size}", row["asked"].as_str().unwrap_or_default())];
        for one in contenders {
            let rounds = row["measured"][&one.name]["rounds"].as_array().cloned().unwrap_or_default();
            let (least, most) = rounds
                .iter()
                .filter_map(Value::as_f64)
                .fold((f64::MAX, f64::MIN), |(least, most), rate| (least.min(rate), most.max(rate)));
            let rate = row["measured"][&one.name]["median"].as_f64().unwrap_or(f64::NAN);
            line.push(format!("{rate:.0} ({:.1})", most / least));
        }
        line.push(row["best_peer"].as_str().unwrap_or_default().into());
        for ours in contenders.iter().take(OURS.len()) {
            let ratio = &row["ratios"][&ours.name];
            let reached = if ratio["reached"].as_bool() == Some(true) { "yes" } else { "NO" };
            line.push(format!("{:.2} {reached}", ratio["ratio"].as_f64().unwrap_or(f64::NAN)));
        }
        line.push(BAR.to_string());
        lines.push(line);
    }
    let mut text = format!(
        "Every figure is measured: the median of {} rounds, with the largest over the smallest in brackets. {} connections, \
         URLs signed beforehand,\nbodies that do not compress and no checksum asked for. Behind a ratio: whether it \
         reaches the bar.\n\n{}\n",
        options.runs,
        options.connections,
        align(&lines)
    );
    for one in contenders {
        text += &format!("{}: {}. An answered put: {}\n", one.name, one.version, one.kind.promise());
    }
    for why in missing {
        text += &format!("did not take part: {why}\n");
    }
    text
}
