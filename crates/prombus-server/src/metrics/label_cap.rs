//! The cap on metric labels. Names come from clients, so at most `metrics_labels_max` topics, as many groups and as many members
//! have labels of their own. The rest is summed under `_other`.

use super::other_total::OtherTotal;
use super::own_labels::{OTHER, OwnLabels};
use prombus::delivery::GroupCounters;
use prombus::{DeadLetterFigures, GroupAge, GroupFigures, TopicFigures};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Which topics and groups have labels of their own, and the counters of the rest. Remembered from one scrape to the next. Its size
/// is limited by the number of topics and groups that exist.
pub(super) struct LabelCap {
    /// The option `metrics_labels_max`.
    labels_max: usize,
    topics: OwnLabels,
    other_topics: OtherTotal<u64>,
    dead_letters: OwnLabels,
    /// Names as [`group_name`] returns them.
    groups: OwnLabels,
    other_groups: OtherTotal<GroupCounters>,
}

/// A group's row: its labels and figures.
pub(super) struct GroupRow<'a> {
    pub(super) labels: GroupLabels<'a>,
    pub(super) figures: GroupFigures,
}

/// Labels of a group's row: topic and group.
type GroupLabels<'a> = [(&'static str, &'a str); 2];

/// Labels of a member's row: topic, group, member.
type MemberLabels<'a> = [(&'static str, &'a str); 3];

const OTHER_GROUP: GroupLabels<'static> = [("topic", OTHER), ("group", OTHER)];

impl LabelCap {
    pub(super) fn new(labels_max: usize) -> Self {
        Self {
            labels_max,
            topics: OwnLabels::new(labels_max),
            // The number of published events of a topic is that of its newest seq.
            other_topics: OtherTotal::relative(),
            dead_letters: OwnLabels::new(labels_max),
            groups: OwnLabels::new(labels_max),
            other_groups: OtherTotal::default(),
        }
    }

    /// The number of published events of each topic. Of several new topics, those with the most events get labels first.
    pub(super) fn topics<'a>(&mut self, topics: &'a [TopicFigures]) -> Vec<(&'a str, u64)> {
        let values = topics.iter().map(|it| (it.topic.as_str(), it.published)).collect();
        let (mut rows, rest) = split(&mut self.topics, values);
        let other = self.other_topics.add(rest.into_iter());
        rows.extend(other.map(|published| (OTHER, published)));
        rows
    }

    /// The number of open letters of each dead-letter topic. Of several new ones, those with the most get labels first.
    pub(super) fn dead_letters<'a>(&mut self, topics: &'a [DeadLetterFigures]) -> Vec<(&'a str, u64)> {
        let values = topics.iter().map(|it| (it.topic.as_str(), it.open)).collect();
        let (mut rows, rest) = split(&mut self.dead_letters, values);
        if !rest.is_empty() {
            rows.push((OTHER, rest.iter().map(|(_, open)| open).sum()));
        }
        rows
    }

    /// A row for each group with labels of its own, and one for the sum of the rest.
    pub(super) fn groups<'a>(&mut self, groups: &'a [GroupFigures]) -> Vec<GroupRow<'a>> {
        let names: Vec<String> = groups.iter().map(group_name).collect();
        self.groups.assign(names.iter().map(String::as_str));
        let mut rows = Vec::new();
        let mut rest = Vec::new();
        for (it, name) in groups.iter().zip(&names) {
            if self.groups.contains(name) {
                rows.push(GroupRow { labels: labels_of(it), figures: it.clone() });
            } else {
                rest.push((name.as_str(), it));
            }
        }
        if let Some(counters) = self.other_groups.add(rest.iter().map(|(name, it)| (*name, it.counters))) {
            let rest = rest.into_iter().map(|(_, it)| it);
            rows.push(GroupRow { labels: OTHER_GROUP, figures: sum(rest, counters) });
        }
        rows
    }

    /// The ages of the groups that have labels of their own since the last call of [`groups`](Self::groups), and the highest age of
    /// the rest. Unknown ages are left out.
    pub(super) fn ages<'a>(
        &self,
        groups: &'a [GroupFigures],
        ages: &[GroupAge],
    ) -> Vec<(GroupLabels<'a>, u64)> {
        let known = ages.iter().filter_map(|it| Some(((it.topic.as_str(), it.group.as_str()), it.age_ms?)));
        let known: HashMap<(&str, &str), u64> = known.collect();
        let age_of = |it: &GroupFigures| known.get(&(it.topic.as_str(), it.group.as_str())).copied();
        let (named, rest): (Vec<_>, Vec<_>) =
            groups.iter().partition(|it| self.groups.contains(&group_name(it)));
        let mut rows: Vec<_> =
            named.into_iter().filter_map(|it| Some((labels_of(it), age_of(it)?))).collect();
        rows.extend(rest.into_iter().filter_map(age_of).max().map(|age| (OTHER_GROUP, age)));
        rows
    }

    /// The deliveries in flight for each member name. Clients choose these names, so they are limited separately: to `labels_max`
    /// in all groups together.
    pub(super) fn members<'a>(&self, groups: &'a [GroupFigures]) -> Vec<(MemberLabels<'a>, u64)> {
        let other = [("topic", OTHER), ("group", OTHER), ("member", OTHER)];
        let members = groups.iter().flat_map(|group| {
            group.by_name.iter().map(move |(name, &in_flight)| {
                let [topic, group] = labels_of(group);
                ([topic, group, ("member", name.as_str())], in_flight as u64)
            })
        });
        let (mut rows, mut rest): (Vec<_>, Vec<_>) = members.partition(|(labels, _)| *labels != other);
        rest.extend(rows.drain(rows.len().min(self.labels_max)..));
        if !rest.is_empty() {
            rows.push((other, rest.iter().map(|(_, in_flight)| in_flight).sum()));
        }
        rows
    }
}

/// Splits the values into those whose names have labels of their own and the rest.
#[allow(clippy::type_complexity, reason = "two parts of the argument")]
fn split<'a>(
    own: &mut OwnLabels,
    mut values: Vec<(&'a str, u64)>,
) -> (Vec<(&'a str, u64)>, Vec<(&'a str, u64)>) {
    values.sort_by_key(|&(_, value)| Reverse(value));
    own.assign(values.iter().map(|&(name, _)| name));
    values.into_iter().partition(|&(name, _)| own.contains(name))
}

/// The name of a group among the groups of all subscriptions. Neither part can contain the separator.
fn group_name(figures: &GroupFigures) -> String {
    let GroupFigures { topic, group, .. } = figures;
    // A group with the labels of the rest must not have a row of its own.
    if labels_of(figures) == OTHER_GROUP { OTHER.to_owned() } else { format!("{topic}\0{group}") }
}

fn labels_of(figures: &GroupFigures) -> GroupLabels<'_> {
    [("topic", &figures.topic), ("group", &figures.group)]
}

/// The figures of all these groups together, with these counters.
fn sum<'a>(groups: impl Iterator<Item = &'a GroupFigures>, counters: GroupCounters) -> GroupFigures {
    let mut sum = GroupFigures {
        topic: OTHER.to_owned(),
        group: OTHER.to_owned(),
        counters,
        lag: 0,
        in_flight: 0,
        in_flight_outside: 0,
        members: 0,
        by_name: BTreeMap::new(),
    };
    for it in groups {
        sum.lag += it.lag;
        sum.in_flight += it.in_flight;
        sum.in_flight_outside += it.in_flight_outside;
        sum.members += it.members;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(values: &[(&str, u64)]) -> Vec<TopicFigures> {
        let topic = |(name, published): &(&str, u64)| TopicFigures {
            topic: name.parse().expect("a topic"),
            published: *published,
        };
        values.iter().map(topic).collect()
    }

    fn group(topic: &str, acked: u64, lag: u64) -> GroupFigures {
        let counters = GroupCounters { acked, ..GroupCounters::default() };
        GroupFigures {
            topic: topic.to_owned(),
            group: "g".to_owned(),
            lag,
            ..sum(std::iter::empty(), counters)
        }
    }

    /// The acks and the lag of each row.
    fn rows(cap: &mut LabelCap, groups: &[GroupFigures]) -> Vec<(String, u64, u64)> {
        let rows = cap.groups(groups);
        rows.iter().map(|it| (it.labels[0].1.to_owned(), it.figures.counters.acked, it.figures.lag)).collect()
    }

    #[test]
    fn a_topic_keeps_its_label_when_others_grow_and_the_rest_never_decreases() {
        let mut cap = LabelCap::new(2);
        let mut scrape = |values: &[(&str, u64)]| {
            let figures = topics(values);
            let mut rows: Vec<(String, u64)> =
                cap.topics(&figures).into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
            rows.sort();
            rows
        };
        let row = |name: &str, count| (name.to_owned(), count);
        assert_eq!(scrape(&[("a", 10), ("b", 5)]), [row("a", 10), row("b", 5)]);
        assert_eq!(scrape(&[("a", 10), ("b", 5), ("c", 4)]), [row("_other", 4), row("a", 10), row("b", 5)]);
        // `c` is now the largest.
        let grown = [("a", 10), ("b", 5), ("c", 100), ("d", 1)];
        assert_eq!(scrape(&grown), [row("_other", 101), row("a", 10), row("b", 5)]);
        // `c` was deleted and created again.
        let again = [("a", 10), ("b", 5), ("c", 1), ("d", 2)];
        assert_eq!(scrape(&again), [row("_other", 102), row("a", 10), row("b", 5)]);
        // The label of `a` is free. What `c` had before stays in the sum.
        assert_eq!(scrape(&[("b", 5), ("c", 3), ("d", 2)]), [row("_other", 102), row("b", 5), row("c", 3)]);
        assert_eq!(scrape(&[("b", 6), ("c", 4)]), [row("_other", 102), row("b", 6), row("c", 4)]);
    }

    #[test]
    fn the_counters_of_other_groups_never_decrease_and_their_gauges_are_those_of_now() {
        let mut cap = LabelCap::new(1);
        let row = |name: &str, acked, lag| (name.to_owned(), acked, lag);
        let both = [group("b", 5, 1), group("c", 7, 2)];
        assert_eq!(rows(&mut cap, &both), [row("b", 5, 1), row("_other", 7, 2)]);
        // `a` is before `b`, but `b` has the label.
        let three = [group("a", 1, 3), group("b", 5, 1), group("c", 8, 2)];
        assert_eq!(rows(&mut cap, &three), [row("b", 5, 1), row("_other", 9, 5)]);
        assert_eq!(rows(&mut cap, &three[..2]), [row("b", 5, 1), row("_other", 9, 3)]);
        assert_eq!(rows(&mut cap, &three[..1]), [row("a", 1, 3), row("_other", 9, 0)]);
    }

    #[test]
    fn a_topic_that_is_named_like_the_rest_is_a_part_of_it() {
        let mut cap = LabelCap::new(10);
        let figures = topics(&[(OTHER, 3), ("a", 1)]);
        assert_eq!(cap.topics(&figures), [("a", 1), (OTHER, 0)]);
        let grown = topics(&[(OTHER, 7), ("a", 2)]);
        assert_eq!(cap.topics(&grown), [("a", 2), (OTHER, 4)]);
        let mut other = group(OTHER, 2, 1);
        other.group = OTHER.to_owned();
        other.by_name.insert(OTHER.to_owned(), 4);
        let groups = [other, group(OTHER, 1, 1)];
        assert_eq!(cap.groups(&groups).iter().filter(|it| it.labels == OTHER_GROUP).count(), 1);
        assert_eq!(cap.members(&groups).len(), 1);
    }

    #[test]
    fn nothing_is_remembered_about_names_that_no_longer_exist() {
        let mut cap = LabelCap::new(2);
        for round in 0..100 {
            let names: Vec<String> = (0..5).map(|number| format!("t{round}.{number}")).collect();
            let values: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
            // Topics that exist at the start are counted from then on.
            assert_eq!(cap.topics(&topics(&values)).last(), Some(&(OTHER, 3 * round)));
        }
        assert_eq!((cap.topics.len(), cap.other_topics.len()), (2, 3));
    }
}
