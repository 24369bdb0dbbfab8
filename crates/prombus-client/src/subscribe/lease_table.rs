//! The deliveries of one subscription: those that the client holds, those whose result (ack, nack or give-up) was sent, and those whose
//! result could not be sent.
//!
//! The table is a pure value: the caller passes the time, sends the results and extensions that the table returns, and reports the server's
//! responses. The table decides whether an incoming event is new, belongs to a consumer that still works on it, or already has a result.

use super::lease::Lease;
use super::settlement::Settlement;
use prombus_protocol::{RedeliveryReason, Topic, Uuid};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The most results that are kept after a lost connection. Beyond it, the result of the oldest delivery is dropped.
pub(super) const MAX_KEPT_RESULTS: usize = 10_000;
/// A result that could not be sent is kept for the ack timeout plus this time after a reconnect. The time does not run while the
/// subscription is paused or the connection is lost again, because no redelivery can arrive then. The bound matters after a SEEK: if an
/// operator wants an event to be processed again, an old result should not settle it.
const KEEP_MARGIN: Duration = Duration::from_secs(120);

/// An event of a subscription.
pub(super) type EventKey = (Topic, Uuid);

/// What to do with an incoming event.
#[derive(Debug)]
pub(super) enum Arrival {
    /// Hand the event to the consumer.
    New(Arc<Lease>),
    /// A consumer of this client still works on the event and adopts the new lease.
    Adopted,
    /// A consumer of this client is done with the event: send its result.
    Resend { serial: u64, settlement: Settlement },
    /// Do nothing: the result of the event was sent and settles this lease too, or no consumer takes deliveries any more.
    Ignored,
}

/// A lease that can be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extendable {
    pub(super) serial: u64,
    pub(super) id: Uuid,
    /// The number of leases that the delivery had adopted before the extension. The response to the extension does not apply to a lease
    /// that was adopted later.
    generation: u64,
}

/// What to do with a result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settling {
    /// Send the result for this event.
    Send(Uuid),
    /// The result is kept until the event is redelivered.
    Kept,
    /// No such delivery.
    Unknown,
}

/// The deliveries of one subscription.
pub(super) struct LeaseTable {
    /// The deliveries by serial, their number in this subscription.
    entries: HashMap<u64, Entry>,
    /// The serial of the newest delivery of each event.
    by_event: HashMap<EventKey, u64>,
    /// When entries must be checked: time and serial.
    due: BTreeSet<(Instant, u64)>,
    /// The serials of the entries in the state `Kept`.
    kept: BTreeSet<u64>,
    /// The serial of the newest delivery.
    last_serial: u64,
    /// The number of connections so far; each lease belongs to one of them.
    connections: u64,
    is_connected: bool,
    /// Deliveries are stopped: no redelivery can arrive, so kept results do not expire.
    is_paused: bool,
    /// No consumer takes deliveries any more.
    is_draining: bool,
    /// The number of deliveries that were discarded since the last call of `take_discarded`.
    discarded: usize,
    ack_timeout: Duration,
    /// How long the lease of a delivery is extended while the consumer has it; `None` if leases are not extended.
    extend_for: Option<Duration>,
}

/// A delivery.
struct Entry {
    key: EventKey,
    state: EntryState,
    /// When the entry must be checked, as in [`LeaseTable::due`].
    due: Option<Instant>,
}

enum EntryState {
    /// The consumer has the delivery, or the delivery waits for the consumer. `connection` is the number of the connection that the
    /// lease belongs to; `generation` counts the leases that the delivery adopted.
    Held { lease: Arc<Lease>, connection: u64, generation: u64 },
    /// The result was sent over the current connection.
    Sent(Settlement),
    /// The result could not be sent, or it was sent (`was_sent`) and the response to it was lost.
    Kept { settlement: Settlement, was_sent: bool },
}

impl LeaseTable {
    pub(super) fn new(ack_timeout: Duration, extend_for: Option<Duration>) -> Self {
        Self {
            entries: HashMap::new(),
            by_event: HashMap::new(),
            due: BTreeSet::new(),
            kept: BTreeSet::new(),
            last_serial: 0,
            connections: 0,
            is_connected: false,
            is_paused: false,
            is_draining: false,
            discarded: 0,
            ack_timeout,
            extend_for,
        }
    }

    /// Records that a new connection has joined the group.
    pub(super) fn connected(&mut self, now: Instant) {
        self.connections += 1;
        self.is_connected = true;
        self.plan_forgetting(now);
    }

    /// Records whether deliveries are stopped.
    pub(super) fn set_paused(&mut self, is_paused: bool, now: Instant) {
        if self.is_paused != is_paused {
            self.is_paused = is_paused;
            self.plan_forgetting(now);
        }
    }

    /// Records that no consumer takes deliveries any more. Deliveries that wait for the consumer are dropped, and so are those that arrive
    /// later.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        for serial in self.entries.keys().copied().collect::<Vec<_>>() {
            self.discard(serial);
        }
    }

    /// The number of kept results.
    pub(super) fn kept_count(&self) -> usize {
        self.kept.len()
    }

    /// How many queued deliveries were discarded since the last call.
    pub(super) fn take_discarded(&mut self) -> usize {
        std::mem::take(&mut self.discarded)
    }

    /// Records that the connection ended. Deliveries that wait for the consumer are dropped: the server redelivers them, perhaps to another
    /// member. The consumer keeps the deliveries that it has.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.is_connected = false;
        for serial in self.entries.keys().copied().collect::<Vec<_>>() {
            if self.discard(serial) {
                continue;
            }
            let Some(entry) = self.entries.get(&serial) else { continue };
            match &entry.state {
                EntryState::Held { lease, .. } => {
                    let due = (!lease.is_lost()).then(|| lease.deadline());
                    self.set_due(serial, due);
                }
                EntryState::Sent(settlement) => {
                    let settlement = settlement.clone();
                    self.keep(serial, settlement, true, now);
                }
                // The time until the result is forgotten starts again at the reconnect.
                EntryState::Kept { .. } => self.set_due(serial, None),
            }
        }
    }

    /// Decides what to do with an event that arrived over the current connection. `lease_for`: the duration of its lease.
    pub(super) fn arrived(
        &mut self,
        key: EventKey,
        lease_for: Duration,
        reason: Option<RedeliveryReason>,
        now: Instant,
    ) -> Arrival {
        let serial = self.by_event.get(&key).copied();
        if let Some((serial, entry)) = serial.and_then(|it| Some((it, self.entries.get_mut(&it)?))) {
            match &mut entry.state {
                EntryState::Held { lease, connection, generation } => {
                    *connection = self.connections;
                    *generation += 1;
                    lease.adopt(now + lease_for, now);
                    self.schedule(serial, lease_for, now);
                    return Arrival::Adopted;
                }
                EntryState::Kept { settlement, was_sent } if applies(settlement, *was_sent, reason) => {
                    let settlement = settlement.clone();
                    entry.state = EntryState::Sent(settlement.clone());
                    self.kept.remove(&serial);
                    self.set_due(serial, None);
                    return Arrival::Resend { serial, settlement };
                }
                // The lease expired before the server received the result. The result, which is under way, applies to the new lease.
                EntryState::Sent(settlement) if !settlement.is_retry() => return Arrival::Ignored,
                // The redelivery that the nack requested may overtake the nack's OK.
                EntryState::Sent(_) => {}
                EntryState::Kept { .. } => self.remove(serial),
            }
        }
        if self.is_draining {
            return Arrival::Ignored;
        }
        self.last_serial += 1;
        let serial = self.last_serial;
        let lease = Arc::new(Lease::new(serial, now + lease_for));
        let state =
            EntryState::Held { lease: Arc::clone(&lease), connection: self.connections, generation: 0 };
        self.by_event.insert(key.clone(), serial);
        self.entries.insert(serial, Entry { key, state, due: None });
        self.schedule(serial, lease_for, now);
        Arrival::New(lease)
    }

    /// Records the consumer's result for a delivery.
    pub(super) fn settle(&mut self, serial: u64, settlement: Settlement, now: Instant) -> Settling {
        let (is_connected, connections) = (self.is_connected, self.connections);
        let Some(entry) = self.entries.get_mut(&serial) else { return Settling::Unknown };
        let EntryState::Held { connection, .. } = &entry.state else { return Settling::Unknown };
        // A lease of an earlier connection does not belong to this member any more; its result would be stale.
        if !is_connected || *connection != connections {
            self.keep(serial, settlement, false, now);
            return Settling::Kept;
        }
        entry.state = EntryState::Sent(settlement);
        let id = entry.key.1;
        self.set_due(serial, None);
        Settling::Send(id)
    }

    /// Records that the server applied or refused a result.
    pub(super) fn answered(&mut self, serial: u64) {
        if self.entries.get(&serial).is_some_and(|it| matches!(it.state, EntryState::Sent(_))) {
            self.remove(serial);
        }
    }

    /// Records that the consumer dropped a delivery without a result. The event is redelivered when the server's lease ends.
    pub(super) fn released(&mut self, serial: u64) {
        if self.entries.get(&serial).is_some_and(|it| matches!(it.state, EntryState::Held { .. })) {
            self.remove(serial);
        }
    }

    /// The lease of a delivery, if it can be extended; `None` if it is settled or its lease belongs to an earlier connection.
    pub(super) fn extendable(&self, serial: u64) -> Option<Extendable> {
        let Entry { key: (_, id), state, .. } = self.entries.get(&serial)?;
        match *state {
            EntryState::Held { connection, generation, .. }
                if connection == self.connections && self.is_connected =>
            {
                Some(Extendable { serial, id: *id, generation })
            }
            _ => None,
        }
    }

    /// Records that the server extended a lease. It runs for `by` from `sent_at`, when the extension was requested.
    pub(super) fn extended(&mut self, extended: Extendable, by: Duration, sent_at: Instant) {
        let serial = extended.serial;
        if self.extendable(serial) != Some(extended) {
            return;
        }
        if let Some(Entry { state: EntryState::Held { lease, .. }, .. }) = self.entries.get(&serial) {
            lease.renew(sent_at + by);
            self.schedule(serial, by, sent_at);
        }
    }

    /// Records that the server does not know the lease that was to be extended. A lease that was adopted later is not affected.
    pub(super) fn not_extended(&mut self, refused: Extendable) {
        if self.extendable(refused.serial) == Some(refused) {
            self.lost(refused.serial);
        }
    }

    /// Records that the lease of a delivery is over.
    fn lost(&mut self, serial: u64) {
        if self.discard(serial) {
            return;
        }
        if let Some(Entry { state: EntryState::Held { lease, .. }, .. }) = self.entries.get(&serial) {
            lease.lose();
            self.set_due(serial, None);
        }
    }

    /// Drops a delivery that waits for the consumer. Returns false if the delivery does not wait.
    fn discard(&mut self, serial: u64) -> bool {
        let is_discarded = match self.entries.get(&serial) {
            Some(Entry { state: EntryState::Held { lease, .. }, .. }) => lease.discard(),
            _ => false,
        };
        if is_discarded {
            self.remove(serial);
            self.discarded += 1;
        }
        is_discarded
    }

    /// When to call [`next_extension`](Self::next_extension); `None` if no entry must be checked.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Ends leases that expired and forgets old results. Returns a lease that must be extended now, if there is one; call it until there
    /// is none.
    pub(super) fn next_extension(&mut self, now: Instant) -> Option<Extendable> {
        while let Some((at, serial)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            debug_assert!(self.entries.get(&serial).is_some_and(|entry| entry.due == Some(at)));
            match self.entries.get(&serial).map(|entry| &entry.state) {
                Some(EntryState::Held { lease, .. }) if now >= lease.deadline() => self.lost(serial),
                Some(EntryState::Held { lease, .. }) => {
                    let deadline = lease.deadline();
                    // The lease of a delivery that waits for the consumer is extended as long as the delivery waits.
                    let handled_for = lease.handled_since().map_or(Duration::ZERO, |since| now - since);
                    let is_wanted = self.extend_for.is_some_and(|most| handled_for < most);
                    self.set_due(serial, Some(deadline));
                    if is_wanted && let Some(extendable) = self.extendable(serial) {
                        return Some(extendable);
                    }
                }
                _ => self.remove(serial),
            }
        }
        None
    }

    /// Ends all leases because the subscription is over, and tells the consumers of the deliveries.
    pub(super) fn end(&mut self) {
        for serial in self.entries.keys().copied().collect::<Vec<_>>() {
            self.lost(serial);
        }
    }

    /// Schedules the extension of a lease halfway through its duration or, if leases are not extended, its end.
    fn schedule(&mut self, serial: u64, lease_for: Duration, from: Instant) {
        let after = if self.extend_for.is_some() { lease_for / 2 } else { lease_for };
        self.set_due(serial, Some(from + after));
    }

    fn keep(&mut self, serial: u64, settlement: Settlement, was_sent: bool, now: Instant) {
        let Some(entry) = self.entries.get_mut(&serial) else { return };
        if self.by_event.get(&entry.key) != Some(&serial) {
            // The event was redelivered after this delivery, and the result of the newer delivery counts.
            return self.remove(serial);
        }
        entry.state = EntryState::Kept { settlement, was_sent };
        self.kept.insert(serial);
        self.set_due(serial, self.forget_at(now));
        if self.kept.len() > MAX_KEPT_RESULTS
            && let Some(oldest) = self.kept.first().copied()
        {
            self.remove(oldest);
        }
    }

    /// When a result that is kept now expires; `None` while no redelivery can arrive.
    fn forget_at(&self, now: Instant) -> Option<Instant> {
        (self.is_connected && !self.is_paused).then(|| now + self.ack_timeout + KEEP_MARGIN)
    }

    /// Restarts the time after which kept results are forgotten, or stops it while no redelivery can arrive.
    fn plan_forgetting(&mut self, now: Instant) {
        let forget_at = self.forget_at(now);
        for serial in self.kept.clone() {
            self.set_due(serial, forget_at);
        }
    }

    fn set_due(&mut self, serial: u64, due: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(&serial) else { return };
        if let Some(before) = std::mem::replace(&mut entry.due, due) {
            self.due.remove(&(before, serial));
        }
        if let Some(at) = due {
            self.due.insert((at, serial));
        }
    }

    fn remove(&mut self, serial: u64) {
        self.set_due(serial, None);
        self.kept.remove(&serial);
        if let Some(entry) = self.entries.remove(&serial)
            && self.by_event.get(&entry.key) == Some(&serial)
        {
            self.by_event.remove(&entry.key);
        }
    }
}

/// Whether a kept result settles this delivery of its event.
fn applies(settlement: &Settlement, was_sent: bool, reason: Option<RedeliveryReason>) -> bool {
    match settlement {
        // If the event was redelivered because of a nack, perhaps this one, it must be handled again.
        Settlement::Nack { .. } => reason != Some(RedeliveryReason::Nacked),
        // If the result was sent and the event has no reason of redelivery, the server applied the result, and then a SEEK moved the group
        // back. The event must be handled again.
        Settlement::Ack | Settlement::GiveUp { .. } => !was_sent || reason.is_some(),
    }
}

#[cfg(test)]
mod tests;
