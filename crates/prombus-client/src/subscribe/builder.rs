//! The builder of a subscription: its options, and joining the group.

use super::command::MemberHandle;
use super::connection_change::{ConnectionCallback, ConnectionChange};
use super::failure_log::FailureLog;
use super::handler::{HandlerContext, HandlerHandle};
use super::link::{Link, Spec};
use super::member::Member;
use super::queue::queue;
use super::subscription::Subscription;
use crate::client::Client;
use crate::error::ClientError;
use futures_util::future::BoxFuture;
use prombus_protocol::limits::DEFAULT_MAX_IN_FLIGHT_WEBSOCKET;
use prombus_protocol::{EventRecord, Filter, HandlerFailure, Start, SubscribeOptions};
use std::fmt::Display;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

/// The builder of a subscription; see [`Client::subscribe`]. Await it for a stream of deliveries, or give it a
/// [`handler`](Self::handler).
///
/// This is an `IntoFuture`: nothing is sent before the `.await`. Where a future is needed, as for `tokio::spawn` or
/// `tokio::join!`, call `into_future()`.
#[must_use = "a subscription starts when it is awaited or given a handler"]
#[derive(Debug)]
pub struct Subscribe {
    client: Client,
    topic: String,
    group: String,
    options: SubscribeOptions,
    /// The most handlers that run at the same time.
    concurrency: u32,
    /// Whether leases are extended automatically.
    is_auto_extended: bool,
    /// The longest time for which the lease of one event is extended.
    max_extension: Duration,
    /// The failures of the handler.
    failures: Arc<FailureLog>,
    /// Called when the connection is lost or restored.
    on_connection_change: ConnectionCallback,
}

/// The default limit on extending the lease of one event, so that a hanging handler does not keep its event indefinitely.
const DEFAULT_MAX_EXTENSION: Duration = Duration::from_secs(3600);

impl Client {
    /// Subscribes to a topic or a pattern (`orders.*`, `orders.**`) as a member of a group, which is created if it does not
    /// exist. The topic may be a typed one.
    ///
    /// As a stream:
    ///
    /// ```no_run
    /// # async fn example(client: prombus_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut orders = client.subscribe("orders.*", "billing").from_earliest().await?;
    /// while let Some(delivery) = orders.next().await {
    ///     let delivery = delivery?;
    ///     println!("{} {}", delivery.event.topic, delivery.event.payload);
    ///     delivery.ack().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// With a handler:
    ///
    /// ```no_run
    /// # #[derive(serde::Deserialize)] struct Order { total: u32 }
    /// # async fn example(client: prombus_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use prombus_client::HandlerError;
    ///
    /// let worker = client.subscribe("orders.*", "billing").concurrency(8).handler(|event, context| async move {
    ///     let order: Order = event.json().map_err(HandlerError::reject)?;
    ///     println!("attempt {}: {}", context.attempt, order.total);
    ///     Ok::<(), HandlerError>(())
    /// });
    /// let worker = worker.await?;
    /// // … until the program is told to stop …
    /// worker.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn subscribe(&self, topic: impl Into<String>, group: impl Into<String>) -> Subscribe {
        let (topic, group) = (topic.into(), group.into());
        let failures = Arc::new(FailureLog::new(format!("handler of {topic} in group {group}")));
        Subscribe {
            client: self.clone(),
            topic,
            group,
            options: SubscribeOptions::default(),
            concurrency: 1,
            is_auto_extended: true,
            max_extension: DEFAULT_MAX_EXTENSION,
            failures,
            on_connection_change: ConnectionCallback::default(),
        }
    }
}

impl Subscribe {
    /// Sets all options of SUBSCRIBE at once.
    pub fn options(mut self, options: SubscribeOptions) -> Self {
        self.options = options;
        self
    }

    /// Where the group starts, if this subscription creates it. Default: after the newest event.
    pub fn from(mut self, start: Start) -> Self {
        self.options.from = start;
        self
    }

    /// Starts a new group at the oldest event.
    pub fn from_earliest(self) -> Self {
        self.from(Start::Earliest)
    }

    /// Further topics and patterns that the group reads. All members must name the same ones.
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.options.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// The most events that one pull leases. Default: 100.
    pub fn batch_size(mut self, events: u32) -> Self {
        self.options.batch_size = Some(events);
        self
    }

    /// The most unsettled events that this member holds. Default: 100, or the [`concurrency`](Self::concurrency) if that is more.
    pub fn max_in_flight(mut self, events: u32) -> Self {
        self.options.max_in_flight = Some(events);
        self
    }

    /// The duration of a lease. Default: 30 s.
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.options.ack_timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The number of attempts after which an event becomes a dead letter. Default: the topic's `max_attempts`, otherwise 5.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = Some(attempts);
        self
    }

    /// The member's name in lists, metrics and logs.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }

    /// If this subscription creates the group, the group is deleted after this time without members.
    pub fn expire(mut self, after: Duration) -> Self {
        self.options.expire_ms = Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// This member gets no new events while this many events of the group are unsettled. Default: 100,000.
    pub fn max_unsettled(mut self, events: u32) -> Self {
        self.options.max_unsettled = Some(events);
        self
    }

    fn group_filter(&mut self) -> &mut Filter {
        self.options.filter.get_or_insert_with(Filter::default)
    }

    /// Only events with this key; other events are settled at once. All members of the group must have the same filter.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.group_filter().key = Some(key.into());
        self
    }

    /// Only events with this tag; other events are settled at once. All members of the group must have the same filter.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.group_filter().tag = Some(tag.into());
        self
    }

    /// Only events with this header; other events are settled at once. All members of the group must have the same filter.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.group_filter().header.insert(name.into(), value.into());
        self
    }

    /// The most handlers that run at the same time. Default: 1, so events are handled one after the other, in order. It has no effect on a
    /// stream.
    pub fn concurrency(mut self, handlers: u32) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// Whether the client extends the leases of its events halfway through the ack timeout, until the events are settled or dropped.
    /// Default: true.
    pub fn auto_extend(mut self, is_on: bool) -> Self {
        self.is_auto_extended = is_on;
        self
    }

    /// The longest time for which the lease of one event is extended. The time starts when the handler or the consumer of the stream gets
    /// the event. If the event is redelivered to this subscription in the meantime, the consumer adopts the new lease and the time starts
    /// again. The lease of an event that waits in the queue is extended as long as the event waits. Default: one hour.
    pub fn max_extension(mut self, time: Duration) -> Self {
        self.max_extension = time;
        self
    }

    /// Calls a function for each failure of the handler, from the first one on; see [`HandlerHandle::on_error`]. It has no effect on a
    /// stream.
    pub fn on_error(self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) -> Self {
        self.failures.on_error(callback);
        self
    }

    /// Calls a function when the connection of the subscription is lost, and when it is restored. The function must return soon: the
    /// subscription's leases are not extended meanwhile.
    pub fn on_connection_change(
        mut self,
        callback: impl Fn(&ConnectionChange) + Send + Sync + 'static,
    ) -> Self {
        self.on_connection_change = ConnectionCallback::new(callback);
        self
    }

    /// Calls a handler for each event, each call in its own task, until [`HandlerHandle::stop`]. If the handler returns Ok, the event is
    /// acked. An error nacks it with the error's text, or does what a [`HandlerError`](crate::HandlerError) specifies; a panic nacks it
    /// too. [`HandlerHandle::on_error`] and [`HandlerHandle::last_error`] report failures. Handlers start in the order of events, at most [`concurrency`](Self::concurrency) at a time.
    ///
    /// While a handler runs, its lease is extended, so that no other member gets the event. If the lease is lost nevertheless,
    /// [`HandlerContext::lease_lost`] resolves; a handler that stops because of it must return an error.
    ///
    /// A lost connection does not stop a handler. If its event is redelivered to this subscription, the running handler adopts the new
    /// lease; if the handler has returned in the meantime, its result is sent then. The server may instead redeliver the event to another
    /// member, so it can be handled twice. At most 10,000 results wait for a redelivery. Each waits for the ack timeout plus two minutes
    /// after the reconnect, not counting the time while the subscription is paused.
    ///
    /// # Errors
    /// See [`ClientError`]. Includes a refused subscription. A failed first connection is not retried.
    pub async fn handler<F, R, E>(mut self, handler: F) -> Result<HandlerHandle, ClientError>
    where
        F: Fn(EventRecord, HandlerContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let concurrency = self.concurrency;
        if concurrency > DEFAULT_MAX_IN_FLIGHT_WEBSOCKET {
            self.options.max_in_flight.get_or_insert(concurrency);
        }
        let failures = Arc::clone(&self.failures);
        let subscription = self.join().await?;
        Ok(HandlerHandle::spawn(subscription, handler, concurrency as usize, failures))
    }

    async fn join(self) -> Result<Subscription, ClientError> {
        let spec = Spec { topic: self.topic, group: self.group, options: self.options };
        let (link, created) = Link::open(self.client.http_shared(), spec).await?;
        let (member, commands) = MemberHandle::new(&link.address());
        let (queue, arrived) = queue();
        let extend_for = self.is_auto_extended.then_some(self.max_extension);
        tokio::spawn(Member::new(link, extend_for, commands, queue, self.on_connection_change).run());
        Ok(Subscription::new(arrived, member, created))
    }
}

impl IntoFuture for Subscribe {
    type Output = Result<Subscription, ClientError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.join())
    }
}
