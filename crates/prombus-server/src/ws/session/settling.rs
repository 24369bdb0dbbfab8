//! Settlements whose answers wait until they are durable.

use super::corrs::Corrs;
use crate::ws::answers::put_settled;
use crate::ws::send_buffer::SendBuffer;
use prombus::DurableTicket;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Acks that were submitted together, or a nack.
pub(super) struct Settling {
    ticket: DurableTicket,
    corrs: Corrs,
    /// For each settlement: whether it was stale.
    stale: Vec<bool>,
}

impl Settling {
    pub(super) fn new(ticket: DurableTicket, corrs: Corrs, stale: Vec<bool>) -> Self {
        Self { ticket, corrs, stale }
    }

    /// Writes the answers when the settlements are durable. Returns false before that.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, out: &mut SendBuffer) -> bool {
        let Poll::Ready(result) = Pin::new(&mut self.ticket).poll(context) else { return false };
        for (number, (corr, &stale)) in self.corrs.iter().zip(&self.stale).enumerate() {
            if corr.is_some() || result.is_err() {
                put_settled(out, corr, self.corrs.ignored(number), stale, result.as_ref().err());
            }
        }
        true
    }

    /// Whether no frame had a `corr`.
    pub(super) fn is_silent(&self) -> bool {
        self.corrs.is_silent()
    }
}
