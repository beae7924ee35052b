//! The rules of order that make an array safe, each with a switch, so that explorations can show that they would notice
//! its absence.

/// A rule that an exploration may break on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// All parts of an entry are durable before any block is written in place.
    JournalBeforePlace,
    /// An entry is released when what it wrote in place is durable.
    ReleaseAfterFlush,
    /// A part is overwritten only when its member durably says that it is released.
    MarkBeforeReuse,
    /// An entry is replayed only if every member in use has its part.
    WholeEntries,
    /// What was replayed is durable before the superblock that ends the journal.
    ReplayBeforeSuperblock,
    /// A failed member is durably listed before a write that it missed is acknowledged.
    FailureBeforeAnswer,
    /// Rebuilt groups are durable before a superblock counts them.
    RebuiltBeforeCounted,
    /// Nobody reads or writes a group while it is being written.
    GroupsAlone,
}

impl Rule {
    /// All rules, with their names and what they say.
    pub const ALL: [(Rule, &'static str, &'static str); 8] = [
        (
            Rule::JournalBeforePlace,
            "journal-before-place",
            "all parts of a journal entry are durable before any block is written in place",
        ),
        (
            Rule::ReleaseAfterFlush,
            "release-after-flush",
            "a journal entry is released only when what it wrote in place is durable",
        ),
        (
            Rule::MarkBeforeReuse,
            "mark-before-reuse",
            "a part of the journal is overwritten only when its member durably says that it is released",
        ),
        (Rule::WholeEntries, "whole-entries", "a journal entry is replayed only if every member in use has its part"),
        (
            Rule::ReplayBeforeSuperblock,
            "replay-before-superblock",
            "what was replayed is durable before the superblock that ends the journal",
        ),
        (
            Rule::FailureBeforeAnswer,
            "failure-before-answer",
            "a failed member is durably listed before a write that it missed is acknowledged",
        ),
        (
            Rule::RebuiltBeforeCounted,
            "rebuilt-before-counted",
            "rebuilt groups are durable before a superblock counts them",
        ),
        (Rule::GroupsAlone, "groups-alone", "nobody reads or writes a group while it is being written"),
    ];

    /// A rule by its name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.iter().find(|(_, known, _)| *known == name).map(|(rule, ..)| *rule)
    }
}
