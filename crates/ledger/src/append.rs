//! Writing at the end: one lock, one write, one sync.

use crate::record::FORMAT;
use crate::{Entry, Error, LINE_LEN_MAX, Record, fingerprint};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long to wait for another process. An append takes milliseconds, a read of a large ledger seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at the lock.
const PAUSE: Duration = Duration::from_millis(5);
/// Ends a line that a crash has cut: the ASCII control character "cancel". JSON has it only escaped.
pub const CANCEL: u8 = 0x18;

/// Appends records; returns their ids.
pub fn append(path: &Path, records: Vec<Record>) -> Result<Vec<String>, Error> {
    let mut bytes = Vec::new();
    let mut ids = Vec::new();
    for record in records {
        let entry = entry(record)?;
        let from = bytes.len();
        serde_json::to_writer(&mut bytes, &entry).map_err(|error| Error::Refused(error.to_string()))?;
        bytes.push(b'\n');
        if bytes.len() - from > LINE_LEN_MAX {
            let (len, most) = (bytes.len() - from, LINE_LEN_MAX);
            return Err(Error::Refused(format!("a record of {len} bytes does not fit a ledger's line of {most}")));
        }
        ids.push(entry.id);
    }
    let mut file = open(path)?;
    lock(&file, path, FlockOperation::NonBlockingLockExclusive)?;
    if torn(&file).map_err(|error| Error::file(path, "read", error))? {
        bytes.splice(0..0, [CANCEL, b'\n']);
    }
    file.write_all(&bytes).and_then(|()| file.sync_data()).map_err(|error| Error::file(path, "write", error))?;
    Ok(ids)
}

/// A record with its id and time.
fn entry(mut record: Record) -> Result<Entry, Error> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if let Record::Prediction(prediction) = &mut record {
        prediction.fingerprint = fingerprint(&prediction.inputs);
    }
    record.validate().map_err(|what| Error::Refused(format!("this cannot be written to the ledger: {what}")))?;
    let now = clock_gettime(ClockId::Realtime);
    let (subject, quantity, _) = record.about();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let unique = format!("{}.{} {} {count} {subject} {quantity}", now.tv_sec, now.tv_nsec, std::process::id());
    let id = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(unique.as_bytes()));
    Ok(Entry { format: FORMAT, id: id[..12].into(), time: now.tv_sec.max(0) as u64, record })
}

/// Opens the file for appending; it and its directories are made, for the user alone.
fn open(path: &Path) -> Result<File, Error> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| Error::file(path, "make the directory of", error))?;
    }
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    regular(file.map_err(|error| Error::file(path, "open", error))?.into(), path)
}

/// Refuses what is no regular file: reading a pipe could wait for ever.
pub fn regular(file: File, path: &Path) -> Result<File, Error> {
    let metadata = file.metadata().map_err(|error| Error::file(path, "open", error))?;
    let other = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file");
    if metadata.is_file() { Ok(file) } else { Err(Error::file(path, "open", other())) }
}

/// Waits for the lock, but not for ever. It goes when the file is closed.
pub fn lock(file: &File, path: &Path, operation: FlockOperation) -> Result<(), Error> {
    for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => std::thread::sleep(PAUSE),
            Err(error) => return Err(Error::file(path, "lock", error)),
        }
    }
    Err(Error::Busy { path: path.into(), seconds: PATIENCE.as_secs() })
}

/// Whether the last line has no end.
fn torn(file: &File) -> std::io::Result<bool> {
    let len = file.metadata()?.len();
    let mut last = [b'\n'];
    if len > 0 {
        file.read_exact_at(&mut last, len - 1)?;
    }
    Ok(last != [b'\n'])
}
