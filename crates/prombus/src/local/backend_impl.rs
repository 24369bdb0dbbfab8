//! Implements [`Backend`] for [`LocalBackend`]: forwards each call to the part that handles it.

use super::Local;
use super::arrival::Arrival;
use super::lifecycle::LocalBackend;
use super::member::LocalMember;
use super::merged::reader::LocalMergedReader;
use crate::backend::{
    Backend, BackupProgress, BoxFuture, Capabilities, ClosedCount, DeadLetterStates, EventChunk, GroupSpec,
    Joined, LatestPage, LatestQuery, MemberOptions, Problem, PullLimit, SeekPreview, SettleOutcome,
    TopicDetails, UnreadableRange, Verdict,
};
use crate::engine::{LetterClosing, MayBlock, TopicId, off_async_threads};
use crate::error::{BackupError, GroupError, ReadError, StoreError, TopicAdminError, Unavailable};
use crate::info::{GroupInfo, TopicInfo};
use crate::merged::{BusPosition, MergedQuery, MergedReader};
use crate::metrics::{Figures, GroupAge, TopicFigures};
use crate::publish::PublishBatch;
use crate::publishing::{PublishLine as _, Publishing};
use crate::settings::{PublishRate, TopicOptions, TopicRule, TopicSettings};
use prombus_protocol::{CursorPosition, Pattern, Start, Topic, Uuid};
use std::path::PathBuf;
use std::sync::Arc;

impl Backend for LocalBackend {
    fn capabilities(&self) -> Capabilities {
        let engine = self.handle.local.engine.capabilities();
        Capabilities { is_durable: engine.is_durable, can_backup: engine.has_local_files }
    }

    fn batch(&self) -> PublishBatch {
        self.handle.local.publishing.batch()
    }

    fn health(&self) -> Result<(), Unavailable> {
        let commits = &self.handle.local.commits;
        commits.check_open()?;
        commits.unavailable().cloned().or_else(|| commits.suspended()).map_or(Ok(()), Err)?;
        // A leader that is idle notices only by its leasing gate that it is cut off from the store.
        self.handle.local.groups.check_leasing()
    }

    fn is_storage_full(&self) -> bool {
        self.handle.local.engine.is_full() || self.handle.local.runtime.records.is_refused()
    }

    fn problems(&self) -> Vec<Problem> {
        let figures = self.handle.local.engine.figures();
        let full = self.is_storage_full().then_some(Problem::StorageFull);
        full.into_iter().chain(figures.read_problem.map(Problem::Unreadable)).collect()
    }

    fn unreadable(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        let local = Arc::clone(&self.handle.local);
        Box::pin(off_async_threads(move |may_block| {
            let unreadable = local.engine.local_files().map(|files| files.unreadable(may_block));
            Ok(local.lists.named_ranges(unreadable.unwrap_or_default()))
        }))
    }

    fn accept_losses(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        let local = Arc::clone(&self.handle.local);
        Box::pin(off_async_threads(move |may_block| {
            let Some(files) = local.engine.local_files() else { return Ok(Vec::new()) };
            let accepted =
                files.accept_losses(may_block).map_err(|error| ReadError::Failed(error.to_string()))?;
            Ok(local.lists.named_ranges(accepted))
        }))
    }

    fn topic(&self, name: &str) -> Option<Topic> {
        self.handle.local.registry.topics(|topics| topics.topic(name))
    }

    fn publish(&self, batch: PublishBatch) -> Publishing {
        Arc::clone(&self.handle.local.publishing).enter(batch)
    }

    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>> {
        Box::pin(self.handle.local.reading.locate(topic, start))
    }

    fn read<'a>(
        &'a self,
        topic: &'a Topic,
        from: u64,
        limit: PullLimit,
    ) -> BoxFuture<'a, Result<EventChunk, ReadError>> {
        Box::pin(self.handle.local.reading.read(topic, from, limit))
    }

    fn merged(&self, query: MergedQuery) -> BoxFuture<'_, Result<Box<dyn MergedReader>, ReadError>> {
        let reading = Arc::clone(&self.handle.local.reading);
        // Opening the reader lists the topics, and there may be many.
        Box::pin(off_async_threads(move |_may_block| {
            Ok(Box::new(LocalMergedReader::new(reading, query)?) as Box<dyn MergedReader>)
        }))
    }

    fn place_of<'a>(
        &'a self,
        pattern: &'a Pattern,
        start: Start,
    ) -> BoxFuture<'a, Result<BusPosition, ReadError>> {
        Box::pin(self.handle.local.reading.place_of(pattern, start))
    }

    fn place_before(&self, topic: &Topic, next_seq: u64) -> BusPosition {
        self.handle.local.reading.place_before(topic, next_seq)
    }

    fn first_after<'a>(
        &'a self,
        topic: &'a Topic,
        place: BusPosition,
    ) -> BoxFuture<'a, Result<u64, ReadError>> {
        Box::pin(self.handle.local.reading.first_after(topic, place))
    }

    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>> {
        let local = &self.handle.local;
        Box::pin(async move { local.latest.latest(local.reading.topic_id(topic)?, topic, query).await })
    }

    fn arrival<'a>(&'a self, topic: &'a Topic, from: u64) -> BoxFuture<'a, Result<(), ReadError>> {
        Box::pin(Arrival::new(Arc::clone(&self.handle.local.reading), topic.clone(), from))
    }

    fn arrival_or_deletion<'a>(
        &'a self,
        topic: &'a Topic,
        topic_number: u32,
        from: u64,
    ) -> BoxFuture<'a, Result<(), ReadError>> {
        let reading = Arc::clone(&self.handle.local.reading);
        Box::pin(Arrival::new(reading, topic.clone(), from).or_deletion(TopicId::from_number(topic_number)))
    }

    fn join(&self, group: GroupSpec, member: MemberOptions) -> BoxFuture<'_, Result<Joined, GroupError>> {
        Box::pin(async move {
            let groups = Arc::clone(&self.handle.local.groups);
            let (cell, id, created) = groups.join(&group, &member).await?;
            let bus = Arc::clone(&self.handle) as Arc<_>;
            let member = LocalMember::new(bus, groups, cell, id, member.settings, member.filter);
            Ok(Joined { membership: Arc::new(member), created })
        })
    }

    fn settle<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        id: Uuid,
        verdict: Verdict<'a>,
    ) -> BoxFuture<'a, Result<SettleOutcome, GroupError>> {
        Box::pin(self.handle.local.groups.settle_by_id(subscription, group, id, verdict))
    }

    fn cursor<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<CursorPosition>, GroupError>> {
        Box::pin(async move {
            self.handle.local.commits.check_open()?;
            self.handle.local.groups.cursor(subscription, group).await
        })
    }

    fn seek<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        to: Start,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        Box::pin(self.handle.local.groups.seek(subscription, group, to))
    }

    fn wait_idle<'a>(
        &'a self,
        subscription: Option<&'a str>,
        group: &'a str,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        Box::pin(self.handle.local.groups.wait_idle(subscription, group))
    }

    fn preview_seek<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        to: Start,
    ) -> BoxFuture<'a, Result<SeekPreview, GroupError>> {
        Box::pin(self.handle.local.groups.preview_seek(subscription, group, to))
    }

    fn pause_group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        is_paused: bool,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        Box::pin(self.handle.local.groups.pause(subscription, group, is_paused))
    }

    fn delete_group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        Box::pin(self.handle.local.groups.delete(subscription, group))
    }

    fn topic_names(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Topic> {
        let registry = &self.handle.local.registry;
        registry
            .topics(|topics| topics.named(prefix, after).take(limit).map(|(name, _)| name.clone()).collect())
    }

    fn topics_by_name(&self, names: Vec<Topic>) -> BoxFuture<'_, Result<Vec<TopicDetails>, ReadError>> {
        self.list(move |local, may_block| local.lists.by_name(&names, may_block))
    }

    fn group_names(&self, prefix: &str, after: Option<(&str, &str)>, limit: usize) -> Vec<(String, String)> {
        self.handle.local.registry.groups(|groups| groups.names(prefix, after, limit))
    }

    fn groups_by_name(
        &self,
        names: Vec<(String, String)>,
    ) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>> {
        self.list(move |local, may_block| local.groups.infos_by_name(&names, may_block))
    }

    fn topics(&self) -> BoxFuture<'_, Result<Vec<TopicInfo>, ReadError>> {
        self.list(|local, may_block| local.lists.all(may_block))
    }

    fn topic_details<'a>(
        &'a self,
        topic: &'a Topic,
    ) -> BoxFuture<'a, Result<Option<TopicDetails>, ReadError>> {
        let names = vec![topic.clone()];
        self.list(move |local, may_block| Ok(local.lists.by_name(&names, may_block)?.pop()))
    }

    fn topic_settings(&self, name: &str) -> TopicSettings {
        self.handle.local.settings.of(name)
    }

    fn set_topic_rules(&self, rules: Vec<TopicRule>) {
        self.handle.local.settings.set_rules(rules);
        self.handle.local.maintenance.schedule.wake();
    }

    fn settings_version(&self) -> u64 {
        self.handle.local.settings.version()
    }

    fn publish_rates(&self) -> Vec<(Pattern, Option<PublishRate>)> {
        self.handle.local.settings.publish_rates()
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

    fn dead_letters(&self, topic: &Topic) -> Option<DeadLetterStates> {
        self.handle.local.letters.of(topic)
    }

    fn close_dead_letters<'a>(
        &'a self,
        topic: &'a Topic,
        ids: &'a [Uuid],
        closing: LetterClosing,
    ) -> BoxFuture<'a, Result<ClosedCount, TopicAdminError>> {
        Box::pin(self.handle.local.letters.close(topic, ids, closing))
    }

    fn next_letter_id<'a>(&'a self, topic: &'a Topic, id: Uuid) -> BoxFuture<'a, Result<Uuid, ReadError>> {
        Box::pin(self.handle.local.letters.next_id(topic, id))
    }

    fn kept(&self, name: &str) -> Option<Vec<u8>> {
        self.handle.local.kept.get(name)
    }

    fn keep_first<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<Vec<u8>, StoreError>> {
        let local = &self.handle.local;
        Box::pin(local.kept.keep_first(name, value, &*local.engine, &local.runtime, &local.commits))
    }

    fn backup(&self, folder: PathBuf, progress: BackupProgress) -> BoxFuture<'_, Result<(), BackupError>> {
        let local = Arc::clone(&self.handle.local);
        Box::pin(off_async_threads(move |may_block| {
            let mut progress = progress;
            let Some(files) = local.engine.local_files() else {
                let hint = local.engine.backup_hint();
                return Err(hint.map_or(BackupError::NotDurable, BackupError::Elsewhere));
            };
            files.backup(&folder, &mut *progress, may_block)
        }))
    }

    fn groups(&self) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>> {
        self.list(|local, may_block| local.groups.infos(may_block))
    }

    fn group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<GroupInfo>, ReadError>> {
        let (subscription, group) = (subscription.to_owned(), group.to_owned());
        self.list(move |local, may_block| local.groups.info_of(&subscription, &group, may_block))
    }

    fn figures(&self) -> Figures {
        let local = &self.handle.local;
        let mut topics = local.engine.topics();
        topics.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let letters = topics.iter().map(|it| (it.id, &it.name));
        let dead_letters = local.letters.figures(letters);
        let topics = topics.into_iter().map(|it| TopicFigures { topic: it.name, published: it.last_seq });
        let (cleaned_events, cleaned_bytes) = local.maintenance.cleaned();
        Figures {
            store: local.engine.figures(),
            topics: topics.collect(),
            groups: local.groups.figures(),
            dead_letters,
            cleaned_events,
            cleaned_bytes,
            state_memory_bytes: local.latest.memory_bytes() as u64,
        }
    }

    fn group_ages(&self) -> BoxFuture<'_, Vec<GroupAge>> {
        let ages = self.list(|local, may_block| Ok(local.groups.ages(may_block)));
        // Without a store that can be read, no age is known.
        Box::pin(async { ages.await.unwrap_or_default() })
    }

    fn stored_bytes(&self) -> u64 {
        self.handle.local.engine.figures().bytes
    }

    fn stopped(&self) -> BoxFuture<'_, Unavailable> {
        Box::pin(self.handle.local.commits.stopped())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Unavailable>> {
        let handle = Arc::clone(&self.handle);
        Box::pin(async move {
            // Closing waits for threads and for the disk.
            let close = move || handle.close(MayBlock::on_this_thread());
            match tokio::task::spawn_blocking(close).await {
                Ok(closed) => closed,
                Err(error) => Err(Unavailable::Poisoned(format!("closing panicked: {error}"))),
            }
        })
    }
}

impl LocalBackend {
    /// Runs `make`, which produces a list and may read a lot, on a thread that may be blocked.
    fn list<T: Send + 'static>(
        &self,
        make: impl FnOnce(&Local, MayBlock) -> Result<T, ReadError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, ReadError>> {
        let local = Arc::clone(&self.handle.local);
        Box::pin(async move {
            local.commits.check_open()?;
            off_async_threads(move |may_block| make(&local, may_block)).await
        })
    }
}
