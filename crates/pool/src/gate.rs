//! How much a device has to write at once.
//!
//! What a device was given it does in the order that it likes, and what lies together first: a read that comes while a stream is being
//! written waits behind all of that, on a disk for seconds. So a device is given what it writes in some 25 ms, by the rate at which it
//! wrote lately, and less while somebody reads; two writes in any case, so that one is there when the other ends. While a read is under
//! way no write begins but two for each read that ends; and nothing begins when a read or a write is late, since a disk
//! whose buffer is full makes room in it first, and takes what comes next before what came earlier. What waits goes in the order of its
//! place. This is what Linux does for its own file systems (`blk-wbt`), which looks at how long reads take; here it is a product of rate and
//! time, as in BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016): it needs no example of a read that
//! waited, and nobody needs to say what the device is made of.

use crate::turns::Turns;
use ashlar_env::{Env, Instant};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;

/// Work for so long is on its way to the device.
const ALONE: Duration = Duration::from_millis(25);
/// The same while somebody reads.
const READING: Duration = Duration::from_millis(5);
/// Who reads will read again within this time.
const AGAIN: Duration = Duration::from_millis(50);
/// After this time without the end of a read that was asked for, no write begins.
const READ_IS_LATE: Duration = Duration::from_millis(20);
/// Nor while a write takes longer than this, and than twice the least time of one.
const WRITE_IS_LATE: Duration = Duration::from_millis(100);
/// After this time it is not for other writes that one of them is late.
const LOST: Duration = Duration::from_secs(1);
/// So many writes may begin with the end of each read, while others are under way.
const WRITES_FOR_A_READ: usize = 2;
/// So many writes are on their way in any case.
const WRITES_MIN: usize = 2;
/// What a device is given of which nothing is known.
const UNKNOWN: u64 = 4 << 20;
/// The rate is that of the last so many bytes, about.
const RECENT: u64 = 16 << 20;
/// The least time of a write is that of one or two such times.
const WINDOW: Duration = Duration::from_secs(10);

/// What is on its way to a device.
pub(crate) struct Gate {
    writes: Mutex<Writes>,
    turns: Turns<u64>,
    room: Notify,
    flushes: AtomicUsize,
    reads: AtomicUsize,
    /// Writes that may begin although something is being read.
    allowance: AtomicUsize,
    /// When the last read ended, or one began while there was none; 0: there was none yet.
    read: AtomicU64,
}

#[derive(Default)]
struct Writes {
    /// When each began that is on its way, and which it is.
    begun: BTreeSet<(Instant, u64)>,
    begun_ever: u64,
    bytes: u64,
    /// When something began or ended last.
    changed: Instant,
    done: u64,
    /// How long something was under way for that.
    busy: Duration,
    /// The least time that a write took, in this window and in the one before.
    least: [Option<Duration>; 2],
    window: Instant,
}

/// A write that is under way, until it is dropped.
pub(crate) struct Writing<'a> {
    gate: &'a Gate,
    env: &'a Env,
    bytes: u64,
    begun: (Instant, u64),
}

/// A flush that is under way, until it is dropped.
pub(crate) struct Flushing<'a>(&'a Gate);

/// A read that is under way, until it is dropped.
pub(crate) struct Reading<'a>(&'a Gate, &'a Env);

impl Writes {
    fn at(&mut self, now: Instant) {
        if !self.begun.is_empty() {
            self.busy += now.since(self.changed);
        }
        self.changed = now;
    }

    fn begin(&mut self, now: Instant, bytes: u64) -> (Instant, u64) {
        self.at(now);
        self.begun_ever += 1;
        self.bytes += bytes;
        let begun = (now, self.begun_ever);
        self.begun.insert(begun);
        begun
    }

    fn end(&mut self, now: Instant, bytes: u64, begun: (Instant, u64)) {
        self.at(now);
        self.begun.remove(&begun);
        self.bytes -= bytes;
        self.done += bytes;
        let took = now.since(begun.0);
        if self.done > RECENT {
            self.done /= 2;
            self.busy /= 2;
        }
        if now.since(self.window) > WINDOW {
            self.least = [None, self.least[0]];
            self.window = now;
        }
        self.least[0] = Some(self.least[0].map_or(took, |least| least.min(took)));
    }

    /// Bytes that it writes in so much time; `None` if that is not known.
    fn worth(&self, time: Duration) -> Option<u64> {
        let busy = self.busy.as_nanos();
        let bytes = (u128::from(self.done) * time.as_nanos()).checked_div(busy)?;
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Twice the least time of a write. A device that is far away answers late whatever it has to do, and is given what it does in this
    /// time, or the rate would only ever fall.
    fn there_and_back(&self) -> Duration {
        2 * self.least.iter().flatten().min().copied().unwrap_or_default()
    }

    /// Whether so many bytes more may be on their way.
    fn takes(&self, now: Instant, bytes: u64, time: Duration) -> bool {
        let late = WRITE_IS_LATE.max(self.there_and_back())..LOST;
        if self.begun.first().is_some_and(|(begun, _)| late.contains(&now.since(*begun))) {
            return false;
        }
        let most = || self.worth(time.max(self.there_and_back())).unwrap_or(UNKNOWN);
        self.begun.len() < WRITES_MIN || self.bytes + bytes <= most()
    }
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            writes: Mutex::default(),
            turns: Turns::default(),
            room: Notify::new(),
            flushes: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            allowance: AtomicUsize::new(WRITES_FOR_A_READ),
            read: AtomicU64::new(0),
        }
    }

    /// To be called before so many bytes are written at `address`: waits until it is their turn.
    pub(crate) async fn write<'a>(&'a self, env: &'a Env, address: u64, bytes: u64) -> Writing<'a> {
        if self.turns.is_free()
            && let Some(writing) = self.begin(env, bytes)
        {
            return writing;
        }
        let _turn = self.turns.take(address).await;
        loop {
            let mut rung = std::pin::pin!(self.room.notified());
            rung.as_mut().enable();
            if let Some(writing) = self.begin(env, bytes) {
                return writing;
            }
            // Whatever is in the way rings when it ends; but a read or a write may be lost.
            let mut tired = std::pin::pin!(env.sleep(LOST));
            poll_fn(|context| {
                if rung.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { tired.as_mut().poll(context) }
            })
            .await;
        }
    }

    fn begin<'a>(&'a self, env: &'a Env, bytes: u64) -> Option<Writing<'a>> {
        if self.flushes.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let now = env.now();
        let waited = now.since(Instant(self.read.load(Ordering::Relaxed)));
        let reads = self.reads.load(Ordering::Relaxed) > 0;
        let mut writes = self.writes.lock();
        let allowance = self.allowance.load(Ordering::Relaxed);
        if reads && waited < LOST && (waited >= READ_IS_LATE || allowance == 0) {
            return None;
        }
        let time = if reads || waited < AGAIN { READING } else { ALONE };
        let may = writes.takes(now, bytes, time);
        if may {
            self.allowance.store(allowance.saturating_sub(1), Ordering::Relaxed);
        }
        may.then(|| Writing { gate: self, env, bytes, begun: writes.begin(now, bytes) })
    }

    /// To be called before the device is flushed. No write begins until that is done: a device may go on until what came meanwhile is
    /// on the medium, too, and serves nobody before.
    pub(crate) fn flush(&self) -> Flushing<'_> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Flushing(self)
    }

    /// To be called before something is read.
    pub(crate) fn read<'a>(&'a self, env: &'a Env) -> Reading<'a> {
        if self.reads.fetch_add(1, Ordering::Relaxed) == 0 {
            self.read.store(env.now().0, Ordering::Relaxed);
        }
        Reading(self, env)
    }

    /// Has who waits look again.
    fn ring(&self) {
        self.room.notify_waiters();
    }

    /// Bytes that the device writes in so much time, and in that which it needs to answer, as it did lately; `None` if nothing was
    /// written.
    pub(crate) fn worth(&self, time: Duration) -> Option<u64> {
        let writes = self.writes.lock();
        writes.worth(time + writes.there_and_back())
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.gate.writes.lock().end(self.env.now(), self.bytes, self.begun);
        self.gate.ring();
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.flushes.fetch_sub(1, Ordering::Relaxed);
        self.0.ring();
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.allowance.store(WRITES_FOR_A_READ, Ordering::Relaxed);
        self.0.read.store(self.1.now().0, Ordering::Relaxed);
        self.0.reads.fetch_sub(1, Ordering::Relaxed);
        self.0.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::sim::{Schedule, Sim};
    use std::sync::Arc;

    const BATCH: u64 = 1 << 20;

    /// Of so many writes that all want to begin at once: how many are under way at most when the first fifty are done; and how long all
    /// take.
    async fn most_at_once(
        env: Env,
        count: u64,
        takes: impl Fn(Instant) -> Duration + Send + Sync + 'static,
    ) -> (usize, Duration) {
        let (gate, takes, began) = (Arc::new(Gate::new()), Arc::new(takes), env.now());
        let writes: Vec<_> = (0..count)
            .map(|index| {
                let (gate, takes, task_env) = (gate.clone(), takes.clone(), env.clone());
                env.spawn(async move {
                    let _writing = gate.write(&task_env, index, BATCH).await;
                    let at_once = {
                        let writes = gate.writes.lock();
                        if writes.begun_ever > 50 { writes.begun.len() } else { 0 }
                    };
                    task_env.sleep(takes(task_env.now())).await;
                    at_once
                })
            })
            .collect();
        let mut most = 0;
        for write in writes {
            most = most.max(write.await);
        }
        (most, env.now().since(began))
    }

    /// A device that does one after the other.
    fn serial(each: Duration) -> impl Fn(Instant) -> Duration {
        let free = Mutex::new(Instant::default());
        move |now| {
            let mut free = free.lock();
            *free = Instant((*free).max(now).0 + each.as_nanos() as u64);
            free.since(now)
        }
    }

    fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        seed: u64,
        test: impl FnOnce(Env) -> F,
    ) -> T {
        let sim = Sim::new(seed, Schedule::Random);
        let run = test(sim.env());
        sim.run(run).unwrap_or_else(|_| panic!("seed {seed}: deadlock"))
    }

    #[test]
    fn a_device_is_given_what_it_does_in_a_time() {
        let (disk, flash) = (Duration::from_millis(10), Duration::from_micros(500));
        for seed in 0..20 {
            let (most, took) = simulate(seed, |env| most_at_once(env, 200, serial(disk)));
            assert_eq!((most, took), (2, disk * 200), "seed {seed}");
            let (most, took) = simulate(seed, |env| most_at_once(env, 2000, serial(flash)));
            assert!((45..=51).contains(&most) && took == flash * 2000, "seed {seed}: {most} in {took:?}");
        }
    }

    #[test]
    fn a_device_that_is_far_away_is_kept_busy() {
        for far in [80, 400, 2000].map(Duration::from_millis) {
            let (most, took) = simulate(1, move |env| most_at_once(env, 2000, move |_| far));
            assert!(most > 100 && took < far * 50, "{most} in {took:?}, where each takes {far:?}");
        }
    }

    #[test]
    fn a_late_read_goes_first_but_not_for_ever() {
        for (read_ends, write_begins) in [(300, 300), (5, 0), (5000, 1030)] {
            let waited = simulate(1, move |env| async move {
                let gate = Arc::new(Gate::new());
                let reading = {
                    let (gate, env) = (gate.clone(), env.clone());
                    env.clone().spawn(async move {
                        let _reading = gate.read(&env);
                        env.sleep(Duration::from_millis(read_ends)).await;
                    })
                };
                env.sleep(Duration::from_millis(30)).await;
                let began = env.now();
                drop(gate.write(&env, 0, BATCH).await);
                let waited = env.now().since(began);
                reading.await;
                waited.as_millis() as u64 + 30
            });
            assert_eq!(waited, write_begins.max(30), "a read that ends after {read_ends} ms");
        }
    }

    #[test]
    fn two_writes_begin_for_each_read() {
        let begun = simulate(1, |env| async move {
            let gate = Arc::new(Gate::new());
            let readers: Vec<_> = (0..2)
                .map(|reader| {
                    let (gate, env) = (gate.clone(), env.clone());
                    env.clone().spawn(async move {
                        env.sleep(Duration::from_millis(5 * reader)).await;
                        for _ in 0..20 {
                            let _reading = gate.read(&env);
                            env.sleep(Duration::from_millis(10)).await;
                        }
                    })
                })
                .collect();
            env.sleep(Duration::from_millis(51)).await;
            let over = env.now().0 + Duration::from_millis(100).as_nanos() as u64;
            let mut begun = 0;
            while env.now().0 < over {
                drop(gate.write(&env, begun, BATCH).await);
                begun += 1;
            }
            for reader in readers {
                reader.await;
            }
            begun
        });
        assert!((38..=43).contains(&begun), "{begun} writes began while 20 reads ended");
    }

    #[test]
    fn nothing_begins_during_a_flush() {
        let waited = simulate(1, |env| async move {
            let gate = Arc::new(Gate::new());
            let flushing = {
                let (gate, env) = (gate.clone(), env.clone());
                env.clone().spawn(async move {
                    let _flushing = gate.flush();
                    env.sleep(Duration::from_millis(150)).await;
                })
            };
            env.sleep(Duration::from_millis(50)).await;
            drop(gate.write(&env, 0, BATCH).await);
            flushing.await;
            env.now().since(Instant::default())
        });
        assert_eq!(waited, Duration::from_millis(150));
    }
}
