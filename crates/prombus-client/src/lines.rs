//! Reads a response body line by line. Only received lines that were not taken yet are in memory.

use crate::error::ClientError;
use crate::http::Http;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Response};
use std::sync::Arc;

/// The lines of a response.
pub struct Lines {
    body: Pieces,
    headers: HeaderMap,
    buffer: BytesMut,
    /// How many bytes at the start of the buffer are known to contain no line end.
    scanned_bytes: usize,
}

/// A response body, piece by piece. An incomplete body is an error.
pub(crate) struct Pieces {
    http: Arc<Http>,
    body: Incoming,
}

impl Pieces {
    pub(crate) fn new(http: Arc<Http>, body: Incoming) -> Self {
        Self { http, body }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.http.lost(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    pub(crate) fn invalid_response(&self, why: impl Into<String>) -> ClientError {
        self.http.invalid_response(why)
    }

    /// The error for a body that ended too early.
    pub(crate) fn lost(&self, why: &str) -> ClientError {
        ClientError::Lost { address: self.http.address.to_string(), why: why.to_owned() }
    }
}

impl Lines {
    pub(crate) fn new(http: Arc<Http>, response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = Pieces::new(http, body);
        Self { body, headers: parts.headers, buffer: BytesMut::new(), scanned_bytes: 0 }
    }

    /// A header of the response.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The next line, without its line end; `None` at the end of the response. Empty lines are skipped.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if the response breaks off; the lines so far are then incomplete.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            if let Some(at) = self.buffer[self.scanned_bytes..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.scanned_bytes + at).freeze();
                self.buffer.advance(1);
                self.scanned_bytes = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.scanned_bytes = self.buffer.len();
            match self.body.next().await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None => {
                    self.scanned_bytes = 0;
                    let rest = std::mem::take(&mut self.buffer).freeze();
                    return Ok((!rest.iter().all(u8::is_ascii_whitespace)).then_some(rest));
                }
            }
        }
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lines")
    }
}
