//! The time limits of an HTTP connection, implemented by its socket: for the head of a request, for the idle time before it, and
//! for writes.
//!
//! - Read: a head must be complete within `head_timeout` of its first byte (the first head: within `head_timeout` of the start of
//!   the connection). Between two requests a connection may be idle for `keep_alive`. hyper has only one timer for both. Between
//!   requests hyper reads only to get the next head, so a read that waits while no request is served waits for a head.
//! - Write: a write that makes no progress for `write_timeout` (the option `stall_timeout`) fails. Responses have no other time
//!   limit. Without this one, a client that asks for an export and never reads it would keep its connection indefinitely.

use crate::options::ConnectionLimits;
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
pub(super) enum RequestPhase {
    /// The first head, or the rest of a head.
    Head,
    /// A handler runs. Reads are for the body, which has limits of its own.
    Request,
    /// The next request.
    Idle,
}

/// The phase of a connection, shared by its socket and the service that handles its requests.
#[derive(Clone, Debug)]
pub(super) struct SharedRequestPhase(Arc<Mutex<RequestPhase>>);

impl SharedRequestPhase {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(RequestPhase::Head)))
    }

    pub(super) fn set(&self, phase: RequestPhase) {
        *self.0.lock() = phase;
    }

    fn get(&self) -> RequestPhase {
        *self.0.lock()
    }
}

/// A socket whose reads and writes have time limits.
pub(super) struct TimedSocket<S> {
    socket: S,
    phase: SharedRequestPhase,
    head_timeout: Duration,
    keep_alive: Duration,
    write_timeout: Duration,
    /// Runs while a read waits, with the phase that it belongs to.
    read_timer: Option<(RequestPhase, Pin<Box<Sleep>>)>,
    /// Runs while a write waits.
    write_timer: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedSocket<S> {
    pub(super) fn new(socket: S, phase: SharedRequestPhase, limits: &ConnectionLimits) -> Self {
        Self {
            socket,
            phase,
            head_timeout: limits.head_timeout,
            keep_alive: limits.keep_alive,
            write_timeout: limits.stall_timeout,
            read_timer: None,
            write_timer: None,
        }
    }

    pub(super) fn into_inner(self) -> S {
        self.socket
    }

    fn is_read_late(&mut self, phase: RequestPhase, context: &mut Context<'_>) -> bool {
        let limit = if phase == RequestPhase::Idle { self.keep_alive } else { self.head_timeout };
        if self.read_timer.as_ref().is_none_or(|(of, _)| *of != phase) {
            self.read_timer = Some((phase, Box::pin(tokio::time::sleep_until(Instant::now() + limit))));
        }
        self.read_timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(context).is_ready())
    }

    /// Fails a write that has waited for too long.
    fn limit_write<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.write_timer = None;
            return polled;
        }
        let until = Instant::now() + self.write_timeout;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_read(context, buffer);
        match (self.phase.get(), polled.is_ready()) {
            (RequestPhase::Request, _) => self.read_timer = None,
            (RequestPhase::Idle, true) => {
                self.read_timer = None;
                self.phase.set(RequestPhase::Head);
            }
            (RequestPhase::Head, true) => {}
            (phase, false) => {
                if self.is_read_late(phase, context) {
                    // To hyper, an idle connection ends as if the client had closed it.
                    return Poll::Ready(match phase {
                        RequestPhase::Idle => Ok(()),
                        _ => Err(io::ErrorKind::TimedOut.into()),
                    });
                }
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.limit_write(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(context, pieces);
        self.limit_write(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_flush(context);
        self.limit_write(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_shutdown(context);
        self.limit_write(polled, context)
    }
}
