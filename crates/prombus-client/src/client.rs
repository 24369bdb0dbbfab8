//! The client of one server: its HTTP routes, and one WebSocket for publishing that is opened on demand.

mod builder;

pub use builder::ClientBuilder;

use crate::address::{Address, put_encoded};
use crate::error::{ClientError, PublishError};
use crate::http::Http;
use crate::lines::Lines;
use crate::publish_connection::PublishConnection;
use crate::record::{Published, Record};
use crate::resend::{DEFAULT_PATIENCE, Resend};
use crate::trust::Trust;
use hyper::Method;
use prombus_protocol::Token;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: Arc<Http>,
    /// The WebSocket for publishing.
    publishing: Arc<PublishConnection>,
    /// How long a publish keeps trying while the server does not respond.
    patience: Duration,
}

impl Client {
    /// A client that connects when it is used.
    ///
    /// # Errors
    /// [`ClientError::Address`] if `url` is not an address.
    pub fn new(url: &str, token: Option<&str>) -> Result<Self, ClientError> {
        Ok(Self::over(Http::new(Address::parse(url)?, token.map(Token::new), Trust::default())))
    }

    fn over(http: Http) -> Self {
        let http = Arc::new(http);
        let publishing = Arc::new(PublishConnection::new(Arc::clone(&http)));
        Self { http, publishing, patience: DEFAULT_PATIENCE }
    }

    /// Connects to a server. `ws://` means the same as `http://`, and `wss://` the same as `https://`.
    ///
    /// # Errors
    /// If the server cannot be reached, or requires a token.
    pub async fn connect(url: &str, token: Option<&str>) -> Result<Self, ClientError> {
        let client = Self::new(url, token)?;
        client.open().await?;
        Ok(client)
    }

    /// Sets how long a publish keeps waiting and resending while the server does not respond. Default: 60 s. With zero, an event is sent
    /// only once, and the response may take as long as the connection lasts. Clones that were made before keep their own value.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens the WebSocket for publishing, if it is not open. Publishing does this automatically; call it to find out early whether the
    /// server can be reached.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn open(&self) -> Result<(), ClientError> {
        self.publishing.open().await.map(drop)
    }

    /// The server's address.
    pub fn address(&self) -> &Address {
        &self.http.address
    }

    /// Publishes a record; resolves when it is on the server's disk. It is resent like a [`publish`](Self::publish).
    ///
    /// # Errors
    /// See [`PublishError`].
    pub async fn publish_record(&self, record: &Record) -> Result<Published, PublishError> {
        let mut outcomes = self.publish_batch(std::slice::from_ref(record)).await;
        outcomes.pop().unwrap_or_else(|| Err(PublishError::Lost("no answer".to_owned())))
    }

    /// Publishes records in order, without waiting for responses in between, and returns one result per record. A record with an Ok is on
    /// the server's disk. Records without an id get one. Records without a response are resent like a [`publish`](Self::publish).
    pub async fn publish_batch(&self, records: &[Record]) -> Vec<Result<Published, PublishError>> {
        let mut records = Cow::Borrowed(records);
        if records.iter().any(|record| record.options.id.is_none()) {
            for record in records.to_mut() {
                record.ensure_id();
            }
        }
        let (is_one_by_one, on_setback) = (&mut false, &mut |_: &_| {});
        let resend = Resend { patience: self.patience, is_one_by_one, on_setback };
        resend.publish(&self.publishing, &records).await
    }

    /// Sends a GET request and parses the JSON of the response.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, None::<&()>).await
    }

    /// Sends a PUT request with JSON and parses the JSON of the response.
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

    /// Sends a POST request with JSON and parses the JSON of the response.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// Sends a DELETE request and parses the JSON of the response.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::DELETE, path, None::<&()>).await
    }

    /// Sends a GET request and reads the response line by line.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn lines(&self, path: &str) -> Result<Lines, ClientError> {
        let response = self.http().open(Method::GET, path, None).await?;
        Ok(Lines::new(self.http_shared(), response))
    }

    /// Sends a POST request with JSON and reads the response line by line.
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
        serde_json::from_slice(&answer).map_err(|error| self.invalid_response(format!("{path}: {error}")))
    }

    fn json(&self, body: &impl Serialize) -> Result<Vec<u8>, ClientError> {
        serde_json::to_vec(body)
            .map_err(|error| self.invalid_response(format!("the body cannot be written as JSON: {error}")))
    }

    /// Builds a percent-encoded path from segments and a query.
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
        &self.http
    }

    pub(crate) fn http_shared(&self) -> Arc<Http> {
        Arc::clone(&self.http)
    }

    pub(crate) fn publish_patience(&self) -> Duration {
        self.patience
    }

    pub(crate) fn publish_connection(&self) -> &PublishConnection {
        &self.publishing
    }

    pub(crate) fn invalid_response(&self, why: String) -> ClientError {
        self.http.invalid_response(why)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.address())
    }
}
