//! Describes groups: cursors, lists for operators, figures for metrics.

use super::Groups;
use super::cell::{GroupCell, GroupCore, GroupTopic};
use crate::backend::uuid_of;
use crate::delivery::{Millis, Position, Unsettled, UnsettledState};
use crate::engine::{EventHead, MayBlock, TopicId};
use crate::error::{GroupError, ReadError};
use crate::info::{
    GroupInfo, GroupTopicInfo, LEASES_LISTED_MAX, LeaseInfo, MEMBERS_LISTED_MAX, MemberInfo, OldestUnacked,
};
use crate::metrics::GroupFigures;
use prombus_protocol::{CursorPosition, Topic, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The oldest unsettled event of a topic.
struct Oldest {
    topic: TopicId,
    name: Topic,
    seq: u64,
}

/// The part of a group's description that was collected under the group's lock.
struct Described {
    info: GroupInfo,
    /// The oldest unsettled event of each topic.
    oldest: Vec<Oldest>,
    /// The leases to list.
    leased: Vec<(Position, Unsettled)>,
    topics: Vec<GroupTopic>,
    /// When the group was described, by the steady clock.
    now: Millis,
}

impl Groups {
    /// The event at the floor of a group; `None` if the group does not exist.
    pub(in crate::local) async fn cursor(
        &self,
        subscription: &str,
        group: &str,
    ) -> Result<Option<CursorPosition>, GroupError> {
        let Ok(cell) = self.registry.find_group(subscription, group) else { return Ok(None) };
        let floors = cell.inspect(|core| {
            let topics = core.live_topics();
            topics.map(|(source, topic)| (topic.id, core.machine.status(source).floor)).collect()
        });
        Ok(Some(self.cursor_at(subscription, floors).await?))
    }

    /// The cursor of a group with these floors.
    pub(super) async fn cursor_at(
        &self,
        subscription: &str,
        floors: Vec<(TopicId, u64)>,
    ) -> Result<CursorPosition, GroupError> {
        let mut newest: Option<EventHead> = None;
        for (topic, floor) in floors.into_iter().filter(|&(_, floor)| floor > 0) {
            // If the group reads several topics: the event with the latest commit time, among the events at the
            // floors of the topics.
            if let Some(head) = known_head(self.engine.head_at_or_after(topic, floor).await, floor)?
                && newest.is_none_or(|newest| head.commit_ms >= newest.commit_ms)
            {
                newest = Some(head);
            }
        }
        Ok(CursorPosition {
            topic: subscription.to_owned(),
            last_id: newest.map(|head| uuid_of(head.id)),
            last_ts: newest.map(|head| head.ts),
        })
    }

    pub(in crate::local) fn infos(&self, may_block: MayBlock) -> Result<Vec<GroupInfo>, ReadError> {
        let cells = self.registry.groups_by_number();
        cells.iter().map(|cell| self.info(cell, LEASES_LISTED_MAX, may_block)).collect()
    }

    /// Describes these groups, without their leases. Groups that do not exist are left out.
    pub(in crate::local) fn infos_by_name(
        &self,
        names: &[(String, String)],
        may_block: MayBlock,
    ) -> Result<Vec<GroupInfo>, ReadError> {
        let cells: Vec<_> = self
            .registry
            .groups(|groups| names.iter().filter_map(|(topic, group)| groups.get(topic, group)).collect());
        cells.iter().map(|cell| self.info(cell, 0, may_block)).collect()
    }

    pub(in crate::local) fn info_of(
        &self,
        subscription: &str,
        group: &str,
        may_block: MayBlock,
    ) -> Result<Option<GroupInfo>, ReadError> {
        let cell = self.registry.find_group(subscription, group).ok();
        cell.map(|cell| self.info(&cell, LEASES_LISTED_MAX, may_block)).transpose()
    }

    pub(in crate::local) fn figures(&self) -> Vec<GroupFigures> {
        self.registry.groups_by_number().iter().map(|cell| self.figures_of(cell)).collect()
    }

    fn figures_of(&self, cell: &GroupCell) -> GroupFigures {
        cell.inspect(|core| {
            let lags = core.live_topics().map(|(source, topic)| {
                let status = core.machine.status(source);
                let above = self.engine.last_seq(topic.id).saturating_sub(status.floor);
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
                by_name: in_flight_by_name(core),
            }
        })
    }

    fn info(
        &self,
        cell: &Arc<GroupCell>,
        leases_max: usize,
        may_block: MayBlock,
    ) -> Result<GroupInfo, ReadError> {
        let Described { mut info, oldest, leased, topics, now } = self.describe(cell, leases_max);
        let head = |topic, seq| known_head(self.engine.head_at_or_after(topic, seq).wait(may_block), seq);
        for (position, it) in leased {
            let GroupTopic { id, name: topic, .. } = &topics[position.source.0 as usize];
            let event = head(*id, position.seq)?;
            info.leases.push(LeaseInfo {
                topic: topic.clone(),
                seq: position.seq,
                id: event.map_or(Uuid::nil(), |head| uuid_of(head.id)),
                member: it.holder.0,
                attempt: it.attempts,
                age_ms: now.saturating_sub(it.leased_at),
                ends_in_ms: it.at.saturating_sub(now),
            });
        }
        let wall = self.runtime.clock.wall_ms();
        for Oldest { topic, name, seq } in oldest {
            let Some(event) = head(topic, seq)? else { continue };
            let age_ms = u64::try_from(wall.saturating_sub(event.commit_ms)).unwrap_or(0);
            if info.oldest_unacked.as_ref().is_none_or(|known| age_ms > known.age_ms) {
                let (id, ts) = (uuid_of(event.id), event.ts);
                info.oldest_unacked = Some(OldestUnacked { topic: name, seq, id, ts, age_ms });
            }
        }
        Ok(info)
    }

    fn describe(&self, cell: &Arc<GroupCell>, leases_max: usize) -> Described {
        self.runtime.act(cell, |core, now| {
            // Tells the machine of new events first. Without that, it would not know of events that no member has
            // pulled since a restart.
            cell.waiters.grant_new_events(&mut core.machine);
            core.machine.advance(now);
            let mut topics = Vec::new();
            let mut oldest = Vec::new();
            for (source, GroupTopic { id, name, .. }) in core.live_topics() {
                let status = core.machine.status(source);
                let last_seq = self.engine.last_seq(*id).max(status.floor);
                let lag = last_seq - status.floor - status.settled_above.min(last_seq - status.floor);
                if lag > 0 {
                    oldest.push(Oldest { topic: *id, name: name.clone(), seq: status.floor + 1 });
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
            let info = GroupInfo {
                topic: cell.spec.subscription.as_str().to_owned(),
                group: cell.spec.group.as_str().to_owned(),
                made_ms: cell.made_ms,
                expire_ms: cell.spec.expire_ms,
                is_paused: core.machine.is_paused(),
                members: core.machine.member_count(),
                member_list: member_list(core),
                lag: topics.iter().map(|topic| topic.lag).sum(),
                in_flight: counts.leased,
                waiting: counts.waiting,
                oldest_unacked: None,
                counters: core.machine.counters(),
                topics,
                leases: Vec::new(),
            };
            Described { info, oldest, leased: leases(core, leases_max), topics: core.topics.clone(), now }
        })
    }
}

/// The first leases, in the order of positions.
fn leases(core: &GroupCore, leases_max: usize) -> Vec<(Position, Unsettled)> {
    if leases_max == 0 {
        return Vec::new();
    }
    let leased = core.machine.unsettled().filter(|(_, it)| it.state == UnsettledState::Leased);
    let mut leased: Vec<_> = leased.map(|(position, it)| (position, *it)).collect();
    leased.sort_unstable_by_key(|&(position, _)| position);
    leased.truncate(leases_max);
    leased
}

/// The event with exactly this seq, if it exists and is readable. An unreadable event is not an error, because lists
/// for operators must work while the disk fails.
fn known_head(found: Result<Option<EventHead>, ReadError>, seq: u64) -> Result<Option<EventHead>, ReadError> {
    match found {
        Ok(head) => Ok(head.filter(|head| head.seq == seq)),
        // The topic was deleted since the caller listed it.
        Err(ReadError::UnknownTopic(_)) => Ok(None),
        Err(error) if error.is_unreadable() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of deliveries in flight (leased events), by member name.
fn in_flight_by_name(core: &GroupCore) -> BTreeMap<String, usize> {
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

fn member_list(core: &GroupCore) -> Vec<MemberInfo> {
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
