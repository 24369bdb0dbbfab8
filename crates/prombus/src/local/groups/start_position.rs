//! Resolves where a group starts: converts each form of `from` to one floor per topic, the seq after which the group starts.
//!
//! This needs lookups, which may have to wait. So it is done before the creation lock is taken; when the caller holds the lock,
//! it checks that no topic was created in between.

use crate::backend::event_id_of;
use crate::engine::{Engine, EventHead, EventId, TopicId};
use crate::error::ReadError;
use prombus_protocol::{Start, Uuid};
use std::collections::HashMap;

/// The maximum number of consecutive events with publisher-chosen ids among which a gap is searched. If there are more, a gap
/// is assumed.
const GAP_SEARCH_MAX: u64 = 1_000;
/// The maximum number of events that are examined to find the position of a removed event. More are needed only if publishers
/// chose nearly all ids.
const HEADS_MAX: u32 = 10_000;

/// A start position after all lookups.
#[derive(Clone, Debug)]
pub(in crate::local) enum ResolvedStart {
    Earliest,
    /// The group existed already, so no start position was resolved.
    NotNeeded,
    /// The floors of the topics that existed at the time of the lookups.
    Floors(HashMap<TopicId, u64>),
}

impl ResolvedStart {
    /// Resolves a start position in these topics.
    pub(in crate::local) async fn resolve(
        engine: &dyn Engine,
        topics: &[TopicId],
        start: Start,
    ) -> Result<Self, ReadError> {
        let floors = match start {
            Start::Earliest => return Ok(Self::Earliest),
            // After all events that were published before, including those that are not durable yet.
            Start::Latest => {
                let mut floors = HashMap::with_capacity(topics.len());
                for &topic in topics {
                    floors.insert(topic, engine.appended_seq(topic).await?);
                }
                floors
            }
            Start::Ts(ts) => {
                let mut floors = HashMap::with_capacity(topics.len());
                for &topic in topics {
                    floors.insert(topic, floor_at_time(engine, topic, ts).await?);
                }
                floors
            }
            Start::AfterId(id) => floors_after_id(engine, topics, id).await?,
        };
        Ok(Self::Floors(floors))
    }

    /// The floors of these topics. `None` if a topic that did not exist at the time of the lookups has events: then the start
    /// position must be resolved again.
    pub(in crate::local) fn floors(&self, engine: &dyn Engine, topics: &[TopicId]) -> Option<Vec<u64>> {
        // A group never starts at an event that retention has removed.
        let removed = |topic: TopicId| engine.retained_from(topic).saturating_sub(1);
        let floor = |&topic: &TopicId| match self {
            Self::Earliest => Some(removed(topic)),
            Self::NotNeeded => None,
            Self::Floors(floors) => match floors.get(&topic) {
                Some(&floor) => Some(floor.max(removed(topic))),
                None if engine.last_seq(topic) == 0 => Some(0),
                None => None,
            },
        };
        topics.iter().map(floor).collect()
    }
}

/// The seq before the first event with this `ts` or a later one.
async fn floor_at_time(engine: &dyn Engine, topic: TopicId, ts: i64) -> Result<u64, ReadError> {
    let first = engine.first_at_or_after(topic, ts).await?;
    Ok(first.map_or_else(|| engine.last_seq(topic), |seq| seq - 1))
}

async fn floors_after_id(
    engine: &dyn Engine,
    topics: &[TopicId],
    id: Uuid,
) -> Result<HashMap<TopicId, u64>, ReadError> {
    let Some((at, seq)) = place_of_id(engine, topics, event_id_of(id)).await? else {
        return Err(ReadError::UnknownId(id));
    };
    let head = match engine.head_at_or_after(at, seq).await {
        Ok(head) => head.filter(|head| head.seq == seq),
        // The topic was deleted meanwhile, so its events are gone.
        Err(ReadError::UnknownTopic(_)) => None,
        Err(error) => return Err(error),
    };
    let mut floors = HashMap::with_capacity(topics.len());
    for &topic in topics {
        let floor = match head {
            _ if topic == at => seq,
            // The other topics start at the `ts` of the event.
            Some(head) => floor_at_time(engine, topic, head.ts).await?,
            None => 0,
        };
        floors.insert(topic, floor);
    }
    Ok(floors)
}

/// The topic and the seq of the event with this id. If the event was removed: the topic, and the seq before the gap that it
/// left. `None` if neither is found.
async fn place_of_id(
    engine: &dyn Engine,
    topics: &[TopicId],
    id: EventId,
) -> Result<Option<(TopicId, u64)>, ReadError> {
    for &topic in topics {
        if let Some(seq) = engine.find(topic, id).await? {
            return Ok(Some((topic, seq)));
        }
    }
    // A gap is considered only if none of the topics has the id.
    for &topic in topics {
        if let Some(seq) = gap_of(engine, topic, id).await? {
            return Ok(Some((topic, seq)));
        }
    }
    Ok(None)
}

/// The seq before the gap that a removed event with this id left in a topic; `None` without such a gap.
async fn gap_of(engine: &dyn Engine, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError> {
    if !engine.is_own_id(id) {
        return Ok(None);
    }
    let last_seq = engine.last_seq(topic);
    let first = engine.first_seq(topic).await?.unwrap_or(last_seq + 1);
    // Binary search: ids that the engine generated rise with the seqs. At seqs below `low`, such ids are at most `id`; at
    // `high` and above, they are greater.
    let (mut low, mut high) = (first, last_seq + 1);
    let mut lookups_left = HEADS_MAX;
    while low < high {
        let middle = low + (high - low) / 2;
        match own_head(engine, topic, middle, high, &mut lookups_left).await? {
            Some(head) if head.id <= id => low = head.seq + 1,
            _ if lookups_left == 0 => return Ok(None),
            _ => high = middle,
        }
    }
    let is_there = (low == first && first > 1) || has_gap(engine, topic, low, last_seq).await?;
    Ok(is_there.then_some(low - 1))
}

/// Whether a seq is missing between this seq and the next event whose id the engine generated.
async fn has_gap(engine: &dyn Engine, topic: TopicId, from: u64, last_seq: u64) -> Result<bool, ReadError> {
    let end = from.saturating_add(GAP_SEARCH_MAX);
    for seq in from..end {
        match engine.head_at_or_after(topic, seq).await? {
            None => return Ok(seq <= last_seq),
            Some(head) if head.seq > seq => return Ok(true),
            Some(head) if !head.is_client_id => return Ok(false),
            Some(_) => {}
        }
    }
    Ok(true)
}

/// The first event in a range whose id the engine generated, with at most `lookups_left` lookups.
async fn own_head(
    engine: &dyn Engine,
    topic: TopicId,
    from: u64,
    end: u64,
    lookups_left: &mut u32,
) -> Result<Option<EventHead>, ReadError> {
    let mut from = from;
    while let Some(left) = lookups_left.checked_sub(1)
        && let Some(head) = engine.head_at_or_after(topic, from).await?.filter(|head| head.seq < end)
    {
        *lookups_left = left;
        if !head.is_client_id {
            return Ok(Some(head));
        }
        from = head.seq + 1;
    }
    Ok(None)
}
