//! Which options of format and mount suit a workload (FAST '10, sections 3 and 5): each alone, then those that helped
//! together, the best first.
//!
//! Options trade safety for speed, so each set of them has a [`Class`], and a recommendation never has a lower one than it is for.

mod budget;
mod choices;
mod page;

pub use budget::Budget;
pub use choices::{Choice, Class, Options};
pub use page::{Shown, page};

use crate::age::image::Kind;
use crate::stats::Interval;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// What was measured with some options.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Scored {
    /// The file system.
    pub file_system: &'static str,
    /// What differs from its defaults; empty for those.
    pub options: Vec<&'static str>,
    /// What a crash may leave.
    pub class: Class,
    /// Calls per second.
    pub rate: Interval,
    /// Modelled energy of a run, joules.
    pub modelled_j: Interval,
    /// Calls for each modelled joule.
    pub calls_per_j: Interval,
    /// Its interval and that of the file system's defaults have nothing in common.
    pub distinguishable: bool,
    /// Mean rate divided by that of the file system's defaults.
    pub gain: f64,
}

/// What was measured in one run with some options.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Calls per second.
    pub rate: f64,
    /// Energy of the run, joules.
    pub modelled_j: f64,
    /// Calls for each joule.
    pub calls_per_j: f64,
}

/// Runs with some options, or `None` if the file system does not have them, or they are not measured.
pub type Measured<E> = Result<Option<Vec<Sample>>, E>;

/// The best for those who want at least a class.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Best {
    /// The least that is wanted.
    pub at_least: Class,
    /// Which of those that were measured.
    #[serde(flatten)]
    pub scored: Scored,
    /// Rate divided by that of the best defaults of a file system in this class or a higher one, and by that of the worst; null
    /// if no defaults are in such a class.
    pub over_defaults: Option<(f64, f64)>,
}

/// The name of a set of options.
pub fn names(options: &[&str]) -> String {
    if options.is_empty() { "defaults".into() } else { options.join(", ") }
}

impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Best { at_least, scored, over_defaults } = self;
        write!(f, "at least {at_least}: {} with {}; ", scored.file_system, names(&scored.options))?;
        match over_defaults {
            Some((best, worst)) => write!(f, "{best:.2} to {worst:.2} times the defaults of file systems"),
            None => write!(f, "no defaults of a file system are that safe"),
        }
    }
}

fn apart(one: &Interval, other: &Interval) -> bool {
    // A single measurement says nothing about how far it scatters.
    match (one.half_width, other.half_width) {
        (Some(half), Some(other_half)) => (one.mean - other.mean).abs() > half + other_half,
        _ => false,
    }
}

/// A search on one file system.
struct Search<'a, E> {
    kind: Kind,
    measure: &'a mut dyn FnMut(&Options) -> Measured<E>,
    found: Vec<(Options, Scored)>,
}

impl<E> Search<'_, E> {
    /// Measures options; `None` if the file system does not have them.
    fn score(&mut self, options: Options) -> Result<Option<Scored>, E> {
        let Some(runs) = (self.measure)(&options)? else { return Ok(None) };
        let of = |value: fn(&Sample) -> f64| Interval::of(&runs.iter().map(value).collect::<Vec<_>>());
        let rate = of(|run| run.rate);
        let (modelled_j, calls_per_j) = (of(|run| run.modelled_j), of(|run| run.calls_per_j));
        let (Some(rate), Some(modelled_j), Some(calls_per_j)) = (rate, modelled_j, calls_per_j) else {
            return Ok(None);
        };
        let default = self.found.first().map_or(rate, |(_, default)| default.rate);
        let scored = Scored {
            file_system: self.kind.name(),
            options: options.names(),
            class: options.class(),
            rate,
            modelled_j,
            calls_per_j,
            distinguishable: apart(&rate, &default),
            gain: rate.mean / default.mean,
        };
        self.found.push((options, scored.clone()));
        Ok(Some(scored))
    }

    fn run(&mut self) -> Result<(), E> {
        let Some(default) = self.score(Options::defaults(self.kind))? else { return Ok(()) };
        for choice in Choice::all(self.kind) {
            self.score(Options::defaults(self.kind).with(choice))?;
        }
        // Those that helped, without making the file system less safe.
        let mut helpful: Vec<(Options, Scored)> = self.found[1..].to_vec();
        helpful.retain(|(_, scored)| scored.class >= default.class && scored.gain > 1.0 && scored.distinguishable);
        helpful.sort_by(|(_, one), (_, other)| other.gain.total_cmp(&one.gain));
        let Some((mut best, mut best_scored)) = helpful.first().cloned() else { return Ok(()) };
        for (options, _) in helpful.into_iter().skip(1) {
            let Some(both) = best.and(&options) else { continue };
            if let Some(scored) = self.score(both.clone())?
                && scored.rate.mean > best_scored.rate.mean
            {
                (best, best_scored) = (both, scored);
            }
        }
        Ok(())
    }
}

/// Measures the options of a file system, defaults first.
pub fn search<E>(kind: Kind, measure: &mut dyn FnMut(&Options) -> Measured<E>) -> Result<Vec<Scored>, E> {
    let mut search = Search { kind, measure, found: Vec::new() };
    search.run()?;
    Ok(search.found.into_iter().map(|(_, scored)| scored).collect())
}

/// How far calls per joule go with calls per second over all that was measured: the coefficient of correlation, at most 1.
/// `None` if there are fewer than three, or all alike. FAST '10 found them nearly proportional, since a machine that does
/// nothing takes most of what a busy one takes.
pub fn proportionality(all: &[Scored]) -> Option<f64> {
    let pairs: Vec<(f64, f64)> = all.iter().map(|scored| (scored.rate.mean, scored.calls_per_j.mean)).collect();
    let count = pairs.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| pairs.iter().map(value).sum::<f64>() / count;
    let (rate, efficiency) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let sum = |value: &dyn Fn(f64, f64) -> f64| {
        pairs.iter().map(|(one, other)| value(one - rate, other - efficiency)).sum::<f64>()
    };
    let both = (sum(&|one, _| one * one) * sum(&|_, other| other * other)).sqrt();
    (pairs.len() >= 3 && both > 0.0).then(|| sum(&|one, other| one * other) / both)
}

/// The measured best for each class, of all file systems. What cannot be told from the defaults of its file system is not better
/// than they are, so that none is recommended for noise.
pub fn best(all: &[Scored]) -> Vec<Best> {
    let of_class = |class: Class| {
        let fits = || all.iter().filter(move |scored| scored.class >= class);
        let defaults = || fits().filter(|scored| scored.options.is_empty());
        let sure = |scored: &&Scored| {
            let of_its_own = |defaults: &Scored| defaults.file_system == scored.file_system;
            scored.options.is_empty() || scored.distinguishable || !defaults().any(of_its_own)
        };
        let scored = fits().filter(sure).max_by(|one, other| one.rate.mean.total_cmp(&other.rate.mean))?.clone();
        let rate = |of: fn(f64, f64) -> f64| defaults().map(|scored| scored.rate.mean).reduce(of);
        let over_defaults = rate(f64::max).zip(rate(f64::min));
        let over_defaults = over_defaults.map(|(best, worst)| (scored.rate.mean / best, scored.rate.mean / worst));
        Some(Best { at_least: class, scored, over_defaults })
    };
    Class::ALL.into_iter().filter_map(of_class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::joules;
    use ashlar_models::Chance;
    use std::time::Duration;

    const CALLS: f64 = 10_000.0;

    /// A run at so many calls a second, on the paper's machine, whose disk and processors have the busier the faster it is.
    fn ran(rate: f64) -> Sample {
        let second = Duration::from_secs(1);
        let total = second.mul_f64(CALLS / rate);
        let busy = total.mul_f64((rate / 1000.0).min(1.0));
        let modelled_j = joules(total, busy, 2.0, busy);
        Sample { rate, modelled_j, calls_per_j: CALLS / modelled_j }
    }

    /// Rates by a rule, with noise of 1 %.
    fn noisy(seed: u64, rate: impl Fn(&Options) -> f64) -> impl FnMut(&Options) -> Measured<()> {
        let mut chance = Chance::new(seed);
        move |options| Ok(Some((0..5).map(|_| ran(rate(options) * (1.0 + 0.01 * chance.normal()))).collect()))
    }

    // Inodes of 1 KiB help, groups more, both together most; writeback would beat all, but is less safe.
    fn rule(options: &Options) -> f64 {
        let has = |name: &str| options.names().contains(&name);
        let mut rate = if options.names().is_empty() { 100.0 } else { 99.0 };
        for (name, factor) in
            [("inode=1k", 1.2), ("group=16k", 1.4), ("block=1k", 0.5), ("data=writeback", 3.0), ("no journal", 5.0)]
        {
            rate *= if has(name) { factor } else { 1.0 };
        }
        rate
    }

    // The digest of FAST '10, check 9.
    #[test]
    fn the_measured_best_is_recommended_within_its_class() {
        let mut rankings = Vec::new();
        for seed in 0..5 {
            let mut measured = search(Kind::Ext4, &mut noisy(seed, rule)).expect("no failure");
            measured.extend(search(Kind::Xfs, &mut noisy(seed, |_| 80.0)).expect("no failure"));
            let found = best(&measured);
            let of = |class: Class| found.iter().find(|best| best.at_least == class).expect("some");
            let safe = of(Class::Metadata);
            assert_eq!((safe.scored.file_system, safe.scored.options.clone()), ("ext4", vec!["group=16k", "inode=1k"]));
            let (over_best, over_worst) = safe.over_defaults.expect("both are in the class");
            assert!((over_best / 1.663 - 1.0).abs() < 0.03, "{safe:?}");
            assert!((over_worst / 2.079 - 1.0).abs() < 0.03, "{safe:?}");
            // No defaults are that safe; what is, is named nevertheless.
            let safest = of(Class::Data);
            assert_eq!((safest.scored.options.clone(), safest.over_defaults), (vec!["data=journal"], None));
            assert_eq!(of(Class::StaleData).scored.options, ["data=writeback"]);
            assert_eq!(of(Class::NoJournal).scored.options, ["no journal"]);
            // Of all that was measured in the class, it is the one with the highest mean.
            let all = measured.iter().filter(|scored| scored.class >= Class::Metadata);
            assert!(all.map(|scored| scored.rate.mean).fold(0.0, f64::max) <= safe.scored.rate.mean);
            // No option made of noise is called better.
            let noise = measured.iter().filter(|s| s.file_system == "xfs" && s.distinguishable).count();
            assert!(noise <= 1, "{measured:?}");
            rankings.push(found.iter().map(|best| best.scored.options.clone()).collect::<Vec<_>>());
        }
        assert!(rankings.windows(2).all(|two| two[0] == two[1]), "{rankings:?}");
    }

    #[test]
    fn noise_is_not_recommended() {
        for seed in 0..20 {
            // So much noise that some option is always above the defaults.
            let mut chance = Chance::new(seed);
            let mut measure = |_: &Options| -> Measured<()> {
                Ok(Some((0..3).map(|_| ran(100.0 * (1.0 + 0.1 * chance.normal()).max(0.1))).collect()))
            };
            let measured = search(Kind::Xfs, &mut measure).expect("no failure");
            for Best { scored, .. } in best(&measured) {
                assert!(scored.options.is_empty() || scored.distinguishable, "seed {seed}: {scored:?}");
            }
            if measured.iter().skip(1).all(|scored| !scored.distinguishable) {
                assert!(best(&measured).iter().all(|best| best.scored.options.is_empty()), "seed {seed}");
            }
        }
    }

    // The digest of FAST '10, check 5, as far as arithmetic goes: efficiency is nearly linear in performance over at least 20 sets
    // of options, and their ratio is that of performance divided by that of power.
    #[test]
    fn efficiency_goes_with_performance() {
        let mut measured = search(Kind::Ext4, &mut noisy(1, rule)).expect("no failure");
        measured.extend(search(Kind::Xfs, &mut noisy(2, |_| 80.0)).expect("no failure"));
        measured.extend(search(Kind::Btrfs, &mut noisy(3, |options| 60.0 + rule(options) / 10.0)).expect("no failure"));
        assert!(measured.len() >= 20, "{}", measured.len());
        let found = proportionality(&measured).expect("many");
        assert!(found > 0.99, "{found}");
        let (slow, fast) = (ran(100.0), ran(300.0));
        let watts = |run: &Sample| run.modelled_j * run.rate / CALLS;
        let expected = fast.rate / slow.rate / (watts(&fast) / watts(&slow));
        assert!((fast.calls_per_j / slow.calls_per_j / expected - 1.0).abs() < 1e-12);
        // A machine whose power is all for work is as efficient at any rate.
        for scored in &mut measured {
            scored.calls_per_j.mean = 5.0;
        }
        assert_eq!(proportionality(&measured), None);
        // By hand: deviations (-1, 0, 1) and (-1, 2, -1).
        for (scored, (rate, efficiency)) in measured.iter_mut().zip([(1.0, 1.0), (2.0, 4.0), (3.0, 1.0)]) {
            (scored.rate.mean, scored.calls_per_j.mean) = (rate, efficiency);
        }
        assert_eq!(proportionality(&measured[..3]), Some(0.0));
        assert_eq!(proportionality(&measured[..2]), None);
    }

    #[test]
    fn a_page_shows_file_systems_with_their_best() {
        let mut measured = search(Kind::Ext4, &mut noisy(1, rule)).expect("no failure");
        measured.extend(search(Kind::Xfs, &mut noisy(2, |_| 80.0)).expect("no failure"));
        let (best, missing) = (best(&measured), ["<xfs> agcount=8: no time".to_string()]);
        let (workload, on) = ("varmail", "images of 2 GiB");
        let shown = Shown {
            workload,
            on,
            emulated: true,
            measured: &measured,
            best: &best,
            proportionality: None,
            missing: &missing,
        };
        let html = page(&shown);
        for text in
            ["ext4: rate", "xfs: efficiency", "group=16k, inode=1k", "at least no journal", "&lt;xfs&gt; agcount=8"]
        {
            assert!(html.contains(text), "{text}");
        }
    }

    #[test]
    fn options_that_a_file_system_lacks_are_passed_over() {
        let mut measure = |options: &Options| -> Measured<()> {
            Ok((!options.names().contains(&"block=1k")).then(|| vec![ran(1.0), ran(1.0)]))
        };
        let found = search(Kind::Ext4, &mut measure).expect("no failure");
        assert_eq!(found.len(), Choice::all(Kind::Ext4).count());
        let mut fails = |_: &Options| Err("gone");
        assert_eq!(search(Kind::Btrfs, &mut fails).err(), Some("gone"));
    }
}
