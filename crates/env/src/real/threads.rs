//! Operations on files where io_uring is not allowed, as in most containers and on some distributions: threads make the
//! calls, and a worker parks in `poll(2)`.

use super::WORKER;
use super::calls::{self, CallOps};
use super::place::Place;
use super::ring::{self, Op, OpState};
use crate::task::{Task, promise};
use crate::{BoxFuture, FileOps, Readiness};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Calls under way at once: about what a device's queue takes.
const THREADS_MAX: usize = 32;

type Work = Box<dyn FnOnce() + Send>;

/// Threads that make calls; each is started when there is a call for it.
#[derive(Default)]
pub(super) struct Helpers {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    threads: usize,
    idle: usize,
    ended: bool,
}

impl Helpers {
    /// Has a thread do it. Where no thread can be had, the caller does.
    fn run<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        let (task, done) = promise();
        self.push(Box::new(move || done.fulfil(catch_unwind(AssertUnwindSafe(work)))));
        task
    }

    fn push(self: &Arc<Self>, work: Work) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(work);
        if queue.idle >= queue.waiting.len() {
            self.more.notify_one();
            return;
        }
        if queue.threads == THREADS_MAX {
            return;
        }
        let helpers = self.clone();
        let started = std::thread::Builder::new().name("ashlar-io".into()).spawn(move || helpers.serve());
        queue.threads += usize::from(started.is_ok());
        if queue.threads == 0
            && let Some(work) = queue.waiting.pop_back()
        {
            drop(queue);
            work();
        }
    }

    fn serve(&self) {
        let _or_nobody = super::OrNobody;
        let mut queue = self.queue.lock();
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                drop(queue);
                work();
                queue = self.queue.lock();
            } else if queue.ended {
                return;
            } else {
                queue.idle += 1;
                self.more.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }

    /// Lets the threads end when nothing waits.
    pub(super) fn end(&self) {
        self.queue.lock().ended = true;
        self.more.notify_all();
    }
}

/// A worker's descriptors that are waited for.
pub(super) struct Polls {
    helpers: Arc<Helpers>,
    bell: Arc<OwnedFd>,
    awaited: Vec<Awaited>,
    woken: Vec<Waker>,
}

struct Awaited {
    file: Arc<OwnedFd>,
    events: PollFlags,
    state: Arc<Mutex<OpState>>,
}

impl Polls {
    pub(super) fn new(bell: &ring::Bell, helpers: Arc<Helpers>) -> Polls {
        Polls { helpers, bell: bell.descriptor(), awaited: Vec::new(), woken: Vec::new() }
    }

    fn add(&mut self, file: Arc<OwnedFd>, events: PollFlags) -> Op {
        let state = Arc::new(Mutex::new(OpState::default()));
        self.awaited.push(Awaited { file, events, state: state.clone() });
        Op(state)
    }

    /// Asks which descriptors are ready, and waits for that, or the bell, as long as `patience` says.
    pub(super) fn look(&mut self, patience: Option<Duration>) {
        // Nobody waits any more for those whose future was dropped.
        self.awaited.retain(|one| Arc::strong_count(&one.state) > 1);
        if self.awaited.is_empty() && patience == Some(Duration::ZERO) {
            return;
        }
        let mut list = vec![PollFd::new(&self.bell, PollFlags::IN)];
        list.extend(self.awaited.iter().map(|one| PollFd::new(&one.file, one.events)));
        let time = patience.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        // A signal may interrupt it; the worker looks again when it has nothing else to do.
        if !poll(&mut list, time.as_ref()).is_ok_and(|ready| ready > 0) {
            return;
        }
        let mut ready = list.iter().map(|one| !one.revents().is_empty()).collect::<Vec<_>>().into_iter();
        if ready.next() == Some(true) {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        self.awaited.retain(|one| {
            let is_ready = ready.next() == Some(true);
            if is_ready {
                self.woken.extend(one.state.lock().complete(0));
            }
            !is_ready
        });
    }

    /// Whether there is somebody to wake.
    pub(super) fn has_news(&mut self) -> bool {
        if self.woken.is_empty() {
            self.look(Some(Duration::ZERO));
        }
        !self.woken.is_empty()
    }

    pub(super) fn collect(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }
}

/// What `act` makes of the current worker's descriptors.
fn with_polls<T>(act: impl FnOnce(&mut Polls) -> T) -> io::Result<T> {
    WORKER.with_borrow_mut(|local| match local.as_mut().map(|local| &mut local.place) {
        Some(Place::Polls(polls)) => Ok(act(polls)),
        _ => Err(ring::outside()),
    })
}

/// Has a helper of the current worker do it.
async fn by_helper<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let helpers = with_polls(|polls| polls.helpers.clone())?;
    helpers.run(work).await
}

/// What this future gives, which waits for nothing but gives way to others.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

/// File operations by threads that make calls.
pub(super) struct ThreadOps;

/// The calls themselves.
static CALLS: CallOps<ThreadOps> = CallOps(ThreadOps);

impl FileOps for ThreadOps {
    fn read_at(&self, file: &Arc<OwnedFd>, offset: u64, len: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        let file = file.clone();
        Box::pin(by_helper(move || now(CALLS.read_at(&file, offset, len))))
    }

    fn write_at(&self, file: &Arc<OwnedFd>, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let file = file.clone();
        Box::pin(by_helper(move || now(CALLS.write_at(&file, offset, pieces))))
    }

    fn sync(&self, file: &Arc<OwnedFd>) -> BoxFuture<'static, io::Result<()>> {
        let file = file.clone();
        Box::pin(by_helper(move || now(CALLS.sync(&file))))
    }

    fn fallocate(&self, file: &Arc<OwnedFd>, mode: i32, offset: u64, len: u64) -> BoxFuture<'static, io::Result<()>> {
        let file = file.clone();
        Box::pin(by_helper(move || calls::fallocate(&file, mode, offset, len)))
    }

    fn ready(&self, file: &Arc<OwnedFd>, what: Readiness) -> BoxFuture<'static, io::Result<()>> {
        let file = file.clone();
        Box::pin(async move {
            with_polls(|polls| polls.add(file, calls::events(what)))?.await;
            Ok(())
        })
    }

    fn at_once(&self) -> &dyn FileOps {
        &CALLS
    }
}
