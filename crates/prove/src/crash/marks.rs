//! Marks: what a workload says it was promised. `ashlar prove mark` brings them over a unix socket.

use super::medium::Medium;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Names the socket of the exploration that a workload runs in.
pub const MARKS_VARIABLE: &str = "ASHLAR_PROVE_MARKS";

/// Length of a mark, in bytes.
const MARK_MAX: usize = 64 << 10;
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// The answer to a mark.
const KEPT: u8 = b'+';

/// Records a mark in the exploration that this process runs in, behind everything acknowledged so far.
pub fn mark(text: &str) -> Result<(), String> {
    if text.len() > MARK_MAX || text.contains('\n') {
        return Err(format!("a mark is one line of at most {MARK_MAX} bytes"));
    }
    let path = std::env::var_os(MARKS_VARIABLE)
        .ok_or(format!("this is for workloads of `ashlar prove crash`, which sets {MARKS_VARIABLE} for them"))?;
    let send = || {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(text.as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| answer)
    };
    match send() {
        Ok([KEPT]) => Ok(()),
        Ok(_) => Err("the exploration refused the mark".into()),
        Err(error) => Err(format!("{}: {error}", Path::new(&path).display())),
    }
}

/// Takes marks until it is dropped.
pub(super) struct Listener {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(super) fn new(path: PathBuf, medium: Arc<Medium>) -> Result<Listener, String> {
        let socket = UnixListener::bind(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in socket.incoming().flatten() {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                // A client that fails gets no answer, and says so itself.
                let _ = take(stream, &medium);
            }
        });
        Ok(Listener { path, stop, thread: Some(thread) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn take(mut stream: UnixStream, medium: &Medium) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    (&stream).take(MARK_MAX as u64 + 1).read_to_end(&mut text)?;
    match String::from_utf8(text) {
        Ok(text) if text.len() <= MARK_MAX && !text.contains('\n') => medium.mark(&text),
        _ => return Ok(()),
    }
    stream.write_all(&[KEPT])
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes it.
        let woken = UnixStream::connect(&self.path).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}
