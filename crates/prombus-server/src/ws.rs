//! One WebSocket: moves bytes between a socket and a [`Session`].
//!
//! One wake-up reads all that the socket holds (up to a limit), hands it to the session, and sends everything the session has to
//! say with one write. Bytes are read into memory of the thread, not of the connection; only a frame that is not there whole is
//! kept. So a connection that is quiet costs next to nothing, and one that is busy has a large buffer.

mod deflate;
pub(crate) mod frame;
mod timers;
pub(crate) mod upgrade;
mod utf8;

use crate::budget::Share;
use crate::gateway::{Gateway, now_ms, steady_ms};
use crate::session::{Ending, Session};
pub(crate) use deflate::Deflate;
#[cfg(feature = "test-util")]
pub(crate) use deflate::inflate;
use frame::{
    Decoder, Incoming, Violation, close, end_of_frame_at, put_close, put_deflated, put_ping, put_pong,
};
use prombus_protocol::ErrorCode;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use timers::Timers;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

/// What a thread reads at once.
const READ_BYTES: usize = 256 * 1024;
/// A frame with more than this missing is read into the connection's own buffer.
const OWN_READ_BYTES: usize = 16 * 1024;
/// What a frame of the protocol has besides its payload.
const FRAME_EXTRA_BYTES: usize = 512 * 1024;
/// Rounds of reading and writing before others get a turn.
const ROUNDS_MAX: usize = 16;
/// Buffers above this are let go when a connection is quiet.
const KEPT_BYTES: usize = 4 * 1024;
/// Both buffers together are let go at once above this.
const BUFFERS_MAX: usize = 1 << 20;
/// How long the end of a socket may take.
const SHUTDOWN_PATIENCE: Duration = Duration::from_millis(500);
/// How long to wait when all buffers together are full.
const NO_ROOM_RETRY_MS: u64 = 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// How a connection came to its end.
#[derive(Debug)]
enum Outcome {
    /// With a close frame of the client, or ours.
    Clean,
    /// The socket broke, or the client did not answer.
    Broken,
}

/// What is still to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Frames are read and answered.
    Open,
    /// No more frames are read; what was read is answered, then the close frame goes.
    Draining(Ending),
    /// The close frame is queued; what the client still sends is thrown away until it closes.
    Closing { is_answered: bool },
}

pub(crate) struct WebSocket<S> {
    socket: S,
    gateway: Arc<Gateway>,
    session: Session,
    decoder: Decoder,
    /// The start of a frame that is not there whole, or frames that wait for their turn.
    unread: Vec<u8>,
    /// What is being sent, from a frame's start on.
    writing: Vec<u8>,
    written: usize,
    /// Bytes of frames that were sent before `writing`, before they were compressed.
    sent_before: u64,
    /// Bytes of the frames in `writing`, before they were compressed.
    writing_bytes: usize,
    /// How messages are compressed, if the client wants that.
    deflate: Option<Deflate>,
    /// Where the frames in `writing` end, before they were compressed and after; empty if they were not.
    frame_ends: Vec<(usize, usize)>,
    phase: Phase,
    timers: Timers,
    share: Share,
    /// Whether frames could not be handled when they were last looked at.
    is_blocked: bool,
    /// Whether it was not read because all buffers together are full.
    is_starved: bool,
    /// Whether what was written has left; TLS may keep some.
    is_flushed: bool,
    is_eof: bool,
    /// The client sent what is not WebSocket: where its next frame begins is not known, so nothing is waited for.
    is_failed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    pub(crate) fn new(socket: S, gateway: Arc<Gateway>, session: Session, deflate: Option<Deflate>) -> Self {
        let limits = &gateway.options.connections;
        let timers = Timers::new(limits, steady_ms());
        let decoder = Decoder::new(gateway.options.max_payload_bytes + FRAME_EXTRA_BYTES, deflate.is_some());
        gateway.metrics.ws_connections.fetch_add(1, Ordering::Relaxed);
        Self {
            socket,
            gateway,
            session,
            decoder,
            unread: Vec::new(),
            writing: Vec::new(),
            written: 0,
            sent_before: 0,
            writing_bytes: 0,
            deflate,
            frame_ends: Vec::new(),
            phase: Phase::Open,
            timers,
            share: Share::default(),
            is_blocked: false,
            is_starved: false,
            is_flushed: true,
            is_eof: false,
            is_failed: false,
        }
    }

    /// Serves the connection until it ends. `leftover` was read with the request.
    pub(crate) async fn run(mut self, leftover: &[u8]) {
        self.unread.extend_from_slice(leftover);
        let gateway = Arc::clone(&self.gateway);
        let mut stopping = Box::pin(async move { gateway.stopping.wait().await });
        let outcome = poll_fn(|context| {
            if self.phase == Phase::Open && stopping.as_mut().poll(context).is_ready() {
                self.session.leave();
                self.drain(Ending { code: close::GOING_AWAY, reason: "the server shuts down" });
            }
            self.poll(context)
        })
        .await;
        match outcome {
            Outcome::Clean => self.session.leave(),
            Outcome::Broken => self.session.lose(self.sent(self.written)),
        }
        let _ = tokio::time::timeout(SHUTDOWN_PATIENCE, self.shut()).await;
    }

    /// Ends the socket: says that nothing more comes, also in TLS, and waits for the client to do the same. A socket that is
    /// closed with something unread in it would take the close frame with it.
    async fn shut(&mut self) {
        if self.socket.shutdown().await.is_err() || self.is_eof {
            return;
        }
        let mut rest = [0; 1024];
        while self.socket.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        for _ in 0..ROUNDS_MAX {
            let mut is_idle = match self.read(context) {
                Poll::Ready(Ok(())) => false,
                Poll::Ready(Err(_)) => return Poll::Ready(Outcome::Broken),
                Poll::Pending => true,
            };
            // Nothing comes behind the close frame.
            if !matches!(self.phase, Phase::Closing { .. }) {
                self.session.flush();
                self.session.poll(context, self.queued(), self.sent_before + self.writing_bytes as u64);
            }
            self.look_at_the_time();
            self.end_phase();
            match self.write(context) {
                Poll::Ready(Ok(true)) => is_idle = false,
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(self.outcome_when_broken()),
                Poll::Pending => {}
            }
            if let Some(outcome) = self.end() {
                return Poll::Ready(outcome);
            }
            if is_idle && !self.session.is_ready_to_pull(self.queued()) {
                self.account();
                return self.sleep(context);
            }
        }
        self.account();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Bytes that wait to be sent, without what the session has to say.
    fn queued(&self) -> usize {
        self.writing.len() - self.written
    }

    /// The number of bytes sent when this much of `writing` was written, counted before compression.
    fn sent(&self, written: usize) -> u64 {
        let ends = &self.frame_ends;
        let of_writing = match ends.partition_point(|&(_, end)| end <= written) {
            _ if ends.is_empty() => written,
            0 => 0,
            whole => ends[whole - 1].0,
        };
        self.sent_before + of_writing as u64
    }

    fn can_handle(&self) -> bool {
        self.phase == Phase::Open && self.session.is_open_for_frames(self.queued())
    }

    /// Reads once and handles what came. Ready when there may be more.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.phase == Phase::Open && !self.unread.is_empty() && self.can_handle() {
            self.handle_unread();
        }
        self.is_blocked = self.phase == Phase::Open && !self.can_handle();
        if self.is_blocked || self.is_eof || matches!(self.phase, Phase::Draining(_)) {
            self.is_starved = false;
            return Poll::Pending;
        }
        let own_bytes = self.unread.len() + self.decoder.held_bytes() + self.session.byte_count();
        self.is_starved = !self.gateway.budget.has_room() && own_bytes >= KEPT_BYTES;
        if self.is_starved {
            self.timers.retry_at(steady_ms() + NO_ROOM_RETRY_MS);
            return Poll::Pending;
        }
        let read_bytes = if self.unread.len() > OWN_READ_BYTES {
            ready!(self.read_into_own(context))?
        } else {
            ready!(self.read_into_scratch(context))?
        };
        // After a close frame nothing more is read, also if other bytes came with it.
        self.is_eof |= read_bytes == 0;
        if read_bytes > 0 {
            self.timers.heard();
        }
        Poll::Ready(Ok(()))
    }

    /// A frame that is large: the rest of it goes where its start is.
    fn read_into_own(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let filled = self.unread.len();
        let wanted = self
            .decoder
            .frame_bytes(&self.unread)
            .unwrap_or(0)
            .clamp(filled + KEPT_BYTES, filled + READ_BYTES);
        self.unread.resize(wanted, 0);
        let mut buffer = ReadBuf::new(&mut self.unread);
        buffer.set_filled(filled);
        let polled = Pin::new(&mut self.socket).poll_read(context, &mut buffer);
        let now_filled = buffer.filled().len();
        self.unread.truncate(now_filled);
        ready!(polled)?;
        self.handle_unread();
        Poll::Ready(Ok(now_filled - filled))
    }

    fn read_into_scratch(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let filled = self.unread.len();
            scratch[..filled].copy_from_slice(&self.unread);
            let most = if self.gateway.budget.has_room() { scratch.len() } else { filled + KEPT_BYTES };
            let mut buffer = ReadBuf::new(&mut scratch[..most]);
            buffer.set_filled(filled);
            ready!(Pin::new(&mut self.socket).poll_read(context, &mut buffer))?;
            let now_filled = buffer.filled().len();
            if now_filled > filled {
                let used = self.handle_frames(&mut scratch[..now_filled]);
                self.unread.clear();
                self.unread.extend_from_slice(&scratch[used..now_filled]);
                if self.unread.is_empty() && self.unread.capacity() > 0 {
                    self.unread = Vec::new();
                }
            }
            Poll::Ready(Ok(now_filled - filled))
        })
    }

    fn handle_unread(&mut self) {
        let mut unread = std::mem::take(&mut self.unread);
        let used = self.handle_frames(&mut unread);
        unread.drain(..used);
        if !unread.is_empty() {
            self.unread = unread;
        }
    }

    /// Handles frames as long as it may; answers how many bytes were used up.
    fn handle_frames(&mut self, bytes: &mut [u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            match self.phase {
                Phase::Open if self.session.is_open_for_frames(self.writing.len() - self.written) => {}
                Phase::Closing { .. } => {}
                Phase::Open | Phase::Draining(_) => break,
            }
            let is_closing = self.phase != Phase::Open;
            let (taken, incoming) = match self.decoder.next(&mut bytes[used..]) {
                Ok(next) => next,
                Err(_) if is_closing => return bytes.len(),
                Err(violation) => {
                    self.refuse(violation);
                    return bytes.len();
                }
            };
            if taken == 0 {
                break;
            }
            used += taken;
            match incoming {
                Some(Incoming::Close(code)) => {
                    self.client_closes(code);
                    return bytes.len();
                }
                _ if is_closing => {}
                Some(Incoming::Text(text)) => self.session.handle(text),
                Some(Incoming::Binary(payload)) => self.session.handle_binary(payload),
                Some(Incoming::Ping(payload)) => put_pong(&mut self.session.out, payload),
                Some(Incoming::Pong) | None => {}
            }
            self.decoder.release();
        }
        let is_partial = used < bytes.len() || self.decoder.is_inside_message();
        self.timers.partial(is_partial && self.phase == Phase::Open, used > 0, steady_ms());
        used
    }

    fn refuse(&mut self, violation: Violation) {
        if matches!(violation, Violation::TooLarge(_)) {
            self.session.err(None, ErrorCode::TooLarge, &violation.to_string());
        }
        tracing::debug!("a connection is closed: {violation}");
        self.is_failed = true;
        let reason = match violation {
            Violation::TooLarge(_) => "the message is too large",
            Violation::Protocol(what) | Violation::Data(what) => what,
        };
        self.drain(Ending { code: violation.close_code(), reason });
    }

    fn client_closes(&mut self, code: Option<u16>) {
        match self.phase {
            Phase::Closing { .. } => self.phase = Phase::Closing { is_answered: true },
            _ => {
                self.session.leave();
                self.drain(Ending { code: close::answer_to(code), reason: "" });
                // The client has closed already; nothing is waited for after the answer.
                self.is_eof = true;
            }
        }
    }

    /// No more frames are handled; what was read is answered, and then the close frame goes.
    fn drain(&mut self, ending: Ending) {
        if self.phase == Phase::Open {
            // Whatever the reason: nobody gets events here any more.
            self.session.leave();
            self.unread = Vec::new();
            self.phase = Phase::Draining(ending);
            self.timers.draining(steady_ms());
        }
    }

    fn look_at_the_time(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        if let Some(ending) = self.session.ending() {
            return self.drain(ending);
        }
        let now = steady_ms();
        if !self.session.is_authenticated() {
            if self.timers.is_auth_due(now) {
                self.session.err(None, ErrorCode::Unauthorized, "no AUTH in time");
                self.drain(Ending { code: close::POLICY, reason: "no AUTH in time" });
            }
        } else if self.session.expires_ms().is_some_and(|expires_ms| expires_ms <= now_ms()) {
            self.session.err(None, ErrorCode::Unauthorized, "the token has expired");
            self.session.leave();
            return self.drain(Ending { code: close::POLICY, reason: "the token has expired" });
        }
        let is_behind = self.queued() > 0;
        if self.timers.is_stalled(is_behind, now) {
            // What has left in part must end; the rest was never seen, and goes to others now.
            let end = end_of_frame_at(&self.writing, self.written);
            self.session.lose(self.sent(end));
            self.writing.truncate(end);
            self.frame_ends.retain(|&(_, frame_end)| frame_end <= end);
            self.session.out = Vec::new();
            self.gateway.metrics.ws_stalled.fetch_add(1, Ordering::Relaxed);
            tracing::info!("{} reads nothing and is closed", self.session.who());
            return self.drain(Ending { code: close::TRY_LATER, reason: "nothing was read for too long" });
        }
        if self.timers.is_frame_late(now) && !self.is_blocked {
            return self.drain(Ending { code: close::POLICY, reason: "a message took too long to arrive" });
        }
        self.session.hold(self.timers.is_blocked_long(self.is_blocked, now) || self.is_starved);
        if self.timers.is_ping_due(now) {
            if self.timers.is_silent() && !self.is_blocked && !self.is_starved {
                self.session.lose(self.sent(self.written));
                self.gateway.metrics.ws_silent.fetch_add(1, Ordering::Relaxed);
                tracing::info!("{} answers no ping and is closed", self.session.who());
                self.drain(Ending { code: close::POLICY, reason: "no answer to a ping" });
                self.is_eof = true;
                return;
            }
            put_ping(&mut self.session.out);
            self.timers.pinged(now);
            self.let_go_of_buffers();
        }
    }

    /// Sends the close frame when everything before it is answered, or it takes too long.
    fn end_phase(&mut self) {
        if let Phase::Draining(ending) = self.phase
            && (self.session.is_answered() || self.timers.is_drain_over(steady_ms()))
        {
            put_close(&mut self.session.out, ending.code, ending.reason);
            self.phase = Phase::Closing { is_answered: self.is_eof };
            self.timers.closing(steady_ms());
        }
    }

    /// Writes what there is. True when something was written.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut has_written = false;
        loop {
            if self.written == self.writing.len() {
                self.sent_before += self.writing_bytes as u64;
                self.writing.clear();
                (self.written, self.writing_bytes) = (0, 0);
                self.frame_ends.clear();
                if self.session.out.is_empty() {
                    break;
                }
                self.writing_bytes = self.session.out.len();
                match self.deflate {
                    None => std::mem::swap(&mut self.writing, &mut self.session.out),
                    Some(deflate) => {
                        let (frames, ends) = (&mut self.session.out, &mut self.frame_ends);
                        put_deflated(deflate, frames, &mut self.writing, ends);
                        frames.clear();
                    }
                }
            }
            let polled = Pin::new(&mut self.socket).poll_write(context, &self.writing[self.written..]);
            let Poll::Ready(count) = polled? else {
                self.timers.behind(steady_ms());
                return Poll::Ready(Ok(has_written));
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.is_flushed = false;
            self.timers.wrote(steady_ms());
            has_written = true;
        }
        self.timers.caught_up();
        if self.deflate.is_some() {
            self.frame_ends = Vec::new();
        }
        if !self.gateway.budget.has_room()
            || self.writing.capacity() + self.session.out.capacity() > BUFFERS_MAX
        {
            self.let_go_of_buffers();
        }
        // TLS may keep what it was given.
        ready!(Pin::new(&mut self.socket).poll_flush(context))?;
        self.is_flushed = true;
        Poll::Ready(Ok(has_written))
    }

    /// Memory that is not used now; a busy connection would only ask for it again.
    fn let_go_of_buffers(&mut self) {
        for buffer in [&mut self.writing, &mut self.session.out] {
            if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        if self.frame_ends.is_empty() {
            self.frame_ends = Vec::new();
        }
    }

    fn end(&mut self) -> Option<Outcome> {
        let is_sent = self.written == self.writing.len() && self.session.out.is_empty() && self.is_flushed;
        match self.phase {
            Phase::Closing { is_answered } if is_sent && (is_answered || self.is_eof || self.is_failed) => {
                Some(Outcome::Clean)
            }
            Phase::Closing { .. } | Phase::Draining(_) if self.timers.is_close_over(steady_ms()) => {
                Some(Outcome::Clean)
            }
            Phase::Open if self.is_eof => Some(Outcome::Broken),
            _ => None,
        }
    }

    /// A socket that breaks while the client says goodbye is no accident.
    fn outcome_when_broken(&self) -> Outcome {
        match self.phase {
            Phase::Open => Outcome::Broken,
            _ => Outcome::Clean,
        }
    }

    fn account(&mut self) {
        let bytes = self.unread.capacity()
            + self.writing.capacity()
            + self.decoder.held_bytes()
            + self.session.byte_count();
        self.gateway.budget.set(&mut self.share, bytes);
    }

    fn sleep(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let expires =
            self.session.expires_ms().map(|at| steady_ms() + at.saturating_sub(now_ms()).max(0) as u64);
        let others = [expires, self.session.wake_at_ms()];
        let is_authenticated = self.session.is_authenticated();
        if self.timers.poll(context, is_authenticated, others).is_ready() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<S> Drop for WebSocket<S> {
    fn drop(&mut self) {
        self.gateway.budget.set(&mut self.share, 0);
        self.gateway.metrics.ws_connections.fetch_sub(1, Ordering::Relaxed);
    }
}
