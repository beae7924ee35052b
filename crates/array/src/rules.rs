//! The rules of order that make an array safe, each with a switch, so that explorations can show that they would notice
//! its absence.

ashlar_env::rules! {
    JournalBeforePlace = "journal-before-place":
        "all parts of a journal entry are durable before any block is written in place",
    ReleaseAfterFlush = "release-after-flush":
        "a journal entry is released only when what it wrote in place is durable",
    MarkBeforeReuse = "mark-before-reuse":
        "a part of the journal is overwritten only when its member durably says that it is released",
    WholeEntries = "whole-entries":
        "a journal entry is replayed only if every member in use has its part",
    ReplayBeforeSuperblock = "replay-before-superblock":
        "what was replayed is durable before the superblock that ends the journal",
    FailureBeforeAnswer = "failure-before-answer":
        "a failed member is durably listed before a write that it missed is acknowledged",
    RebuiltBeforeCounted = "rebuilt-before-counted":
        "rebuilt groups are durable before a superblock counts them",
    GroupsAlone = "groups-alone":
        "nobody reads or writes a group while it is being written",
}
