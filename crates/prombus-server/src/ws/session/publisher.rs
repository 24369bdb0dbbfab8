//! The publishes of a session: collected while frames are read, appended together, answered together when durable.

use super::corrs::Corrs;
use crate::ws::answers::{put_not_published, put_published};
use crate::ws::send_buffer::SendBuffer;
use prombus::{Backend, PublishBatch, PublishError, Published, Publishing};
use prombus_protocol::{Json, PublishOptions, Topic};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A batch is submitted when it has this many bytes or events, even if the socket has more frames. Otherwise the committer would
/// wait until all frames that the client has in flight are read. With 128 events per batch, one connection publishes 1.3 times as
/// many events per second as with 4,096.
const BATCH_BYTES_MAX: usize = 1 << 20;
const BATCH_EVENTS_MAX: usize = 128;
/// When this many bytes or events are in flight, no more frames are read.
const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;
const IN_FLIGHT_EVENTS_MAX: usize = 65_536;
/// At most this many emptied [`Corrs`] are kept for reuse.
const SPARES_MAX: usize = 4;
/// Larger [`Corrs`] are not kept.
const SPARE_BYTES_MAX: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct Publisher {
    batch: Option<PublishBatch>,
    corrs: Corrs,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
    in_flight_events: usize,
    spare_corrs: Vec<Corrs>,
}

struct InFlight {
    publishing: Publishing,
    corrs: Corrs,
    bytes: usize,
}

impl Publisher {
    /// Whether no more events should be added for now.
    pub(super) fn is_full(&self) -> bool {
        self.in_flight_bytes >= IN_FLIGHT_BYTES_MAX
            || self.in_flight_events >= IN_FLIGHT_EVENTS_MAX
            || self.is_last_unqueued()
    }

    /// Whether the last submitted batch has no place in the committer's queue yet. The next batch must wait until it has one, to
    /// keep the order.
    fn is_last_unqueued(&self) -> bool {
        self.in_flight.back().is_some_and(|it| !it.publishing.is_in_line())
    }

    /// Whether no publish waits for its answer.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.batch.is_none()
    }

    /// Bytes in flight.
    pub(super) fn byte_count(&self) -> usize {
        self.in_flight_bytes
    }

    /// Adds an event. The first event of a new topic and an event with an addressee are submitted in a batch of their own, because
    /// a batch that would exceed the limit of topics, or with an unknown addressee, is refused as a whole, and other events must
    /// not be refused with it.
    pub(super) fn push(
        &mut self,
        backend: &dyn Backend,
        (corr, ignored): (Option<&str>, &[String]),
        (topic, may_share_batch): (&Topic, bool),
        payload: &Json<'_>,
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        if !may_share_batch {
            self.flush(backend);
        }
        let batch = self.batch.get_or_insert_with(|| backend.batch());
        let pushed = batch.push_parsed(topic, payload, options);
        if pushed.is_ok() {
            self.corrs.push_noting(corr, ignored);
            if !may_share_batch || batch.byte_count() >= BATCH_BYTES_MAX || batch.len() >= BATCH_EVENTS_MAX {
                self.flush(backend);
            }
        } else if batch.is_empty() {
            // The empty batch was created for this event. If it were kept, later events would get the time of this batch, and
            // `is_idle` would return false although no publish waits for its answer.
            self.batch = None;
        }
        pushed
    }

    /// Submits the collected events.
    pub(super) fn flush(&mut self, backend: &dyn Backend) {
        if self.is_last_unqueued() {
            return;
        }
        let Some(batch) = self.batch.take_if(|batch| !batch.is_empty()) else { return };
        let spare = self.spare_corrs.pop().unwrap_or_default();
        let corrs = std::mem::replace(&mut self.corrs, spare);
        let bytes = batch.byte_count() + corrs.byte_count();
        self.in_flight_bytes += bytes;
        self.in_flight_events += corrs.len();
        self.in_flight.push_back(InFlight { publishing: backend.publish(batch), corrs, bytes });
    }

    /// Writes the answers that are ready, and submits events that had to wait.
    pub(super) fn poll(&mut self, backend: &dyn Backend, context: &mut Context<'_>, out: &mut SendBuffer) {
        self.answer(context, out);
        if self.batch.as_ref().is_some_and(|batch| !batch.is_empty()) && !self.is_last_unqueued() {
            self.flush(backend);
            self.answer(context, out);
        }
    }

    /// Writes the answers in order: the batch that was submitted first is durable first.
    fn answer(&mut self, context: &mut Context<'_>, out: &mut SendBuffer) {
        while let Some(front) = self.in_flight.front_mut() {
            let Poll::Ready(result) = Pin::new(&mut front.publishing).poll(context) else { return };
            let InFlight { mut corrs, bytes, .. } =
                self.in_flight.pop_front().expect("the front was just polled");
            self.in_flight_bytes -= bytes;
            self.in_flight_events -= corrs.len();
            match result {
                Ok(outcomes) => put_outcomes(out, &corrs, &outcomes),
                Err(error) => corrs.iter().for_each(|corr| put_not_published(out, corr, &error)),
            }
            if self.spare_corrs.len() < SPARES_MAX && corrs.byte_count() <= SPARE_BYTES_MAX {
                corrs.clear();
                self.spare_corrs.push(corrs);
            }
        }
        // Nothing is in flight: an idle connection keeps little memory.
        if self.batch.is_none() {
            self.spare_corrs.truncate(1);
        }
    }
}

fn put_outcomes(out: &mut SendBuffer, corrs: &Corrs, outcomes: &[Published]) {
    out.reserve(outcomes.len() * 112);
    if corrs.has_no_ignored() {
        for (corr, outcome) in corrs.iter().zip(outcomes) {
            put_published(out, corr, outcome, &[]);
        }
        return;
    }
    for (number, (corr, outcome)) in corrs.iter().zip(outcomes).enumerate() {
        put_published(out, corr, outcome, corrs.ignored(number));
    }
}
