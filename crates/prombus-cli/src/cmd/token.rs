//! `prombus token`: creates tokens and their hashes. A token is printed once and stored nowhere.

use crate::args::TokenCommand;
use crate::output::stdout;
use anyhow::{Context, bail};
use prombus_server::{Scope, TokenHash};
use serde_json::json;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::process::ExitCode;
use toml::Value;

/// Makes tokens recognizable to people and to secret scanners.
const PREFIX: &str = "prombus_";
/// Number of random bytes in a token.
const TOKEN_BYTES: usize = 32;

/// Runs the command.
///
/// # Errors
/// When the system provides no random bytes, or standard input has no usable token.
pub fn run(command: &TokenCommand) -> anyhow::Result<ExitCode> {
    match command {
        TokenCommand::New { name, scope, json } => new(name, scope, json.json),
        TokenCommand::Hash { json } => hash(json.json),
    }
}

fn new(name: &str, scopes: &[Scope], is_json: bool) -> anyhow::Result<ExitCode> {
    let token = random_token()?;
    let hash = TokenHash::of(&token);
    let mut out = stdout().lock();
    if is_json {
        let scopes: Vec<String> = scopes.iter().map(Scope::to_string).collect();
        let made = json!({ "token": token, "name": name, "hash": hash.to_string(), "scopes": scopes });
        writeln!(out, "{made}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let block = config_block(name, &hash, scopes);
    writeln!(out, "# The token. It is shown only once; give it to the client:\n{token}\n")?;
    writeln!(out, "# For the config file. The hash does not reveal the token:\n{block}")?;
    Ok(ExitCode::SUCCESS)
}

fn config_block(name: &str, hash: &TokenHash, scopes: &[Scope]) -> String {
    let scopes = Value::Array(scopes.iter().map(|scope| Value::String(scope.to_string())).collect());
    let name = Value::String(name.to_owned());
    format!("[[auth.token]]\nname = {name}\nhash = \"{hash}\"\nscopes = {scopes}")
}

fn random_token() -> anyhow::Result<String> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("getting random bytes from the system")?;
    if filled != TOKEN_BYTES {
        bail!("the system gave {filled} random bytes instead of {TOKEN_BYTES}");
    }
    let mut token = PREFIX.to_owned();
    for byte in bytes {
        write!(token, "{byte:02x}")?;
    }
    Ok(token)
}

fn hash(is_json: bool) -> anyhow::Result<ExitCode> {
    if stdin().is_terminal() {
        write!(stderr(), "token: ")?;
    }
    let mut line = String::new();
    stdin().read_line(&mut line).context("reading the token from standard input")?;
    let token = line.trim_end_matches(['\r', '\n']);
    if token.is_empty() {
        bail!("no token on standard input; e.g. echo \"$TOKEN\" | prombus token hash");
    }
    if token.trim() != token {
        bail!("the token begins or ends with a space; clients would not send it");
    }
    let hash = TokenHash::of(token).to_string();
    writeln!(stdout(), "{}", if is_json { json!({ "hash": hash }).to_string() } else { hash })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_random() {
        let (one, other) = (random_token().unwrap(), random_token().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), PREFIX.len() + 2 * TOKEN_BYTES);
    }

    #[test]
    fn the_printed_block_is_valid_config_for_any_name() {
        let name = "a \"quoted\" name\\";
        let scopes = ["publish:**".parse().unwrap(), Scope::Admin];
        let block = config_block(name, &TokenHash::of("secret"), &scopes);
        assert_eq!(crate::config::check("block", &block), Vec::<String>::new());
        let table: toml::Table = toml::from_str(&block).unwrap();
        assert_eq!(table["auth"]["token"][0]["name"].as_str(), Some(name));
    }
}
