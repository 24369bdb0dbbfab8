//! Decodes the WebSocket frames (RFC 6455) of a client.
//!
//! It is written by hand so that all frames of one read are unmasked and handled in place. The reserved bits must be zero, except
//! the one that marks a compressed message if compression was negotiated.

#[cfg(test)]
mod tests;

use super::opcode::{BINARY, CLOSE, CONTINUATION, DEFLATED, PING, PONG, TEXT};
use super::permessage_deflate::{InflateError, give_back, inflate};
use super::utf8::Utf8Check;

/// A message or control frame of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming<'a> {
    /// A complete text message. The receiver must check that it is UTF-8.
    Text(&'a [u8]),
    /// A complete binary message.
    Binary(&'a [u8]),
    Ping(&'a [u8]),
    Pong,
    /// The client closes, with this code if it sent one.
    Close(Option<u16>),
}

/// A violation that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("not WebSocket: {0}")]
    Protocol(&'static str),
    #[error("bad data: {0}")]
    Data(&'static str),
    #[error("the message is larger than {0} bytes")]
    TooLarge(usize),
}

/// The close reason for a text message that is not UTF-8.
pub(super) const NOT_UTF8: &str = "a text message is not UTF-8";

/// The fragments of a message that have arrived so far.
#[derive(Debug, Default)]
struct Fragments {
    /// The opcode of the first fragment; `None` while no fragmented message is incomplete.
    opcode: Option<u8>,
    /// Whether the message is compressed.
    is_deflated: bool,
    /// The payloads of the fragments.
    bytes: Vec<u8>,
    /// The UTF-8 check of the current text message, whether it is fragmented or not.
    utf8: Utf8Check,
}

/// Decodes frames one after another.
#[derive(Debug)]
pub(super) struct FrameDecoder {
    /// Maximum size of a message, after decompression too.
    max_message_bytes: usize,
    /// Whether compression was negotiated, so that messages may be compressed.
    may_inflate: bool,
    fragments: Fragments,
    /// How many bytes of an incomplete text frame were checked for UTF-8.
    checked_bytes: usize,
    /// The current message, decompressed.
    inflated: Vec<u8>,
}

/// The head of a frame.
struct Head {
    /// Whether this is the last (or only) frame of its message: the FIN bit.
    is_last: bool,
    is_deflated: bool,
    opcode: u8,
    mask: [u8; 4],
    head_bytes: usize,
    payload_bytes: usize,
}

impl FrameDecoder {
    pub(super) fn new(max_message_bytes: usize, may_inflate: bool) -> Self {
        let (fragments, inflated) = (Fragments::default(), Vec::new());
        Self { max_message_bytes, may_inflate, fragments, checked_bytes: 0, inflated }
    }

    /// Memory of the fragments and the decompressed message.
    pub(super) fn held_bytes(&self) -> usize {
        self.fragments.bytes.capacity() + self.inflated.capacity()
    }

    /// Whether a fragmented message is incomplete.
    pub(super) fn is_inside_message(&self) -> bool {
        self.fragments.opcode.is_some()
    }

    /// The total size of the first frame in `bytes`, if its head has arrived and its message is within the limit.
    pub(super) fn frame_bytes(&self, bytes: &[u8]) -> Option<usize> {
        let head = self.head(bytes).ok()??;
        Some(head.head_bytes + head.payload_bytes)
    }

    /// Decodes the first frame, and returns its size and the message or control frame that it completes. A fragment that is not
    /// the last one completes no message. If the frame is incomplete, the size is 0. The payload is unmasked in place.
    pub(super) fn next<'a>(
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
                [_] => return Err(Violation::Protocol("a close code of one byte")),
                [_, _, reason @ ..] if std::str::from_utf8(reason).is_err() => {
                    return Err(Violation::Data("a close reason is not UTF-8"));
                }
                [high, low, ..] => Incoming::Close(Some(u16::from_be_bytes([*high, *low]))),
            },
            opcode if opcode != CONTINUATION && head.is_last => {
                if checked_bytes > 0 {
                    self.fragments.utf8 = Utf8Check::default();
                }
                if head.is_deflated {
                    let payload = inflated(&mut self.inflated, payload, self.max_message_bytes)?;
                    return Ok((end, Some(message(opcode, payload))));
                }
                message(opcode, payload)
            }
            opcode => {
                if opcode != CONTINUATION {
                    self.fragments.opcode = Some(opcode);
                    self.fragments.is_deflated = head.is_deflated;
                }
                let Fragments { opcode: kind, is_deflated, bytes, utf8 } = &mut self.fragments;
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

    /// Checks the new bytes of an incomplete text frame for UTF-8.
    fn check_partial(&mut self, head: &Head, masked: &[u8]) -> Result<(), Violation> {
        let opcode = if head.opcode == CONTINUATION { self.fragments.opcode } else { Some(head.opcode) };
        let is_deflated = head.is_deflated || (head.opcode == CONTINUATION && self.fragments.is_deflated);
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
            if !self.fragments.utf8.feed(plain) {
                return Err(Violation::Data(NOT_UTF8));
            }
            self.checked_bytes += piece.len();
        }
        Ok(())
    }

    /// Frees the memory of a handled message that was fragmented or compressed.
    pub(super) fn release(&mut self) {
        // Rarely true: nearly all messages are neither fragmented nor compressed.
        if self.held_bytes() > 0 {
            self.release_held();
        }
    }

    #[cold]
    fn release_held(&mut self) {
        if self.fragments.opcode.is_none() {
            self.fragments.bytes = Vec::new();
        }
        if self.inflated.capacity() > 0 {
            give_back(std::mem::take(&mut self.inflated));
        }
    }

    fn head(&self, bytes: &[u8]) -> Result<Option<Head>, Violation> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (is_last, opcode) = (first & 0x80 != 0, first & 0x0f);
        let is_deflated = first & DEFLATED != 0;
        // Only the first frame of a message may have the bit.
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
                return Err(Violation::Protocol("a control frame is fragmented or longer than 125 bytes"));
            }
            CLOSE | PING | PONG => {}
            CONTINUATION if self.fragments.opcode.is_none() => {
                return Err(Violation::Protocol("a continuation frame without a message"));
            }
            TEXT | BINARY if self.fragments.opcode.is_some() => {
                return Err(Violation::Protocol("a new message before the last one is complete"));
            }
            CONTINUATION | TEXT | BINARY => {}
            _ => return Err(Violation::Protocol("an unknown opcode")),
        }
        let so_far = if opcode == CONTINUATION { self.fragments.bytes.len() as u64 } else { 0 };
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
        InflateError::Bad => Violation::Data("a compressed message is invalid"),
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
