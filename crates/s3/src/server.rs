//! Listening, TLS, and the clients that are there.

use crate::buckets::Buckets;
use crate::budget::Budget;
use crate::credentials::Credentials;
use crate::gateway::Gateway;
use crate::service::{Admission, Door, XML_MAX};
use crate::tls::Tls;
use ashlar_env::Env;
use ashlar_units::Bytes as Size;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::host::SingleDomain;
use s3s::service::S3ServiceBuilder;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};

/// For how long [`Server::stop`] waits for requests in service.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Room for the line and the headers of a request, and for a part of its body, in bytes; and how many headers there may
/// be. S3 allows headers of 8 KiB.
const HEAD_MAX: usize = 128 << 10;
const HEADERS_MAX: usize = 128;
/// After a failure to take a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at once; more wait until another leaves.
    pub clients: usize,
    /// Memory for the bodies of all requests.
    pub memory: Size,
    /// For how long a client may send nothing that he is waited for, or take nothing.
    pub patience: Duration,
    /// For how long a request waits for memory before its client is told to come again.
    pub wait: Duration,
    /// How far the clock of a client may be from ours.
    pub skew: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let (patience, wait) = (Duration::from_secs(60), Duration::from_secs(30));
        Limits { clients: 1024, memory: Size::mib(512), patience, wait, skew: Duration::from_secs(15 * 60) }
    }
}

/// How to serve.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Who may come in; without any key everybody may who reaches the port, which must be a loopback one then.
    pub credentials: Credentials,
    /// Encrypt.
    pub tls: Option<Tls>,
    /// `BUCKET.DOMAIN` in the header `Host` names a bucket.
    pub domain: Option<String>,
    /// What clients may take.
    pub limits: Limits,
}

/// A running S3 server. It serves until [`Server::stop`].
pub struct Server {
    runtime: Runtime,
    address: SocketAddr,
    ending: Arc<Notify>,
    accepting: tokio::task::JoinHandle<GracefulShutdown>,
}

impl Server {
    /// Listens at `address` (port 0 lets the system choose) and serves `buckets`, whose stores run on `env`.
    ///
    /// # Errors
    /// Why it cannot, and what to do.
    pub fn start(
        env: &Env,
        buckets: Arc<dyn Buckets>,
        address: SocketAddr,
        threads: usize,
        options: Options,
    ) -> Result<Server, String> {
        if options.credentials.is_empty() && !address.ip().is_loopback() {
            return Err(format!(
                "refusing to serve at {address} without credentials: everybody in the network could read and change the \
                 buckets. Listen at 127.0.0.1, or give a file of credentials"
            ));
        }
        let failed = |error: io::Error| format!("cannot listen at {address}: {error}");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("ashlar-s3")
            .enable_all()
            .build()
            .map_err(failed)?;
        let door = door(env, buckets, &options)?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let ending = Arc::new(Notify::new());
        let accepting = runtime.spawn(accept(listener, door, options.tls, options.limits, ending.clone()));
        Ok(Server { runtime, address: bound, ending, accepting })
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more clients and requests, finishes those in service, for a while, and ends.
    pub fn stop(self) {
        self.ending.notify_one();
        let Server { runtime, accepting, .. } = self;
        runtime.block_on(async move {
            if let Ok(connections) = accepting.await {
                // What is not done by then is cut off: its client is not told that it was done.
                let _ = tokio::time::timeout(STOP_PATIENCE, connections.shutdown()).await;
            }
        });
        runtime.shutdown_timeout(STOP_PATIENCE);
    }
}

fn door(env: &Env, buckets: Arc<dyn Buckets>, options: &Options) -> Result<Door, String> {
    let limits = &options.limits;
    let budget = Budget::new(limits.memory.0, limits.wait);
    let stream = (limits.memory.0 / 4).clamp(1 << 16, crate::gateway::PIECE_MAX);
    let mut builder = S3ServiceBuilder::new(Gateway::new(env.clone(), buckets, budget.clone(), stream));
    let mut config = S3Config::default();
    config.xml_max_body_size = XML_MAX as usize;
    config.presigned_url_max_skew_time_secs = u32::try_from(limits.skew.as_secs()).unwrap_or(u32::MAX);
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder.set_auth(options.credentials.clone());
    builder.set_access(Admission { open: options.credentials.is_empty(), budget, stream });
    if let Some(domain) = &options.domain {
        let domain = SingleDomain::new(domain).map_err(|error| format!("{domain:?} is no domain: {error}"))?;
        builder.set_host(domain);
    }
    Ok(Door { service: builder.build(), env: env.clone(), patience: limits.patience })
}

/// Takes clients until told to end; gives those that are still there.
async fn accept(
    listener: TcpListener,
    door: Door,
    tls: Option<Tls>,
    limits: Limits,
    ending: Arc<Notify>,
) -> GracefulShutdown {
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.clients));
    let tls = tls.map(Tls::acceptor);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.patience);
    // The room alone does not bound a head: a read may find more than the room, up to its double.
    http.max_buf_size(HEAD_MAX).max_header_size(HEAD_MAX).max_headers(HEADERS_MAX);
    let next = async {
        loop {
            // A place never ceases to be given: nobody closes the semaphore.
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // Out of descriptors, or a client that left before he was taken: others will come.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Without this a small answer waits for an acknowledgement of the one before it.
            let _ = stream.set_nodelay(true);
            let (http, door, watcher) = (http.clone(), door.clone(), connections.watcher());
            let tls = tls.clone();
            tokio::spawn(async move {
                let _place = place;
                match tls {
                    None => serve(stream, &http, door, watcher, limits.patience).await,
                    Some(tls) => {
                        let agreed = tokio::time::timeout(limits.patience, tls.accept(stream)).await;
                        if let Ok(Ok(stream)) = agreed {
                            serve(stream, &http, door, watcher, limits.patience).await;
                        }
                    }
                }
            });
        }
    };
    tokio::select! {
        biased;
        () = ending.notified() => {}
        () = next => {}
    }
    connections
}

/// Serves a client until he leaves.
async fn serve<S>(
    stream: S,
    http: &http1::Builder,
    door: Door,
    watcher: hyper_util::server::graceful::Watcher,
    patience: Duration,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = crate::outlet::Outlet::new(stream, patience);
    let service = service_fn(move |request| door.clone().call(request));
    // Whatever ended it, the client has been told or does not listen.
    let _ = watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await;
}
