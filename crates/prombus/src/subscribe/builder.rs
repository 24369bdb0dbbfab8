//! The builder of a subscription: its options, and joining the group.

use super::Subscription;
use super::handler::{HandlerHandle, run_handler};
use crate::backend::{Backend, EventFilter, EventView, GroupSpec, Joined, MemberOptions};
use crate::box_future::BoxFuture;
use crate::delivery::MemberSettings;
use crate::error::GroupError;
use crate::event::Event;
use crate::failure_log::FailureLog;
use prombus_protocol::limits::DEFAULT_MAX_ATTEMPTS;
use prombus_protocol::{
    DeliveryContext, Filter, GroupName, HandlerFailure, Pattern, Start, SubscribeOptions,
};
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

/// The builder of a subscription; see [`Bus::subscribe`](crate::Bus::subscribe). Await it for a stream of deliveries, or
/// give it a [`handler`](Self::handler).
#[must_use = "a subscription starts when it is awaited or given a handler"]
pub struct Subscribe {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) topic: String,
    pub(crate) group: String,
    options: SubscribeOptions,
    /// The function given to [`filter`](Self::filter).
    filter: Option<EventFilter>,
    /// Whether the group waits for unreadable events, instead of delivering later ones (see [`in_order`](Self::in_order)).
    is_in_order: bool,
    /// The failures of the handler.
    pub(crate) failures: Arc<FailureLog>,
}

/// After how many attempts a member gives up an event: the member's option, else the topic's setting, else the default.
pub fn max_attempts(backend: &dyn Backend, topic: &str, options: &SubscribeOptions) -> u32 {
    let said = options.max_attempts.or_else(|| backend.topic_settings(topic).max_attempts);
    said.unwrap_or(DEFAULT_MAX_ATTEMPTS)
}

impl Subscribe {
    pub(crate) fn new(backend: Arc<dyn Backend>, topic: String, group: String) -> Self {
        let failures = Arc::new(FailureLog::new(format!("handler of {topic} in group {group}")));
        let options = SubscribeOptions::default();
        Self { backend, topic, group, options, filter: None, is_in_order: false, failures }
    }

    /// Keeps strict order when an event cannot be read: the group waits for it instead of delivering later events.
    pub fn in_order(mut self) -> Self {
        self.is_in_order = true;
        self
    }

    /// Replaces all options.
    pub fn options(mut self, options: SubscribeOptions) -> Self {
        self.options = options;
        self
    }

    /// Where the group starts, if this subscription creates it. Default: at events that are published from now on.
    pub fn from(mut self, start: Start) -> Self {
        self.options.from = start;
        self
    }

    /// A new group starts at the oldest event.
    pub fn from_earliest(self) -> Self {
        self.from(Start::Earliest)
    }

    /// Adds topics and patterns to the subscription. They cannot change after the group was created.
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.options.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// Maximum number of deliveries per pull. Default: 100.
    pub fn batch_size(mut self, events: u32) -> Self {
        self.options.batch_size = Some(events);
        self
    }

    /// Maximum number of unsettled deliveries of this subscription. Default: 1000.
    pub fn max_in_flight(mut self, events: u32) -> Self {
        self.options.max_in_flight = Some(events);
        self
    }

    /// How long a delivery is leased to this subscription. Default: 30 s.
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.options.ack_timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// An event becomes a dead letter when this many attempts have failed. Default: the topic's setting, or 5 if it has none.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = Some(attempts);
        self
    }

    /// The name of this member in lists, metrics and logs.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }

    /// If this subscription creates the group, the group is deleted after this time without members.
    pub fn expire(mut self, after: Duration) -> Self {
        self.options.expire_ms = Some(after.as_millis().try_into().unwrap_or(u64::MAX));
        self
    }

    /// The group gets no new events while it has this many unsettled ones. Default: 100,000.
    pub fn max_unsettled(mut self, events: u32) -> Self {
        self.options.max_unsettled = Some(events);
        self
    }

    /// If true, a handler's `Ok` does not ack: the program calls [`Bus::ack`](crate::Bus::ack). `Err` still nacks.
    pub fn manual_ack(mut self, is_manual: bool) -> Self {
        self.options.manual_ack = is_manual;
        self
    }

    fn group_filter(&mut self) -> &mut Filter {
        self.options.filter.get_or_insert_with(Filter::default)
    }

    /// Delivers only events with this key; the others are settled without delivery. The filter belongs to the group: all
    /// its members must use the same one.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.group_filter().key = Some(key.into());
        self
    }

    /// Delivers only events with this tag; the others are settled without delivery. The filter belongs to the group: all
    /// its members must use the same one.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.group_filter().tag = Some(tag.into());
        self
    }

    /// Delivers only events with this header; the others are settled without delivery. The filter belongs to the group: all
    /// its members must use the same one.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.group_filter().header.insert(name.into(), value.into());
        self
    }

    /// Delivers only events for which `filter` returns true; the others are settled as if this subscription had acked them.
    /// The function is called often and should be quick.
    pub fn filter(mut self, filter: impl Fn(&EventView<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// Calls a function for each failure of the handler, from the first one on; see [`HandlerHandle::on_error`]. It has no
    /// effect on a stream.
    pub fn on_error(self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) -> Self {
        self.failures.on_error(callback);
        self
    }

    pub(crate) async fn join(self) -> Result<Subscription, GroupError> {
        self.options.check()?;
        let (subscription, group) = (Pattern::new(&self.topic)?, GroupName::new(&self.group)?);
        let spec = GroupSpec::from_options(subscription, group, &self.options)?;
        let settings = MemberSettings {
            max_in_flight: self.options.max_in_flight(),
            batch_size: self.options.batch_size(),
            ack_timeout_ms: self.options.ack_timeout_ms(),
            max_attempts: max_attempts(&*self.backend, &self.topic, &self.options),
            max_unsettled: self.options.max_unsettled(),
            passes_unreadable: !self.is_in_order,
        };
        let member = MemberOptions { settings, filter: self.filter, name: self.options.name, label: None };
        let Joined { membership, created } = self.backend.join(spec, member).await?;
        Ok(Subscription::new(membership, created, settings, self.options.manual_ack))
    }

    /// Calls a handler for each event, in one background task, until [`HandlerHandle::unsubscribe`] is called or the bus is
    /// closed. `Ok` acks; `Err` and a panic nack. Failures are logged and reported by [`HandlerHandle::on_error`] and
    /// [`HandlerHandle::last_error`]. Calls start in the order of events. Calls that wait
    /// (`.await`) run concurrently, at most `max_in_flight` at a time.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub async fn handler<F, R, E>(self, handler: F) -> Result<HandlerHandle, GroupError>
    where
        F: Fn(Event, DeliveryContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let failures = Arc::clone(&self.failures);
        let subscription = self.join().await?;
        Ok(HandlerHandle::spawn(subscription, Arc::clone(&failures), |subscription, stopped| {
            run_handler(subscription, Arc::new(handler), failures, stopped)
        }))
    }
}

impl IntoFuture for Subscribe {
    type Output = Result<Subscription, GroupError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.join())
    }
}
