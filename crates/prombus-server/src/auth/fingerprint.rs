//! SHA-256, and fingerprints based on it.

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

pub(super) const HASH_BYTES: usize = digest::SHA256_OUTPUT_LEN;

/// Identifies a token or a JWT key in a ticket: a hash that reveals nothing about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint(u128);

impl Fingerprint {
    /// The fingerprint of several parts. Their boundaries matter: `ab`, `c` differs from `a`, `bc`.
    pub(super) fn of(parts: &[&[u8]]) -> Self {
        let hashes: Vec<u8> = parts.iter().flat_map(|part| sha256(part)).collect();
        Self(first_half(sha256(&hashes)))
    }
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; HASH_BYTES] {
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

/// Half of a hash: enough where an attacker cannot search for collisions.
pub(super) fn first_half(hash: [u8; HASH_BYTES]) -> u128 {
    let mut half = [0; HASH_BYTES / 2];
    half.copy_from_slice(&hash[..HASH_BYTES / 2]);
    u128::from_be_bytes(half)
}
