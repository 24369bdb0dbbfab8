//! A member of a group, as a stream of deliveries.

use super::command::{Command, MemberHandle};
use super::delivery::{Delivery, Ticket};
use super::queue::{Arrived, QueueReceiver};
use crate::error::ClientError;
use futures_util::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};

/// One member of a group, as a stream of deliveries. It has its own WebSocket, so a slow consumer delays nothing else.
///
/// The stream survives a lost connection: it reconnects with a backoff and subscribes again. If the consumer still holds a delivery when
/// its event is redelivered, the delivery adopts the new lease, and the consumer does not get the event twice.
///
/// The stream ends if the server permanently refuses the subscription: access was revoked, the group was deleted, or the group conflicts
/// with these options. That error is the last item of the stream. If the group was deleted while the connection was lost, the stream ends
/// with `not_subscribed`: the reconnect has created a new group, which starts at the `from` of these options, so events may be missing.
///
/// The member leaves the group when the subscription and all its deliveries are dropped. Unsettled events go to other members, and the
/// attempt does not count. [`unsubscribe`](Self::unsubscribe) does the same and waits until the member has left.
#[derive(Debug)]
pub struct Subscription {
    queue: QueueReceiver,
    member: MemberHandle,
    created: bool,
}

impl Subscription {
    pub(super) fn new(queue: QueueReceiver, member: MemberHandle, created: bool) -> Self {
        Self { queue, member, created }
    }

    /// Whether this subscription created the group.
    pub fn created(&self) -> bool {
        self.created
    }

    /// The next delivery, or the error that ends the stream; `None` after that error.
    pub async fn next(&mut self) -> Option<Result<Delivery, ClientError>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Stops deliveries until [`resume`](Self::resume). Events that were received before are still delivered.
    pub fn pause(&self) {
        self.member.send(Command::Pause(true));
    }

    /// Starts deliveries again.
    pub fn resume(&self) {
        self.member.send(Command::Pause(false));
    }

    /// Leaves the group: unsettled events go to other members at once, and the attempt does not count.
    ///
    /// # Errors
    /// [`ClientError::Lost`] while disconnected; the server then counts the member as lost. Also if results are kept (see
    /// [`Delivery`]): their events are redelivered to other members.
    pub async fn unsubscribe(self) -> Result<(), ClientError> {
        self.member.request(Command::Leave).await
    }

    /// Takes no more events; those that were delivered can still be settled.
    pub(super) fn drain(&self) {
        self.member.send(Command::Drain);
    }

    pub(super) fn member(&self) -> &MemberHandle {
        &self.member
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delivery, ClientError>>> {
        let next = std::task::ready!(self.queue.poll(context));
        Poll::Ready(next.map(|next| {
            let Arrived { event, context, lease } = next?;
            let ticket = Ticket::new(lease, self.member.clone());
            Ok(Delivery { event, context, ticket })
        }))
    }
}

impl Stream for Subscription {
    type Item = Result<Delivery, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // The consumer can still settle the deliveries that it holds.
        self.drain();
    }
}
