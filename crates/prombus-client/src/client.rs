//! The client: one server, its HTTP routes, and one WebSocket that is opened when it is needed.

use crate::address::{Address, put_encoded};
use crate::connection::Connection;
use crate::error::{ClientError, PublishError};
use crate::http::Http;
use crate::lines::Lines;
use crate::record::{Published, Record};
use hyper::Method;
use prombus_protocol::Token;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::Mutex;

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: Arc<Http>,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Client {
    /// A client that connects when it is used.
    ///
    /// # Errors
    /// [`ClientError::Address`] if `url` is no address.
    pub fn new(url: &str, token: Option<&str>) -> Result<Self, ClientError> {
        let http = Arc::new(Http::new(Address::parse(url)?, token.map(Token::new)));
        Ok(Self { inner: Arc::new(Inner { http, connection: Mutex::default() }) })
    }

    /// A client that is connected. `ws://`, `wss://`, `http://` and `https://` are the same to it.
    ///
    /// # Errors
    /// [`ClientError`] says whether nobody is there, or a token is wanted.
    pub async fn connect(url: &str, token: Option<&str>) -> Result<Self, ClientError> {
        let client = Self::new(url, token)?;
        client.open().await?;
        Ok(client)
    }

    /// Opens the WebSocket, if it is not open. What publishes does so by itself; this is for whoever wants to know at once
    /// whether that works.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn open(&self) -> Result<(), ClientError> {
        self.connection().await.map(drop)
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.inner.http.address
    }

    /// Publishes one event; resolves when it is on the server's disk.
    ///
    /// # Errors
    /// See [`PublishError`].
    pub async fn publish(&self, record: &Record) -> Result<Published, PublishError> {
        let mut outcomes = self.publish_batch(std::slice::from_ref(record)).await;
        outcomes.pop().unwrap_or_else(|| Err(PublishError::Lost("no answer".to_owned())))
    }

    /// Publishes events in their order, all of them before the first answer is waited for; one result each, when all are
    /// answered. What was published is on the server's disk.
    pub async fn publish_batch(&self, records: &[Record]) -> Vec<Result<Published, PublishError>> {
        match self.connection().await {
            Ok(connection) => connection.publish(records).await,
            Err(ClientError::Refused { code, message, retry_after_ms, .. }) => {
                records.iter().map(|_| refused(code, &message, retry_after_ms)).collect()
            }
            Err(error @ ClientError::Unauthorized { .. }) => {
                let code = prombus_protocol::ErrorCode::Unauthorized;
                records.iter().map(|_| refused(code, &error.to_string(), None)).collect()
            }
            Err(error) => {
                let why = error.to_string();
                records.iter().map(|_| Err(PublishError::Lost(why.clone()))).collect()
            }
        }
    }

    /// The connection, opened again if it is over.
    async fn connection(&self) -> Result<Arc<Connection>, ClientError> {
        let mut connection = self.inner.connection.lock().await;
        if let Some(connection) = connection.as_ref().filter(|it| !it.is_over()) {
            return Ok(Arc::clone(connection));
        }
        let http = &self.inner.http;
        let opened = Arc::new(Connection::open(&http.address, http.token.as_ref(), None).await?);
        *connection = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Asks for JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, None::<&()>).await
    }

    /// Puts JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put_json<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.ask(Method::PUT, path, Some(body)).await
    }

    /// Deletes something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::DELETE, path, None::<&()>).await
    }

    /// Asks for lines, which come one by one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn lines(&self, path: &str) -> Result<Lines, ClientError> {
        let response = self.http().open(Method::GET, path, None).await?;
        Ok(Lines::new(self.http_shared(), response))
    }

    /// Posts JSON; the answer is lines.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn post_for_lines(&self, path: &str, body: &impl Serialize) -> Result<Lines, ClientError> {
        let body = self.json(body)?;
        let response = self.http().open(Method::POST, path, Some(body.into())).await?;
        Ok(Lines::new(self.http_shared(), response))
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let body = body.map(|body| self.json(body)).transpose()?;
        let answer = self.http().whole(method, path, body.map(Into::into)).await?;
        serde_json::from_slice(&answer).map_err(|error| self.odd(format!("{path}: {error}")))
    }

    fn json(&self, body: &impl Serialize) -> Result<Vec<u8>, ClientError> {
        serde_json::to_vec(body).map_err(|error| self.odd(format!("what was to be sent is no JSON: {error}")))
    }

    /// A path of segments and a query, encoded.
    pub fn path(segments: &[&str], query: &[(&str, &str)]) -> String {
        let mut path = String::new();
        for segment in segments {
            path.push('/');
            put_encoded(&mut path, segment);
        }
        for (number, (name, value)) in query.iter().enumerate() {
            path.push(if number == 0 { '?' } else { '&' });
            put_encoded(&mut path, name);
            path.push('=');
            put_encoded(&mut path, value);
        }
        path
    }

    pub(crate) fn http(&self) -> &Http {
        &self.inner.http
    }

    pub(crate) fn http_shared(&self) -> Arc<Http> {
        Arc::clone(&self.inner.http)
    }

    pub(crate) fn odd(&self, why: String) -> ClientError {
        self.inner.http.odd(why)
    }
}

fn refused(
    code: prombus_protocol::ErrorCode,
    message: &str,
    retry_after_ms: Option<u64>,
) -> Result<Published, PublishError> {
    Err(PublishError::Refused { code, message: message.to_owned(), retry_after_ms })
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.address())
    }
}
