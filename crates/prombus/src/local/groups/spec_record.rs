//! The specification of a group (its topics, its filter and its expiry): the records that store it, and the check that a member
//! which joins asks for the same one.

use super::cell::patterns;
use crate::backend::GroupSpec;
use crate::delivery::MARK_AHEAD;
use crate::engine::{GroupProgress, GroupState, StateRecord, TopicId};
use crate::error::GroupError;
use prombus_protocol::{Filter, GroupName, Pattern, Start};

/// The records that create a group: the group itself, and its first lease marks. A *lease mark* is the seq up to which events may
/// be leased; it must be durable before they are. With these marks the first pull need not wait for another commit.
pub(super) fn creation_records(
    number: u32,
    spec: &GroupSpec,
    made_ms: i64,
    topics: &[TopicId],
    floors: &[u64],
) -> [StateRecord; 2] {
    let made = StateRecord::Made {
        group: number,
        subscription: spec.subscription.as_str().to_owned(),
        name: spec.group.as_str().to_owned(),
        topics: spec.topics.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
        filter: filter_text(spec.filter.as_ref()),
        made_ms,
        expire_ms: spec.expire_ms,
        starts: topics.iter().copied().zip(floors.iter().copied()).collect(),
    };
    [made, mark_record(number, topics, floors)]
}

/// The first lease mark in a topic in which the group starts after this seq.
pub(super) fn first_mark(floor: u64) -> u64 {
    floor.saturating_add(MARK_AHEAD)
}

/// The record of the first lease marks of a group that starts after these seqs.
pub(super) fn mark_record(group: u32, topics: &[TopicId], floors: &[u64]) -> StateRecord {
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

/// The specification of a stored group.
pub(super) fn spec_of(state: &GroupState) -> Result<GroupSpec, String> {
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

/// Returns an error if the topics or the filter differ, because they must be the same for all members of a group.
pub(super) fn check_conflict(known: &GroupSpec, asked: &GroupSpec) -> Result<(), GroupError> {
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
