//! The state that a connection shares with its task: the requests that wait for a response, and how the connection ended. A request is
//! identified by `corr`, a number that the server repeats in its response. Every waiting request gets a response or ends with the
//! connection. The connection ends if requests wait and none of them gets a response for 60 s.

use crate::error::PublishError;
use parking_lot::Mutex;
use prombus_protocol::{ClientFrame, ErrFrame, ErrorCode, EventFrame, OkFrame, put_client_frame};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// The index of a frame in its batch, and the server's response.
pub(super) type Answer = (usize, Result<OkFrame, PublishError>);

/// An item for a subscription, in the order in which the server sent it.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A delivery.
    Event(EventFrame),
    /// The server ended the subscription, or is about to close the connection.
    Refused(ErrFrame),
    /// The response to a frame that was sent with [`Connection::post`](super::Connection::post).
    Answer { corr: u64, answer: Result<OkFrame, PublishError> },
    /// The connection ended, with the reason. Nothing follows.
    Ended(String),
}

/// The state that a connection and its task share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// The receiver of deliveries, if the connection carries a subscription.
    incoming: Option<mpsc::UnboundedSender<Incoming>>,
    /// Notified when a request starts to wait and no other request waits.
    has_waiting: Notify,
}

#[derive(Default)]
struct State {
    /// The number of the last frame.
    last_corr: u64,
    /// The waiting requests. A cancelled request stays in here until its response arrives.
    waiting: HashMap<u64, Waiter>,
    /// While requests wait: when the last response was received or, if that was later, when the first of these requests was sent.
    unanswered_since: Option<Instant>,
    /// Why the connection ended; `None` while it is open.
    ended: Option<String>,
}

/// A frame that waits for its response.
struct Waiter {
    /// The size of the frame.
    byte_count: usize,
    recipient: Recipient,
}

/// The receiver of a response.
pub(super) enum Recipient {
    /// A batch, which has the frame at this index.
    Batch(usize, mpsc::UnboundedSender<Answer>),
    /// The subscription of the connection.
    Subscription,
}

/// Why a connection ended.
pub(super) struct End {
    pub(super) why: String,
    /// The server closed it because a frame was too large.
    pub(super) is_too_large: bool,
}

impl From<String> for End {
    fn from(why: String) -> Self {
        Self { why, is_too_large: false }
    }
}

impl From<&str> for End {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl Shared {
    pub(super) fn new(incoming: Option<mpsc::UnboundedSender<Incoming>>) -> Self {
        Self { state: Mutex::default(), incoming, has_waiting: Notify::new() }
    }

    /// The number of the next frame.
    pub(super) fn next_corr(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_corr += 1;
        state.last_corr
    }

    /// Returns the text of a frame, and registers it as waiting for its response.
    pub(super) fn register(
        &self,
        corr: u64,
        frame: &ClientFrame<'_>,
        recipient: Recipient,
    ) -> Result<Utf8Bytes, PublishError> {
        let mut text = Vec::new();
        put_client_frame(&mut text, Some(&corr.to_string()), frame);
        let mut state = self.state.lock();
        if let Some(why) = &state.ended {
            return Err(PublishError::Lost(why.clone()));
        }
        state.waiting.insert(corr, Waiter { byte_count: text.len(), recipient });
        if state.unanswered_since.is_none() {
            state.unanswered_since = Some(Instant::now());
            self.has_waiting.notify_one();
        }
        Ok(Utf8Bytes::try_from(text).expect("frames are UTF-8"))
    }

    /// Passes a response to the request that waits for it.
    pub(super) fn answer(&self, corr: Option<u64>, outcome: Result<OkFrame, PublishError>) {
        let Some(corr) = corr else { return };
        let waiter = {
            let mut state = self.state.lock();
            let waiter = state.waiting.remove(&corr);
            state.unanswered_since = (!state.waiting.is_empty()).then(Instant::now);
            waiter
        };
        if let Some(Waiter { recipient, .. }) = waiter {
            self.pass(corr, recipient, outcome);
        }
    }

    fn pass(&self, corr: u64, recipient: Recipient, answer: Result<OkFrame, PublishError>) {
        match recipient {
            // The request may have been cancelled.
            Recipient::Batch(index, answers) => drop(answers.send((index, answer))),
            Recipient::Subscription => self.push(Incoming::Answer { corr, answer }),
        }
    }

    /// Resolves when requests wait and none has got a response for this long.
    pub(super) async fn unanswered_for(&self, limit: Duration) {
        loop {
            let since = self.state.lock().unanswered_since;
            match since {
                Some(since) if since.elapsed() >= limit => return,
                Some(since) => sleep_until(since + limit).await,
                None => self.has_waiting.notified().await,
            }
        }
    }

    /// Passes an item to the subscription, if there is one.
    pub(super) fn push(&self, incoming: Incoming) {
        if let Some(sender) = &self.incoming {
            // The subscription may have been dropped.
            let _ = sender.send(incoming);
        }
    }

    /// Ends the connection: every waiting request ends as lost. Only the reason of the first call counts.
    pub(super) fn end(&self, End { why, is_too_large }: End) {
        let mut state = self.state.lock();
        if is_too_large {
            // The server does not say which frame was too large, but at least the largest waiting frame was. If this frame were resent, the
            // server would close the next connection too, so the frame counts as refused.
            let largest = state.waiting.iter().max_by_key(|(_, waiter)| waiter.byte_count);
            if let Some(corr) = largest.map(|(corr, _)| *corr)
                && let Some(Waiter { recipient, .. }) = state.waiting.remove(&corr)
            {
                let (code, message) = (ErrorCode::TooLarge, "larger than the server accepts".to_owned());
                self.pass(
                    corr,
                    recipient,
                    Err(PublishError::Refused { code, message, retry_after_ms: None }),
                );
            }
        }
        state.waiting.clear();
        if state.ended.is_none() {
            state.ended = Some(why.clone());
            drop(state);
            self.push(Incoming::Ended(why));
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    pub(super) fn lost(&self) -> PublishError {
        let ended = self.state.lock().ended.clone();
        PublishError::Lost(ended.unwrap_or_else(|| "the connection is closed".to_owned()))
    }
}
