//! The rules of order that make the store safe, each with a switch, so that explorations can show that they would notice
//! its absence.

/// A rule that an exploration may break on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// An object and the end of what it replaces are one transaction.
    ChangeAtOnce,
    /// A place is listed as being built before anything is built there.
    ListBuilding,
    /// Versions are reserved durably before one is given out.
    ReserveVersions,
}

impl Rule {
    /// All rules, with their names and what they say.
    pub const ALL: [(Rule, &'static str, &'static str); 3] = [
        (Rule::ChangeAtOnce, "change-at-once", "an object and the end of what it replaces are one transaction"),
        (Rule::ListBuilding, "list-building", "a place is listed as being built before anything is built there"),
        (Rule::ReserveVersions, "reserve-versions", "versions are reserved durably before one is given out"),
    ];

    /// A rule by its name.
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.iter().find(|(_, known, _)| *known == name).map(|(rule, ..)| *rule)
    }
}
