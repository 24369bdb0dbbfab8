//! Frames of AMQP 0-9-1, and the methods in them.

use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::net::TcpStream;

/// A method: class id and method id.
pub(super) type Method = (u16, u16);

pub(super) const BASIC_QOS_OK: Method = (60, 11);
pub(super) const BASIC_DELIVER: Method = (60, 60);
pub(super) const BASIC_ACK: Method = (60, 80);

const HEAD_BYTES: usize = 7;
const END: u8 = 0xce;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Method,
    Header,
    Body,
    Heartbeat,
}

/// A complete frame.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind,
    pub(super) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The frame at the start of `input`, and its length. `None` if it is incomplete.
    pub(super) fn read(input: &'a [u8]) -> anyhow::Result<Option<(Self, usize)>> {
        let [kind, _, _, length @ ..] = input else { return Ok(None) };
        let Some(length) = length.first_chunk() else { return Ok(None) };
        let end = HEAD_BYTES + u32::from_be_bytes(*length) as usize;
        let kind = match kind {
            1 => Kind::Method,
            2 => Kind::Header,
            3 => Kind::Body,
            8 => Kind::Heartbeat,
            other => bail!("unexpected frame type: {other}"),
        };
        match input.get(end) {
            None => Ok(None),
            Some(&END) => Ok(Some((Self { kind, payload: &input[HEAD_BYTES..end] }, end + 1))),
            Some(other) => bail!("invalid end of a frame: {other:#x}"),
        }
    }

    /// The method and its arguments.
    pub(super) fn method(&self) -> Option<(Method, &'a [u8])> {
        let (class, rest) = self.payload.split_first_chunk()?;
        let (method, rest) = rest.split_first_chunk()?;
        Some(((u16::from_be_bytes(*class), u16::from_be_bytes(*method)), rest))
    }
}

/// Builds a method with its arguments.
#[derive(Debug)]
pub(super) struct Arguments(Vec<u8>);

impl Arguments {
    pub(super) fn method(class: u16, method: u16) -> Self {
        Self(Vec::with_capacity(32)).short(class).short(method)
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn octet(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    pub(super) fn short(self, value: u16) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn long(self, value: u32) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn long_long(self, value: u64) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    /// A string of up to 255 bytes.
    pub(super) fn string(self, text: &str) -> Self {
        self.octet(text.len() as u8).bytes(text.as_bytes())
    }

    pub(super) fn long_string(self, bytes: &[u8]) -> Self {
        self.long(bytes.len() as u32).bytes(bytes)
    }

    pub(super) fn empty_table(self) -> Self {
        self.long(0)
    }

    /// A table with one string in it.
    pub(super) fn table(self, key: &str, value: &str) -> Self {
        let entry = Self(Vec::new()).string(key).octet(b'S').long_string(value.as_bytes());
        self.long_string(&entry.0)
    }

    /// Appends it as a frame.
    pub(super) fn put(&self, channel: u16, out: &mut Vec<u8>) {
        put_head(1, channel, self.0.len(), out);
        out.extend_from_slice(&self.0);
        out.push(END);
    }
}

fn put_head(kind: u8, channel: u16, length: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

/// Appends header and body of a persistent message.
pub(super) fn put_persistent(payload: &[u8], out: &mut Vec<u8>) {
    put_head(2, 1, 15, out);
    out.extend_from_slice(&[0, 60, 0, 0]);
    out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    // One property: delivery-mode 2.
    out.extend_from_slice(&[0x10, 0, 2, END]);
    put_head(3, 1, payload.len(), out);
    out.extend_from_slice(payload);
    out.push(END);
}

/// Sends a method on a channel.
pub(super) fn say(stream: &mut TcpStream, channel: u16, arguments: Arguments) -> anyhow::Result<()> {
    let mut out = Vec::new();
    arguments.put(channel, &mut out);
    Ok(stream.write_all(&out)?)
}

/// Sends a method on channel 1, and waits for this answer.
pub(super) fn ask(stream: &mut TcpStream, arguments: Arguments, answer: Method) -> anyhow::Result<()> {
    say(stream, 1, arguments)?;
    expect(stream, answer)?;
    Ok(())
}

/// Waits for a method, which must come next. Returns its arguments. Later frames are not read.
pub(super) fn expect(stream: &mut TcpStream, wanted: Method) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD_BYTES];
    stream.read_exact(&mut bytes).context("the server closed the connection")?;
    let length = bytes.iter().skip(3).fold(0, |all, &byte| all << 8 | usize::from(byte));
    bytes.resize(HEAD_BYTES + length + 1, 0);
    stream.read_exact(&mut bytes[HEAD_BYTES..])?;
    let (frame, _) = Frame::read(&bytes)?.context("incomplete frame")?;
    match frame.method() {
        Some((method, arguments)) if method == wanted => Ok(arguments.to_vec()),
        _ => bail!("the server refused the request: {}", String::from_utf8_lossy(frame.payload)),
    }
}
