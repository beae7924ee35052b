//! An open pool with its mounts, and what can be asked of it.

mod devices;

pub use devices::go_on;

use crate::check;
use crate::config;
use crate::engine::{self, Opened};
use crate::output::Failure;
use crate::remove::Clearing;
use crate::request::{Answer, Done, Floor, How, Index, Operation, Place, Request, Status, TrimReport, Volume, Zones};
use ashlar_array::Array;
use ashlar_env::real::Real;
use ashlar_env::{Env, Task, say};
use ashlar_fuse::{Listener, Mount, Options};
use ashlar_inodes::Room;
use ashlar_objects_pool::is_bucket;
use ashlar_pool::{Config, Creation, Pool, VolumeKind};
use ashlar_units::Bytes;
use ashlar_vfs::Engine;
use ashlar_vfs::clear::Taken;
use parking_lot::Mutex;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// An open pool.
pub struct Session {
    pub real: Real,
    directory: PathBuf,
    memory: Bytes,
    /// For the inodes of all that is mounted.
    inodes: Room,
    pool: Pool,
    mounted: Mutex<Vec<Mounted>>,
    /// Held by whoever changes what there is and what is mounted: file systems, snapshots, devices. One does at a time.
    changing: Mutex<()>,
    /// Held by whoever checks, before `changing` if that is held too.
    checking: Mutex<()>,
    /// Bytes that were read and written through mounts that are no more.
    ended: Mutex<(u64, u64)>,
    /// Arrays below the pool, by the names of their layers.
    arrays: Arrays,
    /// Rebuilds that go on from an earlier time.
    rebuilds: Mutex<Vec<Task<()>>>,
}

/// A mounted file system or snapshot.
struct Mounted {
    name: String,
    mount: Mount,
    files: Opened,
    clearing: Arc<Clearing>,
}

/// With less memory pages are small: of a huge one, what is not used takes memory too. With more they are not, since the device
/// reads into few huge pages faster than into many small ones.
const HUGE_PAGES_FROM: Bytes = Bytes::mib(512);

/// What the program takes whatever it serves: code, stacks, rings, buffers, and what a check needs.
const PROGRAM: Bytes = Bytes::mib(128);
/// The same with huge pages, which are seldom full.
const PROGRAM_HUGE: Bytes = Bytes::mib(192);

/// With less there is not room enough for what is under way.
const MEMORY_MIN: Bytes = Bytes::mib(64);

/// Refuses memory for a server that is too little, or more than the machine has.
pub fn check_memory(memory: Bytes) -> Result<(), Failure> {
    let machine = rustix::system::sysinfo();
    let machine = Bytes((machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit)));
    refuse_memory(memory, machine).map_or(Ok(()), |why| Err(Failure::new(why).with_code(2)))
}

fn refuse_memory(memory: Bytes, machine: Bytes) -> Option<String> {
    if memory < MEMORY_MIN {
        return Some(format!("--memory {memory} is too little: a server needs at least {MEMORY_MIN}"));
    }
    (memory > machine).then(|| format!("--memory {memory} is more than this machine has, {machine}; give it less"))
}

/// Sixteenths of the memory that is left, or of a quarter of all where little is: for the pool, for inodes, for requests.
fn share(memory: Bytes, sixteenths: u64) -> Bytes {
    let program = if memory < HUGE_PAGES_FROM { PROGRAM } else { PROGRAM_HUGE };
    Bytes(memory.0.saturating_sub(program.0).max(memory.0 / 4) / 16 * sixteenths)
}

const POOL: u64 = 9;
const INODES: u64 = 5;
const REQUESTS: u64 = 2;
const _: () = assert!(POOL + INODES + REQUESTS == 16, "nothing is given twice");

/// How often is looked whether what was unmounted is not served any more: its threads hear of it one after the other.
pub const TICK: Duration = Duration::from_millis(2);

/// How long is waited for what only the page cache has.
const WRITE_BACK_PATIENCE: Duration = Duration::from_secs(10);

/// Arrays below a pool, by the names of their layers.
pub type Arrays = Vec<(String, Arc<Array>)>;

/// Opens the pool in this directory, with so much memory.
pub async fn open_pool(directory: &Path, env: &Env, memory: Bytes, cut_log: bool) -> Result<(Pool, Arrays), Failure> {
    let description = config::read(directory)?;
    let built = description.stack().build(directory, env).await?;
    if description.stack().forgets() {
        say::error(format_args!("ashlar: {}", config::made_anew(directory)));
        Pool::create(env, &built.devices, Creation::default()).await?;
    }
    let compression = config::compression(&description.compression)?;
    let medium = description.medium.map(Into::into);
    let settings = Config { memory, compression, cut_log, medium, ..Config::default() };
    Ok((Pool::open(env, built.devices, settings).await?, built.arrays))
}

/// What became of the users of mounts that were closed.
#[derive(Default)]
pub struct Closed {
    in_use: Vec<InUse>,
}

/// A mount that was in use.
struct InUse {
    at: PathBuf,
    /// What programs had written came before it was closed.
    written: bool,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let everything = if self.in_use.iter().all(|mount| mount.written) { "everything" } else { "what came" };
        write!(f, "{everything} is written; the pool is down")?;
        for InUse { at, written } in &self.in_use {
            let at = at.display();
            write!(
                f,
                "\n{at} was in use: what programs write from now on to files that they have open there is lost, though write \
                 and close may succeed; fsync gives an error"
            )?;
            if !written {
                f.write_str("; what they wrote last may be lost, for the kernel did not write all of it back")?;
            }
        }
        Ok(())
    }
}

impl Session {
    /// Opens the pool in this directory.
    ///
    /// `cut_log`: a damaged log is cut instead of refused.
    pub fn open(directory: &Path, memory: Bytes, threads: usize, cut_log: bool) -> Result<Session, Failure> {
        config::read(directory)?;
        if memory < HUGE_PAGES_FROM {
            ashlar_env::real::small_pages();
        }
        let real = Real::start(threads).map_err(|error| Failure::new(error.to_string()))?;
        let env = real.env();
        let (pool, arrays) = real.block_on({
            let (directory, env) = (directory.to_path_buf(), env.clone());
            async move { open_pool(&directory, &env, share(memory, POOL), cut_log).await }
        })?;
        let rebuilds = Mutex::new(arrays.iter().filter_map(|(name, array)| go_on(&env, name, array)).collect());
        let (directory, mounted, ended) = (directory.into(), Mutex::default(), Mutex::default());
        let (changing, checking) = (Mutex::default(), Mutex::default());
        let inodes = Room::new(share(memory, INODES));
        Ok(Session { real, directory, memory, inodes, pool, mounted, changing, checking, ended, arrays, rebuilds })
    }

    /// Whether devices are reached through io_uring.
    pub fn has_io_uring(&self) -> bool {
        self.real.has_io_uring()
    }

    /// Runs pool work on a worker.
    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Pool) -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.real.block_on(work(self.pool.clone()))
    }

    /// Mounts a file system, which must be of this engine, or is made if it is missing.
    pub fn mount(&self, name: &str, at: &Path, engine: Option<Engine>, how: How) -> Result<(), Failure> {
        let _turn = self.changing.lock();
        self.mount_in_turn(name, at, engine, how)
    }

    /// The same for who has their turn.
    fn mount_in_turn(&self, name: &str, at: &Path, engine: Option<Engine>, how: How) -> Result<(), Failure> {
        self.refuse_mounted(name)?;
        let How { write_through, flags, source } = how;
        let is_snapshot = name.contains('@');
        if ashlar_fuse::mounted(at).is_none() && matches!(at.try_exists(), Ok(false)) {
            std::fs::create_dir_all(at).map_err(|error| {
                Failure::new(format!(
                    "cannot make the mount point {}: {error}; name a directory that is there",
                    at.display()
                ))
            })?;
        }
        let (wanted, inodes) = (name.to_string(), self.inodes.clone());
        let files = self.run(|pool| async move {
            let unfinished = engine::unfinished(&pool, &wanted).await?.is_some();
            let volume = match pool.volume(&wanted).filter(|_| !unfinished) {
                Some(volume) => volume,
                None if is_snapshot => {
                    return Err(Failure::new(format!(
                        "there is no snapshot {wanted}; `ashlar snapshot list` names all"
                    )));
                }
                None => engine::make(&pool, &wanted, engine.unwrap_or_default(), None).await?,
            };
            engine::expect_readable(&volume, &wanted).await?;
            engine::expect(&volume, &wanted, engine).await?;
            Opened::open(volume, is_snapshot, flags.no_access_times(), inodes).await
        });
        let files = files.map_err(|failure| {
            failure
                .if_damaged("; `ashlar check` says what is lost, and `ashlar check --repair` mends what can be mended")
        })?;
        let damage = files.damage();
        if let Some(error) = damage {
            say::error(format_args!(
                "ashlar: {name} takes no changes, for it is damaged: {error}; `ashlar check` says what is lost"
            ));
        }
        let read_only = is_snapshot || damage.is_some();
        let writeback = !write_through;
        let source = source.unwrap_or_else(|| format!("ashlar:{name}"));
        let options =
            Options { source, read_only, flags, writeback, buffers: self.free_buffers(), ..Options::default() };
        // A server that dies as soon as it is mounted leaves it; but what is mounted already is somebody else's.
        let is_free = ashlar_fuse::mounted(at).is_none();
        if is_free {
            config::note_mount(&self.directory, at);
        }
        let mount = match files.mount(&self.real, at, options) {
            Ok(mount) => mount,
            Err(failure) => {
                if is_free {
                    config::forget_mount(&self.directory, at);
                }
                self.real.block_on(async move { files.close().await })?;
                return Err(failure);
            }
        };
        let clearing = Clearing::new(self.real.env(), files.clone(), &mount);
        if !read_only {
            clearing.go_on();
        }
        self.mounted.lock().push(Mounted { name: name.into(), mount, files, clearing });
        Ok(())
    }

    /// Memory for the requests of one mount more. It leaves a quarter of what there is to those that come later.
    fn free_buffers(&self) -> Bytes {
        let all = share(self.memory, REQUESTS).min(Options::default().buffers);
        let taken: u64 = self.mounted.lock().iter().map(|mounted| mounted.mount.buffers().0).sum();
        Bytes(all.0.saturating_sub(taken) / 4 * 3)
    }

    /// Whether the kernel still uses one of the mounts.
    pub fn is_served(&self) -> bool {
        self.mounted.lock().iter().any(|mounted| mounted.mount.is_served())
    }

    /// Whether anybody can still ask something of one of the mounts.
    pub fn is_connected(&self) -> bool {
        self.mounted.lock().iter().any(|mounted| mounted.mount.is_connected())
    }

    /// Closes file systems that somebody unmounted by hand. For who has their turn: nobody may mount them meanwhile.
    fn reap(&self) -> Result<(), Failure> {
        let ended: Vec<Mounted> = self.mounted.lock().extract_if(.., |mounted| !mounted.mount.is_served()).collect();
        for Mounted { files, mount, clearing, .. } in ended {
            let counters = mount.counters();
            {
                let mut ended = self.ended.lock();
                *ended = (ended.0 + counters.bytes_read, ended.1 + counters.bytes_written);
            }
            config::forget_mount(&self.directory, mount.at());
            drop(mount);
            self.real.block_on(async move {
                clearing.stop().await;
                files.close().await
            })?;
        }
        Ok(())
    }

    /// Has end soon what goes on behind the scenes, and whoever waits for it: everything is about to be closed.
    pub fn interrupt(&self) {
        self.mounted.lock().iter().for_each(|mounted| mounted.clearing.interrupt());
    }

    /// Unmounts everything, writes everything and closes the pool.
    pub fn close(&self) -> Result<Closed, Failure> {
        let _turn = self.changing.lock();
        let (mut first_error, mut closed) = (None, Closed::default());
        for mounted in self.mounted.lock().drain(..).rev() {
            let Mounted { files, mount, clearing, .. } = mounted;
            if mount.unmount(false).is_err() {
                let written = mount.page_cache().write_back(WRITE_BACK_PATIENCE);
                closed.in_use.push(InUse { at: mount.at().into(), written });
                // Its users get errors now. If they only did when this process is gone, it might wait for them and never go.
                if let Err(error) = mount.abort() {
                    first_error.get_or_insert(Failure::new(error.to_string()));
                }
            }
            drop(mount);
            let outcome = self.real.block_on(async move {
                clearing.stop().await;
                files.close().await
            });
            if let Err(error) = outcome {
                first_error.get_or_insert(error.into());
            }
        }
        self.arrays.iter().for_each(|(_, array)| array.stop());
        for rebuild in self.rebuilds.lock().drain(..) {
            self.real.block_on(rebuild);
        }
        if let Err(error) = self.run(|pool| async move { pool.close().await }) {
            first_error.get_or_insert(error.into());
        }
        first_error.map_or(Ok(closed), Err)
    }

    /// Answers a request. `progress` is told bytes done and bytes in all.
    pub fn answer(
        &self,
        request: Request,
        progress: impl Fn(u64, u64) + Send + Sync + 'static,
    ) -> Result<Answer, Failure> {
        let done = |text: String| Ok(Answer::Done(Done { done: text }));
        let _alone = matches!(request, Request::Check { .. }).then(|| self.checking.lock());
        let turn = if request.changes() { Some(self.changing.lock()) } else { self.changing.try_lock() };
        if turn.is_some() {
            self.reap()?;
        }
        let _turn = turn.filter(|_| request.changes());
        match request {
            Request::Status => Ok(Answer::Status(Box::new(self.status()))),
            Request::FsStatus { name } => Ok(Answer::Status(Box::new(self.status_of(&name)?))),
            Request::Check { repair } => {
                self.sync()?;
                let in_use: Vec<String> = self.mounted.lock().iter().map(|mounted| mounted.name.clone()).collect();
                let checked = self.run(move |pool| async move { check::check(&pool, repair, &in_use, progress).await });
                Ok(Answer::Check(checked?))
            }
            Request::PoolGrow { path, force } => {
                let what = match path {
                    Some(path) => {
                        self.grow(&path, force)?;
                        format!("added {}", path.display())
                    }
                    None => self.enlarge()?,
                };
                done(format!("{what}; the pool has {} now", Bytes(self.pool.status().capacity)))
            }
            Request::PoolTrim => {
                let before = self.file_bytes();
                let progress = move |done: Bytes, all: Bytes| progress(done.0, all.0);
                let trimmed = self.run(move |pool| async move { pool.trim(progress).await })?;
                Ok(Answer::Trimmed(TrimReport {
                    trimmed: trimmed.bytes.0,
                    kept: trimmed.kept.0,
                    given_back: before.saturating_sub(self.file_bytes()),
                    unable: trimmed.unable,
                }))
            }
            Request::Array { array, request } => self.ask_array(array.as_deref(), request, progress),
            Request::FsList => Ok(Answer::Volumes(self.volumes(false))),
            Request::SnapshotList => Ok(Answer::Volumes(self.volumes(true))),
            Request::FsCreate { name, engine, inline } => {
                refuse_bucket(&name)?;
                let made = name.clone();
                self.run(
                    move |pool| async move { engine::make(&pool, &made, engine, inline.map(Bytes)).await.map(drop) },
                )?;
                done(format!("made file system {name}"))
            }
            Request::FsRename { from, to } => {
                self.refuse_mounted(&from)?;
                let text = format!("{from} is now {to}");
                self.run(|pool| async move { pool.rename_volume(&from, &to).await })?;
                done(text)
            }
            Request::FsDestroy { name } => {
                self.refuse_mounted(&name)?;
                let text = format!("destroyed file system {name}");
                self.run(|pool| async move { pool.destroy_volume(&name).await })?;
                done(text)
            }
            Request::SnapshotCreate { name } => {
                let Some((fs, snapshot)) = name.split_once('@') else { return Err(no_snapshot_name(&name)) };
                let written = self.write_back(fs);
                self.sync()?;
                let (fs, snapshot) = (fs.to_string(), snapshot.to_string());
                self.run(|pool| async move { pool.create_snapshot(&fs, &snapshot).await.map(drop) })?;
                let but = if written {
                    ""
                } else {
                    "; it may lack what programs wrote last, for the kernel did not write all of it back"
                };
                done(format!("took snapshot {name}{but}"))
            }
            Request::SnapshotDestroy { name } => {
                self.refuse_mounted(&name)?;
                let text = format!("destroyed snapshot {name}");
                self.run(|pool| async move { pool.destroy_snapshot(&name).await })?;
                done(text)
            }
            Request::SnapshotClone { name, to } => {
                let text = format!("made file system {to} from {name}");
                self.run(|pool| async move { pool.clone_snapshot(&name, &to).await.map(drop) })?;
                done(text)
            }
            Request::Mount { name, at, how } => {
                self.volume(&name)?;
                self.mount_in_turn(&name, &at, None, how)?;
                done(format!("mounted {name} at {}", at.display()))
            }
            Request::Remove { places, wait } => self.remove(&places, wait, progress),
            Request::Listen { .. } | Request::Down => Err(Failure::new("the daemon answers this itself")),
        }
    }

    /// Takes away what is at these places, and removes what is below, behind the scenes or while the caller waits.
    fn remove(&self, places: &[Place], wait: bool, progress: impl Fn(u64, u64)) -> Result<Answer, Failure> {
        let (mut failures, mut waiting, mut gone) = (Vec::new(), Vec::<Arc<Clearing>>::new(), 0);
        for place in places {
            let clearing = {
                let mounted = self.mounted.lock();
                let found = mounted.iter().find(|mounted| mounted.mount.device() == Some(place.device));
                found.map(|mounted| mounted.clearing.clone())
            };
            let taken = clearing
                .ok_or_else(|| Failure::new("it is on no file system of this pool; `rm -r` removes it"))
                .and_then(|clearing| Ok((clearing.take_away(&self.real, place)?, clearing)));
            match taken {
                Ok((taken, clearing)) => {
                    gone += 1;
                    if matches!(taken, Taken::Waits(_)) && !waiting.iter().any(|other| Arc::ptr_eq(other, &clearing)) {
                        waiting.push(clearing);
                    }
                }
                Err(failure) => failures.push(format!("{}: {failure}", place.path)),
            }
        }
        let mut names = 0;
        for clearing in &waiting {
            match wait {
                true => match clearing.wait(&self.real, &progress) {
                    Ok(removed) => names += removed,
                    Err(failure) => failures.push(failure.to_string()),
                },
                false => clearing.go_on(),
            }
        }
        if !failures.is_empty() {
            return Err(Failure::new(failures.join("\n")));
        }
        let what = match gone {
            1 => places[0].path.clone(),
            _ => format!("{gone} files and directories"),
        };
        let done = match (waiting.is_empty(), wait) {
            (true, _) => format!("removed {what}"),
            (false, true) => format!("removed {what}, {names} names in all"),
            (false, false) => format!("{what}: gone; `ashlar status` tells how far its names are removed"),
        };
        Ok(Answer::Done(Done { done }))
    }

    /// Listens to what is asked of the mount at this place.
    pub fn listen(&self, at: &Path) -> Result<Listener, Failure> {
        let mounted = self.mounted.lock();
        let Some(found) = mounted.iter().find(|mounted| mounted.mount.at() == at) else {
            let all: Vec<_> = mounted.iter().map(|mounted| mounted.mount.at().display().to_string()).collect();
            let text = format!("this pool is not mounted at {}, but at {}", at.display(), all.join(", "));
            return Err(Failure::new(text));
        };
        found.mount.listen().ok_or_else(|| Failure::new(format!("somebody traces {} already", at.display())))
    }

    /// Writes what file systems still hold in memory into the pool.
    fn sync(&self) -> Result<(), Failure> {
        let mounted = self.mounted.lock();
        let all: Vec<_> = mounted.iter().map(|mounted| (mounted.name.clone(), mounted.files.clone())).collect();
        drop(mounted);
        for (name, files) in all {
            self.real.block_on(async move { files.sync().await }).map_err(|error| {
                let error = Failure::from(error);
                Failure::new(format!("a write to {name} failed: {error}; that is told once, so try again"))
            })?;
        }
        Ok(())
    }

    /// Has the kernel write back what it has of this file system. Whether all came that programs had written.
    fn write_back(&self, name: &str) -> bool {
        let page_cache = {
            let mounted = self.mounted.lock();
            mounted.iter().find(|mounted| mounted.name == name).map(|mounted| mounted.mount.page_cache())
        };
        page_cache.is_none_or(|page_cache| page_cache.write_back(WRITE_BACK_PATIENCE))
    }

    /// Refuses what is mounted. What somebody has just unmounted is waited for and closed; for who has their turn.
    fn refuse_mounted(&self, name: &str) -> Result<(), Failure> {
        refuse_bucket(name)?;
        loop {
            self.reap()?;
            let mounted = self.mounted.lock();
            let Some(found) = mounted.iter().find(|mounted| mounted.name == name) else { return Ok(()) };
            if found.mount.is_connected() {
                let at = found.mount.at().display();
                return Err(Failure::new(format!("{name} is mounted at {at}; `umount` it there first")));
            }
            drop(mounted);
            std::thread::sleep(TICK);
        }
    }

    fn volumes(&self, snapshots: bool) -> Vec<Volume> {
        let all = self.pool.volumes().into_iter().filter(|info| !is_bucket(&info.name));
        let listed = all.filter_map(|info| match info.kind {
            VolumeKind::Snapshot { time, .. } if snapshots => Some(Volume { name: info.name, time: Some(time) }),
            VolumeKind::Live { .. } if !snapshots => Some(Volume { name: info.name, time: None }),
            _ => None,
        });
        listed.collect()
    }

    /// A file system or snapshot that is there.
    pub fn volume(&self, name: &str) -> Result<ashlar_pool::Volume, Failure> {
        refuse_bucket(name)?;
        self.pool.volume(name).ok_or_else(|| {
            let kind = if name.contains('@') { "snapshot" } else { "fs" };
            Failure::new(format!("there is no {name} in this pool; `ashlar {kind} list` names all"))
        })
    }

    /// Numbers of one file system, mounted or not, for people and programs.
    fn status_of(&self, name: &str) -> Result<Status, Failure> {
        let volume = self.volume(name)?;
        let status = {
            let mounted = self.mounted.lock();
            self.status_with(&mounted, mounted.iter().find(|mounted| mounted.name == name))
        };
        let found = self.run(move |_| async move { volume.buffers().await });
        Ok(Status { fs: Some(name.into()), index: Some(Index::from(found)), ..status })
    }

    /// Numbers for people and programs.
    pub fn status(&self) -> Status {
        let mounted = self.mounted.lock();
        self.status_with(&mounted, mounted.first())
    }

    fn status_with(&self, mounted: &[Mounted], shown: Option<&Mounted>) -> Status {
        let status = self.pool.status();
        let counters = shown.map(|mounted| mounted.mount.counters()).unwrap_or_default();
        let all = mounted.iter().map(|mounted| mounted.mount.counters());
        let (read, written) = all.fold(*self.ended.lock(), |(read, written), counters| {
            (read + counters.bytes_read, written + counters.bytes_written)
        });
        let nanos = |time: std::time::Duration| time.as_nanos() as u64;
        let operations = counters.operations.iter().map(|operation| Operation {
            name: operation.name.into(),
            count: operation.count,
            median_ns: nanos(operation.quantile(0.5)),
            p99_ns: nanos(operation.quantile(0.99)),
        });
        Status {
            pid: mounted.first().map(|_| std::process::id()),
            pool: self.directory.clone(),
            mount: shown.map(|mounted| mounted.mount.at().into()),
            fs: shown.map(|mounted| mounted.name.clone()),
            capacity: status.capacity,
            used: status.used,
            free: status.free,
            unused_ends: self.pool.unused_ends().0,
            full_below: self.pool.is_full_below(),
            stopped: self.pool.stopped(),
            memory: status.memory,
            memory_limit: self.memory.0,
            io_uring: self.real.has_io_uring(),
            generation: status.generation,
            moved: status.moved,
            recovered: self.pool.costs().recovered,
            zones: shown.and_then(|mounted| mounted.files.zones()).map(Zones::from),
            removed: shown.and_then(|mounted| mounted.clearing.removed()),
            index: None,
            floors: if mounted.is_empty() { Vec::new() } else { Floor::all(read, written, &self.pool.costs()) },
            requests: counters.requests(),
            bytes_read: counters.bytes_read,
            bytes_written: counters.bytes_written,
            operations: operations.collect(),
        }
    }
}

/// What holds a bucket is not touched as a file system.
fn refuse_bucket(name: &str) -> Result<(), Failure> {
    if is_bucket(name) {
        return Err(Failure::new(format!("{name} is the volume of a bucket; see `ashlar bucket`")));
    }
    Ok(())
}

/// A name that should have been a snapshot's.
pub fn no_snapshot_name(name: &str) -> Failure {
    Failure::new(format!("{name:?} names no snapshot: write FILESYSTEM@SNAPSHOT, as in main@monday"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_memory_is_made_by_whoever_opens_it() {
        let directory = std::env::temp_dir().join(format!("ashlar-session-{}", std::process::id()));
        config::make_directory(&directory).expect("a temporary directory");
        let stack =
            ashlar_layers::Stack::parse("devices = [\"m\"]\nlayer.m.memory.size = \"64MiB\"").expect("a good stack");
        config::write(&directory, &config::PoolConfig::new("lz4", None, stack)).expect("written");
        for _ in 0..2 {
            let session = Session::open(&directory, Bytes::mib(64), 1, false).expect("it is made");
            session.run(|pool| async move { pool.create_volume("v").await.map(drop) }).expect("it is empty");
            session.close().expect("closed");
        }
        std::fs::remove_dir_all(directory).expect("made");
    }

    #[test]
    fn memory_must_be_enough_and_there() {
        let machine = Bytes::mib(8192);
        let said = |memory| refuse_memory(memory, machine).unwrap_or_default();
        assert!(
            said(Bytes(0)).contains("at least 64 MiB") && said(Bytes(MEMORY_MIN.0 - 1)).contains("at least 64 MiB")
        );
        assert!(
            said(Bytes(machine.0 + 1)).contains("more than this machine has, 8 GiB"),
            "{}",
            said(Bytes(machine.0 + 1))
        );
        assert_eq!((said(MEMORY_MIN), said(machine)), (String::new(), String::new()));
    }
}
