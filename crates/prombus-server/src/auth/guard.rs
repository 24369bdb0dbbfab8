//! The guard.

use crate::options::ServerOptions;
use std::net::IpAddr;
use thiserror::Error;

/// Why a request is not let in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum GuardRefused {
    /// HTTP/1.1 needs it.
    #[error("the request has no Host header")]
    NoHost,
    /// Not a host and port.
    #[error("the Host header is not a host name or address with an optional port")]
    BadHost,
    /// A name that may have been rebound to this machine by somebody else.
    #[error("Host {0:?} is neither loopback nor configured: add it to allowed_hosts, or configure a token")]
    ForeignHost(String),
    /// A page of another site.
    #[error("pages of origin {0:?} may not use this gateway: add it to cors_origins, or configure a token")]
    ForeignOrigin(String),
}

#[derive(Debug)]
pub(crate) struct Guard {
    is_open: bool,
}

impl Guard {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        Self { is_open: options.auth.is_configured() }
    }

    pub(crate) fn check(
        &self,
        host: Option<&str>,
        _origin: Option<&str>,
        _local_ip: IpAddr,
        _is_tls: bool,
    ) -> Result<(), GuardRefused> {
        if self.is_open {
            return Ok(());
        }
        Err(host.map_or(GuardRefused::NoHost, |host| GuardRefused::ForeignHost(host.to_owned())))
    }
}
