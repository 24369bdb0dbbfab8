//! Publishing one event: its options, and the wait until it is durable.

use crate::backend::Backend;
use crate::engine::Published;
use crate::error::PublishError;
use crate::publishing::Publishing;
use prombus_protocol::{Addressee, PublishOptions, Topic, Uuid, id_of_checked_key};
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// An event to publish; await it.
#[must_use = "an event is published when this is awaited"]
pub struct Publish {
    backend: Arc<dyn Backend>,
    /// The topic, and the payload as JSON; or why the event cannot be published.
    payload: Result<(Topic, Vec<u8>), PublishError>,
    options: PublishOptions,
}

impl Publish {
    pub(super) fn new(backend: &Arc<dyn Backend>, payload: Result<(Topic, Vec<u8>), PublishError>) -> Self {
        Self { backend: Arc::clone(backend), payload, options: PublishOptions::default() }
    }

    /// Replaces all options.
    pub fn options(mut self, options: PublishOptions) -> Self {
        self.options = options;
        self
    }

    /// The event's id. A second publish with the same id to the same topic adds nothing.
    pub fn id(mut self, id: Uuid) -> Self {
        self.options.id = Some(id);
        self
    }

    /// Any text of 1 to 255 bytes as the event's id, such as the number of an order or a payment. A second publish with the
    /// same key to the same topic adds nothing. The library, every client and the server derive the same id from a key. Like
    /// [`id`](Self::id), it replaces an id that was set before.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = prombus::Bus::memory();
    /// let first = bus.publish("payments", &20).idempotency_key("payment-17").await?;
    /// let again = bus.publish("payments", &20).idempotency_key("payment-17").await?;
    /// assert_eq!((again.id, again.seq, again.duplicate), (first.id, first.seq, true));
    /// # Ok(()) }
    /// ```
    pub fn idempotency_key(mut self, key: impl AsRef<str>) -> Self {
        match id_of_checked_key(key.as_ref()) {
            Ok(id) => self.options.id = Some(id),
            Err(error) => self.payload = self.payload.and(Err(error.into())),
        }
        self
    }

    /// The event's time, in milliseconds since 1970. Default: now.
    pub fn ts(mut self, ts: i64) -> Self {
        self.options.ts = Some(ts);
        self
    }

    /// The event's key, for compaction and latest-by-key reads.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.options.key = Some(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.headers.insert(name.into(), value.into());
        self
    }

    /// Addresses the event to one group: other groups pass over it, and states by key ignore it. `subscription` is the topic or
    /// pattern of the group. The publish fails with [`PublishError::UnknownGroup`] if the group does not exist.
    pub fn addressee(mut self, subscription: impl Into<String>, group: impl Into<String>) -> Self {
        self.options.addressee = Some(Addressee::new(subscription, group));
        self
    }

    /// Adds a tag.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.options.tags.push(tag.into());
        self
    }

    /// Adds the id of an event that caused this one.
    pub fn caused_by(mut self, id: Uuid) -> Self {
        self.options.caused_by.push(id);
        self
    }

    /// The id of the session or boot that the event comes from.
    pub fn sid(mut self, sid: Uuid) -> Self {
        self.options.sid = Some(sid);
        self
    }

    /// Queues the event now; the returned future resolves when it is durable.
    pub fn send(self) -> PublishOne {
        let mut batch = self.backend.batch();
        let pushed = self.payload.and_then(|(topic, json)| batch.push_json(topic, &json, &self.options));
        PublishOne(match pushed {
            Ok(()) => self.backend.publish(batch),
            Err(error) => Publishing::done(Err(error)),
        })
    }
}

impl IntoFuture for Publish {
    type Output = Result<Published, PublishError>;
    type IntoFuture = PublishOne;

    fn into_future(self) -> PublishOne {
        self.send()
    }
}

/// One event that is being published; resolves when it is durable.
#[must_use = "awaiting it waits until the event is durable"]
#[derive(Debug)]
pub struct PublishOne(Publishing);

impl Future for PublishOne {
    type Output = Result<Published, PublishError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|published| {
            let one = published?.into_iter().next();
            one.ok_or_else(|| PublishError::Store("the engine returned no outcome for the event".to_owned()))
        })
    }
}
