//! Mounting, serving and unmounting.

use crate::abi::{MAJOR, MINOR_MIN, NOTIFY_INC_EPOCH, NOTIFY_PRUNE, NotifyPruneOut, OutHeader, init};
use crate::blocks::Outdated;
use crate::counters::{Counters, Shards};
use crate::decode::{Message, Operation};
use crate::dentries::Dentries;
use crate::flags::Flags;
use crate::helper;
use crate::listings::Listings;
use crate::log::{Heard, Log};
use crate::negotiate::{Agreement, Limits, negotiate};
use crate::options::Options;
use crate::page_cache::PageCache;
use crate::probe::Probe;
use crate::queue::{Queue, forget_attributes};
use crate::refusals::Refusals;
use crate::reply::Reply;
use crate::report::Limiter;
use crate::retrievals::Retrievals;
use crate::ring;
use crate::standing::Standing;
use crate::sys::{self, Users};
use ashlar_env::Env;
use ashlar_env::real::Real;
use ashlar_units::Bytes;
use ashlar_vfs::{FileSystem, Ino};
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// The kernel sends INIT as soon as it is mounted.
const INIT_PATIENCE: Duration = Duration::from_secs(10);
const INIT_BUFFER_LEN: usize = 128 << 10;
/// How often the engine is asked for inodes that it would like to get back.
const PRUNE_INTERVAL: Duration = Duration::from_millis(250);
const PRUNED_AT_ONCE: usize = 1024;
/// How long the number of a file's blocks may be outdated after its data came.
const COUNT_INTERVAL: Duration = Duration::from_millis(250);

/// Why a mount failed, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountError(String);

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for MountError {}

/// A mounted file system. Dropping it unmounts.
pub struct Mount(Arc<State>);

/// What all queues share.
pub(crate) struct State {
    pub(crate) at: PathBuf,
    /// The file system's device number: it tells whether what is mounted at `at` is still ours.
    device: String,
    pub(crate) counters: Shards,
    pub(crate) reports: Limiter,
    pub(crate) options: Options,
    pub(crate) agreement: Agreement,
    pub(crate) env: Env,
    /// Queues that still serve.
    pub(crate) queues: AtomicUsize,
    pub(crate) ended: tokio::sync::Notify,
    pub(crate) probe: Probe,
    pub(crate) refusals: Refusals,
    pub(crate) outdated: Outdated,
    pub(crate) listings: Listings,
    pub(crate) log: Log,
    /// For notices to the kernel.
    pub(crate) notices: Arc<OwnedFd>,
    /// A worker looks for requests without sleeping.
    pub(crate) lingering: AtomicBool,
    /// The kernel did not take an entry for requests over io_uring.
    pub(crate) refused: AtomicBool,
    /// By processor.
    pub(crate) standing: Vec<Mutex<Standing>>,
    pub(crate) retrievals: Retrievals,
}

/// The kernel reads ahead by at most this part of the machine's memory.
const READ_AHEAD_SHARE: u64 = 512;

impl Mount {
    /// Mounts `fs` at `at`, an empty directory, and serves it on every worker of the runtime.
    pub fn new<F: FileSystem>(real: &Real, fs: Arc<F>, at: &Path, mut options: Options) -> Result<Mount, MountError> {
        let at = mount_point(at)?;
        // Over io_uring a request is served on the processor where it was made, which saves waking another one; with fewer
        // workers than processors it would be slower than the device. The kernel's switch is off at boot; whoever may not
        // turn it on is served through the device.
        let over_ring =
            options.over_io_uring && real.has_io_uring() && real.workers() >= sys::processors() && sys::enable_uring();
        if over_ring {
            let most = ring::data_max(options.buffers.0 as usize, sys::processors());
            options.max_data.0 = options.max_data.0.min(most as u64);
        }
        let device = connect(&at, &options)?;
        let undo = |error: io::Error| {
            let _ = unmount(&at, Users::Fail);
            MountError(format!("the kernel did not complete the mount at {}: {error}", at.display()))
        };
        let agreement = greet(&device, &options, over_ring).map_err(undo)?;
        let workers = real.workers();
        let mut devices = vec![device];
        for _ in 1..workers {
            devices.push(sys::clone_device(&devices[0]).map_err(undo)?);
        }
        let number = sys::mounted_device(&at).ok().flatten().map_or(String::new(), |(number, _)| number);
        set_read_ahead(&number, &options);
        let devices: Vec<_> = devices.into_iter().map(Arc::new).collect();
        let state = Arc::new(State {
            at,
            device: number,
            counters: Shards::new(workers),
            reports: Limiter::default(),
            options,
            agreement,
            env: real.env(),
            queues: AtomicUsize::new(workers),
            ended: tokio::sync::Notify::new(),
            probe: Probe::new(real.env().random()),
            refusals: Refusals::default(),
            outdated: Outdated::default(),
            listings: Listings::default(),
            log: Log::default(),
            notices: devices[0].clone(),
            lingering: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            standing: (0..sys::processors()).map(|_| Mutex::default()).collect(),
            retrievals: Retrievals::default(),
        });
        drop(state.env.spawn(prune_on(state.clone(), devices[0].clone(), fs.clone())));
        if agreement.flags & init::WRITEBACK_CACHE != 0 {
            drop(state.env.spawn(count_on(state.clone(), devices[0].clone())));
        }
        let queues: Arc<Vec<_>> = Arc::new_cyclic(|all| {
            let queue = |(worker, device)| {
                let spawner = real.spawner(worker);
                let (state, fs, in_service) = (state.clone(), fs.clone(), AtomicUsize::new(0));
                Arc::new(Queue { worker, device, state, fs, spawner, in_service, all: all.clone() })
            };
            devices.into_iter().enumerate().map(queue).collect()
        });
        for queue in queues.iter() {
            if agreement.uring() {
                queue.clone().start_ring();
            }
            real.spawn_on(queue.worker, queue.clone().run(queues.clone()));
        }
        if !state.options.direct {
            state.probe.open(&state.at);
        }
        Ok(Mount(state))
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.0.at
    }

    /// Memory that its requests may take: over io_uring so much for each processor's entries, of which it has 32 of
    /// [`Options::max_data`] if [`Options::buffers`] allow that, at least 16 down to 64 KiB, and at least two. Through the device
    /// requests have no memory of their own.
    pub fn buffers(&self) -> Bytes {
        let ring = self.0.agreement.uring().then(|| self.0.entries() * sys::processors() * self.0.agreement.max_data);
        Bytes(ring.unwrap_or(0) as u64)
    }

    /// What was served so far.
    pub fn counters(&self) -> Counters {
        self.0.counters.sum()
    }

    /// What the kernel has of its files.
    pub fn page_cache(&self) -> PageCache {
        PageCache(self.0.clone())
    }

    /// Its device number, as `stat(2)` tells it of every file there: major and minor.
    pub fn device(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.0.device.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// What the kernel knows of its names.
    pub fn dentries(&self) -> Dentries {
        Dentries(self.0.clone())
    }

    /// Listens to what is asked from now on. `None` if somebody does already.
    pub fn listen(&self) -> Option<Listener> {
        let begun = self.0.log.begin();
        begun.then(|| {
            let header = OutHeader { len: size_of::<OutHeader>() as u32, error: NOTIFY_INC_EPOCH, unique: 0 };
            let knows_all = sys::write(&self.0.notices, header.as_bytes(), &[]).is_ok();
            Listener { state: self.0.clone(), knows_all }
        })
    }

    /// Returns when nothing is served any more: after an unmount, by us or by somebody else, or after a panic.
    pub async fn ended(&self) {
        loop {
            let mut ended = std::pin::pin!(self.0.ended.notified());
            ended.as_mut().enable();
            if !self.is_served() {
                return;
            }
            ended.await;
        }
    }

    /// Whether it is still served.
    pub fn is_served(&self) -> bool {
        self.0.queues.load(Ordering::Acquire) > 0
    }

    /// Whether anybody can still ask something. Soon after nobody can, it is not [served](Self::is_served) any more.
    pub fn is_connected(&self) -> bool {
        sys::is_connected(&self.0.notices)
    }

    /// Unmounts. With `lazy` a mount that is in use is detached now and ends when its last user leaves.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        self.0.unmount(if lazy { Users::GoOn } else { Users::None })
    }

    /// Unmounts by force: whoever uses the mount or waits for it gets errors from now on, and writes that are only in the
    /// page cache are lost. A mount that was detached before is out of reach; it ends when the process does.
    pub fn abort(&self) -> Result<(), MountError> {
        self.0.unmount(Users::Fail)
    }
}

/// Somebody who listens to what is asked of a mount. Dropping it ends that.
pub struct Listener {
    state: Arc<State>,
    /// The kernel looks up again each name that is used; one before 6.16 does not.
    pub knows_all: bool,
}

impl Listener {
    /// What was asked since the last time.
    pub fn take(&self) -> Heard {
        let over = self.state.queues.load(Ordering::Acquire) == 0;
        Heard { over, ..self.state.log.take() }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.state.log.end();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.unmount(true);
    }
}

impl State {
    /// Entries of each processor.
    pub(crate) fn entries(&self) -> usize {
        ring::entries(self.options.buffers.0 as usize, sys::processors(), self.agreement.max_data)
    }

    pub(crate) fn unmount(&self, users: Users) -> Result<(), MountError> {
        // It may be gone, detached by somebody else, and the place used again.
        let here = sys::mounted_device(&self.at).ok().flatten().is_some_and(|(number, _)| number == self.device);
        if !here {
            return Ok(());
        }
        unmount(&self.at, users)
    }
}

/// Asks the kernel to forget what the engine has too much of, as long as it is served. Kernels before 6.18 refuse.
async fn prune_on<F: FileSystem>(state: Arc<State>, device: Arc<OwnedFd>, fs: Arc<F>) {
    while state.queues.load(Ordering::Acquire) > 0 {
        state.env.sleep(PRUNE_INTERVAL).await;
        for inodes in fs.surplus().chunks(PRUNED_AT_ONCE) {
            let (device, inodes) = (device.clone(), inodes.to_vec());
            // The kernel forgets them before it returns, and what is dirty is written back first.
            let pruned = state.env.unblock(move || prune(&device, &inodes)).await;
            if pruned.is_err() {
                return;
            }
        }
    }
}

/// Tells the kernel of whose blocks it has an outdated number, as long as it is served.
async fn count_on(state: Arc<State>, device: Arc<OwnedFd>) {
    while state.queues.load(Ordering::Acquire) > 0 {
        state.env.sleep(COUNT_INTERVAL).await;
        let outdated = state.outdated.take_all();
        if !outdated.is_empty() {
            let device = device.clone();
            state.env.unblock(move || outdated.into_iter().for_each(|ino| forget_attributes(&device, ino))).await;
        }
    }
}

fn prune(device: &OwnedFd, inodes: &[Ino]) -> io::Result<()> {
    let notice = NotifyPruneOut { count: inodes.len() as u32, padding: 0, spare: 0 };
    let len = (size_of::<OutHeader>() + size_of::<NotifyPruneOut>() + size_of_val(inodes)) as u32;
    let header = OutHeader { len, error: NOTIFY_PRUNE, unique: 0 };
    sys::write(device, &[header.as_bytes(), notice.as_bytes(), inodes.as_bytes()].concat(), &[]).map(drop)
}

/// Mounts at this place. Gives the descriptor that serves it.
fn connect(at: &Path, options: &Options) -> Result<OwnedFd, MountError> {
    let device = sys::open_device().map_err(|error| {
        const CONTAINER: &str = "in a container pass the device with `--device /dev/fuse --cap-add SYS_ADMIN`";
        let help = match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => "run it as root, or let this user open it (`chmod 666 /dev/fuse`)",
            _ => "load the module with `modprobe fuse`",
        };
        MountError(format!("cannot open /dev/fuse: {error}; {help}; {CONTAINER}"))
    })?;
    let shared = format!("default_permissions,max_read={}", options.max_data.0);
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other,{shared}", device.as_raw_fd());
    let mut flags = options.flags;
    if options.read_only {
        flags.take("ro");
    }
    let Err(error) = sys::mount(&options.source, at, flags, &data) else { return Ok(device) };
    let help = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            drop(device);
            let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
            let flags = Some(flags.to_string()).filter(|flags| !flags.is_empty()).unwrap_or_else(|| "rw".into());
            let data = format!("{flags},subtype=ashlar,fsname={source},{shared}");
            // That others may enter is for the administrator to allow.
            let mounted = helper::mount(at, &format!("allow_other,{data}")).or_else(|_| helper::mount(at, &data));
            match mounted {
                Ok(device) => return Ok(device),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    "run it as root (with CAP_SYS_ADMIN), or install fusermount3, which mounts for users (`apt install fuse3`)".into()
                }
                Err(error) => format!("neither can fusermount3: {error}"),
            }
        }
        Some(libc::EBUSY) => {
            "something is mounted or at work there: `ashlar down` or `umount` it, or choose another place".into()
        }
        _ => "see `dmesg` for what the kernel says".into(),
    };
    Err(MountError(format!("cannot mount at {}: {error}; {help}", at.display())))
}

/// By `fusermount3` where this process may not.
fn unmount_by_any(at: &Path, users: Users) -> io::Result<()> {
    match sys::unmount(at, users) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let number = sys::mounted_device(at).ok().flatten();
            helper::unmount(at, users, number.as_ref().and_then(|(number, _)| Some(number.split_once(':')?.1)))
        }
        done => done,
    }
}

/// Unmounts whatever file system is mounted at `at`. With [`Users::Fail`] this clears what a dead server left, or one that hangs;
/// but over io_uring the kernel may not free a program that waits for it until it is killed.
pub fn unmount(at: &Path, users: Users) -> Result<(), MountError> {
    unmount_by_any(at, users).map_err(|error| {
        let help = match error.raw_os_error() {
            Some(libc::EBUSY) => "it is in use: close what works there (`fuser -vm` names it)",
            _ => "`umount -l` may help",
        };
        MountError(format!("cannot unmount {}: {error}; {help}", at.display()))
    })
}

/// Changes the flags of what is mounted at `at`. Whether access times are written stays as it was.
pub fn remount(at: &Path, flags: Flags) -> Result<(), MountError> {
    sys::remount(at, flags).map_err(|error| MountError(format!("cannot remount {}: {error}", at.display())))
}

/// Whether a file system of ours is mounted at this absolute path.
pub fn is_mounted(at: &Path) -> bool {
    mounted(at).is_some_and(|kind| kind == "fuse.ashlar")
}

/// The type of the file system that is mounted at this absolute path, which is not looked at: that would ask its server, which may be
/// gone, or this one.
pub fn mounted(at: &Path) -> Option<String> {
    sys::mounted_device(at).ok().flatten().map(|(_, kind)| kind)
}

/// Checks the place and gives its absolute path.
fn mount_point(at: &Path) -> Result<PathBuf, MountError> {
    let refuse = |why: String| Err(MountError(format!("cannot mount at {}: {why}", at.display())));
    let taken = |at: &Path| {
        let kind = mounted(at)?;
        let help = "unmount it (or clear with `ashlar down` what a server left that died), or choose another place";
        Some(refuse(format!("a file system ({kind}) is mounted there already; {help}")))
    };
    if let Some(refused) = taken(at) {
        return refused;
    }
    match std::fs::metadata(at) {
        Ok(data) if !data.is_dir() => return refuse("it is not a directory; name an empty directory".into()),
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            return refuse("a server that died left its mount there; clear it with `ashlar down`".into());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return refuse("there is no such directory; make it with `mkdir -p`".into());
        }
        Err(error) => return refuse(error.to_string()),
    }
    let absolute = std::fs::canonicalize(at).map_err(|error| MountError(format!("{}: {error}", at.display())))?;
    if let Some(refused) = taken(&absolute) {
        return refused;
    }
    match std::fs::read_dir(&absolute).map(|mut entries| entries.next().is_some()) {
        Ok(true) => refuse("it is not empty, and a mount would hide what is in it; name an empty directory".into()),
        Ok(false) => Ok(absolute),
        Err(error) => refuse(error.to_string()),
    }
}

/// Answers the kernel's first request.
fn greet(device: &OwnedFd, options: &Options, over_ring: bool) -> io::Result<Agreement> {
    let began = Instant::now();
    let mut buffer = vec![0; INIT_BUFFER_LEN];
    let len = loop {
        match sys::read(device, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < INIT_PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => break other?,
        }
    };
    let request = Message::whole(&buffer[..len]).and_then(Message::decode).map_err(|bad| io::Error::other(bad.what))?;
    let Operation::Init(offer) = request.operation else {
        return Err(io::Error::other("the kernel's first request is not INIT"));
    };
    if offer.major != MAJOR || offer.minor < MINOR_MIN {
        let message = format!("it speaks FUSE {}.{}; Linux 5.17 or newer is needed", offer.major, offer.minor);
        return Err(io::Error::other(message));
    }
    let limit = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    let pages_max = limit.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(256);
    let (out, agreement) =
        negotiate(&offer, options, Limits { page: rustix::param::page_size(), pages_max, over_ring });
    let mut reply = Reply::default();
    reply.reset();
    reply.put(&out);
    if let Some((head, pieces)) = reply.finish(request.header.unique) {
        sys::write(device, head, pieces)?;
    }
    Ok(agreement)
}

/// The kernel caps what INIT asks for at its own default; root may set more.
fn set_read_ahead(device: &str, options: &Options) {
    let machine = rustix::system::sysinfo();
    let memory = machine.totalram.saturating_mul(machine.mem_unit.into());
    let kib = options.read_ahead.0.min(memory / READ_AHEAD_SHARE) >> 10;
    // Without permission reading ahead stays at 128 KiB, which only costs speed.
    let _ = std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), kib.to_string());
}
