//! The WebSocket that a client publishes over. It is opened on demand, and reopened after it ended.

use crate::connection::Connection;
use crate::error::{ClientError, PublishError};
use crate::http::Http;
use crate::patience::Patience;
use crate::record::{Published, Record};
use prombus_protocol::ErrorCode;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Holds at most one open connection.
pub(crate) struct PublishConnection {
    http: Arc<Http>,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl PublishConnection {
    pub(crate) fn new(http: Arc<Http>) -> Self {
        Self { http, connection: Mutex::default() }
    }

    /// The connection; it is reopened if it has ended.
    pub(crate) async fn open(&self) -> Result<Arc<Connection>, ClientError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = connection.as_ref().filter(|it| !it.is_over()) {
            return Ok(Arc::clone(connection));
        }
        let opened = Connection::open(&self.http, None).await?;
        Ok(Arc::clone(connection.insert(Arc::new(opened))))
    }

    /// Sends the records once and waits for the responses, as long as the patience lasts.
    pub(crate) async fn publish_once(
        &self,
        records: &[Record],
        patience: &mut Patience,
    ) -> Vec<Result<Published, PublishError>> {
        // Another publish may be opening the connection; the patience bounds this wait too.
        let opened = patience.bound(self.open()).await;
        let error = match opened.unwrap_or_else(|why| Err(self.lost(why))) {
            Ok(connection) => return connection.publish(records, patience).await,
            Err(ClientError::Refused { code, message, retry_after_ms, .. }) => {
                PublishError::Refused { code, message, retry_after_ms }
            }
            // Resending cannot help: the server refused this client, or this client refused the server's certificate.
            Err(error @ (ClientError::Unauthorized { .. } | ClientError::Certificate { .. })) => {
                let (code, message) = (ErrorCode::Unauthorized, error.to_string());
                PublishError::Refused { code, message, retry_after_ms: None }
            }
            Err(error) => PublishError::Lost(error.to_string()),
        };
        records.iter().map(|_| Err(error.clone())).collect()
    }

    fn lost(&self, why: String) -> ClientError {
        ClientError::Lost { address: self.http.address.to_string(), why }
    }
}
