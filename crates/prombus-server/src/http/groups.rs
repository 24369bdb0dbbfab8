//! `GET /groups`: the progress of groups, their members, and the leases of their deliveries. A token sees the groups that it may
//! join; an admin sees all groups.

use super::ApiError;
use super::answer::{self, Answered};
use super::call::Call;
use super::list_query::{ListQuery, NAMES_AT_ONCE};
use crate::auth::Principal;
use crate::clock::now_ms;
use prombus::delivery::GroupCounters;
use prombus::{GroupError, GroupInfo, GroupTopicInfo, LeaseInfo, MemberInfo, OldestUnacked};
use prombus_protocol::{CursorPosition, Pattern, Uuid};
use serde::Serialize;

/// The minimum number of groups that one call to the backend describes.
const INFOS_AT_ONCE: usize = 16;

#[derive(Serialize)]
struct Groups {
    groups: Vec<GroupView>,
    /// The last group on this page, after which the next page starts; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize)]
struct GroupView {
    /// The topic or pattern that the group is subscribed to.
    topic: String,
    group: String,
    /// When the group was created, in ms since 1970.
    made_ts: i64,
    /// The group is deleted after this time without members; `None` if it has no such limit of its own.
    expire_ms: Option<u64>,
    /// Whether the whole group is paused.
    paused: bool,
    /// The number of members.
    members: usize,
    /// The number of events that the group has not settled.
    lag: u64,
    /// The number of deliveries that members hold.
    in_flight: usize,
    /// The number of events that wait for redelivery.
    waiting: usize,
    oldest_unacked: Option<OldestView>,
    counters: Counters,
}

#[derive(Serialize)]
struct GroupDetail {
    #[serde(flatten)]
    group: GroupView,
    cursor: Option<CursorPosition>,
    member_list: Vec<MemberView>,
    topics: Vec<PlaceView>,
    leases: Vec<LeaseView>,
}

#[derive(Serialize)]
struct OldestView {
    topic: String,
    seq: u64,
    id: Uuid,
    ts: i64,
    age_ms: u64,
}

#[derive(Serialize)]
struct Counters {
    delivered: u64,
    acked: u64,
    nacked: u64,
    expired: u64,
    lost: u64,
    redelivered_expired: u64,
    redelivered_nacked: u64,
    redelivered_lost: u64,
    redelivered_restarted: u64,
    stale: u64,
    dead_lettered: u64,
    passed_over: u64,
    missed: u64,
}

#[derive(Serialize)]
struct MemberView {
    /// The number of the member.
    member: u64,
    /// The name that the member chose.
    name: Option<String>,
    /// A readable label: the name of the member, and where it is connected from.
    label: String,
    /// The number of deliveries that it holds.
    in_flight: usize,
    paused: bool,
}

#[derive(Serialize)]
struct PlaceView {
    topic: String,
    /// This seq and all lower ones are settled.
    floor: u64,
    /// The number of settled seqs above the floor.
    settled_above: u64,
    /// The highest seq of the topic.
    last_seq: u64,
    /// The number of events of the topic that the group has not settled.
    lag: u64,
}

#[derive(Serialize)]
struct LeaseView {
    /// `None` when the event has been deleted from the store.
    id: Option<Uuid>,
    topic: String,
    seq: u64,
    holder: Holder,
    attempt: u32,
    /// How long ago the lease began.
    age_ms: u64,
    /// When the lease ends, in ms since 1970.
    deadline_ms: i64,
    /// How long until the lease ends.
    ends_in_ms: u64,
}

#[derive(Serialize)]
struct Holder {
    member: u64,
    label: Option<String>,
}

pub(super) async fn groups(call: Call) -> Answered {
    let wanted = call.query.one("topic")?.map(Pattern::new).transpose()?;
    let query = ListQuery::of(&call.query)?;
    let mut after = query.next.map(place_of).transpose()?;
    // With `topic`, the list starts with the groups of that subscription: their names are adjacent.
    let prefix = match &wanted {
        Some(topic) if !topic.as_str().starts_with(query.prefix) => {
            return answer::json(&Groups { groups: Vec::new(), next: None });
        }
        Some(topic) => topic.as_str(),
        None => query.prefix,
    };
    let backend = &*call.gateway.backend;
    let mut groups: Vec<GroupInfo> = Vec::new();
    loop {
        let from = after.as_ref().map(|(topic, group)| (topic.as_str(), group.as_str()));
        let mut names = backend.group_names(prefix, from, NAMES_AT_ONCE);
        let mut is_last = names.len() < NAMES_AT_ONCE;
        if let Some(topic) = &wanted {
            // The prefix also matches longer subscriptions; they sort after this one.
            let count = names.partition_point(|(subscription, _)| subscription == topic.as_str());
            is_last |= count < names.len();
            names.truncate(count);
        }
        after = names.last().cloned();
        // Filter by name first: names are cheap, descriptions of groups are not.
        names.retain(|(topic, group)| may_join(&call.principal, topic, group));
        let mut names = names.into_iter().peekable();
        while names.peek().is_some() && groups.len() <= query.limit {
            let missing = (query.limit + 1 - groups.len()).max(INFOS_AT_ONCE);
            let infos = backend.groups_by_name(names.by_ref().take(missing).collect()).await?;
            groups.extend(infos.into_iter().filter(|info| may_see(&call.principal, info)));
        }
        if is_last || groups.len() > query.limit {
            break;
        }
        // The loop can be long for a token that may join few of very many groups.
        tokio::task::yield_now().await;
    }
    let has_more = groups.len() > query.limit;
    groups.truncate(query.limit);
    let next = groups.last().filter(|_| has_more).map(|last| format!("{}/{}", last.topic, last.group));
    answer::json(&Groups { groups: groups.into_iter().map(GroupView::from).collect(), next })
}

/// Parses the parameter `next`, the last group of the previous page: subscription and group, separated by a slash, which
/// subscriptions cannot contain.
fn place_of(next: &str) -> Result<(String, String), ApiError> {
    match next.split_once('/') {
        Some((topic, group)) => Ok((topic.to_owned(), group.to_owned())),
        None => Err(ApiError::bad_request("\"next\" is not a value from an earlier response")),
    }
}

pub(super) async fn group(call: Call) -> Answered {
    let (topic, group) = call.group()?;
    let (topic, group) = (topic.as_str(), group.as_str());
    let forbidden = || ApiError::forbidden(call.principal.subscribe_refusal(topic, Some(group)));
    // Checked before the lookup, so that the response does not reveal whether the group exists.
    if !may_join(&call.principal, topic, group) {
        return Err(forbidden());
    }
    let backend = &call.gateway.backend;
    let Some(info) = backend.group(topic, group).await? else {
        return Err(GroupError::UnknownGroup { topic: topic.to_owned(), group: group.to_owned() }.into());
    };
    if !may_see(&call.principal, &info) {
        return Err(forbidden());
    }
    let cursor = backend.cursor(topic, group).await?;
    answer::json(&GroupDetail::new(info, cursor, now_ms()))
}

fn may_join(principal: &Principal, topic: &str, group: &str) -> bool {
    principal.is_admin() || principal.may_subscribe(topic, Some(group))
}

/// Whether the caller may read the group's subscription and all topics that the group reads.
pub(super) fn may_see(principal: &Principal, info: &GroupInfo) -> bool {
    let may_read = |topic: &str| principal.may_subscribe(topic, Some(&info.group));
    principal.is_admin()
        || (may_read(&info.topic) && info.topics.iter().all(|place| may_read(place.topic.as_str())))
}

impl GroupDetail {
    fn new(mut info: GroupInfo, cursor: Option<CursorPosition>, now_ms: i64) -> Self {
        let members = std::mem::take(&mut info.member_list);
        let leases = std::mem::take(&mut info.leases);
        let topics = std::mem::take(&mut info.topics);
        Self {
            group: GroupView::from(info),
            cursor,
            topics: topics.into_iter().map(PlaceView::from).collect(),
            leases: leases.into_iter().map(|lease| LeaseView::new(lease, &members, now_ms)).collect(),
            member_list: members.into_iter().map(MemberView::from).collect(),
        }
    }
}

impl LeaseView {
    fn new(lease: LeaseInfo, members: &[MemberInfo], now_ms: i64) -> Self {
        let label = members.iter().find(|it| it.number == lease.member).map(|it| it.label.clone());
        Self {
            id: Some(lease.id).filter(|id| !id.is_nil()),
            topic: lease.topic.to_string(),
            seq: lease.seq,
            holder: Holder { member: lease.member, label },
            attempt: lease.attempt,
            age_ms: lease.age_ms,
            deadline_ms: now_ms.saturating_add_unsigned(lease.ends_in_ms),
            ends_in_ms: lease.ends_in_ms,
        }
    }
}

impl From<GroupInfo> for GroupView {
    fn from(info: GroupInfo) -> Self {
        Self {
            topic: info.topic,
            group: info.group,
            made_ts: info.made_ms,
            paused: info.is_paused,
            expire_ms: info.expire_ms,
            members: info.members,
            lag: info.lag,
            in_flight: info.in_flight,
            waiting: info.waiting,
            oldest_unacked: info.oldest_unacked.map(OldestView::from),
            counters: Counters::from(info.counters),
        }
    }
}

impl From<OldestUnacked> for OldestView {
    fn from(oldest: OldestUnacked) -> Self {
        let OldestUnacked { topic, seq, id, ts, age_ms } = oldest;
        Self { topic: topic.to_string(), seq, id, ts, age_ms }
    }
}

impl From<MemberInfo> for MemberView {
    fn from(info: MemberInfo) -> Self {
        let MemberInfo { number, name, label, in_flight, is_paused } = info;
        Self { member: number, name, label, in_flight, paused: is_paused }
    }
}

impl From<GroupTopicInfo> for PlaceView {
    fn from(info: GroupTopicInfo) -> Self {
        let GroupTopicInfo { topic, floor, settled_above, last_seq, lag } = info;
        Self { topic: topic.to_string(), floor, settled_above, last_seq, lag }
    }
}

impl From<GroupCounters> for Counters {
    fn from(of: GroupCounters) -> Self {
        Self {
            delivered: of.delivered,
            acked: of.acked,
            nacked: of.nacked,
            expired: of.expired,
            lost: of.lost,
            redelivered_expired: of.redelivered_expired,
            redelivered_nacked: of.redelivered_nacked,
            redelivered_lost: of.redelivered_lost,
            redelivered_restarted: of.redelivered_restarted,
            stale: of.stale,
            dead_lettered: of.dead_lettered,
            passed_over: of.passed_over,
            missed: of.missed,
        }
    }
}
