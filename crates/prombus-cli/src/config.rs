//! Merges settings from flags, environment variables, the config file and the defaults, in this order of precedence.
//! `definitions` defines every setting. An error names a bad value by its flag, its variable, or its key and line.

mod auth;
mod definitions;
mod environment;
mod flags;
mod needs_restart;
mod problems;
mod reference;
mod setting;
mod settings;
mod shown;
mod source;
mod store_url;
mod suggestion;
mod toml_file;
mod validate;

pub use environment::Environment;
pub use flags::SettingFlags;
pub use reference::{default_file, topic_keys, topic_value};
pub use settings::{BusSettings, DATA, LogFormat, LogSettings, Settings, StoreChoice};
pub use store_url::StoreUrl;

use crate::messages::io_reason;
use environment::EnvironmentSettings;
use problems::Problems;
use prombus_server::{Scope, TokenHash, TokenOptions};
use source::Source;
use std::net::SocketAddr;
use toml_file::TomlFile;

/// The name, in logs and rules, of the token that `WS_TOKEN` contains.
pub const TOKEN_NAME: &str = "ws_token";

/// Settings, and warnings about them.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// Lines for the log.
    pub warnings: Vec<String>,
    /// The values as given, with their origins.
    source: Source,
}

/// Invalid settings.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// One line for each fault.
    pub lines: Vec<String>,
    /// Whether a flag is at fault, rather than the environment or a file.
    pub is_usage: bool,
}

impl ConfigError {
    fn new(lines: Vec<String>) -> Self {
        let is_usage = lines.iter().any(|line| line.starts_with("--"));
        Self { lines, is_usage }
    }
}

/// Loads the settings of `serve`. `file` is the config file that `--config` names.
///
/// # Errors
/// [`ConfigError`], with all problems that were found.
pub fn load(
    file: Option<&str>,
    flags: &SettingFlags,
    environment: &Environment,
) -> Result<Loaded, ConfigError> {
    let variables = environment.settings().map_err(ConfigError::new)?;
    let mut source = match (file, environment.config_file()) {
        (Some(file), _) => read_file(file, "--config")?,
        (None, Some(file)) => read_file(file, "PROMBUS_CONFIG")?,
        (None, None) => Source::default(),
    };
    let EnvironmentSettings { source: of_environment, http_port, token, mut warnings } = variables;
    source.merge(of_environment);
    source.merge(flags.source.clone());
    let mut settings = validated(&source)?;
    add_listener(&mut settings, http_port);
    add_token(&mut settings, token, &mut warnings)?;
    let mut problems = Problems::default();
    check_access(&mut problems, &settings);
    check_advertise(&mut problems, &settings);
    let settings = as_result(settings, &source, &problems)?;
    settings.server.shown_settings.replace(shown::settings(&source, &settings, TOKEN_NAME));
    Ok(Loaded { settings, warnings, source })
}

/// Checks a config file. Returns every problem, one line each. Settings that the environment may add are not reported as missing.
pub fn check(file: &str, text: &str) -> Vec<String> {
    let checked = parse_file(file, text).and_then(|source| validated(&source));
    checked.err().map(|error| error.lines).unwrap_or_default()
}

fn read_file(file: &str, named_by: &str) -> Result<Source, ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        ConfigError::new(vec![format!("{named_by}: cannot read {file}: {}", io_reason(&error))])
    })?;
    parse_file(file, &text)
}

fn parse_file(file: &str, text: &str) -> Result<Source, ConfigError> {
    let TomlFile { source, problems } =
        toml_file::read(file, text).map_err(|line| ConfigError::new(vec![line]))?;
    if problems.is_empty() { Ok(source) } else { Err(ConfigError::new(source.describe_all(&problems))) }
}

fn validated(source: &Source) -> Result<Settings, ConfigError> {
    let mut problems = Problems::default();
    let settings = validate::settings(&mut problems, source);
    as_result(settings, source, &problems)
}

fn as_result(settings: Settings, source: &Source, problems: &Problems) -> Result<Settings, ConfigError> {
    match problems.found.as_slice() {
        [] => Ok(settings),
        found => Err(ConfigError::new(source.describe_all(found))),
    }
}

fn add_listener(settings: &mut Settings, http_port: Option<u16>) {
    let Some(port) = http_port else { return };
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // A listener on this port at 0.0.0.0 or [::] includes this address.
    let has_it =
        |other: &SocketAddr| other.port() == port && (other.ip().is_unspecified() || *other == address);
    if port == 0 || !settings.server.listen.iter().any(has_it) {
        settings.server.listen.push(address);
    }
}

fn add_token(
    settings: &mut Settings,
    token: Option<String>,
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let Some(token) = token else { return Ok(()) };
    let tokens = &mut settings.server.auth.tokens;
    if tokens.iter().any(|other| other.name == TOKEN_NAME) {
        let line =
            format!("WS_TOKEN: the config file already has a token named {TOKEN_NAME:?}; rename that token");
        return Err(ConfigError::new(vec![line]));
    }
    let secret = TokenHash::of(&token);
    if let Some(other) = tokens.iter().find(|other| other.secret == secret) {
        warnings.push(format!(
            "WS_TOKEN is also the token {:?} of the config file, whose scopes apply; it stays valid until it is removed from both",
            other.name
        ));
    }
    tokens.push(TokenOptions { name: TOKEN_NAME.to_owned(), secret, scopes: Scope::all() });
    Ok(())
}

/// Checks that auth is configured where it is needed. This uses the merged settings, because any source may configure auth.
fn check_access(problems: &mut Problems, settings: &Settings) {
    let server = &settings.server;
    if server.auth.is_configured() {
        return;
    }
    if !server.auth.rules.is_empty() {
        let why =
            "rules have no effect without auth: configure a token (WS_TOKEN, [[auth.token]]) or [auth.jwt]";
        problems.add("auth.rule", why);
    }
    let is_open = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
    if let Some(open) = server.listen.iter().find(is_open)
        && !server.is_insecure
    {
        let why = format!(
            "{open} is open to other machines, but no auth is configured: set WS_TOKEN, add tokens to the config file, \
             listen on 127.0.0.1, or allow access without auth with --insecure"
        );
        problems.add("listen", why);
    }
}

/// Checks that other gateways of a shared store can connect to this one.
fn check_advertise(problems: &mut Problems, settings: &Settings) {
    let is_shared = matches!(settings.bus.store, StoreChoice::MongoDb(_));
    let listen = settings.server.listen.first().filter(|address| address.ip().is_unspecified());
    if let Some(listen) = listen
        && is_shared
        && settings.advertise.is_none()
    {
        let why = format!(
            "{listen} is not an address that other gateways can connect to: name this gateway's address with \
             --advertise HOST:PORT"
        );
        problems.add("listen", why);
    }
}

#[cfg(test)]
mod tests;
