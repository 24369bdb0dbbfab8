//! The connection of a subscription. Whenever the connection is lost, a new one is opened and subscribes again, until the server
//! permanently refuses the subscription.

use crate::backoff::{Backoff, LONGEST_WAIT};
use crate::connection::{Connection, Incoming};
use crate::error::{ClientError, PublishError};
use crate::http::Http;
use futures_util::future::BoxFuture;
use prombus_protocol::{ClientFrame, ErrFrame, ErrorCode, EventFrame, OkFrame, SubscribeOptions};
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

/// The subscription to establish.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) options: SubscribeOptions,
}

/// What happened on a link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// Subscribed again, over a new connection.
    Up,
    /// A delivery.
    Event(EventFrame),
    /// The response to a frame that was posted.
    Answer { corr: u64, answer: Result<OkFrame, PublishError> },
    /// The connection was lost for the reason in the text, and a new one will be opened. Pending frames get no response.
    Down(String),
    /// The server permanently refuses the subscription. Nothing follows.
    Refused(ClientError),
}

/// The connection of a subscription.
pub(super) struct Link {
    http: Arc<Http>,
    spec: Arc<Spec>,
    state: State,
    backoff: Backoff,
    /// Whether deliveries are stopped.
    is_paused: bool,
}

enum State {
    /// Subscribed.
    Up(Open),
    /// Waits before the next attempt to connect.
    Waiting(Pin<Box<Sleep>>),
    /// Connects and subscribes.
    Opening(BoxFuture<'static, Result<Open, ClientError>>),
    Closed,
}

struct Open {
    connection: Connection,
    incoming: mpsc::UnboundedReceiver<Incoming>,
    opened_at: Instant,
    /// Whether subscribing created the group.
    created: bool,
    /// Whether PAUSE was sent with SUBSCRIBE.
    is_paused: bool,
}

impl Link {
    /// Subscribes. A failure of this first attempt is returned, not retried. Also returns whether the group was created.
    pub(super) async fn open(http: Arc<Http>, spec: Spec) -> Result<(Self, bool), ClientError> {
        let spec = Arc::new(spec);
        let opened = subscribe(Arc::clone(&http), Arc::clone(&spec), false).await?;
        let created = opened.created;
        let (state, backoff) = (State::Up(opened), Backoff::new());
        Ok((Self { http, spec, state, backoff, is_paused: false }, created))
    }

    pub(super) fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    pub(super) fn address(&self) -> String {
        self.http.address.to_string()
    }

    /// Sends a frame and returns its number; the response is a [`LinkEvent::Answer`] with this number. `None` while disconnected.
    pub(super) fn post(&self, frame: &ClientFrame<'_>) -> Option<u64> {
        match &self.state {
            State::Up(open) => Some(open.connection.post(frame)),
            _ => None,
        }
    }

    /// Stops or starts deliveries on this connection and on later ones.
    pub(super) fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
        self.send_pause();
    }

    /// Sends PAUSE or RESUME. The response is ignored.
    fn send_pause(&self) {
        self.post(&pause_frame(&self.spec, self.is_paused));
    }

    /// Closes the connection and does not open another.
    pub(super) fn close(&mut self) {
        self.state = State::Closed;
    }

    /// The next event. Nothing is lost if the future is dropped before it resolves.
    pub(super) async fn next(&mut self) -> LinkEvent {
        loop {
            match &mut self.state {
                State::Up(open) => {
                    let (why, error) = match open.incoming.recv().await {
                        Some(Incoming::Event(event)) => return LinkEvent::Event(event),
                        Some(Incoming::Answer { corr, answer }) => return LinkEvent::Answer { corr, answer },
                        Some(Incoming::Refused(refused)) => (refused.msg.clone(), Some(error_of(refused))),
                        Some(Incoming::Ended(why)) => (why, None),
                        None => ("the connection is closed".to_owned(), None),
                    };
                    if open.opened_at.elapsed() > LONGEST_WAIT {
                        self.backoff.reset();
                    }
                    if let Some(error) = error.filter(ClientError::ends_subscription) {
                        self.close();
                        return LinkEvent::Refused(error);
                    }
                    self.state = State::Waiting(Box::pin(sleep(self.backoff.next_wait())));
                    return LinkEvent::Down(why);
                }
                State::Waiting(wait) => {
                    wait.as_mut().await;
                    let (http, spec) = (Arc::clone(&self.http), Arc::clone(&self.spec));
                    self.state = State::Opening(Box::pin(subscribe(http, spec, self.is_paused)));
                }
                State::Opening(opening) => match opening.as_mut().await {
                    Ok(open) if open.created => {
                        self.close();
                        return LinkEvent::Refused(created_again());
                    }
                    Ok(open) => {
                        let is_other = open.is_paused != self.is_paused;
                        self.state = State::Up(open);
                        if is_other {
                            self.send_pause();
                        }
                        return LinkEvent::Up;
                    }
                    Err(error) if error.ends_subscription() => {
                        self.close();
                        return LinkEvent::Refused(error);
                    }
                    Err(_) => self.state = State::Waiting(Box::pin(sleep(self.backoff.next_wait()))),
                },
                State::Closed => std::future::pending().await,
            }
        }
    }
}

/// Opens a connection and subscribes over it.
async fn subscribe(http: Arc<Http>, spec: Arc<Spec>, is_paused: bool) -> Result<Open, ClientError> {
    let (sender, incoming) = mpsc::unbounded_channel();
    let connection = Connection::open(&http, Some(sender)).await?;
    let frame = ClientFrame::Subscribe {
        topic: Cow::Borrowed(&spec.topic),
        group: Cow::Borrowed(&spec.group),
        opts: spec.options.clone(),
    };
    let answer = connection.request(frame);
    if is_paused {
        // Sent at once, because the server delivers events until it receives PAUSE.
        connection.post(&pause_frame(&spec, true));
    }
    let ok = answer.await.map_err(|error| error.into_client_error(&http.address.to_string()))?;
    let created = ok.created.unwrap_or_default();
    Ok(Open { connection, incoming, opened_at: Instant::now(), created, is_paused })
}

fn pause_frame(spec: &Spec, is_paused: bool) -> ClientFrame<'_> {
    let (topic, group) = (Cow::Borrowed(spec.topic.as_str()), Cow::Borrowed(spec.group.as_str()));
    match is_paused {
        true => ClientFrame::Pause { topic, group },
        false => ClientFrame::Resume { topic, group },
    }
}

/// The error for a group that was deleted while the connection was lost. Continuing would hide that events are missing.
fn created_again() -> ClientError {
    let message = "the group was deleted while the connection was lost, and subscribing again has created it: it starts at \
                   `from`, so events may be missing; subscribe again to read it"
        .to_owned();
    ClientError::Refused { status: None, code: ErrorCode::NotSubscribed, message, retry_after_ms: None }
}

fn error_of(ErrFrame { code, msg: message, retry_after_ms, .. }: ErrFrame) -> ClientError {
    ClientError::Refused { status: None, code, message, retry_after_ms }
}
