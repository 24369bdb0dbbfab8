//! The connection of a subscription, opened and subscribed again whenever it is lost, until the server refuses for good.

use crate::backoff::{Backoff, LONGEST_WAIT};
use crate::connection::{Connection, Incoming};
use crate::error::{ClientError, PublishError};
use crate::http::Http;
use futures_util::future::BoxFuture;
use prombus_protocol::{ClientFrame, ErrFrame, EventFrame, OkFrame, SubscribeOptions};
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

/// What happens on a link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// Subscribed again, over a new connection.
    Up,
    /// A delivery.
    Event(EventFrame),
    /// The connection was lost, and a new one will be opened.
    Down,
    /// The server refuses the subscription for good. Nothing follows.
    Refused(ClientError),
}

/// The connection of a subscription.
pub(super) struct Link {
    http: Arc<Http>,
    spec: Arc<Spec>,
    state: State,
    backoff: Backoff,
}

enum State {
    Up(Open),
    Waiting(Pin<Box<Sleep>>),
    Opening(BoxFuture<'static, Result<Open, ClientError>>),
    Closed,
}

struct Open {
    connection: Connection,
    incoming: mpsc::UnboundedReceiver<Incoming>,
    opened_at: Instant,
    created: bool,
}

impl Link {
    /// Subscribes. A failure of this first attempt is returned and not retried. Also returns whether the group is new.
    pub(super) async fn open(http: Arc<Http>, spec: Spec) -> Result<(Self, bool), ClientError> {
        let spec = Arc::new(spec);
        let opened = subscribe(Arc::clone(&http), Arc::clone(&spec)).await?;
        let created = opened.created;
        Ok((Self { http, spec, state: State::Up(opened), backoff: Backoff::new() }, created))
    }

    pub(super) fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    pub(super) fn address(&self) -> String {
        self.http.address.to_string()
    }

    /// Sends a frame; the future waits for its answer. None while disconnected.
    pub(super) fn request(
        &self,
        frame: ClientFrame<'_>,
    ) -> Option<impl Future<Output = Result<OkFrame, PublishError>> + Send + use<>> {
        match &self.state {
            State::Up(open) => Some(open.connection.request(frame)),
            _ => None,
        }
    }

    /// Closes the connection and opens no other.
    pub(super) fn close(&mut self) {
        self.state = State::Closed;
    }

    /// The next event. Nothing is lost if the future is dropped before it resolves.
    pub(super) async fn next(&mut self) -> LinkEvent {
        loop {
            match &mut self.state {
                State::Up(open) => {
                    let lost = match open.incoming.recv().await {
                        Some(Incoming::Event(event)) => return LinkEvent::Event(event),
                        Some(Incoming::Refused(refused)) => Some(error_of(refused)),
                        Some(Incoming::Ended) | None => None,
                    };
                    if open.opened_at.elapsed() > LONGEST_WAIT {
                        self.backoff.reset();
                    }
                    if let Some(error) = lost.filter(ClientError::ends_subscription) {
                        self.close();
                        return LinkEvent::Refused(error);
                    }
                    self.state = State::Waiting(Box::pin(sleep(self.backoff.next_wait())));
                    return LinkEvent::Down;
                }
                State::Waiting(wait) => {
                    wait.as_mut().await;
                    self.state =
                        State::Opening(Box::pin(subscribe(Arc::clone(&self.http), Arc::clone(&self.spec))));
                }
                State::Opening(opening) => match opening.as_mut().await {
                    Ok(open) => {
                        self.state = State::Up(open);
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
async fn subscribe(http: Arc<Http>, spec: Arc<Spec>) -> Result<Open, ClientError> {
    let (sender, incoming) = mpsc::unbounded_channel();
    let connection = Connection::open(&http.address, http.token.as_ref(), Some(sender)).await?;
    let frame = ClientFrame::Subscribe {
        topic: Cow::Borrowed(&spec.topic),
        group: Cow::Borrowed(&spec.group),
        opts: spec.options.clone(),
    };
    let answer = connection.request(frame).await;
    let ok = answer.map_err(|error| error.into_client_error(&http.address.to_string()))?;
    let created = ok.created.unwrap_or_default();
    Ok(Open { connection, incoming, opened_at: Instant::now(), created })
}

fn error_of(ErrFrame { code, msg: message, retry_after_ms, .. }: ErrFrame) -> ClientError {
    ClientError::Refused { status: None, code, message, retry_after_ms }
}
