//! A socket that can be closed with a TCP reset, which drops the data that the peer has not read.
//!
//! The peer of a closed socket learns of the end only after it has read everything that was sent before. A follower reads no
//! more from the leader while its client reads nothing, so it would not learn that the leader has ended the connection. A reset
//! reaches it at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Decides whether a [`ResetOnClose`] resets its connection when it is dropped. The default: it does not.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetSwitch(Arc<AtomicBool>);

impl ResetSwitch {
    pub(crate) fn turn_on(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) struct ResetOnClose {
    socket: TcpStream,
    switch: ResetSwitch,
}

impl ResetOnClose {
    pub(crate) fn new(socket: TcpStream, switch: ResetSwitch) -> Self {
        Self { socket, switch }
    }
}

impl Drop for ResetOnClose {
    fn drop(&mut self) {
        if self.switch.0.load(Ordering::Relaxed) {
            // If this fails, the follower closes the connection of its client when that has not read for too long.
            let _ = self.socket.set_zero_linger();
        }
    }
}

impl AsyncRead for ResetOnClose {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for ResetOnClose {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
