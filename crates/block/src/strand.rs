//! Strands: operations that are issued in order, so many at a time, so that the disk can serve what is nearest.

use crate::Result;
use ashlar_env::BoxFuture;
use ashlar_units::Lba;
use bytes::Bytes;
use std::future::poll_fn;
use std::task::Poll;

/// Neighbouring blocks: where they begin, and their contents, in pieces of whole blocks.
pub type Run = (Lba, Vec<Bytes>);

/// Blocks in ascending order, neighbours together.
pub fn runs_of(mut blocks: Vec<(Lba, Bytes)>) -> Vec<Run> {
    blocks.sort_unstable_by_key(|(at, _)| *at);
    let mut runs: Vec<Run> = Vec::new();
    for (at, block) in blocks {
        match runs.last_mut() {
            Some((from, pieces)) if *from + crate::blocks_of(pieces) == at => pieces.push(block),
            _ => runs.push((at, vec![block])),
        }
    }
    runs
}
/// Runs the operations, at most `most` at once, each begun as soon as there is room, in their order. Gives the first error
/// after all that were begun have ended; nothing is begun behind an error.
pub async fn strand<'a, T: Send>(
    most: usize,
    operations: impl IntoIterator<Item = BoxFuture<'a, Result<T>>>,
) -> Result<Vec<T>> {
    let mut waiting = operations.into_iter().enumerate();
    let mut results: Vec<Option<T>> = Vec::new();
    let mut under_way: Vec<(usize, BoxFuture<'a, Result<T>>)> = Vec::new();
    let mut failed = None;
    poll_fn(move |context| {
        loop {
            while failed.is_none() && under_way.len() < most.max(1) {
                let Some(next) = waiting.next() else { break };
                results.push(None);
                under_way.push(next);
            }
            let before = under_way.len();
            under_way.retain_mut(|(index, operation)| match operation.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(Ok(value)) => {
                    results[*index] = Some(value);
                    false
                }
                Poll::Ready(Err(error)) => {
                    failed.get_or_insert(error);
                    false
                }
            });
            if under_way.is_empty() && before == 0 {
                return Poll::Ready(match failed.take() {
                    Some(error) => Err(error),
                    None => Ok(results.drain(..).flatten().collect()),
                });
            }
            if under_way.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await
}
