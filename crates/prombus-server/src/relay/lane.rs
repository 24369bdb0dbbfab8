//! One direction of a relayed connection: copies bytes from one socket to the other.
//!
//! A socket is read into a buffer of the thread, whose content is written to the other socket at once. Only bytes that the other
//! socket does not accept are kept, and nothing more is read until it has accepted them. So a slow receiver costs the memory of
//! at most one piece, and its sender gets backpressure.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of one read, and the maximum that a lane buffers.
const PIECE_BYTES: usize = 32 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

/// Which operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    Reading,
    Writing,
}

/// The state of one direction.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Bytes that were read and not accepted by the receiver at once. Emptied when all of them are written.
    pending: Vec<u8>,
    /// How many bytes of `pending` were written.
    written: usize,
    /// Whether nothing more is read, because the sender's stream has ended or the lane was closed.
    is_closed: bool,
    /// Whether the receiver's socket was shut down, after the end of the sender's stream.
    is_shut: bool,
    /// Whether the receiver's socket stays open after the end of the sender's stream, because the caller may write more to it.
    is_kept_open: bool,
    /// Whether bytes were written and not flushed. TLS may buffer some of them.
    needs_flush: bool,
}

impl Lane {
    /// A lane that sends these bytes first.
    pub(super) fn beginning_with(bytes: Vec<u8>) -> Self {
        Self { pending: bytes, ..Self::default() }
    }

    /// A lane that does not shut down the receiver's socket at the end of the sender's stream.
    pub(super) fn kept_open() -> Self {
        Self { is_kept_open: true, ..Self::default() }
    }

    /// Whether bytes wait for the receiver, in `pending` or in the buffer of its TLS connection.
    pub(super) fn has_unsent(&self) -> bool {
        self.is_blocked() || self.needs_flush
    }

    /// Whether nothing more is read and everything was written.
    pub(super) fn is_over(&self) -> bool {
        self.is_closed && !self.has_unsent()
    }

    /// Whether the receiver has not accepted everything that was read, so that nothing more is read.
    pub(super) fn is_blocked(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Stops reading. The receiver's socket stays open.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.is_kept_open = true;
    }

    /// Stops reading, and sends these bytes after all others.
    pub(super) fn put_last(&mut self, bytes: &[u8]) {
        self.close();
        self.pending.extend_from_slice(bytes);
    }

    /// Stops reading, and drops the unsent bytes.
    pub(super) fn abandon(&mut self) {
        self.close();
        self.pending = Vec::new();
        self.needs_flush = false;
    }

    /// Writes the pending bytes, then copies one piece, as far as that is possible without waiting. `forward` gets the piece and
    /// returns how many of its bytes to pass on; if these are not all, the lane is closed. Returns whether bytes were written, or
    /// something (a piece or the end of the stream) was read.
    pub(super) fn poll_move(
        &mut self,
        context: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        forward: impl FnOnce(&[u8]) -> usize,
    ) -> Result<bool, Failed> {
        let mut has_moved = self.write_pending(context, to)?;
        if self.is_blocked() {
            return Ok(has_moved);
        }
        if !self.is_closed {
            let read = SCRATCH.with_borrow_mut(|scratch| self.read_once(context, from, to, forward, scratch));
            has_moved |= read?;
        }
        if !has_moved && self.needs_flush {
            match Pin::new(&mut *to).poll_flush(context) {
                Poll::Ready(Ok(())) => self.needs_flush = false,
                Poll::Ready(Err(_)) => return Err(Failed::Writing),
                Poll::Pending => {}
            }
        }
        if self.is_over() && !self.is_kept_open && !self.is_shut {
            self.is_shut = match Pin::new(to).poll_shutdown(context) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(_)) => return Err(Failed::Writing),
                Poll::Pending => false,
            };
        }
        Ok(has_moved)
    }

    fn read_once(
        &mut self,
        context: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        forward: impl FnOnce(&[u8]) -> usize,
        scratch: &mut [u8],
    ) -> Result<bool, Failed> {
        let mut buffer = ReadBuf::new(scratch);
        match Pin::new(from).poll_read(context, &mut buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(_)) => return Err(Failed::Reading),
            Poll::Ready(Ok(())) => {}
        }
        let read = buffer.filled();
        if read.is_empty() {
            self.is_closed = true;
            return Ok(true);
        }
        let wanted = forward(read);
        if wanted < read.len() {
            self.close();
        }
        let mut rest = &read[..wanted];
        while !rest.is_empty() {
            match write(context, to, rest)? {
                Some(count) => rest = &rest[count..],
                None => {
                    self.pending = rest.to_vec();
                    break;
                }
            }
        }
        self.needs_flush = true;
        Ok(true)
    }

    fn write_pending(
        &mut self,
        context: &mut Context<'_>,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<bool, Failed> {
        let mut has_moved = false;
        while self.is_blocked() {
            let Some(count) = write(context, to, &self.pending[self.written..])? else { break };
            has_moved = true;
            self.needs_flush = true;
            self.written += count;
            if self.written == self.pending.len() {
                self.pending = Vec::new();
                self.written = 0;
            }
        }
        Ok(has_moved)
    }
}

/// Writes bytes and returns how many were written; `None` if the socket accepts none at the moment.
fn write(
    context: &mut Context<'_>,
    to: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<Option<usize>, Failed> {
    let polled: Poll<io::Result<usize>> = Pin::new(to).poll_write(context, bytes);
    match polled {
        Poll::Ready(Ok(count @ 1..)) => Ok(Some(count)),
        Poll::Ready(_) => Err(Failed::Writing),
        Poll::Pending => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    #[tokio::test]
    async fn a_receiver_that_does_not_read_costs_one_piece_and_stops_the_sender() {
        let (mut sender, mut from) = duplex(4 * PIECE_BYTES);
        let (mut to, mut receiver) = duplex(10);
        sender.write_all(&[7; 4 * PIECE_BYTES]).await.expect("there is room");
        let mut lane = Lane::default();
        poll_fn(|context| {
            while lane.poll_move(context, &mut from, &mut to, <[u8]>::len).expect("open") {}
            Poll::Ready(())
        })
        .await;
        assert!(lane.has_unsent());
        assert_eq!(lane.pending.len(), PIECE_BYTES - 10);
        assert!(lane.pending.capacity() <= PIECE_BYTES, "{}", lane.pending.capacity());
        drop(sender);
        let copying = poll_fn(|context| {
            while lane.poll_move(context, &mut from, &mut to, <[u8]>::len).expect("open") {}
            if lane.is_shut { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut read = Vec::new();
        let ((), count) = tokio::join!(copying, receiver.read_to_end(&mut read));
        assert_eq!(count.expect("read"), 4 * PIECE_BYTES);
        assert_eq!(lane.pending.capacity(), 0, "an idle lane holds nothing");
    }
}
