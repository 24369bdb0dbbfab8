//! The state of one WebSocket connection, without its socket: frames go in, frames come out.
//!
//! Frames are handled in order. Publishes and acks are gathered while frames are read and handed over together by
//! [`Session::flush`]; [`Session::poll`] then writes all answers that are due and pulls events while there is room. A frame
//! that has to wait for the disk before the next can be understood (SUBSCRIBE, SEEK, CURSOR) holds up those behind it.

mod corrs;
mod delivered;
mod frames;
mod publisher;
mod ready;
mod subscription;

use crate::auth::Principal;
use crate::gateway::{Gateway, Peer, now_ms, steady_ms};
use crate::rate::TokenBucket;
use crate::ws::frame::put_text;
use prombus::delivery::MemberSettings;
use prombus::{BoxFuture, GroupError, GroupSpec, Joined, PullLimit};
use prombus_protocol::{CursorPosition, ErrorCode, FrameReader, Topic, put_err, put_ignored, put_ok};
use publisher::Publisher;
use ready::{ReadyList, SlotWaker};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use subscription::{Pulled, Settling, Subscription};

/// What one pull takes at most, so that subscriptions take turns.
const PULL_BYTES_MAX: usize = 256 * 1024;

/// What a connection may have queued when there is no room for more.
const LITTLE_BYTES: usize = 32 * 1024;

/// A connection that the gateway ends, and how it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
}

pub(crate) struct Session {
    gateway: Arc<Gateway>,
    peer: Arc<Peer>,
    principal: Option<Arc<Principal>>,
    wrong_tokens: u32,
    /// What the last subscription that has a name is called.
    name: Option<String>,
    reader: FrameReader,
    /// Unknown fields of the frame that is being handled.
    ignored: Vec<String>,
    /// The time, read once for all frames that are handled together.
    now: Option<Now>,
    /// Frames to be sent.
    pub(crate) out: Vec<u8>,
    publisher: Publisher,
    /// The topic of the last publish: whether it was allowed, and whether it was there.
    last_topic: Option<KnownTopic>,
    settling: VecDeque<Settling>,
    subscriptions: Vec<Option<Subscription>>,
    slots: HashMap<String, usize>,
    /// The slot that was found last.
    last_slot: usize,
    /// Subscriptions with acks that were gathered.
    unsettled_slots: Vec<usize>,
    key: String,
    ready: Arc<ReadyList>,
    /// What the frames behind it wait for.
    barrier: Option<Barrier>,
    deliveries: Option<TokenBucket>,
    /// When events may be pushed again, by the steady clock.
    paced_until_ms: Option<u64>,
    is_held: bool,
    /// All groups were left, for good.
    has_left: bool,
    ending: Option<Ending>,
}

/// The time by both clocks, in milliseconds.
#[derive(Clone, Copy)]
struct Now {
    steady_ms: u64,
    wall_ms: i64,
}

struct KnownTopic {
    topic: Topic,
    is_allowed: bool,
    is_there: bool,
}

struct Barrier {
    corr: Option<String>,
    ignored: Vec<String>,
    future: BoxFuture<'static, Result<Passed, GroupError>>,
}

/// What came behind a barrier.
enum Passed {
    Subscribed { spec: GroupSpec, settings: MemberSettings, joined: Joined },
    Cursor(Option<CursorPosition>),
}

impl Session {
    /// A session; with a principal when the upgrade had a token.
    pub(crate) fn new(gateway: Arc<Gateway>, peer: Arc<Peer>, principal: Option<Arc<Principal>>) -> Self {
        let principal = principal.or_else(|| (!gateway.auth.is_configured()).then(Principal::anyone));
        let deliveries = gateway.rates.deliveries();
        Self {
            gateway,
            peer,
            principal,
            wrong_tokens: 0,
            name: None,
            reader: FrameReader::default(),
            ignored: Vec::new(),
            now: None,
            out: Vec::new(),
            publisher: Publisher::default(),
            last_topic: None,
            settling: VecDeque::new(),
            subscriptions: Vec::new(),
            slots: HashMap::new(),
            last_slot: 0,
            unsettled_slots: Vec::new(),
            key: String::new(),
            ready: Arc::default(),
            barrier: None,
            deliveries,
            paced_until_ms: None,
            is_held: false,
            has_left: false,
            ending: None,
        }
    }

    /// The client, for logs: its name or that of its token, and its address.
    pub(crate) fn who(&self) -> String {
        let remote = self.peer.remote;
        match self.name.clone().or_else(|| self.token_name()) {
            Some(name) => format!("{name:?} ({remote})"),
            None => remote.to_string(),
        }
    }

    /// Whether it is known who this is.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.principal.is_some()
    }

    /// When the token runs out, in milliseconds since 1970.
    pub(crate) fn expires_ms(&self) -> Option<i64> {
        self.principal.as_ref().and_then(|principal| principal.expires_ms())
    }

    /// Whether the connection is to be ended.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Whether another frame can be handled now.
    pub(crate) fn is_open_for_frames(&self, queued_bytes: usize) -> bool {
        let is_full = queued_bytes + self.out.len() >= self.gateway.options.connections.max_queued_bytes;
        self.barrier.is_none() && self.ending.is_none() && !is_full && !self.publisher.is_full()
    }

    /// Whether every frame was answered that waits for an answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.publisher.is_idle() && self.settling.is_empty() && self.barrier.is_none()
    }

    /// When to poll again even if nothing happens, by the steady clock.
    pub(crate) fn wake_at_ms(&self) -> Option<u64> {
        self.paced_until_ms
    }

    /// Bytes that it holds.
    pub(crate) fn byte_count(&self) -> usize {
        self.out.capacity() + self.publisher.byte_count()
    }

    /// A message that is no text.
    #[cfg_attr(not(feature = "test-util"), expect(unused_variables, reason = "only an echo looks at it"))]
    pub(crate) fn handle_binary(&mut self, payload: &[u8]) {
        #[cfg(feature = "test-util")]
        if self.gateway.is_echo {
            return crate::ws::frame::put_binary(&mut self.out, payload);
        }
        if self.principal.is_none() {
            return self.err_unauthorized(None);
        }
        self.err(None, ErrorCode::BadRequest, "binary messages are not understood; send JSON as text");
    }

    fn ok(&mut self, corr: Option<&str>) {
        put_text(&mut self.out, 60, |into| {
            put_ok(into, corr);
            put_ignored(into, &self.ignored);
        });
    }

    pub(crate) fn err(&mut self, corr: Option<&str>, code: ErrorCode, msg: &str) {
        put_text(&mut self.out, 100, |into| put_err(into, corr, code, msg, None));
    }

    fn err_unauthorized(&mut self, corr: Option<&str>) {
        self.err(corr, ErrorCode::Unauthorized, "Call AUTH first.");
    }

    fn add(&mut self, spec: &GroupSpec, settings: MemberSettings, joined: Joined) {
        let (topic, group) = (spec.subscription.as_str(), spec.group.as_str());
        let slot = self.subscriptions.iter().position(Option::is_none).unwrap_or(self.subscriptions.len());
        if slot == self.subscriptions.len() {
            self.subscriptions.push(None);
        }
        self.slots.insert(key_of(topic, group), slot);
        let metrics = self.gateway.metrics.subscription(topic, group);
        let waker = SlotWaker::new(slot, &self.ready);
        waker.queue();
        if self.is_held {
            joined.membership.hold(true);
        }
        let subscription = Subscription::new(spec, joined.membership, settings, waker, metrics);
        self.subscriptions[slot] = Some(subscription);
    }

    fn find(&mut self, topic: &str, group: &str) -> Option<usize> {
        // Most frames are about the same subscription as the one before.
        if let Some(Some(last)) = self.subscriptions.get(self.last_slot)
            && last.topic == topic
            && last.group == group
        {
            return Some(self.last_slot);
        }
        self.key.clear();
        self.key.push_str(topic);
        self.key.push('\n');
        self.key.push_str(group);
        let found = self.slots.get(&self.key).copied();
        self.last_slot = found.unwrap_or(self.last_slot);
        found
    }

    fn now(&mut self) -> Now {
        *self.now.get_or_insert_with(|| Now { steady_ms: steady_ms(), wall_ms: now_ms() })
    }

    /// The slot of a subscription, or an ERR.
    fn slot(&mut self, corr: Option<&str>, topic: &str, group: &str) -> Option<usize> {
        let found = self.find(topic, group);
        if found.is_none() {
            let msg = format!("this connection is not subscribed to {topic} as group {group}");
            self.err(corr, ErrorCode::NotSubscribed, &msg);
        }
        found
    }

    fn subscription(&mut self, slot: usize) -> &mut Subscription {
        self.subscriptions[slot].as_mut().expect("slots that are found are taken")
    }

    fn take(&mut self, slot: usize) -> Option<Subscription> {
        self.settle(slot);
        let subscription = self.subscriptions.get_mut(slot)?.take()?;
        self.slots.remove(&key_of(&subscription.topic, &subscription.group));
        self.ready.forget(slot);
        Some(subscription)
    }

    fn settle(&mut self, slot: usize) {
        let is_durable = self.is_durable();
        let Some(subscription) = self.subscriptions.get_mut(slot).and_then(Option::as_mut) else { return };
        self.settling.extend(subscription.settle(is_durable));
    }

    /// Whether acks become durable, so that those without a corr need no answer.
    fn is_durable(&self) -> bool {
        self.gateway.backend.health().is_ok() && !self.gateway.backend.is_storage_full()
    }

    fn answer_later(&mut self, settling: Settling) {
        // Without corr only an error is answered.
        if !settling.is_silent() || !self.is_durable() {
            self.settling.push_back(settling);
        }
    }

    /// Hands over what was gathered from the frames.
    pub(crate) fn flush(&mut self) {
        self.now = None;
        self.publisher.flush(&*self.gateway.backend);
        for slot in std::mem::take(&mut self.unsettled_slots) {
            self.settle(slot);
        }
    }

    /// Writes answers that are due and events that are there, while fewer than the allowed bytes are queued. `sent_before` is
    /// what the connection was sent before [`Self::out`].
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, queued_bytes: usize, sent_before: u64) {
        self.publisher.poll(&*self.gateway.backend, context, &mut self.out);
        while let Some(front) = self.settling.front_mut() {
            if !front.poll(context, &mut self.out) {
                break;
            }
            self.settling.pop_front();
        }
        if let Some(barrier) = &mut self.barrier
            && let Poll::Ready(passed) = barrier.future.as_mut().poll(context)
            && let Some(Barrier { corr, ignored, .. }) = self.barrier.take()
        {
            self.pass(corr, ignored, passed);
        }
        self.ready.register(context.waker());
        self.pull(queued_bytes, sent_before);
    }

    fn pull(&mut self, queued_bytes: usize, sent_before: u64) {
        // The other half is for answers.
        let most = self.gateway.options.connections.max_queued_bytes / 2;
        let now = steady_ms();
        self.paced_until_ms = None;
        // Each that is ready once: those that have more stand in line again, behind answers and the others.
        for _ in 0..self.ready.len() {
            // When all buffers together are full, those who keep up still get a little at a time.
            let most = if self.gateway.budget.has_room() { most } else { most.min(LITTLE_BYTES) };
            let room = most.saturating_sub(queued_bytes + self.out.len());
            if room == 0 || self.ending.is_some() || self.has_left {
                return;
            }
            let mut events = u32::MAX;
            if let Some(bucket) = &mut self.deliveries {
                let wait_ms = bucket.wait_ms(1, now);
                if wait_ms > 0 {
                    self.paced_until_ms = Some(now.saturating_add(wait_ms));
                    return;
                }
                events = bucket.available(now).max(1);
            }
            let Some(slot) = self.ready.pop() else { return };
            let Some(subscription) = self.subscriptions.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            subscription.slot.taken();
            let limit = PullLimit { events, bytes: room.min(PULL_BYTES_MAX) };
            match subscription.pull(limit, &mut self.out, sent_before) {
                Ok(Pulled::None) => {}
                Ok(Pulled::Some(count)) => {
                    subscription.slot.queue();
                    if let Some(bucket) = &mut self.deliveries {
                        bucket.take(count, now);
                    }
                }
                Err(error) => self.end_subscription(slot, &error),
            }
        }
    }

    /// Whether a pull would find something to look at, and room for it.
    pub(crate) fn is_ready_to_pull(&self, queued_bytes: usize) -> bool {
        let most = self.gateway.options.connections.max_queued_bytes / 2;
        let most = if self.gateway.budget.has_room() { most } else { most.min(LITTLE_BYTES) };
        let may_pull = self.ending.is_none() && !self.has_left && self.paced_until_ms.is_none();
        may_pull && queued_bytes + self.out.len() < most && self.ready.len() > 0
    }

    /// The group is gone, or its events cannot be read.
    fn end_subscription(&mut self, slot: usize, error: &GroupError) {
        let Some(subscription) = self.take(slot) else { return };
        let msg = format!("group {} on {}: {error}", subscription.group, subscription.topic);
        self.err(None, error.code(), &msg);
        subscription.leave();
    }

    /// Says whether the socket is read. While it is not, leases do not run out.
    pub(crate) fn hold(&mut self, is_held: bool) {
        if self.is_held != is_held {
            self.is_held = is_held;
            for subscription in self.subscriptions.iter().flatten() {
                subscription.membership.hold(is_held);
            }
        }
    }

    /// Leaves all groups in order.
    pub(crate) fn leave(&mut self) {
        self.flush();
        self.has_left = true;
        self.slots.clear();
        for subscription in self.subscriptions.drain(..).flatten() {
            subscription.leave();
        }
    }

    /// The connection broke after it was sent so many bytes.
    pub(crate) fn lose(&mut self, written: u64) {
        self.flush();
        self.has_left = true;
        self.slots.clear();
        for subscription in self.subscriptions.drain(..).flatten() {
            subscription.lose(written);
        }
    }
}

fn key_of(topic: &str, group: &str) -> String {
    format!("{topic}\n{group}")
}
