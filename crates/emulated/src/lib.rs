//! A block device whose contents are in a device below, and whose time is that of a model of `ashlar-models`.
//!
//! Every request goes two ways at once: to the child, which holds the data, and into the queue of the model, with the
//! time at which it arrived. It returns when both are done. So queue depth, the order of service, write-back cache, flush
//! and forced writes are those of the model, as long as the child is faster than what is modelled. Time is that of the
//! `Env`: virtual in a simulation, where timing is exact, and real elsewhere, where a task waits for the clock.
//!
//! Invariants
//!  1. The model sees requests in order of time: what was due before a request arrived has happened before it is submitted.
//!  2. A request that the model refuses (worn out flash, a broken rule of segments) does not reach the child.
//!  3. The contract of contents and durability is the child's: a flush returns after the child's flush, whatever the model
//!     thinks is in its cache. A power cut is therefore not this layer's business.
//!
//! At most [`UNDER_WAY_MAX`] requests are under way; more wait outside, and arrive when there is a place.

#![warn(missing_docs)]

mod clock;
mod keep;
mod record;
mod traced;

pub use record::{Operation, Record};
pub use traced::Traced;

use ashlar_block::{
    Capability, Device, Durability, Error, Extent, Geometry, IoContext, Kind, Layer, Medium, Result, ResultExt,
    blocks_of,
};
use ashlar_env::Env;
use ashlar_models::{Counters, Model, ModelFile, Refused, Request};
use ashlar_units::{Blocks, Bytes as Size, Lba};
use bytes::Bytes;
use clock::Clock;
use keep::Keep;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Requests under way at once. Below what every model takes, so that none is refused for being busy.
pub const UNDER_WAY_MAX: usize = 1 << 14;

/// Gets every request when it is done.
pub type Trace = Arc<dyn Fn(&Record) + Send + Sync>;

/// See the crate.
pub struct Emulated {
    child: Device,
    name: String,
    medium: Option<Medium>,
    clock: Arc<Clock>,
    places: Semaphore,
    trace: Option<Trace>,
    keep: Mutex<Option<Keep>>,
}

impl Emulated {
    /// Contents of `child`, time of `model`. The seed decides what differs from one specimen of the model to the next.
    pub fn new(child: Device, model: &ModelFile, seed: u64, env: Env) -> Result<Emulated> {
        let built = model.build(seed).map_err(|error| Error::misuse(format!("model {}: {error}", model.name)))?;
        let medium = match model.kind() {
            "disk" => Some(Medium::Disk),
            "flash" => Some(Medium::Flash),
            _ => None,
        };
        let mut emulated = Emulated::of_model(child, &model.name, built, env)?;
        emulated.medium = medium;
        Ok(emulated)
    }

    /// The same with a model that was built already. It must be new: its time begins now.
    pub fn of_model(child: Device, name: &str, model: Box<dyn Model>, env: Env) -> Result<Emulated> {
        let (found, modelled) = (child.geometry().capacity, Size(model.capacity()));
        if found.to_bytes() > modelled {
            let message = format!(
                "{} holds {}, and the model {name} only {modelled}: make it smaller, or take another model",
                child.name(),
                found.to_bytes()
            );
            return Err(Error::misuse(message));
        }
        let clock = Clock::start(model, env);
        Ok(Emulated {
            child,
            name: name.into(),
            medium: None,
            clock,
            places: Semaphore::new(UNDER_WAY_MAX),
            trace: None,
            keep: Mutex::new(None),
        })
    }

    /// Begins in the state that a file holds, if it is there: wear, and what flash has where. [`close`](Emulated::close), or
    /// the end of the device, writes the file. `model` and `seed` are those that the device was made of. Comes before any
    /// request.
    pub fn kept_in(self, path: &Path, model: &ModelFile, seed: u64) -> Result<Emulated> {
        *self.keep.lock() = Some(self.clock.look(|state| Keep::open(path, model, seed, state))?);
        Ok(self)
    }

    /// What the device has done, in this life and those before it.
    pub fn counters(&self) -> Counters {
        self.clock.look(|model| model.counters())
    }

    /// Writes the state of the model, if it is to be kept, once.
    pub fn close(&self) -> Result<()> {
        let Some(keep) = self.keep.lock().take() else { return Ok(()) };
        let written = self.clock.look(|model| keep.write(model));
        written.map_err(|error| Error::new(Kind::Failed, format!("{}: its state was not kept: {error}", self.name)))
    }

    /// Gives a record of every request to `trace`, when it is done.
    #[must_use]
    pub fn with_trace(mut self, trace: Trace) -> Emulated {
        self.trace = Some(trace);
        self
    }

    /// Does `work` on the child while the model serves `request`.
    async fn serve<T>(&self, request: Request, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let _place = self.places.acquire().await.expect("never closed");
        let (ticket, depth) = self.clock.submit(request).map_err(refused).within(|| self.name.clone())?;
        let outcome = work.await;
        let completion = ticket.await;
        if let Some(trace) = &self.trace {
            trace(&Record::new(&completion, depth, self.clock.now_ns()));
        }
        outcome
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.clock.stop();
        // Who wants to hear of failure has closed it before.
        let _ = self.close();
    }
}

/// What a refusal means for the caller.
fn refused(error: Refused) -> Error {
    let kind = match error {
        Refused::Range { .. } => Kind::Misuse,
        Refused::Alignment { .. } | Refused::Rewrite { .. } | Refused::PartialSegment { .. } => Kind::Unsupported,
        Refused::Busy { .. } => Kind::Retry,
        Refused::WornOut { .. } => Kind::Failed,
    };
    Error::new(kind, error.to_string())
}

impl Layer for Emulated {
    fn name(&self) -> String {
        format!("{} on {}", self.name, self.child.name())
    }
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    fn capability(&self) -> Capability {
        Capability { medium: self.medium, ..self.child.capability() }
    }
    async fn read(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Bytes> {
        let work = self.child.read(context, at, count);
        if count == Blocks(0) {
            return work.await;
        }
        self.serve(Request::read(at.to_bytes().0, count.to_bytes().0), work).await
    }
    async fn write(&self, context: IoContext, at: Lba, pieces: Vec<Bytes>, durability: Durability) -> Result<()> {
        let count = blocks_of(&pieces);
        let work = self.child.write(context, at, pieces, durability);
        if count == Blocks(0) {
            return work.await;
        }
        let request = Request::write(at.to_bytes().0, count.to_bytes().0);
        self.serve(Request { fua: durability == Durability::Forced, ..request }, work).await
    }
    async fn flush(&self, context: IoContext) -> Result<()> {
        self.serve(Request::flush(), self.child.flush(context)).await
    }
    async fn discard(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        let work = self.child.discard(context, at, count);
        if count == Blocks(0) {
            return work.await;
        }
        self.serve(Request::discard(at.to_bytes().0, count.to_bytes().0), work).await
    }
    async fn provision(&self, context: IoContext, at: Lba, count: Blocks) -> Result<()> {
        self.child.provision(context, at, count).await
    }
    async fn extent(&self, context: IoContext, at: Lba, count: Blocks) -> Result<Extent> {
        self.child.extent(context, at, count).await
    }
}

#[cfg(test)]
mod tests;
