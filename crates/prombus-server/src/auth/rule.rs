//! Access rules on topics and groups, in addition to scopes.

use super::pattern::{covers, overlaps};
use prombus_protocol::Pattern;

/// The effect of a rule that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The action is allowed.
    Allow,
    /// The action is denied.
    Deny,
}

/// An action on a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Publish events.
    Publish,
    /// Read events: subscribe, replay, export, state.
    Subscribe,
}

/// A rule. The first one in the list that matches applies.
///
/// A rule with groups matches only reads with one of these groups. It matches neither a publish nor a read without a group
/// (replay, export, SSE, state).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether the rule allows or denies.
    pub effect: Effect,
    /// Names of tokens, or `sub` of JWTs; `*` matches any characters. Empty: everyone.
    pub subjects: Vec<String>,
    /// Empty: all actions.
    pub actions: Vec<Action>,
    /// Empty: all topics, including dead letters.
    pub topics: Vec<Pattern>,
    /// Names of groups; `*` matches any characters. Empty: all groups, and reads without a group.
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

/// Whether the rules allow a publish. Without a matching rule it is denied.
pub(super) fn may_publish(rules: &[Rule], topic: &str) -> bool {
    rules
        .iter()
        .find(|rule| rule.fits(Action::Publish, None) && rule.has_topic(topic))
        .is_some_and(|rule| rule.effect == Effect::Allow)
}

/// Whether the rules allow reading every topic that a pattern can match.
///
/// A rule that denies some of the topics denies the whole pattern. A rule that allows only some of them does not apply.
pub(super) fn may_subscribe(rules: &[Rule], wanted: &Pattern, group: Option<&str>) -> bool {
    for rule in rules.iter().filter(|rule| rule.fits(Action::Subscribe, group)) {
        let decides = |topics: &Pattern| match rule.effect {
            Effect::Allow => covers(topics, wanted),
            Effect::Deny => overlaps(topics, wanted),
        };
        if rule.topics.is_empty() || rule.topics.iter().any(decides) {
            return rule.effect == Effect::Allow;
        }
    }
    false
}

/// Whether a glob matches the text; `*` matches any characters, also none.
///
/// Each piece between two stars is matched at its first occurrence: a later one would leave less text for the following pieces.
fn glob_matches(glob: &str, text: &str) -> bool {
    let Some((first, rest)) = glob.split_once('*') else { return glob == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for piece in middle.split('*') {
        let Some(at) = text.find(piece) else { return false };
        text = &text[at + piece.len()..];
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(effect: Effect, topics: &[&str], groups: &[&str]) -> Rule {
        Rule {
            effect,
            subjects: Vec::new(),
            actions: Vec::new(),
            topics: topics.iter().map(|text| Pattern::new(text).unwrap()).collect(),
            groups: groups.iter().map(ToString::to_string).collect(),
        }
    }

    fn reads(rules: &[Rule], wanted: &str, group: Option<&str>) -> bool {
        may_subscribe(rules, &Pattern::new(wanted).unwrap(), group)
    }

    #[test]
    fn globs_agree_with_a_naive_matcher() {
        fn naive(glob: &[u8], text: &[u8]) -> bool {
            match (glob, text) {
                ([], []) => true,
                ([b'*', rest @ ..], _) => (0..=text.len()).any(|taken| naive(rest, &text[taken..])),
                ([a, rest @ ..], [b, others @ ..]) => a == b && naive(rest, others),
                _ => false,
            }
        }
        let words = |alphabet: &str, longest: usize| {
            let (mut all, mut newest) = (vec![String::new()], vec![String::new()]);
            for _ in 0..longest {
                newest = newest
                    .iter()
                    .flat_map(|word| alphabet.chars().map(move |c| format!("{word}{c}")))
                    .collect();
                all.extend_from_slice(&newest);
            }
            all
        };
        for glob in words("ab*", 5) {
            for text in words("ab", 6) {
                let expected = naive(glob.as_bytes(), text.as_bytes());
                assert_eq!(glob_matches(&glob, &text), expected, "{glob} on {text}");
            }
        }
        assert!(glob_matches("größe-*", "größe-é") && !glob_matches("größe-*", "grösse-é"));
    }

    #[test]
    fn the_first_matching_rule_applies() {
        let (allow, deny) = (Effect::Allow, Effect::Deny);
        let rules =
            [rule(deny, &["orders.secret"], &[]), rule(allow, &["orders.**"], &[]), rule(deny, &[], &[])];
        assert!(may_publish(&rules, "orders.created") && !may_publish(&rules, "orders.secret"));
        assert!(!may_publish(&rules, "users.created"));
        let rules =
            [rule(allow, &["orders.secret"], &[]), rule(deny, &["orders.**"], &[]), rule(allow, &[], &[])];
        assert!(may_publish(&rules, "orders.secret") && !may_publish(&rules, "orders.created"));
        assert!(may_publish(&rules, "users.created") && may_publish(&rules, "dlq.orders.created"));
    }

    #[test]
    fn without_a_matching_rule_access_is_denied() {
        assert!(!may_publish(&[], "orders") && !reads(&[], "orders", None));
        let rules = [rule(Effect::Allow, &["orders"], &[])];
        assert!(!may_publish(&rules, "users") && !reads(&rules, "users", None));
        assert!(!may_publish(&rules, "dlq.orders") && !reads(&rules, "dlq.orders", None));
    }

    #[test]
    fn a_deny_of_some_topics_of_a_pattern_denies_the_pattern() {
        let rules = [rule(Effect::Deny, &["orders.secret"], &[]), rule(Effect::Allow, &["**"], &[])];
        for wanted in ["**", "orders.*", "*.secret", "orders.**", "*.*", "orders.secret", "**.secret"] {
            assert!(!reads(&rules, wanted, None), "{wanted}");
        }
        for wanted in ["users.**", "orders.created", "orders.*.*", "orders", "*"] {
            assert!(reads(&rules, wanted, None), "{wanted}");
        }
    }

    #[test]
    fn an_allow_must_cover_the_whole_pattern() {
        let rules = [rule(Effect::Allow, &["orders.*", "users.**"], &[])];
        assert!(reads(&rules, "orders.*", None) && reads(&rules, "users.*.x", None));
        for wanted in ["orders.**", "*.*", "**", "orders.*.*", "dlq.orders.*"] {
            assert!(!reads(&rules, wanted, None), "{wanted}");
        }
    }

    #[test]
    fn a_rule_on_groups_matches_only_these_groups() {
        let rules = [rule(Effect::Deny, &[], &["billing-*"]), rule(Effect::Allow, &["**"], &["*"])];
        assert!(!reads(&rules, "orders", Some("billing-eu")));
        assert!(reads(&rules, "orders", Some("billing")) && reads(&rules, "orders", Some("ops")));
        assert!(!reads(&rules, "orders", None) && !may_publish(&rules, "orders"));
    }

    #[test]
    fn a_rule_on_actions_matches_only_these_actions() {
        let only = |action| Rule { actions: vec![action], ..rule(Effect::Allow, &["**"], &[]) };
        let rules = [only(Action::Publish)];
        assert!(may_publish(&rules, "orders") && !reads(&rules, "orders", None));
        let rules = [only(Action::Subscribe)];
        assert!(!may_publish(&rules, "orders") && reads(&rules, "orders", None));
    }
}
