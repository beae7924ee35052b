//! Bodies on their way in: clients must go on sending, and chunks are cut.

use crate::rechunk::Rechunk;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use s3s::StdError;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// What a client is told that stopped sending.
pub(crate) const STALLED: &str = "no byte of the body came for too long";

/// A body that must go on.
pub(crate) struct Inlet<B> {
    body: B,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
    /// With what is to be passed on, if the body is in chunks.
    chunks: Option<(Rechunk, VecDeque<Bytes>)>,
}

impl<B: Body<Data = Bytes> + Unpin> Inlet<B> {
    pub(crate) fn new(body: B, chunked: bool, patience: Duration) -> Inlet<B> {
        let deadline = Box::pin(tokio::time::sleep(patience));
        Inlet { body, patience, deadline, chunks: chunked.then(|| (Rechunk::new(), VecDeque::new())) }
    }
}

impl<B> Body for Inlet<B>
where
    B: Body<Data = Bytes> + Unpin,
    StdError: From<B::Error>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        loop {
            if let Some((_, ready)) = &mut this.chunks
                && let Some(next) = ready.pop_front()
            {
                return Poll::Ready(Some(Ok(Frame::data(next))));
            }
            let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
                return this.deadline.as_mut().poll(context).map(|()| Some(Err(STALLED.into())));
            };
            this.deadline.as_mut().reset(Instant::now() + this.patience);
            match (frame, &mut this.chunks) {
                (Some(Err(error)), _) => return Poll::Ready(Some(Err(error.into()))),
                (None, _) => return Poll::Ready(None),
                (Some(Ok(frame)), None) => return Poll::Ready(Some(Ok(frame))),
                (Some(Ok(frame)), Some((rechunk, ready))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if let Err(wrong) = rechunk.take(data, |piece| ready.push_back(piece)) {
                        return Poll::Ready(Some(Err(wrong.into())));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.chunks.as_ref().is_none_or(|(_, ready)| ready.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        if self.chunks.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}
