//! The WebSocket protocol of prombus, implemented for speed.

use super::{Message, Received, Target, Wire, put_number};
use crate::plan::MAX_IN_FLIGHT;
use crate::stamp::Stamp;
use anyhow::{Context, anyhow, bail};
use memchr::memmem::Finder;
use serde::Deserialize;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// A prombus server.
#[derive(Clone, Debug)]
pub struct PrombusTarget {
    /// The address of the server.
    pub address: SocketAddr,
    /// The `Host` header of the upgrade request.
    pub host: String,
    /// The token, if the server requires one.
    pub token: Option<String>,
    /// The topic, or the prefix of the topics if there are several.
    pub topic: String,
    /// The number of topics.
    pub topics: usize,
    /// The prefix of group names.
    pub group: String,
    /// Where groups start.
    pub from: From,
    /// Maximum number of unacked deliveries per consumer.
    pub max_in_flight: usize,
    /// Whether publishes contain ids that the client generates, as SDKs do.
    pub has_client_ids: bool,
}

/// Where a new group starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// At the first stored event.
    #[default]
    Earliest,
    /// At the first event that is published after the group was created.
    Latest,
}

/// One connection to prombus.
#[derive(Debug)]
pub struct WebSocketWire {
    /// The start of a PUBLISH, for each topic.
    publish_heads: Vec<String>,
    /// Whether publishes contain an id.
    has_client_ids: bool,
    /// The start of an ACK, up to the id.
    ack_head: String,
    /// Encoded acks and pongs that are not in the output yet.
    acks: Vec<u8>,
    /// The mask of the last frame, from which the next mask is computed.
    mask: u32,
    /// A counter that makes generated ids unique.
    ids: u64,
    find_id: Finder<'static>,
    find_payload: Finder<'static>,
    find_corr: Finder<'static>,
}

/// Every frame of the server begins with this, followed by its type.
const OP: &[u8] = br#"{"op":""#;
/// The `corr` of the barrier. No message has this number.
const BARRIER: u64 = u64::MAX >> 12;
/// The first byte of an unfragmented text frame.
const TEXT: u8 = 0x81;

impl PrombusTarget {
    fn topic(&self, topic: usize) -> String {
        if self.topics == 1 { self.topic.clone() } else { format!("{}.{topic}", self.topic) }
    }

    fn connect(&self, group: usize) -> anyhow::Result<(TcpStream, WebSocketWire)> {
        let mut stream = TcpStream::connect(self.address)
            .with_context(|| format!("cannot connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let host = &self.host;
        write!(
            stream,
            "GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: cHJvbWJ1cyBiZW5jaCBrZQ==\r\n\r\n"
        )?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).context("the server closed the connection")?;
            head.push(byte[0]);
        }
        if !head.starts_with(b"HTTP/1.1 101") {
            bail!("no WebSocket at {}: {}", self.address, String::from_utf8_lossy(&head).trim_end());
        }
        let topics = if self.topics == 1 { self.topic.clone() } else { format!("{}.*", self.topic) };
        let ack_head = format!(r#"{{"op":"ACK","topic":"{topics}","group":"{}{group}","id":""#, self.group);
        let publish_head = |topic| format!(r#"{{"op":"PUBLISH","topic":"{}","corr":"#, self.topic(topic));
        let mut wire = WebSocketWire {
            publish_heads: (0..self.topics).map(publish_head).collect(),
            has_client_ids: self.has_client_ids,
            ack_head,
            acks: Vec::new(),
            mask: 0x9e37_79b9,
            ids: u64::from(std::process::id()) << 40 ^ u64::from(stream.local_addr()?.port()) << 24,
            find_id: Finder::new(br#""id":""#),
            find_payload: Finder::new(br#""payload":"#),
            find_corr: Finder::new(br#""corr":"#),
        };
        if let Some(token) = &self.token {
            let token = serde_json::to_string(token)?;
            wire.ask(&mut stream, &format!(r#"{{"op":"AUTH","token":{token},"corr":0}}"#))?;
        }
        Ok((stream, wire))
    }
}

impl Target for PrombusTarget {
    type Wire = WebSocketWire;

    fn publisher(&self, _publisher: usize) -> anyhow::Result<(TcpStream, WebSocketWire)> {
        self.connect(0)
    }

    fn consumer(&self, group: usize) -> anyhow::Result<(TcpStream, WebSocketWire)> {
        let (mut stream, mut wire) = self.connect(group)?;
        let topics = if self.topics == 1 { self.topic.clone() } else { format!("{}.*", self.topic) };
        let (name, max_in_flight) = (&self.group, self.max_in_flight.min(MAX_IN_FLIGHT));
        let batch_size = max_in_flight.min(1_000);
        let from = match self.from {
            From::Earliest => "earliest",
            From::Latest => "latest",
        };
        let subscribe = format!(
            r#"{{"op":"SUBSCRIBE","topic":"{topics}","group":"{name}{group}","corr":0,"opts":{{"from":"{from}","maxInFlight":{max_in_flight},"batchSize":{batch_size}}}}}"#
        );
        wire.ask(&mut stream, &subscribe)?;
        Ok((stream, wire))
    }
}

impl WebSocketWire {
    /// Sends a frame and waits for its OK.
    fn ask(&mut self, stream: &mut TcpStream, text: &str) -> anyhow::Result<()> {
        let mut out = Vec::new();
        put_text(&mut out, self.next_mask(), &[text.as_bytes()]);
        stream.write_all(&out)?;
        // Reads only this frame: the client loop reads the frames that follow.
        let mut head = [0; 2];
        stream.read_exact(&mut head).context("the server closed the connection")?;
        let mut length = usize::from(head[1]);
        if length == 126 {
            let mut long = [0; 2];
            stream.read_exact(&mut long)?;
            length = usize::from(u16::from_be_bytes(long));
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer)?;
        // The error does not contain the request, which may contain a token.
        if answer.starts_with(br#"{"op":"OK""#) { Ok(()) } else { Err(refused(&answer)) }
    }

    fn next_mask(&mut self) -> u32 {
        // Any generator will do: the only purpose of masks is that no proxy mistakes a payload for HTTP.
        self.mask = self.mask.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.mask
    }

    /// A UUIDv7 that is unique among the clients of a run. It is cheaper than a random one, so that the client does not limit the
    /// measured rate.
    fn next_id(&mut self) -> Uuid {
        self.ids += 1;
        let mut random = [0; 10];
        random[2..].copy_from_slice(&self.ids.to_be_bytes());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        uuid::Builder::from_unix_timestamp_millis(since.as_millis() as u64, &random).into_uuid()
    }

    fn take_text(&mut self, text: &[u8], received: &mut Received) -> anyhow::Result<()> {
        let rest = text.strip_prefix(OP).unwrap_or_default();
        if rest.starts_with(b"OK") {
            let corr = self.find_corr.find(text).context("an OK without corr")?;
            match digits(&text[corr + 7..]) {
                BARRIER => received.is_past_barrier = true,
                number => received.answers.push(number),
            }
        } else if rest.starts_with(b"EVENT") {
            let id = self.find_id.find(text).context("an event without id")? + 6;
            let id = text.get(id..id + 36).context("an id is 36 bytes long")?;
            let payload = self.find_payload.find(text).context("an event without payload")? + 10;
            received
                .deliveries
                .push(Stamp::read(&text[payload..]).context("received a payload without a stamp")?);
            let mask = self.next_mask();
            put_text(&mut self.acks, mask, &[self.ack_head.as_bytes(), id, br#""}"#]);
        } else {
            return Err(refused(text));
        }
        Ok(())
    }
}

impl Wire for WebSocketWire {
    fn put_publish(&mut self, message: &Message<'_>, out: &mut Vec<u8>) {
        let head = self.publish_heads[message.topic].as_bytes();
        let guess = head.len() + message.payload.len() + if self.has_client_ids { 80 } else { 20 };
        let at = begin(out, guess);
        out.extend_from_slice(head);
        put_number(out, message.number);
        if self.has_client_ids {
            out.extend_from_slice(br#","opts":{"id":""#);
            let mut text = [0; 36];
            out.extend_from_slice(self.next_id().hyphenated().encode_lower(&mut text).as_bytes());
            out.extend_from_slice(br#""}"#);
        }
        out.extend_from_slice(br#","payload":"#);
        out.extend_from_slice(message.payload);
        out.push(b'}');
        end(out, at, guess, self.next_mask());
    }

    fn take(&mut self, input: &[u8], received: &mut Received) -> anyhow::Result<usize> {
        let mut taken = 0;
        while let [first, second, rest @ ..] = &input[taken..] {
            let (skipped, length) = match (*second, rest) {
                (126, [high, low, ..]) => (2, usize::from(u16::from_be_bytes([*high, *low]))),
                (127, rest) if rest.len() >= 8 => {
                    (8, rest[..8].iter().fold(0, |all, &byte| all << 8 | usize::from(byte)))
                }
                (126 | 127, _) => break,
                (short, _) => (0, usize::from(short)),
            };
            let Some(payload) = rest.get(skipped..skipped + length) else { break };
            match *first {
                TEXT => self.take_text(payload, received)?,
                0x89 => {
                    let (at, mask) = (self.acks.len(), self.next_mask());
                    put_text(&mut self.acks, mask, &[payload]);
                    self.acks[at] = 0x8a;
                }
                0x8a => {}
                0x88 => bail!(
                    "the server closed the connection: {}",
                    String::from_utf8_lossy(payload.get(2..).unwrap_or_default())
                ),
                other => bail!("unexpected WebSocket frame type: {other:#x}"),
            }
            taken += 2 + skipped + length;
        }
        Ok(taken)
    }

    fn put_acks(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.acks);
    }

    fn put_barrier(&mut self, out: &mut Vec<u8>) {
        // An ack of an unknown id with a `corr`: the server answers it after the earlier acks, when they are durable.
        let rest = format!(r#"00000000-0000-7000-8000-000000000000","corr":{BARRIER}}}"#);
        put_text(out, self.next_mask(), &[self.ack_head.as_bytes(), rest.as_bytes()]);
    }
}

/// The error in a frame that is neither an OK nor an event.
fn refused(frame: &[u8]) -> anyhow::Error {
    #[derive(Deserialize)]
    struct Refusal {
        code: String,
        msg: String,
    }
    match serde_json::from_slice(frame) {
        Ok(Refusal { code, msg }) => anyhow!("{msg} ({code})"),
        Err(_) => anyhow!("unexpected frame from the server: {}", String::from_utf8_lossy(frame)),
    }
}

/// The size of a client frame's header: type, length and mask.
fn head_bytes(length: usize) -> usize {
    match length {
        0..=125 => 6,
        126..=0xffff => 8,
        _ => 14,
    }
}

/// Reserves room for the header of a frame whose payload will have about this length. Returns where the payload begins.
fn begin(out: &mut Vec<u8>, length: usize) -> usize {
    out.extend_from_slice(&[0; 14][..head_bytes(length)]);
    out.len()
}

/// Fills in the header and masks the payload. `guess` is the length that was passed to [`begin`], `at` is its result.
fn end(out: &mut Vec<u8>, at: usize, guess: usize, mask: u32) {
    let length = out.len() - at;
    let (room, needed) = (head_bytes(guess), head_bytes(length));
    if room != needed {
        // Moves the payload, which is rare because callers guess well.
        out.splice(at - room..at, std::iter::repeat_n(0, needed));
    }
    let payload = at - room + needed;
    let head = &mut out[payload - needed..payload];
    head[0] = TEXT;
    match needed {
        6 => head[1] = 0x80 | length as u8,
        8 => {
            head[1] = 0x80 | 126;
            head[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            head[1] = 0x80 | 127;
            head[2..10].copy_from_slice(&(length as u64).to_be_bytes());
        }
    }
    let mask = mask.to_ne_bytes();
    head[needed - 4..].copy_from_slice(&mask);
    mask_bytes(&mut out[payload..], mask);
}

/// Appends a masked text frame.
fn put_text(out: &mut Vec<u8>, mask: u32, parts: &[&[u8]]) {
    let length = parts.iter().map(|part| part.len()).sum();
    let at = begin(out, length);
    for part in parts {
        out.extend_from_slice(part);
    }
    end(out, at, length, mask);
}

fn mask_bytes(bytes: &mut [u8], mask: [u8; 4]) {
    let wide = u32::from_ne_bytes(mask);
    let mut words = bytes.chunks_exact_mut(4);
    for word in &mut words {
        let masked = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]) ^ wide;
        word.copy_from_slice(&masked.to_ne_bytes());
    }
    for (byte, mask) in words.into_remainder().iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

fn digits(text: &[u8]) -> u64 {
    text.iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |all, byte| all * 10 + u64::from(byte - b'0'))
}
