//! The state of one WebSocket connection, without its socket: frames go in, frames come out.
//!
//! Frames are handled in order. Publishes and acks are gathered while frames are read and handed over together by
//! [`Session::flush`]; [`Session::poll`] then writes all answers that are due and pulls events while there is room. A frame
//! that has to wait for the disk before the next can be understood (SUBSCRIBE, SEEK, CURSOR) holds up those behind it.

mod corrs;
mod delivered;
mod publisher;
mod ready;
mod subscription;

use crate::auth::{AuthRefused, Principal};
use crate::gateway::{Gateway, Peer, now_ms, steady_ms};
use crate::rate::TokenBucket;
use crate::ws::frame::{close, put_text};
use prombus::delivery::MemberSettings;
use prombus::{BoxFuture, GroupError, GroupName, GroupSpec, Joined, MemberOptions, Pattern, PullLimit};
use prombus_protocol::{
    ClientFrame, CursorPosition, ErrorCode, Json, OkFrame, PublishOptions, RawValue, SubscribeOptions, Topic,
    limits, parse_client_frame, put_err, put_ok,
};
use publisher::{Publisher, put_refused};
use ready::{ReadyList, SlotWaker};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use subscription::{Pulled, Settling, Subscription, put_stale};

/// So many wrong tokens end a connection.
const WRONG_TOKENS_MAX: u32 = 3;
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
    /// Frames to be sent.
    pub(crate) out: Vec<u8>,
    publisher: Publisher,
    /// The topic of the last publish: whether it was allowed, and whether it was there.
    last_topic: Option<KnownTopic>,
    settling: VecDeque<Settling>,
    subscriptions: Vec<Option<Subscription>>,
    slots: HashMap<String, usize>,
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

struct KnownTopic {
    topic: Topic,
    is_allowed: bool,
    is_there: bool,
}

struct Barrier {
    corr: Option<String>,
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
            out: Vec::new(),
            publisher: Publisher::default(),
            last_topic: None,
            settling: VecDeque::new(),
            subscriptions: Vec::new(),
            slots: HashMap::new(),
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

    /// Where the client is.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.peer.remote
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

    /// Handles a message.
    pub(crate) fn handle(&mut self, text: &[u8]) {
        let parsed = match parse_client_frame(text) {
            Ok(parsed) => parsed,
            Err(error) if self.principal.is_some() || error.code == ErrorCode::BadJson => {
                return self.err(error.corr.as_deref(), error.code, &error.msg);
            }
            Err(error) => return self.err_unauthorized(error.corr.as_deref()),
        };
        let corr = parsed.corr;
        if let ClientFrame::Auth { token } = &parsed.frame {
            return self.authenticate(corr, token.as_deref());
        }
        if self.principal.is_none() {
            return self.err_unauthorized(corr);
        }
        match parsed.frame {
            ClientFrame::Auth { .. } => {}
            ClientFrame::Publish { topic, payload, opts } => self.publish(corr, &topic, &payload, &opts),
            ClientFrame::Subscribe { topic, group, opts } => self.subscribe(corr, &topic, &group, &opts),
            ClientFrame::Unsubscribe { topic, group } => {
                let Some(slot) = self.slot(corr, &topic, &group) else { return };
                if let Some(subscription) = self.take(slot) {
                    subscription.leave();
                }
                self.ok(corr);
            }
            ClientFrame::Ack { topic, group, id } => {
                let Some(slot) = self.slot(corr, &topic, &group) else { return };
                match self.subscription(slot).ack(id, corr) {
                    Some(true) => self.unsettled_slots.push(slot),
                    Some(false) => {}
                    None if corr.is_some() => put_text(&mut self.out, 60, |into| put_stale(into, corr)),
                    None => {}
                }
            }
            ClientFrame::Nack { topic, group, id, reason, delay_ms } => {
                let Some(slot) = self.slot(corr, &topic, &group) else { return };
                // In order: what was acked before comes before.
                self.settle(slot);
                match self.subscription(slot).nack(id, corr, reason.as_deref(), delay_ms) {
                    Some(settling) => self.answer_later(settling),
                    None if corr.is_some() => put_text(&mut self.out, 60, |into| put_stale(into, corr)),
                    None => {}
                }
            }
            ClientFrame::Modack { topic, group, id, extend_ms } => {
                let Some(slot) = self.slot(corr, &topic, &group) else { return };
                if self.subscription(slot).extend(id, extend_ms) {
                    self.ok(corr);
                } else {
                    self.err(corr, ErrorCode::UnknownId, "no lease of this id to extend");
                }
            }
            ClientFrame::Pause { topic, group } => self.pause(corr, &topic, &group, true),
            ClientFrame::Resume { topic, group } => self.pause(corr, &topic, &group, false),
            ClientFrame::Cursor { topic, group } => {
                if self.may_read(corr, &topic, &group) {
                    let (backend, topic, group) =
                        (Arc::clone(&self.gateway.backend), topic.into_owned(), group.into_owned());
                    self.wait(corr, async move { Ok(Passed::Cursor(backend.cursor(&topic, &group).await?)) });
                }
            }
            ClientFrame::Seek { topic, group, to } => {
                if self.may_read(corr, &topic, &group) {
                    let (backend, topic, group) =
                        (Arc::clone(&self.gateway.backend), topic.into_owned(), group.into_owned());
                    self.wait(corr, async move {
                        backend.seek(&topic, &group, to).await?;
                        Ok(Passed::Cursor(backend.cursor(&topic, &group).await?))
                    });
                }
            }
        }
    }

    /// A message that is no text.
    pub(crate) fn handle_binary(&mut self) {
        if self.principal.is_none() {
            return self.err_unauthorized(None);
        }
        self.err(None, ErrorCode::BadRequest, "binary messages are not understood; send JSON as text");
    }

    fn ok(&mut self, corr: Option<&str>) {
        put_text(&mut self.out, 60, |into| put_ok(into, corr));
    }

    pub(crate) fn err(&mut self, corr: Option<&str>, code: ErrorCode, msg: &str) {
        put_text(&mut self.out, 100, |into| put_err(into, corr, code, msg, None));
    }

    fn err_unauthorized(&mut self, corr: Option<&str>) {
        self.err(corr, ErrorCode::Unauthorized, "Call AUTH first.");
    }

    fn authenticate(&mut self, corr: Option<&str>, token: Option<&str>) {
        match self.gateway.auth.authenticate(token, now_ms()) {
            Ok(principal) => {
                self.principal = Some(principal);
                self.last_topic = None;
                self.end_forbidden();
                let corr = corr.and_then(|corr| RawValue::from_string(corr.to_owned()).ok());
                let protocol = Some(limits::PROTOCOL_VERSION);
                put_text(&mut self.out, 60, |into| {
                    OkFrame { corr, protocol, ..OkFrame::default() }.put(into);
                });
            }
            Err(refused) => {
                let refused: AuthRefused = refused;
                self.err(corr, ErrorCode::BadToken, &refused.to_string());
                self.wrong_tokens += 1;
                if self.wrong_tokens >= WRONG_TOKENS_MAX {
                    self.ending = Some(Ending { code: close::POLICY, reason: "too many wrong tokens" });
                }
            }
        }
    }

    /// A new token may be one that may less.
    fn end_forbidden(&mut self) {
        let Some(principal) = self.principal.clone() else { return };
        for slot in 0..self.subscriptions.len() {
            let Some(subscription) = &self.subscriptions[slot] else { continue };
            let group = Some(subscription.group.as_str());
            if subscription.patterns().all(|pattern| principal.may_subscribe(pattern, group)) {
                continue;
            }
            let msg = format!("{}::{}: this token may not", subscription.topic, subscription.group);
            self.err(None, ErrorCode::Forbidden, &msg);
            if let Some(subscription) = self.take(slot) {
                subscription.leave();
            }
        }
    }

    fn publish(&mut self, corr: Option<&str>, topic: &str, payload: &Json<'_>, opts: &PublishOptions) {
        if self.last_topic.as_ref().is_none_or(|known| known.topic.as_str() != topic) {
            let name = match Topic::new(topic) {
                Ok(name) => name,
                Err(error) => return self.err(corr, ErrorCode::BadTopic, &error.to_string()),
            };
            let principal = self.principal.as_ref().expect("frames before AUTH come not here");
            let is_allowed = principal.may_publish(topic);
            self.last_topic = Some(KnownTopic { topic: name, is_allowed, is_there: false });
        }
        let Some(known) = &mut self.last_topic else { return };
        if !known.is_allowed {
            let msg = format!("this token may not publish to {topic}");
            return self.err(corr, ErrorCode::Forbidden, &msg);
        }
        if let Err(limited) = self.gateway.rates.take_publish(&self.peer.rate, topic, 1) {
            let (msg, wait) = (limited.to_string(), Some(limited.retry_after_ms));
            return put_text(&mut self.out, 120, |into| {
                put_err(into, corr, ErrorCode::RateLimited, &msg, wait);
            });
        }
        known.is_there = known.is_there || self.gateway.backend.has_topic(&known.topic);
        let to = (known.topic.clone(), known.is_there);
        let pushed = self.publisher.push(&*self.gateway.backend, corr, to, payload, opts);
        if let Err(error) = pushed {
            put_refused(&mut self.out, corr, &error);
        }
    }

    fn may_read(&mut self, corr: Option<&str>, topic: &str, group: &str) -> bool {
        let principal = self.principal.as_ref().expect("frames before AUTH come not here");
        let may = principal.may_subscribe(topic, Some(group));
        if !may {
            let msg = format!("this token may not subscribe to {topic} as {group}");
            self.err(corr, ErrorCode::Forbidden, &msg);
        }
        may
    }

    fn subscribe(&mut self, corr: Option<&str>, topic: &str, group: &str, opts: &SubscribeOptions) {
        if self.find(topic, group).is_some() {
            return self.err(corr, ErrorCode::AlreadySubscribed, &format!("{topic}::{group}"));
        }
        if !self.may_read(corr, topic, group) || !opts.topics.iter().all(|it| self.may_read(corr, it, group))
        {
            return;
        }
        let most = self.gateway.options.connections.max_subscriptions;
        if self.slots.len() >= most {
            let msg = format!("at most {most} subscriptions per connection (max_subscriptions)");
            return self.err(corr, ErrorCode::LimitReached, &msg);
        }
        let spec = match group_spec(topic, group, opts) {
            Ok(spec) => spec,
            Err(error) => return self.err(corr, error.code(), &error.to_string()),
        };
        let settings = MemberSettings {
            max_in_flight: opts.max_in_flight.unwrap_or(limits::DEFAULT_MAX_IN_FLIGHT_WEBSOCKET),
            batch_size: opts.batch_size(),
            ack_timeout_ms: opts.ack_timeout_ms(),
            max_attempts: opts.max_attempts(),
            max_unsettled: opts.max_unsettled(),
        };
        let label = Some(format!("ws {}", self.peer.remote));
        let member = MemberOptions { settings, filter: None, label };
        let backend = Arc::clone(&self.gateway.backend);
        self.wait(corr, async move {
            let joined = backend.join(spec.clone(), member).await?;
            Ok(Passed::Subscribed { spec, settings, joined })
        });
    }

    /// Nothing behind this frame is handled before it is done. What came before it goes before it.
    fn wait(
        &mut self,
        corr: Option<&str>,
        future: impl Future<Output = Result<Passed, GroupError>> + Send + 'static,
    ) {
        self.flush();
        self.barrier = Some(Barrier { corr: corr.map(str::to_owned), future: Box::pin(future) });
    }

    fn pass(&mut self, corr: Option<String>, passed: Result<Passed, GroupError>) {
        let raw = corr.clone().and_then(|corr| RawValue::from_string(corr).ok());
        let ok = OkFrame { corr: raw, ..OkFrame::default() };
        let ok = match passed {
            Err(error) => return self.err(corr.as_deref(), error.code(), &error.to_string()),
            Ok(Passed::Cursor(cursor)) => OkFrame { cursor, ..ok },
            Ok(Passed::Subscribed { joined, .. }) if self.has_left => {
                drop(joined.membership.leave());
                return self.err(corr.as_deref(), ErrorCode::Unavailable, "the connection is being closed");
            }
            Ok(Passed::Subscribed { spec, settings, joined }) => {
                let created = joined.created;
                self.add(&spec, settings, joined);
                OkFrame { created, ..ok }
            }
        };
        put_text(&mut self.out, 120, |into| ok.put(into));
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
        self.key.clear();
        self.key.push_str(topic);
        self.key.push('\n');
        self.key.push_str(group);
        self.slots.get(&self.key).copied()
    }

    /// The slot of a subscription, or an ERR.
    fn slot(&mut self, corr: Option<&str>, topic: &str, group: &str) -> Option<usize> {
        let found = self.find(topic, group);
        if found.is_none() {
            self.err(corr, ErrorCode::NotSubscribed, &format!("{topic}::{group}"));
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
        Some(subscription)
    }

    fn pause(&mut self, corr: Option<&str>, topic: &str, group: &str, is_paused: bool) {
        let Some(slot) = self.slot(corr, topic, group) else { return };
        let subscription = self.subscription(slot);
        subscription.membership.pause(is_paused);
        if !is_paused {
            subscription.slot.queue();
        }
        self.ok(corr);
    }

    fn settle(&mut self, slot: usize) {
        let settling =
            self.subscriptions.get_mut(slot).and_then(Option::as_mut).and_then(Subscription::settle);
        settling.into_iter().for_each(|settling| self.answer_later(settling));
    }

    fn answer_later(&mut self, settling: Settling) {
        if !settling.is_silent() {
            self.settling.push_back(settling);
        }
    }

    /// Hands over what was gathered from the frames.
    pub(crate) fn flush(&mut self) {
        self.publisher.flush(&*self.gateway.backend);
        for slot in std::mem::take(&mut self.unsettled_slots) {
            self.settle(slot);
        }
    }

    /// Writes answers that are due and events that are there, while fewer than the allowed bytes are queued. `sent_before` is
    /// what the connection was sent before [`Self::out`].
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, queued_bytes: usize, sent_before: u64) {
        self.publisher.poll(context, &mut self.out);
        while let Some(front) = self.settling.front_mut() {
            if !front.poll(context, &mut self.out) {
                break;
            }
            self.settling.pop_front();
        }
        if let Some(barrier) = &mut self.barrier
            && let Poll::Ready(passed) = barrier.future.as_mut().poll(context)
        {
            let corr = self.barrier.take().and_then(|barrier| barrier.corr);
            self.pass(corr, passed);
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
            if room == 0 || self.ending.is_some() {
                return;
            }
            let mut events = u32::MAX;
            if let Some(bucket) = &mut self.deliveries {
                let wait_ms = bucket.wait_ms(1, now);
                if wait_ms > 0 {
                    self.paced_until_ms = Some(now + wait_ms);
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
        queued_bytes + self.out.len() < most && self.paced_until_ms.is_none() && self.ready.len() > 0
    }

    /// The group is gone, or its events cannot be read.
    fn end_subscription(&mut self, slot: usize, error: &GroupError) {
        let Some(subscription) = self.take(slot) else { return };
        let msg = format!("{}::{}: {error}", subscription.topic, subscription.group);
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

fn group_spec(topic: &str, group: &str, opts: &SubscribeOptions) -> Result<GroupSpec, GroupError> {
    Ok(GroupSpec {
        subscription: Pattern::new(topic)?,
        group: GroupName::new(group)?,
        topics: opts.topics.iter().map(Pattern::new).collect::<Result<_, _>>()?,
        filter: opts.filter.clone().filter(|filter| !filter.is_empty()),
        from: opts.from,
    })
}
