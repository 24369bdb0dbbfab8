//! The description of a server in the results, and settings that several servers use.

use crate::wire::{Delivery, QueueType};
use serde::{Deserialize, Serialize};

/// What an answer to a publish guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The message is on disk.
    Synced,
    /// The message is not on disk yet; a power cut can lose it.
    NotSynced,
}

/// The description of a server in the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its name in tables and on the command line, with the setting, e.g. `redis-always`.
    pub name: String,
    /// The version that it reports.
    pub version: String,
    /// What an answer guarantees.
    pub durability: Durability,
    /// What an answer guarantees, in words.
    pub promise: String,
    /// All settings that are not the default.
    pub settings: Vec<String>,
}

/// Maximum number of unacked deliveries per consumer.
pub const CONSUMER_WINDOW: usize = 1_000;

/// Settings of peers that can be changed to try alternatives. The default was the fastest, or not slower than the others.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How NATS delivers.
    pub nats_delivery: Delivery,
    /// Number of I/O threads of Redis.
    pub redis_io_threads: u8,
    /// The type of RabbitMQ's queues.
    pub rabbitmq_queue: QueueType,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { nats_delivery: Delivery::Push, redis_io_threads: 1, rabbitmq_queue: QueueType::Quorum }
    }
}
