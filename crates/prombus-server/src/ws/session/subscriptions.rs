//! The subscriptions of a session: found by topic and group, settled together, pulled in turn.

#[cfg(test)]
mod tests;

use super::delivery_rate::DeliveryRate;
use super::ready_list::{ReadyList, SlotWaker};
use super::settling::Settling;
use super::subscription::{Pulled, Subscription};
use crate::clock::steady_ms;
use crate::gateway::Gateway;
use crate::ws::answers::put_err;
use crate::ws::send_buffer::SendBuffer;
use prombus::delivery::MemberSettings;
use prombus::{Backend, GroupError, GroupSpec, Joined, PullLimit, Unavailable};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

/// Maximum size of one pull, so that subscriptions take turns.
const PULL_BYTES_MAX: usize = 256 * 1024;

/// While the buffer budget of all connections is used up: a connection with this many queued bytes gets no events.
const LITTLE_BYTES: usize = 32 * 1024;

/// An index in the list of subscriptions.
pub(super) type SlotIndex = usize;

/// The subscriptions of one session.
pub(super) struct Subscriptions {
    /// `None`: the slot is free.
    slots: Vec<Option<Subscription>>,
    /// By topic and group, see [`put_key`].
    by_name: HashMap<String, SlotIndex>,
    /// The slot of the last lookup: most frames are about the same subscription as the previous one.
    last_slot: SlotIndex,
    /// The key of a lookup; kept to avoid an allocation per lookup.
    key: String,
    /// Slots with collected acks.
    unsettled: Vec<SlotIndex>,
    /// Settlements that are not answered yet, in order. Each is answered when it is durable.
    settling: VecDeque<Settling>,
    /// Slots that may have events to pull.
    ready: Arc<ReadyList>,
    /// Slots whose last pull was pending, without duplicates.
    waiting: Vec<SlotIndex>,
    /// Whether the leases are held, see [`hold`](Self::hold).
    is_held: bool,
    /// Whether all groups were left. Then the session gets no more events.
    has_left: bool,
}

impl Subscriptions {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            by_name: HashMap::new(),
            last_slot: 0,
            key: String::new(),
            unsettled: Vec::new(),
            settling: VecDeque::new(),
            ready: Arc::default(),
            waiting: Vec::new(),
            is_held: false,
            has_left: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether all groups were left.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether no settlement waits to be answered.
    pub(super) fn is_answered(&self) -> bool {
        self.settling.is_empty()
    }

    pub(super) fn add(
        &mut self,
        gateway: &Gateway,
        spec: &GroupSpec,
        settings: MemberSettings,
        joined: Joined,
    ) {
        let (topic, group) = (spec.subscription.as_str(), spec.group.as_str());
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        let mut key = String::new();
        put_key(&mut key, topic, group);
        self.by_name.insert(key, slot);
        let metrics = gateway.metrics.subscription(topic, group);
        let waker = SlotWaker::new(slot, &self.ready);
        waker.queue();
        if self.is_held {
            joined.membership.hold(true);
        }
        self.slots[slot] = Some(Subscription::new(spec, joined.membership, settings, waker, metrics));
    }

    pub(super) fn find(&mut self, topic: &str, group: &str) -> Option<SlotIndex> {
        if let Some(Some(last)) = self.slots.get(self.last_slot)
            && last.topic == topic
            && last.group == group
        {
            return Some(self.last_slot);
        }
        put_key(&mut self.key, topic, group);
        let found = self.by_name.get(&self.key).copied();
        self.last_slot = found.unwrap_or(self.last_slot);
        found
    }

    /// The subscription in a slot that [`find`](Self::find) returned.
    pub(super) fn get(&mut self, slot: SlotIndex) -> &mut Subscription {
        self.slots[slot].as_mut().expect("a slot that was found is in use")
    }

    /// The slots of subscriptions for which `is_wanted` does not hold.
    pub(super) fn unwanted(&self, is_wanted: impl Fn(&Subscription) -> bool) -> Vec<SlotIndex> {
        let taken = self.slots.iter().enumerate().filter_map(|(slot, it)| Some((slot, it.as_ref()?)));
        taken.filter(|(_, subscription)| !is_wanted(subscription)).map(|(slot, _)| slot).collect()
    }

    /// Records that a slot has collected its first ack.
    pub(super) fn note_unsettled(&mut self, slot: SlotIndex) {
        self.unsettled.push(slot);
    }

    /// Submits the collected acks of one subscription.
    pub(super) fn settle(&mut self, slot: SlotIndex, backend: &dyn Backend) {
        let Some(subscription) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        self.settling.extend(subscription.settle(is_durable(backend)));
    }

    /// Submits all collected acks.
    pub(super) fn settle_all(&mut self, backend: &dyn Backend) {
        if self.unsettled.is_empty() {
            return;
        }
        let mut unsettled = std::mem::take(&mut self.unsettled);
        for slot in unsettled.drain(..) {
            self.settle(slot, backend);
        }
        self.unsettled = unsettled;
    }

    /// Queues the answer of a settlement, which is sent when the settlement is durable. A settlement without `corr` is answered
    /// only if settlements cannot become durable at the moment.
    pub(super) fn answer_later(&mut self, settling: Settling, backend: &dyn Backend) {
        if !settling.is_silent() || !is_durable(backend) {
            self.settling.push_back(settling);
        }
    }

    /// Writes the answers of settlements that are durable.
    pub(super) fn poll_settled(&mut self, context: &mut Context<'_>, out: &mut SendBuffer) {
        while let Some(front) = self.settling.front_mut() {
            if !front.poll(context, out) {
                break;
            }
            self.settling.pop_front();
        }
    }

    /// Removes a subscription, after submitting its acks.
    pub(super) fn take(&mut self, slot: SlotIndex, backend: &dyn Backend) -> Option<Subscription> {
        self.settle(slot, backend);
        let subscription = self.slots.get_mut(slot)?.take()?;
        put_key(&mut self.key, &subscription.topic, &subscription.group);
        self.by_name.remove(&self.key);
        self.ready.forget(slot);
        self.waiting.retain(|&other| other != slot);
        Some(subscription)
    }

    /// Registers the task that is woken when a subscription may have events.
    pub(super) fn register(&self, waker: &Waker) {
        self.ready.register(waker);
    }

    /// Pulls events while there is room, once from each ready subscription. Those that have more are queued again, after the
    /// others.
    pub(super) fn pull(&mut self, gateway: &Gateway, rate: &mut DeliveryRate, out: &mut SendBuffer) {
        let now = steady_ms();
        rate.resume();
        for _ in 0..self.ready.len() {
            if self.has_left {
                return;
            }
            let room = room(gateway, out);
            if room == 0 {
                return self.stop_waiting();
            }
            let Some(events) = rate.available(now) else { return self.stop_waiting() };
            let Some(slot) = self.ready.pop() else { return };
            let Some(subscription) = self.slots.get_mut(slot).and_then(Option::as_mut) else { continue };
            subscription.slot.taken();
            if subscription.is_moving {
                continue;
            }
            let limit = PullLimit { events, bytes: room.min(PULL_BYTES_MAX) };
            match subscription.pull(limit, out) {
                Ok(Pulled::None) => {
                    if !std::mem::replace(&mut subscription.is_waiting, true) {
                        self.waiting.push(slot);
                    }
                }
                Ok(Pulled::Some(count)) => {
                    subscription.slot.queue();
                    rate.take(count, now);
                }
                // This process no longer leads the store, and the gateway is about to close the connection with 1012. Until then
                // the slot stays, so that an ack is answered with `unavailable`.
                Err(GroupError::Unavailable(Unavailable::Deposed(_) | Unavailable::Closed))
                    if gateway.shared_store.is_some() => {}
                Err(error) => self.end(slot, &error, &*gateway.backend, out),
            }
        }
    }

    /// Stops deliveries to a subscription until the client has the answer to its SEEK: when that answer arrives, the client drops
    /// the events that it holds, because their leases are void. An event that was delivered again before the answer would be
    /// dropped too, although its lease is valid.
    pub(super) fn begin_move(&mut self, slot: SlotIndex) {
        self.get(slot).is_moving = true;
    }

    /// Resumes deliveries, when the SEEK is answered.
    pub(super) fn end_move(&mut self, slot: SlotIndex) {
        if let Some(subscription) = self.slots.get_mut(slot).and_then(Option::as_mut) {
            subscription.is_moving = false;
            subscription.slot.queue();
        }
    }

    /// Gives up the events that are being read for this client, so that they can go to other members. The client can get no
    /// events for now. The end of the read, or the next event, adds the slot to the ready list again.
    #[cold]
    fn stop_waiting(&mut self) {
        for slot in self.waiting.drain(..) {
            if let Some(subscription) = self.slots.get_mut(slot).and_then(Option::as_mut) {
                subscription.is_waiting = false;
                subscription.membership.stop_waiting();
            }
        }
    }

    /// Whether a pull would find a ready subscription, and room for its events.
    pub(super) fn is_ready_to_pull(&self, gateway: &Gateway, out: &SendBuffer) -> bool {
        !self.has_left && room(gateway, out) > 0 && self.ready.len() > 0
    }

    /// Ends a subscription whose group was deleted or whose events cannot be read.
    fn end(&mut self, slot: SlotIndex, error: &GroupError, backend: &dyn Backend, out: &mut SendBuffer) {
        let Some(subscription) = self.take(slot, backend) else { return };
        let msg = format!("group {} on {}: {error}", subscription.group, subscription.topic);
        put_err(out, None, error.code(), &msg);
        subscription.leave();
    }

    /// Sets whether the leases of the deliveries of all subscriptions are held. Held leases do not expire.
    pub(super) fn hold(&mut self, is_held: bool) {
        if self.is_held != is_held {
            self.is_held = is_held;
            for subscription in self.slots.iter().flatten() {
                subscription.membership.hold(is_held);
            }
        }
    }

    /// Leaves all groups cleanly.
    pub(super) fn leave(&mut self) {
        self.has_left = true;
        self.by_name.clear();
        for subscription in self.slots.drain(..).flatten() {
            subscription.leave();
        }
    }

    /// Ends all subscriptions because the client is lost. Everything before the position `sent` of the send buffer was sent to
    /// it.
    pub(super) fn lose(&mut self, sent: u64) {
        self.has_left = true;
        self.by_name.clear();
        for subscription in self.slots.drain(..).flatten() {
            subscription.lose(sent);
        }
    }
}

/// How many more bytes of events may be queued now. Events may use half of `max_queued_bytes`; the other half is for answers.
/// While the buffer budget of all connections is used up, a client that reads its data still gets small amounts.
fn room(gateway: &Gateway, out: &SendBuffer) -> usize {
    let most = gateway.options.connections.max_queued_bytes / 2;
    let most = if gateway.budget.has_room() { most } else { most.min(LITTLE_BYTES) };
    most.saturating_sub(out.byte_count())
}

/// Whether acks can become durable now. If not, acks without a `corr` must be answered too, with an error.
fn is_durable(backend: &dyn Backend) -> bool {
    backend.health().is_ok() && !backend.is_storage_full()
}

/// Writes the key of a subscription: topic and group, separated by a line break, which neither can contain.
fn put_key(into: &mut String, topic: &str, group: &str) {
    into.clear();
    into.push_str(topic);
    into.push('\n');
    into.push_str(group);
}
