//! Plain HTTP requests, one per connection. They block: async tasks call them through `spawn_blocking`.

use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A status and a whole body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    let (status, mut body) = send(address, "GET", path, "", "")?;
    let mut text = String::new();
    body.read_to_string(&mut text)?;
    Ok(Answer { status, body: text })
}

/// `headers` are complete lines, each with its line end.
pub(crate) fn post(address: SocketAddr, path: &str, headers: &str, content: &str) -> Result<Answer> {
    let (status, mut body) = send(address, "POST", path, headers, content)?;
    let mut text = String::new();
    body.read_to_string(&mut text)?;
    Ok(Answer { status, body: text })
}

/// Calls `each` with every line of a body, without keeping the body in memory.
pub(crate) fn get_lines(address: SocketAddr, path: &str, mut each: impl FnMut(&str)) -> Result<()> {
    let (status, body) = send(address, "GET", path, "", "")?;
    if status != 200 {
        return Err(Error::other(format!("GET {path}: status {status}")));
    }
    for line in BufReader::new(body).lines() {
        each(&line?);
    }
    Ok(())
}

fn send(address: SocketAddr, method: &str, path: &str, headers: &str, content: &str) -> Result<(u16, Body)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = content.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(content.as_bytes())?;
    let mut reader = BufReader::with_capacity(64 * 1024, stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(Error::other("connection closed before the end of the response head"));
        }
    }
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    let status = status.ok_or_else(|| Error::other(format!("not an HTTP response: {head:?}")))?;
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
    let left = match length.and_then(|it| it.trim().parse().ok()) {
        Some(bytes) => Left::Bytes(bytes),
        None => Left::Chunk { bytes: 0, is_first: true },
    };
    Ok((status, Body { reader, left }))
}

/// A body. An end of the connection before the end of the body is an error.
struct Body {
    reader: BufReader<TcpStream>,
    left: Left,
}

enum Left {
    Bytes(usize),
    Chunk { bytes: usize, is_first: bool },
    Nothing,
}

impl Body {
    /// Reads the head of the next chunk and returns its size.
    fn next_chunk(&mut self, is_first: bool) -> Result<usize> {
        let mut line = String::new();
        if !is_first {
            self.reader.read_line(&mut line)?;
            line.clear();
        }
        self.reader.read_line(&mut line)?;
        let bytes = usize::from_str_radix(line.trim_end(), 16);
        let bytes = bytes.map_err(|_| Error::other(format!("the response body is incomplete: {line:?}")))?;
        if bytes == 0 {
            self.reader.read_line(&mut line)?;
        }
        Ok(bytes)
    }
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if let Left::Chunk { bytes: 0, is_first } = self.left {
            self.left = match self.next_chunk(is_first)? {
                0 => Left::Nothing,
                bytes => Left::Chunk { bytes, is_first: false },
            };
        }
        let (Left::Bytes(left) | Left::Chunk { bytes: left, .. }) = &mut self.left else { return Ok(0) };
        let limit = into.len().min(*left);
        if limit == 0 {
            return Ok(0);
        }
        let count = self.reader.read(&mut into[..limit])?;
        if count == 0 {
            return Err(Error::other("the response body is incomplete"));
        }
        *left -= count;
        Ok(count)
    }
}
