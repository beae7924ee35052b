//! Traces: a record of every request that is done, to a file, or to whoever asks at the control socket.

use super::control::{self, Answer, Request};
use super::records::REQUESTS;
use crate::framing::{self, Line, send};
use crate::output::{Failure, Output};
use crate::request::Done;
use crate::signals::on_signal;
use ashlar_columns::Writer;
use ashlar_emulated::{Record, Trace};
use parking_lot::Mutex;
use std::io::{BufRead, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Records that wait for a writer. Requests wait for that of a file; one who asked at the control socket is cut off.
const WAITING_MAX: usize = 1 << 16;
/// For how long a record may wait for others to be sent with it.
const BATCH: Duration = Duration::from_millis(50);

/// A trace that is being written.
pub struct TraceFile {
    path: PathBuf,
    sender: SyncSender<Option<Record>>,
    writer: JoinHandle<std::io::Result<u64>>,
}

impl TraceFile {
    /// Makes the file; what it held is lost.
    pub fn create(path: &Path) -> Result<TraceFile, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
        let file = Writer::create(&REQUESTS, path).map_err(failed)?;
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let writer = std::thread::Builder::new().name("ashlar-trace".into());
        let writer = writer.spawn(move || write(file, &receiver)).map_err(failed)?;
        Ok(TraceFile { path: path.into(), sender, writer })
    }

    /// What records are given to: the file, and whoever listens.
    fn sink(&self) -> SyncSender<Option<Record>> {
        self.sender.clone()
    }

    /// Ends the file; returns the number of records.
    pub fn finish(self) -> Result<u64, Failure> {
        let _ = self.sender.send(None);
        let written = self.writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.map_err(|error| Failure::new(format!("the trace {} is not whole: {error}", self.path.display())))
    }
}

fn write(mut file: Writer<Record>, records: &Receiver<Option<Record>>) -> std::io::Result<u64> {
    while let Ok(Some(record)) = records.recv() {
        file.put(record)?;
    }
    file.finish()
}

/// Whoever listens to a device.
#[derive(Default)]
pub struct Taps {
    senders: Mutex<Vec<SyncSender<Record>>>,
    /// Somebody listens.
    some: AtomicBool,
    ended: AtomicBool,
}

/// One who listens.
pub struct Tap {
    taps: Arc<Taps>,
    receiver: Receiver<Record>,
}

impl Taps {
    /// Gives every record to the file, if there is one, and to all who listen.
    pub fn trace(self: &Arc<Taps>, file: Option<&TraceFile>) -> Trace {
        let (taps, file) = (self.clone(), file.map(TraceFile::sink));
        Arc::new(move |record| {
            if let Some(file) = &file {
                // A writer that failed takes no more; `finish` tells.
                let _ = file.send(Some(*record));
            }
            if taps.some.load(Ordering::Relaxed) {
                taps.give(record);
            }
        })
    }

    fn give(&self, record: &Record) {
        let mut senders = self.senders.lock();
        // Who is too slow is cut off: nobody who only looks may hold up a device.
        senders.retain(|sender| {
            !matches!(sender.try_send(*record), Err(TrySendError::Full(_) | TrySendError::Disconnected(_)))
        });
        self.some.store(!senders.is_empty(), Ordering::Relaxed);
    }

    /// Begins to listen.
    pub fn open(self: &Arc<Taps>) -> Tap {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let mut senders = self.senders.lock();
        if !self.ended.load(Ordering::Acquire) {
            senders.push(sender);
            self.some.store(true, Ordering::Relaxed);
        }
        Tap { taps: self.clone(), receiver }
    }

    /// The device ends.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.senders.lock().clear();
    }
}

impl Tap {
    /// Sends records until the client goes, the device ends, or the client is too slow.
    pub fn serve(self, stream: &mut UnixStream) {
        let mut text = Vec::new();
        loop {
            let first = self.receiver.recv_timeout(BATCH);
            match first {
                Ok(record) => line(&mut text, &record),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while text.len() < 1 << 16 {
                match self.receiver.try_recv() {
                    Ok(record) => line(&mut text, &record),
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            }
            if stream.write_all(&text).is_err() || is_gone(stream) {
                return;
            }
            text.clear();
        }
        if !self.taps.ended.load(Ordering::Acquire) {
            let message = format!("the trace was not taken fast enough: more than {WAITING_MAX} requests waited");
            send(stream, &Line::<Answer>::Failure(message));
        }
    }
}

fn line(text: &mut Vec<u8>, record: &Record) {
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(&mut *text, record);
    text.push(b'\n');
}

/// Whether the client hung up. It says nothing while it listens.
fn is_gone(stream: &UnixStream) -> bool {
    use std::io::Read;
    let quick = stream.set_read_timeout(Some(Duration::from_micros(1)));
    quick.is_err() || matches!((&mut &*stream).read(&mut [0]), Ok(0))
}

/// `ashlar device trace SOCKET -o FILE`: until Ctrl-C, or until the device ends.
pub fn trace(socket: &Path, file: &Path, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", file.display()));
    let stop = on_signal()?;
    let stream = control::connect(socket)?;
    let ending = stream.try_clone().map_err(failed)?;
    let (_, mut lines): (Answer, _) = framing::ask(stream, "the device", &Request::Trace, &|_, _| {})?;
    let mut to = Writer::create(&REQUESTS, file).map_err(failed)?;
    std::thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = ending.shutdown(std::net::Shutdown::Both);
    });
    output.say("Ctrl-C ends it");
    let (mut text, mut complaint) = (Vec::new(), None);
    // The last line may be cut off by Ctrl-C.
    while lines.read_until(b'\n', &mut text).map_err(failed)? > 0 && text.ends_with(b"\n") {
        match serde_json::from_slice::<Record>(&text) {
            Ok(record) => to.put(record).map_err(failed)?,
            Err(_) => {
                complaint = serde_json::from_slice::<Line<Answer>>(&text).ok();
                break;
            }
        }
        text.clear();
    }
    let done = format!("{}: {} requests", file.display(), to.finish().map_err(failed)?);
    match complaint {
        Some(Line::Failure(message)) => Err(Failure::new(format!("{done}; then {message}"))),
        _ => {
            output.print(&Done { done });
            Ok(ExitCode::SUCCESS)
        }
    }
}
