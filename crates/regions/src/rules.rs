//! The rules of order that make the region store safe, each with a switch, so that explorations can show that they would
//! notice its absence.

ashlar_env::rules! {
    FlushOnSync = "flush-on-sync":
        "a synchronous change returns only when it is durable",
    OpenBeforeOnode = "open-before-onode":
        "the log says that a region is being written before an onode is written into it",
    CopyBeforeRetire = "copy-before-retire":
        "the copy that replaces another is durable before the log retires the other",
    RetireRefused = "retire-refused":
        "the log retires a copy whose write failed before anything else is said of its object",
    Quarantine = "quarantine":
        "space of a retired copy is reused only when its retirement is durable",
    VerifyTail = "verify-tail":
        "recovery compares data with checksums where an onode may have become durable before its data",
    NewestWins = "newest-wins":
        "of two copies of an object the newest counts",
    CommitCompose = "commit-compose":
        "what is made of parts counts only when the log ends the parts, in the same batch",
    FlushBeforeSuperblock = "flush-before-superblock":
        "everything that a checkpoint describes is flushed before its superblock is written",
    FreeAfterSuperblock = "free-after-superblock":
        "space of index nodes is reused only when the superblock that forgets them is durable",
    EpochBeforeChange = "epoch-before-change":
        "opening makes its own number durable before it gives the first version",
}
