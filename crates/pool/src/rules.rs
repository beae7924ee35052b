//! The rules of order that make the pool safe, each with a switch, so that explorations can show that they would notice
//! its absence.

ashlar_env::rules! {
    FlushOnSync = "flush-on-sync":
        "a sync returns only after the device flush",
    DataBeforeSuperblock = "data-before-superblock":
        "everything that a superblock refers to is flushed before the superblock is written",
    FreeAfterSuperblock = "free-after-superblock":
        "space is freed only when the superblock that forgets it is durable",
    VerifyTail = "verify-tail":
        "recovery verifies the payload of batches that may not have been flushed",
    AdoptReplayed = "adopt-replayed":
        "what batches that are applied again lie in is in use before anything is written",
    RangesInOrder = "ranges-in-order":
        "a range delete takes what was there before it and nothing that came after",
    CopyBeforeMove = "copy-before-move":
        "the cleaner's copies are durable before the log speaks of them",
    WaitForReaders = "wait-for-readers":
        "a segment is reused only when the readers that may still want it are gone",
    StillWhileSharing = "still-while-sharing":
        "extents do not move between the reading of a reference and the commit that copies it",
    HoldWhileTrimming = "hold-while-trimming":
        "nobody takes a segment while its device is told that it is free",
    ListBeforeUse = "list-before-use":
        "a new device is on the list of devices before anything names it",
}
