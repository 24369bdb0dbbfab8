//! A member of a consumer group, as a stream. It has a WebSocket of its own: what it does not take holds up nobody else.

use crate::client::Client;
use crate::connection::Connection;
use crate::error::{ClientError, PublishError};
use futures_util::Stream;
use prombus_protocol::{ClientFrame, EventContext, EventFrame, EventRecord, SubscribeOptions};
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// One member of a group. It leaves when this and its deliveries are dropped: what is not settled goes to others.
///
/// The stream ends with an error when the connection does. The group stays where it is: subscribe again to go on.
#[derive(Debug)]
pub struct Subscription {
    deliveries: mpsc::UnboundedReceiver<Result<EventFrame, String>>,
    member: Arc<Member>,
    is_over: bool,
}

/// What deliveries need to be settled.
struct Member {
    connection: Connection,
    topic: String,
    group: String,
    address: String,
}

/// An event that is this member's until its lease ends.
#[derive(Debug)]
pub struct Delivery {
    /// The event.
    pub event: EventRecord,
    /// Attempt and lease.
    pub context: EventContext,
    member: Arc<Member>,
}

impl Client {
    /// Joins a group on a topic or pattern, and makes it if it is not there.
    ///
    /// ```no_run
    /// # async fn example(client: prombus_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use prombus_client::SubscribeOptions;
    /// let mut orders = client.subscribe("orders.*", "billing", SubscribeOptions::default()).await?;
    /// while let Some(delivery) = orders.next().await {
    ///     let delivery = delivery?;
    ///     // … what is to be done with delivery.event …
    ///     delivery.ack().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`ClientError`]; also when the server refuses the subscription.
    pub async fn subscribe(
        &self,
        topic: &str,
        group: &str,
        options: SubscribeOptions,
    ) -> Result<Subscription, ClientError> {
        let (sender, deliveries) = mpsc::unbounded_channel();
        let http = self.http();
        let connection = Connection::open(&http.address, http.token.as_ref(), Some(sender)).await?;
        let address = http.address.to_string();
        let (topic, group) = (topic.to_owned(), group.to_owned());
        let member = Member { connection, topic, group, address };
        let frame = ClientFrame::Subscribe {
            topic: Cow::Borrowed(&member.topic),
            group: Cow::Borrowed(&member.group),
            opts: options,
        };
        member.connection.ask(frame).await.map_err(|error| member.error(error))?;
        Ok(Subscription { deliveries, member: Arc::new(member), is_over: false })
    }
}

impl Subscription {
    /// The next delivery; none behind an error.
    pub async fn next(&mut self) -> Option<Result<Delivery, ClientError>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delivery, ClientError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.deliveries.poll_recv(context).map(|next| match next {
            Some(Ok(EventFrame { event, ctx, .. })) => {
                Some(Ok(Delivery { event, context: ctx, member: Arc::clone(&self.member) }))
            }
            Some(Err(why)) => {
                self.is_over = true;
                Some(Err(self.member.error(PublishError::Lost(why))))
            }
            None => None,
        })
    }
}

impl Stream for Subscription {
    type Item = Result<Delivery, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context)
    }
}

impl Delivery {
    /// The group is done with the event; resolves when that is on the server's disk. True if it still was this member's to
    /// settle: else somebody else has it, or it is settled, and nothing changed.
    ///
    /// # Errors
    /// [`ClientError::Lost`] when the connection broke: the event may come again.
    pub async fn ack(self) -> Result<bool, ClientError> {
        let Member { topic, group, .. } = &*self.member;
        let frame = ClientFrame::Ack { topic: topic.into(), group: group.into(), id: self.event.id };
        self.settle(frame).await
    }

    /// The event failed: it comes again after the server's backoff, or is a dead letter when its attempts are used up. True as
    /// for [`Delivery::ack`].
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn nack(self, reason: &str) -> Result<bool, ClientError> {
        self.settle(self.nack_frame(reason, false)).await
    }

    /// The event failed for good: it becomes a dead letter at once. True as for [`Delivery::ack`].
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn give_up(self, reason: &str) -> Result<bool, ClientError> {
        self.settle(self.nack_frame(reason, true)).await
    }

    fn nack_frame<'a>(&'a self, reason: &'a str, dead: bool) -> ClientFrame<'a> {
        let Member { topic, group, .. } = &*self.member;
        ClientFrame::Nack {
            topic: topic.into(),
            group: group.into(),
            id: self.event.id,
            reason: Some(Cow::Borrowed(reason)),
            delay_ms: None,
            dead,
        }
    }

    async fn settle(&self, frame: ClientFrame<'_>) -> Result<bool, ClientError> {
        let answer = self.member.connection.ask(frame).await;
        answer.map(|ok| !ok.stale).map_err(|error| self.member.error(error))
    }
}

impl Member {
    fn error(&self, error: PublishError) -> ClientError {
        match error {
            PublishError::Lost(why) => ClientError::Lost { address: self.address.clone(), why },
            PublishError::Refused { code, message, retry_after_ms } => {
                ClientError::Refused { status: None, code, message, retry_after_ms }
            }
        }
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({}::{})", self.topic, self.group)
    }
}
