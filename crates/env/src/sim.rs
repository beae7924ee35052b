//! The simulated runtime: one thread, virtual time, a seed.
//!
//! Tasks that are ready are run one poll at a time; a [`Schedule`] picks which. When none is ready, time jumps to the next
//! timer. Every choice is recorded, so that a failing run replays from its seed or from its list of choices, and a
//! running hash over choices and times lets two runs be compared.

use crate::{BoxFuture, Env, FileOps, Instant, Runtime};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BinaryHeap;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// How the next task is chosen among the ready ones.
#[derive(Clone, Debug)]
pub enum Schedule {
    /// The one that became ready first.
    Fifo,
    /// Any, with equal chance.
    Random,
    /// As recorded by an earlier run, then fifo.
    Replay(Vec<u32>),
}

/// What a simulated run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The index chosen among the ready tasks, at each point where there was a choice.
    pub choices: Vec<u32>,
    /// Hash over all choices and times.
    pub hash: u64,
    /// Virtual time at the end.
    pub end: Instant,
}

struct SimTask {
    number: u64,
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    home: Weak<Shared>,
    queued: Mutex<bool>,
}

impl Wake for SimTask {
    fn wake(self: Arc<Self>) {
        let Some(home) = self.home.upgrade() else { return };
        let mut queued = self.queued.lock();
        if !*queued {
            *queued = true;
            home.state.lock().ready.push(self.clone());
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
    scheduler_rng: Pcg64Mcg,
    schedule: Schedule,
    choices: Vec<u32>,
    hash: u64,
}

impl State {
    fn choose(&mut self) -> Arc<SimTask> {
        let count = self.ready.len();
        let index = if count == 1 {
            0
        } else {
            let step = self.choices.len();
            let index = match &self.schedule {
                Schedule::Fifo => 0,
                Schedule::Random => self.scheduler_rng.random_range(0..count),
                Schedule::Replay(choices) => choices.get(step).map_or(0, |c| (*c as usize).min(count - 1)),
            };
            self.choices.push(index as u32);
            index
        };
        let task = self.ready.remove(index);
        self.mix(task.number);
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
            scheduler_rng: Pcg64Mcg::seed_from_u64(seed ^ 0x5eed),
            schedule,
            choices: Vec::new(),
            hash: 0,
        };
        Sim { shared: Arc::new_cyclic(|me| Shared { me: me.clone(), state: Mutex::new(state) }) }
    }

    /// The handle that engines are given.
    pub fn env(&self) -> Env {
        Env::new(self.shared.clone())
    }

    /// Runs `future` and everything that it spawns until `future` ends.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T, Deadlock> {
        let (mut main, shell) = crate::task::pair(future);
        self.shared.spawn(Box::pin(shell));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = std::pin::Pin::new(&mut main).poll(&mut context) {
                return Ok(value);
            }
            if !self.step() {
                return Err(Deadlock(self.trace()));
            }
        }
    }

    /// What has happened so far.
    pub fn trace(&self) -> Trace {
        let state = self.shared.state.lock();
        Trace { choices: state.choices.clone(), hash: state.hash, end: state.now }
    }

    fn step(&self) -> bool {
        let task = {
            let mut state = self.shared.state.lock();
            if state.ready.is_empty() {
                let Some(timer) = state.timers.pop() else { return false };
                state.now = state.now.max(timer.at);
                drop(state);
                timer.waker.wake();
                return true;
            }
            state.choose()
        };
        *task.queued.lock() = false;
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
            drop(state);
            if tasks.is_empty() {
                return;
            }
            for task in tasks.iter().filter_map(Weak::upgrade) {
                let future = task.future.lock().take();
                drop(future);
            }
            drop(left);
        }
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
        let mut state = self.state.lock();
        state.spawned += 1;
        let task = SimTask {
            number: state.spawned,
            future: Mutex::new(Some(future)),
            home: self.me.clone(),
            queued: Mutex::new(true),
        };
        let task = Arc::new(task);
        if state.tasks.len() >= state.tasks_full {
            state.tasks.retain(|task| task.strong_count() > 0);
            state.tasks_full = 64.max(2 * state.tasks.len());
        }
        state.tasks.push(Arc::downgrade(&task));
        state.ready.push(task);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two tasks increment a counter with a yield between reading and writing it: a lost update for some schedules.
    fn lost_update(seed: u64, schedule: Schedule) -> (u64, Trace) {
        let sim = Sim::new(seed, schedule);
        let env = sim.env();
        let total = sim
            .run(async move {
                let counter = Arc::new(Mutex::new(0u64));
                let tasks: Vec<_> = (0..3)
                    .map(|_| {
                        let (counter, env2) = (counter.clone(), env.clone());
                        env.spawn(async move {
                            for _ in 0..3 {
                                let seen = *counter.lock();
                                if env2.random() % 2 == 0 {
                                    env2.yield_now().await;
                                }
                                *counter.lock() = seen + 1;
                                env2.sleep(Duration::from_nanos(env2.random() % 50)).await;
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await;
                }
                *counter.lock()
            })
            .expect("no deadlock");
        (total, sim.trace())
    }

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_trace(seed: u64) {
            prop_assert_eq!(lost_update(seed, Schedule::Random), lost_update(seed, Schedule::Random));
        }

        #[test]
        fn recorded_choices_replay(seed: u64) {
            let (total, trace) = lost_update(seed, Schedule::Random);
            prop_assert_eq!((total, trace.clone()), lost_update(seed, Schedule::Replay(trace.choices)));
        }
    }

    #[test]
    fn what_tasks_hold_is_dropped_with_the_simulation() {
        let held = Arc::new(());
        let sim = Sim::new(1, Schedule::Random);
        let (env, inner) = (sim.env(), held.clone());
        let main = async move {
            // Each waits for what it itself holds the other end of, as an engine's background work does.
            for _ in 0..200 {
                let (held, waker) = (inner.clone(), Mutex::new(None));
                drop(env.spawn(async move {
                    let wait = |context: &mut Context<'_>| {
                        *waker.lock() = Some(context.waker().clone());
                        Poll::<()>::Pending
                    };
                    std::future::poll_fn(wait).await;
                    drop(held);
                }));
            }
            env.sleep(Duration::from_secs(1)).await;
        };
        sim.run(main).expect("the main task ends");
        assert_eq!(Arc::strong_count(&held), 201, "the tasks wait");
        drop(sim);
        assert_eq!(Arc::strong_count(&held), 1, "a task outlived its simulation");
    }

    #[test]
    fn random_schedules_find_a_lost_update() {
        let lost = (0..100).filter(|seed| lost_update(*seed, Schedule::Random).0 < 9).count();
        assert!(lost > 20, "random order found the planted bug in {lost} of 100 seeds only");
    }

    #[test]
    fn waiting_for_nothing_is_a_deadlock() {
        let sim = Sim::new(1, Schedule::Fifo);
        assert!(sim.run(std::future::pending::<()>()).is_err());
    }

    #[test]
    fn sleep_is_exact_to_the_nanosecond() {
        let sim = Sim::new(1, Schedule::Fifo);
        let env = sim.env();
        let now = sim.run(async move {
            env.sleep(Duration::from_nanos(17)).await;
            env.now()
        });
        assert_eq!(now.expect("no deadlock"), Instant(17));
    }
}
