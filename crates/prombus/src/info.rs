//! What operators and programs are told about topics and groups.

use crate::delivery::{GroupCounters, Millis};
use prombus_protocol::{Topic, Uuid};

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub topic: Topic,
    /// The oldest seq that is kept; `None` when it is empty.
    pub first_seq: Option<u64>,
    /// The newest seq; zero when it never had an event.
    pub last_seq: u64,
    /// How many groups read it.
    pub groups: usize,
    /// How many events are kept; about, while cleaning goes on.
    pub events: u64,
    /// What they take in the store.
    pub bytes: u64,
}

/// A group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupInfo {
    /// The subscription as written.
    pub topic: String,
    /// Its name.
    pub group: String,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: i64,
    /// It is deleted after this many milliseconds without members; set when it was made.
    pub expire_ms: Option<u64>,
    /// How many members it has now.
    pub members: usize,
    /// Its members; at most [`MEMBERS_LISTED_MAX`].
    pub member_list: Vec<MemberInfo>,
    /// Events that it has not settled.
    pub lag: u64,
    /// Deliveries that members have.
    pub in_flight: usize,
    /// Events that wait for another attempt.
    pub waiting: usize,
    /// The oldest event that is not settled.
    pub oldest_unacked: Option<OldestUnacked>,
    /// What happened since the bus was opened.
    pub counters: GroupCounters,
    /// Its topics.
    pub topics: Vec<GroupTopicInfo>,
    /// Its leases, the oldest events first; at most [`LEASES_LISTED_MAX`].
    pub leases: Vec<LeaseInfo>,
}

/// More leases of a group than this are counted, not listed.
pub const LEASES_LISTED_MAX: usize = 1_000;

/// More members of a group than this are counted, not listed.
pub const MEMBERS_LISTED_MAX: usize = 1_000;

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its number in the group.
    pub number: u64,
    /// What it is called, if anything.
    pub name: Option<String>,
    /// What it is called, and where it is.
    pub label: String,
    /// Deliveries that it has.
    pub in_flight: usize,
    /// It asked for no more for now.
    pub is_paused: bool,
}

/// A group's place in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTopicInfo {
    /// The topic.
    pub topic: Topic,
    /// It and all below it are settled.
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
    /// The publisher's time.
    pub ts: i64,
    /// How long it has been in the log.
    pub age_ms: u64,
}

/// A delivery that a member has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// The event's topic.
    pub topic: Topic,
    /// Its seq.
    pub seq: u64,
    /// Its id; nil when it is gone from the store.
    pub id: Uuid,
    /// Which member of the group, by number.
    pub member: u64,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// How long the member has had it.
    pub age_ms: Millis,
    /// When the lease ends, from now.
    pub ends_in_ms: Millis,
}
