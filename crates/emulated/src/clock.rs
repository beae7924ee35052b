//! A model that runs by the clock of an `Env`.
//!
//! One task, the *driver*, waits for the model's next event while a request is under way. When none is, nobody waits: what
//! the device does by itself meanwhile (emptying its buffer) happens, in the model's time, before the next request.

use ashlar_env::{Env, Instant};
use ashlar_models::{Completion, Id, Model, Refused, Request};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

pub(crate) struct Clock {
    env: Env,
    /// Time zero of the model.
    began: Instant,
    state: Mutex<State>,
    /// Something is due earlier than the driver knows.
    changed: Notify,
}

struct State {
    model: Box<dyn Model>,
    waiting: HashMap<Id, oneshot::Sender<Completion>>,
    /// Emptied after each use; kept for its memory.
    done: Vec<Completion>,
    /// What the driver waits for.
    awaited_ns: u64,
    stopped: bool,
}

/// What the driver does next.
enum Next {
    Stop,
    /// Wait for a request.
    Idle,
    /// Wait for the model's next event.
    At(u64),
}

impl State {
    /// Lets the model reach `now_ns`, or the first completion before.
    fn advance(&mut self, now_ns: u64) {
        self.model.advance(now_ns, &mut self.done);
        for completion in self.done.drain(..) {
            if let Some(waiter) = self.waiting.remove(&completion.id) {
                // Nobody listens if the request was dropped.
                let _ = waiter.send(completion);
            }
        }
    }
}

impl Clock {
    pub fn start(model: Box<dyn Model>, env: Env) -> Arc<Clock> {
        let state = State { model, waiting: HashMap::new(), done: Vec::new(), awaited_ns: u64::MAX, stopped: false };
        let clock = Arc::new(Clock { began: env.now(), env, state: Mutex::new(state), changed: Notify::new() });
        let driver = clock.clone();
        drop(clock.env.spawn(async move { driver.drive().await }));
        clock
    }

    /// Ends the driver.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }

    /// The model as it is now.
    pub fn look<T>(&self, at: impl FnOnce(&mut dyn Model) -> T) -> T {
        at(&mut *self.state.lock().model)
    }

    /// Time of the model.
    pub fn now_ns(&self) -> u64 {
        self.env.now().0 - self.began.0
    }

    /// Gives a request to the model. Returns what will be known when it is done, and the number of requests under way.
    pub fn submit(
        &self,
        request: Request,
    ) -> Result<(impl Future<Output = Completion> + Send + use<>, usize), Refused> {
        let mut state = self.state.lock();
        let now_ns = self.now_ns();
        while state.model.next_event().is_some_and(|event_ns| event_ns < now_ns) {
            state.advance(now_ns - 1);
        }
        let id = state.model.submit(now_ns, request)?;
        let (sender, receiver) = oneshot::channel();
        state.waiting.insert(id, sender);
        let depth = state.waiting.len();
        if depth == 1 && state.model.next_event() == Some(now_ns) {
            // It takes no time, and nobody else is there for whom it would matter that it is done at once.
            state.advance(now_ns);
        }
        if state.model.next_event().is_some_and(|event_ns| event_ns < state.awaited_ns) {
            self.changed.notify_one();
        }
        let ticket = async move { receiver.await.expect("a model completes what it took, and its waiter is kept") };
        Ok((ticket, depth))
    }

    fn next(&self) -> Next {
        let mut state = self.state.lock();
        state.awaited_ns = u64::MAX;
        match state.model.next_event() {
            _ if state.stopped => Next::Stop,
            Some(event_ns) if !state.waiting.is_empty() => {
                state.awaited_ns = event_ns;
                Next::At(event_ns)
            }
            _ => Next::Idle,
        }
    }

    async fn drive(&self) {
        // All who could submit something at this instant have done so. A model lets those that hear of a completion ask
        // for more before it decides what to do next; in virtual time a nanosecond passes only when nobody can run.
        let mut settled = false;
        loop {
            match self.next() {
                Next::Stop => return,
                Next::Idle => {
                    self.changed.notified().await;
                    settled = false;
                }
                Next::At(event_ns) if event_ns > self.now_ns() => settled = self.wait_until(event_ns).await,
                Next::At(_) if !settled => {
                    self.env.sleep(Duration::from_nanos(1)).await;
                    settled = true;
                }
                Next::At(_) => {
                    let mut state = self.state.lock();
                    let now_ns = self.now_ns();
                    state.advance(now_ns);
                    settled = false;
                }
            }
        }
    }

    /// Waits for that time of the model; false if something may be due earlier.
    async fn wait_until(&self, event_ns: u64) -> bool {
        let mut sleep = pin!(self.env.sleep(Duration::from_nanos(event_ns.saturating_sub(self.now_ns()))));
        let mut changed = pin!(self.changed.notified());
        std::future::poll_fn(|context| {
            if changed.as_mut().poll(context).is_ready() {
                return Poll::Ready(false);
            }
            sleep.as_mut().poll(context).map(|()| true)
        })
        .await
    }
}
