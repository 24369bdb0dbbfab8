//! A socket whose first bytes were already read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads first the bytes that were taken from the socket before, then the socket.
pub(crate) struct PrefixedSocket<S> {
    /// The bytes that were taken from the socket before.
    prefix: Vec<u8>,
    /// How many bytes of the prefix were read.
    taken: usize,
    socket: S,
}

impl<S> PrefixedSocket<S> {
    pub(crate) fn new(prefix: Vec<u8>, socket: S) -> Self {
        Self { prefix, taken: 0, socket }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let it = &mut *self;
        if it.prefix.is_empty() {
            return Pin::new(&mut it.socket).poll_read(context, buffer);
        }
        let unread = &it.prefix[it.taken..];
        let count = unread.len().min(buffer.remaining());
        buffer.put_slice(&unread[..count]);
        it.taken += count;
        if it.taken == it.prefix.len() {
            it.prefix = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefixedSocket<S> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn the_prefix_is_read_before_the_socket_also_in_small_reads() {
        for room in [1, 3, 64] {
            let mut socket = PrefixedSocket::new(b"abcd".to_vec(), &b"efg"[..]);
            let mut read = Vec::new();
            let mut piece = vec![0; room];
            while let count @ 1.. = socket.read(&mut piece).await.expect("no error") {
                read.extend_from_slice(&piece[..count]);
            }
            assert_eq!(read, b"abcdefg", "{room} bytes at a time");
        }
    }
}
