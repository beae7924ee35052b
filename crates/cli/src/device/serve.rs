//! Block devices for other programs.

use super::control::{Control, default_socket};
use super::models::find;
use super::trace::{Taps, TraceFile};
use crate::arguments::{Exported, Serve};
use crate::config;
use crate::output::{Failure, Output};
use crate::signals::on_signal;
use ashlar_block::{Checked, Device, Layer};
use ashlar_devices::{FileDevice, Memory, OpenOptions, Sparse};
use ashlar_emulated::{Emulated, Traced};
use ashlar_env::Env;
use ashlar_env::real::{Real, small_pages};
use ashlar_faults::Faulty;
use ashlar_fuse::Mount;
use ashlar_nbd::{Address, ByteDevice, DiskFile, Export, Limits, Server, Tls};
use ashlar_units::Bytes;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Size of a device in memory for which none is given.
const MEMORY: Bytes = Bytes::gib(1);
/// How often the main thread looks whether it is to stop.
const TICK: Duration = Duration::from_millis(20);

/// `ashlar device serve`.
pub fn serve(serve: &Serve, output: &Output) -> Result<ExitCode, Failure> {
    output.no_document()?;
    serve.exported.check()?;
    let stop = on_signal()?;
    if serve.model.is_some() || serve.model_file.is_some() {
        // The kernel may wake us 50 us late to save power. Threads inherit this one's wish not to. Without it only
        // precision is lost.
        let _ = rustix::thread::set_current_timer_slack(Some(std::num::NonZeroU64::MIN));
    }
    let real = Real::start(config::threads(serve.threads)).map_err(|error| Failure::new(error.to_string()))?;
    let real = Arc::new(real);
    let trace = serve.trace.as_deref().map(TraceFile::create).transpose()?;
    let taps = Arc::new(Taps::default());
    let (device, emulated) = stack(serve, trace.as_ref(), &taps, &real.env())?;
    let served = format!("{} of {}", device.geometry().capacity.to_bytes(), device.name());
    // At the top: what fails on purpose must not poison the checks, nor be hidden in the time of the model.
    let faulty = Arc::new(Faulty::with_faults(device, serve.fault_seed, &serve.fault, real.env())?);
    let device = Arc::new(ByteDevice::new(faulty.clone(), "export"));
    let mut exports = Exports::default();
    let mut control = None;
    let ways = &serve.exported;
    let socket = serve.control.clone().or_else(|| default_socket(&ways.nbd, ways.file.as_deref()));
    let opened = exports.open(ways, &real, &device, &served, output).and_then(|()| {
        let Some(socket) = socket else { return Ok(()) };
        control = Some(Control::listen(&socket, faulty.clone(), real.clone(), taps)?);
        output.say(format_args!("faults: ashlar device control {} 'fault TEXT'", socket.display()));
        Ok(())
    });
    exports.wait(opened.is_ok(), &stop, output);
    if let Some(control) = control {
        control.close();
    }
    // What hangs in a fault goes on, so that it can end; what a volatile cache holds is written.
    let retired = real.block_on(async move { faulty.retire().await });
    let closed = exports.close(&real, &device, &stop, output);
    drop(device);
    opened.and(closed)?;
    retired?;
    if let Some(emulated) = emulated {
        emulated.close()?;
    }
    if let Some(trace) = trace {
        let path = serve.trace.as_deref().unwrap_or(Path::new(""));
        output.say(format_args!("{}: {} requests", path.display(), trace.finish()?));
    }
    output.say("everything is written; the device is gone");
    Ok(ExitCode::SUCCESS)
}

/// What is served, from the medium up; and the layer with the model, if there is one.
fn stack(
    serve: &Serve,
    file: Option<&TraceFile>,
    taps: &Arc<Taps>,
    env: &Env,
) -> Result<(Device, Option<Arc<Emulated>>), Failure> {
    let model = serve.model.as_ref().or(serve.model_file.as_ref()).map(|model| find(model)).transpose()?;
    let trace = taps.trace(file);
    let Some(model) = model else {
        let traced = Traced::new(medium(serve, None, env)?, env.clone(), trace);
        return Ok((Arc::new(Checked::new(Arc::new(traced), env.clone())), None));
    };
    let built = model.build(serve.seed)?;
    let medium = medium(serve, Some(Bytes(built.capacity())), env)?;
    let mut emulated = Emulated::of_model(medium, &model.name, built, env.clone())?.with_trace(trace);
    if let Some(backing) = serve.backing.as_ref().filter(|_| model.wears() && !serve.exported.read_only) {
        emulated = emulated.kept_in(&backing.with_added_extension("model"), &model, serve.seed)?;
    }
    let emulated = Arc::new(emulated);
    Ok((Arc::new(Checked::new(emulated.clone(), env.clone())), Some(emulated)))
}

/// Where the contents are.
fn medium(serve: &Serve, modelled: Option<Bytes>, env: &Env) -> Result<Device, Failure> {
    let Some(path) = &serve.backing else {
        // Contents come 4 KiB here and there.
        small_pages();
        return Ok(Arc::new(Memory::new(serve.size.or(modelled).unwrap_or(MEMORY).to_blocks_down())));
    };
    let create = serve.size.or(modelled.map(|size| size.to_blocks_down().to_bytes()));
    if !path.exists() && (create.is_none() || serve.exported.read_only) {
        let message = "there is no such file; make it, or say how large it is: --size 20GiB";
        return Err(Failure::new(format!("{}: {message}", path.display())));
    }
    let options = OpenOptions { create, read_only: serve.exported.read_only, buffered: false };
    let device = FileDevice::open(path, &options, env.clone())?;
    let found = device.geometry().capacity;
    match serve.size {
        Some(wanted) if wanted.to_blocks_down() != found => Err(Failure::new(format!(
            "{} holds {}, not {wanted}; leave --size out, or name another file",
            path.display(),
            found.to_bytes()
        ))),
        _ if serve.sparse => Ok(Arc::new(Sparse::new(Arc::new(device))?)),
        _ => Ok(Arc::new(device)),
    }
}

impl Exported {
    /// There must be a way.
    pub fn check(&self) -> Result<(), Failure> {
        match self.nbd.is_empty() && self.file.is_none() {
            true => Err(Failure::new("serve it how? give --nbd unix:PATH, or --file DIRECTORY/NAME, or both")),
            false => Ok(()),
        }
    }
}

/// The ways to the device.
#[derive(Default)]
pub struct Exports {
    servers: Vec<Server>,
    file: Option<MountedFile>,
}

struct MountedFile {
    mount: Mount,
    path: PathBuf,
    /// The directory, if it was made for the mount.
    made: Option<PathBuf>,
}

impl Exports {
    /// Serves a device until somebody asks to stop.
    pub fn serve(
        ways: &Exported,
        real: &Real,
        device: &Arc<ByteDevice>,
        served: &str,
        stop: &AtomicBool,
        output: &Output,
    ) -> Result<(), Failure> {
        let mut exports = Exports::default();
        let opened = exports.open(ways, real, device, served, output);
        exports.wait(opened.is_ok(), stop, output);
        let closed = exports.close(real, device, stop, output);
        opened.and(closed)
    }

    /// Waits, if it is served, until somebody asks to stop.
    fn wait(&self, is_open: bool, stop: &AtomicBool, output: &Output) {
        if !is_open {
            stop.store(true, Ordering::Release);
            return;
        }
        output.say("Ctrl-C ends it");
        while !stop.swap(false, Ordering::AcqRel) && self.file.as_ref().is_none_or(|file| file.mount.is_served()) {
            std::thread::sleep(TICK);
        }
    }

    fn open(
        &mut self,
        serve: &Exported,
        real: &Real,
        device: &Arc<ByteDevice>,
        served: &str,
        output: &Output,
    ) -> Result<(), Failure> {
        let tls = match (&serve.tls_certificate, &serve.tls_key) {
            (Some(certificate), Some(key)) => Some(Tls::load(certificate, key, serve.tls_clients.as_deref())?),
            _ => None,
        };
        for address in &serve.nbd {
            let tls = tls.clone().filter(|_| matches!(address, Address::Tcp(_)));
            let export = Export {
                name: String::new(),
                description: served.into(),
                read_only: serve.read_only,
                device: device.clone(),
            };
            let server = Server::start(real, vec![export], address, tls, Limits::default())?;
            output.say(format_args!("{served}: NBD at {}", server.address()));
            self.servers.push(server);
        }
        if let Some(path) = &serve.file {
            self.file = Some(mount(path, serve.read_only, real, device)?);
            output.say(format_args!("{served}: file {}", path.display()));
        }
        Ok(())
    }

    /// Ends what is served. A file that is in use is waited for, until somebody asks again to stop.
    fn close(self, real: &Real, device: &Arc<ByteDevice>, stop: &AtomicBool, output: &Output) -> Result<(), Failure> {
        for server in self.servers {
            real.block_on(server.stop())?;
        }
        let Some(MountedFile { mount, path, made }) = self.file else { return Ok(()) };
        let mut told = false;
        while let Err(error) = mount.unmount(false) {
            if stop.swap(false, Ordering::AcqRel) {
                mount.unmount(true).map_err(|_| Failure::new(error.to_string()))?;
                break;
            }
            if !std::mem::replace(&mut told, true) {
                output.say(format_args!(
                    "{} is in use: unmount what is on it (`losetup -d` its loop device) and this ends; Ctrl-C again \
                     takes it away at once",
                    path.display()
                ));
            }
            std::thread::sleep(TICK);
        }
        // What a device in use still sent has been answered or fails from here on.
        let device = device.clone();
        real.block_on(async move { device.flush().await })?;
        drop(mount);
        if let Some(directory) = made {
            // Somebody put something there meanwhile: then it stays.
            let _ = std::fs::remove_dir(directory);
        }
        Ok(())
    }
}

/// Mounts the one file.
fn mount(path: &Path, read_only: bool, real: &Real, device: &Arc<ByteDevice>) -> Result<MountedFile, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let path = std::path::absolute(path).map_err(failed)?;
    let no_name = || Failure::new(format!("{}: write DIRECTORY/NAME, as in ./dev/disk0", path.display()));
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Err(no_name()) };
    let dead = std::fs::metadata(directory).is_err_and(|error| error.kind() == std::io::ErrorKind::NotConnected);
    if dead && ashlar_fuse::is_mounted(directory) {
        // A server that died left it.
        ashlar_fuse::unmount(directory, ashlar_fuse::Users::Fail).map_err(|error| Failure::new(error.to_string()))?;
    }
    let made = !directory.exists();
    if made {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    let file = DiskFile::new(device.clone(), name.as_bytes(), read_only, real.env()).map_err(|_| no_name())?;
    let options = ashlar_fuse::Options {
        source: format!("ashlar:{}", device.name()),
        read_only,
        direct: true,
        ..ashlar_fuse::Options::default()
    };
    let mount =
        Mount::new(real, Arc::new(file), directory, options).map_err(|error| Failure::new(error.to_string()))?;
    let made = made.then(|| directory.to_path_buf());
    Ok(MountedFile { mount, path, made })
}
