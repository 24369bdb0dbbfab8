//! Tracks the bytes that the leader sends on a relayed connection: whether the connection has become a WebSocket, and where the
//! frames end.

use super::frame_boundary::FrameBoundaries;

/// The start of the status line of an upgrade. The leader is a prombus server too and always responds with HTTP/1.1.
const SWITCHING_PROTOCOLS: &[u8; 12] = b"HTTP/1.1 101";
const END_OF_HEAD: u32 = u32::from_be_bytes(*b"\r\n\r\n");

/// The leader's bytes, which decide whether the connection is a WebSocket.
#[derive(Clone, Debug)]
pub(super) enum ResponseTracker {
    /// In the status line of the first response. This many bytes arrived, and all match the status line of an upgrade.
    Status(usize),
    /// In the rest of the head of an upgrade. Contains the last four bytes, to find the empty line.
    Head(u32),
    /// In the frames of a WebSocket.
    Frames(FrameBoundaries),
    /// HTTP, which is not tracked. If a later request on the same connection upgrades it, that WebSocket ends like an HTTP
    /// connection.
    Http,
}

impl ResponseTracker {
    pub(super) fn new() -> Self {
        Self::Status(0)
    }

    /// The frames, if the connection is a WebSocket.
    pub(super) fn frames(&self) -> Option<&FrameBoundaries> {
        match self {
            Self::Frames(frames) => Some(frames),
            _ => None,
        }
    }

    pub(super) fn advance(&mut self, bytes: &[u8]) {
        let frames = self.skip_head(bytes);
        if let Self::Frames(boundaries) = self {
            boundaries.advance(frames);
        }
    }

    /// Like [`advance`](Self::advance), but only to the end of the current frame. Returns how many of the bytes belong to it.
    pub(super) fn advance_to_boundary(&mut self, bytes: &[u8]) -> usize {
        let frames = self.skip_head(bytes);
        match self {
            Self::Frames(boundaries) => bytes.len() - frames.len() + boundaries.advance_to_boundary(frames),
            _ => bytes.len(),
        }
    }

    /// Consumes the bytes of the head, and returns those after it.
    fn skip_head<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while let Some((&byte, rest)) = bytes.split_first() {
            *self = match *self {
                Self::Status(count) if byte != SWITCHING_PROTOCOLS[count] => Self::Http,
                Self::Status(count) if count + 1 == SWITCHING_PROTOCOLS.len() => Self::Head(0),
                Self::Status(count) => Self::Status(count + 1),
                Self::Head(last) => match last << 8 | u32::from(byte) {
                    END_OF_HEAD => Self::Frames(FrameBoundaries::default()),
                    last => Self::Head(last),
                },
                Self::Frames(_) | Self::Http => return bytes,
            };
            bytes = rest;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPGRADE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n\x81\x05hel";

    #[test]
    fn frames_begin_after_the_head_of_an_upgrade() {
        for size in [1, 2, 11, UPGRADE.len()] {
            let mut tracker = ResponseTracker::new();
            for piece in UPGRADE.chunks(size) {
                tracker.advance(piece);
            }
            assert!(!tracker.frames().expect("a WebSocket").is_at_boundary(), "{size} bytes at a time");
            assert_eq!(tracker.advance_to_boundary(b"lo\x81\x01x"), 2);
            assert!(tracker.frames().expect("a WebSocket").is_at_boundary());
        }
    }

    #[test]
    fn other_responses_are_not_tracked() {
        for response in [&b"HTTP/1.1 200 OK\r\n\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x81\x00"] {
            let mut tracker = ResponseTracker::new();
            tracker.advance(response);
            assert!(tracker.frames().is_none());
            assert_eq!(tracker.advance_to_boundary(b"anything"), 8);
        }
    }
}
