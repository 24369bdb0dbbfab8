//! The thread that keeps the store in order: retention, cleaning, tombstones, snapshots of compacted topics. It takes its time
//! and holds nobody up; what it finds to do it finds out itself, round by round.

use super::age_samples::AgeSamples;
use super::tombstones::{OldTombstones, SweepBudget, TombstoneSweep};
use super::{Local, LocalBackend};
use crate::backend::{BoxFuture, LatestPage, LatestQuery};
use crate::delivery::Millis;
use crate::error::{ReadError, StoreError};
use crate::publish::{Line as _, PublishBatch, Publishing};
use crate::settings::TopicSettings;
use crate::state::{Source, snapshot_of};
use crate::store::{CleanOptions, EventHead, StoredTopic, TopicId};
use parking_lot::{Condvar, Mutex};
use prombus_protocol::{Start, Topic};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A round comes after this time at the latest.
const ROUND_MS: Millis = 5_000;
/// Two rounds are at least this far apart, so that waking it often costs little.
const REST_MS: Millis = 50;
/// What died in compacted topics is cleaned away after this time, also if it is not much.
const COMPACT_AFTER_MS: Millis = 60_000;
/// Maps of newest events that nobody asked for so long are forgotten.
const STATE_UNUSED_MS: Millis = 5 * 60_000;
/// So many topics are cut with one record.
const CUTS_MAX: usize = 250;
/// A new topic with snapshots is durable after this time, or its snapshots begin with the round that finds it.
const MADE_MAX_MS: Millis = 10_000;
/// Superseded events are cleaned this early if many of them are tombstones.
const COMPACT_TOMBSTONES_AFTER_MS: Millis = 15_000;
/// How many tombstones are many.
const TOMBSTONES_MANY: u64 = 1_000;

/// Wakes the thread, and remembers what rounds need to know of each other.
#[derive(Default)]
pub(super) struct Keeper {
    state: Mutex<Wishes>,
    changed: Condvar,
    wants_clean: AtomicBool,
    cleaned_events: AtomicU64,
    cleaned_bytes: AtomicU64,
    memory: Mutex<Memory>,
    /// Topics with snapshots that were made since the last round, and when.
    made: Mutex<Vec<(TopicId, Millis)>>,
}

#[derive(Default)]
struct Wishes {
    is_woken: bool,
    is_stopped: bool,
}

#[derive(Default)]
struct Memory {
    topics: HashMap<TopicId, TopicMemory>,
    compacted_at: Millis,
    /// The last cleaning did not come to its end; the next one begins then.
    clean_again_at: Option<Millis>,
    /// When a full disk is cleaned next, whatever the topics say.
    clean_full_at: Millis,
    /// It was said that the disk has no room for the records of retention.
    has_told_full: bool,
    /// Tombstones that went since the last compaction.
    tombstones_dropped: u64,
    /// Old tombstones are left that were not looked at: the next round begins soon.
    has_more_tombstones: bool,
}

#[derive(Default)]
struct TopicMemory {
    /// Its oldest event is kept until then, by the wall clock, at this setting.
    expires: Option<(u64, i64)>,
    /// Its newest seq when its bytes were looked at, at this setting.
    measured: Option<(u64, u64)>,
    /// When its next snapshot is due.
    snapshot_at: Option<Millis>,
    /// Up to which seq its snapshots say everything.
    snapshot_to: u64,
    /// How old its events are, for when their commit times do not tell.
    ages: AgeSamples,
    /// How far its old tombstones were looked at.
    tombstones: TombstoneSweep,
    /// What went wrong is said once.
    has_complained: bool,
}

impl Keeper {
    /// Has a round begin soon.
    pub(super) fn wake(&self) {
        self.state.lock().is_woken = true;
        self.changed.notify_all();
    }

    /// A topic with snapshots was made: its first one is due an interval from now, not from the next round.
    pub(super) fn made(&self, topic: TopicId, now: Millis) {
        self.made.lock().push((topic, now));
        self.wake();
    }

    /// Has a round begin soon that cleans.
    pub(super) fn clean_soon(&self) {
        self.wants_clean.store(true, Ordering::Release);
        self.wake();
    }

    /// What was deleted or cut off before the last restart may not be cleaned yet: the first round looks.
    pub(super) fn opened(&self) {
        self.wants_clean.store(true, Ordering::Release);
    }

    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Events and bytes that cleaning removed so far.
    pub(super) fn cleaned(&self) -> (u64, u64) {
        (self.cleaned_events.load(Ordering::Relaxed), self.cleaned_bytes.load(Ordering::Relaxed))
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// The thread's work, until stopped. It has no handle: whoever drops the last one closes the store, and with that ends what
    /// this does.
    pub(super) fn run(&self, local: &Weak<Local>) {
        loop {
            let Some(strong) = local.upgrade() else { return };
            // Whatever goes wrong in a round, retention goes on with the next.
            let wait = catch_unwind(AssertUnwindSafe(|| strong.keep_house())).unwrap_or_else(|_| {
                tracing::error!("a round of cleaning and snapshots panicked; this is a fault of prombus");
                ROUND_MS
            });
            drop(strong);
            let mut state = self.state.lock();
            if state.is_stopped {
                return;
            }
            self.changed.wait_for(&mut state, Duration::from_millis(REST_MS));
            while !state.is_stopped && !state.is_woken {
                let waited = self.changed.wait_for(&mut state, Duration::from_millis(wait.max(REST_MS)));
                if waited.timed_out() {
                    break;
                }
            }
            if state.is_stopped {
                return;
            }
            state.is_woken = false;
        }
    }
}

impl LocalBackend {
    /// One round of what a thread does otherwise: applies retention, cleans, takes snapshots. Answers when to come again. It
    /// may take long; not for a thread that others wait for.
    pub fn keep_house(&self) -> Millis {
        self.handle.local.keep_house()
    }
}

impl Local {
    fn keep_house(self: &Arc<Self>) -> Millis {
        let local = self;
        if local.is_closed() {
            return ROUND_MS;
        }
        let mut memory = local.keeper.memory.lock();
        local.store.probe_unreadable();
        let topics = local.topics_to_keep();
        let is_cut = local.apply_retention(&topics, &mut memory);
        let compacted: Vec<_> = topics.iter().filter(|(_, settings)| settings.compaction).collect();
        local.clean_if_due(&compacted, is_cut, &mut memory);
        let compacted_ids: HashSet<TopicId> = compacted.iter().map(|(topic, _)| topic.id).collect();
        let is_needed = |id| compacted_ids.contains(&id);
        let now = local.clock.steady_ms();
        local.states.forget_unused(now.saturating_sub(STATE_UNUSED_MS), is_needed);
        let next = self.take_snapshots(&compacted, &mut memory);
        let known: HashSet<TopicId> = topics.iter().map(|(topic, _)| topic.id).collect();
        memory.topics.retain(|id, _| known.contains(id));
        if memory.has_more_tombstones {
            return 0;
        }
        next.map_or(ROUND_MS, |at| at.saturating_sub(local.clock.steady_ms()).min(ROUND_MS))
    }

    /// Takes the snapshots that are due. Answers when the next one is.
    fn take_snapshots(
        self: &Arc<Self>,
        compacted: &[&(StoredTopic, TopicSettings)],
        memory: &mut Memory,
    ) -> Option<Millis> {
        let local = self;
        let mut next: Option<Millis> = None;
        let mut made: HashMap<TopicId, Millis> =
            std::mem::take(&mut *local.keeper.made.lock()).into_iter().collect();
        for (topic, settings) in compacted {
            let Some(snapshots) = &settings.snapshot_topic else { continue };
            if !settings.has_snapshots() || local.keeper.is_stopped() {
                continue;
            }
            let now = local.clock.steady_ms();
            let own = memory.topics.entry(topic.id).or_default();
            let since = made.remove(&topic.id).unwrap_or(now);
            let at = own.snapshot_at.get_or_insert(since.saturating_add(settings.snapshot_interval_ms));
            *at = (*at).min(now.saturating_add(settings.snapshot_interval_ms));
            if *at <= now {
                *at = now.saturating_add(settings.snapshot_interval_ms);
                let last_seq = local.store.last_seq(topic.id);
                match block_on(snapshot_of(self, &topic.name, snapshots)) {
                    Ok(_) => {
                        own.has_complained = false;
                        own.snapshot_to = last_seq;
                    }
                    Err(error) if !local.is_closed() => own.complain(&topic.name, "snapshot", &error),
                    Err(_) => {}
                }
            }
            let at = own.snapshot_at.unwrap_or(now);
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        // Those that are not durable yet are not in the list.
        let now = local.clock.steady_ms();
        made.retain(|_, since| now.saturating_sub(*since) < MADE_MAX_MS);
        if !made.is_empty() {
            local.keeper.made.lock().extend(made);
            next = Some(now);
        }
        next
    }
}

impl Source for Arc<Local> {
    fn has_topic(&self, name: &str) -> bool {
        self.topics.read().by_name.contains_key(name)
    }

    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>> {
        Box::pin(Local::latest(self, topic, query))
    }

    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>> {
        Box::pin(async move { self.locate_in(topic, start) })
    }

    fn batch(&self) -> PublishBatch {
        Local::batch(self)
    }

    fn publish(&self, batch: PublishBatch) -> Publishing {
        Arc::clone(self).enter(batch)
    }
}

impl TopicMemory {
    fn complain(&mut self, topic: &Topic, what: &str, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.has_complained, true) {
            tracing::error!("{what} of {topic}: {error}; it is tried again");
        }
    }
}

impl Local {
    /// The topics about which something is set that matters here.
    fn topics_to_keep(&self) -> Vec<(StoredTopic, TopicSettings)> {
        let settings = self.settings.read();
        if settings.is_empty() {
            return Vec::new();
        }
        let topics = self.store.topics().into_iter().map(|topic| {
            let settings = settings.settings(topic.name.as_str());
            (topic, settings)
        });
        let matters = |settings: &TopicSettings| {
            settings.compaction || settings.retention_ms.is_some() || settings.retention_bytes.is_some()
        };
        topics.filter(|(_, settings)| matters(settings)).collect()
    }

    /// Cuts off what retention takes. Answers whether that was anything.
    fn apply_retention(&self, topics: &[(StoredTopic, TopicSettings)], memory: &mut Memory) -> bool {
        let mut firsts = Vec::new();
        let now = self.clock.steady_ms();
        for (topic, settings) in topics {
            let own = memory.topics.entry(topic.id).or_default();
            let ages = settings.retention_ms.into_iter();
            let ages = ages.chain(settings.compaction.then_some(settings.tombstone_ms));
            if let (Some(shortest), Some(longest)) = (ages.clone().min(), ages.max()) {
                own.ages.note(now, self.store.last_seq(topic.id), shortest, longest);
            }
            match self.first_kept(topic.id, settings, own) {
                Ok(first) if first > self.store.cut_at(topic.id).max(1) => firsts.push((topic.id, first)),
                Ok(_) => {}
                Err(ReadError::UnknownTopic(_)) => {}
                Err(error) => own.complain(&topic.name, "retention", &error),
            }
        }
        if firsts.is_empty() {
            return false;
        }
        let mut is_cut = false;
        // In parts: a record of very many topics would not fit into a small segment.
        for part in firsts.chunks(CUTS_MAX) {
            match self.cut(part) {
                Ok(()) => {
                    is_cut = true;
                    memory.has_told_full = false;
                }
                Err(error) => {
                    // The next round tries again.
                    for (id, _) in part {
                        memory.topics.entry(*id).or_default().measured = None;
                    }
                    let is_full = matches!(error, StoreError::Full);
                    let is_told = is_full && std::mem::replace(&mut memory.has_told_full, true);
                    if !matches!(error, StoreError::Busy) && !is_told && !self.is_closed() {
                        tracing::error!("retention: {error}; it is tried again");
                    }
                }
            }
        }
        is_cut
    }

    /// The first seq of a topic that retention leaves; zero when it leaves all.
    fn first_kept(
        &self,
        id: TopicId,
        settings: &TopicSettings,
        memory: &mut TopicMemory,
    ) -> Result<u64, ReadError> {
        let mut first = 0;
        let now = self.clock.wall_ms();
        if let Some(retention_ms) = settings.retention_ms {
            let is_due = memory.expires.is_none_or(|(setting, at)| setting != retention_ms || at <= now);
            if is_due && let Some(oldest) = self.readable_head(id, 0)? {
                let expires = oldest.commit_ms.saturating_add_unsigned(retention_ms);
                memory.expires = Some((retention_ms, expires));
                if expires <= now {
                    let expired_ms = now.saturating_sub_unsigned(retention_ms);
                    first = self.first_committed_after(id, oldest.seq, expired_ms)?;
                    memory.expires = None;
                }
            }
            // Where the wall clock was set back, commit times are in its future and nothing would expire.
            let old_seq = memory.ages.seq_of_age(self.clock.steady_ms(), retention_ms);
            if old_seq > 0 && old_seq >= first && self.store.cut_at(id) <= old_seq {
                first = old_seq + 1;
                memory.expires = None;
            }
        }
        if let Some(retention_bytes) = settings.retention_bytes {
            let measured = (retention_bytes, self.store.last_seq(id));
            if memory.measured != Some(measured) {
                first = first.max(self.store.first_within_bytes(id, retention_bytes)?);
                memory.measured = Some(measured);
            }
        }
        Ok(first)
    }

    /// The first readable event at or after a seq. Commit times never fall, so unreadable events before it are not younger:
    /// retention may remove them without reading them.
    fn readable_head(&self, id: TopicId, seq: u64) -> Result<Option<EventHead>, ReadError> {
        let mut seq = seq;
        loop {
            match self.store.head_at_or_after(id, seq) {
                Err(ReadError::Unreadable { last_seq, .. }) => seq = last_seq + 1,
                head => return head,
            }
        }
    }

    /// The first seq whose event was committed after this time. Commit times never fall.
    fn first_committed_after(&self, id: TopicId, from: u64, ms: i64) -> Result<u64, ReadError> {
        let is_old = |seq| {
            let head = self.readable_head(id, seq)?;
            Ok::<_, ReadError>(head.filter(|head| head.commit_ms <= ms).map(|head| head.seq))
        };
        // Mostly little has expired since the last time: leaps that grow find the end of it.
        let (mut low, mut leap) = (from, 64);
        let end = self.store.last_seq(id) + 1;
        let mut high = end;
        while low + leap < end {
            match is_old(low + leap)? {
                Some(seq) => low = seq + 1,
                None => {
                    high = low + leap;
                    break;
                }
            }
            leap *= 4;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match is_old(middle)? {
                Some(seq) => low = seq + 1,
                None => high = middle,
            }
        }
        Ok(low)
    }

    fn clean_if_due(&self, compacted: &[&(StoredTopic, TopicSettings)], is_cut: bool, memory: &mut Memory) {
        let now = self.clock.steady_ms();
        let (mut live_bytes, mut dead_bytes) = (0, 0);
        let mut states = HashMap::new();
        let mut budget = SweepBudget::new(now);
        for (topic, settings) in compacted {
            let own = memory.topics.entry(topic.id).or_default();
            match self.state(topic.id, &topic.name) {
                Ok(state) => {
                    // What the snapshots have not heard of they would keep for ever.
                    let to_seq = if settings.has_snapshots() { own.snapshot_to } else { u64::MAX };
                    let old_seq = own.ages.seq_of_age(now, settings.tombstone_ms);
                    let by_ms = self.clock.wall_ms().saturating_sub_unsigned(settings.tombstone_ms);
                    let old = OldTombstones { topic: topic.id, by_ms, old_seq, to_seq };
                    memory.tombstones_dropped +=
                        self.drop_tombstones(&old, &state, &mut own.tombstones, &mut budget);
                    let state_now = state.lock();
                    live_bytes += state_now.map.live_bytes();
                    dead_bytes += state_now.map.dead_bytes();
                    drop(state_now);
                    states.insert(topic.id, state);
                }
                Err(ReadError::UnknownTopic(_) | ReadError::Unavailable(_)) => {}
                Err(error) => own.complain(&topic.name, "compaction", &error),
            }
        }
        let is_worth = dead_bytes >= live_bytes.max(self.store.worth_cleaning_bytes());
        memory.has_more_tombstones = budget.is_used_up();
        let are_many = memory.tombstones_dropped >= TOMBSTONES_MANY && !memory.has_more_tombstones;
        let compact_after_ms = if are_many { COMPACT_TOMBSTONES_AFTER_MS } else { COMPACT_AFTER_MS };
        let is_old = now.saturating_sub(memory.compacted_at) >= compact_after_ms;
        let compact = dead_bytes > 0 && (is_worth || is_old);
        let is_again = memory.clean_again_at.take_if(|at| *at <= now).is_some();
        // Segments that hold nothing but old group records are dead without any retention.
        let is_refused = self.flusher.is_refused();
        let is_full = (is_refused || self.store.is_full()) && now >= memory.clean_full_at;
        if is_full {
            memory.clean_full_at = now.saturating_add(if is_refused { ROUND_MS } else { COMPACT_AFTER_MS });
        }
        let is_wanted = self.keeper.wants_clean.swap(false, Ordering::AcqRel) || is_again || is_full;
        if !compact && !is_cut && !is_wanted {
            return;
        }
        let mut taken = Vec::new();
        if compact {
            memory.compacted_at = now;
            memory.tombstones_dropped = 0;
            let take = |state: &Arc<Mutex<super::states::TopicState>>| {
                let dead_bytes = state.lock().map.take_dead_bytes();
                (Arc::clone(state), dead_bytes)
            };
            taken.extend(states.values().map(take));
        }
        let mut options = CleanOptions::default();
        options.compact = compact;
        let cleaned = self.store.clean(&self.liveness(states), &options);
        if !matches!(&cleaned, Ok(report) if !report.was_full && !report.was_unreadable) {
            // What is dead still takes room, also if nothing dies any more.
            taken.iter().for_each(|(state, bytes)| state.lock().map.put_back_dead_bytes(*bytes));
            memory.clean_again_at = Some(now.saturating_add(COMPACT_AFTER_MS));
        }
        match cleaned {
            Ok(report) => {
                self.keeper.cleaned_events.fetch_add(report.events_removed, Ordering::Relaxed);
                self.keeper.cleaned_bytes.fetch_add(report.bytes_removed, Ordering::Relaxed);
                if report.events_removed > 0 {
                    if compact {
                        // Older events of a key may be gone with that, and nothing keeps its tombstone any more.
                        memory.topics.values_mut().for_each(|own| own.tombstones.restart());
                    }
                    tracing::debug!(?report, "cleaned");
                }
            }
            Err(error) if !self.is_closed() => tracing::error!("cleaning: {error}"),
            Err(_) => {}
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on a thread of its own.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}
