//! Who may knock where no auth is configured: this machine, and no web page of another origin.
//!
//! Listening on loopback is not enough. A page in a browser on this machine can reach it: WebSockets ignore CORS, a
//! `text/plain` POST needs no preflight, and a name of the page's own can be rebound to 127.0.0.1. The browser tells in two
//! headers, which a page cannot set: `Host` is the name that it believes to talk to, `Origin` is whose page it is. Anything in
//! them that is not plainly good is refused.

use crate::options::ServerOptions;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use thiserror::Error;

/// What a message shows of a header: the rest of a long one helps nobody.
const SHOWN_CHARACTERS: usize = 100;

/// Why a request is not let in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum GuardRefused {
    /// HTTP/1.1 needs it.
    #[error("the request has no Host header")]
    NoHost,
    /// Not a host and port.
    #[error("the Host header is not a host name or address with an optional port")]
    BadHost,
    /// A name that somebody may have pointed to this machine.
    #[error("host {0:?} is neither loopback nor configured: add it to allowed_hosts, or configure a token")]
    ForeignHost(String),
    /// A page of another site.
    #[error("pages of origin {0:?} may not use this gateway: add it to cors_origins, or configure a token")]
    ForeignOrigin(String),
}

/// Checks `Host` and `Origin` of each request.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Auth is configured: a token is asked for, and no page has one by itself.
    is_off: bool,
    allowed_hosts: Vec<Host>,
    allows_any_origin: bool,
    allowed_origins: Vec<String>,
}

impl Guard {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        Self {
            is_off: options.auth.is_configured(),
            allowed_hosts: options.allowed_hosts.iter().filter_map(|host| configured_host(host)).collect(),
            allows_any_origin: options.cors_origins.iter().any(|origin| origin == "*"),
            allowed_origins: options.cors_origins.clone(),
        }
    }

    /// Whether a request may come in: `Host` is loopback, configured, or the address that the connection came in on; and
    /// `Origin` is absent, the same as the host, or configured.
    pub(crate) fn check(
        &self,
        host: Option<&str>,
        origin: Option<&str>,
        local_ip: IpAddr,
        is_tls: bool,
    ) -> Result<(), GuardRefused> {
        if self.is_off {
            return Ok(());
        }
        let host_text = host.ok_or(GuardRefused::NoHost)?;
        let (host, port) = host_and_port(host_text).ok_or(GuardRefused::BadHost)?;
        if !host.is_loopback()
            && host != Host::Ip(local_ip.to_canonical())
            && !self.allowed_hosts.contains(&host)
        {
            return Err(GuardRefused::ForeignHost(shown(host_text)));
        }
        let Some(origin) = origin else { return Ok(()) };
        let scheme = if is_tls { Scheme::Https } else { Scheme::Http };
        let own = Origin { scheme, host, port: port.unwrap_or(scheme.default_port()) };
        if Origin::parse(origin).as_ref() == Some(&own) || self.allows_origin(origin) {
            return Ok(());
        }
        Err(GuardRefused::ForeignOrigin(shown(origin)))
    }

    /// As text too, for apps whose origin is none of the web, such as `tauri://localhost`.
    fn allows_origin(&self, origin: &str) -> bool {
        let parsed = Origin::parse(origin);
        self.allows_any_origin
            || self.allowed_origins.iter().any(|allowed| {
                allowed.eq_ignore_ascii_case(origin) || (parsed.is_some() && Origin::parse(allowed) == parsed)
            })
    }
}

/// One of the options. Brackets are not needed there: an IPv6 address has no port to be told from.
fn configured_host(text: &str) -> Option<Host> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let ip = bare.parse::<Ipv6Addr>().map(|ip| Host::Ip(IpAddr::from(ip).to_canonical()));
    let host = ip.ok().or_else(|| Host::parse(text));
    if host.is_none() {
        tracing::warn!(
            host = text,
            "an entry of allowed_hosts is not a host name or address without port: ignored"
        );
    }
    host
}

fn shown(header: &str) -> String {
    header.chars().take(SHOWN_CHARACTERS).collect()
}

/// A host, in a form that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    /// In lower case, without the dot of a full name.
    Name(String),
}

impl Host {
    /// A name or an IPv4 address: labels of letters, digits, `-` and `_`. Other ways to write an address (`127.1`, `0x7f.1`)
    /// are names that nobody has.
    fn parse(text: &str) -> Option<Self> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.split('.').any(|label| label.is_empty() || !label.bytes().all(is_good)) {
            return None;
        }
        let ip = name.parse::<Ipv4Addr>();
        Some(ip.map_or_else(|_| Self::Name(name.to_ascii_lowercase()), |ip| Self::Ip(ip.into())))
    }

    fn is_loopback(&self) -> bool {
        match self {
            Self::Ip(ip) => ip.is_loopback(),
            // Browsers never ask anybody for these names.
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

/// A `Host` header. Whatever is not a host and an optional port is refused, so nothing can hide behind `@`, `/` or spaces.
fn host_and_port(text: &str) -> Option<(Host, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            let address: Ipv6Addr = address.parse().ok()?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
            (Host::Ip(IpAddr::from(address).to_canonical()), port)
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            (Host::parse(host)?, port)
        }
    };
    let port = match port {
        None => None,
        // The parser of integers would take a sign.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
        Some(_) => return None,
    };
    Some((host, port))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Origin {
    scheme: Scheme,
    host: Host,
    port: u16,
}

impl Origin {
    /// An origin of the web; `null` and those of other schemes are none.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        let (host, port) = host_and_port(rest)?;
        Some(Self { scheme, host, port: port.unwrap_or(scheme.default_port()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Scope, TokenHash, TokenOptions};

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn guard(allowed_hosts: &[&str], cors_origins: &[&str]) -> Guard {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        Guard::new(&ServerOptions {
            allowed_hosts: texts(allowed_hosts),
            cors_origins: texts(cors_origins),
            ..ServerOptions::default()
        })
    }

    fn lets_host(guard: &Guard, host: &str) -> bool {
        guard.check(Some(host), None, LOCAL, false).is_ok()
    }

    fn lets_origin(guard: &Guard, host: &str, origin: &str) -> bool {
        guard.check(Some(host), Some(origin), LOCAL, false).is_ok()
    }

    #[test]
    fn loopback_by_any_name_comes_in() {
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
    fn a_rebound_or_malformed_host_stays_out() {
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
    fn the_address_that_the_connection_came_in_on_comes_in() {
        let guard = guard(&[], &[]);
        let check = |host, local: &str| guard.check(Some(host), None, local.parse().unwrap(), false).is_ok();
        assert!(check("192.168.1.5:8090", "192.168.1.5") && check("[fd00::1]:8090", "fd00::1"));
        assert!(check("192.168.1.5:8090", "::ffff:192.168.1.5"), "a socket for both kinds of address");
        assert!(!check("192.168.1.6:8090", "192.168.1.5") && !check("192.168.1.5.evil.com", "192.168.1.5"));
    }

    #[test]
    fn configured_hosts_come_in_with_any_port() {
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
    fn a_page_of_the_same_origin_comes_in() {
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
        assert!(
            over_tls("localhost", "https://localhost:443") && over_tls("localhost:443", "https://localhost")
        );
        assert!(!over_tls("localhost", "http://localhost") && !over_tls("localhost:80", "https://localhost"));
    }

    #[test]
    fn a_page_of_another_origin_stays_out() {
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
    fn configured_origins_come_in_but_not_at_a_rebound_host() {
        let guard = guard(&[], &["https://app.example.com", "tauri://localhost"]);
        for origin in ["https://app.example.com", "https://APP.example.com:443", "tauri://localhost"] {
            assert!(lets_origin(&guard, "localhost:8090", origin), "{origin}");
        }
        for origin in
            ["http://app.example.com", "https://app.example.com:8443", "https://example.com", "null"]
        {
            assert!(!lets_origin(&guard, "localhost:8090", origin), "{origin}");
        }
        assert!(!lets_origin(&guard, "app.example.com", "https://app.example.com"));
    }

    #[test]
    fn any_origin_is_any_but_the_host_still_counts() {
        let guard = guard(&[], &["*"]);
        assert!(
            lets_origin(&guard, "localhost", "https://evil.com") && lets_origin(&guard, "localhost", "null")
        );
        assert!(!lets_origin(&guard, "evil.com", "http://evil.com"));
    }

    #[test]
    fn with_auth_configured_the_guard_rests() {
        let mut options = ServerOptions::default();
        let secret = TokenHash::of("secret");
        options.auth.tokens.push(TokenOptions { name: "a".to_owned(), secret, scopes: Scope::all() });
        let guard = Guard::new(&options);
        assert_eq!(guard.check(Some("bus.example.com"), Some("https://evil.com"), LOCAL, true), Ok(()));
        assert_eq!(guard.check(None, None, LOCAL, true), Ok(()));
    }

    #[test]
    fn refusals_say_what_to_configure_and_stay_short() {
        let guard = guard(&[], &[]);
        let message =
            |host: &str, origin| guard.check(Some(host), origin, LOCAL, false).unwrap_err().to_string();
        assert!(
            message("bus.lan", None).contains("\"bus.lan\"")
                && message("bus.lan", None).contains("allowed_hosts")
        );
        assert!(message("localhost", Some("http://bus.lan")).contains("cors_origins"));
        assert!(message(&"a".repeat(10_000), None).len() < 300);
    }
}
