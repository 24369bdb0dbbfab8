//! `prombus group create`, `pause`, `resume` and `delete`.

use super::super::confirm::{Confirmation, ask};
use super::request::{known, path, print};
use super::view::GroupDetail;
use crate::args::filter::Condition;
use crate::args::{GroupCreateArgs, GroupName};
use anyhow::bail;
use prombus_client::Client;
use prombus_protocol::Filter;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

pub(super) async fn create(client: &Client, args: &GroupCreateArgs) -> anyhow::Result<ExitCode> {
    let mut body = Map::new();
    body.insert("from".to_owned(), serde_json::to_value(args.from)?);
    if !args.topics.is_empty() {
        body.insert("topics".to_owned(), json!(args.topics));
    }
    let filter = filter_of(&args.filters)?;
    if !filter.is_empty() {
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
    print(args.json, &answer, &text)
}

/// The filter of a group. A group has at most one key, one tag, and one value per header.
fn filter_of(conditions: &[Condition]) -> anyhow::Result<Filter> {
    let mut filter = Filter::default();
    for condition in conditions {
        let (what, replaced) = match condition {
            Condition::Key(key) => ("key".to_owned(), filter.key.replace(key.clone())),
            Condition::Tag(tag) => ("tag".to_owned(), filter.tag.replace(tag.clone())),
            Condition::Header(name, value) => {
                (format!("header.{name}"), filter.header.insert(name.clone(), value.clone()))
            }
        };
        if replaced.is_some() {
            bail!("--filter {what} is given twice: the filter of a group has one value of each kind");
        }
    }
    Ok(filter)
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
        let (lag, members) = (detail.group.lag, detail.group.members);
        let what = format!("group {name} on {topic} with {members} members and {lag} unsettled events");
        match ask(&format!("Delete {what}?"))? {
            Confirmation::Yes => {}
            Confirmation::No => bail!("nothing was deleted"),
            Confirmation::NotAsked => bail!("nothing was deleted; add --yes to delete {what}"),
        }
    }
    let answer: Value = known(client, group, client.delete_json(&path).await)?;
    print(json, &answer, &format!("deleted group {name} on {topic}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_one_value_of_each_kind() {
        let conditions = |texts: &[&str]| -> Vec<Condition> {
            texts.iter().map(|text| text.parse().expect("a condition")).collect()
        };
        let filter =
            filter_of(&conditions(&["key=k", "tag=t", "header.a=1", "header.b=2"])).expect("a filter");
        assert_eq!((filter.key.as_deref(), filter.tag.as_deref()), (Some("k"), Some("t")));
        assert_eq!(filter.header.len(), 2);
        for twice in [["key=a", "key=b"], ["tag=a", "tag=a"], ["header.a=1", "header.a=2"]] {
            assert!(filter_of(&conditions(&twice)).is_err(), "{twice:?}");
        }
    }
}
