//! The connection from a follower to the leader.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// When the kernel asks whether the other end of a quiet hop is alive, and how often before it gives the connection up.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_PROBES: u32 = 3;

/// Why the leader is not reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HopError {
    #[error("the address of the leader {address} cannot be resolved: {source}")]
    Resolve { address: String, source: io::Error },
    #[error("the leader at {address} cannot be reached: {source}")]
    Connect { address: String, source: io::Error },
    #[error("the leader at {address} has no TLS with the certificate of the lease record: {source}")]
    Tls { address: String, source: io::Error },
    /// Nothing of the client was sent.
    #[error(
        "the gateway at {0} did not take the connection: it does not lead (yet), or the lease has changed"
    )]
    Refused(String),
    /// Nothing of the client was sent.
    #[error("the process at {0} does not know the secret of the lease: it is not the leader")]
    Unconfirmed(String),
    #[error(
        "the leader at {0} is on another machine and its lease record has no certificate: configure TLS on all gateways \
         ([tls]), or allow plain TCP between them with --relay-insecure"
    )]
    Plain(String),
    #[error("the leader at {0} did not answer in time")]
    Late(String),
    #[error("TLS to the leader cannot be set up: {0}")]
    TlsSetup(String),
}

/// A connection to the leader.
pub(crate) enum Hop {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to the first address that answers.
pub(super) async fn open(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(socket) => {
                let _ = socket.set_nodelay(true);
                keep_alive(&socket);
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Lets the kernel notice that the other machine is gone. An idle relayed connection has no other timer at the follower.
pub(crate) fn keep_alive(socket: &TcpStream) {
    use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
    // A system that refuses these still relays.
    let _ = set_socket_keepalive(socket, true);
    let _ = set_tcp_keepidle(socket, KEEP_ALIVE_IDLE);
    let _ = set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL);
    let _ = set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES);
}

impl AsyncRead for Hop {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tls(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Hop {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Tls(socket) => Pin::new(socket).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}
