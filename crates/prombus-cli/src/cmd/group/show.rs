//! `prombus group show`.

use super::super::style::{escape_controls, put_json_line};
use super::super::table::{Side, lines};
use super::list::state;
use super::request::{known, path};
use super::view::{GroupDetail, GroupView, Lease, Member, Place};
use crate::args::GroupName;
use crate::output::stdout;
use crate::time;
use prombus_client::Client;
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;

pub(super) async fn run(client: &Client, group: &GroupName, json: bool) -> anyhow::Result<ExitCode> {
    let path = path(group, None, &[]);
    if json {
        let answer: Value = known(client, group, client.get_json(&path).await)?;
        put_json_line(&answer)?;
    } else {
        let detail: GroupDetail = known(client, group, client.get_json(&path).await)?;
        write!(stdout(), "{}", described(&detail))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn described(detail: &GroupDetail) -> String {
    let mut text = summary(detail);
    text.push('\n');
    text.push_str(&topics(&detail.topics));
    if !detail.member_list.is_empty() {
        text.push('\n');
        text.push_str(&members(&detail.member_list));
    }
    if !detail.leases.is_empty() {
        text.push('\n');
        text.push_str(&leases(&detail.leases));
    }
    text
}

fn summary(detail: &GroupDetail) -> String {
    let group: &GroupView = &detail.group;
    let oldest = group.oldest_unacked.as_ref().map_or_else(
        || "-".to_owned(),
        |it| format!("seq {} of {}, {} old ({})", it.seq, it.topic, time::rough(it.age_ms), it.id),
    );
    let cursor = detail.cursor.as_ref().and_then(|cursor| cursor.last_id.as_deref());
    let expiry = group.expire_ms.map_or_else(
        || "as configured for all groups".to_owned(),
        |ms| format!("after {} without members", time::length(ms)),
    );
    let rows = [
        ("topic", group.topic.clone()),
        ("group", group.group.clone()),
        ("state", state(group).to_owned()),
        ("members", group.members.to_string()),
        ("lag", group.lag.to_string()),
        ("in flight", group.in_flight.to_string()),
        ("waiting", group.waiting.to_string()),
        ("oldest", oldest),
        ("cursor", cursor.unwrap_or("-").to_owned()),
        ("created", time::text(group.made_ts)),
        ("expires", expiry),
    ];
    rows.into_iter().map(|(title, value)| format!("{title:<9}  {}\n", escape_controls(&value))).collect()
}

fn topics(topics: &[Place]) -> String {
    let columns = [
        ("TOPIC", Side::Left),
        ("FLOOR", Side::Right),
        ("SETTLED ABOVE", Side::Right),
        ("LAST", Side::Right),
        ("LAG", Side::Right),
    ];
    let rows = topics.iter().map(|it| {
        let numbers = [it.floor, it.settled_above, it.last_seq, it.lag].map(|number| number.to_string());
        std::iter::once(it.topic.clone()).chain(numbers).collect()
    });
    lines(&columns, &rows.collect::<Vec<_>>())
}

fn members(members: &[Member]) -> String {
    let columns =
        [("MEMBER", Side::Right), ("IN-FLIGHT", Side::Right), ("STATE", Side::Left), ("LABEL", Side::Left)];
    let rows = members.iter().map(|it| {
        let state = if it.paused { "paused" } else { "active" };
        vec![it.member.to_string(), it.in_flight.to_string(), state.to_owned(), it.label.clone()]
    });
    lines(&columns, &rows.collect::<Vec<_>>())
}

fn leases(leases: &[Lease]) -> String {
    let columns = [
        ("LEASED EVENT", Side::Left),
        ("TOPIC", Side::Left),
        ("SEQ", Side::Right),
        ("ATTEMPT", Side::Right),
        ("MEMBER", Side::Right),
        ("AGE", Side::Right),
        ("ENDS IN", Side::Right),
    ];
    let rows = leases.iter().map(|it| {
        vec![
            it.id.clone().unwrap_or_else(|| "-".to_owned()),
            it.topic.clone(),
            it.seq.to_string(),
            it.attempt.to_string(),
            it.holder.member.to_string(),
            time::rough(it.age_ms),
            time::rough(it.ends_in_ms),
        ]
    });
    lines(&columns, &rows.collect::<Vec<_>>())
}
