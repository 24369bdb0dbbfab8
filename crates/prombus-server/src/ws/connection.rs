//! One WebSocket: moves bytes between a socket and a [`Conversation`].
//!
//! Each wake-up reads everything that the socket holds (up to a limit), handles the frames, and sends the contents of the send
//! buffer with one write.

use super::close::Ending;
use super::conversation::{Conversation, HowEnded, Phase};
use super::frame_decoder::FrameDecoder;
use super::permessage_deflate::Deflate;
use super::receive_buffer::{OWN_READ_BYTES, ReceiveBuffer};
use super::session::Session;
use crate::buffer_budget::Share;
use crate::clock::steady_ms;
use crate::gateway::Gateway;
use crate::live::Reloads;
use crate::shutdown::StopReason;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Maximum size of a protocol frame without the event's payload.
const FRAME_EXTRA_BYTES: usize = 512 * 1024;
/// Rounds of reading and writing before other connections get a turn.
const ROUNDS_MAX: usize = 16;
/// A send buffer of more than this many bytes is released as soon as it is empty.
const SEND_BUFFER_MAX: usize = 1 << 20;
/// How long shutting down a socket may take.
const SHUTDOWN_PATIENCE: Duration = Duration::from_millis(500);
/// How long it may take if the client's token was withdrawn.
const WITHDRAWN_PATIENCE: Duration = Duration::from_millis(100);

/// A WebSocket that is served.
pub(crate) struct WebSocket<S> {
    socket: S,
    receive: ReceiveBuffer,
    conversation: Conversation,
    /// The bytes of the buffer budget that this connection uses.
    share: Share,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// `leftover`: bytes that were read together with the upgrade request.
    pub(crate) fn new(
        socket: S,
        leftover: &[u8],
        gateway: Arc<Gateway>,
        session: Session,
        deflate: Option<Deflate>,
    ) -> Self {
        let max_frame_bytes = gateway.options.max_payload_bytes + FRAME_EXTRA_BYTES;
        gateway.metrics.ws_connections.fetch_add(1, Ordering::Relaxed);
        Self {
            socket,
            receive: ReceiveBuffer::new(FrameDecoder::new(max_frame_bytes, deflate.is_some()), leftover),
            conversation: Conversation::new(gateway, session, deflate),
            share: Share::default(),
        }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn run(mut self) {
        let gateway = Arc::clone(&self.conversation.gateway);
        let reloads = gateway.live.subscribe();
        // A reload between the authentication and the subscription would not be notified.
        self.conversation.apply_reload();
        let mut signal = Box::pin(next_signal(Some(Arc::clone(&gateway)), reloads));
        let ended = poll_fn(|context| {
            // Reloads matter until the end: a client whose token is withdrawn has less time to answer the close frame.
            while let Poll::Ready((next, reloads)) = signal.as_mut().poll(context) {
                match next {
                    Signal::Stop(reason) => {
                        let is_relayed = self.conversation.session.is_relayed();
                        self.conversation.drain(Ending::of_stop(reason, is_relayed));
                        signal.set(next_signal(None, reloads));
                    }
                    Signal::Reload => {
                        self.conversation.apply_reload();
                        let is_open = self.conversation.phase == Phase::Open;
                        signal.set(next_signal(is_open.then(|| Arc::clone(&gateway)), reloads));
                    }
                }
            }
            self.poll(context)
        })
        .await;
        let Conversation { session, send, timers, .. } = &mut self.conversation;
        match ended {
            HowEnded::Clean => session.leave(),
            HowEnded::Broken => session.lose(send.sent()),
        }
        let patience = if timers.is_withdrawn() { WITHDRAWN_PATIENCE } else { SHUTDOWN_PATIENCE };
        let is_shut = tokio::time::timeout(patience, self.shut()).await.is_ok();
        let Conversation { session, timers, .. } = &self.conversation;
        if timers.is_withdrawn() && !is_shut {
            session.reset_if_relayed();
        }
    }

    /// Shuts down the sending side, including that of TLS, and waits until the client closes its side. Closing a socket with
    /// unread data would reset the connection, and the client could lose the close frame.
    async fn shut(&mut self) {
        if self.socket.shutdown().await.is_err() || self.conversation.is_eof {
            return;
        }
        let mut rest = [0; 1024];
        while self.socket.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<HowEnded> {
        for _ in 0..ROUNDS_MAX {
            let mut is_idle = match self.read(context) {
                Poll::Ready(Ok(())) => false,
                Poll::Ready(Err(_)) => return Poll::Ready(HowEnded::Broken),
                Poll::Pending => true,
            };
            let it = &mut self.conversation;
            // Nothing is sent after the close frame.
            if !matches!(it.phase, Phase::Closing { .. }) {
                it.session.poll(context, &mut it.send);
            }
            it.check_timers();
            if matches!(it.phase, Phase::Draining(_)) {
                self.receive.clear();
            }
            it.close_if_drained();
            match self.write(context) {
                Poll::Ready(Ok(true)) => is_idle = false,
                Poll::Ready(Ok(false)) | Poll::Pending => {}
                Poll::Ready(Err(_)) => return Poll::Ready(self.conversation.end_when_broken()),
            }
            let it = &self.conversation;
            if let Some(ended) = it.end() {
                return Poll::Ready(ended);
            }
            if is_idle && !it.session.is_ready_to_pull(&it.send) {
                self.account();
                return self.sleep(context);
            }
        }
        self.account();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads once and handles the frames that arrived. Pending when the socket has no data or must not be read now.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, receive, conversation, .. } = self;
        if !receive.is_empty() && conversation.is_open_for_frames() {
            receive.handle(|decoder, bytes| conversation.handle_frames(decoder, bytes));
        }
        if !conversation.may_read(receive.byte_count()) {
            return Poll::Pending;
        }
        let room_bytes = conversation.gateway.budget.room_bytes();
        let handle = |decoder: &mut _, bytes: &mut _| conversation.handle_frames(decoder, bytes);
        let count = ready!(receive.poll_read(socket, context, room_bytes, handle))?;
        conversation.received(count);
        // A large incomplete frame counts at once, so that other connections do not exceed the budget meanwhile.
        if self.receive.capacity() > OWN_READ_BYTES {
            self.account();
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the send buffer. Returns whether something was written.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Self { socket, conversation: Conversation { send, timers, gateway, .. }, .. } = self;
        let mut has_written = false;
        loop {
            match send.poll_write(socket, context)? {
                Poll::Ready(0) => break,
                Poll::Ready(_) => {
                    timers.wrote(steady_ms());
                    has_written = true;
                }
                Poll::Pending => {
                    timers.behind(steady_ms());
                    return Poll::Ready(Ok(has_written));
                }
            }
        }
        timers.caught_up();
        if !gateway.budget.has_room() || send.capacity() > SEND_BUFFER_MAX {
            send.release();
        }
        ready!(send.poll_flush(socket, context))?;
        Poll::Ready(Ok(has_written))
    }

    /// Updates the connection's share of the buffer budget.
    fn account(&mut self) {
        let Conversation { send, session, gateway, .. } = &self.conversation;
        let bytes = self.receive.capacity() + send.capacity() + session.byte_count();
        gateway.budget.set(&mut self.share, bytes);
    }

    fn sleep(&mut self, context: &mut Context<'_>) -> Poll<HowEnded> {
        let Conversation { session, timers, .. } = &mut self.conversation;
        if timers.poll(context, session.is_authenticated(), session.wake_at_ms()).is_ready() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// What a connection waits for besides its client.
enum Signal {
    Stop(StopReason),
    Reload,
}

/// Waits for a reload, and for the stop of the gateway if there is one.
async fn next_signal(gateway: Option<Arc<Gateway>>, mut reloads: Reloads) -> (Signal, Reloads) {
    let stop = async {
        match gateway {
            Some(gateway) => {
                gateway.stopping.wait().await;
                gateway.stopping.reason()
            }
            None => std::future::pending().await,
        }
    };
    let signal = tokio::select! {
        biased;
        reason = stop => Signal::Stop(reason),
        () = reloads.changed() => Signal::Reload,
    };
    (signal, reloads)
}

impl<S> Drop for WebSocket<S> {
    fn drop(&mut self) {
        let gateway = &self.conversation.gateway;
        gateway.budget.set(&mut self.share, 0);
        gateway.metrics.ws_connections.fetch_sub(1, Ordering::Relaxed);
    }
}
