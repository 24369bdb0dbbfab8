//! `prombus group list`.

use super::super::style::put_json_line;
use super::super::table::{Side, lines};
use super::view::GroupView;
use crate::cmd::server_client::{check_empty_list, pattern_of_prefix};
use crate::output::stdout;
use crate::time;
use prombus_client::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;

#[derive(Deserialize)]
struct Page<T> {
    groups: Vec<T>,
    /// The parameter `next` of the request for the next page; `None` on the last page.
    #[serde(default)]
    next: Option<String>,
}

pub(super) async fn run(
    client: &Client,
    topic: Option<&str>,
    prefix: Option<&str>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let pattern = topic.map_or_else(|| pattern_of_prefix(prefix.unwrap_or_default()), str::to_owned);
    if json {
        let groups: Vec<Value> = all(client, topic, prefix).await?;
        if groups.is_empty() {
            check_empty_list(client, "groups", &pattern).await?;
        }
        put_json_line(&serde_json::json!({ "groups": groups }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let groups: Vec<GroupView> = all(client, topic, prefix).await?;
    if groups.is_empty() {
        check_empty_list(client, "groups", &pattern).await?;
        writeln!(stdout(), "no groups")?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [
        ("TOPIC", Side::Left),
        ("GROUP", Side::Left),
        ("MEMBERS", Side::Right),
        ("LAG", Side::Right),
        ("IN-FLIGHT", Side::Right),
        ("WAITING", Side::Right),
        ("OLDEST", Side::Right),
        ("STATE", Side::Left),
    ];
    let rows: Vec<Vec<String>> = groups.iter().map(row).collect();
    write!(stdout(), "{}", lines(&columns, &rows))?;
    Ok(ExitCode::SUCCESS)
}

/// The groups of all pages.
async fn all<T: DeserializeOwned>(
    client: &Client,
    topic: Option<&str>,
    prefix: Option<&str>,
) -> anyhow::Result<Vec<T>> {
    let (mut groups, mut next) = (Vec::new(), None::<String>);
    loop {
        let mut query = vec![("limit", "1000")];
        query.extend(topic.map(|topic| ("topic", topic)));
        query.extend(prefix.map(|prefix| ("prefix", prefix)));
        query.extend(next.as_deref().map(|next| ("next", next)));
        let page: Page<T> = client.get_json(&Client::path(&["groups"], &query)).await?;
        groups.extend(page.groups);
        next = page.next;
        if next.is_none() {
            return Ok(groups);
        }
    }
}

fn row(group: &GroupView) -> Vec<String> {
    let oldest = group.oldest_unacked.as_ref();
    vec![
        group.topic.clone(),
        group.group.clone(),
        group.members.to_string(),
        group.lag.to_string(),
        group.in_flight.to_string(),
        group.waiting.to_string(),
        oldest.map_or_else(|| "-".to_owned(), |oldest| time::rough(oldest.age_ms)),
        state(group).to_owned(),
    ]
}

/// Whether the group delivers events, and if not, why.
pub(super) fn state(group: &GroupView) -> &'static str {
    match group {
        GroupView { paused: true, .. } => "paused",
        GroupView { members: 0, .. } => "no members",
        _ => "active",
    }
}
