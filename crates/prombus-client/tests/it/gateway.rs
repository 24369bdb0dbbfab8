//! The real gateway over a bus in memory, which can be stopped and started again at the same address.

use prombus::Bus;
use prombus_server::{Server, ServerOptions};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running gateway.
pub struct Gateway {
    bus: Bus,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Gateway {
    pub async fn start(options: ServerOptions) -> Self {
        Self::start_at(Bus::memory(), SocketAddr::from(([127, 0, 0, 1], 0)), options).await
    }

    async fn start_at(bus: Bus, address: SocketAddr, options: ServerOptions) -> Self {
        let options = ServerOptions { listen: vec![address], ..options };
        let server = Server::bind(Arc::clone(bus.backend()), options).await.unwrap();
        let address = server.local_addrs()[0];
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            server.run(shutdown).await.unwrap();
        });
        Self { bus, address, stop, running }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops serving; the bus keeps its events.
    pub async fn stop(self) -> Stopped {
        drop(self.stop);
        self.running.await.unwrap();
        Stopped { bus: self.bus, address: self.address }
    }
}

/// A gateway that can be started again.
pub struct Stopped {
    bus: Bus,
    address: SocketAddr,
}

impl Stopped {
    pub async fn start_again(self) -> Gateway {
        Gateway::start_at(self.bus, self.address, ServerOptions::default()).await
    }
}
