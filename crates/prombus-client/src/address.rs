//! The address of a server, the same for WebSocket and HTTP.

use crate::error::ClientError;
use std::fmt;
use std::net::IpAddr;

/// The default port of a server, for addresses without a scheme.
const PORT: u16 = 8090;

/// A server's address. `ws://` means the same as `http://`, and `wss://` the same as `https://`. The default scheme is `http://`.
///
/// A URL without a port means the port of its scheme, as everywhere: 80 for `http://` and `ws://`, 443 for `https://` and `wss://`. A host
/// without a scheme means port 8090, on which `prombus serve` listens by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether connections use TLS.
    pub(crate) is_tls: bool,
    /// The host name or IP address, without the brackets of IPv6.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The prefix of all paths, for servers behind a proxy; empty, or `/…` without a slash at its end.
    pub(crate) prefix: String,
}

impl Address {
    /// Parses an address. A `/ws` at its end is removed.
    ///
    /// # Errors
    /// [`ClientError::Address`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let bad = |why: &str| ClientError::Address { text: without_secrets(text), why: why.to_owned() };
        let given = text.trim().split_once("://");
        let (scheme, rest) = given.unwrap_or(("http", text.trim()));
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "ws" | "http" => false,
            "wss" | "https" => true,
            _ => return Err(bad("it must begin with ws://, wss://, http:// or https://")),
        };
        let (authority, path) = match rest.find(['/', '?', '#']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if path.contains(['?', '#', ' ']) {
            return Err(bad("it must not have a query or fragment; pass a token separately"));
        }
        if authority.contains('@') {
            return Err(bad("it must not contain a user; pass a token separately"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, behind) = rest.split_once(']').ok_or_else(|| bad("a ] is missing"))?;
                (host, behind.strip_prefix(':').or_else(|| (!behind.is_empty()).then_some("?")))
            }
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        let scheme_port = match (given, is_tls) {
            (None, _) => PORT,
            (Some(_), false) => 80,
            (Some(_), true) => 443,
        };
        let port = match port {
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| bad("its port must be a number from 1 to 65535"))?,
            None => scheme_port,
        };
        let prefix = path.trim_end_matches('/');
        let prefix = prefix.strip_suffix("/ws").unwrap_or(prefix).to_owned();
        Ok(Self { is_tls, host: host.to_owned(), port, prefix })
    }

    /// Whether connections use TLS.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Whether the host is this machine: `localhost`, or a loopback address.
    pub fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Host and port in the form of a `Host` header.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The URL for WebSockets.
    pub(crate) fn web_socket(&self) -> String {
        let scheme = if self.is_tls { "wss" } else { "ws" };
        format!("{scheme}://{}{}/ws", self.authority(), self.prefix)
    }
}

/// Formats the address as an HTTP URL.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

/// An address as logs may show it: without user and query, which may contain credentials.
fn without_secrets(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let (rest, query) = rest.split_at(end);
    let place = rest.rsplit_once('@').map_or_else(|| rest.to_owned(), |(_, place)| format!("…@{place}"));
    let separator = if scheme.is_empty() { "" } else { "://" };
    let query = query.chars().next().map(|mark| format!("{mark}…")).unwrap_or_default();
    format!("{scheme}{separator}{place}{query}")
}

/// Appends a text, percent-encoded for a path or a query.
pub(crate) fn put_encoded(into: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts_are_this_machine() {
        let is_loopback = |text: &str| Address::parse(text).unwrap().is_loopback();
        assert!(
            is_loopback("http://127.0.0.1:8090") && is_loopback("127.8.0.1") && is_loopback("ws://[::1]:7")
        );
        assert!(is_loopback("https://LocalHost"));
        assert!(
            !is_loopback("http://localhost.example")
                && !is_loopback("http://10.0.0.1")
                && !is_loopback("bus")
        );
    }

    #[test]
    fn all_schemes_lead_to_the_same_addresses() {
        let cases = [
            ("ws://127.0.0.1:8090/ws", "http://127.0.0.1:8090", "ws://127.0.0.1:8090/ws"),
            ("localhost", "http://localhost:8090", "ws://localhost:8090/ws"),
            ("http://localhost", "http://localhost:80", "ws://localhost:80/ws"),
            ("ws://localhost/ws", "http://localhost:80", "ws://localhost:80/ws"),
            ("localhost:9000", "http://localhost:9000", "ws://localhost:9000/ws"),
            ("wss://bus.example", "https://bus.example:443", "wss://bus.example:443/ws"),
            ("https://example.org/bus/", "https://example.org:443/bus", "wss://example.org:443/bus/ws"),
            ("ws://[::1]:7", "http://[::1]:7", "ws://[::1]:7/ws"),
        ];
        for (text, http, web_socket) in cases {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.to_string(), address.web_socket()), (http.to_owned(), web_socket.to_owned()));
        }
    }

    #[test]
    fn invalid_addresses_are_refused_with_a_reason() {
        let cases = [
            ("ftp://host", "ws://"),
            ("http://", "no host"),
            ("http://host:port", "port"),
            ("http://[::1", "]"),
            ("http://[::1]x", "port"),
            ("http://user:secret@host", "\"http://…@host\""),
            ("http://user:sec/ret@host", "port"),
            ("user:secret@host", "token"),
            ("ws://host/ws?token=secret", "\"ws://host/ws?…\""),
        ];
        for (text, why) in cases {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(!error.contains("sec"), "{text}: {error}");
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn texts_are_encoded_for_paths_and_queries() {
        let mut text = String::new();
        put_encoded(&mut text, "a.b:c/ä ?&");
        assert_eq!(text, "a.b:c%2F%C3%A4%20%3F%26");
    }
}
