//! Rules: who may do what with which topics and groups, on top of scopes.

use super::pattern::{covers, overlaps};
use prombus_protocol::Pattern;

/// What a rule says to what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Yes.
    Allow,
    /// No.
    Deny,
}

/// What is done with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An event is written.
    Publish,
    /// Events are read: subscribe, replay, export, state.
    Subscribe,
}

/// A line of the list of rules. The first that matches counts.
///
/// A rule that names groups is about reading with one of these groups: it matches neither a publish nor a read without a
/// group (replay, export, SSE, state).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it says.
    pub effect: Effect,
    /// Names of tokens, or `sub` of JWTs; `*` stands for any characters. Empty: everybody.
    pub subjects: Vec<String>,
    /// Empty: all.
    pub actions: Vec<Action>,
    /// Empty: all, dead letters included.
    pub topics: Vec<Pattern>,
    /// Names of groups; `*` stands for any characters. Empty: all, and reads without a group.
    pub groups: Vec<String>,
}

impl Rule {
    pub(super) fn is_about(&self, subject: &str) -> bool {
        self.subjects.is_empty() || self.subjects.iter().any(|glob| glob_matches(glob, subject))
    }

    fn fits(&self, action: Action, group: Option<&str>) -> bool {
        let fits_action = self.actions.is_empty() || self.actions.contains(&action);
        let fits_group = self.groups.is_empty()
            || group.is_some_and(|group| self.groups.iter().any(|glob| glob_matches(glob, group)));
        fits_action && fits_group
    }

    fn has_topic(&self, topic: &str) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|pattern| pattern.matches(topic))
    }
}

/// Whether rules let publish. No rules: yes.
pub(super) fn may_publish(rules: &[Rule], topic: &str) -> bool {
    rules
        .iter()
        .find(|rule| rule.fits(Action::Publish, None) && rule.has_topic(topic))
        .is_none_or(|rule| rule.effect == Effect::Allow)
}

/// Whether rules let read every topic that a pattern can match. No rules: yes.
///
/// A rule that denies some of the topics denies the whole; one that allows only some of them decides nothing.
pub(super) fn may_subscribe(rules: &[Rule], wanted: &Pattern, group: Option<&str>) -> bool {
    let _ = (rules, wanted, group, covers, overlaps);
    false
}

/// Whether `*` (any characters, none included) in a glob can be filled so that it is the text.
fn glob_matches(glob: &str, text: &str) -> bool {
    glob == "*" || glob == text
}
