//! The control socket of `ashlar s3 serve`: what is asked of region stores that it has open.

use super::ground::Ground;
use crate::config;
use crate::framing::{self, Line, send};
use crate::output::Failure;
use ashlar_env::real::Real;
use ashlar_regions::{Checked, Status};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is asked of a store; the device that it is on is named by its canonical path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Check a region, or all of them.
    Check { store: PathBuf, region: Option<u32>, repair: bool },
    /// The map of regions.
    Map { store: PathBuf },
}

/// What the server answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Checked(Checked),
    Map(Status),
}

/// The server's side.
pub struct Control {
    path: PathBuf,
    ground: Arc<Ground>,
    real: Arc<Real>,
}

impl Control {
    /// Listens in the pool's directory.
    pub fn listen(ground: Arc<Ground>, real: Arc<Real>) -> Result<Arc<Control>, Failure> {
        let path = config::stores_socket(&ground.directory);
        let listener = framing::listen(&path, "serve another --pool directory")?;
        let control = Arc::new(Control { path, ground, real });
        framing::serve(listener, &control, Control::converse)?;
        Ok(control)
    }

    /// Listens no more. Conversations end on their own: a repair that is cut off is as one in which the power fails.
    pub fn close(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    fn converse(&self, request: Result<Request, String>, mut stream: UnixStream) {
        let to = stream.try_clone().ok().map(Mutex::new);
        let progress = move |done, all| {
            if let Some(to) = &to {
                send(&mut to.lock(), &Line::<Answer>::Progress(done, all));
            }
        };
        let answer = request.and_then(|request| self.answer(request, progress).map_err(|error| error.to_string()));
        send(&mut stream, &answer.map_or_else(Line::Failure, Line::Answer));
    }

    fn answer(&self, request: Request, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Result<Answer, Failure> {
        let (Request::Check { store, .. } | Request::Map { store }) = &request;
        let regions = self.ground.regions_on(store).ok_or_else(|| {
            let message = "the server has no region store open there, and something else uses the device";
            Failure::new(format!("{}: {message}", store.display()))
        })?;
        self.real.block_on(async move {
            Ok(match request {
                Request::Check { region, repair, .. } => {
                    Answer::Checked(regions.check_telling(region, repair, Arc::new(progress)).await?)
                }
                Request::Map { .. } => Answer::Map(regions.status(true).await?),
            })
        })
    }
}

/// A connection to the server that has the stores of a pool's directory open.
pub fn connect(directory: &Path) -> Option<UnixStream> {
    framing::connect(&config::stores_socket(directory)).ok()
}
