//! How a server is described in the results, and the settings that all servers are started with.

use crate::wire::{Delivery, QueueType};
use serde::{Deserialize, Serialize};

/// What a server promises when it has answered a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// It is on disk.
    Synced,
    /// It will be on disk some time later; a power cut takes it.
    NotSynced,
}

/// How a server is described in the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its name in tables and on the command line, with the setting: `redis-always`.
    pub name: String,
    /// The version that it says it has.
    pub version: String,
    /// What an answer promises.
    pub durability: Durability,
    /// That in words.
    pub promise: String,
    /// All settings that are not the default, as they were given.
    pub settings: Vec<String>,
}

/// Deliveries that a consumer takes at once.
pub const CONSUMER_WINDOW: usize = 1_000;

/// Settings that were tried, for who wants to try again. The default is what was better, or not worse.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How NATS delivers.
    pub nats_delivery: Delivery,
    /// Threads for Redis's sockets.
    pub redis_io_threads: u8,
    /// The type of RabbitMQ's queues.
    pub rabbitmq_queue: QueueType,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { nats_delivery: Delivery::Push, redis_io_threads: 1, rabbitmq_queue: QueueType::Quorum }
    }
}
