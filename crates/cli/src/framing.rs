//! How a command talks to a server over a unix socket: one request per connection, as a line of JSON; lines of JSON back.

use crate::output::Failure;
use ashlar_env::real::no_thread;
use ashlar_env::say;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Longest request in bytes.
const REQUEST_LEN_MAX: u64 = 64 << 10;
/// Longest line of an answer in bytes.
const ANSWER_LEN_MAX: u64 = 64 << 20;
/// How long a server waits for a client to say something, or to take an answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long a server waits for descriptors and threads.
const PAUSE: Duration = Duration::from_millis(100);

/// A client that hears nothing for so long says so, and goes on waiting.
const SILENCE: Duration = Duration::from_secs(5);

/// How often a client that waits looks whether the server is still there.
const LOOK: Duration = Duration::from_secs(1);

/// A line from a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Line<A> {
    /// Bytes done of bytes in all; of none: records that were compared.
    Progress(u64, u64),
    Answer(A),
    Failure(String),
    /// The server was ending when it was asked, and has now. Nothing was done.
    Ended {},
}

/// Reads a request: one line of JSON.
pub fn read<T: DeserializeOwned>(from: impl Read) -> Result<T, String> {
    let mut text = String::new();
    BufReader::new(from.take(REQUEST_LEN_MAX)).read_line(&mut text).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// A connection to a server of ours. One that was killed is none, though its socket takes connections for as long as a thread
/// of it waits in the kernel: perhaps for its own mount, which somebody has to clear.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    let server = server_of(&stream)?;
    if ashlar_env::host::has_ended(server) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// The process at the other end.
fn server_of(stream: &UnixStream) -> io::Result<i32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.pid.as_raw_nonzero().get())
}

/// Listens at a socket; `hint` says what else to do if that fails. A socket that nobody listens at any more is replaced.
pub fn listen(path: &Path, hint: &str) -> Result<UnixListener, Failure> {
    let failed = |error: io::Error| Failure::new(format!("cannot listen at {}: {error}; {hint}", path.display()));
    if connect(path).is_ok() {
        return Err(Failure::new(format!("{}: another server listens there; stop it, or {hint}", path.display())));
    }
    // A socket that nobody listens at was left behind. Anything else is not ours to remove.
    if std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket()) {
        std::fs::remove_file(path).map_err(failed)?;
    }
    UnixListener::bind(path).map_err(failed)
}

/// Has a thread for each who connects read its request and answer it, as long as `of` is there. A client that says nothing keeps
/// nobody from ending.
pub fn serve<T, R>(
    listener: UnixListener,
    of: &Arc<T>,
    answer: fn(&T, Result<R, String>, UnixStream),
) -> Result<(), Failure>
where
    T: Send + Sync + 'static,
    R: DeserializeOwned + 'static,
{
    let weak = Arc::downgrade(of);
    let thread = std::thread::Builder::new().spawn(move || {
        for stream in listener.incoming() {
            if weak.strong_count() == 0 {
                return;
            }
            match stream {
                Ok(stream) => converse(&weak, answer, stream),
                // Out of descriptors, or a client that left before it was taken: others will come.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    });
    thread.map(drop).map_err(|error| Failure::new(no_thread(error).to_string()))
}

/// Has a thread read a request and answer it. Where there are no threads, it waits for one.
fn converse<T, R>(of: &Weak<T>, answer: fn(&T, Result<R, String>, UnixStream), stream: UnixStream)
where
    T: Send + Sync + 'static,
    R: DeserializeOwned + 'static,
{
    let stream = Arc::new(Mutex::new(Some(stream)));
    let spawn = || {
        let (of, stream) = (of.clone(), stream.clone());
        std::thread::Builder::new().spawn(move || {
            let Some(stream) = stream.lock().take() else { return };
            let request = receive(&stream);
            match of.upgrade() {
                Some(of) => answer(&of, request, stream),
                None => send(&mut { stream }, &Line::<()>::Ended {}),
            }
        })
    };
    while spawn().is_err() && of.strong_count() > 0 {
        std::thread::sleep(PAUSE);
    }
}

/// The request of a client, which has so long to send it and to take each part of the answer.
fn receive<T: DeserializeOwned>(stream: &UnixStream) -> Result<T, String> {
    let patience = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    let request = patience.map_err(|error| error.to_string()).and_then(|()| read(stream));
    request.map_err(|error| format!("the request is unreadable: {error}"))
}

/// Sends a line.
pub fn try_send<T: Serialize>(stream: &mut UnixStream, line: &T) -> io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

/// Sends a line. Whoever asked may be gone; that is no concern of a server.
pub fn send<T: Serialize>(stream: &mut UnixStream, line: &T) {
    let _ = try_send(stream, line);
}

/// Waits for the next byte, which stays there; `None` is the end. Says once if `silence` lasts so long.
///
/// The end is also that of a server that was killed, whose connections stay for as long as a thread of it waits in the kernel.
fn first_byte(lines: &mut BufReader<UnixStream>, server: &str, silence: Duration) -> io::Result<Option<u8>> {
    let began = Instant::now();
    let (process, mut is_said) = (server_of(lines.get_ref())?, false);
    lines.get_ref().set_read_timeout(Some(silence.min(LOOK)))?;
    let heard = loop {
        match lines.fill_buf().map(|bytes| bytes.first().copied()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            heard => break heard,
        }
        if ashlar_env::host::has_ended(process) {
            break Ok(None);
        }
        if !is_said && began.elapsed() >= silence {
            is_said = true;
            say::error(format_args!("ashlar: {}", silent(server, process, silence)));
        }
    };
    lines.get_ref().set_read_timeout(None)?;
    heard
}

/// What to do about a server that says nothing.
fn silent(server: &str, process: i32, silence: Duration) -> String {
    format!(
        "{server} (process {process}) has not answered for {} s; Ctrl-C ends this command and leaves it alone; \
         `kill {process}` has it close everything without being asked here; if it hangs for good, `kill -9 {process}` \
         ends it, and what nobody synced is lost; `ashlar down` then clears what a pool left mounted",
        silence.as_secs()
    )
}

/// Asks `server`, as errors call it; returns the answer, and what more may come.
pub fn ask<R: Serialize, A: DeserializeOwned>(
    stream: UnixStream,
    server: &str,
    request: &R,
    progress: &dyn Fn(u64, u64),
) -> Result<(A, BufReader<UnixStream>), Failure> {
    let gone = || Failure::new(format!("{server} was ending when it was asked, and did nothing; see its log"));
    ask_if_there(stream, server, request, progress)?.ok_or_else(gone)
}

/// The same; `None`: the server ended before it did anything.
pub fn ask_if_there<R: Serialize, A: DeserializeOwned>(
    mut stream: UnixStream,
    server: &str,
    request: &R,
    progress: &dyn Fn(u64, u64),
) -> Result<Option<(A, BufReader<UnixStream>)>, Failure> {
    let lost = |error: std::io::Error| Failure::new(format!("{server} does not answer: {error}; see its log"));
    let mut text = serde_json::to_string(request).map_err(|error| Failure::new(error.to_string()))?;
    text.push('\n');
    match stream.write_all(text.as_bytes()) {
        Err(error) if is_closed(&error) => return Ok(None),
        written => written.map_err(lost)?,
    }
    let mut lines = BufReader::new(stream);
    loop {
        let first = match first_byte(&mut lines, server, SILENCE) {
            Err(error) if is_closed(&error) => return Ok(None),
            first => first.map_err(lost)?,
        };
        let gone = || Failure::new(format!("{server} went away before it answered; see its log"));
        // What begins otherwise is another protocol, which may never end a line.
        if first.ok_or_else(gone)? != b'{' {
            return Err(Failure::new(format!("{server} does not talk as ashlar does; name its control socket")));
        }
        let mut line = String::new();
        (&mut lines).take(ANSWER_LEN_MAX).read_line(&mut line).map_err(lost)?;
        let line = serde_json::from_str(&line);
        match line.map_err(|error| Failure::new(format!("the answer of {server} is unreadable: {error}")))? {
            Line::Progress(done, all) => progress(done, all),
            Line::Answer(answer) => return Ok(Some((answer, lines))),
            Line::Failure(message) => return Err(Failure::new(message)),
            Line::Ended {} => return Ok(None),
        }
    }
}

/// Whether the other end was closed with something in it that nobody read.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_hears_whom_to_end() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let own = std::process::id();
        assert_eq!(server_of(&ours).unwrap(), own as i32);
        let said = silent("the daemon", own as i32, SILENCE);
        assert!(said.contains(&format!("(process {own}) has not answered for 5 s")), "{said}");
        assert!(said.contains(&format!("`kill -9 {own}`")) && said.contains("`ashlar down`"), "{said}");
    }

    #[test]
    fn who_ends_before_it_reads_is_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            drop(theirs); // with the request in it
        });
        let asked = ask_if_there::<_, u64>(ours, "the test", &"down", &|_, _| {});
        ending.join().unwrap();
        assert!(asked.unwrap().is_none());
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(ask_if_there::<_, u64>(ours, "the test", &"down", &|_, _| {}).unwrap().is_none());
    }

    #[test]
    fn who_waits_longer_than_it_is_silent_hears_all_the_same() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut lines = BufReader::new(ours);
        let answering = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            theirs.write_all(b"{}\n").unwrap();
        });
        assert_eq!(first_byte(&mut lines, "the test", Duration::from_millis(1)).unwrap(), Some(b'{'));
        assert_eq!(lines.get_ref().read_timeout().unwrap(), None);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        answering.join().unwrap();
        assert_eq!((line.as_str(), first_byte(&mut lines, "the test", SILENCE).unwrap()), ("{}\n", None));
    }
}
