//! Creates and deletes topics. Each creation or deletion is a topic record, which is appended like an event.

use crate::error::AppendError;
use crate::record::{FLAG_DELETED, HEADER_BYTES, RUN_BYTES, TOPIC_MAX};
use crate::topics::TopicId;
use crate::write::append_request::{NewState, Ticket};
use crate::write::append_state::{AppendState, TopicAppend, is_alive};
use crate::write::writer::Writer;
use parking_lot::MutexGuard;

const TOPIC_NAME_BYTES_MAX: usize = 1024;

impl Writer {
    /// The id of a topic. Creates the topic if it does not exist.
    pub(crate) fn ensure_topic(&self, name: &str, wait: bool) -> Result<TopicId, AppendError> {
        if let Some(id) = self.committed.topic_id(name) {
            return Ok(id);
        }
        if name.is_empty() || name.len() > TOPIC_NAME_BYTES_MAX {
            return Err(AppendError::BadTopicName(name.len()));
        }
        let mut state = self.room_for_topic_record(name.len(), false, wait)?;
        if let Some(id) = self.committed.topic_id(name) {
            return Ok(id);
        }
        let id = u32::try_from(state.topics.len()).ok().filter(|&id| id <= TOPIC_MAX);
        let id = TopicId(id.ok_or(AppendError::TooManyTopics)?);
        state.topics.push(TopicAppend::new(0, false));
        self.committed.add_topic(id, name.into());
        self.put_topic_record(state, id, name, 0);
        Ok(id)
    }

    /// Deletes a topic. When the deletion is durable, readers cannot see its events, and cleaning removes them. The
    /// state records become durable together with the deletion.
    pub(crate) fn delete_topic(
        &self,
        id: TopicId,
        states: &[NewState<'_>],
        wait: bool,
    ) -> Result<Ticket, AppendError> {
        let name = self.committed.topic_name(id.0).ok_or(AppendError::UnknownTopic(id.0))?;
        let state_bytes: usize = states.iter().map(|record| HEADER_BYTES + record.body.len()).sum();
        let state_bytes = if states.is_empty() { 0 } else { state_bytes + RUN_BYTES };
        // A deletion may use a reserve segment, so that cleaning can free the space of the topic on a full disk.
        let mut state = self.room_for_topic_record(name.len() + state_bytes, true, wait)?;
        if !is_alive(&state.topics, id) {
            return Err(AppendError::UnknownTopic(id.0));
        }
        state.topics[id.0 as usize].is_deleted = true;
        self.committed.remove_topic(id);
        let now_ms = state.commit_ms(self.context.now_ms());
        let salt = state.place.salt;
        for record in states {
            state.pending.add_state(record, now_ms, salt);
        }
        Ok(self.put_topic_record(state, id, &name, FLAG_DELETED))
    }

    fn room_for_topic_record(
        &self,
        name_length: usize,
        use_reserve: bool,
        wait: bool,
    ) -> Result<MutexGuard<'_, AppendState>, AppendError> {
        let bytes = (HEADER_BYTES + name_length + RUN_BYTES) as u64;
        self.check_size(bytes)?;
        let mut state = self.queue.state.lock();
        loop {
            self.check_open(&state)?;
            if self.find_room(&mut state, bytes, use_reserve, wait)? {
                return Ok(state);
            }
        }
    }

    fn put_topic_record(
        &self,
        mut state: MutexGuard<'_, AppendState>,
        id: TopicId,
        name: &str,
        flags: u8,
    ) -> Ticket {
        let now_ms = state.commit_ms(self.context.now_ms());
        let salt = state.place.salt;
        state.pending.add_topic(id.0, name, flags, now_ms, salt);
        let ticket = state.newest_ticket();
        drop(state);
        self.queue.commit_due.notify();
        ticket
    }
}
