//! What is done to whole groups: making, finding again after a restart, moving, deleting, describing.

use super::cell::{GroupCell, GroupTopic};
use super::member::{LocalMember, Records};
use super::quiet::Quiet;
use super::{Handle, Local, TopicRefused};
use crate::backend::{
    DurableTicket, GroupSpec, Joined, MemberOptions, SettleOutcome, Verdict, event_id_of, uuid_of,
};
use crate::delivery::{MARK_AHEAD, MemberId, Millis, Position, Restored, Sender, SourceId, State};
use crate::error::{GroupError, OpenError, ReadError, StoreError, Unavailable};
use crate::info::{
    GroupInfo, GroupTopicInfo, LEASES_LISTED_MAX, LeaseInfo, MEMBERS_LISTED_MAX, MemberInfo, OldestUnacked,
};
use crate::metrics::{Figures, GroupFigures, TopicFigures};
use crate::store::{EventHead, EventId, GroupProgress, GroupState, Scanner, StateRecord, TopicId, Visit};
use prombus_protocol::{CursorPosition, Filter, GroupName, Pattern, Start, Topic, Uuid};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl From<TopicRefused> for GroupError {
    fn from(refused: TopicRefused) -> Self {
        match refused {
            TopicRefused::TooMany(limit) => Self::TooManyTopics(limit),
            TopicRefused::Store(error) => error.into(),
        }
    }
}

/// A try that has to be repeated when there is room.
pub(super) enum Tried<T> {
    Done(T),
    Busy,
}

fn busy_or<T>(error: impl Into<TopicRefused>) -> Result<Tried<T>, GroupError> {
    match error.into() {
        TopicRefused::Store(StoreError::Busy) => Ok(Tried::Busy),
        other => Err(other.into()),
    }
}

impl From<StoreError> for TopicRefused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Does something that the store may have no room for at first.
pub(super) async fn with_room<T, E>(
    local: &Local,
    mut attempt: impl FnMut() -> Result<Tried<T>, E>,
) -> Result<T, E> {
    poll_fn(|context| {
        if let Tried::Done(done) = attempt()? {
            return std::task::Poll::Ready(Ok(done));
        }
        // Asked to be woken first, tried again then: room that comes in between is not missed.
        local.watch.register_for_room(context);
        match attempt()? {
            Tried::Done(done) => std::task::Poll::Ready(Ok(done)),
            Tried::Busy => std::task::Poll::Pending,
        }
    })
    .await
}

pub(super) async fn join(
    handle: Arc<Handle>,
    spec: GroupSpec,
    options: MemberOptions,
) -> Result<Joined, GroupError> {
    let local = Arc::clone(&handle.local);
    let (cell, id, created) = loop {
        let (cell, created) = with_room(&local, || local.find_or_make(&spec)).await?;
        // Also whoever joins a group that another has just made gets its OK only when that is durable.
        poll_fn(|context| local.watch.poll_durable(cell.made_in, context)).await?;
        let mut core = cell.core.lock();
        if local.is_closed() {
            return Err(Unavailable::Closed.into());
        }
        let id = core.machine.join(options.settings);
        // The lease marks ride on the next commit.
        local.queue_changes(&cell, &mut core);
        core.labels.extend(options.label.clone().map(|label| (id, label)));
        core.names.extend(options.name.clone().map(|name| (id, name)));
        cell.deserted_at.store(u64::MAX, Ordering::Release);
        drop(core);
        if !cell.is_deleted.load(Ordering::Acquire) {
            break (cell, id, created);
        }
        // It was deleted in between, because it had no members for too long or somebody asked for it.
    };
    let member = LocalMember::new(handle, cell, id, options.settings, options.filter);
    Ok(Joined { membership: Arc::new(member), created })
}

impl Local {
    fn find(&self, subscription: &str, group: &str) -> Result<Arc<GroupCell>, GroupError> {
        self.groups.read().get(subscription, group).ok_or_else(|| GroupError::UnknownGroup {
            topic: subscription.to_owned(),
            group: group.to_owned(),
        })
    }

    fn find_or_make(&self, spec: &GroupSpec) -> Result<Tried<(Arc<GroupCell>, bool)>, GroupError> {
        if self.is_closed() {
            return Err(Unavailable::Closed.into());
        }
        let _quiet = Quiet::enter();
        let mut registry = self.registry.lock();
        if let Ok(cell) = self.find(spec.subscription.as_str(), spec.group.as_str()) {
            check_conflict(&cell.spec, spec)?;
            return Ok(Tried::Done((cell, false)));
        }
        spec.group.check_new()?;
        if self.groups.read().len() >= self.limits.max_groups {
            return Err(GroupError::TooManyGroups(self.limits.max_groups));
        }
        if let Start::AfterId(_) = spec.from {
            // Before a topic is made: an event that is not there is in none of the new ones either.
            let ids: Vec<TopicId> = self.topics_of(spec).iter().map(|&(id, _)| id).collect();
            self.floor_for(&ids, spec.from)?;
        }
        for topic in patterns(spec).filter_map(Pattern::as_topic) {
            let made = self.ensure_topic_locked(&topic, Some(self.limits.max_topics), &registry);
            if let Err(refused) = made {
                return busy_or(refused);
            }
        }
        let topics = self.topics_of(spec);
        let ids: Vec<TopicId> = topics.iter().map(|&(id, _)| id).collect();
        let floors = self.floor_for(&ids, spec.from)?;
        let made_ms = self.clock.wall_ms();
        let record = StateRecord::Made {
            group: *registry,
            subscription: spec.subscription.as_str().to_owned(),
            name: spec.group.as_str().to_owned(),
            topics: spec.topics.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
            filter: filter_text(spec.filter.as_ref()),
            made_ms,
            expire_ms: spec.expire_ms,
            starts: ids.iter().copied().zip(floors.iter().copied()).collect(),
        };
        // The first lease mark is in the same commit, so that the first pull does not wait for another one.
        let records = [record, mark_record(*registry, &ids, &floors)];
        let batch = crate::store::AppendBatch { records: &records, use_reserve: true, ..Default::default() };
        let made_in = match self.store.append(&batch, &mut Vec::new()) {
            Ok(batch) => batch,
            Err(error) => return busy_or(error),
        };
        self.flusher.appended(made_in);
        let cell = Arc::new(GroupCell::new(*registry, spec.clone(), made_ms, made_in, &self.error_budget));
        *registry += 1;
        let restored = floors.into_iter().map(|floor| Restored {
            settled: crate::delivery::Settled::up_to(floor),
            leased_to: first_mark(floor),
            ..Restored::default()
        });
        self.add_group(&cell, &topics, restored);
        // The client that makes it may disconnect before it has joined.
        self.deserted(&cell, self.clock.steady_ms().saturating_add(JOIN_MS));
        Ok(Tried::Done((cell, true)))
    }

    /// All topics that a group reads.
    fn topics_of(&self, spec: &GroupSpec) -> Vec<(TopicId, Topic)> {
        let known = self.topics.read();
        let mut topics: Vec<(TopicId, Topic)> = Vec::new();
        for pattern in patterns(spec) {
            // The part before the first wildcard; "a.**" matches "a" too.
            let text = pattern.as_str();
            let literal = text.split('*').next().unwrap_or(text).trim_end_matches('.');
            let wanted = known.named(literal, None).filter(|(name, _)| pattern.matches(name.as_str()));
            match pattern.as_topic() {
                Some(topic) => topics.extend(known.by_name.get(&topic).map(|&id| (id, topic.clone()))),
                None => topics.extend(wanted.map(|(name, id)| (id, name.clone()))),
            }
        }
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    fn add_group(
        &self,
        cell: &Arc<GroupCell>,
        topics: &[(TopicId, Topic)],
        restored: impl Iterator<Item = Restored>,
    ) {
        let sources: Vec<SourceId> = topics
            .iter()
            .zip(restored)
            .map(|((id, name), restored)| cell.add_topic(*id, name, restored))
            .collect();
        let mut table = self.topics.write();
        for ((id, _), &source) in topics.iter().zip(&sources) {
            table.readers.entry(*id).or_default().push((Arc::clone(cell), source));
        }
        drop(table);
        // From here on commits are noticed; what was durable before is told now.
        for ((id, _), source) in topics.iter().zip(sources) {
            let (called, _) = cell.notice(source, self.store.last_seq(*id));
            debug_assert!(called.is_none(), "a group that is just made has no members");
        }
        self.groups.write().insert(cell);
    }

    /// Takes up topics and groups as the store has them.
    pub(super) fn restore(&self) -> Result<(), OpenError> {
        let mut registry = self.registry.lock();
        let mut topics = self.topics.write();
        for topic in self.store.topics() {
            topics.add(topic.name, topic.id, Vec::new());
        }
        drop(topics);
        let (steady, wall) = (self.clock.steady_ms(), self.clock.wall_ms());
        for mut state in self.store.groups() {
            *registry = (*registry).max(state.number + 1);
            let spec = spec_of(&state).map_err(OpenError::Groups)?;
            let cell = Arc::new(GroupCell::new(state.number, spec, state.made_ms, 0, &self.error_budget));
            let topics = self.topics_of(&cell.spec);
            let restored = topics.iter().map(|(id, _)| {
                let progress = state.progress.remove(id).unwrap_or_default();
                let attempts = progress.attempts.into_iter().map(|(seq, it)| {
                    let wait = it.not_before_ms.saturating_sub(wall).clamp(0, NOT_BEFORE_MAX_MS);
                    (seq, (it.attempts, steady + wait as u64, it.reason))
                });
                Restored {
                    settled: progress.settled,
                    attempts: attempts.collect(),
                    leased_to: progress.leased_to,
                    // Events that are published after the restart were not delivered before it.
                    restarted_to: progress.leased_to.min(self.store.last_seq(*id)),
                }
            });
            let restored: Vec<Restored> = restored.collect();
            self.add_group(&cell, &topics, restored.into_iter());
            // What retention took before the last restart.
            for (source, id) in cell.sources() {
                self.cut_group(&cell, source, self.store.cut_at(id));
            }
            self.deserted(&cell, steady);
        }
        Ok(())
    }

    /// How long a group may be without members: what its creator said, or what holds for all.
    fn expires_after(&self, cell: &GroupCell) -> Option<Millis> {
        cell.spec.expire_ms.or(self.limits.group_expire_ms)
    }

    /// A group has no members from now on. If it stays like that for too long it is deleted.
    pub(super) fn deserted(&self, cell: &Arc<GroupCell>, now: Millis) {
        if let Some(after) = self.expires_after(cell) {
            cell.deserted_at.store(now, Ordering::Release);
            self.timer.arm(cell, now.saturating_add(after));
        }
    }

    /// Deletes a group that had no members for too long. Answers whether it is gone.
    pub(super) fn expire(&self, cell: &Arc<GroupCell>, now: Millis) -> bool {
        let Some(after) = self.expires_after(cell) else { return false };
        let deserted_at = cell.deserted_at.load(Ordering::Acquire);
        let due = deserted_at.saturating_add(after);
        if due > now {
            if due < u64::MAX {
                self.timer.arm(cell, due);
            }
            return false;
        }
        match self.try_delete(cell, Some(deserted_at)) {
            Ok(Tried::Done(_)) => {
                let GroupSpec { subscription, group, .. } = &cell.spec;
                tracing::info!("group {group} on {}: deleted, it had no members", subscription.as_str());
                true
            }
            // No room now, or somebody has just come.
            Ok(Tried::Busy) | Err(_) => {
                let is_gone = cell.is_deleted.load(Ordering::Acquire);
                if !is_gone {
                    self.timer.arm(cell, now + EXPIRE_RETRY_MS);
                }
                is_gone
            }
        }
    }

    /// Behind which seq a group that starts there begins, by topic.
    pub(super) fn floor_for(&self, topics: &[TopicId], start: Start) -> Result<Vec<u64>, ReadError> {
        // What was cut off is behind every start.
        let cut = |topic: TopicId| self.store.cut_at(topic).saturating_sub(1);
        let at_ts = |topic: TopicId, ts: i64| {
            let first = self.store.first_at_or_after(topic, ts)?;
            Ok(first.map_or_else(|| self.store.last_seq(topic), |seq| seq - 1))
        };
        match start {
            Start::Earliest => Ok(topics.iter().map(|&topic| cut(topic)).collect()),
            // Also what is not durable yet but was published before.
            Start::Latest => Ok(topics.iter().map(|&topic| self.store.appended_seq(topic)).collect()),
            Start::Ts(ts) => topics.iter().map(|&topic| at_ts(topic, ts)).collect(),
            Start::AfterId(id) => {
                // A gap where it could have been counts only if it is in none of the topics.
                let mut found = None;
                for (at, &topic) in topics.iter().enumerate() {
                    if let Some(seq) = self.store.find(topic, event_id_of(id))? {
                        found = Some((at, seq));
                        break;
                    }
                }
                for (at, &topic) in topics.iter().enumerate() {
                    if found.is_none() {
                        found = self.gap_of(topic, event_id_of(id))?.map(|seq| (at, seq));
                    }
                }
                let Some((at, seq)) = found else { return Err(ReadError::UnknownId(id)) };
                let mut scanner = self.store.scanner();
                let ts = event_at(&mut *scanner, topics[at], seq)?.map(|(_, ts, _)| ts);
                let floor = |(other, &topic): (usize, &TopicId)| match ts {
                    _ if other == at => Ok(seq.max(cut(topic))),
                    // Its other topics start where the event's time is.
                    Some(ts) => at_ts(topic, ts),
                    None => Ok(cut(topic)),
                };
                topics.iter().enumerate().map(floor).collect()
            }
        }
    }

    /// The seq of the last event before one that was cleaned away: there is a gap where it was.
    fn gap_of(&self, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError> {
        if !self.store.is_own_id(id) {
            return Ok(None);
        }
        let last_seq = self.store.last_seq(topic);
        let first = self.store.first_seq(topic)?.unwrap_or(last_seq + 1);
        // Ids that the store made rise with the seqs: everything below `low` is not behind the event, from `high` on all is.
        let (mut low, mut high) = (first, last_seq + 1);
        let mut looks = HEADS_MAX;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.own_head(topic, middle, high, &mut looks)? {
                Some(head) if head.id <= id => low = head.seq + 1,
                _ if looks == 0 => return Ok(None),
                _ => high = middle,
            }
        }
        let is_there = (low == first && first > 1) || self.has_gap(topic, low, last_seq)?;
        Ok(is_there.then_some(low - 1))
    }

    /// Whether a seq is missing between this place and the next event whose id the store made.
    fn has_gap(&self, topic: TopicId, from: u64, last_seq: u64) -> Result<bool, ReadError> {
        let end = from.saturating_add(GAP_SEARCH_MAX);
        for seq in from..end {
            match self.store.head_at_or_after(topic, seq)? {
                None => return Ok(seq <= last_seq),
                Some(head) if head.seq > seq => return Ok(true),
                Some(head) if !head.is_client_id => return Ok(false),
                Some(_) => {}
            }
        }
        Ok(true)
    }

    /// The first event in a range whose id the store made, with so many looks at most.
    fn own_head(
        &self,
        topic: TopicId,
        from: u64,
        end: u64,
        looks: &mut u32,
    ) -> Result<Option<EventHead>, ReadError> {
        let mut from = from;
        while let Some(left) = looks.checked_sub(1)
            && let Some(head) = self.store.head_at_or_after(topic, from)?.filter(|head| head.seq < end)
        {
            *looks = left;
            if !head.is_client_id {
                return Ok(Some(head));
            }
            from = head.seq + 1;
        }
        Ok(None)
    }

    pub(super) fn cursor(
        &self,
        subscription: &str,
        group: &str,
    ) -> Result<Option<CursorPosition>, GroupError> {
        let Ok(cell) = self.find(subscription, group) else { return Ok(None) };
        let mut cursor = CursorPosition { topic: subscription.to_owned(), last_id: None, last_ts: None };
        let mut newest = None;
        let mut scanner = self.store.scanner();
        for (topic, floor) in cell.floors() {
            if floor == 0 {
                continue;
            }
            // With several topics: the one that the group got to last.
            if let Some((id, ts, commit_ms)) = known_event_at(&mut *scanner, topic, floor)?
                && newest.is_none_or(|newest| commit_ms >= newest)
            {
                newest = Some(commit_ms);
                cursor.last_id = Some(id);
                cursor.last_ts = Some(ts);
            }
        }
        Ok(Some(cursor))
    }

    pub(super) fn group_infos(&self) -> Result<Vec<GroupInfo>, ReadError> {
        let mut cells = self.groups.read().all();
        cells.sort_unstable_by_key(|cell| cell.number);
        cells.iter().map(|cell| self.group_info(cell, LEASES_LISTED_MAX)).collect()
    }

    /// The groups of these names that are there, without their leases.
    pub(super) fn groups_by_name(&self, names: &[(String, String)]) -> Result<Vec<GroupInfo>, ReadError> {
        let cells: Vec<_> = {
            let groups = self.groups.read();
            names.iter().filter_map(|(topic, group)| groups.get(topic, group)).collect()
        };
        cells.iter().map(|cell| self.group_info(cell, 0)).collect()
    }

    pub(super) fn group_of(&self, subscription: &str, group: &str) -> Result<Option<GroupInfo>, ReadError> {
        let cell = self.groups.read().get(subscription, group);
        cell.map(|cell| self.group_info(&cell, LEASES_LISTED_MAX)).transpose()
    }

    pub(super) fn figures(&self) -> Figures {
        let mut topics: Vec<_> = self.store.topics();
        topics.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let topics = topics.into_iter().map(|it| TopicFigures { topic: it.name, published: it.last_seq });
        let mut cells = self.groups.read().all();
        cells.sort_unstable_by_key(|cell| cell.number);
        let groups = cells.iter().map(|cell| self.group_figures(cell));
        let (cleaned_events, cleaned_bytes) = self.keeper.cleaned();
        Figures {
            store: self.store.figures(),
            topics: topics.collect(),
            groups: groups.collect(),
            cleaned_events,
            cleaned_bytes,
            state_memory_bytes: self.states.memory_bytes() as u64,
        }
    }

    fn group_figures(&self, cell: &GroupCell) -> GroupFigures {
        let core = cell.core.lock();
        let lags = core.live_topics().map(|(source, topic)| {
            let status = core.machine.status(source);
            let above = self.store.last_seq(topic.id).saturating_sub(status.floor);
            above.saturating_sub(status.settled_above)
        });
        let outside = core.labels.keys().filter_map(|&id| core.machine.member_status(id));
        GroupFigures {
            topic: cell.spec.subscription.as_str().to_owned(),
            group: cell.spec.group.as_str().to_owned(),
            counters: core.machine.counters(),
            lag: lags.sum(),
            in_flight: core.machine.counts().leased,
            in_flight_outside: outside.map(|(in_flight, _)| in_flight as usize).sum(),
            members: core.machine.member_count(),
            by_name: in_flight_by_name(&core),
        }
    }

    fn group_info(&self, cell: &Arc<GroupCell>, leases_max: usize) -> Result<GroupInfo, ReadError> {
        let now = self.clock.steady_ms();
        let mut core = cell.core.lock();
        // Also what was kept from before a restart and nobody has asked for yet.
        cell.grant_noticed(&mut core);
        core.machine.advance(now);
        let aftermath = self.write_down(cell, &mut core);
        let mut topics = Vec::new();
        let mut oldest = Vec::new();
        for (source, GroupTopic { id, name, .. }) in core.live_topics() {
            let status = core.machine.status(source);
            let last_seq = self.store.last_seq(*id).max(status.floor);
            let lag = last_seq - status.floor - status.settled_above.min(last_seq - status.floor);
            if lag > 0 {
                oldest.push((*id, name.clone(), status.floor + 1));
            }
            topics.push(GroupTopicInfo {
                topic: name.clone(),
                floor: status.floor,
                settled_above: status.settled_above,
                last_seq,
                lag,
            });
        }
        let counts = core.machine.counts();
        let mut leased: Vec<_> = Vec::new();
        if leases_max > 0 {
            let all = core.machine.unsettled().filter(|(_, it)| it.state == State::Leased);
            leased.extend(all.map(|(position, it)| (position, *it)));
            leased.sort_unstable_by_key(|&(position, _)| position);
            leased.truncate(leases_max);
        }
        let names = core.topics.clone();
        let mut info = GroupInfo {
            topic: cell.spec.subscription.as_str().to_owned(),
            group: cell.spec.group.as_str().to_owned(),
            made_ms: cell.made_ms,
            expire_ms: cell.spec.expire_ms,
            members: core.machine.member_count(),
            member_list: member_list(&core),
            lag: topics.iter().map(|topic| topic.lag).sum(),
            in_flight: counts.leased,
            waiting: counts.waiting,
            oldest_unacked: None,
            counters: core.machine.counters(),
            topics,
            leases: Vec::with_capacity(leased.len()),
        };
        drop(core);
        self.follow_up(cell, aftermath);

        let mut scanner = self.store.scanner();
        for (position, it) in leased {
            let GroupTopic { id, name: topic, .. } = &names[position.source.0 as usize];
            let event = known_event_at(&mut *scanner, *id, position.seq)?;
            info.leases.push(LeaseInfo {
                topic: topic.clone(),
                seq: position.seq,
                id: event.map_or(Uuid::nil(), |(id, ..)| id),
                member: it.holder.0,
                attempt: it.attempts,
                age_ms: now.saturating_sub(it.leased_at),
                ends_in_ms: it.at.saturating_sub(now),
            });
        }
        let wall = self.clock.wall_ms();
        for (id, topic, seq) in oldest {
            let Some((event, ts, commit_ms)) = known_event_at(&mut *scanner, id, seq)? else { continue };
            let age_ms = u64::try_from(wall.saturating_sub(commit_ms)).unwrap_or(0);
            if info.oldest_unacked.as_ref().is_none_or(|known| age_ms > known.age_ms) {
                info.oldest_unacked = Some(OldestUnacked { topic, seq, id: event, ts, age_ms });
            }
        }
        Ok(info)
    }
}

/// A gap is looked for in so many events that publishers gave their ids.
const GAP_SEARCH_MAX: u64 = 1_000;
/// So many events are looked at to find the place of one that is gone. Only where nearly all ids are the publishers' own are
/// there more, and everybody who makes a topic or a group waits meanwhile.
const HEADS_MAX: u32 = 10_000;
/// How long the maker of a group has to join it.
const JOIN_MS: Millis = 60_000;
/// A group that could not be deleted is looked at again after this time.
const EXPIRE_RETRY_MS: Millis = 1_000;
/// A wait that was written down is not longer than the longest that can be asked for, whatever the clock says now.
const NOT_BEFORE_MAX_MS: i64 = 3_600_000;

impl GroupCell {
    fn sources(&self) -> Vec<(SourceId, TopicId)> {
        self.core.lock().live_topics().map(|(source, topic)| (source, topic.id)).collect()
    }

    fn floors(&self) -> Vec<(TopicId, u64)> {
        let core = self.core.lock();
        core.live_topics().map(|(source, topic)| (topic.id, core.machine.status(source).floor)).collect()
    }
}

/// What the members of one name have, of all names.
fn in_flight_by_name(core: &super::Core) -> BTreeMap<String, usize> {
    let mut by_name = BTreeMap::new();
    for (&id, name) in &core.names {
        let Some((in_flight, _)) = core.machine.member_status(id) else { continue };
        match by_name.get_mut(name) {
            Some(sum) => *sum += in_flight as usize,
            None => drop(by_name.insert(name.clone(), in_flight as usize)),
        }
    }
    by_name
}

fn member_list(core: &super::Core) -> Vec<MemberInfo> {
    let mut members: Vec<_> = core.machine.members().collect();
    members.sort_unstable();
    members.truncate(MEMBERS_LISTED_MAX);
    let infos = members.into_iter().filter_map(|id| {
        let (in_flight, is_paused) = core.machine.member_status(id)?;
        let place = core.labels.get(&id).map_or("in process", String::as_str);
        let name = core.names.get(&id).cloned();
        let label = name.as_ref().map_or_else(|| place.to_owned(), |name| format!("{name} ({place})"));
        Some(MemberInfo { number: id.0, name, label, in_flight: in_flight as usize, is_paused })
    });
    infos.collect()
}

/// Id, ts and commit time of an event.
fn event_at(
    scanner: &mut dyn Scanner,
    topic: TopicId,
    seq: u64,
) -> Result<Option<(Uuid, i64, i64)>, ReadError> {
    let mut found = None;
    let scanned = scanner.scan(topic, seq, seq, &mut |event| {
        found = Some((uuid_of(event.id), event.ts, event.commit_ms));
        Visit::Next
    });
    match scanned {
        // Deleted since the caller looked: its events are gone like any others.
        Ok(_) | Err(ReadError::UnknownTopic(_)) => Ok(found),
        Err(error) => Err(error),
    }
}

/// Like [`event_at`], but `None` for an unreadable event: lists for operators must work while the disk fails.
fn known_event_at(
    scanner: &mut dyn Scanner,
    topic: TopicId,
    seq: u64,
) -> Result<Option<(Uuid, i64, i64)>, ReadError> {
    match event_at(scanner, topic, seq) {
        Err(error) if error.is_unreadable() => Ok(None),
        found => found,
    }
}

fn patterns(spec: &GroupSpec) -> impl Iterator<Item = &Pattern> {
    std::iter::once(&spec.subscription).chain(&spec.topics)
}

fn check_conflict(known: &GroupSpec, asked: &GroupSpec) -> Result<(), GroupError> {
    let sorted = |spec: &GroupSpec| {
        let mut topics: Vec<String> = patterns(spec).map(|pattern| pattern.as_str().to_owned()).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    };
    let what = if sorted(known) != sorted(asked) {
        "list of topics"
    } else if known.filter != asked.filter {
        "filter"
    } else {
        return Ok(());
    };
    Err(GroupError::Conflict {
        topic: asked.subscription.as_str().to_owned(),
        group: asked.group.as_str().to_owned(),
        what,
    })
}

/// The lease mark of a group that starts after a seq.
fn first_mark(floor: u64) -> u64 {
    floor.saturating_add(MARK_AHEAD)
}

/// The record of the first lease marks of a group that starts after these seqs.
fn mark_record(group: u32, topics: &[TopicId], floors: &[u64]) -> StateRecord {
    let marks = topics.iter().zip(floors).map(|(&topic, &floor)| GroupProgress {
        topic,
        settled: Vec::new(),
        attempts: Vec::new(),
        leased_to: Some(first_mark(floor)),
    });
    StateRecord::Progress { group, topics: marks.collect() }
}

fn filter_text(filter: Option<&Filter>) -> String {
    filter.map_or_else(String::new, |filter| serde_json::to_string(filter).expect("a filter is plain data"))
}

fn spec_of(state: &GroupState) -> Result<GroupSpec, String> {
    let pattern = |text: &String| Pattern::new(text).map_err(|error| error.to_string());
    let filter = match state.filter.as_str() {
        "" => None,
        text => Some(serde_json::from_str(text).map_err(|error| error.to_string())?),
    };
    Ok(GroupSpec {
        subscription: pattern(&state.subscription)?,
        group: GroupName::new(&state.name).map_err(|error| error.to_string())?,
        topics: state.topics.iter().map(pattern).collect::<Result<_, _>>()?,
        filter,
        from: Start::Latest,
        expire_ms: state.expire_ms,
    })
}

pub(super) async fn settle_by_id(
    local: Arc<Local>,
    subscription: &str,
    group: &str,
    id: Uuid,
    verdict: Verdict<'_>,
) -> Result<SettleOutcome, GroupError> {
    if local.is_closed() {
        return Err(Unavailable::Closed.into());
    }
    let cell = local.find(subscription, group)?;
    let topics = cell.sources();
    let mut is_known = false;
    for (source, topic) in topics {
        let Some(seq) = local.store.find(topic, event_id_of(id))? else { continue };
        is_known = true;
        let position = Position { source, seq };
        let mut outcomes = Vec::with_capacity(1);
        let generation = local.settle(&cell, Sender::LastHolder, &[(position, verdict)], &mut outcomes);
        if outcomes[0] == SettleOutcome::Stale {
            // It may stand in another topic too, if its publisher chose the id.
            continue;
        }
        let records = Records { local: Arc::clone(&local), cell };
        DurableTicket::new(Arc::new(records), generation).await?;
        return Ok(outcomes[0]);
    }
    if !is_known && matches!(verdict, Verdict::Ack | Verdict::Nack { .. } | Verdict::GiveUp { .. }) {
        cell.core.lock().machine.count_stale();
    }
    Ok(SettleOutcome::Stale)
}

pub(super) async fn seek(
    local: Arc<Local>,
    subscription: &str,
    group: &str,
    to: Start,
) -> Result<(), GroupError> {
    to.check()?;
    let cell = local.find(subscription, group)?;
    let generation = with_room(&local, || local.try_seek(&cell, SeekTo::Start(to))).await?;
    let records = Records { local: Arc::clone(&local), cell };
    DurableTicket::new(Arc::new(records), generation).await?;
    Ok(())
}

/// Makes a member the only one, and takes the group back to its floor.
pub(super) async fn take_over(
    local: Arc<Local>,
    cell: Arc<GroupCell>,
    member: MemberId,
) -> Result<(), GroupError> {
    let generation = with_room(&local, || local.try_seek(&cell, SeekTo::Floor { only: member })).await?;
    let records = Records { local: Arc::clone(&local), cell };
    DurableTicket::new(Arc::new(records), generation).await?;
    Ok(())
}

/// Where a group goes.
#[derive(Clone, Copy)]
enum SeekTo {
    Start(Start),
    /// To its own floor, with one member left.
    Floor {
        only: MemberId,
    },
}

pub(super) async fn delete(local: Arc<Local>, subscription: &str, group: &str) -> Result<(), GroupError> {
    let cell = local.find(subscription, group)?;
    let batch = with_room(&local, || local.try_delete(&cell, None)).await?;
    poll_fn(|context| local.watch.poll_durable(batch, context)).await?;
    Ok(())
}

impl Local {
    fn try_seek(&self, cell: &Arc<GroupCell>, to: SeekTo) -> Result<Tried<u64>, GroupError> {
        if self.is_closed() {
            return Err(Unavailable::Closed.into());
        }
        if cell.is_deleted.load(Ordering::Acquire) {
            return Err(GroupError::Deleted);
        }
        let _quiet = Quiet::enter();
        // No topic joins the group meanwhile, and nothing older of this group is written behind the record.
        let _registry = self.registry.lock();
        let (sources, ids): (Vec<_>, Vec<_>) = cell.sources().into_iter().unzip();
        let floors = match to {
            SeekTo::Start(to) => Some(self.floor_for(&ids, to)?),
            SeekTo::Floor { .. } => None,
        };
        let mut sending = self.flusher.lock();
        let mut core = cell.core.lock();
        cell.grant_noticed(&mut core);
        let floor = |&source: &SourceId| core.machine.status(source).floor;
        let floors = floors.unwrap_or_else(|| sources.iter().map(floor).collect());
        let record = StateRecord::Sought {
            group: cell.number,
            floors: ids.iter().copied().zip(floors.iter().copied()).collect(),
        };
        let records = vec![record, mark_record(cell.number, &ids, &floors)];
        // What the group did before goes out with it, in front of it.
        let appended = self.flusher.append_last(&mut sending, self, &[], (records, cell), true);
        let generation = match appended {
            Ok(generation) => generation,
            Err(error) => {
                drop(core);
                drop(sending);
                self.flusher.after(&*self.store, &*self.clock);
                return busy_or(error);
            }
        };
        for (source, floor) in sources.into_iter().zip(floors) {
            core.machine.seek(source, floor);
            core.machine.marked(source, first_mark(floor), generation);
        }
        if let SeekTo::Floor { only } = to {
            let others = core.machine.members().filter(|&other| other != only);
            for other in others.collect::<Vec<_>>() {
                // It has no leases any more.
                core.machine.leave(other, self.clock.steady_ms());
                core.labels.remove(&other);
                core.names.remove(&other);
            }
        }
        cell.epoch_rises();
        let has_work = core.machine.has_work();
        let aftermath = self.write_down(cell, &mut core);
        drop(core);
        drop(sending);
        self.flusher.after(&*self.store, &*self.clock);
        self.follow_up(cell, aftermath);
        cell.wake_full(None);
        if let SeekTo::Floor { .. } = to {
            // Members that were removed must find out.
            cell.wake_waiters();
        }
        if has_work {
            self.call(cell);
        }
        Ok(Tried::Done(generation))
    }

    /// Deletes a group; with `deserted_at` only if nobody came since then.
    fn try_delete(
        &self,
        cell: &Arc<GroupCell>,
        deserted_at: Option<Millis>,
    ) -> Result<Tried<u64>, GroupError> {
        let _quiet = Quiet::enter();
        let registry = self.registry.lock();
        self.try_delete_locked(cell, deserted_at, &registry)
    }

    /// `_registry` proves that no group or topic is made meanwhile.
    pub(super) fn try_delete_locked(
        &self,
        cell: &Arc<GroupCell>,
        deserted_at: Option<Millis>,
        _registry: &u32,
    ) -> Result<Tried<u64>, GroupError> {
        // Whoever joins does so under this lock, and looks afterwards whether the group is still there.
        let core = cell.core.lock();
        let is_wanted = deserted_at.is_some_and(|seen| {
            core.machine.member_count() > 0 || cell.deserted_at.load(Ordering::Acquire) != seen
        });
        if is_wanted || cell.is_deleted.load(Ordering::Acquire) {
            return Err(GroupError::Deleted);
        }
        let record = StateRecord::Deleted { group: cell.number };
        let batch = crate::store::AppendBatch { records: &[record], use_reserve: true, ..Default::default() };
        let batch = match self.store.append(&batch, &mut Vec::new()) {
            Ok(batch) => batch,
            Err(error) => return busy_or(error),
        };
        self.flusher.appended(batch);
        cell.is_deleted.store(true, Ordering::Release);
        cell.epoch_rises();
        let read: Vec<TopicId> = core.live_topics().map(|(_, topic)| topic.id).collect();
        drop(core);
        self.groups.write().remove(cell);
        let mut topics = self.topics.write();
        for id in read {
            if let Some(readers) = topics.readers.get_mut(&id) {
                readers.retain(|(reader, _)| !Arc::ptr_eq(reader, cell));
                if readers.is_empty() {
                    topics.readers.remove(&id);
                }
            }
        }
        drop(topics);
        cell.wake_all();
        Ok(Tried::Done(batch))
    }
}
