//! Prefaces that tests write themselves.

use super::preface::{Nonce, Preface, RelayKey};
use crate::peer::Ends;
use std::net::SocketAddr;

/// What a test says in a preface.
#[derive(Clone, Copy, Debug)]
pub struct TestPreface {
    /// The key.
    pub secret: [u8; 32],
    /// The term.
    pub term: u64,
    /// 1 in a good one.
    pub hops: u8,
    /// The connection's number.
    pub counter: u64,
    /// The client that it claims.
    pub client: SocketAddr,
}

impl TestPreface {
    /// The bytes, and what a leader answers if it believes them.
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let key = RelayKey::new(&self.secret);
        let nonce = Nonce { follower: *b"a test follower.", counter: self.counter };
        let local = SocketAddr::from(([127, 0, 0, 1], 8090));
        let ends = Ends { remote: self.client, local, is_tls: false };
        let bytes = Preface { hops: self.hops, ..Preface::new(self.term, nonce, ends) }.encode(&key);
        (bytes.to_vec(), key.confirmation(&bytes).to_vec())
    }
}

/// What a leader answers to a preface that it believes.
///
/// # Panics
/// If the bytes are not as many as a preface has.
pub fn confirmation(secret: &[u8; 32], preface: &[u8]) -> Vec<u8> {
    let preface = preface.try_into().expect("a whole preface");
    RelayKey::new(secret).confirmation(preface).to_vec()
}
