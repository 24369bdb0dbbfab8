//! Protects a server without auth from web pages of other origins.
//!
//! Listening on loopback is not enough. A page in a browser on this machine can reach loopback: WebSockets ignore CORS, a
//! `text/plain` POST needs no preflight, and the page's own host name can be made to resolve to 127.0.0.1 (DNS rebinding). Two
//! headers, which a page cannot set, reveal such requests: `Host` is the name that the browser connects to, and `Origin` is the
//! origin of the page. Every value that is not known to be safe is refused.

#[cfg(test)]
mod tests;

use super::refused_origins::RefusedOrigins;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use thiserror::Error;

/// Longer headers are truncated in messages.
const SHOWN_CHARACTERS: usize = 100;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum GuardRefused {
    /// The `Host` header is missing; HTTP/1.1 requires it.
    #[error("the request has no Host header")]
    NoHost,
    /// The `Host` header is not a host with an optional port.
    #[error("the Host header is not a host name or address with an optional port")]
    BadHost,
    /// The host is a name that an attacker may have pointed to this machine.
    #[error("host {0:?} is neither loopback nor configured: add it to allowed_hosts, or configure a token")]
    ForeignHost(String),
    /// The request comes from a page of another origin.
    #[error("pages of origin {0:?} may not use this server: add it to cors_origins, or configure a token")]
    ForeignOrigin(String),
}

/// Checks `Host` and `Origin` of each request.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Whether the guard is off, because auth is configured: requests then need a token, which a foreign page does not have.
    is_off: bool,
    /// The configured `allowed_hosts`.
    allowed_hosts: Vec<Host>,
    /// Whether `cors_origins` contains `*`.
    allows_any_origin: bool,
    /// The configured `cors_origins`.
    allowed_origins: Vec<String>,
    refused_origins: RefusedOrigins,
}

impl Guard {
    /// `has_auth`: whether requests need a token. The guard is then off.
    pub(crate) fn new(has_auth: bool, allowed_hosts: &[String], cors_origins: &[String]) -> Self {
        Self {
            is_off: has_auth,
            allowed_hosts: allowed_hosts.iter().filter_map(|host| configured_host(host)).collect(),
            allows_any_origin: cors_origins.iter().any(|origin| origin == "*"),
            allowed_origins: cors_origins.to_vec(),
            refused_origins: RefusedOrigins::default(),
        }
    }

    /// Checks a request. `Host` must be loopback, configured, or the local address of the connection. `Origin` must be absent,
    /// the same as the host, or configured.
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
        self.refused_origins.note(&shown(origin));
        Err(GuardRefused::ForeignOrigin(shown(origin)))
    }

    /// Logs the origin of a page to which the browser shows no responses, because they have no CORS headers. A page of the
    /// server's own origin needs none and is not logged. To recognize this origin, the scheme is not compared, because a proxy
    /// may have terminated TLS.
    pub(crate) fn note_without_cors(&self, host: &str, origin: &str) {
        let own = host_and_port(host);
        let is_own = Origin::parse(origin).zip(own).is_some_and(|(origin, (host, port))| {
            origin.host == host && origin.port == port.unwrap_or(origin.scheme.default_port())
        });
        if !is_own {
            self.refused_origins.note(&shown(origin));
        }
    }

    /// Whether `cors_origins` allows this origin. It is also compared as text, for apps with other schemes, such as
    /// `tauri://localhost`.
    fn allows_origin(&self, origin: &str) -> bool {
        let parsed = Origin::parse(origin);
        self.allows_any_origin
            || self.allowed_origins.iter().any(|allowed| {
                allowed.eq_ignore_ascii_case(origin) || (parsed.is_some() && Origin::parse(allowed) == parsed)
            })
    }
}

/// Parses an entry of `allowed_hosts`; `None`, with a warning, if it is invalid. An IPv6 address needs no brackets here, because
/// an entry has no port.
fn configured_host(text: &str) -> Option<Host> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let ip = bare.parse::<Ipv6Addr>().map(|ip| Host::Ip(IpAddr::from(ip).to_canonical()));
    let host = ip.ok().or_else(|| Host::parse(text));
    if host.is_none() {
        tracing::warn!(
            host = text,
            "ignoring an entry of allowed_hosts: it must be a host name or address without port"
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
    /// In lower case, without the trailing dot.
    Name(String),
}

impl Host {
    /// Parses a name or an IPv4 address: labels of letters, digits, `-` and `_`. Other notations of an address (`127.1`,
    /// `0x7f.1`) count as names, and such names do not exist.
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
            // Browsers resolve these names to loopback without DNS.
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

/// Parses a `Host` header: a host and an optional port. Everything else is refused, such as `@`, `/` and spaces.
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
        // The integer parser would accept a sign.
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
    /// Parses an HTTP or HTTPS origin; `None` for `null` and other schemes.
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
