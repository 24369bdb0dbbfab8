//! Which events are dead, for retention and compaction.

use super::*;

/// The dead events, by topic.
#[derive(Clone, Default)]
pub(super) struct Dead {
    /// The first seq that retention keeps.
    pub(super) cuts: BTreeMap<&'static str, u64>,
    /// In compacted topics: up to here only every fifth event lives.
    pub(super) floors: BTreeMap<&'static str, u64>,
    /// The earliest time at which cleaning can have removed a dead event.
    pub(super) since_ms: HashMap<(&'static str, u64), i64>,
}

impl Dead {
    pub(super) fn has(&self, topic: &str, seq: u64) -> bool {
        let is_cut = self.cuts.get(topic).is_some_and(|&cut| seq < cut);
        is_cut || self.floors.get(topic).is_some_and(|&floor| seq <= floor && seq % 5 != 0)
    }
}

/// The liveness for the log.
pub(super) struct Living<'a> {
    pub(super) log: &'a Log,
    pub(super) dead: &'a Dead,
    /// Whether `live_in` returns a number.
    pub(super) counts: bool,
}

impl Living<'_> {
    fn name(&self, topic: TopicId) -> Option<&'static str> {
        TOPICS.into_iter().find(|name| self.log.topic(name) == Some(topic))
    }
}

impl Liveness for Living<'_> {
    fn first_live(&self, topic: TopicId) -> u64 {
        self.name(topic).and_then(|name| self.dead.cuts.get(name).copied()).unwrap_or(1)
    }

    fn is_sparse(&self, topic: TopicId) -> bool {
        self.name(topic).is_some_and(|name| SPARSE.contains(&name))
    }

    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        let events = (first_seq..=last_seq).filter(|&seq| self.is_live(topic, seq)).count() as u64;
        self.counts.then_some(LiveCount { events, bytes: events * 150 })
    }

    fn is_live(&self, topic: TopicId, seq: u64) -> bool {
        self.name(topic).is_none_or(|name| !self.dead.has(name, seq))
    }
}
