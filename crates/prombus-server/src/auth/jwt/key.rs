//! Loads the keys that verify tokens. No error and no log line contains a key.

mod foreign;
mod jwk_bytes;
mod print;

pub(in crate::auth) use print::KeyPrint;

use super::options::JwtKey;
use crate::auth::error::AuthSetupError;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey};
use jwk_bytes::{RSA_BYTES, decoded, without_zeros};
use serde_json::Value;
use std::fmt;
use std::path::Path;
use tokio_rustls::rustls::pki_types::pem::{PemObject, SectionKind};

/// The size of the HS256 hash: a shorter secret is easier to guess than the hash.
const MIN_SECRET_BYTES: usize = 32;

/// A key and its algorithm.
pub(super) struct Key {
    algorithm: Algorithm,
    /// The key's id. If the key or the token has none, ids are not compared.
    pub(super) kid: Option<String>,
    decoding: DecodingKey,
    pub(super) print: KeyPrint,
}

impl Key {
    pub(super) fn fits(&self, algorithm: Algorithm, kid: Option<&str>) -> bool {
        let fits_kid = match (self.kid.as_deref(), kid) {
            (Some(mine), Some(wanted)) => mine == wanted,
            _ => true,
        };
        self.algorithm == algorithm && fits_kid
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &str) -> bool {
        jsonwebtoken::crypto::verify(signature, message, &self.decoding, self.algorithm).unwrap_or(false)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("algorithm", &self.algorithm)
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

/// The keys of one source.
pub(super) fn load(source: &JwtKey) -> Result<Vec<Key>, AuthSetupError> {
    match source {
        JwtKey::Secret(secret) if secret.len() < MIN_SECRET_BYTES => {
            Err(AuthSetupError::WeakSecret { bytes: secret.len() })
        }
        JwtKey::Secret(secret) => {
            let decoding = DecodingKey::from_secret(secret.as_bytes());
            let print = print::secret(secret.as_bytes());
            Ok(vec![Key { algorithm: Algorithm::HS256, kid: None, decoding, print }])
        }
        JwtKey::PemFile(file) => from_file(file, from_pem),
        JwtKey::JwksFile(file) => from_file(file, |content| from_jwks(file, content)),
    }
}

fn from_file(
    file: &Path,
    read: impl FnOnce(&[u8]) -> Result<Vec<Key>, String>,
) -> Result<Vec<Key>, AuthSetupError> {
    let content =
        std::fs::read(file).map_err(|source| AuthSetupError::Read { file: file.to_owned(), source })?;
    read(&content).map_err(|fault| AuthSetupError::Key { file: file.to_owned(), fault })
}

/// All public keys of a PEM file.
fn from_pem(content: &[u8]) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(content) {
        let (kind, der) = section.map_err(|fault| format!("invalid PEM: {fault}"))?;
        match kind {
            SectionKind::PublicKey => keys.push(public_key(&der)?),
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                return Err("it contains a private key: use a file with the public key".to_owned());
            }
            SectionKind::Certificate => {
                return Err(
                    "it contains a certificate: extract the public key with \"openssl x509 -pubkey\""
                        .to_owned(),
                );
            }
            _ => {}
        }
    }
    // The older format of RSA keys (PKCS#1) is not one of the sections above.
    if keys.is_empty()
        && let Ok(decoding) = DecodingKey::from_rsa_pem(content)
        && let Ok(der) = decoding.try_get_as_bytes()
    {
        keys.push(public_key(der)?);
    }
    if keys.is_empty() { Err("no public key found (PEM)".to_owned()) } else { Ok(keys) }
}

/// Parses a public key. Its type determines the algorithm.
fn public_key(der: &[u8]) -> Result<Key, String> {
    let key = |algorithm, decoding, print| Ok(Key { algorithm, kid: None, decoding, print });
    if let Ok(parsed) = rsa::PublicKey::from_der(der) {
        check_rsa_bytes(parsed.modulus_len())?;
        let rsa::PublicKeyComponents { n, e } = rsa::PublicKeyComponents::from(&parsed);
        return key(Algorithm::RS256, DecodingKey::from_rsa_der(der), print::rsa(&n, &e));
    }
    if ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, der).is_ok() {
        return key(Algorithm::ES256, DecodingKey::from_ec_der(der), print::p256(der));
    }
    if ParsedPublicKey::new(&ED25519, der).is_ok() {
        return key(Algorithm::EdDSA, DecodingKey::from_ed_der(der), print::ed25519(der));
    }
    Err("unsupported public key; supported: RSA (RS256), P-256 (ES256), Ed25519 (EdDSA)".to_owned())
}

fn check_rsa_bytes(bytes: usize) -> Result<(), String> {
    if RSA_BYTES.contains(&bytes) {
        return Ok(());
    }
    Err(format!("unsupported RSA key of {} bits; supported: 2048 to 8192 bits", bytes * 8))
}

/// The usable keys of a set. Keys of other types and for other uses are skipped and logged. A usable key that cannot be read is an
/// error: a reload must not apply half of a file because of a typo.
fn from_jwks(file: &Path, content: &[u8]) -> Result<Vec<Key>, String> {
    let set: Value = serde_json::from_slice(content).map_err(|fault| format!("not JSON: {fault}"))?;
    let entries = set
        .get("keys")
        .and_then(Value::as_array)
        .ok_or("not a JSON Web Key Set: the list \"keys\" is missing")?;
    let mut keys = Vec::new();
    for (entry, position) in entries.iter().zip(1..) {
        match foreign::reason(entry) {
            Some(reason) => {
                tracing::warn!(file = %file.display(), key = position, reason, "a key of the JWKS file is skipped");
            }
            None => keys.push(from_jwk(entry).map_err(|fault| format!("key {position}: {fault}"))?),
        }
    }
    if keys.is_empty() {
        return Err(format!(
            "none of its {} keys can be used; supported: RSA, P-256, Ed25519, oct",
            entries.len()
        ));
    }
    Ok(keys)
}

fn from_jwk(entry: &Value) -> Result<Key, String> {
    // The parser's own message could contain parts of the key.
    let jwk: Jwk = serde_json::from_value(entry.clone()).map_err(|_| "not a JSON Web Key")?;
    let (algorithm, decoding, print) = jwk_parts(&jwk.algorithm)?;
    Ok(Key { algorithm, kid: jwk.common.key_id, decoding, print })
}

fn jwk_parts(parameters: &AlgorithmParameters) -> Result<(Algorithm, DecodingKey, KeyPrint), String> {
    let bytes = |text: &str| decoded(text).ok_or_else(|| "not base64url".to_owned());
    match parameters {
        AlgorithmParameters::RSA(parameters) => {
            let (n, e) = (without_zeros(bytes(&parameters.n)?), without_zeros(bytes(&parameters.e)?));
            let components = rsa::PublicKeyComponents { n: n.as_slice(), e: e.as_slice() };
            let parsed: rsa::PublicEncryptingKey =
                components.try_into().map_err(|_| "not a valid RSA key")?;
            check_rsa_bytes(parsed.key_size_bytes())?;
            Ok((Algorithm::RS256, DecodingKey::from_rsa_raw_components(&n, &e), print::rsa(&n, &e)))
        }
        AlgorithmParameters::EllipticCurve(parameters) if parameters.curve == EllipticCurve::P256 => {
            let point = [vec![4], bytes(&parameters.x)?, bytes(&parameters.y)?].concat();
            ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).map_err(|_| "not a valid P-256 key")?;
            Ok((Algorithm::ES256, DecodingKey::from_ec_der(&point), print::p256(&point)))
        }
        AlgorithmParameters::OctetKeyPair(parameters) if parameters.curve == EllipticCurve::Ed25519 => {
            let x = bytes(&parameters.x)?;
            ParsedPublicKey::new(&ED25519, &x).map_err(|_| "not a valid Ed25519 key")?;
            Ok((Algorithm::EdDSA, DecodingKey::from_ed_der(&x), print::ed25519(&x)))
        }
        AlgorithmParameters::OctetKey(parameters) => {
            let secret = bytes(&parameters.value)?;
            if secret.len() < MIN_SECRET_BYTES {
                return Err(format!("a secret of {} bytes: HS256 needs at least 32", secret.len()));
            }
            Ok((Algorithm::HS256, DecodingKey::from_secret(&secret), print::secret(&secret)))
        }
        _ => Err("unsupported key type or curve".to_owned()),
    }
}
