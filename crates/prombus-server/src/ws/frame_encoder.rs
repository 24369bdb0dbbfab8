//! Appends WebSocket frames (RFC 6455) to a buffer, as a server sends them: unfragmented and unmasked.

use super::opcode::{BINARY, CLOSE, DEFLATED, PING, PONG, TEXT};
use super::permessage_deflate::Deflate;

/// Maximum size of a frame's head: two bytes, and eight bytes of length.
const HEAD_BYTES_MAX: usize = 10;

/// Appends a text frame. `write` appends its payload. If the guess `expected_bytes` is right, the payload need not be moved.
pub(super) fn put_text(into: &mut Vec<u8>, expected_bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
    put_message(into, TEXT, expected_bytes, write);
}

/// Appends a binary frame.
#[cfg(feature = "test-util")]
pub(super) fn put_binary(into: &mut Vec<u8>, payload: &[u8]) {
    put_message(into, BINARY, payload.len(), |into| into.extend_from_slice(payload));
}

fn put_message(
    into: &mut Vec<u8>,
    opcode_and_flags: u8,
    expected_bytes: usize,
    write: impl FnOnce(&mut Vec<u8>),
) {
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
    write_head(&mut into[start..start + needed], opcode_and_flags, payload_bytes);
}

/// Copies `frames` (made by this module) to `into`, and compresses each text or binary message that gets smaller. For each
/// frame, pushes the pair (its end in `frames`, its end in `into`) to `ends`.
pub(super) fn put_deflated(
    deflate: Deflate,
    frames: &[u8],
    into: &mut Vec<u8>,
    ends: &mut Vec<(usize, usize)>,
) {
    let mut at = 0;
    while at < frames.len() {
        let (payload_at, end) = extent_of(frames, at);
        let (payload, start) = (&frames[payload_at..end], into.len());
        let first_byte = frames[at];
        let mut is_deflated = false;
        if matches!(first_byte & 0x0f, TEXT | BINARY) {
            put_message(into, first_byte & 0x0f | DEFLATED, payload.len() / 2, |into| {
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

/// The start and end of the payload of the frame that begins at `at`. `frames` must be unmasked, as this module writes them.
pub(super) fn extent_of(frames: &[u8], at: usize) -> (usize, usize) {
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

pub(super) fn head_bytes(payload_bytes: usize) -> usize {
    match payload_bytes {
        0..=125 => 2,
        126..=0xffff => 4,
        _ => 10,
    }
}

pub(super) fn write_head(head: &mut [u8], opcode_and_flags: u8, payload_bytes: usize) {
    head[0] = 0x80 | opcode_and_flags;
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

pub(super) fn put_ping(into: &mut Vec<u8>) {
    put_control(into, PING, b"");
}

pub(super) fn put_pong(into: &mut Vec<u8>, payload: &[u8]) {
    put_control(into, PONG, payload);
}

pub(super) fn put_close(into: &mut Vec<u8>, code: u16, reason: &str) {
    let mut end = reason.len().min(120);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut payload = Vec::with_capacity(2 + end);
    payload.extend_from_slice(&code.to_be_bytes());
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    put_control(into, CLOSE, &payload);
}

/// Given that the first `sent` bytes were sent, returns where the frame of the last sent byte ends. Everything after that can be
/// dropped.
pub(super) fn end_of_frame_at(frames: &[u8], sent: usize) -> usize {
    let mut at = 0;
    while at < sent.min(frames.len()) {
        (_, at) = extent_of(frames, at);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_partly_sent_frame_is_found() {
        let mut frames = Vec::new();
        let mut ends = vec![0];
        for length in [3, 125, 126, 70_000, 0] {
            put_text(&mut frames, 0, |into| into.resize(into.len() + length, b'x'));
            ends.push(frames.len());
        }
        for sent in (0..frames.len()).step_by(61).chain([1, 2, 5, frames.len()]) {
            let expected = ends
                .iter()
                .copied()
                .find(|&end| end >= sent)
                .expect("`sent` is at most the length of the frames");
            assert_eq!(end_of_frame_at(&frames, sent), expected, "sent {sent}");
        }
    }
}
