//! What the model of a system asks of its simulation: recorded choices, monitors, notes for the log.

use super::{Shared, SimTask};
use crate::{Env, Instant};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

/// Most entries that a log keeps: the newest.
const LOG_ENTRIES_MAX: usize = 100_000;

/// A line of the log: everything that happened, in one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the poll.
    pub step: u64,
    /// Virtual time.
    pub at: Instant,
    /// Who.
    pub task: String,
    /// What it did.
    pub what: String,
}

/// Watches a run from outside: it is told events, keeps its own history, and never acts.
pub trait Monitor: Send + 'static {
    /// What it is told.
    type Event;
    /// Takes note. An error ends the run as a violation, with this message. A monitor that is [`Mood::Hot`] at the end of a
    /// run makes it a violation too: what it waits for has not come.
    fn observe(&mut self, event: Self::Event) -> Result<Mood, String>;
}

/// Whether a [`Monitor`] waits for something that must happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// It waits for nothing.
    Cold,
    /// Something must still happen.
    Hot,
}

/// The way to tell a monitor.
pub struct Watch<M> {
    monitor: Arc<Mutex<M>>,
    index: usize,
    handle: Handle,
}

impl<M> Clone for Watch<M> {
    fn clone(&self) -> Watch<M> {
        Watch { monitor: self.monitor.clone(), index: self.index, handle: self.handle.clone() }
    }
}

impl<M: Monitor> Watch<M> {
    /// Tells it.
    pub fn tell(&self, event: M::Event) {
        let verdict = self.monitor.lock().observe(event);
        match verdict {
            Ok(mood) => self.handle.0.state.lock().scene.moods[self.index].1 = mood,
            Err(message) => self.handle.violation(message),
        }
    }
}

/// What [`Handle`] keeps.
#[derive(Default)]
pub(super) struct Scene {
    pub(super) moods: Vec<(&'static str, Mood)>,
    pub(super) violation: Option<String>,
    pub(super) finished: bool,
    pub(super) log: Option<VecDeque<Entry>>,
    /// The task that runs, if there is a log.
    pub(super) current: Option<Arc<SimTask>>,
}

impl Scene {
    /// What a monitor still waits for.
    pub(super) fn hot(&self) -> Option<&'static str> {
        self.moods.iter().find(|(_, mood)| *mood == Mood::Hot).map(|(name, _)| *name)
    }
}

/// The simulation, as the model of a system sees it. Engines see only the [`Env`].
#[derive(Clone)]
pub struct Handle(pub(super) Arc<Shared>);

impl Handle {
    /// The runtime for engines.
    pub fn env(&self) -> Env {
        Env::new(self.0.clone())
    }

    /// Starts a task with a name for the log. A panic in it is a violation.
    pub fn spawn(&self, name: impl Into<Cow<'static, str>>, future: impl Future<Output = ()> + Send + 'static) {
        let handle = self.clone();
        let guarded = async move {
            let mut future = std::pin::pin!(future);
            let poll = |context: &mut std::task::Context<'_>| match catch_unwind(AssertUnwindSafe(|| {
                future.as_mut().poll(context)
            })) {
                Ok(poll) => poll,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
                    handle.violation(format!("panic: {text}"));
                    Poll::Ready(())
                }
            };
            std::future::poll_fn(poll).await;
        };
        self.0.spawn_named(name.into(), Box::pin(guarded));
    }

    /// One of `0..of`, by the schedule: a recorded choice.
    ///
    /// # Panics
    /// If `of` is 0.
    pub fn choose(&self, of: usize) -> usize {
        assert!(of > 0, "there is nothing to choose from");
        let mut state = self.0.state.lock();
        let taken = state.chooser.value(of as u32) as usize;
        state.mix(taken as u64);
        if state.scene.log.is_some() {
            state.log(format!("takes {taken} of {of}"));
        }
        taken
    }

    /// Yes or no, by the schedule: a recorded choice.
    pub fn coin(&self) -> bool {
        self.choose(2) == 1
    }

    /// Registers a monitor, cold at first. The name says what must happen, for one that can be hot, as in `the request is
    /// acknowledged`.
    pub fn watch<M: Monitor>(&self, name: &'static str, monitor: M) -> Watch<M> {
        let mut state = self.0.state.lock();
        state.scene.moods.push((name, Mood::Cold));
        let index = state.scene.moods.len() - 1;
        Watch { monitor: Arc::new(Mutex::new(monitor)), index, handle: self.clone() }
    }

    /// Ends the run as a violation when the present step is over. The first one counts.
    pub fn violation(&self, message: impl Into<String>) {
        let message = message.into();
        self.note(|| format!("VIOLATION: {message}"));
        self.0.state.lock().scene.violation.get_or_insert(message);
    }

    /// Ends the run when the present step is over: the scenario has been played, and only timers and the like are left.
    pub fn finish(&self) {
        self.note(|| "finished".into());
        self.0.state.lock().scene.finished = true;
    }

    /// Writes a line to the log, if one is kept.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let keeps = self.0.state.lock().scene.log.is_some();
        if keeps {
            let what = what();
            self.0.state.lock().log(what);
        }
    }
}

impl super::State {
    pub(super) fn log(&mut self, what: impl Into<String>) {
        let (step, at) = (self.chooser.steps, self.now);
        let Some(log) = &mut self.scene.log else { return };
        let task = self.scene.current.as_ref().map_or_else(|| "setup".into(), |task| task.label());
        if log.len() == LOG_ENTRIES_MAX {
            log.pop_front();
        }
        log.push_back(Entry { step, at, task, what: what.into() });
    }
}
