//! Tasks and timers of a simulation.

use super::Shared;
use crate::{BoxFuture, Instant};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

pub(super) struct SimTask {
    pub(super) number: u64,
    pub(super) name: Cow<'static, str>,
    pub(super) future: Mutex<Option<BoxFuture<'static, ()>>>,
    pub(super) home: Weak<Shared>,
    pub(super) queued: AtomicBool,
    pub(super) priority: AtomicI64,
}

impl SimTask {
    /// Its name, for people.
    pub(super) fn label(&self) -> String {
        if self.name.is_empty() { format!("task {}", self.number) } else { self.name.to_string() }
    }
}

impl Wake for SimTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let Some(home) = self.home.upgrade() else { return };
        if !self.queued.swap(true, Ordering::Relaxed) {
            home.state.lock().ready.push(self.clone());
        }
    }
}

pub(super) struct Timer {
    pub(super) at: Instant,
    pub(super) order: u64,
    pub(super) waker: Waker,
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
