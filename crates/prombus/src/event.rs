//! Events and deliveries as a subscriber receives them. Events that were pulled together share one buffer, and each `Event`
//! is a cheap handle into it.

use crate::backend::{DurableTicket, Membership, SettleOutcome, Verdict};
use crate::batch::{DeliveryBatch, DeliveryItem, EventBatch};
use crate::delivery::Position;
use crate::error::Unavailable;
use crate::event_id::uuid_of;
use prombus_protocol::{
    Body, CursorPosition, DeliveryContext, EventRecord, RawValue, RedeliveryReason, Topic, Uuid,
};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// An event. Cloning it does not copy its bytes.
#[derive(Clone)]
pub struct Event {
    batch: SharedBatch,
    at: usize,
}

/// The batch that an event came in.
#[derive(Clone)]
enum SharedBatch {
    Read(Arc<EventBatch>),
    Delivered(Arc<DeliveryBatch>),
}

impl Event {
    /// An event that was read.
    pub(crate) fn read(batch: Arc<EventBatch>, at: usize) -> Self {
        Self { batch: SharedBatch::Read(batch), at }
    }

    /// All events that were read together.
    pub(crate) fn all_read(batch: EventBatch) -> impl ExactSizeIterator<Item = Self> {
        let batch = Arc::new(batch);
        (0..batch.items().len()).map(move |at| Self::read(Arc::clone(&batch), at))
    }

    /// The event of a delivery.
    pub(crate) fn delivered(batch: Arc<DeliveryBatch>, at: usize) -> Self {
        Self { batch: SharedBatch::Delivered(batch), at }
    }

    /// Its id.
    pub fn id(&self) -> Uuid {
        uuid_of(match &self.batch {
            SharedBatch::Read(batch) => batch.items()[self.at].id,
            SharedBatch::Delivered(batch) => batch.items()[self.at].id,
        })
    }

    /// The event's position in its topic: 1, 2, 3 …
    pub fn seq(&self) -> u64 {
        match &self.batch {
            SharedBatch::Read(batch) => batch.items()[self.at].seq,
            SharedBatch::Delivered(batch) => batch.items()[self.at].position.seq,
        }
    }

    /// The event's time in milliseconds since 1970, as set by its publisher.
    pub fn ts(&self) -> i64 {
        match &self.batch {
            SharedBatch::Read(batch) => batch.items()[self.at].ts,
            SharedBatch::Delivered(batch) => batch.items()[self.at].ts,
        }
    }

    /// Its topic.
    pub fn topic(&self) -> &Topic {
        match &self.batch {
            SharedBatch::Read(batch) => batch.topic(&batch.items()[self.at]),
            SharedBatch::Delivered(batch) => batch.topic(&batch.items()[self.at]),
        }
    }

    /// Its key.
    pub fn key(&self) -> Option<&str> {
        match &self.batch {
            SharedBatch::Read(batch) => batch.key(&batch.items()[self.at]),
            SharedBatch::Delivered(batch) => batch.key(&batch.items()[self.at]),
        }
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.body().header(name)
    }

    /// Whether the event has a tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.body().has_tag(tag)
    }

    /// Whether the event is addressed to one group: other groups pass over it, and states by key ignore it.
    pub fn is_addressed(&self) -> bool {
        self.body().is_addressed()
    }

    /// The payload as JSON text, as it was published, except for whitespace around it and line breaks between tokens.
    pub fn payload(&self) -> &str {
        self.body().payload().unwrap_or("null")
    }

    /// Deserializes the payload.
    ///
    /// # Errors
    /// When the payload does not have the shape of `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(self.payload());
        // Payloads may be nested 128 levels deep, and dead letters a little deeper: more than serde_json's recursion limit
        // allows.
        deserializer.disable_recursion_limit();
        let value = T::deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }

    /// The whole record, with all fields that the publisher set.
    ///
    /// # Errors
    /// When the stored bytes are not an event, which happens only if another program has changed the log.
    pub fn record(&self) -> Result<EventRecord<Box<RawValue>>, serde_json::Error> {
        self.body().record(self.id(), self.seq())
    }

    fn body(&self) -> Body<'_> {
        Body::new(match &self.batch {
            SharedBatch::Read(batch) => batch.body(&batch.items()[self.at]),
            SharedBatch::Delivered(batch) => batch.body(&batch.items()[self.at]),
        })
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Event({} {} {})", self.topic(), self.seq(), self.payload())
    }
}

/// An event that is leased to this subscriber until the subscriber acks or nacks it or the lease expires. A delivery that is
/// dropped without an ack or nack stays leased, and is redelivered when the lease expires.
#[derive(Clone)]
pub struct Delivery {
    event: Event,
    member: Arc<dyn Membership>,
    max_attempts: u32,
}

impl Delivery {
    pub(crate) fn new(
        batch: Arc<DeliveryBatch>,
        at: usize,
        member: Arc<dyn Membership>,
        max_attempts: u32,
    ) -> Self {
        Self { event: Event::delivered(batch, at), member, max_attempts }
    }

    fn batch(&self) -> &DeliveryBatch {
        match &self.event.batch {
            SharedBatch::Delivered(batch) => batch,
            SharedBatch::Read(_) => unreachable!("new() always creates a delivered event"),
        }
    }

    fn item(&self) -> &DeliveryItem {
        &self.batch().items()[self.event.at]
    }

    /// The position that identifies the delivery when it is settled.
    pub(crate) fn position(&self) -> Position {
        self.item().position
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.item().attempt
    }

    /// Why the event was redelivered. On attempt 1 it is `None`, or `ServerRestarted` if the event may have been delivered
    /// before a restart.
    pub fn reason(&self) -> Option<RedeliveryReason> {
        self.item().reason
    }

    /// The reason of the previous attempt's nack, if it is known; cut to 256 bytes.
    pub fn last_error(&self) -> Option<&str> {
        self.batch().last_error(self.item())
    }

    /// The delivery context, as it is sent with the event.
    pub fn context(&self) -> DeliveryContext {
        self.context_with(None)
    }

    pub(crate) fn context_with(&self, cursor: Option<CursorPosition>) -> DeliveryContext {
        let item = self.item();
        DeliveryContext {
            attempt: item.attempt,
            max_attempts: self.max_attempts,
            cursor,
            reason: item.reason,
            ack_deadline_ms: item.lease_ms,
            last_error: self.batch().last_error(item).map(str::to_owned),
        }
    }

    /// Acks the event. The ack applies at once; await the result to wait until it is durable.
    pub fn ack(&self) -> Settling {
        self.settle(Verdict::Ack)
    }

    /// Nacks the event: it is redelivered after a backoff, and becomes a dead letter after the last attempt. The nack applies
    /// at once; await the result to wait until it is durable.
    pub fn nack(&self, reason: &str) -> Settling {
        self.settle(Verdict::Nack { delay_ms: None, reason: Some(reason) })
    }

    /// Nacks the event: it is redelivered after this delay, at most an hour.
    pub fn nack_after(&self, delay: Duration, reason: &str) -> Settling {
        let delay_ms = delay.as_millis().min(3_600_000) as u64;
        self.settle(Verdict::Nack { delay_ms: Some(delay_ms), reason: Some(reason) })
    }

    /// Gives the event up: it becomes a dead letter at once.
    pub fn give_up(&self, reason: &str) -> Settling {
        self.settle(Verdict::GiveUp { reason: Some(reason) })
    }

    /// Returns the event unprocessed: it is redelivered at once, and the attempt does not count.
    pub(crate) fn release(&self) {
        drop(self.settle(Verdict::Release));
    }

    /// Extends the lease: it expires this long from now, at least a second and at most a day. Returns false if this member
    /// does not hold the lease any more.
    pub fn extend(&self, by: Duration) -> bool {
        let extend_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX).min(86_400_000);
        let mut outcomes = Vec::with_capacity(1);
        let verdict = (self.position(), Verdict::Extend { extend_ms });
        drop(self.member.settle(&[verdict], &mut outcomes));
        matches!(outcomes.first(), Some(SettleOutcome::Extended(_)))
    }

    fn settle(&self, verdict: Verdict<'_>) -> Settling {
        let mut outcomes = Vec::with_capacity(1);
        let ticket = self.member.settle(&[(self.position(), verdict)], &mut outcomes);
        Settling { ticket, is_stale: outcomes.first() == Some(&SettleOutcome::Stale) }
    }
}

impl std::ops::Deref for Delivery {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Delivery({:?}, attempt {})", self.event, self.attempt())
    }
}

/// The outcome of an ack or a nack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The event is leased to a newer holder or already settled, so the ack or nack changed nothing.
    pub stale: bool,
}

/// An ack or nack. It applies at once; awaiting it waits until it is durable. If it is not awaited, it becomes durable with
/// the next commit, within 10 ms.
pub struct Settling {
    ticket: DurableTicket,
    is_stale: bool,
}

impl Settling {
    pub(crate) fn new(ticket: DurableTicket, is_stale: bool) -> Self {
        Self { ticket, is_stale }
    }

    /// Whether the ack or nack changed nothing.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }
}

impl Future for Settling {
    type Output = Result<Settled, Unavailable>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let stale = self.is_stale;
        Pin::new(&mut self.ticket).poll(context).map_ok(|()| Settled { stale })
    }
}

/// Events that were read, not delivered: they have no leases and need no ack.
#[derive(Clone, Debug)]
pub struct Page {
    /// The events, in order.
    pub events: Vec<Event>,
    /// The seq to continue at.
    pub next_seq: u64,
}
