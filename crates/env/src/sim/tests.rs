//! Tests of the simulated runtime.

use super::*;
use proptest::prelude::*;

/// Two tasks increment a counter with a yield between reading and writing it: a lost update for some schedules.
fn lost_update(seed: u64, schedule: Schedule) -> (u64, Trace) {
    let sim = Sim::new(seed, schedule);
    let env = sim.env();
    let total = sim
        .run(async move {
            let counter = Arc::new(Mutex::new(0u64));
            let tasks: Vec<_> = (0..3)
                .map(|_| {
                    let (counter, env2) = (counter.clone(), env.clone());
                    env.spawn(async move {
                        for _ in 0..3 {
                            let seen = *counter.lock();
                            if env2.random() % 2 == 0 {
                                env2.yield_now().await;
                            }
                            *counter.lock() = seen + 1;
                            env2.sleep(Duration::from_nanos(env2.random() % 50)).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            *counter.lock()
        })
        .expect("no deadlock");
    (total, sim.trace())
}

proptest! {
    #[test]
    fn the_same_seed_gives_the_same_trace(seed: u64) {
        prop_assert_eq!(lost_update(seed, Schedule::Random), lost_update(seed, Schedule::Random));
    }

    #[test]
    fn recorded_choices_replay(seed: u64) {
        let (total, trace) = lost_update(seed, Schedule::Random);
        prop_assert_eq!((total, trace.clone()), lost_update(seed, Schedule::Replay(trace.choices)));
    }
}

#[test]
fn what_tasks_hold_is_dropped_with_the_simulation() {
    let held = Arc::new(());
    let sim = Sim::new(1, Schedule::Random);
    let (env, inner) = (sim.env(), held.clone());
    let main = async move {
        // Each waits for what it itself holds the other end of, as an engine's background work does.
        for _ in 0..200 {
            let (held, waker) = (inner.clone(), Mutex::new(None));
            drop(env.spawn(async move {
                let wait = |context: &mut Context<'_>| {
                    *waker.lock() = Some(context.waker().clone());
                    Poll::<()>::Pending
                };
                std::future::poll_fn(wait).await;
                drop(held);
            }));
        }
        env.sleep(Duration::from_secs(1)).await;
    };
    sim.run(main).expect("the main task ends");
    assert_eq!(Arc::strong_count(&held), 201, "the tasks wait");
    drop(sim);
    assert_eq!(Arc::strong_count(&held), 1, "a task outlived its simulation");
}

#[test]
fn random_schedules_find_a_lost_update() {
    let lost = (0..100).filter(|seed| lost_update(*seed, Schedule::Random).0 < 9).count();
    assert!(lost > 20, "random order found the planted bug in {lost} of 100 seeds only");
}

#[test]
fn waiting_for_nothing_is_a_deadlock() {
    let sim = Sim::new(1, Schedule::Fifo);
    assert!(sim.run(std::future::pending::<()>()).is_err());
}

#[test]
fn sleep_is_exact_to_the_nanosecond() {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    let now = sim.run(async move {
        env.sleep(Duration::from_nanos(17)).await;
        env.now()
    });
    assert_eq!(now.expect("no deadlock"), Instant(17));
}

/// Tasks of so many steps each, that write down who runs.
fn walkers(handle: &Handle, steps: &[usize]) -> Arc<Mutex<Vec<(usize, usize)>>> {
    let order = Arc::new(Mutex::new(Vec::new()));
    for (walker, steps) in steps.iter().copied().enumerate() {
        let (env, order) = (handle.env(), order.clone());
        handle.spawn(format!("walker {walker}"), async move {
            for step in 0..steps {
                if step > 0 {
                    env.yield_now().await;
                }
                order.lock().push((walker, step));
            }
        });
    }
    order
}

/// Every order in which such tasks can run.
fn orders(steps: &[usize]) -> Vec<Vec<(usize, usize)>> {
    let (mut all, mut orders) = (Enumeration::new(), Vec::new());
    while let Some(schedule) = all.schedule() {
        let sim = Sim::new(1, schedule);
        let order = walkers(&sim.handle(), steps);
        assert_eq!(sim.run_all(1000), End::Quiet);
        all.note(&sim.trace().choices);
        orders.push(std::mem::take(&mut *order.lock()));
    }
    orders
}

fn distinct<T: Ord>(mut all: Vec<T>) -> usize {
    all.sort_unstable();
    all.dedup();
    all.len()
}

#[test]
fn enumeration_meets_every_order_once() {
    for (steps, count) in [
        // n tasks of one step: n! orders.
        (vec![1], 1),
        (vec![1, 1, 1], 6),
        (vec![1; 4], 24),
        (vec![1; 5], 120),
        // Two of a and b steps: a + b over a.
        (vec![1, 4], 5),
        (vec![2, 2], 6),
        (vec![3, 5], 56),
        (vec![6, 6], 924),
    ] {
        let orders = orders(&steps);
        assert_eq!(orders.len(), count, "{steps:?}");
        assert_eq!(distinct(orders), count, "{steps:?}");
    }
}

#[test]
fn enumeration_meets_every_value() {
    let (mut all, mut met) = (Enumeration::new(), Vec::new());
    while let Some(schedule) = all.schedule() {
        let sim = Sim::new(1, schedule);
        let (handle, values) = (sim.handle(), Arc::new(Mutex::new(Vec::new())));
        let (inner, kept) = (handle.clone(), values.clone());
        handle.spawn("chooser", async move {
            let first = inner.choose(3);
            let more = if first == 2 { vec![inner.choose(4)] } else { vec![inner.choose(1)] };
            kept.lock().extend([vec![first], more].concat());
        });
        assert_eq!(sim.run_all(10), End::Quiet);
        all.note(&sim.trace().choices);
        met.push(values.lock().clone());
    }
    assert_eq!(met, [[0, 0], [1, 0], [2, 0], [2, 1], [2, 2], [2, 3]]);
}

/// Whether a run has a bug of this depth: steps of two of four tasks alternate `depth` times at given places.
fn is_hit(seed: u64, schedule: Schedule, depth: usize) -> bool {
    let sim = Sim::new(seed, schedule);
    let order = walkers(&sim.handle(), &[5; 4]);
    assert_eq!(sim.run_all(1000), End::Quiet);
    assert_eq!(sim.trace().steps, 20);
    let order = order.lock();
    let at = |event: &(usize, usize)| order.iter().position(|other| other == event);
    let points = [(2, 1), (0, 1), (2, 2), (0, 2)];
    points[..=depth].is_sorted_by_key(at)
}

/// Burckhardt et al., ASPLOS'10, theorem 9: at least 1 in n k^(d-1).
#[test]
fn priorities_hit_a_bug_as_often_as_they_must() {
    const RUNS: u64 = 40_000;
    let (tasks, steps) = (4u64, 20u64);
    for depth in 1..=3 {
        let schedule = || Schedule::Pct { depth, steps };
        let hits = (0..RUNS).filter(|seed| is_hit(*seed, schedule(), depth as usize)).count() as u64;
        let one_in = tasks * steps.pow(depth - 1);
        println!("depth {depth}: {hits} of {RUNS}, the bound is {}", RUNS / one_in);
        assert!(hits * one_in >= RUNS, "depth {depth}: {hits} of {RUNS} runs, and the bound is 1 in {one_in}");
        if depth > 1 {
            let less = (0..RUNS).filter(|seed| is_hit(*seed, Schedule::Pct { depth: 1, steps }, depth as usize));
            assert_eq!(less.count(), 0, "without a change of priority nothing alternates");
        }
    }
}

/// A register that two tasks lose updates of; a violation if one is lost.
fn losing(seed: u64, schedule: Schedule) -> (End, Trace, Vec<Entry>) {
    let sim = Sim::new(seed, schedule);
    sim.keep_log();
    let handle = sim.handle();
    let (register, done) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    for name in ["one", "other"] {
        let (sim, register, done) = (handle.clone(), register.clone(), done.clone());
        handle.spawn(name, async move {
            for _ in 0..2 {
                let seen = *register.lock();
                if sim.coin() {
                    sim.env().sleep(Duration::from_nanos(sim.choose(3) as u64)).await;
                }
                *register.lock() = seen + 1;
                sim.note(|| format!("wrote {}", seen + 1));
            }
            *done.lock() += 1;
            if *done.lock() == 2 && *register.lock() != 4 {
                sim.violation(format!("the register is {}", register.lock()));
            }
        });
    }
    let end = sim.run_all(1000);
    (end, sim.trace(), sim.log())
}

#[test]
fn runs_repeat_and_violations_replay() {
    for schedule in [Schedule::Fifo, Schedule::Random, Schedule::Pct { depth: 3, steps: 10 }] {
        let mut violations = 0;
        for seed in 0..200 {
            let run = losing(seed, schedule.clone());
            assert_eq!(run, losing(seed, schedule.clone()), "seed {seed}, {schedule:?}");
            let again = losing(seed, Schedule::Replay(run.1.choices.clone()));
            assert_eq!(again, run, "seed {seed}, {schedule:?}");
            violations += usize::from(matches!(run.0, End::Violation(_)));
        }
        assert!((10..190).contains(&violations), "{schedule:?}: {violations} of 200");
    }
}

#[test]
fn a_replay_that_diverges_says_where() {
    let (_, trace, _) = losing(3, Schedule::Random);
    let (choices, count) = (trace.choices, 5);
    assert!(choices.len() > count, "{choices:?}");
    let diverged = |list: Vec<Choice>| match losing(3, Schedule::Replay(list)).0 {
        End::Diverged(what) => what,
        other => panic!("it ended with {other:?}"),
    };
    let said = diverged(choices[..count].to_vec());
    assert!(said.starts_with("the recording ends after 5 choices"), "{said}");
    let said = diverged([choices.clone(), choices.clone()].concat());
    assert!(said.contains("of") && said.starts_with("the run ended after"), "{said}");
    for at in 0..choices.len() {
        let mut changed = choices.clone();
        changed[at].of += 1;
        assert!(diverged(changed).starts_with(&format!("choice {at}, at step")), "choice {at}");
        let mut changed = choices.clone();
        changed[at].task += 7;
        assert!(diverged(changed).starts_with(&format!("choice {at}, at step")), "choice {at}");
    }
}

/// Hot from a request to its answer; counts both.
#[derive(Default)]
struct Answered(i64);

impl Monitor for Answered {
    type Event = bool;
    fn observe(&mut self, asked: bool) -> Result<Mood, String> {
        self.0 += if asked { 1 } else { -1 };
        match self.0 {
            0 => Ok(Mood::Cold),
            1.. => Ok(Mood::Hot),
            _ => Err("an answer to no request".into()),
        }
    }
}

fn monitored<F: Future<Output = ()> + Send + 'static>(play: impl FnOnce(Handle, Watch<Answered>) -> F) -> End {
    let sim = Sim::new(1, Schedule::Random);
    let handle = sim.handle();
    let watch = handle.watch("a request is answered", Answered::default());
    handle.spawn("player", play(handle.clone(), watch));
    sim.run_all(100)
}

fn violation(what: &str) -> End {
    End::Violation(what.into())
}

#[test]
fn a_monitor_that_is_hot_at_the_end_is_a_violation() {
    let spinning = monitored(|sim, watch| async move {
        watch.tell(true);
        loop {
            sim.env().yield_now().await;
        }
    });
    let said = "not so: a request is answered; it has not happened within 100 steps";
    assert_eq!(spinning, violation(said));
    let blocked = monitored(|_, watch| async move {
        watch.tell(true);
        std::future::pending().await
    });
    assert_eq!(blocked, violation("not so: a request is answered; nothing is left that could do it"));
    let finished = monitored(|sim, watch| async move {
        watch.tell(true);
        sim.finish();
    });
    assert_eq!(finished, violation("not so: a request is answered; the run has finished without it"));
}

#[test]
fn a_cold_monitor_lets_a_run_end_as_it_likes() {
    let spinning = monitored(|sim, watch| async move {
        watch.tell(true);
        watch.tell(false);
        loop {
            sim.env().yield_now().await;
        }
    });
    assert_eq!(spinning, End::Bound);
    assert_eq!(monitored(|_, _| std::future::pending()), End::Quiet);
    assert_eq!(monitored(|sim, _| async move { sim.finish() }), End::Finished);
}

#[test]
fn assertions_end_a_run() {
    let unasked = monitored(|_, watch| async move {
        watch.tell(false);
        std::future::pending().await
    });
    assert_eq!(unasked, violation("an answer to no request"));
    assert_eq!(monitored(|_, _| async { panic!("broken {}", "here") }), violation("panic: broken here"));
}

#[test]
fn sleepers_of_one_moment_are_ready_together() {
    let run = |seed| {
        let sim = Sim::new(seed, Schedule::Random);
        let (handle, order) = (sim.handle(), Arc::new(Mutex::new(Vec::new())));
        for number in 0..3 {
            let (env, order) = (handle.env(), order.clone());
            handle.spawn("sleeper", async move {
                env.sleep(Duration::from_secs(1)).await;
                order.lock().push(number);
            });
        }
        assert_eq!(sim.run_all(100), End::Quiet);
        std::mem::take(&mut *order.lock())
    };
    assert_eq!(distinct((0..100).map(run).collect()), 6);
}
