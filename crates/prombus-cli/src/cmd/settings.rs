//! `prombus settings`: the effective settings of a server, and where they come from.

use super::server_client;
use super::style::put_json_line;
use super::table::{Side, lines, shortened};
use crate::args::SettingsArgs;
use crate::output::stdout;
use prombus_client::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// Longer values are shortened in the table.
const VALUE_CHARS_MAX: usize = 60;

#[derive(Deserialize)]
struct Settings {
    settings: Vec<Setting>,
}

#[derive(Deserialize, Serialize)]
struct Setting {
    name: String,
    value: Value,
    source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When the server refuses the request or cannot be reached.
pub fn run(args: &SettingsArgs) -> anyhow::Result<ExitCode> {
    let settings: Settings = server_client::block_on(async {
        let client = server_client::client(&args.server)?;
        Ok(client.get_json(&Client::path(&["settings"], &[])).await?)
    })?;
    let prefix = args.prefix.as_deref().unwrap_or("");
    let is_wanted = |setting: &Setting| {
        setting.name.starts_with(prefix) && !(args.changed && setting.source == "default")
    };
    let settings: Vec<Setting> = settings.settings.into_iter().filter(is_wanted).collect();
    if args.json.json {
        put_json_line(&json!({ "settings": settings }))?;
    } else if settings.is_empty() {
        writeln!(stdout(), "no settings")?;
    } else {
        let rows: Vec<Vec<String>> = settings.iter().map(row).collect();
        let columns = [("SETTING", Side::Left), ("VALUE", Side::Left), ("SOURCE", Side::Left)];
        write!(stdout(), "{}", lines(&columns, &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(setting: &Setting) -> Vec<String> {
    let value = match &setting.value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let source = setting.place.as_ref().unwrap_or(&setting.source);
    vec![setting.name.clone(), shortened(&value, VALUE_CHARS_MAX), source.clone()]
}
