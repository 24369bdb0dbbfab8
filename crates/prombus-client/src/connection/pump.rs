//! The task of a connection: it writes queued frames, reads responses and deliveries, and detects a silent server.
//!
//! After 30 s without received data it sends a ping, and after 75 s it ends the connection: a machine that lost its power does not close
//! its connections. It also ends the connection if requests wait and the server responds to none of them for 60 s, even if the server
//! still responds to pings.

use super::shared::{End, Incoming, Shared};
use super::upgrade::Socket;
use crate::error::PublishError;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use prombus_protocol::{ErrFrame, RawValue, ServerFrame};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Bytes, Message, Utf8Bytes};

/// A ping is sent when nothing was received for this long.
const PING_AFTER: Duration = Duration::from_secs(30);
/// The connection ends when nothing was received for this long.
const SILENCE_LIMIT: Duration = Duration::from_secs(75);
/// If requests wait and none of them gets a response for this long, the server counts as hanging and the connection ends.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for the server's close frame after sending one or after a failed write.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a connection until it ends, or until the sender of `queued` is dropped.
pub(super) async fn run(
    socket: Socket,
    queued: mpsc::UnboundedReceiver<Vec<Utf8Bytes>>,
    shared: Arc<Shared>,
) {
    let (sink, stream) = socket.split();
    let ping = Notify::new();
    // Reads and writes run concurrently: a server may stop reading until its responses are read.
    let mut reading = std::pin::pin!(read(stream, &shared, &ping));
    let end = tokio::select! {
        written = write(sink, queued, &ping) => match written {
            Ok(()) => {
                // Closing a socket with unread data resets the connection. The server might then miss the close frame and count the
                // leases as lost.
                let _ = timeout(CLOSE_TIMEOUT, reading).await;
                End::from("closed by this client")
            }
            Err(error) => timeout(CLOSE_TIMEOUT, reading).await.unwrap_or_else(|_| error.to_string().into()),
        },
        end = &mut reading => end,
        // The server hangs, so it would not respond to a close frame either.
        () = shared.unanswered_for(ANSWER_TIMEOUT) => format!("no answer in {} s", ANSWER_TIMEOUT.as_secs()).into(),
    };
    shared.end(end);
}

/// Writes frames and pings until the connection is dropped, and then a close frame.
async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut queued: mpsc::UnboundedReceiver<Vec<Utf8Bytes>>,
    ping: &Notify,
) -> Result<(), tungstenite::Error> {
    loop {
        let mut batch = tokio::select! {
            batch = queued.recv() => match batch {
                Some(batch) => batch,
                None => break,
            },
            () = ping.notified() => {
                sink.send(Message::Ping(Bytes::new())).await?;
                continue;
            }
        };
        // The frames that are already queued after it are sent in the same write.
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

async fn read(mut stream: SplitStream<Socket>, shared: &Shared, ping: &Notify) -> End {
    let mut heard_at = Instant::now();
    let mut has_pinged = false;
    loop {
        let limit = if has_pinged { SILENCE_LIMIT } else { PING_AFTER };
        let message = match timeout_at(heard_at + limit, stream.next()).await {
            Ok(Some(message)) => message,
            Ok(None) => return "the server closed the connection without a close frame".into(),
            Err(_) if has_pinged => {
                return format!("nothing received for {} s", SILENCE_LIMIT.as_secs()).into();
            }
            Err(_) => {
                ping.notify_one();
                has_pinged = true;
                continue;
            }
        };
        (heard_at, has_pinged) = (Instant::now(), false);
        let text = match message {
            Ok(Message::Text(text)) => text,
            Ok(Message::Close(Some(close))) => {
                let is_too_large = close.code == CloseCode::Size;
                return End { why: format!("the server closed it ({close})"), is_too_large };
            }
            Ok(Message::Close(None)) => return "the server closed it".into(),
            Ok(_) => continue,
            Err(error) => return error.to_string().into(),
        };
        if let Err(end) = handle(&text, shared) {
            return end;
        }
    }
}

/// Passes a received frame to the request or subscription that it belongs to.
fn handle(text: &Utf8Bytes, shared: &Shared) -> Result<(), End> {
    match ServerFrame::<Box<RawValue>>::parse(text.as_bytes()) {
        Ok(ServerFrame::Ok(mut ok)) => shared.answer(number(ok.corr.take()), Ok(ok)),
        Ok(ServerFrame::Err(ErrFrame { code, msg: message, retry_after_ms, corr: Some(corr) })) => {
            shared.answer(number(Some(corr)), Err(PublishError::Refused { code, message, retry_after_ms }));
        }
        Ok(ServerFrame::Event(delivery)) => shared.push(Incoming::Event(delivery)),
        Ok(ServerFrame::Err(refused)) => shared.push(Incoming::Refused(refused)),
        Err(error) => return Err(format!("the server sent a frame that is not valid: {error}").into()),
    }
    Ok(())
}

fn number(corr: Option<Box<RawValue>>) -> Option<u64> {
    corr?.get().parse().ok()
}
