//! The groups, by name and by the topics that they read. When a topic is created, its readers are looked up here.

use crate::local::groups::cell::GroupCell;
use prombus_protocol::{Pattern, Topic};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// All groups.
#[derive(Default)]
pub(in crate::local) struct GroupTable {
    /// The groups by subscription (as the client wrote it) and name.
    by_name: BTreeMap<(String, String), Arc<GroupCell>>,
    /// Groups whose subscription or list of topics names a topic without a wildcard, by that topic.
    by_topic: HashMap<Topic, Vec<Arc<GroupCell>>>,
    /// Groups with a pattern that contains a wildcard, by number. For each topic, the patterns of all these groups
    /// are checked.
    with_wildcards: BTreeMap<u32, Arc<GroupCell>>,
}

fn key_of(cell: &GroupCell) -> (String, String) {
    (cell.spec.subscription.as_str().to_owned(), cell.spec.group.as_str().to_owned())
}

impl GroupTable {
    pub(in crate::local) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(in crate::local) fn get(&self, subscription: &str, group: &str) -> Option<Arc<GroupCell>> {
        self.by_name.get(&(subscription.to_owned(), group.to_owned())).cloned()
    }

    /// All groups, in the order of their names.
    pub(in crate::local) fn all(&self) -> Vec<Arc<GroupCell>> {
        self.by_name.values().cloned().collect()
    }

    /// The subscriptions and names of groups whose subscription begins with `prefix` and that sort after `after`: at
    /// most `limit` of them, in order.
    pub(in crate::local) fn names(
        &self,
        prefix: &str,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Vec<(String, String)> {
        let first = Bound::Included((prefix.to_owned(), String::new()));
        let after = after.map(|(topic, group)| (topic.to_owned(), group.to_owned()));
        let start = match after {
            Some(after) if after.0.as_str() >= prefix => Bound::Excluded(after),
            _ => first,
        };
        let names = self.by_name.range((start, Bound::Unbounded)).map(|(name, _)| name);
        names.take_while(|(topic, _)| topic.starts_with(prefix)).take(limit).cloned().collect()
    }

    pub(in crate::local) fn insert(&mut self, cell: &Arc<GroupCell>) {
        self.by_name.insert(key_of(cell), Arc::clone(cell));
        for pattern in cell.patterns() {
            match pattern.as_topic() {
                Some(topic) => self.by_topic.entry(topic).or_default().push(Arc::clone(cell)),
                None => {
                    self.with_wildcards.insert(cell.number, Arc::clone(cell));
                }
            }
        }
    }

    pub(in crate::local) fn remove(&mut self, cell: &Arc<GroupCell>) {
        self.by_name.remove(&key_of(cell));
        self.with_wildcards.remove(&cell.number);
        for topic in cell.patterns().filter_map(Pattern::as_topic) {
            if let Some(cells) = self.by_topic.get_mut(&topic) {
                cells.retain(|other| !Arc::ptr_eq(other, cell));
                if cells.is_empty() {
                    self.by_topic.remove(&topic);
                }
            }
        }
    }

    /// The groups that read a topic of this name, in the order of their creation.
    pub(in crate::local) fn readers_of(&self, topic: &Topic) -> Vec<Arc<GroupCell>> {
        let wildcards = self.with_wildcards.values().filter(|cell| cell.reads(topic));
        let named = self.by_topic.get(topic).into_iter().flatten();
        let mut cells: Vec<Arc<GroupCell>> = wildcards.chain(named).cloned().collect();
        cells.sort_unstable_by_key(|cell| cell.number);
        cells.dedup_by_key(|cell| cell.number);
        cells
    }
}
