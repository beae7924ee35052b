//! Thin devices: room is set aside before it is counted upon.
//!
//! A file with holes takes room from its file system when they are written, and others may have taken that before. A pool that
//! learned it from a write that failed could not go on: what the write was to make durable is acknowledged, and a checkpoint that
//! stops half-way has no end. So only segments are used for which the device set room aside, and some are ahead of those who
//! write. When there is no room for more, the pool is as large as what it has: ordinary writes are refused, and all else works as
//! in a pool that is full. Segments are used lowest first, and none gives its room back, so those that have some are the lowest
//! ones: opening asks for these again, which needs no room, and no record is kept.

use crate::Pool;
use ashlar_block::{IoContext, Kind};
use std::sync::atomic::Ordering;
use std::time::Duration;

const PROVISION: IoContext = IoContext::background("provision");
/// Room that there was not is asked for so often, while nobody writes.
const AGAIN: Duration = Duration::from_secs(5);

impl Pool {
    /// Has room set aside as far as it is wanted and there is some. Whether more segments have it now.
    pub(crate) async fn provision(&self) -> bool {
        let shared = &self.0;
        let _one = shared.providing.lock().await;
        let place = |slot: &u32| shared.layout.places().position(|place| place.slots.contains(slot));
        let mut gained = false;
        // Who has no room is not asked again; then it is for others.
        loop {
            let lacking = shared.space.lacking(shared.env.now());
            let Some(mut run) = lacking.chunk_by(|one, next| one + 1 == *next && place(one) == place(next)).next()
            else {
                break;
            };
            loop {
                let (place, at, blocks) = shared.layout.stretch(run);
                match place.device.provision(PROVISION, at, blocks).await {
                    Err(error) if error.kind() == Kind::NoSpace && run.len() > 1 => run = &run[..run.len() / 2],
                    Err(error) if error.kind() == Kind::NoSpace => {
                        shared.space.refuse(run[0], shared.env.now());
                        break;
                    }
                    // Another error will be met by who writes there.
                    _ => {
                        shared.space.provide(run);
                        gained = true;
                        break;
                    }
                }
            }
        }
        gained
    }

    /// Has room set aside ahead of those who write, until the pool is closed.
    pub(crate) async fn provider(self) {
        let shared = &self.0;
        while !shared.stopped.load(Ordering::Acquire) && shared.admit().is_ok() {
            shared.env.within(AGAIN, shared.space.wanted.notified()).await;
            self.provision().await;
        }
    }
}
