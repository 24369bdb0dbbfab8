//! Parses `[auth]`: tokens, JWT and rules. Problems never contain a secret.

use super::problems::Problems;
use super::source::Source;
use crate::messages::one_line;
use prombus_server::{
    Action, AuthOptions, Authenticator, Effect, JwtKey, JwtOptions, Rule, Scope, TokenHash, TokenOptions,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use toml::{Table, Value};

/// The minimum length of an HS256 secret. A shorter secret could be found by brute force.
const SECRET_BYTES_MIN: usize = 32;

/// Checks the section `[auth]` and converts it to options.
pub fn auth(problems: &mut Problems, source: &Source) -> AuthOptions {
    let mut names = BTreeSet::new();
    let mut tokens = Vec::new();
    for (path, entry) in source.tables("auth.token") {
        if let Some(name) = text(entry, "name")
            && !names.insert(name)
        {
            problems.add(format!("{path}.name"), format!("another token has the name {name:?}"));
        }
        let Some(token) = token(problems, &path, entry) else { continue };
        if let Some(other) = tokens.iter().find(|other: &&TokenOptions| other.secret == token.secret) {
            // The secret would stay valid after one of the two is revoked.
            let why = format!(
                "the token {:?} has the same hash; create another token with `prombus token new`",
                other.name
            );
            problems.add(format!("{path}.hash"), why);
        }
        tokens.push(token);
    }
    let rules = source.tables("auth.rule").into_iter();
    let rules = rules.filter_map(|(path, entry)| rule(problems, &path, entry)).collect();
    let jwt = source.get("auth.jwt").map(|_| jwt(problems, source));
    AuthOptions { tokens, jwt, rules }
}

fn text<'a>(table: &'a Table, key: &str) -> Option<&'a str> {
    table.get(key)?.as_str()
}

fn texts<'a>(table: &'a Table, key: &str) -> Vec<&'a str> {
    table.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn token(problems: &mut Problems, path: &str, token: &Table) -> Option<TokenOptions> {
    let name = problems.required(path, "name", text(token, "name"));
    let hash = problems.required(path, "hash", text(token, "hash"));
    let scopes = texts(token, "scopes");
    if scopes.is_empty() {
        problems.add(
            format!("{path}.scopes"),
            "a token without scopes allows nothing; e.g. scopes = [\"publish:**\", \"subscribe:**\"]",
        );
    }
    let hash_path = format!("{path}.hash");
    let secret = hash.and_then(|hash| match hash.parse::<TokenHash>() {
        Ok(hash) => Some(hash),
        Err(_) => {
            let how =
                "is not the hash of a token (sha256:…); create one with `prombus token new` or `prombus token hash`";
            problems.add(hash_path, how);
            None
        }
    });
    let scopes = scopes.into_iter().enumerate();
    let scopes =
        scopes.filter_map(|(at, scope)| problems.parsed::<Scope>(&format!("{path}.scopes[{at}]"), scope));
    let scopes = scopes.collect();
    Some(TokenOptions { name: name?.to_owned(), secret: secret?, scopes })
}

fn jwt(problems: &mut Problems, source: &Source) -> JwtOptions {
    let problems_before = problems.found.len();
    let mut keys = Vec::new();
    if let Some(secret) = source.text("auth.jwt.secret") {
        if secret.len() < SECRET_BYTES_MIN {
            let why = format!("is shorter than {SECRET_BYTES_MIN} bytes; use a longer, random secret");
            problems.add("auth.jwt.secret", why);
        }
        keys.push(JwtKey::Secret(secret.to_owned()));
    }
    for (at, file) in source.texts("auth.jwt.pem_files").unwrap_or_default().into_iter().enumerate() {
        problems.file(&format!("auth.jwt.pem_files[{at}]"), file);
        keys.push(JwtKey::PemFile(PathBuf::from(file)));
    }
    if let Some(file) = source.text("auth.jwt.jwks_file") {
        problems.file("auth.jwt.jwks_file", file);
        keys.push(JwtKey::JwksFile(PathBuf::from(file)));
    }
    if keys.is_empty() {
        problems.add("auth.jwt", "no key to check tokens with: set secret, pem_files or jwks_file");
    }
    let mut options = JwtOptions { keys, ..JwtOptions::default() };
    options.issuer = source.text("auth.jwt.issuer").map(str::to_owned);
    options.audience = source.text("auth.jwt.audience").map(str::to_owned);
    if let Some(leeway_ms) = source.get("auth.jwt.leeway_ms").and_then(Value::as_integer) {
        options.leeway = Duration::from_millis(leeway_ms.unsigned_abs());
    }
    if problems.found.len() == problems_before {
        // The authenticator reads the key files: this finds faults in their contents.
        let alone = AuthOptions { jwt: Some(options.clone()), ..AuthOptions::default() };
        if let Err(error) = Authenticator::new(&alone) {
            problems.add("auth.jwt", one_line(&anyhow::Error::from(error)));
        }
    }
    options
}

fn rule(problems: &mut Problems, path: &str, rule: &Table) -> Option<Rule> {
    let effect = match problems.required(path, "effect", text(rule, "effect")) {
        Some("allow") => Some(Effect::Allow),
        Some("deny") => Some(Effect::Deny),
        Some(other) => {
            problems.add(format!("{path}.effect"), format!("{other:?}: expected \"allow\" or \"deny\""));
            None
        }
        None => None,
    };
    let actions = texts(rule, "actions").into_iter().enumerate().filter_map(|(at, action)| match action {
        "publish" => Some(Action::Publish),
        "subscribe" => Some(Action::Subscribe),
        other => {
            let why = format!("{other:?}: expected \"publish\" or \"subscribe\"");
            problems.add(format!("{path}.actions[{at}]"), why);
            None
        }
    });
    let actions = actions.collect();
    let topics = texts(rule, "topics").into_iter().enumerate();
    let topics =
        topics.filter_map(|(at, topic)| problems.pattern(&format!("{path}.topics[{at}]"), topic)).collect();
    let (subjects, groups) = (owned(&texts(rule, "subjects")), owned(&texts(rule, "groups")));
    Some(Rule { effect: effect?, subjects, actions, topics, groups })
}
