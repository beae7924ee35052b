//! Files that are open, by the numbers of the trace.

use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// What an open file of the trace is here.
#[derive(Clone)]
enum State {
    /// Nobody opened it: it was open when the trace began, or its opening is missing.
    Unknown,
    Open(Arc<OwnedFd>),
    /// It could not be opened.
    Failed(Errno),
    Closed,
}

/// See the module.
pub struct Files(Vec<Mutex<State>>);

impl Files {
    /// Numbers from 1 to `count`.
    pub fn new(count: u32) -> Files {
        Files((0..=count).map(|_| Mutex::new(State::Unknown)).collect())
    }

    fn set(&self, number: u32, state: State) -> State {
        let mut held = self.0[number as usize].lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut held, state)
    }

    /// It was opened, or was not.
    pub fn opened(&self, number: u32, opened: Result<OwnedFd, Errno>) {
        // Number zero is that of opens of which the trace tells nothing more.
        if number != 0 {
            self.set(number, opened.map_or_else(State::Failed, |file| State::Open(Arc::new(file))));
        }
    }

    /// The file; one that nobody opened is opened by `open`, once.
    pub fn get(&self, number: u32, open: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Arc<OwnedFd>, Errno> {
        let mut held = self.0[number as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*held, State::Unknown) {
            *held = open().map_or_else(State::Failed, |file| State::Open(Arc::new(file)));
        }
        match &*held {
            State::Open(file) => Ok(file.clone()),
            State::Failed(error) => Err(*error),
            State::Unknown | State::Closed => Err(Errno::BADF),
        }
    }

    /// Takes the file away, so that dropping it closes it.
    pub fn close(&self, number: u32) -> Result<Arc<OwnedFd>, Errno> {
        match self.set(number, State::Closed) {
            State::Open(file) => Ok(file),
            State::Failed(error) => Err(error),
            State::Unknown | State::Closed => Err(Errno::BADF),
        }
    }
}
