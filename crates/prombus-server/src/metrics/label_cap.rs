//! The cap on metric labels. Names come from clients, so at most `metrics_labels_max` topics, as many groups and as many members
//! have labels of their own. The rest is summed under `_other`.

use prombus::{GroupFigures, TopicFigures};

/// The label of the row that sums the topics, groups or members without a label of their own.
pub(super) const OTHER: &str = "_other";

/// The number of published events of each topic. The `labels_max` topics with the most events get labels of their own.
pub(super) fn topics(topics: &[TopicFigures], labels_max: usize) -> Vec<(&str, u64)> {
    let mut topics: Vec<_> = topics.iter().map(|it| (it.topic.as_str(), it.published)).collect();
    topics.sort_by_key(|&(_, published)| std::cmp::Reverse(published));
    let rest = topics.split_off(topics.len().min(labels_max));
    if !rest.is_empty() {
        topics.push((OTHER, rest.iter().map(|(_, published)| published).sum()));
    }
    topics
}

/// A group's row: its labels and figures.
pub(super) struct GroupRow<'a> {
    pub(super) labels: [(&'static str, &'a str); 2],
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
