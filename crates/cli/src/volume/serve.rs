//! Using a volume: serving it, and checking it.

use super::arguments::VolumeServe;
use super::catalogue::find;
use super::proximal;
use crate::config;
use crate::device::Exports;
use crate::output::{Failure, Output};
use crate::session::go_on;
use crate::signals::on_signal;
use ashlar_block::Checked;
use ashlar_env::real::Real;
use ashlar_nbd::ByteDevice;
use ashlar_proximal::{Config, Engine};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// `ashlar volume serve`.
pub fn serve(directory: &Path, serve: &VolumeServe, output: &Output) -> Result<ExitCode, Failure> {
    output.no_document()?;
    serve.exported.check()?;
    let spec = find(directory, &serve.name)?;
    let stop = on_signal()?;
    let real = Real::start(config::threads(serve.threads)).map_err(|error| Failure::new(error.to_string()))?;
    let (env, base) = (real.env(), directory.to_path_buf());
    let built = real.block_on(async move { spec.stack.build(&base, &env).await })?;
    let [device] = &built.devices[..] else { return Err(Failure::new("volumes.toml: a volume is one device")) };
    let rebuilds: Vec<_> = built.arrays.iter().filter_map(|(name, array)| go_on(&real.env(), name, array)).collect();
    let served = format!("volume {} of {}", serve.name, device.geometry().capacity.to_bytes());
    let device = Arc::new(ByteDevice::new(Arc::new(Checked::new(device.clone(), real.env())), "export"));
    let outcome = Exports::serve(&serve.exported, &real, &device, &served, &stop, output);
    let flushed = real.block_on({
        let device = device.clone();
        async move { device.flush().await }
    });
    built.arrays.iter().for_each(|(_, array)| array.stop());
    rebuilds.into_iter().for_each(|rebuild| real.block_on(rebuild));
    outcome?;
    flushed?;
    output.say(format_args!("everything is written; {} is served no more", serve.name));
    Ok(ExitCode::SUCCESS)
}

/// What a check found.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// Blocks of 4 KiB on the disk.
    blocks: u64,
    /// Blocks of the volume, or of a snapshot, whose data are not what was written.
    damaged: Vec<Block>,
    /// Other things that do not agree.
    inconsistent: Vec<String>,
}

/// A block of 4 KiB.
#[derive(Serialize, JsonSchema)]
struct Block {
    /// The snapshot, or nothing for the volume itself.
    snapshot: Option<String>,
    /// Its number.
    block: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "verified {} blocks on the disk", self.blocks)?;
        for Block { snapshot, block } in &self.damaged {
            let of = snapshot.as_ref().map_or(String::new(), |name| format!(" of snapshot {name}"));
            writeln!(f, "damaged: block {block}{of}; restore it from a copy")?;
        }
        self.inconsistent.iter().try_for_each(|text| writeln!(f, "inconsistent: {text}"))?;
        match self.damaged.is_empty() && self.inconsistent.is_empty() {
            true => writeln!(f, "everything is in order"),
            false => Ok(()),
        }
    }
}

/// `ashlar volume check`.
pub fn check(directory: &Path, name: &str, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Report>() {
        return Ok(code);
    }
    let mut stack = find(directory, name)?.stack;
    let spec = proximal(&stack)?;
    stack.devices = vec![spec.data.clone(), spec.staging.clone()];
    stack.layer.remove(super::TOP);
    let real = Real::start(config::threads(None)).map_err(|error| Failure::new(error.to_string()))?;
    let (env, base) = (real.env(), directory.to_path_buf());
    let found = real.block_on(async move {
        let built = stack.build(&base, &env).await?;
        let [data, staging] = &built.devices[..] else { return Err(Failure::new("a volume has two devices")) };
        let engine = Engine::open(&env, data.clone(), staging.clone(), Config::default()).await?;
        let found = engine.check().await?;
        engine.close().await?;
        Ok(found)
    })?;
    let damaged = found
        .damaged
        .into_iter()
        .map(|(snapshot, _, block)| Block { snapshot: (!snapshot.is_empty()).then_some(snapshot), block });
    let kinds = [
        ("belongs to several blocks of the volume", found.doubled),
        ("is in use, and the map of free blocks says it is not", found.lost),
        ("is used by nothing, and the map of free blocks says it is", found.idle),
    ];
    let say = |(what, blocks): (&'static str, Vec<u64>)| {
        blocks.into_iter().map(move |at| format!("block {at} of the disk {what}"))
    };
    let report = Report {
        blocks: found.live,
        damaged: damaged.collect(),
        inconsistent: kinds.into_iter().flat_map(say).collect(),
    };
    let code = u8::from(!report.damaged.is_empty() || !report.inconsistent.is_empty());
    output.print(&report);
    Ok(ExitCode::from(code))
}
