//! Listening, the clients that are there, and what they may hold.

use crate::address::Address;
use crate::bytewise::ByteDevice;
use crate::channel::{Channel, Socket};
use crate::connection;
use crate::tls::Tls;
use ashlar_block::{Error, Kind, Result};
use ashlar_env::real::{Real, Spawner};
use ashlar_env::{Env, Instant, Readiness};
use ashlar_units::Bytes as Size;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit in which memory is counted: a request takes one more than its data.
const CHARGE_LEN: u32 = 4096;
/// For how long a client may take to choose an export.
const HANDSHAKE_MAX: Duration = Duration::from_secs(60);
/// For how long a client may hold memory that others wait for without reading or writing anything.
const STALL_MAX: Duration = Duration::from_secs(30);
/// How often clients are looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// For how long [`Server::stop`] waits for clients to take their replies.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A device and how clients see it.
pub struct Export {
    /// What clients ask for; the first export also goes by the empty name.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// No writing.
    pub read_only: bool,
    /// What is served.
    pub device: Arc<ByteDevice>,
}

/// What clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at once; more are turned away.
    pub clients: usize,
    /// Data in service for one client. At least twice the largest request, so that one can follow another.
    pub client_memory: Size,
    /// Data in service for all.
    pub memory: Size,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { clients: 256, client_memory: Size::mib(128), memory: Size::mib(512) }
    }
}

/// A running NBD server. It serves until [`Server::stop`].
pub struct Server {
    shared: Arc<Shared>,
    address: Address,
    listener: Arc<OwnedFd>,
}

/// What all clients share.
pub(crate) struct Shared {
    pub(crate) exports: Vec<Arc<Export>>,
    /// Clients must encrypt.
    pub(crate) tls: Option<Tls>,
    env: Env,
    limits: Limits,
    memory: Arc<Semaphore>,
    clients: Mutex<BTreeMap<u64, Arc<Client>>>,
    lingering: AtomicBool,
    stopping: AtomicBool,
}

/// A connected client.
pub(crate) struct Client {
    pub(crate) server: Arc<Shared>,
    pub(crate) channel: Channel,
    pub(crate) spawner: Spawner,
    memory: Arc<Semaphore>,
    /// Bytes moved, or rather times that some were.
    moves: AtomicU64,
    /// It is to read or write before anything goes on.
    is_waited_for: AtomicBool,
    in_transmission: AtomicBool,
}

/// Memory that a request holds until its reply has left.
pub(crate) struct Charge {
    _of_client: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

fn charge_units(len: u32) -> u32 {
    len / CHARGE_LEN + 1
}

fn units(memory: Size) -> usize {
    let most = Size(u64::from(crate::wire::PAYLOAD_LEN_MAX) * 2);
    (memory.max(most).0 / u64::from(CHARGE_LEN)).min(Semaphore::MAX_PERMITS as u64 >> 1) as usize
}

impl Client {
    pub(crate) fn env(&self) -> &Env {
        &self.server.env
    }
    /// Notes that bytes moved.
    pub(crate) fn progress(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn wait_for_client(&self, waiting: bool) {
        self.is_waited_for.store(waiting, Ordering::Relaxed);
    }
    pub(crate) fn begin_transmission(&self) {
        self.in_transmission.store(true, Ordering::Relaxed);
    }
    fn units(&self) -> usize {
        units(self.server.limits.client_memory)
    }
    /// Nothing is in service.
    pub(crate) fn is_idle(&self) -> bool {
        self.memory.available_permits() == self.units()
    }
    /// Memory for a request with so much data, if there is some now.
    pub(crate) fn try_charge(&self, len: u32) -> Option<Charge> {
        let of_client = self.memory.clone().try_acquire_many_owned(charge_units(len)).ok()?;
        let of_all = self.server.memory.clone().try_acquire_many_owned(charge_units(len)).ok()?;
        Some(Charge { _of_client: of_client, _of_all: of_all })
    }
    /// The same, waiting for it.
    pub(crate) async fn charge(&self, len: u32) -> Charge {
        let take = |from: &Arc<Semaphore>| from.clone().acquire_many_owned(charge_units(len));
        let of_client = take(&self.memory).await.expect("never closed");
        Charge { _of_client: of_client, _of_all: take(&self.server.memory).await.expect("never closed") }
    }
    /// Returns when nothing is in service.
    pub(crate) async fn settled(&self) {
        let all = self.memory.acquire_many(self.units() as u32).await;
        drop(all);
    }
}

impl Shared {
    /// The export of this name; the empty name is that of the first.
    pub(crate) fn export(&self, name: &str) -> Option<Arc<Export>> {
        let first = self.exports.first().filter(|_| name.is_empty());
        self.exports.iter().find(|export| export.name == name).or(first).cloned()
    }
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
    /// One connection at a time may look for requests without sleeping.
    pub(crate) fn start_lingering(&self) -> bool {
        !self.lingering.swap(true, Ordering::Acquire)
    }
    pub(crate) fn stop_lingering(&self) {
        self.lingering.store(false, Ordering::Release);
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
        }
    }
}

impl Server {
    /// Listens at `address` and serves `exports` (at least one) on the workers of the runtime. With `tls` clients must
    /// encrypt; without, addresses that other machines can reach are refused.
    pub fn start(
        real: &Real,
        exports: Vec<Export>,
        address: &Address,
        tls: Option<Tls>,
        limits: Limits,
    ) -> Result<Server> {
        if exports.is_empty() {
            return Err(Error::misuse("there is nothing to serve"));
        }
        let failed = |error: io::Error| Error::io(format!("cannot listen at {address}"), &error);
        let (listener, bound) = listen(address, tls.is_some())?;
        let descriptor = match &listener {
            Listener::Unix(listener) => listener.as_fd().try_clone_to_owned(),
            Listener::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
        };
        let descriptor = Arc::new(descriptor.map_err(failed)?);
        let shared = Arc::new(Shared {
            exports: exports.into_iter().map(Arc::new).collect(),
            tls,
            env: real.env(),
            limits,
            memory: Arc::new(Semaphore::new(units(limits.memory))),
            clients: Mutex::default(),
            lingering: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        });
        let spawners = (0..real.workers()).map(|worker| real.spawner(worker)).collect();
        real.spawn_on(0, accept(shared.clone(), listener, descriptor.clone(), spawners));
        real.spawn_on(0, watch(Arc::downgrade(&shared), real.env()));
        Ok(Server { shared, address: bound, listener: descriptor })
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Number of clients that are connected.
    pub fn clients(&self) -> usize {
        self.shared.clients.lock().len()
    }

    /// Takes no more clients and requests, finishes and answers what is in service, and makes everything durable.
    pub async fn stop(self) -> Result<()> {
        self.shared.stopping.store(true, Ordering::Release);
        // Wakes whoever waits for clients; the type of the socket does not matter to the call.
        if let Ok(listener) = self.listener.try_clone() {
            let _ = UnixStream::from(listener).shutdown(Shutdown::Both);
        }
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
        let env = self.shared.env.clone();
        let began = env.now();
        let mut how = Shutdown::Read;
        while self.clients() > 0 {
            if env.now().since(began) > STOP_PATIENCE {
                how = Shutdown::Both;
            }
            for client in self.shared.clients.lock().values() {
                client.channel.shutdown(how);
            }
            env.sleep(Duration::from_millis(5)).await;
        }
        for export in self.shared.exports.iter().filter(|export| !export.read_only) {
            export.device.flush().await?;
        }
        Ok(())
    }
}

fn listen(address: &Address, encrypts: bool) -> Result<(Listener, Address)> {
    let failed = |error: io::Error| Error::io(format!("cannot listen at {address}"), &error);
    match address {
        Address::Unix(path) => {
            if UnixStream::connect(path).is_ok() {
                let message =
                    format!("cannot listen at {address}: another server does; stop it or choose another path");
                return Err(Error::new(Kind::Retry, message));
            }
            use std::os::unix::fs::FileTypeExt;
            // A socket that nobody listens at was left behind. Anything else is not ours to remove.
            if std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket()) {
                std::fs::remove_file(path).map_err(failed)?;
            }
            let listener = UnixListener::bind(path).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            Ok((Listener::Unix(listener), address.clone()))
        }
        Address::Tcp(wanted) => {
            if !wanted.ip().is_loopback() && !encrypts {
                let message = format!(
                    "refusing to serve at {address}: everybody in the network could read and write the device. Listen at \
                     127.0.0.1 or a unix socket, or configure TLS"
                );
                return Err(Error::misuse(message));
            }
            let listener = TcpListener::bind(wanted).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            Ok((Listener::Tcp(listener), Address::Tcp(bound)))
        }
    }
}

/// Takes clients until the listener is shut down.
async fn accept(shared: Arc<Shared>, listener: Listener, descriptor: Arc<OwnedFd>, spawners: Vec<Spawner>) {
    let mut number = 0u64;
    while !shared.is_stopping() {
        match listener.accept() {
            Ok(socket) => {
                number += 1;
                let full = shared.clients.lock().len() >= shared.limits.clients;
                let channel = Channel::new(socket, shared.env.clone());
                // A client too many sees the connection end.
                let (false, Ok(channel)) = (full, channel) else { continue };
                let client = Arc::new(Client {
                    server: shared.clone(),
                    channel,
                    spawner: spawners[number as usize % spawners.len()].clone(),
                    memory: Arc::new(Semaphore::new(units(shared.limits.client_memory))),
                    moves: AtomicU64::new(0),
                    is_waited_for: AtomicBool::new(false),
                    in_transmission: AtomicBool::new(false),
                });
                shared.clients.lock().insert(number, client.clone());
                let shared = shared.clone();
                client.spawner.clone().spawn(async move {
                    // Whatever ended it, the client has been told or does not listen.
                    let _ = connection::serve(client.clone()).await;
                    client.channel.shutdown(Shutdown::Both);
                    shared.clients.lock().remove(&number);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let ready = shared.env.file_ops().map(|ops| ops.ready(&descriptor, Readiness::Readable));
                let Some(ready) = ready else { return };
                if ready.await.is_err() {
                    return;
                }
            }
            // Out of descriptors, or a client that left before it was taken: others will come.
            Err(_) => shared.env.sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Ends clients that do not choose, or hold what others wait for and do nothing.
async fn watch(shared: std::sync::Weak<Shared>, env: Env) {
    let mut seen: BTreeMap<u64, (u64, Instant)> = BTreeMap::new();
    loop {
        env.sleep(WATCH_INTERVAL).await;
        let Some(shared) = shared.upgrade().filter(|shared| !shared.is_stopping()) else { return };
        let clients = shared.clients.lock().clone();
        seen.retain(|number, _| clients.contains_key(number));
        let now = env.now();
        let starved = shared.memory.available_permits() < charge_units(crate::wire::PAYLOAD_LEN_MAX) as usize;
        for (number, client) in clients {
            let chosen = client.in_transmission.load(Ordering::Relaxed);
            // A client that chooses has to be done in time, however busy it looks.
            let moves = if chosen { client.moves.load(Ordering::Relaxed) + 1 } else { 0 };
            let (before, since) = seen.entry(number).or_insert((moves, now));
            if *before != moves {
                (*before, *since) = (moves, now);
            }
            let still = now.since(*since);
            let stalls = chosen && starved && client.is_waited_for.load(Ordering::Relaxed) && still > STALL_MAX;
            if stalls || (!chosen && still > HANDSHAKE_MAX) {
                client.channel.shutdown(Shutdown::Both);
            }
        }
    }
}
