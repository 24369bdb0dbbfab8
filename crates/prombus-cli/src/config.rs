//! Settings from flags, environment, config file and defaults, in this order of weight. A bad value is named the way it was
//! given: by its flag, its variable, or its key and line.

mod access;
mod checker;
mod document;
mod environment;
mod file;
mod layer;
mod nearest;
mod settings;
mod shape;

pub use checker::reason;
pub use environment::Environment;
pub use settings::{BusSettings, LogFormat, LogSettings, Settings, StoreChoice};

use crate::args::ServeArgs;
use checker::Checker;
use document::Document;
use environment::EnvironmentSettings;
use file::FileConfig;
use layer::{Layer, Problem};
use prombus_server::{Scope, TokenHash, TokenOptions};
use serde::Deserialize;
use std::net::SocketAddr;
use toml::Value;

/// The commented config with every default.
pub const DEFAULT_TEXT: &str = include_str!("../../../prombus.toml");

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

/// Settings for `serve`.
///
/// # Errors
/// [`ConfigError`]; everything that could be found at once is in it.
pub fn load(args: &ServeArgs, environment: &Environment) -> Result<Loaded, ConfigError> {
    let variables = environment.settings().map_err(ConfigError::new)?;
    let mut layer = match (&args.config, environment.config_file()) {
        (Some(file), _) => file_layer(file, "--config")?,
        (None, Some(file)) => file_layer(file, "PROMBUS_CONFIG")?,
        (None, None) => Layer::default(),
    };
    let EnvironmentSettings { layer: upper, http_port, token, warnings } = variables;
    layer.put_over(upper);
    layer.put_over(flags(args));
    let mut settings = validated(&layer)?;
    add_listener(&mut settings, http_port);
    add_token(&mut settings, token)?;
    let mut checker = Checker::default();
    check_entry(&mut checker, &settings);
    match checker.problems.as_slice() {
        [] => Ok(Loaded { settings, warnings }),
        problems => Err(ConfigError::new(layer.describe_all(problems))),
    }
}

/// Everything that is wrong with a file by itself, one line each. What the environment may add is not asked for.
pub fn check(file: &str, text: &str) -> Vec<String> {
    let Document { layer, problems } = match document::read(file, text) {
        Ok(document) => document,
        Err(line) => return vec![line],
    };
    if !problems.is_empty() {
        return layer.describe_all(&problems);
    }
    validated(&layer).err().map(|error| error.lines).unwrap_or_default()
}

fn file_layer(file: &str, named_by: &str) -> Result<Layer, ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        ConfigError::new(vec![format!("{named_by}: cannot read {file}: {}", reason(&error))])
    })?;
    let Document { layer, problems } =
        document::read(file, &text).map_err(|line| ConfigError::new(vec![line]))?;
    if problems.is_empty() { Ok(layer) } else { Err(ConfigError::new(layer.describe_all(&problems))) }
}

fn flags(args: &ServeArgs) -> Layer {
    let mut layer = Layer::default();
    if !args.listen.is_empty() {
        layer.set("listen", "--listen", args.listen.clone());
    }
    let texts = [
        ("data", "--data", &args.data),
        ("store", "--store", &args.store),
        ("tls.cert", "--tls-cert", &args.tls_cert),
        ("tls.key", "--tls-key", &args.tls_key),
        ("log", "--log", &args.log),
        ("log_format", "--log-format", &args.log_format),
    ];
    for (path, flag, text) in texts {
        if let Some(text) = text {
            layer.set(path, flag, text.clone());
        }
    }
    if args.insecure {
        layer.set("insecure", "--insecure", true);
    }
    layer
}

fn validated(layer: &Layer) -> Result<Settings, ConfigError> {
    let file = FileConfig::deserialize(Value::Table(layer.table.clone()))
        .map_err(|error| ConfigError::new(vec![error.message().to_owned()]))?;
    let mut checker = Checker::default();
    let settings = settings::settings(&mut checker, &file);
    match checker.problems.as_slice() {
        [] => Ok(settings),
        problems => Err(ConfigError::new(layer.describe_all(problems))),
    }
}

fn add_listener(settings: &mut Settings, http_port: Option<u16>) {
    let Some(port) = http_port else { return };
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // Who listens on all addresses of a port listens on this one.
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

/// What can be said only when all sources are put together: who gets in.
fn check_entry(checker: &mut Checker, settings: &Settings) {
    let server = &settings.server;
    if server.auth.is_configured() {
        return;
    }
    if !server.auth.rules.is_empty() {
        checker.problems.push(Problem::new(
            "auth.rule",
            "rules mean nothing where everybody gets in: give a token (WS_TOKEN, [[auth.token]]) or [auth.jwt] too",
        ));
    }
    if let Some(open) = server.listen.iter().find(|address| !address.ip().to_canonical().is_loopback())
        && !server.is_insecure
    {
        let why = format!(
            "{open} is open to other machines and no auth is configured: set WS_TOKEN or tokens in the config, \
             listen on 127.0.0.1, or say --insecure"
        );
        checker.refuse("listen", why);
    }
}

#[cfg(test)]
mod tests;
