//! The list of settings that `GET /settings` shows: every setting with its effective value and its source. Secrets are replaced by
//! `***`.

use super::definitions::SECTIONS;
use super::setting::{Setting, Shown};
use super::settings::{Settings, StoreChoice};
use super::source::{Origin, Source};
use prombus_server::{SettingSource, ShownSetting};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use toml::Table;

/// Settings whose values are secrets, or would help to guess one.
const SECRETS: [&str; 2] = ["auth.jwt.secret", "auth.token[].hash"];
const HIDDEN: &str = "***";

/// All settings, in the order of the config file. `source` contains the values as given, `settings` the result.
/// `env_token` is the name of the token in `WS_TOKEN`.
pub fn settings(source: &Source, settings: &Settings, env_token: &str) -> Vec<ShownSetting> {
    let mut shown = Vec::new();
    let mut lists = BTreeSet::new();
    for section in SECTIONS {
        if let Some(list) = section.path.strip_suffix("[]") {
            // A list of tables may be described by several sections.
            if lists.insert(list) {
                for (path, table) in source.tables(list) {
                    shown.extend(entry(source, list, &path, table));
                }
                if list == "auth.token" {
                    shown.extend(token_of_environment(source, settings, env_token));
                }
            }
        } else if section.path != "auth.jwt" || source.get("auth.jwt").is_some() {
            shown.extend(section.settings.iter().map(|setting| of_setting(source, settings, setting)));
        }
    }
    shown
}

/// A setting outside of lists of tables.
fn of_setting(source: &Source, settings: &Settings, setting: &Setting) -> ShownSetting {
    let given = source.get(setting.path);
    let value = match (setting.path, given) {
        ("listen", _) => json!(settings.server.listen),
        ("store", Some(_)) => match &settings.bus.store {
            // Without the password.
            StoreChoice::MongoDb(url) => json!(url.to_string()),
            StoreChoice::Log(_) => json!("log:"),
            StoreChoice::Memory => json!("memory:"),
        },
        (path, Some(value)) => visible(path, value),
        (path, None) => derived(path, settings).unwrap_or_else(|| default_of(setting)),
    };
    let origin = given.and_then(|_| source.origin(setting.path));
    let mut row = row(setting.path.to_owned(), value, origin);
    let given_addresses = source.texts("listen").map_or(1, |addresses| addresses.len());
    if setting.path == "listen" && settings.server.listen.len() > given_addresses {
        row.place = Some(row.place.map_or_else(String::new, |place| format!("{place}, ")) + "HTTP_PORT");
        if row.source == SettingSource::Default {
            row.source = SettingSource::Env;
        }
    }
    row
}

/// The effective value of a setting whose default depends on other settings.
fn derived(path: &str, settings: &Settings) -> Option<Value> {
    let rates = &settings.server.rates;
    match path {
        "rate.connection_publish_burst" => rates.connection_publish.as_ref().map(|rate| json!(rate.burst)),
        "rate.connection_deliver_burst" => rates.connection_deliver.as_ref().map(|rate| json!(rate.burst)),
        "auth.jwt.leeway_ms" => {
            settings.server.auth.jwt.as_ref().map(|jwt| json!(jwt.leeway.as_millis() as u64))
        }
        _ => None,
    }
}

/// The settings in one table of a list.
fn entry(source: &Source, list: &str, path: &str, table: &Table) -> Vec<ShownSetting> {
    let rows = table.iter().map(|(key, value)| {
        let name = format!("{path}.{key}");
        let value = visible(&format!("{list}[].{key}"), value);
        let origin = source.origin(&name);
        row(name, value, origin)
    });
    rows.collect()
}

/// The token in `WS_TOKEN`, which is added to those of the config file.
fn token_of_environment(source: &Source, settings: &Settings, name: &str) -> Option<ShownSetting> {
    let is_given = settings.server.auth.tokens.iter().any(|token| token.name == name);
    let at = source.tables("auth.token").len();
    is_given.then(|| ShownSetting {
        name: format!("auth.token[{at}].name"),
        value: json!(name),
        source: SettingSource::Env,
        place: Some("WS_TOKEN".to_owned()),
    })
}

fn visible(definition: &str, value: &toml::Value) -> Value {
    if SECRETS.contains(&definition) {
        return json!(HIDDEN);
    }
    serde_json::to_value(value).unwrap_or_default()
}

/// The default as JSON; null if there is none.
fn default_of(setting: &Setting) -> Value {
    if let Shown::Example(..) = setting.shown {
        return Value::Null;
    }
    let toml: Option<Table> = toml::from_str(&format!("value = {}", setting.default_toml())).ok();
    toml.and_then(|table| serde_json::to_value(table.get("value")?).ok()).unwrap_or_default()
}

fn row(name: String, value: Value, origin: Option<&Origin>) -> ShownSetting {
    let (source, place) = match origin {
        None => (SettingSource::Default, None),
        Some(Origin { called, line: 0 }) if called.starts_with("--") => {
            (SettingSource::Flag, Some(called.clone()))
        }
        Some(Origin { called, line: 0 }) => (SettingSource::Env, Some(called.clone())),
        Some(Origin { called, .. }) => {
            // `file:line: key`
            let place = called.rsplit_once(": ").map_or(called.as_str(), |(place, _)| place);
            (SettingSource::File, Some(place.to_owned()))
        }
    };
    ShownSetting { name, value, source, place }
}

#[cfg(test)]
mod tests {
    use super::super::{Environment, SettingFlags, load};
    use super::*;
    use std::ffi::OsString;

    fn shown(file: &str, variables: &[(&str, &str)], flags: SettingFlags) -> Vec<ShownSetting> {
        let folder = std::env::temp_dir().join(format!("prombus-shown-{}", uuid()));
        std::fs::create_dir_all(&folder).expect("creates");
        let path = folder.join("prombus.toml");
        std::fs::write(&path, file).expect("writes");
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let environment = Environment::new(variables).expect("UTF-8");
        let loaded = load(path.to_str(), &flags, &environment);
        std::fs::remove_dir_all(&folder).expect("removes");
        loaded.expect("loads").settings.server.shown_settings.list().to_vec()
    }

    fn uuid() -> String {
        prombus_protocol::Uuid::new_v4().to_string()
    }

    fn find<'a>(shown: &'a [ShownSetting], name: &str) -> &'a ShownSetting {
        shown.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("{name} is not shown"))
    }

    #[test]
    fn every_setting_has_its_value_and_its_source() {
        let mut flags = SettingFlags::default();
        flags.source.set("listen", "--listen", vec!["127.0.0.1:0"]);
        let file =
            "[limits]\nmax_topics = 7\nmax_groups = 8\n\n[[topic]]\nname = \"a.*\"\nretention_ms = 60000\n";
        let shown = shown(file, &[("PROMBUS_LIMITS_MAX_GROUPS", "9")], flags);
        let listen = find(&shown, "listen");
        assert_eq!((&listen.value, listen.source), (&json!(["127.0.0.1:0"]), SettingSource::Flag));
        assert_eq!(listen.place.as_deref(), Some("--listen"));
        let topics = find(&shown, "limits.max_topics");
        assert_eq!((&topics.value, topics.source), (&json!(7), SettingSource::File));
        assert!(topics.place.as_ref().is_some_and(|place| place.ends_with("prombus.toml:2")), "{topics:?}");
        let groups = find(&shown, "limits.max_groups");
        assert_eq!((&groups.value, groups.source), (&json!(9), SettingSource::Env));
        assert_eq!(groups.place.as_deref(), Some("PROMBUS_LIMITS_MAX_GROUPS"));
        let rule = find(&shown, "topic[0].retention_ms");
        assert_eq!((&rule.value, rule.source), (&json!(60_000), SettingSource::File));
        assert!(rule.place.as_ref().is_some_and(|place| place.ends_with("prombus.toml:7")), "{rule:?}");
        let data = find(&shown, "data");
        let default = (&json!("./prombus-data"), SettingSource::Default, &None);
        assert_eq!((&data.value, data.source, &data.place), default);
        assert_eq!(find(&shown, "tls.cert").value, Value::Null);
        let names: BTreeSet<&str> = shown.iter().map(|setting| setting.name.as_str()).collect();
        assert_eq!(names.len(), shown.len(), "a setting is listed twice");
    }

    #[test]
    fn derived_values_are_those_in_effect() {
        let file = "listen = [\"127.0.0.1:18472\"]\n\
            [rate]\nconnection_publish_per_second = 5\n\
            [auth.jwt]\nsecret = \"a secret of more than 32 bytes, at least\"\n";
        let shown = shown(file, &[("HTTP_PORT", "18473")], SettingFlags::default());
        assert_eq!(find(&shown, "rate.connection_publish_burst").value, json!(5.0));
        assert_eq!(find(&shown, "rate.connection_deliver_burst").value, Value::Null);
        let leeway = find(&shown, "auth.jwt.leeway_ms");
        assert_eq!((&leeway.value, leeway.source), (&json!(30_000), SettingSource::Default));
        let listen = find(&shown, "listen");
        assert_eq!(listen.value, json!(["127.0.0.1:18472", "127.0.0.1:18473"]));
        assert!(
            listen.place.as_ref().is_some_and(|place| place.ends_with("prombus.toml:1, HTTP_PORT")),
            "{listen:?}"
        );
    }

    #[test]
    fn no_secret_is_shown() {
        let file = "store = \"mongodb://me:hunter2@localhost/bus?x=hunter2\"\n\
            [[auth.token]]\nname = \"billing\"\n\
            hash = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"\n\
            scopes = [\"admin\"]\n\
            [auth.jwt]\nissuer = \"me\"\naudience = \"bus\"\n";
        let variables = [
            ("WS_TOKEN", "hunter2-of-the-environment"),
            ("PROMBUS_AUTH_JWT_SECRET", "hunter2-is-a-secret-of-32-bytes-or-more"),
        ];
        let shown = shown(file, &variables, SettingFlags::default());
        let text = serde_json::to_string(&shown).expect("it is plain data");
        assert!(!text.contains("hunter2") && !text.contains("9f86"), "{text}");
        assert_eq!(find(&shown, "store").value, json!("mongodb://me:***@localhost/bus"));
        assert_eq!(find(&shown, "auth.token[0].hash").value, json!("***"));
        assert_eq!(find(&shown, "auth.token[0].scopes").value, json!(["admin"]));
        assert_eq!(find(&shown, "auth.jwt.secret").value, json!("***"));
        let token = find(&shown, "auth.token[1].name");
        assert_eq!((&token.value, token.place.as_deref()), (&json!("ws_token"), Some("WS_TOKEN")));
    }
}
