//! TCP connections to a server, with TLS if its address requires it.

use crate::address::Address;
use crate::error::ClientError;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A byte stream to and from a server.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Opens a connection.
pub(crate) async fn open(address: &Address) -> Result<Box<dyn Transport>, ClientError> {
    let refused = |why: String| ClientError::Connect { address: address.to_string(), why };
    match tokio::time::timeout(CONNECT_TIMEOUT, connect(address)).await {
        Ok(connected) => connected.map_err(refused),
        Err(_) => Err(refused(format!("no answer in {} s", CONNECT_TIMEOUT.as_secs()))),
    }
}

async fn connect(address: &Address) -> Result<Box<dyn Transport>, String> {
    let stream = TcpStream::connect((address.host.as_str(), address.port));
    let stream = stream.await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    if !address.is_tls {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(tls()?).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| format!("TLS: {error}"))?))
}

/// TLS that trusts the root certificates of this machine, or those in the file that `SSL_CERT_FILE` names.
fn tls() -> Result<Arc<ClientConfig>, String> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(format!("TLS: no trusted certificates on this machine{why}; SSL_CERT_FILE names a file"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))))
}
