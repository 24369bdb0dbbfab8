//! One event to publish: `client.publish(topic, &payload)`, with its options.

use crate::client::Client;
use crate::error::{PublishError, RecordError};
use crate::record::{Published, Record};
use futures_util::future::BoxFuture;
use prombus_protocol::{PublishOptions, TopicFor, Uuid, id_of_checked_key};
use serde::Serialize;
use std::future::IntoFuture;

/// An event to publish; await it. See [`Client::publish`].
///
/// This is an `IntoFuture`: nothing is sent before the `.await`. Where a future is needed, as for `tokio::spawn` or
/// `tokio::join!`, call `into_future()`.
#[must_use = "an event is published when this is awaited"]
pub struct Publish {
    client: Client,
    record: Result<Record, PublishError>,
}

impl Client {
    /// Publishes an event; resolves when it is on the server's disk.
    ///
    /// The event gets its id before it is first sent. If the connection is lost, or the server responds `rate_limited`, `unavailable` or
    /// `storage_full`, it is resent with the same id, so it is stored once. Publishing gives up if the server does not respond within the
    /// client's [patience](Client::patience).
    ///
    /// ```no_run
    /// use prombus_client::{Client, topic};
    /// use serde::Serialize;
    ///
    /// #[derive(Serialize)]
    /// struct Order {
    ///     total: u32,
    /// }
    ///
    /// topic!(ORDERS: Order = "orders.new");
    ///
    /// # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let published = client.publish(ORDERS, &Order { total: 12 }).key("customer-7").await?;
    /// println!("{} is event {} of its topic", published.id, published.seq);
    /// # Ok(()) }
    /// ```
    ///
    /// A payload of another type than the topic's does not compile:
    ///
    /// ```compile_fail,E0277
    /// # use prombus_client::{Client, topic};
    /// # async fn example(client: Client) {
    /// topic!(NAMES: String = "names");
    /// client.publish(NAMES, &7_u32).await;
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PublishError`].
    pub fn publish<T: Serialize + ?Sized>(&self, topic: impl TopicFor<T>, payload: &T) -> Publish {
        Publish { client: self.clone(), record: Record::new(topic, payload).map_err(PublishError::from) }
    }
}

impl Publish {
    fn with(mut self, change: impl FnOnce(&mut PublishOptions)) -> Self {
        if let Ok(record) = &mut self.record {
            change(&mut record.options);
        }
        self
    }

    /// Sets all options at once.
    pub fn options(self, options: PublishOptions) -> Self {
        self.with(|it| *it = options)
    }

    /// The event's id. A second publish with the same id to the same topic adds nothing.
    pub fn id(self, id: Uuid) -> Self {
        self.with(|options| options.id = Some(id))
    }

    /// Any text of 1 to 255 bytes as the event's id, such as an order number. Every client, the server and the library derive the same
    /// id from it.
    pub fn idempotency_key(mut self, key: impl AsRef<str>) -> Self {
        match id_of_checked_key(key.as_ref()) {
            Ok(id) => self.id(id),
            Err(error) => {
                self.record = self.record.and(Err(RecordError::from(error).into()));
                self
            }
        }
    }

    /// The time of the event, in milliseconds since 1970. Default: now.
    pub fn ts(self, ts: i64) -> Self {
        self.with(|options| options.ts = Some(ts))
    }

    /// The entity that the event is about. Compaction and state keep the newest event of each key.
    pub fn key(self, key: impl Into<String>) -> Self {
        self.with(|options| options.key = Some(key.into()))
    }

    /// Adds a header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|options| drop(options.headers.insert(name.into(), value.into())))
    }

    /// Adds a tag.
    pub fn tag(self, tag: impl Into<String>) -> Self {
        self.with(|options| options.tags.push(tag.into()))
    }

    /// Adds the id of an event that caused this one.
    pub fn caused_by(self, id: Uuid) -> Self {
        self.with(|options| options.caused_by.push(id))
    }

    /// The id of the publisher's session.
    pub fn sid(self, sid: Uuid) -> Self {
        self.with(|options| options.sid = Some(sid))
    }
}

impl IntoFuture for Publish {
    type Output = Result<Published, PublishError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.client.publish_record(&self.record?).await })
    }
}

impl std::fmt::Debug for Publish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Publish({:?})", self.record)
    }
}
