//! A delivery as the consumer of a stream has it.

use super::command::{Command, MemberHandle};
use super::lease::Lease;
use super::settlement::{Settled, Settlement};
use crate::error::ClientError;
use prombus_protocol::{EventContext, EventRecord};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An event that this member holds until it settles the event or the lease ends. If a delivery is dropped without a result, it stays
/// leased and is redelivered when the lease ends.
///
/// A result (ack, nack, give up) applies if this member still holds the lease. Otherwise it is `stale` and nothing changes. If the
/// connection is lost before the response, the call returns [`ClientError::Lost`] and the result is kept: when the event is
/// redelivered to this subscription, the result is sent and the consumer does not get the event a second time. Another member may get
/// the event instead. At most 10,000 results are kept, each for the ack timeout plus two minutes after the reconnect, not counting the
/// time while the subscription is paused.
#[derive(Debug)]
pub struct Delivery {
    /// The event.
    pub event: EventRecord,
    /// The attempt, the reason of a redelivery and the duration of the lease at the time of the delivery.
    pub context: EventContext,
    pub(super) ticket: Ticket,
}

impl Delivery {
    /// The payload as a value.
    ///
    /// # Errors
    /// If the payload is not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.event.json()
    }

    /// When the lease ends. It changes when the lease is extended, and when a reconnect brings a new lease.
    pub fn lease_deadline(&self) -> Instant {
        self.ticket.lease.deadline()
    }

    /// Whether the lease was lost: it expired, or the server reported its loss. Another member may have the event.
    pub fn is_lease_lost(&self) -> bool {
        self.ticket.lease.is_lost()
    }

    /// Resolves when the lease is lost.
    pub async fn lease_lost(&self) {
        self.ticket.lease.lost().await;
    }

    /// Acks the event: the group is done with it. Resolves when the ack is on the server's disk.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if the connection was lost; see [`Delivery`].
    pub async fn ack(self) -> Result<Settled, ClientError> {
        self.ticket.settle(Settlement::Ack).await
    }

    /// Nacks the event: it is redelivered after the server's backoff, or becomes a dead letter after the last attempt.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn nack(self, reason: &str) -> Result<Settled, ClientError> {
        self.ticket.settle(Settlement::nack(reason, None)).await
    }

    /// Nacks the event: it is redelivered after a delay of at most an hour, or becomes a dead letter after the last attempt.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn nack_after(self, delay: Duration, reason: &str) -> Result<Settled, ClientError> {
        self.ticket.settle(Settlement::nack(reason, Some(delay))).await
    }

    /// Gives the event up: it becomes a dead letter at once.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn give_up(self, reason: &str) -> Result<Settled, ClientError> {
        self.ticket.settle(Settlement::give_up(reason)).await
    }

    /// Extends the lease: it ends this long from now, at least a second. Returns false if the lease is already over, or belongs to a
    /// connection that was lost.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if the connection was lost before the response.
    pub async fn extend(&self, by: Duration) -> Result<bool, ClientError> {
        self.ticket.extend(by).await
    }
}

/// The right to settle a delivery.
#[derive(Debug)]
pub(super) struct Ticket {
    lease: Arc<Lease>,
    member: MemberHandle,
    /// Whether a result was sent. If not, dropping the ticket releases the delivery.
    is_settled: bool,
}

impl Ticket {
    pub(super) fn new(lease: Arc<Lease>, member: MemberHandle) -> Self {
        Self { lease, member, is_settled: false }
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    pub(super) fn member(&self) -> &MemberHandle {
        &self.member
    }

    async fn settle(mut self, settlement: Settlement) -> Result<Settled, ClientError> {
        self.is_settled = true;
        let serial = self.lease.serial();
        let command = |reply| Command::Settle { serial, settlement, reply: Some(reply) };
        self.member.request(command).await
    }

    /// Sends the result without waiting for the response.
    pub(super) fn settle_soon(mut self, settlement: Settlement) {
        self.is_settled = true;
        let serial = self.lease.serial();
        self.member.send(Command::Settle { serial, settlement, reply: None });
    }

    async fn extend(&self, by: Duration) -> Result<bool, ClientError> {
        let serial = self.lease.serial();
        self.member.request(|reply| Command::Extend { serial, by, reply }).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_settled {
            self.member.send(Command::Release { serial: self.lease.serial() });
        }
    }
}
