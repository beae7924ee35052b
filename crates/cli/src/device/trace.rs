//! A trace file: a line of JSON for every request, written by a thread of its own.

use crate::output::Failure;
use ashlar_emulated::{Record, Trace};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Records that wait for the writer; then requests wait too.
const WAITING_MAX: usize = 1 << 16;

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
        let file = File::create(path).map_err(failed)?;
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let writer = std::thread::Builder::new().name("ashlar-trace".into());
        let writer = writer.spawn(move || write(BufWriter::new(file), &receiver)).map_err(failed)?;
        Ok(TraceFile { path: path.into(), sender, writer })
    }

    /// What records are given to.
    pub fn sink(&self) -> Trace {
        let sender = self.sender.clone();
        // A writer that failed takes no more; `finish` tells.
        Arc::new(move |record| _ = sender.send(Some(*record)))
    }

    /// Ends the file; returns the number of lines.
    pub fn finish(self) -> Result<u64, Failure> {
        let _ = self.sender.send(None);
        let written = self.writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.map_err(|error| Failure::new(format!("the trace {} is not whole: {error}", self.path.display())))
    }
}

fn write(mut file: BufWriter<File>, records: &Receiver<Option<Record>>) -> std::io::Result<u64> {
    let mut lines = 0;
    while let Ok(Some(record)) = records.recv() {
        serde_json::to_writer(&mut file, &record)?;
        file.write_all(b"\n")?;
        lines += 1;
    }
    file.flush()?;
    Ok(lines)
}
