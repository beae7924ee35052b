//! What stores stand on: a runtime, the pool's directory, and the pool when one is needed.

use super::catalogue;
use super::engines::{Spec, engine, open_bucket};
use crate::output::Failure;
use crate::{client, config, session};
use ashlar_env::Env;
use ashlar_objects::Store;
use ashlar_pool::Pool;
use ashlar_regions::{Regions, WeakRegions};
use ashlar_units::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// See the module.
pub struct Ground {
    pub env: Env,
    pub directory: PathBuf,
    /// Memory of a pool.
    memory: Bytes,
    /// It is a command's, whose turn it is until it ends, or a server's, which waits for its turn to open the pool.
    in_turn: bool,
    pool: tokio::sync::Mutex<Option<Pool>>,
    /// Region stores that were opened, by the canonical path of their device.
    regions: Mutex<BTreeMap<PathBuf, WeakRegions>>,
}

impl Ground {
    pub fn new(env: Env, directory: PathBuf, memory: Bytes, in_turn: bool) -> Ground {
        Ground { env, directory, memory, in_turn, pool: tokio::sync::Mutex::default(), regions: Mutex::default() }
    }

    /// Notes a region store that is open now.
    pub fn opened(&self, device: &Path, regions: &Regions) {
        if let Ok(device) = device.canonicalize() {
            self.regions.lock().insert(device, regions.downgrade());
        }
    }

    /// The region store on this device, if it is open.
    pub fn regions_on(&self, device: &Path) -> Option<Regions> {
        self.regions.lock().get(device)?.upgrade()
    }

    /// The pool in the directory, opened once.
    pub async fn pool(&self) -> Result<Pool, Failure> {
        let mut open = self.pool.lock().await;
        if let Some(pool) = &*open {
            return Ok(pool.clone());
        }
        config::read(&self.directory)?;
        let directory = self.directory.clone();
        let _turn = match self.in_turn {
            true => None,
            false => Some(self.env.unblock(move || config::turn(&directory)).await?),
        };
        if client::connect(&self.directory)?.is_some() {
            let message = "the pool is up, and only one process at a time may use it; `ashlar down` first";
            return Err(Failure::new(format!("{}: {message}", self.directory.display())));
        }
        let (pool, _) = session::open_pool(&self.directory, &self.env, self.memory, false).await?;
        Ok(open.insert(pool).clone())
    }

    /// A bucket that is on the list, of an engine whose buckets outlive a process.
    pub async fn lasting(&self, bucket: &str) -> Result<Store, Failure> {
        let spec: Spec = catalogue::find(&self.directory, bucket)?;
        if !engine(&spec.engine)?.is_lasting() {
            let message = "there is nothing in it but while `ashlar s3 serve` runs: go through that";
            return Err(Failure::new(format!("{bucket} is a bucket of the engine {}: {message}", spec.engine)));
        }
        open_bucket(self, bucket, &spec).await
    }

    /// Writes everything.
    pub async fn close(&self) -> Result<(), Failure> {
        match self.pool.lock().await.take() {
            Some(pool) => Ok(pool.close().await?),
            None => Ok(()),
        }
    }
}
