//! The HTTP client of commands that use a running server, and the topic list.

use crate::args::ServerArgs;
use crate::contexts::{Chosen, choose};
use crate::wrong_arguments::WrongArguments;
use prombus_client::{Client, ClientError, ErrorCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A topic as the server describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TopicView {
    pub topic: String,
    pub first_seq: Option<u64>,
    pub last_seq: u64,
    pub count: u64,
    pub bytes: u64,
    pub groups: u64,
    /// The settings that apply to the topic.
    pub settings: Option<serde_json::Map<String, serde_json::Value>>,
    /// The settings of this topic alone, from `topic set`.
    pub set: Option<serde_json::Map<String, serde_json::Value>>,
}

/// A client for the server that the arguments name.
pub fn client(args: &ServerArgs) -> anyhow::Result<Client> {
    let Chosen { url, token, ca_cert } = choose(args)?;
    let mut builder = Client::builder(&url);
    if let Some(token) = &token {
        builder = builder.token(token);
    }
    if let Some(file) = &ca_cert {
        builder = builder.ca_cert(file);
    }
    Ok(builder.build()?)
}

/// Runs a command's future to completion.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(work);
    // Do not wait for a thread that reads standard input: the read may never return.
    runtime.shutdown_background();
    result
}

/// A page of topics.
#[derive(Debug, Deserialize)]
pub struct TopicPage<T> {
    pub topics: Vec<T>,
    /// Bytes of the whole store if the token may read all topics, otherwise bytes of the topics on this page or,
    /// on the last page, on all pages.
    #[serde(default)]
    pub bytes: u64,
    /// The parameter `next` of the request for the next page; `None` on the last page.
    #[serde(default)]
    next: Option<String>,
}

/// Topics in the order of their names, page by page.
pub struct TopicPages<'a> {
    prefix: &'a str,
    /// Whether to request the settings of each topic.
    with_settings: bool,
    /// The parameter `next` of the next request; `None` for the first page.
    next: Option<String>,
    /// Whether the last page was read.
    is_done: bool,
}

impl<'a> TopicPages<'a> {
    pub fn new(prefix: &'a str, with_settings: bool) -> Self {
        Self { prefix, with_settings, next: None, is_done: false }
    }

    /// The next page, or `None` after the last one.
    pub async fn next<T: DeserializeOwned>(
        &mut self,
        client: &Client,
    ) -> anyhow::Result<Option<TopicPage<T>>> {
        if self.is_done {
            return Ok(None);
        }
        let settings = if self.with_settings { "1" } else { "0" };
        let mut query = vec![("prefix", self.prefix), ("limit", "5000"), ("settings", settings)];
        query.extend(self.next.as_deref().map(|next| ("next", next)));
        let page: TopicPage<T> = client.get_json(&Client::path(&["topics"], &query)).await?;
        self.next.clone_from(&page.next);
        self.is_done = page.next.is_none();
        Ok(Some(page))
    }
}

/// The server's view of a topic, or `None` if it has no such topic.
pub async fn topic(client: &Client, topic: &str) -> anyhow::Result<Option<TopicView>> {
    match client.get_json(&Client::path(&["topics", topic], &[])).await {
        Ok(view) => Ok(Some(view)),
        Err(ClientError::Refused { status: Some(404), .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The view of a topic that must exist.
pub async fn known_topic(client: &Client, name: &str) -> anyhow::Result<TopicView> {
    match topic(client, name).await? {
        Some(view) => Ok(view),
        None => {
            anyhow::bail!("no topic {name:?} on {}; `prombus topic list` lists all topics", client.address())
        }
    }
}

/// Fails if an empty list of `what` on the topics of a pattern says nothing about the server: lists contain only what the token may read.
pub async fn check_empty_list(client: &Client, what: &str, pattern: &str) -> anyhow::Result<()> {
    let asked = |path: String| async move {
        match client.get_json::<serde::de::IgnoredAny>(&path).await {
            Ok(_) => Ok(true),
            Err(ClientError::Refused { code: ErrorCode::Forbidden, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    };
    let may_read = asked(Client::path(&["replay"], &[("topic", pattern), ("limit", "1")])).await?;
    // The scope `admin` shows all lists, but no events.
    if may_read || asked(Client::path(&["settings"], &[])).await? {
        return Ok(());
    }
    let which = match pattern {
        "**" => format!("all {what}"),
        _ => format!("the {what} of {pattern:?}"),
    };
    anyhow::bail!("this token sees no {what}: to list {which}, it needs the scope \"subscribe:{pattern}\"");
}

/// The narrowest pattern that a list with this prefix is about: its scope shows what the user looks for. For `secret`, that is `secret.**`,
/// although `secretary` has this prefix, too.
pub fn pattern_of_prefix(prefix: &str) -> String {
    let pattern = format!("{}.**", prefix.trim_end_matches('.'));
    // The prefix of a name need not be a name.
    match prombus_protocol::check_pattern(&pattern) {
        Ok(()) => pattern,
        Err(_) => "**".to_owned(),
    }
}

/// Checks a topic name or pattern. Returns the view of a topic, which must exist; `None` for a pattern.
pub async fn known_topics(client: &Client, name: &str) -> anyhow::Result<Option<TopicView>> {
    prombus_protocol::check_pattern(name).map_err(WrongArguments::new)?;
    if name.contains('*') { Ok(None) } else { known_topic(client, name).await.map(Some) }
}
