//! The states of dead letters: open, redriven or discarded. Only closed letters are recorded, as state records of the engine; a
//! letter without a record is open. A closing is durable before its caller gets the result.

use super::groups::act::GroupRuntime;
use super::groups::{Tried, with_room};
use super::registry::Registry;
use crate::backend::{ClosedCount, DeadLetterStates};
use crate::commit_watch::CommitWatch;
use crate::deferred_wakes::DeferredWakes;
use crate::engine::{AppendBatch, ClosedLetters, Engine, LetterClosing, StateRecord, TopicId};
use crate::error::{ReadError, StoreError, TopicAdminError};
use crate::event_id::event_id_of;
use crate::metrics::DeadLetterFigures;
use parking_lot::Mutex;
use prombus_protocol::{Topic, Uuid};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;

/// The closed letters of all dead-letter topics.
pub(super) struct LetterStates {
    engine: Arc<dyn Engine>,
    registry: Arc<Registry>,
    runtime: Arc<GroupRuntime>,
    commits: Arc<CommitWatch>,
    closed: Mutex<BTreeMap<TopicId, ClosedLetters>>,
}

impl LetterStates {
    /// `stored`: the closed letters that the engine had when it was opened.
    pub(super) fn new(
        engine: Arc<dyn Engine>,
        registry: Arc<Registry>,
        runtime: Arc<GroupRuntime>,
        commits: Arc<CommitWatch>,
        stored: Vec<(TopicId, ClosedLetters)>,
    ) -> Self {
        Self { engine, registry, runtime, commits, closed: Mutex::new(stored.into_iter().collect()) }
    }

    /// Forgets the letters of a topic that was deleted.
    pub(super) fn forget(&self, topic: TopicId) {
        self.closed.lock().remove(&topic);
    }

    /// The seqs of a topic that may be stored: from the first that retention left, to the newest.
    fn stored_seqs(&self, topic: TopicId) -> (u64, u64) {
        (self.engine.retained_from(topic).max(1), self.engine.last_seq(topic))
    }

    /// The states of the letters of a topic; `None` if it does not exist or is not a dead-letter topic.
    pub(super) fn of(&self, topic: &Topic) -> Option<DeadLetterStates> {
        let id = self.registry.topic_id(topic).filter(|_| topic.is_dead_letter())?;
        let (first_seq, last_seq) = self.stored_seqs(id);
        let letters = self.closed.lock().get(&id).cloned().unwrap_or_default();
        Some(DeadLetterStates {
            topic: topic.clone(),
            first_seq,
            last_seq,
            open: letters.open_in(first_seq, last_seq),
            redriven: letters.ranges(LetterClosing::Redriven, first_seq, last_seq),
            discarded: letters.ranges(LetterClosing::Discarded, first_seq, last_seq),
        })
    }

    /// The id for a new letter of an event whose first letter has the id `id`. A closed letter stays closed, so if it was redriven or
    /// discarded, the new letter has another id. A retry after a crash finds the same id.
    pub(super) async fn next_id(&self, topic: &Topic, mut id: Uuid) -> Result<Uuid, ReadError> {
        while let Some(seq) = self.closed_seq(topic, id).await? {
            id = Uuid::new_v5(&id, &seq.to_be_bytes());
        }
        Ok(id)
    }

    /// The seq of a letter, if it is closed or was removed by retention.
    async fn closed_seq(&self, topic: &Topic, letter: Uuid) -> Result<Option<u64>, ReadError> {
        let Some(id) = self.registry.topic_id(topic) else { return Ok(None) };
        let retained_from = self.engine.retained_from(id);
        if retained_from <= 1 && !self.closed.lock().contains_key(&id) {
            return Ok(None);
        }
        let seq = match self.engine.find(id, event_id_of(letter)).await {
            Err(ReadError::UnknownTopic(_)) => None,
            found => found?,
        };
        let closed = self.closed.lock();
        let is_closed = |seq| closed.get(&id).is_some_and(|letters| letters.closing(seq).is_some());
        Ok(seq.filter(|&seq| seq < retained_from || is_closed(seq)))
    }

    /// The number of open letters of each of these topics that is a dead-letter topic.
    pub(super) fn figures<'a>(
        &self,
        topics: impl Iterator<Item = (TopicId, &'a Topic)>,
    ) -> Vec<DeadLetterFigures> {
        let closed = self.closed.lock();
        let none = ClosedLetters::default();
        let letters = topics.filter(|(_, topic)| topic.is_dead_letter()).map(|(id, topic)| {
            let (first_seq, last_seq) = self.stored_seqs(id);
            let open = closed.get(&id).unwrap_or(&none).open_in(first_seq, last_seq);
            DeadLetterFigures { topic: topic.clone(), open }
        });
        letters.collect()
    }

    /// Closes the letters with these ids. Resolves when that is durable.
    pub(super) async fn close(
        &self,
        topic: &Topic,
        ids: &[Uuid],
        closing: LetterClosing,
    ) -> Result<ClosedCount, TopicAdminError> {
        self.commits.check_open()?;
        let unknown = || TopicAdminError::UnknownTopic(topic.to_string());
        let id = self.registry.topic_id(topic).filter(|_| topic.is_dead_letter()).ok_or_else(unknown)?;
        let (mut seqs, mut count) = (Vec::new(), ClosedCount::default());
        for &letter in ids {
            match self.engine.find(id, event_id_of(letter)).await {
                Ok(Some(seq)) => seqs.push(seq),
                Ok(None) => count.unknown += 1,
                Err(ReadError::UnknownTopic(_)) => return Err(unknown()),
                Err(ReadError::Unavailable(reason)) => return Err(reason.into()),
                Err(error) => return Err(TopicAdminError::Store(error.to_string())),
            }
        }
        let seqs = ranges_of(seqs);
        if seqs.is_empty() {
            return Ok(count);
        }
        let records = [StateRecord::LettersClosed { topic: id, closing, seqs: seqs.clone() }];
        let commit = with_room(&self.commits, || {
            let _deferred = DeferredWakes::enter();
            // While this lock is held, the topic cannot be deleted.
            let _creation = self.registry.creation();
            if self.registry.topic_id(topic) != Some(id) {
                return Err(unknown());
            }
            // Locked during the append, so that the states in memory are always those of the records.
            let mut closed = self.closed.lock();
            match self.engine.append(&AppendBatch::of_records(&records), &mut Vec::new()) {
                Ok(appended) => {
                    let letters = closed.entry(id).or_default();
                    letters.forget_below(self.engine.retained_from(id));
                    let close = |&(first, last): &(u64, u64)| letters.close(closing, first, last);
                    count.closed = seqs.iter().map(close).sum();
                    Ok(Tried::Done(appended.commit))
                }
                Err(StoreError::Busy) => Ok(Tried::Busy),
                Err(error) => Err(TopicAdminError::from(error)),
            }
        });
        let commit = commit.await?;
        self.runtime.records.appended(commit);
        poll_fn(|context| self.commits.poll_durable(commit, context)).await?;
        Ok(count)
    }
}

/// The seqs as ranges: in order and disjoint.
fn ranges_of(mut seqs: Vec<u64>) -> Vec<(u64, u64)> {
    seqs.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for seq in seqs {
        match ranges.last_mut() {
            Some((_, last)) if seq <= *last + 1 => *last = seq,
            _ => ranges.push((seq, seq)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::ranges_of;

    #[test]
    fn seqs_become_disjoint_ranges() {
        assert_eq!(ranges_of(vec![9, 1, 2, 2, 3, 7]), [(1, 3), (7, 7), (9, 9)]);
        assert_eq!(ranges_of(Vec::new()), []);
    }
}
