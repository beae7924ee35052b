//! Takes what programs in the kernel tell before the ring is full, and puts it aside, into a file without a name: copying is all
//! that must be done at once. Records are made of it by a thread that runs when no other wants to ([`Backlog`] is its end), so
//! that the processors are left to what is traced.
//!
//! Promises  order; nothing is lost but what the ring had no room for. If the file grows over [`WAITING_MAX`], records are
//!           made at once, as fast as anybody else's work is done.
//! Costs     memory: pages of the file, which has holes where it was read.

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

/// What stands before a mark, in place of the kind: no call that is told of afterwards began before the time that follows it, in
/// nanoseconds of the monotonic clock.
pub const MARK_KIND: u64 = u64::MAX;

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
        let mut mark = Vec::new();
        loop {
            // Asked before the last look, so that nothing is left behind; the threads before the ring, as a mark says.
            let over = self.shared.stop.load(Ordering::Acquire);
            let settled = if unmarked >= MARK { settled_ns(&self.threads) } else { None };
            let (len, all) =
                self.ring.take(|bytes, all| self.shared.file.write_all_at(bytes, at).map(|()| (bytes.len(), all)))?;
            at += len as u64;
            unmarked += len;
            if let (Some(settled), true) = (settled, all) {
                mark.clear();
                Records::put(&[MARK_KIND.to_ne_bytes(), settled.to_ne_bytes()].concat(), &mut mark);
                self.shared.file.write_all_at(&mark, at)?;
                at += mark.len() as u64;
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
}

impl Backlog {
    /// Begins to take, into `file`.
    pub fn start(ring: Ring, threads: Arc<Map>, file: File) -> io::Result<Backlog> {
        let reader = gettid().as_raw_nonzero().get() as u32;
        let [written, read] = [AtomicU64::new(0), AtomicU64::new(0)];
        let shared = Arc::new(Shared { file, written, read, stop: AtomicBool::new(false), reader });
        let taker = Taker { ring, threads, shared: shared.clone(), hurried: false };
        let taker = std::thread::Builder::new().name("taker".into()).spawn(|| taker.run())?;
        Ok(Backlog { shared, taker: Some(taker), piece: Vec::new(), at: 0, hole_to: 0 })
    }

    /// This thread runs when no other wants to from now on, until [`stop`](Self::stop).
    pub fn wait_for_others(&self) {
        // Where it may not, what is traced is only slower.
        let _ = run_when_idle(self.shared.reader, true);
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
        let there = self.shared.written.load(Ordering::Acquire) - self.at;
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
