//! Opens a WebSocket and finds out whether the server grants access.

use crate::address::Address;
use crate::error::ClientError;
use crate::http::{bearer, not_http, refused};
use crate::io_reason::io_reason;
use crate::transport::Transport;
use futures_util::{SinkExt, StreamExt};
use hyper::header::AUTHORIZATION;
use prombus_protocol::{ClientFrame, RawValue, ServerFrame, Token, put_client_frame};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// The largest frame to accept: an event with the largest payload that a server can allow, and some margin.
const MAX_RECEIVED_BYTES: usize = 64 << 20;

/// A WebSocket over TCP or TLS.
pub(super) type Socket = WebSocketStream<Box<dyn Transport>>;

/// Opens a WebSocket. A refused token is reported here, not at the first request.
pub(super) async fn upgrade(
    stream: Box<dyn Transport>,
    address: &Address,
    token: Option<&Token>,
) -> Result<Socket, ClientError> {
    let invalid_response = |why: String| ClientError::Answer { address: address.to_string(), why };
    let mut request =
        address.web_socket().into_client_request().map_err(|error| invalid_response(error.to_string()))?;
    if let Some(token) = token {
        request.headers_mut().insert(AUTHORIZATION, bearer(token, address)?);
    }
    let (mut socket, _) =
        client_async_with_config(request, stream, Some(limits())).await.map_err(|error| match error {
            tungstenite::Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                refused(address, response.status().as_u16(), body)
            }
            tungstenite::Error::Io(error) => {
                ClientError::Lost { address: address.to_string(), why: io_reason(&error) }
            }
            tungstenite::Error::Protocol(ProtocolError::HttparseError(_)) => {
                invalid_response(not_http(address))
            }
            other => invalid_response(other.to_string()),
        })?;
    if token.is_none() {
        // A wrong token fails the upgrade. Without a token, only an AUTH frame shows whether the server requires one.
        let probed = authenticate_without_token(&mut socket).await;
        probed.map_err(|why| ClientError::Unauthorized { address: address.to_string(), why })?;
    }
    Ok(socket)
}

/// The limits on received frames. A server may allow larger frames than the default limit of the WebSocket library.
fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_frame_size(Some(MAX_RECEIVED_BYTES))
        .max_message_size(Some(MAX_RECEIVED_BYTES))
}

/// Checks that the server accepts clients without a token. The error is the server's message.
async fn authenticate_without_token(socket: &mut Socket) -> Result<(), String> {
    let mut frame = Vec::new();
    put_client_frame(&mut frame, Some("0"), &ClientFrame::Auth { token: None });
    let frame = Utf8Bytes::try_from(frame).expect("frames are UTF-8");
    // A connection that breaks here is reported by the first request.
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
