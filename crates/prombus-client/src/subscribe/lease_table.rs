//! The deliveries of one subscription: which are held here, which results are on their way, and which could not be sent.
//!
//! A pure value: the caller passes the time, sends what this returns, and reports what the server responds. It decides
//! whether an incoming event is new, belongs to a consumer that still works on it, or has a result already.

use super::lease::Lease;
use super::settlement::Settlement;
use prombus_protocol::{RedeliveryReason, Topic, Uuid};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Results that are kept at most because the connection was lost. Beyond it the oldest delivery's is dropped.
pub(super) const MAX_KEPT_RESULTS: usize = 10_000;
/// A result that could not be sent is kept for the ack timeout and this time after a reconnect, and longer while the
/// subscription is paused or the connection is lost again: no redelivery can arrive then. The bound in time matters
/// for a SEEK: an event that an operator wants to be processed again should not be settled by an old result.
const KEEP_MARGIN: Duration = Duration::from_secs(120);

/// An event of a subscription.
pub(super) type EventKey = (Topic, Uuid);

/// What to do with an incoming event.
#[derive(Debug)]
pub(super) enum Arrival {
    /// Hand it to the consumer.
    New(Arc<Lease>),
    /// A consumer here still works on it and has the new lease now.
    Adopted,
    /// A consumer here is done with it: send its result.
    Resend { serial: u64, settlement: Settlement },
    /// Nothing: its result is on its way and settles this lease, too, or no consumer takes deliveries any more.
    Ignored,
}

/// A lease that can be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extendable {
    pub(super) serial: u64,
    pub(super) id: Uuid,
    /// Which lease of the delivery it is: the answer to an extension says nothing about a lease that was adopted since.
    generation: u64,
}

/// What to do with a result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settling {
    /// Send it for this event.
    Send(Uuid),
    /// It is kept until the event is redelivered.
    Kept,
    /// No such delivery.
    Unknown,
}

/// The deliveries of one subscription.
pub(super) struct LeaseTable {
    entries: HashMap<u64, Entry>,
    by_event: HashMap<EventKey, u64>,
    /// When to look at which entry.
    due: BTreeSet<(Instant, u64)>,
    /// The entries in the state `Kept`.
    kept: BTreeSet<u64>,
    last_serial: u64,
    /// Connections so far; leases belong to one of them.
    connections: u64,
    is_connected: bool,
    /// No redelivery is expected, so no kept result is forgotten.
    is_paused: bool,
    /// No consumer takes deliveries any more.
    is_draining: bool,
    /// Deliveries that were discarded since the last call of `take_discarded`.
    discarded: usize,
    ack_timeout: Duration,
    /// How long a delivery is extended while the consumer has it; none: not at all.
    extend_for: Option<Duration>,
}

struct Entry {
    key: EventKey,
    state: EntryState,
    due: Option<Instant>,
}

enum EntryState {
    /// The consumer has it, or it waits for the consumer.
    Held { lease: Arc<Lease>, connection: u64, generation: u64 },
    /// The result was sent over the current connection.
    Sent(Settlement),
    /// The result could not be sent, or its answer was lost.
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

    /// A new connection has joined the group.
    pub(super) fn connected(&mut self, now: Instant) {
        self.connections += 1;
        self.is_connected = true;
        self.plan_forgetting(now);
    }

    /// Deliveries were stopped or started.
    pub(super) fn set_paused(&mut self, is_paused: bool, now: Instant) {
        if self.is_paused != is_paused {
            self.is_paused = is_paused;
            self.plan_forgetting(now);
        }
    }

    /// No consumer takes deliveries any more: those that wait for it are dropped, and so are those that arrive later.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
        for serial in self.entries.keys().copied().collect::<Vec<_>>() {
            self.discard(serial);
        }
    }

    /// Results that could not be sent.
    pub(super) fn kept_count(&self) -> usize {
        self.kept.len()
    }

    /// How many queued deliveries were discarded since the last call.
    pub(super) fn take_discarded(&mut self) -> usize {
        std::mem::take(&mut self.discarded)
    }

    /// The connection ended. Deliveries that wait for the consumer are dropped: the server delivers them again, perhaps to
    /// another member. What the consumer has, it keeps.
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
                // Its time starts again at the reconnect.
                EntryState::Kept { .. } => self.set_due(serial, None),
            }
        }
    }

    /// An event arrived over the current connection, with a lease of this length and the reason of its redelivery.
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
                // The lease expired before the server got the result, which now applies to the new lease.
                EntryState::Sent(settlement) if !settlement.is_retry() => return Arrival::Ignored,
                // The redelivery that the nack asked for may overtake the nack's OK.
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

    /// The consumer is done with a delivery.
    pub(super) fn settle(&mut self, serial: u64, settlement: Settlement, now: Instant) -> Settling {
        let (is_connected, connections) = (self.is_connected, self.connections);
        let Some(entry) = self.entries.get_mut(&serial) else { return Settling::Unknown };
        let EntryState::Held { connection, .. } = &entry.state else { return Settling::Unknown };
        // A lease of an earlier connection is not this member's any more; the server would call the result stale.
        if !is_connected || *connection != connections {
            self.keep(serial, settlement, false, now);
            return Settling::Kept;
        }
        entry.state = EntryState::Sent(settlement);
        let id = entry.key.1;
        self.set_due(serial, None);
        Settling::Send(id)
    }

    /// The server applied or refused a result.
    pub(super) fn answered(&mut self, serial: u64) {
        if self.entries.get(&serial).is_some_and(|it| matches!(it.state, EntryState::Sent(_))) {
            self.remove(serial);
        }
    }

    /// The consumer dropped a delivery without a result. It is redelivered when the server's lease ends.
    pub(super) fn released(&mut self, serial: u64) {
        if self.entries.get(&serial).is_some_and(|it| matches!(it.state, EntryState::Held { .. })) {
            self.remove(serial);
        }
    }

    /// The lease of a delivery, if it can be extended: none if it is not of the current connection.
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

    /// The server extended a lease: it runs for `by` from `sent_at`.
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

    /// The server refused to extend a lease because it has none. A lease that was adopted since is not affected.
    pub(super) fn not_extended(&mut self, refused: Extendable) {
        if self.extendable(refused.serial) == Some(refused) {
            self.lost(refused.serial);
        }
    }

    /// The lease of this delivery is over.
    fn lost(&mut self, serial: u64) {
        if self.discard(serial) {
            return;
        }
        if let Some(Entry { state: EntryState::Held { lease, .. }, .. }) = self.entries.get(&serial) {
            lease.lose();
            self.set_due(serial, None);
        }
    }

    /// Drops a delivery that waits for the consumer. False if it does not.
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

    /// When to call [`next_extension`](Self::next_extension).
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Ends leases whose time has passed and forgets old results. Returns a lease that must be extended now, if there is one:
    /// call it until there is none.
    pub(super) fn next_extension(&mut self, now: Instant) -> Option<Extendable> {
        while let Some((at, serial)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            debug_assert!(self.entries.get(&serial).is_some_and(|entry| entry.due == Some(at)));
            match self.entries.get(&serial).map(|entry| &entry.state) {
                Some(EntryState::Held { lease, .. }) if now >= lease.deadline() => self.lost(serial),
                Some(EntryState::Held { lease, .. }) => {
                    let deadline = lease.deadline();
                    // A delivery that waits for the consumer is extended as long as it waits.
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

    /// The subscription is over: every consumer is told that its lease is lost.
    pub(super) fn end(&mut self) {
        for serial in self.entries.keys().copied().collect::<Vec<_>>() {
            self.lost(serial);
        }
    }

    /// Plans the extension of a lease half-way, or else its end.
    fn schedule(&mut self, serial: u64, lease_for: Duration, from: Instant) {
        let after = if self.extend_for.is_some() { lease_for / 2 } else { lease_for };
        self.set_due(serial, Some(from + after));
    }

    fn keep(&mut self, serial: u64, settlement: Settlement, was_sent: bool, now: Instant) {
        let Some(entry) = self.entries.get_mut(&serial) else { return };
        if self.by_event.get(&entry.key) != Some(&serial) {
            // The event was delivered again since: that delivery counts.
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

    /// When a result that is kept now is forgotten: not while no redelivery can arrive.
    fn forget_at(&self, now: Instant) -> Option<Instant> {
        (self.is_connected && !self.is_paused).then(|| now + self.ack_timeout + KEEP_MARGIN)
    }

    /// Starts the time of all kept results again, or stops it.
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
        // The event was nacked since, maybe with this result: it is to be tried again.
        Settlement::Nack { .. } => reason != Some(RedeliveryReason::Nacked),
        // A result that did arrive, and a group that was moved since: the event is to be handled again.
        Settlement::Ack | Settlement::GiveUp { .. } => !was_sent || reason.is_some(),
    }
}

#[cfg(test)]
mod tests;
