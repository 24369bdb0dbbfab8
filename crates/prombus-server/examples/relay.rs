//! A leader and a follower over one bus in memory, to measure the cost of the relay. Prints the ports, and ends when its standard
//! input ends:
//!
//! ```sh
//! sleep 300 | cargo run --release -p prombus-server --example relay
//! prombus bench --url ws://127.0.0.1:PORT
//! ```

use prombus::Bus;
use prombus_server::{LeaderEndpoint, Server, ServerOptions, ServerRole};
use std::io::Write as _;
use std::net::SocketAddr;
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;

const TERM: u64 = 1;
const SECRET: [u8; 32] = [1; 32];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options =
        ServerOptions { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..ServerOptions::default() };
    let bus = Bus::memory();
    let backend = bus.backend().clone();
    let (_lead, leading) = watch::channel(ServerRole::Leading { backend, term: TERM, secret: SECRET });
    let leader = Server::bind_shared(leading, options.clone()).await?;
    let leader_address = leader.local_addrs()[0];
    let endpoint = LeaderEndpoint {
        term: TERM,
        address: leader_address.to_string(),
        cert_hash: leader.cert_hash(),
        secret: SECRET,
    };
    let (_follow, following) = watch::channel(ServerRole::Following { leader: Some(endpoint) });
    let follower = Server::bind_shared(following, options).await?;
    let follower_address = follower.local_addrs()[0];
    // A server without roles over the same backend, for comparison.
    let single = Server::bind(
        bus.backend().clone(),
        ServerOptions { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..ServerOptions::default() },
    )
    .await?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "single {} leader {} follower {}",
        single.local_addrs()[0].port(),
        leader_address.port(),
        follower_address.port()
    )?;
    let (end, ended) = watch::channel(());
    let until_the_end = || {
        let mut ended = ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    };
    let serving = async {
        tokio::try_join!(
            leader.run(until_the_end()),
            follower.run(until_the_end()),
            single.run(until_the_end())
        )
    };
    let input = async {
        let mut rest = Vec::new();
        let _ = tokio::io::stdin().read_to_end(&mut rest).await;
        drop(end);
    };
    let (served, ()) = tokio::join!(serving, input);
    served?;
    Ok(())
}
