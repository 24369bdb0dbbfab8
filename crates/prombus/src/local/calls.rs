//! [`Backend`] for [`LocalBackend`]: each call to the part that does it.

use super::arrival::Arrival;
use super::merged::Merged;
use super::{LocalBackend, aside, groups};
use crate::backend::{
    Backend, BackupProgress, BoxFuture, Capabilities, EventChunk, GroupSpec, Joined, LatestPage, LatestQuery,
    MemberOptions, Problem, PullLimit, SettleOutcome, TopicDetails, UnreadableRange, Verdict,
};
use crate::delivery::{Position, SourceId};
use crate::error::{BackupError, GroupError, ReadError, StoreError, TopicAdminError, Unavailable};
use crate::info::{GroupInfo, TopicInfo};
use crate::merged::{BusPosition, MergedQuery, MergedReader};
use crate::metrics::Figures;
use crate::publish::{Line as _, PublishBatch, Publishing};
use crate::settings::{PublishRate, TopicOptions, TopicRule, TopicSettings};
use crate::store::Visit;
use prombus_protocol::{CursorPosition, Pattern, Start, Topic, Uuid};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Backend for LocalBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities { is_durable: self.handle.local.store.is_durable() }
    }

    fn batch(&self) -> PublishBatch {
        self.handle.local.batch()
    }

    fn health(&self) -> Result<(), Unavailable> {
        self.handle.local.check_open()?;
        self.handle.local.watch.unavailable().cloned().map_or(Ok(()), Err)
    }

    fn is_storage_full(&self) -> bool {
        self.handle.local.store.is_full() || self.handle.local.flusher.is_refused()
    }

    fn problems(&self) -> Vec<Problem> {
        let figures = self.handle.local.store.figures();
        let full = self.is_storage_full().then_some(Problem::StorageFull);
        full.into_iter().chain(figures.read_problem.map(Problem::Unreadable)).collect()
    }

    fn unreadable(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        let local = Arc::clone(&self.handle.local);
        Box::pin(aside(move || Ok(local.named_ranges(local.store.unreadable()))))
    }

    fn accept_losses(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        let local = Arc::clone(&self.handle.local);
        Box::pin(aside(move || {
            let accepted =
                local.store.accept_losses().map_err(|error| ReadError::Failed(error.to_string()))?;
            Ok(local.named_ranges(accepted))
        }))
    }

    fn topic(&self, name: &str) -> Option<Topic> {
        let topics = self.handle.local.topics.read();
        topics.by_name.get_key_value(name).map(|(topic, _)| topic.clone())
    }

    fn publish(&self, batch: PublishBatch) -> Publishing {
        Arc::clone(&self.handle.local).enter(batch)
    }

    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>> {
        Box::pin(async move { self.handle.local.locate_in(topic, start) })
    }

    fn read<'a>(
        &'a self,
        topic: &'a Topic,
        from: u64,
        limit: PullLimit,
    ) -> BoxFuture<'a, Result<EventChunk, ReadError>> {
        Box::pin(async move {
            let local = &self.handle.local;
            local.check_open()?;
            let id = local.topic_id(topic).ok_or_else(|| ReadError::UnknownTopic(topic.to_string()))?;
            let mut chunk = EventChunk { next_seq: from.max(1), ..EventChunk::default() };
            let last_seq = local.store.last_seq(id);
            let limit = PullLimit { events: limit.events.max(1), ..limit };
            let mut scanner = local.store.scanner();
            let mut is_full = false;
            while !is_full && chunk.next_seq <= last_seq {
                let events = &mut chunk.events;
                let scanned = scanner.scan(id, chunk.next_seq, last_seq, &mut |event| {
                    let is_over = events.byte_count() + event.body.len() > limit.bytes;
                    is_full =
                        events.items().len() >= limit.events as usize || (!events.is_empty() && is_over);
                    if is_full {
                        return Visit::Stop;
                    }
                    events.push(topic, Position { source: SourceId(0), seq: event.seq }, event);
                    Visit::Next
                });
                let scanned = match scanned {
                    // Events before the unreadable one are returned; the next read is an error.
                    Err(error) if error.is_unreadable() && chunk.next_seq > from.max(1) => break,
                    scanned => scanned?,
                };
                if scanned.next_seq <= chunk.next_seq {
                    break;
                }
                chunk.next_seq = scanned.next_seq;
            }
            Ok(chunk)
        })
    }

    fn merged(&self, query: MergedQuery) -> Result<Box<dyn MergedReader>, ReadError> {
        Ok(Box::new(Merged::new(Arc::clone(&self.handle.local), query)?))
    }

    fn place_of<'a>(
        &'a self,
        pattern: &'a Pattern,
        start: Start,
    ) -> BoxFuture<'a, Result<BusPosition, ReadError>> {
        let (local, pattern) = (Arc::clone(&self.handle.local), pattern.clone());
        Box::pin(aside(move || local.place_of(&pattern, start)))
    }

    fn place_before(&self, topic: &Topic, next_seq: u64) -> BusPosition {
        self.handle.local.place_before(topic, next_seq)
    }

    fn first_after<'a>(
        &'a self,
        topic: &'a Topic,
        place: BusPosition,
    ) -> BoxFuture<'a, Result<u64, ReadError>> {
        let (local, topic) = (Arc::clone(&self.handle.local), topic.clone());
        Box::pin(aside(move || {
            local.check_open()?;
            let id = local.topic_id(&topic).ok_or_else(|| ReadError::UnknownTopic(topic.to_string()))?;
            local.first_after(id, place)
        }))
    }

    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>> {
        Box::pin(self.handle.local.latest(topic, query))
    }

    fn arrival<'a>(&'a self, topic: &'a Topic, from: u64) -> BoxFuture<'a, Result<(), ReadError>> {
        Box::pin(Arrival::new(Arc::clone(&self.handle.local), topic.clone(), from))
    }

    fn join(&self, group: GroupSpec, member: MemberOptions) -> BoxFuture<'_, Result<Joined, GroupError>> {
        Box::pin(groups::join(Arc::clone(&self.handle), group, member))
    }

    fn settle<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        id: Uuid,
        verdict: Verdict<'a>,
    ) -> BoxFuture<'a, Result<SettleOutcome, GroupError>> {
        Box::pin(groups::settle_by_id(Arc::clone(&self.handle.local), subscription, group, id, verdict))
    }

    fn cursor<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<CursorPosition>, GroupError>> {
        Box::pin(async move {
            self.handle.local.check_open()?;
            self.handle.local.cursor(subscription, group)
        })
    }

    fn seek<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        to: Start,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        Box::pin(groups::seek(Arc::clone(&self.handle.local), subscription, group, to))
    }

    fn delete_group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        Box::pin(groups::delete(Arc::clone(&self.handle.local), subscription, group))
    }

    fn topic_names(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Topic> {
        let topics = self.handle.local.topics.read();
        topics.named(prefix, after).take(limit).map(|(name, _)| name.clone()).collect()
    }

    fn topics_by_name(&self, names: Vec<Topic>) -> BoxFuture<'_, Result<Vec<TopicDetails>, ReadError>> {
        Box::pin(async move {
            self.handle.local.check_open()?;
            let local = Arc::clone(&self.handle.local);
            aside(move || local.topics_by_name(&names)).await
        })
    }

    fn group_names(&self, prefix: &str, after: Option<(&str, &str)>, limit: usize) -> Vec<(String, String)> {
        self.handle.local.groups.read().names(prefix, after, limit)
    }

    fn groups_by_name(
        &self,
        names: Vec<(String, String)>,
    ) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>> {
        Box::pin(async move {
            self.handle.local.check_open()?;
            let local = Arc::clone(&self.handle.local);
            aside(move || local.groups_by_name(&names)).await
        })
    }

    fn topics(&self) -> BoxFuture<'_, Result<Vec<TopicInfo>, ReadError>> {
        Box::pin(async move {
            self.handle.local.check_open()?;
            let local = Arc::clone(&self.handle.local);
            aside(move || local.topic_infos()).await
        })
    }

    fn topic_details<'a>(
        &'a self,
        topic: &'a Topic,
    ) -> BoxFuture<'a, Result<Option<TopicDetails>, ReadError>> {
        Box::pin(async move {
            self.handle.local.check_open()?;
            let (local, topic) = (Arc::clone(&self.handle.local), topic.clone());
            aside(move || local.topic_details(&topic)).await
        })
    }

    fn topic_settings(&self, name: &str) -> TopicSettings {
        self.handle.local.settings.read().settings(name)
    }

    fn set_topic_rules(&self, rules: Vec<TopicRule>) {
        let local = &self.handle.local;
        local.settings.write().set_rules(rules);
        local.settings_version.fetch_add(1, Ordering::AcqRel);
        local.keeper.wake();
    }

    fn settings_version(&self) -> u64 {
        self.handle.local.settings_version.load(Ordering::Acquire)
    }

    fn publish_rates(&self) -> Vec<(Pattern, Option<PublishRate>)> {
        self.handle.local.settings.read().publish_rates()
    }

    fn set_topic<'a>(
        &'a self,
        topic: &'a Topic,
        options: TopicOptions,
    ) -> BoxFuture<'a, Result<bool, TopicAdminError>> {
        Box::pin(self.handle.local.set_topic(topic, options))
    }

    fn delete_topic<'a>(&'a self, topic: &'a Topic) -> BoxFuture<'a, Result<(), TopicAdminError>> {
        Box::pin(self.handle.local.delete_topic(topic))
    }

    fn kept(&self, name: &str) -> Option<Vec<u8>> {
        self.handle.local.kept.get(name)
    }

    fn keep_first<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<Vec<u8>, StoreError>> {
        Box::pin(self.handle.local.keep_first(name, value))
    }

    fn backup(&self, folder: PathBuf, progress: BackupProgress) -> BoxFuture<'_, Result<(), BackupError>> {
        let local = Arc::clone(&self.handle.local);
        Box::pin(async move {
            let mut progress = progress;
            let copied = tokio::task::spawn_blocking(move || local.store.backup(&folder, &mut *progress));
            copied.await.unwrap_or_else(|error| Err(BackupError::Failed(format!("it panicked: {error}"))))
        })
    }

    fn groups(&self) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>> {
        Box::pin(async move {
            self.handle.local.check_open()?;
            let local = Arc::clone(&self.handle.local);
            aside(move || local.group_infos()).await
        })
    }

    fn group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<GroupInfo>, ReadError>> {
        Box::pin(async move {
            self.handle.local.check_open()?;
            self.handle.local.group_of(subscription, group)
        })
    }

    fn figures(&self) -> Figures {
        self.handle.local.figures()
    }

    fn stored_bytes(&self) -> u64 {
        self.handle.local.store.figures().bytes
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Unavailable>> {
        let handle = Arc::clone(&self.handle);
        Box::pin(async move {
            // It waits for threads and for the disk.
            match tokio::task::spawn_blocking(move || handle.close()).await {
                Ok(closed) => closed,
                Err(error) => Err(Unavailable::Poisoned(format!("closing panicked: {error}"))),
            }
        })
    }
}
