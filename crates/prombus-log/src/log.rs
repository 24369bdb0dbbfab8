//! [`Log`], the public API. It passes each call to the part that writes, reads, maintains or cleans.

use crate::caller_state::{NoState, State};
use crate::clean::cleaner::clean;
use crate::clean::liveness::{CleanOptions, CleanReport, Liveness};
use crate::error::{AppendError, BackupError, OpenError, ReadError, Unavailable};
use crate::event_id::EventId;
use crate::log_threads::{Handle, Parts};
use crate::maintain::backup::{BackupProgress, BackupReport};
use crate::options::Options;
use crate::read::chunk::{Chunk, ReadLimit};
use crate::read::read_health::{ReadHealth, UnreadableEvents};
use crate::read::topic_usage::{self, TopicUsage};
use crate::read::{find_key, find_time, probe_unreadable};
use crate::recover::find_log::open_error;
use crate::recover::open::open;
use crate::server_ids::is_own;
use crate::step::Step;
use crate::storage::{Folder, Storage};
use crate::topics::TopicId;
use crate::write::append_request::{Append, NewState, Outcomes, Ticket};
use crate::write::commit_times::CommitTimes;
use std::path::Path;
use std::sync::Arc;

/// A handle to a durable log in a folder. Clones share the log. Dropping the last clone closes it.
#[derive(Clone)]
pub struct Log {
    handle: Arc<Handle>,
}

/// A topic of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its internal id.
    pub id: TopicId,
    /// Its name.
    pub name: Arc<str>,
    /// The newest durable seq; zero if there is none.
    pub last_seq: u64,
}

/// Statistics of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Number of segments that contain records.
    pub segments: usize,
    /// Bytes of records in these segments.
    pub bytes: u64,
    /// Memory used by index filters and tables.
    pub index_memory_bytes: usize,
    /// The newest durable batch.
    pub durable_batch: u64,
    /// Damaged places reported since the log was opened.
    pub faults: u64,
    /// Damaged events reported since the log was opened. An event that is reported again is not counted again.
    pub corrupt_events: u64,
}

impl Log {
    /// Opens the log in a folder, or creates one there.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub fn open(folder: &Path, options: Options) -> Result<Self, OpenError> {
        Self::open_with_state(folder, options, Box::new(NoState))
    }

    /// Opens the log in a folder, or creates one there, and replays the state records into `state`.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub fn open_with_state(
        folder: &Path,
        options: Options,
        state: Box<dyn State>,
    ) -> Result<Self, OpenError> {
        options.check()?;
        let opened = Folder::open_or_create(folder);
        let storage = opened.map_err(|error| open_error(&folder.display().to_string(), "open", error))?;
        Self::open_storage(Arc::new(storage), options, state)
    }

    /// Opens the log on any storage.
    ///
    /// # Errors
    /// See [`OpenError`]; the storage is left as it was.
    pub fn open_storage(
        storage: Arc<dyn Storage>,
        options: Options,
        state: Box<dyn State>,
    ) -> Result<Self, OpenError> {
        options.check()?;
        let threads = options.threads;
        let (opened, lock) = open(storage, options, state)?;
        let parts = Arc::new(Parts::new(opened));
        let handle = Handle::new(Arc::clone(&parts), lock);
        if threads {
            handle
                .start_threads()
                .map_err(|error| open_error(&parts.context.storage.location(), "start a thread", error))?;
        }
        Ok(Self { handle: Arc::new(handle) })
    }

    fn parts(&self) -> &Parts {
        &self.handle.parts
    }

    /// Appends events and state records atomically: all of them become durable, or none. If the commit queue is full,
    /// the call waits; in a log without threads it returns [`AppendError::QueueFull`] instead. It returns as soon as
    /// each event has its seq. The events are durable when [`wait`](Self::wait) returns for the ticket.
    ///
    /// # Errors
    /// See [`AppendError`]: nothing was appended.
    pub fn append(&self, append: &Append<'_>, outcomes: &mut Outcomes) -> Result<Ticket, AppendError> {
        self.parts().writer.append(append, outcomes, true)
    }

    /// Like [`append`](Self::append), but returns [`AppendError::QueueFull`] instead of waiting.
    ///
    /// # Errors
    /// See [`AppendError`]: nothing was appended.
    pub fn try_append(&self, append: &Append<'_>, outcomes: &mut Outcomes) -> Result<Ticket, AppendError> {
        self.parts().writer.append(append, outcomes, false)
    }

    /// Waits until an append is durable.
    ///
    /// # Errors
    /// [`Unavailable`] if writing stopped first: whether the append is durable is unknown until the log is opened again.
    pub fn wait(&self, ticket: Ticket) -> Result<(), Unavailable> {
        self.parts().writer.wait(ticket)
    }

    /// The newest durable batch. All tickets up to this batch are durable.
    pub fn durable_batch(&self) -> u64 {
        self.parts().committed.durable.get()
    }

    /// Whether an append is durable.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.durable_batch() >= ticket.batch
    }

    /// Returns up to which commit time the log is closed (later appends get later times) and complete (it is closed,
    /// and all events up to that time are durable). The call itself closes all times up to `closing`, even if the clock
    /// has not reached it: pass the commit time of an existing event, or the current time.
    pub fn commit_times(&self, closing: i64) -> CommitTimes {
        self.parts().writer.commit_times(closing)
    }

    /// Why writing stopped, if it did.
    pub fn unavailable(&self) -> Option<Unavailable> {
        self.parts().context.failure.check().err()
    }

    /// The id of a topic. Creates the topic if it does not exist.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn ensure_topic(&self, name: &str) -> Result<TopicId, AppendError> {
        self.parts().writer.ensure_topic(name, true)
    }

    /// Like [`ensure_topic`](Self::ensure_topic), but returns [`AppendError::QueueFull`] instead of waiting.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn try_ensure_topic(&self, name: &str) -> Result<TopicId, AppendError> {
        self.parts().writer.ensure_topic(name, false)
    }

    /// The id of a topic, if it exists.
    pub fn topic(&self, name: &str) -> Option<TopicId> {
        self.parts().committed.topic_id(name)
    }

    /// Deletes a topic. A topic created later under the same name is a different topic and starts at seq 1.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn delete_topic(&self, topic: TopicId) -> Result<Ticket, AppendError> {
        self.parts().writer.delete_topic(topic, &[], true)
    }

    /// Like [`delete_topic`](Self::delete_topic), but returns [`AppendError::QueueFull`] instead of waiting. The state
    /// records become durable with the deletion or not at all.
    ///
    /// # Errors
    /// See [`AppendError`]: nothing was deleted.
    pub fn try_delete_topic(&self, topic: TopicId, states: &[NewState<'_>]) -> Result<Ticket, AppendError> {
        self.parts().writer.delete_topic(topic, states, false)
    }

    /// All durable topics, in the order of their creation.
    pub fn topics(&self) -> Vec<TopicInfo> {
        let view = self.parts().committed.view();
        let topics = view.topics.iter().enumerate().filter_map(|(id, topic)| {
            let topic = topic.as_ref().filter(|topic| !topic.is_deleted)?;
            Some(TopicInfo {
                id: TopicId(id as u32),
                name: Arc::clone(&topic.name),
                last_seq: topic.last_seq,
            })
        });
        topics.collect()
    }

    /// The number of internal topic ids used so far: those of durable topics, deleted ones included, and the unused id 0.
    pub fn topic_count(&self) -> usize {
        self.parts().committed.view().topics.len()
    }

    /// The newest durable seq of a topic; zero if the topic has no event or does not exist.
    pub fn last_seq(&self, topic: TopicId) -> u64 {
        self.parts().committed.view().last_seq(topic.0).unwrap_or(0)
    }

    /// Whether the batches that are kept in memory contain this seq of a topic, and therefore all later ones. A read
    /// from this seq on normally reads no file. The exception is a read of a few events deep inside a long batch: it
    /// may read the segment file, but these pages were just written and are probably still in the page cache.
    pub fn is_in_memory(&self, topic: TopicId, seq: u64) -> bool {
        self.parts().committed.view().tail.contains(topic.0, seq)
    }

    /// The newest seq that was assigned in a topic, durable or not; zero if there is none or the topic does not exist.
    pub fn appended_seq(&self, topic: TopicId) -> u64 {
        self.parts().queue.appended_seq(topic)
    }

    /// The oldest seq of a topic whose event was not cleaned away; `None` if there is none.
    ///
    /// # Errors
    /// [`ReadError`] if the topic does not exist or an index cannot be read.
    pub fn first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError> {
        self.parts().committed.first_seq(topic.0)
    }

    /// Reads events of a topic into `chunk`, starting at seq `from` and up to the limit. If the chunk is empty and its
    /// [`next_seq`](Chunk::next_seq) is `from`, the topic has no event at or after `from` yet.
    ///
    /// # Errors
    /// [`ReadError`] if the topic does not exist or a file cannot be read. Damage is not an error: damaged events are left
    /// out, reported to the observer, and listed in [`Chunk::missing`].
    pub fn read(
        &self,
        topic: TopicId,
        from: u64,
        limit: ReadLimit,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        self.parts().committed.read(topic.0, from, limit, chunk)
    }

    /// The first seq whose event has this `ts` or a later one; `None` if there is none. The times that publishers set
    /// need not be in order.
    ///
    /// # Errors
    /// [`ReadError`] if the topic does not exist or a file cannot be read.
    pub fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Result<Option<u64>, ReadError> {
        find_time::first_at_or_after(&self.parts().committed, topic.0, ts, 0)
    }

    /// Like [`first_at_or_after`](Self::first_at_or_after), but only among the seqs from `from_seq` on.
    ///
    /// # Errors
    /// [`ReadError`] if the topic does not exist or a file cannot be read.
    pub fn first_at_or_after_from(
        &self,
        topic: TopicId,
        ts: i64,
        from_seq: u64,
    ) -> Result<Option<u64>, ReadError> {
        find_time::first_at_or_after(&self.parts().committed, topic.0, ts, from_seq)
    }

    /// The seq of the event with this id, whether the log or a publisher chose the id. `None` if no durable event has
    /// it.
    ///
    /// # Errors
    /// [`ReadError`] if the topic does not exist or a file cannot be read.
    pub fn find_id(&self, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError> {
        self.parts().writer.find_id(topic.0, id)
    }

    /// Whether this log generated the id. Of the ids that it did not generate, about one in 65,536 passes the check
    /// too. Each generated id is higher than all generated before it.
    pub fn is_own_id(&self, id: EventId) -> bool {
        is_own(self.parts().context.hash, id)
    }

    /// Whether the topic has an event with this key and a lower seq in a segment other than that of the event `seq`.
    /// Earlier events in the same segment are ignored, because they are cleaned away no later than the event `seq`. The
    /// result may be true by mistake, if a record is damaged or another key has the same hash.
    ///
    /// # Errors
    /// [`ReadError`] if the topic does not exist or a file cannot be read.
    pub fn has_key_before(&self, topic: TopicId, key: &[u8], seq: u64) -> Result<bool, ReadError> {
        find_key::has_key_before(&self.parts().committed, topic.0, key, seq)
    }

    /// The seq of the newest event with this key; `None` if there is none.
    ///
    /// # Errors
    /// [`ReadError`] if the topic does not exist or a file cannot be read.
    pub fn find_key(&self, topic: TopicId, key: &[u8]) -> Result<Option<u64>, ReadError> {
        find_key::find_key(&self.parts().committed, topic.0, key)
    }

    /// Removes dead events; see [`Liveness`]. The call blocks until it is done, at the pace that the options set, and
    /// ends early when the log is closed. While one call runs, another call does nothing. Cleaning may write
    /// checkpoints, for which it asks the [`State`] for a snapshot.
    ///
    /// # Errors
    /// [`Unavailable`] if writing stopped or the log is closed.
    pub fn clean(&self, liveness: &dyn Liveness, options: &CleanOptions) -> Result<CleanReport, Unavailable> {
        let parts = self.parts();
        parts.announcing(clean(&parts.maintenance, liveness, options))
    }

    /// Backs the log up into a folder that is new or empty. The backup is a log as of one durable batch, with everything
    /// that was durable when the call began. Publishing and cleaning continue meanwhile. The call writes a checkpoint, for
    /// which it asks the [`State`] for a snapshot.
    ///
    /// # Errors
    /// See [`BackupError`]; no incomplete copy that would open is left behind.
    pub fn backup(
        &self,
        destination: &Path,
        progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport, BackupError> {
        let parts = self.parts();
        parts.announcing(parts.maintenance.backup(destination, progress))
    }

    /// Backs the log up to any storage that is empty.
    ///
    /// # Errors
    /// See [`BackupError`]; no incomplete copy that would open is left behind.
    pub fn backup_storage(
        &self,
        destination: Arc<dyn Storage>,
        progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport, BackupError> {
        let parts = self.parts();
        parts.announcing(parts.maintenance.backup_to(destination, progress))
    }

    /// The size of each topic, including dead events that are not cleaned yet. Reads the index of every segment.
    ///
    /// # Errors
    /// [`ReadError`] if an index cannot be read.
    pub fn usage(&self) -> Result<Vec<TopicUsage>, ReadError> {
        topic_usage::usage(&self.parts().committed)
    }

    /// The sizes of some topics, in the given order; `None` for a topic that does not exist or is not durable yet. The cost
    /// does not grow with the total number of topics.
    ///
    /// # Errors
    /// [`ReadError`] if an index cannot be read.
    pub fn usage_of(&self, topics: &[TopicId]) -> Result<Vec<Option<TopicUsage>>, ReadError> {
        topic_usage::usage_of(&self.parts().committed, topics)
    }

    /// The lowest seq such that the events from it on take at most about this many bytes. The newest event is always
    /// included, whatever its size.
    ///
    /// # Errors
    /// [`ReadError`] if the topic does not exist or an index cannot be read.
    pub fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Result<u64, ReadError> {
        topic_usage::first_within_bytes(&self.parts().committed, topic.0, bytes)
    }

    /// The failed reads so far, and the number of events that cannot be read at present.
    pub fn read_health(&self) -> ReadHealth {
        self.parts().committed.read_errors.health()
    }

    /// The unreadable events of every file in which a read has failed. Reads those files, which may block for a long time
    /// on a failing disk.
    pub fn unreadable(&self) -> Vec<UnreadableEvents> {
        probe_unreadable::list_unreadable(&self.parts().committed)
    }

    /// Removes the events of a topic before this seq from the list of unreadable events, because retention has removed
    /// them.
    pub fn forget_unreadable_before(&self, topic: TopicId, seq: u64) {
        self.parts().committed.read_errors.note_read(topic.0, 0, seq);
    }

    /// Retries the failed reads. Call it from time to time. It may block for a long time on a failing disk.
    pub fn probe_unreadable(&self) {
        probe_unreadable::probe_unreadable(&self.parts().committed);
    }

    /// Gives up the events that cannot be read at present: their unreadable bytes count as damaged from now on, also after
    /// a restart. Returns the events that were given up. Events in a file that cannot be opened at all are not among them.
    ///
    /// # Errors
    /// The list of losses could not be read or written. Nothing was given up.
    pub fn accept_losses(&self) -> std::io::Result<Vec<UnreadableEvents>> {
        self.parts().maintenance.accept_losses()
    }

    /// Statistics for metrics and operators.
    pub fn stats(&self) -> LogStats {
        let committed = &self.parts().committed;
        let segments = committed.segments();
        let (faults, corrupt_events) = committed.damage.counts();
        LogStats {
            segments: segments.len(),
            bytes: committed.log_bytes(),
            index_memory_bytes: committed.index_memory_bytes(&segments),
            durable_batch: committed.durable.get(),
            faults,
            corrupt_events,
        }
    }

    /// Closes the log: refuses further appends, makes pending ones durable and writes a checkpoint. Other handles get
    /// [`Unavailable::Closed`] from then on, but can still read.
    ///
    /// # Errors
    /// [`Unavailable::Poisoned`] if writing failed, before or during the call.
    pub fn close(self) -> Result<(), Unavailable> {
        self.handle.close()
    }

    /// Commits one batch, in a log without threads.
    pub fn step_commit(&self) -> Step {
        let parts = self.parts();
        parts.announcing(parts.writer.step_commit())
    }

    /// Does one piece of background work, in a log without threads.
    pub fn step_housekeeping(&self) -> Step {
        let parts = self.parts();
        parts.announcing(parts.maintenance.step())
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Log({})", self.parts().context.storage.location())
    }
}
