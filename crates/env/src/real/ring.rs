//! io_uring, owned by the worker thread that parks in it.
//!
//! Every operation owns what the kernel may touch (buffers, file handles) until its completion is reaped, also when its
//! future has been dropped.

use super::WORKER;
use super::calls::{self, CallOps};
use super::place::Place;
use crate::{BoxFuture, FileOps, Readiness};
use bytes::Bytes;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Submission queue entries per ring.
const ENTRIES: u32 = 256;
/// Largest length that one kernel read or write takes.
const LEN_MAX: usize = 1 << 30;
const BELL: u64 = u64::MAX;
const TIMEOUT: u64 = u64::MAX - 1;

/// Time of day at the kernel's tick: the clock by which the kernel stamps files, so that the stamps of both agree in order.
pub(super) fn coarse_wall() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a writable structure of this type.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec as u32)
}

/// Asks for so much room in a socket for what its other side has not read. Only root may have more than the system's limit;
/// others get that.
pub fn set_send_buffer(socket: &OwnedFd, bytes: i32) -> io::Result<()> {
    let set = |option| {
        let len = size_of::<i32>() as libc::socklen_t;
        let value = (&raw const bytes).cast();
        // SAFETY: the pointer is to four readable bytes.
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, len) == 0 }
    };
    if set(libc::SO_SNDBUFFORCE) || set(libc::SO_SNDBUF) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Wakes a parked worker from another thread.
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        // SAFETY: eventfd has no memory arguments.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        Ok(Bell(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }
    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        self.0.clone()
    }
    pub(super) fn ring(&self) {
        let one = 1u64;
        // SAFETY: the pointer is to eight readable bytes.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

#[derive(Default)]
pub(super) struct OpState {
    result: Option<i32>,
    waker: Option<Waker>,
}

impl OpState {
    /// Gives the waker of who waits.
    pub(super) fn complete(&mut self, result: i32) -> Option<Waker> {
        self.result = Some(result);
        self.waker.take()
    }
}

struct InFlight {
    state: Arc<Mutex<OpState>>,
    _owned: Box<dyn Any + Send>,
}

pub(super) struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<usize>,
    waiting: VecDeque<squeue::Entry128>,
    bell: Arc<OwnedFd>,
    bell_value: Box<u64>,
    bell_armed: bool,
}

impl Ring {
    pub(super) fn new(bell: &Bell) -> io::Result<Ring> {
        let ring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().setup_single_issuer().build(ENTRIES)?;
        Ok(Ring {
            ring,
            in_flight: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            bell: bell.0.clone(),
            bell_value: Box::new(0),
            bell_armed: false,
        })
    }

    fn push(&mut self, entry: squeue::Entry128) {
        self.waiting.push_back(entry);
        self.fill();
    }

    fn fill(&mut self) {
        while let Some(entry) = self.waiting.pop_front() {
            // SAFETY: what the entry points to is owned by `in_flight` (or by `self`, for the bell) until its completion.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.waiting.push_front(entry);
                if self.ring.submit().is_err() {
                    return;
                }
            }
        }
    }

    fn start(&mut self, entry: squeue::Entry128, owned: Box<dyn Any + Send>) -> Arc<Mutex<OpState>> {
        let state = Arc::new(Mutex::new(OpState::default()));
        let flight = Some(InFlight { state: state.clone(), _owned: owned });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.in_flight[slot] = flight;
                slot
            }
            None => {
                self.in_flight.push(flight);
                self.in_flight.len() - 1
            }
        };
        self.push(entry.user_data(slot as u64));
        state
    }

    /// Submits what is queued and asks for completions, with a system call if there is anything to do.
    pub(super) fn enter(&mut self) {
        self.fill();
        let submission = self.ring.submission();
        let needed = !submission.is_empty() || submission.taskrun() || submission.cq_overflow();
        drop(submission);
        if needed {
            let _ = self.ring.submit_and_wait(0);
        }
    }

    /// Whether there is something to collect, or would be after [`enter`](Ring::enter). No system call.
    pub(super) fn has_news(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    /// Collects what has completed; gives the wakers of those who waited. No system call.
    pub(super) fn collect(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            match entry.user_data() {
                BELL => self.bell_armed = false,
                TIMEOUT => {}
                slot => {
                    let Some(flight) = self.in_flight.get_mut(slot as usize).and_then(Option::take) else { continue };
                    self.free.push(slot as usize);
                    wakers.extend(flight.state.lock().complete(entry.result()));
                }
            }
        }
        wakers
    }

    /// Submits what is queued and sleeps until something completes, the bell rings or the time is over.
    pub(super) fn park(&mut self, timeout: Option<Duration>) {
        if !self.bell_armed {
            self.bell_armed = true;
            let target: *mut u64 = &raw mut *self.bell_value;
            let read = opcode::Read::new(types::Fd(self.bell.as_raw_fd()), target.cast(), 8).build();
            self.push(squeue::Entry128::from(read.user_data(BELL)));
        }
        if !self.ring.completion().is_empty() {
            return self.enter();
        }
        let _ = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(timeout) => {
                let time = types::Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write into buffers of operations in flight: wait for them before the buffers go.
        let cancel = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
        self.push(squeue::Entry128::from(cancel.user_data(TIMEOUT)));
        let second = types::Timespec::new().sec(1);
        for _ in 0..5 {
            if self.in_flight.len() == self.free.len() {
                return;
            }
            let _ = self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&second));
            self.collect();
        }
        // An operation that cannot be cancelled keeps its buffers for ever: leaking them is sound.
        std::mem::forget(std::mem::take(&mut self.in_flight));
    }
}

/// An operation that was handed to the current worker's ring.
pub struct Op(pub(super) Arc<Mutex<OpState>>);

impl Future for Op {
    type Output = i32;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<i32> {
        let mut state = self.0.lock();
        if let Some(result) = state.result {
            return Poll::Ready(result);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Starts an operation on the ring of the current worker. `None` outside a worker thread, and where workers have no rings.
///
/// # Safety
/// Everything that the entry points to must be owned by `owned` (at a stable address) or live for ever.
pub unsafe fn submit(entry: squeue::Entry128, owned: Box<dyn Any + Send>) -> Option<Op> {
    WORKER.with_borrow_mut(|local| match &mut local.as_mut()?.place {
        Place::Ring(ring) => Some(Op(ring.start(entry, owned))),
        Place::Polls(_) => None,
    })
}

/// A page-aligned buffer that the kernel may fill.
pub struct AlignedBuf {
    data: *mut u8,
    len: usize,
    /// Bytes allocated.
    room: usize,
}

// SAFETY: the buffer is plain memory with one owner.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuf {}

/// Buffers of this size are kept for the next one who wants such: the kernel clears fresh memory, which takes longer than
/// most of what is done with it, and an allocator gives what one thread frees to another one late.
const KEPT: std::ops::RangeInclusive<usize> = 4 << 10..=2 << 20;
/// Bytes that are kept at most.
const KEPT_MAX: usize = 64 << 20;

/// Sizes are rounded up, by a sixteenth at most from 64 KiB on, so that one fits where another was.
const fn room_of(len: usize) -> usize {
    let step = if len <= 64 << 10 { 4 << 10 } else { 64 << 10 };
    len.next_multiple_of(step)
}

/// Buffers that nobody uses at the moment, by size.
pub(super) struct Spare {
    sizes: BTreeMap<usize, Alike>,
    bytes: usize,
    /// Goes up with each use.
    uses: u64,
}

/// Buffers of one size.
#[derive(Default)]
struct Alike {
    buffers: Vec<AlignedBuf>,
    /// The last use of this size.
    used: u64,
}

static SPARE: Mutex<Spare> = Mutex::new(Spare::new());

impl Spare {
    pub(super) const fn new() -> Spare {
        Spare { sizes: BTreeMap::new(), bytes: 0, uses: 0 }
    }

    /// One with this room, or up to half more.
    pub(super) fn take(&mut self, room: usize) -> Option<AlignedBuf> {
        let mut fitting = self.sizes.range_mut(room..=room + room / 2);
        let (_, alike) = fitting.find(|(_, alike)| !alike.buffers.is_empty())?;
        self.uses += 1;
        alike.used = self.uses;
        let buffer = alike.buffers.pop()?;
        self.bytes -= buffer.room;
        Some(buffer)
    }

    /// Keeps one. Gives back what there is no room for, beginning with the size that nobody has wanted for longest.
    pub(super) fn keep(&mut self, buffer: AlignedBuf) -> Vec<AlignedBuf> {
        self.uses += 1;
        self.bytes += buffer.room;
        let alike = self.sizes.entry(buffer.room).or_default();
        alike.used = self.uses;
        alike.buffers.push(buffer);
        let mut unwanted = Vec::new();
        while self.bytes > KEPT_MAX {
            let filled = self.sizes.values_mut().filter(|alike| !alike.buffers.is_empty());
            let oldest = filled.min_by_key(|alike| alike.used);
            let Some(buffer) = oldest.and_then(|alike| alike.buffers.pop()) else { break };
            self.bytes -= buffer.room;
            unwanted.push(buffer);
        }
        unwanted
    }
}

impl AlignedBuf {
    /// Alignment of every buffer, in bytes.
    pub const ALIGN: usize = 4096;

    /// A copy.
    pub fn copy_of(bytes: &[u8]) -> AlignedBuf {
        let mut buffer = AlignedBuf::any(bytes.len());
        buffer.as_mut().copy_from_slice(bytes);
        buffer
    }
    /// A zeroed buffer.
    pub fn zeroed(len: usize) -> AlignedBuf {
        AlignedBuf::allocated(len, len.max(1))
    }
    /// A buffer with anything in it, perhaps what was there before.
    pub fn any(len: usize) -> AlignedBuf {
        if !KEPT.contains(&len) {
            return AlignedBuf::zeroed(len);
        }
        let room = room_of(len);
        let spare = SPARE.lock().take(room);
        match spare {
            Some(mut buffer) => {
                buffer.len = len;
                buffer
            }
            None => AlignedBuf::allocated(len, room),
        }
    }
    fn allocated(len: usize, room: usize) -> AlignedBuf {
        let layout = Self::layout(room);
        // SAFETY: the layout's size is not zero.
        let data = unsafe { std::alloc::alloc_zeroed(layout) };
        if data.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        AlignedBuf { data, len, room }
    }
    fn layout(room: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(room, Self::ALIGN).expect("buffers are far below isize::MAX")
    }
    /// Start of the buffer.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.data
    }
    /// Gives the memory back to the system until it is written again, where pages are as long as [`ALIGN`](Self::ALIGN). What it
    /// holds is lost.
    pub fn give_back(&mut self) {
        let whole = self.len & !(Self::ALIGN - 1);
        // SAFETY: the pages are private memory that this value owns, and all of each.
        unsafe { libc::madvise(self.data.cast(), whole, libc::MADV_DONTNEED) };
    }
    /// Turns it into shared bytes, of which only the first `len` are kept.
    pub fn freeze(self, len: usize) -> Bytes {
        let len = len.min(self.len);
        Bytes::from_owner(self).slice(..len)
    }
}
impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: data points to len initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}
impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the reference is unique.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}
impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let own = AlignedBuf { data: self.data, len: self.len, room: self.room };
        let kept = KEPT.contains(&self.room) && room_of(self.room) == self.room;
        let unwanted = if kept { SPARE.lock().keep(own) } else { vec![own] };
        for buffer in unwanted {
            // SAFETY: allocated with this very layout.
            unsafe { std::alloc::dealloc(buffer.data, Self::layout(buffer.room)) }
            std::mem::forget(buffer);
        }
    }
}

/// File operations through the current worker's ring.
pub(super) struct RingOps;

fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

pub(super) fn outside() -> io::Error {
    io::Error::other("file operations run on executor threads only: spawn the work")
}

/// Whether Linux gave an operation up because it could make no thread for it, as where processes are limited. Nothing was done.
fn had_no_thread(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
}

async fn read(file: &Arc<OwnedFd>, offset: u64, len: usize) -> io::Result<Bytes> {
    let mut done = 0;
    let buffer = Arc::new(Mutex::new(AlignedBuf::any(len)));
    while done < len {
        let op = {
            let start = buffer.lock().as_mut_ptr();
            let part = (len - done).min(LEN_MAX) as u32;
            // SAFETY: done < len, so the pointer stays inside the buffer.
            let target = unsafe { start.add(done) };
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), target, part).offset(offset + done as u64);
            let owned = Box::new((file.clone(), buffer.clone()));
            // SAFETY: buffer and file are owned by the operation; nobody touches the buffer until it ends.
            unsafe { submit(read.build().into(), owned) }.ok_or_else(outside)?
        };
        match outcome(op.await)? {
            0 => break,
            count => done += count,
        }
    }
    // The operation's share was dropped when its completion was reaped.
    let buffer = Arc::into_inner(buffer).expect("no operation is in flight").into_inner();
    Ok(buffer.freeze(done))
}

async fn write(file: &Arc<OwnedFd>, offset: u64, pieces: &Arc<Vec<Bytes>>) -> io::Result<()> {
    struct Vectors(Vec<libc::iovec>);
    // SAFETY: the vectors are only read by the kernel, and point into buffers owned beside them.
    unsafe impl Send for Vectors {}
    let total: usize = pieces.iter().map(Bytes::len).sum();
    let mut done = 0;
    while done < total {
        let op = {
            let mut skip = done;
            let mut vectors = Vec::new();
            for piece in pieces.iter() {
                let from = skip.min(piece.len());
                skip -= from;
                if from < piece.len() && vectors.len() < 1024 {
                    let rest = &piece[from..];
                    vectors.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() });
                }
            }
            let vectors = Box::new(Vectors(vectors));
            let (start, count) = (vectors.0.as_ptr(), vectors.0.len() as u32);
            let write =
                opcode::Writev::new(types::Fd(file.as_raw_fd()), start, count).offset(offset + done as u64).build();
            // SAFETY: vectors, pieces and file are owned by the operation at stable addresses.
            unsafe { submit(write.into(), Box::new((file.clone(), pieces.clone(), vectors))) }.ok_or_else(outside)?
        };
        match outcome(op.await)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// The calls themselves.
static CALLS: CallOps<RingOps> = CallOps(RingOps);

/// What Linux has no thread for is done by a call, while the worker's other tasks wait.
impl FileOps for RingOps {
    fn read_at(&self, file: &Arc<OwnedFd>, offset: u64, len: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        let file = file.clone();
        Box::pin(async move {
            match read(&file, offset, len).await {
                Err(error) if had_no_thread(&error) => CALLS.read_at(&file, offset, len).await,
                done => done,
            }
        })
    }

    fn write_at(&self, file: &Arc<OwnedFd>, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let (file, pieces) = (file.clone(), Arc::new(pieces));
        Box::pin(async move {
            match write(&file, offset, &pieces).await {
                Err(error) if had_no_thread(&error) => CALLS.write_at(&file, offset, pieces.to_vec()).await,
                done => done,
            }
        })
    }

    fn sync(&self, file: &Arc<OwnedFd>) -> BoxFuture<'static, io::Result<()>> {
        let file = file.clone();
        Box::pin(async move {
            let sync = opcode::Fsync::new(types::Fd(file.as_raw_fd())).flags(types::FsyncFlags::DATASYNC).build();
            // SAFETY: the operation has no memory arguments.
            let op = unsafe { submit(sync.into(), Box::new(file.clone())) }.ok_or_else(outside)?;
            match outcome(op.await) {
                Err(error) if had_no_thread(&error) => CALLS.sync(&file).await,
                done => done.map(drop),
            }
        })
    }

    fn fallocate(&self, file: &Arc<OwnedFd>, mode: i32, offset: u64, len: u64) -> BoxFuture<'static, io::Result<()>> {
        let file = file.clone();
        Box::pin(async move {
            let call = opcode::Fallocate::new(types::Fd(file.as_raw_fd()), len).offset(offset).mode(mode).build();
            // SAFETY: the operation has no memory arguments.
            let op = unsafe { submit(call.into(), Box::new(file.clone())) }.ok_or_else(outside)?;
            match outcome(op.await) {
                Err(error) if had_no_thread(&error) => calls::fallocate(&file, mode, offset, len),
                done => done.map(drop),
            }
        })
    }

    fn ready(&self, file: &Arc<OwnedFd>, what: Readiness) -> BoxFuture<'static, io::Result<()>> {
        let file = file.clone();
        Box::pin(async move {
            let poll = opcode::PollAdd::new(types::Fd(file.as_raw_fd()), calls::events(what).bits().into()).build();
            // SAFETY: the operation has no memory arguments.
            let op = unsafe { submit(poll.into(), Box::new(file)) }.ok_or_else(outside)?;
            outcome(op.await).map(drop)
        })
    }

    fn at_once(&self) -> &dyn FileOps {
        &CALLS
    }
}
