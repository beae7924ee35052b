//! `ashlar volume`: block volumes with devices of their own.

pub mod arguments;
pub mod catalogue;
mod create;
mod serve;

use self::arguments::VolumeCommand;
use self::catalogue::{LIST, Spec, missing};
use self::create::create;
use self::serve::{check, serve};
use crate::config;
use crate::output::{Failure, Output};
use crate::request::Done;
use ashlar_layers::{ProximalSpec, Stack};
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// The layer of a stack that is the volume.
const TOP: &str = "volume";

/// A volume in a list.
#[derive(Serialize, JsonSchema)]
struct Volume {
    /// Its name.
    name: String,
    /// What lays it out.
    engine: String,
    /// How large it is, in bytes.
    size: u64,
    /// When it was made, in seconds since 1970.
    created: u64,
    /// Files and devices that it is on.
    devices: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Volumes(Vec<Volume>);

impl fmt::Display for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Volume { name, engine, size, devices, .. } in &self.0 {
            writeln!(f, "{name:<30} {engine:<10} {:>10}  {}", Bytes(*size).to_string(), devices.join(" "))?;
        }
        match self.0.is_empty() {
            true => writeln!(f, "no volumes; `ashlar volume create NAME --engine proximal ...` makes one"),
            false => Ok(()),
        }
    }
}

/// The layer at the top of a volume.
fn proximal(stack: &Stack) -> Result<&ProximalSpec, Failure> {
    match stack.layer.get(TOP) {
        Some(ashlar_layers::Spec::Proximal(spec)) => Ok(spec),
        _ => Err(Failure::new(format!("volumes.toml: the layer {TOP} of a volume is one of kind proximal"))),
    }
}

fn listed((name, Spec { created, stack }): (String, Spec)) -> Result<Volume, Failure> {
    let size = &proximal(&stack)?.size;
    let size = size.parse::<Bytes>().map_err(|error| Failure::new(format!("volumes.toml: {name}: {error}")))?.0;
    let path = |spec: &ashlar_layers::Spec| match spec {
        ashlar_layers::Spec::File(file) => Some(file.path.display().to_string()),
        _ => None,
    };
    let devices = stack.layer.values().filter_map(path).collect();
    Ok(Volume { name, engine: "proximal".into(), size, created, devices })
}

/// `ashlar volume`.
pub fn run(pool: Option<&Path>, command: VolumeCommand, output: &Output) -> Result<ExitCode, Failure> {
    let directory = config::pool_directory(pool)?;
    match command {
        VolumeCommand::Create(arguments) => create(&directory, &arguments, output),
        VolumeCommand::Serve(arguments) => serve(&directory, &arguments, output),
        VolumeCommand::Check { name } => check(&directory, &name, output),
        VolumeCommand::List => {
            if let Some(code) = output.schema::<Volumes>() {
                return Ok(code);
            }
            let all = LIST.read(&directory)?.volume.into_iter().map(listed);
            output.print(&Volumes(all.collect::<Result<_, _>>()?));
            Ok(ExitCode::SUCCESS)
        }
        VolumeCommand::Rm { name } => {
            if let Some(code) = output.schema::<Done>() {
                return Ok(code);
            }
            LIST.change(&directory, |list| list.volume.remove(&name).map(drop).ok_or_else(|| missing(&name)))?;
            output.print(&Done { done: format!("{name} is no volume any more; its devices are as they were") });
            Ok(ExitCode::SUCCESS)
        }
    }
}
