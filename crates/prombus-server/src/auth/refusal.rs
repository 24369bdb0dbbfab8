//! Why a principal may not do something: the message names the scope that is missing.

use super::pattern::covers;
use super::principal::Principal;
use super::scope::Scope;
use prombus_protocol::Pattern;

/// The message for routes that need the scope `admin`.
pub(crate) const NEEDS_ADMIN: &str = "this needs a token with the scope \"admin\"";

impl Principal {
    /// Why the owner may not publish to a topic.
    pub(crate) fn publish_refusal(&self, topic: &str) -> String {
        let in_scope = |scope: &Scope| matches!(scope, Scope::Publish(pattern) if pattern.matches(topic));
        let why = missing(self.scopes().iter().any(in_scope), "publish", topic);
        format!("this token may not publish to {topic:?}: {why}")
    }

    /// Why the owner may not read a topic or pattern; as a group, if one is named.
    pub(crate) fn subscribe_refusal(&self, pattern: &str, group: Option<&str>) -> String {
        let wanted = Pattern::new(pattern).ok();
        let in_scope = |scope: &Scope| match (scope, &wanted) {
            (Scope::Subscribe(pattern), Some(wanted)) => covers(pattern, wanted),
            _ => false,
        };
        let why = missing(self.scopes().iter().any(in_scope), "subscribe", pattern);
        match group {
            Some(group) => format!("this token may not read {pattern:?} as group {group:?}: {why}"),
            None => format!("this token may not read {pattern:?}: {why}"),
        }
    }
}

fn missing(has_scope: bool, action: &str, topic: &str) -> String {
    match has_scope {
        true => "no rule allows it ([[auth.rule]])".to_owned(),
        false => format!("this needs the scope \"{action}:{topic}\""),
    }
}
