//! `ashlar s3 serve`.

use super::arguments::S3Serve;
use super::catalogue::{self, Refusal};
use super::control::Control;
use super::engines::open_bucket;
use super::ground::Ground;
use crate::config;
use crate::output::{Failure, Output};
use crate::request::Done;
use ashlar_env::BoxFuture;
use ashlar_env::real::{Real, small_pages};
use ashlar_objects::Store;
use ashlar_s3::{BucketError, BucketInfo, Buckets, Credentials, Limits, Options, Server, Tls};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the main thread looks whether it is to stop.
const TICK: Duration = Duration::from_millis(20);

/// The buckets on the list, as the server sees them.
struct Listed {
    ground: Arc<Ground>,
    /// The engine of those that clients make.
    engine: String,
}

fn failed(failure: Failure) -> BucketError {
    BucketError::Failed(failure.to_string())
}

impl Listed {
    /// Runs work on the stores' runtime.
    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Ground>) -> F) -> BoxFuture<'_, T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        Box::pin(self.ground.env.spawn(work(self.ground.clone())))
    }
}

impl Buckets for Listed {
    fn list(&self) -> BoxFuture<'_, Result<Vec<BucketInfo>, BucketError>> {
        let directory = self.ground.directory.clone();
        Box::pin(async move {
            let list = self.ground.env.unblock(move || catalogue::read(&directory)).await.map_err(failed)?;
            let info = |(name, spec): (String, super::engines::Spec)| BucketInfo {
                name,
                created: Duration::from_secs(spec.created),
            };
            Ok(list.bucket.into_iter().map(info).collect())
        })
    }
    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Store, BucketError>> {
        let name = name.to_string();
        self.run(move |ground| async move {
            let list = catalogue::read(&ground.directory).map_err(failed)?;
            let spec = list.bucket.get(&name).ok_or(BucketError::NotFound)?;
            open_bucket(&ground, &name, spec).await.map_err(failed)
        })
    }
    fn create<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), BucketError>> {
        let (name, engine) = (name.to_string(), self.engine.clone());
        self.run(move |ground| async move {
            catalogue::create(&ground, &name, &engine, (None, None), false).await.map_err(|refusal| match refusal {
                Refusal::Exists => BucketError::Exists,
                Refusal::Failed(failure) => failed(failure),
            })
        })
    }
    fn destroy<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), BucketError>> {
        let name = name.to_string();
        self.run(move |ground| async move { catalogue::destroy(&ground, &name).await.map_err(failed) })
    }
}

/// Serves until somebody asks to stop.
pub fn serve(pool: Option<&Path>, serve: &S3Serve, output: &Output) -> Result<ExitCode, Failure> {
    if let Some(code) = output.schema::<Done>() {
        return Ok(code);
    }
    let directory = config::pool_directory(pool)?;
    let credentials = serve.credentials.as_deref().map(Credentials::load).transpose().map_err(Failure::new)?;
    let tls = match (&serve.tls_cert, &serve.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls::load(certificate, key).map_err(Failure::new)?),
        _ => None,
    };
    let encrypts = tls.is_some();
    let stop = crate::signals::on_signal()?;
    let threads = config::threads(serve.threads);
    small_pages();
    let real = Arc::new(Real::start(threads).map_err(|error| Failure::new(error.to_string()))?);
    let ground = Arc::new(Ground::new(real.env(), directory, serve.memory, false));
    let open = credentials.is_none();
    let options = Options {
        credentials: credentials.unwrap_or_default(),
        tls,
        domain: serve.domain.clone(),
        limits: Limits { clients: serve.clients, memory: serve.memory, ..Limits::default() },
    };
    let buckets = Arc::new(Listed { ground: ground.clone(), engine: serve.engine.clone() });
    let server = Server::start(&real.env(), buckets, serve.listen, threads, options).map_err(Failure::new)?;
    let control = match Control::listen(ground.clone(), real.clone()) {
        Ok(control) => Some(control),
        Err(failure) => {
            output.say(format_args!("stores cannot be checked while they are served: {failure}"));
            None
        }
    };
    let scheme = if encrypts { "https" } else { "http" };
    output.say(format_args!("S3 at {scheme}://{}", server.address()));
    if open {
        output.say("no credentials: everybody on this machine may read and change the buckets, with unsigned requests");
    }
    output.say("Ctrl-C ends it");
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(TICK);
    }
    let address = server.address();
    server.stop();
    control.iter().for_each(|control| control.close());
    real.block_on(async move { ground.close().await })?;
    output.print(&Done { done: format!("everything is written; {address} is served no more") });
    Ok(ExitCode::SUCCESS)
}
