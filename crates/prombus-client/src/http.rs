//! Requests over HTTP/1.1. A connection whose response was read with [`Http::whole`] is kept for the next request.

use crate::address::Address;
use crate::error::ClientError;
use crate::io_reason::io_reason;
use crate::transport;
use crate::trust::Trust;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prombus_protocol::{ErrorCode, Token};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::timeout;

/// How long the start of a response, and each further piece of one that is read as a whole, may take. Requests that read much before
/// they respond, such as a state of the past, take seconds.
const RESPONSE_MAX: Duration = Duration::from_secs(60);
/// An error message shows this many characters of a response that is not JSON.
const SHOWN_CHARS_MAX: usize = 200;

type Sender = SendRequest<Full<Bytes>>;

/// A server and at most one idle connection to it.
pub(crate) struct Http {
    pub(crate) address: Address,
    pub(crate) token: Option<Token>,
    pub(crate) trust: Trust,
    /// A connection that waits for the next request.
    idle: Mutex<Option<Sender>>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    retry_after_ms: Option<u64>,
}

impl Http {
    pub(crate) fn new(address: Address, token: Option<Token>, trust: Trust) -> Self {
        Self { address, token, trust, idle: Mutex::default() }
    }

    /// Sends a request and reads the whole body of a successful response.
    pub(crate) async fn whole(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Bytes, ClientError> {
        let (sender, response) = self.send(method, path, body).await?;
        let body = self.collected(response).await?;
        *self.idle.lock() = Some(sender);
        Ok(body)
    }

    /// The whole body of a response.
    async fn collected(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let mut body = response.into_body();
        let mut bytes = BytesMut::new();
        while let Some(frame) = self.in_time(body.frame()).await? {
            if let Ok(data) = frame.map_err(|error| self.lost(&error))?.into_data() {
                bytes.extend_from_slice(&data);
            }
        }
        Ok(bytes.freeze())
    }

    /// Waits for a part of a response.
    async fn in_time<T>(&self, part: impl Future<Output = T>) -> Result<T, ClientError> {
        timeout(RESPONSE_MAX, part).await.map_err(|_| {
            let why = format!("no answer in {} s", RESPONSE_MAX.as_secs());
            ClientError::Lost { address: self.address.to_string(), why }
        })
    }

    /// Sends a request. The caller reads the body of a successful response.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Response<Incoming>, ClientError> {
        // The sender is dropped, so the connection ends with the response.
        Ok(self.send(method, path, body).await?.1)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<(Sender, Response<Incoming>), ClientError> {
        let idle = self.idle.lock().take();
        let is_used = idle.is_some();
        let sender = match idle {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let (sender, response) = match self.send_over(sender, &method, path, body.clone()).await {
            // A server may close an idle connection at any time. Only requests without side effects are sent again.
            Err(ClientError::Lost { .. }) if is_used && method == Method::GET => {
                let sender = self.connect().await?;
                self.send_over(sender, &method, path, body).await?
            }
            sent => sent?,
        };
        if response.status().is_success() {
            return Ok((sender, response));
        }
        Err(self.refusal(response).await)
    }

    async fn connect(&self) -> Result<Sender, ClientError> {
        let stream = transport::open(&self.address, &self.trust).await?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| self.lost(&error))?;
        tokio::spawn(async move {
            // The caller gets this error from the response.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn send_over(
        &self,
        mut sender: Sender,
        method: &Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<(Sender, Response<Incoming>), ClientError> {
        let mut request = Request::new(Full::new(body.clone().unwrap_or_default()));
        *request.method_mut() = method.clone();
        let uri = format!("{}{path}", self.address.prefix);
        *request.uri_mut() =
            uri.parse().map_err(|_| self.invalid_response(format!("{uri:?} is not a valid path")))?;
        let headers = request.headers_mut();
        let authority = HeaderValue::try_from(self.address.authority());
        headers.insert(HOST, authority.map_err(|error| self.invalid_response(error.to_string()))?);
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, bearer(token, &self.address)?);
        }
        sender.ready().await.map_err(|error| self.lost(&error))?;
        let response = self.in_time(sender.send_request(request)).await?;
        let response = response.map_err(|error| match error.is_parse() {
            true => self.invalid_response(not_http(&self.address)),
            false => self.lost(&error),
        })?;
        Ok((sender, response))
    }

    async fn refusal(&self, response: Response<Incoming>) -> ClientError {
        let status = response.status().as_u16();
        match self.collected(response).await {
            Ok(body) => refused(&self.address, status, &body),
            Err(error) => error,
        }
    }

    pub(crate) fn lost(&self, error: &dyn std::error::Error) -> ClientError {
        let mut why = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.downcast_ref().map_or_else(|| error.to_string(), io_reason);
            why = format!("{why}: {text}");
            cause = error.source();
        }
        ClientError::Lost { address: self.address.to_string(), why }
    }

    pub(crate) fn invalid_response(&self, why: impl Into<String>) -> ClientError {
        ClientError::Answer { address: self.address.to_string(), why: why.into() }
    }
}

/// The error for a response with a status that is not a success.
pub(crate) fn refused(address: &Address, status: u16, body: &[u8]) -> ClientError {
    let address = address.to_string();
    let parsed = serde_json::from_slice(body);
    let shown = || String::from_utf8_lossy(body).chars().take(SHOWN_CHARS_MAX).collect::<String>();
    match (status, parsed) {
        (401, Ok(ErrorBody { error: why, .. })) => ClientError::Unauthorized { address, why },
        (401, Err(_)) => {
            let why = if body.is_empty() { "the token is not valid".to_owned() } else { shown() };
            ClientError::Unauthorized { address, why }
        }
        (_, Ok(ErrorBody { error: message, code, retry_after_ms })) if is_from_prombus(status, &code) => {
            let code = code.parse().unwrap_or(ErrorCode::Internal);
            ClientError::Refused { status: Some(status), code, message, retry_after_ms }
        }
        _ => ClientError::Answer { address, why: format!("status {status}: {}", shown()) },
    }
}

/// Whether an error body is that of a prombus server. A proxy in front of one that restarts responds with a 5xx, which may look similar.
fn is_from_prombus(status: u16, code: &str) -> bool {
    status < 500 || code.parse::<ErrorCode>().is_ok()
}

/// Why a response is not HTTP. A server that expects TLS answers plain HTTP with a TLS alert.
pub(crate) fn not_http(address: &Address) -> String {
    match address.is_tls {
        true => "the response is not HTTP".to_owned(),
        false => "the response is not HTTP; if the server uses TLS, use https:// or wss://".to_owned(),
    }
}

/// The `Authorization` header for a token.
pub(crate) fn bearer(token: &Token, address: &Address) -> Result<HeaderValue, ClientError> {
    let mut value =
        HeaderValue::try_from(format!("Bearer {}", &**token)).map_err(|_| ClientError::Unauthorized {
            address: address.to_string(),
            why: "the token contains characters that are not allowed in a header".to_owned(),
        })?;
    value.set_sensitive(true);
    Ok(value)
}
