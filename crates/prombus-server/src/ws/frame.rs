//! WebSocket framing (RFC 6455), the server's side, without a socket.
//!
//! Written by hand, because what counts is that all frames that were read are handled in place and all frames that are to be sent
//! lie in one buffer. The reserved bits must be zero, but for the one that marks a compressed message where that was agreed on.

use super::deflate::{Deflate, InflateError, give_back, inflate};
use super::utf8::Utf8Check;

/// A frame's head takes at most this: two bytes, eight of length, four of mask.
const HEAD_BYTES_MAX: usize = 14;

/// Close codes that this server sends.
pub(crate) mod close {
    /// The client said goodbye.
    pub(crate) const NORMAL: u16 = 1000;
    /// The server goes away.
    pub(crate) const GOING_AWAY: u16 = 1001;
    /// Not WebSocket.
    pub(crate) const PROTOCOL_ERROR: u16 = 1002;
    /// A text message that is not UTF-8, or data that is not deflate.
    pub(crate) const INVALID_DATA: u16 = 1007;
    /// No token, or one that is no longer good.
    pub(crate) const POLICY: u16 = 1008;
    /// A frame over the limit.
    pub(crate) const TOO_LARGE: u16 = 1009;
    /// The client takes nothing.
    pub(crate) const TRY_LATER: u16 = 1013;

    /// The code that answers a client's: the same, or a protocol error if no client may send it.
    pub(crate) fn answer_to(code: Option<u16>) -> u16 {
        match code {
            None => NORMAL,
            Some(code @ (1000..=1003 | 1007..=1014 | 3000..=4999)) => code,
            Some(_) => PROTOCOL_ERROR,
        }
    }
}

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming<'a> {
    /// A whole message; whether it is UTF-8 is for the reader to check.
    Text(&'a [u8]),
    /// A whole binary message.
    Binary(&'a [u8]),
    Ping(&'a [u8]),
    Pong,
    /// The client closes; the code, if it gave one.
    Close(Option<u16>),
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("not WebSocket: {0}")]
    Protocol(&'static str),
    #[error("bad data: {0}")]
    Data(&'static str),
    #[error("a message of more than {0} bytes")]
    TooLarge(usize),
}

/// The close reason for a text message that is not UTF-8.
pub(crate) const NOT_UTF8: &str = "a text message is not UTF-8";

impl Violation {
    pub(crate) fn close_code(self) -> u16 {
        match self {
            Self::Protocol(_) => close::PROTOCOL_ERROR,
            Self::Data(_) => close::INVALID_DATA,
            Self::TooLarge(_) => close::TOO_LARGE,
        }
    }
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// The bit of a frame's first byte that marks a compressed message.
const DEFLATED: u8 = 0x40;

/// A message that comes in pieces.
#[derive(Debug, Default)]
struct Pieces {
    opcode: Option<u8>,
    is_deflated: bool,
    bytes: Vec<u8>,
    utf8: Utf8Check,
}

/// Takes frames from bytes, one after another.
#[derive(Debug)]
pub(crate) struct Decoder {
    max_message_bytes: usize,
    /// Whether messages may be compressed.
    may_inflate: bool,
    pieces: Pieces,
    /// How many bytes of a text frame that is not there whole were looked at.
    checked_bytes: usize,
    /// A message that was compressed.
    inflated: Vec<u8>,
}

struct Head {
    is_last: bool,
    is_deflated: bool,
    opcode: u8,
    mask: [u8; 4],
    head_bytes: usize,
    payload_bytes: usize,
}

impl Decoder {
    pub(crate) fn new(max_message_bytes: usize, may_inflate: bool) -> Self {
        let (pieces, inflated) = (Pieces::default(), Vec::new());
        Self { max_message_bytes, may_inflate, pieces, checked_bytes: 0, inflated }
    }

    /// Bytes of a message that came in pieces so far.
    pub(crate) fn held_bytes(&self) -> usize {
        self.pieces.bytes.capacity() + self.inflated.capacity()
    }

    /// Whether a message is half there.
    pub(crate) fn is_inside_message(&self) -> bool {
        self.pieces.opcode.is_some()
    }

    /// How many bytes the frame at the start takes in all, if its head is there and it fits the limit.
    pub(crate) fn frame_bytes(&self, bytes: &[u8]) -> Option<usize> {
        let head = self.head(bytes).ok()??;
        Some(head.head_bytes + head.payload_bytes)
    }

    /// The next frame that is there whole, and how many bytes were used up; a piece of a message gives no frame but uses bytes.
    /// Bytes are unmasked where they are.
    pub(crate) fn next<'a>(
        &'a mut self,
        bytes: &'a mut [u8],
    ) -> Result<(usize, Option<Incoming<'a>>), Violation> {
        let Some(head) = self.head(bytes)? else { return Ok((0, None)) };
        let end = head.head_bytes + head.payload_bytes;
        if bytes.len() < end {
            self.check_partial(&head, &bytes[head.head_bytes..])?;
            return Ok((0, None));
        }
        let payload = &mut bytes[head.head_bytes..end];
        unmask(payload, head.mask);
        let checked_bytes = std::mem::take(&mut self.checked_bytes);
        let incoming = match head.opcode {
            PING => Incoming::Ping(payload),
            PONG => Incoming::Pong,
            CLOSE => match payload {
                [] => Incoming::Close(None),
                [_] => return Err(Violation::Protocol("half a close code")),
                [_, _, reason @ ..] if std::str::from_utf8(reason).is_err() => {
                    return Err(Violation::Data("a close reason is not UTF-8"));
                }
                [high, low, ..] => Incoming::Close(Some(u16::from_be_bytes([*high, *low]))),
            },
            opcode if opcode != CONTINUATION && head.is_last => {
                if checked_bytes > 0 {
                    self.pieces.utf8 = Utf8Check::default();
                }
                if head.is_deflated {
                    let payload = inflated(&mut self.inflated, payload, self.max_message_bytes)?;
                    return Ok((end, Some(message(opcode, payload))));
                }
                message(opcode, payload)
            }
            opcode => {
                if opcode != CONTINUATION {
                    self.pieces.opcode = Some(opcode);
                    self.pieces.is_deflated = head.is_deflated;
                }
                let Pieces { opcode: kind, is_deflated, bytes, utf8 } = &mut self.pieces;
                let is_text = *kind == Some(TEXT) && !*is_deflated;
                if is_text && !(utf8.feed(&payload[checked_bytes..]) && (utf8.is_whole() || !head.is_last)) {
                    return Err(Violation::Data(NOT_UTF8));
                }
                bytes.extend_from_slice(payload);
                if !head.is_last {
                    return Ok((end, None));
                }
                *utf8 = Utf8Check::default();
                let opcode = kind.take().unwrap_or(BINARY);
                let payload = match is_deflated {
                    true => inflated(&mut self.inflated, bytes, self.max_message_bytes)?,
                    false => bytes,
                };
                message(opcode, payload)
            }
        };
        Ok((end, Some(incoming)))
    }

    /// Looks at what is new of a text frame that is not there whole.
    fn check_partial(&mut self, head: &Head, masked: &[u8]) -> Result<(), Violation> {
        let opcode = if head.opcode == CONTINUATION { self.pieces.opcode } else { Some(head.opcode) };
        let is_deflated = head.is_deflated || (head.opcode == CONTINUATION && self.pieces.is_deflated);
        if opcode != Some(TEXT) || is_deflated {
            return Ok(());
        }
        let mut plain = [0; 1024];
        while self.checked_bytes < masked.len() {
            let piece = &masked[self.checked_bytes..];
            let piece = &piece[..piece.len().min(plain.len())];
            let plain = &mut plain[..piece.len()];
            plain.copy_from_slice(piece);
            let mut mask = head.mask;
            mask.rotate_left(self.checked_bytes % 4);
            unmask(plain, mask);
            if !self.pieces.utf8.feed(plain) {
                return Err(Violation::Data(NOT_UTF8));
            }
            self.checked_bytes += piece.len();
        }
        Ok(())
    }

    /// Lets go of a message that came in pieces and was handled.
    pub(crate) fn release(&mut self) {
        // Nearly always: messages come whole and as they are.
        if self.held_bytes() > 0 {
            self.release_held();
        }
    }

    #[cold]
    fn release_held(&mut self) {
        if self.pieces.opcode.is_none() {
            self.pieces.bytes = Vec::new();
        }
        if self.inflated.capacity() > 0 {
            give_back(std::mem::take(&mut self.inflated));
        }
    }

    fn head(&self, bytes: &[u8]) -> Result<Option<Head>, Violation> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (is_last, opcode) = (first & 0x80 != 0, first & 0x0f);
        let is_deflated = first & DEFLATED != 0;
        // Only the first frame of a message says that it is compressed.
        let may_be_deflated = self.may_inflate && matches!(opcode, TEXT | BINARY);
        if first & 0x30 != 0 || (is_deflated && !may_be_deflated) {
            return Err(Violation::Protocol("reserved bits are set"));
        }
        if second & 0x80 == 0 {
            return Err(Violation::Protocol("a client's frames must be masked"));
        }
        let (length_bytes, payload_bytes) = match (second & 0x7f, rest) {
            (126, [a, b, ..]) => (2, u64::from(u16::from_be_bytes([*a, *b]))),
            (127, [a, b, c, d, e, f, g, h, ..]) => (8, u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])),
            (126 | 127, _) => return Ok(None),
            (short, _) => (0, u64::from(short)),
        };
        match opcode {
            CLOSE | PING | PONG if !is_last || payload_bytes > 125 => {
                return Err(Violation::Protocol("a control frame in pieces, or longer than 125 bytes"));
            }
            CLOSE | PING | PONG => {}
            CONTINUATION if self.pieces.opcode.is_none() => {
                return Err(Violation::Protocol("a piece of no message"));
            }
            TEXT | BINARY if self.pieces.opcode.is_some() => {
                return Err(Violation::Protocol("a message within another"));
            }
            CONTINUATION | TEXT | BINARY => {}
            _ => return Err(Violation::Protocol("an opcode that does not exist")),
        }
        let so_far = if opcode == CONTINUATION { self.pieces.bytes.len() as u64 } else { 0 };
        if payload_bytes.saturating_add(so_far) > self.max_message_bytes as u64 {
            return Err(Violation::TooLarge(self.max_message_bytes));
        }
        let Some(&[a, b, c, d]) = rest.get(length_bytes..length_bytes + 4) else { return Ok(None) };
        let head_bytes = 2 + length_bytes + 4;
        Ok(Some(Head {
            is_last,
            is_deflated,
            opcode,
            mask: [a, b, c, d],
            head_bytes,
            payload_bytes: payload_bytes as usize,
        }))
    }
}

fn message(opcode: u8, payload: &[u8]) -> Incoming<'_> {
    match opcode {
        TEXT => Incoming::Text(payload),
        _ => Incoming::Binary(payload),
    }
}

#[cold]
fn inflated<'a>(into: &'a mut Vec<u8>, payload: &[u8], most: usize) -> Result<&'a [u8], Violation> {
    *into = inflate(payload, most).map_err(|error| match error {
        InflateError::TooLarge => Violation::TooLarge(most),
        InflateError::Bad => Violation::Data("a message is not deflate"),
    })?;
    Ok(into)
}

fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut words = payload.chunks_exact_mut(8);
    for word in &mut words {
        let eight: [u8; 8] = (&*word).try_into().expect("chunks of eight");
        word.copy_from_slice(&(u64::from_ne_bytes(eight) ^ wide).to_ne_bytes());
    }
    for (byte, mask) in words.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Appends a text frame. `write` appends its payload; `expected_bytes` is a guess that saves moving it.
pub(crate) fn put_text(into: &mut Vec<u8>, expected_bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
    put_message(into, TEXT, expected_bytes, write);
}

/// Appends a binary frame.
#[cfg(feature = "test-util")]
pub(crate) fn put_binary(into: &mut Vec<u8>, payload: &[u8]) {
    put_message(into, BINARY, payload.len(), |into| into.extend_from_slice(payload));
}

fn put_message(into: &mut Vec<u8>, first: u8, expected_bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    let guessed = head_bytes(expected_bytes);
    into.extend_from_slice(&[0; HEAD_BYTES_MAX][..guessed]);
    write(into);
    let payload_bytes = into.len() - start - guessed;
    let needed = head_bytes(payload_bytes);
    if needed != guessed {
        let end = into.len();
        if needed > guessed {
            into.extend_from_slice(&[0; HEAD_BYTES_MAX][..needed - guessed]);
        }
        into.copy_within(start + guessed..end, start + needed);
        into.truncate(start + needed + payload_bytes);
    }
    write_head(&mut into[start..start + needed], first, payload_bytes);
}

/// Appends frames of this server, their messages compressed where that makes them smaller, and notes where each ends: in
/// `frames`, and in what was appended.
pub(crate) fn put_deflated(
    deflate: Deflate,
    frames: &[u8],
    into: &mut Vec<u8>,
    ends: &mut Vec<(usize, usize)>,
) {
    let mut at = 0;
    while at < frames.len() {
        let (payload_at, end) = extent_of(frames, at);
        let (payload, start) = (&frames[payload_at..end], into.len());
        let first = frames[at];
        let mut is_deflated = false;
        if matches!(first & 0x0f, TEXT | BINARY) {
            put_message(into, first & 0x0f | DEFLATED, payload.len() / 2, |into| {
                is_deflated = deflate.deflate(payload, into);
            });
        }
        if !is_deflated {
            into.truncate(start);
            into.extend_from_slice(&frames[at..end]);
        }
        at = end;
        ends.push((end, into.len()));
    }
}

/// Where the payload of the frame of this server that begins there is, and where it ends.
fn extent_of(frames: &[u8], at: usize) -> (usize, usize) {
    let length = |range: std::ops::Range<usize>| {
        frames.get(range).map_or(0, |bytes| bytes.iter().fold(0, |all, &byte| all << 8 | usize::from(byte)))
    };
    let (head, payload) = match frames.get(at + 1).map_or(0, |second| second & 0x7f) {
        126 => (4, length(at + 2..at + 4)),
        127 => (10, length(at + 2..at + 10)),
        short => (2, usize::from(short)),
    };
    ((at + head).min(frames.len()), (at + head + payload).min(frames.len()))
}

fn head_bytes(payload_bytes: usize) -> usize {
    match payload_bytes {
        0..=125 => 2,
        126..=0xffff => 4,
        _ => 10,
    }
}

fn write_head(head: &mut [u8], opcode: u8, payload_bytes: usize) {
    head[0] = 0x80 | opcode;
    match head.len() {
        2 => head[1] = payload_bytes as u8,
        4 => {
            head[1] = 126;
            head[2..].copy_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            head[1] = 127;
            head[2..].copy_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
}

fn put_control(into: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    into.extend_from_slice(&[0x80 | opcode, payload.len().min(125) as u8]);
    into.extend_from_slice(&payload[..payload.len().min(125)]);
}

pub(crate) fn put_ping(into: &mut Vec<u8>) {
    put_control(into, PING, b"");
}

pub(crate) fn put_pong(into: &mut Vec<u8>, payload: &[u8]) {
    put_control(into, PONG, payload);
}

pub(crate) fn put_close(into: &mut Vec<u8>, code: u16, reason: &str) {
    let mut end = reason.len().min(120);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut payload = Vec::with_capacity(2 + end);
    payload.extend_from_slice(&code.to_be_bytes());
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    put_control(into, CLOSE, &payload);
}

/// Where, in frames of this server, the frame ends in which `sent` lies: what is behind it can be thrown away.
pub(crate) fn end_of_frame_at(frames: &[u8], sent: usize) -> usize {
    let mut at = 0;
    while at < sent.min(frames.len()) {
        (_, at) = extent_of(frames, at);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; head_bytes(payload.len())];
        write_head(&mut frame, 0, payload.len());
        frame[0] = first;
        frame[1] |= 0x80;
        let mask = [7, 250, 33, 91];
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    fn text_of(decoder: &mut Decoder, bytes: &mut [u8]) -> (usize, Option<Vec<u8>>) {
        match decoder.next(bytes).expect("good frames") {
            (used, Some(Incoming::Text(text))) => (used, Some(text.to_vec())),
            (used, other) => {
                assert_eq!(other, None);
                (used, None)
            }
        }
    }

    #[test]
    fn texts_of_all_lengths_are_read_and_written() {
        for length in [0, 1, 7, 8, 9, 125, 126, 127, 1000, 65_535, 65_536, 100_000] {
            let payload: Vec<u8> = (0..length).map(|at| (at % 127) as u8).collect();
            let mut decoder = Decoder::new(1 << 20, false);
            let mut bytes = masked(0x81, &payload);
            for cut in [0, 1, 2, bytes.len() - 1] {
                assert_eq!(decoder.next(&mut bytes[..cut].to_vec()), Ok((0, None)), "cut at {cut}");
            }
            let whole = bytes.len();
            assert_eq!(text_of(&mut decoder, &mut bytes), (whole, Some(payload.clone())));
            for guess in [0, 200, 70_000] {
                let mut written = b"before".to_vec();
                put_text(&mut written, guess, |into| into.extend_from_slice(&payload));
                let mut expected = b"before".to_vec();
                let start = expected.len();
                expected.resize(start + head_bytes(length), 0);
                write_head(&mut expected[start..], TEXT, length);
                expected.extend_from_slice(&payload);
                assert!(written == expected, "length {length}, guess {guess}");
            }
        }
    }

    #[test]
    fn pieces_become_a_message_and_control_frames_may_come_between() {
        let mut decoder = Decoder::new(100, false);
        let mut bytes =
            [masked(0x01, b"he"), masked(0x89, b"p"), masked(0x00, b"l"), masked(0x80, b"lo")].concat();
        let (mut at, mut seen) = (0, Vec::new());
        while at < bytes.len() {
            let (used, incoming) = decoder.next(&mut bytes[at..]).expect("good frames");
            seen.extend(incoming.map(|it| format!("{it:?}")));
            at += used;
        }
        assert_eq!(seen, [format!("{:?}", Incoming::Ping(b"p")), format!("{:?}", Incoming::Text(b"hello"))]);
        assert!(!decoder.is_inside_message());
    }

    #[test]
    fn codes_that_no_client_may_send_are_not_sent_back() {
        let answers = [None, Some(1000), Some(1001), Some(4321)].map(close::answer_to);
        assert_eq!(answers, [1000, 1000, 1001, 4321]);
        for code in [0, 999, 1004, 1005, 1006, 1015, 2999, 5000, u16::MAX] {
            assert_eq!(close::answer_to(Some(code)), close::PROTOCOL_ERROR, "{code}");
        }
    }

    #[test]
    fn what_is_not_websocket_is_refused() {
        let mut unmasked = Vec::new();
        put_text(&mut unmasked, 0, |into| into.extend_from_slice(b"x"));
        let mut unfinished = Decoder::new(100, false);
        assert_eq!(unfinished.next(&mut masked(0x01, b"a")), Ok((7, None)));
        assert!(matches!(unfinished.next(&mut masked(0x81, b"b")), Err(Violation::Protocol(_))));
        let bad = [
            unmasked,
            masked(0xc1, b"x"),
            masked(0x83, b"x"),
            masked(0x80, b"x"),
            masked(0x09, b"x"),
            masked(0x88, b"x"),
            masked(0x89, &[0; 126]),
        ];
        for mut bytes in bad {
            assert!(
                matches!(Decoder::new(1000, false).next(&mut bytes), Err(Violation::Protocol(_))),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn a_message_over_the_limit_is_refused_by_its_head_alone() {
        let mut decoder = Decoder::new(100, false);
        assert_eq!(decoder.next(&mut masked(0x81, &[b' '; 101])[..4]), Err(Violation::TooLarge(100)));
        let mut huge = vec![0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(decoder.next(&mut huge), Err(Violation::TooLarge(100)));
        assert_eq!(text_of(&mut decoder, &mut masked(0x01, &[b'a'; 60])).1, None);
        assert_eq!(decoder.next(&mut masked(0x00, &[b'b'; 41])), Err(Violation::TooLarge(100)));
    }

    #[test]
    fn the_end_of_the_frame_that_is_under_way_is_found() {
        let mut frames = Vec::new();
        let mut ends = vec![0];
        for length in [3, 125, 126, 70_000, 0] {
            put_text(&mut frames, 0, |into| into.resize(into.len() + length, b'x'));
            ends.push(frames.len());
        }
        for sent in (0..frames.len()).step_by(61).chain([1, 2, 5, frames.len()]) {
            let expected = ends.iter().copied().find(|&end| end >= sent).expect("within");
            assert_eq!(end_of_frame_at(&frames, sent), expected, "sent {sent}");
        }
    }

    /// Decodes frames with these first bytes and payloads, which arrive in pieces of this size.
    fn arriving(frames: &[(u8, &[u8])], piece_bytes: usize) -> Result<Vec<Vec<u8>>, Violation> {
        let bytes: Vec<u8> = frames.iter().flat_map(|(first, payload)| masked(*first, payload)).collect();
        let (mut decoder, mut unread, mut texts) = (Decoder::new(1 << 20, true), Vec::new(), Vec::new());
        for piece in bytes.chunks(piece_bytes) {
            unread.extend_from_slice(piece);
            loop {
                let (used, incoming) = decoder.next(&mut unread)?;
                if let Some(Incoming::Text(text) | Incoming::Binary(text)) = incoming {
                    texts.push(text.to_vec());
                }
                decoder.release();
                unread.drain(..used);
                if used == 0 {
                    break;
                }
            }
        }
        Ok(texts)
    }

    #[test]
    fn a_text_that_is_no_utf8_is_refused_as_soon_as_it_can_be_known() {
        let (good, bad) = ("κόσμε€𝄞".as_bytes(), b"\xce\xba\xed\xa0\x80 and more that never comes");
        for piece_bytes in 1..40 {
            let frames: [&[(u8, &[u8])]; 3] = [
                &[(0x81, good)],
                &[(0x01, &good[..5]), (0x89, b"ping"), (0x00, &good[5..6]), (0x80, &good[6..])],
                &[(0x01, b""), (0x00, good), (0x80, b"")],
            ];
            for frames in frames {
                assert_eq!(arriving(frames, piece_bytes), Ok(vec![good.to_vec()]), "{piece_bytes}");
            }
            // The frame is not even there whole.
            let mut half = masked(0x81, bad);
            half.truncate(6 + 4);
            let mut decoder = Decoder::new(1 << 20, false);
            assert_eq!(decoder.next(&mut half), Err(Violation::Data(NOT_UTF8)));
            assert_eq!(arriving(&[(0x01, bad)], piece_bytes), Err(Violation::Data(NOT_UTF8)));
            let cut_short = [(0x01, &good[..1]), (0x80, b"".as_slice())];
            assert_eq!(arriving(&cut_short, piece_bytes), Err(Violation::Data(NOT_UTF8)));
            // Binary messages may have any bytes.
            assert_eq!(arriving(&[(0x02, bad), (0x80, b"")], piece_bytes), Ok(vec![bad.to_vec()]));
        }
        assert_eq!(
            arriving(&[(0x88, b"\x03\xe8\xff")], 99),
            Err(Violation::Data("a close reason is not UTF-8"))
        );
    }

    #[test]
    fn compressed_messages_are_read_and_written_whole_or_in_pieces() {
        let headers = [(
            axum::http::header::SEC_WEBSOCKET_EXTENSIONS,
            axum::http::HeaderValue::from_static("permessage-deflate"),
        )];
        let deflate = Deflate::negotiate(&headers.into_iter().collect()).expect("an offer");
        let texts: Vec<String> = [0, 10, 200, 70_000].map(|length| "abc €".repeat(length)).to_vec();
        let mut frames = Vec::new();
        for text in &texts {
            put_text(&mut frames, 0, |into| into.extend_from_slice(text.as_bytes()));
        }
        put_ping(&mut frames);
        let (mut sent, mut ends) = (Vec::new(), Vec::new());
        put_deflated(deflate, &frames, &mut sent, &mut ends);
        assert!(sent.len() < 20_000 && ends.last() == Some(&(frames.len(), sent.len())), "{}", sent.len());
        let mut start = 0;
        for (text, &(_, end)) in texts.iter().zip(&ends) {
            let (payload_at, payload_end) = extent_of(&sent, start);
            assert_eq!(payload_end, end);
            let (first, payload) = (sent[start], &sent[payload_at..end]);
            assert_eq!(first & DEFLATED != 0, text.len() >= 64);
            // As a client would send it.
            let whole = [(first, payload)];
            assert!(arriving(&whole, 1_000) == Ok(vec![text.as_bytes().to_vec()]), "{}", text.len());
            let cut = payload.len() / 2;
            let in_pieces = [(first & 0x7f, &payload[..cut]), (0x80, &payload[cut..])];
            assert!(arriving(&in_pieces, 7) == Ok(vec![text.as_bytes().to_vec()]), "{}", text.len());
            start = end;
        }
        assert!(matches!(arriving(&[(0xc9, b"x")], 9), Err(Violation::Protocol(_))), "a compressed ping");
        let twice = [(0x41, b"x".as_slice()), (0xc0, b"x")];
        assert!(matches!(arriving(&twice, 9), Err(Violation::Protocol(_))), "a compressed continuation");
        let bad = arriving(&[(0xc1, &[0xff; 9])], 99);
        assert_eq!(bad, Err(Violation::Data("a message is not deflate")));
        let mut bomb = Vec::new();
        assert!(deflate.deflate(&vec![b' '; 2 << 20], &mut bomb));
        assert_eq!(arriving(&[(0xc1, &bomb)], 99), Err(Violation::TooLarge(1 << 20)));
    }
}
