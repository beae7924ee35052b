//! Handles to running tasks: a one-value promise that both runtimes share.

use parking_lot::Mutex;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

type Panic = Box<dyn std::any::Any + Send>;

enum State<T> {
    Waiting(Option<Waker>),
    Done(Result<T, Panic>),
    Taken,
    /// Nobody will take it.
    Abandoned,
}

/// The result of a spawned future or of unblocked work, as a future. A panic inside continues in whoever waits; when this is
/// dropped before, in the runtime, and when it is dropped with it, in whoever drops it.
pub struct Task<T>(Arc<Mutex<State<T>>>);

/// The side that fulfils a [`Task`].
pub(crate) struct Promise<T>(Arc<Mutex<State<T>>>);

pub(crate) fn promise<T>() -> (Task<T>, Promise<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (Task(state.clone()), Promise(state))
}

impl<T> Promise<T> {
    /// Keeps what `work` gives, or its panic. One that nobody is there to meet goes on here: what the work was to do for others
    /// will not be done, and they would wait for ever.
    pub(crate) fn fulfil(self, value: Result<T, Panic>) {
        let mut state = self.0.lock();
        if let State::Abandoned = &*state {
            drop(state);
            if let Err(panic) = value {
                resume_unwind(panic);
            }
            return;
        }
        let before = std::mem::replace(&mut *state, State::Done(value));
        drop(state);
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// Splits a future into the handle and the shell that a runtime drives.
pub(crate) fn pair<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> (Task<T>, impl Future<Output = ()> + Send + 'static) {
    let (task, promise) = promise();
    let shell = async move {
        let mut future = Box::pin(future);
        let outcome =
            std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
                Err(panic) => Poll::Ready(Err(panic)),
            })
            .await;
        promise.fulfil(outcome);
    };
    (task, shell)
}

impl<T> Task<T> {
    /// Whether the result is there.
    pub fn is_done(&self) -> bool {
        !matches!(*self.0.lock(), State::Waiting(_))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *self.0.lock(), State::Abandoned);
        // Who drops it is the last to meet the panic.
        if let State::Done(Err(panic)) = left
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl<T> Future for Task<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        if let State::Waiting(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let State::Done(value) = std::mem::replace(&mut *state, State::Taken) else {
            panic!("a task was polled after it had given its result");
        };
        drop(state);
        Poll::Ready(value.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}
