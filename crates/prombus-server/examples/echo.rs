//! A server whose WebSockets echo every message, compressed if the client negotiated it, for the Autobahn test suite
//! (`tests/autobahn/run`). Prints its port, and ends when its standard input ends.

use prombus::Bus;
use prombus_server::{Server, ServerOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use tokio::io::AsyncReadExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ServerOptions {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        max_payload_bytes: 64 << 20,
        has_permessage_deflate: true,
        ..ServerOptions::default()
    };
    options.connections.max_queued_bytes = 64 << 20;
    let bus = Bus::memory();
    let server = Server::bind(bus.backend().clone(), options).await?.into_echo();
    writeln!(std::io::stdout(), "{}", server.local_addrs()[0].port())?;
    let end_of_input = async {
        let mut rest = Vec::new();
        let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    };
    server.run(end_of_input).await?;
    Ok(())
}
