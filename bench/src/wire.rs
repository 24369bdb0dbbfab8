//! The peers' words, each a [`prombus_bench::wire::Wire`] as lean as the one of prombus.

mod amqp;
mod nats;
#[cfg(test)]
mod recorded;
mod redis;

pub use amqp::{AmqpTarget, AmqpWire, QueueType};
pub use nats::{Delivery, NatsTarget, NatsWire};
pub use redis::{RedisTarget, RedisWire};
