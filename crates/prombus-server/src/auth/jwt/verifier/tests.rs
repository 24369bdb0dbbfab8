//! Tests with tokens that are built by hand, so that they can be invalid in every way.

mod keys;

use super::*;
use crate::auth::Scope;
use crate::auth::jwt::JwtKey;
use crate::auth::temporary_file::TemporaryFile;
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use aws_lc_rs::{digest, hmac};
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::LazyLock;
use std::time::Duration;

const SECRET: &str = "a secret of more than thirty-two bytes";
const NOW_S: i64 = 1_700_000_000;
const NOW_MS: i64 = NOW_S * 1_000;

static RSA: LazyLock<RsaKeyPair> = LazyLock::new(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());
static EC: LazyLock<EcdsaKeyPair> =
    LazyLock::new(|| EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap());
static ED: LazyLock<Ed25519KeyPair> = LazyLock::new(|| Ed25519KeyPair::generate().unwrap());

fn part(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn token(header: &Value, payload: &str, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", part(header.to_string()), part(payload));
    let signature = part(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn by_secret(secret: &[u8]) -> impl Fn(&[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    move |message| hmac::sign(&key, message).as_ref().to_vec()
}

fn by_rsa(message: &[u8]) -> Vec<u8> {
    let mut signature = vec![0; RSA.public_modulus_len()];
    RSA.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
    signature
}

fn by_ec(message: &[u8]) -> Vec<u8> {
    EC.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
}

fn by_ed(message: &[u8]) -> Vec<u8> {
    ED.sign(message).as_ref().to_vec()
}

fn pem(tag: &str, der: impl AsRef<[u8]>) -> String {
    let lines = STANDARD.encode(der);
    let lines: Vec<_> = lines.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {tag}-----\n{}\n-----END {tag}-----\n", lines.join("\n"))
}

fn spki<'a>(key: &impl AsDer<PublicKeyX509Der<'a>>) -> Vec<u8> {
    key.as_der().unwrap().as_ref().to_vec()
}

fn rsa_pem() -> String {
    pem("PUBLIC KEY", spki(RSA.public_key()))
}

fn ec_pem() -> String {
    pem("PUBLIC KEY", spki(EC.public_key()))
}

fn ed_pem() -> String {
    pem("PUBLIC KEY", spki(ED.public_key()))
}

fn ed_jwk(kid: &str) -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "x": part(ED.public_key()), "kid": kid})
}

fn ec_jwk(kid: &str) -> Value {
    let point = EC.public_key().as_ref();
    json!({"kty": "EC", "crv": "P-256", "x": part(&point[1..33]), "y": part(&point[33..]), "kid": kid, "use": "sig"})
}

fn rsa_jwk(kid: &str) -> Value {
    let key = RSA.public_key();
    let (n, e) = (key.modulus(), key.exponent());
    let (n, e) = (n.big_endian_without_leading_zero(), e.big_endian_without_leading_zero());
    json!({"kty": "RSA", "n": part(n), "e": part(e), "alg": "RS256", "kid": kid})
}

fn verifier(keys: Vec<JwtKey>) -> JwtVerifier {
    JwtVerifier::new(&JwtOptions { keys, ..JwtOptions::default() }).unwrap()
}

fn with_secret() -> JwtVerifier {
    verifier(vec![JwtKey::Secret(SECRET.to_owned())])
}

fn with_pem(text: &str) -> Result<JwtVerifier, AuthSetupError> {
    let file = TemporaryFile::new(text);
    let keys = vec![JwtKey::PemFile(file.path().to_owned())];
    JwtVerifier::new(&JwtOptions { keys, ..JwtOptions::default() })
}

fn with_jwks(text: &str) -> Result<JwtVerifier, AuthSetupError> {
    let file = TemporaryFile::new(text);
    let keys = vec![JwtKey::JwksFile(file.path().to_owned())];
    JwtVerifier::new(&JwtOptions { keys, ..JwtOptions::default() })
}

/// Verifies a token with these claims, which is signed with the configured secret.
fn says(payload: &str) -> Result<Verified, AuthRefused> {
    with_secret().verify(&token(&json!({"alg": "HS256"}), payload, by_secret(SECRET.as_bytes())), NOW_MS)
}

fn good_claims() -> String {
    json!({"sub": "ada", "exp": NOW_S + 60, "scope": "publish:orders.* openid subscribe:**"}).to_string()
}

fn is_bad(result: Result<Verified, AuthRefused>) -> bool {
    matches!(result, Err(AuthRefused::Bad))
}

#[test]
fn each_kind_of_key_checks_its_own_algorithm() {
    let claims = good_claims();
    let good = [
        (with_secret(), token(&json!({"alg": "HS256"}), &claims, by_secret(SECRET.as_bytes()))),
        (with_pem(&rsa_pem()).unwrap(), token(&json!({"alg": "RS256"}), &claims, by_rsa)),
        (with_pem(&ec_pem()).unwrap(), token(&json!({"alg": "ES256"}), &claims, by_ec)),
        (with_pem(&ed_pem()).unwrap(), token(&json!({"alg": "EdDSA"}), &claims, by_ed)),
    ];
    for (row, (verifier, _)) in good.iter().enumerate() {
        for (column, (_, token)) in good.iter().enumerate() {
            assert_eq!(verifier.verify(token, NOW_MS).is_ok(), row == column, "key {row}, token {column}");
        }
    }
    let verified = good[0].0.verify(&good[0].1, NOW_MS).unwrap();
    assert_eq!(verified.name, "ada");
    assert_eq!(verified.expires_ms, NOW_MS + 90_000);
    assert_eq!(
        verified.scopes,
        ["publish:orders.*", "subscribe:**"].map(|text| text.parse::<Scope>().unwrap())
    );
}

#[test]
fn the_older_form_of_rsa_keys_and_several_keys_in_a_file_are_read() {
    let old = with_pem(&pem("RSA PUBLIC KEY", RSA.public_key())).unwrap();
    assert!(old.verify(&token(&json!({"alg": "RS256"}), &good_claims(), by_rsa), NOW_MS).is_ok());
    let both = with_pem(&format!("{}{}", ec_pem(), ed_pem())).unwrap();
    assert!(both.verify(&token(&json!({"alg": "ES256"}), &good_claims(), by_ec), NOW_MS).is_ok());
    assert!(both.verify(&token(&json!({"alg": "EdDSA"}), &good_claims(), by_ed), NOW_MS).is_ok());
}

#[test]
fn alg_none_is_refused_in_every_spelling() {
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        for verifier in [with_secret(), with_pem(&rsa_pem()).unwrap()] {
            let unsigned = token(&json!({"alg": alg}), &good_claims(), |_| Vec::new());
            assert!(is_bad(verifier.verify(&unsigned, NOW_MS)), "{alg}");
            let signed = token(&json!({"alg": alg}), &good_claims(), by_secret(SECRET.as_bytes()));
            assert!(is_bad(verifier.verify(&signed, NOW_MS)), "{alg}");
        }
    }
    assert!(is_bad(
        with_secret().verify(&token(&json!({}), &good_claims(), by_secret(SECRET.as_bytes())), NOW_MS)
    ));
}

#[test]
fn a_public_key_is_not_used_as_a_secret() {
    let header = json!({"alg": "HS256"});
    for (text, der) in [
        (rsa_pem(), spki(RSA.public_key())),
        (ec_pem(), EC.public_key().as_ref().to_vec()),
        (ed_pem(), ED.public_key().as_ref().to_vec()),
    ] {
        let verifier = with_pem(&text).unwrap();
        for secret in [text.as_bytes(), text.trim_end().as_bytes(), &der] {
            assert!(is_bad(verifier.verify(&token(&header, &good_claims(), by_secret(secret)), NOW_MS)));
        }
    }
}

#[test]
fn other_algorithms_of_the_same_family_are_refused() {
    let sha512 = |message: &[u8]| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA512, SECRET.as_bytes()), message).as_ref().to_vec()
    };
    assert!(is_bad(with_secret().verify(&token(&json!({"alg": "HS512"}), &good_claims(), sha512), NOW_MS)));
    let rsa = with_pem(&rsa_pem()).unwrap();
    for alg in ["RS384", "RS512", "PS256", "RSA-OAEP"] {
        assert!(is_bad(rsa.verify(&token(&json!({"alg": alg}), &good_claims(), by_rsa), NOW_MS)), "{alg}");
    }
}

#[test]
fn a_modified_token_is_refused() {
    let good = token(&json!({"alg": "HS256"}), &good_claims(), by_secret(SECRET.as_bytes()));
    assert!(with_secret().verify(&good, NOW_MS).is_ok());
    let parts: Vec<_> = good.split('.').collect();
    let forged = part(good_claims().replace("orders.*", "**"));
    let other =
        token(&json!({"alg": "HS256"}), &good_claims(), by_secret(b"another secret of thirty-two bytes"));
    for bad in [
        format!("{}.{forged}.{}", parts[0], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}.{}", parts[0], parts[1], &parts[2][..40]),
        format!("{}.{}.{}=", parts[0], parts[1], parts[2]),
        format!("{} .{}.{}", parts[0], parts[1], parts[2]),
        format!(".{}.{}", parts[1], parts[2]),
        "..".to_owned(),
        "a.b.c".to_owned(),
        "é.é.é".to_owned(),
        other,
    ] {
        assert!(is_bad(with_secret().verify(&bad, NOW_MS)), "{bad}");
    }
}

#[test]
fn keys_in_a_header_are_not_used() {
    let header =
        json!({"alg": "EdDSA", "jwk": ed_jwk("mine"), "kid": "mine", "jku": "https://evil.com/keys"});
    assert!(is_bad(with_pem(&ec_pem()).unwrap().verify(&token(&header, &good_claims(), by_ed), NOW_MS)));
    let header = json!({"alg": "HS256", "crit": ["exp"]});
    let critical = token(&header, &good_claims(), by_secret(SECRET.as_bytes()));
    assert!(is_bad(with_secret().verify(&critical, NOW_MS)), "an unknown critical extension is refused");
}

#[test]
fn a_token_is_valid_from_nbf_to_exp() {
    let claims = |claims: Value| says(&claims.to_string());
    assert!(claims(json!({"exp": NOW_S - 29})).is_ok(), "the leeway is 30 s");
    assert!(matches!(claims(json!({"exp": NOW_S - 30})), Err(AuthRefused::Expired)));
    assert!(matches!(claims(json!({"exp": 0})), Err(AuthRefused::Expired)));
    assert!(claims(json!({"exp": NOW_S + 9, "nbf": NOW_S + 30})).is_ok());
    assert!(matches!(claims(json!({"exp": NOW_S + 99, "nbf": NOW_S + 31})), Err(AuthRefused::NotYetValid)));
    assert!(is_bad(claims(json!({"sub": "ada"}))), "a token without exp is refused");
}

#[test]
fn unusual_numbers_neither_panic_nor_overflow() {
    let verified = |exp: &str| says(&format!("{{\"exp\":{exp}}}"));
    for exp in ["9223372036854775807", "18446744073709551615", "1e300", "99999999999999999999999999"] {
        assert_eq!(verified(exp).unwrap().expires_ms, i64::MAX, "{exp}");
    }
    assert_eq!(verified("1700000000.5").unwrap().expires_ms, NOW_MS + 30_500);
    assert_eq!(verified("1.70000001e9").unwrap().expires_ms, NOW_MS + 40_000);
    for exp in ["-1", "-9223372036854775808", "-1e300", "-0.0", "1e-300"] {
        assert!(matches!(verified(exp), Err(AuthRefused::Expired)), "{exp}");
    }
    for exp in
        ["1e400", "NaN", "Infinity", "\"1800000000\"", "null", "true", "[1800000000]", "{}", "0x7fffffff"]
    {
        assert!(is_bad(verified(exp)), "{exp}");
    }
    for nbf in ["18446744073709551615", "1e300"] {
        assert!(
            matches!(says(&format!("{{\"exp\":1e12,\"nbf\":{nbf}}}")), Err(AuthRefused::NotYetValid)),
            "{nbf}"
        );
    }
    assert!(is_bad(says("{\"exp\":1e12,\"nbf\":\"0\"}")) && says("{\"exp\":1e12,\"nbf\":-1e300}").is_ok());
    let options = JwtOptions {
        keys: vec![JwtKey::Secret(SECRET.to_owned())],
        leeway: Duration::MAX,
        ..JwtOptions::default()
    };
    let forever = token(&json!({"alg": "HS256"}), "{\"exp\":1}", by_secret(SECRET.as_bytes()));
    assert_eq!(JwtVerifier::new(&options).unwrap().verify(&forever, NOW_MS).unwrap().expires_ms, i64::MAX);
}

#[test]
fn payloads_that_are_not_claims_are_refused() {
    let nested = format!("{{\"exp\":1e12,\"x\":{}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
    for payload in ["", "null", "[]", "1", "\"exp\"", "{", "{\"exp\":1e12}x", &nested] {
        assert!(is_bad(says(payload)), "{payload}");
    }
    assert!(is_bad(with_secret().verify(
        &{
            let message = format!("{}.{}", part("{\"alg\":\"HS256\"}"), part([0xff, 0xfe]));
            format!("{message}.{}", part(by_secret(SECRET.as_bytes())(message.as_bytes())))
        },
        NOW_MS
    )));
}

#[test]
fn issuer_and_audience_must_be_the_configured_ones() {
    let options = JwtOptions {
        keys: vec![JwtKey::Secret(SECRET.to_owned())],
        issuer: Some("https://id.example.com".to_owned()),
        audience: Some("prombus".to_owned()),
        ..JwtOptions::default()
    };
    let verifier = JwtVerifier::new(&options).unwrap();
    let verify = |iss: Value, aud: Value| {
        let mut claims = json!({"exp": NOW_S + 60});
        for (name, value) in [("iss", iss), ("aud", aud)] {
            if !value.is_null() {
                claims[name] = value;
            }
        }
        verifier.verify(
            &token(&json!({"alg": "HS256"}), &claims.to_string(), by_secret(SECRET.as_bytes())),
            NOW_MS,
        )
    };
    let issuer = || json!("https://id.example.com");
    assert!(verify(issuer(), json!("prombus")).is_ok());
    assert!(verify(issuer(), json!(["other", "prombus"])).is_ok());
    for aud in
        [json!(null), json!("other"), json!("prombus "), json!(["other"]), json!([]), json!({"prombus": 1})]
    {
        assert!(is_bad(verify(issuer(), aud.clone())), "{aud}");
    }
    for iss in
        [json!(null), json!("https://id.example.com/"), json!("evil"), json!(["https://id.example.com"])]
    {
        assert!(is_bad(verify(iss.clone(), json!("prombus"))), "{iss}");
    }
    let expired = json!({"exp": 1, "iss": "evil"}).to_string();
    let expired = token(&json!({"alg": "HS256"}), &expired, by_secret(SECRET.as_bytes()));
    assert!(is_bad(verifier.verify(&expired, NOW_MS)), "others must not learn that it has expired");
}

#[test]
fn scopes_come_from_both_claims_and_foreign_ones_are_ignored() {
    let scopes = |mut claims: Value| {
        claims["exp"] = json!(NOW_S + 60);
        says(&claims.to_string()).unwrap().scopes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(scopes(json!({"scope": "admin  openid publish:a"})), ["admin", "publish:a"]);
    assert_eq!(scopes(json!({"scopes": ["admin", 1, "email", "publish:a"]})), ["admin", "publish:a"]);
    assert_eq!(scopes(json!({"scope": "admin", "scopes": "publish:a subscribe:b"})).len(), 3);
    for odd in
        [json!({}), json!({"scope": 1}), json!({"scope": {"admin": true}}), json!({"scopes": "ADMIN *"})]
    {
        assert!(scopes(odd.clone()).is_empty(), "{odd}");
    }
}

#[test]
fn the_name_is_sub_or_jwt() {
    let name =
        |sub: Value| says(&json!({"exp": NOW_S + 60, "sub": sub}).to_string()).map(|verified| verified.name);
    assert_eq!(name(json!("ada")).unwrap(), "ada");
    assert_eq!(says("{\"exp\":1e12}").unwrap().name, "jwt");
    for sub in [json!(7), json!(null), json!(""), json!(["ada"]), json!("ada\nroot did it")] {
        assert_eq!(name(sub.clone()), Err(AuthRefused::Bad), "{sub}");
    }
}

#[test]
fn debug_shows_no_key() {
    let options = JwtOptions { keys: vec![JwtKey::Secret(SECRET.to_owned())], ..JwtOptions::default() };
    let shown = format!("{options:?} {:?}", JwtVerifier::new(&options).unwrap());
    let bytes = format!("{:?}", SECRET.as_bytes());
    let hash = format!("{:?}", digest::digest(&digest::SHA256, SECRET.as_bytes()));
    assert!(!shown.contains(SECRET) && !shown.contains(&bytes[1..20]) && !shown.contains(&hash), "{shown}");
}
