//! The plan of the soak: topics, groups, the behaviour of their members, and the server's configuration.

/// How long `short.time` keeps events.
pub(crate) const RETENTION_MS: u64 = 30_000;
/// How many bytes of `short.bytes` are kept.
pub(crate) const RETENTION_BYTES: u64 = 400_000;
/// Keys of the compacted topic.
pub(crate) const KEYS: u64 = 300;

/// Which events a topic keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    Everything,
    Recent,
    Newest,
    NewestPerKey,
}

/// A topic, and its share of the publishes.
pub(crate) struct TopicPlan {
    pub(crate) name: &'static str,
    pub(crate) keeps: Keeps,
    pub(crate) percent: u64,
}

pub(crate) const TOPICS: [TopicPlan; 5] = [
    TopicPlan { name: "plain.a", keeps: Keeps::Everything, percent: 25 },
    TopicPlan { name: "plain.b", keeps: Keeps::Everything, percent: 25 },
    TopicPlan { name: "short.time", keeps: Keeps::Recent, percent: 15 },
    TopicPlan { name: "short.bytes", keeps: Keeps::Newest, percent: 15 },
    TopicPlan { name: "keyed.state", keeps: Keeps::NewestPerKey, percent: 20 },
];

pub(crate) fn topic_number(name: &str) -> Option<usize> {
    TOPICS.iter().position(|topic| topic.name == name)
}

/// A group and the behaviour of its members. The `_per_mille` fields are probabilities.
pub(crate) struct GroupPlan {
    pub(crate) name: &'static str,
    /// The topic or pattern as subscribed.
    pub(crate) subscription: &'static str,
    /// Indexes of its topics in `TOPICS`.
    pub(crate) topics: &'static [usize],
    pub(crate) only_red: bool,
    /// SEEK moves this group, so an event may be delivered after it was settled.
    pub(crate) seeks: bool,
    pub(crate) members: usize,
    pub(crate) ack_timeout_ms: u64,
    pub(crate) max_attempts: u16,
    pub(crate) nack_per_mille: u64,
    pub(crate) abandon_per_mille: u64,
    pub(crate) extend_per_mille: u64,
    /// Nacks every delivery of poison events, until they become dead letters.
    pub(crate) rejects_poison: bool,
    /// Members drop their connection, close it or unsubscribe.
    pub(crate) leaves: bool,
    /// The usual maximum time that a member works on an event.
    pub(crate) work_ms: u64,
}

const ROUGH: GroupPlan = GroupPlan {
    name: "rough",
    subscription: "plain.b",
    topics: &[1],
    only_red: false,
    seeks: false,
    members: 4,
    ack_timeout_ms: 3_000,
    max_attempts: 4,
    nack_per_mille: 60,
    abandon_per_mille: 5,
    extend_per_mille: 30,
    rejects_poison: true,
    leaves: true,
    work_ms: 60,
};

pub(crate) const GROUPS: [GroupPlan; 8] = [
    GroupPlan {
        name: "steady",
        subscription: "plain.a",
        topics: &[0],
        members: 3,
        ack_timeout_ms: 12_000,
        max_attempts: 1_000,
        nack_per_mille: 0,
        abandon_per_mille: 0,
        rejects_poison: false,
        leaves: false,
        ..ROUGH
    },
    ROUGH,
    GroupPlan {
        name: "pattern",
        subscription: "plain.*",
        topics: &[0, 1],
        members: 3,
        ack_timeout_ms: 6_000,
        max_attempts: 5,
        nack_per_mille: 20,
        abandon_per_mille: 2,
        ..ROUGH
    },
    GroupPlan {
        name: "red",
        topics: &[0],
        subscription: "plain.a",
        only_red: true,
        members: 2,
        max_attempts: 3,
        ..ROUGH
    },
    GroupPlan {
        name: "brief",
        subscription: "short.time",
        topics: &[2],
        members: 3,
        max_attempts: 5,
        ..ROUGH
    },
    GroupPlan {
        name: "bytes",
        subscription: "short.bytes",
        topics: &[3],
        members: 2,
        ack_timeout_ms: 5_000,
        max_attempts: 6,
        abandon_per_mille: 2,
        ..ROUGH
    },
    GroupPlan {
        name: "state",
        subscription: "keyed.state",
        topics: &[4],
        members: 3,
        ack_timeout_ms: 4_000,
        max_attempts: 5,
        abandon_per_mille: 2,
        ..ROUGH
    },
    GroupPlan {
        name: "seeker",
        seeks: true,
        members: 2,
        ack_timeout_ms: 6_000,
        max_attempts: 1_000,
        nack_per_mille: 5,
        abandon_per_mille: 1,
        rejects_poison: false,
        work_ms: 10,
        ..ROUGH
    },
];

/// Small segments and frequent checkpoints, so that cleaning, recycling and compaction run all the time.
pub(crate) fn server_config() -> String {
    format!(
        "log = \"info\"

[storage]
segment_bytes = 524_288
reserve_bytes = 524_288
checkpoint_bytes = 1_048_576
tail_cache_bytes = 4_194_304
index_cache_bytes = 4_194_304

[[topic]]
name = \"short.time\"
retention_ms = {RETENTION_MS}

[[topic]]
name = \"short.bytes\"
retention_bytes = {RETENTION_BYTES}

[[topic]]
name = \"keyed.state\"
compaction = true
tombstone_ms = 10_000
snapshot_interval_ms = 5_000
"
    )
}
