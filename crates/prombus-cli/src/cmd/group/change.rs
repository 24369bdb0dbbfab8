//! `prombus group create`, `pause`, `resume` and `delete`.

use super::super::confirm::{Confirmation, ask};
use super::request::{known, path, print};
use super::view::GroupDetail;
use crate::args::{GroupCreateArgs, GroupName, filter};
use crate::messages::counted;
use crate::wrong_arguments::WrongArguments;
use anyhow::bail;
use prombus_client::Client;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

pub(super) async fn create(client: &Client, args: &GroupCreateArgs) -> anyhow::Result<ExitCode> {
    let mut body = Map::new();
    body.insert("from".to_owned(), serde_json::to_value(args.from)?);
    if !args.topics.is_empty() {
        body.insert("topics".to_owned(), json!(args.topics));
    }
    if let Some(filter) = filter::for_group(&args.filter.filters).map_err(WrongArguments::new)? {
        body.insert("filter".to_owned(), serde_json::to_value(filter)?);
    }
    if let Some(expire_ms) = args.expire_ms {
        body.insert("expireMs".to_owned(), json!(expire_ms));
    }
    let answer: Value = client.put_json(&path(&args.group, None, &[]), &body).await?;
    let GroupName { topic, group } = &args.group;
    let text = match answer["created"].as_bool() {
        Some(true) => format!("created group {group} on {topic}"),
        _ => format!("group {group} on {topic} already exists; nothing changed"),
    };
    print(args.json.json, &answer, &text)
}

pub(super) async fn pause(
    client: &Client,
    group: &GroupName,
    is_paused: bool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let action = if is_paused { "pause" } else { "resume" };
    let path = path(group, Some(action), &[]);
    let answer: Value = known(client, group, client.post_json(&path, &json!({})).await)?;
    let done = if is_paused { "paused" } else { "resumed" };
    print(json, &answer, &format!("{done} group {} on {}", group.group, group.topic))
}

pub(super) async fn delete(
    client: &Client,
    group: &GroupName,
    yes: bool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let path = path(group, None, &[]);
    let GroupName { topic, group: name } = group;
    if !yes {
        let detail: GroupDetail = known(client, group, client.get_json(&path).await)?;
        let (members, lag) =
            (counted(detail.group.members, "member"), counted(detail.group.lag, "unsettled event"));
        let what = format!("group {name} on {topic} with {members} and {lag}");
        match ask(&format!("Delete {what}?"))? {
            Confirmation::Yes => {}
            Confirmation::No => bail!("nothing was deleted"),
            Confirmation::NotAsked => bail!("nothing was deleted; add --yes to delete {what}"),
        }
    }
    let answer: Value = known(client, group, client.delete_json(&path).await)?;
    print(json, &answer, &format!("deleted group {name} on {topic}"))
}
