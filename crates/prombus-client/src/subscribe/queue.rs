//! The deliveries that wait for the consumer of a subscription.
//!
//! The member's task pushes deliveries, and the subscription pops them. The subscription's `maxInFlight` bounds the deliveries that are
//! not discarded. Discarded deliveries are removed when they are half of the queue, so `maxInFlight` also bounds the memory of their
//! payloads.

use super::lease::Lease;
use crate::error::ClientError;
use parking_lot::Mutex;
use prombus_protocol::{EventContext, EventRecord};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::time::Instant;

/// An event for the consumer.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) event: EventRecord,
    pub(super) context: EventContext,
    pub(super) lease: Arc<Lease>,
}

/// Creates a queue and returns its two ends. Dropping the sender ends the queue.
pub(super) fn queue() -> (QueueSender, QueueReceiver) {
    let state = Arc::new(Mutex::new(State::default()));
    (QueueSender { state: Arc::clone(&state) }, QueueReceiver { state })
}

#[derive(Debug, Default)]
struct State {
    arrived: VecDeque<Arrived>,
    /// The approximate number of discarded deliveries.
    discarded: usize,
    /// The error that ends the queue, after all deliveries.
    error: Option<ClientError>,
    /// Whether the sender was dropped.
    is_ended: bool,
    /// The consumer that waits.
    waker: Option<Waker>,
}

/// The sending end, for the member's task.
pub(super) struct QueueSender {
    state: Arc<Mutex<State>>,
}

/// The receiving end, for the subscription.
#[derive(Debug)]
pub(super) struct QueueReceiver {
    state: Arc<Mutex<State>>,
}

impl QueueSender {
    pub(super) fn push(&self, arrived: Arrived) {
        self.change(|state| state.arrived.push_back(arrived));
    }

    /// Sets the error that ends the queue, after all deliveries.
    pub(super) fn fail(&self, error: ClientError) {
        self.change(|state| state.error = Some(error));
    }

    /// Records that `count` deliveries in the queue were discarded.
    pub(super) fn discarded(&self, count: usize) {
        let mut state = self.state.lock();
        state.discarded += count;
        if state.discarded * 2 >= state.arrived.len() {
            state.discarded = 0;
            state.arrived.retain(|arrived| !arrived.lease.is_discarded());
            state.arrived.shrink_to(64);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.state.lock();
            change(&mut state);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for QueueSender {
    fn drop(&mut self) {
        self.change(|state| state.is_ended = true);
    }
}

impl QueueReceiver {
    /// Takes the next delivery that is not discarded, or the error that ends the queue. Returns `None` after the last item.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<Arrived, ClientError>>> {
        let mut state = self.state.lock();
        while let Some(arrived) = state.arrived.pop_front() {
            if arrived.lease.take(Instant::now()) {
                return Poll::Ready(Some(Ok(arrived)));
            }
            // The delivery was discarded, because its lease ended while it was in the queue.
            state.discarded = state.discarded.saturating_sub(1);
        }
        if let Some(error) = state.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if state.is_ended {
            return Poll::Ready(None);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(serial: u64) -> Arrived {
        let event = r#"{"id":"0196f1d0-0000-7000-8000-000000000001","ts":5,"topic":"a","payload":1}"#;
        let context =
            EventContext { attempt: 1, ack_deadline_ms: 1, max_attempts: 5, reason: None, last_error: None };
        let lease = Arc::new(Lease::new(serial, Instant::now()));
        Arrived { event: serde_json::from_str(event).unwrap(), context, lease }
    }

    #[test]
    fn discarded_deliveries_do_not_pile_up() {
        let (sender, receiver) = queue();
        let live = arrived(0);
        let lease = Arc::clone(&live.lease);
        sender.push(live);
        for serial in 1..1000 {
            let arrived = arrived(serial);
            let lease = Arc::clone(&arrived.lease);
            sender.push(arrived);
            assert!(lease.discard());
            sender.discarded(1);
            assert!(receiver.state.lock().arrived.len() <= 2);
        }
        let mut context = Context::from_waker(Waker::noop());
        let next = receiver.poll(&mut context);
        assert!(matches!(next, Poll::Ready(Some(Ok(it))) if it.lease.serial() == lease.serial()));
        assert!(receiver.poll(&mut context).is_pending());
        drop(sender);
        assert!(matches!(receiver.poll(&mut context), Poll::Ready(None)));
    }
}
