//! The rules of order that make the region store safe, each with a switch, so that explorations can show that they would
//! notice its absence.

/// A rule that an exploration may break on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A synchronous change returns when it is durable.
    FlushOnSync,
    /// The log says that a region is being written before an onode is written into it.
    OpenBeforeOnode,
    /// The copy that replaces another is durable before the log says that the other is retired.
    CopyBeforeRetire,
    /// Space of a retired copy is reused only when its retirement is durable.
    Quarantine,
    /// Recovery compares data with checksums where an onode may have become durable before its data.
    VerifyTail,
    /// Of two copies of an object the newest counts.
    NewestWins,
    /// What is made of parts counts when the log ends the parts and says so, in one batch.
    CommitCompose,
    /// Everything that a checkpoint describes is flushed before its superblock is written.
    FlushBeforeSuperblock,
    /// Space of index nodes is reused only when the superblock that forgets them is durable.
    FreeAfterSuperblock,
    /// Opening makes its number durable before it gives a version.
    EpochBeforeChange,
}

impl Rule {
    /// All rules, with their names and what they say.
    pub const ALL: [(Rule, &'static str, &'static str); 10] = [
        (Rule::FlushOnSync, "flush-on-sync", "a synchronous change returns only when it is durable"),
        (
            Rule::OpenBeforeOnode,
            "open-before-onode",
            "the log says that a region is being written before an onode is written into it",
        ),
        (
            Rule::CopyBeforeRetire,
            "copy-before-retire",
            "the copy that replaces another is durable before the log retires the other",
        ),
        (Rule::Quarantine, "quarantine", "space of a retired copy is reused only when its retirement is durable"),
        (
            Rule::VerifyTail,
            "verify-tail",
            "recovery compares data with checksums where an onode may have become durable before its data",
        ),
        (Rule::NewestWins, "newest-wins", "of two copies of an object the newest counts"),
        (
            Rule::CommitCompose,
            "commit-compose",
            "what is made of parts counts only when the log ends the parts, in the same batch",
        ),
        (
            Rule::FlushBeforeSuperblock,
            "flush-before-superblock",
            "everything that a checkpoint describes is flushed before its superblock is written",
        ),
        (
            Rule::FreeAfterSuperblock,
            "free-after-superblock",
            "space of index nodes is reused only when the superblock that forgets them is durable",
        ),
        (
            Rule::EpochBeforeChange,
            "epoch-before-change",
            "opening makes its own number durable before it gives the first version",
        ),
    ];

    /// A rule by its name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.iter().find(|(_, known, _)| *known == name).map(|(rule, ..)| *rule)
    }
}
