//! Which keys of a JWKS file are not meant for this server. Identity providers publish keys for all their clients in one file.

use super::jwk_bytes::{RSA_BYTES, decoded, without_zeros};
use serde_json::Value;

/// Why a key is not meant for verifying tokens with a supported algorithm; `None` if it is, or if this cannot be told because the
/// key is invalid.
pub(super) fn reason(key: &Value) -> Option<&'static str> {
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    let curve = |supported: &str| text("crv").is_some_and(|curve| curve != supported);
    let algorithm = match text("kty")? {
        "RSA" => "RS256",
        "EC" if curve("P-256") => return Some("unsupported curve; supported: P-256"),
        "EC" => "ES256",
        "OKP" if curve("Ed25519") => return Some("unsupported curve; supported: Ed25519"),
        "OKP" => "EdDSA",
        "oct" => "HS256",
        _ => return Some("unsupported key type; supported: RSA, EC, OKP, oct"),
    };
    if text("use").is_some_and(|purpose| purpose != "sig") {
        return Some("not for signatures");
    }
    let operations = key.get("key_ops").and_then(Value::as_array);
    if operations.is_some_and(|operations| !operations.iter().any(|it| it == "verify")) {
        return Some("not for verifying signatures");
    }
    if text("alg").is_some_and(|wanted| wanted != algorithm) {
        return Some("unsupported algorithm for this type of key; supported: RS256, ES256, EdDSA, HS256");
    }
    // A set may still contain an old key that is too short.
    let modulus = text("n").and_then(decoded).map(without_zeros);
    if algorithm == "RS256" && modulus.is_some_and(|modulus| !RSA_BYTES.contains(&modulus.len())) {
        return Some("unsupported size of an RSA key; supported: 2048 to 8192 bits");
    }
    None
}
