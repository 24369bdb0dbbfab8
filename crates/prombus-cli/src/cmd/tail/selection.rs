//! How many events, and of which topics.

use crate::args::TailArgs;
use crate::cmd::server_client::{TopicPages, TopicView};
use prombus_client::Client;
use prombus_protocol::Pattern;

/// How many events are printed unless the arguments say otherwise.
const LINES_DEFAULT: u64 = 50;

/// How many of the newest events to print; `None` means all.
pub fn lines_of(args: &TailArgs) -> Option<u64> {
    args.lines.or(args.since.is_none().then_some(LINES_DEFAULT))
}

/// Fails if the token may not read all topics of the pattern: a list of topics has only those that it may read.
pub async fn check_access(client: &Client, pattern: &Pattern) -> anyhow::Result<()> {
    let path = Client::path(&["replay"], &[("topic", pattern.as_str()), ("limit", "1")]);
    client.get_json::<serde::de::IgnoredAny>(&path).await?;
    Ok(())
}

/// The topics that match a pattern.
pub async fn topics_of(client: &Client, pattern: &Pattern) -> anyhow::Result<Vec<TopicView>> {
    let text = pattern.as_str();
    let prefix = text.split('*').next().unwrap_or_default();
    let mut pages = TopicPages::new(prefix, false);
    let mut topics = Vec::new();
    while let Some(page) = pages.next::<TopicView>(client).await? {
        topics.extend(page.topics.into_iter().filter(|topic| pattern.matches(&topic.topic)));
    }
    Ok(topics)
}
