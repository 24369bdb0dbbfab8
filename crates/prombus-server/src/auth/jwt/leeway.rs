//! The validity period of a token: from `nbf` to `exp`, with a leeway on both sides for clocks that differ.

use super::fault::JwtFault;

/// Checks that the token is valid now. Returns when it expires, including the leeway.
pub(super) fn check_dates(
    exp_ms: i64,
    nbf_ms: Option<i64>,
    now_ms: i64,
    leeway_ms: i64,
) -> Result<i64, JwtFault> {
    let expires_ms = exp_ms.saturating_add(leeway_ms);
    if expires_ms <= now_ms {
        return Err(JwtFault::Expired);
    }
    if nbf_ms.is_some_and(|nbf_ms| now_ms.saturating_add(leeway_ms) < nbf_ms) {
        return Err(JwtFault::NotYetValid);
    }
    Ok(expires_ms)
}
