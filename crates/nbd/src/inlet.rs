//! What arrives: a buffer for what is small, while large data go straight to where they belong.

use crate::channel::Channel;
use crate::server::Client;
use ashlar_env::ring::AlignedBuf;
use ashlar_env::{Instant, Readiness};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const BUFFER_LEN: usize = 64 << 10;
/// For how long a connection looks for more before it sleeps.
const LINGER: Duration = Duration::from_micros(100);

/// After looking in vain, a connection sleeps at once so often before it looks again: the client may share our processor,
/// and then looking keeps it from sending.
const WAITS_WITHOUT_LINGERING: u32 = 32;

/// What an attempt to fill the buffer gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Some,
    Nothing,
    End,
}

/// The receiving side of a connection.
pub(crate) struct Inlet {
    client: Arc<Client>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The last read took all there was.
    drained: bool,
    last: Instant,
    lingered: bool,
    /// Waits that are still to be sleeps.
    sleeps: u32,
}

impl Inlet {
    pub(crate) fn new(client: Arc<Client>) -> Inlet {
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        Inlet { client, buffer, start: 0, end: 0, drained: true, last: Instant::default(), lingered: false, sleeps: 0 }
    }

    fn channel(&self) -> &Channel {
        &self.client.channel
    }

    /// Bytes that arrived and were not taken.
    pub(crate) fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// Whether nothing more is likely to be there.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Takes bytes that are buffered; nothing if there are fewer.
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.buffer.get(self.start..self.end)?.first_chunk()?;
        self.start += N;
        Some(bytes)
    }

    /// Looks for more, without waiting.
    pub(crate) fn fill(&mut self) -> io::Result<Fill> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let wanted = room.len();
        let read = self.client.channel.try_read(room);
        let (fill, count) = self.outcome(read)?;
        self.end += count;
        self.drained = count < wanted;
        Ok(fill)
    }

    fn outcome(&mut self, read: io::Result<usize>) -> io::Result<(Fill, usize)> {
        match read {
            Ok(0) => Ok((Fill::End, 0)),
            Ok(count) => {
                self.last = self.client.env().now();
                self.lingered = false;
                self.client.progress();
                Ok((Fill::Some, count))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok((Fill::Nothing, 0))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until there may be more. Shortly after the last bytes that is by looking again, if they are `expected`
    /// (the rest of a message) or nothing is in service, and nobody else looks: waking a sleeping processor takes longer than serving a request.
    pub(crate) async fn wait(&mut self, expected: bool) -> io::Result<()> {
        let env = self.client.env();
        if self.sleeps == 0 && (expected || self.client.is_idle()) && env.now().since(self.last) < LINGER {
            let server = &self.client.server;
            if server.start_lingering() {
                self.lingered = true;
                env.yield_now().await;
                server.stop_lingering();
                return Ok(());
            }
        }
        self.sleeps = if self.lingered { WAITS_WITHOUT_LINGERING } else { self.sleeps.saturating_sub(1) };
        self.lingered = false;
        self.channel().ready(Readiness::Readable).await
    }

    /// Reads exactly so much; the connection must not end before.
    pub(crate) async fn exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        let ready = self.buffered().min(into.len());
        let (now, mut rest) = into.split_at_mut(ready);
        now.copy_from_slice(self.buffer.get(self.start..self.start + ready).unwrap_or_default());
        self.start += ready;
        while !rest.is_empty() {
            let read = self.client.channel.try_read(rest);
            match self.outcome(read)? {
                (Fill::Some, count) => rest = rest.split_at_mut(count).1,
                (Fill::End, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (Fill::Nothing, _) => {
                    self.client.wait_for_client(true);
                    let waited = self.wait(true).await;
                    self.client.wait_for_client(false);
                    waited?;
                }
            }
        }
        Ok(())
    }

    /// Reads so much into a buffer of its own.
    pub(crate) async fn payload(&mut self, len: usize) -> io::Result<Bytes> {
        if let Some(arrived) = self.buffer.get(self.start..self.end).and_then(|buffered| buffered.get(..len)) {
            let copy = AlignedBuf::copy_of(arrived);
            self.start += len;
            return Ok(copy.freeze(len));
        }
        let mut buffer = AlignedBuf::any(len);
        self.exact(buffer.as_mut()).await?;
        Ok(buffer.freeze(len))
    }

    /// Reads an array.
    pub(crate) async fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.exact(&mut bytes).await?;
        Ok(bytes)
    }

    /// Reads and forgets so much.
    pub(crate) async fn skip(&mut self, mut len: u64) -> io::Result<()> {
        let mut scratch = vec![0; len.min(BUFFER_LEN as u64) as usize];
        while len > 0 {
            let part = len.min(scratch.len() as u64) as usize;
            self.exact(scratch.get_mut(..part).unwrap_or_default()).await?;
            len -= part as u64;
        }
        Ok(())
    }
}
