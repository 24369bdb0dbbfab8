//! The real gateway over a bus in memory or in a folder, which can be stopped and started again at the same address.

use prombus::Bus;
use prombus_server::{Server, ServerOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
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

    /// Starts a gateway over the bus in a folder.
    pub async fn in_folder(folder: &TempFolder) -> Self {
        let bus = Bus::open(&folder.0).await.unwrap();
        Self::start_at(bus, SocketAddr::from(([127, 0, 0, 1], 0)), ServerOptions::default()).await
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

    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Stops serving; the bus keeps its events.
    pub async fn stop(self) -> Stopped {
        drop(self.stop);
        self.running.await.unwrap();
        Stopped { bus: self.bus, address: self.address }
    }
}

/// A gateway that can be restarted.
pub struct Stopped {
    bus: Bus,
    address: SocketAddr,
}

impl Stopped {
    pub async fn start_again(self) -> Gateway {
        Gateway::start_at(self.bus, self.address, ServerOptions::default()).await
    }

    /// Closes the bus, reopens its folder and serves at the same address, as a restart of the process does.
    pub async fn restart_in(self, folder: &TempFolder) -> Gateway {
        self.bus.close().await.unwrap();
        let bus = Bus::open(&folder.0).await.unwrap();
        Gateway::start_at(bus, self.address, ServerOptions::default()).await
    }
}

/// A folder that is deleted at the end.
pub struct TempFolder(PathBuf);

impl TempFolder {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("prombus-client-{}", prombus::Uuid::now_v7()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
