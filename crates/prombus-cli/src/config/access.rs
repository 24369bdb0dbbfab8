//! The `[auth]` part of the config as validated. Messages name keys and lines and never show a secret.

use super::checker::Checker;
use super::file::{AuthSection, JwtSection, RuleSection, TokenSection};
use prombus_server::{
    Action, AuthOptions, Authenticator, Effect, JwtKey, JwtOptions, Rule, Scope, TokenHash, TokenOptions,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// HS256 with a shorter secret can be guessed.
const SECRET_BYTES_MIN: usize = 32;

/// Clocks that differ by more want setting, not leeway.
const LEEWAY_MS_MAX: u64 = 3_600_000;

/// Checks the section and makes options of it.
pub fn auth(checker: &mut Checker, section: &AuthSection) -> AuthOptions {
    let mut names = BTreeSet::new();
    let mut tokens = Vec::new();
    for (number, token) in section.token.iter().enumerate() {
        let path = format!("auth.token[{number}]");
        if let Some(name) = &token.name
            && !names.insert(name.as_str())
        {
            checker.refuse(format!("{path}.name"), format!("another token is named {name:?} too"));
        }
        tokens.extend(self::token(checker, &path, token));
    }
    let rules = section.rule.iter().enumerate();
    let rules = rules.filter_map(|(number, rule)| self::rule(checker, &format!("auth.rule[{number}]"), rule));
    let rules = rules.collect();
    let jwt = section.jwt.as_ref().map(|section| jwt(checker, section));
    AuthOptions { tokens, jwt, rules }
}

fn token(checker: &mut Checker, path: &str, token: &TokenSection) -> Option<TokenOptions> {
    let name = checker.required(path, "name", token.name.as_ref());
    let hash = checker.required(path, "hash", token.hash.as_ref());
    if token.scopes.is_empty() {
        checker.refuse(
            format!("{path}.scopes"),
            "a token without scopes may do nothing; e.g. scopes = [\"publish:**\", \"subscribe:**\"]",
        );
    }
    let hash_path = format!("{path}.hash");
    let secret = hash.and_then(|hash| match hash.parse::<TokenHash>() {
        Ok(hash) => Some(hash),
        Err(_) => {
            let how =
                "is no hash of a token; `prombus token new` and `prombus token hash` make one (sha256:…)";
            checker.refuse(hash_path, how);
            None
        }
    });
    let scopes = token.scopes.iter().enumerate();
    let scopes =
        scopes.filter_map(|(at, scope)| checker.parsed::<Scope>(&format!("{path}.scopes[{at}]"), scope));
    let scopes = scopes.collect();
    Some(TokenOptions { name: name?.to_owned(), secret: secret?, scopes })
}

fn jwt(checker: &mut Checker, section: &JwtSection) -> JwtOptions {
    let problems_before = checker.problems.len();
    let mut keys = Vec::new();
    if let Some(secret) = &section.secret {
        if secret.len() < SECRET_BYTES_MIN {
            let why = format!("is shorter than {SECRET_BYTES_MIN} bytes: whoever guesses it can make tokens");
            checker.refuse("auth.jwt.secret", why);
        }
        keys.push(JwtKey::Secret(secret.clone()));
    }
    for (at, file) in section.pem_files.iter().enumerate() {
        checker.file(&format!("auth.jwt.pem_files[{at}]"), file);
        keys.push(JwtKey::PemFile(PathBuf::from(file)));
    }
    if let Some(file) = &section.jwks_file {
        checker.file("auth.jwt.jwks_file", file);
        keys.push(JwtKey::JwksFile(PathBuf::from(file)));
    }
    if keys.is_empty() {
        checker
            .refuse("auth.jwt", "there is no key to check tokens with: give secret, pem_files or jwks_file");
    }
    let mut options = JwtOptions { keys, ..JwtOptions::default() };
    options.issuer.clone_from(&section.issuer);
    options.audience.clone_from(&section.audience);
    let mut leeway_ms = u64::try_from(options.leeway.as_millis()).unwrap_or(u64::MAX);
    checker.number("auth.jwt.leeway_ms", section.leeway_ms, 0..=LEEWAY_MS_MAX, &mut leeway_ms);
    options.leeway = Duration::from_millis(leeway_ms);
    if checker.problems.len() == problems_before {
        // Only this reads what is in the files.
        let alone = AuthOptions { jwt: Some(options.clone()), ..AuthOptions::default() };
        if let Err(error) = Authenticator::new(&alone) {
            checker.refuse("auth.jwt", crate::one_line(&anyhow::Error::from(error)));
        }
    }
    options
}

fn rule(checker: &mut Checker, path: &str, rule: &RuleSection) -> Option<Rule> {
    let effect = match checker.required(path, "effect", rule.effect.as_ref()) {
        Some("allow") => Some(Effect::Allow),
        Some("deny") => Some(Effect::Deny),
        Some(other) => {
            checker.refuse(format!("{path}.effect"), format!("{other:?}: \"allow\" or \"deny\" is allowed"));
            None
        }
        None => None,
    };
    let actions = rule.actions.iter().enumerate().filter_map(|(at, action)| match action.as_str() {
        "publish" => Some(Action::Publish),
        "subscribe" => Some(Action::Subscribe),
        other => {
            let why = format!("{other:?}: \"publish\" and \"subscribe\" are allowed");
            checker.refuse(format!("{path}.actions[{at}]"), why);
            None
        }
    });
    let actions = actions.collect();
    let topics = rule.topics.iter().enumerate();
    let topics =
        topics.filter_map(|(at, topic)| checker.pattern(&format!("{path}.topics[{at}]"), topic)).collect();
    let (subjects, groups) = (rule.subjects.clone(), rule.groups.clone());
    Some(Rule { effect: effect?, subjects, actions, topics, groups })
}
