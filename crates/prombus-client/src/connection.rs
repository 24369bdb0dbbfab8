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
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

type Socket = WebSocketStream<Box<dyn Transport>>;
/// Which frame of its batch, and what was said to it.
type Answer = (usize, Result<OkFrame, PublishError>);

/// Batches that wait to be written. Few: whoever publishes waits for answers anyway.
const QUEUED_BATCHES: usize = 4;
/// How long a server that was reached may take to let in, and how long it may answer nothing while answers are waited for. One
/// that stands still, or whose machine is gone, closes no connection.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// When nothing can be written any more, what the server closed with may still be on its way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection. It ends when this is dropped, or by itself.
pub(crate) struct Connection {
    batches: mpsc::Sender<Vec<Utf8Bytes>>,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    state: Mutex<ConnectionState>,
    /// Where deliveries go, if there is a subscription.
    deliveries: Option<mpsc::UnboundedSender<Result<EventFrame, String>>>,
}

#[derive(Default)]
struct ConnectionState {
    next_corr: u64,
    waiting: HashMap<u64, Waiter>,
    /// Why it ended.
    ended: Option<String>,
}

/// Somebody who waits for the answer to one frame of a batch.
struct Waiter {
    index: usize,
    byte_count: usize,
    answers: mpsc::UnboundedSender<Answer>,
}

/// Why a connection is over.
struct End {
    why: String,
    /// The server closed it because of the size of a frame.
    is_too_large: bool,
}

impl From<String> for End {
    fn from(why: String) -> Self {
        Self { why, is_too_large: false }
    }
}

impl Connection {
    /// Opens a connection. Deliveries go to `deliveries`; the last of them says why it ended.
    pub(crate) async fn open(
        address: &Address,
        token: Option<&Token>,
        deliveries: Option<mpsc::UnboundedSender<Result<EventFrame, String>>>,
    ) -> Result<Self, ClientError> {
        let stream = transport::open(address).await?;
        let socket = timeout(OPEN_TIMEOUT, upgrade(stream, address, token)).await.map_err(|_| {
            let why = format!("no answer in {} s", OPEN_TIMEOUT.as_secs());
            ClientError::Lost { address: address.to_string(), why }
        })??;
        let (batches, queued) = mpsc::channel(QUEUED_BATCHES);
        let shared = Arc::new(Shared { state: Mutex::default(), deliveries });
        let task = tokio::spawn(run(socket, queued, Arc::clone(&shared))).abort_handle();
        Ok(Self { batches, shared, task })
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
        if left > 0 {
            match timeout(ANSWER_TIMEOUT, self.batches.send(texts)).await {
                Ok(Ok(())) => {}
                // The task is over: nobody answers any more.
                Ok(Err(_)) => self.shared.end(End::from("it is closed".to_owned())),
                Err(_) => self.give_up(),
            }
        }
        while left > 0 {
            match timeout(ANSWER_TIMEOUT, answers.recv()).await {
                Ok(Some((index, outcome))) => {
                    outcomes[index] = Some(outcome);
                    left -= 1;
                }
                Ok(None) => break,
                Err(_) => self.give_up(),
            }
        }
        let lost = || Err(PublishError::Lost(self.shared.why_ended()));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
    }

    /// The server stands still: all who wait are told, and nobody waits for a close.
    fn give_up(&self) {
        self.shared.end(format!("no answer in {} s", ANSWER_TIMEOUT.as_secs()).into());
        self.task.abort();
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
            state.next_corr += 1;
            state.next_corr
        };
        let mut text = Vec::new();
        put_client_frame(&mut text, Some(&corr.to_string()), frame);
        let mut state = self.state.lock();
        if let Some(why) = &state.ended {
            return Err(PublishError::Lost(why.clone()));
        }
        state.waiting.insert(corr, Waiter { index, byte_count: text.len(), answers: answers.clone() });
        Ok(Utf8Bytes::try_from(text).expect("frames are made of texts"))
    }

    fn answer(&self, corr: Option<u64>, outcome: Result<OkFrame, PublishError>) {
        let Some(corr) = corr else { return };
        let waiter = self.state.lock().waiting.remove(&corr);
        if let Some(Waiter { index, answers, .. }) = waiter {
            // Whoever gave up waiting needs no answer.
            let _ = answers.send((index, outcome));
        }
    }

    /// It is over: all who wait are told.
    fn end(&self, End { why, is_too_large }: End) {
        let mut state = self.state.lock();
        if is_too_large {
            // One of those that wait was too large, so the largest of them is: sent again, it would end the next connection.
            let largest = state.waiting.values().max_by_key(|waiter| waiter.byte_count);
            if let Some(Waiter { index, answers, .. }) = largest {
                let (code, message) = (ErrorCode::TooLarge, "larger than the server takes".to_owned());
                let _ = answers
                    .send((*index, Err(PublishError::Refused { code, message, retry_after_ms: None })));
            }
        }
        state.waiting.clear();
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(why.clone());
        if let Some(deliveries) = &self.deliveries {
            let _ = deliveries.send(Err(why));
        }
    }

    fn why_ended(&self) -> String {
        self.state.lock().ended.clone().unwrap_or_else(|| "it is closed".to_owned())
    }
}

/// Opens a WebSocket, and finds out whether the server lets in.
async fn upgrade(
    stream: Box<dyn Transport>,
    address: &Address,
    token: Option<&Token>,
) -> Result<Socket, ClientError> {
    let odd = |why: String| ClientError::Answer { address: address.to_string(), why };
    let mut request = address.web_socket().into_client_request().map_err(|error| odd(error.to_string()))?;
    if let Some(token) = token {
        request.headers_mut().insert(AUTHORIZATION, bearer(token, address)?);
    }
    let (mut socket, _) =
        client_async_with_config(request, stream, None).await.map_err(|error| match error {
            tungstenite::Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                let why = String::from_utf8_lossy(body).into_owned();
                match response.status().as_u16() {
                    401 => ClientError::Unauthorized { address: address.to_string(), why: error_text(why) },
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
    Ok(socket)
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
    let mut reading = std::pin::pin!(read(stream, &shared));
    let end = tokio::select! {
        written = write(sink, queued) => match written {
            Ok(()) => End::from("it was closed here".to_owned()),
            Err(error) => timeout(CLOSE_TIMEOUT, reading).await.unwrap_or_else(|_| error.to_string().into()),
        },
        end = &mut reading => end,
    };
    shared.end(end);
}

/// Writes batches until nobody has the connection any more.
async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut queued: mpsc::Receiver<Vec<Utf8Bytes>>,
) -> Result<(), tungstenite::Error> {
    while let Some(mut batch) = queued.recv().await {
        // What others have ready goes with it in one write.
        while let Ok(more) = queued.try_recv() {
            batch.extend(more);
        }
        for frame in batch {
            sink.feed(Message::Text(frame)).await?;
        }
        sink.flush().await?;
    }
    let _ = sink.close().await;
    Ok(())
}

async fn read(mut stream: SplitStream<Socket>, shared: &Shared) -> End {
    while let Some(message) = stream.next().await {
        let text = match message {
            Ok(Message::Text(text)) => text,
            Ok(Message::Close(Some(close))) => {
                let is_too_large = close.code == CloseCode::Size;
                return End { why: format!("the server closed it ({close})"), is_too_large };
            }
            Ok(Message::Close(None)) => return "the server closed it".to_owned().into(),
            Ok(_) => continue,
            Err(error) => return error.to_string().into(),
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
            Ok(ServerFrame::Err(ended)) if shared.deliveries.is_some() => return ended.msg.into(),
            // About the connection as a whole: what it closes with says more.
            Ok(ServerFrame::Err(_)) => {}
            Err(error) => return format!("the server said what nobody understands: {error}").into(),
        }
    }
    "the server went away".to_owned().into()
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
