//! The state of groups and topics that an engine keeps. It is the result of applying all state records in order (a fold). The
//! log applies the records again when it is opened, and saves the state in its checkpoints.

use super::closed_letters::ClosedLetters;
use super::state_record::{ADDRESSEE_FEATURE, GroupAttempts, GroupProgress, StateRecord};
use crate::delivery::SettledSeqs;
use parking_lot::Mutex;
use prombus_log::{State, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The state that an engine restored when it was opened.
#[derive(Clone, Debug, Default)]
pub struct RestoredState {
    /// The groups.
    pub groups: Vec<GroupState>,
    /// Settings of topics as JSON, by topic name.
    pub topic_settings: Vec<(String, String)>,
    /// Named values ([`StateRecord::Kept`]); the value of a name never changes.
    pub kept: Vec<(String, Vec<u8>)>,
    /// The closed dead letters of dead-letter topics.
    pub closed_letters: Vec<(TopicId, ClosedLetters)>,
    /// Whether the store may have events that are addressed to one group.
    pub has_addressees: bool,
}

/// The progress of a group in a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicProgress {
    /// The settled seqs.
    pub settled: SettledSeqs,
    /// The attempts at unsettled events, by seq.
    pub attempts: BTreeMap<u64, GroupAttempts>,
    /// The lease mark: no event above this seq was ever leased. After a restart, only events up to the mark may have been
    /// delivered before. Zero if the records were written by a version without lease marks.
    pub leased_to: u64,
}

/// The stored state of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// The number of the group.
    pub number: u32,
    /// The topic or pattern that the group reads, as the subscriber wrote it.
    pub subscription: String,
    /// The name of the group.
    pub name: String,
    /// More topics and patterns that the group reads.
    pub topics: Vec<String>,
    /// The filter as JSON; empty if the group has none.
    pub filter: String,
    /// When the group was created, in milliseconds since 1970.
    pub made_ms: i64,
    /// The group is deleted after this many milliseconds without members; `None` if its creator did not set a time.
    pub expire_ms: Option<u64>,
    /// Whether the group is paused: none of its members gets events.
    pub is_paused: bool,
    /// The progress by topic. In topics that are not listed the group starts at the first event.
    pub progress: BTreeMap<TopicId, TopicProgress>,
}

/// The floors of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFloors {
    /// The topic or pattern that the group reads, as the subscriber wrote it.
    pub subscription: String,
    /// The name of the group.
    pub name: String,
    /// The floor of each topic: everything up to this seq is settled.
    pub floors: Vec<(TopicId, u64)>,
}

impl GroupState {
    fn apply(&mut self, progress: GroupProgress) {
        let topic = self.progress.entry(progress.topic).or_default();
        for it in progress.attempts {
            topic.attempts.insert(it.seq, it);
        }
        for (first, last) in progress.settled {
            topic.settled.insert(first, last);
        }
        topic.leased_to = progress.leased_to.unwrap_or(topic.leased_to);
        let settled = &topic.settled;
        topic.attempts.retain(|&seq, _| !settled.contains(seq));
    }

    fn records(&self) -> impl Iterator<Item = StateRecord> + use<> {
        let made = StateRecord::Made {
            group: self.number,
            subscription: self.subscription.clone(),
            name: self.name.clone(),
            topics: self.topics.clone(),
            filter: self.filter.clone(),
            made_ms: self.made_ms,
            expire_ms: self.expire_ms,
            starts: self.progress.iter().map(|(&topic, it)| (topic, it.settled.floor())).collect(),
        };
        let above = self.progress.iter().map(|(&topic, it)| GroupProgress {
            topic,
            settled: it.settled.above().collect(),
            attempts: it.attempts.values().copied().collect(),
            leased_to: (it.leased_to > 0).then_some(it.leased_to),
        });
        let above =
            above.filter(|it| !it.settled.is_empty() || !it.attempts.is_empty() || it.leased_to.is_some());
        let progress = StateRecord::Progress { group: self.number, topics: above.collect() };
        let paused = StateRecord::Paused { group: self.number, is_paused: true };
        [made, progress].into_iter().chain(self.is_paused.then_some(paused))
    }
}

/// All groups of a store, the settings and first seqs of its topics, and its named values.
#[derive(Debug, Default)]
pub(super) struct FoldedState {
    groups: BTreeMap<u32, GroupState>,
    /// For topics from which retention removed events: the first seq that is still served.
    firsts: BTreeMap<TopicId, u64>,
    /// The settings of topics as JSON, by topic name.
    settings: BTreeMap<String, String>,
    /// Named values.
    kept: BTreeMap<String, Vec<u8>>,
    /// Features that the store uses.
    features: BTreeSet<String>,
    /// The closed dead letters, by dead-letter topic.
    closed_letters: BTreeMap<TopicId, ClosedLetters>,
    /// Why a record could not be applied; `None` if all were.
    broken: Option<String>,
}

impl FoldedState {
    fn apply(&mut self, tag: u32, body: &[u8]) -> Result<(), String> {
        let record = StateRecord::parse(tag, body)
            .ok_or_else(|| format!("a group record of kind {tag} cannot be decoded by this version"))?;
        match record {
            StateRecord::Made { group, subscription, name, topics, filter, made_ms, expire_ms, starts } => {
                let progress = starts.into_iter().map(|(topic, floor)| {
                    (topic, TopicProgress { settled: SettledSeqs::up_to(floor), ..TopicProgress::default() })
                });
                let progress = progress.collect();
                let state = GroupState {
                    number: group,
                    subscription,
                    name,
                    topics,
                    filter,
                    made_ms,
                    expire_ms,
                    is_paused: false,
                    progress,
                };
                self.groups.insert(group, state);
            }
            StateRecord::Progress { group, topics } => {
                // The group may have been deleted before this record was written.
                if let Some(state) = self.groups.get_mut(&group) {
                    topics.into_iter().for_each(|progress| state.apply(progress));
                }
            }
            StateRecord::Sought { group, floors } => {
                if let Some(state) = self.groups.get_mut(&group) {
                    for (topic, floor) in floors {
                        let settled = SettledSeqs::up_to(floor);
                        state.progress.insert(topic, TopicProgress { settled, ..TopicProgress::default() });
                    }
                }
            }
            StateRecord::Deleted { group } => {
                self.groups.remove(&group);
            }
            StateRecord::Paused { group, is_paused } => {
                if let Some(state) = self.groups.get_mut(&group) {
                    state.is_paused = is_paused;
                }
            }
            StateRecord::Cut { firsts } => {
                for (topic, seq) in firsts {
                    let first = self.firsts.entry(topic).or_default();
                    *first = seq.max(*first);
                    if let Some(letters) = self.closed_letters.get_mut(&topic) {
                        letters.forget_below(*first);
                    }
                }
            }
            StateRecord::TopicSet { topic, settings } => {
                if settings.is_empty() {
                    self.settings.remove(&topic);
                } else {
                    self.settings.insert(topic, settings);
                }
            }
            StateRecord::Kept { name, value } => {
                self.kept.entry(name).or_insert(value);
            }
            StateRecord::Requires { feature } if feature == ADDRESSEE_FEATURE => {
                self.features.insert(feature);
            }
            StateRecord::Requires { feature } => {
                return Err(format!(
                    "the store uses the feature {feature:?}, which this version does not support; use a newer prombus"
                ));
            }
            StateRecord::LettersClosed { topic, closing, seqs } => {
                let letters = self.closed_letters.entry(topic).or_default();
                for (first, last) in seqs {
                    letters.close(closing, first, last);
                }
            }
            StateRecord::TopicDeleted { topic, name } => {
                self.firsts.remove(&topic);
                self.closed_letters.remove(&topic);
                self.settings.remove(&name);
                for state in self.groups.values_mut() {
                    state.progress.remove(&topic);
                }
            }
        }
        Ok(())
    }

    /// Returns records that reproduce the whole state.
    fn records(&self) -> impl Iterator<Item = StateRecord> + '_ {
        let firsts: Vec<_> = self.firsts.iter().map(|(&topic, &seq)| (topic, seq)).collect();
        let cut = (!firsts.is_empty()).then_some(StateRecord::Cut { firsts });
        let settings = self.settings.iter().map(|(topic, settings)| StateRecord::TopicSet {
            topic: topic.clone(),
            settings: settings.clone(),
        });
        let kept = self.kept.iter();
        let kept = kept.map(|(name, value)| StateRecord::Kept { name: name.clone(), value: value.clone() });
        let features = self.features.iter().map(|it| StateRecord::Requires { feature: it.clone() });
        let letters = self.closed_letters.iter().flat_map(|(&topic, letters)| letters.records(topic));
        let groups = self.groups.values().flat_map(GroupState::records);
        groups.chain(cut).chain(settings).chain(kept).chain(features).chain(letters)
    }

    /// The version of the format that the state needs. A state without features, closed letters and paused groups can be read by
    /// version 2.
    fn version(&self) -> u8 {
        let has_paused = self.groups.values().any(|group| group.is_paused);
        let is_old = self.features.is_empty() && self.closed_letters.is_empty() && !has_paused;
        if is_old { SNAPSHOT_VERSION - 1 } else { SNAPSHOT_VERSION }
    }
}

/// The fold over state records: groups, first seqs, settings and named values. The engine, which applies records, and the bus,
/// which reads the result, share it.
#[derive(Clone, Debug, Default)]
pub struct StateFold(Arc<Mutex<FoldedState>>);

impl StateFold {
    /// The current groups.
    ///
    /// # Errors
    /// If a record could not be decoded.
    pub fn all(&self) -> Result<Vec<GroupState>, String> {
        let groups = self.0.lock();
        match &groups.broken {
            Some(why) => Err(why.clone()),
            None => Ok(groups.groups.values().cloned().collect()),
        }
    }

    /// For topics from which retention removed events: the first seq that is still served.
    pub fn firsts(&self) -> Vec<(TopicId, u64)> {
        self.0.lock().firsts.iter().map(|(&topic, &seq)| (topic, seq)).collect()
    }

    /// Applies a record in the encoding of [`StateRecord::put`]. A record that cannot be decoded makes [`all`](Self::all) fail.
    pub fn apply_record(&self, tag: u32, body: &[u8]) {
        State::apply(&mut self.clone(), tag, body);
    }

    /// Encodes the whole state, for [`from_bytes`](Self::from_bytes).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        State::snapshot(self, &mut bytes);
        bytes
    }

    /// Decodes the state from the result of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// If the bytes cannot be decoded, or a newer version wrote them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut fold = Self::default();
        State::restore(&mut fold, bytes)?;
        Ok(fold)
    }

    /// The subscription, the name and the floors of a group; `None` if it does not exist.
    pub fn group_floors(&self, group: u32) -> Option<GroupFloors> {
        let fold = self.0.lock();
        let state = fold.groups.get(&group)?;
        let floors = state.progress.iter().map(|(&topic, it)| (topic, it.settled.floor())).collect();
        Some(GroupFloors { subscription: state.subscription.clone(), name: state.name.clone(), floors })
    }

    /// The numbers of all groups.
    pub fn group_numbers(&self) -> Vec<u32> {
        self.0.lock().groups.keys().copied().collect()
    }

    /// The settings of a topic as JSON, if it has any.
    pub fn topic_settings(&self, topic: &str) -> Option<String> {
        self.0.lock().settings.get(topic).cloned()
    }

    /// The current groups, settings and named values; without groups if a record could not be decoded.
    pub fn restored(&self) -> RestoredState {
        let fold = self.0.lock();
        RestoredState {
            groups: if fold.broken.is_none() { fold.groups.values().cloned().collect() } else { Vec::new() },
            topic_settings: fold.settings.iter().map(|(name, json)| (name.clone(), json.clone())).collect(),
            kept: fold.kept.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            closed_letters: fold.closed_letters.iter().map(|(&id, letters)| (id, letters.clone())).collect(),
            has_addressees: fold.features.contains(ADDRESSEE_FEATURE),
        }
    }
}

/// The version of the format of [`StateFold::to_bytes`], which later versions of the program must be able to decode. Version 2
/// adds lease marks, version 3 features, closed dead letters and paused groups. All versions are a list of records and are decoded in the same
/// way.
const SNAPSHOT_VERSION: u8 = 3;

impl State for StateFold {
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let mut groups = FoldedState::default();
        let Some((&version, mut rest)) = snapshot.split_first() else {
            *self.0.lock() = groups;
            return Ok(());
        };
        if version > SNAPSHOT_VERSION {
            return Err(format!(
                "the group state has version {version}; this program supports {SNAPSHOT_VERSION}"
            ));
        }
        while !rest.is_empty() {
            let (head, body) = rest.split_at_checked(8).ok_or("the group snapshot is truncated")?;
            let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
            let (body, after) =
                body.split_at_checked(number(4) as usize).ok_or("the group snapshot is truncated")?;
            groups.apply(number(0), body)?;
            rest = after;
        }
        *self.0.lock() = groups;
        Ok(())
    }

    fn apply(&mut self, tag: u32, body: &[u8]) {
        let mut groups = self.0.lock();
        if let Err(why) = groups.apply(tag, body) {
            tracing::error!("{why}");
            groups.broken.get_or_insert(why);
        }
    }

    fn snapshot(&self, into: &mut Vec<u8>) {
        let state = self.0.lock();
        into.push(state.version());
        for record in state.records() {
            into.extend_from_slice(&record.tag().to_le_bytes());
            let length_at = into.len();
            into.extend_from_slice(&[0; 4]);
            record.put(into);
            let length = (into.len() - length_at - 4) as u32;
            into[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state_record::LetterClosing;
    use super::*;

    #[test]
    fn a_snapshot_restores_the_state_of_the_records() {
        let topic = TopicId::from_number(3);
        let mut groups = StateFold::default();
        let mut apply = |record: StateRecord| {
            let mut body = Vec::new();
            record.put(&mut body);
            groups.apply(record.tag(), &body);
        };
        apply(StateRecord::Made {
            group: 1,
            subscription: "a.*".into(),
            name: "g".into(),
            topics: vec!["b".into()],
            filter: String::new(),
            made_ms: 5,
            expire_ms: Some(60_000),
            starts: vec![(topic, 10)],
        });
        let attempts = GroupAttempts { seq: 12, attempts: 2, not_before_ms: 9, reason: None };
        let settled = vec![(11, 11), (13, 20)];
        let progress = GroupProgress { topic, settled, attempts: vec![attempts], leased_to: Some(40) };
        apply(StateRecord::Progress { group: 1, topics: vec![progress] });
        apply(StateRecord::Progress { group: 99, topics: vec![] });
        apply(StateRecord::Paused { group: 99, is_paused: true });
        apply(StateRecord::Kept { name: "key".into(), value: vec![1, 2] });
        apply(StateRecord::Kept { name: "key".into(), value: vec![3] });
        let mut snapshot = Vec::new();
        groups.snapshot(&mut snapshot);
        assert_eq!(snapshot[0], 2, "older versions can read it");
        for record in [
            StateRecord::Paused { group: 1, is_paused: true },
            StateRecord::Requires { feature: ADDRESSEE_FEATURE.into() },
            StateRecord::LettersClosed { topic, closing: LetterClosing::Redriven, seqs: vec![(4, 6)] },
        ] {
            let mut body = Vec::new();
            record.put(&mut body);
            groups.apply(record.tag(), &body);
        }
        snapshot.clear();
        groups.snapshot(&mut snapshot);
        assert_eq!(snapshot[0], 3);
        let mut restored = StateFold::default();
        restored.restore(&snapshot).expect("it was just written");
        let all = restored.all().expect("nothing is broken");
        assert_eq!(all, groups.all().expect("nothing is broken"));
        assert_eq!(restored.restored().kept, [("key".to_owned(), vec![1, 2])]);
        assert_eq!(restored.restored().closed_letters[0].1.open_in(1, 8), 5);
        assert!(restored.0.lock().features.contains(ADDRESSEE_FEATURE));
        assert_eq!(all[0].progress[&topic].settled.floor(), 11);
        assert_eq!(all[0].progress[&topic].attempts[&12], attempts);
        assert_eq!(all[0].progress[&topic].leased_to, 40);
        assert!(all[0].is_paused);
        assert!(restored.restore(&snapshot[..snapshot.len() - 1]).is_err());
        assert!(restored.restore(&[9]).is_err());
        let mut unknown = Vec::new();
        StateRecord::Requires { feature: "time-travel".into() }.put(&mut unknown);
        restored.apply(20, &unknown);
        assert!(restored.all().expect_err("the feature is unknown").contains("\"time-travel\""));
    }
}
