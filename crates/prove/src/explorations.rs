//! What `ashlar prove NAME` explores by random histories with power cuts in the simulated runtime.

use crate::{
    ArrayOptions, BetrSetting, Failure, FilesOptions, ObjectsGround, ObjectsOptions, ObjectsRule, Options,
    ProximalOptions, RegionOptions, explore, explore_array, explore_files, explore_objects, explore_proximal,
    explore_regions, explore_together, explore_trees,
};
use ashlar_pool::Rule;
use std::collections::BTreeSet;

/// What a history came to, whatever it was of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Power cuts, or kills, survived.
    pub cuts: u64,
    /// Operations that were acknowledged, or whose results agreed with the model.
    pub operations: u64,
    /// What a mounted file system does not support, and was not tried.
    pub lacking: BTreeSet<String>,
}

impl Seen {
    fn new(cuts: u64, operations: u64) -> Seen {
        Seen { cuts, operations, lacking: BTreeSet::new() }
    }
}

/// A rule of order: its name, and what it says.
pub type RuleText = (&'static str, &'static str);

/// An exploration of something, by name.
pub struct Exploration {
    /// What follows `ashlar prove` on the command line.
    pub name: &'static str,
    rules: fn() -> Vec<RuleText>,
    explore: fn(u64, Option<&str>) -> Result<Seen, Failure>,
}

impl Exploration {
    /// An exploration by its name.
    pub fn named(name: &str) -> Option<&'static Exploration> {
        EXPLORATIONS.iter().find(|exploration| exploration.name == name)
    }

    /// The rules of order that can be broken: its own, then those of what it stands on.
    pub fn rules(&self) -> Vec<RuleText> {
        (self.rules)()
    }

    /// Explores the history of a seed, perhaps without a rule of [`Exploration::rules`].
    ///
    /// # Errors
    /// What was found.
    pub fn explore(&self, seed: u64, without: Option<&str>) -> Result<Seen, Failure> {
        (self.explore)(seed, without)
    }
}

/// All of them.
pub static EXPLORATIONS: [Exploration; 8] = [
    Exploration {
        name: "pool",
        rules: || texts(Rule::ALL),
        explore: |seed, without| {
            let without = without.and_then(Rule::named);
            let outcome = explore(seed, Options { without, ..Options::default() })?;
            Ok(Seen::new(outcome.cuts, outcome.commits))
        },
    },
    Exploration {
        name: "files",
        rules: || texts(Rule::ALL),
        explore: |seed, without| {
            // Every other history has a hash of two bits, so that names collide.
            let hash_bits = if seed.is_multiple_of(2) { 55 } else { 2 };
            let without = without.and_then(Rule::named);
            explore_engine(seed, FilesOptions { without, hash_bits, ..FilesOptions::default() })
        },
    },
    Exploration {
        name: "betr",
        rules: || [texts(ashlar_betr::Rule::ALL), texts(Rule::ALL)].concat(),
        explore: |seed, without| {
            let mut setting = BetrSetting::of_seed(seed);
            setting.without = without.and_then(ashlar_betr::Rule::named);
            let without = without.and_then(Rule::named);
            explore_engine(seed, FilesOptions { without, betr: Some(setting), ..FilesOptions::default() })
        },
    },
    Exploration {
        name: "objects",
        rules: || object_rules(ObjectsGround::Pool),
        explore: |seed, without| objects(ObjectsGround::Pool, seed, without),
    },
    Exploration {
        name: "objects --engine proximal",
        rules: || object_rules(ObjectsGround::Proximal),
        explore: |seed, without| objects(ObjectsGround::Proximal, seed, without),
    },
    Exploration {
        name: "regions",
        rules: || texts(ashlar_regions::Rule::ALL),
        explore: |seed, without| {
            let without = without.and_then(ashlar_regions::Rule::named);
            let outcome = explore_regions(seed, RegionOptions { without, ..RegionOptions::default() })?;
            Ok(Seen::new(outcome.cuts, outcome.changes))
        },
    },
    Exploration {
        name: "proximal",
        rules: || texts(ashlar_proximal::Rule::ALL),
        explore: |seed, without| {
            let without = without.and_then(ashlar_proximal::Rule::named);
            let outcome = explore_proximal(seed, ProximalOptions { without, ..ProximalOptions::default() })?;
            Ok(Seen::new(outcome.cuts, outcome.operations))
        },
    },
    Exploration {
        name: "array",
        rules: || texts(ashlar_array::Rule::ALL),
        explore: |seed, without| {
            let without = without.and_then(ashlar_array::Rule::named);
            let outcome = explore_array(seed, ArrayOptions { without, ..ArrayOptions::default() })?;
            Ok(Seen::new(outcome.cuts, outcome.writes))
        },
    },
];

fn texts<R, const N: usize>(all: [(R, &'static str, &'static str); N]) -> Vec<RuleText> {
    all.into_iter().map(|(_, name, what)| (name, what)).collect()
}

fn object_rules(ground: ObjectsGround) -> Vec<RuleText> {
    ObjectsRule::all(ground).into_iter().map(|(_, name, what)| (name, what)).collect()
}

fn objects(ground: ObjectsGround, seed: u64, without: Option<&str>) -> Result<Seen, Failure> {
    let without = without.and_then(|name| ObjectsRule::named(ground, name));
    let outcome = explore_objects(seed, ObjectsOptions { without, ground, ..ObjectsOptions::default() })?;
    Ok(Seen::new(outcome.cuts, outcome.changes))
}

/// A history with power cuts; and, unless a rule of the pool is broken, which those would not notice, one of several callers at once and one
/// of trees that are removed.
fn explore_engine(seed: u64, options: FilesOptions) -> Result<Seen, Failure> {
    let outcome = explore_files(seed, options)?;
    if options.without.is_some() {
        return Ok(Seen::new(outcome.cuts, outcome.operations));
    }
    let together = explore_together(seed, options.betr)?.operations;
    let trees = explore_trees(seed, options.betr, false)?;
    Ok(Seen::new(outcome.cuts + trees.cuts, outcome.operations + together + trees.names))
}

#[cfg(test)]
mod tests {
    use super::EXPLORATIONS;
    use std::collections::BTreeSet;

    #[test]
    fn names_of_rules_are_unique_within_an_exploration() {
        for exploration in &EXPLORATIONS {
            let names: BTreeSet<&str> = exploration.rules().iter().map(|(name, _)| *name).collect();
            assert_eq!(names.len(), exploration.rules().len(), "{}", exploration.name);
        }
    }
}
