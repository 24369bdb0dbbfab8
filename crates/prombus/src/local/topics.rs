//! What is done to whole topics: settings, lists, deletion.

use super::groups::{Tried, with_room};
use super::quiet::Quiet;
use super::{Local, TopicRefused};
use crate::backend::{TopicDetails, UnreadableRange};
use crate::delivery::SourceId;
use crate::error::{OpenError, ReadError, StoreError, TopicAdminError};
use crate::info::TopicInfo;
use crate::settings::TopicOptions;
use crate::store::{AppendBatch, StateRecord, StoredTopic, TopicId, TopicUsage, UnreadableEvents};
use prombus_protocol::{Pattern, Topic};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Local {
    /// Unreadable events, with the names of their topics.
    pub(super) fn named_ranges(&self, events: Vec<UnreadableEvents>) -> Vec<UnreadableRange> {
        let names: HashMap<TopicId, Topic> =
            self.store.topics().into_iter().map(|topic| (topic.id, topic.name)).collect();
        let named = events.into_iter().filter_map(|events| {
            let UnreadableEvents { topic, first_seq, last_seq, file, bytes, since_ms, error } = events;
            let topic = names.get(&topic)?.to_string();
            Some(UnreadableRange { topic, first_seq, last_seq, file, bytes, since_ms, error })
        });
        named.collect()
    }

    /// Takes up what was set about topics while the bus ran before.
    pub(super) fn restore_settings(&self) -> Result<(), OpenError> {
        let mut settings = self.settings.write();
        for (topic, json) in self.store.topic_settings() {
            let options: TopicOptions = serde_json::from_str(&json)
                .map_err(|error| OpenError::Groups(format!("the settings of {topic}: {error}")))?;
            settings.set_own(&topic, options);
        }
        Ok(())
    }

    pub(super) fn topic_infos(&self) -> Result<Vec<TopicInfo>, ReadError> {
        let usage = self.store.usage()?;
        let usage: HashMap<TopicId, TopicUsage> = usage.into_iter().map(|it| (it.topic, it)).collect();
        let topics = self.store.topics().into_iter();
        let infos = topics.map(|topic| self.topic_info(&topic, usage.get(&topic.id)));
        // One that was deleted since the list was made is not in it.
        let infos = infos.filter(|info| !matches!(info, Err(ReadError::UnknownTopic(_))));
        let mut infos: Vec<TopicInfo> = infos.collect::<Result<_, _>>()?;
        infos.sort_unstable_by(|one, other| one.topic.cmp(&other.topic));
        Ok(infos)
    }

    /// The topics of these names that are there.
    pub(super) fn topics_by_name(&self, names: &[Topic]) -> Result<Vec<TopicDetails>, ReadError> {
        let stored: Vec<StoredTopic> = {
            let known = self.topics.read();
            let stored = names.iter().filter_map(|name| {
                let id = *known.by_name.get(name)?;
                Some(StoredTopic { id, name: name.clone(), last_seq: 0 })
            });
            stored.collect()
        };
        let ids: Vec<TopicId> = stored.iter().map(|topic| topic.id).collect();
        let mut all = Vec::with_capacity(stored.len());
        for (topic, usage) in stored.iter().zip(self.store.usage_of(&ids)?) {
            // One that is not durable yet is not there.
            let Some(usage) = usage else { continue };
            let info = match self.topic_info(topic, Some(&usage)) {
                Err(ReadError::UnknownTopic(_)) => continue,
                info => info?,
            };
            let settings = self.settings.read();
            let name = topic.name.as_str();
            all.push(TopicDetails { info, settings: settings.settings(name), own: settings.own(name) });
        }
        Ok(all)
    }

    fn topic_info(&self, topic: &StoredTopic, usage: Option<&TopicUsage>) -> Result<TopicInfo, ReadError> {
        let first_seq = self.store.first_seq(topic.id)?;
        let last_seq = self.store.last_seq(topic.id);
        let most = first_seq.map_or(0, |first| (last_seq + 1).saturating_sub(first));
        Ok(TopicInfo {
            topic: topic.name.clone(),
            first_seq,
            last_seq,
            groups: self.topics.read().readers.get(&topic.id).map_or(0, Vec::len),
            // What is below the cut still takes room, but is not there for anyone.
            events: usage.map_or(0, |usage| usage.events.min(most)),
            bytes: usage.map_or(0, |usage| usage.bytes),
        })
    }

    pub(super) fn topic_details(&self, topic: &Topic) -> Result<Option<TopicDetails>, ReadError> {
        Ok(self.topics_by_name(std::slice::from_ref(topic))?.pop())
    }

    /// Sets something about a topic, which is made if it does not exist. Answers whether it was made.
    pub(super) async fn set_topic(
        &self,
        topic: &Topic,
        options: TopicOptions,
    ) -> Result<bool, TopicAdminError> {
        self.check_open()?;
        options.check()?;
        options.check_for(topic.as_str())?;
        let json =
            serde_json::to_string(&options).map_err(|error| TopicAdminError::Store(error.to_string()))?;
        let settings = if options.is_empty() { String::new() } else { json };
        let record = StateRecord::TopicSet { topic: topic.to_string(), settings };
        let mut is_new = false;
        let batch = with_room(self, || {
            let _quiet = Quiet::enter();
            // The topic is not deleted meanwhile: the next one of its name would have what is set here.
            let registry = self.registry.lock();
            if self.topic_id(topic).is_none() {
                match self.ensure_topic_locked(topic, Some(self.limits.max_topics), &registry) {
                    Ok(_) => is_new = true,
                    Err(TopicRefused::TooMany(limit)) => return Err(TopicAdminError::TooManyTopics(limit)),
                    Err(TopicRefused::Store(StoreError::Busy)) => return Ok(Tried::Busy),
                    Err(TopicRefused::Store(error)) => return Err(error.into()),
                }
            }
            // One after the other, so that what counts now is what the log says last.
            let mut table = self.settings.write();
            let batch =
                AppendBatch { records: std::slice::from_ref(&record), use_reserve: true, events: &[] };
            match self.store.append(&batch, &mut Vec::new()) {
                Ok(batch) => {
                    table.set_own(topic.as_str(), options.clone());
                    Ok(Tried::Done(batch))
                }
                Err(StoreError::Busy) => Ok(Tried::Busy),
                Err(error) => Err(TopicAdminError::from(error)),
            }
        });
        let batch = batch.await?;
        self.flusher.appended(batch);
        self.settings_version.fetch_add(1, Ordering::AcqRel);
        self.keeper.wake();
        poll_fn(|context| self.watch.poll_durable(batch, context)).await?;
        Ok(is_new)
    }

    /// Deletes a topic and the groups that read nothing else.
    pub(super) async fn delete_topic(&self, topic: &Topic) -> Result<(), TopicAdminError> {
        self.check_open()?;
        let batch = with_room(self, || self.try_delete_topic(topic)).await?;
        self.flusher.appended(batch);
        self.keeper.clean_soon();
        poll_fn(|context| self.watch.poll_durable(batch, context)).await?;
        Ok(())
    }

    fn try_delete_topic(&self, topic: &Topic) -> Result<Tried<u64>, TopicAdminError> {
        let _quiet = Quiet::enter();
        // No topic or group is made meanwhile.
        let registry = self.registry.lock();
        let Some(id) = self.topic_id(topic) else {
            return Err(TopicAdminError::UnknownTopic(topic.to_string()));
        };
        let readers = self.topics.read().readers.get(&id).cloned().unwrap_or_default();
        let is_topic = |pattern: &Pattern| pattern.as_topic().as_ref() == Some(topic);
        for cell in readers
            .iter()
            .map(|(cell, _)| cell)
            .filter(|cell| is_topic(&cell.spec.subscription) && cell.spec.topics.iter().all(is_topic))
        {
            match self.try_delete_locked(cell, None, &registry) {
                Ok(Tried::Done(_)) | Err(crate::error::GroupError::Deleted) => {}
                Ok(Tried::Busy) => return Ok(Tried::Busy),
                Err(crate::error::GroupError::Unavailable(reason)) => return Err(reason.into()),
                Err(error) => return Err(TopicAdminError::Store(error.to_string())),
            }
        }
        // Publishers that still know its number are refused by the store, and make a new topic when this is over.
        let readers = self.topics.write().remove(topic);
        match self.store.delete_topic(id, topic) {
            Ok(batch) => {
                for (cell, source) in readers {
                    let mut core = cell.core.lock();
                    core.drop_source(source);
                    cell.epoch_rises();
                    drop(core);
                    cell.wake_all();
                }
                self.settings.write().set_own(topic.as_str(), TopicOptions::default());
                self.settings_version.fetch_add(1, Ordering::AcqRel);
                self.states.forget(id);
                self.arrivals.wake_all();
                Ok(Tried::Done(batch))
            }
            Err(error) => {
                self.topics.write().add(topic.clone(), id, readers);
                match error {
                    StoreError::Busy => Ok(Tried::Busy),
                    other => Err(other.into()),
                }
            }
        }
    }

    /// Has topics begin at these seqs, for readers and for groups.
    pub(super) fn cut(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError> {
        let _quiet = Quiet::enter();
        self.store.cut(firsts)?;
        for &(topic, first_seq) in firsts {
            self.states.cut(topic, first_seq);
            let readers = self.topics.read().readers.get(&topic).cloned().unwrap_or_default();
            for (cell, source) in readers {
                self.cut_group(&cell, source, first_seq);
            }
        }
        Ok(())
    }

    /// A group behind the cut goes on at the oldest kept event.
    pub(super) fn cut_group(&self, cell: &Arc<super::GroupCell>, source: SourceId, first_seq: u64) {
        let mut core = cell.core.lock();
        cell.grant_noticed(&mut core);
        let missed = core.machine.cut(source, first_seq);
        let topic = core.topics[source.0 as usize].name.clone();
        // Once: a group that stays behind would be told with every cut.
        let is_first = missed > 0 && core.told_missed.insert(source);
        let aftermath = self.write_down(cell, &mut core);
        drop(core);
        self.follow_up(cell, aftermath);
        if is_first {
            tracing::warn!(
                "group {} on {topic}: retention took {missed} events before it had them; it goes on at seq \
                 {first_seq}. More of this is counted in events_missed_total and not logged",
                cell.spec.group
            );
        }
    }
}
