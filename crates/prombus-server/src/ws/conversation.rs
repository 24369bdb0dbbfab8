//! A WebSocket without its socket: handles the client's frames, enforces time limits, and closes the connection gracefully.
//!
//! The phase only moves forward: from [`Phase::Open`] to [`Phase::Draining`] to [`Phase::Closing`].

use super::answers::put_err;
use super::close::Ending;
use super::frame_decoder::{FrameDecoder, Incoming, Violation};
use super::permessage_deflate::Deflate;
use super::receive_buffer::LITTLE_READ_BYTES;
use super::send_buffer::SendBuffer;
use super::session::Session;
use super::timers::Timers;
use crate::clock::steady_ms;
use crate::gateway::Gateway;
use prombus_protocol::ErrorCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// While the buffer budget of all connections is used up: how long until a connection tries again to read.
const NO_ROOM_RETRY_MS: u64 = 20;

/// How a connection ended.
#[derive(Debug)]
pub(super) enum HowEnded {
    /// One of the sides had begun to close the connection.
    Clean,
    /// The socket failed or ended before either side began to close the connection.
    Broken,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Frames are read and answered.
    Open,
    /// No more frames are read. Frames that were already read are answered, then the close frame is sent.
    Draining(Ending),
    /// The close frame is queued. Further frames of the client are dropped until its close frame arrives (`is_answered`).
    Closing { is_answered: bool },
}

pub(super) struct Conversation {
    pub(super) gateway: Arc<Gateway>,
    pub(super) session: Session,
    pub(super) send: SendBuffer,
    pub(super) timers: Timers,
    pub(super) phase: Phase,
    /// Whether the socket is not read because the session can handle no frame now.
    is_blocked: bool,
    /// Whether the socket is not read because the buffer budget of all connections is used up.
    is_starved: bool,
    /// Whether nothing more is expected from the client: its stream has ended, it has sent a close frame, or it does not answer
    /// pings.
    pub(super) is_eof: bool,
    /// Whether the client violated the WebSocket protocol. Its close frame might not be recognized, so the server does not wait
    /// for one.
    is_failed: bool,
}

impl Conversation {
    pub(super) fn new(gateway: Arc<Gateway>, session: Session, deflate: Option<Deflate>) -> Self {
        let timers = Timers::new(&gateway.options.connections, steady_ms());
        Self {
            gateway,
            session,
            send: SendBuffer::new(deflate),
            timers,
            phase: Phase::Open,
            is_blocked: false,
            is_starved: false,
            is_eof: false,
            is_failed: false,
        }
    }

    /// Whether frames of the client can be handled now.
    pub(super) fn is_open_for_frames(&self) -> bool {
        self.phase == Phase::Open && self.session.is_open_for_frames(&self.send)
    }

    /// Whether the socket may be read now. `received_bytes`: how many received bytes already wait to be handled.
    pub(super) fn may_read(&mut self, received_bytes: usize) -> bool {
        self.is_blocked = self.phase == Phase::Open && !self.is_open_for_frames();
        if self.is_blocked || self.is_eof || matches!(self.phase, Phase::Draining(_)) {
            self.is_starved = false;
            return false;
        }
        let own_bytes = received_bytes + self.send.queued_capacity() + self.session.byte_count();
        self.is_starved = !self.gateway.budget.has_room() && own_bytes >= LITTLE_READ_BYTES;
        if self.is_starved {
            self.timers.retry_at(steady_ms() + NO_ROOM_RETRY_MS);
        }
        !self.is_starved
    }

    /// Records that `count` bytes arrived; 0 is the end of the stream.
    pub(super) fn received(&mut self, count: usize) {
        // `|=`, because a close frame among these bytes may already have set it.
        self.is_eof |= count == 0;
        if count > 0 {
            self.timers.ping.heard();
        }
    }

    /// Handles frames while possible. Returns how many bytes were consumed.
    pub(super) fn handle_frames(&mut self, decoder: &mut FrameDecoder, bytes: &mut [u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            match self.phase {
                Phase::Open if self.session.is_open_for_frames(&self.send) => {}
                Phase::Closing { .. } => {}
                Phase::Open | Phase::Draining(_) => break,
            }
            let is_closing = self.phase != Phase::Open;
            let (taken, incoming) = match decoder.next(&mut bytes[used..]) {
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
                Some(Incoming::Text(text)) => self.session.handle(text, &mut self.send),
                Some(Incoming::Binary(payload)) => self.session.handle_binary(payload, &mut self.send),
                Some(Incoming::Ping(payload)) => self.send.put_pong(payload),
                Some(Incoming::Pong) | None => {}
            }
            decoder.release();
        }
        let is_partial = used < bytes.len() || decoder.is_inside_message();
        self.timers.partial(is_partial && self.phase == Phase::Open, used > 0, steady_ms());
        used
    }

    fn refuse(&mut self, violation: Violation) {
        if matches!(violation, Violation::TooLarge(_)) {
            put_err(&mut self.send, None, ErrorCode::TooLarge, &violation.to_string());
        }
        tracing::debug!("closing {}: {violation}", self.session.who());
        self.is_failed = true;
        self.drain(violation.into());
    }

    fn client_closes(&mut self, code: Option<u16>) {
        match self.phase {
            Phase::Closing { .. } => self.phase = Phase::Closing { is_answered: true },
            _ => {
                self.drain(Ending::answer_to(code));
                // The client has already closed, so nothing more is expected from it.
                self.is_eof = true;
            }
        }
    }

    /// Applies a reload. If the client's token was revoked or has other permissions, ends the connection: events that were not
    /// sent yet are dropped, and all leases are returned at once. Answers that were not sent yet are sent: what they report has
    /// happened. A connection that is already being closed gets less time for it.
    pub(super) fn apply_reload(&mut self) {
        let Err(withdrawn) = self.session.apply_reload() else { return };
        tracing::debug!("closing {}: {withdrawn}", self.session.who());
        self.timers.withdraw();
        if self.phase == Phase::Open {
            self.send.drop_unsent_events();
            put_err(&mut self.send, None, ErrorCode::Unauthorized, &withdrawn.to_string());
            self.drain(Ending::of_withdrawn(withdrawn));
        }
    }

    /// Leaves all groups and handles no more frames. The close frame is sent after the answers to earlier frames.
    pub(super) fn drain(&mut self, ending: Ending) {
        if self.phase == Phase::Open {
            self.session.leave();
            self.phase = Phase::Draining(ending);
            self.timers.draining(steady_ms());
        }
    }

    /// Ends the connection if a time limit is exceeded, and sends a ping when one is due.
    pub(super) fn check_timers(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        let now = steady_ms();
        if let Some(ending) = self.session.ending(self.timers.is_auth_due(now), &mut self.send) {
            return self.drain(ending);
        }
        if self.timers.is_stalled(self.send.is_behind(), now) {
            // The partly sent frame must be completed. The frames after it are dropped, so that their events are released for
            // other members at once.
            let sent = self.send.drop_unsent();
            self.session.lose(sent);
            self.gateway.metrics.ws_stalled.fetch_add(1, Ordering::Relaxed);
            tracing::info!("closing {}: it does not read", self.session.who());
            return self.drain(Ending::STALLED);
        }
        if self.timers.is_frame_late(now) && !self.is_blocked {
            return self.drain(Ending::SLOW_MESSAGE);
        }
        self.session.hold(self.timers.is_blocked_long(self.is_blocked, now) || self.is_starved);
        if self.timers.ping.is_due(now) {
            self.ping(now);
        }
    }

    /// Sends a ping, or ends the connection if the client has been silent since the last ping.
    fn ping(&mut self, now: u64) {
        if self.timers.ping.is_silent() && !self.is_blocked && !self.is_starved {
            self.session.lose(self.send.sent());
            self.gateway.metrics.ws_silent.fetch_add(1, Ordering::Relaxed);
            tracing::info!("closing {}: it does not respond to pings", self.session.who());
            self.drain(Ending::NO_PONG);
            self.is_eof = true;
            return;
        }
        self.send.put_ping();
        self.timers.ping.sent(now);
        self.send.release();
    }

    /// Sends the close frame when all frames are answered, or when draining takes too long.
    pub(super) fn close_if_drained(&mut self) {
        if let Phase::Draining(ending) = self.phase
            && (self.session.is_answered() || self.timers.is_drain_over(steady_ms()))
        {
            self.send.put_close(ending.code, ending.reason);
            self.phase = Phase::Closing { is_answered: self.is_eof };
            self.timers.closing(steady_ms());
        }
    }

    /// How the connection has ended; `None` while it has not.
    pub(super) fn end(&self) -> Option<HowEnded> {
        match self.phase {
            Phase::Closing { is_answered }
                if self.send.is_sent() && (is_answered || self.is_eof || self.is_failed) =>
            {
                Some(HowEnded::Clean)
            }
            Phase::Closing { .. } | Phase::Draining(_) if self.timers.is_close_over(steady_ms()) => {
                Some(HowEnded::Clean)
            }
            Phase::Open if self.is_eof => Some(HowEnded::Broken),
            _ => None,
        }
    }

    /// How a connection ended whose socket failed. If it was already being closed, the end is clean, because the client is then
    /// allowed to disconnect without a close frame.
    pub(super) fn end_when_broken(&self) -> HowEnded {
        match self.phase {
            Phase::Open => HowEnded::Broken,
            _ => HowEnded::Clean,
        }
    }
}
