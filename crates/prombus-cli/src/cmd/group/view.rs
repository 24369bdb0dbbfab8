//! Groups as the server describes them.

use serde::Deserialize;

/// A group in a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct GroupView {
    pub topic: String,
    pub group: String,
    pub made_ts: i64,
    pub expire_ms: Option<u64>,
    pub paused: bool,
    pub members: u64,
    pub lag: u64,
    pub in_flight: u64,
    pub waiting: u64,
    pub oldest_unacked: Option<Oldest>,
}

/// The oldest unsettled event of a group.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Oldest {
    pub topic: String,
    pub seq: u64,
    pub id: String,
    pub age_ms: u64,
}

/// A group with its members, topics and leases.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct GroupDetail {
    #[serde(flatten)]
    pub group: GroupView,
    pub cursor: Option<Cursor>,
    pub member_list: Vec<Member>,
    pub topics: Vec<Place>,
    pub leases: Vec<Lease>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Cursor {
    pub last_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Member {
    pub member: u64,
    pub label: String,
    pub in_flight: u64,
    pub paused: bool,
}

/// The progress of a group in a topic.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Place {
    pub topic: String,
    pub floor: u64,
    pub settled_above: u64,
    pub last_seq: u64,
    pub lag: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Lease {
    pub id: Option<String>,
    pub topic: String,
    pub seq: u64,
    pub holder: Holder,
    pub attempt: u64,
    pub age_ms: u64,
    pub ends_in_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Holder {
    pub member: u64,
}
