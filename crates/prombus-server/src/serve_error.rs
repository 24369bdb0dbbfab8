//! Errors of starting a server.

use crate::auth::AuthSetupError;
use crate::tls::TlsSetupError;
use std::io;
use std::net::SocketAddr;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A listen address is not a loopback address, and no auth is configured.
    #[error(
        "{0} is not a loopback address and no auth is configured: everyone who can reach it could read and write \
         everything. Set WS_TOKEN or [auth] in the config, or pass --insecure to allow this"
    )]
    Exposed(SocketAddr),
    /// Listening on an address failed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The options contain no address.
    #[error("no listen address is configured")]
    Nowhere,
    /// The configuration of auth is invalid.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// The configuration of TLS is invalid.
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
}
