//! Cryptographically secure random numbers.

use rustix::rand::{GetRandomFlags, getrandom};

/// 32 random bytes.
pub(super) fn random_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .expect("getrandom of 32 bytes does not fail once the system is up");
    bytes
}

/// A random UUID.
pub(super) fn random_id() -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&random_bytes()[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}
