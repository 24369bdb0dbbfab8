//! An authenticated client, and what it may do.

use super::fingerprint::Fingerprint;
use super::jwt::KeyPrint;
use super::pattern::covers;
use super::rule::{self, Rule};
use super::scope::Scope;
use prombus_protocol::{DEAD_LETTER_PREFIX, Pattern, check_topic};
use std::sync::{Arc, LazyLock};

/// The owner of a token. Both scopes and rules must allow an action; everything else is denied.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The token's name, or the JWT's `sub`.
    name: String,
    /// `None`: no auth is configured, everything is allowed.
    grants: Option<Grants>,
    /// When the principal expires, in ms since 1970; `None` if it never does.
    expires_ms: Option<i64>,
    /// The fingerprint of the token, or of the key that verified the JWT and its settings.
    fingerprint: Fingerprint,
    /// The key that verified the JWT; `None` for a static token.
    jwt_key: Option<KeyPrint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grants {
    /// Sorted and without duplicates, so that equal permissions compare as equal.
    scopes: Vec<Scope>,
    /// Only the rules for this principal, in order. `None`: no rules are configured.
    rules: Option<Vec<Rule>>,
}

impl Principal {
    pub(super) fn new(
        name: String,
        mut scopes: Vec<Scope>,
        rules: &[Rule],
        expires_ms: Option<i64>,
        fingerprint: Fingerprint,
    ) -> Self {
        scopes.sort_by_cached_key(Scope::to_string);
        scopes.dedup();
        let rules = rules_about(&name, rules);
        Self { name, grants: Some(Grants { scopes, rules }), expires_ms, fingerprint, jwt_key: None }
    }

    /// The same principal as the owner of a JWT that this key verified.
    pub(super) fn of_jwt(self, key: KeyPrint) -> Self {
        Self { jwt_key: Some(key), ..self }
    }

    /// The principal of every client while no auth is configured: may do everything, never expires.
    pub fn anyone() -> Arc<Self> {
        static ANYONE: LazyLock<Arc<Principal>> = LazyLock::new(|| {
            let name = "anyone".to_owned();
            let fingerprint = Fingerprint::default();
            Arc::new(Principal { name, grants: None, expires_ms: None, fingerprint, jwt_key: None })
        });
        Arc::clone(&ANYONE)
    }

    /// The token's name, or the JWT's `sub`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When the principal expires, in ms since 1970: the JWT's `exp` plus the leeway. `None` for a static token.
    pub fn expires_ms(&self) -> Option<i64> {
        self.expires_ms
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(super) fn jwt_key(&self) -> Option<KeyPrint> {
        self.jwt_key
    }

    pub(super) fn scopes(&self) -> &[Scope] {
        self.grants.as_ref().map_or(&[], |grants| &grants.scopes)
    }

    /// Whether this is the principal of a server without auth.
    pub(crate) fn is_anyone(&self) -> bool {
        self.grants.is_none()
    }

    /// Whether both may do the same.
    pub(super) fn has_same_grants(&self, other: &Self) -> bool {
        self.grants == other.grants
    }

    /// Whether these rules contain the same rules about this principal as those that it has.
    pub(super) fn has_rules_of(&self, rules: &[Rule]) -> bool {
        self.grants.as_ref().is_some_and(|grants| grants.rules == rules_about(&self.name, rules))
    }

    /// The same principal, but it expires at this time at the latest.
    pub(super) fn until(&self, ends_ms: i64) -> Self {
        let expires_ms = Some(self.expires_ms.map_or(ends_ms, |expires_ms| expires_ms.min(ends_ms)));
        Self { expires_ms, ..self.clone() }
    }

    /// Whether the token has expired.
    pub fn is_expired(&self, now_ms: i64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// Whether the owner may publish to a topic.
    pub fn may_publish(&self, topic: &str) -> bool {
        let Some(grants) = &self.grants else { return true };
        let in_scope = |scope: &Scope| matches!(scope, Scope::Publish(pattern) if pattern.matches(topic));
        check_topic(topic).is_ok()
            && grants.scopes.iter().any(in_scope)
            && grants.rules.as_ref().is_none_or(|rules| rule::may_publish(rules, topic))
    }

    /// Whether the owner may read every topic that `pattern` (or a topic's name) can match, including topics that do not exist
    /// yet. A single scope must cover the whole pattern. `group` is `None` for reads without a group: replay, export, SSE, state.
    pub fn may_subscribe(&self, pattern: &str, group: Option<&str>) -> bool {
        let Some(grants) = &self.grants else { return true };
        let Ok(wanted) = Pattern::new(pattern) else { return false };
        let in_scope = |scope: &Scope| matches!(scope, Scope::Subscribe(pattern) if covers(pattern, &wanted));
        grants.scopes.iter().any(in_scope)
            && grants.rules.as_ref().is_none_or(|rules| rule::may_subscribe(rules, &wanted, group))
    }

    /// Whether the owner has a scope to read dead letters, of whatever topic.
    pub fn may_read_dead_letters(&self) -> bool {
        let Some(grants) = &self.grants else { return true };
        // Other patterns, even `**`, do not match dead letters.
        let is_dead_letters = |scope: &Scope| matches!(scope, Scope::Subscribe(pattern) if pattern.as_str().starts_with(DEAD_LETTER_PREFIX));
        grants.scopes.iter().any(is_dead_letters)
    }

    /// Whether the owner may use the admin routes, which show and change the operation of the bus. Rules do not limit this,
    /// because they are about topics.
    pub fn is_admin(&self) -> bool {
        self.grants.as_ref().is_none_or(|grants| grants.scopes.contains(&Scope::Admin))
    }
}

/// The rules about a principal, in order; `None` if no rules are configured.
fn rules_about(name: &str, rules: &[Rule]) -> Option<Vec<Rule>> {
    let mine = || rules.iter().filter(|rule| rule.is_about(name)).cloned().collect();
    (!rules.is_empty()).then(mine)
}
