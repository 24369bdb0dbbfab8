//! Creating groups, joining them, and restoring them after a restart.

use super::cell::{GroupCell, patterns};
use super::spec_record::{check_conflict, creation_records, first_mark, spec_of};
use super::start_position::ResolvedStart;
use super::{Groups, Tried, busy_or, with_room};
use crate::backend::{GroupSpec, MemberOptions};
use crate::deferred_wakes::DeferredWakes;
use crate::delivery::{MemberId, Millis, Restored, SettledSeqs};
use crate::engine::{AppendBatch, GroupState, TopicId};
use crate::error::{GroupError, OpenError};
use prombus_protocol::{Pattern, Start};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The expiry of a new group begins this long after its creation, so that its creator has time to join.
const JOIN_MS: Millis = 60_000;
/// The longest delay that can be requested. If a restored delay is longer, the wall clock was set back, and the delay is
/// shortened to this value.
const NOT_BEFORE_MAX_MS: i64 = 3_600_000;

/// The result of looking for a group.
enum Found {
    Group {
        cell: Arc<GroupCell>,
        created: bool,
    },
    /// A topic was created, or the group was deleted, since the start position was resolved. It must be resolved again.
    Outdated,
}

impl Groups {
    /// Joins a group, which is created if it does not exist. Resolves when that is durable.
    pub(in crate::local) async fn join(
        &self,
        spec: &GroupSpec,
        options: &MemberOptions,
    ) -> Result<(Arc<GroupCell>, MemberId, bool), GroupError> {
        loop {
            let (cell, created) = self.find_or_create(spec).await?;
            // Another caller may have just created the group: wait until its creation is durable.
            poll_fn(|context| self.commits.poll_durable(cell.creation_commit, context)).await?;
            self.commits.check_open()?;
            let id = self.runtime.act(&cell, |core, _| {
                let id = core.machine.join(options.settings);
                core.labels.extend(options.label.clone().map(|label| (id, label)));
                core.names.extend(options.name.clone().map(|name| (id, name)));
                cell.empty_since.store(u64::MAX, Ordering::Release);
                id
            });
            // If the group was deleted before the member joined, try again.
            if !cell.is_deleted() {
                return Ok((cell, id, created));
            }
        }
    }

    async fn find_or_create(&self, spec: &GroupSpec) -> Result<(Arc<GroupCell>, bool), GroupError> {
        loop {
            let start = self.resolve_start(spec).await?;
            let found = with_room(&self.commits, || self.try_find_or_create(spec, &start)).await?;
            if let Found::Group { cell, created } = found {
                return Ok((cell, created));
            }
        }
    }

    /// For the start position `latest`: appends all earlier publishes, including those that wait for room, because the group
    /// starts after all of them.
    pub(super) async fn append_earlier_publishes(&self, start: Start) -> Result<(), GroupError> {
        if let Start::Latest = start {
            let append = || Ok(if self.publish_line.append_line() { Tried::Done(()) } else { Tried::Busy });
            with_room::<_, GroupError>(&self.commits, append).await?;
        }
        Ok(())
    }

    /// Resolves the start position of a group that does not exist yet.
    async fn resolve_start(&self, spec: &GroupSpec) -> Result<ResolvedStart, GroupError> {
        if self.registry.find_group(spec.subscription.as_str(), spec.group.as_str()).is_ok() {
            return Ok(ResolvedStart::NotNeeded);
        }
        self.append_earlier_publishes(spec.from).await?;
        let topics = self.registry.topics(|topics| topics.matching(patterns(spec)));
        let ids: Vec<TopicId> = topics.into_iter().map(|(id, _)| id).collect();
        Ok(ResolvedStart::resolve(&*self.engine, &ids, spec.from).await?)
    }

    fn try_find_or_create(
        &self,
        spec: &GroupSpec,
        start: &ResolvedStart,
    ) -> Result<Tried<Found>, GroupError> {
        self.commits.check_open()?;
        let _deferred = DeferredWakes::enter();
        let mut creation = self.registry.creation();
        if let Ok(cell) = self.registry.find_group(spec.subscription.as_str(), spec.group.as_str()) {
            check_conflict(&cell.spec, spec)?;
            return Ok(Tried::Done(Found::Group { cell, created: false }));
        }
        if let ResolvedStart::NotNeeded = start {
            return Ok(Tried::Done(Found::Outdated));
        }
        spec.group.check_new()?;
        if self.registry.group_count() >= self.max_groups {
            return Err(GroupError::TooManyGroups(self.max_groups));
        }
        for topic in patterns(spec).filter_map(Pattern::as_topic) {
            if let Err(refused) = self.registry.ensure_topic(&topic, &creation) {
                return busy_or(refused);
            }
        }
        let topics = self.registry.topics(|topics| topics.matching(patterns(spec)));
        let ids: Vec<TopicId> = topics.iter().map(|&(id, _)| id).collect();
        let Some(floors) = start.floors(&*self.engine, &ids) else {
            return Ok(Tried::Done(Found::Outdated));
        };
        let made_ms = self.runtime.clock.wall_ms();
        let number = creation.next_group;
        let records = creation_records(number, spec, made_ms, &ids, &floors);
        let creation_commit = match self.engine.append(&AppendBatch::of_records(&records), &mut Vec::new()) {
            Ok(appended) => appended.commit,
            Err(error) => return busy_or(error),
        };
        self.runtime.records.appended(creation_commit);
        creation.next_group += 1;
        let cell =
            Arc::new(GroupCell::new(number, spec.clone(), made_ms, creation_commit, &self.error_budget));
        let restored = floors.into_iter().map(|floor| Restored {
            settled: SettledSeqs::up_to(floor),
            leased_to: first_mark(floor),
            ..Restored::default()
        });
        self.registry.add_group(&cell, &topics, restored, &creation);
        // Starts the expiry now, because the client that creates the group may disconnect before it joins.
        self.start_expiry(&cell, self.runtime.clock.steady_ms().saturating_add(JOIN_MS));
        Ok(Tried::Done(Found::Group { cell, created: true }))
    }

    /// Restores the groups from the state that the engine has stored.
    pub(in crate::local) fn restore(&self, states: Vec<GroupState>) -> Result<(), OpenError> {
        let mut creation = self.registry.creation();
        let clock = &self.runtime.clock;
        let (steady, wall) = (clock.steady_ms(), clock.wall_ms());
        for mut state in states {
            creation.next_group = creation.next_group.max(state.number + 1);
            let spec = spec_of(&state).map_err(OpenError::Groups)?;
            let cell = Arc::new(GroupCell::new(state.number, spec, state.made_ms, 0, &self.error_budget));
            cell.lock().machine.pause_all(state.is_paused);
            let topics = self.registry.topics(|topics| topics.matching(cell.patterns()));
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
                    // Only events that existed before the restart may have been delivered before it.
                    restarted_to: progress.leased_to.min(self.engine.last_seq(*id)),
                }
            });
            let restored: Vec<Restored> = restored.collect();
            self.registry.add_group(&cell, &topics, restored.into_iter(), &creation);
            // Retention may have removed events that the group had not settled before the restart.
            for (source, id) in cell.sources() {
                self.cut_group(&cell, source, self.engine.retained_from(id));
            }
            self.start_expiry(&cell, steady);
        }
        Ok(())
    }
}
