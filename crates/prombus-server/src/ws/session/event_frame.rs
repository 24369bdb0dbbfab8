//! Writes the EVENT frames of one subscription. The common parts are prepared once: all frames have the same start, and nearly
//! always the same end as the previous frame.

use crate::ws::send_buffer::SendBuffer;
use prombus::{DeliveryBatch, DeliveryItem};
use prombus_protocol::{EventContext, RedeliveryReason, put_event_head, put_event_tail, put_record};
use uuid::Uuid;

/// Approximate size of the head and the context of an EVENT.
const EVENT_FRAME_BYTES: usize = 250;

pub(super) struct EventFrame {
    max_attempts: u32,
    /// An EVENT up to its record.
    head: Vec<u8>,
    /// The end of an EVENT, after the record.
    tail: Vec<u8>,
    /// The values in `tail`; `None` if `tail` cannot be used again.
    tail_of: Option<TailOf>,
}

/// The values at the end of an EVENT: attempt, lease, reason. An end that contains an error of the previous attempt is not
/// reused.
type TailOf = (u32, u64, Option<RedeliveryReason>);

impl EventFrame {
    pub(super) fn new(topic: &str, group: &str, max_attempts: u32) -> Self {
        let mut head = Vec::new();
        put_event_head(&mut head, topic, group);
        Self { max_attempts, head, tail: Vec::new(), tail_of: None }
    }

    /// Appends the frame of a delivery. `id` is the event's id.
    #[inline]
    pub(super) fn put(&mut self, out: &mut SendBuffer, batch: &DeliveryBatch, item: &DeliveryItem, id: Uuid) {
        let tail_of = Some((item.attempt, item.lease_ms, item.reason));
        if self.tail_of != tail_of {
            self.put_tail(batch, item);
            self.tail_of = tail_of.filter(|_| !batch.has_last_errors());
        }
        let body = batch.body(item);
        out.put_text(EVENT_FRAME_BYTES + body.len(), |into| {
            into.extend_from_slice(&self.head);
            put_record(into, id, item.position.seq, body);
            into.extend_from_slice(&self.tail);
        });
    }

    #[cold]
    fn put_tail(&mut self, batch: &DeliveryBatch, item: &DeliveryItem) {
        self.tail.clear();
        let context = EventContext {
            attempt: item.attempt,
            ack_deadline_ms: item.lease_ms,
            max_attempts: self.max_attempts,
            reason: item.reason,
            last_error: batch.last_error(item).map(str::to_owned),
        };
        put_event_tail(&mut self.tail, &context);
    }
}
