//! Why a gateway does not serve.

use crate::auth::AuthSetupError;
use crate::tls::TlsSetupError;
use std::io;
use std::net::SocketAddr;

/// Why a gateway does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Without auth only this machine may get in.
    #[error(
        "{0} is not a loopback address and no auth is configured: everybody who reaches it could read and write \
         everything. Set WS_TOKEN or [auth] in the config, or say --insecure if that is what you want"
    )]
    Open(SocketAddr),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There is no address.
    #[error("there is no address to listen on")]
    Nowhere,
    /// Auth cannot work as it is configured.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// TLS cannot work as it is configured.
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
}
