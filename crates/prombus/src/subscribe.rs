//! Subscriptions: as a stream of deliveries, or as a handler that is called for each event.

use crate::backend::{
    Backend, BoxFuture, DeliveryBatch, EventView, GroupSpec, Joined, MemberOptions, Membership, PullLimit,
    SettleOutcome, Verdict,
};
use crate::delivery::{MemberSettings, Millis, Position};
use crate::error::{GroupError, Unavailable};
use crate::event::{Delivery, Event, Settling};
use futures_core::Stream;
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use prombus_protocol::limits::DEFAULT_MAX_ATTEMPTS;
use prombus_protocol::{DeliveryContext, Filter, GroupName, Pattern, Start, SubscribeOptions};
use std::future::{IntoFuture, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::coop::poll_proceed;

/// The first pull of a stream or a handler, before it is known how quick it is.
const FIRST_PULL: u32 = 1;
/// A handler's acks wait for others at most this long.
const SETTLE_AFTER_MS: Millis = 5;

/// A subscription in the making; see [`Bus::subscribe`](crate::Bus::subscribe). Await it for a stream of deliveries, or give it
/// a [`handler`](Self::handler).
#[must_use = "a subscription starts when it is awaited or given a handler"]
pub struct Subscribe {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) topic: String,
    pub(crate) group: String,
    options: SubscribeOptions,
    filter: Option<crate::EventFilter>,
    is_in_order: bool,
}

/// After how many attempts a member gives an event up: what it says, else what is set about the topic.
pub fn max_attempts(backend: &dyn Backend, topic: &str, options: &SubscribeOptions) -> u32 {
    let said = options.max_attempts.or_else(|| backend.topic_settings(topic).max_attempts);
    said.unwrap_or(DEFAULT_MAX_ATTEMPTS)
}

impl Subscribe {
    pub(crate) fn new(backend: Arc<dyn Backend>, topic: String, group: String) -> Self {
        Self { backend, topic, group, options: SubscribeOptions::default(), filter: None, is_in_order: false }
    }

    /// Never lets a later event pass an unreadable one.
    pub(crate) fn in_order(mut self) -> Self {
        self.is_in_order = true;
        self
    }

    /// All options at once.
    pub fn options(mut self, options: SubscribeOptions) -> Self {
        self.options = options;
        self
    }

    /// Where the group starts, if this subscription makes it. Default: at what comes from now on.
    pub fn from(mut self, start: Start) -> Self {
        self.options.from = start;
        self
    }

    /// A new group starts at the oldest event.
    pub fn from_earliest(self) -> Self {
        self.from(Start::Earliest)
    }

    /// More topics and patterns; the group has them for good.
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.options.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// The most deliveries that are leased at once. Default: 100.
    pub fn batch_size(mut self, events: u32) -> Self {
        self.options.batch_size = Some(events);
        self
    }

    /// The most deliveries that this subscription has unsettled. Default: 1000.
    pub fn max_in_flight(mut self, events: u32) -> Self {
        self.options.max_in_flight = Some(events);
        self
    }

    /// How long a delivery is this subscription's alone. Default: 30 s.
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.options.ack_timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// An event goes to the dead letters when this many attempts have failed. Default: 5.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = Some(attempts);
        self
    }

    /// What to call this member in lists, metrics and logs.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }

    /// A group that this creates is deleted after this time without members.
    pub fn expire(mut self, after: Duration) -> Self {
        self.options.expire_ms = Some(after.as_millis().try_into().unwrap_or(u64::MAX));
        self
    }

    /// At this many unsettled events the group gets nothing new. Default: 100,000.
    pub fn max_unsettled(mut self, events: u32) -> Self {
        self.options.max_unsettled = Some(events);
        self
    }

    /// A handler's Ok does not ack: the program calls [`Bus::ack`](crate::Bus::ack). Err nacks all the same.
    pub fn manual_ack(mut self, is_manual: bool) -> Self {
        self.options.manual_ack = is_manual;
        self
    }

    fn group_filter(&mut self) -> &mut Filter {
        self.options.filter.get_or_insert_with(Filter::default)
    }

    /// Only events with this key; the others are settled. The filter is the group's: all its members have the same.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.group_filter().key = Some(key.into());
        self
    }

    /// Only events with this tag; the others are settled. The filter is the group's: all its members have the same.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.group_filter().tag = Some(tag.into());
        self
    }

    /// Only events with this header; the others are settled. The filter is the group's: all its members have the same.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.group_filter().header.insert(name.into(), value.into());
        self
    }

    /// Only events for which this says true; the others are settled on behalf of this subscription. It runs often and should be
    /// quick.
    pub fn filter(mut self, filter: impl Fn(&EventView<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    pub(crate) async fn join(self) -> Result<Subscription, GroupError> {
        self.options.check()?;
        let spec = GroupSpec {
            subscription: Pattern::new(&self.topic)?,
            group: GroupName::new(&self.group)?,
            topics: self.options.topics.iter().map(Pattern::new).collect::<Result<_, _>>()?,
            filter: self.options.filter.clone().filter(|filter| !filter.is_empty()),
            from: self.options.from,
            expire_ms: self.options.expire_ms,
        };
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
        Ok(Subscription {
            member: membership,
            created,
            settings,
            is_manual: self.options.manual_ack,
            batch: Arc::default(),
            next: 0,
            pace: Pace { events: FIRST_PULL, pulled_at: None },
        })
    }

    /// Calls a handler for each event, in a task of its own, until [`HandlerHandle::unsubscribe`] or the bus is closed. Ok acks,
    /// Err nacks, a panic nacks and is logged. Handlers run concurrently as far as they wait for something, at most
    /// `max_in_flight` at a time, and start in the order of events.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn handler<F, R, E>(self, handler: F) -> Result<HandlerHandle, GroupError>
    where
        F: Fn(Event, DeliveryContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let subscription = self.join().await?;
        Ok(HandlerHandle::spawn(subscription, |subscription, stopped| {
            run_handler(subscription, Arc::new(handler), stopped)
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

/// A member of a group, as a stream of deliveries. Dropped, it counts as lost: what it has goes to others at once and the attempt
/// counts; [`unsubscribe`](Self::unsubscribe) leaves in order.
pub struct Subscription {
    member: Arc<dyn Membership>,
    created: bool,
    settings: MemberSettings,
    is_manual: bool,
    batch: Arc<DeliveryBatch>,
    /// The first of the batch that was not handed out.
    next: usize,
    pace: Pace,
}

/// How much to pull at once, so that what waits to be handed out does not run out of its lease: an event that nobody has seen
/// must not use up its attempts. Doubles as long as a pull is handed out in a small part of the lease, and falls to one when not.
#[derive(Debug)]
struct Pace {
    events: u32,
    pulled_at: Option<Millis>,
}

/// A pull should be handed out within this part of the lease.
const PACE_DIVISOR: u64 = 8;

impl Pace {
    /// How much to pull now, after all of the last pull was handed out.
    fn next(&mut self, now: Millis, settings: &MemberSettings) -> u32 {
        if let Some(pulled_at) = self.pulled_at.take() {
            let is_quick = now.saturating_sub(pulled_at) <= settings.ack_timeout_ms / PACE_DIVISOR;
            self.events = if is_quick { self.events.saturating_mul(2).min(settings.batch_size) } else { 1 };
        }
        self.events
    }
}

impl Subscription {
    /// Makes this the only member of the group; see [`Membership::take_over`].
    pub(crate) async fn take_over(&self) -> Result<(), GroupError> {
        self.member.take_over().await
    }

    /// Whether the group was made by this subscription.
    pub fn created(&self) -> bool {
        self.created
    }

    /// The next delivery; `None` when the bus is closed or the group deleted.
    pub async fn next(&mut self) -> Option<Result<Delivery, GroupError>> {
        poll_fn(|context| self.poll_delivery(context)).await
    }

    /// All deliveries that are there, one at least, to be settled together. At most `batch_size` come.
    ///
    /// # Errors
    /// [`GroupError`]; also when the bus is closed.
    pub async fn next_batch(&mut self) -> Result<Deliveries, GroupError> {
        self.skip_void();
        if self.next >= self.batch.items().len() {
            poll_fn(|context| self.poll_batch(PullLimit::default(), context)).await?;
        }
        Ok(self.take_batch())
    }

    /// Like [`next_batch`](Self::next_batch), but no more than can be handled in time one after the other.
    async fn next_paced(&mut self) -> Result<Deliveries, GroupError> {
        self.skip_void();
        if self.next >= self.batch.items().len() {
            poll_fn(|context| self.poll_paced(context)).await?;
        }
        Ok(self.take_batch())
    }

    fn take_batch(&mut self) -> Deliveries {
        let from = std::mem::replace(&mut self.next, self.batch.items().len());
        Deliveries {
            batch: Arc::clone(&self.batch),
            from,
            member: Arc::clone(&self.member),
            max_attempts: self.settings.max_attempts,
        }
    }

    /// Stops deliveries until [`resume`](Self::resume); what was handed out already goes on running.
    pub fn pause(&mut self) {
        self.release_rest();
        self.member.pause(true);
    }

    /// Starts deliveries again.
    pub fn resume(&self) {
        self.member.pause(false);
    }

    /// Leaves the group: what is unsettled goes to others at once, and the attempt does not count.
    ///
    /// # Errors
    /// [`Unavailable`] when the bus stopped writing.
    pub async fn unsubscribe(self) -> Result<(), Unavailable> {
        self.member.leave().await
    }

    fn poll_batch(&mut self, limit: PullLimit, context: &mut Context<'_>) -> Poll<Result<(), GroupError>> {
        // The batch's memory is used again when nobody holds events of the last one.
        if Arc::get_mut(&mut self.batch).is_none() {
            self.batch = Arc::default();
        }
        // A subscriber that always finds something must let others run now and then.
        let progress = std::task::ready!(poll_proceed(context));
        let batch = Arc::get_mut(&mut self.batch).expect("nobody else has it");
        self.next = 0;
        let pulled = self.member.poll_pull(limit, batch, context);
        if pulled.is_ready() {
            progress.made_progress();
        }
        pulled
    }

    /// Pulls as much as will be handed out in time.
    fn poll_paced(&mut self, context: &mut Context<'_>) -> Poll<Result<(), GroupError>> {
        let events = self.pace.next(self.member.now_ms(), &self.settings);
        let pulled = self.poll_batch(PullLimit { events, ..PullLimit::default() }, context);
        if pulled.is_ready() {
            self.pace.pulled_at = Some(self.member.now_ms());
        }
        pulled
    }

    fn poll_delivery(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delivery, GroupError>>> {
        self.skip_void();
        if self.next >= self.batch.items().len() {
            match std::task::ready!(self.poll_paced(context)) {
                Ok(()) => {}
                Err(
                    GroupError::Unavailable(Unavailable::Closed)
                    | GroupError::Deleted
                    | GroupError::TakenOver,
                ) => {
                    return Poll::Ready(None);
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let event = Event::new(Arc::clone(&self.batch), self.next);
        self.next += 1;
        Poll::Ready(Some(Ok(Delivery::new(event, Arc::clone(&self.member), self.settings.max_attempts))))
    }

    /// Passes over what was pulled and is not ours any more: its lease ended before anyone looked, or a seek made it void.
    fn skip_void(&mut self) {
        while let Some(item) = self.batch.items().get(self.next) {
            if self.member.is_live(item, &self.batch) {
                return;
            }
            self.next += 1;
        }
    }

    /// What was pulled and not handed out goes back as if it had not been.
    fn release_rest(&mut self) {
        let rest = &self.batch.items()[self.next.min(self.batch.items().len())..];
        if !rest.is_empty() {
            let verdicts: Vec<(Position, Verdict<'_>)> =
                rest.iter().map(|item| (item.position, Verdict::Release)).collect();
            drop(self.member.settle(&verdicts, &mut Vec::new()));
        }
        self.next = usize::MAX;
    }
}

impl Stream for Subscription {
    type Item = Result<Delivery, GroupError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_delivery(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.release_rest();
        self.member.lose();
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Subscription({:?})", self.settings)
    }
}

/// Deliveries that came together.
#[derive(Clone)]
pub struct Deliveries {
    batch: Arc<DeliveryBatch>,
    from: usize,
    member: Arc<dyn Membership>,
    max_attempts: u32,
}

impl Deliveries {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.batch.items().len() - self.from
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The events, in order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        (self.from..self.batch.items().len()).map(|at| Event::new(Arc::clone(&self.batch), at))
    }

    /// The deliveries, to be settled one by one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Delivery> + '_ {
        self.events().map(|event| Delivery::new(event, Arc::clone(&self.member), self.max_attempts))
    }

    /// Acks all of them. Counts at once; await the answer to wait until it is durable. It says stale if any was.
    pub fn ack(&self) -> Settling {
        let items = &self.batch.items()[self.from..];
        let verdicts: Vec<(Position, Verdict<'_>)> =
            items.iter().map(|item| (item.position, Verdict::Ack)).collect();
        let mut outcomes = Vec::with_capacity(verdicts.len());
        let ticket = self.member.settle(&verdicts, &mut outcomes);
        Settling::new(ticket, outcomes.contains(&SettleOutcome::Stale))
    }
}

impl std::fmt::Debug for Deliveries {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.events()).finish()
    }
}

/// A handler at work. Dropping this changes nothing: the handler goes on until the bus is closed.
pub struct HandlerHandle {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    member: Arc<dyn Membership>,
    created: bool,
}

impl HandlerHandle {
    /// Starts what serves a subscription until it is told to stop; it leaves the group itself.
    pub(crate) fn spawn<R>(
        subscription: Subscription,
        run: impl FnOnce(Subscription, watch::Receiver<bool>) -> R,
    ) -> Self
    where
        R: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let created = subscription.created;
        let member = Arc::clone(&subscription.member);
        let task = tokio::spawn(run(subscription, stopped));
        Self { stop, task, member, created }
    }

    /// Whether the group was made by this subscription.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Stops deliveries until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.member.pause(true);
    }

    /// Starts deliveries again.
    pub fn resume(&self) {
        self.member.pause(false);
    }

    /// Takes no more events, waits for the handlers that run, and leaves the group.
    ///
    /// # Errors
    /// [`Unavailable`] when the bus stopped writing.
    pub async fn unsubscribe(self) -> Result<(), Unavailable> {
        let _ = self.stop.send(true);
        if let Err(error) = self.task.await {
            tracing::error!("a handler's task ended early: {error}");
        }
        self.member.leave().await
    }
}

impl std::fmt::Debug for HandlerHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("HandlerHandle")
    }
}

/// What came of a handler: the event, and its error.
type Handled = (Position, Result<(), String>);

/// A read that failed is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

async fn run_handler<F, R, E>(
    mut subscription: Subscription,
    handler: Arc<F>,
    mut stopped: watch::Receiver<bool>,
) where
    F: Fn(Event, DeliveryContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let mut running = FuturesUnordered::new();
    let mut handled: Vec<Handled> = Vec::new();
    let is_manual = subscription.is_manual;
    let mut is_pulling = true;
    // Nobody can, once the handle is gone.
    let mut may_be_stopped = true;
    while is_pulling || !running.is_empty() {
        tokio::select! {
            biased;
            changed = stopped.changed(), if is_pulling && may_be_stopped => match changed {
                Ok(()) => is_pulling = false,
                Err(_) => may_be_stopped = false,
            },
            Some(done) = running.next(), if !running.is_empty() => {
                handled.push(done);
                // All that are done by now are settled together.
                while let Some(Some(done)) = running.next().now_or_never() {
                    handled.push(done);
                }
            }
            pulled = subscription.next_paced(), if is_pulling => match pulled {
                Ok(deliveries) => {
                    let cursor = subscription.member.cursor();
                    let mut settled_at = subscription.member.now_ms();
                    for delivery in deliveries.iter() {
                        let position = delivery.event().position();
                        let context = delivery.context_with(cursor.clone());
                        let event = delivery.event().clone();
                        let mut handling = Box::pin(handle(Arc::clone(&handler), event, context, position));
                        // A handler that waits for nothing is done here and now.
                        match (&mut handling).now_or_never() {
                            Some(done) => handled.push(done),
                            None => running.push(handling),
                        }
                        // Quick handlers are settled together; one that blocks is not kept waiting for the others.
                        let now = subscription.member.now_ms();
                        if now.saturating_sub(settled_at) >= SETTLE_AFTER_MS {
                            settle(&*subscription.member, &mut handled, is_manual);
                            settled_at = now;
                        }
                    }
                }
                Err(error @ (GroupError::Unavailable(_) | GroupError::Deleted | GroupError::TakenOver)) => {
                    if error != GroupError::Unavailable(Unavailable::Closed) {
                        tracing::error!("a handler ends: {error}");
                    }
                    is_pulling = false;
                }
                Err(error) => {
                    tracing::error!("a subscription cannot read: {error}");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            },
        }
        settle(&*subscription.member, &mut handled, is_manual);
    }
    // In order: what is not settled goes to others, and the attempt does not count.
    subscription.release_rest();
    let _ = subscription.member.leave().await;
}

async fn handle<F, R, E>(
    handler: Arc<F>,
    event: Event,
    context: DeliveryContext,
    position: Position,
) -> Handled
where
    F: Fn(Event, DeliveryContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let (topic, seq) = (event.topic().clone(), event.seq());
    let called = AssertUnwindSafe(async move { handler(event, context).await }).catch_unwind().await;
    let result = match called {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let error = format!("the handler panicked: {}", text.as_deref().unwrap_or("(no message)"));
            tracing::error!("{topic} seq {seq}: {error}");
            Err(error)
        }
    };
    (position, result)
}

fn settle(member: &dyn Membership, handled: &mut Vec<Handled>, is_manual: bool) {
    if handled.is_empty() {
        return;
    }
    let verdicts: Vec<(Position, Verdict<'_>)> = handled
        .iter()
        .filter_map(|(position, result)| match result {
            Ok(()) if is_manual => None,
            Ok(()) => Some((*position, Verdict::Ack)),
            Err(error) => Some((*position, Verdict::Nack { delay_ms: None, reason: Some(error) })),
        })
        .collect();
    let mut outcomes = Vec::with_capacity(verdicts.len());
    drop(member.settle(&verdicts, &mut outcomes));
    handled.clear();
}
