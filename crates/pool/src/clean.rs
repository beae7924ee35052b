//! Cleaning: segments that are mostly dead give up the rest, so that whole segments become free.
//!
//! A round picks victims by benefit over cost (Rosenblum and Ousterhout, LFS, §3.5: free space gained times age, over the
//! reading and writing), copies what lives to the *cold* stream, makes the copies durable, and only then points the map
//! at them, in ordinary logged transactions. Index nodes are not copied: the round's checkpoint writes them anew
//! elsewhere. Whether something lives is asked of the index, under the key that its batch recorded with it.
//!
//! A round holds the checkpoint lock: a segment of copies that nothing points at yet must not be taken for empty.
//!
//! Departs   What a snapshot still sees is left in its place, since moving the volume's reference would free nothing.

use crate::checkpoint::Chores;
use crate::commit::Txn;
use crate::format::{Item, Stream, VolumeKind, decode_body};
use crate::map::{Form, Map, Run, back_range, decode, decode_back};
use crate::scan::Scanner;
use crate::space::Claim;
use crate::store::{Held, Holding};
use crate::{Pool, Rule, VolumeState};
use ashlar_block::{Kind, Result};
use ashlar_index::{Errands, Key, Tree, prefix_end};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// Live bytes that one round moves, about.
const ROUND_BYTES: u64 = 8 << 20;
/// For so long a round waits for those who share extents.
const SHARING_PATIENCE: Duration = Duration::from_millis(100);
/// Moves in one transaction: at worst, each logs 16 runs with 32 checksums, 2,700 bytes, of the 512 KiB that it may.
const MOVES_PER_COMMIT: usize = 128;

/// What came of the live extents of a round.
#[derive(PartialEq, Eq)]
enum Moved {
    /// All that can be moved.
    All,
    /// Those for which there was room.
    Some,
    /// None: they may not move now.
    None,
}

/// A live extent of a victim: where it is referred to, and what refers to it.
struct Living {
    tree: u64,
    key: Key,
    runs: Vec<Run>,
}

impl Pool {
    /// Whether free space is so low that cleaning should run.
    pub(crate) fn should_clean(&self) -> bool {
        self.0.space.is_low()
    }

    /// Cleans one round, needed or not; whether it gained free segments.
    pub async fn clean(&self) -> Result<bool> {
        let shared = &self.0;
        let _one = shared.checkpointing.lock().await;
        shared.admit()?;
        let most = ROUND_BYTES.min(shared.space.room_for_copies());
        let victims = shared.space.victims(most, shared.layout.segment_bytes());
        if victims.is_empty() {
            return Ok(false);
        }
        let before = shared.space.emptying();
        let mut errands: BTreeMap<u64, Errands> = BTreeMap::new();
        let mut living = Vec::new();
        let mut shared_until: BTreeMap<u64, u64> = BTreeMap::new();
        for uid in &victims {
            for item in self.items(*uid).await? {
                let owner =
                    *shared_until.entry(item.tree).or_insert_with(|| shared.ownership(item.tree).shared_until());
                if let Some(level) = item.level {
                    let errand = errands.entry(item.tree).or_default();
                    errand.leave.extend(&victims);
                    errand.leave_born_after = owner;
                    let lowest = errand.routes.entry(Key::from_slice(&item.key)).or_insert(level);
                    *lowest = level.min(*lowest);
                } else if let Ok(tree) = shared.tree(item.tree) {
                    let place = (*uid, item.offset);
                    living.extend(self.living(&tree, Key::from_slice(&item.key), place, owner).await?);
                }
            }
            self.back_references(*uid, &mut living).await?;
        }
        let moved = match self.copy(living).await {
            // No log for the moves. Copies that nothing points at are free after a checkpoint.
            Err(error) if error.kind() == Kind::NoSpace => return Ok(false),
            copied => copied?,
        };
        // Moves are messages, and what they leave is free when they have met the leaves. While the copies are in the reserve that
        // is now: else a round takes space and gains none, and the next finds no room.
        let thorough = shared.space.is_overdrawn();
        self.checkpoint_locked(Chores { errands, thorough, ..Chores::default() }).await?;
        shared.release_drained();
        if moved == Moved::All {
            shared.space.note_cleaned(&victims);
        }
        Ok(moved != Moved::None && shared.space.emptying() > before)
    }

    /// What under `key` still refers to the extent at `place` and belongs to the volume alone.
    async fn living(&self, tree: &Tree<Map>, key: Key, place: (u64, u32), owner: u64) -> Result<Option<Living>> {
        // Where the index cannot be read nobody knows what lives: it stays in its place.
        let Some(value) = readable(tree.get(self, &key).await)? else { return Ok(None) };
        let mut runs = decode(&value.unwrap_or_default())?;
        runs.retain(|run| run.form != Form::Hole && (run.uid, run.offset) == place && run.birth > owner);
        Ok((!runs.is_empty()).then_some(Living { tree: tree.id(), key, runs }))
    }

    /// References to extents of a segment that its own batches do not name: they were made by sharing.
    async fn back_references(&self, uid: u64, living: &mut Vec<Living>) -> Result<()> {
        let shared = &self.0;
        let first = back_range(uid);
        let end = prefix_end(&first);
        let live = |(id, volume): (&u64, &VolumeState)| match volume.kind {
            VolumeKind::Live { .. } => Some((*id, volume.tree.clone())),
            VolumeKind::Snapshot { .. } => None,
        };
        let trees: Vec<_> = shared.volumes.read().iter().filter_map(live).collect();
        for (id, tree) in trees {
            let owner = shared.ownership(id).shared_until();
            let mut low = first.clone();
            loop {
                let Some(page) = readable(tree.page(self, &low, end.as_deref(), 1024).await)? else { break };
                for (key, _) in &page.entries {
                    let Some((offset, chunk)) = decode_back(key) else { continue };
                    // The batch of the extent may name the same chunk.
                    let names = |known: &Living| {
                        let extent = known.runs.first().map(|run| (run.uid, run.offset));
                        known.tree == id && known.key == chunk && extent == Some((uid, offset))
                    };
                    if !living.iter().any(names) {
                        living.extend(self.living(&tree, chunk, (uid, offset), owner).await?);
                    }
                }
                match page.next {
                    Some(next) => low = next,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// What the batches of a segment say is in it.
    pub(crate) async fn items(&self, uid: u64) -> Result<Vec<Item>> {
        let mut scanner = Scanner::new(&self.0);
        let (mut items, mut at) = (Vec::new(), 0);
        // Behind a lead that cannot be read nobody knows what is there: it stays in its place.
        while let Ok(Some(lead)) = scanner.lead(uid, at).await {
            at += lead.blocks();
            if let Ok(Some(body)) = scanner.body(&lead).await {
                items.extend(decode_body(&lead, &body)?.0);
            }
        }
        Ok(items)
    }

    /// Copies extents to the cold stream, durably, and points the map at the copies. As many as there is room for.
    async fn copy(&self, living: Vec<Living>) -> Result<Moved> {
        let shared = &self.0;
        let (mut moves, mut moved) = (Vec::new(), Moved::All);
        'full: for Living { tree, key, runs } in living {
            let mut copied: Option<Run> = None;
            for run in runs {
                if let Some(copied) = copied.as_ref().filter(|_| run.form != Form::Raw) {
                    let copy = run.copied_to(copied.uid, copied.offset);
                    moves.push((tree, key.clone(), run, copy));
                    continue;
                }
                let Ok(stored) = shared.read_stored(&run).await else {
                    continue; // damage stays where it is, and is reported when somebody reads it
                };
                let mut sealed = Vec::new();
                let placed = {
                    let mut cold = shared.side(Stream::Cold).lock();
                    let room = (stored.len() as u64, key.len() + 32);
                    let made =
                        cold.make_room(room.0, room.1, &shared.space, &shared.layout, Claim::Copies, &mut sealed);
                    let placed = made.map(|()| cold.append(tree, &key, None, stored.clone()));
                    if let Ok((segment, offset)) = &placed {
                        shared.begin_flight(Stream::Cold, segment.uid, *offset, stored);
                    }
                    shared.expect(Stream::Cold, &sealed);
                    placed
                };
                for batch in sealed {
                    shared.write(Stream::Cold, batch).await?;
                }
                let (segment, offset) = match placed {
                    Err(error) if error.kind() == Kind::NoSpace => {
                        moved = Moved::Some;
                        break 'full;
                    }
                    placed => placed?,
                };
                let copy = run.copied_to(segment.uid, offset);
                copied = Some(copy.clone());
                moves.push((tree, key.clone(), run, copy));
            }
        }
        if moves.is_empty() {
            return Ok(moved);
        }
        shared.seal_side(Stream::Cold).await?;
        if shared.keeps(Rule::CopyBeforeMove) {
            shared.flush_devices().await?;
        }
        let _alone = match shared.keeps(Rule::StillWhileSharing) {
            true => match self.alone().await {
                None => return Ok(Moved::None), // nothing points at the copies: the round's checkpoint frees them
                alone => alone,
            },
            false => None,
        };
        let bytes: u64 = moves.iter().map(|(.., copy)| copy.weight()).sum();
        shared.moved.fetch_add(bytes, Ordering::Relaxed);
        for moves in moves.chunks(MOVES_PER_COMMIT) {
            match self.relocate(moves, Arc::default()) {
                // A node that the decisions need is not in memory. One by one, since the cache may not have room for all.
                Err(error) if error.kind() == Kind::Retry => {
                    for one in moves {
                        let held = Arc::default();
                        if let Ok(tree) = shared.tree(one.0) {
                            tree.get(&Holding(self, &held), &one.1).await?;
                        }
                        self.relocate(std::slice::from_ref(one), held)?;
                    }
                }
                other => other?,
            }
        }
        Ok(moved)
    }

    /// Nobody shares extents, which must not move meanwhile. `None` if whoever does so does not come to an end soon: for its
    /// commit it may need the space that this very round is to gain.
    async fn alone(&self) -> Option<tokio::sync::RwLockWriteGuard<'_, ()>> {
        let mut alone = std::pin::pin!(self.0.moving.write());
        let mut patience = std::pin::pin!(self.0.env.sleep(SHARING_PATIENCE));
        std::future::poll_fn(|context| match alone.as_mut().poll(context) {
            Poll::Ready(guard) => Poll::Ready(Some(guard)),
            Poll::Pending => patience.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Points the map at copies, in one transaction. `Retry`: a node is missing that is neither cached nor held.
    fn relocate(&self, moves: &[Move], held: Arc<Held>) -> Result<()> {
        let mut txn = Txn::new().deleting();
        (txn.closing, txn.held) = (true, held);
        moves.iter().for_each(|(tree, key, from, to)| txn.relocate(*tree, key.clone(), from.clone(), to.clone()));
        let (_, sealed) = self.0.apply(&txn)?;
        self.0.start_writes(sealed);
        Ok(())
    }
}

/// `None` for damage, which is reported when somebody reads it.
fn readable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Failed) => Ok(None),
        other => other.map(Some),
    }
}

/// Tree, key, and what is referred to before and after.
type Move = (u64, Key, Run, Run);

impl Run {
    /// The same part of the extent, whose stored bytes for this part now begin at `offset` of segment `uid`.
    fn copied_to(&self, uid: u64, offset: u32) -> Run {
        let mut copy = Run { uid, offset, ..self.clone() };
        if self.form == Form::Raw {
            // Only this part was copied: it is an extent of its own now.
            let start = u32::from(self.skip) * ashlar_units::BLOCK_LEN as u32;
            let end = start + u32::from(self.count) * ashlar_units::BLOCK_LEN as u32;
            (copy.skip, copy.total) = (0, self.count);
            copy.stored = end.min(self.stored).saturating_sub(start);
        }
        copy
    }
}
