//! The real runtime: worker threads, each with a run queue, timers and an io_uring in which it parks. Where io_uring is not
//! allowed, helper threads make the calls, and a worker parks in `poll(2)`.
//!
//! A task stays on the worker where it was spawned, so an operation that it starts completes on the same ring and wakes
//! it without crossing threads. A wake from another thread goes through the worker's inbox and an eventfd, and the
//! eventfd is written only if the worker is about to park or parked.

mod calls;
mod place;
#[allow(unsafe_code)]
pub mod ring;
mod threads;

use crate::{BoxFuture, Env, FileOps, Instant, Runtime};
use parking_lot::Mutex;
use place::Place;
use ring::RingOps;
use std::cell::RefCell;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use threads::{Helpers, ThreadOps};

/// A busy worker looks at its ring after so many polls, or so much time.
const POLLS_PER_RING_CHECK: usize = 16;
const TIME_PER_RING_CHECK: Duration = Duration::from_micros(15);
/// It looks at the clock, for its timers, when it has nothing else to do, and after so many polls.
const POLLS_PER_CLOCK_CHECK: usize = 4;
/// Workers that stay awake at once; see [`Spawner::stay_awake`].
const AWAKE_MAX: usize = 2;
/// A worker that gave way for less than this met nobody who wanted its processor, and pauses before it looks again.
const NOBODY: Duration = Duration::from_nanos(700);
const PAUSES: usize = 16;
/// A worker that gave way for longer than this shares its processor with somebody who has much to do. What the kernel does
/// for a device takes some 20 us.
const WANTED: Duration = Duration::from_micros(50);
/// Instead of a worker's number.
const NOBODY_SERVES: usize = usize::MAX;
/// How often another worker is woken to stay awake too.
const TIME_PER_ROUSE: Duration = Duration::from_micros(100);
/// For how long such a one is left in peace.
const PEACE: Duration = Duration::from_millis(2);
/// A worker does not sleep when its next timer is as near as this, which a processor may take to wake.
const NEAR: Duration = Duration::from_micros(80);
/// For how long workers stay awake after one woke another, since it may do so again.
const TIME_AFTER_WAKE: Duration = Duration::from_micros(50);

thread_local! {
    static WORKER: RefCell<Option<Local>> = const { RefCell::new(None) };
}

struct Local {
    shared: Arc<Worker>,
    queue: VecDeque<Arc<RealTask>>,
    timers: BinaryHeap<Timer>,
    timer_order: u64,
    place: Place,
}

impl Local {
    /// Looks for something to do while workers are to stay awake. Whether there is something.
    fn stay_awake(&mut self, mut now: Instant) -> bool {
        let shared = self.shared.clone();
        let clock = &*shared.clock;
        let until = || Instant(clock.awake_until.load(Ordering::Relaxed));
        if now >= until() {
            return false;
        }
        if clock.awake.fetch_add(1, Ordering::Relaxed) >= AWAKE_MAX {
            clock.awake.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        // What is queued must not wait, as when parking.
        self.place.enter();
        now = clock.now();
        let due = self.timers.peek().map_or(Instant(u64::MAX), |timer| timer.at);
        let mut found = false;
        while now < until() {
            found = self.place.has_news() || shared.has_mail() || now >= due;
            if found {
                self.place.enter();
                break;
            }
            std::thread::yield_now();
            let later = clock.now();
            if later.since(now) < NOBODY {
                // Two processors are often one core, which the other one needs more.
                (0..PAUSES).for_each(|_| std::hint::spin_loop());
                now = clock.now();
                continue;
            }
            found = self.place.has_news();
            if !found && later.since(now) > WANTED {
                // Whoever wants the processor keeps it awake.
                shared.peace_until.store(later.0 + PEACE.as_nanos() as u64, Ordering::Relaxed);
                break;
            }
            now = later;
        }
        clock.awake.fetch_sub(1, Ordering::Relaxed);
        found
    }
}

struct Worker {
    number: usize,
    inbox: Mutex<Inbox>,
    parked: AtomicBool,
    bell: ring::Bell,
    /// Until when it is not woken only to be awake, in nanoseconds since the beginning.
    peace_until: AtomicU64,
    clock: Arc<Clock>,
}

/// What all workers of a runtime share.
struct Clock {
    began: std::time::Instant,
    /// Until when workers stay awake, in nanoseconds since the beginning.
    awake_until: AtomicU64,
    /// How many do.
    awake: AtomicUsize,
    /// When one was woken for that, last.
    roused: AtomicU64,
    /// The worker that was told to stay awake last, since it serves somebody who waits.
    serving: AtomicUsize,
    /// All workers, once they are made.
    workers: OnceLock<Vec<Weak<Worker>>>,
}

impl Clock {
    fn now(&self) -> Instant {
        Instant(self.began.elapsed().as_nanos() as u64)
    }

    /// Lets workers stay awake; whether they were to do so already.
    fn stay_awake(&self, now: Instant, time: Duration) -> bool {
        self.awake_until.fetch_max(now.0 + time.as_nanos() as u64, Ordering::Relaxed) > now.0
    }

    /// Wakes a worker that sleeps, now and then.
    fn rouse(&self, now: Instant) {
        let last = self.roused.load(Ordering::Relaxed);
        if self.awake.load(Ordering::Relaxed) >= AWAKE_MAX || now.since(Instant(last)) < TIME_PER_ROUSE {
            return;
        }
        if self.roused.compare_exchange(last, now.0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let in_reach = |worker: &Arc<Worker>| {
            worker.peace_until.load(Ordering::Relaxed) < now.0 && worker.parked.load(Ordering::Relaxed)
        };
        let mut workers = self.workers.get().into_iter().flatten().filter_map(Weak::upgrade);
        if let Some(worker) = workers.find(in_reach)
            && worker.parked.swap(false, Ordering::SeqCst)
        {
            worker.bell.ring();
        }
    }
}

#[derive(Default)]
struct Inbox {
    tasks: Vec<Arc<RealTask>>,
    timers: Vec<(Instant, Waker)>,
    stop: bool,
}

impl Worker {
    fn has_mail(&self) -> bool {
        let inbox = self.inbox.lock();
        !inbox.tasks.is_empty() || !inbox.timers.is_empty() || inbox.stop
    }

    fn send(&self, add: impl FnOnce(&mut Inbox)) {
        add(&mut self.inbox.lock());
        if self.parked.swap(false, Ordering::SeqCst) {
            self.bell.ring();
            self.clock.stay_awake(self.clock.now(), TIME_AFTER_WAKE);
        }
    }
}

struct RealTask {
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    queued: AtomicBool,
    home: Arc<Worker>,
}

impl Wake for RealTask {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut task = Some(self);
        let _ = WORKER.try_with(|local| {
            if let Ok(mut local) = local.try_borrow_mut()
                && let Some(local) = local.as_mut()
                && Arc::ptr_eq(&local.shared, &task.as_ref().expect("not yet moved").home)
            {
                local.queue.extend(task.take());
            }
        });
        if let Some(task) = task {
            let home = task.home.clone();
            home.send(|inbox| inbox.tasks.push(task));
        }
    }
}

struct Timer {
    at: Instant,
    order: u64,
    waker: Waker,
}
impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order)) // earliest first in a max-heap
    }
}

/// Asks for small pages from now on, in the whole process. Whoever touches a little memory here and a little there has the kernel
/// clear 2 MiB for each with huge ones, which on a virtual machine may take 2 ms. Where the kernel does not grant that, all works
/// as well.
pub fn small_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Worker threads and a few helpers for blocking work. Dropping it stops the workers; tasks that still wait are dropped.
pub struct Real {
    shared: Arc<RealShared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct RealShared {
    clock: Arc<Clock>,
    workers: Vec<Arc<Worker>>,
    next: AtomicUsize,
    blocking: Mutex<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    has_io_uring: bool,
    helpers: Arc<Helpers>,
}

/// Says what limits threads.
pub fn no_thread(error: io::Error) -> io::Error {
    let message = format!("cannot start a thread: {error}; allow more (`ulimit -u`, or the pids of a container)");
    io::Error::new(error.kind(), message)
}

impl Real {
    /// Starts `workers` executor threads and as many helpers for blocking work.
    pub fn start(workers: usize) -> io::Result<Real> {
        Real::start_with(workers, true)
    }

    /// As where io_uring is not allowed.
    pub fn without_io_uring(workers: usize) -> io::Result<Real> {
        Real::start_with(workers, false)
    }

    fn start_with(workers: usize, wants_ring: bool) -> io::Result<Real> {
        let (sender, receiver) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let receiver = Arc::new(Mutex::new(receiver));
        let mut threads = Vec::new();
        let mut shared_workers = Vec::new();
        let mut started = Vec::new();
        let helpers = Arc::new(Helpers::default());
        let clock = Arc::new(Clock {
            began: std::time::Instant::now(),
            awake_until: AtomicU64::new(0),
            awake: AtomicUsize::new(0),
            roused: AtomicU64::new(0),
            serving: AtomicUsize::new(NOBODY_SERVES),
            workers: OnceLock::new(),
        });
        for index in 0..workers.max(1) {
            let (parked, bell) = (AtomicBool::new(false), ring::Bell::new()?);
            let worker = Arc::new(Worker {
                number: index,
                inbox: Mutex::default(),
                parked,
                bell,
                peace_until: AtomicU64::new(0),
                clock: clock.clone(),
            });
            shared_workers.push(worker.clone());
            let (tell, told) = mpsc::channel();
            started.push(told);
            let name = format!("ashlar-{index}");
            let helpers = helpers.clone();
            let run = move || run_worker(worker, wants_ring, helpers, &tell);
            let thread = std::thread::Builder::new().name(name).spawn(run);
            threads.push(thread.map_err(no_thread)?);
        }
        let _ = clock.workers.set(shared_workers.iter().map(Arc::downgrade).collect());
        let mut has_io_uring = true;
        for told in started {
            has_io_uring &= told.recv().map_err(io::Error::other)??;
        }
        for _ in 0..workers.max(1) {
            let receiver = receiver.clone();
            let worker = std::thread::Builder::new().name("ashlar-work".into()).spawn(move || {
                let _or_nobody = OrNobody;
                loop {
                    let next = receiver.lock().recv();
                    let Ok(work) = next else { return };
                    work();
                }
            });
            worker.map_err(no_thread)?;
        }
        let shared = RealShared {
            clock,
            workers: shared_workers,
            next: AtomicUsize::new(0),
            blocking: Mutex::new(sender),
            has_io_uring,
            helpers,
        };
        Ok(Real { shared: Arc::new(shared), threads })
    }

    /// The handle that engines are given.
    pub fn env(&self) -> Env {
        Env::new(self.shared.clone())
    }

    /// Whether the workers have an io_uring each.
    pub fn has_io_uring(&self) -> bool {
        self.shared.has_io_uring
    }

    /// Number of executor threads.
    pub fn workers(&self) -> usize {
        self.shared.workers.len()
    }

    /// Spawns a task on the worker with this number (modulo their count).
    pub fn spawn_on(&self, worker: usize, future: impl Future<Output = ()> + Send + 'static) {
        let worker = &self.shared.workers[worker % self.shared.workers.len()];
        spawn_at(worker, Box::pin(future));
    }

    /// Spawns on one worker, from anywhere.
    pub fn spawner(&self, worker: usize) -> Spawner {
        Spawner(self.shared.workers[worker % self.shared.workers.len()].clone())
    }

    /// Runs a future on a worker and waits for it. Never call it from a worker.
    pub fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        let task = self.env().spawn(future);
        self.spawn_on(0, async move {
            let outcome = std::panic::AssertUnwindSafe(task);
            let outcome = CatchUnwind(outcome.0).await;
            let _ = sender.send(outcome);
        });
        match receiver.recv().expect("workers live as long as the runtime") {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Spawns tasks on one worker.
#[derive(Clone)]
pub struct Spawner(Arc<Worker>);

impl Spawner {
    /// Runs a future on that worker.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        spawn_at(&self.0, Box::pin(future));
    }

    /// For so long from now on, up to two workers with nothing to do look for more instead of sleeping, as long as nobody else
    /// wants their processors. Waking a processor that sleeps takes longer than serving a small request; and the kernel
    /// moves clients to one that sleeps, away from the queue that they used last.
    pub fn stay_awake(&self, time: Duration) {
        let (clock, now) = (&self.0.clock, self.0.clock.now());
        clock.serving.store(self.0.number, Ordering::Relaxed);
        if clock.stay_awake(now, time) {
            clock.rouse(now);
        }
    }
}

struct CatchUnwind<T>(crate::Task<T>);
impl<T> Future for CatchUnwind<T> {
    type Output = std::thread::Result<T>;
    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = std::pin::Pin::new(&mut self.0);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task.poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        for worker in &self.shared.workers {
            worker.send(|inbox| inbox.stop = true);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.helpers.end();
    }
}

fn spawn_at(worker: &Arc<Worker>, future: BoxFuture<'static, ()>) {
    let task = RealTask { future: Mutex::new(Some(future)), queued: AtomicBool::new(false), home: worker.clone() };
    Arc::new(task).wake();
}

/// Ends the process if the thread that has it panics. What the thread was to do is done by nobody then, and programs that wait for
/// it would hang; a process that ended by itself is an error to them, and what was synced is there when it is started again.
struct OrNobody;

impl Drop for OrNobody {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::say::error("ashlar: a thread that others wait for has failed: the process ends");
            std::process::abort();
        }
    }
}

/// Tells whether it has a ring, or why it does not run.
fn run_worker(shared: Arc<Worker>, wants_ring: bool, helpers: Arc<Helpers>, tell: &mpsc::Sender<io::Result<bool>>) {
    let _or_nobody = OrNobody;
    let place = match Place::new(&shared.bell, wants_ring, helpers) {
        Ok(place) => place,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    let has_ring = place.is_ring();
    WORKER.with_borrow_mut(|local| {
        *local = Some(Local {
            shared: shared.clone(),
            queue: VecDeque::new(),
            timers: BinaryHeap::new(),
            timer_order: 0,
            place,
        });
    });
    let _ = tell.send(Ok(has_ring));
    let with =
        |act: &mut dyn FnMut(&mut Local)| WORKER.with_borrow_mut(|local| act(local.as_mut().expect("set above")));
    let (mut polls, mut entered, mut now) = (0usize, Instant::default(), Instant::default());
    let mut inbox = Inbox::default();
    loop {
        std::mem::swap(&mut inbox, &mut shared.inbox.lock());
        if inbox.stop {
            break;
        }
        let (mut task, mut woken, mut idle) = (None, Vec::new(), false);
        with(&mut |local| {
            local.queue.extend(inbox.tasks.drain(..));
            for (at, waker) in inbox.timers.drain(..) {
                local.timer_order += 1;
                local.timers.push(Timer { at, order: local.timer_order, waker });
            }
            woken.extend(local.place.collect());
            idle = local.queue.is_empty() && woken.is_empty();
            if idle || polls.is_multiple_of(POLLS_PER_CLOCK_CHECK) {
                now = shared.clock.now();
                while local.timers.peek().is_some_and(|timer| timer.at <= now) {
                    woken.extend(local.timers.pop().map(|timer| timer.waker));
                }
                if !idle && (polls >= POLLS_PER_RING_CHECK || now.since(entered) > TIME_PER_RING_CHECK) {
                    (polls, entered) = (0, now);
                    local.place.enter();
                    woken.extend(local.place.collect());
                }
            }
            task = local.queue.pop_front();
        });
        woken.into_iter().for_each(Waker::wake);
        let task =
            task.or_else(|| WORKER.with_borrow_mut(|local| local.as_mut().expect("set above").queue.pop_front()));
        if let Some(task) = task {
            polls += 1;
            run_task(&task);
            continue;
        }
        let mut found = false;
        with(&mut |local| {
            let wait = local.timers.peek().map_or(Duration::MAX, |timer| timer.at.since(now));
            if wait <= NEAR {
                shared.clock.stay_awake(now, wait);
            }
            found = local.stay_awake(now);
        });
        if found {
            continue;
        }
        shared.parked.store(true, Ordering::SeqCst);
        if !shared.has_mail() {
            with(&mut |local| {
                let wait = local.timers.peek().map(|timer| timer.at.since(shared.clock.now()));
                local.place.park(wait.map(|wait| if wait > NEAR { wait - NEAR } else { wait }));
            });
        }
        shared.parked.store(false, Ordering::SeqCst);
    }
    // Tasks that remain are dropped outside the borrow: their destructors may wake others.
    let local = WORKER.with_borrow_mut(Option::take);
    drop(local);
}

fn run_task(task: &Arc<RealTask>) {
    task.queued.store(false, Ordering::Release);
    let taken = task.future.lock().take();
    let Some(mut future) = taken else { return };
    let waker = Waker::from(task.clone());
    if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        *task.future.lock() = Some(future);
    }
}

impl RealShared {
    /// A worker that has nothing to do, other than the one that serves who waits.
    fn idle(&self) -> Option<usize> {
        let serving = self.clock.serving.load(Ordering::Relaxed);
        let parked = |worker: &&Arc<Worker>| worker.number != serving && worker.parked.load(Ordering::Relaxed);
        self.workers.iter().find(parked).map(|worker| worker.number)
    }
}

impl Runtime for RealShared {
    fn now(&self) -> Instant {
        self.clock.now()
    }
    fn wall(&self) -> Duration {
        ring::coarse_wall()
    }
    fn wake_at(&self, at: Instant, waker: Waker) {
        let mut waker = Some(waker);
        let _ = WORKER.try_with(|local| {
            if let Ok(mut local) = local.try_borrow_mut()
                && let Some(local) = local.as_mut()
            {
                local.timer_order += 1;
                let order = local.timer_order;
                local.timers.extend(waker.take().map(|waker| Timer { at, order, waker }));
            }
        });
        if let Some(waker) = waker {
            self.workers[0].send(|inbox| inbox.timers.push((at, waker)));
        }
    }
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        spawn_at(&self.workers[next % self.workers.len()], future);
    }
    fn spawn_here(&self, future: BoxFuture<'static, ()>) {
        let worker = WORKER.try_with(|local| Some(local.try_borrow().ok()?.as_ref()?.shared.clone()));
        match worker.ok().flatten().filter(|here| self.workers.iter().any(|worker| Arc::ptr_eq(worker, here))) {
            Some(here) => spawn_at(&here, future),
            None => self.spawn(future),
        }
    }
    fn spawn_aside(&self, future: BoxFuture<'static, ()>) {
        let serving = self.clock.serving.load(Ordering::Relaxed);
        let (next, workers) = (self.next.fetch_add(1, Ordering::Relaxed), self.workers.len());
        let worker = self.idle().unwrap_or_else(|| match serving {
            // This one, since whoever asks will mostly wait for it.
            NOBODY_SERVES => {
                let here = WORKER.try_with(|local| Some(local.try_borrow().ok()?.as_ref()?.shared.number));
                here.ok().flatten().filter(|here| *here < workers).unwrap_or(next % workers)
            }
            _ if workers == 1 => 0,
            // The others take turns.
            serving => (serving + 1 + next % (workers - 1)) % workers,
        });
        spawn_at(&self.workers[worker], future);
    }
    fn is_idle(&self) -> bool {
        self.idle().is_some()
    }
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) {
        self.blocking.lock().send(work).expect("helper threads live as long as the sender");
    }
    fn random(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0u8)
    }
    fn file_ops(&self) -> Option<&dyn FileOps> {
        Some(if self.has_io_uring { &RingOps } else { &ThreadOps })
    }
}

#[cfg(test)]
mod tests;
