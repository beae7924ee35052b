//! Messages and how they compose.

use bytes::Bytes;

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The key has this value.
    Put(Bytes),
    /// The key has no value.
    Delete,
    /// The key's value, whatever it is, is overlaid with this patch.
    Patch(Bytes),
}

/// What values mean, where that matters: how patches overlay, and what is lost when a value goes.
///
/// `Lost` collects whatever must be given back when values disappear (for the pool's map: extents). Losses are reported
/// exactly once per message that enters a tree.
pub trait Semantics: Send + Sync + 'static {
    /// Collects what is lost.
    type Lost: Default + Send + Sync + 'static;
    /// `newer` over `older`, either of which may be a value or a patch. Associative.
    fn overlay(&self, key: &[u8], older: &[u8], newer: &[u8], lost: &mut Self::Lost) -> Bytes;
    /// What remains of a value or patch when nothing lies below it; `None` if nothing remains.
    fn settle(&self, key: &[u8], value: Bytes) -> Option<Bytes>;
    /// The value or patch of `key` goes.
    fn lose(&self, key: &[u8], value: &[u8], lost: &mut Self::Lost);
    /// Adds what was lost elsewhere.
    fn gather(lost: &mut Self::Lost, elsewhere: Self::Lost);
}

impl Message {
    /// The value or patch; nothing for a deletion.
    pub fn payload(&self) -> &[u8] {
        match self {
            Message::Put(value) | Message::Patch(value) => value,
            Message::Delete => &[],
        }
    }
    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.payload().len()
    }
    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// This message, if it may still be overlaid on something below: a patch.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Message::Patch(_))
    }
    /// `self` happened, then `newer`.
    pub(crate) fn then<S: Semantics>(self, key: &[u8], newer: Message, semantics: &S, lost: &mut S::Lost) -> Message {
        match (self, newer) {
            (Message::Put(older), Message::Patch(newer)) => Message::Put(semantics.overlay(key, &older, &newer, lost)),
            (Message::Patch(older), Message::Patch(newer)) => {
                Message::Patch(semantics.overlay(key, &older, &newer, lost))
            }
            (Message::Delete, Message::Patch(newer)) => Message::Put(newer),
            (older, newer) => {
                older.lose(key, semantics, lost);
                newer
            }
        }
    }
    /// `self` with nothing below.
    pub(crate) fn closed(self) -> Message {
        match self {
            Message::Patch(patch) => Message::Put(patch),
            closed => closed,
        }
    }
    pub(crate) fn lose<S: Semantics>(&self, key: &[u8], semantics: &S, lost: &mut S::Lost) {
        if let Message::Put(value) | Message::Patch(value) = self {
            semantics.lose(key, value, lost);
        }
    }
    /// The value that the key has under this message when nothing lies below.
    pub(crate) fn value<S: Semantics>(self, key: &[u8], semantics: &S) -> Option<Bytes> {
        match self {
            Message::Put(value) | Message::Patch(value) => semantics.settle(key, value),
            Message::Delete => None,
        }
    }
}
