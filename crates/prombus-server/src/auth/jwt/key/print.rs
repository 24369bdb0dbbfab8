//! A hash that identifies a key, for tickets and for comparing configurations. It is the same for a PEM file and a JWKS file.

use crate::auth::fingerprint::{HASH_BYTES, sha256};

/// The hash of a key.
pub(in crate::auth) type KeyPrint = [u8; HASH_BYTES];

/// Length of an uncompressed point of P-256.
const P256_POINT_BYTES: usize = 65;
/// Length of an Ed25519 key.
const ED25519_BYTES: usize = 32;

/// `modulus` and `exponent`: big-endian.
pub(super) fn rsa(modulus: &[u8], exponent: &[u8]) -> KeyPrint {
    of(&[b"RSA", without_zeros(modulus), without_zeros(exponent)])
}

/// `key`: the point, or a DER document (SubjectPublicKeyInfo) that ends with it.
pub(super) fn p256(key: &[u8]) -> KeyPrint {
    of(&[b"P-256", end_of(key, P256_POINT_BYTES)])
}

/// `key`: the key, or a DER document (SubjectPublicKeyInfo) that ends with it.
pub(super) fn ed25519(key: &[u8]) -> KeyPrint {
    of(&[b"Ed25519", end_of(key, ED25519_BYTES)])
}

pub(super) fn secret(secret: &[u8]) -> KeyPrint {
    of(&[b"oct", secret])
}

/// The hash of several parts. Their boundaries matter.
fn of(parts: &[&[u8]]) -> KeyPrint {
    let hashes: Vec<u8> = parts.iter().flat_map(|part| sha256(part)).collect();
    sha256(&hashes)
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    &number[zeros..]
}

fn end_of(bytes: &[u8], length: usize) -> &[u8] {
    &bytes[bytes.len().saturating_sub(length)..]
}
