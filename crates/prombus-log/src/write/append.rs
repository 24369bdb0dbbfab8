//! Appends events and state records. Publishers' ids (event ids that publishers chose) are looked up in the durable log
//! first, because that may read files. The rest happens under the append lock; see `append_state.rs`. Ids that the log
//! generates are called server ids.

use crate::error::{AppendError, ReadError, Unavailable};
use crate::event_id::EventId;
use crate::layout::SEGMENT_DATA_START;
use crate::read::find_id::{ServerIdCache, find_client_id, find_server_id};
use crate::record::{self, HEADER_BYTES, RUN_BYTES};
use crate::server_ids::is_own;
use crate::write::append_request::{Append, Outcomes, Prepared, Ticket};
use crate::write::append_state::{AppendState, Room, is_alive};
use crate::write::writer::Writer;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

impl Writer {
    /// Appends to the pending batch. Without `wait`, or in a log without threads, returns [`AppendError::QueueFull`]
    /// instead of waiting.
    pub(crate) fn append(
        &self,
        append: &Append<'_>,
        outcomes: &mut Outcomes,
        wait: bool,
    ) -> Result<Ticket, AppendError> {
        let bytes = self.append_bytes(append)?;
        outcomes.all.clear();
        outcomes.prepared.clear();
        outcomes.prepared.extend(append.events.iter().map(|event| Prepared {
            body_crc: record::body_crc(event.key.unwrap_or(&[]), event.body),
            duplicate_of: 0,
            id_hash: event.id.map_or(0, |id| self.context.hash.of_id(event.topic.0, id)),
        }));
        let now_ms = self.context.now_ms();
        let mut looked_up = self.look_up_ids(append, outcomes, wait)?;

        let mut state = self.queue.state.lock();
        loop {
            self.check_open(&state)?;
            if let Some(event) = append.events.iter().find(|event| !is_alive(&state.topics, event.topic)) {
                return Err(AppendError::UnknownTopic(event.topic.0));
            }
            if looked_up.is_some_and(|count| count != state.recent_ids.forgotten()) {
                // Since the lookup, the ids of a segment were removed from memory and may be only in its index file
                // now: look up the ids of this append again.
                drop(state);
                looked_up = self.look_up_ids(append, outcomes, wait)?;
                state = self.queue.state.lock();
                continue;
            }
            if self.find_room(&mut state, bytes, append.use_reserve, wait)? {
                break;
            }
        }
        let now_ms = state.commit_ms(now_ms);
        if looked_up.is_some() {
            state.recent_ids.warm(outcomes.prepared.iter().map(|prepared| prepared.id_hash));
        }
        for (event, &prepared) in append.events.iter().zip(&outcomes.prepared) {
            outcomes.all.push(state.event(event, prepared, now_ms, self.context.hash));
        }
        let salt = state.place.salt;
        for record in append.states {
            state.pending.add_state(record, now_ms, salt);
        }
        let ticket = state.newest_ticket();
        let has_work = !state.pending.is_empty();
        drop(state);
        if has_work {
            self.queue.commit_due.notify();
        }
        Ok(ticket)
    }

    /// Fails if writing has stopped or the log is closed.
    #[inline]
    pub(super) fn check_open(&self, state: &AppendState) -> Result<(), Unavailable> {
        self.context.failure.check()?;
        if state.is_closed { Err(Unavailable::Closed) } else { Ok(()) }
    }

    /// Finds room for `bytes`. Returns false if it had to wait: the state may have changed meanwhile, so the caller
    /// checks it and tries again.
    #[inline]
    pub(super) fn find_room(
        &self,
        state: &mut MutexGuard<'_, AppendState>,
        bytes: u64,
        use_reserve: bool,
        wait: bool,
    ) -> Result<bool, AppendError> {
        let room = state.make_room(bytes, use_reserve, self.context.options.batch_bytes as u64);
        if state.needed_room > 0 && matches!(room, Room::Wait) {
            // Nothing else may happen that makes maintenance prepare a larger segment.
            self.committed.maintenance_due.notify();
        }
        match room {
            Room::Ready => Ok(true),
            Room::Full => Err(AppendError::StorageFull),
            Room::Wait if !wait || !self.context.options.threads => Err(AppendError::QueueFull),
            Room::Wait => {
                self.queue.room.wait(state);
                Ok(false)
            }
        }
    }

    /// An upper bound of the bytes that the append will take in the log: duplicates will take none. Fails if the append
    /// can never fit.
    fn append_bytes(&self, append: &Append<'_>) -> Result<u64, AppendError> {
        let mut bytes = 0;
        for event in append.events {
            let key_length = event.key.map_or(0, <[u8]>::len);
            if key_length > usize::from(u16::MAX) {
                return Err(AppendError::KeyTooLong { bytes: key_length });
            }
            bytes += HEADER_BYTES + key_length + event.body.len() + RUN_BYTES;
        }
        for record in append.states {
            bytes += HEADER_BYTES + record.body.len();
        }
        let bytes = bytes as u64 + RUN_BYTES as u64;
        self.check_size(bytes)?;
        Ok(bytes)
    }

    pub(super) fn check_size(&self, bytes: u64) -> Result<(), AppendError> {
        let limit_bytes = self.context.options.segment_bytes - SEGMENT_DATA_START - HEADER_BYTES as u64;
        if bytes > limit_bytes {
            return Err(AppendError::TooLarge { bytes, limit_bytes });
        }
        Ok(())
    }

    /// Looks the publishers' ids up in the durable log. Returns the value of `forgotten_ids` before the lookup, or `None`
    /// if there was nothing to look up.
    fn look_up_ids(
        &self,
        append: &Append<'_>,
        outcomes: &mut Outcomes,
        wait: bool,
    ) -> Result<Option<u64>, AppendError> {
        if append.events.iter().all(|event| event.id.is_none()) {
            return Ok(None);
        }
        let forgotten = self.queue.forgotten_ids.load(Ordering::Acquire);
        let files = self.committed.ids.files();
        let mut server_ids = ServerIdCache::default();
        for (event, prepared) in append.events.iter().zip(&mut outcomes.prepared) {
            let Some(id) = event.id else { continue };
            let topic = event.topic.0;
            if is_own(self.context.hash, id) && id > self.committed.view().last_server_id {
                self.wait_for_server_id(id, wait)?;
            }
            let mut lookup = || -> Result<Option<u64>, ReadError> {
                if let Some(seq) = find_client_id(&self.committed, &files, topic, id, prepared.id_hash)? {
                    return Ok(Some(seq));
                }
                if is_own(self.context.hash, id) {
                    find_server_id(&self.committed, topic, id, &mut server_ids)
                } else {
                    Ok(None)
                }
            };
            prepared.duplicate_of =
                lookup().map_err(|error| AppendError::Lookup(error.to_string()))?.unwrap_or(0);
        }
        Ok(Some(forgotten))
    }

    /// Handles a publisher's id that looks like a server id and is higher than all durable server ids: an event with
    /// this id may be in a batch that is not durable yet. Waits until all such batches are durable, or returns
    /// [`AppendError::QueueFull`] if it must not wait.
    fn wait_for_server_id(&self, id: EventId, wait: bool) -> Result<(), AppendError> {
        let state = self.queue.state.lock();
        if id > state.ids.newest() {
            // The id only looks like a server id: the log has not generated ids this high.
            return Ok(());
        }
        let ticket = state.newest_ticket();
        drop(state);
        if wait && self.context.options.threads {
            return Ok(self.wait(ticket)?);
        }
        self.context.failure.check()?;
        // The flag is set before the check. The committer first advances the durable batch and then reads the flag. So
        // either this check succeeds, or the committer sees the flag.
        self.queue.wants_durable.store(true, Ordering::SeqCst);
        if self.committed.durable.get() < ticket.batch { Err(AppendError::QueueFull) } else { Ok(()) }
    }
}
