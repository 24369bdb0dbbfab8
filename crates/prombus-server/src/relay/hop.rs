//! The hop: the connection from a follower to the leader.

use futures_util::FutureExt as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::client::TlsStream;

/// The kernel starts to probe a connection that was idle for this long.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(15);
/// Time between two probes of the kernel.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The kernel closes the connection after this many unanswered probes.
const KEEP_ALIVE_PROBES: u32 = 3;

/// If an attempt to connect takes longer than this, the next address is tried in parallel.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Why the leader cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HopError {
    #[error("the address of the leader {address} cannot be resolved: {source}")]
    Resolve { address: String, source: io::Error },
    #[error("the leader at {address} cannot be reached: {source}")]
    Connect { address: String, source: io::Error },
    #[error(
        "TLS to the leader at {address} failed; it must have the certificate of the lease record: {source}"
    )]
    Tls { address: String, source: io::Error },
    /// No bytes of the client were sent.
    #[error("the gateway at {0} refused the connection: it does not lead (yet), or the lease has changed")]
    Refused(String),
    /// No bytes of the client were sent.
    #[error("the process at {0} does not know the secret of the lease: it is not the leader")]
    Unconfirmed(String),
    #[error(
        "the leader at {0} is on another machine and its lease record has no certificate: configure TLS on all gateways \
         ([tls]), or allow plain TCP between them with --relay-insecure"
    )]
    Plain(String),
    #[error("the leader at {0} did not respond in time")]
    Late(String),
    #[error("TLS to the leader cannot be set up: {0}")]
    TlsSetup(String),
}

/// A connection to the leader.
pub(crate) enum Hop {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to the first address that responds. The attempts overlap: if packets to one address are dropped, for example because
/// of a broken IPv6 route, the next address is delayed only by [`NEXT_ADDRESS_AFTER`].
pub(super) async fn open(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let mut addresses = addresses.iter().copied();
    let mut attempts = JoinSet::new();
    loop {
        let has_begun = addresses.next().map(|address| attempts.spawn(TcpStream::connect(address))).is_some();
        tokio::select! {
            attempt = attempts.join_next() => match attempt {
                Some(Ok(Ok(socket))) => {
                    let _ = socket.set_nodelay(true);
                    keep_alive(&socket);
                    return Ok(socket);
                }
                Some(Ok(Err(error))) => last = error,
                Some(Err(error)) => last = io::Error::other(error),
                None => return Err(last),
            },
            () = sleep(NEXT_ADDRESS_AFTER), if has_begun => {}
        }
    }
}

/// Enables TCP keep-alive, which detects that the other machine is gone. The follower has no other way to detect this on an idle
/// relayed connection.
pub(crate) fn keep_alive(socket: &TcpStream) {
    use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
    // The relay also works on systems that refuse these options.
    let _ = set_socket_keepalive(socket, true);
    let _ = set_tcp_keepidle(socket, KEEP_ALIVE_IDLE);
    let _ = set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL);
    let _ = set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES);
}

impl Hop {
    /// Whether the leader has reset the connection, also if bytes that it sent before were not read.
    pub(super) fn is_reset(&self) -> bool {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(socket) => socket.get_ref().0,
        };
        // Resolves at once if the socket has an error, without a system call.
        socket.ready(Interest::ERROR).now_or_never().is_some()
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    /// An address that does not respond: its accept queue is full, so the kernel drops further attempts.
    async fn silent_address() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let listener = socket.listen(1).expect("listens");
        let address = listener.local_addr().expect("an address");
        let mut queued = Vec::new();
        while let Ok(connected) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            queued.push(connected.expect("connects"));
        }
        (listener, queued, address)
    }

    #[tokio::test]
    async fn an_address_that_does_not_respond_does_not_delay_the_next_one() {
        let (_listener, _queued, silent) = silent_address().await;
        let leader = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = leader.local_addr().expect("an address");
        let opened = timeout(Duration::from_secs(2), open(&[silent, silent, address])).await;
        assert_eq!(opened.expect("in time").expect("connects").peer_addr().expect("a peer"), address);
        let refused =
            TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
        assert_eq!(
            open(&[refused]).await.expect_err("the port is closed").kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert!(open(&[]).await.is_err());
    }
}
