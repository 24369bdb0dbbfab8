//! Whole WebSocket sessions over bytes in memory: what the fuzzer and the seeded test of random frames run.

use crate::auth::{Authenticator, TokenHash, TokenOptions};
use crate::gateway::{Gateway, Peer, Slot, Stopping};
use crate::options::ServerOptions;
use crate::session::Session;
use crate::ws::WebSocket;
use crate::{AuthOptions, Scope};
use prombus::Bus;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

/// The token that a session with auth takes.
pub const TOKEN: &str = "fuzz";

/// Masks a text or binary message as a client does. `first` is the frame's first byte, e.g. `0x81` for a text.
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

/// Sends these bytes to a session of their own over a bus in memory, in pieces of these sizes, and answers the texts that came
/// back. The session ends when the bytes do.
///
/// # Panics
/// If what came back is not WebSocket: the fault that this looks for.
pub fn talk(bytes: &[u8], piece_bytes: usize, has_auth: bool) -> Vec<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime starts").block_on(talk_async(bytes, piece_bytes.max(1), has_auth))
}

async fn talk_async(bytes: &[u8], piece_bytes: usize, has_auth: bool) -> Vec<Vec<u8>> {
    let bus = Bus::memory();
    let mut auth = AuthOptions::default();
    if has_auth {
        let (name, secret) = ("fuzz".to_owned(), TokenHash::of(TOKEN));
        auth.tokens.push(TokenOptions { name, secret, scopes: Scope::all() });
    }
    let authenticator = Authenticator::new(&auth).expect("a token is all it needs");
    let mut options = ServerOptions { auth, ..ServerOptions::default() };
    options.connections.max_subscriptions = 8;
    let (_stop, stopping) = Stopping::new();
    let gateway = Arc::new(Gateway::new(Arc::clone(bus.backend()), authenticator, options, stopping));
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("nobody else wants it");
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let peer = Arc::new(Peer {
        remote: nowhere,
        local: nowhere,
        is_tls: false,
        rate: gateway.rates.connection(),
        _slot: Slot::new(permit, &gateway.metrics.connections),
    });
    let (client, server) = tokio::io::duplex(64 * 1024);
    let session = Session::new(Arc::clone(&gateway), peer, None);
    let serving = WebSocket::new(server, gateway, session).run(&[]);
    let (mut reading, mut writing) = tokio::io::split(client);
    let talking = async move {
        for piece in bytes.chunks(piece_bytes) {
            if writing.write_all(piece).await.is_err() {
                break;
            }
        }
        // Time for answers: the clock is paused, so this costs none.
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

/// The texts in what a server sent.
fn texts_of(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    while let [first, second, rest @ ..] = bytes {
        assert_eq!((first & 0xf0, second & 0x80), (0x80, 0), "a server's frames are whole and not masked");
        let number = |bytes: &[u8]| bytes.iter().fold(0, |all, &byte| all << 8 | usize::from(byte));
        let (skipped, length) = match second {
            126 => (2, number(rest.get(..2).unwrap_or_default())),
            127 => (8, number(rest.get(..8).unwrap_or_default())),
            short => (0, usize::from(*short)),
        };
        // The last frame may be cut off by a client that went away.
        let Some(payload) = rest.get(skipped..skipped + length) else { break };
        if first & 0x0f == 1 {
            texts.push(payload.to_vec());
        }
        bytes = &rest[skipped + length..];
    }
    texts
}
