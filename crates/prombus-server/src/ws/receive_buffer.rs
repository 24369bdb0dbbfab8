//! The received bytes of a client that are not handled yet.
//!
//! A socket is read into a buffer of the thread, and frames are handled there. Only an incomplete frame, or frames that must
//! wait, are kept in the connection's own memory. So an idle connection needs almost no memory, and a busy one reads into a large
//! buffer.

use super::frame_decoder::FrameDecoder;
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Size of a thread's read buffer.
const READ_BYTES: usize = 256 * 1024;
/// When an incomplete frame is larger than this, its rest is read directly into the connection's own memory.
pub(super) const OWN_READ_BYTES: usize = 16 * 1024;
/// How much a read may return when the buffer budget of all connections has less room than that.
pub(super) const LITTLE_READ_BYTES: usize = 4 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// The receive buffer of one WebSocket.
pub(super) struct ReceiveBuffer {
    decoder: FrameDecoder,
    /// The start of an incomplete frame, or frames that must wait.
    unhandled: Vec<u8>,
}

impl ReceiveBuffer {
    /// `first`: bytes that were already read from the socket.
    pub(super) fn new(decoder: FrameDecoder, first: &[u8]) -> Self {
        Self { decoder, unhandled: first.to_vec() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unhandled.is_empty()
    }

    /// How many bytes wait to be handled, including those of an incomplete fragmented message.
    pub(super) fn byte_count(&self) -> usize {
        self.unhandled.len() + self.decoder.held_bytes()
    }

    /// Allocated memory.
    pub(super) fn capacity(&self) -> usize {
        self.unhandled.capacity() + self.decoder.held_bytes()
    }

    /// Drops the bytes that wait to be handled.
    pub(super) fn clear(&mut self) {
        self.unhandled = Vec::new();
    }

    /// Handles the waiting bytes; `handle` returns how many it consumed.
    pub(super) fn handle(&mut self, handle: impl FnOnce(&mut FrameDecoder, &mut [u8]) -> usize) {
        let used = handle(&mut self.decoder, &mut self.unhandled);
        self.unhandled.drain(..used);
        if self.unhandled.is_empty() {
            self.clear();
        }
    }

    /// Reads once, then handles the buffered bytes. Returns how many bytes were read; 0 at the end of the stream.
    ///
    /// `room_bytes`: how many bytes the buffer budget has left. Each byte may have to be kept, so a read returns at most that many,
    /// but always up to `LITTLE_READ_BYTES`.
    pub(super) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
        room_bytes: usize,
        handle: impl FnOnce(&mut FrameDecoder, &mut [u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        let most_bytes = room_bytes.clamp(LITTLE_READ_BYTES, READ_BYTES);
        if self.unhandled.len() > OWN_READ_BYTES {
            let count = ready!(self.poll_read_own(socket, context, most_bytes))?;
            self.handle(handle);
            return Poll::Ready(Ok(count));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let filled = self.unhandled.len();
            scratch[..filled].copy_from_slice(&self.unhandled);
            let end = (filled + most_bytes).min(scratch.len());
            let mut buffer = ReadBuf::new(&mut scratch[..end]);
            buffer.set_filled(filled);
            ready!(Pin::new(socket).poll_read(context, &mut buffer))?;
            let now_filled = buffer.filled().len();
            if now_filled > filled {
                let used = handle(&mut self.decoder, &mut scratch[..now_filled]);
                self.unhandled.clear();
                self.unhandled.extend_from_slice(&scratch[used..now_filled]);
                if self.unhandled.is_empty() && self.unhandled.capacity() > 0 {
                    self.clear();
                }
            }
            Poll::Ready(Ok(now_filled - filled))
        })
    }

    /// Reads the rest of a large frame into the connection's own memory, directly after the part that has arrived.
    fn poll_read_own<S: AsyncRead + Unpin>(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
        most_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let filled = self.unhandled.len();
        let frame_bytes = self.decoder.frame_bytes(&self.unhandled).unwrap_or(0);
        let length = frame_bytes.clamp(filled + LITTLE_READ_BYTES, filled + most_bytes);
        // A vector would double its capacity, which may be far more than the frame needs and counts against the buffer budget.
        let capacity = length.max((filled + (filled / 2).min(most_bytes)).min(frame_bytes));
        self.unhandled.reserve_exact(capacity - filled);
        self.unhandled.resize(length, 0);
        let mut buffer = ReadBuf::new(&mut self.unhandled);
        buffer.set_filled(filled);
        let polled = Pin::new(socket).poll_read(context, &mut buffer);
        let now_filled = buffer.filled().len();
        self.unhandled.truncate(now_filled);
        ready!(polled)?;
        Poll::Ready(Ok(now_filled - filled))
    }
}
