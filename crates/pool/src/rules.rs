//! The rules of order that make the pool safe, each with a switch, so that explorations can show that they would notice
//! its absence.

/// A rule that an exploration may break on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A sync returns after the device flush.
    FlushOnSync,
    /// Everything that a superblock refers to is flushed before the superblock is written.
    DataBeforeSuperblock,
    /// Space is freed only when the superblock that forgets it is durable.
    FreeAfterSuperblock,
    /// Recovery verifies the payload of batches that may not have been flushed.
    VerifyTail,
    /// The cleaner's copies are durable before the log speaks of them.
    CopyBeforeMove,
    /// A segment is reused only when the readers that may still want it are gone.
    WaitForReaders,
    /// Extents do not move between the reading of a reference and the commit that copies it.
    StillWhileSharing,
    /// A device is listed before it is used.
    ListBeforeUse,
}

impl Rule {
    /// All rules, with their names and what they say.
    pub const ALL: [(Rule, &'static str, &'static str); 8] = [
        (Rule::FlushOnSync, "flush-on-sync", "a sync returns only after the device flush"),
        (
            Rule::DataBeforeSuperblock,
            "data-before-superblock",
            "everything that a superblock refers to is flushed before the superblock is written",
        ),
        (
            Rule::FreeAfterSuperblock,
            "free-after-superblock",
            "space is freed only when the superblock that forgets it is durable",
        ),
        (Rule::VerifyTail, "verify-tail", "recovery verifies the payload of batches that may not have been flushed"),
        (Rule::CopyBeforeMove, "copy-before-move", "the cleaner's copies are durable before the log speaks of them"),
        (
            Rule::WaitForReaders,
            "wait-for-readers",
            "a segment is reused only when the readers that may still want it are gone",
        ),
        (
            Rule::StillWhileSharing,
            "still-while-sharing",
            "extents do not move between the reading of a reference and the commit that copies it",
        ),
        (Rule::ListBeforeUse, "list-before-use", "a new device is on the list of devices before anything names it"),
    ];

    /// A rule by its name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.iter().find(|(_, known, _)| *known == name).map(|(rule, ..)| *rule)
    }
}
