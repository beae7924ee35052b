//! Asking: a daemon if one serves the pool, else the pool itself.

use crate::config;
use crate::framing;
use crate::output::{Failure, Output};
use crate::request::{Answer, CheckReport, Done, Request, Status, TrimReport, Volumes};
use crate::session::Session;
use ashlar_fuse::Users;
use ashlar_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, BufRead};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

/// Memory of a command that opens the pool itself.
const MEMORY: Bytes = Bytes(128 << 20);

/// Asks, prints the answer, and gives the exit code.
pub fn ask(directory: &Path, request: Request, output: &Output) -> Result<ExitCode, Failure> {
    let schema = match &request {
        Request::Status | Request::FsStatus { .. } => output.schema::<Status>(),
        Request::Check { .. } => output.schema::<CheckReport>(),
        Request::PoolTrim => output.schema::<TrimReport>(),
        Request::FsList | Request::SnapshotList => output.schema::<Volumes>(),
        Request::Array { request, .. } => crate::array::schema(request, output),
        _ => output.schema::<Done>(),
    };
    if let Some(code) = schema {
        return Ok(code);
    }
    let bar = if output.json { ProgressBar::hidden() } else { ProgressBar::no_length() };
    let style = |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style(match request {
        Request::Remove { .. } => "{bar:40} {human_pos} of {human_len} names, {eta} left",
        _ => "{bar:40} {bytes} of {total_bytes}, {eta} left",
    }));
    let counting =
        matches!(request, Request::Check { .. }).then(|| style("{spinner} {human_pos} records compared, {elapsed}"));
    let shown = bar.clone();
    let progress = move |done, all| {
        // Nobody knows how many records there are.
        if let Some(counting) = &counting
            && (all == 0 && shown.length() != Some(0))
        {
            shown.set_style(counting.clone());
        }
        shown.set_length(all);
        shown.set_position(done);
    };
    let mut answered = ask_server(directory, &request, &progress)?;
    let mut turn = None;
    if answered.is_none() {
        config::read(directory)?;
        turn = Some(config::turn(directory)?);
        // Whose turn it was before may have started one.
        answered = ask_server(directory, &request, &progress)?;
    }
    let answer = match answered {
        Some(answer) => Ok(answer),
        None => {
            match request {
                Request::Mount { .. } => {
                    return Err(Failure::new("the pool is not up; `ashlar mount NAME DIR` runs it, too"));
                }
                Request::Remove { .. } => {
                    let directory = directory.display();
                    return Err(Failure::new(format!("the pool in {directory} is not up; --pool names another one")));
                }
                _ => {}
            }
            let cut_log = matches!(request, Request::Check { repair: true });
            let session = Session::open(directory, MEMORY, 2, cut_log)?;
            let answer = session.answer(request, progress);
            session.close()?;
            answer
        }
    };
    drop(turn);
    bar.finish_and_clear();
    let answer = answer?;
    let found =
        matches!(&answer, Answer::Check(report) if !report.damaged.is_empty() || !report.inconsistent.is_empty());
    match answer {
        Answer::Status(status) => output.print(&*status),
        Answer::Check(report) => output.print(&report),
        Answer::Trimmed(report) => output.print(&report),
        Answer::Volumes(volumes) => output.print(&Volumes(volumes)),
        Answer::Done(done) => output.print(&done),
        answer @ (Answer::Arrays(_) | Answer::Looked(_) | Answer::Refilled(_)) => {
            return Ok(crate::array::print(&answer, output));
        }
        Answer::Listening { .. } => {}
    }
    Ok(ExitCode::from(u8::from(found)))
}

/// The answer of the daemon; `None`: there is none.
fn ask_server(directory: &Path, request: &Request, progress: &dyn Fn(u64, u64)) -> Result<Option<Answer>, Failure> {
    match connect(directory)? {
        Some(stream) => converse(stream, request, progress),
        None => Ok(None),
    }
}

/// Stops the daemon; without one, clears what a dead one left mounted.
pub fn down(directory: &Path, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    if let Some(stream) = connect(directory)?
        && let Some(Answer::Done(done)) = converse(stream, &Request::Down, &|_, _| {})?
    {
        output.print(&done);
        return Ok(ExitCode::SUCCESS);
    }
    let cleared = clear_mounts(directory)?;
    let done = match cleared.is_empty() {
        true => "the pool is not up".to_string(),
        false => format!("the daemon is gone; cleared what it left at {}", cleared.join(", ")),
    };
    output.print(&Done { done });
    Ok(ExitCode::SUCCESS)
}

/// Unmounts what a daemon that is gone left mounted, and names it.
pub fn clear_mounts(directory: &Path) -> Result<Vec<String>, Failure> {
    let mut cleared = Vec::new();
    for at in config::read_mounts(directory).iter().filter(|at| ashlar_fuse::is_mounted(at)) {
        match ashlar_fuse::unmount(at, Users::Fail) {
            Ok(()) => cleared.push(at.display().to_string()),
            // Somebody else may have been faster.
            Err(error) if ashlar_fuse::is_mounted(at) => {
                let own = rustix::process::geteuid().is_root();
                let help = if own { "" } else { "; do it as the user who mounted it, or with sudo" };
                return Err(Failure::new(format!("{error}{help}")));
            }
            Err(_) => {}
        }
    }
    Ok(cleared)
}

/// A connection to the daemon that serves this pool, if one does.
pub fn connect(directory: &Path) -> Result<Option<UnixStream>, Failure> {
    let socket = config::socket(directory);
    match framing::connect(&socket) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let user = std::fs::metadata(&socket).map_or(String::new(), |found| format!(" (number {})", found.uid()));
            Err(Failure::new(format!(
                "the pool in {} is run by another user{user}; ask as that user, or with sudo",
                directory.display()
            )))
        }
        Err(_) => Ok(None),
    }
}

/// Listens to what is asked of the mount at a place: whether all names will be known, and the lines that follow.
pub fn listen(directory: &Path, at: &Path) -> Result<(UnixStream, bool, impl BufRead + use<>), Failure> {
    let lost = |error: std::io::Error| Failure::new(format!("the control socket: {error}"));
    let stream = connect(directory)?.ok_or_else(|| {
        let text = format!("the pool in {} is not up; name the one that is mounted with --pool", directory.display());
        Failure::new(text).with_code(2)
    })?;
    let own = stream.try_clone().map_err(lost)?;
    let (answer, lines) = framing::ask(stream, "the daemon", &Request::Listen { at: at.into() }, &|_, _| {})?;
    match answer {
        Answer::Listening { knows_all } => Ok((own, knows_all, lines)),
        _ => Err(Failure::new("the daemon answers something else; is it of another version?")),
    }
}

/// Asks the daemon; `None`: it is gone.
pub fn converse(stream: UnixStream, request: &Request, progress: &dyn Fn(u64, u64)) -> Result<Option<Answer>, Failure> {
    let answered = framing::ask_if_there(stream, "the daemon", request, progress)?;
    Ok(answered.map(|(answer, _)| answer))
}
