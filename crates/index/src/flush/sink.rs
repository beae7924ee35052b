//! Sinking: what is pending in a buffer goes to the children that have most of it, some of them at once.

use super::{Batch, Flusher, below, is_damage, load_ahead};
use crate::node::{Child, entry_len};
use crate::{BoxFuture, Key, NodePtr, NodeStore, RangeSet, Semantics};
use ashlar_block::{Error, Result};
use std::pin::Pin;

/// What became of a child and of what was meant for it.
enum Outcome {
    /// These stand in its place.
    Becomes(Vec<Child>),
    /// Nothing: it was not visited.
    Stays(Child, Batch),
    /// It cannot be read.
    Aside(Child, Batch, Error),
}

/// A visit of a child, that has ended or that somebody else makes.
enum Visit<L> {
    Ended(Result<Outcome>),
    Apart(BoxFuture<Part<L>>),
}

/// What somebody else did of a flush.
struct Part<L> {
    outcome: Result<Outcome>,
    replaced: Vec<NodePtr>,
    lost: L,
}

type Fetch<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Does the work, and goes on with fetching meanwhile.
async fn beside<T>(fetching: &mut Option<Fetch<'_>>, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        if fetching.as_mut().is_some_and(|fetch| fetch.as_mut().poll(context).is_ready()) {
            *fetching = None;
        }
        work.as_mut().poll(context)
    })
    .await
}

/// Share of a buffer that one pending range delete weighs: it may free much below, so it should sink soon.
const RANGE_SHARE: usize = 64;

/// Bytes of messages that a node may keep for children that are set aside: they are written anew with every change to it, and
/// decoders refuse four times as much. A leaf of the usual size has 64 KiB; more comes where much is new in its range.
const ASIDE_BYTES_MAX: usize = 16 << 20;

/// So many children are read at once when messages sink to them, while those before them are visited; one after the other, a flush
/// would wait for each.
const LOAD_AHEAD: usize = 8;

/// Messages of less than this share of a buffer are not worth waking somebody who would help.
const APART_SHARE: usize = 64;

impl<S: Semantics, N: NodeStore> Flusher<'_, S, N> {
    /// Pushes pending messages to the children that have most of them, until the rest fits.
    pub(super) async fn sink(
        &mut self,
        level: u8,
        children: &mut Vec<Child>,
        high: Option<&[u8]>,
        pending: &mut Batch,
    ) -> Result<()> {
        let ends: Vec<Option<Key>> =
            children.iter().skip(1).map(|child| Some(child.low.clone())).chain([high.map(Key::from_slice)]).collect();
        let targets = self.targets(level, children, &ends, pending);
        if targets.iter().all(Option::is_none) {
            return Ok(());
        }
        let visits = self.start_visits(level - 1, std::mem::take(children), ends, targets, pending).await;
        self.end_visits(visits, children, pending).await
    }

    /// For each child that is to get its messages, the bytes of these.
    fn targets(&self, level: u8, children: &[Child], ends: &[Option<Key>], pending: &Batch) -> Vec<Option<usize>> {
        let mut bytes = vec![0usize; children.len()];
        let child_of = |key: &[u8]| children.partition_point(|child| child.low.as_slice() <= key).saturating_sub(1);
        for (key, message) in &pending.points {
            bytes[child_of(key)] += entry_len(key, message);
        }
        let mut weights = bytes.clone();
        for (low, end) in pending.deleted.iter() {
            let (first, last) = (child_of(low), child_of(end));
            weights[first..=last].iter_mut().for_each(|weight| *weight += self.limits.buffer_bytes / RANGE_SHARE);
        }
        let mut total: usize = weights.iter().sum();
        let mut heaviest: Vec<usize> = (0..children.len()).collect();
        heaviest.sort_by_key(|index| std::cmp::Reverse(weights[*index]));
        let mut chosen = vec![false; children.len()];
        if total > self.limits.buffer_bytes {
            // What stays is written anew. With runs nothing is until the buffer is full again, so less of it stays.
            let stays = self.limits.buffer_bytes / if self.limits.runs > 0 { 8 } else { 2 };
            for index in heaviest {
                if total <= stays {
                    break;
                }
                chosen[index] = true;
                total -= weights[index];
            }
        }
        for ((child, end), chosen) in children.iter().zip(ends).zip(&mut chosen) {
            *chosen |= self.errands.lead_to(&child.low, end.as_deref(), level - 1);
        }
        if self.errands.thorough {
            // Whatever may hold pending messages: children that get some, and all interior ones.
            chosen.iter_mut().zip(&weights).for_each(|(chosen, weight)| *chosen |= *weight > 0 || level > 1);
        }
        chosen.into_iter().zip(bytes).map(|(chosen, bytes)| chosen.then_some(bytes)).collect()
    }

    /// Visits those children, one after another or by whoever helps. It ends early if a visit fails.
    async fn start_visits(
        &mut self,
        level: u8,
        children: Vec<Child>,
        ends: Vec<Option<Key>>,
        targets: Vec<Option<usize>>,
        pending: &mut Batch,
    ) -> Vec<Visit<S::Lost>> {
        let mut points = std::mem::take(&mut pending.points).into_iter();
        let wanted: Vec<NodePtr> =
            children.iter().zip(&targets).filter(|(_, target)| target.is_some()).map(|(child, _)| child.ptr).collect();
        let store = self.store;
        let mut windows = wanted.chunks(LOAD_AHEAD);
        let mut fetch_next = || windows.next().map(|window| -> Fetch<'_> { Box::pin(load_ahead(store, window)) });
        let (mut fetching, mut ahead) = (fetch_next(), 0);
        let mut visits = Vec::with_capacity(children.len());
        for ((child, end), target) in children.into_iter().zip(ends).zip(targets) {
            let count = below(points.as_slice(), end.as_deref());
            let points = points.by_ref().take(count).collect();
            let Some(bytes) = target else {
                let batch = Batch { points, deleted: RangeSet::default() };
                visits.push(Visit::Ended(Ok(Outcome::Stays(child, batch))));
                continue;
            };
            if ahead == 0 {
                if let Some(fetch) = fetching.take() {
                    fetch.await;
                }
                (fetching, ahead) = (fetch_next(), LOAD_AHEAD);
            }
            ahead -= 1;
            let batch = Batch { points, deleted: pending.deleted.take(&child.low, end.as_deref()) };
            // Where heads move, nodes lie in the order of their keys, or a scan would be many short reads.
            let may_part = self.limits.runs > 0 && bytes >= self.limits.buffer_bytes / APART_SHARE;
            let visit = match may_part.then(|| self.store.helper()).flatten() {
                Some(helper) => self.visit_apart(helper, child, level, end, batch),
                None => Visit::Ended(beside(&mut fetching, self.visit(child, level, end, batch)).await),
            };
            let failed = matches!(visit, Visit::Ended(Err(_)));
            visits.push(visit);
            if failed {
                break;
            }
        }
        visits
    }

    /// Waits for all visits, also if one has failed: nobody goes on behind a flush's back. Gives what stands in the children's place, and
    /// what is still pending.
    async fn end_visits(
        &mut self,
        visits: Vec<Visit<S::Lost>>,
        children: &mut Vec<Child>,
        pending: &mut Batch,
    ) -> Result<()> {
        let (mut aside, mut failed) = (None, None);
        for visit in visits {
            let outcome = match visit {
                Visit::Ended(outcome) => outcome,
                Visit::Apart(part) => {
                    let Part { outcome, mut replaced, lost } = part.await;
                    self.replaced.append(&mut replaced);
                    S::gather(&mut self.lost, lost);
                    outcome
                }
            };
            match outcome {
                Ok(Outcome::Becomes(mut replacement)) => children.append(&mut replacement),
                Ok(Outcome::Stays(child, batch)) => {
                    children.push(child);
                    pending.add(batch);
                }
                Ok(Outcome::Aside(child, batch, error)) => {
                    children.push(child);
                    pending.add(batch);
                    aside = Some(error);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        match aside {
            Some(error) if pending.len() > ASIDE_BYTES_MAX => Err(error.within(
                "an index node cannot be read, and too much was changed in its range to be kept beside it; copy what can be \
                 read to another volume",
            )),
            _ => Ok(()),
        }
    }

    /// Pushes a batch to a child of `level` whose range ends at `end`.
    async fn visit(&mut self, child: Child, level: u8, end: Option<Key>, batch: Batch) -> Result<Outcome> {
        match self.approach(child.ptr, Some(level), &child.low, end.as_deref(), batch.arriving()).await {
            Ok(approach) => self.push(child.ptr, approach, child.low.to_vec(), end, batch).await.map(Outcome::Becomes),
            Err(error) if is_damage(&error) => Ok(Outcome::Aside(child, batch, error)),
            Err(error) => Err(error),
        }
    }

    /// The same, by somebody else.
    fn visit_apart(
        &self,
        helper: N::Helper,
        child: Child,
        level: u8,
        end: Option<Key>,
        batch: Batch,
    ) -> Visit<S::Lost> {
        let (semantics, errands) = (self.semantics.clone(), self.errands.clone());
        let (limits, tree, store) = (self.limits, self.tree, helper.clone());
        Visit::Apart(helper.run(async move {
            let (replaced, lost) = (Vec::new(), S::Lost::default());
            let (store, semantics, errands) = (&store, &semantics, &errands);
            let mut flusher = Flusher { store, semantics, limits, tree, errands, replaced, lost };
            let outcome = flusher.visit(child, level, end, batch).await;
            Part { outcome, replaced: flusher.replaced, lost: flusher.lost }
        }))
    }
}
