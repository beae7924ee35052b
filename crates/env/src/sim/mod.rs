//! The simulated runtime: one thread, virtual time, a seed.
//!
//! Tasks that are ready are run one poll at a time; a [`Schedule`] picks which. When none is ready, time jumps to the next
//! timer. Every choice is recorded, so that a failing run replays from its seed or from its list of choices, and a
//! running hash over choices and times lets two runs be compared.
//!
//! [`Sim::run`] drives one future to its end. [`Sim::run_all`] drives the model of a system, made of tasks, until nothing
//! is left to do, a bound is met, or a [`Monitor`] is violated (Deligiannis et al., FAST'16, section 2); the model asks its
//! [`Handle`] for choices that are not those of the scheduler: losses, failures, timers.

mod enumerate;
mod handle;
mod queue;
mod schedule;
#[cfg(test)]
mod tests;

pub use enumerate::Enumeration;
pub use handle::{Entry, Handle, Monitor, Mood, Watch};
pub use schedule::{Choice, Schedule};

use crate::{BoxFuture, Env, FileOps, Instant, Runtime};
use handle::Scene;
use parking_lot::Mutex;
use queue::{SimTask, Timer};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use schedule::Chooser;
use std::borrow::Cow;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// What a simulated run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What was chosen, at each point where there was a choice.
    pub choices: Vec<Choice>,
    /// Polls.
    pub steps: u64,
    /// Hash over all choices and times.
    pub hash: u64,
    /// Virtual time at the end.
    pub end: Instant,
}

/// How a run of [`Sim::run_all`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All tasks have ended, or wait for what nobody will do.
    Quiet,
    /// A task called [`Handle::finish`].
    Finished,
    /// The bound on steps was met.
    Bound,
    /// A monitor, or a task, found something wrong.
    Violation(String),
    /// The run is not the one that was recorded: something depends on more than seed and choices, or has changed since.
    Diverged(String),
}

struct State {
    now: Instant,
    ready: Vec<Arc<SimTask>>,
    timers: BinaryHeap<Timer>,
    /// Every task that has not ended, and some that have.
    tasks: Vec<Weak<SimTask>>,
    /// When `tasks` has this length, those that have ended are dropped from it.
    tasks_full: usize,
    spawned: u64,
    order: u64,
    rng: Pcg64Mcg,
    hash: u64,
    chooser: Chooser,
    scene: Scene,
}

impl State {
    fn choose(&mut self) -> Arc<SimTask> {
        let index = self.chooser.task(&self.ready);
        let task = self.ready.remove(index);
        self.mix(task.number);
        if self.scene.log.is_some() {
            self.scene.current = Some(task.clone());
            self.log("runs");
        }
        task
    }
    fn mix(&mut self, value: u64) {
        self.hash =
            (self.hash ^ value ^ self.now.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

struct Shared {
    me: Weak<Shared>,
    state: Mutex<State>,
}

/// A simulated runtime.
pub struct Sim {
    shared: Arc<Shared>,
}

/// Every task waits for something that nobody will do.
#[derive(Debug)]
pub struct Deadlock(pub Trace);

/// Runs a test in a simulation of this seed, in a random schedule, and gives what it gives. A deadlock panics, and names the seed.
pub fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    seed: u64,
    test: impl FnOnce(Env) -> F,
) -> T {
    let sim = Sim::new(seed, Schedule::Random);
    let run = test(sim.env());
    sim.run(run).unwrap_or_else(|_| panic!("seed {seed}: deadlock"))
}

impl Sim {
    /// A simulation whose chance, and random schedule, come from `seed`.
    pub fn new(seed: u64, schedule: Schedule) -> Sim {
        let state = State {
            now: Instant(0),
            ready: Vec::new(),
            timers: BinaryHeap::new(),
            tasks: Vec::new(),
            tasks_full: 64,
            spawned: 0,
            order: 0,
            rng: Pcg64Mcg::seed_from_u64(seed),
            hash: 0,
            chooser: Chooser::new(seed, schedule),
            scene: Scene::default(),
        };
        Sim { shared: Arc::new_cyclic(|me| Shared { me: me.clone(), state: Mutex::new(state) }) }
    }

    /// The handle that engines are given.
    pub fn env(&self) -> Env {
        Env::new(self.shared.clone())
    }

    /// The handle for the model of a system.
    pub fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }

    /// Keeps a log of everything that happens from now on; see [`Sim::log`].
    pub fn keep_log(&self) {
        self.shared.state.lock().scene.log = Some(VecDeque::new());
    }

    /// The log so far, if one is kept: the newest 100,000 entries.
    pub fn log(&self) -> Vec<Entry> {
        self.shared.state.lock().scene.log.iter().flatten().cloned().collect()
    }

    /// Runs `future` and everything that it spawns until `future` ends.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T, Deadlock> {
        let (mut main, shell) = crate::task::pair(future);
        self.shared.spawn(Box::pin(shell));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = std::pin::Pin::new(&mut main).poll(&mut context) {
                self.shared.state.lock().chooser.end();
                return Ok(value);
            }
            if !self.step(false) {
                return Err(Deadlock(self.trace()));
            }
        }
    }

    /// Runs all tasks until nothing is left to do, but no more than `steps_max` polls. A monitor that is hot then makes it
    /// a violation. Tasks that sleep until the same moment are ready together, so that the schedule decides between them.
    pub fn run_all(&self, steps_max: u64) -> End {
        let end = loop {
            {
                let state = self.shared.state.lock();
                if let Some(message) = &state.scene.violation {
                    break End::Violation(message.clone());
                }
                if let Some(what) = &state.chooser.diverged {
                    return End::Diverged(what.clone());
                }
                if state.scene.finished {
                    break End::Finished;
                }
                if state.chooser.steps >= steps_max {
                    break End::Bound;
                }
            }
            if !self.step(true) {
                break End::Quiet;
            }
        };
        let mut state = self.shared.state.lock();
        state.chooser.end();
        if let Some(what) = &state.chooser.diverged {
            return End::Diverged(what.clone());
        }
        let when = match &end {
            End::Quiet => "nothing is left that could do it".to_string(),
            End::Bound => format!("it has not happened within {steps_max} steps"),
            _ => "the run has finished without it".to_string(),
        };
        match state.scene.hot() {
            Some(name) if !matches!(end, End::Violation(_)) => {
                let message = format!("not so: {name}; {when}");
                state.log(format!("VIOLATION: {message}"));
                End::Violation(message)
            }
            _ => end,
        }
    }

    /// Where a replay left what was recorded.
    pub fn diverged(&self) -> Option<String> {
        self.shared.state.lock().chooser.diverged.clone()
    }

    /// What has happened so far.
    pub fn trace(&self) -> Trace {
        let state = self.shared.state.lock();
        let Chooser { choices, steps, .. } = &state.chooser;
        Trace { choices: choices.clone(), steps: *steps, hash: state.hash, end: state.now }
    }

    /// One poll, or one jump of time; `false`: nothing is left. `together`: all timers of a moment go off at once.
    fn step(&self, together: bool) -> bool {
        let task = {
            let mut state = self.shared.state.lock();
            if state.ready.is_empty() {
                let Some(timer) = state.timers.pop() else { return false };
                state.now = state.now.max(timer.at);
                let mut wakers = vec![timer.waker];
                while together && state.timers.peek().is_some_and(|next| next.at == timer.at) {
                    wakers.extend(state.timers.pop().map(|timer| timer.waker));
                }
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
                return true;
            }
            state.choose()
        };
        task.queued.store(false, Ordering::Relaxed);
        let taken = task.future.lock().take();
        let Some(mut future) = taken else { return true };
        let waker = Waker::from(task.clone());
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            *task.future.lock() = Some(future);
        }
        true
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // Tasks own handles to the shared state and to what they wait for, which owns them: break the circles. A task that
        // is dropped may wake others or spawn more, so go on until none is left.
        loop {
            let mut state = self.shared.state.lock();
            let tasks = std::mem::take(&mut state.tasks);
            let left = (std::mem::take(&mut state.ready), std::mem::take(&mut state.timers));
            let current = state.scene.current.take();
            drop(state);
            if tasks.is_empty() {
                return;
            }
            for task in tasks.iter().filter_map(Weak::upgrade) {
                let future = task.future.lock().take();
                drop(future);
            }
            drop((left, current));
        }
    }
}

impl Shared {
    fn spawn_named(&self, name: Cow<'static, str>, future: BoxFuture<'static, ()>) {
        let mut state = self.state.lock();
        state.spawned += 1;
        let number = state.spawned;
        let task = Arc::new(SimTask {
            number,
            name,
            future: Mutex::new(Some(future)),
            home: self.me.clone(),
            queued: AtomicBool::new(true),
            priority: AtomicI64::new(state.chooser.priority(number)),
        });
        if state.tasks.len() >= state.tasks_full {
            state.tasks.retain(|task| task.strong_count() > 0);
            state.tasks_full = 64.max(2 * state.tasks.len());
        }
        state.tasks.push(Arc::downgrade(&task));
        state.ready.push(task);
    }
}

impl Runtime for Shared {
    fn now(&self) -> Instant {
        self.state.lock().now
    }
    fn wall(&self) -> Duration {
        const EPOCH: Duration = Duration::from_secs(1_700_000_000);
        EPOCH + Duration::from_nanos(self.now().0)
    }
    fn wake_at(&self, at: Instant, waker: Waker) {
        let mut state = self.state.lock();
        state.order += 1;
        let order = state.order;
        state.timers.push(Timer { at, order, waker });
    }
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.spawn_named(Cow::Borrowed(""), future);
    }
    fn is_idle(&self) -> bool {
        self.random().is_multiple_of(2)
    }
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) {
        self.spawn(Box::pin(async move { work() }));
    }
    fn random(&self) -> u64 {
        self.state.lock().rng.random()
    }
    fn file_ops(&self) -> Option<&dyn FileOps> {
        None
    }
}
