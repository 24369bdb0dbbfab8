//! A socket with time limits for what comes before a request: a head must be complete soon after its first byte, and a connection
//! may be idle between two requests for longer than that.
//!
//! hyper has one timer for both. It reads between requests only to get the next head, so a read that waits while no request is
//! served is the wait for a head.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The rest of a head, or the first one.
    Head,
    /// A handler is at work; reads are for the body, which has limits of its own.
    Request,
    /// The next request.
    Idle,
}

/// The phase of a connection, for its socket and for those who serve its requests.
#[derive(Clone, Debug)]
pub(crate) struct SharedPhase(Arc<Mutex<Phase>>);

impl SharedPhase {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Phase::Head)))
    }

    pub(crate) fn set(&self, phase: Phase) {
        *self.0.lock() = phase;
    }

    fn get(&self) -> Phase {
        *self.0.lock()
    }
}

pub(crate) struct HeadTimer<S> {
    socket: S,
    phase: SharedPhase,
    head_timeout: Duration,
    keep_alive: Duration,
    /// Runs while a read waits, with the phase that it belongs to.
    timer: Option<(Phase, Pin<Box<Sleep>>)>,
}

impl<S> HeadTimer<S> {
    pub(crate) fn new(socket: S, phase: SharedPhase, head_timeout: Duration, keep_alive: Duration) -> Self {
        Self { socket, phase, head_timeout, keep_alive, timer: None }
    }

    pub(crate) fn into_inner(self) -> S {
        self.socket
    }

    fn is_time_up(&mut self, phase: Phase, context: &mut Context<'_>) -> bool {
        let limit = if phase == Phase::Idle { self.keep_alive } else { self.head_timeout };
        if self.timer.as_ref().is_none_or(|(of, _)| *of != phase) {
            self.timer = Some((phase, Box::pin(tokio::time::sleep_until(Instant::now() + limit))));
        }
        self.timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(context).is_ready())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadTimer<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_read(context, buffer);
        match (self.phase.get(), polled.is_ready()) {
            (Phase::Request, _) => self.timer = None,
            (Phase::Idle, true) => {
                self.timer = None;
                self.phase.set(Phase::Head);
            }
            (Phase::Head, true) => {}
            (phase, false) => {
                if self.is_time_up(phase, context) {
                    // An idle connection ends as if the client had closed it.
                    return Poll::Ready(match phase {
                        Phase::Idle => Ok(()),
                        _ => Err(io::ErrorKind::TimedOut.into()),
                    });
                }
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadTimer<S> {
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
        pieces: &[io::IoSlice<'_>],
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
