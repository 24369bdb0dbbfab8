//! `prombus dlq list` and `prombus dlq show`.

use super::letters::{Letter, dead_letter_topic, next_letter};
use crate::args::{DlqListArgs, DlqShowArgs};
use crate::cmd::server_client::{self, TopicPages, TopicView};
use crate::cmd::table::{Side, lines, shortened};
use crate::time;
use prombus_client::{Client, HistoryQuery};
use prombus_protocol::DEAD_LETTER_PREFIX;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::io::{Write, stdout};

/// Counts of a dead-letter topic.
#[derive(Default, Serialize)]
struct Counted {
    topic: String,
    /// The number of dead letters.
    letters: u64,
    oldest_ts: Option<i64>,
    newest_ts: Option<i64>,
    /// The number of dead letters of each group.
    groups: BTreeMap<String, u64>,
    /// Events that are not dead letters.
    #[serde(skip_serializing_if = "is_zero")]
    others: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

pub async fn list(args: &DlqListArgs) -> anyhow::Result<()> {
    let client = server_client::client(&args.server)?;
    let mut pages = TopicPages::new(DEAD_LETTER_PREFIX, false);
    let mut all = Vec::new();
    while let Some(page) = pages.next::<TopicView>(&client).await? {
        for topic in page.topics.into_iter().filter(|topic| topic.count > 0) {
            all.push(count(&client, topic).await?);
        }
    }
    if args.json {
        writeln!(stdout(), "{}", serde_json::to_string(&all)?)?;
        return Ok(());
    }
    if all.is_empty() {
        writeln!(stdout(), "no dead letters")?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let columns = [
        ("TOPIC", Side::Left),
        ("LETTERS", Side::Right),
        ("OLDEST", Side::Left),
        ("NEWEST", Side::Left),
        ("BY GROUP", Side::Left),
    ];
    write!(stdout(), "{}", lines(&columns, &rows))?;
    Ok(())
}

fn row(counted: &Counted) -> Vec<String> {
    let time = |ts: Option<i64>| ts.map_or_else(|| "-".to_owned(), time::text);
    let mut groups: Vec<String> =
        counted.groups.iter().map(|(group, letters)| format!("{group} {letters}")).collect();
    if counted.others > 0 {
        groups.push(format!("not dead letters: {}", counted.others));
    }
    vec![
        counted.topic.clone(),
        counted.letters.to_string(),
        time(counted.oldest_ts),
        time(counted.newest_ts),
        groups.join(", "),
    ]
}

async fn count(client: &Client, topic: TopicView) -> anyhow::Result<Counted> {
    let query = HistoryQuery { to_seq: Some(topic.last_seq), ..HistoryQuery::default() };
    let mut history = client.history(&topic.topic, query);
    let mut counted = Counted { topic: topic.topic, ..Counted::default() };
    while let Some(found) = next_letter(&mut history).await? {
        let Some(Letter { ts, letter, .. }) = found else {
            counted.others += 1;
            continue;
        };
        counted.letters += 1;
        counted.oldest_ts = Some(counted.oldest_ts.map_or(ts, |oldest| oldest.min(ts)));
        counted.newest_ts = Some(counted.newest_ts.map_or(ts, |newest| newest.max(ts)));
        *counted.groups.entry(letter.group).or_default() += 1;
    }
    Ok(counted)
}

pub async fn show(args: &DlqShowArgs) -> anyhow::Result<()> {
    let client = server_client::client(&args.server)?;
    let topic = server_client::known_topic(&client, &dead_letter_topic(&args.topic)).await?;
    let query = HistoryQuery { to_seq: Some(topic.last_seq), ..HistoryQuery::default() };
    let mut history = client.history(&topic.topic, query);
    let mut newest = VecDeque::new();
    let mut count = 0_u64;
    while let Some(found) = next_letter(&mut history).await? {
        let is_wanted =
            |letter: &Letter| args.group.as_ref().is_none_or(|group| letter.letter.group == *group);
        let Some(letter) = found.filter(is_wanted) else { continue };
        count += 1;
        newest.push_back(letter);
        if newest.len() > args.limit as usize {
            newest.pop_front();
        }
    }
    let mut out = stdout();
    for letter in &newest {
        if args.json {
            out.write_all(&letter.json)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", described(letter))?;
        }
    }
    if !args.json {
        let shown = newest.len() as u64;
        match count > shown {
            true => writeln!(out, "{shown} of {count} dead letters in {}; --limit shows more", topic.topic)?,
            false => writeln!(out, "{count} dead letters in {}", topic.topic)?,
        }
    }
    Ok(())
}

fn described(letter: &Letter) -> String {
    let Letter { id, ts, letter, .. } = letter;
    let original = &letter.original;
    let key = original.key.as_deref().map(|key| format!(", key {key}")).unwrap_or_default();
    format!(
        "{}  {} gave up after {} attempts: {}\n  letter   {id}\n  original {} of {}, {}{key}\n  payload  {}\n",
        time::text(*ts),
        letter.group,
        letter.attempts,
        shortened(&letter.err, 200),
        original.id,
        original.topic,
        time::text(original.ts),
        shortened(original.payload.get(), 200),
    )
}
