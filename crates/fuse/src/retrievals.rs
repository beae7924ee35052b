//! Questions what the page cache has.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

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
    pub(crate) async fn answer_to(&self, unique: u64, ask: impl FnOnce() -> bool) -> Option<u32> {
        let (answer, answered) = oneshot::channel();
        self.open.lock().insert(unique, answer);
        if !ask() {
            self.open.lock().remove(&unique);
            return None;
        }
        answered.await.ok()
    }

    /// An answer came. Nobody may wait for it.
    pub(crate) fn answered(&self, unique: u64, bytes: u32) {
        if let Some(answer) = self.open.lock().remove(&unique) {
            let _ = answer.send(bytes);
        }
    }
}
