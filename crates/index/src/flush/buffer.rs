//! Buffers: whether what arrives at a node becomes a run, and how much of the buffer must be read and written for it.

use super::{Batch, Flusher, Points, is_damage, load_ahead};
use crate::node::{Body, Child, Node, Run};
use crate::{Key, NodePtr, NodeStore, Semantics, filter};
use ashlar_block::Result;
use bytes::Bytes;
use std::sync::Arc;

/// Messages of more than this share of a buffer are a run of their own where buffers have runs; fewer lie in the node itself.
const RUN_SHARE: usize = 64;
/// Runs of less than this share of a buffer are small: they become one when there are too many.
const SMALL_SHARE: usize = 8;

/// A node and as much of its buffer as a batch for it needs.
pub(super) struct Approach {
    pub(super) node: Arc<Node>,
    /// The newest of its runs. All of them, unless `appends`.
    pub(super) runs: Vec<Arc<Node>>,
    /// What arrives becomes a run, together with these.
    pub(super) appends: bool,
}

/// What a batch for a node consists of.
#[derive(Clone, Copy)]
pub(super) struct Arriving {
    /// Bytes of its messages.
    pub(super) bytes: usize,
    /// Whether it has range deletes.
    pub(super) deletes: bool,
}

impl<S: Semantics, N: NodeStore> Flusher<'_, S, N> {
    /// The newest `count` runs of a node.
    pub(super) async fn load_runs(&self, node: &Node, count: usize) -> Result<Vec<Arc<Node>>> {
        let ptrs: Vec<NodePtr> = node.runs.iter().take(count).map(|run| run.ptr).collect();
        load_ahead(self.store, &ptrs).await;
        let mut runs = Vec::with_capacity(ptrs.len());
        for ptr in ptrs {
            let run = self.load(ptr).await?;
            run.check_run(node.level())?;
            runs.push(run);
        }
        Ok(runs)
    }

    /// The node at `ptr`, with what a batch for it needs of its buffer.
    pub(super) async fn approach(
        &self,
        ptr: NodePtr,
        level: Option<u8>,
        low: &[u8],
        high: Option<&[u8]>,
        arriving: Arriving,
    ) -> Result<Approach> {
        let node = self.load_placed(ptr, level, low, high).await?;
        if let Some(count) = self.appends(&node, low, high, arriving) {
            return Ok(Approach { runs: self.load_runs(&node, count).await?, node, appends: true });
        }
        let runs =
            if self.stays(&node, arriving) { Vec::new() } else { self.load_runs(&node, node.runs.len()).await? };
        Ok(Approach { node, runs, appends: false })
    }

    /// Whether what arrives only becomes a run of the node's buffer, and together with how many of the newest there.
    pub(super) fn appends(&self, node: &Node, low: &[u8], high: Option<&[u8]>, arriving: Arriving) -> Option<usize> {
        // Range deletes may free much below, so they go on.
        let only_points = arriving.bytes > 0 && !arriving.deletes;
        if self.limits.runs == 0 || node.level() == 0 || !only_points || self.errands.thorough {
            return None;
        }
        let full = node.pending_len() + arriving.bytes > self.limits.buffer_bytes;
        if full || self.errands.lead_to(low, high, node.level() - 1) {
            return None;
        }
        if node.runs.len() < self.limits.runs {
            return Some(0);
        }
        let is_small = |run: &&Run| (run.ptr.raw_len as usize) < self.limits.buffer_bytes / SMALL_SHARE;
        let small = node.runs.iter().take_while(is_small).count();
        (small >= self.limits.runs / 2).then_some(small)
    }

    /// Whether the node or a run of it must be written elsewhere.
    pub(super) fn leaves(&self, ptr: &NodePtr, node: &Node) -> bool {
        self.errands.leaves(ptr) || node.runs.iter().any(|run| self.errands.leaves(&run.ptr))
    }

    /// Runs that stay in a buffer: those that must leave their segments are copied, as far as they can be read.
    pub(super) async fn carry(&mut self, runs: &[Run], level: u8) -> Result<Vec<Run>> {
        let mut carried = runs.to_vec();
        for run in carried.iter_mut().filter(|run| self.errands.leaves(&run.ptr)) {
            let old = match self.load(run.ptr).await.and_then(|old| old.check_run(level).map(|()| old)) {
                Err(error) if is_damage(&error) => continue,
                old => old?,
            };
            let entries: Points = old.messages().map(|(key, message)| (Key::from_slice(key), message)).collect();
            let body = Body { is_run: true, deleted: &old.deleted, entries: &entries, ..Body::default() };
            let ptr = self.write(level - 1, old.low(), body).await?;
            self.replaced.push(std::mem::replace(run, Run::new(ptr, run.filter.clone())).ptr);
        }
        Ok(carried)
    }

    /// Whether the buffer of a node stays as it is: if anything changes, then only children of it, and where parts of it lie.
    pub(super) fn stays(&self, node: &Node, arriving: Arriving) -> bool {
        let sinking = self.errands.thorough && (node.has_pending() || node.level() > 1);
        arriving.bytes == 0 && !arriving.deletes && !sinking
    }

    /// What arrives, what the node itself holds, and the runs of the approach become one run.
    pub(super) async fn append_run(
        &mut self,
        ptr: NodePtr,
        approach: &Approach,
        low: &[u8],
        batch: Batch,
    ) -> Result<Vec<Child>> {
        let node = &approach.node;
        let batch = self.merge_all(approach, batch);
        let taken = approach.runs.len();
        self.replaced.push(ptr);
        self.replaced.extend(node.runs[..taken].iter().map(|run| run.ptr));
        let mut children = node.children.clone();
        if let Some(first) = children.first_mut() {
            first.low = Key::from_slice(low);
        }
        let runs = self.carry(&node.runs[taken..], node.level()).await?;
        let ptr = self.write_node(node.level(), low, &children, &runs, batch).await?;
        Ok(vec![Child { low: Key::from_slice(low), ptr }])
    }

    /// The node at `ptr` and its runs are no longer needed.
    pub(super) fn replace(&mut self, ptr: NodePtr, node: &Node) {
        self.replaced.push(ptr);
        self.replaced.extend(node.runs.iter().map(|run| run.ptr));
    }

    /// The node's own messages and those of the runs, under the arriving batch.
    pub(super) fn merge_all(&mut self, approach: &Approach, batch: Batch) -> Batch {
        let batch = self.merge(&approach.node, batch);
        approach.runs.iter().fold(batch, |newer, run| self.merge(run, newer))
    }

    /// An interior node with these messages in its buffer, above older runs. Where buffers have runs, many messages become one.
    pub(super) async fn write_node(
        &mut self,
        level: u8,
        low: &[u8],
        children: &[Child],
        older: &[Run],
        pending: Batch,
    ) -> Result<NodePtr> {
        let becomes_run = self.limits.runs > 0 && pending.len() > self.limits.buffer_bytes / RUN_SHARE;
        let Batch { points, deleted } = pending;
        if !becomes_run {
            let body = Body { children, runs: older, deleted: &deleted, entries: &points, is_run: false };
            return self.write(level, low, body).await;
        }
        let body = Body { is_run: true, deleted: &deleted, entries: &points, ..Body::default() };
        let run = self.write(level - 1, low, body).await?;
        // What a range delete covers, a filter of keys cannot say.
        let keys = points.iter().map(|(key, _)| key.as_slice());
        let filter = if deleted.is_empty() { filter::of(keys) } else { Bytes::new() };
        let runs: Vec<Run> = std::iter::once(Run::new(run, filter)).chain(older.iter().cloned()).collect();
        self.write(level, low, Body { children, runs: &runs, ..Body::default() }).await
    }
}
