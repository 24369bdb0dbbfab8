//! Whether a client that authenticated before a reload may go on, and what a reload changes.

use super::authenticator::Authenticator;
use super::jwt::KeyPrint;
use super::principal::Principal;

/// What has become of a principal after the configuration changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    /// Its token is valid and grants the same as before.
    Same,
    /// Its token grants something else: scopes or rules have changed. Or it may not be accepted any more, because the settings of
    /// its JWT key have changed: id, issuer, audience or leeway.
    Changed,
    /// Its token, or the key that signed its JWT, is no longer configured.
    Revoked,
}

impl Validity {
    pub(crate) fn is_same(self) -> bool {
        self == Self::Same
    }
}

/// The differences between two configurations of auth, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthChanges {
    /// Tokens with a new name.
    pub tokens_added: usize,
    /// Tokens whose name is gone.
    pub tokens_revoked: usize,
    /// Tokens whose secret is another one. The old secret is revoked.
    pub tokens_replaced: usize,
    /// Tokens with the same secret whose scopes have changed.
    pub tokens_changed: usize,
    /// JWT keys that were added.
    pub jwt_keys_added: usize,
    /// JWT keys that were removed.
    pub jwt_keys_removed: usize,
    /// Whether the required issuer or audience, the leeway, or the id (`kid`) of a JWT key that stays, has changed.
    pub has_new_jwt_settings: bool,
    /// Whether the list of rules has changed.
    pub has_new_rules: bool,
}

impl Authenticator {
    /// What has become of a principal that this or an earlier authenticator returned.
    pub(crate) fn validity(&self, principal: &Principal) -> Validity {
        if principal.is_anyone() {
            return if self.is_configured() { Validity::Revoked } else { Validity::Same };
        }
        let print = principal.fingerprint();
        let is_same = if let Some(token) = self.tokens.by_fingerprint(print) {
            if token.name() != principal.name() {
                return Validity::Revoked;
            }
            token.has_same_grants(principal)
        } else {
            let Some(jwt) = &self.jwt else { return Validity::Revoked };
            if !principal.jwt_key().is_some_and(|key| jwt.has_key(key)) {
                return Validity::Revoked;
            }
            // A JWT contains its scopes; only the rules can change.
            jwt.key_of(print).is_some() && principal.has_rules_of(&self.rules)
        };
        if is_same { Validity::Same } else { Validity::Changed }
    }

    /// The differences to an earlier configuration.
    pub(crate) fn changes_since(&self, before: &Self) -> AuthChanges {
        let mut changes = AuthChanges { has_new_rules: self.rules != before.rules, ..AuthChanges::default() };
        for token in self.tokens.principals() {
            match before.tokens.by_name(token.name()) {
                None => changes.tokens_added += 1,
                Some(old) if old.fingerprint() != token.fingerprint() => changes.tokens_replaced += 1,
                Some(old) if old.scopes() != token.scopes() => changes.tokens_changed += 1,
                Some(_) => {}
            }
        }
        let is_gone = |token: &&Principal| self.tokens.by_name(token.name()).is_none();
        changes.tokens_revoked = before.tokens.principals().filter(is_gone).count();
        let [ours, theirs] = [self, before].map(Self::jwt_keys);
        changes.jwt_keys_added = ours.iter().filter(|key| !theirs.contains(key)).count();
        changes.jwt_keys_removed = theirs.iter().filter(|key| !ours.contains(key)).count();
        if let (Some(ours), Some(theirs)) = (&self.jwt, &before.jwt) {
            changes.has_new_jwt_settings = ours.has_new_settings(theirs);
        }
        changes
    }

    /// The number of static tokens.
    pub(crate) fn token_count(&self) -> usize {
        self.tokens.principals().count()
    }

    /// The number of keys that can verify a JWT.
    pub(crate) fn jwt_key_count(&self) -> usize {
        self.jwt_keys().len()
    }

    fn jwt_keys(&self) -> Vec<KeyPrint> {
        self.jwt.as_ref().map(|jwt| jwt.keys().collect()).unwrap_or_default()
    }

    /// The number of rules.
    pub(crate) fn rule_count(&self) -> usize {
        self.rules.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::temporary_file::TemporaryFile;
    use crate::auth::ticket_owner::TicketOwner;
    use crate::auth::{AuthOptions, Effect, JwtKey, JwtOptions, Rule, TokenHash, TokenOptions};
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use std::sync::Arc;

    fn token(name: &str, secret: &str, scopes: &[&str]) -> TokenOptions {
        let scopes = scopes.iter().map(|scope| scope.parse().expect("a scope")).collect();
        TokenOptions { name: name.to_owned(), secret: TokenHash::of(secret), scopes }
    }

    fn rule(subject: &str) -> Rule {
        let (actions, topics, groups) = (Vec::new(), Vec::new(), Vec::new());
        Rule { effect: Effect::Allow, subjects: vec![subject.to_owned()], actions, topics, groups }
    }

    fn with(tokens: Vec<TokenOptions>, rules: Vec<Rule>) -> Authenticator {
        Authenticator::new(&AuthOptions { tokens, rules, ..AuthOptions::default() }).expect("auth")
    }

    fn with_secrets(secrets: &[&str], audience: Option<&str>) -> Authenticator {
        let keys = secrets.iter().map(|secret| JwtKey::Secret((*secret).to_owned())).collect();
        let audience = audience.map(str::to_owned);
        let jwt = Some(JwtOptions { keys, audience, ..JwtOptions::default() });
        Authenticator::new(&AuthOptions { jwt, ..AuthOptions::default() }).expect("auth")
    }

    fn jwt_principal(auth: &Authenticator, key: usize) -> Principal {
        let (key, print) = auth.jwt.as_ref().expect("JWT").prints().nth(key).expect("a key");
        Principal::new("sub".to_owned(), Vec::new(), &auth.rules, Some(1), print).of_jwt(key)
    }

    #[test]
    fn a_token_stays_valid_until_its_secret_name_scopes_or_rules_change() {
        let read = &["subscribe:a"][..];
        let before = with(vec![token("a", "1", read), token("b", "2", read)], Vec::new());
        let a: Arc<Principal> = before.authenticate(Some("1"), 0).expect("a token");
        let validity = |tokens, rules| with(tokens, rules).validity(&a);
        assert_eq!(
            validity(vec![token("c", "3", &["admin"]), token("a", "1", read)], vec![]),
            Validity::Same
        );
        assert_eq!(validity(vec![token("b", "2", read)], vec![]), Validity::Revoked);
        assert_eq!(validity(vec![token("a", "other", read)], vec![]), Validity::Revoked);
        assert_eq!(validity(vec![token("renamed", "1", read)], vec![]), Validity::Revoked);
        assert_eq!(validity(vec![token("a", "1", &["admin"])], vec![]), Validity::Changed);
        assert_eq!(validity(vec![token("a", "1", read)], vec![rule("x")]), Validity::Changed);
        // A principal of a ticket expires, but is the same otherwise.
        assert_eq!(before.validity(&a.until(5)), Validity::Same);
    }

    #[test]
    fn scopes_in_another_order_or_twice_change_nothing() {
        let before = with(vec![token("a", "1", &["subscribe:a", "admin", "publish:b"])], vec![]);
        let a = before.authenticate(Some("1"), 0).expect("a token");
        let after = with(vec![token("a", "1", &["admin", "publish:b", "admin", "subscribe:a"])], vec![]);
        assert_eq!(after.validity(&a), Validity::Same);
        assert_eq!(after.changes_since(&before), AuthChanges::default());
        let fewer = with(vec![token("a", "1", &["admin", "publish:b"])], vec![]);
        assert_eq!(fewer.validity(&a), Validity::Changed);
    }

    #[test]
    fn a_rule_for_others_changes_nothing() {
        let tokens = || vec![token("a", "1", &["admin"])];
        let before = with(tokens(), vec![rule("a")]);
        let a = before.authenticate(Some("1"), 0).expect("a token");
        assert_eq!(with(tokens(), vec![rule("b"), rule("a")]).validity(&a), Validity::Same);
        assert_eq!(with(tokens(), vec![rule("*"), rule("a")]).validity(&a), Validity::Changed);
    }

    #[test]
    fn a_jwt_is_revoked_with_its_key_and_with_another_audience() {
        let (one, two) =
            ("one secret of more than 32 bytes, at last", "two secrets of more than 32 bytes, too");
        let before = with_secrets(&[one, two], None);
        let by_one = jwt_principal(&before, 0);
        assert_eq!(with_secrets(&[two, one], None).validity(&by_one), Validity::Same);
        assert_eq!(with_secrets(&[two], None).validity(&by_one), Validity::Revoked);
        assert_eq!(with_secrets(&[one], Some("prombus")).validity(&by_one), Validity::Changed);
        assert_eq!(
            with_secrets(&[one], Some("")).validity(&by_one),
            Validity::Changed,
            "required to be empty"
        );
        assert_eq!(with(vec![token("a", "1", &["admin"])], vec![]).validity(&by_one), Validity::Revoked);
        let changes = with_secrets(&[two], None).changes_since(&before);
        let expected = AuthChanges { jwt_keys_removed: 1, ..AuthChanges::default() };
        assert_eq!(changes, expected);
        let changes = with_secrets(&[one, two], Some("prombus")).changes_since(&before);
        assert_eq!(changes, AuthChanges { has_new_jwt_settings: true, ..AuthChanges::default() });
    }

    #[test]
    fn a_jwt_that_may_not_be_accepted_any_more_must_be_checked_again() {
        let secret = "one secret of more than 32 bytes, at last";
        let with_leeway = |leeway_ms| {
            let keys = vec![JwtKey::Secret(secret.to_owned())];
            let leeway = std::time::Duration::from_millis(leeway_ms);
            let jwt = Some(JwtOptions { keys, leeway, ..JwtOptions::default() });
            Authenticator::new(&AuthOptions { jwt, ..AuthOptions::default() }).expect("auth")
        };
        let principal = jwt_principal(&with_leeway(60_000), 0);
        assert_eq!(with_leeway(60_000).validity(&principal), Validity::Same);
        assert_eq!(with_leeway(0).validity(&principal), Validity::Changed);
    }

    #[test]
    fn a_key_with_another_id_does_not_keep_connections_and_tickets() {
        let with_kid = |kid: &str| {
            let secret = URL_SAFE_NO_PAD.encode("one secret of more than 32 bytes, at last");
            let set = serde_json::json!({"keys": [{"kty": "oct", "k": secret, "kid": kid}]});
            let file = TemporaryFile::new(set.to_string());
            let keys = vec![JwtKey::JwksFile(file.path().to_owned())];
            let jwt = Some(JwtOptions { keys, ..JwtOptions::default() });
            Authenticator::new(&AuthOptions { jwt, ..AuthOptions::default() }).expect("auth")
        };
        let principal = jwt_principal(&with_kid("a"), 0);
        let owner = TicketOwner {
            name: principal.name().to_owned(),
            print: principal.fingerprint(),
            scopes: Vec::new(),
            expires_ms: Some(1),
        };
        assert_eq!(with_kid("a").validity(&principal), Validity::Same);
        assert_eq!(with_kid("b").validity(&principal), Validity::Changed);
        assert!(with_kid("a").owner(&owner, 0).is_some());
        assert!(with_kid("b").owner(&owner, 0).is_none());
    }

    #[test]
    fn a_client_without_token_is_revoked_when_auth_is_configured() {
        let open = with(Vec::new(), Vec::new());
        assert_eq!(open.validity(&Principal::anyone()), Validity::Same);
        let auth = with(vec![token("a", "1", &["admin"])], Vec::new());
        assert_eq!(auth.validity(&Principal::anyone()), Validity::Revoked);
    }

    #[test]
    fn changes_are_counted() {
        let before = with(
            vec![
                token("gone", "1", &["admin"]),
                token("new-secret", "2", &["admin"]),
                token("less", "3", &["admin"]),
            ],
            vec![rule("a")],
        );
        let after = with(
            vec![
                token("less", "3", &["subscribe:a"]),
                token("new-secret", "4", &["admin"]),
                token("added", "5", &["admin"]),
            ],
            Vec::new(),
        );
        let expected = AuthChanges {
            tokens_added: 1,
            tokens_revoked: 1,
            tokens_replaced: 1,
            tokens_changed: 1,
            has_new_rules: true,
            ..AuthChanges::default()
        };
        assert_eq!(after.changes_since(&before), expected);
        assert_eq!(before.changes_since(&before), AuthChanges::default());
        assert_eq!((before.token_count(), before.rule_count(), before.jwt_key_count()), (3, 1, 0));
    }
}
