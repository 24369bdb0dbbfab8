//! The writing part of a log: the append queue and the committer. `append.rs` and `topic_records.rs` implement the appends.

use crate::context::Context;
use crate::error::{ReadError, Unavailable};
use crate::event_id::EventId;
use crate::read::committed_log::CommittedLog;
use crate::read::find_id::find_older_id;
use crate::segment::Segment;
use crate::step::Step;
use crate::write::append_queue::AppendQueue;
use crate::write::append_request::Ticket;
use crate::write::commit::Committer;
use parking_lot::Mutex;
use std::sync::Arc;

/// Appends records and commits them.
pub(crate) struct Writer {
    pub(super) context: Arc<Context>,
    pub(super) committed: Arc<CommittedLog>,
    pub(super) queue: Arc<AppendQueue>,
    /// The only committer of the log.
    committer: Mutex<Committer>,
}

impl Writer {
    pub(crate) fn new(
        context: Arc<Context>,
        committed: Arc<CommittedLog>,
        queue: Arc<AppendQueue>,
        segment: Option<Arc<Segment>>,
    ) -> Self {
        let committer =
            Committer::new(Arc::clone(&context), Arc::clone(&committed), Arc::clone(&queue), segment);
        Self { context, committed, queue, committer: Mutex::new(committer) }
    }

    /// Commits one batch.
    pub(crate) fn step_commit(&self) -> Step {
        self.committer.lock().step()
    }

    pub(crate) fn wait(&self, ticket: Ticket) -> Result<(), Unavailable> {
        self.committed.durable.wait(ticket.batch, &self.context.failure)
    }

    /// The seq of the event with this id, which the log generated or a publisher chose; `None` if no durable event has
    /// it.
    pub(crate) fn find_id(&self, topic: u32, id: EventId) -> Result<Option<u64>, ReadError> {
        // Ids that are only in memory belong to the newest segments. An event that is not durable yet is not found.
        let hash = self.context.hash.of_id(topic, id);
        let recent = self.queue.state.lock().recent_ids.get(topic, id, hash);
        let last = self.committed.durable_seq(topic)?;
        match recent {
            Some(seq) => Ok((seq <= last).then_some(seq)),
            None => find_older_id(&self.committed, topic, id, hash),
        }
    }
}
