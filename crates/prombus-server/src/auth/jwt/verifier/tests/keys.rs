//! Sources of keys: which keys are used, which are skipped, and the errors.

use super::*;
use aws_lc_rs::signature::ECDSA_P384_SHA384_FIXED_SIGNING;

fn keys_of(verifier: Result<JwtVerifier, AuthSetupError>) -> Vec<KeyPrint> {
    verifier.unwrap().keys().collect()
}

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

/// A key of Ed25519 with one other value.
fn ed_jwk_with(name: &str, value: Value) -> Value {
    let mut key = ed_jwk("one");
    key[name] = value;
    key
}

#[test]
fn keys_of_a_set_that_are_for_something_else_are_skipped() {
    let secret = json!({"kty": "oct", "k": part(SECRET), "alg": "HS256"});
    let foreign = [
        json!({"kty": "oct", "k": part(SECRET), "alg": "HS512"}),
        ed_jwk_with("use", json!("enc")),
        ed_jwk_with("alg", json!("ES256")),
        ed_jwk_with("alg", json!("X25519")),
        ed_jwk_with("key_ops", json!(["sign"])),
        ed_jwk_with("crv", json!("Ed448")),
        json!({"kty": "EC", "crv": "P-384", "x": part([1; 48]), "y": part([1; 48])}),
        json!({"kty": "RSA", "n": rsa_jwk("x")["n"], "e": "AQAB", "alg": "PS256"}),
        json!({"kty": "AKP"}),
    ];
    for key in &foreign {
        let fault = with_jwks(&json!({"keys": [key]}).to_string()).unwrap_err().to_string();
        assert!(
            fault.contains("none of its 1 keys can be used") && fault.contains("prombus-server-"),
            "{key} {fault}"
        );
    }
    let mut keys = foreign.to_vec();
    keys.push(secret);
    let verifier = with_jwks(&json!({"keys": keys}).to_string()).unwrap();
    assert_eq!(verifier.keys.len(), 1);
    let good = token(&json!({"alg": "HS256", "kid": "any"}), &good_claims(), by_secret(SECRET.as_bytes()));
    assert!(verifier.verify(&good, NOW_MS).is_ok());
}

#[test]
fn an_rsa_key_of_another_size_is_skipped_and_leading_zeros_and_padding_are_accepted() {
    let short = json!({"kty": "RSA", "n": part([0xff; 128]), "e": "AQAB"});
    let mut padded = rsa_jwk("a");
    let number = URL_SAFE_NO_PAD.decode(padded["n"].as_str().unwrap()).unwrap();
    padded["n"] = json!(format!("{}==", part([&[0], number.as_slice()].concat())));
    let set = json!({"keys": [short, padded]}).to_string();
    assert_eq!(keys_of(with_jwks(&set)), keys_of(with_pem(&rsa_pem())));
}

#[test]
fn a_set_with_a_usable_key_that_cannot_be_read_is_refused() {
    for key in [
        json!({"kty": "oct", "k": part("short")}),
        ed_jwk_with("x", json!(part([1; 31]))),
        ed_jwk_with("x", json!("???")),
        ed_jwk_with("kid", json!(7)),
        json!({"kty": "OKP", "x": part(ED.public_key())}),
        json!({"kty": "EC", "crv": "P-256", "x": part([1; 32]), "y": part([1; 32])}),
        json!({"kty": "RSA", "n": part([0xff; 256]), "e": "AA"}),
        json!({"kty": "RSA", "e": "AQAB"}),
        json!({"k": part(SECRET)}),
        json!("key"),
        json!(null),
    ] {
        let set = json!({"keys": [ed_jwk("good"), key]}).to_string();
        let fault = with_jwks(&set).unwrap_err().to_string();
        assert!(fault.contains("key 2: ") && fault.contains("prombus-server-"), "{key} {fault}");
        assert!(!fault.contains(SECRET) && !fault.contains(&part(SECRET)), "{fault}");
    }
}

#[test]
fn a_key_that_moves_from_a_pem_file_to_a_key_set_is_the_same_key() {
    for (pem, jwk) in [(rsa_pem(), rsa_jwk("a")), (ec_pem(), ec_jwk("a")), (ed_pem(), ed_jwk("a"))] {
        let (of_pem, of_set) =
            (with_pem(&pem).unwrap(), with_jwks(&json!({"keys": [jwk]}).to_string()).unwrap());
        assert!(of_pem.keys().eq(of_set.keys()), "{jwk}");
        assert!(of_set.has_new_settings(&of_pem), "it has a kid now");
    }
    let old = with_pem(&pem("RSA PUBLIC KEY", RSA.public_key())).unwrap();
    assert!(old.keys().eq(keys_of(with_pem(&rsa_pem()))));
    let set = with_jwks(&json!({"keys": [{"kty": "oct", "k": part(SECRET)}]}).to_string()).unwrap();
    assert!(set.keys().eq(with_secret().keys()));
}

#[test]
fn another_leeway_or_kid_is_a_change_and_another_key_or_order_is_not_one_of_settings() {
    let set = |keys: &[Value]| with_jwks(&json!({"keys": keys}).to_string()).unwrap();
    let before = set(&[ed_jwk("a"), ec_jwk("b")]);
    assert!(!set(&[ec_jwk("b"), ed_jwk("a")]).has_new_settings(&before));
    assert!(!set(&[ed_jwk("a"), rsa_jwk("new")]).has_new_settings(&before));
    assert!(set(&[ed_jwk("other"), ec_jwk("b")]).has_new_settings(&before));
    let keys = || vec![JwtKey::Secret(SECRET.to_owned())];
    let leeway = JwtOptions { keys: keys(), leeway: Duration::from_secs(5), ..JwtOptions::default() };
    assert!(JwtVerifier::new(&leeway).unwrap().has_new_settings(&with_secret()));
    assert!(!with_secret().has_new_settings(&with_secret()));
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
