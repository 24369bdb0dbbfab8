//! `prombus dlq list`.

use super::letters::{DlqEvent, LetterState, Letters};
use crate::args::DlqListArgs;
use crate::cmd::server_client;
use crate::cmd::table::{Side, lines};
use crate::output::stdout;
use crate::time;
use prombus_client::Client;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;

/// The dead-letter topics that the token may read.
#[derive(Deserialize)]
struct DeadLetterTopics {
    topics: Vec<DeadLetterTopic>,
    /// Whether there may be others.
    restricted: bool,
}

#[derive(Deserialize)]
struct DeadLetterTopic {
    topic: String,
    open: u64,
    redriven: u64,
    discarded: u64,
}

/// Counts of a dead-letter topic.
#[derive(Default, Serialize)]
struct Counted {
    topic: String,
    /// The number of open dead letters.
    open: u64,
    /// The number of dead letters.
    letters: u64,
    /// The time of the oldest open dead letter.
    oldest_ts: Option<i64>,
    /// The time of the newest open dead letter.
    newest_ts: Option<i64>,
    /// The number of open dead letters of each group.
    groups: BTreeMap<String, u64>,
    /// Open events that are not dead letters.
    #[serde(skip_serializing_if = "is_zero")]
    others: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

pub async fn list(args: &DlqListArgs) -> anyhow::Result<()> {
    let client = server_client::client(&args.server)?;
    let listed: DeadLetterTopics = client.get_json(&Client::path(&["dead-letters"], &[])).await?;
    let mut all = Vec::new();
    for topic in listed.topics.iter().filter(|it| it.open + it.redriven + it.discarded > 0) {
        all.push(count(&client, &topic.topic).await?);
    }
    all.retain(|counted| counted.letters + counted.others > 0);
    if args.json.json {
        writeln!(stdout(), "{}", serde_json::to_string(&all)?)?;
        return Ok(());
    }
    if all.is_empty() {
        let which = if listed.restricted { " in the topics that this token may read" } else { "" };
        writeln!(stdout(), "no dead letters{which}")?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let columns = [
        ("TOPIC", Side::Left),
        ("OPEN", Side::Right),
        ("TOTAL", Side::Right),
        ("OLDEST OPEN", Side::Left),
        ("NEWEST OPEN", Side::Left),
        ("OPEN BY GROUP", Side::Left),
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
        counted.open.to_string(),
        counted.letters.to_string(),
        time(counted.oldest_ts),
        time(counted.newest_ts),
        groups.join(", "),
    ]
}

async fn count(client: &Client, topic: &str) -> anyhow::Result<Counted> {
    let mut letters = Letters::open(client, topic).await?;
    let mut counted = Counted { topic: topic.to_owned(), ..Counted::default() };
    while let Some(found) = letters.next().await? {
        let letter = match found {
            DlqEvent::Letter(letter) => letter,
            DlqEvent::Other { state, .. } => {
                counted.others += u64::from(state == LetterState::Open);
                continue;
            }
        };
        counted.letters += 1;
        if letter.state != LetterState::Open {
            continue;
        }
        counted.open += 1;
        counted.oldest_ts = Some(counted.oldest_ts.map_or(letter.ts, |oldest| oldest.min(letter.ts)));
        counted.newest_ts = Some(counted.newest_ts.map_or(letter.ts, |newest| newest.max(letter.ts)));
        *counted.groups.entry(letter.letter.group).or_default() += 1;
    }
    Ok(counted)
}
