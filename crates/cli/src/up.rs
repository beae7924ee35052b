//! Making pools, and running them.

use crate::arguments::{Create, DeviceArgument, Mount, Up};
use crate::client;
use crate::config::{self, Medium, PoolConfig};
use crate::daemon::Control;
use crate::device_files::DeviceFiles;
use crate::output::{Failure, Output};
use crate::request::{Answer, Done, NO_IO_URING, Request};
use crate::session::{self, Session};
use crate::signals::on_signal;
use ashlar_env::real::Real;
use ashlar_env::say;
use ashlar_layers::Stack;
use ashlar_pool::{Creation, Pool};
use ashlar_units::Bytes;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a detached daemon says when the mount serves.
const READY: &str = "ready";
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// `ashlar pool create`.
pub fn create(create: &Create, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    create_pool(create)?;
    output.print(&Done {
        done: format!(
            "made a pool in {}; `ashlar up --pool {}` runs it",
            config::pool_directory(Some(&create.directory))?.display(),
            create.directory.display()
        ),
    });
    Ok(ExitCode::SUCCESS)
}

/// Makes a pool for a file system of its own.
pub fn create_for(
    name: &str,
    directory: PathBuf,
    (devices, medium, force): (Vec<DeviceArgument>, Option<Medium>, bool),
) -> Result<(), Failure> {
    if config::exists(&directory) {
        return Err(Failure::new(format!(
            "{} holds a pool already: leave --device away to make {name} in it, or name another directory with --pool",
            directory.display()
        )));
    }
    create_pool(&Create { directory, devices, stack: None, compression: "lz4".into(), medium, force })
}

fn create_pool(create: &Create) -> Result<(), Failure> {
    let directory = config::pool_directory(Some(&create.directory))?;
    if config::exists(&directory) && !create.force {
        return Err(Failure::new(format!("{} holds a pool already; --force makes a new one", directory.display())));
    }
    let mut files = DeviceFiles::default();
    let paths = files.paths(&create.devices)?;
    let stack = match &create.stack {
        None => Stack::of_files(&paths),
        Some(file) => {
            let text = std::fs::read_to_string(file);
            let text = text.map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
            Stack::parse(&text).map_err(|error| Failure::new(format!("{}: {error}", file.display())))?
        }
    };
    make(&directory, stack, (&create.compression, create.medium), create.force)?;
    files.keep();
    Ok(())
}

/// A path that another process understands.
pub fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// A place to mount at, by which it is known to the kernel. It is not looked at itself: something may be mounted there already.
pub fn place(at: &Path) -> Result<PathBuf, Failure> {
    let at = absolute(at)?;
    let above = at.parent().and_then(|above| above.canonicalize().ok());
    Ok(above.zip(at.file_name()).map_or_else(|| at.clone(), |(above, name)| above.join(name)))
}

/// `ashlar mount`.
pub fn mount(pool: Option<&Path>, mount: Mount, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    output.print(&mount_by_any(&config::pool_directory(pool)?, mount)?);
    Ok(ExitCode::SUCCESS)
}

/// Mounts something by the daemon that serves the pool, or by one that is started for it.
pub fn mount_by_any(directory: &Path, mount: Mount) -> Result<Done, Failure> {
    let Mount { name, at, serving } = mount;
    let at = place(&at)?;
    let request = Request::Mount { name: name.clone(), at: at.clone(), how: serving.how() };
    config::read(directory)?;
    // Of several who find no server, one starts it, and it answers the others.
    let _turn = config::turn(directory)?;
    if let Some(stream) = client::connect(directory)?
        && let Some(Answer::Done(done)) = client::converse(stream, &request, &|_, _| {})?
    {
        return Ok(done);
    }
    session::check_memory(serving.memory)?;
    let up = Up {
        mount: None,
        fs: name,
        engine: None,
        serving,
        existing: true,
        detach: true,
        size: Bytes(0), // of a new pool
    };
    detach(directory, &at, &up)
}

fn make(directory: &Path, stack: Stack, settings: (&str, Option<Medium>), force: bool) -> Result<(), Failure> {
    let (compression, medium) = settings;
    config::compression(compression)?;
    config::make_directory(directory)?;
    let real = Real::start(1).map_err(|error| Failure::new(error.to_string()))?;
    let env = real.env();
    let (base, made) = (directory.to_path_buf(), stack.clone());
    real.block_on(async move {
        let built = made.build(&base, &env).await?;
        Pool::create(&env, &built.devices, Creation { segment: None, force }).await
    })?;
    config::write(directory, &PoolConfig::new(compression, medium, stack))
}

/// `ashlar up`.
pub fn up(pool: Option<&Path>, up: &Up, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    session::check_memory(up.serving.memory)?;
    let directory = config::pool_directory(pool)?;
    if up.existing {
        config::read(&directory)?;
    }
    let is_detached = std::env::var_os(DETACHED).is_some();
    // Until it serves; who detached it has their turn already.
    let turn = if is_detached {
        None
    } else {
        config::make_directory(&directory)?;
        Some(config::turn(&directory)?)
    };
    if let Some(stream) = client::connect(&directory)?
        && client::converse(stream, &Request::Status, &|_, _| {})?.is_some()
    {
        return Err(Failure::new(format!("{} is up already; see `ashlar status`", directory.display())));
    }
    let mount = match &up.mount {
        Some(mount) => place(mount)?,
        None => place(&directory.join("mnt"))?,
    };
    if up.detach {
        if config::exists(&directory) && config::read(&directory)?.stack().forgets() {
            output.say(config::made_anew(&directory));
        }
        output.print(&detach(&directory, &mount, up)?);
        return Ok(ExitCode::SUCCESS);
    }
    if !config::exists(&directory) {
        output.say(format_args!("making a pool of {} in {}", up.size, directory.display()));
        let device = PathBuf::from("device-0.img");
        config::make_file(&directory.join(&device), Some(up.size))?;
        make(&directory, Stack::of_files(&[device]), ("lz4", None), false)?;
    }
    // What a daemon that died left behind would be in the way.
    client::clear_mounts(&directory)?;
    config::forget_mounts(&directory);
    let stop = on_signal()?;
    let session = Session::open(&directory, up.serving.memory, config::threads(up.serving.threads), false)?;
    let found = if up.existing { session.volume(&up.fs).map(drop) } else { Ok(()) };
    if let Err(failure) = found.and_then(|()| session.mount(&up.fs, &mount, up.engine, up.serving.how())) {
        session.close()?;
        return Err(failure);
    }
    if !session.has_io_uring() {
        say::error(format_args!("there is no io_uring: {NO_IO_URING}"));
    }
    let control = Control::listen(&directory, session)?;
    drop(turn);
    if is_detached {
        say::output(READY);
    } else {
        output.say(format_args!("{} is mounted at {}; Ctrl-C unmounts it", up.fs, mount.display()));
    }
    watch(&control, &stop, output);
    let closed = control.close(&directory)?;
    output.say(closed);
    Ok(ExitCode::SUCCESS)
}

/// Shows a live status line until it is time to stop.
fn watch(control: &Control, stop: &AtomicBool, output: &Output) {
    let live = !output.json && std::io::stderr().is_terminal();
    let mut shown = Instant::now();
    let mut before = control.session.status();
    while !stop.load(Ordering::Acquire) && !control.is_over() {
        std::thread::sleep(Duration::from_millis(20));
        if live && shown.elapsed() >= STATUS_INTERVAL {
            let status = control.session.status();
            let seconds = shown.elapsed().as_secs_f64();
            let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as u64;
            say::progress(format_args!(
                "\r\x1b[Kused {} of {}  memory {}  {} requests/s  read {}/s  write {}/s",
                Bytes(status.used),
                Bytes(status.capacity),
                Bytes(status.memory),
                rate(status.requests, before.requests),
                Bytes(rate(status.bytes_read, before.bytes_read)),
                Bytes(rate(status.bytes_written, before.bytes_written)),
            ));
            (shown, before) = (Instant::now(), status);
        }
    }
    if live {
        say::error("");
    }
}

/// The last message of a daemon's log; it may have several lines.
fn last_words(log: &str) -> &str {
    const PREFIX: &str = "ashlar: ";
    let log = log.trim_end();
    let begins = |at: &usize| *at == 0 || log[..*at].ends_with('\n');
    let last = log.rmatch_indices(PREFIX).map(|(at, _)| at).find(begins);
    let words = last.map_or(log, |at| &log[at + PREFIX.len()..]);
    if words.is_empty() { "the daemon ended without a word" } else { words }
}

/// Set for the process that stays behind.
const DETACHED: &str = "ASHLAR_DETACHED";

/// Starts a process that stays, and waits until its mount serves.
fn detach(directory: &Path, mount: &Path, up: &Up) -> Result<Done, Failure> {
    let log = config::log(directory);
    // A server that ended may not have said its last word.
    let file = std::fs::File::options().create(true).append(true).open(&log);
    let file = file
        .and_then(|file| file.set_len(0).map(|()| file))
        .map_err(|error| Failure::new(format!("{}: {error}", log.display())))?;
    let program = std::env::current_exe().map_err(|error| Failure::new(error.to_string()))?;
    let mut command = Command::new(program);
    command.arg("up").arg("--pool").arg(directory).arg("--mount").arg(mount).arg("--fs").arg(&up.fs);
    command.arg("--memory").arg(up.serving.memory.0.to_string()).arg("--size").arg(up.size.0.to_string());
    command.arg("--options").arg(up.serving.options.to_string());
    if let Some(source) = &up.serving.source {
        command.arg("--source").arg(source);
    }
    if up.existing {
        command.arg("--existing");
    }
    if up.serving.write_through {
        command.arg("--write-through");
    }
    if let Some(engine) = up.engine {
        command.arg("--engine").arg(engine.name());
    }
    if let Some(threads) = up.serving.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    // Wherever it was started, that file system can be unmounted.
    command.current_dir("/");
    command.env(DETACHED, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).process_group(0);
    let mut child = command.spawn().map_err(|error| Failure::new(format!("cannot start the daemon: {error}")))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.trim() != READY {
        let _ = child.wait();
        return Err(Failure::new(last_words(&std::fs::read_to_string(&log).unwrap_or_default())));
    }
    Ok(Done { done: format!("{} is mounted at {}; `ashlar down` unmounts it", up.fs, mount.display()) })
}

#[cfg(test)]
mod tests {
    use super::last_words;

    #[test]
    fn the_last_message_is_told_whole() {
        let log = "ashlar: first\nashlar: pool.toml: TOML parse error\n  |\n1 | x = ashlar: y\nmissing field\n\n";
        assert_eq!(last_words(log), "pool.toml: TOML parse error\n  |\n1 | x = ashlar: y\nmissing field");
        assert_eq!(last_words("thread panicked\n"), "thread panicked");
        assert_eq!(last_words(""), "the daemon ended without a word");
    }
}
