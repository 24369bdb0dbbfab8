//! The log itself: a facade of its parts, which write, read, maintain and clean.

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

/// A durable log in a folder. A handle: clones share the log; the last one to go closes it.
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
    /// The newest durable seq; zero for none.
    pub last_seq: u64,
}

/// Figures of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Segments that hold records.
    pub segments: usize,
    /// Bytes of records in them.
    pub bytes: u64,
    /// Bytes that index filters and tables take in memory.
    pub index_memory_bytes: usize,
    /// The newest durable batch.
    pub durable_batch: u64,
    /// Places of damage named since the log was opened.
    pub faults: u64,
    /// Damaged events named since the log was opened; each counts once.
    pub corrupt_events: u64,
}

impl Log {
    /// Opens the log in a folder, or makes one there.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub fn open(folder: &Path, options: Options) -> Result<Self, OpenError> {
        Self::open_with_state(folder, options, Box::new(NoState))
    }

    /// Opens the log in a folder, or makes one there, and replays the state records into `state`.
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

    /// Appends events and state records as one atomic batch; waits while the commit queue is full (in a log without threads it
    /// returns [`AppendError::QueueFull`] then). It returns when everything has its seq and its place; it is durable when the
    /// ticket is.
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
    /// [`Unavailable`] when writing stopped before: the fate of the append is unknown until the log is opened again.
    pub fn wait(&self, ticket: Ticket) -> Result<(), Unavailable> {
        self.parts().writer.wait(ticket)
    }

    /// The newest durable batch: every ticket up to it is durable.
    pub fn durable_batch(&self) -> u64 {
        self.parts().committed.durable.get()
    }

    /// Whether an append is durable.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.durable_batch() >= ticket.batch
    }

    /// Which commit times are over. `closing` closes the time that it names, also where the clock has not reached it: that is
    /// for the time of an event that is there, or of now.
    pub fn commit_times(&self, closing: i64) -> CommitTimes {
        self.parts().writer.commit_times(closing)
    }

    /// Why writing stopped, if it did.
    pub fn unavailable(&self) -> Option<Unavailable> {
        self.parts().context.failure.check().err()
    }

    /// The id of a topic, which is made if it is not there.
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

    /// The id of a topic that is there.
    pub fn topic(&self, name: &str) -> Option<TopicId> {
        self.parts().committed.topic_id(name)
    }

    /// Deletes a topic. A topic made later under the same name is another one and starts at seq 1.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn delete_topic(&self, topic: TopicId) -> Result<Ticket, AppendError> {
        self.parts().writer.delete_topic(topic, &[], true)
    }

    /// Like [`delete_topic`](Self::delete_topic), but returns [`AppendError::QueueFull`] instead of waiting. The state records
    /// become durable with the deletion or not at all.
    ///
    /// # Errors
    /// See [`AppendError`]: nothing was deleted.
    pub fn try_delete_topic(&self, topic: TopicId, states: &[NewState<'_>]) -> Result<Ticket, AppendError> {
        self.parts().writer.delete_topic(topic, states, false)
    }

    /// All topics that are durable, in the order they were made.
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

    /// How many topics were ever made durable, deleted ones included.
    pub fn topic_count(&self) -> usize {
        self.parts().committed.view().topics.len()
    }

    /// The newest durable seq of a topic; zero when it has none, or there is no such topic.
    pub fn last_seq(&self, topic: TopicId) -> u64 {
        self.parts().committed.view().last_seq(topic.0).unwrap_or(0)
    }

    /// Whether the newest batches, which are kept in memory, contain this seq of a topic, and so all later ones. A read from it on
    /// reads no file; a read of a few events deep in a long batch may read the file, whose pages were just written.
    pub fn is_in_memory(&self, topic: TopicId, seq: u64) -> bool {
        self.parts().committed.view().tail.contains(topic.0, seq)
    }

    /// The newest seq that a topic has given out, durable or not; zero when it has none, or there is no such topic.
    pub fn appended_seq(&self, topic: TopicId) -> u64 {
        self.parts().queue.appended_seq(topic)
    }

    /// The oldest seq of a topic that is kept.
    ///
    /// # Errors
    /// [`ReadError`] when an index cannot be read.
    pub fn first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError> {
        self.parts().committed.first_seq(topic.0)
    }

    /// Reads events of a topic from a seq on, as many as the limit allows, into `chunk`. An empty chunk whose
    /// [`next_seq`](Chunk::next_seq) is `from` means: nothing there yet.
    ///
    /// # Errors
    /// [`ReadError`] when there is no such topic, or the system refuses to read. Damage is not an error: it is left out,
    /// reported to the observer, and listed in [`Chunk::missing`].
    pub fn read(
        &self,
        topic: TopicId,
        from: u64,
        limit: ReadLimit,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        self.parts().committed.read(topic.0, from, limit, chunk)
    }

    /// The first seq whose event has this `ts` or a later one, also when publishers' times are out of order.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Result<Option<u64>, ReadError> {
        find_time::first_at_or_after(&self.parts().committed, topic.0, ts, 0)
    }

    /// Like [`first_at_or_after`](Self::first_at_or_after), but only among the seqs from `from_seq` on.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn first_at_or_after_from(
        &self,
        topic: TopicId,
        ts: i64,
        from_seq: u64,
    ) -> Result<Option<u64>, ReadError> {
        find_time::first_at_or_after(&self.parts().committed, topic.0, ts, from_seq)
    }

    /// The seq of the event with this id, made by the server or by a publisher.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn find_id(&self, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError> {
        self.parts().writer.find_id(topic.0, id)
    }

    /// Whether this log made the id. Such ids rise with the log.
    pub fn is_own_id(&self, id: EventId) -> bool {
        is_own(self.parts().context.hash, id)
    }

    /// Whether an event of the topic with this key and a lower seq is in another segment than the event with this seq.
    /// An event in the same segment is cleaned away with it at the latest.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn has_key_before(&self, topic: TopicId, key: &[u8], seq: u64) -> Result<bool, ReadError> {
        find_key::has_key_before(&self.parts().committed, topic.0, key, seq)
    }

    /// The seq of the newest event with this key.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn find_key(&self, topic: TopicId, key: &[u8]) -> Result<Option<u64>, ReadError> {
        find_key::find_key(&self.parts().committed, topic.0, key)
    }

    /// Cleans away what is dead; see [`Liveness`]. It takes as long as it takes, at the pace of the options, and ends soon when
    /// the log is closed. While one call runs, another one does nothing. It may write checkpoints, and then asks the
    /// [`State`] for its snapshot.
    ///
    /// # Errors
    /// [`Unavailable`] when writing stopped, or the log is closed.
    pub fn clean(&self, liveness: &dyn Liveness, options: &CleanOptions) -> Result<CleanReport, Unavailable> {
        let parts = self.parts();
        parts.announcing(clean(&parts.maintenance, liveness, options))
    }

    /// Backs the log up into a folder that is new or empty: a copy as of one durable batch, with everything that was durable
    /// when the call began, which opens like any log. Publishers and cleaning go on meanwhile. It writes a checkpoint, and
    /// asks the [`State`] for its snapshot.
    ///
    /// # Errors
    /// See [`BackupError`]; nothing that opens is left behind.
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
    /// See [`BackupError`]; nothing that opens is left behind.
    pub fn backup_storage(
        &self,
        destination: Arc<dyn Storage>,
        progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport, BackupError> {
        let parts = self.parts();
        parts.announcing(parts.maintenance.backup_to(destination, progress))
    }

    /// What each topic takes, dead events that are not cleaned yet included. One pass over the indexes of all segments.
    ///
    /// # Errors
    /// [`ReadError`] when an index cannot be read.
    pub fn usage(&self) -> Result<Vec<TopicUsage>, ReadError> {
        topic_usage::usage(&self.parts().committed)
    }

    /// What some topics take, in their order, at a cost that does not grow with the number of topics; `None` for one that is
    /// not there, or not durable yet.
    ///
    /// # Errors
    /// [`ReadError`] when an index cannot be read.
    pub fn usage_of(&self, topics: &[TopicId]) -> Result<Vec<Option<TopicUsage>>, ReadError> {
        topic_usage::usage_of(&self.parts().committed, topics)
    }

    /// The lowest seq such that what is kept from it on takes at most about this many bytes. The newest event counts as within
    /// whatever it takes.
    ///
    /// # Errors
    /// [`ReadError`] when there is no such topic, or an index cannot be read.
    pub fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Result<u64, ReadError> {
        topic_usage::first_within_bytes(&self.parts().committed, topic.0, bytes)
    }

    /// How reading goes: what failed, and how many events cannot be read now.
    pub fn read_health(&self) -> ReadHealth {
        self.parts().committed.read_errors.health()
    }

    /// The unreadable events of every file in which a read has failed. Reads those files, which may block for long on a failing
    /// disk.
    pub fn unreadable(&self) -> Vec<UnreadableEvents> {
        probe_unreadable::list_unreadable(&self.parts().committed)
    }

    /// Removes the events of a topic before this seq from the unreadable ones: retention has cut them off.
    pub fn forget_unreadable_before(&self, topic: TopicId, seq: u64) {
        self.parts().committed.read_errors.note_read(topic.0, 0, seq);
    }

    /// Reads again what could not be read. It may take long where the disk does; call it from time to time.
    pub fn probe_unreadable(&self) {
        probe_unreadable::probe_unreadable(&self.parts().committed);
    }

    /// Gives up the events that cannot be read now: from here on the bytes that the disk cannot read count as damaged, durably.
    /// Returns what was given up; events whose file cannot be opened at all are not among them.
    ///
    /// # Errors
    /// The system refused to write the list of losses: nothing was given up.
    pub fn accept_losses(&self) -> std::io::Result<Vec<UnreadableEvents>> {
        self.parts().maintenance.accept_losses()
    }

    /// Figures for metrics and operators.
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

    /// Closes the log: no more appends, what is pending is made durable, a checkpoint is written. Other handles get
    /// [`Unavailable::Closed`] from then on; reading continues.
    ///
    /// # Errors
    /// [`Unavailable::Poisoned`] when writing had stopped, or stopped now.
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
