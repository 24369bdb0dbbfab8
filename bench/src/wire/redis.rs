//! Redis Streams in RESP, implemented for speed. Publishes are pipelined `XADD`s. A consumer reads with `XREADGROUP` and acks a whole
//! batch with one `XACK`, which is sent together with the next `XREADGROUP`.

use anyhow::{Context, bail};
use prombus_bench::stamp::Stamp;
use prombus_bench::wire::{Message, Received, Target, Wire};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A Redis server.
#[derive(Clone, Debug)]
pub struct RedisTarget {
    /// Its address.
    pub address: SocketAddr,
    /// The stream's key.
    pub stream: String,
    /// Maximum number of messages per read of a consumer.
    pub batch: usize,
}

/// One connection to Redis.
#[derive(Debug)]
pub struct RedisWire {
    /// `XADD` up to the payload's length.
    add: Vec<u8>,
    /// `XACK` from the name of the command up to the ids.
    ack: Vec<u8>,
    /// The `XREADGROUP` that requests the next batch.
    read: Vec<u8>,
    /// The message number of the next answer: answers arrive in the order of publishes.
    next_answer: Option<u64>,
    /// Messages of the current batch that have not been parsed.
    in_batch: usize,
    /// Ids to ack, each as a bulk string.
    ids: Vec<u8>,
    id_count: usize,
    /// The last `XREADGROUP` was answered, so the next one must be sent.
    owes_read: bool,
    /// The run is over: no more messages are requested.
    is_leaving: bool,
}

/// How long an `XREADGROUP` blocks. The server handles no other command of the connection in that time.
const BLOCK_MS: &str = "200";

impl RedisTarget {
    fn connect(&self, group: usize) -> anyhow::Result<(TcpStream, RedisWire)> {
        let stream = TcpStream::connect(self.address)
            .with_context(|| format!("cannot connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok((stream, self.new_wire(group)))
    }

    fn new_wire(&self, group: usize) -> RedisWire {
        let (key, group, batch) = (self.stream.as_str(), group_name(group), self.batch.to_string());
        let mut add = command(&["XADD", key, "*", "p"]);
        // The command has one more argument: the payload is appended for each message.
        add[1] += 1;
        let read = [
            "XREADGROUP",
            "GROUP",
            &group,
            "consumer",
            "COUNT",
            &batch,
            "BLOCK",
            BLOCK_MS,
            "STREAMS",
            key,
            ">",
        ];
        RedisWire {
            add,
            ack: command(&["XACK", key, &group]).split_off(b"*3\r\n".len()),
            read: command(&read),
            next_answer: None,
            in_batch: 0,
            ids: Vec::new(),
            id_count: 0,
            owes_read: false,
            is_leaving: false,
        }
    }
}

impl Target for RedisTarget {
    type Wire = RedisWire;

    fn publisher(&self, _publisher: usize) -> anyhow::Result<(TcpStream, RedisWire)> {
        self.connect(0)
    }

    fn consumer(&self, group: usize) -> anyhow::Result<(TcpStream, RedisWire)> {
        let (mut stream, wire) = self.connect(group)?;
        stream.write_all(&command(&[
            "XGROUP",
            "CREATE",
            &self.stream,
            &group_name(group),
            "0",
            "MKSTREAM",
        ]))?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).context("the server closed the connection")?;
        if &answer != b"+OK\r\n" {
            bail!("the server refused to create a group: {}", String::from_utf8_lossy(&answer));
        }
        stream.write_all(&wire.read)?;
        Ok((stream, wire))
    }
}

impl RedisWire {
    /// Parses one answer, or one message of a batch. `None` if it is incomplete.
    fn take_one(&mut self, input: &[u8], received: &mut Received) -> anyhow::Result<Option<usize>> {
        let mut cursor = Cursor { input, at: 0 };
        let whole = if self.in_batch > 0 {
            self.take_message(&mut cursor, received)?
        } else {
            self.take_answer(&mut cursor, received)?
        };
        Ok(whole.map(|()| cursor.at))
    }

    fn take_answer(
        &mut self,
        cursor: &mut Cursor<'_>,
        received: &mut Received,
    ) -> anyhow::Result<Option<()>> {
        match cursor.input.first() {
            None => return Ok(None),
            Some(b'$') => {
                let Some(_id) = cursor.bulk()? else { return Ok(None) };
                let number = self.next_answer.as_mut().context("received an answer before any publish")?;
                received.answers.push(*number);
                *number += 1;
            }
            Some(b':') => {
                let Some(_acked) = cursor.line() else { return Ok(None) };
            }
            Some(b'*') => {
                let Some(length) = cursor.line() else { return Ok(None) };
                if length != b"*-1" {
                    // The answer contains one stream: its name and its messages.
                    let Some(_pair) = cursor.line() else { return Ok(None) };
                    let Some(_name) = cursor.bulk()? else { return Ok(None) };
                    let Some(count) = cursor.line() else { return Ok(None) };
                    self.in_batch = number(count.get(1..).unwrap_or_default())?;
                }
                self.owes_read = self.in_batch == 0;
            }
            Some(b'+') => {
                let Some(line) = cursor.line() else { return Ok(None) };
                received.is_past_barrier |= line == b"+PONG";
            }
            Some(_) => {
                let Some(line) = cursor.line() else { return Ok(None) };
                bail!("unexpected answer from the server: {}", String::from_utf8_lossy(line));
            }
        }
        Ok(Some(()))
    }

    fn take_message(
        &mut self,
        cursor: &mut Cursor<'_>,
        received: &mut Received,
    ) -> anyhow::Result<Option<()>> {
        let Some(_pair) = cursor.line() else { return Ok(None) };
        let begin = cursor.at;
        let Some(_id) = cursor.bulk()? else { return Ok(None) };
        let id = &cursor.input[begin..cursor.at];
        let Some(_fields) = cursor.line() else { return Ok(None) };
        let Some(_name) = cursor.bulk()? else { return Ok(None) };
        let Some(payload) = cursor.bulk()? else { return Ok(None) };
        received.deliveries.push(Stamp::read(payload).context("received a payload without a stamp")?);
        self.ids.extend_from_slice(id);
        self.id_count += 1;
        self.in_batch -= 1;
        self.owes_read = self.in_batch == 0;
        Ok(Some(()))
    }
}

impl Wire for RedisWire {
    fn put_publish(&mut self, message: &Message<'_>, out: &mut Vec<u8>) {
        self.next_answer.get_or_insert(message.number);
        out.extend_from_slice(&self.add);
        put_length(out, b'$', message.payload.len());
        out.extend_from_slice(message.payload);
        out.extend_from_slice(b"\r\n");
    }

    fn take(&mut self, input: &[u8], received: &mut Received) -> anyhow::Result<usize> {
        let mut taken = 0;
        while let Some(count) = self.take_one(&input[taken..], received)? {
            taken += count;
        }
        Ok(taken)
    }

    fn put_acks(&mut self, out: &mut Vec<u8>) {
        // A batch is acked as a whole, together with the request for the next one.
        if !std::mem::take(&mut self.owes_read) {
            return;
        }
        if self.id_count > 0 {
            put_length(out, b'*', 3 + self.id_count);
            out.extend_from_slice(&self.ack);
            out.append(&mut self.ids);
            self.id_count = 0;
        }
        if !self.is_leaving {
            out.extend_from_slice(&self.read);
        }
    }

    fn put_barrier(&mut self, out: &mut Vec<u8>) {
        self.is_leaving = true;
        out.extend_from_slice(b"PING\r\n");
    }
}

/// A position in the input.
struct Cursor<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A line without its line end. `None` if it is incomplete.
    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = &self.input[self.at..];
        let end = memchr::memchr(b'\r', rest).filter(|end| end + 1 < rest.len())?;
        self.at += end + 2;
        Some(&rest[..end])
    }

    /// A bulk string. `None` if it is incomplete.
    fn bulk(&mut self) -> anyhow::Result<Option<&'a [u8]>> {
        let Some(length) = self.line() else { return Ok(None) };
        let Some(digits) = length.strip_prefix(b"$") else {
            bail!("unexpected answer from the server: {}", String::from_utf8_lossy(length));
        };
        let end = self.at + number(digits)?;
        if self.input.len() < end + 2 {
            return Ok(None);
        }
        let bulk = &self.input[self.at..end];
        self.at = end + 2;
        Ok(Some(bulk))
    }
}

fn number(digits: &[u8]) -> anyhow::Result<usize> {
    if digits.is_empty() || digits.len() > 9 || !digits.iter().all(u8::is_ascii_digit) {
        bail!("not a number: {}", String::from_utf8_lossy(digits));
    }
    Ok(digits.iter().fold(0, |all, byte| all * 10 + usize::from(byte - b'0')))
}

fn group_name(group: usize) -> String {
    format!("g{group}")
}

/// Encodes a command.
fn command(words: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    put_length(&mut out, b'*', words.len());
    for word in words {
        put_length(&mut out, b'$', word.len());
        out.extend_from_slice(word.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn put_length(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    prombus_bench::wire::put_number(out, length as u64);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::recorded::{cut_everywhere, payload};

    fn target() -> RedisTarget {
        RedisTarget { address: ([127, 0, 0, 1], 1).into(), stream: "s".into(), batch: 1_000 }
    }

    fn wire() -> RedisWire {
        target().new_wire(3)
    }

    /// A batch of two messages as Redis 7.0 sends it, preceded by the answer to an `XACK`.
    fn batch() -> Vec<u8> {
        let mut bytes = b":2\r\n*1\r\n*2\r\n$1\r\ns\r\n*2\r\n".to_vec();
        for number in [7, 8] {
            bytes.extend_from_slice(b"*2\r\n$15\r\n1794807555123-0\r\n*2\r\n$1\r\np\r\n$64\r\n");
            bytes.extend_from_slice(&payload(64, number));
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    #[test]
    fn a_publish_is_one_xadd() {
        let (mut wire, mut out) = (wire(), Vec::new());
        wire.put_publish(&Message { number: 0, topic: 0, payload: b"\"abc\"" }, &mut out);
        assert_eq!(out, b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\np\r\n$5\r\n\"abc\"\r\n");
    }

    #[test]
    fn answers_are_numbered_from_the_first_publish() {
        let bytes = b"$15\r\n1794807555123-0\r\n$15\r\n1794807555123-1\r\n";
        cut_everywhere(bytes, |take| {
            let mut wire = wire();
            wire.put_publish(&Message { number: 41, topic: 0, payload: b"\"\"" }, &mut Vec::new());
            assert_eq!(take(&mut wire).answers, [41, 42]);
        });
    }

    #[test]
    fn a_batch_is_acked_at_once_and_the_next_is_requested() {
        cut_everywhere(&batch(), |take| {
            let (mut wire, mut out) = (wire(), Vec::new());
            let numbers: Vec<u64> = take(&mut wire).deliveries.iter().map(|stamp| stamp.number).collect();
            assert_eq!(numbers, [7, 8]);
            wire.put_acks(&mut out);
            let text = String::from_utf8(out).unwrap();
            let id = "$15\r\n1794807555123-0\r\n";
            assert!(
                text.starts_with(&format!("*5\r\n$4\r\nXACK\r\n$1\r\ns\r\n$2\r\ng3\r\n{id}{id}*11\r\n")),
                "{text}"
            );
            assert!(text.ends_with(
                "$4\r\n1000\r\n$5\r\nBLOCK\r\n$3\r\n200\r\n$7\r\nSTREAMS\r\n$1\r\ns\r\n$1\r\n>\r\n"
            ));
        });
    }

    #[test]
    fn an_incomplete_batch_is_not_acked() {
        let (mut wire, mut received, mut out) = (wire(), Received::default(), Vec::new());
        let bytes = batch();
        wire.take(&bytes[..bytes.len() - 2], &mut received).unwrap();
        assert_eq!(received.deliveries.len(), 1);
        wire.put_acks(&mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn an_empty_read_is_repeated_until_the_barrier() {
        let (mut wire, mut received, mut out) = (wire(), Received::default(), Vec::new());
        wire.take(b"*-1\r\n", &mut received).unwrap();
        wire.put_acks(&mut out);
        assert!(out.starts_with(b"*11\r\n$10\r\nXREADGROUP\r\n"));
        out.clear();
        wire.put_barrier(&mut out);
        wire.take(b"*-1\r\n+PONG\r\n", &mut received).unwrap();
        wire.put_acks(&mut out);
        assert_eq!(out, b"PING\r\n");
        assert!(received.is_past_barrier);
    }

    #[test]
    fn an_error_ends_the_run() {
        let error = wire().take(b"-OOM command not allowed\r\n", &mut Received::default()).unwrap_err();
        assert_eq!(error.to_string(), "unexpected answer from the server: -OOM command not allowed");
    }
}
