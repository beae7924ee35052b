//! `ashlar volume create`.

use super::TOP;
use super::arguments::{VolumeCreate, VolumeEngine};
use super::catalogue::{LIST, Spec};
use crate::array;
use crate::device_files::DeviceFiles;
use crate::output::{Failure, Output};
use crate::request::Done;
use ashlar_array::Creation;
use ashlar_env::real::Real;
use ashlar_layers::{FileSpec, ProximalSpec, RaidSpec, Stack};
use ashlar_proximal::Engine;
use ashlar_units::{Blocks, Bytes};
use std::path::Path;
use std::process::ExitCode;

/// Names of layers.
const ARRAY: &str = "array";
const STAGING: &str = "staging";

/// Makes the array if there is to be one, the store, and last the entry, so that what is listed is there.
pub fn create(directory: &Path, create: &VolumeCreate, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    let VolumeEngine::Proximal = create.engine;
    if !ashlar_s3::is_bucket_name(&create.name) {
        let help = "3 to 63 lower-case letters, digits, '.' and '-', with a letter or digit at both ends";
        return Err(Failure::new(format!("{:?} is no name of a volume: {help}", create.name)));
    }
    let exists = || Failure::new(format!("there is a volume {:?} already", create.name));
    if LIST.read(directory)?.volume.contains_key(&create.name) {
        return Err(exists());
    }
    let mut files = DeviceFiles::default();
    let mut stack = below(create, &mut files)?;
    let real = Real::start(1).map_err(|error| Failure::new(error.to_string()))?;
    if let Some(array) = create.array {
        let creation = Creation { force: create.force, ..Creation::new(array.level) };
        let paths = files.paths(&create.devices)?;
        array::make_on(&real, &paths, creation, output)?;
    }
    let size = real.block_on({
        let (env, base, stack) = (real.env(), directory.to_path_buf(), stack.clone());
        let (force, size) = (create.force, create.size);
        async move {
            let built = stack.build(&base, &env).await?;
            let [data, staging] = &built.devices[..] else { return Err(Failure::new("a volume has two devices")) };
            let capacity = data.geometry().capacity;
            // As full as the paper's.
            let usual = Blocks(capacity.0 / 100 * 89).to_bytes();
            let size = size.unwrap_or(usual).to_blocks_down().to_bytes();
            if size == Bytes(0) {
                return Err(Failure::new(format!("{} has no room for a volume", data.name())));
            }
            Engine::create(&env, data, staging, ashlar_proximal::Creation { force, ..Default::default() }).await?;
            Ok(size)
        }
    })?;
    let spec = ProximalSpec {
        data: stack.devices[0].clone(),
        staging: STAGING.into(),
        size: size.0.to_string(),
        staged: create.staged.map(|staged| staged.0.to_string()),
        make: false,
    };
    stack.layer.insert(TOP.into(), ashlar_layers::Spec::Proximal(spec));
    stack.devices = vec![TOP.into()];
    // Opened once: what cannot be is refused now, and the volume is there.
    real.block_on({
        let (env, base, stack) = (real.env(), directory.to_path_buf(), stack.clone());
        async move { stack.build(&base, &env).await.map(drop) }
    })?;
    let spec = Spec { created: real.env().wall().as_secs(), stack };
    LIST.change(directory, |list| match list.volume.insert(create.name.clone(), spec) {
        None => Ok(()),
        Some(_) => Err(exists()),
    })?;
    files.keep();
    let name = &create.name;
    output.print(&Done { done: format!("made volume {name} of {size}; `ashlar volume serve {name}` serves it") });
    Ok(ExitCode::SUCCESS)
}

/// The devices of a volume, with an array if there is to be one: data and staging.
fn below(create: &VolumeCreate, files: &mut DeviceFiles) -> Result<Stack, Failure> {
    let mut stack = Stack::default();
    let mut add = |name: String, device| -> Result<String, Failure> {
        let file = FileSpec { path: files.path(device)?, buffered: false };
        stack.layer.insert(name.clone(), ashlar_layers::Spec::File(file));
        Ok(name)
    };
    let count = create.devices.len();
    match create.array.map(|array| array.members) {
        None if count > 1 => {
            return Err(Failure::new(format!(
                "{count} devices for the data: say what to make of them, as in --array raid5"
            )));
        }
        Some(Some(members)) if members != count => {
            return Err(Failure::new(format!("the array is to have {members} members, and {count} devices are given")));
        }
        _ => {}
    }
    let named = |(index, device)| add(format!("disk-{index}"), device);
    let mut names = create.devices.iter().enumerate().map(named).collect::<Result<Vec<_>, Failure>>()?;
    add(STAGING.into(), &create.staging)?;
    if let Some(array) = create.array {
        let raid = RaidSpec { level: Some(array.level), ..RaidSpec::of(std::mem::take(&mut names)) };
        stack.layer.insert(ARRAY.into(), ashlar_layers::Spec::Raid(raid));
        names.push(ARRAY.into());
    }
    stack.devices = names.into_iter().chain([STAGING.to_string()]).collect();
    Ok(stack)
}
