//! `prombus tail`: prints the newest events of a topic or pattern and, with `--follow`, new ones.
//!
//! Without a group: nothing is acked, and nothing is created on the server.

mod follow;
mod newest;
mod selection;

use super::event_printer::EventPrinter;
use super::server_client::{self, TopicView};
use crate::args::{TailArgs, filter};
use crate::messages::print_error;
use crate::output;
use crate::wrong_arguments::WrongArguments;
use prombus_client::{Client, HistoryQuery};
use prombus_protocol::Pattern;
use selection::{check_access, lines_of, topics_of};
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When the server refuses access or cannot be reached, or standard output cannot be written.
pub fn run(args: &TailArgs) -> anyhow::Result<ExitCode> {
    server_client::block_on(tail(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn tail(args: &TailArgs) -> anyhow::Result<()> {
    let pattern = Pattern::new(&args.topic).map_err(WrongArguments::new)?;
    let client = server_client::client(&args.server)?;
    let mut printer = EventPrinter::new(args.format);
    if args.follow {
        return output::while_read(follow::run(args, &client, &pattern, &mut printer)).await;
    }
    let topics = match server_client::known_topics(&client, &args.topic).await? {
        Some(topic) => vec![topic],
        None => {
            check_access(&client, &pattern).await?;
            topics_of(&client, &pattern).await?
        }
    };
    let count = match lines_of(args) {
        Some(lines) => newest::print(args, &client, &topics, lines, &mut printer).await?.printed,
        None => print_all(args, &client, topics.first(), &mut printer).await?,
    };
    printer.flush()?;
    if count == 0 && printer.is_for_people() {
        print_error(&format!("no events of {} match", args.topic));
    }
    Ok(())
}

/// Prints all events since `--since`, in commit order, up to the one that is the newest now.
async fn print_all(
    args: &TailArgs,
    client: &Client,
    topic: Option<&TopicView>,
    printer: &mut EventPrinter,
) -> anyhow::Result<u64> {
    let to_seq = topic.filter(|topic| topic.topic == args.topic).map(|topic| topic.last_seq);
    let query = HistoryQuery { from_ts: args.since, to_seq, ..HistoryQuery::default() };
    let mut history = client.history(&args.topic, query).filter(filter::for_server(&args.filter.filters));
    let mut count = 0;
    while let Some(found) = history.next().await? {
        if filter::matches(&args.filter.filters, &found.event) {
            printer.print(&found.event, &found.json, 1)?;
            count += 1;
        }
    }
    Ok(count)
}
