//! Requests over io_uring (Linux 6.14): the kernel hands a request to the queue of the processor where it was made, and
//! the worker of that processor takes it out of its own ring. No other processor has to be woken, and one system call
//! both answers and fetches.
//!
//! Each queue has a number of *entries*, each with buffers that the kernel fills and we answer in. Who answers gets the
//! entry's next request too, so when requests pile up at one processor some of its entries move to another worker, and
//! back when it is quiet. FORGET and INTERRUPT still come through the device.
//!
//! A request that waits for the kernel to write pages back holds its entry while others must carry those writes. If such
//! requests could hold all entries of a processor, everybody would wait for ever; so each processor has one entry more than
//! requests of that kind, made when it is needed ([`Standing`]). Linux gives an entry that is new no request that came
//! before it; who has answered one gets those. So a new entry is *kicked*: it is given a request that we cause.

use crate::abi::*;
use crate::decode::Message;
use crate::queue::{LINGER, Queue};
use crate::reply::Reply;
use crate::standing::Standing;
use crate::sys::Users;
use ashlar_env::ring::{self, AlignedBuf};
use ashlar_env::say;
use ashlar_vfs::{FileSystem, Ino};
use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Requests in service at once, for each processor: as many as programs commonly submit from one, but few where there are
/// many processors, since each takes a buffer for the largest write.
const ENTRIES: RangeInclusive<usize> = 2..=32;
/// Where there is little memory, requests are smaller before they are fewer than this, for each processor. Direct reads of 4 KiB at
/// depth 32 make a tenth more of it than of eight, and a stream is as fast with 512 KiB a request as with 1 MiB (not with 256).
const ENTRIES_OF_LARGE: usize = 16;
/// No request's data need be smaller.
const DATA_MIN: usize = 64 << 10;

/// Largest data of a request, if there is so much memory for all, in bytes.
pub(crate) fn data_max(buffers: usize, processors: usize) -> usize {
    let each = (buffers / processors / ENTRIES_OF_LARGE).max(DATA_MIN);
    1 << each.ilog2()
}

/// Entries of each processor, if there is so much memory for all.
pub(crate) fn entries(buffers: usize, processors: usize, max_data: usize) -> usize {
    (buffers / processors / max_data).clamp(*ENTRIES.start(), *ENTRIES.end())
}
/// With so many requests in service, a worker gives some to the next one.
const DEEP: usize = 6;
/// Bytes that take as long to check and copy as a small request takes.
const PER_REQUEST: usize = 512 << 10;
/// With fewer, it gets its entries back.
const SHALLOW: usize = 2;
/// An entry beyond [`ENTRIES`] keeps no more memory than this when it has a new request.
const EXTRA_KEEPS: usize = 64 << 10;
/// How long the kernel may take to know a new entry, until it is kicked, and kicked again.
const KICK_AFTER: Duration = Duration::from_millis(1);

/// A request that waits for the kernel, as long as it does.
pub(crate) struct Waits<'a>(&'a Mutex<Standing>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.lock().end();
    }
}

/// Where an entry's requests and replies lie.
struct Buffers {
    headers: AlignedBuf,
    payload: AlignedBuf,
    vectors: [libc::iovec; 2],
}

// SAFETY: the vectors point into the buffers beside them, which do not move.
unsafe impl Send for Buffers {}

impl Buffers {
    fn new(payload_len: usize) -> Buffers {
        let mut headers = AlignedBuf::zeroed(AlignedBuf::ALIGN);
        let mut payload = AlignedBuf::zeroed(payload_len);
        let vector = |data: *mut u8, len: usize| libc::iovec { iov_base: data.cast(), iov_len: len };
        let vectors =
            [vector(headers.as_mut_ptr(), size_of::<UringHeaders>()), vector(payload.as_mut_ptr(), payload_len)];
        Buffers { headers, payload, vectors }
    }
    fn headers(&self) -> UringHeaders {
        UringHeaders::read_from_prefix(self.headers.as_ref()).expect("a page holds the headers").0
    }
    fn set_headers(&mut self, headers: &UringHeaders) {
        self.headers.as_mut()[..size_of::<UringHeaders>()].copy_from_slice(headers.as_bytes());
    }
}

/// A command to the kernel's side of an entry.
fn command(device: &OwnedFd, number: u32, vectors: *const libc::iovec, queue: u16, commit: u64) -> squeue::Entry128 {
    let request = UringCmdReq { flags: 0, commit_id: commit, qid: queue, padding: [0; 6] };
    let mut bytes = [0; 80];
    bytes[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
    let mut entry = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), number).cmd(bytes).build();
    // The builder has no way to set the address and length fields.
    let raw = (&raw mut entry).cast::<u8>();
    // SAFETY: an entry is the kernel's 128-byte structure, in which the address lies at byte 16 and the length at 24.
    unsafe {
        raw.add(16).cast::<u64>().write_unaligned(vectors as u64);
        raw.add(24).cast::<u32>().write_unaligned(2);
    }
    entry
}

/// One of a processor's entries.
struct Entry {
    processor: u16,
    /// Made since others wait for the kernel; whether it had a request.
    extra: Option<Arc<AtomicBool>>,
    buffers: Arc<Mutex<Buffers>>,
    reply: Reply,
    number: u32,
    commit: u64,
}

/// A request that came in an entry.
struct Arrived {
    headers: UringHeaders,
    payload: Bytes,
}

impl Arrived {
    /// How many small requests it counts for.
    fn weight(&self, header: &InHeader) -> usize {
        let read = (header.opcode == Opcode::Read as u32).then(|| ReadIn::read_from_prefix(&self.headers.op_in).ok());
        let len = read.flatten().map_or(self.payload.len(), |(read, _)| read.size as usize);
        1 + len / PER_REQUEST
    }
}

impl Entry {
    fn new(processor: u16, extra: Option<Arc<AtomicBool>>, payload_len: usize) -> Entry {
        let buffers = Arc::new(Mutex::new(Buffers::new(payload_len)));
        Entry { processor, extra, buffers, reply: Reply::default(), number: URING_REGISTER, commit: 0 }
    }

    /// Hands over the reply, if there is one, and waits for the next request. Or the kernel's error: it is unmounted, or aborted.
    async fn fetch(&mut self, device: &Arc<OwnedFd>) -> Result<Arrived, i32> {
        let operation = {
            let vectors = self.buffers.lock().vectors.as_ptr();
            let entry = command(device, self.number, vectors, self.processor, self.commit);
            // SAFETY: the buffers are owned by the operation, and nobody touches them until it ends.
            unsafe { ring::submit(entry, Box::new((device.clone(), self.buffers.clone()))) }
        };
        let answer = operation.ok_or(libc::EOPNOTSUPP)?.await;
        if answer < 0 {
            return Err(-answer);
        }
        let buffers = self.buffers.lock();
        let headers = buffers.headers();
        let len = (headers.ent.payload_sz as usize).min(buffers.payload.as_ref().len());
        // The engine may keep what is written after the reply, and the buffer is used again then.
        let payload = &buffers.payload.as_ref()[..len];
        let payload = if len < AlignedBuf::ALIGN {
            Bytes::copy_from_slice(payload)
        } else {
            AlignedBuf::copy_of(payload).freeze(len)
        };
        drop(buffers);
        if let Some(used) = &self.extra {
            used.store(true, Ordering::Relaxed);
            if len.max(self.reply.data_len()) > EXTRA_KEEPS {
                self.buffers.lock().payload.give_back();
            }
        }
        (self.number, self.commit) = (URING_COMMIT_AND_FETCH, headers.ent.commit_id);
        Ok(Arrived { headers, payload })
    }

    /// Puts the reply where the kernel finds it.
    fn put_reply(&mut self, unique: u64, mut headers: UringHeaders) {
        let (mut buffers, reply) = (self.buffers.lock(), &mut self.reply);
        if reply.body_len() + reply.data_len() > buffers.payload.as_ref().len() {
            reply.fail(libc::EIO); // more than was asked for
        }
        let mut len = 0;
        if let Some((head, pieces)) = reply.finish(unique) {
            let body = &head[size_of::<OutHeader>()..];
            for part in std::iter::once(body).chain(pieces.iter().map(|piece| &piece[..])) {
                buffers.payload.as_mut()[len..len + part.len()].copy_from_slice(part);
                len += part.len();
            }
            headers.in_out[..size_of::<OutHeader>()].copy_from_slice(&head[..size_of::<OutHeader>()]);
        }
        headers.ent.payload_sz = len as u32;
        buffers.set_headers(&headers);
    }
}

impl<F: FileSystem> Queue<F> {
    /// Starts this worker's share of the processors' queues.
    pub(crate) fn start_ring(self: Arc<Self>) {
        let processors = crate::sys::processors();
        let workers = self.all.upgrade().map_or(1, |all| all.len());
        let mine: Vec<usize> = (self.worker..processors).step_by(workers).collect();
        let entries = self.state.entries();
        let pinned = mine.clone();
        self.spawner.spawn(async move { crate::sys::pin_thread(&pinned) });
        for processor in mine {
            *self.state.standing[processor].lock() = Standing::new(entries);
            for _ in 0..entries {
                let entry = Entry::new(processor as u16, None, self.state.agreement.max_data);
                self.clone().go_on(entry, None);
            }
        }
    }

    /// To be called by who holds an entry of this processor, for a request about this file, and waits for the kernel from now on.
    pub(crate) fn waits(&self, processor: u16, ino: Ino) -> Waits<'_> {
        let standing = &self.state.standing[usize::from(processor)];
        let must_add = standing.lock().begin();
        if must_add {
            self.add_entry(processor, ino);
        }
        Waits(standing)
    }

    fn add_entry(&self, processor: u16, ino: Ino) {
        let Some(all) = self.all.upgrade() else { return };
        // What its worker causes comes from its processor, and into that queue.
        let home = all[usize::from(processor) % all.len()].clone();
        let used = Arc::new(AtomicBool::new(false));
        home.clone().go_on(Entry::new(processor, Some(used.clone()), self.state.agreement.max_data), None);
        home.spawner.clone().spawn(async move {
            while !used.load(Ordering::Relaxed) && home.state.queues.load(Ordering::Acquire) > 0 {
                home.state.env.sleep(KICK_AFTER).await;
                home.kick(ino);
            }
        });
    }

    /// Causes a request that nobody waits for, in the queue of this processor, about a file that is in use.
    fn kick(&self, ino: Ino) {
        // If it fails, there is another.
        let _ = self.retrieve(self.state.retrievals.next(), ino, 0, 0);
    }

    /// Serves an entry from now on, beginning with a request that it brings.
    fn go_on(self: Arc<Self>, entry: Entry, arrived: Option<Arrived>) {
        let spawner = self.spawner.clone();
        spawner.spawn(async move { self.serve_entry(entry, arrived).await });
    }

    async fn serve_entry(self: Arc<Self>, mut entry: Entry, mut arrived: Option<Arrived>) {
        loop {
            let request = match arrived.take() {
                Some(request) => request,
                None => {
                    let is_new = entry.number == URING_REGISTER;
                    let request = match entry.fetch(&self.device).await {
                        Ok(request) => request,
                        Err(errno) if is_new => return self.refused(errno),
                        Err(_) => return,
                    };
                    self.spawner.stay_awake(LINGER);
                    if let Some(other) = self.better_place(entry.processor) {
                        return other.go_on(entry, Some(request));
                    }
                    request
                }
            };
            let header = InHeader::read_from_prefix(&request.headers.in_out).expect("128 bytes hold the header").0;
            let weight = request.weight(&header);
            self.in_service.fetch_add(weight, Ordering::Relaxed);
            let Arrived { headers, payload } = request;
            let message = Message::split(header, &headers.op_in, &payload);
            self.fill(message, &payload, &mut entry.reply, Some(entry.processor)).await;
            entry.put_reply(header.unique, headers);
            self.in_service.fetch_sub(weight, Ordering::Relaxed);
        }
    }

    /// To be called when the kernel did not take an entry. If that is not since it goes anyway, programs would wait for it for ever.
    fn refused(&self, errno: i32) {
        let is_refusal = matches!(errno, libc::EINVAL | libc::EOPNOTSUPP | libc::EPERM | libc::ENOMEM);
        if is_refusal && !self.state.refused.swap(true, Ordering::Relaxed) {
            let error = std::io::Error::from_raw_os_error(errno);
            say::error(format_args!(
                "ashlar: the kernel takes no queue for requests over io_uring, so nothing is served: {error}"
            ));
            let _ = self.state.unmount(Users::Fail);
        }
    }

    /// The worker that had better serve an entry of this processor: its own, and where that has many requests at once,
    /// the next one, if it has much less to do.
    fn better_place(&self, processor: u16) -> Option<Arc<Queue<F>>> {
        let all = self.all.upgrade()?;
        let busy = |queue: &Queue<F>| queue.in_service.load(Ordering::Relaxed);
        let home = usize::from(processor) % all.len();
        if self.worker != home {
            return (busy(&all[home]) < SHALLOW).then(|| all[home].clone());
        }
        let next = &all[(home + 1) % all.len()];
        (busy(self) >= DEEP && busy(next) < busy(self) / 2).then(|| next.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_makes_requests_small_before_it_makes_them_few() {
        const MAX_DATA: usize = 1 << 20;
        let shares = |buffers: usize, processors| {
            let data = data_max(buffers, processors).min(MAX_DATA);
            (entries(buffers, processors, data), data >> 10)
        };
        assert_eq!(shares(64 << 20, 2), (32, 1024));
        assert_eq!(shares(30 << 20, 2), (30, 512));
        assert_eq!(shares(10 << 20, 2), (20, 256));
        assert_eq!(shares(3 << 20, 2), (24, 64));
        assert_eq!(shares(1 << 20, 2), (8, 64));
        assert_eq!(shares(0, 2), (2, 64));
        assert_eq!(shares(64 << 20, 64), (16, 64));
        assert_eq!(shares(1 << 40, 1), (32, 1024));
    }
}
