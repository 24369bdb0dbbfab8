//! `prombus topic`: lists, shows, configures and deletes topics.

use super::server_client::{self, TopicPage, TopicPages, TopicView, pattern_of_prefix};
use super::style::{escape_controls, put_json_line};
use super::table::{Side, lines};
use crate::args::{JsonArgs, TopicCommand};
use crate::config::topic_value;
use crate::messages::{counted, one_line};
use crate::output::stdout;
use crate::time;
use crate::wrong_arguments::WrongArguments;
use anyhow::{Context, anyhow, bail};
use indicatif::HumanBytes;
use prombus::TopicOptions;
use prombus_client::{Client, ClientError};
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write, stderr, stdin};
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When the server refuses the request or cannot be reached.
pub fn run(command: &TopicCommand) -> anyhow::Result<ExitCode> {
    server_client::block_on(async {
        match command {
            TopicCommand::List { prefix, json: JsonArgs { json }, server } => {
                list(&server_client::client(server)?, prefix.as_deref().unwrap_or(""), *json).await
            }
            TopicCommand::Show { topic, json: JsonArgs { json }, server } => {
                show(&server_client::client(server)?, topic, *json).await
            }
            TopicCommand::Set { topic, settings, json: JsonArgs { json }, server } => {
                check_changes(settings)?;
                set(&server_client::client(server)?, topic, settings, *json).await
            }
            TopicCommand::Delete { topic, yes, json: JsonArgs { json }, server } => {
                delete(&server_client::client(server)?, topic, *yes, *json).await
            }
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, prefix: &str, json: bool) -> anyhow::Result<()> {
    if json {
        return list_json(client, prefix).await;
    }
    let mut pages = TopicPages::new(prefix, true);
    let mut rows = Vec::new();
    while let Some(page) = pages.next::<TopicView>(client).await? {
        rows.extend(page.topics.iter().map(row));
    }
    if rows.is_empty() {
        server_client::check_empty_list(client, "topics", &pattern_of_prefix(prefix)).await?;
        writeln!(stdout(), "no topics")?;
        return Ok(());
    }
    let columns = [
        ("TOPIC", Side::Left),
        ("EVENTS", Side::Right),
        ("BYTES", Side::Right),
        ("FIRST", Side::Right),
        ("LAST", Side::Right),
        ("GROUPS", Side::Right),
        ("KEEPS", Side::Left),
    ];
    write!(stdout(), "{}", lines(&columns, &rows))?;
    Ok(())
}

/// Prints all topics in the format of one `GET /topics` response, without holding them all in memory.
async fn list_json(client: &Client, prefix: &str) -> anyhow::Result<()> {
    let mut pages = TopicPages::new(prefix, false);
    let mut page = pages.next::<Value>(client).await?;
    if page.as_ref().is_none_or(|page| page.topics.is_empty()) {
        server_client::check_empty_list(client, "topics", &pattern_of_prefix(prefix)).await?;
    }
    let mut bytes = 0;
    write!(stdout(), "{{\"topics\":[")?;
    let mut is_first = true;
    while let Some(TopicPage { topics, bytes: of_page, .. }) = page {
        let mut out = stdout().lock();
        for topic in topics {
            write!(out, "{}{topic}", if std::mem::take(&mut is_first) { "" } else { "," })?;
        }
        bytes = of_page;
        drop(out);
        page = pages.next(client).await?;
    }
    writeln!(stdout(), "],\"bytes\":{bytes}}}")?;
    Ok(())
}

fn row(topic: &TopicView) -> Vec<String> {
    vec![
        topic.topic.clone(),
        topic.count.to_string(),
        HumanBytes(topic.bytes).to_string(),
        topic.first_seq.map_or_else(|| "-".to_owned(), |seq| seq.to_string()),
        topic.last_seq.to_string(),
        topic.groups.to_string(),
        keeps(topic.settings.as_ref()),
    ]
}

/// A summary of retention and compaction.
fn keeps(settings: Option<&Map<String, Value>>) -> String {
    let number = |name: &str| settings.and_then(|it| it.get(name)?.as_u64());
    let mut parts = Vec::new();
    if settings.and_then(|it| it.get("compaction")?.as_bool()) == Some(true) {
        parts.push("newest of each key".to_owned());
    }
    if let Some(ms) = number("retention_ms") {
        parts.push(time::length(ms));
    }
    if let Some(bytes) = number("retention_bytes") {
        parts.push(HumanBytes(bytes).to_string());
    }
    if parts.is_empty() { "all".to_owned() } else { parts.join(", ") }
}

async fn show(client: &Client, name: &str, json: bool) -> anyhow::Result<()> {
    if json {
        let answer: Value = match client.get_json(&path(name)).await {
            Err(ClientError::Refused { status: Some(404), .. }) => return unknown(client, name).await,
            answer => answer?,
        };
        put_json_line(&answer)?;
        return Ok(());
    }
    let topic = server_client::known_topic(client, name).await?;
    write!(stdout(), "{}", described(&topic))?;
    Ok(())
}

async fn unknown(client: &Client, name: &str) -> anyhow::Result<()> {
    server_client::known_topic(client, name).await.map(drop)
}

fn described(topic: &TopicView) -> String {
    let first = topic.first_seq.map_or_else(|| "-".to_owned(), |seq| seq.to_string());
    let mut lines = vec![
        ("topic", topic.topic.clone()),
        ("events", topic.count.to_string()),
        ("bytes", format!("{} ({})", topic.bytes, HumanBytes(topic.bytes))),
        ("seqs", format!("{first} to {}", topic.last_seq)),
        ("groups", topic.groups.to_string()),
        ("keeps", keeps(topic.settings.as_ref())),
    ];
    for (title, settings) in [("settings", &topic.settings), ("set here", &topic.set)] {
        let settings = settings.iter().flatten().filter(|(_, value)| !value.is_null());
        let text: Vec<String> = settings.map(|(name, value)| format!("{name}={}", plain(value))).collect();
        lines.push((title, if text.is_empty() { "nothing".to_owned() } else { text.join(" ") }));
    }
    lines.into_iter().map(|(title, text)| format!("{title:<9} {}\n", escape_controls(&text))).collect()
}

/// A value as the user types it: strings without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

async fn set(client: &Client, name: &str, settings: &[String], json: bool) -> anyhow::Result<()> {
    let topic = server_client::known_topic(client, name).await?;
    let merged = merged(topic.set.unwrap_or_default(), settings)
        .map_err(|error| WrongArguments::new(one_line(&error)))?;
    let answer: Value = client.put_json(&path(name), &merged).await?;
    if json {
        put_json_line(&answer)?;
        return Ok(());
    }
    write!(stdout(), "{}", described(&serde_json::from_value(answer)?))?;
    Ok(())
}

/// Finds changes that are wrong whatever is set for the topic, before the command connects.
fn check_changes(changes: &[String]) -> Result<(), WrongArguments> {
    let each = |change: &String| applied(&mut Map::new(), change);
    changes.iter().try_for_each(each).map_err(|error| WrongArguments::new(one_line(&error)))
}

/// Returns the settings `set` with the changes applied.
fn merged(mut set: Map<String, Value>, changes: &[String]) -> anyhow::Result<TopicOptions> {
    changes.iter().try_for_each(|change| applied(&mut set, change))?;
    let options: TopicOptions = serde_json::from_value(Value::Object(set))?;
    options.check()?;
    Ok(options)
}

/// Applies a change. A change without a value removes a setting.
fn applied(set: &mut Map<String, Value>, change: &str) -> anyhow::Result<()> {
    let (key, text) = change.split_once('=').with_context(|| format!("{change:?} is not KEY=VALUE"))?;
    if key.starts_with("retention_") && key != "retention_bytes" {
        // Days and milliseconds are two units of one setting: the new value replaces either.
        set.retain(|name, _| name != "retention_days" && name != "retention_ms");
    }
    let value = match text {
        // `null` removes a setting. Any text shows whether there is such a key.
        "" => topic_value(key, "1").map(|_| Value::Null).or_else(|why| match why.starts_with("unknown") {
            true => Err(why),
            false => Ok(Value::Null),
        }),
        _ => topic_value(key, text).map(json_of),
    };
    set.insert(key.to_owned(), value.map_err(|why| anyhow!(why))?);
    let one = Map::from_iter([(key.to_owned(), set.get(key).cloned().unwrap_or_default())]);
    serde_json::from_value::<TopicOptions>(Value::Object(one))
        .map_err(|_| anyhow!("{change}: the value is out of range"))?;
    Ok(())
}

/// A value of the config file as JSON.
fn json_of(value: toml::Value) -> Value {
    match value {
        toml::Value::Boolean(value) => value.into(),
        toml::Value::Integer(value) => value.into(),
        toml::Value::Float(value) => value.into(),
        toml::Value::String(text) => text.into(),
        other => other.to_string().into(),
    }
}

async fn delete(client: &Client, name: &str, yes: bool, json: bool) -> anyhow::Result<()> {
    let topic = server_client::known_topic(client, name).await?;
    let what = format!("{name} with its {}", counted(topic.count, "event"));
    if !yes {
        if !stdin().is_terminal() {
            bail!("nothing was deleted; add --yes to delete {what}");
        }
        write!(stderr(), "Delete {what}? Type the topic's name to confirm: ")?;
        let mut typed = String::new();
        stdin().read_line(&mut typed)?;
        if typed.trim() != name {
            bail!("nothing was deleted");
        }
    }
    let _: Value = client.delete_json(&path(name)).await?;
    match json {
        true => writeln!(stdout(), "{}", json!({ "topic": name, "events": topic.count, "deleted": true }))?,
        false => writeln!(stdout(), "deleted {what}")?,
    }
    Ok(())
}

fn path(topic: &str) -> String {
    Client::path(&["topics", topic], &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(set: &str, changes: &[&str]) -> Result<Value, String> {
        let set = serde_json::from_str(set).unwrap();
        let changes: Vec<String> = changes.iter().map(|it| (*it).to_owned()).collect();
        let merged = merged(set, &changes).map_err(|error| one_line(&error))?;
        Ok(serde_json::to_value(merged).unwrap())
    }

    #[test]
    fn changes_replace_settings_of_the_same_key() {
        let set = r#"{"retention_days":3.0,"max_attempts":7}"#;
        let changed = change(set, &["compaction=true", "max_attempts=", "retention_ms=5000"]).unwrap();
        assert_eq!(changed, serde_json::json!({"compaction": true, "retention_ms": 5000}));
        assert_eq!(change(set, &["snapshot_topic=12"]).unwrap()["snapshot_topic"], "12");
    }

    #[test]
    fn an_invalid_change_is_named_in_the_error() {
        let cases = [
            ("retention_day=3", "unknown setting \"retention_day\"; did you mean retention_days?"),
            ("retention_days", "KEY=VALUE"),
            ("compaction=maybe", "compaction=maybe: expected true or false"),
            ("retention_days=soon", "retention_days=soon: expected a number"),
            ("retention_days=NaN", "retention_days=NaN: expected a number"),
            ("retention_ms=1.5", "retention_ms=1.5: expected a whole number that is not negative"),
            ("max_attempts=-1", "max_attempts=-1: expected a whole number that is not negative"),
            ("max_attempts=99999999999", "out of range"),
            ("retention_days=0", "retention_days"),
            ("nonsense=", "unknown setting"),
        ];
        for (text, why) in cases {
            let error = change("{}", &[text]).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
            for name in ["f64", "u64", "u32", "bool"] {
                assert!(!error.contains(name), "{text}: {error}");
            }
        }
    }
}
