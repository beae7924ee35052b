//! The control socket of a running pool: one request per connection, lines of JSON back.

use crate::config;
use crate::output::Failure;
use crate::request::{Answer, Done, Line, Request};
use crate::session::Session;
use parking_lot::Mutex;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the daemon waits for a client to say something, or to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the control threads share with the main one.
pub struct Control {
    pub session: Session,
    /// Somebody asked to stop.
    pub stop: AtomicBool,
    /// Told when everything is closed.
    waiting: Mutex<Vec<UnixStream>>,
}

impl Control {
    /// Serves the socket in the pool's directory.
    pub fn listen(directory: &Path, session: Session) -> Result<Arc<Control>, Failure> {
        let path = config::socket(directory);
        // The devices' locks are held, so a socket that is there belongs to a process that is gone.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path);
        let listener = listener.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        let control = Arc::new(Control { session, stop: AtomicBool::new(false), waiting: Mutex::default() });
        let shared = Arc::downgrade(&control);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(control) = shared.upgrade() else { return };
                std::thread::spawn(move || control.converse(stream));
            }
        });
        Ok(control)
    }

    fn converse(&self, mut stream: UnixStream) {
        // Somebody who connects and says nothing, or does not listen, must not keep the daemon from ending.
        let patience = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        let line = match patience.map_err(|error| error.to_string()).and_then(|()| Request::read(&stream)) {
            Ok(Request::Down) => {
                self.waiting.lock().push(stream);
                self.stop.store(true, Ordering::Release);
                return;
            }
            Ok(request) => {
                let to = stream.try_clone().ok().map(Mutex::new);
                let progress = move |done, all| {
                    if let Some(to) = &to {
                        send(&mut to.lock(), &Line::Progress(done, all));
                    }
                };
                match self.session.answer(request, progress) {
                    Ok(answer) => Line::Answer(answer),
                    Err(failure) => Line::Failure(failure.to_string()),
                }
            }
            Err(error) => Line::Failure(format!("the request is unreadable: {error}")),
        };
        send(&mut stream, &line);
    }

    /// Closes everything, and tells those who asked for it.
    pub fn close(self: Arc<Control>, directory: &Path) -> Result<(), Failure> {
        let mut control = self;
        // Conversations end on their own; nobody waits for long ones.
        let control = loop {
            match Arc::try_unwrap(control) {
                Ok(control) => break control,
                Err(shared) => control = shared,
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let result = control.session.close();
        let line = match &result {
            Ok(()) => Line::Answer(Answer::Done(Done { done: "everything is written; the pool is down".into() })),
            Err(failure) => Line::Failure(failure.to_string()),
        };
        let _ = std::fs::remove_file(config::socket(directory));
        control.waiting.lock().iter_mut().for_each(|stream| send(stream, &line));
        result
    }
}

fn send(stream: &mut UnixStream, line: &Line) {
    let mut text = serde_json::to_string(line).unwrap_or_default();
    text.push('\n');
    // Whoever asked may be gone; that is no concern of ours.
    let _ = stream.write_all(text.as_bytes());
}
