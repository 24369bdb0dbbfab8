//! The events of a topic after a position, as they are published. If the connection breaks, reading resumes after the last event.

use bytes::Bytes;
use prombus_client::{Client, ClientError, Lines};
use serde::Deserialize;
use std::time::Duration;

/// The wait before the first reconnect; doubled for each further one.
const WAIT_MIN: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A position in a topic. Without an id: before the first event.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Position {
    pub id: Option<String>,
    pub seq: u64,
}

/// A stream of events.
pub struct Changes<'a> {
    client: &'a Client,
    topic: &'a str,
    /// Only events with this key, if it is set.
    key: Option<&'a str>,
    /// The id of the last event, or a position that the server sent; `None` before the first event of the topic.
    after: Option<String>,
    lines: Option<Lines>,
    /// The wait before the next reconnect.
    wait: Duration,
}

impl<'a> Changes<'a> {
    pub fn new(client: &'a Client, topic: &'a str, key: Option<&'a str>, position: Position) -> Self {
        Self { client, topic, key, after: position.id, lines: None, wait: WAIT_MIN }
    }

    /// The next event, as JSON. Waits until there is one.
    ///
    /// # Errors
    /// When the server refuses the request, or has never been reached.
    pub async fn next(&mut self) -> anyhow::Result<Bytes> {
        loop {
            if self.lines.is_none() {
                match self.connect().await {
                    Ok(lines) => self.lines = Some(lines),
                    Err(error) if error.is_passing() => {
                        self.pause().await;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let Some(lines) = &mut self.lines else { continue };
            match lines.next().await {
                Ok(Some(line)) => {
                    if let Some(event) = self.take(&line)? {
                        return Ok(event);
                    }
                }
                // The server ends a stream when it shuts down.
                Ok(None) => self.reconnect_later().await,
                Err(error) if error.is_passing() => self.reconnect_later().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn connect(&self) -> Result<Lines, ClientError> {
        let mut query = match &self.after {
            Some(after) => vec![("from", "afterId"), ("afterId", after.as_str())],
            None => vec![("from", "earliest")],
        };
        query.extend(self.key.map(|key| ("key", key)));
        self.client.lines(&Client::path(&["subscribe", self.topic], &query)).await
    }

    async fn reconnect_later(&mut self) {
        self.lines = None;
        self.pause().await;
    }

    async fn pause(&mut self) {
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(WAIT_MAX);
    }

    /// Reads a line of the stream. Returns the event that it contains, if any.
    fn take(&mut self, line: &Bytes) -> anyhow::Result<Option<Bytes>> {
        let value = |name: &[u8]| line.strip_prefix(name).map(<[u8]>::trim_ascii);
        if let Some(id) = value(b"id:") {
            self.wait = WAIT_MIN;
            self.after = Some(String::from_utf8_lossy(id).into_owned());
        } else if value(b"event:") == Some(b"error") {
            anyhow::bail!("the server cannot read {}: see its log", self.topic);
        } else if let Some(data) = value(b"data:") {
            return Ok(Some(line.slice_ref(data)));
        }
        Ok(None)
    }
}
