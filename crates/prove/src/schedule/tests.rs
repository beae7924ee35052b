//! Tests of the exploration and of its harnesses. The numbers of executions that the paper has are for `cargo xtask soak`.

use super::*;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn explore(options: ScheduleOptions) -> ScheduleOutcome {
    explore_schedules(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"))
}

fn options(harness: &str, bug: Option<&'static str>, scheduler: Scheduler, iterations: u64) -> ScheduleOptions {
    ScheduleOptions { bug, iterations, ..ScheduleOptions::new(harness, scheduler).expect("it is there") }
}

/// It is found, and its trace, written and read again, replays to the same violation.
fn is_found(harness: &str, bug: &'static str, scheduler: Scheduler, iterations: u64) -> Violation {
    let options = options(harness, Some(bug), scheduler, iterations);
    let outcome = explore(options);
    let found = outcome.violation.clone();
    let found = found.unwrap_or_else(|| panic!("{bug} is not found in {} executions", outcome.executions));
    println!(
        "{harness}, {bug}, {scheduler:?}: iteration {}, {} choices: {}",
        found.iteration, found.choices, found.message
    );
    let text = found.trace.encode().expect("it can be written");
    let read = ScheduleTrace::decode(text.as_bytes()).expect("it can be read");
    let replayed = read.replay().expect("it is known");
    assert_eq!((replayed.message.as_ref(), replayed.diverged), (Some(&found.message), None));
    let again = explore(options).violation.expect("found again");
    assert_eq!(again.trace.encode().expect("written"), text, "the same seed gives another trace");
    found
}

fn is_clean(harness: &str, scheduler: Scheduler, iterations: u64) {
    let outcome = explore(options(harness, None, scheduler, iterations));
    println!("{harness}, {scheduler:?}: {} executions, {} steps", outcome.executions, outcome.steps);
    let message = outcome.violation.as_ref().map(|found| (&found.message, found.iteration));
    assert_eq!(message, None, "{harness}, {scheduler:?}");
    assert_eq!((outcome.executions, outcome.bounded), (iterations, 0));
}

const BOTH: [Scheduler; 2] = [Scheduler::Random, Scheduler::Pct];

#[test]
fn replication_has_both_bugs_of_the_paper() {
    for scheduler in BOTH {
        let found = is_found("replication", "same-node-twice", scheduler, 2_000);
        assert!(found.message.contains("of 3 nodes hold its data"), "{}", found.message);
        let found = is_found("replication", "count-not-reset", scheduler, 100);
        assert!(found.message.starts_with("not so: a request is acknowledged"), "{}", found.message);
        is_clean("replication", scheduler, 2_000);
    }
}

#[test]
fn the_extent_manager_has_the_bug_of_the_paper() {
    for scheduler in BOTH {
        for harness in ["extent-manager", "extent-manager-lossy"] {
            let found = is_found(harness, "late-sync", scheduler, 5_000);
            assert!(found.message.starts_with("not so: every extent has three replicas"), "{}", found.message);
            is_clean(harness, scheduler, 1_000);
        }
    }
}

#[test]
fn our_pool_holds_under_many_schedules() {
    for scheduler in BOTH {
        is_clean("pool", scheduler, 10);
    }
}

#[test]
fn every_bug_of_our_pool_is_found() {
    for bug in pool::PoolTogether.bugs() {
        let found = is_found("pool", bug.name, Scheduler::Pct, 600);
        assert!(!found.message.contains("is full"), "{}", found.message);
    }
}

#[test]
fn every_order_of_a_tiny_system_is_tried() {
    let outcome = explore(options("lost-update", None, Scheduler::Exhaustive, 100_000));
    println!("{outcome:?}");
    assert_eq!((outcome.violation, outcome.exhausted), (None, true));
    let outcome = explore(options("lost-update", None, Scheduler::Exhaustive, 3));
    assert_eq!((outcome.executions, outcome.exhausted), (3, false));
    for scheduler in [Scheduler::Random, Scheduler::Pct, Scheduler::Exhaustive] {
        is_found("lost-update", "no-lock", scheduler, 1_000);
    }
}

#[test]
fn a_budget_and_a_stop_end_an_exploration() {
    let short = ScheduleOptions { budget: Duration::ZERO, ..options("replication", None, Scheduler::Random, 1000) };
    assert_eq!(explore(short).executions, 1);
    let stopped = AtomicBool::new(true);
    let outcome = explore_schedules(&options("replication", None, Scheduler::Fifo, 9), &stopped, &mut |_| {});
    assert_eq!(outcome.expect("nothing was run").executions, 0);
}

#[test]
fn a_changed_trace_diverges() {
    let found = is_found("replication", "same-node-twice", Scheduler::Random, 2_000);
    let text = found.trace.encode().expect("it can be written");
    let without = text.replace("\"bug\": \"same-node-twice\"", "\"bug\": null");
    let replayed = ScheduleTrace::decode(without.as_bytes()).expect("well made").replay().expect("known");
    assert_eq!(replayed.message, None);
    assert!(replayed.diverged.is_some(), "the bug is not there any more");
    for (from, to, says) in [
        ("\"ashlar_schedule\": 1", "\"ashlar_schedule\": 2", "format 2"),
        ("\"steps_max\": 5000", "\"steps_max\": 99999999999", "99999999999 steps"),
        ("\"choices\": [[", "\"choices\": [[0,2,2],[", "choice 0 is 2 of 2"),
        ("\"choices\"", "\"choice\"", "missing field"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text);
        let refused = ScheduleTrace::decode(changed.as_bytes()).expect_err(to);
        assert!(refused.contains(says), "{refused}");
    }
    let other = text.replace("\"harness\": \"replication\"", "\"harness\": \"replicating\"");
    let refused = ScheduleTrace::decode(other.as_bytes()).expect("well made").replay().expect_err("unknown");
    assert!(refused.contains("extent-manager"), "{refused}");
}

#[test]
fn names_are_unique_and_known() {
    for harness in HARNESSES {
        assert_eq!(super::harness(harness.name()).expect("known").name(), harness.name());
        for bug in harness.bugs() {
            assert_eq!(super::bug(harness, bug.name), Ok(bug.name));
        }
        assert!(super::bug(harness, "none").is_err());
    }
}

/// The page shows a harness that compiles, since it is this one.
#[test]
fn the_page_shows_the_example_as_it_is() {
    let page = include_str!("../../../../docs/schedules.md");
    assert!(page.contains(include_str!("lost_update.rs").trim_end()), "docs/schedules.md shows another lost_update.rs");
    for harness in HARNESSES {
        let names = harness.bugs().iter().map(|bug| bug.name).chain([harness.name()]);
        names.for_each(|name| assert!(page.contains(&format!("`{name}`")), "docs/schedules.md does not name {name}"));
    }
}
