//! The committed log as readers see it: everything that is durable, and nothing else.
//!
//! It owns the view (the in-memory state that reads start from), the topic names, the publishers' ids (event ids that
//! publishers chose) of older segments, and the reports of damage and failed reads. Its locks are leaves: code that
//! holds one calls no other part. So the writer and maintenance may call it with their own locks held.

use crate::buffer_pool::BufferPool;
use crate::context::Context;
use crate::error::ReadError;
use crate::read::damage_reports::{DamageReports, ReportedFaults};
use crate::read::durable_batch::DurableBatch;
use crate::read::id_files::PublisherIds;
use crate::read::kept_ids::KeptIds;
use crate::read::read_health::ReadErrors;
use crate::read::view::View;
use crate::segment::Segment;
use crate::topics::{TopicId, TopicTable};
use crate::wakeup::Wakeup;
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::Arc;

/// The maximum size of the free buffers that are kept for reads.
const POOLED_BYTES: usize = 32 << 20;

/// The committed part of a log.
pub(crate) struct CommittedLog {
    pub(super) context: Arc<Context>,
    view: RwLock<View>,
    /// The names of topics, including topics that are not durable yet.
    topics: RwLock<TopicTable>,
    /// The newest durable batch.
    pub(crate) durable: DurableBatch,
    pub(crate) ids: PublisherIds,
    pub(super) read_pool: Arc<BufferPool>,
    pub(crate) damage: DamageReports,
    pub(crate) read_errors: ReadErrors,
    /// Notified when there is an index to write or a checkpoint is due.
    pub(crate) maintenance_due: Wakeup,
}

impl CommittedLog {
    pub(crate) fn new(
        context: Arc<Context>,
        view: View,
        kept: Vec<Arc<KeptIds>>,
        reported: ReportedFaults,
    ) -> Self {
        let mut topics = TopicTable::default();
        for (id, topic) in view.topics.iter().enumerate() {
            if let Some(topic) = topic.as_ref().filter(|topic| !topic.is_deleted) {
                topics.add(TopicId(id as u32), Arc::clone(&topic.name));
            }
        }
        Self {
            topics: RwLock::new(topics),
            durable: DurableBatch::new(view.mark.batch),
            ids: PublisherIds::new(&view.segments, kept),
            view: RwLock::new(view),
            read_pool: BufferPool::new(POOLED_BYTES),
            damage: DamageReports::new(Arc::clone(&context), reported),
            read_errors: ReadErrors::new(Arc::clone(&context)),
            maintenance_due: Wakeup::default(),
            context,
        }
    }

    /// Locks the view for reading. The lock is a leaf: drop it before calling another part.
    #[inline]
    pub(crate) fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read()
    }

    #[inline]
    pub(crate) fn change_view<R>(&self, change: impl FnOnce(&mut View) -> R) -> R {
        change(&mut self.view.write())
    }

    #[inline]
    pub(crate) fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        Arc::clone(&self.view().segments)
    }

    /// The segment with this file name.
    pub(crate) fn segment_named(&self, file: &str) -> Option<Arc<Segment>> {
        self.segments().iter().find(|segment| segment.name() == file).cloned()
    }

    pub(crate) fn topic_id(&self, name: &str) -> Option<TopicId> {
        self.topics.read().id(name)
    }

    pub(crate) fn topic_name(&self, topic: u32) -> Option<String> {
        self.topics.read().name(topic)
    }

    pub(crate) fn add_topic(&self, id: TopicId, name: Arc<str>) {
        self.topics.write().add(id, name);
    }

    pub(crate) fn remove_topic(&self, id: TopicId) {
        self.topics.write().remove(id);
    }

    /// Updates the list of files in which publishers' ids are looked up.
    pub(crate) fn refresh_id_files(&self) {
        self.ids.refresh(&self.segments());
    }

    /// The newest durable seq of a topic; zero if the topic has no durable event yet.
    #[inline]
    pub(crate) fn durable_seq(&self, topic: u32) -> Result<u64, ReadError> {
        if let Some(seq) = self.view().last_seq(topic) {
            return Ok(seq);
        }
        // The topic may be so new that its record is not durable yet.
        if self.topics.read().is_alive(TopicId(topic)) { Ok(0) } else { Err(ReadError::UnknownTopic(topic)) }
    }

    /// Bytes of records in all segments.
    pub(crate) fn log_bytes(&self) -> u64 {
        let view = self.view();
        view.segments.iter().map(|segment| segment.sealed().unwrap_or(view.mark.position)).sum()
    }
}
