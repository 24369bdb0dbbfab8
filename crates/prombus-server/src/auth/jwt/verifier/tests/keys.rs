//! Sources of keys: which keys are used, which are skipped, and the errors.

use super::*;
use aws_lc_rs::signature::ECDSA_P384_SHA384_FIXED_SIGNING;

#[test]
fn the_kid_selects_the_key_of_a_set() {
    let set = json!({"keys": [ed_jwk("one"), ec_jwk("two"), rsa_jwk("three")]}).to_string();
    let verifier = with_jwks(&set).unwrap();
    let verify = |header: Value, sign: fn(&[u8]) -> Vec<u8>| {
        verifier.verify(&token(&header, &good_claims(), sign), NOW_MS).is_ok()
    };
    assert!(verify(json!({"alg": "EdDSA", "kid": "one"}), by_ed) && verify(json!({"alg": "EdDSA"}), by_ed));
    assert!(verify(json!({"alg": "ES256", "kid": "two"}), by_ec));
    assert!(verify(json!({"alg": "RS256", "kid": "three"}), by_rsa));
    for kid in ["two", "four", ""] {
        assert!(!verify(json!({"alg": "EdDSA", "kid": kid}), by_ed), "{kid}");
    }
    assert!(!verify(json!({"alg": "ES256", "kid": "one"}), by_ed) && !verify(json!({"alg": "ES256"}), by_ed));
}

#[test]
fn secrets_of_a_key_set_work_and_unusable_keys_are_skipped() {
    let secret = json!({"kty": "oct", "k": part(SECRET), "alg": "HS256"});
    let with = |name: &str, value: Value| {
        let mut key = ed_jwk("one");
        key[name] = value;
        key
    };
    let unusable = [
        json!({"kty": "oct", "k": part("short")}),
        json!({"kty": "oct", "k": part(SECRET), "alg": "HS512"}),
        with("use", json!("enc")),
        with("alg", json!("ES256")),
        with("alg", json!("X25519")),
        with("key_ops", json!(["sign"])),
        with("x", json!(part([1; 31]))),
        with("x", json!("???")),
        with("crv", json!("Ed448")),
        with("kid", json!(7)),
        json!({"kty": "EC", "crv": "P-384", "x": part([1; 48]), "y": part([1; 48])}),
        json!({"kty": "EC", "crv": "P-256", "x": part([1; 32]), "y": part([1; 32])}),
        json!({"kty": "RSA", "n": part([0xff; 128]), "e": "AQAB"}),
        json!({"kty": "RSA", "n": rsa_jwk("x")["n"], "e": "AQAB", "alg": "PS256"}),
        json!({"kty": "AKP"}),
        json!("key"),
        json!(null),
    ];
    for key in &unusable {
        let fault = with_jwks(&json!({"keys": [key]}).to_string()).unwrap_err().to_string();
        assert!(
            fault.contains("none of its 1 keys can be used") && fault.contains("prombus-server-"),
            "{key} {fault}"
        );
    }
    let mut keys = unusable.to_vec();
    keys.push(secret);
    let verifier = with_jwks(&json!({"keys": keys}).to_string()).unwrap();
    assert_eq!(verifier.keys.len(), 1);
    let good = token(&json!({"alg": "HS256", "kid": "any"}), &good_claims(), by_secret(SECRET.as_bytes()));
    assert!(verifier.verify(&good, NOW_MS).is_ok());
}

#[test]
fn unusable_keys_are_setup_errors() {
    let fault = |result: Result<JwtVerifier, AuthSetupError>| result.unwrap_err().to_string();
    assert!(matches!(JwtVerifier::new(&JwtOptions::default()), Err(AuthSetupError::NoKeys)));
    let weak = JwtKey::Secret("thirty-one bytes are not enough".to_owned());
    let weak = JwtVerifier::new(&JwtOptions { keys: vec![weak], ..JwtOptions::default() });
    let message = fault(weak);
    assert!(
        message.contains("31 bytes") && message.contains("32") && !message.contains("enough"),
        "{message}"
    );

    let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
    assert!(fault(with_pem(&pem("PUBLIC KEY", spki(p384.public_key())))).contains("unsupported public key"));
    let ring_pair = rcgen::KeyPair::generate().unwrap();
    assert!(fault(with_pem(&ring_pair.serialize_pem())).contains("private key"));
    let certificate = rcgen::generate_simple_self_signed(Vec::new()).unwrap().cert.pem();
    assert!(fault(with_pem(&certificate)).contains("certificate"));
    for text in [
        "",
        "no PEM",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n",
        "-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----",
    ] {
        let message = fault(with_pem(text));
        assert!(message.contains("prombus-server-") && message.contains("PEM"), "{message}");
    }
    for text in ["", "{", "[]", "{}", "{\"keys\":{}}", "\"my secret\"", "{\"keys\":[]}"] {
        let message = fault(with_jwks(text));
        assert!(message.contains("prombus-server-") && !message.contains("secret"), "{message}");
    }
    let nowhere = JwtKey::PemFile("/nowhere/key.pem".into());
    let nowhere = JwtVerifier::new(&JwtOptions { keys: vec![nowhere], ..JwtOptions::default() });
    assert!(fault(nowhere).contains("/nowhere/key.pem"));
}
