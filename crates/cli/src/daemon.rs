//! The control socket of a running pool: one request per connection, lines of JSON back.

use crate::config;
use crate::framing::{self, Line, send};
use crate::output::Failure;
use crate::request::{Answer, Done, Request};
use crate::session::{self, Closed, Session};
use ashlar_fuse::Heard;
use parking_lot::{Mutex, RwLock};
use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often who listens is told what was heard.
const TICK: Duration = Duration::from_millis(20);
/// Requests that are told at once; paths may be long.
const REQUESTS_OF_A_LINE: usize = 1024;

/// What the control threads share with the main one.
pub struct Control {
    pub session: Session,
    /// Somebody asked to stop.
    stop: AtomicBool,
    /// Held by whoever is answered. True: nobody is any more, for everything is being closed.
    over: RwLock<bool>,
    /// Told when everything is closed, which they asked for.
    waiting: Mutex<Vec<UnixStream>>,
    /// Told so, too, for they came too late.
    late: Mutex<Vec<UnixStream>>,
}

impl Control {
    /// Serves the socket in the pool's directory. Closes everything if that fails.
    pub fn listen(directory: &Path, session: Session) -> Result<Arc<Control>, Failure> {
        let (stop, over) = (AtomicBool::new(false), RwLock::new(false));
        let (waiting, late) = (Mutex::default(), Mutex::default());
        let control = Arc::new(Control { session, stop, over, waiting, late });
        if let Err(failure) = control.serve(&config::socket(directory)) {
            control.close(directory)?;
            return Err(failure);
        }
        Ok(control)
    }

    fn serve(self: &Arc<Control>, path: &Path) -> Result<(), Failure> {
        // The devices' locks are held, so a socket that is there belongs to a process that is gone.
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path);
        let listener = listener.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        framing::serve(listener, self, Control::converse)
    }

    fn converse(&self, request: Result<Request, String>, mut stream: UnixStream) {
        let line = match request {
            Ok(Request::Down) => {
                self.waiting.lock().push(stream);
                self.stop.store(true, Ordering::Release);
                return;
            }
            Ok(Request::Listen { at }) => match self.tell(&mut stream, &at) {
                Ok(()) => return,
                Err(failure) => Line::Failure(failure.to_string()),
            },
            Ok(request) => {
                // With nothing mounted it is about to be over, unless somebody mounts something.
                while !self.session.is_connected() && !*self.over.read() {
                    std::thread::sleep(session::TICK);
                }
                let over = self.over.read();
                if *over {
                    self.late.lock().push(stream);
                    return;
                }
                let to = stream.try_clone().ok().map(Mutex::new);
                let progress = move |done, all| {
                    if let Some(to) = &to {
                        send(&mut to.lock(), &Line::<Answer>::Progress(done, all));
                    }
                };
                match self.session.answer(request, progress) {
                    Ok(answer) => Line::Answer(answer),
                    Err(failure) => Line::Failure(failure.to_string()),
                }
            }
            Err(error) => Line::Failure(error),
        };
        send(&mut stream, &line);
    }

    /// Tells what is asked of a mount, until whoever listens says no more, or goes away, or everything is to be closed.
    fn tell(&self, stream: &mut UnixStream, at: &Path) -> Result<(), Failure> {
        let listener = self.session.listen(at)?;
        send(stream, &Line::Answer(Answer::Listening { knows_all: listener.knows_all }));
        let _ = stream.set_read_timeout(Some(TICK));
        let mut over = false;
        while !over {
            // Who listens sends nothing but the end.
            let ended = stream.read(&mut [0]);
            over = self.stop.load(Ordering::Acquire)
                || !matches!(&ended, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            let Heard { requests, lost, over: unmounted } = listener.take();
            over |= unmounted;
            for requests in requests.chunks(REQUESTS_OF_A_LINE) {
                let heard = Heard { requests: requests.to_vec(), ..Heard::default() };
                if framing::try_send(stream, &heard).is_err() {
                    return Ok(());
                }
            }
            if (lost > 0 || over) && framing::try_send(stream, &Heard { requests: Vec::new(), lost, over }).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether everything is to be closed: somebody asked for it, or nothing is mounted any more.
    pub fn is_over(&self) -> bool {
        let asked = self.stop.load(Ordering::Acquire);
        match self.over.try_write() {
            Some(mut over) => {
                *over = asked || !self.session.is_served();
                *over
            }
            // Somebody is answered, and may be mounting.
            None => asked,
        }
    }

    /// Closes everything, and tells those who asked for it or came too late.
    pub fn close(self: Arc<Control>, directory: &Path) -> Result<Closed, Failure> {
        self.session.interrupt();
        self.stop.store(true, Ordering::Release);
        *self.over.write() = true; // when those who are answered have been
        let result = self.session.close();
        let line = match &result {
            Ok(closed) => Line::Answer(Answer::Done(Done { done: closed.to_string() })),
            Err(failure) => Line::Failure(failure.to_string()),
        };
        let mut control = self;
        let Control { session, waiting, late, .. } = loop {
            match Arc::try_unwrap(control) {
                Ok(control) => break control,
                Err(shared) => control = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        drop(session); // and the locks on its devices
        if result.is_ok() {
            config::forget_mounts(directory); // before another server notes its own
        }
        let _ = std::fs::remove_file(config::socket(directory));
        waiting.into_inner().iter_mut().for_each(|stream| send(stream, &line));
        late.into_inner().iter_mut().for_each(|stream| send(stream, &Line::<Answer>::Ended {}));
        result
    }
}
