//! Turns of those who wait for room, in the order of places.
//!
//! Transactions wait to put data in batches, and batches to be written. Pieces of a large file come from several workers, of which one
//! may be many pieces behind another. If all who wait tried at once, or went in the order in which they came, the pieces would lie in
//! that order, and a disk would seek for each of them when the file is read. So those who wait go in the order of where their data
//! belong, round by round: who comes later waits for the next round, so that nobody is overtaken for ever (N-step SCAN; Teorey and
//! Pinkerton, "A Comparative Analysis of Disk Scheduling Policies", CACM 1972).

use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// See the module. `P` is where something belongs.
pub(crate) struct Turns<P>(Mutex<State<P>>);

struct State<P> {
    /// Whether somebody has the turn.
    taken: bool,
    round: VecDeque<oneshot::Sender<()>>,
    next_round: Vec<(P, oneshot::Sender<()>)>,
}

impl<P: Ord> Default for Turns<P> {
    fn default() -> Turns<P> {
        Turns(Mutex::new(State { taken: false, round: VecDeque::new(), next_round: Vec::new() }))
    }
}

/// The turn, until it is dropped.
pub(crate) struct Turn<'a, P: Ord>(&'a Turns<P>);

/// Who waits, and may stop waiting.
struct Waiting<'a, P: Ord> {
    turns: &'a Turns<P>,
    granted: oneshot::Receiver<()>,
}

impl<P: Ord> Drop for Waiting<'_, P> {
    fn drop(&mut self) {
        // Who has taken what was granted passes it on by the turn itself.
        if self.granted.try_recv().is_ok() {
            self.turns.pass_on();
        }
    }
}

impl<P: Ord> Drop for Turn<'_, P> {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

impl<P: Ord> Turns<P> {
    /// Whether nobody has the turn.
    pub(crate) fn is_free(&self) -> bool {
        !self.0.lock().taken
    }

    /// The turn, when it comes.
    pub(crate) async fn take(&self, position: P) -> Turn<'_, P> {
        let granted = {
            let mut state = self.0.lock();
            if !std::mem::replace(&mut state.taken, true) {
                return Turn(self);
            }
            let (grant, granted) = oneshot::channel();
            state.next_round.push((position, grant));
            granted
        };
        let mut waiting = Waiting { turns: self, granted };
        // Nobody drops a grant without giving it.
        let _ = (&mut waiting.granted).await;
        Turn(self)
    }

    fn pass_on(&self) {
        let mut state = self.0.lock();
        loop {
            if state.round.is_empty() {
                let mut round = std::mem::take(&mut state.next_round);
                // Equal positions stay in the order in which they came.
                round.sort_by(|(one, _), (other, _)| one.cmp(other));
                state.round = round.into_iter().map(|(_, grant)| grant).collect();
            }
            match state.round.pop_front() {
                // Who no longer waits is passed over.
                Some(grant) => {
                    if grant.send(()).is_ok() {
                        return;
                    }
                }
                None => {
                    state.taken = false;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::sim::{Schedule, Sim};
    use std::sync::Arc;

    /// Numbers, in the order in which they had their turn while 0 held it first; those of `impatient` leave before.
    fn order(seed: u64, arrivals: &'static [u8], impatient: &'static [u8]) -> Vec<u8> {
        let sim = Sim::new(seed, Schedule::Random);
        let env = sim.env();
        sim.run(async move {
            let turns = Arc::new(Turns::default());
            let seen = Arc::new(Mutex::new(Vec::new()));
            let first = turns.take(0).await;
            let mut tasks = Vec::new();
            for block in arrivals.iter().copied() {
                let (turns, seen, env) = (turns.clone(), seen.clone(), env.clone());
                tasks.push(env.clone().spawn(async move {
                    let second = std::time::Duration::from_secs(1);
                    let patience = if impatient.contains(&block) { second } else { 100 * second };
                    if let Some(_turn) = env.within(patience, turns.take(block)).await {
                        seen.lock().push(block);
                        env.sleep(second).await;
                    }
                }));
            }
            env.sleep(std::time::Duration::from_secs(5)).await;
            drop(first);
            for task in tasks {
                task.await;
            }
            assert!(turns.is_free(), "nobody has the turn when all had it");
            seen.lock().clone()
        })
        .expect("no deadlock")
    }

    #[test]
    fn those_who_wait_go_in_the_order_of_their_data() {
        for seed in 0..200 {
            assert_eq!(order(seed, &[5, 3, 9, 1, 7], &[]), [1, 3, 5, 7, 9], "seed {seed}");
        }
    }

    #[test]
    fn who_stops_waiting_holds_up_nobody() {
        for seed in 0..200 {
            assert_eq!(order(seed, &[5, 3, 9, 1, 7], &[1, 5, 9]), [3, 7], "seed {seed}");
            assert_eq!(order(seed, &[4, 2], &[4, 2]), [0u8; 0], "seed {seed}");
        }
    }

    #[test]
    fn who_comes_later_waits_for_the_next_round() {
        let sim = Sim::new(4, Schedule::Fifo);
        let env = sim.env();
        let seen = sim.run(async move {
            let turns = Arc::new(Turns::default());
            let seen = Arc::new(Mutex::new(Vec::new()));
            let first = turns.take(0).await;
            let go = |block: u8, then: Option<u8>| {
                let (turns, seen, env) = (turns.clone(), seen.clone(), env.clone());
                env.clone().spawn(async move {
                    let _turn = turns.take(block).await;
                    seen.lock().push(block);
                    // While it has the turn, somebody comes whose data lie before those of others who wait.
                    let later = then.map(|block| {
                        let (turns, seen) = (turns.clone(), seen.clone());
                        env.spawn(async move {
                            let _turn = turns.take(block).await;
                            seen.lock().push(block);
                        })
                    });
                    env.sleep(std::time::Duration::from_secs(1)).await;
                    drop(_turn);
                    if let Some(later) = later {
                        later.await;
                    }
                })
            };
            let tasks = [go(8, None), go(2, Some(4)), go(6, None)];
            env.sleep(std::time::Duration::from_secs(1)).await;
            drop(first);
            for task in tasks {
                task.await;
            }
            seen.lock().clone()
        });
        assert_eq!(seen.expect("no deadlock"), [2, 6, 8, 4]);
    }
}
