//! The target of a load: a running server, a temporary server, or the library in this process.

use crate::args::{BenchArgs, Load};
use crate::cmd::server_client;
use crate::contexts::{Chosen, choose};
use anyhow::{Context, bail};
use prombus::{Bus, Uuid};
use prombus_bench::client::Progress;
use prombus_bench::ledger::Ledger;
use prombus_bench::process::{Process, free_address, prombus_serve, remove_if_stopped};
use prombus_bench::wire::{From, PrombusTarget};
use prombus_bench::{Measurement, Plan, client, in_process};
use prombus_client::Address;
use std::cell::Cell;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use tokio::runtime::Runtime;

/// The target of a load.
pub struct Target {
    /// The topic, or the prefix of the topics if there are several.
    topic: String,
    /// Whether publishers choose the ids of events.
    has_client_ids: bool,
    /// The number of topics.
    topics: usize,
    /// Maximum number of unacked deliveries per consumer.
    max_in_flight: usize,
    /// The number of runs so far. Each run on a server gets its own groups.
    runs: Cell<u32>,
    running: Running,
}

enum Running {
    Server {
        address: SocketAddr,
        host: String,
        token: Option<String>,
        /// The server process, if the bench started it. The bench then stops it at the end.
        process: Option<Process>,
    },
    Library {
        bus: Bus,
        runtime: Runtime,
        folder: PathBuf,
    },
}

impl Target {
    /// Connects to or starts the target.
    pub fn open(args: &BenchArgs, load: &Load) -> anyhow::Result<Self> {
        let id = Uuid::now_v7();
        let running = match args.has_server() {
            true => {
                let Chosen { url, token, .. } = choose(&args.server)?;
                let (address, host) = parse_url(&url)?;
                check_access(args)?;
                Running::Server { address, host, token, process: None }
            }
            false => {
                let folder = args.data.join(format!("prombus-bench-{}", id.simple()));
                std::fs::create_dir_all(&folder)
                    .with_context(|| format!("cannot create {}", folder.display()))?;
                let opened = if args.in_process {
                    open_library(folder.clone(), args)
                } else {
                    start_server(folder.clone(), args, load)
                };
                opened.inspect_err(|_| drop(std::fs::remove_dir_all(&folder)))?
            }
        };
        Ok(Self {
            topic: format!("bench.{}", id.simple()),
            has_client_ids: args.client_ids,
            topics: load.topics(args),
            max_in_flight: args.window,
            runs: Cell::new(0),
            running,
        })
    }

    /// Runs a plan.
    pub fn run(
        &self,
        plan: &Plan,
        ledger: &mut Ledger,
        tell: &mut dyn FnMut(Progress),
    ) -> anyhow::Result<Measurement> {
        self.runs.set(self.runs.get() + 1);
        match &self.running {
            Running::Server { address, host, token, process } => {
                let target = PrombusTarget {
                    address: *address,
                    host: host.clone(),
                    token: token.clone(),
                    topic: self.topic.clone(),
                    topics: self.topics,
                    group: format!("bench-{}-", self.runs.get()),
                    from: From::Earliest,
                    max_in_flight: self.max_in_flight,
                    has_client_ids: self.has_client_ids,
                };
                client::run(&target, plan, ledger, process.as_ref().map(Process::id), tell)
            }
            Running::Library { bus, runtime, .. } => {
                let books = std::mem::replace(ledger, Ledger::new(0, 1, 0));
                let ran = in_process::run(bus, &self.topic, plan, books, self.has_client_ids, tell);
                let (measurement, books) = runtime.block_on(ran)?;
                *ledger = books;
                Ok(measurement)
            }
        }
    }

    /// Stops the target and removes its data, if the bench started it.
    pub fn close(self) -> anyhow::Result<()> {
        match self.running {
            // Dropping a `Process` stops it and removes its folder.
            Running::Server { .. } => Ok(()),
            Running::Library { bus, runtime, folder } => {
                runtime.block_on(bus.close())?;
                Ok(std::fs::remove_dir_all(folder)?)
            }
        }
    }
}

fn open_library(folder: PathBuf, args: &BenchArgs) -> anyhow::Result<Running> {
    remove_if_stopped(&folder);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The same limits as a temporary server.
    let builder = Bus::builder()
        .max_topics(args.topics.saturating_add(100).clamp(100_000, 10_000_000))
        .max_payload_bytes(args.size.max(1 << 20));
    let bus = runtime.block_on(builder.open(&folder))?;
    Ok(Running::Library { bus, runtime, folder })
}

fn start_server(folder: PathBuf, args: &BenchArgs, load: &Load) -> anyhow::Result<Running> {
    let address = free_address()?;
    let mut command = prombus_serve(&std::env::current_exe()?, address);
    let connections = load.publishers(args) + args.groups + 100;
    let most = |default: usize, wanted: usize| default.max(wanted).to_string();
    command
        .env("PROMBUS_LIMITS_MAX_CONNECTIONS", most(10_000, connections))
        .env("PROMBUS_LIMITS_MAX_TOPICS", most(100_000, (args.topics + 100).min(10_000_000)))
        .env("PROMBUS_LIMITS_MAX_PAYLOAD_BYTES", most(1 << 20, args.size));
    let mut process = Process::start("the server", &folder, &mut command)?;
    process.wait_for(address)?;
    Ok(Running::Server { address, host: address.to_string(), token: None, process: Some(process) })
}

/// Fails like the other commands if the server cannot be reached or refuses the token.
fn check_access(args: &BenchArgs) -> anyhow::Result<()> {
    let client = server_client::client(&args.server)?;
    server_client::block_on(async { Ok(client.open().await?) })
}

/// The address and the host's name of a URL.
fn parse_url(url: &str) -> anyhow::Result<(SocketAddr, String)> {
    let parsed = Address::parse(url)?;
    if parsed.is_tls() {
        bail!(
            "{url}: TLS is not measured; run the bench on the server's machine, with a ws:// or http:// URL"
        );
    }
    let text = parsed.to_string();
    let host = text.trim_start_matches("http://").split('/').next().unwrap_or_default().to_owned();
    let address = host
        .to_socket_addrs()
        .with_context(|| format!("{url}: cannot resolve {host:?}"))?
        .next()
        .with_context(|| format!("{url}: {host:?} has no address"))?;
    Ok((address, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_into_address_and_host() {
        let of = |url: &str| parse_url(url).map(|(address, host)| (address.to_string(), host));
        assert_eq!(of("ws://127.0.0.1:8090").unwrap(), ("127.0.0.1:8090".into(), "127.0.0.1:8090".into()));
        assert_eq!(of("ws://127.0.0.1/ws").unwrap(), ("127.0.0.1:80".into(), "127.0.0.1:80".into()));
        assert_eq!(of("ws://[::1]:9000/").unwrap(), ("[::1]:9000".into(), "[::1]:9000".into()));
        assert!(of("wss://127.0.0.1:8090").unwrap_err().to_string().contains("TLS is not measured"));
        assert_eq!(of("127.0.0.1").unwrap().0, "127.0.0.1:8090");
    }
}
