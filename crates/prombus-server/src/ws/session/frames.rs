//! Handles the frames of a client.

use super::barrier::{Barrier, Passed};
use super::frame_time::FrameTime;
use super::subscriptions::SlotIndex;
use super::{KnownTopic, Session};
use crate::clock::{now_ms, steady_ms};
use crate::http::ADDRESSEE_FORBIDDEN;
use crate::ws::answers::{
    put_err, put_not_published, put_ok, put_ok_with, put_rate_limited, put_stale, put_unauthorized,
};
use crate::ws::close::Ending;
use crate::ws::send_buffer::SendBuffer;
use prombus::delivery::MemberSettings;
use prombus::{GroupError, GroupName, GroupSpec, MemberOptions, Pattern, Verdict, max_attempts};
use prombus_protocol::{
    ClientFrame, ErrorCode, FrameError, Json, OkFrame, PublishOptions, Start, SubscribeOptions, Topic, limits,
};
use std::sync::Arc;
use std::task::{Context, Poll};
use uuid::Uuid;

/// This many wrong tokens end a connection.
const WRONG_TOKENS_MAX: u32 = 3;

impl Session {
    /// Handles a message.
    pub(in crate::ws) fn handle(&mut self, text: &[u8], out: &mut SendBuffer) {
        #[cfg(feature = "test-util")]
        if self.gateway.is_echo {
            return self.echo(text, out);
        }
        let parsed = match self.reader.read(text) {
            Ok(parsed) => parsed,
            Err(error) => return self.refuse(text, &error, out),
        };
        let corr = parsed.corr;
        if !parsed.ignored.is_empty() || !self.ignored.is_empty() {
            self.ignored = parsed.ignored;
        }
        if let ClientFrame::Auth { token } = &parsed.frame {
            return self.authenticate(corr, token.as_deref(), out);
        }
        if self.principal.is_none() {
            return put_unauthorized(out, corr);
        }
        match parsed.frame {
            ClientFrame::Auth { .. } => {}
            ClientFrame::Publish { topic, payload, opts } => self.publish(corr, &topic, &payload, &opts, out),
            ClientFrame::Subscribe { topic, group, opts } => self.subscribe(corr, &topic, &group, &opts, out),
            ClientFrame::Unsubscribe { topic, group } => self.unsubscribe(corr, &topic, &group, out),
            ClientFrame::Ack { topic, group, id } => self.ack(corr, &topic, &group, id, out),
            ClientFrame::Nack { topic, group, id, reason, delay_ms, dead } => {
                let reason = reason.as_deref();
                let verdict = match dead {
                    true => Verdict::GiveUp { reason },
                    false => Verdict::Nack { delay_ms, reason },
                };
                self.nack(corr, &topic, &group, id, verdict, out);
            }
            ClientFrame::Modack { topic, group, id, extend_ms } => {
                let Some(slot) = self.slot(corr, &topic, &group, out) else { return };
                match self.subscriptions.get(slot).extend(id, extend_ms) {
                    Ok(true) => put_ok(out, corr, &self.ignored),
                    Ok(false) => {
                        let message = "there is no lease to extend for the event with this id";
                        put_err(out, corr, ErrorCode::UnknownId, message);
                    }
                    Err(reason) => put_err(out, corr, reason.code(), &reason.to_string()),
                }
            }
            ClientFrame::Pause { topic, group } => self.pause(corr, &topic, &group, true, out),
            ClientFrame::Resume { topic, group } => self.pause(corr, &topic, &group, false, out),
            ClientFrame::Cursor { topic, group } => self.cursor(corr, &topic, &group, None, out),
            ClientFrame::Seek { topic, group, to } => self.cursor(corr, &topic, &group, Some(to), out),
        }
    }

    /// Answers a message that is not a valid frame.
    #[cold]
    fn refuse(&mut self, text: &[u8], error: &FrameError, out: &mut SendBuffer) {
        let is_bad_json = error.code == ErrorCode::BadJson;
        if is_bad_json && std::str::from_utf8(text).is_err() {
            // RFC 6455, section 8.1.
            self.ending = Some(Ending::NOT_UTF8);
        } else if self.principal.is_some() || is_bad_json {
            put_err(out, error.corr.as_deref(), error.code, &error.msg);
        } else {
            put_unauthorized(out, error.corr.as_deref());
        }
    }

    /// Sends a message back, for test suites of the transport.
    #[cfg(feature = "test-util")]
    fn echo(&mut self, text: &[u8], out: &mut SendBuffer) {
        if std::str::from_utf8(text).is_err() {
            self.ending = Some(Ending::NOT_UTF8);
            return;
        }
        out.put_text(text.len(), |into| into.extend_from_slice(text));
    }

    fn authenticate(&mut self, corr: Option<&str>, token: Option<&str>, out: &mut SendBuffer) {
        let version = self.gateway.live.version();
        match self.gateway.live.current().auth.authenticate(token, now_ms()) {
            Ok(principal) => {
                (self.principal, self.version) = (Some(principal), version);
                self.last_topic = None;
                self.end_forbidden(out);
                let protocol = Some(limits::PROTOCOL_VERSION);
                let ignored = std::mem::take(&mut self.ignored);
                put_ok_with(out, corr, ignored, |ok| OkFrame { protocol, ..ok });
            }
            Err(refused) => {
                put_err(out, corr, ErrorCode::BadToken, &refused.to_string());
                self.wrong_tokens += 1;
                if self.wrong_tokens >= WRONG_TOKENS_MAX {
                    self.ending = Some(Ending::WRONG_TOKENS);
                }
            }
        }
    }

    /// Ends subscriptions that a new token does not grant.
    fn end_forbidden(&mut self, out: &mut SendBuffer) {
        let Some(principal) = self.principal.clone() else { return };
        let forbidden = self.subscriptions.unwanted(|subscription| {
            let group = Some(subscription.group.as_str());
            subscription.patterns().all(|pattern| principal.may_subscribe(pattern, group))
        });
        for slot in forbidden {
            let Some(subscription) = self.subscriptions.take(slot, &*self.gateway.backend) else { continue };
            let msg = principal.subscribe_refusal(&subscription.topic, Some(&subscription.group));
            put_err(out, None, ErrorCode::Forbidden, &msg);
            subscription.leave();
        }
    }

    fn publish(
        &mut self,
        corr: Option<&str>,
        topic: &str,
        payload: &Json<'_>,
        opts: &PublishOptions,
        out: &mut SendBuffer,
    ) {
        if self.last_topic.as_ref().is_none_or(|known| known.topic.as_str() != topic) {
            let found = self.gateway.backend.topic(topic);
            let exists = found.is_some();
            let name = match found.map_or_else(|| Topic::new(topic), Ok) {
                Ok(name) => name,
                Err(error) => return put_err(out, corr, ErrorCode::BadTopic, &error.to_string()),
            };
            let principal = self.principal.as_ref().expect("frames before AUTH are refused");
            let is_allowed = principal.may_publish(topic);
            self.last_topic = Some(KnownTopic { topic: name, is_allowed, exists });
        }
        let Some(known) = &mut self.last_topic else { return };
        if !known.is_allowed {
            let principal = self.principal.as_ref().expect("frames before AUTH are refused");
            let msg = principal.publish_refusal(topic);
            return put_err(out, corr, ErrorCode::Forbidden, &msg);
        }
        if opts.addressee.is_some() && self.principal.as_ref().is_none_or(|it| !it.is_admin()) {
            return put_err(out, corr, ErrorCode::Forbidden, ADDRESSEE_FORBIDDEN);
        }
        let gateway = &self.gateway;
        if let Err(limited) = gateway.rates.take_publish(&*gateway.backend, &self.peer.rate, topic, 1) {
            return put_rate_limited(out, corr, &limited.to_string(), limited.retry_after_ms);
        }
        known.exists = known.exists || self.gateway.backend.topic(topic).is_some();
        // A batch is refused as a whole if the addressee of one event is unknown.
        let may_share_batch = known.exists && opts.addressee.is_none();
        let to = (&known.topic, may_share_batch);
        let answer = (corr, self.ignored.as_slice());
        let pushed = self.publisher.push(&*self.gateway.backend, answer, to, payload, opts);
        if let Err(error) = pushed {
            put_not_published(out, corr, &error);
        }
    }

    fn may_read(&self, corr: Option<&str>, topic: &str, group: &str, out: &mut SendBuffer) -> bool {
        let principal = self.principal.as_ref().expect("frames before AUTH are refused");
        let may = principal.may_subscribe(topic, Some(group));
        if !may {
            let msg = principal.subscribe_refusal(topic, Some(group));
            put_err(out, corr, ErrorCode::Forbidden, &msg);
        }
        may
    }

    /// The slot of a subscription. Without one, writes an ERR and returns `None`.
    fn slot(
        &mut self,
        corr: Option<&str>,
        topic: &str,
        group: &str,
        out: &mut SendBuffer,
    ) -> Option<SlotIndex> {
        let found = self.subscriptions.find(topic, group);
        if found.is_none() {
            let msg = format!("this connection is not subscribed to {topic} as group {group}");
            put_err(out, corr, ErrorCode::NotSubscribed, &msg);
        }
        found
    }

    fn now(&mut self) -> FrameTime {
        *self.now.get_or_insert_with(|| FrameTime { steady_ms: steady_ms(), wall_ms: now_ms() })
    }

    fn subscribe(
        &mut self,
        corr: Option<&str>,
        topic: &str,
        group: &str,
        opts: &SubscribeOptions,
        out: &mut SendBuffer,
    ) {
        if self.subscriptions.find(topic, group).is_some() {
            let msg = format!("this connection is already subscribed to {topic} as group {group}");
            return put_err(out, corr, ErrorCode::AlreadySubscribed, &msg);
        }
        if !self.may_read(corr, topic, group, out)
            || !opts.topics.iter().all(|it| self.may_read(corr, it, group, out))
        {
            return;
        }
        let most = self.gateway.options.connections.max_subscriptions;
        if self.subscriptions.len() >= most {
            let msg = format!("subscription limit of the connection reached (max_subscriptions = {most})");
            return put_err(out, corr, ErrorCode::LimitReached, &msg);
        }
        let spec = match spec_of(topic, group, opts) {
            Ok(spec) => spec,
            Err(error) => return put_err(out, corr, error.code(), &error.to_string()),
        };
        let settings = MemberSettings {
            max_in_flight: opts.max_in_flight.unwrap_or(limits::DEFAULT_MAX_IN_FLIGHT_WEBSOCKET),
            batch_size: opts.batch_size(),
            ack_timeout_ms: opts.ack_timeout_ms(),
            max_attempts: max_attempts(&*self.gateway.backend, topic, opts),
            max_unsettled: opts.max_unsettled(),
            ..MemberSettings::default()
        };
        let label = Some(format!("ws {}", self.peer.ends.remote));
        if opts.name.is_some() {
            self.name.clone_from(&opts.name);
        }
        let name = opts.name.clone().or_else(|| self.token_name());
        let member = MemberOptions { settings, filter: None, name, label };
        let backend = Arc::clone(&self.gateway.backend);
        self.wait(corr, None, async move {
            let joined = backend.join(spec.clone(), member).await?;
            Ok(Passed::Subscribed { spec, settings, joined })
        });
    }

    fn unsubscribe(&mut self, corr: Option<&str>, topic: &str, group: &str, out: &mut SendBuffer) {
        let Some(slot) = self.slot(corr, topic, group, out) else { return };
        if let Some(subscription) = self.subscriptions.take(slot, &*self.gateway.backend) {
            subscription.leave();
        }
        put_ok(out, corr, &self.ignored);
    }

    fn ack(&mut self, corr: Option<&str>, topic: &str, group: &str, id: Uuid, out: &mut SendBuffer) {
        let Some(slot) = self.slot(corr, topic, group, out) else { return };
        let now = self.now();
        match self.subscriptions.get(slot).ack(id, corr, &self.ignored, now) {
            Some(true) => self.subscriptions.note_unsettled(slot),
            Some(false) => {}
            None => put_stale(out, corr, &self.ignored),
        }
    }

    fn nack(
        &mut self,
        corr: Option<&str>,
        topic: &str,
        group: &str,
        id: Uuid,
        verdict: Verdict<'_>,
        out: &mut SendBuffer,
    ) {
        let Some(slot) = self.slot(corr, topic, group, out) else { return };
        // Earlier acks are settled first, to keep the order.
        self.subscriptions.settle(slot, &*self.gateway.backend);
        let now = self.now();
        match self.subscriptions.get(slot).nack(id, corr, &self.ignored, verdict, now) {
            Some(settling) => self.subscriptions.answer_later(settling, &*self.gateway.backend),
            None => put_stale(out, corr, &self.ignored),
        }
    }

    fn pause(&mut self, corr: Option<&str>, topic: &str, group: &str, is_paused: bool, out: &mut SendBuffer) {
        let Some(slot) = self.slot(corr, topic, group, out) else { return };
        let subscription = self.subscriptions.get(slot);
        subscription.membership.pause(is_paused);
        if !is_paused {
            subscription.slot.queue();
        }
        put_ok(out, corr, &self.ignored);
    }

    /// Handles a CURSOR frame; with `seek_to`, a SEEK frame.
    fn cursor(
        &mut self,
        corr: Option<&str>,
        topic: &str,
        group: &str,
        seek_to: Option<Start>,
        out: &mut SendBuffer,
    ) {
        if !self.may_read(corr, topic, group, out) {
            return;
        }
        let backend = Arc::clone(&self.gateway.backend);
        let moves = seek_to.and_then(|_| self.subscriptions.find(topic, group));
        let (topic, group) = (topic.to_owned(), group.to_owned());
        self.wait(corr, moves, async move {
            if let Some(to) = seek_to {
                backend.seek(&topic, &group, to).await?;
            }
            Ok(Passed::Cursor(backend.cursor(&topic, &group).await?))
        });
    }

    /// Makes the current frame a barrier: later frames wait until the future is ready. Earlier publishes and acks are submitted
    /// first. `moves`: the subscription that the frame moves.
    fn wait(
        &mut self,
        corr: Option<&str>,
        moves: Option<SlotIndex>,
        future: impl Future<Output = Result<Passed, GroupError>> + Send + 'static,
    ) {
        self.flush();
        let (corr, ignored) = (corr.map(str::to_owned), std::mem::take(&mut self.ignored));
        moves.into_iter().for_each(|slot| self.subscriptions.begin_move(slot));
        self.barrier = Some(Barrier { corr, ignored, moves, future: Box::pin(future) });
    }

    /// Answers the barrier frame when it is completed.
    pub(super) fn poll_barrier(&mut self, context: &mut Context<'_>, out: &mut SendBuffer) {
        let Some(barrier) = &mut self.barrier else { return };
        let Poll::Ready(passed) = barrier.future.as_mut().poll(context) else { return };
        let Some(Barrier { corr, ignored, moves, .. }) = self.barrier.take() else { return };
        moves.into_iter().for_each(|slot| self.subscriptions.end_move(slot));
        let corr = corr.as_deref();
        match passed {
            Err(error) => put_err(out, corr, error.code(), &error.to_string()),
            Ok(Passed::Cursor(cursor)) => put_ok_with(out, corr, ignored, |ok| OkFrame { cursor, ..ok }),
            Ok(Passed::Subscribed { joined, .. }) if self.subscriptions.has_left() => {
                drop(joined.membership.leave());
                put_err(out, corr, ErrorCode::Unavailable, "the connection is being closed");
            }
            Ok(Passed::Subscribed { spec, settings, joined }) => {
                let created = Some(joined.created);
                self.subscriptions.add(&self.gateway, &spec, settings, joined);
                put_ok_with(out, corr, ignored, |ok| OkFrame { created, ..ok });
            }
        }
    }
}

fn spec_of(topic: &str, group: &str, opts: &SubscribeOptions) -> Result<GroupSpec, GroupError> {
    Ok(GroupSpec::from_options(Pattern::new(topic)?, GroupName::new(group)?, opts)?)
}
