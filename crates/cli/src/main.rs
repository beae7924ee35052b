//! `ashlar`: the command line.

// They panic when nobody takes what they say: see `ashlar_env::say`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arguments;
mod array;
mod check;
mod client;
mod config;
mod crash;
mod daemon;
mod device;
mod device_files;
mod engine;
mod explain;
mod faults;
mod framing;
#[cfg(test)]
mod fuzz;
mod lab;
mod ledger;
mod list;
mod mounting;
mod objects;
mod output;
mod plan;
mod prove;
mod regions;
mod remove;
mod request;
mod schedule;
mod schemas;
mod session;
mod signals;
mod survey;
mod up;
mod volume;

use crate::arguments::{Arguments, Command, DeviceCommand, FsCommand, PoolCommand, S3Command, SnapshotCommand};
use crate::output::{Failure, Output};
use crate::request::{How, Request};
use clap::CommandFactory;
use std::path::Path;
use std::process::ExitCode;

/// Buffers that must be page-aligned leave holes in the C library's heap, which then takes four times what is in use.
/// (Tests have one that counts.)
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    signals::survive_long_files();
    if let Some(helper) = mounting::Helper::called() {
        return helper.run();
    }
    let arguments = schemas::read(survey::arguments::with_json_file(std::env::args_os()));
    let output = Output::new(arguments.json, arguments.json_schema);
    match run(arguments, &output) {
        Ok(code) => output.ended(code),
        Err(failure) => output.fail(&failure),
    }
}

fn run(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let pool = arguments.pool;
    let ask = |request: Request| client::ask(&config::pool_directory(pool.as_deref())?, request, output);
    match arguments.command {
        Command::Pool(PoolCommand::Create(create)) => up::create(&create, output),
        Command::Pool(PoolCommand::Grow(grow)) => {
            let device = grow.device.filter(|_| !output.wants_schema());
            let path = device.map(|device| device_files::device_file(&device)).transpose()?;
            ask(Request::PoolGrow { path, force: grow.force })
        }
        Command::Pool(PoolCommand::Trim) => ask(Request::PoolTrim),
        Command::Array(command) => array::run(pool.as_deref(), command, output),
        Command::Up(up) => up::up(pool.as_deref(), &up, output),
        Command::Down => client::down(&config::pool_directory(pool.as_deref())?, output),
        Command::Mount(mount) => up::mount(pool.as_deref(), mount, output),
        Command::Status { name: None } => ask(Request::Status),
        Command::Status { name: Some(name) } => ask(Request::FsStatus { name }),
        Command::Check(check) if check.of.store.is_some() || check.of.region.is_some() => {
            regions::check(pool.as_deref(), &check.of, check.repair, output)
        }
        Command::Check(check) => ask(Request::Check { repair: check.repair }),
        Command::Regions(arguments) => regions::run(pool.as_deref(), &arguments, output),
        Command::Fs(command) => ask(match command {
            FsCommand::Create { name, engine, devices, medium, force, inline } => {
                if !devices.is_empty() && !output.wants_schema() {
                    // What cannot be made needs no pool.
                    engine::zones(engine, inline)?;
                    let directory = config::pool_directory(pool.as_deref())?;
                    up::create_for(&name, directory, (devices, medium, force))?;
                }
                Request::FsCreate { name, engine, inline: inline.map(|size| size.0) }
            }
            FsCommand::List => Request::FsList,
            FsCommand::Rename { from, to } => Request::FsRename { from, to },
            FsCommand::Destroy { name } => Request::FsDestroy { name },
        }),
        Command::Remove(arguments) => remove::run(pool.as_deref(), &arguments, output),
        Command::Snapshot(command) => ask(match command {
            SnapshotCommand::Create { name } => Request::SnapshotCreate { name },
            SnapshotCommand::List => Request::SnapshotList,
            SnapshotCommand::Destroy { name } => Request::SnapshotDestroy { name },
            SnapshotCommand::Clone { name, to } => Request::SnapshotClone { name, to },
            SnapshotCommand::Mount { name, .. } if !name.contains('@') && !output.wants_schema() => {
                return Err(session::no_snapshot_name(&name));
            }
            SnapshotCommand::Mount { name, at } => Request::Mount { name, at: up::place(&at)?, how: How::default() },
        }),
        Command::Volume(command) => volume::run(pool.as_deref(), command, output),
        Command::Bucket(command) => objects::bucket(pool.as_deref(), command, output),
        Command::Objects(command) => objects::objects(pool.as_deref(), command, output),
        Command::S3(S3Command::Serve(serve)) => objects::serve(pool.as_deref(), &serve, output),
        Command::Survey(survey) => survey::run(&survey, output),
        Command::Prove(command) => prove::run(command, output),
        Command::Device(DeviceCommand::Models { model }) => device::models(model.as_deref(), output),
        Command::Device(DeviceCommand::Probe(arguments)) => device::probe(&arguments, output),
        Command::Device(DeviceCommand::Calibrate { model }) => device::calibrate(&model, output),
        Command::Device(DeviceCommand::Serve(arguments)) => device::serve(&arguments, output),
        Command::Device(DeviceCommand::Control { socket, command }) => device::control(&socket, &command, output),
        Command::Device(DeviceCommand::Trace { socket, output: file }) => device::trace(&socket, &file, output),
        Command::Lab(command) => lab::run(command, pool.as_deref(), output),
        Command::Plan(command) => plan::run(command, output),
        Command::Ledger(arguments) => ledger::run(&arguments, output),
        Command::Layers { name } => explain::layers(name.as_deref(), output),
        Command::Explain { name } => explain::explain(&name, output),
        Command::Completions { shell } => {
            output.no_document()?;
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "ashlar", &mut text);
            output.put(&String::from_utf8_lossy(&text));
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { directory } => man(directory.as_deref(), output),
    }
}

/// Manual pages: one to standard output, or all into a directory.
fn man(directory: Option<&Path>, output: &Output) -> Result<ExitCode, Failure> {
    output.no_document()?;
    let command = Arguments::command();
    let written = match directory {
        Some(directory) => clap_mangen::generate_to(command, directory),
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(command).render(&mut text).map(|()| output.put(&String::from_utf8_lossy(&text)))
        }
    };
    written.map_err(|error| Failure::new(format!("cannot write manual pages: {error}")))?;
    Ok(ExitCode::SUCCESS)
}
