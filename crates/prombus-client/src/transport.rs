//! TCP connections to a server, with TLS if its address requires it.

use crate::address::Address;
use crate::error::ClientError;
use crate::io_reason::{io_reason, plain_text};
use crate::tls_failure::tls_failure;
use crate::trust::Trust;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long a server may take to accept a connection, and how long for the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A byte stream to and from a server.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Opens a connection.
pub(crate) async fn open(address: &Address, trust: &Trust) -> Result<Box<dyn Transport>, ClientError> {
    let no_answer = |what: &str| format!("no {what} in {} s", CONNECT_TIMEOUT.as_secs());
    let stream = match timeout(CONNECT_TIMEOUT, connect(address)).await {
        Ok(connected) => connected?,
        Err(_) => return Err(unreachable(address, no_answer("answer"))),
    };
    if !address.is_tls {
        return Ok(Box::new(stream));
    }
    match timeout(CONNECT_TIMEOUT, secure(stream, address, trust)).await {
        Ok(secured) => secured,
        // Not an error of TLS: a server that hangs or is overloaded may answer later.
        Err(_) => {
            let why = format!("{}; the server may not use TLS", no_answer("answer to the TLS handshake"));
            Err(unreachable(address, why))
        }
    }
}

async fn connect(address: &Address) -> Result<TcpStream, ClientError> {
    let found = lookup_host((address.host.as_str(), address.port)).await;
    let found: Vec<_> = found
        .map_err(|error| {
            unreachable(address, format!("unknown host {:?}: {}", address.host, plain_text(&error)))
        })?
        .collect();
    let stream = TcpStream::connect(&found[..]).await.and_then(|stream| {
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    stream.map_err(|error| unreachable(address, io_reason(&error)))
}

async fn secure(
    stream: TcpStream,
    address: &Address,
    trust: &Trust,
) -> Result<Box<dyn Transport>, ClientError> {
    let unusable = |why: String| ClientError::Tls { address: address.to_string(), why };
    let name = ServerName::try_from(address.host.clone())
        .map_err(|_| unusable(format!("{:?} cannot be the name in a certificate", address.host)))?;
    let stream = TlsConnector::from(trust.config().map_err(unusable)?).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| tls_failure(address, &error))?))
}

fn unreachable(address: &Address, why: String) -> ClientError {
    ClientError::Connect { address: address.to_string(), why }
}
