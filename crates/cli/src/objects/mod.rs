//! `ashlar bucket`, `ashlar objects`, `ashlar s3`: objects, with a server and without.

pub mod arguments;
pub mod catalogue;
pub mod control;
pub mod engines;
mod ground;
mod object;
mod serve;

pub use object::objects;
pub use serve::serve;

use self::arguments::{BucketCommand, BucketCreate};
use self::catalogue::Refusal;
use self::ground::Ground;
use crate::config;
use crate::output::{Failure, Output};
use crate::request::Done;
use ashlar_env::real::Real;
use ashlar_objects::{HIDDEN, List, Name};
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::ops::Bound;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Memory of a command that opens a pool itself.
const MEMORY: Bytes = Bytes(128 << 20);

/// A bucket in a list.
#[derive(Serialize, JsonSchema)]
struct Bucket {
    /// Its name.
    name: String,
    /// What keeps its objects.
    engine: String,
    /// When it was made, in seconds since 1970.
    created: u64,
    /// Its own device.
    device: Option<String>,
    /// Its own device for staging.
    staging: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Buckets(Vec<Bucket>);

impl fmt::Display for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Bucket { name, engine, device, staging, .. } in &self.0 {
            let devices = [device, staging].into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
            writeln!(f, "{name:<30} {engine:<10} {}", devices.join(" "))?;
        }
        if self.0.is_empty() {
            writeln!(f, "no buckets; `ashlar bucket create NAME --engine pool` makes one")
        } else {
            Ok(())
        }
    }
}

/// Runs work on stores, and writes everything when it is done.
fn with_ground<T: Send + 'static, F>(pool: Option<&Path>, work: impl FnOnce(Arc<Ground>) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let directory = config::pool_directory(pool)?;
    let _turn = if directory.is_dir() { Some(config::turn(&directory)?) } else { None };
    let real = Real::start(config::threads(None)).map_err(|error| Failure::new(error.to_string()))?;
    let ground = Arc::new(Ground::new(real.env(), directory, MEMORY, true));
    let outcome = real.block_on(work(ground.clone()));
    let closed = real.block_on(async move { ground.close().await });
    let outcome = outcome?;
    closed.map(|()| outcome)
}

/// `ashlar bucket`.
pub fn bucket(pool: Option<&Path>, command: BucketCommand, output: &Output) -> Result<ExitCode, Failure> {
    let schema = match command {
        BucketCommand::List => output.schema::<Buckets>(),
        _ => output.schema::<Done>(),
    };
    if let Some(code) = schema {
        return Ok(code);
    }
    match command {
        BucketCommand::List => {
            let list = catalogue::read(&config::pool_directory(pool)?)?.bucket.into_iter();
            let buckets = list.map(|(name, spec)| Bucket {
                name,
                engine: spec.engine,
                created: spec.created,
                device: spec.device.map(|device| device.display().to_string()),
                staging: spec.staging.map(|staging| staging.display().to_string()),
            });
            output.print(&Buckets(buckets.collect()));
        }
        BucketCommand::Create(BucketCreate { name, engine, device, staging, force }) => {
            let done = format!("made bucket {name}; `ashlar s3 serve` serves it, `ashlar objects put` stores in it");
            with_ground(pool, |ground| async move {
                catalogue::create(&ground, &name, &engine, (device, staging), force).await.map_err(|refusal| {
                    match refusal {
                        Refusal::Exists => Failure::new(format!("there is a bucket {name:?} already")),
                        Refusal::Failed(failure) => failure,
                    }
                })
            })?;
            output.print(&Done { done });
        }
        BucketCommand::Rm { name, force } => {
            let done = format!("destroyed bucket {name}");
            with_ground(pool, move |ground| async move {
                let spec = catalogue::find(&ground.directory, &name)?;
                if !force && engines::engine(&spec.engine)?.is_lasting() {
                    let store = engines::open_bucket(&ground, &name, &spec).await?;
                    let page = store.list(List { prefix: vec![], from: Bound::Included(first()), limit: 1 }).await;
                    if !page.map_err(failure)?.objects.is_empty() {
                        return Err(Failure::new(format!("there are objects in {name}; --force destroys them, too")));
                    }
                }
                catalogue::destroy(&ground, &name).await
            })?;
            output.print(&Done { done });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The first name that is not a door's own.
fn first() -> Name {
    Name::new(vec![HIDDEN + 1]).expect("a name of one byte")
}

fn failure(error: ashlar_objects::Error) -> Failure {
    Failure::new(error.to_string())
}
