//! The newest events of one or several topics.

use crate::args::TailArgs;
use crate::args::filter::{self, Condition};
use crate::cmd::event_printer::EventPrinter;
use crate::cmd::server_client::TopicView;
use prombus_client::{Client, ClientError, HistoryEvent, HistoryQuery};
use std::collections::{HashMap, VecDeque};
use tokio::task::JoinSet;

/// How many topics are read at the same time.
const READERS: usize = 8;

/// Which events of each topic are wanted.
#[derive(Clone)]
struct Wanted {
    lines: u64,
    since: Option<i64>,
    filters: Vec<Condition>,
}

/// An event with its place among the events of all topics.
struct Placed {
    /// The latest `ts` of this event and the events of its topic before it: publishers choose `ts`, and the events of a topic must
    /// stay in the order of their seqs.
    order_ts: i64,
    found: HistoryEvent,
}

/// The result of [`print`].
#[derive(Default)]
pub struct Read {
    /// How many events were printed.
    pub printed: u64,
    /// The seq up to which each topic was read. It can be later than the one in the list of topics.
    pub last_seqs: HashMap<String, u64>,
}

/// Prints the newest `lines` events of the topics, at least up to the last seqs in `topics`.
pub async fn print(
    args: &TailArgs,
    client: &Client,
    topics: &[TopicView],
    lines: u64,
    printer: &mut EventPrinter,
) -> anyhow::Result<Read> {
    if lines == 0 {
        return Ok(Read::default());
    }
    let wanted = Wanted { lines, since: args.since, filters: args.filter.filters.clone() };
    let mut readers = JoinSet::new();
    let mut left = topics.iter().filter(|topic| topic.count > 0);
    let mut newest: Vec<Placed> = Vec::new();
    let mut last_seqs: HashMap<String, u64> =
        topics.iter().map(|topic| (topic.topic.clone(), topic.last_seq)).collect();
    loop {
        while readers.len() < READERS
            && let Some(topic) = left.next()
        {
            readers.spawn(newest_of(client.clone(), topic.topic.clone(), topic.last_seq, wanted.clone()));
        }
        let Some(events) = readers.join_next().await else { break };
        let events = events??;
        if let Some(Placed { found, .. }) = events.last() {
            let last_seq = last_seqs.entry(found.event.topic.to_string()).or_default();
            *last_seq = found.event.seq.max(*last_seq);
        }
        newest.extend(events);
        newest.sort_by(|one, other| one.place().cmp(&other.place()));
        let surplus = newest.len().saturating_sub(usize::try_from(lines).unwrap_or(usize::MAX));
        newest.drain(..surplus);
    }
    newest.iter().for_each(|it| printer.fit_topic(it.found.event.topic.as_str()));
    for Placed { found, .. } in &newest {
        printer.print(&found.event, &found.json, 1)?;
    }
    Ok(Read { printed: newest.len() as u64, last_seqs })
}

impl Placed {
    fn place(&self) -> (i64, &str, u64) {
        (self.order_ts, self.found.event.topic.as_str(), self.found.event.seq)
    }
}

/// The newest events of one topic, in seq order. If the server counts them, some may be later than `to_seq`: at a high publish rate, the
/// newest events up to `to_seq` would be none.
async fn newest_of(
    client: Client,
    topic: String,
    to_seq: u64,
    wanted: Wanted,
) -> Result<Vec<Placed>, ClientError> {
    let Wanted { lines, since, filters } = wanted;
    // The server counts the newest events by seq, and publishers choose `ts`: with `since`, or with conditions that the server cannot
    // check, it could count events that do not match. Then everything is read.
    let last = (since.is_none() && filter::is_for_server(&filters)).then_some(lines);
    let query = HistoryQuery { from_ts: since, to_seq: Some(to_seq), last, ..HistoryQuery::default() };
    let mut history = client.history(&topic, query).filter(filter::for_server(&filters));
    let mut newest = VecDeque::new();
    let mut order_ts = i64::MIN;
    while let Some(found) = history.next().await? {
        if !filter::matches(&filters, &found.event) {
            continue;
        }
        order_ts = order_ts.max(found.event.ts);
        newest.push_back(Placed { order_ts, found });
        if newest.len() as u64 > lines {
            newest.pop_front();
        }
    }
    Ok(newest.into())
}
