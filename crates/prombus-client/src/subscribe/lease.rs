//! The lease of one delivery, shared by the member's task, which renews it, and the delivery or handler, which watches it.

use tokio::sync::watch;
use tokio::time::Instant;

/// A lease.
#[derive(Debug)]
pub(super) struct Lease {
    /// The number of the delivery in its subscription.
    serial: u64,
    state: watch::Sender<LeaseState>,
}

#[derive(Clone, Copy, Debug)]
struct LeaseState {
    /// When the lease ends.
    deadline: Instant,
    phase: Phase,
    /// When the consumer took the delivery, or adopted a new lease for it; `None` before that.
    handled_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The delivery waits for the consumer.
    Queued,
    /// The consumer has the delivery.
    Taken,
    /// The consumer has the delivery, and the lease is over.
    Lost,
    /// The lease ended before the consumer took the delivery; the consumer must not get it.
    Discarded,
}

impl Lease {
    pub(super) fn new(serial: u64, deadline: Instant) -> Self {
        let state = LeaseState { deadline, phase: Phase::Queued, handled_since: None };
        Self { serial, state: watch::Sender::new(state) }
    }

    /// The number of the delivery in its subscription.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    pub(super) fn deadline(&self) -> Instant {
        self.state.borrow().deadline
    }

    /// When the consumer started to work on the delivery under this lease; `None` while the delivery waits for the consumer.
    pub(super) fn handled_since(&self) -> Option<Instant> {
        self.state.borrow().handled_since
    }

    /// Replaces the lease by that of a redelivery. If the consumer has the delivery, its time of handling starts again.
    pub(super) fn adopt(&self, deadline: Instant, now: Instant) {
        self.renew(deadline);
        self.state.send_modify(|state| state.handled_since = state.handled_since.map(|_| now));
    }

    /// Extends the lease. A lost lease is valid again.
    pub(super) fn renew(&self, deadline: Instant) {
        self.state.send_modify(|state| {
            state.deadline = deadline;
            if state.phase == Phase::Lost {
                state.phase = Phase::Taken;
            }
        });
    }

    /// Hands the delivery to the consumer. Returns false if the delivery was discarded.
    pub(super) fn take(&self, now: Instant) -> bool {
        self.state.send_if_modified(|state| {
            let is_queued = state.phase == Phase::Queued;
            if is_queued {
                (state.phase, state.handled_since) = (Phase::Taken, Some(now));
            }
            is_queued
        })
    }

    /// Discards the delivery unless the consumer has it. Returns true if the delivery was discarded.
    pub(super) fn discard(&self) -> bool {
        self.change(Phase::Queued, Phase::Discarded)
    }

    /// Tells the consumer that the lease is over.
    pub(super) fn lose(&self) {
        self.change(Phase::Taken, Phase::Lost);
    }

    fn change(&self, from: Phase, to: Phase) -> bool {
        self.state.send_if_modified(|state| {
            let is_from = state.phase == from;
            if is_from {
                state.phase = to;
            }
            is_from
        })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.borrow().phase == Phase::Lost
    }

    /// Whether the consumer must not get the delivery any more.
    pub(super) fn is_discarded(&self) -> bool {
        self.state.borrow().phase == Phase::Discarded
    }

    /// Resolves when the consumer has the delivery and the lease is over.
    pub(super) async fn lost(&self) {
        let mut state = self.state.subscribe();
        // Waiting cannot fail: the sender is in `self`.
        let _ = state.wait_for(|state| state.phase == Phase::Lost).await;
    }
}
