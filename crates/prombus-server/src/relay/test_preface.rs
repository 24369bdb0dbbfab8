//! Prefaces for tests, which may be invalid.

use super::preface::{Nonce, Preface, RelayKey};
use crate::peer::Ends;
use std::net::SocketAddr;

/// The fields of a preface for a test.
#[derive(Clone, Copy, Debug)]
pub struct TestPreface {
    /// The key of the HMAC.
    pub secret: [u8; 32],
    /// The term.
    pub term: u64,
    /// 1 in a valid preface.
    pub hops: u8,
    /// The counter of the nonce.
    pub counter: u64,
    /// The claimed address of the client.
    pub client: SocketAddr,
}

impl TestPreface {
    /// The bytes of the preface, and the confirmation of a leader that accepts it.
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let key = RelayKey::new(&self.secret);
        let nonce = Nonce { follower: *b"a test follower.", counter: self.counter };
        let local = SocketAddr::from(([127, 0, 0, 1], 8090));
        let ends = Ends { remote: self.client, local, is_tls: false };
        let bytes = Preface { hops: self.hops, ..Preface::new(self.term, nonce, ends) }.encode(&key);
        (bytes.to_vec(), key.confirmation(&bytes).to_vec())
    }
}

/// The confirmation of a leader that accepts this preface.
///
/// # Panics
/// If the number of bytes is wrong.
pub fn confirmation(secret: &[u8; 32], preface: &[u8]) -> Vec<u8> {
    let preface = preface.try_into().expect("a whole preface");
    RelayKey::new(secret).confirmation(preface).to_vec()
}
