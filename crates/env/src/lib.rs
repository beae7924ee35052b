//! What the machine gives to an engine: clock, chance, tasks, and asynchronous file operations.
//!
//! Nothing below the command line touches the wall clock, threads or random numbers directly; it asks its [`Env`]. There
//! are two kinds behind one handle:
//!
//! * [`real`]: worker threads, each owning an io_uring and parking in it, or in `poll(2)` where io_uring is not allowed;
//! * [`sim`]: one thread, virtual time in nanoseconds, a seed, and a scheduler whose choices are recorded and can be
//!   replayed.
//!
//! The same engine code runs in both. Channels and locks that are independent of a runtime (`tokio::sync`) work in both.

#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub mod bpf;
#[allow(unsafe_code)]
pub mod host;
mod ops;
pub mod real;
mod rules;
pub mod say;
pub mod sim;
mod task;

pub use ops::{FileOps, Readiness};
pub use real::ring;
pub use task::Task;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A boxed future, as runtimes store it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A point of the runtime's monotonic clock, in nanoseconds since the runtime began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// Time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// What a runtime must offer. [`Env`] is the face that engines see.
pub trait Runtime: Send + Sync + 'static {
    /// Monotonic time.
    fn now(&self) -> Instant;
    /// Time of day since 1970.
    fn wall(&self) -> Duration;
    /// Wakes `waker` at or after `at`.
    fn wake_at(&self, at: Instant, waker: Waker);
    /// Runs a future to its end.
    fn spawn(&self, future: BoxFuture<'static, ()>);
    /// Runs a future to its end, on the worker that asks.
    fn spawn_here(&self, future: BoxFuture<'static, ()>) {
        self.spawn(future);
    }
    /// Runs a future to its end, away from the worker that serves who waits, if there is another one.
    fn spawn_aside(&self, future: BoxFuture<'static, ()>) {
        self.spawn(future);
    }
    /// Whether a worker that need not serve has nothing to do. The simulation tosses a coin.
    fn is_idle(&self) -> bool;
    /// Runs work that blocks or computes long, away from the executor's threads.
    fn unblock(&self, work: Box<dyn FnOnce() + Send>);
    /// 64 random bits.
    fn random(&self) -> u64;
    /// Asynchronous operations on host files; `None` where the runtime has no host (the simulation).
    fn file_ops(&self) -> Option<&dyn FileOps>;
}

/// Handle to a runtime. Cheap to clone.
#[derive(Clone)]
pub struct Env(Arc<dyn Runtime>);

impl Env {
    /// Wraps a runtime.
    pub fn new(runtime: Arc<dyn Runtime>) -> Env {
        Env(runtime)
    }
    /// Monotonic time.
    pub fn now(&self) -> Instant {
        self.0.now()
    }
    /// Time of day since 1970.
    pub fn wall(&self) -> Duration {
        self.0.wall()
    }
    /// 64 random bits from the runtime's seed (or, in the real runtime, from the system).
    pub fn random(&self) -> u64 {
        self.0.random()
    }
    /// Resolves after `time` has passed.
    pub fn sleep(&self, time: Duration) -> Sleep {
        let at = Instant(self.now().0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
        Sleep { env: self.clone(), at, armed: false }
    }
    /// What `future` gives; `None` if `time` passes before.
    pub async fn within<T>(&self, time: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut late = std::pin::pin!(self.sleep(time));
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => late.as_mut().poll(context).map(|()| None),
        })
        .await
    }
    /// Starts a task. Dropping the handle lets the task run on.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let (task, shell) = task::pair(future);
        self.0.spawn(Box::pin(shell));
        task
    }
    /// Starts a task for which the caller will wait at once, and which mostly waits itself: it goes without waking another worker.
    pub fn spawn_here<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let (task, shell) = task::pair(future);
        self.0.spawn_here(Box::pin(shell));
        task
    }
    /// Starts a task that computes for longer than a request takes, away from the worker that served a request last, on one that
    /// sleeps if there is one.
    pub fn spawn_aside<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let (task, shell) = task::pair(future);
        self.0.spawn_aside(Box::pin(shell));
        task
    }
    /// Whether a task that is now started with [`Env::spawn_aside`] would be run at once, beside the caller.
    pub fn is_idle(&self) -> bool {
        self.0.is_idle()
    }
    /// Runs `work` where it may block or compute for long, and gives its result.
    pub fn unblock<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        let (task, done) = task::promise();
        self.0.unblock(Box::new(move || done.fulfil(catch_unwind(AssertUnwindSafe(work)))));
        task
    }
    /// Asynchronous operations on host files, where there is a host.
    pub fn file_ops(&self) -> Option<&dyn FileOps> {
        self.0.file_ops()
    }
    /// Lets every other ready task run once.
    pub fn yield_now(&self) -> impl Future<Output = ()> + Send {
        yield_now()
    }
}

/// Lets every other ready task run once.
fn yield_now() -> impl Future<Output = ()> + Send {
    let mut yielded = false;
    std::future::poll_fn(move |context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Future of [`Env::sleep`].
pub struct Sleep {
    env: Env,
    at: Instant,
    armed: bool,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.env.now() >= self.at {
            return Poll::Ready(());
        }
        if !self.armed {
            // A task may move the future between polls only before its first poll, so one arming suffices as long as
            // the waker is that of the owning task; both runtimes give a task one waker for life.
            self.armed = true;
            self.env.0.wake_at(self.at, context.waker().clone());
        }
        Poll::Pending
    }
}
