//! The head of a connection's first request, which decides whether a follower answers it or relays the connection.

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Size of one read.
const PIECE_BYTES: usize = 4 * 1024;
/// Maximum number of headers: the same as in hyper, which parses the request at the leader.
const HEADERS_MAX: usize = 100;

/// The first request of a connection.
pub(crate) struct FirstRequest {
    /// All bytes that were read from the connection.
    pub(crate) read: Vec<u8>,
    /// How many of these bytes are the head.
    pub(crate) head_bytes: usize,
    pub(crate) parts: Parts,
}

/// The start of a connection.
pub(crate) enum ReadHead {
    /// A request.
    Request(Box<FirstRequest>),
    /// Not HTTP, or a head over the limit. Contains the bytes that were read.
    Bad(Vec<u8>),
    /// The client disconnected before the head was complete.
    Gone,
}

impl FirstRequest {
    /// Reads until the head is complete. `read`: bytes that were already read. `bytes_max`: the maximum size of the head.
    pub(crate) async fn read<S: AsyncRead + Unpin>(
        socket: &mut S,
        mut read: Vec<u8>,
        bytes_max: usize,
    ) -> io::Result<ReadHead> {
        let mut blank_bytes = 0;
        let mut searched = 0;
        loop {
            // A client may send empty lines before its request. They are dropped, because they look like the end of a head.
            let blank = read.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            read.drain(..blank);
            blank_bytes += blank;
            if let Some(head_bytes) = end_of_head(&read, searched) {
                return Ok(match parse(&read[..head_bytes]) {
                    Some(parts) => ReadHead::Request(Box::new(Self { read, head_bytes, parts })),
                    None => ReadHead::Bad(read),
                });
            }
            searched = read.len();
            if read.len() + blank_bytes >= bytes_max {
                return Ok(ReadHead::Bad(read));
            }
            read.reserve(PIECE_BYTES);
            let room = bytes_max - blank_bytes - read.len();
            if (&mut *socket).take(room as u64).read_buf(&mut read).await? == 0 {
                return Ok(ReadHead::Gone);
            }
        }
    }
}

/// The size of the head, if it is complete. The caller knows that the first `searched` bytes do not contain the whole head.
fn end_of_head(read: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(3);
    let ends = read[from..].iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    ends.map(|(at, _)| from + at + 1).find(|&end| {
        let lines = &read[..end];
        lines.ends_with(b"\n\n") || lines.ends_with(b"\n\r\n")
    })
}

/// Parses a head with the same parser as the leader, so that both see the same request.
fn parse(head: &[u8]) -> Option<Parts> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    if !parsed.parse(head).is_ok_and(|status| status.is_complete()) {
        return None;
    }
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(parsed.method?.as_bytes()).ok()?;
    *request.uri_mut() = Uri::try_from(parsed.path?).ok()?;
    *request.version_mut() = if parsed.version? == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        request.headers_mut().append(name, HeaderValue::from_bytes(header.value).ok()?);
    }
    Some(request.into_parts().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8], piece_bytes: usize, bytes_max: usize) -> ReadHead {
        let (mut client, mut server) = tokio::io::duplex(piece_bytes);
        let bytes = bytes.to_vec();
        tokio::spawn(async move {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut client, &bytes).await;
        });
        FirstRequest::read(&mut server, Vec::new(), bytes_max).await.expect("no error")
    }

    #[tokio::test]
    async fn a_head_is_read_however_it_is_split() {
        for text in [
            "GET /healthz?x=1 HTTP/1.1\r\nHost: a\r\nX: 1\r\nx: 2\r\n\r\nrest",
            "\r\n\r\nGET /healthz?x=1 HTTP/1.1\nHost: a\nX: 1\nx: 2\n\nrest",
        ] {
            for piece_bytes in [1, 2, 3, 1000] {
                let ReadHead::Request(request) = read(text.as_bytes(), piece_bytes, 1000).await else {
                    panic!("a request")
                };
                assert_eq!(request.parts.uri.path(), "/healthz");
                assert_eq!(request.parts.headers.get_all("x").iter().count(), 2);
                let rest = &request.read[request.head_bytes..];
                assert!(b"rest".starts_with(rest), "{:?}", String::from_utf8_lossy(rest));
            }
        }
    }

    #[tokio::test]
    async fn invalid_http_and_long_heads_are_refused() {
        let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(2000));
        let blank = "\r\n".repeat(1000);
        for text in ["hello\r\n\r\n", "GET / HTTP/1.1\r\nbad header\r\n\r\n", &long, &blank] {
            let ReadHead::Bad(bytes) = read(text.as_bytes(), 4096, 1000).await else { panic!("{text}") };
            assert!(bytes.len() <= 1000);
        }
        assert!(matches!(read(b"GET / HTTP/1.1\r\n", 4096, 1000).await, ReadHead::Gone));
    }
}
