//! Requests through the device: one descriptor for each worker.

use crate::abi::{NOTIFY_INVAL_INODE, NOTIFY_RETRIEVE, NotifyInvalInodeOut, NotifyRetrieveOut, OutHeader};
use crate::buffers;
use crate::decode::{Message, Operation, Request};
use crate::listings::Listings;
use crate::mount::State;
use crate::reply::Reply;
use crate::report::Damage;
use crate::serve::{Kernel, clears_setid, number, serve};
use crate::sys::{self, Users};
use ashlar_env::Readiness;
use ashlar_env::real::Spawner;
use ashlar_vfs::{Errno, Error, FileSystem, Ino};
use bytes::Bytes;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// For how long a worker looks for the next request before it sleeps.
pub(crate) const LINGER: Duration = Duration::from_micros(200);

/// One descriptor, served by one worker.
pub(crate) struct Queue<F> {
    pub(crate) worker: usize,
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) state: Arc<State>,
    pub(crate) fs: Arc<F>,
    pub(crate) spawner: Spawner,
    /// Requests that its worker took from rings and did not answer yet; large ones count for several.
    pub(crate) in_service: AtomicUsize,
    /// The queues of all workers.
    pub(crate) all: Weak<Vec<Arc<Queue<F>>>>,
}

impl<F: FileSystem> Queue<F> {
    /// Takes requests until the file system is unmounted; each is served by a task on the same worker.
    pub(crate) async fn run(self: Arc<Self>, all: Arc<Vec<Arc<Queue<F>>>>) {
        let max_write = self.state.agreement.max_write;
        let mut last = ashlar_env::Instant::default();
        let over_ring = self.state.agreement.uring();
        loop {
            match buffers::take(max_write, |buffer| sys::read(&self.device, buffer)) {
                Ok(request) => {
                    last = self.state.env.now();
                    let queue = self.clone();
                    self.spawner.spawn(async move { queue.answer(request).await });
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) if !over_ring && self.linger(last).await => {}
                    Some(libc::EAGAIN) => {
                        if self.readable().await.is_err() {
                            break;
                        }
                    }
                    // The request was taken back before it was read.
                    Some(libc::ENOENT | libc::EINTR) => {}
                    _ => break, // unmounted, or aborted
                },
            }
        }
        drop(all);
        if self.state.queues.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.state.ended.notify_waiters();
        }
    }

    /// Shortly after a request the next one is likely: one worker then looks again instead of sleeping, since waking a
    /// sleeping processor takes longer than serving a request. Whether it did.
    async fn linger(&self, last: ashlar_env::Instant) -> bool {
        if self.state.env.now().since(last) > LINGER || self.state.lingering.swap(true, Ordering::Acquire) {
            return false;
        }
        self.state.env.yield_now().await;
        self.state.lingering.store(false, Ordering::Release);
        true
    }

    async fn readable(&self) -> io::Result<()> {
        let ops = self.state.env.file_ops().ok_or_else(|| io::Error::other("queues run on workers"))?;
        ops.ready(&self.device, Readiness::Readable).await
    }

    async fn answer(&self, whole: Bytes) {
        let mut reply = Reply::default();
        let unique = match Message::whole(&whole) {
            Ok(message) => {
                self.fill(message, &whole, &mut reply, None).await;
                message.header.unique
            }
            // Without a header nobody can be answered.
            Err(_) => return,
        };
        self.send(&mut reply, unique);
    }

    /// Serves a request; `whole` is what its data lie in, `processor` that of its entry, if it came in one. The reply is
    /// complete but for its header.
    pub(crate) async fn fill(&self, message: Message<'_>, whole: &Bytes, reply: &mut Reply, processor: Option<u16>) {
        let began = Instant::now();
        reply.reset();
        let request = match message.decode() {
            Ok(request) => request,
            Err(bad) => return reply.fail(bad.errno),
        };
        if self.state.probe.answer(&request, reply) {
            return;
        }
        if matches!(request.operation, Operation::Write { .. }) {
            self.state.counters.of(self.worker).begin_write();
        }
        let outcome = {
            // Pinned where it is made: it has some kilobytes, which would be copied for each request.
            let kernel = Asking { queue: self, processor };
            let served = std::pin::pin!(serve(&*self.fs, &kernel, &self.state.agreement, &request, whole, reply));
            caught(served).await
        };
        match outcome {
            Ok(Ok(())) if clears_setid(&request) => forget_attributes(&self.device, request.header.nodeid),
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                reply.fail(number(error.errno));
                self.report(&request, error);
            }
            Err(_) => {
                // The panic's message was printed. What the engine left half done must not be built upon.
                reply.fail(libc::EIO);
                let _ = self.state.unmount(Users::Fail);
            }
        }
        let took = began.elapsed();
        if self.state.log.is_on() {
            let at_ns = self.state.env.now().0.saturating_sub(took.as_nanos() as u64);
            self.state.log.note(&request, reply, at_ns, took);
        }
        let shard = self.state.counters.of(self.worker);
        match request.operation {
            Operation::Read(_) => shard.read(reply.data_len() as u64),
            Operation::Write { data, .. } => shard.written(data.len() as u64),
            _ => {}
        }
        shard.record(request.opcode, reply.error() != 0, took.as_nanos() as u64);
    }

    /// Asks for what the page cache has of a range of a file; the answer comes as a request with this number.
    pub(crate) fn retrieve(&self, unique: u64, ino: Ino, offset: u64, size: u32) -> io::Result<usize> {
        let notice = NotifyRetrieveOut { unique, ino, offset, size, padding: 0 };
        let len = (size_of::<OutHeader>() + size_of::<NotifyRetrieveOut>()) as u32;
        let header = OutHeader { len, error: NOTIFY_RETRIEVE, unique: 0 };
        sys::write(&self.device, &[header.as_bytes(), notice.as_bytes()].concat(), &[])
    }

    fn send(&self, reply: &mut Reply, unique: u64) {
        if let Some((head, pieces)) = reply.finish(unique) {
            // ENOENT: the caller was killed meanwhile. Anything else would come up at the next read too.
            let _ = sys::write(&self.device, head, pieces);
        }
    }

    /// Applications see `EIO`; the operator sees why.
    fn report(&self, request: &Request<'_>, error: Error) {
        if error.errno != Errno::Io {
            return;
        }
        let Some(left_out) = self.state.reports.admit(self.state.env.now().0) else { return };
        let (offset, len) = match request.operation {
            Operation::Read(arg) => (Some(arg.offset), Some(u64::from(arg.size))),
            Operation::Write { arg, .. } => (Some(arg.offset), Some(u64::from(arg.size))),
            _ => (None, None),
        };
        let operation = request.opcode.name();
        (self.state.options.on_damage)(&Damage { operation, ino: request.header.nodeid, offset, len, error, left_out });
    }
}

/// What the server may ask while it serves one request.
struct Asking<'a, F> {
    queue: &'a Queue<F>,
    /// The request holds an entry of this processor.
    processor: Option<u16>,
}

impl<F: FileSystem> Kernel for Asking<'_, F> {
    async fn drop_pages(&self, ino: Ino, from: u64, to: Option<u64>) {
        let state = &self.queue.state;
        if state.agreement.holes {
            return;
        }
        let len = to.map_or(0, |to| to - from) as i64; // 0: to the end
        let notice = NotifyInvalInodeOut { ino, off: from as i64, len };
        // It returns when the pages are written back, which the workers must serve meanwhile.
        let _waits = self.processor.map(|processor| self.queue.waits(processor, ino));
        let device = self.queue.device.clone();
        state.env.unblock(move || invalidate(&device, notice)).await;
    }
    async fn has_byte(&self, ino: Ino, offset: u64) -> bool {
        let state = &self.queue.state;
        if state.agreement.holes {
            return false;
        }
        let _waits = self.processor.map(|processor| self.queue.waits(processor, ino));
        let unique = state.retrievals.next();
        let ask = || self.queue.retrieve(unique, ino, offset, 1).is_ok();
        state.retrievals.answer_to(&state.env, unique, ask).await != Some(0)
    }
    fn cached(&self, unique: u64, bytes: u32) {
        self.queue.state.retrievals.answered(unique, bytes);
    }
    fn refuse_next_write(&self, ino: Ino) {
        if self.queue.state.refusals.note(ino) {
            forget_attributes(&self.queue.device, ino);
        }
    }
    fn take_refusal(&self, ino: Ino) -> bool {
        self.queue.state.refusals.take(ino)
    }
    fn data_came(&self, ino: Ino) {
        self.queue.state.outdated.note(ino);
    }
    fn attributes_are_told(&self, ino: Ino) {
        self.queue.state.outdated.take(ino);
    }
    fn data_are_durable(&self, ino: Ino) {
        if self.queue.state.outdated.take(ino) {
            forget_attributes(&self.queue.device, ino);
        }
    }
    fn listings(&self) -> &Listings {
        &self.queue.state.listings
    }
}

/// Tells the kernel that it must ask for an inode's attributes again.
pub(crate) fn forget_attributes(device: &OwnedFd, ino: Ino) {
    invalidate(device, NotifyInvalInodeOut { ino, off: -1, len: 0 });
}

/// Sends a notice that waits for nobody but for the write-back of dirty pages in its range.
fn invalidate(device: &OwnedFd, notice: NotifyInvalInodeOut) {
    let len = (size_of::<OutHeader>() + size_of::<NotifyInvalInodeOut>()) as u32;
    let header = OutHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 };
    // ENOENT: the kernel does not know the inode, so it has nothing to forget.
    let _ = sys::write(device, &[header.as_bytes(), notice.as_bytes()].concat(), &[]);
}

/// Runs a future to its end or to its panic.
async fn caught<T>(mut future: Pin<&mut impl Future<Output = T>>) -> std::thread::Result<T> {
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        polled.map_or_else(|panic| Poll::Ready(Err(panic)), |polled| polled.map(Ok))
    })
    .await
}
