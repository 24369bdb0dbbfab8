//! A minimal blocking HTTP client. Bodies are read as they arrive.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Sends one request with a body; returns the response's head and body.
pub fn post(address: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A response whose body has not been read yet.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Body,
}

/// Sends a GET request. `headers` are complete lines, with line ends.
pub fn get(address: &str, path: &str, headers: &str) -> Answer {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(&stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n").unwrap();
    Answer::read(BufReader::with_capacity(64 * 1024, stream))
}

/// The JSON body of a response, whose status must be 200.
pub fn get_json(address: &str, path: &str) -> serde_json::Value {
    let mut answer = get(address, path, "");
    let mut text = String::new();
    answer.body.read_to_string(&mut text).unwrap();
    assert_eq!(answer.status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Sends POST requests over one connection.
pub struct Poster {
    stream: Option<BufReader<TcpStream>>,
    address: String,
}

impl Poster {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: Some(BufReader::new(stream)), address: address.to_owned() }
    }

    /// Publishes NDJSON lines; returns the status and the body.
    pub fn publish_lines(&mut self, topic: &str, lines: &[u8]) -> (u16, String) {
        let reader = self.stream.take().expect("put back after each response");
        let mut stream = reader.get_ref();
        write!(
            stream,
            "POST /publish/{topic} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/x-ndjson\r\n\
             content-length: {}\r\n\r\n",
            self.address,
            lines.len()
        )
        .unwrap();
        stream.write_all(lines).unwrap();
        let mut answer = Answer::read(reader);
        let mut text = String::new();
        answer.body.read_to_string(&mut text).unwrap();
        self.stream = Some(answer.body.stream);
        (answer.status, text)
    }
}

impl Answer {
    fn read(mut stream: BufReader<TcpStream>) -> Self {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let before = head.len();
            stream.read_line(&mut head).unwrap();
            assert!(head.len() > before, "the head is incomplete: {head:?}");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
        let left = match length {
            Some(length) => Left::Bytes(length.trim().parse().unwrap()),
            None => {
                assert!(lower.contains("transfer-encoding: chunked"), "{head}");
                Left::Chunks { in_chunk: 0, is_first: true }
            }
        };
        Self { status, head, body: Body { stream, left } }
    }
}

/// A body. An end before its announced length or last chunk is an error.
pub struct Body {
    stream: BufReader<TcpStream>,
    left: Left,
}

enum Left {
    Bytes(usize),
    Chunks { in_chunk: usize, is_first: bool },
    Nothing,
}

impl Body {
    /// Reads the line between chunks; returns the size of the next chunk.
    fn next_chunk(&mut self, is_first: bool) -> std::io::Result<usize> {
        let mut line = String::new();
        if !is_first {
            self.stream.read_line(&mut line)?;
            line.clear();
        }
        self.stream.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim_end(), 16);
        let size = size.map_err(|_| std::io::Error::other(format!("the body broke off at {line:?}")))?;
        if size == 0 {
            self.stream.read_line(&mut line)?;
        }
        Ok(size)
    }
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if let Left::Chunks { in_chunk: 0, is_first } = self.left {
            self.left = match self.next_chunk(is_first)? {
                0 => Left::Nothing,
                in_chunk => Left::Chunks { in_chunk, is_first: false },
            };
        }
        let (Left::Bytes(left) | Left::Chunks { in_chunk: left, .. }) = &mut self.left else { return Ok(0) };
        let most = into.len().min(*left);
        // Reading zero bytes from the socket could block.
        if most == 0 {
            return Ok(0);
        }
        let count = self.stream.read(&mut into[..most])?;
        *left -= count;
        if count == 0 {
            return Err(std::io::Error::other("the body broke off"));
        }
        Ok(count)
    }
}
