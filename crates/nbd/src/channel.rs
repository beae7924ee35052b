//! One connection's bytes: a non-blocking socket, plain or under TLS.

use crate::tls::{Session, Tls};
use ashlar_env::{Env, Readiness, ring};
use parking_lot::Mutex;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

/// Room for replies that the client has not read, in bytes.
const SEND_BUFFER_LEN: i32 = 1 << 20;

/// A connected socket.
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&mut &*stream).read(buffer),
            Socket::Tcp(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&mut &*stream).write_vectored(slices),
            Socket::Tcp(stream) => (&mut &*stream).write_vectored(slices),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket and the means to wait for it.
pub(crate) struct Channel {
    socket: Socket,
    descriptor: Arc<OwnedFd>,
    session: OnceLock<Mutex<Session>>,
    env: Env,
}

impl Channel {
    pub(crate) fn new(socket: Socket, env: Env) -> io::Result<Channel> {
        let descriptor = match &socket {
            Socket::Unix(stream) => {
                stream.set_nonblocking(true)?;
                stream.as_fd().try_clone_to_owned()?
            }
            Socket::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                stream.as_fd().try_clone_to_owned()?
            }
        };
        // Without it every large reply takes several waits; it works with less, too.
        let _ = ring::set_send_buffer(&descriptor, SEND_BUFFER_LEN);
        Ok(Channel { socket, descriptor: Arc::new(descriptor), session: OnceLock::new(), env })
    }

    /// Takes what there is; 0 at the end.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.session.get() {
            None => (&mut &self.socket).read(buffer),
            Some(session) => session.lock().read(&self.socket, buffer),
        }
    }

    /// Gives what goes; tells how much that was. It has left only when nothing is unsent.
    pub(crate) fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.session.get() {
            None => (&mut &self.socket).write_vectored(slices),
            Some(session) => session.lock().write(&self.socket, slices),
        }
    }

    /// Sends what was taken and has not left.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        self.session.get().map_or(Ok(()), |session| session.lock().flush(&self.socket))
    }

    /// Whether something was taken and has not left.
    pub(crate) fn is_unsent(&self) -> bool {
        self.session.get().is_some_and(|session| session.lock().is_unsent())
    }

    /// Encrypts from here on.
    pub(crate) async fn start_tls(&self, tls: &Tls) -> io::Result<()> {
        let mut session = tls.accept()?;
        loop {
            match session.agree(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
            self.ready(if session.is_unsent() { Readiness::Writable } else { Readiness::Readable }).await?;
        }
        self.session.set(Mutex::new(session)).map_err(|_| io::Error::other("TLS has begun already"))
    }

    /// Whether bytes are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.session.get().is_some()
    }

    pub(crate) async fn ready(&self, what: Readiness) -> io::Result<()> {
        let ops = self.env.file_ops().ok_or_else(|| io::Error::other("sockets exist in the real runtime only"))?;
        ops.ready(&self.descriptor, what).await
    }

    /// Writes everything.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() || self.is_unsent() {
            let step =
                if bytes.is_empty() { self.try_flush().map(|()| 0) } else { self.try_write(&[IoSlice::new(bytes)]) };
            match step {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.ready(Readiness::Writable).await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends one direction or both; whoever waits is woken.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        // Fails if the other side is gone, which is as good.
        let _ = match &self.socket {
            Socket::Unix(stream) => stream.shutdown(how),
            Socket::Tcp(stream) => stream.shutdown(how),
        };
    }
}
