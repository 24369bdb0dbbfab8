//! Descriptions of topics, groups, members and leases, for operators and programs.

use crate::delivery::{GroupCounters, Millis};
use prombus_protocol::{Topic, Uuid};

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub topic: Topic,
    /// The oldest seq that is kept; `None` when the topic is empty.
    pub first_seq: Option<u64>,
    /// The newest seq; zero when the topic never had an event.
    pub last_seq: u64,
    /// How many groups read it.
    pub groups: usize,
    /// How many events are kept; approximate while cleaning runs.
    pub events: u64,
    /// Bytes that these events take in the store.
    pub bytes: u64,
}

/// A group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupInfo {
    /// The subscription as written.
    pub topic: String,
    /// Its name.
    pub group: String,
    /// When it was created, in milliseconds since 1970.
    pub made_ms: i64,
    /// The group is deleted after this many milliseconds without members; set when it is created. `None` if the limit of
    /// the bus (`group_expire_ms`) applies.
    pub expire_ms: Option<u64>,
    /// Whether the whole group is paused: its members get no events.
    pub is_paused: bool,
    /// How many members it has now.
    pub members: usize,
    /// Its members; at most [`MEMBERS_LISTED_MAX`].
    pub member_list: Vec<MemberInfo>,
    /// Events that it has not settled.
    pub lag: u64,
    /// Deliveries that members have not settled.
    pub in_flight: usize,
    /// Events that wait for another attempt.
    pub waiting: usize,
    /// The oldest event that is not settled; `None` if the store has no such event.
    pub oldest_unacked: Option<OldestUnacked>,
    /// Counters since the bus was opened.
    pub counters: GroupCounters,
    /// Its topics.
    pub topics: Vec<GroupTopicInfo>,
    /// Its leases, the oldest events first; at most [`LEASES_LISTED_MAX`].
    pub leases: Vec<LeaseInfo>,
}

/// At most this many leases of a group are listed; all are counted.
pub const LEASES_LISTED_MAX: usize = 1_000;

/// At most this many members of a group are listed; all are counted.
pub const MEMBERS_LISTED_MAX: usize = 1_000;

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its number in the group.
    pub number: u64,
    /// The name that it chose, if any.
    pub name: Option<String>,
    /// A readable label: its name and where it is connected from.
    pub label: String,
    /// Deliveries that it has not settled.
    pub in_flight: usize,
    /// Whether it has paused deliveries.
    pub is_paused: bool,
}

/// A group's progress in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTopicInfo {
    /// The topic.
    pub topic: Topic,
    /// This seq and all lower ones are settled.
    pub floor: u64,
    /// How many events above the floor are settled.
    pub settled_above: u64,
    /// The topic's newest seq.
    pub last_seq: u64,
    /// Events that are not settled.
    pub lag: u64,
}

/// The oldest event that a group has not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestUnacked {
    /// Its topic.
    pub topic: Topic,
    /// Its seq.
    pub seq: u64,
    /// Its id.
    pub id: Uuid,
    /// Its time, as the publisher set it.
    pub ts: i64,
    /// How long ago it was committed.
    pub age_ms: u64,
}

/// A delivery that a member holds a lease on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// The event's topic.
    pub topic: Topic,
    /// Its seq.
    pub seq: u64,
    /// Its id; nil when the event is gone from the store.
    pub id: Uuid,
    /// The number of the member that holds it.
    pub member: u64,
    /// The attempt, counted from 1.
    pub attempt: u32,
    /// How long the member has held it.
    pub age_ms: Millis,
    /// The time until the lease expires.
    pub ends_in_ms: Millis,
}
