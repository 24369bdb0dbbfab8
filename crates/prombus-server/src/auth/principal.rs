//! One who got in, and what they may do.

use super::fingerprint::Fingerprint;
use super::pattern::covers;
use super::rule::{self, Rule};
use super::scope::Scope;
use prombus_protocol::{Pattern, check_topic};
use std::sync::{Arc, LazyLock};

/// The owner of a token. Scopes and rules must both say yes; what neither speaks of is not allowed.
#[derive(Clone, Debug)]
pub struct Principal {
    name: String,
    /// `None`: no auth is configured, everything is allowed.
    grants: Option<Grants>,
    expires_ms: Option<i64>,
    /// Of the token, or of the key that the JWT was checked with.
    fingerprint: Fingerprint,
}

#[derive(Clone, Debug)]
struct Grants {
    scopes: Vec<Scope>,
    /// Only those that are about this principal, in order. `None`: the gateway has no rules.
    rules: Option<Vec<Rule>>,
}

impl Principal {
    pub(super) fn new(
        name: String,
        scopes: Vec<Scope>,
        rules: &[Rule],
        expires_ms: Option<i64>,
        fingerprint: Fingerprint,
    ) -> Self {
        let mine = || rules.iter().filter(|rule| rule.is_about(&name)).cloned().collect();
        let rules = (!rules.is_empty()).then(mine);
        Self { name, grants: Some(Grants { scopes, rules }), expires_ms, fingerprint }
    }

    /// Everybody, where no auth is configured: may do everything, never expires.
    pub fn anyone() -> Arc<Self> {
        static ANYONE: LazyLock<Arc<Principal>> = LazyLock::new(|| {
            let name = "anyone".to_owned();
            Arc::new(Principal { name, grants: None, expires_ms: None, fingerprint: Fingerprint::default() })
        });
        Arc::clone(&ANYONE)
    }

    /// The token's name, or the JWT's `sub`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When the token ends, leeway included, in ms since 1970.
    pub fn expires_ms(&self) -> Option<i64> {
        self.expires_ms
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(super) fn scopes(&self) -> &[Scope] {
        self.grants.as_ref().map_or(&[], |grants| &grants.scopes)
    }

    /// The same, but it ends at this time at the latest.
    pub(super) fn until(&self, ends_ms: i64) -> Self {
        let expires_ms = Some(self.expires_ms.map_or(ends_ms, |expires_ms| expires_ms.min(ends_ms)));
        Self { expires_ms, ..self.clone() }
    }

    /// Whether the token has ended.
    pub fn is_expired(&self, now_ms: i64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// Whether an event may be written to a topic.
    pub fn may_publish(&self, topic: &str) -> bool {
        let Some(grants) = &self.grants else { return true };
        let in_scope = |scope: &Scope| matches!(scope, Scope::Publish(pattern) if pattern.matches(topic));
        check_topic(topic).is_ok()
            && grants.scopes.iter().any(in_scope)
            && grants.rules.as_ref().is_none_or(|rules| rule::may_publish(rules, topic))
    }

    /// Whether events may be read: every topic that `pattern` (a topic's name is a pattern too) can match, also topics that
    /// are not there yet. One scope must hold the whole pattern. No `group` is a read without one: replay, export, SSE, state.
    pub fn may_subscribe(&self, pattern: &str, group: Option<&str>) -> bool {
        let Some(grants) = &self.grants else { return true };
        let Ok(wanted) = Pattern::new(pattern) else { return false };
        let in_scope = |scope: &Scope| matches!(scope, Scope::Subscribe(pattern) if covers(pattern, &wanted));
        grants.scopes.iter().any(in_scope)
            && grants.rules.as_ref().is_none_or(|rules| rule::may_subscribe(rules, &wanted, group))
    }

    /// Whether the routes that change and show how the bus is run may be used. Rules are about topics: they do not limit it.
    pub fn is_admin(&self) -> bool {
        self.grants.as_ref().is_none_or(|grants| grants.scopes.contains(&Scope::Admin))
    }
}
