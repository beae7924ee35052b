//! The rules of order that make the engine safe, each with a switch, so that explorations can show that they would notice
//! its absence.

ashlar_env::rules! {
    FlushStaging = "flush-staging":
        "a flush returns only after the flush of the staging device",
    FlushDirect = "flush-direct":
        "what went straight to the disk has durable pointers before a flush returns",
    DataBeforePointers = "data-before-pointers":
        "data are durable on the disk before pointers to them are",
    StagedBeforeReuse = "staged-before-reuse":
        "a block of the disk is overwritten only when what supersedes it is durable in staging",
    FreeAfterCommit = "free-after-commit":
        "a block is free only when the transaction that dropped the last pointer to it is durable",
    RecycleWithPointer = "recycle-with-pointer":
        "staging gives up data in the transaction that installs the pointer to their new home",
    MoveUnchanged = "move-unchanged":
        "what was overwritten while it was on its way to the disk stays staged",
    HoldForSnapshots = "hold-for-snapshots":
        "a block that a snapshot sees is not free",
    SnapshotGoneBeforeFree = "snapshot-gone-before-free":
        "what a snapshot held is free only when the snapshot is gone, durably",
}
