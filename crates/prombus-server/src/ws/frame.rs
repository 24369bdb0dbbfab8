//! WebSocket framing (RFC 6455), the server's side, without a socket.
//!
//! Written by hand, because what counts is that all frames that were read are handled in place and all frames that are to be sent
//! lie in one buffer. No extensions are offered, so the reserved bits must be zero.

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
    /// A whole message; its UTF-8 is not checked yet.
    Text(&'a [u8]),
    /// A whole binary message.
    Binary,
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
    #[error("a message of more than {0} bytes")]
    TooLarge(usize),
}

impl Violation {
    pub(crate) fn close_code(self) -> u16 {
        match self {
            Self::Protocol(_) => close::PROTOCOL_ERROR,
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

/// A message that comes in pieces.
#[derive(Debug, Default)]
struct Pieces {
    opcode: Option<u8>,
    bytes: Vec<u8>,
}

/// Takes frames from bytes, one after another.
#[derive(Debug)]
pub(crate) struct Decoder {
    max_message_bytes: usize,
    pieces: Pieces,
}

struct Head {
    is_last: bool,
    opcode: u8,
    mask: [u8; 4],
    head_bytes: usize,
    payload_bytes: usize,
}

impl Decoder {
    pub(crate) fn new(max_message_bytes: usize) -> Self {
        Self { max_message_bytes, pieces: Pieces::default() }
    }

    /// Bytes of a message that came in pieces so far.
    pub(crate) fn held_bytes(&self) -> usize {
        self.pieces.bytes.capacity()
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
            return Ok((0, None));
        }
        let payload = &mut bytes[head.head_bytes..end];
        unmask(payload, head.mask);
        let incoming = match head.opcode {
            PING => Incoming::Ping(payload),
            PONG => Incoming::Pong,
            CLOSE => match payload {
                [] => Incoming::Close(None),
                [_] => return Err(Violation::Protocol("half a close code")),
                [_, _, reason @ ..] if std::str::from_utf8(reason).is_err() => {
                    return Err(Violation::Protocol("a close reason that is not UTF-8"));
                }
                [high, low, ..] => Incoming::Close(Some(u16::from_be_bytes([*high, *low]))),
            },
            opcode if opcode != CONTINUATION && head.is_last => match opcode {
                TEXT => Incoming::Text(payload),
                _ => Incoming::Binary,
            },
            opcode => {
                if opcode != CONTINUATION {
                    self.pieces.opcode = Some(opcode);
                }
                // What a binary message says is not looked at.
                if self.pieces.opcode == Some(TEXT) {
                    self.pieces.bytes.extend_from_slice(payload);
                }
                if !head.is_last {
                    return Ok((end, None));
                }
                match self.pieces.opcode.take() {
                    Some(TEXT) => Incoming::Text(&self.pieces.bytes),
                    _ => Incoming::Binary,
                }
            }
        };
        Ok((end, Some(incoming)))
    }

    /// Lets go of a message that came in pieces and was handled.
    pub(crate) fn release(&mut self) {
        if self.pieces.opcode.is_none() && self.pieces.bytes.capacity() > 0 {
            self.pieces.bytes = Vec::new();
        }
    }

    fn head(&self, bytes: &[u8]) -> Result<Option<Head>, Violation> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (is_last, opcode) = (first & 0x80 != 0, first & 0x0f);
        if first & 0x70 != 0 {
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
            opcode,
            mask: [a, b, c, d],
            head_bytes,
            payload_bytes: payload_bytes as usize,
        }))
    }
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
    write_head(&mut into[start..start + needed], TEXT, payload_bytes);
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
    while at < sent {
        let Some(second) = frames.get(at + 1) else { return frames.len() };
        let length = |range: std::ops::Range<usize>| {
            frames
                .get(range)
                .map_or(0, |bytes| bytes.iter().fold(0, |all, &byte| all << 8 | usize::from(byte)))
        };
        at += match second & 0x7f {
            126 => 4 + length(at + 2..at + 4),
            127 => 10 + length(at + 2..at + 10),
            short => 2 + usize::from(short),
        };
    }
    at.min(frames.len())
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
            let payload: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut decoder = Decoder::new(1 << 20);
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
        let mut decoder = Decoder::new(100);
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
        let mut unfinished = Decoder::new(100);
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
            assert!(matches!(Decoder::new(1000).next(&mut bytes), Err(Violation::Protocol(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_message_over_the_limit_is_refused_by_its_head_alone() {
        let mut decoder = Decoder::new(100);
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
}
