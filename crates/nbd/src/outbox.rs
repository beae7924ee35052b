//! What leaves: replies queue here, and whoever is there sends all of them together.

use crate::server::{Charge, Client};
use crate::wire::Reply;
use ashlar_env::Readiness;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Slices in one system call; the kernel takes no more than 1,024.
const SLICES_MAX: usize = 512;

/// A reply, and the memory that it holds.
struct Outgoing {
    reply: Reply,
    /// Bytes of it that have left.
    sent: usize,
    _charge: Charge,
}

#[derive(Default)]
struct Queue {
    replies: VecDeque<Outgoing>,
    /// Somebody sends.
    sending: bool,
    /// Somebody will send soon.
    promised: bool,
    /// The client is gone.
    broken: bool,
}

/// The sending side of a connection.
pub(crate) struct Outbox {
    client: Arc<Client>,
    queue: Mutex<Queue>,
}

impl Outbox {
    pub(crate) fn new(client: Arc<Client>) -> Outbox {
        Outbox { client, queue: Mutex::default() }
    }

    /// Queues a reply, and sees to it that it leaves: with those that are ready at the same time, if there are any.
    pub(crate) async fn deliver(&self, reply: Reply, charge: Charge) {
        {
            let mut queue = self.queue.lock();
            if queue.broken {
                return;
            }
            queue.replies.push_back(Outgoing { reply, sent: 0, _charge: charge });
            if std::mem::replace(&mut queue.promised, true) {
                return;
            }
        }
        self.client.env().yield_now().await;
        self.queue.lock().promised = false;
        self.send().await;
    }

    /// Sends everything that is queued.
    async fn send(&self) {
        while let Err(error) = self.try_send() {
            debug_assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            self.client.wait_for_client(true);
            let waited = self.client.channel.ready(Readiness::Writable).await;
            self.client.wait_for_client(false);
            self.queue.lock().sending = false;
            if waited.is_err() {
                self.give_up();
            }
        }
    }

    /// The same without waiting: what does not fit is left to a task.
    pub(crate) fn send_now(self: &Arc<Self>) {
        if self.try_send().is_err() {
            let outbox = self.clone();
            self.client.spawner.spawn(async move {
                let waited = outbox.client.channel.ready(Readiness::Writable).await;
                outbox.queue.lock().sending = false;
                if waited.is_err() {
                    outbox.give_up();
                }
                outbox.send().await;
            });
        }
    }

    /// Sends what goes. Fails with `WouldBlock` if the caller is to wait; others then leave it to him.
    fn try_send(&self) -> io::Result<()> {
        let mut batch = {
            let mut queue = self.queue.lock();
            if queue.sending || (queue.replies.is_empty() && !self.client.channel.is_unsent()) {
                return Ok(());
            }
            queue.sending = true;
            std::mem::take(&mut queue.replies)
        };
        loop {
            while !batch.is_empty() || self.client.channel.is_unsent() {
                let written = if batch.is_empty() {
                    self.client.channel.try_flush().map(|()| 0)
                } else {
                    self.client.channel.try_write(&slices(&batch))
                };
                match written {
                    Ok(count) => {
                        self.client.progress();
                        forget_sent(&mut batch, count);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let mut queue = self.queue.lock();
                        batch.append(&mut queue.replies);
                        queue.replies = batch;
                        return Err(error);
                    }
                    Err(_) => {
                        self.give_up();
                        return Ok(());
                    }
                }
            }
            let mut queue = self.queue.lock();
            if queue.replies.is_empty() {
                queue.sending = false;
                return Ok(());
            }
            std::mem::swap(&mut batch, &mut queue.replies);
        }
    }

    /// The client does not read any more.
    fn give_up(&self) {
        let mut queue = self.queue.lock();
        queue.broken = true;
        queue.sending = false;
        queue.replies.clear();
    }
}

fn slices(batch: &VecDeque<Outgoing>) -> smallvec::SmallVec<[IoSlice<'_>; 16]> {
    let mut slices = smallvec::SmallVec::new();
    for Outgoing { reply, sent, .. } in batch {
        let mut skip = *sent;
        let parts = std::iter::once(&reply.head[..]).chain(reply.pieces.iter().map(Bytes::as_ref));
        for part in parts {
            match part.get(skip..) {
                Some([]) => skip = 0,
                Some(rest) => {
                    slices.push(IoSlice::new(rest));
                    skip = 0;
                }
                None => skip -= part.len(),
            }
            if slices.len() == SLICES_MAX {
                return slices;
            }
        }
    }
    slices
}

fn forget_sent(batch: &mut VecDeque<Outgoing>, mut count: usize) {
    while let Some(first) = batch.front_mut() {
        let left = first.reply.len() - first.sent;
        if count < left {
            first.sent += count;
            return;
        }
        count -= left;
        batch.pop_front();
    }
}
