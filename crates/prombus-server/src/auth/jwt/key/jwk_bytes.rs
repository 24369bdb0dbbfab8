//! Bytes and numbers in JSON Web Keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::ops::RangeInclusive;

/// The allowed sizes of an RSA modulus.
pub(super) const RSA_BYTES: RangeInclusive<usize> = 256..=1_024;

/// Decodes base64url. Some programs add padding.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

/// A number without leading zero bytes, which some programs add.
pub(super) fn without_zeros(number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    number[zeros..].to_vec()
}
