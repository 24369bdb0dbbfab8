//! Reads settings from environment variables: `PROMBUS_*` for every key of the config file that is not in a list of tables, and
//! `WS_PORT`, `HTTP_PORT`, `WS_TOKEN`.

use super::definitions;
use super::setting::{Kind, Setting};
use super::source::Source;
use super::suggestion::nearest;
use std::collections::BTreeMap;
use std::ffi::OsString;
use toml::Value;

/// The variable that names the config file.
const CONFIG: &str = "PROMBUS_CONFIG";
/// The prefix of variables that contain settings.
const PREFIX: &str = "PROMBUS_";
/// Variables of the client commands, which are not settings of a server.
const OF_CLIENTS: [&str; 6] = [
    "PROMBUS_URL",
    "PROMBUS_TOKEN",
    "PROMBUS_CA_CERT",
    "PROMBUS_CONTEXT",
    "PROMBUS_CONTEXTS",
    "PROMBUS_OUTBOX_MONGODB",
];

/// The variables of this process that prombus reads.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

/// The settings that the variables contain.
#[derive(Debug, Default)]
pub struct EnvironmentSettings {
    /// The settings.
    pub source: Source,
    /// `HTTP_PORT`
    pub http_port: Option<u16>,
    /// `WS_TOKEN`
    pub token: Option<String>,
    /// Warnings about unknown `PROMBUS_` variables.
    pub warnings: Vec<String>,
}

impl Environment {
    /// Keeps only the variables that prombus reads.
    ///
    /// # Errors
    /// Names a variable whose value is not UTF-8.
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, String> {
        let mut ours = BTreeMap::new();
        for (name, value) in variables {
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(PREFIX) || ["WS_PORT", "HTTP_PORT", "WS_TOKEN"].contains(&name) {
                let value = value.into_string().map_err(|_| format!("{name}: is not UTF-8"))?;
                ours.insert(name.to_owned(), value);
            }
        }
        Ok(Self { variables: ours })
    }

    /// The config file that `PROMBUS_CONFIG` names.
    pub fn config_file(&self) -> Option<&str> {
        self.variables.get(CONFIG).map(String::as_str)
    }

    /// Reads the settings from the variables.
    ///
    /// # Errors
    /// One line for each bad value, with the variable's name. A secret is never shown.
    pub fn settings(&self) -> Result<EnvironmentSettings, Vec<String>> {
        let mut settings = EnvironmentSettings::default();
        let mut problems = Vec::new();
        let known: BTreeMap<String, &Setting> =
            definitions::all().filter_map(|setting| Some((setting.variable()?, setting))).collect();
        for (name, text) in &self.variables {
            match known.get(name) {
                Some(setting) => match value_of(&setting.kind, text) {
                    Ok(value) => settings.source.set(setting.path, name, value),
                    Err(why) => problems.push(format!("{name}: {why}")),
                },
                None if OF_CLIENTS.contains(&name.as_str()) => {}
                None if name.starts_with(PREFIX) && name != CONFIG => {
                    let names = known.keys().map(String::as_str).chain([CONFIG]);
                    settings.warnings.push(match nearest(name, names) {
                        Some(near) => format!("{name} is not a setting; did you mean {near}?"),
                        None => format!("{name} is not a setting and is ignored"),
                    });
                }
                None => {}
            }
        }
        let mut port = |name: &str| match self.variables.get(name).map(|text| port_of(text)) {
            Some(Err(why)) => {
                problems.push(format!("{name}: {why}"));
                None
            }
            Some(Ok(port)) => Some(port),
            None => None,
        };
        let ws_port = port("WS_PORT");
        settings.http_port = port("HTTP_PORT");
        if let Some(port) = ws_port.filter(|_| !settings.source.origins.contains_key("listen")) {
            settings.source.set("listen", "WS_PORT", vec![format!("127.0.0.1:{port}")]);
        }
        settings.token = self.variables.get("WS_TOKEN").cloned();
        if settings.token.as_ref().is_some_and(|token| token.trim().is_empty()) {
            problems
                .push("WS_TOKEN: is empty; set it to a token, or unset it to run without auth".to_owned());
        }
        if problems.is_empty() { Ok(settings) } else { Err(problems) }
    }
}

/// Parses the text of a variable or an argument.
pub(super) fn value_of(kind: &Kind, text: &str) -> Result<Value, String> {
    let expected = |expected: &str| format!("expected {expected}");
    if text.is_empty() && *kind != Kind::Texts {
        return Err("is empty; unset it to use the default".to_owned());
    }
    match kind {
        Kind::Text => Ok(Value::String(text.to_owned())),
        Kind::Texts => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            Ok(Value::Array(parts.map(|part| Value::String(part.to_owned())).collect()))
        }
        Kind::Whole(_) => {
            let number: Option<i64> = text.replace('_', "").parse().ok().filter(|number| *number >= 0);
            number.map(Value::Integer).ok_or_else(|| expected(kind.expected()))
        }
        Kind::Number(_) => {
            let number = text.parse().ok().filter(|number: &f64| number.is_finite());
            number.map(Value::Float).ok_or_else(|| expected(kind.expected()))
        }
        Kind::Switch => match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(Value::Boolean(true)),
            "0" | "false" | "no" | "off" => Ok(Value::Boolean(false)),
            _ => Err(expected("true or false (or 1, 0, yes, no, on, off)")),
        },
    }
}

fn port_of(text: &str) -> Result<u16, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is not a port; expected a number from 0 to 65535"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Environment::new(variables).unwrap()
    }

    #[test]
    fn a_variable_sets_the_key_that_it_is_named_after() {
        let settings = environment(&[
            ("PROMBUS_LISTEN", "127.0.0.1:1, 127.0.0.1:2"),
            ("PROMBUS_LIMITS_MAX_CONNECTIONS", "5_000"),
            ("PROMBUS_INSECURE", "Yes"),
            ("PROMBUS_RATE_CONNECTION_PUBLISH_PER_SECOND", "0.5"),
            ("PATH", "/bin"),
        ])
        .settings()
        .unwrap();
        let table = &settings.source.table;
        assert_eq!(table["listen"].as_array().map(Vec::len), Some(2));
        assert_eq!(table["limits"]["max_connections"].as_integer(), Some(5_000));
        assert_eq!(table["insecure"].as_bool(), Some(true));
        assert_eq!(table["rate"]["connection_publish_per_second"].as_float(), Some(0.5));
        assert!(settings.warnings.is_empty());
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        let problems = environment(&[
            ("PROMBUS_LIMITS_MAX_TOPICS", "many"),
            ("PROMBUS_INSECURE", "maybe"),
            ("PROMBUS_DATA", ""),
            ("WS_PORT", "http"),
            ("HTTP_PORT", "70000"),
        ])
        .settings()
        .unwrap_err();
        assert_eq!(problems.len(), 5, "{problems:?}");
        let named =
            ["PROMBUS_DATA: is empty", "PROMBUS_INSECURE: ", "PROMBUS_LIMITS_MAX_TOPICS: expected a whole"];
        for (problem, start) in problems.iter().zip(named) {
            assert!(problem.starts_with(start), "{problem}");
        }
        assert!(problems[3].starts_with("WS_PORT: \"http\" is not a port"), "{}", problems[3]);
    }

    #[test]
    fn an_unknown_variable_is_a_warning_with_the_nearest_name() {
        let settings =
            environment(&[("PROMBUS_LIMIT_MAX_TOPICS", "5"), ("PROMBUS_XYZZY", "1")]).settings().unwrap();
        assert_eq!(
            settings.warnings,
            [
                "PROMBUS_LIMIT_MAX_TOPICS is not a setting; did you mean PROMBUS_LIMITS_MAX_TOPICS?",
                "PROMBUS_XYZZY is not a setting and is ignored"
            ]
        );
    }

    #[test]
    fn an_empty_token_is_refused_instead_of_turning_auth_off() {
        let problems = environment(&[("WS_TOKEN", "")]).settings().unwrap_err();
        assert!(problems[0].starts_with("WS_TOKEN: is empty"));
    }

    #[test]
    fn prombus_listen_takes_precedence_over_ws_port() {
        let listen = |variables: &[(&str, &str)]| {
            let settings = environment(variables).settings().unwrap();
            settings.source.table["listen"][0].as_str().map(str::to_owned)
        };
        assert_eq!(listen(&[("WS_PORT", "9000")]).as_deref(), Some("127.0.0.1:9000"));
        let both = [("WS_PORT", "9000"), ("PROMBUS_LISTEN", "127.0.0.1:1")];
        assert_eq!(listen(&both).as_deref(), Some("127.0.0.1:1"));
    }
}
