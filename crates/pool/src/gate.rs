//! The order in which long reads go to a device.
//!
//! Whoever reads a file from front to back asks for many megabytes ahead, in pieces that several threads ask for at once. A
//! disk that is given all of them together picks by nearness, leaves out those that come a moment later, and pays a revolution
//! for each when it comes back. So only a few long reads are under way on a device at a time, enough that it never waits for
//! the next; the others wait here and go in the order of their addresses. Short reads pass by.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// From here on a read is long: what is shorter costs a disk more by waiting than by its place in the order.
pub(crate) const LONG_BYTES: u64 = 256 << 10;
/// Long reads under way at a time. Two keep a disk busy; more hide what it takes to send and to receive on faster devices.
const UNDER_WAY: usize = 4;

/// The gate of one device.
#[derive(Default)]
pub(crate) struct Gate(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    under_way: usize,
    /// Where the last one that was let through begins.
    at: u64,
    /// Who waits, by address; several may want the same.
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
    arrivals: u64,
}

impl Queue {
    /// Lets the next one through: the first behind the last, and from the lowest address again when none is left there, so
    /// that nobody waits for longer than one sweep.
    fn pass_on(&mut self) {
        while self.under_way < UNDER_WAY {
            let next = self.waiting.range((self.at, 0)..).next().or_else(|| self.waiting.iter().next());
            let Some(place) = next.map(|(place, _)| *place) else { return };
            let waiter = self.waiting.remove(&place);
            self.at = place.0;
            // Who gave up meanwhile takes no place.
            self.under_way += usize::from(waiter.is_some_and(|waiter| waiter.send(()).is_ok()));
        }
    }
}

/// Leave to read; it ends when this is dropped.
pub(crate) struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.0.lock();
        queue.under_way -= 1;
        queue.pass_on();
    }
}

impl Gate {
    /// Waits until a read of so many bytes at this address may begin; for short ones there is nothing to wait for.
    pub(crate) async fn enter(&self, at: u64, bytes: u64) -> Option<Pass<'_>> {
        if bytes < LONG_BYTES {
            return None;
        }
        let turn = {
            let mut queue = self.0.lock();
            if queue.under_way < UNDER_WAY {
                queue.under_way += 1;
                queue.at = at;
                return Some(Pass(self));
            }
            let (tell, turn) = oneshot::channel();
            queue.arrivals += 1;
            let place = (at, queue.arrivals);
            queue.waiting.insert(place, tell);
            turn
        };
        let mut waiting = Waiting { gate: self, turn: Some(turn) };
        if let Some(turn) = waiting.turn.as_mut() {
            // The sender is only dropped after sending.
            let _ = turn.await;
        }
        waiting.turn = None;
        Some(Pass(self))
    }
}

/// Somebody who waits. Dropped when its turn came and was not taken, it hands the turn on.
struct Waiting<'a> {
    gate: &'a Gate,
    turn: Option<oneshot::Receiver<()>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.close();
            if turn.try_recv().is_ok() {
                drop(Pass(self.gate));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    async fn nothing_to_wait_for(gate: &Gate, at: u64) -> Option<Pass<'_>> {
        gate.enter(at, LONG_BYTES).await
    }

    #[test]
    fn long_reads_go_in_the_order_of_addresses_and_short_ones_pass_by() {
        let gate = Gate::default();
        let mut held: Vec<_> = (0..UNDER_WAY as u64)
            .map(|index| match poll(pin!(nothing_to_wait_for(&gate, 100 + index))) {
                Poll::Ready(Some(pass)) => pass,
                _ => panic!("there is room"),
            })
            .collect();
        let (mut far, mut near, mut behind) =
            (pin!(gate.enter(300, LONG_BYTES)), pin!(gate.enter(200, LONG_BYTES)), pin!(gate.enter(50, LONG_BYTES)));
        assert!(
            poll(far.as_mut()).is_pending() && poll(near.as_mut()).is_pending() && poll(behind.as_mut()).is_pending()
        );
        assert!(matches!(poll(pin!(gate.enter(200, LONG_BYTES - 1))), Poll::Ready(None)));
        held.pop();
        assert!(poll(far.as_mut()).is_pending() && poll(behind.as_mut()).is_pending());
        let Poll::Ready(near) = poll(near.as_mut()) else { panic!("the nearest ahead is next") };
        drop(near);
        let Poll::Ready(far) = poll(far.as_mut()) else { panic!("then the one behind it") };
        drop(far);
        assert!(poll(behind.as_mut()).is_ready(), "then from the start again");
    }

    #[test]
    fn who_gives_up_keeps_nobody_waiting() {
        let gate = Gate::default();
        let held: Vec<_> = (0..UNDER_WAY as u64)
            .filter_map(|index| match poll(pin!(nothing_to_wait_for(&gate, index))) {
                Poll::Ready(pass) => pass,
                Poll::Pending => None,
            })
            .collect();
        assert_eq!(held.len(), UNDER_WAY);
        let mut last = pin!(gate.enter(30, LONG_BYTES));
        {
            // One gives up before its turn, one after.
            let (mut early, mut late) = (pin!(gate.enter(10, LONG_BYTES)), Box::pin(gate.enter(20, LONG_BYTES)));
            assert!(poll(early.as_mut()).is_pending() && poll(late.as_mut()).is_pending());
            assert!(poll(last.as_mut()).is_pending());
        }
        drop(held);
        assert!(poll(last.as_mut()).is_ready());
        let queue = gate.0.lock();
        assert_eq!((queue.under_way, queue.waiting.len()), (0, 0));
    }
}
