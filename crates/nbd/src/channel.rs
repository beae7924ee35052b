//! One connection's bytes: a non-blocking socket.

use ashlar_env::{Env, Readiness};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A connected socket.
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A socket and the means to wait for it.
pub(crate) struct Channel {
    socket: Socket,
    descriptor: Arc<OwnedFd>,
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
        Ok(Channel { socket, descriptor: Arc::new(descriptor), env })
    }

    /// Takes what there is; 0 at the end.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.socket {
            Socket::Unix(stream) => (&mut &*stream).read(buffer),
            Socket::Tcp(stream) => (&mut &*stream).read(buffer),
        }
    }

    /// Gives what goes; tells how much that was.
    pub(crate) fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.socket {
            Socket::Unix(stream) => (&mut &*stream).write_vectored(slices),
            Socket::Tcp(stream) => (&mut &*stream).write_vectored(slices),
        }
    }

    pub(crate) async fn ready(&self, what: Readiness) -> io::Result<()> {
        let ops = self.env.file_ops().ok_or_else(|| io::Error::other("sockets exist in the real runtime only"))?;
        ops.ready(&self.descriptor, what).await
    }

    /// Writes everything.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(&[IoSlice::new(bytes)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
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
