//! What a connection shares with the task that runs it: the requests that wait for an answer, found by `corr`, and how the
//! connection ended. Every waiting request is answered or ends with the connection.

use crate::error::PublishError;
use parking_lot::Mutex;
use prombus_protocol::{ClientFrame, ErrFrame, ErrorCode, EventFrame, OkFrame, put_client_frame};
use std::collections::HashMap;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// The index of a frame in its batch, and the server's answer.
pub(super) type Answer = (usize, Result<OkFrame, PublishError>);

/// What the server sends to a subscription without being asked.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A delivery.
    Event(EventFrame),
    /// The server ended the subscription, or is about to close the connection.
    Refused(ErrFrame),
    /// The connection ended. Nothing follows.
    Ended,
}

/// Shared by a connection and its task.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Set if the connection carries a subscription.
    incoming: Option<mpsc::UnboundedSender<Incoming>>,
}

#[derive(Default)]
struct State {
    last_corr: u64,
    waiting: HashMap<u64, Waiter>,
    /// Why the connection ended.
    ended: Option<String>,
}

/// A frame that waits for its answer.
struct Waiter {
    index: usize,
    byte_count: usize,
    answers: mpsc::UnboundedSender<Answer>,
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
        Self { state: Mutex::default(), incoming }
    }

    /// Writes a frame and registers it as waiting: its answer goes to `answers`, with `index`.
    pub(super) fn register(
        &self,
        index: usize,
        frame: &ClientFrame<'_>,
        answers: &mpsc::UnboundedSender<Answer>,
    ) -> Result<Utf8Bytes, PublishError> {
        let corr = {
            let mut state = self.state.lock();
            state.last_corr += 1;
            state.last_corr
        };
        let mut text = Vec::new();
        put_client_frame(&mut text, Some(&corr.to_string()), frame);
        let mut state = self.state.lock();
        if let Some(why) = &state.ended {
            return Err(PublishError::Lost(why.clone()));
        }
        state.waiting.insert(corr, Waiter { index, byte_count: text.len(), answers: answers.clone() });
        Ok(Utf8Bytes::try_from(text).expect("frames are UTF-8"))
    }

    /// Passes an answer to the request that waits for it.
    pub(super) fn answer(&self, corr: Option<u64>, outcome: Result<OkFrame, PublishError>) {
        let Some(corr) = corr else { return };
        let waiter = self.state.lock().waiting.remove(&corr);
        if let Some(Waiter { index, answers, .. }) = waiter {
            // The request may have been cancelled.
            let _ = answers.send((index, outcome));
        }
    }

    /// Passes what the server sent unasked to the subscription, if there is one.
    pub(super) fn push(&self, incoming: Incoming) {
        if let Some(sender) = &self.incoming {
            // The subscription may have been dropped.
            let _ = sender.send(incoming);
        }
    }

    /// The connection ended: every waiting request ends as lost. Only the first call says why.
    pub(super) fn end(&self, End { why, is_too_large }: End) {
        let mut state = self.state.lock();
        if is_too_large {
            // One of the waiting frames was too large, so the largest of them is. Sent again, it would end the next connection.
            let largest = state.waiting.values().max_by_key(|waiter| waiter.byte_count);
            if let Some(Waiter { index, answers, .. }) = largest {
                let (code, message) = (ErrorCode::TooLarge, "larger than the server accepts".to_owned());
                let _ = answers
                    .send((*index, Err(PublishError::Refused { code, message, retry_after_ms: None })));
            }
        }
        state.waiting.clear();
        if state.ended.is_none() {
            state.ended = Some(why);
            drop(state);
            self.push(Incoming::Ended);
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
