//! Changes the settings of single topics, and deletes topics.

use super::Local;
use super::groups::{Tried, with_room};
use super::registry::TopicRefused;
use crate::deferred_wakes::DeferredWakes;
use crate::engine::{AppendBatch, StateRecord};
use crate::error::{GroupError, StoreError, TopicAdminError};
use crate::settings::TopicOptions;
use prombus_protocol::{Pattern, Topic};
use std::future::poll_fn;

impl Local {
    /// Replaces the settings of a topic, which is created if it does not exist. Returns whether it was created.
    pub(super) async fn set_topic(
        &self,
        topic: &Topic,
        options: TopicOptions,
    ) -> Result<bool, TopicAdminError> {
        self.commits.check_open()?;
        options.check()?;
        options.check_for(topic.as_str())?;
        let json =
            serde_json::to_string(&options).map_err(|error| TopicAdminError::Store(error.to_string()))?;
        let settings = if options.is_empty() { String::new() } else { json };
        let records = [StateRecord::TopicSet { topic: topic.to_string(), settings }];
        let mut is_new = false;
        let commit = with_room(&self.commits, || {
            let _deferred = DeferredWakes::enter();
            // While this lock is held, the topic cannot be deleted. If it were deleted before the settings are stored, a later
            // topic of the same name would get them.
            let creation = self.registry.creation();
            if self.registry.topic_id(topic).is_none() {
                match self.registry.ensure_topic(topic, &creation) {
                    Ok(_) => is_new = true,
                    Err(TopicRefused::TooMany(limit)) => return Err(TopicAdminError::TooManyTopics(limit)),
                    Err(TopicRefused::Engine(StoreError::Busy)) => return Ok(Tried::Busy),
                    Err(TopicRefused::Engine(error)) => return Err(error.into()),
                }
            }
            // Locked during the append, so that the settings in memory are always those of the last record.
            let mut table = self.settings.lock();
            match self.engine.append(&AppendBatch::of_records(&records), &mut Vec::new()) {
                Ok(appended) => {
                    table.set_own(topic.as_str(), options.clone());
                    Ok(Tried::Done(appended.commit))
                }
                Err(StoreError::Busy) => Ok(Tried::Busy),
                Err(error) => Err(TopicAdminError::from(error)),
            }
        });
        let commit = commit.await?;
        self.runtime.records.appended(commit);
        self.settings.changed();
        self.maintenance.schedule.wake();
        poll_fn(|context| self.commits.poll_durable(commit, context)).await?;
        Ok(is_new)
    }

    /// Deletes a topic and the groups that read only this topic. Resolves when that is durable.
    pub(super) async fn delete_topic(&self, topic: &Topic) -> Result<(), TopicAdminError> {
        self.commits.check_open()?;
        let commit = with_room(&self.commits, || self.try_delete_topic(topic)).await?;
        self.runtime.records.appended(commit);
        self.maintenance.schedule.clean_soon();
        poll_fn(|context| self.commits.poll_durable(commit, context)).await?;
        Ok(())
    }

    fn try_delete_topic(&self, topic: &Topic) -> Result<Tried<u64>, TopicAdminError> {
        let _deferred = DeferredWakes::enter();
        let creation = self.registry.creation();
        let Some(id) = self.registry.topic_id(topic) else {
            return Err(TopicAdminError::UnknownTopic(topic.to_string()));
        };
        let is_topic = |pattern: &Pattern| pattern.as_topic().as_ref() == Some(topic);
        for (cell, _) in self.registry.readers(id) {
            if !cell.patterns().all(is_topic) {
                continue;
            }
            match self.groups.try_delete_with(&cell, None, &creation) {
                Ok(Tried::Done(_)) | Err(GroupError::Deleted) => {}
                Ok(Tried::Busy) => return Ok(Tried::Busy),
                Err(GroupError::Unavailable(reason)) => return Err(reason.into()),
                Err(error) => return Err(TopicAdminError::Store(error.to_string())),
            }
        }
        // From here on publishers do not find the topic. A publisher that still uses its number is refused by the engine, and
        // then creates a new topic.
        let readers = self.registry.remove_topic(topic, &creation);
        match self.engine.delete_topic(id, topic) {
            Ok(commit) => {
                for (cell, source) in readers {
                    self.runtime.act(&cell, |core, _| {
                        core.drop_source(source);
                        cell.raise_epoch();
                    });
                    cell.waiters.wake_all();
                }
                self.settings.lock().set_own(topic.as_str(), TopicOptions::default());
                self.settings.changed();
                self.latest.forget(id);
                self.letters.forget(id);
                self.waiting_readers.wake_all();
                Ok(Tried::Done(commit))
            }
            Err(error) => {
                self.registry.restore_topic(topic, id, readers, &creation);
                match error {
                    StoreError::Busy => Ok(Tried::Busy),
                    other => Err(other.into()),
                }
            }
        }
    }
}
