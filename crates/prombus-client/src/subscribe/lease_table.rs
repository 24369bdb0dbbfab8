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
/// A result that could not be sent is kept for the ack timeout and this time after a reconnect. The bound in time matters
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
    /// Its result is on its way and settles this lease, too.
    Ignored,
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
    ack_timeout: Duration,
    /// How long a delivery is extended at most; none: not at all.
    extend_for: Option<Duration>,
}

struct Entry {
    key: EventKey,
    state: EntryState,
    due: Option<Instant>,
}

enum EntryState {
    /// The consumer has it, or it waits for the consumer.
    Held { lease: Arc<Lease>, connection: u64, since: Instant },
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
            ack_timeout,
            extend_for,
        }
    }

    /// A new connection has joined the group.
    pub(super) fn connected(&mut self, now: Instant) {
        self.connections += 1;
        self.is_connected = true;
        let forget_at = now + self.ack_timeout + KEEP_MARGIN;
        for serial in self.kept.clone() {
            self.set_due(serial, Some(forget_at));
        }
    }

    /// The connection ended. Deliveries that wait for the consumer are dropped: the server delivers them again, perhaps to
    /// another member. What the consumer has, it keeps.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.is_connected = false;
        for serial in self.entries.keys().copied().collect::<Vec<_>>() {
            let Some(entry) = self.entries.get(&serial) else { continue };
            match &entry.state {
                EntryState::Held { lease, .. } if lease.discard() => self.remove(serial),
                EntryState::Held { lease, .. } => {
                    let due = (!lease.is_lost()).then(|| lease.deadline());
                    self.set_due(serial, due);
                }
                EntryState::Sent(settlement) => {
                    let settlement = settlement.clone();
                    self.keep(serial, settlement, true, now);
                }
                EntryState::Kept { .. } => {}
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
                EntryState::Held { lease, connection, .. } => {
                    *connection = self.connections;
                    lease.renew(now + lease_for);
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
        self.last_serial += 1;
        let serial = self.last_serial;
        let lease = Arc::new(Lease::new(serial, now + lease_for));
        let state = EntryState::Held { lease: Arc::clone(&lease), connection: self.connections, since: now };
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

    /// The event whose lease can be extended; none if the lease is not of the current connection.
    pub(super) fn extendable(&self, serial: u64) -> Option<Uuid> {
        let entry = self.entries.get(&serial)?;
        match &entry.state {
            EntryState::Held { connection, .. } if *connection == self.connections && self.is_connected => {
                Some(entry.key.1)
            }
            _ => None,
        }
    }

    /// The server extended a lease: it runs for `by` from `sent_at`.
    pub(super) fn extended(&mut self, serial: u64, by: Duration, sent_at: Instant) {
        if self.extendable(serial).is_none() {
            return;
        }
        if let Some(Entry { state: EntryState::Held { lease, .. }, .. }) = self.entries.get(&serial) {
            lease.renew(sent_at + by);
            self.schedule(serial, by, sent_at);
        }
    }

    /// The server has no lease for this delivery any more.
    pub(super) fn lost(&mut self, serial: u64) {
        let Some(Entry { state: EntryState::Held { lease, .. }, .. }) = self.entries.get(&serial) else {
            return;
        };
        if lease.discard() {
            self.remove(serial);
        } else {
            lease.lose();
            self.set_due(serial, None);
        }
    }

    /// When to call [`next_extension`](Self::next_extension).
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Ends leases whose time has passed and forgets old results. Returns a delivery whose lease must be extended now, if there
    /// is one: call it until there is none.
    pub(super) fn next_extension(&mut self, now: Instant) -> Option<u64> {
        while let Some((at, serial)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            debug_assert!(self.entries.get(&serial).is_some_and(|entry| entry.due == Some(at)));
            match self.entries.get(&serial).map(|entry| &entry.state) {
                Some(EntryState::Held { lease, .. }) if now >= lease.deadline() => self.lost(serial),
                Some(EntryState::Held { lease, since, .. }) => {
                    let deadline = lease.deadline();
                    let is_wanted = self.extend_for.is_some_and(|most| now - *since < most);
                    self.set_due(serial, Some(deadline));
                    if is_wanted && self.extendable(serial).is_some() {
                        return Some(serial);
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
        let due = self.is_connected.then(|| now + self.ack_timeout + KEEP_MARGIN);
        self.set_due(serial, due);
        if self.kept.len() > MAX_KEPT_RESULTS
            && let Some(oldest) = self.kept.first().copied()
        {
            self.remove(oldest);
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
