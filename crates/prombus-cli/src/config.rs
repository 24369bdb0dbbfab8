//! Settings from flags, environment, config file and defaults, in this order of precedence. `definitions` has every
//! setting. A bad value is named the way it was given: by its flag, its variable, or its key and line.

mod auth;
mod definitions;
mod environment;
mod flags;
mod problems;
mod reference;
mod setting;
mod settings;
mod source;
mod store_url;
mod suggestion;
mod toml_file;
mod validate;

pub use environment::Environment;
pub use flags::SettingFlags;
pub use reference::{default_file, topic_keys};
pub use settings::{BusSettings, DATA, LogFormat, LogSettings, Settings, StoreChoice};
pub use store_url::StoreUrl;

use crate::messages::io_reason;
use environment::EnvironmentSettings;
use problems::Problems;
use prombus_server::{Scope, TokenHash, TokenOptions};
use source::Source;
use std::net::SocketAddr;
use toml_file::TomlFile;

/// What `WS_TOKEN` is called in logs and rules.
pub const TOKEN_NAME: &str = "ws_token";

/// Settings, and what to warn of.
#[derive(Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// For the log.
    pub warnings: Vec<String>,
}

/// Settings that do not work.
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

/// Settings for `serve`. `file` is the config file that `--config` names.
///
/// # Errors
/// [`ConfigError`]; everything that could be found at once is in it.
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
    let EnvironmentSettings { source: of_environment, http_port, token, warnings } = variables;
    source.put_over(of_environment);
    source.put_over(flags.source.clone());
    let mut settings = validated(&source)?;
    add_listener(&mut settings, http_port);
    add_token(&mut settings, token)?;
    let mut problems = Problems::default();
    check_access(&mut problems, &settings);
    check_advertise(&mut problems, &settings);
    as_result(settings, &source, &problems).map(|settings| Loaded { settings, warnings })
}

/// Everything that is wrong with a file by itself, one line each. What the environment may add is not asked for.
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
    // A listener on all addresses of a port has this one too.
    let has_it =
        |other: &SocketAddr| other.port() == port && (other.ip().is_unspecified() || *other == address);
    if port == 0 || !settings.server.listen.iter().any(has_it) {
        settings.server.listen.push(address);
    }
}

fn add_token(settings: &mut Settings, token: Option<String>) -> Result<(), ConfigError> {
    let Some(token) = token else { return Ok(()) };
    let tokens = &mut settings.server.auth.tokens;
    if tokens.iter().any(|other| other.name == TOKEN_NAME) {
        let line =
            format!("WS_TOKEN: the config has a token named {TOKEN_NAME:?} already; give that another name");
        return Err(ConfigError::new(vec![line]));
    }
    tokens.push(TokenOptions {
        name: TOKEN_NAME.to_owned(),
        secret: TokenHash::of(&token),
        scopes: Scope::all(),
    });
    Ok(())
}

/// Who gets in can be judged only when all sources are put together.
fn check_access(problems: &mut Problems, settings: &Settings) {
    let server = &settings.server;
    if server.auth.is_configured() {
        return;
    }
    if !server.auth.rules.is_empty() {
        let why = "rules mean nothing where everybody gets in: give a token (WS_TOKEN, [[auth.token]]) or [auth.jwt] too";
        problems.add("auth.rule", why);
    }
    let is_open = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
    if let Some(open) = server.listen.iter().find(is_open)
        && !server.is_insecure
    {
        let why = format!(
            "{open} is open to other machines and no auth is configured: set WS_TOKEN or tokens in the config, \
             listen on 127.0.0.1, or say --insecure"
        );
        problems.add("listen", why);
    }
}

/// Other gateways of a shared store must be able to connect to this one.
fn check_advertise(problems: &mut Problems, settings: &Settings) {
    let is_shared = matches!(settings.bus.store, StoreChoice::MongoDb(_));
    let listen = settings.server.listen.first().filter(|address| address.ip().is_unspecified());
    if let Some(listen) = listen
        && is_shared
        && settings.advertise.is_none()
    {
        let why = format!(
            "{listen} is not an address that other gateways can connect to: say where they reach this one \
             with --advertise HOST:PORT"
        );
        problems.add("listen", why);
    }
}

#[cfg(test)]
mod tests;
