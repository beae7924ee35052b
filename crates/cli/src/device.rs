//! `ashlar device`: block devices for other programs.

use crate::arguments::Serve;
use crate::config;
use crate::output::{Failure, Output};
use ashlar_block::{Checked, Device};
use ashlar_devices::{FileDevice, Memory, OpenOptions};
use ashlar_env::Env;
use ashlar_env::real::Real;
use ashlar_nbd::{ByteDevice, Export, Limits, Server};
use ashlar_units::Bytes;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Size of a device in memory for which none is given.
const MEMORY: Bytes = Bytes::gib(1);

/// `ashlar device serve`.
pub fn serve(serve: &Serve, output: &Output) -> Result<ExitCode, Failure> {
    if serve.nbd.is_empty() {
        return Err(Failure::new("serve it how? give --nbd unix:PATH"));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|error| Failure::new(error.to_string()))?;
    }
    let real = Real::start(config::threads(serve.threads)).map_err(|error| Failure::new(error.to_string()))?;
    let device = stack(serve, &real.env())?;
    let served = format!("{} of {}", device.geometry().capacity.to_bytes(), device.name());
    let device = Arc::new(ByteDevice::new(device, "export"));
    let mut servers = Vec::new();
    for address in &serve.nbd {
        let export = Export {
            name: String::new(),
            description: served.clone(),
            read_only: serve.read_only,
            device: device.clone(),
        };
        let server = Server::start(&real, vec![export], address, Limits::default())?;
        output.say(format_args!("{served}: NBD at {}", server.address()));
        servers.push(server);
    }
    output.say("Ctrl-C ends it");
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(20));
    }
    for server in servers {
        real.block_on(server.stop())?;
    }
    output.say("everything is written; the device is gone");
    Ok(ExitCode::SUCCESS)
}

/// What is served, from the medium up.
fn stack(serve: &Serve, env: &Env) -> Result<Device, Failure> {
    let medium = medium(serve, env)?;
    // Layers that delay or fail operations go here, between the medium and the checks.
    Ok(Arc::new(Checked::new(medium, env.clone())))
}

/// Where the contents are.
fn medium(serve: &Serve, env: &Env) -> Result<Device, Failure> {
    let Some(path) = &serve.backing else {
        return Ok(Arc::new(Memory::new(serve.size.unwrap_or(MEMORY).to_blocks_down())));
    };
    let missing = || {
        Failure::new(format!(
            "{}: there is no such file; make it, or say how large it is: --size 20GiB",
            path.display()
        ))
    };
    if !path.exists() && serve.size.is_none() {
        return Err(missing());
    }
    let options = OpenOptions { create: serve.size, read_only: serve.read_only, buffered: false };
    let device = FileDevice::open(path, &options, env.clone())?;
    let found = ashlar_block::Layer::geometry(&device).capacity;
    match serve.size {
        Some(wanted) if wanted.to_blocks_down() != found => Err(Failure::new(format!(
            "{} holds {}, not {wanted}; leave --size out, or name another file",
            path.display(),
            found.to_bytes()
        ))),
        _ => Ok(Arc::new(device)),
    }
}
