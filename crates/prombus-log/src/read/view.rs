//! The in-memory state of the committed log. It contains only what is durable. The committer changes it once per batch.
//! Maintenance replaces cleaned segments in it, and takes the state records out of it for a checkpoint.

use crate::checkpoint::{Checkpoint, Mark, TopicRow};
use crate::event_id::EventId;
use crate::index::Index;
use crate::read::tail::Tail;
use crate::segment::{Segment, SegmentIndex};
use crate::topics::{TopicChange, TopicView};
use bytes::Bytes;
use std::sync::Arc;

/// The in-memory state of the committed log.
pub(crate) struct View {
    /// The tail cache.
    pub(crate) tail: Tail,
    /// All segments with records, in log order. The last one may still be growing.
    pub(crate) segments: Arc<Vec<Arc<Segment>>>,
    /// The index of the growing segment.
    pub(crate) active_index: Index,
    /// The end of the last committed batch.
    pub(crate) mark: Mark,
    /// The topics by internal id. Index 0 is not used.
    pub(crate) topics: Vec<Option<TopicView>>,
    /// The newest durable server id.
    pub(crate) last_server_id: EventId,
    /// The commit time of the last committed batch.
    pub(crate) last_commit_ms: i64,
    /// Frames of state records since the last attempt to write a checkpoint. The next checkpoint applies them to the
    /// caller's [`State`](crate::State).
    pub(crate) state_records: Vec<Bytes>,
    /// Bytes of log since the newest checkpoint.
    pub(crate) since_checkpoint: u64,
}

impl View {
    /// The newest seq of a topic; zero if it has no event, `None` if the topic does not exist.
    pub(crate) fn last_seq(&self, topic: u32) -> Option<u64> {
        let topic = self.topics.get(topic as usize)?.as_ref()?;
        (!topic.is_deleted).then_some(topic.last_seq)
    }

    pub(crate) fn set_last_seq(&mut self, topic: u32, seq: u64) {
        if let Some(Some(topic)) = self.topics.get_mut(topic as usize) {
            topic.last_seq = seq;
        }
    }

    pub(crate) fn apply_topic_changes(&mut self, changes: &[TopicChange]) {
        for change in changes {
            match change {
                TopicChange::Created { topic, name } => {
                    let at = *topic as usize;
                    if self.topics.len() <= at {
                        self.topics.resize(at + 1, None);
                    }
                    let created = TopicView { name: Arc::clone(name), last_seq: 0, is_deleted: false };
                    self.topics[at].get_or_insert(created);
                }
                TopicChange::Deleted { topic } => {
                    if let Some(Some(topic)) = self.topics.get_mut(*topic as usize) {
                        topic.is_deleted = true;
                    }
                    self.tail.remove_topic(*topic);
                }
            }
        }
    }

    /// Starts a new segment and seals the old one at its length.
    pub(crate) fn roll(&mut self, old: Option<(Arc<Segment>, u64)>, next: Arc<Segment>) {
        let index = std::mem::take(&mut self.active_index);
        if let Some((old, length)) = old {
            old.seal(length);
            old.set_index(SegmentIndex::Memory(Arc::new(index)));
        }
        let mut segments = Vec::clone(&self.segments);
        segments.push(next);
        self.segments = Arc::new(segments);
    }

    /// A checkpoint of the present state, without the caller's state.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        let topics = self.topics.iter().enumerate().filter_map(|(id, topic)| {
            let topic = topic.as_ref().filter(|topic| !topic.is_deleted)?;
            Some(TopicRow { id: id as u32, name: topic.name.to_string(), last_seq: topic.last_seq })
        });
        Checkpoint {
            mark: self.mark,
            last_server_id: self.last_server_id,
            last_commit_ms: self.last_commit_ms,
            next_topic: self.topics.len().max(1) as u32,
            topics: topics.collect(),
            state: Vec::new(),
        }
    }
}
