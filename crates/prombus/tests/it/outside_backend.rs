//! A backend as another crate would implement it: it uses only public names to fill batches of deliveries, and passes the
//! conformance suite.

use prombus::delivery::{Leased, Millis, Position};
use prombus::engine::{LetterClosing, StoredEvent};
use prombus::{
    Backend, BackupError, BackupProgress, BoxFuture, Bus, BusPosition, Capabilities, ClosedCount,
    CursorPosition, DeadLetterStates, DeliveryBatch, DeliveryItem, DurableTicket, EventChunk, Figures,
    GroupError, GroupInfo, GroupSpec, Joined, LatestPage, LatestQuery, MemberOptions, Membership,
    MergedQuery, MergedReader, Pattern, Problem, PublishBatch, PublishRate, Publishing, PullLimit, ReadError,
    SeekPreview, SettleOutcome, Start, StoreError, Topic, TopicAdminError, TopicDetails, TopicInfo,
    TopicOptions, TopicRule, TopicSettings, Unavailable, UnreadableRange, Uuid, Verdict,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

/// Delegates everything to another backend.
pub struct Outside(Arc<dyn Backend>);

impl Outside {
    pub fn bus() -> Bus {
        Bus::with_backend(Arc::new(Self(Arc::clone(Bus::memory().backend()))))
    }
}

/// Pulls from another member, and copies the deliveries into its own batches.
struct OutsideMember {
    inner: Arc<dyn Membership>,
    pulled: Mutex<DeliveryBatch>,
}

impl Membership for OutsideMember {
    fn poll_pull(
        &self,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), GroupError>> {
        into.clear();
        let mut pulled = self.pulled.lock().expect("no panic");
        ready!(self.inner.poll_pull(limit, &mut pulled, context))?;
        let mut leases = Vec::new();
        let mut last_errors = Vec::new();
        for item in pulled.items() {
            let event = StoredEvent {
                seq: item.position.seq,
                id: item.id,
                ts: item.ts,
                commit_ms: 0,
                key: pulled.key(item).map(str::as_bytes),
                body: pulled.body(item),
                tombstone: false,
                client_id: false,
            };
            into.push(pulled.topic(item), item.position, &event);
            let &DeliveryItem { position, attempt, reason, .. } = item;
            leases.push(Leased { position, attempt, deadline: item.deadline(), reason });
            last_errors.extend(pulled.last_error(item).map(|error| (position, Arc::from(error))));
        }
        into.lease(&leases, last_errors, self.inner.now_ms(), pulled.epoch());
        Poll::Ready(Ok(()))
    }

    fn stop_waiting(&self) {
        self.inner.stop_waiting();
    }

    fn settle(
        &self,
        verdicts: &[(Position, Verdict<'_>)],
        outcomes: &mut Vec<SettleOutcome>,
    ) -> DurableTicket {
        self.inner.settle(verdicts, outcomes)
    }

    fn count_stale(&self) {
        self.inner.count_stale();
    }

    fn now_ms(&self) -> Millis {
        self.inner.now_ms()
    }

    fn is_live(&self, item: &DeliveryItem, batch: &DeliveryBatch) -> bool {
        self.inner.is_live(item, batch)
    }

    fn cursor(&self) -> BoxFuture<'_, Option<CursorPosition>> {
        self.inner.cursor()
    }

    fn pause(&self, is_paused: bool) {
        self.inner.pause(is_paused);
    }

    fn hold(&self, is_held: bool) {
        self.inner.hold(is_held);
    }

    fn take_over(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        self.inner.take_over()
    }

    fn leave(&self) -> DurableTicket {
        self.inner.leave()
    }

    fn lose(&self) {
        self.inner.lose();
    }
}

impl Backend for Outside {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn batch(&self) -> PublishBatch {
        self.0.batch()
    }

    fn health(&self) -> Result<(), Unavailable> {
        self.0.health()
    }

    fn is_storage_full(&self) -> bool {
        self.0.is_storage_full()
    }

    fn problems(&self) -> Vec<Problem> {
        self.0.problems()
    }

    fn unreadable(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        self.0.unreadable()
    }

    fn accept_losses(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        self.0.accept_losses()
    }

    fn topic(&self, name: &str) -> Option<Topic> {
        self.0.topic(name)
    }

    fn publish(&self, batch: PublishBatch) -> Publishing {
        Publishing::new(Box::pin(self.0.publish(batch)))
    }

    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>> {
        self.0.locate(topic, start)
    }

    fn read<'a>(
        &'a self,
        topic: &'a Topic,
        from: u64,
        limit: PullLimit,
    ) -> BoxFuture<'a, Result<EventChunk, ReadError>> {
        self.0.read(topic, from, limit)
    }

    fn merged(&self, query: MergedQuery) -> BoxFuture<'_, Result<Box<dyn MergedReader>, ReadError>> {
        self.0.merged(query)
    }

    fn place_of<'a>(
        &'a self,
        pattern: &'a Pattern,
        start: Start,
    ) -> BoxFuture<'a, Result<BusPosition, ReadError>> {
        self.0.place_of(pattern, start)
    }

    fn place_before(&self, topic: &Topic, next_seq: u64) -> BusPosition {
        self.0.place_before(topic, next_seq)
    }

    fn first_after<'a>(
        &'a self,
        topic: &'a Topic,
        place: BusPosition,
    ) -> BoxFuture<'a, Result<u64, ReadError>> {
        self.0.first_after(topic, place)
    }

    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>> {
        self.0.latest(topic, query)
    }

    fn arrival<'a>(&'a self, topic: &'a Topic, from: u64) -> BoxFuture<'a, Result<(), ReadError>> {
        self.0.arrival(topic, from)
    }

    fn arrival_or_deletion<'a>(
        &'a self,
        topic: &'a Topic,
        topic_number: u32,
        from: u64,
    ) -> BoxFuture<'a, Result<(), ReadError>> {
        self.0.arrival_or_deletion(topic, topic_number, from)
    }

    fn join(&self, group: GroupSpec, member: MemberOptions) -> BoxFuture<'_, Result<Joined, GroupError>> {
        Box::pin(async move {
            let Joined { membership, created } = self.0.join(group, member).await?;
            let member = OutsideMember { inner: membership, pulled: Mutex::default() };
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
        self.0.settle(subscription, group, id, verdict)
    }

    fn cursor<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<CursorPosition>, GroupError>> {
        self.0.cursor(subscription, group)
    }

    fn seek<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        to: Start,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        self.0.seek(subscription, group, to)
    }

    fn preview_seek<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        to: Start,
    ) -> BoxFuture<'a, Result<SeekPreview, GroupError>> {
        self.0.preview_seek(subscription, group, to)
    }

    fn pause_group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        is_paused: bool,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        self.0.pause_group(subscription, group, is_paused)
    }

    fn delete_group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        self.0.delete_group(subscription, group)
    }

    fn topic_names(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Topic> {
        self.0.topic_names(prefix, after, limit)
    }

    fn topics_by_name(&self, names: Vec<Topic>) -> BoxFuture<'_, Result<Vec<TopicDetails>, ReadError>> {
        self.0.topics_by_name(names)
    }

    fn group_names(&self, prefix: &str, after: Option<(&str, &str)>, limit: usize) -> Vec<(String, String)> {
        self.0.group_names(prefix, after, limit)
    }

    fn groups_by_name(
        &self,
        names: Vec<(String, String)>,
    ) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>> {
        self.0.groups_by_name(names)
    }

    fn topics(&self) -> BoxFuture<'_, Result<Vec<TopicInfo>, ReadError>> {
        self.0.topics()
    }

    fn topic_details<'a>(
        &'a self,
        topic: &'a Topic,
    ) -> BoxFuture<'a, Result<Option<TopicDetails>, ReadError>> {
        self.0.topic_details(topic)
    }

    fn topic_settings(&self, name: &str) -> TopicSettings {
        self.0.topic_settings(name)
    }

    fn set_topic_rules(&self, rules: Vec<TopicRule>) {
        self.0.set_topic_rules(rules);
    }

    fn settings_version(&self) -> u64 {
        self.0.settings_version()
    }

    fn publish_rates(&self) -> Vec<(Pattern, Option<PublishRate>)> {
        self.0.publish_rates()
    }

    fn set_topic<'a>(
        &'a self,
        topic: &'a Topic,
        options: TopicOptions,
    ) -> BoxFuture<'a, Result<bool, TopicAdminError>> {
        self.0.set_topic(topic, options)
    }

    fn delete_topic<'a>(&'a self, topic: &'a Topic) -> BoxFuture<'a, Result<(), TopicAdminError>> {
        self.0.delete_topic(topic)
    }

    fn dead_letters(&self, topic: &Topic) -> Option<DeadLetterStates> {
        self.0.dead_letters(topic)
    }

    fn close_dead_letters<'a>(
        &'a self,
        topic: &'a Topic,
        ids: &'a [Uuid],
        closing: LetterClosing,
    ) -> BoxFuture<'a, Result<ClosedCount, TopicAdminError>> {
        self.0.close_dead_letters(topic, ids, closing)
    }

    fn next_letter_id<'a>(&'a self, topic: &'a Topic, id: Uuid) -> BoxFuture<'a, Result<Uuid, ReadError>> {
        self.0.next_letter_id(topic, id)
    }

    fn kept(&self, name: &str) -> Option<Vec<u8>> {
        self.0.kept(name)
    }

    fn keep_first<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<Vec<u8>, StoreError>> {
        self.0.keep_first(name, value)
    }

    fn backup(&self, folder: PathBuf, progress: BackupProgress) -> BoxFuture<'_, Result<(), BackupError>> {
        self.0.backup(folder, progress)
    }

    fn groups(&self) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>> {
        self.0.groups()
    }

    fn group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<GroupInfo>, ReadError>> {
        self.0.group(subscription, group)
    }

    fn figures(&self) -> Figures {
        self.0.figures()
    }

    fn group_ages(&self) -> BoxFuture<'_, Vec<prombus::GroupAge>> {
        self.0.group_ages()
    }

    fn stored_bytes(&self) -> u64 {
        self.0.stored_bytes()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Unavailable>> {
        self.0.close()
    }
}

/// The default of [`Backend::wait_idle`] asks for the groups until they are idle.
#[tokio::test]
async fn a_backend_without_notifications_finds_out_that_a_group_is_idle() {
    use std::time::Duration;
    let bus = Outside::bus();
    let mut orders = bus.subscribe("orders", "billing").await.expect("it subscribes");
    bus.publish("orders", &1).await.expect("it publishes");
    let mut waiting = Box::pin(bus.wait_idle("billing"));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err());
    let order = orders.next().await.expect("the bus is open").expect("an event");
    drop(order.ack());
    let idle = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    idle.expect("in time").expect("the group exists");
    let unknown = bus.wait_idle_on("refunds", "billing").await.expect_err("no such group");
    assert!(matches!(unknown, GroupError::UnknownGroup { .. }), "{unknown}");
}
