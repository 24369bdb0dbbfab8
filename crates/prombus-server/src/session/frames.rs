//! What each frame of a client does.

use super::publisher::put_refused;
use super::subscription::put_stale;
use super::{Barrier, Ending, KnownTopic, Passed, Session};
use crate::gateway::now_ms;
use crate::ws::frame::{NOT_UTF8, close, put_text};
use prombus::delivery::MemberSettings;
use prombus::{GroupError, GroupName, GroupSpec, MemberOptions, Pattern, Verdict, max_attempts};
use prombus_protocol::{
    ClientFrame, ErrorCode, Json, OkFrame, PublishOptions, RawValue, SubscribeOptions, Topic, limits, put_err,
};
use std::sync::Arc;

/// So many wrong tokens end a connection.
const WRONG_TOKENS_MAX: u32 = 3;

impl Session {
    /// Handles a message.
    pub(crate) fn handle(&mut self, text: &[u8]) {
        #[cfg(feature = "test-util")]
        if self.gateway.is_echo {
            return self.echo(text);
        }
        let parsed = match self.reader.read(text) {
            Ok(parsed) => parsed,
            Err(error) if error.code == ErrorCode::BadJson && std::str::from_utf8(text).is_err() => {
                return self.end_for_bad_text();
            }
            Err(error) if self.principal.is_some() || error.code == ErrorCode::BadJson => {
                return self.err(error.corr.as_deref(), error.code, &error.msg);
            }
            Err(error) => return self.err_unauthorized(error.corr.as_deref()),
        };
        let corr = parsed.corr;
        if !parsed.ignored.is_empty() || !self.ignored.is_empty() {
            self.ignored = parsed.ignored;
        }
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
                let now = self.now();
                match self.subscriptions[slot].as_mut().and_then(|it| it.ack(id, corr, &self.ignored, now)) {
                    Some(true) => self.unsettled_slots.push(slot),
                    Some(false) => {}
                    None if corr.is_some() => {
                        put_text(&mut self.out, 60, |into| put_stale(into, corr, &self.ignored));
                    }
                    None => {}
                }
            }
            ClientFrame::Nack { topic, group, id, reason, delay_ms, dead } => {
                let Some(slot) = self.slot(corr, &topic, &group) else { return };
                // In order: what was acked before comes before.
                self.settle(slot);
                let now = self.now();
                let reason = reason.as_deref();
                let verdict = match dead {
                    true => Verdict::GiveUp { reason },
                    false => Verdict::Nack { delay_ms, reason },
                };
                let subscription = self.subscriptions[slot].as_mut();
                match subscription.and_then(|it| it.nack(id, corr, &self.ignored, verdict, now)) {
                    Some(settling) => self.answer_later(settling),
                    None if corr.is_some() => {
                        put_text(&mut self.out, 60, |into| put_stale(into, corr, &self.ignored));
                    }
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

    /// A text message that is not UTF-8 ends the connection (RFC 6455, section 8.1).
    fn end_for_bad_text(&mut self) {
        self.ending = Some(Ending { code: close::INVALID_DATA, reason: NOT_UTF8 });
    }

    /// Sends a message back, for a suite that tests the transport alone.
    #[cfg(feature = "test-util")]
    fn echo(&mut self, text: &[u8]) {
        if std::str::from_utf8(text).is_err() {
            return self.end_for_bad_text();
        }
        put_text(&mut self.out, text.len(), |into| into.extend_from_slice(text));
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
                    OkFrame {
                        corr,
                        protocol,
                        ignored: std::mem::take(&mut self.ignored),
                        ..OkFrame::default()
                    }
                    .put(into);
                });
            }
            Err(refused) => {
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
            let msg =
                format!("this token may not subscribe to {} as {}", subscription.topic, subscription.group);
            self.err(None, ErrorCode::Forbidden, &msg);
            if let Some(subscription) = self.take(slot) {
                subscription.leave();
            }
        }
    }

    fn publish(&mut self, corr: Option<&str>, topic: &str, payload: &Json<'_>, opts: &PublishOptions) {
        if self.last_topic.as_ref().is_none_or(|known| known.topic.as_str() != topic) {
            let found = self.gateway.backend.topic(topic);
            let is_there = found.is_some();
            let name = match found.map_or_else(|| Topic::new(topic), Ok) {
                Ok(name) => name,
                Err(error) => return self.err(corr, ErrorCode::BadTopic, &error.to_string()),
            };
            let principal = self.principal.as_ref().expect("frames before AUTH come not here");
            let is_allowed = principal.may_publish(topic);
            self.last_topic = Some(KnownTopic { topic: name, is_allowed, is_there });
        }
        let Some(known) = &mut self.last_topic else { return };
        if !known.is_allowed {
            let msg = format!("this token may not publish to {topic}");
            return self.err(corr, ErrorCode::Forbidden, &msg);
        }
        let gateway = &self.gateway;
        if let Err(limited) = gateway.rates.take_publish(&*gateway.backend, &self.peer.rate, topic, 1) {
            let (msg, wait) = (limited.to_string(), Some(limited.retry_after_ms));
            return put_text(&mut self.out, 120, |into| {
                put_err(into, corr, ErrorCode::RateLimited, &msg, wait);
            });
        }
        known.is_there = known.is_there || self.gateway.backend.topic(topic).is_some();
        let to = (&known.topic, known.is_there);
        let answer = (corr, self.ignored.as_slice());
        let pushed = self.publisher.push(&*self.gateway.backend, answer, to, payload, opts);
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
            let msg = format!("this connection is already subscribed to {topic} as group {group}");
            return self.err(corr, ErrorCode::AlreadySubscribed, &msg);
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
            max_attempts: max_attempts(&*self.gateway.backend, topic, opts),
            max_unsettled: opts.max_unsettled(),
            ..MemberSettings::default()
        };
        let label = Some(format!("ws {}", self.peer.remote));
        if opts.name.is_some() {
            self.name.clone_from(&opts.name);
        }
        let name = opts.name.clone().or_else(|| self.token_name());
        let member = MemberOptions { settings, filter: None, name, label };
        let backend = Arc::clone(&self.gateway.backend);
        self.wait(corr, async move {
            let joined = backend.join(spec.clone(), member).await?;
            Ok(Passed::Subscribed { spec, settings, joined })
        });
    }

    /// The name of the token; none if no auth is configured.
    pub(super) fn token_name(&self) -> Option<String> {
        let principal = self.principal.as_ref().filter(|_| self.gateway.auth.is_configured());
        principal.map(|principal| principal.name().to_owned())
    }

    /// Nothing behind this frame is handled before it is done. What came before it goes before it.
    fn wait(
        &mut self,
        corr: Option<&str>,
        future: impl Future<Output = Result<Passed, GroupError>> + Send + 'static,
    ) {
        self.flush();
        let (corr, ignored) = (corr.map(str::to_owned), std::mem::take(&mut self.ignored));
        self.barrier = Some(Barrier { corr, ignored, future: Box::pin(future) });
    }

    pub(super) fn pass(
        &mut self,
        corr: Option<String>,
        ignored: Vec<String>,
        passed: Result<Passed, GroupError>,
    ) {
        let raw = corr.clone().and_then(|corr| RawValue::from_string(corr).ok());
        let ok = OkFrame { corr: raw, ignored, ..OkFrame::default() };
        let ok = match passed {
            Err(error) => return self.err(corr.as_deref(), error.code(), &error.to_string()),
            Ok(Passed::Cursor(cursor)) => OkFrame { cursor, ..ok },
            Ok(Passed::Subscribed { joined, .. }) if self.has_left => {
                drop(joined.membership.leave());
                return self.err(corr.as_deref(), ErrorCode::Unavailable, "the connection is being closed");
            }
            Ok(Passed::Subscribed { spec, settings, joined }) => {
                let created = Some(joined.created);
                self.add(&spec, settings, joined);
                OkFrame { created, ..ok }
            }
        };
        put_text(&mut self.out, 120, |into| ok.put(into));
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
}

fn group_spec(topic: &str, group: &str, opts: &SubscribeOptions) -> Result<GroupSpec, GroupError> {
    Ok(GroupSpec {
        subscription: Pattern::new(topic)?,
        group: GroupName::new(group)?,
        topics: opts.topics.iter().map(Pattern::new).collect::<Result<_, _>>()?,
        filter: opts.filter.clone().filter(|filter| !filter.is_empty()),
        from: opts.from,
        expire_ms: opts.expire_ms,
    })
}
