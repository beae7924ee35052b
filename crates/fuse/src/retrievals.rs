//! Questions what the page cache has.

use ashlar_env::Env;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;

/// Who has not answered by then does not: a kernel that carries no answers over io_uring, perhaps.
const PATIENCE: Duration = Duration::from_secs(1);

/// Requests of the kernel never have such a number.
const FIRST: u64 = 1 << 62;

/// Those that were asked and not answered.
#[derive(Default)]
pub(crate) struct Retrievals {
    asked: AtomicU64,
    open: Mutex<HashMap<u64, oneshot::Sender<u32>>>,
}

impl Retrievals {
    /// A number that no other question has, and no request.
    pub(crate) fn next(&self) -> u64 {
        FIRST + 2 * self.asked.fetch_add(1, Ordering::Relaxed) // odd ones are interrupts
    }

    /// Waits for the answer to a question of this number, which `ask` puts: bytes that the page cache has. `None`: there is none.
    pub(crate) async fn answer_to(&self, env: &Env, unique: u64, ask: impl FnOnce() -> bool) -> Option<u32> {
        let (answer, mut answered) = oneshot::channel();
        self.open.lock().insert(unique, answer);
        let mut over = pin!(env.sleep(PATIENCE));
        let outcome = if ask() {
            poll_fn(|context| match pin!(&mut answered).poll(context) {
                Poll::Ready(answer) => Poll::Ready(answer.ok()),
                Poll::Pending => over.as_mut().poll(context).map(|()| None),
            })
            .await
        } else {
            None
        };
        self.open.lock().remove(&unique);
        outcome
    }

    /// An answer came. Nobody may wait for it.
    pub(crate) fn answered(&self, unique: u64, bytes: u32) {
        if let Some(answer) = self.open.lock().remove(&unique) {
            let _ = answer.send(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::sim::{Schedule, Sim};

    #[test]
    fn who_asks_hears_the_answer_or_that_there_is_none() {
        let sim = Sim::new(1, Schedule::Fifo);
        let env = sim.env();
        let ended = sim.run(async move {
            let retrievals = Retrievals::default();
            let (first, second) = (retrievals.next(), retrievals.next());
            assert!(first != second && first.is_multiple_of(2) && second.is_multiple_of(2));
            let answered = || {
                retrievals.answered(second, 5);
                retrievals.answered(first, 7);
                true
            };
            assert_eq!(retrievals.answer_to(&env, first, answered).await, Some(7));
            assert_eq!(retrievals.answer_to(&env, first, || false).await, None);
            let before = env.now();
            assert_eq!(retrievals.answer_to(&env, second, || true).await, None);
            assert_eq!(env.now().since(before), PATIENCE);
            assert!(retrievals.open.lock().is_empty());
        });
        assert!(ended.is_ok());
    }
}
