//! One WebSocket: requests and their responses, deliveries, and a clean end. Its task is in `connection/pump.rs`.

mod pump;
mod shared;
mod upgrade;

pub(crate) use shared::Incoming;

use crate::error::{ClientError, PublishError};
use crate::http::Http;
use crate::patience::Patience;
use crate::record::{Published, Record};
use crate::transport;
use prombus_protocol::{ClientFrame, ErrorCode, Json, OkFrame};
use shared::{Answer, Recipient, Shared};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// How long a server that accepted the connection may take to grant access.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection. Dropping it sends a close frame, so that unsettled deliveries return to the group without counting an attempt.
pub(crate) struct Connection {
    /// Frames to write. The channel is unbounded, but few frames wait in it: every publish or request waits for its responses, and a
    /// subscription sends only frames about itself and the deliveries that it holds. Frames of cancelled requests are written too.
    outgoing: mpsc::UnboundedSender<Vec<Utf8Bytes>>,
    shared: Arc<Shared>,
}

impl Connection {
    /// Opens a connection. Deliveries go to `incoming`; its last item reports the end of the connection.
    pub(crate) async fn open(
        http: &Http,
        incoming: Option<mpsc::UnboundedSender<Incoming>>,
    ) -> Result<Self, ClientError> {
        let Http { address, token, trust, .. } = http;
        let stream = transport::open(address, trust).await?;
        let socket = timeout(OPEN_TIMEOUT, upgrade::upgrade(stream, address, token.as_ref()))
            .await
            .map_err(|_| {
                let why = format!("no answer in {} s", OPEN_TIMEOUT.as_secs());
                ClientError::Connect { address: address.to_string(), why }
            })??;
        let (outgoing, queued) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(incoming));
        tokio::spawn(pump::run(socket, queued, Arc::clone(&shared)));
        Ok(Self { outgoing, shared })
    }

    /// Whether the connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.is_over()
    }

    /// Publishes the records in order and waits for all responses, as long as the patience lasts. The connection stays open after that,
    /// because other requests use it too.
    pub(crate) async fn publish(
        &self,
        records: &[Record],
        patience: &mut Patience,
    ) -> Vec<Result<Published, PublishError>> {
        let frames: Vec<Result<ClientFrame<'_>, PublishError>> = records.iter().map(frame_of).collect();
        let published = |answer: Result<OkFrame, PublishError>| match answer? {
            OkFrame { id: Some(id), seq: Some(seq), duplicate, .. } => Ok(Published { id, seq, duplicate }),
            _ => Err(PublishError::Lost("an OK without id and seq".to_owned())),
        };
        self.send(&frames).outcomes(Some(patience)).await.into_iter().map(published).collect()
    }

    /// Sends a frame now; the future waits for its response.
    pub(crate) fn request(
        &self,
        frame: ClientFrame<'_>,
    ) -> impl Future<Output = Result<OkFrame, PublishError>> + Send + use<> {
        let batch = self.send(&[Ok(frame)]);
        async move {
            let shared = Arc::clone(&batch.shared);
            batch.outcomes(None).await.pop().unwrap_or_else(|| Err(shared.lost()))
        }
    }

    /// Sends a frame now and returns its number. The response arrives in `incoming`, in order, with this number. If the connection ends
    /// first, there is no response.
    pub(crate) fn post(&self, frame: &ClientFrame<'_>) -> u64 {
        let corr = self.shared.next_corr();
        if let Ok(text) = self.shared.register(corr, frame, Recipient::Subscription) {
            self.write(vec![text]);
        }
        corr
    }

    fn write(&self, texts: Vec<Utf8Bytes>) {
        if self.outgoing.send(texts).is_err() {
            // The task has ended, so no response can arrive.
            self.shared.end("the connection is closed".into());
        }
    }

    /// Sends the valid frames. The others already have their outcome.
    fn send(&self, frames: &[Result<ClientFrame<'_>, PublishError>]) -> SentBatch {
        let (sender, answers) = mpsc::unbounded_channel();
        let mut outcomes: Vec<Option<Result<OkFrame, PublishError>>> = Vec::with_capacity(frames.len());
        let mut texts = Vec::with_capacity(frames.len());
        for (index, frame) in frames.iter().enumerate() {
            let text = match frame {
                Ok(frame) => {
                    let recipient = Recipient::Batch(index, sender.clone());
                    self.shared.register(self.shared.next_corr(), frame, recipient)
                }
                Err(refused) => Err(refused.clone()),
            };
            outcomes.push(match text {
                Ok(text) => {
                    texts.push(text);
                    None
                }
                Err(refused) => Some(Err(refused)),
            });
        }
        let waiting = texts.len();
        if waiting > 0 {
            self.write(texts);
        }
        SentBatch { answers, outcomes, waiting, shared: Arc::clone(&self.shared) }
    }
}

/// Frames whose responses are awaited.
struct SentBatch {
    answers: mpsc::UnboundedReceiver<Answer>,
    /// The outcome of each frame; `None` while it waits for its response.
    outcomes: Vec<Option<Result<OkFrame, PublishError>>>,
    /// The number of sent frames without a response.
    waiting: usize,
    shared: Arc<Shared>,
}

impl SentBatch {
    /// The responses. When the connection or the patience ends, frames without a response count as lost.
    async fn outcomes(mut self, mut patience: Option<&mut Patience>) -> Vec<Result<OkFrame, PublishError>> {
        while self.waiting > 0 {
            let answer = match &patience {
                Some(patience) => patience.bound(self.answers.recv()).await,
                None => Ok(self.answers.recv().await),
            };
            let (index, outcome) = match answer {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                Err(why) => {
                    let lost = || Err(PublishError::Lost(why.clone()));
                    return self.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect();
                }
            };
            if let Some(patience) =
                patience.as_mut().filter(|_| !outcome.as_ref().is_err_and(PublishError::is_unavailable))
            {
                patience.answered();
            }
            self.outcomes[index] = Some(outcome);
            self.waiting -= 1;
        }
        let lost = || Err(self.shared.lost());
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
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
