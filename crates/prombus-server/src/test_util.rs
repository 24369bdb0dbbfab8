//! Complete WebSocket sessions over bytes in memory, for the fuzzer, the seeded test of random frames, and the benchmark that
//! counts instructions.

use crate::auth::{TokenHash, TokenOptions};
use crate::gateway::Gateway;
use crate::live::LiveOptions;
use crate::options::ServerOptions;
use crate::peer::Peer;
use crate::shutdown::{StopSender, Stopping};
use crate::ws::{Deflate, Session, WebSocket, inflate};
use crate::{AuthOptions, Scope};
use parking_lot::Mutex;
use prombus::{Backend, Bus};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

pub use crate::relay::test_preface::{TestPreface, confirmation};

/// The token of a session with auth.
pub const TOKEN: &str = "fuzz";

/// How much a [`Wire`] copies at once. Under valgrind, longer copies take one instruction per byte, and would be a tenth of the
/// cost of a session.
const PIECE_BYTES: usize = 1024;

/// Appends a text or binary message as a client sends it: one masked frame. `first` is the frame's first byte, e.g. `0x81` for a
/// text.
pub fn put_masked(into: &mut Vec<u8>, first: u8, payload: &[u8]) {
    into.push(first);
    match payload.len() {
        length @ 0..=125 => into.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            into.push(0x80 | 126);
            into.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            into.push(0x80 | 127);
            into.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    into.extend_from_slice(&mask);
    into.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

/// Like [`put_masked`] for a text message, which is compressed if it is long enough.
pub fn put_masked_deflated(into: &mut Vec<u8>, payload: &[u8]) {
    let mut deflated = Vec::new();
    match Deflate::plain().deflate(payload, &mut deflated) {
        true => put_masked(into, 0xc1, &deflated),
        false => put_masked(into, 0x81, payload),
    }
}

/// Sends these bytes to a new session over a bus in memory, in pieces of `piece_bytes`, and returns the texts that the server
/// sent. The session ends after the last byte. `deflates`: whether compression was negotiated.
///
/// # Panics
/// If the server violated the WebSocket protocol, which is what the callers test.
pub fn talk(bytes: &[u8], piece_bytes: usize, has_auth: bool, deflates: bool) -> Vec<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime starts").block_on(talk_async(bytes, piece_bytes.max(1), has_auth, deflates))
}

async fn talk_async(bytes: &[u8], piece_bytes: usize, has_auth: bool, deflates: bool) -> Vec<Vec<u8>> {
    let bus = Bus::memory();
    let mut auth = AuthOptions::default();
    if has_auth {
        let (name, secret) = ("fuzz".to_owned(), TokenHash::of(TOKEN));
        auth.tokens.push(TokenOptions { name, secret, scopes: Scope::all() });
    }
    let mut options = ServerOptions { auth, ..ServerOptions::default() };
    options.connections.max_subscriptions = 8;
    let (_stop, stopping) = Stopping::new();
    let live = LiveOptions::new(&options, None).expect("the token is valid");
    let gateway = Arc::new(Gateway::new(Arc::clone(bus.backend()), live, options, stopping));
    let (client, server) = tokio::io::duplex(64 * 1024);
    let web_socket = web_socket(gateway, server, deflates.then(Deflate::plain));
    let serving = web_socket.run();
    let (mut reading, mut writing) = tokio::io::split(client);
    let talking = async move {
        for piece in bytes.chunks(piece_bytes) {
            if writing.write_all(piece).await.is_err() {
                break;
            }
        }
        // Leave time for the answers. The clock is paused, so this takes no real time.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _ = writing.shutdown().await;
    };
    let hearing = async move {
        let mut answers = Vec::new();
        let _ = reading.read_to_end(&mut answers).await;
        answers
    };
    let ((), (), answers) = tokio::join!(serving, talking, hearing);
    texts_of(&answers)
}

/// A WebSocket over `socket`, as if a client on this machine had connected.
fn web_socket<S: AsyncRead + AsyncWrite + Unpin>(
    gateway: Arc<Gateway>,
    socket: S,
    deflate: Option<Deflate>,
) -> WebSocket<S> {
    let peer = Peer::local(gateway.rates.connection(), &gateway.metrics.connections);
    let session = Session::new(Arc::clone(&gateway), peer, None, 0);
    WebSocket::new(socket, &[], gateway, session, deflate)
}

/// A session that stays open. It runs on the caller's thread, and only in [`turn`](Self::turn), so that every run executes the
/// same instructions. Its timers need a tokio runtime.
pub struct Wire {
    bytes: Arc<Mutex<WireBytes>>,
    serving: Pin<Box<dyn Future<Output = ()>>>,
    is_due: Arc<Due>,
    waker: Waker,
    /// Dropping it shuts the server down.
    _stop: Arc<StopSender>,
}

/// The bytes in both directions.
#[derive(Default)]
struct WireBytes {
    to_server: Vec<u8>,
    taken: usize,
    to_client: Vec<u8>,
}

/// The session's end of the wire.
struct WireSocket(Arc<Mutex<WireBytes>>);

/// Whether a session was woken since its last turn.
struct Due(AtomicBool);

impl Wake for Due {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Wire {
    /// Opens `count` connections to one new server, which requires no token.
    pub fn open(backend: &Arc<dyn Backend>, count: usize) -> Vec<Self> {
        let mut options = ServerOptions::default();
        // No pings, however slow the machine is: the test does not answer them.
        options.connections.ping_interval = Duration::from_secs(86_400);
        let live = LiveOptions::new(&options, None).expect("an empty configuration is valid");
        let (stop, stopping) = Stopping::new();
        let stop = Arc::new(stop);
        let gateway = Arc::new(Gateway::new(Arc::clone(backend), live, options, stopping));
        let open = || {
            let bytes = Arc::<Mutex<WireBytes>>::default();
            let web_socket = web_socket(Arc::clone(&gateway), WireSocket(Arc::clone(&bytes)), None);
            let is_due = Arc::new(Due(AtomicBool::new(true)));
            Self {
                bytes,
                serving: Box::pin(async move { web_socket.run().await }),
                waker: Waker::from(Arc::clone(&is_due)),
                is_due,
                _stop: Arc::clone(&stop),
            }
        };
        std::iter::repeat_with(open).take(count).collect()
    }

    /// Runs the session until it waits. Returns whether there was anything to do.
    ///
    /// # Panics
    /// If the session ends.
    pub fn turn(&mut self) -> bool {
        let mut has_run = false;
        while self.is_due.0.swap(false, Ordering::Relaxed) {
            let polled = self.serving.as_mut().poll(&mut Context::from_waker(&self.waker));
            assert!(polled.is_pending(), "the session ended");
            has_run = true;
        }
        has_run
    }

    /// Sends bytes, which the session reads in its next turn.
    pub fn send(&mut self, bytes: &[u8]) {
        let mut wire = self.bytes.lock();
        let taken = std::mem::take(&mut wire.taken);
        wire.to_server.drain(..taken);
        wire.to_server.extend_from_slice(bytes);
        self.is_due.0.store(true, Ordering::Relaxed);
    }

    /// The text messages that the session has sent since the last call.
    ///
    /// # Panics
    /// If the session violated the WebSocket protocol.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut wire = self.bytes.lock();
        let texts = texts_of(&wire.to_client);
        wire.to_client.clear();
        texts
    }
}

impl AsyncRead for WireSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = self.0.lock();
        let unread = &wire.to_server[wire.taken..];
        let count = unread.len().min(buffer.remaining());
        unread[..count].chunks(PIECE_BYTES).for_each(|piece| buffer.put_slice(piece));
        wire.taken += count;
        if count == 0 { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncWrite for WireSocket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.0.lock();
        bytes.chunks(PIECE_BYTES).for_each(|piece| wire.to_client.extend_from_slice(piece));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The text messages in the bytes that a server sent.
fn texts_of(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    while let [first, second, rest @ ..] = bytes {
        assert_eq!((first & 0xb0, second & 0x80), (0x80, 0), "a server's frames are whole and not masked");
        let number = |bytes: &[u8]| bytes.iter().fold(0, |all, &byte| all << 8 | usize::from(byte));
        let (skipped, length) = match second {
            126 => (2, number(rest.get(..2).unwrap_or_default())),
            127 => (8, number(rest.get(..8).unwrap_or_default())),
            short => (0, usize::from(*short)),
        };
        // The last frame may be incomplete if the client disconnected.
        let Some(payload) = rest.get(skipped..skipped + length) else { break };
        if first & 0x0f == 1 {
            let is_deflated = first & 0x40 != 0;
            texts.push(if is_deflated {
                inflate(payload, 64 << 20).expect("deflate")
            } else {
                payload.to_vec()
            });
        }
        bytes = &rest[skipped + length..];
    }
    texts
}
