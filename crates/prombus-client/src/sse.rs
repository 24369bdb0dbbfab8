//! Parses a stream of Server-Sent Events that arrives in pieces.

use bytes::{Buf, Bytes, BytesMut};

/// A message of the stream: the fields up to an empty line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SseMessage {
    pub(crate) id: Option<String>,
    /// The field `event`.
    pub(crate) kind: Option<String>,
    pub(crate) data: Option<Bytes>,
}

/// Splits the stream into messages.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    /// Bytes that arrived and were not parsed yet.
    buffer: BytesMut,
    /// How many bytes at the start of the buffer are known to contain no line end.
    scanned_bytes: usize,
    /// The fields of the message that is not complete yet. They have no effect if the stream breaks off before the empty line.
    message: SseMessage,
}

impl SseParser {
    /// Adds a piece of the stream.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next complete message. Messages without fields, such as comments, are skipped.
    pub(crate) fn next(&mut self) -> Option<SseMessage> {
        while let Some(line) = self.line() {
            if !line.is_empty() {
                self.field(&line);
                continue;
            }
            let message = std::mem::take(&mut self.message);
            if message != SseMessage::default() {
                return Some(message);
            }
        }
        None
    }

    fn line(&mut self) -> Option<Bytes> {
        let Some(at) = self.buffer[self.scanned_bytes..].iter().position(|byte| *byte == b'\n') else {
            self.scanned_bytes = self.buffer.len();
            return None;
        };
        let mut line = self.buffer.split_to(self.scanned_bytes + at).freeze();
        self.buffer.advance(1);
        self.scanned_bytes = 0;
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        Some(line)
    }

    fn field(&mut self, line: &Bytes) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let start = (colon + 1).min(line.len());
        let start = if line[start..].starts_with(b" ") { start + 1 } else { start };
        let value = line.slice(start..);
        let text = || String::from_utf8_lossy(&value).into_owned();
        match &line[..colon] {
            b"id" => self.message.id = Some(text()),
            b"event" => self.message.kind = Some(text()),
            b"data" => {
                self.message.data = Some(match self.message.data.take() {
                    None => value,
                    Some(before) => [&before[..], b"\n", &value[..]].concat().into(),
                });
            }
            // Comments, and fields such as `retry`.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, kind: Option<&str>, data: Option<&'static str>) -> SseMessage {
        let id = (!id.is_empty()).then(|| id.to_owned());
        SseMessage { id, kind: kind.map(str::to_owned), data: data.map(Bytes::from) }
    }

    #[test]
    fn messages_are_whole_wherever_the_pieces_are_cut() {
        let text = b"retry: 1000\nid: p0\n: connected\n\nid: 1\ndata: {\"a\": 1}\n\n: keep-alive\n\n\
            : keep-alive\nid: p1\n\r\nevent: error\ndata:one\ndata: two\n\nid: lost\ndata: lost";
        let expected = [
            message("p0", None, None),
            message("1", None, Some("{\"a\": 1}")),
            message("p1", None, None),
            message("", Some("error"), Some("one\ntwo")),
        ];
        for size in 1..text.len() {
            let mut parser = SseParser::default();
            let mut found = Vec::new();
            for piece in text.chunks(size) {
                parser.push(piece);
                found.extend(std::iter::from_fn(|| parser.next()));
            }
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }
}
