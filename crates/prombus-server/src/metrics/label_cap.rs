//! The cap on metric labels. Names come from clients, so at most `metrics_labels_max` topics, as many groups and as many members
//! have labels of their own. The rest is summed under `_other`.

use prombus::{DeadLetterFigures, GroupAge, GroupFigures, TopicFigures};
use std::collections::HashMap;

/// The label of the row that sums the topics, groups or members without a label of their own.
pub(super) const OTHER: &str = "_other";

/// The number of published events of each topic. The `labels_max` topics with the most events get labels of their own.
pub(super) fn topics(topics: &[TopicFigures], labels_max: usize) -> Vec<(&str, u64)> {
    capped(topics.iter().map(|it| (it.topic.as_str(), it.published)).collect(), labels_max)
}

/// The number of open letters of each dead-letter topic. The `labels_max` topics with the most get labels of their own.
pub(super) fn dead_letters(topics: &[DeadLetterFigures], labels_max: usize) -> Vec<(&str, u64)> {
    capped(topics.iter().map(|it| (it.topic.as_str(), it.open)).collect(), labels_max)
}

/// The `labels_max` highest values, and the sum of the others.
fn capped(mut values: Vec<(&str, u64)>, labels_max: usize) -> Vec<(&str, u64)> {
    values.sort_by_key(|&(_, value)| std::cmp::Reverse(value));
    let rest = values.split_off(values.len().min(labels_max));
    if !rest.is_empty() {
        values.push((OTHER, rest.iter().map(|(_, value)| value).sum()));
    }
    values
}

/// A group's row: its labels and figures.
pub(super) struct GroupRow<'a> {
    pub(super) labels: GroupLabels<'a>,
    pub(super) figures: GroupFigures,
}

/// A row for each of the first `labels_max` groups, and one for the sum of the rest.
pub(super) fn groups(groups: &[GroupFigures], labels_max: usize) -> Vec<GroupRow<'_>> {
    let (named, rest) = groups.split_at(groups.len().min(labels_max));
    let mut rows: Vec<GroupRow<'_>> = named
        .iter()
        .map(|it| GroupRow { labels: [("topic", &it.topic), ("group", &it.group)], figures: it.clone() })
        .collect();
    let summed = rest.iter().cloned().reduce(|mut sum, it| {
        let (into, of) = (&mut sum.counters, it.counters);
        into.delivered += of.delivered;
        into.acked += of.acked;
        into.nacked += of.nacked;
        into.dead_lettered += of.dead_lettered;
        into.redelivered_expired += of.redelivered_expired;
        into.redelivered_nacked += of.redelivered_nacked;
        into.redelivered_lost += of.redelivered_lost;
        into.redelivered_restarted += of.redelivered_restarted;
        into.stale += of.stale;
        into.missed += of.missed;
        sum.lag += it.lag;
        sum.in_flight += it.in_flight;
        sum.in_flight_outside += it.in_flight_outside;
        sum.members += it.members;
        sum
    });
    let labels = [("topic", OTHER), ("group", OTHER)];
    rows.extend(summed.map(|figures| GroupRow { labels, figures }));
    rows
}

/// Labels of a group's row: topic and group.
type GroupLabels<'a> = [(&'static str, &'a str); 2];

/// The ages of the groups that have a row of their own in [`groups`], and the highest age of the rest. Unknown ages are left out.
pub(super) fn ages<'a>(
    groups: &'a [GroupFigures],
    ages: &[GroupAge],
    labels_max: usize,
) -> Vec<(GroupLabels<'a>, u64)> {
    let known = ages.iter().filter_map(|it| Some(((it.topic.as_str(), it.group.as_str()), it.age_ms?)));
    let known: HashMap<(&str, &str), u64> = known.collect();
    let age_of = |it: &GroupFigures| known.get(&(it.topic.as_str(), it.group.as_str())).copied();
    let (named, rest) = groups.split_at(groups.len().min(labels_max));
    let labels = |it: &'a GroupFigures| [("topic", it.topic.as_str()), ("group", it.group.as_str())];
    let mut rows: Vec<_> = named.iter().filter_map(|it| Some((labels(it), age_of(it)?))).collect();
    rows.extend(rest.iter().filter_map(age_of).max().map(|age| ([("topic", OTHER), ("group", OTHER)], age)));
    rows
}

/// Labels of a member's row: topic, group, member.
type MemberLabels<'a> = [(&'static str, &'a str); 3];

/// The deliveries in flight for each member name. Clients choose these names, so they are limited separately: to `labels_max` in
/// all groups together.
pub(super) fn members(groups: &[GroupFigures], labels_max: usize) -> Vec<(MemberLabels<'_>, u64)> {
    let members = groups.iter().flat_map(|group| {
        group.by_name.iter().map(move |(name, &in_flight)| {
            let labels =
                [("topic", group.topic.as_str()), ("group", group.group.as_str()), ("member", name.as_str())];
            (labels, in_flight as u64)
        })
    });
    let mut rows: Vec<_> = members.collect();
    let rest = rows.split_off(rows.len().min(labels_max));
    if !rest.is_empty() {
        let labels = [("topic", OTHER), ("group", OTHER), ("member", OTHER)];
        rows.push((labels, rest.iter().map(|(_, in_flight)| in_flight).sum()));
    }
    rows
}
