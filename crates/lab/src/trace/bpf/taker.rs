//! Takes what programs in the kernel tell before the ring is full, and puts it aside, into a file without a name: copying is all
//! that must be done at once. Records are made of it by a thread that runs when no other wants to ([`Backlog`] is its end), so
//! that the processors are left to what is traced. Even work in idle moments was seen to slow down what is traced
//! (docs/lab.md), so that of a command it begins only when half of [`WAITING_MAX`] waits, or at the end.
//!
//! Promises  order; nothing is lost but what the ring had no room for. If the file grows over [`WAITING_MAX`], records are
//!           made at once, as fast as anybody else's work is done.
//! Costs     memory: pages of the file, which has holes where it was read.

use super::decode::{Appends, appends};
use super::now_ns;
use super::programs::{Within, within};
use ashlar_env::bpf::{Map, Records, Ring};
use ashlar_env::host::run_when_idle;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::thread::gettid;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between looks at the ring: 64 MiB hold what is told in half a second at 650,000 calls a second.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes between two marks.
const MARK: usize = 1 << 20;
/// Bytes in the file from which on nobody is waited for, and until when.
const WAITING_MAX: u64 = 256 << 20;
const WAITING_ENOUGH: u64 = WAITING_MAX / 2;
/// Bytes that are read at once.
const PIECE: u64 = 256 << 10;
/// Bytes that were read and are given back at once.
const HOLE: u64 = 16 << 20;

/// What the taker says itself, among what programs tell. Times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// No call that is told of afterwards began before this time.
    Settled(u64),
    /// A file that was opened for appending, by a call of this thread that began then, has so many bytes.
    End { thread: u32, began_ns: u64, bytes: u64 },
}

/// What stands before a note, where programs say what they tell of.
const NOTE: u64 = u64::MAX;

impl Note {
    fn put(self, to: &mut Vec<u8>) {
        let numbers = match self {
            Note::Settled(at_ns) => [NOTE, 0, at_ns, 0],
            Note::End { thread, began_ns, bytes } => [NOTE, 1 + u64::from(thread), began_ns, bytes],
        };
        Records::put(&numbers.map(u64::to_ne_bytes).concat(), to);
    }

    /// Reads a note.
    pub fn read(bytes: &[u8]) -> Option<Note> {
        let mut numbers =
            bytes.chunks_exact(8).filter_map(|number| number.first_chunk().copied().map(u64::from_ne_bytes));
        let [note, kind, at_ns, bytes] = std::array::from_fn(|_| numbers.next());
        match (note?, kind?) {
            (NOTE, 0) => at_ns.map(Note::Settled),
            (NOTE, thread) => Some(Note::End { thread: (thread - 1) as u32, began_ns: at_ns?, bytes: bytes? }),
            _ => None,
        }
    }
}

/// Asks how long files are that were opened for appending, before much is appended.
fn ask_ends(told: &[u8], notes: &mut Vec<u8>) {
    for Appends { process, thread, began_ns, fd } in Records::new(told).filter_map(appends) {
        if let Ok(metadata) = std::fs::metadata(format!("/proc/{process}/fd/{fd}")) {
            Note::End { thread, began_ns, bytes: metadata.len() }.put(notes);
        }
    }
}

/// What both ends have.
struct Shared {
    file: File,
    written: AtomicU64,
    read: AtomicU64,
    stop: AtomicBool,
    reader: u32,
}

struct Taker {
    ring: Ring,
    threads: Arc<Map>,
    shared: Arc<Shared>,
    hurried: bool,
}

/// The time before which nothing began that is not in the ring when this returns, if that is known.
fn settled_ns(threads: &Map) -> Option<u64> {
    let now_ns = now_ns();
    within(threads).try_fold(now_ns, |least, Within { began_ns, .. }| Some(least.min(began_ns?)))
}

impl Taker {
    fn run(mut self) -> io::Result<()> {
        let (mut at, mut unmarked) = (0, 0);
        let mut notes = Vec::new();
        loop {
            // Asked before the last look, so that nothing is left behind; the threads before the ring, as a mark says.
            let over = self.shared.stop.load(Ordering::Acquire);
            let settled = if unmarked >= MARK { settled_ns(&self.threads) } else { None };
            let file = &self.shared.file;
            notes.clear();
            let (len, all) = self.ring.take(|bytes, all| {
                // Before what they are about.
                ask_ends(bytes, &mut notes);
                file.write_all_at(&notes, at)?;
                file.write_all_at(bytes, at + notes.len() as u64)?;
                io::Result::Ok((bytes.len(), all))
            })?;
            at += (notes.len() + len) as u64;
            unmarked += len;
            if let (Some(settled), true) = (settled, all) {
                notes.clear();
                Note::Settled(settled).put(&mut notes);
                file.write_all_at(&notes, at)?;
                at += notes.len() as u64;
                unmarked = 0;
            }
            self.shared.written.store(at, Ordering::Release);
            self.hurry(at - self.shared.read.load(Ordering::Relaxed));
            if over && all {
                return Ok(());
            }
            std::thread::park_timeout(PAUSE);
        }
    }

    fn hurry(&mut self, waiting: u64) {
        if waiting > if self.hurried { WAITING_ENOUGH } else { WAITING_MAX } {
            if !self.hurried {
                self.hurried = run_when_idle(self.shared.reader, false).is_ok();
            }
        } else if self.hurried {
            self.hurried = run_when_idle(self.shared.reader, true).is_err();
        }
    }
}

/// What was put aside and no records were made of.
pub struct Backlog {
    shared: Arc<Shared>,
    taker: Option<JoinHandle<io::Result<()>>>,
    piece: Vec<u8>,
    at: u64,
    hole_to: u64,
    /// Fewer bytes are left alone until the end.
    least: u64,
}

impl Backlog {
    /// Begins to take, into `file`.
    pub fn start(ring: Ring, threads: Arc<Map>, file: File) -> io::Result<Backlog> {
        let reader = gettid().as_raw_nonzero().get() as u32;
        let [written, read] = [AtomicU64::new(0), AtomicU64::new(0)];
        let shared = Arc::new(Shared { file, written, read, stop: AtomicBool::new(false), reader });
        let taker = Taker { ring, threads, shared: shared.clone(), hurried: false };
        let taker = std::thread::Builder::new().name("taker".into()).spawn(|| taker.run())?;
        Ok(Backlog { shared, taker: Some(taker), piece: Vec::new(), at: 0, hole_to: 0, least: 0 })
    }

    /// This thread runs when no other wants to from now on, until [`stop`](Self::stop).
    pub fn wait_for_others(&self) {
        // Where it may not, what is traced is only slower.
        let _ = run_when_idle(self.shared.reader, true);
    }

    /// The same, and until much is there nothing is given away before [`stop`](Self::stop).
    pub fn wait_for_the_end(&mut self) {
        self.least = WAITING_ENOUGH;
        self.wait_for_others();
    }

    /// Bytes that were put aside, and are still there.
    pub fn waiting(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire) - self.at
    }

    /// Nothing is taken any more, once all that is there was taken. This thread runs as usual from now on.
    pub fn stop(&mut self) -> io::Result<()> {
        let Some(taker) = self.taker.take() else { return Ok(()) };
        self.shared.stop.store(true, Ordering::Release);
        taker.thread().unpark();
        let done = taker.join().unwrap_or_else(|_| Err(io::Error::other("taking ended with a panic")));
        let _ = run_when_idle(self.shared.reader, false);
        done
    }

    /// Gives some of what was put aside to `each`, in its order. Returns whether there was something.
    pub fn drain(&mut self, each: impl FnMut(&[u8])) -> io::Result<bool> {
        if self.taker.as_ref().is_some_and(JoinHandle::is_finished) {
            self.stop()?;
        }
        let there = self.waiting();
        if self.taker.is_some() && there < self.least {
            return Ok(false);
        }
        self.piece.resize(there.min(PIECE) as usize, 0);
        self.shared.file.read_exact_at(&mut self.piece, self.at)?;
        let mut records = Records::new(&self.piece);
        records.by_ref().for_each(each);
        self.at += records.used() as u64;
        self.shared.read.store(self.at, Ordering::Relaxed);
        if self.at - self.hole_to >= HOLE {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Where there are no holes, the file is longer.
            let _ = fallocate(&self.shared.file, hole, self.hole_to, self.at - self.hole_to);
            self.hole_to = self.at;
        }
        Ok(there > 0)
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        // Somebody else's error is told.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_back() {
        for note in [Note::Settled(7), Note::End { thread: 0, began_ns: 8, bytes: 9 }, Note::Settled(u64::MAX)] {
            let mut bytes = Vec::new();
            note.put(&mut bytes);
            assert_eq!(Records::new(&bytes).map(Note::read).collect::<Vec<_>>(), [Some(note)]);
        }
        assert_eq!(Note::read(&[0; 40]), None);
        assert_eq!(Note::read(&NOTE.to_ne_bytes()), None);
    }
}
