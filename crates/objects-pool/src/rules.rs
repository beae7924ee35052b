//! The rules of order that make the store safe, each with a switch, so that explorations can show that they would notice
//! its absence.

ashlar_env::rules! {
    ChangeAtOnce = "change-at-once":
        "an object and the end of what it replaces are one transaction",
    ListBuilding = "list-building":
        "a place is listed as being built before anything is built there",
    ReserveVersions = "reserve-versions":
        "versions are reserved durably before one is given out",
}
