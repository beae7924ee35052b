//! The rules of order that make the engine safe, each with a switch, so that explorations can show that they would notice
//! its absence.

/// A rule that an exploration may break on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A flush returns after the staging device's.
    FlushStaging,
    /// What went straight to the disk is durable there before a flush returns.
    FlushDirect,
    /// Data are durable on the disk before pointers to them are.
    DataBeforePointers,
    /// A block of the disk is overwritten only when what supersedes it is durable in staging.
    StagedBeforeReuse,
    /// A block that nothing refers to any more is free only when the transaction that dropped it is durable.
    FreeAfterCommit,
    /// Staging gives up data in the transaction that installs the pointer to their new home.
    RecycleWithPointer,
    /// What was overwritten while it was on its way to the disk stays staged.
    MoveUnchanged,
    /// A block that a snapshot sees is not free.
    HoldForSnapshots,
    /// What a snapshot held is free only when the snapshot is gone, durably.
    SnapshotGoneBeforeFree,
}

impl Rule {
    /// All rules, with their names and what they say.
    pub const ALL: [(Rule, &'static str, &'static str); 9] = [
        (Rule::FlushStaging, "flush-staging", "a flush returns only after the flush of the staging device"),
        (
            Rule::FlushDirect,
            "flush-direct",
            "what went straight to the disk has durable pointers before a flush returns",
        ),
        (Rule::DataBeforePointers, "data-before-pointers", "data are durable on the disk before pointers to them are"),
        (
            Rule::StagedBeforeReuse,
            "staged-before-reuse",
            "a block of the disk is overwritten only when what supersedes it is durable in staging",
        ),
        (
            Rule::FreeAfterCommit,
            "free-after-commit",
            "a block is free only when the transaction that dropped the last pointer to it is durable",
        ),
        (
            Rule::RecycleWithPointer,
            "recycle-with-pointer",
            "staging gives up data in the transaction that installs the pointer to their new home",
        ),
        (
            Rule::MoveUnchanged,
            "move-unchanged",
            "what was overwritten while it was on its way to the disk stays staged",
        ),
        (Rule::HoldForSnapshots, "hold-for-snapshots", "a block that a snapshot sees is not free"),
        (
            Rule::SnapshotGoneBeforeFree,
            "snapshot-gone-before-free",
            "what a snapshot held is free only when the snapshot is gone, durably",
        ),
    ];

    /// A rule by its name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.iter().find(|(_, known, _)| *known == name).map(|(rule, ..)| *rule)
    }
}
