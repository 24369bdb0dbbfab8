//! Tests with the headers that a browser sends for hostile and for harmless pages.

use super::*;
use crate::auth::{AuthOptions, Scope, TokenHash, TokenOptions};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn guard(allowed_hosts: &[&str], cors_origins: &[&str]) -> Guard {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    Guard::new(false, &texts(allowed_hosts), &texts(cors_origins))
}

fn lets_host(guard: &Guard, host: &str) -> bool {
    guard.check(Some(host), None, LOCAL, false).is_ok()
}

fn lets_origin(guard: &Guard, host: &str, origin: &str) -> bool {
    guard.check(Some(host), Some(origin), LOCAL, false).is_ok()
}

#[test]
fn loopback_is_accepted_by_any_name() {
    let guard = guard(&[], &[]);
    for host in [
        "localhost",
        "localhost:8090",
        "LOCALHOST:1",
        "localhost.",
        "localhost.:8090",
        "app.localhost:3000",
        "127.0.0.1",
        "127.0.0.1:8090",
        "127.255.0.9:65535",
        "[::1]",
        "[::1]:8090",
        "[0:0:0:0:0:0:0:1]:80",
        "[::ffff:127.0.0.1]:8090",
    ] {
        assert!(lets_host(&guard, host), "{host}");
    }
}

#[test]
fn a_rebound_or_malformed_host_is_refused() {
    let guard = guard(&[], &[]);
    assert_eq!(guard.check(None, None, LOCAL, false), Err(GuardRefused::NoHost));
    for host in [
        "evil.com",
        "evil.com:8090",
        "localhost.evil.com",
        "127.0.0.1.evil.com",
        "127.0.0.1.nip.io:8090",
        "notlocalhost",
        "evil-localhost",
        "localhost-evil.com",
        "128.0.0.1",
        "0.0.0.0:8090",
        "[::]:8090",
        "[::2]",
        "10.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0177.0.0.1",
    ] {
        let refused = guard.check(Some(host), None, LOCAL, false);
        assert_eq!(refused, Err(GuardRefused::ForeignHost(host.to_owned())), "{host}");
    }
    for host in [
        "",
        " ",
        " localhost",
        "localhost ",
        "localhost@evil.com",
        "evil.com@localhost",
        "localhost:80@evil.com",
        "[::1]evil",
        "[::1]evil:80",
        "[::1",
        "::1",
        "::1:8090",
        "[::1%25lo]",
        "[127.0.0.1]",
        "[localhost]",
        "localhost:",
        "localhost:+80",
        "localhost:-1",
        "localhost:65536",
        "localhost:80:80",
        "localhost:8o",
        "localhost..",
        ".localhost",
        ".",
        "local host",
        "localhost/",
        "localhost/@evil.com",
        "localhost?",
        "localhost#",
        "localhost\\evil.com",
        "localhost,evil.com",
        "lоcalhost",
        "localhost\t",
        "localhost\0",
        "http://localhost",
        "*",
        "[::1]:",
        "[]",
    ] {
        assert_eq!(guard.check(Some(host), None, LOCAL, false), Err(GuardRefused::BadHost), "{host:?}");
    }
}

#[test]
fn the_local_address_of_the_connection_is_accepted() {
    let guard = guard(&[], &[]);
    let check = |host, local: &str| guard.check(Some(host), None, local.parse().unwrap(), false).is_ok();
    assert!(check("192.168.1.5:8090", "192.168.1.5") && check("[fd00::1]:8090", "fd00::1"));
    assert!(check("192.168.1.5:8090", "::ffff:192.168.1.5"), "a socket for both kinds of address");
    assert!(!check("192.168.1.6:8090", "192.168.1.5") && !check("192.168.1.5.evil.com", "192.168.1.5"));
}

#[test]
fn configured_hosts_are_accepted_with_any_port() {
    let guard =
        guard(&["Bus.Example.com", "10.0.0.7", "fd00::7", "[fd00::8]", "bad host", "x.com:80", ""], &[]);
    for host in ["bus.example.com", "BUS.example.com.:8090", "10.0.0.7:1", "[fd00::7]:1", "[fd00:0::8]"] {
        assert!(lets_host(&guard, host), "{host}");
    }
    for host in ["example.com", "a.bus.example.com", "bus.example.com.evil.com", "x.com:80", "bad", ""] {
        assert!(!lets_host(&guard, host), "{host}");
    }
}

#[test]
fn a_page_of_the_same_origin_is_accepted() {
    let guard = guard(&[], &[]);
    for (host, origin) in [
        ("localhost:8090", "http://localhost:8090"),
        ("LocalHost:8090", "HTTP://localhost:8090"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("[::1]:8090", "http://[::1]:8090"),
        ("127.0.0.1:8090", "http://127.0.0.1:8090"),
    ] {
        assert!(lets_origin(&guard, host, origin), "{host} {origin}");
    }
    let over_tls = |host, origin| guard.check(Some(host), Some(origin), LOCAL, true).is_ok();
    assert!(over_tls("localhost", "https://localhost:443") && over_tls("localhost:443", "https://localhost"));
    assert!(!over_tls("localhost", "http://localhost") && !over_tls("localhost:80", "https://localhost"));
}

#[test]
fn a_page_of_another_origin_is_refused() {
    let guard = guard(&[], &[]);
    for origin in [
        "http://evil.com",
        "https://evil.com",
        "null",
        "",
        "*",
        "http://localhost",
        "http://localhost:3000",
        "https://localhost:8090",
        "http://127.0.0.1:8090",
        "http://localhost:8090.evil.com",
        "http://localhost:8090@evil.com",
        "http://evil.com@localhost:8090",
        "http://localhost.evil.com:8090",
        "http://localhost:8090/",
        "http://localhost:8090/x",
        "http://localhost:8090 http://evil.com",
        "http://localhost:8090, http://evil.com",
        " http://localhost:8090",
        "localhost:8090",
        "//localhost:8090",
        "file://",
        "http://",
        "http:localhost:8090",
        "ws://localhost:8090",
        "http://app.localhost:8090",
        "chrome-extension://abc",
        "http://localhost:18090",
        "http://[::1]:8090",
    ] {
        let refused = guard.check(Some("localhost:8090"), Some(origin), LOCAL, false);
        assert_eq!(refused, Err(GuardRefused::ForeignOrigin(origin.to_owned())), "{origin:?}");
    }
}

#[test]
fn configured_origins_are_accepted_but_not_at_a_rebound_host() {
    let guard = guard(&[], &["https://app.example.com", "tauri://localhost"]);
    for origin in ["https://app.example.com", "https://APP.example.com:443", "tauri://localhost"] {
        assert!(lets_origin(&guard, "localhost:8090", origin), "{origin}");
    }
    for origin in ["http://app.example.com", "https://app.example.com:8443", "https://example.com", "null"] {
        assert!(!lets_origin(&guard, "localhost:8090", origin), "{origin}");
    }
    assert!(!lets_origin(&guard, "app.example.com", "https://app.example.com"));
}

#[test]
fn with_any_origin_allowed_the_host_is_still_checked() {
    let guard = guard(&[], &["*"]);
    assert!(lets_origin(&guard, "localhost", "https://evil.com") && lets_origin(&guard, "localhost", "null"));
    assert!(!lets_origin(&guard, "evil.com", "http://evil.com"));
}

#[test]
fn with_auth_configured_the_guard_is_off() {
    let mut auth = AuthOptions::default();
    let secret = TokenHash::of("secret");
    auth.tokens.push(TokenOptions { name: "a".to_owned(), secret, scopes: Scope::all() });
    let guard = Guard::new(auth.is_configured(), &[], &[]);
    assert_eq!(guard.check(Some("bus.example.com"), Some("https://evil.com"), LOCAL, true), Ok(()));
    assert_eq!(guard.check(None, None, LOCAL, true), Ok(()));
}

#[test]
fn refusals_say_what_to_configure_and_are_short() {
    let guard = guard(&[], &[]);
    let message = |host: &str, origin| guard.check(Some(host), origin, LOCAL, false).unwrap_err().to_string();
    assert!(
        message("bus.lan", None).contains("\"bus.lan\"")
            && message("bus.lan", None).contains("allowed_hosts")
    );
    assert!(message("localhost", Some("http://bus.lan")).contains("cors_origins"));
    assert!(message(&"a".repeat(10_000), None).len() < 300);
}
