//! Attempts to authenticate without a valid token, and to do things that are not allowed.

use super::*;
use crate::auth::{Effect, JwtKey, JwtOptions, Scope, TokenHash, TokenOptions};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prombus_protocol::{ErrorCode, Pattern};
use serde_json::{Value, json};

const SECRET: &str = "a secret of more than thirty-two bytes";
const NOW_MS: i64 = 1_700_000_000_000;

fn scopes(texts: &[&str]) -> Vec<Scope> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn token(name: &str, token: &str, texts: &[&str]) -> TokenOptions {
    TokenOptions { name: name.to_owned(), secret: TokenHash::of(token), scopes: scopes(texts) }
}

fn jwt(claims: &Value) -> String {
    let part = |text: String| URL_SAFE_NO_PAD.encode(text);
    let message = format!("{}.{}", part(json!({"alg": "HS256"}).to_string()), part(claims.to_string()));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn authenticator(rules: Vec<Rule>) -> Authenticator {
    let jwt = JwtOptions { keys: vec![JwtKey::Secret(SECRET.to_owned())], ..JwtOptions::default() };
    let tokens = vec![
        token("billing", "the-token-of-billing", &["subscribe:orders.*", "publish:bills.**"]),
        token("ops", "the.token.of.ops", &["admin"]),
        token("dotted", "a.static.token", &["publish:**"]),
    ];
    Authenticator::new(&AuthOptions { tokens, jwt: Some(jwt), rules }).unwrap()
}

fn principal(name: &str, texts: &[&str], rules: &[Rule]) -> Principal {
    Principal::new(name.to_owned(), scopes(texts), rules, None, Default::default())
}

fn rule(effect: Effect, subjects: &[&str], topics: &[&str]) -> Rule {
    Rule {
        effect,
        subjects: subjects.iter().map(ToString::to_string).collect(),
        actions: Vec::new(),
        topics: topics.iter().map(|text| Pattern::new(text).unwrap()).collect(),
        groups: Vec::new(),
    }
}

#[test]
fn without_configuration_every_client_is_anyone() {
    let authenticator = Authenticator::new(&AuthOptions::default()).unwrap();
    assert!(!authenticator.is_configured() && !AuthOptions::default().is_configured());
    let long = "x".repeat(100_000);
    for token in [None, Some(""), Some("any"), Some(long.as_str())] {
        let anyone = authenticator.authenticate(token, NOW_MS).unwrap();
        assert_eq!(anyone.name(), "anyone");
        assert!(anyone.may_publish("dlq.a") && anyone.may_subscribe("**", None) && anyone.is_admin());
        assert!(anyone.expires_ms().is_none() && !anyone.is_expired(i64::MAX));
    }
}

#[test]
fn without_a_valid_token_access_is_refused() {
    let authenticator = authenticator(Vec::new());
    assert!(authenticator.is_configured());
    let refused = |token: Option<&str>| authenticator.authenticate(token, NOW_MS).unwrap_err();
    assert_eq!(refused(None), AuthRefused::Missing);
    assert_eq!(refused(None).code(), ErrorCode::Unauthorized);
    let hash = TokenHash::of("the-token-of-billing").to_string();
    let good = jwt(&json!({"exp": 1_800_000_000}));
    let long = jwt(&json!({"exp": 1_800_000_000, "x": "x".repeat(MAX_TOKEN_BYTES)}));
    for bad in [
        "",
        " ",
        "wrong",
        "the-token-of-billin",
        "the-token-of-billing ",
        " the-token-of-billing",
        "THE-TOKEN-OF-BILLING",
        "the-token-of-billing\0",
        "billing",
        &hash,
        &hash[7..],
        "Bearer the-token-of-billing",
        "anyone",
        "*",
        "a.b.c",
        "..",
        &good[..good.len() - 1],
        &format!("{good}."),
        &format!("{good}.{good}"),
        &long,
        &jwt(&json!({"sub": "no end"})),
    ] {
        assert_eq!(refused(Some(bad)), AuthRefused::Bad, "{bad}");
        assert_eq!(refused(Some(bad)).code(), ErrorCode::BadToken);
        assert!(bad.is_empty() || bad == " " || !refused(Some(bad)).to_string().contains(bad));
    }
    assert_eq!(refused(Some(&jwt(&json!({"exp": 1_600_000_000})))), AuthRefused::Expired);
    let early = jwt(&json!({"exp": 1_900_000_000, "nbf": 1_800_000_000}));
    assert_eq!(refused(Some(&early)).code(), ErrorCode::BadToken);
}

#[test]
fn valid_tokens_are_accepted_under_their_name() {
    let authenticator = authenticator(Vec::new());
    let name = |token: &str| authenticator.authenticate(Some(token), NOW_MS).unwrap().name().to_owned();
    assert_eq!(name("the-token-of-billing"), "billing");
    assert_eq!(name("the.token.of.ops"), "ops");
    assert_eq!(name("a.static.token"), "dotted", "two dots do not make it a JWT");
    assert_eq!(name(&jwt(&json!({"sub": "ada", "exp": 1_800_000_000}))), "ada");
}

#[test]
fn a_jwt_expires_after_its_leeway() {
    let token = jwt(&json!({"exp": NOW_MS / 1_000 + 5}));
    let principal = authenticator(Vec::new()).authenticate(Some(&token), NOW_MS).unwrap();
    assert_eq!(principal.expires_ms(), Some(NOW_MS + 35_000));
    assert!(!principal.is_expired(NOW_MS + 34_999) && principal.is_expired(NOW_MS + 35_000));
}

#[test]
fn a_token_of_the_maximum_length_is_accepted_and_a_longer_one_is_not() {
    let longest = "x".repeat(MAX_TOKEN_BYTES);
    let tokens = vec![
        token("long", &longest, &[]),
        token("longer", &format!("{longest}x"), &[]),
        token("empty", "", &[]),
    ];
    let authenticator = Authenticator::new(&AuthOptions { tokens, ..AuthOptions::default() }).unwrap();
    assert_eq!(authenticator.authenticate(Some(&longest), 0).unwrap().name(), "long");
    for refused in [format!("{longest}x"), String::new()] {
        assert_eq!(authenticator.authenticate(Some(&refused), 0).unwrap_err(), AuthRefused::Bad);
    }
}

#[test]
fn incomplete_auth_setups_are_refused() {
    let rules = vec![rule(Effect::Deny, &[], &[])];
    let only_rules = Authenticator::new(&AuthOptions { rules, ..AuthOptions::default() });
    assert!(matches!(only_rules, Err(AuthSetupError::RulesWithoutTokens)));
    let tokens = vec![token("a", "a", &[]), token("", "b", &[])];
    let nameless = Authenticator::new(&AuthOptions { tokens, ..AuthOptions::default() });
    assert!(matches!(nameless, Err(AuthSetupError::NamelessToken { position: 2 })));
    let jwt = Some(JwtOptions::default());
    assert!(matches!(
        Authenticator::new(&AuthOptions { jwt, ..AuthOptions::default() }),
        Err(AuthSetupError::NoKeys)
    ));
}

#[test]
fn a_scope_is_for_its_topics_and_its_action_only() {
    let billing = principal("billing", &["subscribe:orders.*", "publish:bills.**"], &[]);
    for wanted in ["orders.*", "orders.created"] {
        assert!(
            billing.may_subscribe(wanted, None) && billing.may_subscribe(wanted, Some("any")),
            "{wanted}"
        );
    }
    for wanted in [
        "orders.**",
        "**",
        "orders.*.*",
        "*.*",
        "*.created",
        "orders",
        "users.created",
        "bills.a",
        "dlq.orders.created",
        "dlq.orders.*",
        "dlq.**",
        "orders.**.x",
        "",
        "orders.",
        "orders..x",
        "orders.a b",
        "orders.a*",
        "Orders.created",
    ] {
        assert!(!billing.may_subscribe(wanted, None), "{wanted}");
    }
    assert!(billing.may_publish("bills") && billing.may_publish("bills.a.b"));
    for topic in
        ["orders.created", "dlq.bills.a", "billsx", "", "bills.", "bills.*", "bills.**", "bills.a b", "**"]
    {
        assert!(!billing.may_publish(topic), "{topic}");
    }
    assert!(!billing.is_admin());
}

#[test]
fn double_star_does_not_cover_dead_letters_but_all_scopes_do() {
    let wide = principal("wide", &["subscribe:**", "publish:**"], &[]);
    assert!(wide.may_subscribe("**", None) && wide.may_publish("orders"));
    assert!(
        !wide.may_subscribe("dlq.**", None)
            && !wide.may_subscribe("dlq.orders", None)
            && !wide.may_publish("dlq.orders")
    );
    let all = Principal::new("all".to_owned(), Scope::all(), &[], None, Default::default());
    assert!(all.may_subscribe("dlq.**", None) && all.may_subscribe("**", Some("g")) && all.is_admin());
    assert!(all.may_publish("dlq.orders") && all.may_publish("orders"));
}

#[test]
fn an_admin_reads_no_events_without_subscribe() {
    let admin = principal("ops", &["admin"], &[rule(Effect::Deny, &[], &[])]);
    assert!(admin.is_admin() && !admin.may_publish("orders") && !admin.may_subscribe("orders", None));
}

#[test]
fn without_scopes_nothing_is_allowed() {
    let powerless = principal("powerless", &[], &[rule(Effect::Allow, &[], &[])]);
    assert!(!powerless.may_publish("a") && !powerless.may_subscribe("a", None) && !powerless.is_admin());
}

#[test]
fn scopes_and_rules_must_both_allow() {
    let rules = [
        rule(Effect::Deny, &["eve", "temp-*"], &[]),
        rule(Effect::Deny, &[], &["orders.secret", "dlq.**"]),
        rule(Effect::Allow, &["ada"], &["**"]),
        rule(Effect::Allow, &["bob"], &["orders.*"]),
    ];
    let all = |name: &str| Principal::new(name.to_owned(), Scope::all(), &rules, None, Default::default());
    let ada = all("ada");
    assert!(
        ada.may_publish("users")
            && ada.may_subscribe("orders.created", None)
            && ada.may_subscribe("users.**", None)
    );
    for wanted in ["orders.secret", "orders.*", "**", "dlq.orders", "dlq.**"] {
        assert!(!ada.may_subscribe(wanted, None), "{wanted}");
    }
    assert!(!ada.may_publish("orders.secret") && !ada.may_publish("dlq.users"));
    let bob = all("bob");
    assert!(
        bob.may_publish("orders.created")
            && !bob.may_publish("users")
            && !bob.may_subscribe("orders.*", None)
    );
    for name in ["eve", "temp-1", "carol", "Ada", "ada "] {
        let other = all(name);
        assert!(
            !other.may_publish("orders.created") && !other.may_subscribe("orders.created", None),
            "{name}"
        );
    }
    let narrow = principal("ada", &["publish:users"], &rules);
    assert!(narrow.may_publish("users") && !narrow.may_publish("orders.created"), "a rule gives no scope");
}

#[test]
fn rules_reach_principals_of_both_kinds_of_token() {
    let authenticator =
        authenticator(vec![rule(Effect::Deny, &["dotted", "ada"], &["x"]), rule(Effect::Allow, &[], &[])]);
    let ada = jwt(&json!({"sub": "ada", "exp": 1_800_000_000, "scope": "publish:**"}));
    let bob = jwt(&json!({"sub": "bob", "exp": 1_800_000_000, "scope": "publish:**"}));
    let may_publish_x =
        |token: &str| authenticator.authenticate(Some(token), NOW_MS).unwrap().may_publish("x");
    assert!(!may_publish_x("a.static.token") && !may_publish_x(&ada) && may_publish_x(&bob));
}

#[test]
fn debug_output_shows_no_secret() {
    let shown = format!("{:?}", authenticator(Vec::new()));
    assert!(shown.contains("billing"));
    let hash = TokenHash::of("the-token-of-billing").to_string();
    for secret in [SECRET, "the-token-of-billing", &hash[7..20]] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn a_jwt_that_is_too_long_or_has_a_part_too_few_is_logged_and_other_tokens_are_not() {
    let auth = authenticator(Vec::new());
    let good = jwt(&json!({"exp": NOW_MS / 1_000 + 60, "sub": "ada"}));
    let logged = || auth.jwt.as_ref().unwrap().logged();
    for token in ["wrong", "wrong.token", &"x".repeat(MAX_TOKEN_BYTES + 1)] {
        assert_eq!(auth.authenticate(Some(token), NOW_MS).unwrap_err(), AuthRefused::Bad);
    }
    assert_eq!(logged(), [""; 0]);
    let long = jwt(&json!({"exp": NOW_MS / 1_000 + 60, "sub": "ada", "x": "x".repeat(MAX_TOKEN_BYTES)}));
    let (two_parts, _) = good.rsplit_once('.').unwrap();
    for token in [long.as_str(), two_parts, &format!("{good}.more")] {
        assert_eq!(auth.authenticate(Some(token), NOW_MS).unwrap_err(), AuthRefused::Bad);
    }
    let expected =
        ["a JWT was refused: it is longer than 8 KiB", "a JWT was refused: it does not have three parts"];
    assert_eq!(logged(), expected);
    assert!(auth.authenticate(Some(&good), NOW_MS).is_ok());
}
