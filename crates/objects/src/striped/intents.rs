//! Intents: which pieces may belong to nobody after a crash.

use super::{ASYNC, AT_ONCE, Known, SYNC, Striped, everything};
use crate::manifest::{Manifest, Piece, RUN_LEN, piece_name};
use crate::{Attributes, Condition, Error, List, Name, Put, RESERVED, Result};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Attribute of intents: the object.
const OWNER: &str = "\0owner";

fn intent_prefix() -> Vec<u8> {
    [RESERVED, b"intent/"].concat()
}

impl Striped {
    /// Notes pieces that may soon belong to nobody.
    pub(super) async fn intend(&self, owner: &Name, pieces: &Manifest) -> Result<Name> {
        let number = u128::from(self.env.random()) << 64 | u128::from(self.env.random());
        let name = Name::new([&intent_prefix()[..], &number.to_be_bytes()].concat())?;
        let owner = Bytes::copy_from_slice(owner.as_bytes());
        let attributes = Attributes::from([(OWNER.into(), owner)]);
        let put = Put { change: SYNC, attributes, ..Put::default() };
        self.inner.put(&name, vec![pieces.encode()], put).await?;
        Ok(name)
    }

    /// Deletes pieces; those that are not there were never written.
    pub(super) async fn drop_pieces(&self, pieces: impl IntoIterator<Item = Piece>) -> Result<()> {
        let delete = |piece| {
            let inner = self.inner.clone();
            self.env.spawn(async move {
                match inner.delete(&piece_name(piece)?, ASYNC).await {
                    Ok(()) | Err(Error::NotFound(_)) => Ok(()),
                    Err(error) => Err(error),
                }
            })
        };
        let mut pieces = pieces.into_iter().peekable();
        while pieces.peek().is_some() {
            let tasks: Vec<_> = pieces.by_ref().take(AT_ONCE).map(delete).collect();
            for task in tasks {
                task.await?;
            }
        }
        Ok(())
    }

    /// Settles what intents say, of all objects or of these: pieces that the owner does not have are deleted. Nobody changes
    /// those objects meanwhile.
    pub(super) async fn settle(&self, owners: Option<&BTreeSet<&Name>>) -> Result<()> {
        let mut from = Bound::Unbounded;
        loop {
            let page = self.inner.list(List { prefix: intent_prefix(), from, limit: 100 }).await?;
            let (last, more) = (page.objects.last().map(|intent| intent.name.clone()), page.more);
            let mut settled = Vec::new();
            for intent in page.objects {
                let owner = Name::new(intent.attributes.get(OWNER).cloned().unwrap_or_default())?;
                if owners.is_none_or(|owners| owners.contains(&owner)) {
                    self.settle_one(&intent.name, &owner).await?;
                    settled.push(intent.name);
                }
            }
            if !settled.is_empty() {
                // The pieces are gone for good before that is forgotten.
                self.inner.sync().await?;
                for intent in &settled {
                    self.inner.delete(intent, ASYNC).await?;
                }
                self.inner.sync().await?;
            }
            match last {
                Some(last) if more => from = Bound::Excluded(last),
                _ => return Ok(()),
            }
        }
    }

    /// Deletes the pieces that an intent names and its owner does not have.
    async fn settle_one(&self, intent: &Name, owner: &Name) -> Result<()> {
        let content = self.inner.get(intent, everything(), Condition::Any).await?.data.concat();
        let runs = content.chunks_exact(RUN_LEN);
        let size = runs.map(|run| run.last_chunk::<8>().map_or(0, |len| u64::from_le_bytes(*len))).sum();
        let owned = match self.known(owner, Condition::Any).await? {
            Some(Known { manifest: Some(manifest), .. }) => manifest.pieces(self.piece),
            _ => BTreeSet::new(),
        };
        let named = Manifest::decode(&content, size)?.pieces(self.piece);
        self.drop_pieces(named.difference(&owned).copied()).await
    }
}
