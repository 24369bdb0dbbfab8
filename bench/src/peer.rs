//! The servers that are compared: finds those on this machine, defines their settings, and starts them.

mod description;
mod nats;
mod prombus;
mod rabbitmq;
mod redis;

use crate::wire::{AmqpTarget, NatsTarget, RedisTarget};
use prombus_bench::client;
use prombus_bench::ledger::Ledger;
use prombus_bench::process::{Process, find_program};
use prombus_bench::wire::PrombusTarget;
use prombus_bench::{Measurement, Plan};
use std::path::Path;
use std::time::Duration;

pub use description::{CONSUMER_WINDOW, Description, Durability, Tuning};
pub use nats::NatsPeer;
pub use prombus::PrombusPeer;
pub use rabbitmq::RabbitPeer;
pub use redis::{AppendFsync, RedisPeer};

/// A server with its settings, not started.
#[derive(Clone, Debug)]
pub enum Peer {
    /// prombus itself.
    Prombus(PrombusPeer),
    /// Redis Streams.
    Redis(RedisPeer),
    /// NATS JetStream.
    Nats(NatsPeer),
    /// RabbitMQ.
    Rabbit(RabbitPeer),
}

/// A running server and its protocol.
#[derive(Debug)]
pub struct Server {
    process: Process,
    target: AnyTarget,
    /// Another process that the server needs; it is stopped after the server.
    _helper: Option<Process>,
}

#[derive(Debug)]
enum AnyTarget {
    Prombus(PrombusTarget),
    Redis(RedisTarget),
    Nats(NatsTarget),
    Amqp(AmqpTarget),
}

impl Peer {
    /// Its description in the results.
    #[must_use]
    pub fn description(&self) -> &Description {
        match self {
            Self::Prombus(peer) => &peer.description,
            Self::Redis(peer) => &peer.description,
            Self::Nats(peer) => &peer.description,
            Self::Rabbit(peer) => &peer.description,
        }
    }

    /// The approximate time to start and stop it.
    #[must_use]
    pub fn start_time(&self) -> Duration {
        Duration::from_millis(if matches!(self, Self::Rabbit(_)) { 8_000 } else { 800 })
    }

    /// Starts it with its data in a new folder with this path. `has_client_ids` applies only to prombus.
    ///
    /// # Errors
    /// If it does not start in time.
    pub fn start(&self, folder: &Path, has_client_ids: bool) -> anyhow::Result<Server> {
        std::fs::create_dir_all(folder)?;
        let mut helper = None;
        let (process, target) = match self {
            Self::Prombus(peer) => {
                let (process, target) = peer.start(folder, has_client_ids)?;
                (process, AnyTarget::Prombus(target))
            }
            Self::Redis(peer) => {
                let (process, target) = peer.start(folder)?;
                (process, AnyTarget::Redis(target))
            }
            Self::Nats(peer) => {
                let (process, target) = peer.start(folder)?;
                (process, AnyTarget::Nats(target))
            }
            Self::Rabbit(peer) => {
                let (process, port_mapper, target) = peer.start(folder)?;
                helper = Some(port_mapper);
                (process, AnyTarget::Amqp(target))
            }
        };
        Ok(Server { process, target, _helper: helper })
    }
}

impl Server {
    /// Runs a plan against it.
    ///
    /// # Errors
    /// If the server refuses something, or closes a connection.
    pub fn run(&self, plan: &Plan) -> anyhow::Result<Measurement> {
        self.run_here(plan).map_err(|error| self.process.explain(error))
    }

    fn run_here(&self, plan: &Plan) -> anyhow::Result<Measurement> {
        let mut ledger = Ledger::new(plan.publishers, plan.topics, plan.groups);
        let (ledger, id, on_progress) = (&mut ledger, Some(self.process.id()), &mut |_| {});
        match &self.target {
            AnyTarget::Prombus(target) => client::run(target, plan, ledger, id, on_progress),
            AnyTarget::Redis(target) => client::run(target, plan, ledger, id, on_progress),
            AnyTarget::Nats(target) => client::run(target, plan, ledger, id, on_progress),
            AnyTarget::Amqp(target) => client::run(target, plan, ledger, id, on_progress),
        }
    }
}

/// The servers on this machine, and the missing ones.
#[derive(Debug, Default)]
pub struct Found {
    /// The servers; one entry for each setting of a server.
    pub peers: Vec<Peer>,
    /// The servers that are not compared, with the reason.
    pub missing: Vec<String>,
}

/// Finds prombus at this path, and the peers on this machine.
///
/// # Errors
/// If prombus is not found, or a program does not print its version.
pub fn find(prombus: &Path, tuning: Tuning) -> anyhow::Result<Found> {
    let mut found = Found::default();
    found.peers.push(Peer::Prombus(PrombusPeer::new(prombus)?));
    let missing = |name: &str, variable: &str| {
        format!("{name}: not compared, because it is neither on the PATH nor given by {variable}")
    };
    match find_program("REDIS_SERVER", "redis-server") {
        Some(path) => {
            for fsync in [AppendFsync::Everysec, AppendFsync::Always] {
                found.peers.push(Peer::Redis(RedisPeer::new(&path, fsync, tuning)?));
            }
        }
        None => found.missing.push(missing("redis-server", "REDIS_SERVER")),
    }
    match find_program("NATS_SERVER", "nats-server") {
        Some(path) => {
            let peer = NatsPeer::new(&path, false, tuning)?;
            if peer.has_sync_always() {
                found.peers.push(Peer::Nats(peer));
                found.peers.push(Peer::Nats(NatsPeer::new(&path, true, tuning)?));
            } else {
                let version = &peer.description.version;
                found.missing.push(format!(
                    "nats-always: not compared, because nats-server {version} does not support sync_interval: always (2.10 does)"
                ));
                found.peers.push(Peer::Nats(peer));
            }
        }
        None => found.missing.push(missing("nats-server", "NATS_SERVER")),
    }
    match RabbitPeer::find() {
        Some(path) => found.peers.push(Peer::Rabbit(RabbitPeer::new(&path, tuning)?)),
        None => found.missing.push(missing("rabbitmq-server", "RABBITMQ_SERVER")),
    }
    found.missing.push("kafka: not compared, because this program does not implement its protocol".into());
    Ok(found)
}
