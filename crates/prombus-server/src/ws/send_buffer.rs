//! The frames that wait to be sent on a WebSocket.
//!
//! Frames are appended to one buffer while another is being written. When the second is empty, the two are swapped, so a frame is
//! never copied on its way to the socket (unless it is compressed).
//!
//! A position is a number of bytes in the sequence of all frames that were ever appended, before compression. The session
//! remembers the position at which the frame of each event ends. When the connection is lost, [`SendBuffer::sent`] tells which
//! events were sent.

use super::frame_encoder::{
    end_of_frame_at, extent_of, put_close, put_deflated, put_ping, put_pong, put_text,
};
use super::permessage_deflate::Deflate;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// An empty buffer with a larger capacity is released.
const KEPT_BYTES: usize = 4 * 1024;
/// The start of every EVENT, and of no other frame.
const EVENT_START: &[u8] = b"{\"op\":\"EVENT\"";

/// The send buffer of one WebSocket.
pub(super) struct SendBuffer {
    /// Frames that are not being written yet.
    queued: Vec<u8>,
    /// Frames that are being written.
    writing: Vec<u8>,
    /// How many bytes of `writing` the socket has accepted.
    written: usize,
    /// The position at which `writing` begins.
    writing_at: u64,
    /// Size of the frames in `writing`, before compression.
    writing_bytes: usize,
    /// How messages are compressed, if the client negotiated it.
    deflate: Option<Deflate>,
    /// For each frame in `writing`: where it ends before compression, and where it ends in `writing`. Empty without compression.
    frame_ends: Vec<(usize, usize)>,
    /// Whether everything that was written is flushed; TLS may buffer some of it.
    is_flushed: bool,
}

impl SendBuffer {
    pub(super) fn new(deflate: Option<Deflate>) -> Self {
        Self {
            queued: Vec::new(),
            writing: Vec::new(),
            written: 0,
            writing_at: 0,
            writing_bytes: 0,
            deflate,
            frame_ends: Vec::new(),
            is_flushed: true,
        }
    }

    /// Appends a text frame. `write` appends its payload. If the guess `expected_bytes` is right, the payload need not be moved.
    #[inline]
    pub(super) fn put_text(&mut self, expected_bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
        put_text(&mut self.queued, expected_bytes, write);
    }

    #[cfg(feature = "test-util")]
    pub(super) fn put_binary(&mut self, payload: &[u8]) {
        super::frame_encoder::put_binary(&mut self.queued, payload);
    }

    pub(super) fn put_ping(&mut self) {
        put_ping(&mut self.queued);
    }

    pub(super) fn put_pong(&mut self, payload: &[u8]) {
        put_pong(&mut self.queued, payload);
    }

    pub(super) fn put_close(&mut self, code: u16, reason: &str) {
        put_close(&mut self.queued, code, reason);
    }

    /// Reserves memory for this many bytes of frames.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.queued.reserve(bytes);
    }

    /// Bytes that wait to be sent.
    pub(super) fn byte_count(&self) -> usize {
        self.writing.len() - self.written + self.queued.len()
    }

    /// Whether the socket has not accepted all of `writing` yet.
    pub(super) fn is_behind(&self) -> bool {
        self.written < self.writing.len()
    }

    /// Whether everything was sent.
    pub(super) fn is_sent(&self) -> bool {
        !self.is_behind() && self.queued.is_empty() && self.is_flushed
    }

    /// The position at which the last frame ends.
    pub(super) fn end(&self) -> u64 {
        self.writing_at + (self.writing_bytes + self.queued.len()) as u64
    }

    /// The position up to which the socket has accepted everything.
    pub(super) fn sent(&self) -> u64 {
        self.position(self.written)
    }

    /// The position that is reached when the first `written` bytes of `writing` are sent. With compression, this is the end of
    /// the last frame that is completely among them.
    fn position(&self, written: usize) -> u64 {
        let ends = &self.frame_ends;
        let of_writing = match ends.partition_point(|&(_, end)| end <= written) {
            _ if ends.is_empty() => written,
            0 => 0,
            whole => ends[whole - 1].0,
        };
        self.writing_at + of_writing as u64
    }

    /// Drops everything after the partly sent frame. Returns the position at which that frame ends.
    pub(super) fn drop_unsent(&mut self) -> u64 {
        let end = end_of_frame_at(&self.writing, self.written);
        let position = self.position(end);
        self.writing.truncate(end);
        self.frame_ends.retain(|&(_, frame_end)| frame_end <= end);
        self.queued = Vec::new();
        position
    }

    /// Drops the EVENT frames after the partly sent frame. All other frames stay, in their order. With compression, frames that
    /// are already compressed stay too, because their content is not known any more.
    pub(super) fn drop_unsent_events(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        if self.deflate.is_none() {
            let end = end_of_frame_at(&self.writing, self.written);
            put_without_events(&mut self.queued, &self.writing[end..]);
            self.writing.truncate(end);
            self.writing_bytes = end;
        }
        put_without_events(&mut self.queued, &queued);
    }

    /// Writes once. Returns how many bytes the socket accepted; 0 when there is nothing to write.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.written == self.writing.len() && !self.start_next() {
            return Poll::Ready(Ok(0));
        }
        let count = ready!(Pin::new(socket).poll_write(context, &self.writing[self.written..]))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.written += count;
        self.is_flushed = false;
        Poll::Ready(Ok(count))
    }

    /// Moves the queued frames to `writing`; false when there are none.
    fn start_next(&mut self) -> bool {
        self.writing_at += self.writing_bytes as u64;
        self.writing.clear();
        (self.written, self.writing_bytes) = (0, self.queued.len());
        if self.queued.is_empty() {
            if self.deflate.is_some() {
                self.frame_ends = Vec::new();
            }
            return false;
        }
        match self.deflate {
            None => std::mem::swap(&mut self.writing, &mut self.queued),
            Some(deflate) => {
                self.frame_ends.clear();
                put_deflated(deflate, &self.queued, &mut self.writing, &mut self.frame_ends);
                self.queued.clear();
            }
        }
        true
    }

    /// Flushes everything that was written: TLS may buffer some of it.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(socket).poll_flush(context))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    /// Allocated memory.
    pub(super) fn capacity(&self) -> usize {
        self.writing.capacity() + self.queued.capacity()
    }

    /// Allocated memory of the frames that are not being written yet.
    pub(super) fn queued_capacity(&self) -> usize {
        self.queued.capacity()
    }

    /// Releases the memory of empty buffers.
    pub(super) fn release(&mut self) {
        for buffer in [&mut self.writing, &mut self.queued] {
            if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        if self.frame_ends.is_empty() {
            self.frame_ends = Vec::new();
        }
    }
}

/// Appends all frames except EVENTs.
fn put_without_events(into: &mut Vec<u8>, frames: &[u8]) {
    let mut at = 0;
    while at < frames.len() {
        let (payload_at, end) = extent_of(frames, at);
        if !frames[payload_at..end].starts_with(EVENT_START) {
            into.extend_from_slice(&frames[at..end]);
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// A socket that accepts `room` bytes.
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Poll::Pending;
            }
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn put(buffer: &mut SendBuffer, text: &str) {
        buffer.put_text(text.len(), |into| into.extend_from_slice(text.as_bytes()));
    }

    /// Writes until the socket accepts no more or the buffer is empty.
    fn write(buffer: &mut SendBuffer, socket: &mut Narrow) {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(1..)) = buffer.poll_write(socket, &mut context) {}
    }

    #[test]
    fn frames_are_sent_in_order_and_positions_count_all_of_them() {
        let (mut buffer, mut socket) = (SendBuffer::new(None), Narrow { room: 5, taken: Vec::new() });
        put(&mut buffer, "one");
        put(&mut buffer, "two");
        assert_eq!((buffer.end(), buffer.byte_count()), (10, 10));
        write(&mut buffer, &mut socket);
        assert_eq!((buffer.sent(), buffer.is_behind(), buffer.byte_count()), (5, true, 5));
        put(&mut buffer, "three");
        assert_eq!(buffer.end(), 17);
        socket.room = 100;
        write(&mut buffer, &mut socket);
        assert_eq!((buffer.sent(), buffer.is_behind(), buffer.end()), (17, false, 17));
        assert_eq!(socket.taken, b"\x81\x03one\x81\x03two\x81\x05three");
    }

    #[test]
    fn only_frames_after_the_partly_sent_one_are_dropped() {
        let (mut buffer, mut socket) = (SendBuffer::new(None), Narrow { room: 6, taken: Vec::new() });
        for text in ["one", "two", "six"] {
            put(&mut buffer, text);
        }
        write(&mut buffer, &mut socket);
        put(&mut buffer, "never");
        assert_eq!(buffer.drop_unsent(), 10);
        socket.room = 100;
        write(&mut buffer, &mut socket);
        assert_eq!(socket.taken, b"\x81\x03one\x81\x03two");
    }

    #[test]
    fn unsent_events_are_dropped_and_answers_stay_in_order() {
        let mut event = Vec::new();
        prombus_protocol::put_event_head(&mut event, "t", "g");
        let event = String::from_utf8(event).expect("text");
        for deflate in [None, Some(Deflate::plain())] {
            let (mut buffer, mut socket) = (SendBuffer::new(deflate), Narrow { room: 3, taken: Vec::new() });
            put(&mut buffer, "one");
            if deflate.is_none() {
                put(&mut buffer, &event);
                put(&mut buffer, "two");
            }
            write(&mut buffer, &mut socket);
            assert!(buffer.is_behind());
            for text in ["six", &event, "ten"] {
                put(&mut buffer, text);
            }
            buffer.drop_unsent_events();
            socket.room = 1_000;
            write(&mut buffer, &mut socket);
            let kept: &[&str] =
                if deflate.is_none() { &["one", "two", "six", "ten"] } else { &["one", "six", "ten"] };
            let expected: String = kept.iter().map(|text| format!("\u{3}{text}")).collect();
            let sent: Vec<u8> = socket.taken.iter().copied().filter(|&byte| byte != 0x81).collect();
            assert_eq!(String::from_utf8_lossy(&sent), expected);
            assert!(!buffer.is_behind());
        }
    }
}
