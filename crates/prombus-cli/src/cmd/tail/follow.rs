//! `--follow`: the newest events, then new ones, without a gap and without repetitions.
//!
//! The stream of new events is opened first, between two lists of topics, so no event is missed. Then the newest events are read and
//! printed, at least up to the second list, and after them the events of the stream that are later than those that were read.

use super::newest;
use super::selection::{lines_of, topics_of};
use crate::args::{TailArgs, filter};
use crate::cmd::event_printer::EventPrinter;
use crate::cmd::server_client::{self, TopicView};
use crate::messages::print_error;
use prombus_client::{Client, EventRecord, Follow, Start};
use prombus_protocol::Pattern;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// Prints events until the command is interrupted.
pub async fn run(
    args: &TailArgs,
    client: &Client,
    pattern: &Pattern,
    printer: &mut EventPrinter,
) -> anyhow::Result<()> {
    let open =
        async |start| client.follow(&args.topic, start, filter::for_server(&args.filter.filters)).await;
    let Some(lines) = lines_of(args) else {
        let stream = open(args.since.map_or(Start::Earliest, Start::Ts)).await?;
        return print_new(args, stream, Overlap::default(), printer).await;
    };
    let before = topics(client, pattern).await?;
    let stream = open(Start::Latest).await?;
    let after = topics(client, pattern).await?;
    if after.is_empty() && printer.is_for_people() {
        print_error(&format!("{} has no events yet; waiting for the first one", args.topic));
    }
    if lines == 0 {
        return print_new(args, stream, Overlap::default(), printer).await;
    }
    let read = newest::print(args, client, &after, lines, printer).await?;
    printer.flush()?;
    print_new(args, stream, Overlap::new(&before, read.last_seqs), printer).await
}

async fn print_new(
    args: &TailArgs,
    stream: Follow,
    mut overlap: Overlap,
    printer: &mut EventPrinter,
) -> anyhow::Result<()> {
    let mut stream = stream.on_lost(|error| print_error(&format!("{error}; reconnecting")));
    loop {
        let found = stream.next().await?;
        // The stream of a pattern starts at a commit time, and publishers choose `ts`.
        let is_since = args.since.is_none_or(|since| found.event.ts >= since);
        if !overlap.contains(&found.event) && is_since && filter::matches(&args.filter.filters, &found.event)
        {
            printer.print(&found.event, &found.json, 1)?;
            printer.flush()?;
        }
    }
}

/// The topics of a pattern. A topic that does not exist yet can be followed.
async fn topics(client: &Client, pattern: &Pattern) -> anyhow::Result<Vec<TopicView>> {
    match pattern.as_topic() {
        Some(topic) => Ok(server_client::topic(client, topic.as_str()).await?.into_iter().collect()),
        None => topics_of(client, pattern).await,
    }
}

/// The events from the first list of topics to the last event that was read: the seqs of each topic. The stream may contain them, and they
/// are either among the newest events, which were printed, or older than these.
#[derive(Debug, Default)]
struct Overlap(HashMap<String, RangeInclusive<u64>>);

impl Overlap {
    /// `before` is the list from before the stream was opened, `last_seqs` the seqs up to which the topics were read after it.
    fn new(before: &[TopicView], last_seqs: HashMap<String, u64>) -> Self {
        let before: HashMap<&str, u64> =
            before.iter().map(|topic| (topic.topic.as_str(), topic.last_seq)).collect();
        let ranges = last_seqs.into_iter().map(|(topic, last_seq)| {
            let first_new = before.get(topic.as_str()).map_or(1, |seq| seq + 1);
            (topic, first_new..=last_seq)
        });
        Self(ranges.filter(|(_, seqs)| !seqs.is_empty()).collect())
    }

    /// Each topic is forgotten with its first later event: a topic that is deleted and created again has the same seqs a second time.
    fn contains(&mut self, event: &EventRecord) -> bool {
        let Some(seqs) = self.0.get(event.topic.as_str()) else { return false };
        let is_in = seqs.contains(&event.seq);
        if event.seq > *seqs.end() {
            self.0.remove(event.topic.as_str());
        }
        is_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(topics: &[(&str, u64)]) -> Vec<TopicView> {
        let view = |(topic, last_seq): &(&str, u64)| TopicView {
            topic: (*topic).to_owned(),
            last_seq: *last_seq,
            ..TopicView::default()
        };
        topics.iter().map(view).collect()
    }

    #[test]
    fn the_overlap_consists_of_the_events_that_were_read_since_the_first_list() {
        let read = [("quiet", 5), ("busy", 9), ("new", 2)].map(|(topic, seq)| (topic.to_owned(), seq));
        let mut overlap =
            Overlap::new(&list(&[("quiet", 5), ("busy", 7), ("deleted", 3)]), HashMap::from(read));
        let mut contains = |topic: &str, seq: u64| {
            let json = format!(
                r#"{{"id":"0196f1d0-0000-7000-8000-000000000001","seq":{seq},"ts":1,"topic":"{topic}","payload":1}}"#
            );
            overlap.contains(&serde_json::from_str(&json).unwrap())
        };
        assert!(
            !contains("quiet", 5)
                && !contains("quiet", 6)
                && !contains("later", 1)
                && !contains("deleted", 1)
        );
        assert!(contains("busy", 8) && contains("busy", 9) && contains("new", 1) && contains("new", 2));
        assert!(!contains("busy", 10), "a new event");
        assert!(!contains("busy", 8), "of a topic that was created again");
    }
}
