//! The state of one WebSocket client, without its socket: it takes messages of the client and writes frames.
//!
//! Frames are handled in order. Publishes and acks are collected while frames are read. [`Session::poll`] then submits them
//! together, writes all answers that are ready, and pulls events while there is room. A SUBSCRIBE, SEEK or CURSOR must be
//! completed before the next frame is handled: it is a [`Barrier`], and the frames after it wait.

mod barrier;
mod corrs;
mod delivered;
mod delivery_rate;
mod delivery_times;
mod event_frame;
mod frame_time;
mod frames;
mod publisher;
mod ready_list;
mod settling;
mod subscription;
mod subscriptions;

use super::answers::{put_err, put_unauthorized};
use super::close::Ending;
use super::send_buffer::SendBuffer;
use crate::auth::Principal;
use crate::clock::{now_ms, steady_ms};
use crate::gateway::Gateway;
use crate::live::{Standing, Withdrawn};
use crate::peer::Peer;
use barrier::Barrier;
use delivery_rate::DeliveryRate;
use frame_time::FrameTime;
use prombus_protocol::{ErrorCode, FrameReader, Topic};
use publisher::Publisher;
use std::sync::Arc;
use std::task::Context;
use subscriptions::Subscriptions;

/// The session of one WebSocket client.
pub(crate) struct Session {
    gateway: Arc<Gateway>,
    peer: Arc<Peer>,
    /// `None` before AUTH.
    principal: Option<Arc<Principal>>,
    /// The version of the live options before the principal was authenticated.
    version: u64,
    /// How many AUTH frames had a wrong token.
    wrong_tokens: u32,
    /// The member name of the last subscription that has one.
    name: Option<String>,
    reader: FrameReader,
    /// Unknown fields of the frame that is being handled.
    ignored: Vec<String>,
    /// The time, read once for all frames that are handled together.
    now: Option<FrameTime>,
    publisher: Publisher,
    /// The topic of the last publish: most publishes are to the same topic as the previous one.
    last_topic: Option<KnownTopic>,
    subscriptions: Subscriptions,
    /// The frame that later frames wait for.
    barrier: Option<Barrier>,
    delivery_rate: DeliveryRate,
    /// Set when a frame that ends the connection was handled.
    ending: Option<Ending>,
}

/// A topic that this client published to, or tried to.
struct KnownTopic {
    topic: Topic,
    /// Whether this client may publish to it.
    is_allowed: bool,
    exists: bool,
}

impl Session {
    /// `principal`: the client, if the upgrade request had a token. `version`: the version of the live options before the client
    /// was authenticated.
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        peer: Arc<Peer>,
        principal: Option<Arc<Principal>>,
        version: u64,
    ) -> Self {
        let has_auth = gateway.live.current().auth.is_configured();
        let principal = principal.or_else(|| (!has_auth).then(Principal::anyone));
        let delivery_rate = DeliveryRate::new(gateway.rates.deliveries());
        Self {
            gateway,
            peer,
            principal,
            version,
            wrong_tokens: 0,
            name: None,
            reader: FrameReader::default(),
            ignored: Vec::new(),
            now: None,
            publisher: Publisher::default(),
            last_topic: None,
            subscriptions: Subscriptions::new(),
            barrier: None,
            delivery_rate,
            ending: None,
        }
    }

    /// The client, for logs: its member name or the name of its token, and its address.
    pub(super) fn who(&self) -> String {
        let remote = self.peer.ends.remote;
        match self.name.clone().or_else(|| self.token_name()) {
            Some(name) => format!("{name:?} ({remote})"),
            None => remote.to_string(),
        }
    }

    /// Whether a follower relays the connection.
    pub(super) fn is_relayed(&self) -> bool {
        self.peer.is_relayed
    }

    /// See [`Peer::reset_if_relayed`].
    pub(super) fn reset_if_relayed(&self) {
        self.peer.reset_if_relayed();
    }

    /// The name of the token; `None` if no auth is configured.
    fn token_name(&self) -> Option<String> {
        let principal = self.principal.as_ref().filter(|principal| !principal.is_anyone());
        principal.map(|principal| principal.name().to_owned())
    }

    /// Whether the client is authenticated.
    pub(super) fn is_authenticated(&self) -> bool {
        self.principal.is_some()
    }

    /// Applies a reload. Returns why the connection must end, if the client has lost the permissions that it had.
    pub(super) fn apply_reload(&mut self) -> Result<(), Withdrawn> {
        self.delivery_rate.refresh(&self.gateway.rates);
        let Some(principal) = &self.principal else { return Ok(()) };
        let version = self.gateway.live.version();
        Standing::new(&self.gateway.live, principal, self.version).check()?;
        self.version = version;
        Ok(())
    }

    /// How the connection must end, if it must end now: because of a frame, because there was no AUTH in time, or because the
    /// token has expired. In the last two cases the client gets an ERR.
    pub(super) fn ending(&mut self, is_auth_due: bool, out: &mut SendBuffer) -> Option<Ending> {
        if self.ending.is_some() {
            return self.ending;
        }
        match &self.principal {
            None if is_auth_due => {
                put_err(out, None, ErrorCode::Unauthorized, Ending::NO_AUTH.reason);
                Some(Ending::NO_AUTH)
            }
            Some(principal) if principal.expires_ms().is_some_and(|at| at <= now_ms()) => {
                put_err(out, None, ErrorCode::Unauthorized, Ending::TOKEN_EXPIRED.reason);
                Some(Ending::TOKEN_EXPIRED)
            }
            _ => None,
        }
    }

    /// Whether another frame can be handled now.
    pub(super) fn is_open_for_frames(&self, out: &SendBuffer) -> bool {
        let is_full = out.byte_count() >= self.gateway.options.connections.max_queued_bytes;
        self.barrier.is_none() && self.ending.is_none() && !is_full && !self.publisher.is_full()
    }

    /// Whether no frame waits for its answer.
    pub(super) fn is_answered(&self) -> bool {
        self.publisher.is_idle() && self.subscriptions.is_answered() && self.barrier.is_none()
    }

    /// When to poll again even if nothing wakes the task, on the steady clock: when the token expires, and when the delivery rate
    /// allows more events.
    pub(super) fn wake_at_ms(&self) -> [Option<u64>; 2] {
        let expires_ms = self.principal.as_ref().and_then(|principal| principal.expires_ms());
        let expires = expires_ms.map(|at| steady_ms() + at.saturating_sub(now_ms()).max(0) as u64);
        [expires, self.delivery_rate.paused_until_ms()]
    }

    /// Bytes of publishes in flight.
    pub(super) fn byte_count(&self) -> usize {
        self.publisher.byte_count()
    }

    /// Handles a binary message.
    #[cfg_attr(
        not(feature = "test-util"),
        expect(unused_variables, reason = "only an echo uses the payload")
    )]
    pub(super) fn handle_binary(&mut self, payload: &[u8], out: &mut SendBuffer) {
        #[cfg(feature = "test-util")]
        if self.gateway.is_echo {
            return out.put_binary(payload);
        }
        if self.principal.is_none() {
            return put_unauthorized(out, None);
        }
        put_err(
            out,
            None,
            ErrorCode::BadRequest,
            "binary messages are not supported; send JSON in text messages",
        );
    }

    /// Submits the collected publishes and acks.
    fn flush(&mut self) {
        self.now = None;
        self.publisher.flush(&*self.gateway.backend);
        self.subscriptions.settle_all(&*self.gateway.backend);
    }

    /// Submits the collected publishes and acks, then writes the answers that are ready, and events while the send buffer has
    /// room.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, out: &mut SendBuffer) {
        self.flush();
        self.publisher.poll(&*self.gateway.backend, context, out);
        self.subscriptions.poll_settled(context, out);
        self.poll_barrier(context, out);
        self.subscriptions.register(context.waker());
        if self.ending.is_none() {
            self.subscriptions.pull(&self.gateway, &mut self.delivery_rate, out);
        } else {
            self.delivery_rate.resume();
        }
    }

    /// Whether a poll would find events to pull, and room for them.
    pub(super) fn is_ready_to_pull(&self, out: &SendBuffer) -> bool {
        let may_pull = self.ending.is_none() && self.delivery_rate.paused_until_ms().is_none();
        may_pull && self.subscriptions.is_ready_to_pull(&self.gateway, out)
    }

    /// Sets whether the leases of this client's deliveries are held. Held leases do not expire. The caller holds them while the
    /// server does not read the socket, because no ack can arrive then.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.subscriptions.hold(is_held);
    }

    /// Leaves all groups cleanly: unsettled events are redelivered without counting an attempt.
    pub(super) fn leave(&mut self) {
        self.flush();
        self.subscriptions.leave();
    }

    /// Ends all subscriptions because the client is lost. Everything before the position `sent` of the send buffer was sent to
    /// it.
    pub(super) fn lose(&mut self, sent: u64) {
        self.flush();
        self.subscriptions.lose(sent);
    }
}
