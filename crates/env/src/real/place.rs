//! Where a worker's operations go, and where it parks.

use super::ring::{Bell, Ring};
use super::threads::{Helpers, Polls};
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

pub(super) enum Place {
    Ring(Box<Ring>),
    Polls(Polls),
}

/// Whether Linux refuses io_uring altogether: it was made without, is too old, or does not allow it to this process, as the
/// filters of system calls that containers run under and `kernel.io_uring_disabled` do.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EINVAL))
}

impl Place {
    /// A ring, if one is wanted and allowed.
    pub(super) fn new(bell: &Bell, wants_ring: bool, helpers: Arc<Helpers>) -> io::Result<Place> {
        let polls = |helpers| Ok(Place::Polls(Polls::new(bell, helpers)));
        if !wants_ring {
            return polls(helpers);
        }
        match Ring::new(bell) {
            Ok(ring) => Ok(Place::Ring(Box::new(ring))),
            Err(error) if is_refusal(&error) => polls(helpers),
            Err(error) => Err(io::Error::new(error.kind(), format!("cannot set up an io_uring: {error}"))),
        }
    }

    pub(super) fn is_ring(&self) -> bool {
        matches!(self, Place::Ring(_))
    }

    /// Hands over what is queued and asks what is done.
    pub(super) fn enter(&mut self) {
        match self {
            Place::Ring(ring) => ring.enter(),
            Place::Polls(polls) => polls.look(Some(Duration::ZERO)),
        }
    }

    /// Whether there is something to collect, or would be after [`enter`](Place::enter).
    pub(super) fn has_news(&mut self) -> bool {
        match self {
            Place::Ring(ring) => ring.has_news(),
            Place::Polls(polls) => polls.has_news(),
        }
    }

    /// The wakers of those for whom something is done.
    pub(super) fn collect(&mut self) -> Vec<Waker> {
        match self {
            Place::Ring(ring) => ring.collect(),
            Place::Polls(polls) => polls.collect(),
        }
    }

    /// Sleeps until something is done, the bell rings or the time is over.
    pub(super) fn park(&mut self, timeout: Option<Duration>) {
        match self {
            Place::Ring(ring) => ring.park(timeout),
            Place::Polls(polls) => polls.look(timeout),
        }
    }
}
