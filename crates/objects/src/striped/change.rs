//! Changes of large objects: fresh pieces, one change of the manifest, and the old pieces go.

use super::pieces::{cut, take_front, zeros};
use super::{ASYNC, Known, Striped, everything, striped, with_own};
use crate::manifest::{Manifest, RUN_LEN, Run};
use crate::{
    Change, Condition, Name, Put, Result, Stat, checksum, checksum_of_both, checksum_of_zeros, checksum_with, len_of,
};
use bytes::Bytes;

/// Runs that become one when a manifest is full.
const JOINED: usize = 64;

impl Striped {
    /// Replaces an object by a manifest with fresh runs, which `data` are the contents of. The old manifest's pieces that the
    /// new one does not have go.
    pub(super) async fn commit(
        &self,
        name: &Name,
        old: Option<&Known>,
        new: (Manifest, u64),
        fresh: Vec<(Run, Vec<Bytes>)>,
        put: Put,
    ) -> Result<Stat> {
        let (manifest, sum) = new;
        let mut intents = Vec::new();
        if !fresh.is_empty() {
            intents.push(self.intend(name, &Manifest(fresh.iter().map(|(run, _)| *run).collect())).await?);
        }
        for (run, data) in fresh {
            self.write_pieces(run, data).await?;
        }
        if !intents.is_empty() {
            self.inner.sync().await?;
        }
        let attributes = with_own(put.attributes, manifest.size(), sum);
        let put = Put { attributes, expected: None, ..put };
        let content = manifest.encode();
        self.replace(name, old, &manifest, vec![content], put, intents).await
    }

    /// Replaces an object, and settles the pieces that it had.
    pub(super) async fn replace(
        &self,
        name: &Name,
        old: Option<&Known>,
        manifest: &Manifest,
        content: Vec<Bytes>,
        put: Put,
        mut intents: Vec<Name>,
    ) -> Result<Stat> {
        let before = old.and_then(|old| old.manifest.as_ref());
        if let Some(before) = before {
            intents.push(self.intend(name, before).await?);
        }
        let stat = self.inner.put(name, content, put).await?;
        let stat = striped(&stat).unwrap_or(stat);
        if let Some(before) = before {
            // The old pieces may go only when the old manifest cannot come back.
            self.inner.sync().await?;
            let kept = manifest.pieces(self.piece);
            self.drop_pieces(before.pieces(self.piece).difference(&kept).copied()).await?;
            self.inner.sync().await?;
        } else if !intents.is_empty() {
            self.inner.sync().await?;
        }
        for intent in intents {
            self.inner.delete(&intent, ASYNC).await?;
        }
        Ok(stat)
    }

    /// A manifest with so few runs that it fits: neighbouring short ones are copied into one.
    async fn bounded(&self, mut manifest: Manifest, fresh: &mut Vec<(Run, Vec<Bytes>)>) -> Result<Manifest> {
        let most = (self.piece as usize / RUN_LEN).max(2);
        let count = JOINED.min(most / 2).max(2);
        while manifest.0.len() > most {
            let Some((from, to)) = manifest.shortest(count) else { break };
            let part = manifest.slice(from, to);
            let mut data = Vec::new();
            for run in &part.0 {
                match fresh.iter().find(|(new, _)| new.stripe == run.stripe && run.skip >= new.skip) {
                    Some((new, held)) => data.extend(cut(held, run.skip - new.skip, run.len)),
                    None => data.extend(self.read_runs(&Manifest(vec![*run])).await?),
                }
            }
            let run = Run { stripe: self.fresh(), skip: 0, len: to - from };
            fresh.push((run, data));
            let size = manifest.size();
            manifest = manifest.slice(0, from).then(Manifest(vec![run])).then(manifest.slice(to, size));
        }
        Ok(manifest)
    }

    /// The manifest of an object, with its contents as a fresh stripe if it had none.
    pub(super) fn as_manifest(&self, data: Vec<Bytes>, fresh: &mut Vec<(Run, Vec<Bytes>)>) -> Manifest {
        let len = len_of(&data);
        if len == 0 {
            return Manifest::default();
        }
        let run = Run { stripe: self.fresh(), skip: 0, len };
        fresh.push((run, data));
        Manifest(vec![run])
    }

    pub(super) async fn overwrite(
        &self,
        name: &Name,
        known: &Known,
        at: u64,
        data: Vec<Bytes>,
        change: Change,
    ) -> Result<Stat> {
        let (size, len) = (known.stat.size, len_of(&data));
        let (end, mut fresh) = (at + len, Vec::new());
        let old = match &known.manifest {
            Some(manifest) => manifest.clone(),
            None => {
                let content = self.inner.get(name, everything(), Condition::Any).await?.data;
                self.as_manifest(content, &mut fresh)
            }
        };
        // Where it cuts pieces, what is beside it in them is written again, so that runs begin where pieces do.
        let low = at.min(size) - at.min(size) % self.piece;
        let high = end.next_multiple_of(self.piece).min(size).max(low);
        let read = |from: u64, to: u64| {
            let (part, fresh) = (old.slice(from, to), &fresh);
            async move {
                match &fresh[..] {
                    [(_, held)] => Ok(cut(held, from, to.saturating_sub(from))),
                    _ => self.read_runs(&part).await,
                }
            }
        };
        let before = read(low, at.min(size)).await?;
        let replaced = read(at.min(size), end.min(size)).await?;
        let behind = if end < high { read(end, high).await? } else { Vec::new() };
        let gap = at.saturating_sub(size);
        let sum = if at >= size {
            let padded = checksum_of_both(known.stat.checksum, checksum_of_zeros(gap), gap);
            checksum_of_both(padded, checksum(&data), len)
        } else if end <= size {
            checksum_with(known.stat.checksum, checksum(&replaced), checksum(&data), size - end)
        } else {
            let inside = size - at;
            let front = cut(&data, 0, inside);
            let sum = checksum_with(known.stat.checksum, checksum(&replaced), checksum(&front), 0);
            checksum_of_both(sum, checksum(&cut(&data, inside, len - inside)), len - inside)
        };
        // A gap that lies in one piece with the data is written as zeros; a long one is none.
        let long = gap > self.piece;
        let mut content = before;
        let mut middle = Manifest::default();
        if long {
            middle = self.as_manifest(std::mem::take(&mut content), &mut fresh);
            middle = middle.then(Manifest(vec![Run { stripe: 0, skip: 0, len: gap }]));
        } else {
            content.extend(zeros(gap));
        }
        content.extend(data);
        content.extend(behind);
        let front = old.slice(0, low);
        let tail = self.extend((&old, &front), &middle, content, &mut fresh);
        let manifest = front.then(middle).then(tail).then(old.slice(high, size));
        let manifest = self.bounded(manifest, &mut fresh).await?;
        // Runs that nothing needs are not written.
        fresh.retain(|(run, _)| manifest.0.iter().any(|used| used.stripe == run.stripe && overlaps(used, run)));
        let attributes = known.stat.attributes.clone();
        let version = Condition::Version(known.stat.version);
        let put = Put { change: Change { condition: version, ..change }, expected: None, attributes };
        self.commit(name, Some(known), (manifest, sum), fresh, put).await
    }

    /// Contents as runs: whole pieces go on where the stripe before them ends, if it ends where a piece does, so that an object
    /// that grows at its end stays a few runs; the rest is a stripe of its own. They do not go on where the object as it was
    /// has pieces of that stripe: it needs them until the change is committed.
    fn extend(
        &self,
        (old, front): (&Manifest, &Manifest),
        middle: &Manifest,
        mut content: Vec<Bytes>,
        fresh: &mut Vec<(Run, Vec<Bytes>)>,
    ) -> Manifest {
        let last = if middle.0.is_empty() { front.0.last() } else { None };
        let goes_on = last.filter(|last| {
            last.stripe != 0
                && last.skip == 0
                && last.len.is_multiple_of(self.piece)
                && front.0.iter().filter(|run| run.stripe == last.stripe).count() == 1
                && old.0.iter().all(|run| run.stripe != last.stripe || run.skip + run.len <= last.len)
        });
        let len = len_of(&content);
        let whole = len - len % self.piece;
        let mut manifest = Manifest::default();
        if let Some(last) = goes_on.filter(|last| whole > 0 && !fresh.iter().any(|(run, _)| run.stripe == last.stripe))
        {
            let run = Run { stripe: last.stripe, skip: last.skip + last.len, len: whole };
            let mut data = Vec::new();
            for _ in 0..whole / self.piece {
                data.extend(take_front(&mut content, self.piece));
            }
            fresh.push((run, data));
            manifest = Manifest(vec![run]);
        }
        manifest.then(self.as_manifest(content, fresh))
    }

    /// A part in the form of a manifest, for composing.
    pub(super) async fn striped_part(&self, name: &Name) -> Result<Known> {
        let known = self.found(name, Condition::Any).await?;
        if known.manifest.is_some() {
            return Ok(known);
        }
        let data = self.inner.get(name, everything(), Condition::Any).await?.data;
        let mut fresh = Vec::new();
        let manifest = self.as_manifest(data, &mut fresh);
        let put = Put { change: ASYNC, expected: None, attributes: known.stat.attributes.clone() };
        let stat = self.commit(name, Some(&known), (manifest.clone(), known.stat.checksum), fresh, put).await?;
        Ok(Known { stat, manifest: Some(manifest) })
    }
}

fn overlaps(a: &Run, b: &Run) -> bool {
    a.skip < b.skip + b.len && b.skip < a.skip + a.len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Memory};
    use ashlar_env::sim::{Schedule, Sim};
    use std::sync::Arc;

    const PIECE: u64 = 16 << 10;

    /// The stripes in which two pieces behind the first `low` bytes of an object of `size` bytes, all in stripe 7, are written.
    fn stripes(size: u64, low: u64) -> Vec<(u128, u64)> {
        let sim = Sim::new(1, Schedule::Fifo);
        let env = sim.env();
        let run = async move {
            let limits = Limits { object: PIECE, attributes: 12 << 10, unit: PIECE };
            let inner = Arc::new(Memory::new(env.clone(), 1 << 20).with_limits(limits));
            let striped = Striped::open(&env, inner).await.expect("open");
            let old = Manifest(vec![Run { stripe: 7, skip: 0, len: size }]);
            let content = vec![Bytes::from(vec![1; 2 * PIECE as usize])];
            let mut fresh = Vec::new();
            striped.extend((&old, &old.slice(0, low)), &Manifest::default(), content, &mut fresh);
            fresh.into_iter().map(|(run, _)| (run.stripe, run.skip)).collect()
        };
        sim.run(run).expect("no deadlock")
    }

    #[test]
    fn a_stripe_goes_on_only_behind_all_that_the_object_has_of_it() {
        assert_eq!(stripes(2 * PIECE, 2 * PIECE), [(7, 2 * PIECE)], "it grows");
        for (size, low) in [(2 * PIECE, PIECE), (2 * PIECE + 100, 2 * PIECE), (5 * PIECE, 2 * PIECE)] {
            let written = stripes(size, low);
            assert!(
                !written.is_empty() && written.iter().all(|(stripe, _)| *stripe != 7),
                "{size}, {low}: {written:?}"
            );
        }
    }
}
