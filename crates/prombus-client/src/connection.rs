//! One WebSocket and the task that writes and reads it. Answers find whoever waits for them by `corr`; when the connection ends
//! all who wait are told.

use crate::address::Address;
use crate::error::{ClientError, PublishError};
use crate::http::bearer;
use crate::record::{Published, Record};
use crate::transport::{self, Transport};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::header::AUTHORIZATION;
use parking_lot::Mutex;
use prombus_protocol::{
    ClientFrame, ErrFrame, ErrorCode, EventFrame, Json, OkFrame, RawValue, ServerFrame, Token,
    put_client_frame,
};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

type Socket = WebSocketStream<Box<dyn Transport>>;
/// Which frame of its batch, and what was said to it.
type Answer = (usize, Result<OkFrame, PublishError>);

/// Batches that wait to be written. Few: whoever publishes waits for answers anyway.
const QUEUED_BATCHES: usize = 4;

/// A connection. It ends when this is dropped, or by itself.
pub(crate) struct Connection {
    batches: mpsc::Sender<Vec<Utf8Bytes>>,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Where deliveries go, if there is a subscription.
    deliveries: Option<mpsc::UnboundedSender<Result<EventFrame, String>>>,
}

#[derive(Default)]
struct State {
    next_corr: u64,
    waiting: HashMap<u64, Waiter>,
    /// Why it ended.
    ended: Option<String>,
}

/// Somebody who waits for the answer to one frame of a batch.
struct Waiter {
    index: usize,
    answers: mpsc::UnboundedSender<Answer>,
}

impl Connection {
    /// Opens a connection. Deliveries go to `deliveries`; the last of them says why it ended.
    pub(crate) async fn open(
        address: &Address,
        token: Option<&Token>,
        deliveries: Option<mpsc::UnboundedSender<Result<EventFrame, String>>>,
    ) -> Result<Self, ClientError> {
        let stream = transport::open(address).await?;
        let odd = |why: String| ClientError::Answer { address: address.to_string(), why };
        let mut request =
            address.web_socket().into_client_request().map_err(|error| odd(error.to_string()))?;
        if let Some(token) = token {
            request.headers_mut().insert(AUTHORIZATION, bearer(token, address)?);
        }
        let (mut socket, _) =
            client_async_with_config(request, stream, None).await.map_err(|error| match error {
                tungstenite::Error::Http(response) => {
                    let body = response.body().as_deref().unwrap_or_default();
                    let why = String::from_utf8_lossy(body).into_owned();
                    match response.status().as_u16() {
                        401 => {
                            ClientError::Unauthorized { address: address.to_string(), why: error_text(why) }
                        }
                        status => odd(format!("status {status}: {why}")),
                    }
                }
                tungstenite::Error::Io(error) => {
                    ClientError::Lost { address: address.to_string(), why: error.to_string() }
                }
                other => odd(other.to_string()),
            })?;
        if token.is_none() {
            // With a token the upgrade would have failed; without one only this tells whether the server wants any.
            let why = ask_without_token(&mut socket).await;
            why.map_err(|why| ClientError::Unauthorized { address: address.to_string(), why })?;
        }
        let (batches, queued) = mpsc::channel(QUEUED_BATCHES);
        let shared = Arc::new(Shared { state: Mutex::default(), deliveries });
        tokio::spawn(run(socket, queued, Arc::clone(&shared)));
        Ok(Self { batches, shared })
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.state.lock().ended.is_some()
    }

    /// Sends all records and waits for all answers.
    pub(crate) async fn publish(&self, records: &[Record]) -> Vec<Result<Published, PublishError>> {
        let frames: Vec<Result<ClientFrame<'_>, PublishError>> = records.iter().map(frame_of).collect();
        let answers = self.ask_all(&frames).await;
        let published = |answer: Result<OkFrame, PublishError>| match answer? {
            OkFrame { id: Some(id), seq: Some(seq), duplicate, .. } => Ok(Published { id, seq, duplicate }),
            _ => Err(PublishError::Lost("an OK without id and seq".to_owned())),
        };
        answers.into_iter().map(published).collect()
    }

    /// Sends a frame and waits for its answer.
    pub(crate) async fn ask(&self, frame: ClientFrame<'_>) -> Result<OkFrame, PublishError> {
        let mut answers = self.ask_all(&[Ok(frame)]).await;
        answers.pop().unwrap_or_else(|| Err(PublishError::Lost(self.shared.why_ended())))
    }

    /// Sends all frames that are any, and waits for all answers.
    async fn ask_all(
        &self,
        frames: &[Result<ClientFrame<'_>, PublishError>],
    ) -> Vec<Result<OkFrame, PublishError>> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        let mut outcomes: Vec<Option<Result<OkFrame, PublishError>>> = frames.iter().map(|_| None).collect();
        let mut texts = Vec::with_capacity(frames.len());
        for (index, (frame, outcome)) in frames.iter().zip(&mut outcomes).enumerate() {
            let text = match frame {
                Ok(frame) => self.shared.text(index, frame, &sender),
                Err(refused) => Err(refused.clone()),
            };
            match text {
                Ok(text) => texts.push(text),
                Err(refused) => *outcome = Some(Err(refused)),
            }
        }
        drop(sender);
        let mut left = texts.len();
        if left > 0 && self.batches.send(texts).await.is_err() {
            // The task is over: nobody answers any more.
            self.shared.end("it is closed");
        }
        while left > 0 {
            let Some((index, outcome)) = answers.recv().await else { break };
            outcomes[index] = Some(outcome);
            left -= 1;
        }
        let lost = || Err(PublishError::Lost(self.shared.why_ended()));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
    }
}

/// The frame that publishes a record.
fn frame_of(record: &Record) -> Result<ClientFrame<'_>, PublishError> {
    let payload = Json::new(record.payload.get().as_bytes()).map_err(|error| PublishError::Refused {
        code: ErrorCode::BadJson,
        message: format!("the payload is {error}"),
        retry_after_ms: None,
    })?;
    Ok(ClientFrame::Publish { topic: record.topic_text(), payload, opts: record.options.clone() })
}

impl Shared {
    /// The text of a frame, whose answer is waited for from now on.
    fn text(
        &self,
        index: usize,
        frame: &ClientFrame<'_>,
        answers: &mpsc::UnboundedSender<Answer>,
    ) -> Result<Utf8Bytes, PublishError> {
        let corr = {
            let mut state = self.state.lock();
            if let Some(why) = &state.ended {
                return Err(PublishError::Lost(why.clone()));
            }
            state.next_corr += 1;
            let corr = state.next_corr;
            state.waiting.insert(corr, Waiter { index, answers: answers.clone() });
            corr
        };
        let mut text = Vec::new();
        put_client_frame(&mut text, Some(&corr.to_string()), frame);
        Ok(Utf8Bytes::try_from(text).expect("frames are made of texts"))
    }

    fn answer(&self, corr: Option<u64>, outcome: Result<OkFrame, PublishError>) {
        let Some(corr) = corr else { return };
        let waiter = self.state.lock().waiting.remove(&corr);
        if let Some(Waiter { index, answers }) = waiter {
            // Whoever gave up waiting needs no answer.
            let _ = answers.send((index, outcome));
        }
    }

    /// It is over: all who wait are told.
    fn end(&self, why: &str) {
        let mut state = self.state.lock();
        state.waiting.clear();
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(why.to_owned());
        if let Some(deliveries) = &self.deliveries {
            let _ = deliveries.send(Err(why.to_owned()));
        }
    }

    fn why_ended(&self) -> String {
        self.state.lock().ended.clone().unwrap_or_else(|| "it is closed".to_owned())
    }
}

/// Whether the server lets in who has no token.
async fn ask_without_token(socket: &mut Socket) -> Result<(), String> {
    let mut frame = Vec::new();
    put_client_frame(&mut frame, Some("0"), &ClientFrame::Auth { token: None });
    let frame = Utf8Bytes::try_from(frame).expect("frames are made of texts");
    // What breaks here breaks again when something is published, and is told then.
    if socket.send(Message::Text(frame)).await.is_err() {
        return Ok(());
    }
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        return match ServerFrame::<Box<RawValue>>::parse(text.as_bytes()) {
            Ok(ServerFrame::Err(refused)) => Err(refused.msg),
            _ => Ok(()),
        };
    }
    Ok(())
}

async fn run(socket: Socket, queued: mpsc::Receiver<Vec<Utf8Bytes>>, shared: Arc<Shared>) {
    let (sink, stream) = socket.split();
    // Both at once: a server that does not read until its answers are taken must not wait for ever.
    let why = tokio::select! {
        why = write(sink, queued) => why,
        why = read(stream, &shared) => why,
    };
    shared.end(&why);
}

async fn write(mut sink: SplitSink<Socket, Message>, mut queued: mpsc::Receiver<Vec<Utf8Bytes>>) -> String {
    while let Some(mut batch) = queued.recv().await {
        // What others have ready goes with it in one write.
        while let Ok(more) = queued.try_recv() {
            batch.extend(more);
        }
        for frame in batch {
            if let Err(error) = sink.feed(Message::Text(frame)).await {
                return error.to_string();
            }
        }
        if let Err(error) = sink.flush().await {
            return error.to_string();
        }
    }
    // Nobody has the connection any more.
    let _ = sink.close().await;
    "it was closed here".to_owned()
}

async fn read(mut stream: SplitStream<Socket>, shared: &Shared) -> String {
    while let Some(message) = stream.next().await {
        let text = match message {
            Ok(Message::Text(text)) => text,
            Ok(Message::Close(Some(close))) => return format!("the server closed it ({close})"),
            Ok(Message::Close(None)) => return "the server closed it".to_owned(),
            Ok(_) => continue,
            Err(error) => return error.to_string(),
        };
        match ServerFrame::<Box<RawValue>>::parse(text.as_bytes()) {
            Ok(ServerFrame::Ok(mut ok)) => shared.answer(number(ok.corr.take()), Ok(ok)),
            Ok(ServerFrame::Err(ErrFrame { code, msg: message, retry_after_ms, corr: Some(corr) })) => {
                shared
                    .answer(number(Some(corr)), Err(PublishError::Refused { code, message, retry_after_ms }));
            }
            Ok(ServerFrame::Event(delivery)) => {
                if let Some(deliveries) = &shared.deliveries {
                    let _ = deliveries.send(Ok(delivery));
                }
            }
            // A subscription that the server ended, such as one of a group that was deleted.
            Ok(ServerFrame::Err(ended)) if shared.deliveries.is_some() => return ended.msg,
            // About the connection as a whole: what it closes with says more.
            Ok(ServerFrame::Err(_)) => {}
            Err(error) => return format!("the server said what nobody understands: {error}"),
        }
    }
    "the server went away".to_owned()
}

fn number(corr: Option<Box<RawValue>>) -> Option<u64> {
    corr?.get().parse().ok()
}

/// The message of an error body, or all of it.
fn error_text(body: String) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_str(&body).ok();
    let message = parsed.as_ref().and_then(|it| it.get("error")?.as_str()).map(str::to_owned);
    message.unwrap_or(body)
}
