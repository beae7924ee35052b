//! The real runtime: worker threads, each with a run queue, timers and an io_uring in which it parks.
//!
//! A task stays on the worker where it was spawned, so an operation that it starts completes on the same ring and wakes
//! it without crossing threads. A wake from another thread goes through the worker's inbox and an eventfd, and the
//! eventfd is written only if the worker is about to park or parked.

#[allow(unsafe_code)]
pub mod ring;

use crate::{BoxFuture, Env, FileOps, Instant, Runtime};
use parking_lot::Mutex;
use ring::{Ring, RingOps};
use std::cell::RefCell;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// How often a busy worker looks at its ring while tasks keep it busy, in polls.
const POLLS_PER_RING_CHECK: usize = 32;

thread_local! {
    static WORKER: RefCell<Option<Local>> = const { RefCell::new(None) };
}

struct Local {
    shared: Arc<Worker>,
    queue: VecDeque<Arc<RealTask>>,
    timers: BinaryHeap<Timer>,
    timer_order: u64,
    ring: Ring,
}

struct Worker {
    inbox: Mutex<Inbox>,
    parked: AtomicBool,
    bell: ring::Bell,
}

#[derive(Default)]
struct Inbox {
    tasks: Vec<Arc<RealTask>>,
    timers: Vec<(Instant, Waker)>,
    stop: bool,
}

impl Worker {
    fn send(&self, add: impl FnOnce(&mut Inbox)) {
        add(&mut self.inbox.lock());
        if self.parked.swap(false, Ordering::SeqCst) {
            self.bell.ring();
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

/// Worker threads and a few helpers for blocking work. Dropping it stops the workers; tasks that still wait are dropped.
pub struct Real {
    shared: Arc<RealShared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct RealShared {
    began: std::time::Instant,
    workers: Vec<Arc<Worker>>,
    next: AtomicUsize,
    blocking: Mutex<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    ops: RingOps,
}

impl Real {
    /// Starts `workers` executor threads and as many helpers for blocking work.
    pub fn start(workers: usize) -> io::Result<Real> {
        let (sender, receiver) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let receiver = Arc::new(Mutex::new(receiver));
        let mut threads = Vec::new();
        let mut shared_workers = Vec::new();
        let mut started = Vec::new();
        let began = std::time::Instant::now();
        for index in 0..workers.max(1) {
            let worker =
                Arc::new(Worker { inbox: Mutex::default(), parked: AtomicBool::new(false), bell: ring::Bell::new()? });
            shared_workers.push(worker.clone());
            let (tell, told) = mpsc::channel();
            started.push(told);
            let name = format!("ashlar-{index}");
            threads.push(std::thread::Builder::new().name(name).spawn(move || run_worker(worker, began, &tell))?);
        }
        for told in started {
            told.recv().map_err(io::Error::other)??;
        }
        for _ in 0..workers.max(1) {
            let receiver = receiver.clone();
            std::thread::Builder::new().name("ashlar-work".into()).spawn(move || {
                loop {
                    let next = receiver.lock().recv();
                    let Ok(work) = next else { return };
                    work();
                }
            })?;
        }
        let shared = RealShared {
            began,
            workers: shared_workers,
            next: AtomicUsize::new(0),
            blocking: Mutex::new(sender),
            ops: RingOps,
        };
        Ok(Real { shared: Arc::new(shared), threads })
    }

    /// The handle that engines are given.
    pub fn env(&self) -> Env {
        Env::new(self.shared.clone())
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
    }
}

fn spawn_at(worker: &Arc<Worker>, future: BoxFuture<'static, ()>) {
    let task = RealTask { future: Mutex::new(Some(future)), queued: AtomicBool::new(false), home: worker.clone() };
    Arc::new(task).wake();
}

fn run_worker(shared: Arc<Worker>, began: std::time::Instant, tell: &mpsc::Sender<io::Result<()>>) {
    let ring = match Ring::new(&shared.bell) {
        Ok(ring) => ring,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    WORKER.with_borrow_mut(|local| {
        *local = Some(Local {
            shared: shared.clone(),
            queue: VecDeque::new(),
            timers: BinaryHeap::new(),
            timer_order: 0,
            ring,
        });
    });
    let _ = tell.send(Ok(()));
    let with =
        |act: &mut dyn FnMut(&mut Local)| WORKER.with_borrow_mut(|local| act(local.as_mut().expect("set above")));
    let mut polls = 0;
    let mut inbox = Inbox::default();
    loop {
        std::mem::swap(&mut inbox, &mut shared.inbox.lock());
        if inbox.stop {
            break;
        }
        let mut task = None;
        let mut woken = Vec::new();
        with(&mut |local| {
            local.queue.extend(inbox.tasks.drain(..));
            for (at, waker) in inbox.timers.drain(..) {
                local.timer_order += 1;
                local.timers.push(Timer { at, order: local.timer_order, waker });
            }
            let now = Instant(began.elapsed().as_nanos() as u64);
            while local.timers.peek().is_some_and(|timer| timer.at <= now) {
                woken.extend(local.timers.pop().map(|timer| timer.waker));
            }
            if polls >= POLLS_PER_RING_CHECK || local.queue.is_empty() {
                polls = 0;
                woken.extend(local.ring.reap());
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
        shared.parked.store(true, Ordering::SeqCst);
        let quiet = {
            let inbox = shared.inbox.lock();
            inbox.tasks.is_empty() && inbox.timers.is_empty() && !inbox.stop
        };
        if quiet {
            with(&mut |local| {
                let now = Instant(began.elapsed().as_nanos() as u64);
                let timeout = local.timers.peek().map(|timer| timer.at.since(now));
                local.ring.park(timeout);
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

impl Runtime for RealShared {
    fn now(&self) -> Instant {
        Instant(self.began.elapsed().as_nanos() as u64)
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
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) {
        self.blocking.lock().send(work).expect("helper threads live as long as the sender");
    }
    fn random(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0u8)
    }
    fn file_ops(&self) -> Option<&dyn FileOps> {
        Some(&self.ops)
    }
}

#[cfg(test)]
mod tests;
