//! Reads over NBD at random times, whatever has become of those before (an open loop). fio does not do that: before it waits for
//! the time of its next request it waits for all that are under way, and then sends as many at once as it has fallen behind.

use crate::bench::check_interrupt;
use ashlar_models::Chance;
use ashlar_nbd::options::{FIXED_NEWSTYLE, Header, Kind, NO_ZEROES};
use ashlar_nbd::wire::{Command, Request, SIMPLE_REPLY_MAGIC};
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK_LEN: usize = 4096;
/// What is answered in the first second is not counted.
const RAMP: Duration = Duration::from_secs(1);

/// What came of it.
pub(crate) struct Answers {
    /// Reads sent in a second.
    pub(crate) rate: f64,
    /// From sending a read to having all of its data, ascending.
    pub(crate) latencies_us: Vec<f64>,
}

/// Reads random blocks of a device of `blocks` blocks for so many seconds, at exponentially distributed intervals.
pub(crate) fn read_at_random(socket: &Path, blocks: u64, rate: u32, seconds: u32) -> Result<Answers, String> {
    let stream = greet(socket).map_err(|error| format!("{}: {error}", socket.display()))?;
    let mut chance = Chance::new(u64::from(rate));
    let mut at_s = 0.0;
    let until_s = RAMP.as_secs_f64() + f64::from(seconds);
    let next = || {
        at_s -= (1.0 - chance.unit()).ln() / f64::from(rate);
        (at_s < until_s).then_some((Duration::from_secs_f64(at_s), chance.below(blocks)))
    };
    let arrivals: Vec<(Duration, u64)> = std::iter::from_fn(next).collect();
    let sent_ns: Vec<AtomicU64> = arrivals.iter().map(|_| AtomicU64::new(0)).collect();
    let began = Instant::now();
    let answered_ns = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&stream, arrivals.len(), began));
        let sent = send(&stream, &arrivals, &sent_ns, began);
        if sent.is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let answered = receiver.join().expect("the receiver does not panic");
        sent.and(answered.map_err(|error| format!("an answer: {error}")))
    })?;
    let ramp_ns = RAMP.as_nanos() as u64;
    let counted = sent_ns.iter().zip(answered_ns).map(|(sent, answered)| (sent.load(Ordering::Relaxed), answered));
    let mut latencies_us: Vec<f64> =
        counted.filter(|(sent, _)| *sent >= ramp_ns).map(|(sent, answered)| (answered - sent) as f64 / 1e3).collect();
    latencies_us.sort_by(f64::total_cmp);
    Ok(Answers { rate: latencies_us.len() as f64 / f64::from(seconds), latencies_us })
}

/// A connection to the first export, with simple replies.
fn greet(socket: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    // Magic numbers and flags.
    stream.read_exact(&mut [0; 18])?;
    stream.write_all(&u32::from(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes())?;
    stream.write_all(&Header { kind: Kind::ExportName, len: 0 }.encode())?;
    // Size and flags of the export.
    stream.read_exact(&mut [0; 10])?;
    Ok(stream)
}

/// Sends each read when its time has come. One that is late goes together with those that are due by then.
fn send(
    mut stream: &UnixStream,
    arrivals: &[(Duration, u64)],
    sent_ns: &[AtomicU64],
    began: Instant,
) -> Result<(), String> {
    let mut cookie = 0;
    while let Some((due, _)) = arrivals.get(cookie) {
        check_interrupt()?;
        thread::sleep(due.saturating_sub(began.elapsed()));
        let now = began.elapsed();
        let mut requests = Vec::new();
        while let Some((_, block)) = arrivals.get(cookie).filter(|(due, _)| *due <= now) {
            let (offset, len) = (block * BLOCK_LEN as u64, BLOCK_LEN as u32);
            requests.extend(Request { flags: 0, command: Command::Read, cookie: cookie as u64, offset, len }.encode());
            sent_ns[cookie].store(now.as_nanos() as u64, Ordering::Relaxed);
            cookie += 1;
        }
        stream.write_all(&requests).map_err(|error| format!("a request: {error}"))?;
    }
    Ok(())
}

/// Takes so many replies; gives the times at which each was there.
fn receive(stream: &UnixStream, count: usize, began: Instant) -> io::Result<Vec<u64>> {
    let mut stream = BufReader::with_capacity(1 << 18, stream);
    let mut answered_ns = vec![0; count];
    let mut data = [0; BLOCK_LEN];
    for _ in 0..count {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        stream.read_exact(&mut data)?;
        let [magic, error] = [0, 4].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes")));
        let cookie = u64::from_be_bytes(head[8..].try_into().expect("eight bytes"));
        let answered = answered_ns.get_mut(cookie as usize).filter(|_| magic == SIMPLE_REPLY_MAGIC && error == 0);
        *answered.ok_or_else(|| io::Error::other(format!("error {error} for read {cookie}")))? =
            began.elapsed().as_nanos() as u64;
    }
    Ok(answered_ns)
}
